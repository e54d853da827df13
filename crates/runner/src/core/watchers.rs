//! Notifies any number of watchers of changed sessions: of all sessions, of those of a user, or of one.
//!
//! A change wakes the watchers of its session, and no others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::stream::BoxStream;
use stepfold_session_scopes::{SessionKey, StoreNotice, UserId};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, broadcast, watch};

/// The number of changes that are kept for slow watchers of all sessions, and of those of a user.
const MAX_KEPT: usize = 4_096;
const MAX_KEPT_OF_USER: usize = 64;

/// A change of a session: see [`Runner::watch`](crate::Runner::watch).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionChange {
    /// It was created or deleted, an event was stored, a run is resumed, or an invocation has ended. Look the session up to learn
    /// which: a deletion has version 0, as a creation has, and the end of a run may be reported of a session that another
    /// process has deleted meanwhile.
    Changed {
        /// The session.
        key: SessionKey,
        /// Its version after the last known event.
        version: u64,
        /// Whether an invocation is running in it. After the end of one, [`running`](crate::SessionHandle::running) agrees:
        /// it names none, or the next one.
        is_running: bool,
    },
    /// These changes are unknown: the watcher was too slow, or another process made them. The list of sessions shows the
    /// changed ones. It may come before changes of this process that are older.
    Missed {
        /// The number of missed changes; 0 if it is unknown.
        changes: u64,
    },
}

/// The feed of changed sessions to their watchers.
#[derive(Clone, Debug)]
pub(crate) struct ChangeFeed(pub(crate) Arc<WatcherRegistry>);

#[derive(Debug)]
pub(crate) struct WatcherRegistry {
    /// Created for the first watcher of all sessions: it reserves room for all of its changes, 0.4 MB.
    all: OnceLock<broadcast::Sender<SessionChange>>,
    watched: Mutex<WatcherIndex>,
    /// Notified when the last watcher has left.
    pub(crate) is_idle: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct WatcherIndex {
    sessions: HashMap<SessionKey, watch::Sender<NewestChange>>,
    /// The watched sessions, by their names in notices.
    names: HashMap<u64, Vec<SessionKey>>,
    users: HashMap<UserId, broadcast::Sender<SessionChange>>,
    /// Whether notices of the store are passed on.
    pub(crate) is_listening: bool,
    /// Whether this runner has committed since the last wake-up.
    pub(crate) has_notified: bool,
}

/// The newest change of a session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NewestChange {
    pub(crate) version: u64,
    pub(crate) is_running: bool,
    /// The number of changes by this runner.
    pub(crate) changes: u64,
    /// The number of wake-ups because other processes may have changed it.
    pub(crate) polls: u64,
}

impl Default for ChangeFeed {
    fn default() -> Self {
        let (all, watched) = (OnceLock::new(), Mutex::default());
        ChangeFeed(Arc::new(WatcherRegistry { all, watched, is_idle: Notify::new() }))
    }
}

impl ChangeFeed {
    pub(crate) fn notify(&self, key: &SessionKey, version: u64, is_running: bool) {
        let change = || SessionChange::Changed { key: key.clone(), version, is_running };
        if let Some(all) = self.0.all.get().filter(|all| all.receiver_count() > 0) {
            // The watcher may leave meanwhile.
            let _ = all.send(change());
        }
        let mut watched = self.0.watched();
        watched.has_notified = true;
        if let Some(user) = watched.users.get(&key.user) {
            let _ = user.send(change());
        }
        if let Some(session) = watched.sessions.get(key) {
            session.send_modify(|newest| {
                (newest.version, newest.is_running) = (version, is_running);
                newest.changes += 1;
            });
        }
    }

    /// Notifies watchers that a session was deleted, and wakes its followers.
    pub(crate) fn notify_deleted(&self, key: &SessionKey) {
        self.notify(key, 0, false);
        if let Some(session) = self.0.watched().sessions.get(key) {
            wake(session);
        }
    }

    pub(crate) fn watch(&self) -> BoxStream<'static, SessionChange> {
        changes_of(self.0.all.get_or_init(|| broadcast::Sender::new(MAX_KEPT)).subscribe(), ())
    }

    pub(crate) fn watch_user(&self, user: &UserId) -> BoxStream<'static, SessionChange> {
        let mut watched = self.0.watched();
        let sender =
            watched.users.entry(user.clone()).or_insert_with(|| broadcast::Sender::new(MAX_KEPT_OF_USER));
        changes_of(sender.subscribe(), UserWatch { watchers: Arc::clone(&self.0), user: user.clone() })
    }

    pub(crate) fn watch_session(&self, key: &SessionKey) -> SessionWatch {
        let mut watched = self.0.watched();
        let watched = &mut *watched;
        let sender = watched.sessions.entry(key.clone()).or_insert_with(|| {
            watched.names.entry(StoreNotice::name_of(key)).or_default().push(key.clone());
            watch::Sender::new(NewestChange::default())
        });
        SessionWatch { newest: sender.subscribe(), watchers: Arc::clone(&self.0), key: key.clone() }
    }
}

/// The changes that a channel has. `until_end` is dropped with them.
fn changes_of(
    changes: broadcast::Receiver<SessionChange>,
    until_end: impl Send + 'static,
) -> BoxStream<'static, SessionChange> {
    Box::pin(futures_util::stream::unfold((changes, until_end), |(mut changes, until_end)| async move {
        let change = match changes.recv().await {
            Ok(change) => change,
            Err(RecvError::Lagged(missed)) => SessionChange::Missed { changes: missed },
            Err(RecvError::Closed) => return None,
        };
        Some((change, (changes, until_end)))
    }))
}

/// Watches a session, until it is dropped.
#[derive(Debug)]
pub(crate) struct SessionWatch {
    pub(crate) newest: watch::Receiver<NewestChange>,
    watchers: Arc<WatcherRegistry>,
    key: SessionKey,
}

impl SessionWatch {
    pub(crate) fn into_changes(self) -> BoxStream<'static, SessionChange> {
        let reported = self.newest.borrow().changes;
        Box::pin(futures_util::stream::unfold((self, reported), |(mut watch, reported)| async move {
            loop {
                watch.newest.changed().await.ok()?;
                let newest = *watch.newest.borrow_and_update();
                if newest.changes > reported {
                    let NewestChange { version, is_running, .. } = newest;
                    let change = SessionChange::Changed { key: watch.key.clone(), version, is_running };
                    return Some((change, (watch, newest.changes)));
                }
            }
        }))
    }
}

impl Drop for SessionWatch {
    fn drop(&mut self) {
        let mut watched = self.watchers.watched();
        // This one is still counted.
        if watched.sessions.get(&self.key).is_none_or(|sender| sender.receiver_count() > 1) {
            return;
        }
        watched.sessions.remove(&self.key);
        let name = StoreNotice::name_of(&self.key);
        if let Some(keys) = watched.names.get_mut(&name) {
            keys.retain(|key| *key != self.key);
            if keys.is_empty() {
                watched.names.remove(&name);
            }
        }
        self.watchers.notify_if_idle(&watched);
    }
}

/// Watches the sessions of a user, until it is dropped.
struct UserWatch {
    watchers: Arc<WatcherRegistry>,
    user: UserId,
}

impl Drop for UserWatch {
    fn drop(&mut self) {
        let mut watched = self.watchers.watched();
        // The receiver is dropped before.
        if watched.users.get(&self.user).is_some_and(|sender| sender.receiver_count() == 0) {
            watched.users.remove(&self.user);
        }
        self.watchers.notify_if_idle(&watched);
    }
}

impl WatcherRegistry {
    pub(crate) fn watched(&self) -> MutexGuard<'_, WatcherIndex> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notify_if_idle(&self, watched: &WatcherIndex) {
        if watched.is_idle() {
            self.is_idle.notify_one();
        }
    }
}

impl WatcherIndex {
    pub(crate) fn is_idle(&self) -> bool {
        self.sessions.is_empty() && self.users.is_empty()
    }

    /// Wakes the watchers of the sessions of a notice.
    pub(crate) fn wake(&self, notice: &StoreNotice) {
        match notice.names() {
            None => self.sessions.values().for_each(wake),
            Some(names) => {
                let keys = names.iter().filter_map(|name| self.names.get(name)).flatten();
                keys.filter_map(|key| self.sessions.get(key)).for_each(wake);
            }
        }
        for (_, changes) in self.users.iter().filter(|(user, _)| notice.may_concern_user(user)) {
            let _ = changes.send(SessionChange::Missed { changes: 0 });
        }
    }
}

pub(crate) fn wake(session: &watch::Sender<NewestChange>) {
    session.send_modify(|newest| newest.polls += 1);
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn a_slow_watcher_is_told_what_it_missed() {
        let changes = ChangeFeed::default();
        let key = SessionKey::new("app", "ada", "s1").unwrap();
        changes.notify(&key, 1, true);
        let mut watch = changes.watch();
        for version in 0..MAX_KEPT as u64 + 3 {
            changes.notify(&key, version, true);
        }
        assert_eq!(watch.next().await, Some(SessionChange::Missed { changes: 3 }));
        let next = SessionChange::Changed { key, version: 3, is_running: true };
        assert_eq!(watch.next().await, Some(next));
        drop(changes);
        assert_eq!(watch.count().await, MAX_KEPT - 1);
    }

    #[tokio::test]
    async fn who_has_left_leaves_nothing() {
        let changes = ChangeFeed::default();
        let key = SessionKey::new("app", "ada", "s1").unwrap();
        let (first, second) = (changes.watch_session(&key), changes.watch_session(&key));
        let user = changes.watch_user(&key.user);
        drop(first);
        assert_eq!(changes.0.watched().sessions.len(), 1);
        drop((second, user));
        let watched = changes.0.watched();
        assert!(watched.is_idle() && watched.names.is_empty() && watched.users.is_empty());
    }
}
