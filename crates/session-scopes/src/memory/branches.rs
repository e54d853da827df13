//! The forks of sessions in memory, and labels on their versions.

use std::collections::BTreeMap;

use super::MemoryInner;
use super::app_data::{SessionEntry, UserData};
use crate::error::SessionError;
use crate::ids::{Label, SessionId};
use crate::store::{ForkInfo, LabelVersion, ListForks};

/// The forks and labels of a session.
#[derive(Debug, Default)]
pub(super) struct BranchIndex {
    /// By their numbers, which grow.
    forks: BTreeMap<i64, SessionId>,
    labels: BTreeMap<Label, u64>,
}

impl BranchIndex {
    /// Deletes the labels of versions before this one.
    pub(super) fn prune(&mut self, oldest: u64) {
        self.labels.retain(|_, version| *version >= oldest);
    }
}

impl SessionEntry {
    pub(super) fn add_fork(&mut self, number: i64, id: &SessionId) {
        self.branches.forks.insert(number, id.clone());
    }

    /// The number of each of its forks.
    pub(super) fn fork_numbers(&self) -> impl Iterator<Item = i64> {
        self.branches.forks.keys().copied()
    }

    pub(super) fn set_label(&mut self, request: LabelVersion) -> Result<Option<u64>, SessionError> {
        request.check_version(self.oldest, self.version())?;
        let labels = &mut self.branches.labels;
        request.check_count(!labels.contains_key(&request.label), labels.len())?;
        Ok(match request.version {
            Some(version) => labels.insert(request.label, version),
            None => labels.remove(&request.label),
        })
    }

    pub(super) fn labels(&self) -> Vec<(Label, u64)> {
        let labels = self.branches.labels.iter();
        let mut labels: Vec<(Label, u64)> =
            labels.map(|(label, version)| (label.clone(), *version)).collect();
        labels.sort_by_key(|(_, version)| *version);
        labels
    }
}

impl UserData {
    /// Removes a deleted session from the forks of its parent, if that still exists.
    pub(super) fn forget_fork(&mut self, fork: &SessionEntry) {
        let parent = fork.parent.as_ref().and_then(|parent| self.sessions.get_mut(&parent.id));
        if let Some(parent) = parent {
            parent.branches.forks.remove(&fork.number);
        }
    }
}

impl MemoryInner {
    pub(super) fn forks(&self, request: &ListForks) -> Result<Vec<ForkInfo>, SessionError> {
        let (_, tenant, entry) = self.entry(&request.key)?;
        let forks = entry.branches.forks.values().filter_map(|id| {
            let fork = tenant.sessions.get(id)?;
            let version = fork.parent.as_ref()?.version;
            Some(ForkInfo { id: id.clone(), version, created: fork.created })
        });
        Ok(forks.collect())
    }
}
