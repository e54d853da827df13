//! The active branches of a graph, so that events are shown under the names of their nodes.

use std::collections::BTreeMap;

use serde_json::Value;
use stepfold_agent_loop::{Event, EventKind, PlannedBranch};

use super::one_line;

/// The characters of an item beside the name of its branch.
const ITEM: usize = 60;

/// The branches of a superstep, and those of nested graphs: events name them by place.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::PlannedBranch;
/// use stepfold_runner::log::ActiveBranches;
///
/// let branches = vec![PlannedBranch::new("plan".to_owned(), None), PlannedBranch::new("find".to_owned(), Some(3.into()))];
/// let active = ActiveBranches::of(branches);
/// assert_eq!((active.label(0), active.label(1)), ("plan".to_owned(), "find#1".to_owned()));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ActiveBranches {
    branches: Vec<PlannedBranch>,
    /// The tools of the last reply's calls.
    calls: Vec<String>,
    inner: BTreeMap<usize, ActiveBranches>,
}

impl ActiveBranches {
    /// These branches are active.
    pub fn of(branches: Vec<PlannedBranch>) -> Self {
        ActiveBranches { branches, ..ActiveBranches::default() }
    }

    /// Applies a commit.
    pub fn commit(&mut self, event: &Event) {
        match &event.kind {
            // NOTE: A plan with an exit starts no branches.
            EventKind::Planned { branches, exit: None, .. } => *self = ActiveBranches::of(branches.clone()),
            EventKind::Replied { .. } => {
                let calls = event.messages.first().into_iter().flat_map(|reply| reply.tool_calls());
                *self = ActiveBranches {
                    calls: calls.map(|call| call.name.clone()).collect(),
                    ..ActiveBranches::default()
                };
            }
            EventKind::Inner { place, event } => self.inner.entry(*place).or_default().commit(event),
            _ => {}
        }
    }

    /// The label of a branch: its node, with its place if it is one of several.
    pub fn label(&self, place: usize) -> String {
        match self.branches.get(place) {
            Some(planned) if planned.item.is_none() => planned.node.clone(),
            Some(planned) => format!("{}#{place}", planned.node),
            None => self.calls.get(place).cloned().unwrap_or_else(|| format!("#{place}")),
        }
    }

    /// The label of a nested branch, from the outermost graph on.
    pub fn label_of(&self, path: &[usize]) -> String {
        let Some((first, rest)) = path.split_first() else { return String::new() };
        let label = self.label(*first);
        match (rest.is_empty(), self.inner.get(first)) {
            (false, Some(inner)) => format!("{label} > {}", inner.label_of(rest)),
            (false, None) => format!("{label} > {}", ActiveBranches::default().label_of(rest)),
            (true, _) => label,
        }
    }

    /// The item of a branch, shortened.
    pub fn item_of(&self, path: &[usize]) -> Option<String> {
        let (first, rest) = path.split_first()?;
        match rest.is_empty() {
            true => self.branches.get(*first)?.item.as_ref().map(item),
            false => self.inner.get(first)?.item_of(rest),
        }
    }

    /// The branches with their labels.
    pub fn branches(&self) -> impl ExactSizeIterator<Item = (String, &PlannedBranch)> {
        self.branches.iter().enumerate().map(|(place, planned)| (self.label(place), planned))
    }

    /// Whether no branch is active.
    pub fn is_empty(&self) -> bool {
        self.branches.is_empty()
    }

    /// The branches of the nested graph at this place.
    pub fn inner(&self, place: usize) -> Option<&ActiveBranches> {
        self.inner.get(&place)
    }

    /// The length of the longest label.
    pub fn width(&self) -> usize {
        (0..self.branches.len()).map(|place| self.label(place).chars().count()).max().unwrap_or(0)
    }
}

/// An item in one short line.
pub(super) fn item(item: &Value) -> String {
    let text = one_line(&item.to_string());
    match text.char_indices().nth(ITEM) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text,
    }
}
