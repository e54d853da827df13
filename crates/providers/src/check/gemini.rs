//! Gemini's generateContent.

use serde_json::Value;

use super::{RuleFaults, is_blank, is_name, items, text};

pub(super) fn check(body: &Value, faults: &mut RuleFaults) {
    for (at, part) in items(&body["systemInstruction"]["parts"]).iter().enumerate() {
        faults.require(!is_blank(text(part, "text")), "text", || format!("systemInstruction[{at}]: blank"));
    }
    let contents = items(&body["contents"]);
    let first = contents.first().map(|content| text(content, "role"));
    faults.require(first == Some("user"), "first", || "contents: none of the user first".to_owned());
    for (at, content) in contents.iter().enumerate() {
        let parts = items(&content["parts"]);
        faults.require(!parts.is_empty(), "text", || format!("contents[{at}]: no parts"));
        for (index, part) in parts.iter().enumerate() {
            self::part(&format!("contents[{at}].parts[{index}]"), part, faults);
        }
        answered(at, content, contents.get(at + 1), faults);
        let repeats = at > 0 && contents[at - 1]["role"] == content["role"];
        faults.require(!repeats, "turns", || format!("contents[{at}]: two contents of one role"));
    }
}

/// Whether the first call of each reply is signed, as models from Gemini 3 on require.
pub(super) fn unsigned(body: &Value) -> Option<String> {
    let contents = items(&body["contents"]).iter().enumerate();
    let mut replies = contents.filter(|(_, content)| content["role"] == "model");
    replies.find_map(|(at, content)| {
        let call = items(&content["parts"]).iter().find(|part| part["functionCall"].is_object())?;
        let signature = call["thoughtSignature"].as_str().unwrap_or_default();
        signature.is_empty().then(|| format!("contents[{at}]: the first call has no signature"))
    })
}

fn part(place: &str, part: &Value, faults: &mut RuleFaults) {
    let has_content = part.as_object().is_some_and(|fields| {
        fields.keys().any(|name| !matches!(name.as_str(), "thought" | "thoughtSignature"))
    });
    faults.require(has_content, "text", || format!("{place}: nothing in it"));
    if let Some(text) = part["text"].as_str() {
        let is_signed = part["thoughtSignature"].is_string();
        faults.require(is_signed || !is_blank(text), "text", || format!("{place}: the text is blank"));
    }
    for kind in ["functionCall", "functionResponse"] {
        if !part[kind].is_object() {
            continue;
        }
        let name = text(&part[kind], "name");
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        faults.require(begins && is_name(name, "_.:-", 64), "tool-name", || format!("{place}: `{name}`"));
    }
    if part["functionCall"].is_object() {
        let args = &part["functionCall"]["args"];
        faults.require(args.is_object(), "arguments", || format!("{place}: {args}"));
    }
    if part["functionResponse"].is_object() {
        let response = &part["functionResponse"]["response"];
        faults.require(response.is_object(), "answered", || format!("{place}: {response}"));
    }
}

/// As many answers as calls, in the next content.
fn answered(at: usize, content: &Value, next: Option<&Value>, faults: &mut RuleFaults) {
    let names = |content: &Value, kind: &str| -> Vec<String> {
        let parts = items(&content["parts"]).iter().filter(|part| part[kind].is_object());
        let mut names: Vec<String> = parts.map(|part| text(&part[kind], "name").to_owned()).collect();
        names.sort();
        names
    };
    let calls = names(content, "functionCall");
    let answers = next.map_or_else(Vec::new, |next| names(next, "functionResponse"));
    faults.require(calls == answers, "answered", || {
        format!("contents[{at}]: {calls:?} is answered by {answers:?}")
    });
}
