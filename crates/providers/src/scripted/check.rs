//! The rules of requests: pure functions that return the violated one.

use std::collections::HashSet;
use std::sync::Arc;

use stepfold_state_core::chat::{ChatRequest, Content, Message, Role, ToolChoice, ToolSpec};

use super::ScriptedReply;
use super::model::{ScriptLine, ScriptedExchange};

/// Whether the request is valid by itself.
pub(super) fn request(request: &ChatRequest) -> Result<(), String> {
    if request.messages.is_empty() {
        return Err("missing message".to_owned());
    }
    request.messages.check().map_err(|faults| format!("malformed conversation: {faults}"))?;
    let mut names = HashSet::new();
    for tool in request.tools.iter() {
        check_tool(tool)?;
        if !names.insert(tool.name.as_str()) {
            return Err(format!("duplicate tool `{}`", tool.name));
        }
    }
    match &request.tool_choice {
        ToolChoice::Required if names.is_empty() => {
            Err("missing tools: the tool choice requires a call".to_owned())
        }
        ToolChoice::Named(name) if !names.contains(name.as_str()) => {
            Err(format!("unknown tool `{name}` in the tool choice; available: {}", offered(request)))
        }
        _ => Ok(()),
    }
}

fn check_tool(tool: &ToolSpec) -> Result<(), String> {
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if tool.name.is_empty() || tool.name.len() > 64 || !tool.name.chars().all(is_name_char) {
        return Err(format!(
            "invalid tool name `{}`: expected at most 64 letters, digits, `_` and `-`",
            tool.name
        ));
    }
    if tool.parameters.get("type").and_then(|kind| kind.as_str()) != Some("object") {
        return Err(format!("invalid schema of tool `{}`: expected an object", tool.name));
    }
    Ok(())
}

/// Whether a reply of this model is sent back unchanged, directly after its own request, with the same tools.
/// A conversation whose last reply is not from this model is not checked.
pub(super) fn history(request: &ChatRequest, exchanges: &[ScriptedExchange]) -> Result<(), String> {
    let is_result = |message: &&Arc<Message>| message.role() == Role::Tool;
    let results = request.messages.iter().rev().take_while(is_result).count();
    let Some(position) = request.messages.len().checked_sub(results + 1) else {
        return Ok(());
    };
    let Some(last) = request.messages.get(position).filter(|last| last.role() == Role::Assistant) else {
        return Ok(());
    };
    let mut fault = Ok(());
    // NOTE: Found by the reply itself: one model may serve several conversations at once.
    for (index, exchange) in exchanges.iter().enumerate().rev() {
        if exchange.reply.as_ref().is_none_or(|reply| !is_same_reply(reply, last)) {
            continue;
        }
        let verdict = check_continuation(request, position, index + 1, exchange);
        if verdict.is_ok() {
            return Ok(());
        }
        fault = fault.and(verdict);
    }
    fault
}

/// Whether `request`, with the reply of the exchange at `position`, continues that exchange.
fn check_continuation(
    request: &ChatRequest,
    position: usize,
    number: usize,
    earlier: &ScriptedExchange,
) -> Result<(), String> {
    let before = &earlier.request.messages;
    let index = before.common_prefix(&request.messages);
    if index < before.len().min(request.messages.len()) {
        return Err(format!(
            "the prefix changed within the turn: message {index} differs from request {number}\n  \
             was: {}\n  is:  {}",
            one_line_or_nothing(before.get(index)),
            one_line_or_nothing(request.messages.get(index)),
        ));
    }
    if position != before.len() {
        return Err(format!(
            "the prefix changed within the turn: the reply to request {number} is at {position}, and \
             {} messages were asked",
            before.len()
        ));
    }
    same_tools(request, &earlier.request, number)
}

fn same_tools(request: &ChatRequest, earlier: &ChatRequest, number: usize) -> Result<(), String> {
    let changed = request
        .tools
        .iter()
        .find(|tool| earlier.tools.iter().any(|before| before.name == tool.name && before != *tool));
    match changed {
        Some(tool) => Err(format!("tool `{}` differs from request {number} of the same turn", tool.name)),
        None => Ok(()),
    }
}

/// Whether the request ends with the script's expected messages.
pub(super) fn ending(request: &ChatRequest, expects: &[Arc<Message>]) -> Result<(), String> {
    let start = request.messages.len().saturating_sub(expects.len());
    let found: Vec<&Arc<Message>> = request.messages.iter_from(start).collect();
    let differs = expects.iter().enumerate().find(|(index, expected)| found.get(*index) != Some(expected));
    match differs {
        Some((index, expected)) => Err(format!(
            "the conversation diverged from the script\n  expected: {}\n  found:    {}",
            one_line(expected),
            one_line_or_nothing(found.get(index).copied()),
        )),
        None => Ok(()),
    }
}

/// Counts the replies that a conversation already has at its end, each after the messages that are expected before
/// it. Never all of them: a script that was played to its end starts again.
pub(super) fn count_given(request: &ChatRequest, lines: &[ScriptLine]) -> usize {
    let messages: Vec<&Arc<Message>> = request.messages.iter().collect();
    (1..lines.len()).rev().find(|count| ends_with(&messages, &lines[..*count])).unwrap_or(0)
}

fn ends_with(messages: &[&Arc<Message>], lines: &[ScriptLine]) -> bool {
    let mut before = messages;
    lines.iter().rev().all(|line| {
        let last = before.iter().rposition(|message| message.role() == Role::Assistant);
        let (Some(last), Ok(reply)) = (last, &line.reply.message) else { return false };
        let is_given = is_same_reply(reply, before[last]);
        before = &before[..last];
        let expected = line.expects.iter().collect::<Vec<_>>();
        is_given && before.ends_with(&expected)
    })
}

/// Describes the last message of a request, for an error.
pub(super) fn last(request: &ChatRequest) -> String {
    let last = request.messages.last().map(one_line);
    last.map(|line| format!("\n  it ends with: {line}")).unwrap_or_default()
}

/// Whether the next reply calls only offered tools.
pub(super) fn reply(request: &ChatRequest, reply: &ScriptedReply) -> Result<(), String> {
    let message =
        reply.message.as_ref().map_err(|error| format!("invalid notation in the script: {error}"))?;
    let is_offered = |name: &str| request.tools.iter().any(|tool| tool.name == name);
    let unknown = message.tool_calls().find(|call| !is_offered(&call.name));
    match unknown {
        Some(call) if !reply.may_call_unknown_tools => {
            Err(format!("unknown tool `{}` in the script; available: {}", call.name, offered(request)))
        }
        _ => Ok(()),
    }
}

fn offered(request: &ChatRequest) -> String {
    let names: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Whether `theirs` is the reply `ours`, call ids aside.
fn is_same_reply(ours: &Message, theirs: &Message) -> bool {
    ours.parts().len() == theirs.parts().len()
        && ours.parts().iter().zip(theirs.parts()).all(|(ours, theirs)| {
            match (&ours.content, &theirs.content) {
                (Content::ToolCall(ours), Content::ToolCall(theirs)) => {
                    ours.name == theirs.name && ours.arguments == theirs.arguments
                }
                (ours, theirs) => ours == theirs,
            }
        })
}

/// A message in notation, for an error.
fn one_line_or_nothing(message: Option<&Arc<Message>>) -> String {
    message.map_or_else(|| "nothing".to_owned(), one_line)
}

fn one_line(message: &Arc<Message>) -> String {
    let transcript: stepfold_state_core::chat::Transcript = [Arc::clone(message)].into_iter().collect();
    transcript.to_string().trim_end().to_owned()
}
