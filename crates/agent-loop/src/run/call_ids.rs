//! The ids of all calls of a conversation, so that no later one takes an id again.

use std::collections::HashSet;

use rpds::HashTrieSetSync;
use stepfold_state_core::chat::Transcript;

/// A set in two parts, so that a step costs no more than in a plain set, and a turn no more than its new calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallIdSet {
    /// The ids of earlier runs: a persistent set, shared with those runs.
    before: HashTrieSetSync<Box<str>>,
    /// The ids that this run has added.
    new: HashSet<Box<str>>,
}

impl CallIdSet {
    /// The ids of the calls in a log.
    pub(super) fn of(log: &Transcript) -> Self {
        let calls = log.iter().flat_map(|message| message.tool_calls());
        CallIdSet { new: calls.map(|call| call.id.as_str().into()).collect(), ..CallIdSet::default() }
    }

    /// The set for the next run. O(what this run has added).
    pub(super) fn for_next_run(&self) -> Self {
        // NOTE: Two sets: a hash set alone is copied whole for each turn, and a persistent one alone is slower at each
        // step, the more the longer the conversation is.
        let mut before = self.before.clone();
        self.new.iter().for_each(|id| before.insert_mut(id.clone()));
        CallIdSet { before, new: HashSet::new() }
    }

    pub(super) fn insert(&mut self, id: &str) {
        if !self.was_before(id) {
            self.new.insert(id.into());
        }
    }

    /// The number of the calls: the same for the same log, independent of how the ids were collected.
    pub(crate) fn len(&self) -> usize {
        self.before.size() + self.new.len()
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.new.contains(id) || self.was_before(id)
    }

    fn was_before(&self, id: &str) -> bool {
        // It hashes before it looks.
        !self.before.is_empty() && self.before.contains(id)
    }
}
