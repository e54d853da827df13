//! Calls with an unknown outcome: they had started, or may have, and do not run again.

use serde::{Deserialize, Serialize};
use stepfold_state_core::chat::{Arguments, ToolCall};
use stepfold_tools::CallStatus;

use super::event::EventKind;
use super::machine::Run;
use super::step::ItemOutcome;
use crate::approval::nested_path;

/// A call that was answered with "outcome unknown": its effect may have happened, and it did not run again.
///
/// Find out its effect at its destination. See [`Outcome::unknown_calls`](crate::Outcome::unknown_calls).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnknownCall {
    /// The id of the call; of a node, the branch; of a call inside of an agent that is a tool or a node, the whole path,
    /// with `/` between its parts.
    pub id: String,
    /// The tool, or the node.
    pub tool: String,
    /// The arguments of the call. Of a node: the item that it worked on, as an object.
    #[serde(with = "as_text")]
    pub arguments: Arguments,
    /// Whether it only may have started: its tool was repeatable, so that the record does not say that it had.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_start_uncertain: bool,
}

/// The arguments of a call as text, as the model wrote them.
pub(crate) mod as_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use stepfold_state_core::chat::Arguments;

    pub(crate) fn serialize<S: Serializer>(arguments: &Arguments, serializer: S) -> Result<S::Ok, S::Error> {
        arguments.to_text().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arguments, D::Error> {
        String::deserialize(deserializer).map(Arguments::parse)
    }
}

impl From<ToolCall> for UnknownCall {
    fn from(call: ToolCall) -> Self {
        UnknownCall { id: call.id, tool: call.name, arguments: call.arguments, is_start_uncertain: false }
    }
}

impl Run {
    /// The calls that this run answered with "outcome unknown", in that order.
    pub fn unknown_calls(&self) -> &[UnknownCall] {
        &self.unknown
    }

    /// The calls that an event leaves with an unknown outcome, given the outcomes that it gives. The event is the next one.
    pub(super) fn new_unknown_calls(&self, event: &EventKind, outcomes: &[ItemOutcome]) -> Vec<UnknownCall> {
        let mut unknown = Vec::new();
        for ItemOutcome { place, outcome, .. } in outcomes {
            let Some(item) = self.item(*place) else { continue };
            // The second answer, after a hook that had failed, is about the same outcome.
            let was_unknown =
                item.hook_pending().is_some_and(|pending| pending.outcome.status == CallStatus::Unknown);
            if outcome.is_unknown() && !was_unknown {
                // An outcome that a tool gives says that it has run.
                let is_given = matches!(event, EventKind::Answered(_));
                let is_start_uncertain = !is_given && !item.was_started();
                unknown.push(UnknownCall { is_start_uncertain, ..self.shown(*place).into() });
            }
            // A run inside ends with the one that it is part of.
            if let (EventKind::Cancelled | EventKind::TimedOut, Some(child)) = (event, item.child()) {
                let inner = child.new_unknown_calls(event, &child.implied_outcomes(event, &[]));
                unknown.extend(under_outer_path(&self.shown(*place).id, inner));
            }
        }
        unknown
    }
}

/// Calls of the run inside of an item, by their paths.
pub(super) fn under_outer_path(label: &str, calls: Vec<UnknownCall>) -> impl Iterator<Item = UnknownCall> {
    calls.into_iter().map(move |call| UnknownCall { id: nested_path(label, &call.id), ..call })
}
