//! The open steps of a run and its inner runs: their calls and branches, by place.

use std::collections::BTreeMap;
use std::time::Duration;

use stepfold_agent_loop::PlannedBranch;
use stepfold_state_core::chat::{Message, Role, ToolCall, Transcript};

use crate::brief::brief;

/// The columns of the item of a branch.
const ITEM: usize = 24;

/// The open step of each run. The key of an inner run is the path of places of the calls or branches that contain it.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenSteps(BTreeMap<Vec<usize>, Vec<StepEntry>>);

/// A call or a branch.
#[derive(Clone, Debug)]
pub(crate) struct StepEntry {
    /// Its id in requests for a decision.
    id: String,
    /// Its label, which tells it apart from its siblings.
    label: String,
    call: Option<ToolCall>,
    since: Option<Duration>,
}

impl OpenSteps {
    /// Begins the step of a reply's calls.
    pub(crate) fn calls(&mut self, path: &[usize], reply: &Message) {
        let calls: Vec<&ToolCall> = reply.tool_calls().collect();
        let item = |call: &&ToolCall| {
            let is_alone = calls.iter().filter(|other| other.name == call.name).count() == 1;
            let label = if is_alone { call.name.clone() } else { format!("{} {}", call.name, call.id) };
            StepEntry { id: call.id.clone(), label, call: Some((*call).clone()), since: None }
        };
        self.begin(path, calls.iter().map(item).collect());
    }

    /// Begins a superstep of a graph.
    pub(crate) fn branches(&mut self, path: &[usize], branches: &[PlannedBranch]) {
        let item = |(place, planned): (usize, &PlannedBranch)| {
            let is_alone = branches.iter().filter(|other| other.node == planned.node).count() == 1;
            let (id, label) = match &planned.item {
                Some(item) => {
                    (format!("{}#{place}", planned.node), format!("{} {}", planned.node, brief(item, ITEM)))
                }
                None if is_alone => (planned.node.clone(), planned.node.clone()),
                // NOTE: Counted from 1, for people.
                None => (planned.node.clone(), format!("{} {}", planned.node, place + 1)),
            };
            StepEntry { id, label, call: None, since: None }
        };
        self.begin(path, branches.iter().enumerate().map(item).collect());
    }

    /// Restores the open step from a conversation whose last reply has unanswered calls.
    pub(crate) fn restore_open_calls(&mut self, conversation: &Transcript) {
        let last = conversation.iter().rev().find(|message| message.role() != Role::Tool);
        if let Some(reply) = last.filter(|message| message.has_tool_calls()) {
            self.calls(&[], reply);
        }
    }

    fn begin(&mut self, path: &[usize], items: Vec<StepEntry>) {
        // NOTE: A new step of a run closes the steps of its inner runs: their paths would name other items now.
        self.0.retain(|other, _| !other.starts_with(path));
        self.0.insert(path.to_vec(), items);
    }

    fn item(&self, path: &[usize], place: usize) -> Option<&StepEntry> {
        self.0.get(path)?.get(place)
    }

    /// The number of calls or branches of a step.
    pub(crate) fn count(&self, path: &[usize]) -> usize {
        self.0.get(path).map_or(0, Vec::len)
    }

    /// A call by its place.
    pub(crate) fn call(&self, path: &[usize], place: usize) -> Option<&ToolCall> {
        self.item(path, place)?.call.as_ref()
    }

    /// The label of a call or a branch.
    pub(crate) fn label(&self, path: &[usize], place: usize) -> Option<&str> {
        Some(&self.item(path, place)?.label)
    }

    /// Records a start. Returns whether it is the first one.
    pub(crate) fn start(&mut self, path: &[usize], place: usize, now: Duration) -> bool {
        let item = self.0.get_mut(path).and_then(|items| items.get_mut(place));
        item.is_some_and(|item| item.since.replace(now).is_none())
    }

    /// The start time of a call or a branch.
    pub(crate) fn since(&self, path: &[usize], place: usize) -> Option<Duration> {
        self.item(path, place)?.since
    }

    /// The id of a call or a branch, after the ids of those that contain it.
    pub(crate) fn id(&self, path: &[usize], place: usize) -> Option<String> {
        let mut id = String::new();
        for depth in 0..path.len() {
            id = id + &self.item(&path[..depth], path[depth])?.id + "/";
        }
        Some(id + &self.item(path, place)?.id)
    }

    /// The subject of a request for a decision: its id without the digest, and the call or branch.
    pub(crate) fn requested<'a>(&self, id: &'a str) -> (&'a str, Option<&StepEntry>) {
        let id = id.rsplit_once('#').map_or(id, |(id, _)| id);
        let places = self.0.iter().flat_map(|(path, items)| (0..items.len()).map(move |place| (path, place)));
        let mut found = places.filter(|(path, place)| self.id(path, *place).as_deref() == Some(id));
        (id, found.next().and_then(|(path, place)| self.item(path, place)))
    }
}

impl StepEntry {
    /// Its tool with arguments, or its node.
    pub(crate) fn name_and_arguments(&self) -> (&str, Option<String>) {
        match &self.call {
            Some(call) => (&call.name, Some(call.arguments.to_text().into_owned())),
            None => (&self.label, None),
        }
    }
}
