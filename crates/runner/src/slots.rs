//! The sessions that this process knows: those that somebody holds, those that were asked for last, and those whose run
//! waits and has `temp:` values, which are nowhere else.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use stepfold_session_scopes::SessionKey;

use crate::slot::Slot;

/// How many sessions are remembered that nobody holds.
const REMEMBERED: usize = 256;

/// Below this many it is not worth looking for those that are gone.
const FEW: usize = 1_024;

pub(crate) struct Slots {
    held: HashMap<SessionKey, Weak<Slot>>,
    /// When so many are held, those that are gone are looked for.
    sweep_at: usize,
    /// Those that were asked for last: who asks again finds what was read.
    last: Recent,
    /// Those whose run waits and has `temp:` values.
    paused: Recent,
}

impl Slots {
    pub(crate) fn new(max_paused: usize) -> Self {
        let (last, paused) = (Recent::new(REMEMBERED), Recent::new(max_paused));
        Slots { held: HashMap::new(), sweep_at: FEW, last, paused }
    }

    /// The session's slot. The cost does not depend on how many there are.
    pub(crate) fn get(&mut self, key: SessionKey) -> Arc<Slot> {
        let known = self.held.get(&key).and_then(Weak::upgrade);
        let slot = known.unwrap_or_else(|| {
            let slot = Arc::new(Slot::new(key.clone()));
            self.held.insert(key, Arc::downgrade(&slot));
            slot
        });
        self.last.touch(&slot);
        if self.held.len() >= self.sweep_at {
            self.held.retain(|_, slot| slot.strong_count() > 0);
            self.sweep_at = FEW.max(self.held.len() * 2);
        }
        slot
    }

    /// Keeps a session until it is [let go](Slots::let_go), unless too many others come after it.
    pub(crate) fn pause(&mut self, slot: &Arc<Slot>) {
        self.paused.touch(slot);
    }

    /// The run of a session does not wait any more.
    pub(crate) fn let_go(&mut self, key: &SessionKey) {
        self.paused.remove(key);
    }
}

/// Those that were touched last, up to a number.
struct Recent {
    limit: usize,
    next: u64,
    by_age: BTreeMap<u64, Arc<Slot>>,
    places: HashMap<SessionKey, u64>,
}

impl Recent {
    fn new(limit: usize) -> Self {
        Recent { limit, next: 0, by_age: BTreeMap::new(), places: HashMap::new() }
    }

    fn touch(&mut self, slot: &Arc<Slot>) {
        self.next += 1;
        if let Some(place) = self.places.insert(slot.key.clone(), self.next) {
            self.by_age.remove(&place);
        }
        self.by_age.insert(self.next, Arc::clone(slot));
        if self.by_age.len() > self.limit
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.places.remove(&oldest.key);
        }
    }

    fn remove(&mut self, key: &SessionKey) {
        if let Some(place) = self.places.remove(key) {
            self.by_age.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> SessionKey {
        SessionKey::new("app", "ada", format!("s{number}")).unwrap()
    }

    #[test]
    fn a_session_that_waits_is_kept_whoever_comes_after_it() {
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
        // As many wait as may.
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
        slots.let_go(&key(0));
        let gone = Arc::downgrade(&slot);
        drop(slot);
        for number in 1..2_000 {
            slots.get(key(number));
        }
        assert!(gone.upgrade().is_none());
    }
}
