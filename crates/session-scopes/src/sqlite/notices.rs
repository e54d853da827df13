//! Notices by `PRAGMA data_version`: a number that differs when another connection, of this process or another one, has
//! committed since the same connection read it last.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::error::failed;
use super::threads::{SqliteConnection, SqliteReaders, WeakReaders, spawn};
use crate::error::SessionError;
use crate::store::{NoticeSubscribers, StoreNotice, StoreNotices};

/// The interval between reads of the number while there are subscribers.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// The notices of a store.
#[derive(Default)]
pub(super) struct SqliteNotifier {
    subscribers: NoticeSubscribers,
    is_watched: Arc<Mutex<bool>>,
}

/// Marks the polling thread as running until it is dropped.
struct PollerGuard(Arc<Mutex<bool>>);

impl Drop for PollerGuard {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl SqliteNotifier {
    pub(super) fn listen(&self, readers: &SqliteReaders) -> Result<StoreNotices, SessionError> {
        let notices = self.subscribers.subscribe();
        let mut is_watched = self.is_watched.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_watched {
            let guard = PollerGuard(Arc::clone(&self.is_watched));
            let (readers, subscribers) = (readers.downgrade(), self.subscribers.clone());
            // NOTE: a thread and not a task: dropping the store waits for the readers, and must not wait for a task of the
            // runtime on which it is dropped.
            spawn("stepfold-sqlite-notices", move || poll_until_unused(&guard, &readers, &subscribers))?;
            *is_watched = true;
        }
        Ok(notices)
    }
}

fn poll_until_unused(_guard: &PollerGuard, readers: &WeakReaders, subscribers: &NoticeSubscribers) {
    while subscribers.has_any() && !readers.are_closed() {
        match readers.run(has_changed) {
            Some(Ok(true)) => drop(subscribers.notify(&StoreNotice::anything())),
            Some(Ok(false)) | None => {}
            // NOTE: only logged, since listeners also poll, slowly.
            Some(Err(error)) => tracing::debug!(%error, "the version of the file could not be read"),
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Whether anything was committed since the last call on this connection.
fn has_changed(sqlite: &mut SqliteConnection) -> Result<bool, SessionError> {
    let version: i64 = sqlite
        .connection
        .query_row("PRAGMA data_version", [], |row| row.get(0))
        .map_err(failed("read the version of its file"))?;
    // NOTE: the first read on a connection counts as a change, since commits before it are unknown.
    Ok(sqlite.version.replace(version) != Some(version))
}
