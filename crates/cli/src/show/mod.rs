//! Prints: answers on standard output, progress on standard error.
//!
//! NOTE: `answer=$(stepfold run ...)` must be the answer alone: `docs/decisions/command.md`.

mod calls;
mod failed_request;
mod line_cutter;
mod nodes;
mod rows;
mod run_display;
mod text;
mod unfinished_run;

use stepfold::runner::WaitingMessage;
pub(crate) use stepfold::runner::log::{ActiveBranches, one_line as short};
use stepfold::session_scopes::Timestamp;
use stepfold::state_core::chat::{Arguments, ToolCall};

pub(crate) use self::calls::{approval, folded_approval, request_json, unknown_calls};
pub(crate) use self::failed_request::FailedRequest;
pub(crate) use self::line_cutter::LineCutter;
pub(crate) use self::nodes::{is_own, progress_lines};
pub(crate) use self::rows::{CONTENT, event, key_and_value, row};
pub(crate) use self::run_display::{RunDisplay, changes};
pub(crate) use self::text::{
    DIM, NAME, OutputLines, StyledText, TraceWriter, aside, bad, choose_verbose, end_of_output, in_one_line,
    is_at_terminal, is_verbose, line, note, note_exactly, note_line, on_this_line, print, reply, single_line,
    styled,
};
pub(crate) use self::unfinished_run::UnfinishedRun;

/// A call in notation, from its parts.
pub(crate) fn call_of(id: &str, tool: &str, arguments: &str) -> String {
    ToolCall::new(id, tool, Arguments::parse(arguments)).to_string()
}

/// A tool that the provider ran itself.
pub(crate) fn server_tool(tool: &str, arguments: &str) -> String {
    format!("  run by the provider: {}", short(&format!("{tool} {arguments}")))
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
