//! The sessions cached in this process: those in use, recently used ones, and those with a waiting run and
//! `temp:` values, which exist only here.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use stepfold_session_scopes::SessionKey;

use crate::session::local_session::LocalSession;

/// The number of cached sessions that are not in use.
const MAX_RECENT: usize = 256;

/// Below this number, unused sessions are not searched.
const MIN_SWEEP: usize = 1_024;

pub(crate) struct SessionTable {
    sessions: HashMap<SessionKey, Weak<LocalSession>>,
    /// The number of slots that triggers a search for unused ones.
    sweep_at: usize,
    /// Recently used sessions, so that their data is reused.
    last: RecentSessions,
    /// Sessions with a waiting run and `temp:` values.
    paused: RecentSessions,
}

impl SessionTable {
    pub(crate) fn new(max_paused: usize) -> Self {
        let (last, paused) = (RecentSessions::new(MAX_RECENT), RecentSessions::new(max_paused));
        SessionTable { sessions: HashMap::new(), sweep_at: MIN_SWEEP, last, paused }
    }

    /// The session's slot. The cost does not depend on the number of slots.
    pub(crate) fn get(&mut self, key: SessionKey) -> Arc<LocalSession> {
        let mut entry = match self.sessions.entry(key) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(free) => free.insert_entry(Weak::new()),
        };
        let local = entry.get().upgrade().unwrap_or_else(|| {
            let local = Arc::new(LocalSession::new(entry.key().clone()));
            entry.insert(Arc::downgrade(&local));
            local
        });
        // NOTE: a recent session stays in memory, so that its next turn reads only new data.
        self.last.touch(&local);
        if self.sessions.len() >= self.sweep_at {
            self.sessions.retain(|_, local| local.strong_count() > 0);
            self.sweep_at = MIN_SWEEP.max(self.sessions.len() * 2);
        }
        local
    }

    /// All sessions in use.
    pub(crate) fn all(&self) -> Vec<Arc<LocalSession>> {
        self.sessions.values().filter_map(Weak::upgrade).collect()
    }

    /// Keeps a session until it is [released](SessionTable::unpause), unless too many others follow.
    pub(crate) fn pause(&mut self, local: &Arc<LocalSession>) {
        self.paused.touch(local);
    }

    /// The run of a session no longer waits.
    pub(crate) fn unpause(&mut self, local: &Arc<LocalSession>) {
        self.paused.remove(local);
    }
}

/// The most recently touched slots, up to a number.
struct RecentSessions {
    limit: usize,
    next: u64,
    by_age: BTreeMap<u64, Arc<LocalSession>>,
    /// The ages of the slots, by their addresses: each is kept here.
    places: HashMap<usize, u64>,
}

impl RecentSessions {
    fn new(limit: usize) -> Self {
        RecentSessions { limit, next: 0, by_age: BTreeMap::new(), places: HashMap::new() }
    }

    fn touch(&mut self, local: &Arc<LocalSession>) {
        self.next += 1;
        if let Some(place) = self.places.insert(address(local), self.next) {
            self.by_age.remove(&place);
        }
        self.by_age.insert(self.next, Arc::clone(local));
        if self.by_age.len() > self.limit
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.places.remove(&address(&oldest));
        }
    }

    fn remove(&mut self, local: &Arc<LocalSession>) {
        if let Some(place) = self.places.remove(&address(local)) {
            self.by_age.remove(&place);
        }
    }
}

fn address(local: &Arc<LocalSession>) -> usize {
    Arc::as_ptr(local).addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> SessionKey {
        SessionKey::new("app", "ada", format!("s{number}")).unwrap()
    }

    #[test]
    fn a_session_that_waits_is_kept_before_later_ones() {
        let mut sessions = SessionTable::new(2);
        let waits = Arc::downgrade(&sessions.get(key(0)));
        sessions.pause(&waits.upgrade().unwrap());
        let forgotten = Arc::downgrade(&sessions.get(key(1)));
        for number in 2..2_000 {
            sessions.get(key(number));
        }
        assert!(forgotten.upgrade().is_none());
        assert!(Arc::ptr_eq(&sessions.get(key(0)), &waits.upgrade().unwrap()));
        assert!(sessions.sessions.len() <= MIN_SWEEP);
        // The maximum number waits.
        for number in 1..3 {
            let local = sessions.get(key(number));
            sessions.pause(&local);
        }
        for number in 3..2_000 {
            sessions.get(key(number));
        }
        assert!(waits.upgrade().is_none());
    }

    #[test]
    fn a_session_that_ended_is_let_go() {
        let mut sessions = SessionTable::new(2);
        let local = sessions.get(key(0));
        sessions.pause(&local);
        sessions.unpause(&local);
        let gone = Arc::downgrade(&local);
        drop(local);
        for number in 1..2_000 {
            sessions.get(key(number));
        }
        assert!(gone.upgrade().is_none());
    }
}
