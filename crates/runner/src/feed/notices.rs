//! Notices of the store, passed on to the watchers of sessions: commits of other processes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, Stream};
use stepfold_session_scopes::{SessionStore, StoreNotice, StoreNotices, WatchStore};

use crate::core::runner_core::Runner;
use crate::core::watchers::{SessionChange, WatcherRegistry};

/// The first and the longest pause between polls of the store; commits of this process are reported at once.
pub(crate) const POLL_PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The longest pause between polls if the store notifies of commits of other processes.
pub(crate) const SLOW_POLL: Duration = Duration::from_secs(15);

/// The shortest interval between two notices without names that wake all watchers, while this runner commits itself: a
/// store that does not name sessions sends such notices of its own commits, too.
const MIN_WAKE_INTERVAL: Duration = Duration::from_secs(1);

impl Runner {
    /// Listens to notices of the store about commits of other processes, while there are watchers, which share this task.
    /// Returns whether the store sends notices.
    pub(crate) async fn listen_to_notices(&self) -> bool {
        let watchers = Arc::clone(&self.0.changes.0);
        if std::mem::replace(&mut watchers.watched().is_listening, true) {
            return true;
        }
        let listener = NoticeListener { watchers, has_ended: false };
        let Ok(notices) = self.0.store.notices(WatchStore::new()).await else { return false };
        tokio::spawn(listener.pass_on(notices));
        true
    }

    /// Wakes watchers periodically: a notice may be lost, or the store may send none.
    pub(crate) fn poll_ticks(&self) -> impl Stream<Item = SessionChange> + Send + use<> {
        futures_util::stream::unfold(self.clone(), |runner| async move {
            let pause = if runner.listen_to_notices().await { SLOW_POLL } else { POLL_PAUSES.1 };
            runner.0.clock.sleep(pause).await;
            Some((SessionChange::Missed { changes: 0 }, runner))
        })
    }
}

/// The task that passes notices on. Another one may start once this is dropped, also with its runtime.
struct NoticeListener {
    watchers: Arc<WatcherRegistry>,
    /// Whether its end was announced: another one may have started since.
    has_ended: bool,
}

impl Drop for NoticeListener {
    fn drop(&mut self) {
        if !self.has_ended {
            self.watchers.watched().is_listening = false;
        }
    }
}

impl NoticeListener {
    async fn pass_on(mut self, mut notices: StoreNotices) {
        // Commits before this may go unreported.
        self.watchers.watched().wake(&StoreNotice::anything());
        loop {
            let notice = tokio::select! {
                notice = notices.next() => notice,
                () = self.watchers.is_idle.notified() => {
                    // Under one lock, so that a later watcher starts a task of its own.
                    let mut watched = self.watchers.watched();
                    if !watched.is_idle() {
                        continue;
                    }
                    watched.is_listening = false;
                    drop(watched);
                    self.has_ended = true;
                    return;
                }
            };
            let Some(notice) = notice else { return };
            let is_own =
                notice.names().is_none() && std::mem::take(&mut self.watchers.watched().has_notified);
            if is_own {
                tokio::time::sleep(MIN_WAKE_INTERVAL).await;
                // One wake-up is enough for all notices that arrived meanwhile.
                while let Some(Some(_)) = notices.next().now_or_never() {}
            }
            let mut watched = self.watchers.watched();
            watched.has_notified = false;
            watched.wake(&notice);
        }
    }
}

/// Waits for a notice of the store that matters; for ever if the store sends none.
pub(crate) async fn next_matching(
    notices: &mut Option<StoreNotices>,
    matters: impl Fn(&StoreNotice) -> bool,
) {
    while let Some(listening) = notices {
        match listening.next().await {
            Some(notice) if matters(&notice) => return,
            Some(_) => {}
            None => *notices = None,
        }
    }
    std::future::pending::<()>().await;
}
