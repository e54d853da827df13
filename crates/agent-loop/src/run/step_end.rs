//! The end of a step of calls: the results as messages, the writes as one delta, in call order.

use std::sync::Arc;

use stepfold_state_core::chat::{Message, Part, ToolCall, ToolContent, ToolResult, Transcript};
use stepfold_tools::{CallFailure, CallOutcome, CallStatus, settle};

use super::event::{Event, StepEnd};
use super::feed::WriteRanges;
use super::machine::Run;
use crate::approval::is_modification_note;

/// An outcome of a call that the loop did not let run.
pub(crate) fn not_run(call: &ToolCall, why: &str) -> CallOutcome {
    let text = format!("tool '{}' was not run: {why}", call.name);
    CallOutcome::without_result(call, CallStatus::Failed(CallFailure::NotRun), text)
}

/// The result, followed by a note for the model.
pub(crate) fn with_note(result: &ToolResult, note: &str) -> ToolResult {
    let content = match result.content() {
        ToolContent::Error(text) => ToolContent::Error(format!("{text}\n{note}")),
        ToolContent::Parts(parts) => {
            ToolContent::Parts(parts.iter().cloned().chain([Part::text(format!("\n{note}"))]).collect())
        }
        _ => {
            ToolContent::Parts(vec![Part::text(result.text().into_owned()), Part::text(format!("\n{note}"))])
        }
    };
    ToolResult::new(result.call_id(), result.name(), content)
}

/// Whether a text is a note for the model beside a result.
pub(crate) fn is_note(text: &str) -> bool {
    let Some(note) = text.strip_prefix('\n') else { return false };
    note == REPEATED || is_modification_note(note)
}

/// The note for the model when it repeats itself.
const REPEATED: &str = "[You have made exactly these calls several times in a row, with exactly these results. \
                        Calling them again will not help: change the arguments, try something else, or answer.]";

impl Run {
    /// Puts the end of a step whose calls have these outcomes, in call order, into its event. `log` ends with the reply.
    /// Gives the writes of each call among those of the event: the index of the first, and their number.
    pub(super) fn close_calls(
        &self,
        event: &mut Event,
        log: &Transcript,
        mut outcomes: Vec<CallOutcome>,
    ) -> WriteRanges {
        let unmerged = match outcomes.iter().all(|outcome| outcome.delta.is_empty()) {
            true => Vec::new(),
            // A scratch state: the event carries the writes, and committing it folds them.
            false => settle(&mut self.state.clone(), &mut outcomes),
        };
        let repeats = self.agent.config().repeat_guard.map_or(0, |guard| {
            let repeats = match is_repeated(log, &outcomes) {
                Some(true) => self.tally.repeats.max(1).saturating_add(1),
                _ => 1,
            };
            if repeats >= guard.warn {
                for outcome in &mut outcomes {
                    outcome.result = with_note(&outcome.result, REPEATED);
                }
            }
            repeats
        });
        event.step_end = Some(StepEnd { unmerged, repeats, ..StepEnd::default() });
        event.messages.reserve(outcomes.len());
        let merged = outcomes.into_iter().map(|outcome| {
            let writes = (event.delta.len(), outcome.delta.len());
            event.delta.extend(outcome.delta);
            event.messages.push(Message::tool(outcome.result).into());
            writes
        });
        merged.collect()
    }
}

/// Whether the model has made the calls of the step before once more, with the same results. That step is at the end of
/// the log, before the reply.
fn is_repeated(log: &Transcript, outcomes: &[CallOutcome]) -> Option<bool> {
    let reply = log.len().checked_sub(1)?;
    let previous = reply.checked_sub(outcomes.len() + 1)?;
    let (calls, earlier) = (log.get(reply)?.tool_calls(), log.get(previous)?.tool_calls());
    let is_same = |(call, earlier): (&ToolCall, &ToolCall)| {
        earlier.name == call.name && earlier.arguments == call.arguments
    };
    let are_same_calls = calls.clone().count() == earlier.clone().count() && calls.zip(earlier).all(is_same);
    let mut results = outcomes.iter().zip(log.iter_from(previous + 1));
    let is_repeated = |(outcome, message): (&CallOutcome, &Arc<Message>)| {
        message.tool_result().is_some_and(|earlier| is_same_result(earlier, &outcome.result))
    };
    Some(are_same_calls && results.all(is_repeated))
}

fn is_same_result(earlier: &ToolResult, new: &ToolResult) -> bool {
    // NOTE: Results count as well: a tool that is polled until something changes repeats its calls without being a
    // loop.
    earlier.content() == new.content() || earlier.content() == with_note(new, REPEATED).content()
}
