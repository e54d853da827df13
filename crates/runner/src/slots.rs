//! The sessions cached in this process: those in use, recently used ones, and those with a waiting run and
//! `temp:` values, which exist only here.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use stepfold_session_scopes::SessionKey;

use crate::slot::Slot;

/// The number of cached sessions that are not in use.
const REMEMBERED: usize = 256;

/// Below this number, unused sessions are not searched.
const FEW: usize = 1_024;

pub(crate) struct Slots {
    held: HashMap<SessionKey, Weak<Slot>>,
    /// The number of slots that triggers a search for unused ones.
    sweep_at: usize,
    /// Recently used sessions, so that their data is reused.
    last: Recent,
    /// Sessions with a waiting run and `temp:` values.
    paused: Recent,
}

impl Slots {
    pub(crate) fn new(max_paused: usize) -> Self {
        let (last, paused) = (Recent::new(REMEMBERED), Recent::new(max_paused));
        Slots { held: HashMap::new(), sweep_at: FEW, last, paused }
    }

    /// The session's slot. The cost does not depend on the number of slots.
    pub(crate) fn get(&mut self, key: SessionKey) -> Arc<Slot> {
        let mut held = match self.held.entry(key) {
            Entry::Occupied(held) => held,
            Entry::Vacant(free) => free.insert_entry(Weak::new()),
        };
        let slot = held.get().upgrade().unwrap_or_else(|| {
            let slot = Arc::new(Slot::new(held.key().clone()));
            held.insert(Arc::downgrade(&slot));
            slot
        });
        self.last.touch(&slot);
        if self.held.len() >= self.sweep_at {
            self.held.retain(|_, slot| slot.strong_count() > 0);
            self.sweep_at = FEW.max(self.held.len() * 2);
        }
        slot
    }

    /// Those that are there.
    pub(crate) fn all(&self) -> Vec<Arc<Slot>> {
        self.held.values().filter_map(Weak::upgrade).collect()
    }

    /// Keeps a session until it is [released](Slots::let_go), unless too many others follow.
    pub(crate) fn pause(&mut self, slot: &Arc<Slot>) {
        self.paused.touch(slot);
    }

    /// The run of a session no longer waits.
    pub(crate) fn let_go(&mut self, slot: &Arc<Slot>) {
        self.paused.remove(slot);
    }
}

/// The most recently touched slots, up to a number.
struct Recent {
    limit: usize,
    next: u64,
    by_age: BTreeMap<u64, Arc<Slot>>,
    /// The ages of the slots, by their addresses: each is kept here.
    places: HashMap<usize, u64>,
}

impl Recent {
    fn new(limit: usize) -> Self {
        Recent { limit, next: 0, by_age: BTreeMap::new(), places: HashMap::new() }
    }

    fn touch(&mut self, slot: &Arc<Slot>) {
        self.next += 1;
        if let Some(place) = self.places.insert(address(slot), self.next) {
            self.by_age.remove(&place);
        }
        self.by_age.insert(self.next, Arc::clone(slot));
        if self.by_age.len() > self.limit
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.places.remove(&address(&oldest));
        }
    }

    fn remove(&mut self, slot: &Arc<Slot>) {
        if let Some(place) = self.places.remove(&address(slot)) {
            self.by_age.remove(&place);
        }
    }
}

fn address(slot: &Arc<Slot>) -> usize {
    Arc::as_ptr(slot).addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> SessionKey {
        SessionKey::new("app", "ada", format!("s{number}")).unwrap()
    }

    #[test]
    fn a_session_that_waits_is_kept_before_later_ones() {
        let mut slots = Slots::new(2);
        let waits = Arc::downgrade(&slots.get(key(0)));
        slots.pause(&waits.upgrade().unwrap());
        let forgotten = Arc::downgrade(&slots.get(key(1)));
        for number in 2..2_000 {
            slots.get(key(number));
        }
        assert!(forgotten.upgrade().is_none());
        assert!(Arc::ptr_eq(&slots.get(key(0)), &waits.upgrade().unwrap()));
        assert!(slots.held.len() <= FEW);
        // The maximum number waits.
        for number in 1..3 {
            let slot = slots.get(key(number));
            slots.pause(&slot);
        }
        for number in 3..2_000 {
            slots.get(key(number));
        }
        assert!(waits.upgrade().is_none());
    }

    #[test]
    fn a_session_that_ended_is_let_go() {
        let mut slots = Slots::new(2);
        let slot = slots.get(key(0));
        slots.pause(&slot);
        slots.let_go(&slot);
        let gone = Arc::downgrade(&slot);
        drop(slot);
        for number in 1..2_000 {
            slots.get(key(number));
        }
        assert!(gone.upgrade().is_none());
    }
}
