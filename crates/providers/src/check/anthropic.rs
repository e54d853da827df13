//! Anthropic's Messages.

use std::collections::HashSet;

use serde_json::Value;

use super::{RuleFaults, is_blank, is_name, items, text};

pub(super) fn check(body: &Value, faults: &mut RuleFaults) {
    for (at, block) in items(&body["system"]).iter().enumerate() {
        faults.require(!is_blank(text(block, "text")), "text", || format!("system[{at}]: the text is blank"));
    }
    let messages = items(&body["messages"]);
    let first = messages.first().map(|message| text(message, "role"));
    faults.require(first == Some("user"), "first", || "messages: none of the user first".to_owned());
    let mut seen = HashSet::new();
    for (at, message) in messages.iter().enumerate() {
        let blocks = items(&message["content"]);
        faults.require(!blocks.is_empty(), "text", || format!("messages[{at}]: the message is empty"));
        for (index, block) in blocks.iter().enumerate() {
            self::block(&format!("messages[{at}].content[{index}]"), block, faults);
        }
        let is_reply = message["role"] == "assistant";
        let ends_thinking = blocks.last().is_some_and(is_thinking);
        faults.require(!is_reply || !ends_thinking, "reasoning-order", || {
            format!("messages[{at}]: the last block is `thinking`")
        });
        for block in blocks.iter().filter(|block| block["type"] == "tool_use") {
            let id = text(block, "id");
            faults.require(seen.insert(id.to_owned()), "call-id", || format!("messages[{at}]: `{id}` again"));
        }
        answered(at, message, messages.get(at + 1), faults);
    }
    answered_by_server(messages, faults);
    thinking(body, messages, faults);
}

fn is_thinking(block: &Value) -> bool {
    matches!(text(block, "type"), "thinking" | "redacted_thinking")
}

fn block(place: &str, block: &Value, faults: &mut RuleFaults) {
    match text(block, "type") {
        "text" => {
            faults.require(!is_blank(text(block, "text")), "text", || format!("{place}: the text is blank"));
        }
        "tool_use" => {
            let (id, name) = (text(block, "id"), text(block, "name"));
            faults.require(is_name(id, "_-", 64), "call-id", || format!("{place}: `{id}`"));
            faults.require(is_name(name, "_-", 128), "tool-name", || format!("{place}: `{name}`"));
            faults
                .require(block["input"].is_object(), "arguments", || format!("{place}: {}", block["input"]));
        }
        "tool_result" => result(place, block, faults),
        "thinking" => {
            faults.require(block["signature"].is_string(), "thinking", || format!("{place}: no signature"));
        }
        _ => {}
    }
}

fn result(place: &str, block: &Value, faults: &mut RuleFaults) {
    let content = &block["content"];
    let is_empty = content.as_str().map_or_else(|| items(content).is_empty(), is_blank);
    let is_error = block["is_error"] == true;
    faults.require(!is_empty || !is_error, "failure", || format!("{place}: the content is empty"));
    for (index, part) in items(content).iter().enumerate() {
        self::block(&format!("{place}.content[{index}]"), part, faults);
    }
}

/// The calls of a message are answered by the first blocks of the next one.
fn answered(at: usize, message: &Value, next: Option<&Value>, faults: &mut RuleFaults) {
    let of = |message: &Value, kind: &str, name: &str| -> Vec<String> {
        let blocks = items(&message["content"]).iter().filter(|block| block["type"] == kind);
        blocks.map(|block| text(block, name).to_owned()).collect()
    };
    let mut calls = of(message, "tool_use", "id");
    let mut answers = next.map_or_else(Vec::new, |next| of(next, "tool_result", "tool_use_id"));
    calls.sort();
    answers.sort();
    faults.require(calls == answers, "answered", || {
        format!("messages[{at}]: {calls:?} is answered by {answers:?}")
    });
    let blocks = next.map_or(&[][..], |next| items(&next["content"]));
    let count = blocks.iter().take_while(|block| block["type"] == "tool_result").count();
    faults.require(count == answers.len(), "answered", || {
        format!("messages[{}]: something before a result", at + 1)
    });
}

/// Tools that the server runs have their results in the same turn.
fn answered_by_server(messages: &[Value], faults: &mut RuleFaults) {
    let mut open: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let blocks = items(&message["content"]);
        if message["role"] == "user" && blocks.iter().all(|block| block["type"] != "tool_result") {
            let is_answered = open.is_empty();
            faults.require(is_answered, "answered", || format!("messages[{at}]: {open:?} have no results"));
            open.clear();
        }
        for block in blocks.iter().filter(|_| message["role"] == "assistant") {
            let kind = text(block, "type");
            if kind != "tool_use" && kind.ends_with("_tool_use") {
                open.push(text(block, "id"));
            }
            open.retain(|id| *id != text(block, "tool_use_id"));
        }
    }
}

/// With thinking on, the reply that a turn begins with begins with thinking.
fn thinking(body: &Value, messages: &[Value], faults: &mut RuleFaults) {
    if body["thinking"]["type"] != "enabled" {
        return;
    }
    let is_asked = |message: &Value| {
        message["role"] == "user"
            && items(&message["content"]).iter().all(|block| block["type"] != "tool_result")
    };
    let start = messages.iter().rposition(is_asked).map_or(0, |at| at + 1);
    let first = messages.iter().enumerate().skip(start).find(|(_, message)| message["role"] == "assistant");
    if let Some((at, reply)) = first {
        let is_signed = items(&reply["content"]).first().is_some_and(is_thinking);
        faults.require(is_signed, "thinking", || format!("messages[{at}]: the turn begins without thinking"));
    }
}
