//! The course of a turn as data: of a candidate's, or of the recorded one. Computed from events alone.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepfold_agent_loop::{CallDisposition, Event, EventKind, Exit};
use stepfold_state_core::chat::{Message, Usage};
use stepfold_tools::CallStatus;

use crate::case::Case;

/// A turn that was made: what evaluators look at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Trial {
    /// The text of the last reply.
    pub text: String,
    /// The calls, in order.
    pub calls: Vec<TrialCall>,
    /// The values of the state afterwards.
    pub values: Map<String, Value>,
    /// The number of replies of the model.
    pub steps: u64,
    /// Whether the last reply is an answer: it has no calls. A turn that waits, or stopped at a limit, has none.
    #[serde(default)]
    pub answered: bool,
    /// The usage of the model.
    #[serde(default)]
    pub usage: Usage,
    /// The exit, in words; `None` where the record does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<String>,
}

/// A call in a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TrialCall {
    /// The tool.
    pub tool: String,
    /// The arguments, as the model sent them.
    pub arguments: Value,
    /// The status; `None` if the call has no outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<CallStatus>,
    /// Whether an approval was requested.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked: bool,
}

impl TrialCall {
    /// A call that has no outcome.
    #[must_use]
    pub fn new(tool: impl Into<String>, arguments: impl Into<Value>) -> Self {
        TrialCall { tool: tool.into(), arguments: arguments.into(), status: None, asked: false }
    }
}

impl Trial {
    /// The course that events describe, with the values of the state afterwards.
    pub(crate) fn of(events: &[Event], values: Map<String, Value>, exit: Option<&Exit>) -> Self {
        let mut trial = Trial { values, exit: exit.map(ToString::to_string), ..Trial::default() };
        let mut open = 0;
        for event in events {
            if let EventKind::Replied { usage, .. } = &event.kind {
                open = trial.calls.len();
                trial.usage += *usage;
                trial.steps = event.step;
                trial.add_reply(event.messages.first().map(|message| &**message));
            }
            trial.add_outcomes(event, open);
        }
        trial
    }

    /// The recorded course of a case.
    pub(crate) fn recorded(case: &Case) -> Option<Self> {
        let record = case.record.as_ref()?;
        Some(Trial::of(&record.events, record.values.clone(), None))
    }

    /// Whether a call failed, for another reason than an approver's.
    pub fn has_failed_calls(&self) -> bool {
        self.calls.iter().any(|call| {
            matches!(call.status, Some(CallStatus::Failed(failure)) if failure != stepfold_tools::CallFailure::Rejected)
        })
    }

    fn add_reply(&mut self, reply: Option<&Message>) {
        self.answered = reply.is_some_and(|reply| !reply.has_tool_calls());
        let Some(reply) = reply else { return };
        self.text = reply.text().into_owned();
        let calls = reply.tool_calls().map(|call| {
            TrialCall::new(
                call.name.as_str(),
                call.arguments.as_object().cloned().map_or(Value::Null, Value::Object),
            )
        });
        self.calls.extend(calls);
    }

    /// Adds what an event says about the calls of the open step, which begin at `open`.
    fn add_outcomes(&mut self, event: &Event, open: usize) {
        for ended in event.outcomes() {
            if let (Some(call), Some(outcome)) =
                (self.calls.get_mut(open + ended.place), ended.outcome.call())
            {
                call.status = Some(outcome.status);
            }
        }
        let (EventKind::Replied { fates, .. } | EventKind::Asked { fates, .. }) = &event.kind else { return };
        for (place, fate) in fates {
            if let (Some(call), CallDisposition::Ask(_) | CallDisposition::Same(_)) =
                (self.calls.get_mut(open + place), fate)
            {
                call.asked = true;
            }
        }
    }
}
