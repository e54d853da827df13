//! Calls whose outcome nobody knows: they had started, and must not run twice.

use serde::{Deserialize, Serialize};
use stepfold_state_core::chat::{Arguments, ToolCall};
use stepfold_tools::{Outcome, Status};

use super::batch::{Batch, CallState};
use super::event::EventKind;
use super::machine::{Phase, Run};
use super::walk::{BranchState, NodeStatus, Walk};
use crate::approval::{Decision, nested_path};

/// A call that was answered with "outcome unknown": it may have had its effect, and was not run again.
///
/// What it has done is to be found out where it had its effect. See [`Outcome::unknown_calls`](crate::Outcome::unknown_calls).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
#[non_exhaustive]
pub struct UnknownCall {
    /// The id of the call; of a node, the branch; of a call inside of an agent that is a node, the whole path, with `/`
    /// between its parts.
    pub id: String,
    /// The tool, or the node.
    pub tool: String,
    /// What it was called with. Of a node: the item that it was at, as an object.
    pub arguments: Arguments,
}

#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    id: String,
    tool: String,
    arguments: String,
}

impl From<UnknownCall> for Stored {
    fn from(call: UnknownCall) -> Self {
        let UnknownCall { id, tool, arguments } = call;
        Stored { id, tool, arguments: arguments.to_text().into_owned() }
    }
}

impl From<Stored> for UnknownCall {
    fn from(stored: Stored) -> Self {
        let Stored { id, tool, arguments } = stored;
        UnknownCall { id, tool, arguments: Arguments::parse(arguments) }
    }
}

impl From<ToolCall> for UnknownCall {
    fn from(call: ToolCall) -> Self {
        UnknownCall { id: call.id, tool: call.name, arguments: call.arguments }
    }
}

impl Run {
    /// The calls that this run answered with "outcome unknown", in that order.
    pub fn unknown_calls(&self) -> &[UnknownCall] {
        &self.unknown
    }

    /// The calls that an event leaves with an unknown outcome. The event is the next one.
    pub(super) fn unknown_by(&self, event: &EventKind) -> Vec<UnknownCall> {
        match &self.phase {
            Phase::Calling(batch) => self.unknown_in_batch(batch, event),
            Phase::Walking(walk) => self.unknown_in_walk(walk, event),
            _ => Vec::new(),
        }
    }

    fn unknown_in_batch(&self, batch: &Batch, event: &EventKind) -> Vec<UnknownCall> {
        if !may_leave_unknown(event) {
            return Vec::new();
        }
        let decided = match event {
            EventKind::Decided { decisions, key_prefix, .. } => {
                self.asker_of(key_prefix.as_deref()).decided(&batch.calls, self.calls(), decisions)
            }
            _ => Vec::new(),
        };
        let is_left = |place: usize| {
            let call = &batch.calls[place];
            match event {
                EventKind::Interrupted { calls, asks: false } => calls.contains(&place) && !call.is_done(),
                EventKind::Answered { call: answered, outcome, .. } => {
                    let is_unknown = |outcome: &Outcome| outcome.status == Status::Unknown;
                    // The second answer, after a hook that had failed, is about the same outcome.
                    let was_unknown = call.hook_pending().is_some_and(|pending| is_unknown(&pending.outcome));
                    *answered == place && is_unknown(outcome) && !was_unknown
                }
                EventKind::Cancelled | EventKind::TimedOut => call.state == CallState::Started,
                EventKind::Decided { .. } => {
                    let is_own = matches!(call.state, CallState::Asking(reason) if !reason.is_rule());
                    is_own && matches!(decided.get(place), Some(Some(Decision::Reject { .. })))
                }
                _ => false,
            }
        };
        let calls = self.calls().take(batch.calls.len()).enumerate();
        calls
            .filter(|(place, _)| is_left(*place))
            .map(|(place, call)| batch.calls[place].as_run(call).into())
            .collect()
    }

    fn unknown_in_walk(&self, walk: &Walk, event: &EventKind) -> Vec<UnknownCall> {
        if !may_leave_unknown(event) {
            return Vec::new();
        }
        let asker = match event {
            EventKind::Decided { key_prefix, .. } => self.asker_of(key_prefix.as_deref()),
            _ => self.asker(),
        };
        let mut unknown = Vec::new();
        for (place, branch) in walk.branches.iter().enumerate().filter(|(_, branch)| !branch.is_done()) {
            let is_left = match event {
                EventKind::Interrupted { calls, asks: false } => calls.contains(&place),
                EventKind::NodeAnswered { branch, outcome, .. } => {
                    *branch == place && outcome.status == NodeStatus::Unknown
                }
                EventKind::Cancelled | EventKind::TimedOut => branch.state == BranchState::Started,
                EventKind::Decided { decisions, .. } => {
                    branch.state == BranchState::Uncertain
                        && super::walk::is_rejected(&branch.uncertainty(place, &asker).id, decisions)
                }
                _ => false,
            };
            if is_left {
                unknown.push(branch.uncertainty(place, &asker).call.into());
            }
            // The run of an agent is broken off with the one that it is part of.
            if let (EventKind::Cancelled | EventKind::TimedOut, Some(child)) = (event, branch.child()) {
                unknown.extend(within(&branch.label(place), child.unknown_by(event)));
            }
        }
        unknown
    }
}

/// Calls of the agent of a branch, by their paths.
pub(super) fn within(label: &str, calls: Vec<UnknownCall>) -> impl Iterator<Item = UnknownCall> {
    calls.into_iter().map(move |call| UnknownCall { id: nested_path(label, &call.id), ..call })
}

/// Whether calls are to be looked at. Most events leave none.
fn may_leave_unknown(event: &EventKind) -> bool {
    match event {
        EventKind::Interrupted { asks, .. } => !asks,
        EventKind::Answered { outcome, .. } => outcome.status == Status::Unknown,
        EventKind::NodeAnswered { outcome, .. } => outcome.status == NodeStatus::Unknown,
        EventKind::Decided { .. } | EventKind::Cancelled | EventKind::TimedOut => true,
        _ => false,
    }
}
