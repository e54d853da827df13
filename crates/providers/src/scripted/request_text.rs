//! The requests of a scripted model as text: for each request its new messages only, so that tests are readable.

use std::fmt::Write as _;
use std::sync::Arc;

use stepfold_state_core::chat::{ChatRequest, ToolChoice, Transcript};

use super::model::ScriptedExchange;

pub(super) fn render(exchanges: &[ScriptedExchange]) -> String {
    let mut text = String::new();
    for (index, exchange) in exchanges.iter().enumerate() {
        let request = &exchange.request;
        let (shared, base) = longest_prefix(request, &exchanges[..index]);
        // Writing to a string cannot fail.
        let _ = write!(text, "-- request {}", index + 1);
        if shared > 0 {
            let _ = write!(text, ", after the first {shared} of request {base}");
        }
        text.push('\n');
        text.push_str(&options(request));
        let new: Transcript = request.messages.iter_from(shared).map(Arc::clone).collect();
        let new = new.to_string();
        text.push_str(new.trim_end());
        text.push('\n');
    }
    text
}

/// Returns the length of the longest prefix that the request shares with an earlier one, and the number of that request;
/// of several the last.
fn longest_prefix(request: &ChatRequest, earlier: &[ScriptedExchange]) -> (usize, usize) {
    let mut best = (0, 0);
    for (index, exchange) in earlier.iter().enumerate() {
        let shared = request.messages.common_prefix(&exchange.request.messages);
        if shared > 0 && shared >= best.0 {
            best = (shared, index + 1);
        }
    }
    best
}

/// Describes the options of a request, one line each.
fn options(request: &ChatRequest) -> String {
    let mut lines = Vec::new();
    if !request.tools.is_empty() {
        let names: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
        lines.push(format!("# tools: {}", names.join(", ")));
    }
    match &request.tool_choice {
        ToolChoice::Auto => {}
        ToolChoice::None => lines.push("# tool choice: none".to_owned()),
        ToolChoice::Required => lines.push("# tool choice: required".to_owned()),
        ToolChoice::Named(name) => lines.push(format!("# tool choice: {name}")),
        other => lines.push(format!("# tool choice: {other:?}")),
    }
    if let Some(model) = &request.model {
        lines.push(format!("# model: {model}"));
    }
    // An end for the last line, and nothing if there is none.
    lines.push(String::new());
    lines.join("\n")
}
