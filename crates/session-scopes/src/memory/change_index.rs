//! The keys of a shared scope that were written since a version of it.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::store::REMEMBERED_REMOVALS;

/// The newest write of each key of a scope.
#[derive(Debug, Default)]
pub(super) struct ChangeIndex {
    /// The number of writes to the scope.
    version: u64,
    /// Removals up to this version are forgotten.
    known: u64,
    newest: HashMap<Arc<str>, u64>,
    by_version: BTreeSet<(u64, Arc<str>)>,
    removed: BTreeSet<(u64, Arc<str>)>,
}

impl ChangeIndex {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// For a scope that replaces a deleted one: earlier readers are invalid.
    pub(super) fn after(erased: &ChangeIndex) -> Self {
        let version = erased.version + 1;
        ChangeIndex { version, known: version, ..ChangeIndex::default() }
    }

    /// Counts a write.
    pub(super) fn begin(&mut self) {
        self.version += 1;
    }

    /// Records that the newest write was also to this key, and whether the key has a value now.
    pub(super) fn note(&mut self, key: &Arc<str>, has_value: bool) {
        let version = self.version;
        if let Some(before) = self.newest.insert(Arc::clone(key), version) {
            let before = (before, Arc::clone(key));
            self.by_version.remove(&before);
            self.removed.remove(&before);
        }
        self.by_version.insert((version, Arc::clone(key)));
        if !has_value {
            self.removed.insert((version, Arc::clone(key)));
        }
        // NOTE: keys with values are bounded by the values; removed ones are not. A reader from before the forgotten
        // removals reads all values.
        while self.removed.len() > REMEMBERED_REMOVALS
            && let Some(oldest) = self.removed.pop_first()
        {
            self.known = oldest.0;
            self.by_version.remove(&oldest);
            self.newest.remove(&oldest.1);
        }
    }

    /// The keys that were written after a version; `None` if they are unknown.
    pub(super) fn since(&self, version: u64) -> Option<BTreeSet<Arc<str>>> {
        if version < self.known || version > self.version {
            return None;
        }
        let after = (Bound::Included((version + 1, Arc::from(""))), Bound::Unbounded);
        Some(self.by_version.range(after).map(|(_, key)| Arc::clone(key)).collect())
    }
}
