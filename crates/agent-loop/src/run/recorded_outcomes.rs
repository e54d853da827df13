//! Outcomes as an event has them: what its messages and writes say already is left out, and comes back when it is read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stepfold_state_core::chat::{Message, ToolResult};
use stepfold_state_core::state::{Delta, Write};
use stepfold_tools::{CallOutcome, CallStatus};

use super::event::{CallDisposition, Event, EventKind, is_default};
use super::step::{ItemOutcome, WorkOutcome};
use crate::error::FeedError;
use crate::planned::NodeOutcome;
use crate::stored_form::{is_once, once};

/// The outcome of a call or a branch in an event. [`Event::outcomes`] has it whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AnsweredItem {
    /// The place of the call or branch.
    #[serde(default, skip_serializing_if = "is_default")]
    pub place: usize,
    /// Its outcome, without what the event says elsewhere.
    #[serde(flatten)]
    pub outcome: RecordedOutcome,
    /// Its writes, if they are writes of the event as well: the index of the first, and their number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<(usize, usize)>,
    /// Why a hook wants the run to end after this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<String>,
    /// The first hook after tools that has not seen the outcome, by its place among them, because it failed: it has
    /// still to run, and the call is answered once more then. Until that the model is not shown the outcome, which
    /// is here as the hooks before it left it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_hook: Option<usize>,
}

/// The outcome of an item, without what its event says elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RecordedOutcome {
    /// The outcome of a call.
    #[serde(rename = "outcome")]
    Call(RecordedCall),
    /// The outcome of a branch. Its writes may be [those of the event](AnsweredItem::writes).
    #[serde(rename = "node")]
    Node(NodeOutcome),
}

/// The outcome of a call, without what its event says elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RecordedCall {
    /// The status of the call.
    #[serde(default = "succeeded", skip_serializing_if = "is_success")]
    pub status: CallStatus,
    /// The result, unless it is that of the message of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ToolResult>,
    /// The writes, unless they are [those of the event](AnsweredItem::writes).
    #[serde(default, skip_serializing_if = "Delta::is_empty")]
    pub delta: Delta,
    /// The number of attempts; 0 if the tool was not started.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub tries: u32,
}

const fn succeeded() -> CallStatus {
    CallStatus::Succeeded
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_success(status: &CallStatus) -> bool {
    *status == CallStatus::Succeeded
}

impl RecordedOutcome {
    pub(super) const fn is_call(&self) -> bool {
        matches!(self, RecordedOutcome::Call(_))
    }

    const fn delta_mut(&mut self) -> &mut Delta {
        match self {
            RecordedOutcome::Call(outcome) => &mut outcome.delta,
            RecordedOutcome::Node(outcome) => &mut outcome.delta,
        }
    }
}

impl From<CallOutcome> for RecordedCall {
    fn from(outcome: CallOutcome) -> Self {
        RecordedCall::of(outcome, None)
    }
}

impl RecordedCall {
    /// An outcome, where the message of its call has this result.
    fn of(outcome: CallOutcome, in_message: Option<&ToolResult>) -> Self {
        // NOTE: A result that a message of the event has is not repeated, in memory as in the store:
        // docs/decisions/runner.md.
        let CallOutcome { status, result, delta, tries, .. } = outcome;
        RecordedCall { status, result: (Some(&result) != in_message).then_some(result), delta, tries }
    }
}

impl AnsweredItem {
    /// Drops the writes that are dropped, where those of the event that are kept have these indexes.
    fn retain_writes(&mut self, picked: &dyn Fn(&mut Delta), kept_before: &dyn Fn(usize) -> usize) {
        picked(self.outcome.delta_mut());
        self.writes = self.writes.and_then(|(first, count)| {
            let (first, end) = (kept_before(first), kept_before(first.saturating_add(count)));
            (end > first).then(|| (first, end - first))
        });
    }
}

impl Event {
    /// The outcomes that the event gives to calls or branches of the step, each by its place.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_tools::{Tool, ToolError};
    /// use stepfold_agent_loop::{Agent, RunEvent};
    ///
    /// # async fn count() -> Result<u32, ToolError> { Ok(12) }
    /// # let count = Tool::new("count", "Counts stalls.", count).build()?;
    /// # let model = Script::parse("assistant: > c1 count()\nassistant: 12 stalls")?;
    /// let agent = Agent::builder(model).tools([count]).build()?;
    /// let mut seen = Vec::new();
    /// agent.run("how many?").observe(&mut seen).await?;
    /// let outcomes: Vec<_> = seen.iter().filter_map(RunEvent::committed).flat_map(|event| event.outcomes()).collect();
    /// assert_eq!(outcomes[0].outcome.call().unwrap().result.text(), "12");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn outcomes(&self) -> Vec<ItemOutcome> {
        self.whole_outcomes().unwrap_or_default()
    }

    /// The same; an error if the event does not say what is left out of one.
    pub(crate) fn whole_outcomes(&self) -> Result<Vec<ItemOutcome>, FeedError> {
        let outcomes = match &self.kind {
            EventKind::Answered(items) => items.iter().map(|item| self.outcome_of(item)).collect(),
            EventKind::Replied { fates, .. } => {
                let answered = fates.iter().filter_map(|(place, fate)| match fate {
                    CallDisposition::Answer(outcome) => Some((*place, outcome)),
                    CallDisposition::Ask(_) | CallDisposition::Same(_) => None,
                });
                let whole = |(place, outcome): (usize, &RecordedCall)| {
                    Some(ItemOutcome::new(place, self.call_outcome(place, outcome, None)?))
                };
                answered.map(whole).collect()
            }
            _ => Some(Vec::new()),
        };
        outcomes.ok_or(FeedError::Incomplete { event: self.name() })
    }

    fn outcome_of(&self, item: &AnsweredItem) -> Option<ItemOutcome> {
        let outcome = match &item.outcome {
            RecordedOutcome::Call(outcome) => self.call_outcome(item.place, outcome, item.writes)?.into(),
            RecordedOutcome::Node(outcome) => {
                let delta = self.writes_of(&outcome.delta, item.writes)?;
                WorkOutcome::Node(NodeOutcome { delta, ..outcome.clone() })
            }
        };
        let (stop, pending_hook) = (item.stop.clone(), item.pending_hook);
        Some(ItemOutcome { place: item.place, outcome, stop, pending_hook })
    }

    fn call_outcome(
        &self,
        place: usize,
        outcome: &RecordedCall,
        writes: Option<(usize, usize)>,
    ) -> Option<CallOutcome> {
        let result = outcome.result.as_ref().or_else(|| self.message_result(place))?.clone();
        let delta = self.writes_of(&outcome.delta, writes)?;
        let mut whole = CallOutcome::new(outcome.status, result);
        (whole.delta, whole.tries) = (delta, outcome.tries);
        Some(whole)
    }

    fn writes_of(&self, own: &Delta, writes: Option<(usize, usize)>) -> Option<Delta> {
        let Some((first, count)) = writes else { return Some(own.clone()) };
        let has_them = first.checked_add(count).is_some_and(|end| end <= self.delta.len());
        has_them.then(|| self.delta.iter().skip(first).take(count).cloned().collect())
    }

    /// The result of the call at a place, if the event has its message: they are in call order, after the reply if that
    /// is in the event as well.
    fn message_result(&self, place: usize) -> Option<&ToolResult> {
        let replies = usize::from(matches!(self.kind, EventKind::Replied { .. }));
        result_in(&self.messages, place.checked_add(replies)?)
    }

    /// An outcome as the event has it. At the end of a step, `merged` says by place which writes of the event an item has
    /// given: from which, and how many. Those of its outcome stand first or last among them.
    pub(super) fn recorded(&self, item: ItemOutcome, merged: &[(usize, usize)]) -> AnsweredItem {
        let ItemOutcome { place, mut outcome, stop, pending_hook } = item;
        let own = outcome.delta().len();
        let firsts = merged.get(place).filter(|(_, count)| (1..=*count).contains(&own));
        let firsts = firsts.into_iter().flat_map(|(first, count)| [*first, first + count - own]);
        let is_own = |first: &usize| self.delta.iter().skip(*first).take(own).eq(outcome.delta());
        let writes = firsts.into_iter().find(is_own).map(|first| (first, own));
        if writes.is_some() {
            *outcome.delta_mut() = Delta::new();
        }
        let outcome = match outcome {
            WorkOutcome::Call(outcome) => {
                RecordedOutcome::Call(RecordedCall::of(outcome, self.message_result(place)))
            }
            WorkOutcome::Node(outcome) => RecordedOutcome::Node(outcome),
        };
        AnsweredItem { place, outcome, writes, stop, pending_hook }
    }

    /// Leaves out of the fates of a reply what its messages say.
    pub(super) fn trim_fates(&mut self) {
        let EventKind::Replied { fates, .. } = &mut self.kind else { return };
        for (place, fate) in fates {
            if let CallDisposition::Answer(outcome) = fate {
                let in_message = result_in(&self.messages, *place + 1);
                outcome.result = outcome.result.take().filter(|result| Some(result) != in_message);
            }
        }
    }

    /// Drops the writes that `keep` does not pick, wherever the event has them: for a store that must not
    /// have them, such as those of `temp:` keys.
    pub fn retain_writes(&mut self, keep: impl Fn(&Write) -> bool) {
        self.retain_writes_dyn(&keep);
    }

    /// Not generic, since events have events inside.
    fn retain_writes_dyn(&mut self, keep: &dyn Fn(&Write) -> bool) {
        let picked = |delta: &mut Delta| {
            if !delta.iter().all(keep) {
                *delta = std::mem::take(delta).into_iter().filter(|write| keep(write)).collect();
            }
        };
        let mut kept = 0;
        let mut before = Vec::with_capacity(self.delta.len());
        for write in &self.delta {
            before.push(kept);
            kept += usize::from(keep(write));
        }
        let kept_before = |index: usize| before.get(index).copied().unwrap_or(kept);
        picked(&mut self.delta);
        match &mut self.kind {
            EventKind::Answered(items) => {
                for item in items {
                    item.retain_writes(&picked, &kept_before);
                }
            }
            EventKind::Inner { event, .. } => event.retain_writes_dyn(keep),
            EventKind::Hooked { writes, .. } => {
                for (_, delta) in writes.iter_mut() {
                    picked(delta);
                }
                writes.retain(|(_, delta)| !delta.is_empty());
            }
            EventKind::Replied { fates, .. } => {
                for (_, fate) in fates {
                    if let CallDisposition::Answer(outcome) = fate {
                        picked(&mut outcome.delta);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The result that a message says, if it says one.
fn result_in(messages: &[Arc<Message>], index: usize) -> Option<&ToolResult> {
    messages.get(index)?.tool_result()
}
