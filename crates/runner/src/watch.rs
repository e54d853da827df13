//! Tells which sessions changed, to any number of watchers.

use futures_util::Stream;
use stepfold_session_scopes::SessionKey;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// The number of changes that are kept for slow watchers.
const KEPT: usize = 4_096;

/// A change of a session: see [`Runner::watch`](crate::Runner::watch).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionChange {
    /// An event was stored, or an invocation has ended.
    Changed {
        /// The session.
        key: SessionKey,
        /// Its version after the last known event.
        version: u64,
        /// Whether an invocation is running in it.
        is_running: bool,
    },
    /// These changes are no longer kept: the watcher was too slow. What changed is in the list of sessions.
    Missed {
        /// The number of missed changes.
        changes: u64,
    },
}

/// The sender of changes.
#[derive(Clone, Debug)]
pub(crate) struct Changes(broadcast::Sender<SessionChange>);

impl Default for Changes {
    fn default() -> Self {
        Changes(broadcast::Sender::new(KEPT))
    }
}

impl Changes {
    pub(crate) fn tell(&self, key: &SessionKey, version: u64, is_running: bool) {
        if self.0.receiver_count() > 0 {
            // The watcher may leave meanwhile.
            let _ = self.0.send(SessionChange::Changed { key: key.clone(), version, is_running });
        }
    }

    pub(crate) fn watch(&self) -> impl Stream<Item = SessionChange> + Send + Unpin + use<> {
        let changes = self.0.subscribe();
        Box::pin(futures_util::stream::unfold(changes, |mut changes| async move {
            match changes.recv().await {
                Ok(change) => Some((change, changes)),
                Err(RecvError::Lagged(missed)) => Some((SessionChange::Missed { changes: missed }, changes)),
                Err(RecvError::Closed) => None,
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn a_slow_watcher_is_told_what_it_missed() {
        let changes = Changes::default();
        let key = SessionKey::new("app", "ada", "s1").unwrap();
        changes.tell(&key, 1, true);
        let mut watch = changes.watch();
        for version in 0..KEPT as u64 + 3 {
            changes.tell(&key, version, true);
        }
        assert_eq!(watch.next().await, Some(SessionChange::Missed { changes: 3 }));
        let next = SessionChange::Changed { key, version: 3, is_running: true };
        assert_eq!(watch.next().await, Some(next));
        drop(changes);
        assert_eq!(watch.count().await, KEPT - 1);
    }
}
