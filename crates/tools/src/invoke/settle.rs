//! Ends a step: folds the writes of its outcomes into the state, in call order.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stepfold_state_core::chat::{ToolContent, ToolResult};
use stepfold_state_core::state::{Delta, State, Write};

use super::outcome::{CallFailure, CallOutcome, CallStatus};
use super::redact::TextRedaction;
use super::threads::panic_message;

/// Folds the writes of all outcomes into `state`, in call order, independent of the order in which they finished.
///
/// The writes of one call are atomic. If they cannot be merged (a sum overflows, a custom handler fails),
/// none of them is, the call's outcome becomes an error for the model, and the other calls are unaffected.
/// The same outcomes always give the same state: replaying a record calls this function again.
///
/// Returns the indexes of the calls whose writes could not be merged. They are not in
/// [`CallOutcomes::error`](super::CallOutcomes::error), which exists before: a caller that raises failures must raise
/// these, too.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use serde_json::json;
/// use stepfold_state_core::chat::ToolCall;
/// use stepfold_state_core::state::{Handler, Schema, State};
/// use stepfold_tools::{Invocation, InvokeOptions, Tool, ToolError, Tools, settle};
///
/// async fn visit() -> Result<serde_json::Value, ToolError> {
///     Ok(json!({"visits": 1}))
/// }
/// let tool = Tool::new("visit", "Counts a visit.", visit).output_to_state("visits", "visits").build().unwrap();
/// let schema = Schema::builder().key::<u64>("visits").handler(Handler::sum()).build().unwrap();
/// let mut state = State::new(&schema);
///
/// // Forty concurrent calls: no update is lost, because the handler adds, not the calls.
/// let calls: Vec<_> = (0..40).map(|n| ToolCall::new(format!("c{n}"), "visit", json!({}))).collect();
/// let tools = Tools::of([tool]).unwrap();
/// let mut done = Invocation::new(&tools, state.clone(), calls, InvokeOptions::default()).finish().await;
/// let unmerged = settle(&mut state, &mut done.outcomes);
/// assert!(unmerged.is_empty());
/// assert_eq!(state.get("visits").unwrap(), json!(40));
/// # });
/// ```
pub fn settle(state: &mut State, outcomes: &mut [CallOutcome]) -> Vec<usize> {
    let mut unmerged_calls = Vec::new();
    for (call, outcome) in outcomes.iter_mut().enumerate() {
        if let Err(reason) = fold(state, &outcome.delta) {
            let text = unmerged(outcome.tool(), &reason);
            outcome.result = ToolResult::new(outcome.call_id(), outcome.tool(), ToolContent::Error(text));
            outcome.status = CallStatus::Failed(CallFailure::Merge);
            outcome.delta = Delta::new();
            unmerged_calls.push(call);
        }
    }
    unmerged_calls
}

/// Folds the writes of one call, atomically; nothing is merged if a custom handler panics.
pub(super) fn fold(state: &mut State, delta: &Delta) -> Result<(), String> {
    // NOTE: Unwind-safe: `apply` changes a clone, so an error or a panic leaves the state unchanged.
    let reason = match catch_unwind(AssertUnwindSafe(|| state.apply(delta))) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("a handler panicked: {}", panic_message(&*panic)),
    };
    // NOTE: A custom handler may quote values of the state.
    let mut redaction = TextRedaction::of(&reason);
    for key in delta.iter().map(Write::key) {
        if let Some(value) = state.get(key) {
            redaction.redact(key, value);
        }
    }
    Err(redaction.text().into_owned())
}

/// The text for the model when a tool ran and its writes could not be merged.
pub(super) fn unmerged(tool: &str, reason: &str) -> String {
    format!("tool '{tool}' ran, but its writes to the state failed and none was applied: {reason}")
}
