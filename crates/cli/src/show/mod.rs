//! Prints: answers on standard output, progress on standard error.
//!
//! NOTE: `answer=$(stepfold run ...)` must be the answer alone: `docs/decisions/command.md`.

mod active_branches;
mod calls;
pub(crate) mod commit_lines;
mod failed_request;
mod line_cutter;
mod nodes;
mod rows;
mod run_display;
mod text;
mod unfinished_run;

use stepfold::prelude::*;
use stepfold::runner::WaitingMessage;
use stepfold::session_scopes::Timestamp;
use stepfold::state_core::chat::{Arguments, Content, Role, ToolCall, ToolContent, ToolResult};

pub(crate) use self::active_branches::ActiveBranches;
pub(crate) use self::calls::{approval, change, folded_approval, request_json, unknown_calls};
pub(crate) use self::failed_request::FailedRequest;
pub(crate) use self::line_cutter::LineCutter;
use self::nodes::route;
pub(crate) use self::nodes::{is_own, progress_lines};
pub(crate) use self::rows::{CONTENT, event, key_and_value, row};
pub(crate) use self::run_display::{RunDisplay, changes};
pub(crate) use self::text::{
    DIM, NAME, StyledText, TraceWriter, aside, bad, choose_verbose, end_of_output, is_at_terminal,
    is_verbose, line, note, note_exactly, on_this_line, print, reply, styled,
};
pub(crate) use self::unfinished_run::UnfinishedRun;

/// The characters of a result that are shown while a run is followed.
const SHORT: usize = 200;

/// A call in notation, without the role.
pub(crate) fn call(call: &ToolCall) -> String {
    let message = Message::new(Role::Assistant).with_part(call.clone());
    let text = Transcript::new().with(message).to_string();
    text.trim_start_matches("assistant:").trim().to_owned()
}

/// A call in notation, from its parts.
pub(crate) fn call_of(id: &str, tool: &str, arguments: &str) -> String {
    call(&ToolCall::new(id, tool, Arguments::parse(arguments)))
}

/// A tool that the provider ran itself.
pub(crate) fn server_tool(tool: &str, arguments: &str) -> String {
    format!("  run by the provider: {}", short(&format!("{tool} {arguments}")))
}

/// Messages in a readable form: a result of several texts becomes one text, since the notation of parts is JSON, which
/// people do not read well.
pub(crate) fn readable_messages<'a>(messages: impl IntoIterator<Item = &'a Message>) -> Transcript {
    messages.into_iter().map(readable_message).collect()
}

fn readable_message(message: &Message) -> Message {
    let is_text = |result: &&ToolResult| match result.content() {
        ToolContent::Parts(parts) => parts.iter().all(|part| matches!(part.content, Content::Text(_))),
        _ => false,
    };
    let in_pieces = message.tool_result().filter(is_text);
    in_pieces.map_or_else(
        || message.clone(),
        |result| {
            Message::tool(ToolResult::value(result.call_id(), result.name(), result.text().into_owned()))
        },
    )
}

/// A decision about a call, as text.
pub(crate) fn decision(id: &str, decision: &Decision) -> String {
    match decision {
        Decision::Approve => format!("{id} approved"),
        Decision::Reject { reason } if reason.is_empty() => format!("{id} rejected"),
        Decision::Reject { reason } => format!("{id} rejected: {reason}"),
        Decision::Modify { arguments } => format!("{id} approved with {arguments}"),
        Decision::Complete { outcome } => format!("{id} completed: {outcome}"),
        Decision::Expire => format!("{id} expired"),
        decision => format!("{id}: {decision:?}"),
    }
}

/// The text of a message in an inbox.
pub(crate) fn message_text(waiting: &WaitingMessage) -> String {
    let messages = waiting.input.only_messages().unwrap_or_default();
    let readable_messages: Vec<_> = messages.iter().map(|message| message.text()).collect();
    readable_messages.join("\n")
}

/// A time, to the second.
pub(crate) fn moment(at: Timestamp) -> String {
    let text = at.to_string();
    text.get(..19).unwrap_or(&text).to_owned()
}

/// A number of things, in words.
pub(crate) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A text in one short line.
pub(crate) fn short(text: &str) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(SHORT) {
        line.truncate(end);
        line.push_str(" ...");
    }
    line
}
