//! The version of each event id of a session.
//!
//! The ids themselves stand in the events. Here are their hashes, so that an append hashes its id once and a table
//! that grows hashes nothing.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::ids::EventId;

/// The hash of an event's id, and the event's version if it exists.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownEvent {
    hash: u64,
    pub(super) version: Option<u64>,
}

/// The versions of a session's events, by the ids of these.
#[derive(Clone, Debug, Default)]
pub(super) struct EventVersions {
    hasher: DefaultHashBuilder,
    /// The hash of an id, and the version of its event.
    table: HashTable<(u64, u64)>,
}

impl EventVersions {
    /// Looks an id up. `is_its` says whether a version's event has it; hashes may coincide.
    pub(super) fn find(&self, id: &EventId, is_its: impl Fn(u64) -> bool) -> KnownEvent {
        let hash = self.hasher.hash_one(id);
        // NOTE: the ids themselves are in the events, and hashes may coincide, so a hit is compared with the event.
        let found = self.table.find(hash, |(other, version)| *other == hash && is_its(*version));
        KnownEvent { hash, version: found.map(|(_, version)| *version) }
    }

    /// Adds the version of an id that was looked up and not found.
    pub(super) fn insert(&mut self, known: KnownEvent, version: u64) {
        self.table.insert_unique(known.hash, (known.hash, version), |(hash, _)| *hash);
    }

    /// Forgets an id, which is that of this version.
    pub(super) fn remove(&mut self, id: &EventId, version: u64) {
        let hash = self.hasher.hash_one(id);
        if let Ok(entry) = self.table.find_entry(hash, |(_, other)| *other == version) {
            entry.remove();
        }
    }
}
