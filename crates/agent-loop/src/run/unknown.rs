//! Calls with an unknown outcome: they had started, and must not run twice.

use serde::{Deserialize, Serialize};
use stepfold_state_core::chat::{Arguments, ToolCall};
use stepfold_tools::CallStatus;

use super::event::EventKind;
use super::machine::Run;
use super::recorded::AnsweredItem;
use super::work::Item;
use crate::approval::{AskReason, Decision, nested_path};

/// A call that was answered with "outcome unknown": its effect may have happened, and it did not run again.
///
/// Find out its effect at its destination. See [`Outcome::unknown_calls`](crate::Outcome::unknown_calls).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
#[non_exhaustive]
pub struct UnknownCall {
    /// The id of the call; of a node, the branch; of a call inside of an agent that is a tool or a node, the whole path,
    /// with `/` between its parts.
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
        let Some(work) = self.work().filter(|_| may_leave_unknown(event)) else { return Vec::new() };
        let decided = match event {
            EventKind::Decided { decisions, key_prefix, .. } => {
                let asker = self.asker_of(key_prefix.as_deref());
                asker.decided(&work.items, |place| self.shown(place), decisions)
            }
            _ => Vec::new(),
        };
        let mut unknown = Vec::new();
        for (place, item) in work.items.iter().enumerate().filter(|(_, item)| !item.is_done()) {
            let decision = decided.get(place).copied().flatten();
            if is_left_unknown(place, item, event, decision) {
                unknown.push(self.shown(place).into());
            }
            // A run inside is broken off with the one that it is part of.
            if let (EventKind::Cancelled | EventKind::TimedOut, Some(child)) = (event, item.child()) {
                unknown.extend(within(&self.shown(place).id, child.unknown_by(event)));
            }
        }
        unknown
    }
}

fn is_left_unknown(place: usize, item: &Item, event: &EventKind, decision: Option<&Decision>) -> bool {
    match event {
        EventKind::Interrupted { places, asks: false, .. } => places.contains(&place),
        EventKind::Answered(items) => {
            // The second answer, after a hook that had failed, is about the same outcome.
            let was_unknown =
                item.hook_pending().is_some_and(|pending| pending.outcome.status == CallStatus::Unknown);
            let is_unknown =
                |answered: &AnsweredItem| answered.place == place && answered.outcome.is_unknown();
            !was_unknown && items.iter().any(is_unknown)
        }
        EventKind::Cancelled | EventKind::TimedOut => item.is_started(),
        EventKind::Decided { .. } => {
            let is_uncertain = item.asks() == Some(AskReason::MayHaveHappened);
            is_uncertain && matches!(decision, Some(Decision::Reject { .. }))
        }
        _ => false,
    }
}

/// Calls of the run inside of an item, by their paths.
pub(super) fn within(label: &str, calls: Vec<UnknownCall>) -> impl Iterator<Item = UnknownCall> {
    calls.into_iter().map(move |call| UnknownCall { id: nested_path(label, &call.id), ..call })
}

/// Whether items are to be looked at. Most events leave none.
fn may_leave_unknown(event: &EventKind) -> bool {
    match event {
        EventKind::Interrupted { asks, .. } => !asks,
        EventKind::Answered(items) => items.iter().any(|item| item.outcome.is_unknown()),
        EventKind::Decided { .. } | EventKind::Cancelled | EventKind::TimedOut => true,
        _ => false,
    }
}
