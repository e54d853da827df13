//! The ids of all calls of a conversation, so that no later one takes an id again.

use std::collections::HashSet;

use rpds::HashTrieSetSync;
use stepfold_state_core::chat::Transcript;

/// In two parts, so that a step costs no more than in a plain set, and a turn no more than what is new in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallIdSet {
    /// What earlier runs left: persistent, and so shared with what they left.
    before: HashTrieSetSync<Box<str>>,
    /// What this run has added.
    new: HashSet<Box<str>>,
}

impl CallIdSet {
    /// Those of the calls in a log.
    pub(super) fn of(log: &Transcript) -> Self {
        let calls = log.iter().flat_map(|message| message.tool_calls());
        CallIdSet { new: calls.map(|call| call.id.as_str().into()).collect(), ..CallIdSet::default() }
    }

    /// The same for the next run. O(what this run has added).
    pub(super) fn for_next_run(&self) -> Self {
        let mut before = self.before.clone();
        self.new.iter().for_each(|id| before.insert_mut(id.clone()));
        CallIdSet { before, new: HashSet::new() }
    }

    pub(super) fn insert(&mut self, id: &str) {
        if !self.was_before(id) {
            self.new.insert(id.into());
        }
    }

    /// The number of the calls: the same for the same log, however the ids came to be known.
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
