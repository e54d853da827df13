//! The ids of all calls of a conversation, so that no later one takes an id again.

use std::sync::Arc;

use rpds::HashTrieSetSync;
use stepfold_state_core::chat::Transcript;

/// Persistent: a run, what it left and the next run share what they have in common, so that a turn costs what is
/// new in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallIds(HashTrieSetSync<Arc<str>>);

impl CallIds {
    /// Those of the calls in a log.
    pub(super) fn of(log: &Transcript) -> Self {
        let mut ids = CallIds::default();
        log.iter().flat_map(|message| message.tool_calls()).for_each(|call| ids.insert(&call.id));
        ids
    }

    pub(super) fn insert(&mut self, id: &str) {
        self.0.insert_mut(id.into());
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.0.contains(id)
    }
}
