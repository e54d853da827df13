//! The inbox of a session in memory.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;

use crate::error::SessionError;
use crate::ids::{IdempotencyKey, SessionKey};
use crate::store::{
    EnqueueInput, Enqueued, InboxEntry, InputDigest, MAX_INBOX, PreparedInput, REMEMBERED_INPUTS, ReadInbox,
};

/// The waiting entries, and the idempotency keys of taken ones.
#[derive(Debug, Default)]
pub(super) struct MemoryInbox {
    /// By position, with the bytes of their bodies.
    waiting: BTreeMap<u64, (InboxEntry, usize)>,
    /// Position and content of the waiting entries, and of those that were taken last. No content, if it was erased.
    known: HashMap<IdempotencyKey, (u64, Option<InputDigest>)>,
    /// The keys of the entries that were taken last, oldest first.
    taken: VecDeque<IdempotencyKey>,
    /// The newest position that was given.
    last: u64,
}

impl MemoryInbox {
    /// The position of the newest entry that waits; 0 if none does.
    pub(super) fn newest(&self) -> u64 {
        self.waiting.last_key_value().map_or(0, |(position, _)| *position)
    }

    pub(super) fn read(&self, request: &ReadInbox) -> Vec<InboxEntry> {
        let wanted = self.waiting.values().filter(|(entry, _)| request.wants(entry.position));
        let read = |(entry, bytes): &(InboxEntry, usize)| match *bytes <= request.max_body_bytes() {
            true => entry.clone(),
            false => {
                InboxEntry::without_body(entry.position, entry.kind, entry.idempotency_key.clone(), entry.at)
            }
        };
        wanted.map(read).collect()
    }

    /// Adds an entry. The answer lacks the session's claim and version.
    pub(super) fn enqueue(&mut self, prepared: PreparedInput) -> Result<Enqueued, SessionError> {
        let PreparedInput { input, digest, bytes, .. } = prepared;
        let EnqueueInput { key, kind, idempotency_key, body, at } = input;
        let enqueued = |position, is_repeat| Enqueued { position, is_repeat, claim: None, version: 0 };
        match self.known.get(&idempotency_key) {
            Some((position, known)) if known.is_none_or(|known| known == digest) => {
                return Ok(enqueued(*position, true));
            }
            Some(_) => return Err(SessionError::input_reused(&key, &idempotency_key)),
            None if self.waiting.len() >= MAX_INBOX => return Err(SessionError::inbox_full(&key, MAX_INBOX)),
            None => {}
        }
        self.last += 1;
        let position = self.last;
        self.known.insert(idempotency_key.clone(), (position, Some(digest)));
        self.waiting.insert(position, (InboxEntry::new(position, kind, idempotency_key, body, at), bytes));
        Ok(enqueued(position, false))
    }

    /// Checks that all of these wait, each given once.
    pub(super) fn check(&self, key: &SessionKey, positions: &[u64]) -> Result<(), SessionError> {
        let mut seen = Vec::with_capacity(positions.len());
        for position in positions {
            if seen.contains(position) || !self.waiting.contains_key(position) {
                return Err(SessionError::not_waiting(key, *position));
            }
            seen.push(*position);
        }
        Ok(())
    }

    /// Forgets the content of the taken entries; their keys stay known.
    pub(super) fn forget_digests(&mut self) {
        for key in &self.taken {
            if let Some((_, digest)) = self.known.get_mut(key) {
                *digest = None;
            }
        }
    }

    /// Takes the entries at these positions that wait.
    pub(super) fn take(&mut self, positions: &[u64]) -> Vec<u64> {
        let waiting = |position: &u64| {
            let (entry, _) = self.waiting.remove(position)?;
            self.taken.push_back(entry.idempotency_key);
            // NOTE: the key of a taken entry stays known, so that a late repetition of its request is recognized; the
            // number is bounded.
            if self.taken.len() > REMEMBERED_INPUTS
                && let Some(forgotten) = self.taken.pop_front()
            {
                self.known.remove(&forgotten);
            }
            Some(*position)
        };
        positions.iter().filter_map(waiting).collect()
    }
}
