//! Chat completions, of OpenAI and of servers like it.

use std::collections::HashSet;

use serde_json::Value;

use super::tools::is_tool_name;
use super::{KnownServer, RuleFaults, is_blank, items, text};

pub(super) fn check(server: KnownServer, body: &Value, faults: &mut RuleFaults) {
    let messages = items(&body["messages"]);
    order(server, messages, faults);
    calls(server, messages, faults);
    for (at, message) in messages.iter().enumerate() {
        match text(message, "role") {
            "assistant" => reply(server, at, message, faults),
            "tool" => result(server, at, message, faults),
            "system" | "developer" | "user" => input_message(at, message, faults),
            other => faults.add("text", format!("messages[{at}]: unknown role `{other}`")),
        }
    }
}

/// The text of a content, and whether there is something else in it.
fn content(message: &Value) -> (String, bool) {
    match &message["content"] {
        Value::String(text) => (text.clone(), false),
        parts => {
            let texts = items(parts).iter().map(|part| text(part, "text")).collect();
            (texts, items(parts).iter().any(|part| part["type"] != "text" && part["type"] != "thinking"))
        }
    }
}

fn input_message(at: usize, message: &Value, faults: &mut RuleFaults) {
    let (text, has_media) = content(message);
    faults.require(!is_blank(&text) || has_media, "text", || format!("messages[{at}]: the message is empty"));
    for (part, wired) in items(&message["content"]).iter().enumerate() {
        let is_text = wired["type"] == "text";
        faults.require(!is_text || !is_blank(wired["text"].as_str().unwrap_or_default()), "text", || {
            format!("messages[{at}].content[{part}]: the text is blank")
        });
    }
}

fn reply(server: KnownServer, at: usize, message: &Value, faults: &mut RuleFaults) {
    let has_calls = !items(&message["tool_calls"]).is_empty();
    let (words, has_media) = content(message);
    faults.require(!has_media, "text", || format!("messages[{at}]: media of the assistant"));
    faults
        .require(has_calls || !is_blank(&words), "text", || format!("messages[{at}]: the message is empty"));
    faults.require(words.is_empty() || !is_blank(&words), "text", || {
        format!("messages[{at}]: blank text beside calls")
    });
    if matches!(server, KnownServer::Kimi | KnownServer::DeepSeek) {
        faults.require(message["reasoning_content"].is_string(), "reasoning", || {
            format!("messages[{at}]: missing `reasoning_content`")
        });
    }
    for (index, call) in items(&message["tool_calls"]).iter().enumerate() {
        let place = || format!("messages[{at}].tool_calls[{index}]");
        let (name, arguments) = (text(&call["function"], "name"), text(&call["function"], "arguments"));
        faults.require(is_tool_name(server, name), "tool-name", || format!("{}: `{name}`", place()));
        let is_object = serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object());
        faults.require(is_object || server == KnownServer::OpenAiChat, "arguments", || {
            format!("{}: `{arguments}`", place())
        });
    }
}

fn result(server: KnownServer, at: usize, message: &Value, faults: &mut RuleFaults) {
    let (words, has_media) = content(message);
    faults.require(!has_media, "text", || format!("messages[{at}]: media in the result of a call"));
    // OpenAI takes an empty result.
    faults.require(server == KnownServer::OpenAiChat || !is_blank(&words), "text", || {
        format!("messages[{at}]: the message is empty")
    });
}

fn order(server: KnownServer, messages: &[Value], faults: &mut RuleFaults) {
    let role = |at: usize| messages.get(at).map_or("", |message: &Value| text(message, "role"));
    let is_system = |role: &str| matches!(role, "system" | "developer");
    if server == KnownServer::OpenAiChat {
        return;
    }
    for at in 0..messages.len() {
        faults.require(at == 0 || !is_system(role(at)), "system", || {
            format!("messages[{at}]: a system message that is not the first message")
        });
    }
    let first = messages.iter().position(|message| !is_system(text(message, "role")));
    faults.require(first.is_some_and(|at| role(at) == "user"), "first", || {
        "messages: none of the user first".to_owned()
    });
    for at in 1..messages.len() {
        let after_result = role(at) == "user" && role(at - 1) == "tool";
        let strict = matches!(server, KnownServer::Mistral | KnownServer::QwenTemplate);
        faults.require(!after_result || !strict, "after-result", || format!("messages[{at}]"));
        let repeats = role(at) == role(at - 1) && matches!(role(at), "user" | "assistant");
        faults
            .require(!repeats || server != KnownServer::QwenTemplate, "turns", || format!("messages[{at}]"));
    }
}

fn calls(server: KnownServer, messages: &[Value], faults: &mut RuleFaults) {
    let mut open: Vec<String> = Vec::new();
    let mut seen = HashSet::new();
    for (at, message) in messages.iter().enumerate() {
        if text(message, "role") == "tool" {
            let id = text(message, "tool_call_id");
            let call = open.iter().position(|open| open == id);
            faults.require(call.is_some(), "answered", || format!("messages[{at}]: no call `{id}`"));
            call.map(|call| open.remove(call));
            continue;
        }
        faults.require(open.is_empty(), "answered", || {
            format!("messages[{at}]: before it {open:?} is not answered")
        });
        open.clear();
        for call in items(&message["tool_calls"]) {
            let id = text(call, "id");
            let is_legal = match server {
                KnownServer::Mistral => id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric()),
                KnownServer::OpenAiChat => !id.is_empty() && id.chars().count() <= 40,
                _ => !id.is_empty(),
            };
            faults.require(is_legal, "call-id", || format!("messages[{at}]: `{id}`"));
            faults.require(seen.insert(id.to_owned()), "call-id", || format!("messages[{at}]: `{id}` again"));
            open.push(id.to_owned());
        }
    }
    faults.require(open.is_empty(), "answered", || format!("messages: {open:?} is not answered"));
}
