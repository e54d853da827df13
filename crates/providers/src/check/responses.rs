//! OpenAI's Responses.

use std::collections::HashSet;

use serde_json::Value;

use super::{RuleFaults, is_blank, is_name, items, text};

pub(super) fn check(body: &Value, faults: &mut RuleFaults) {
    let input = items(&body["input"]);
    let mut open: Vec<String> = Vec::new();
    let (mut seen, mut ids) = (HashSet::new(), HashSet::new());
    for (at, item) in input.iter().enumerate() {
        if let Some(id) = item["id"].as_str() {
            faults.require(ids.insert(id.to_owned()), "call-id", || {
                format!("input[{at}]: the item `{id}` again")
            });
        }
        match text(item, "type") {
            "message" => message(at, item, faults),
            "reasoning" => reasoning(at, input.get(at + 1), faults),
            "function_call" => {
                let (id, name) = (text(item, "call_id"), text(item, "name"));
                faults.require(is_name(name, "_-", 64), "tool-name", || format!("input[{at}]: `{name}`"));
                let is_legal = !id.is_empty() && id.chars().count() <= 64;
                faults.require(is_legal, "call-id", || format!("input[{at}]: `{id}`"));
                faults
                    .require(seen.insert(id.to_owned()), "call-id", || format!("input[{at}]: `{id}` again"));
                open.push(id.to_owned());
            }
            "function_call_output" => {
                let id = text(item, "call_id");
                let call = open.iter().position(|open| open == id);
                faults.require(call.is_some(), "answered", || format!("input[{at}]: no call `{id}`"));
                call.map(|call| open.remove(call));
                let is_there = item["output"].is_string() || item["output"].is_array();
                faults.require(is_there, "answered", || format!("input[{at}]: no output"));
            }
            _ => {}
        }
    }
    faults.require(open.is_empty(), "answered", || format!("input: {open:?} is not answered"));
}

fn message(at: usize, item: &Value, faults: &mut RuleFaults) {
    let parts = items(&item["content"]);
    faults.require(!parts.is_empty(), "text", || format!("input[{at}]: the message is empty"));
    for (index, part) in parts.iter().enumerate() {
        let is_text = matches!(text(part, "type"), "input_text" | "output_text");
        faults.require(!is_text || !is_blank(text(part, "text")), "text", || {
            format!("input[{at}].content[{index}]: the text is blank")
        });
    }
}

/// Reasoning must directly precede the item that it belongs to.
fn reasoning(at: usize, next: Option<&Value>, faults: &mut RuleFaults) {
    let is_followed = next.is_some_and(|next| match text(next, "type") {
        "message" => next["role"] == "assistant",
        "function_call_output" | "reasoning" => false,
        _ => true,
    });
    faults.require(is_followed, "reasoning-order", || format!("input[{at}]: nothing follows the reasoning"));
}
