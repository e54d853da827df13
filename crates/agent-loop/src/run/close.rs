//! The end of a step of calls: the results as messages, the writes as one delta, in call order.

use std::sync::Arc;

use stepfold_state_core::chat::{Message, Part, ToolCall, ToolContent, ToolResult, Transcript};
use stepfold_state_core::state::{Delta, State};
use stepfold_tools::{CallFailure, CallOutcome, CallStatus, settle};

use super::event::StepEnd;

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

/// The end of a step: the results as messages, the writes as one delta, in call order.
#[derive(Debug)]
pub(crate) struct Closing {
    pub(crate) messages: Vec<Arc<Message>>,
    pub(crate) delta: Delta,
    pub(crate) step_end: StepEnd,
    /// The writes of each call among those: the index of the first, and their number.
    pub(crate) merged: Vec<(usize, usize)>,
}

/// What the model reads when it repeats itself.
const REPEATED: &str = "[You have made exactly these calls several times in a row, with exactly these results. \
                        Calling them again will not help: change the arguments, try something else, or answer.]";

/// Closes a step whose calls have these outcomes, in call order. `log` ends with the reply.
pub(crate) fn close(
    state: &State,
    log: &Transcript,
    mut outcomes: Vec<CallOutcome>,
    repeats: Repeats,
) -> Closing {
    let unmerged = match outcomes.iter().all(|outcome| outcome.delta.is_empty()) {
        true => Vec::new(),
        // A scratch state: the event carries the writes, and committing it folds them.
        false => settle(&mut state.clone(), &mut outcomes),
    };
    let times = repeats.counted(log, &outcomes);
    if repeats.warn_at.is_some_and(|warn| times >= warn) {
        for outcome in &mut outcomes {
            outcome.result = with_note(&outcome.result, REPEATED);
        }
    }
    let mut closing = Closing {
        messages: Vec::with_capacity(outcomes.len()),
        delta: Delta::new(),
        step_end: StepEnd { unmerged, repeats: times, ..StepEnd::default() },
        merged: Vec::with_capacity(outcomes.len()),
    };
    for outcome in outcomes {
        closing.merged.push((closing.delta.len(), outcome.delta.len()));
        closing.delta.extend(outcome.delta);
        closing.messages.push(Message::tool(outcome.result).into());
    }
    closing
}

/// How often the step before was repeated, and from when on the model is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeats {
    pub(crate) before: u32,
    pub(crate) warn_at: Option<u32>,
}

impl Repeats {
    /// How often in a row, this step included, the model has made these calls with these results. The step
    /// before is at the end of the log, before the reply.
    fn counted(self, log: &Transcript, outcomes: &[CallOutcome]) -> u32 {
        let Some(_) = self.warn_at else { return 0 };
        let same = || {
            let reply = log.len().checked_sub(1)?;
            let previous = reply.checked_sub(outcomes.len() + 1)?;
            let calls = log.get(reply)?.tool_calls();
            let mut earlier = log.get(previous)?.tool_calls();
            let are_same_calls = calls.clone().all(|call| {
                earlier
                    .next()
                    .is_some_and(|earlier| earlier.name == call.name && earlier.arguments == call.arguments)
            });
            let are_same = are_same_calls
                && earlier.next().is_none()
                && outcomes.iter().zip(log.iter_from(previous + 1)).all(|(outcome, message)| {
                    message.tool_result().is_some_and(|earlier| is_same_result(earlier, &outcome.result))
                });
            are_same.then_some(())
        };
        match same() {
            Some(()) => self.before.max(1).saturating_add(1),
            None => 1,
        }
    }
}

fn is_same_result(earlier: &ToolResult, new: &ToolResult) -> bool {
    earlier.content() == new.content() || earlier.content() == with_note(new, REPEATED).content()
}
