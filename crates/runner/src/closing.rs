//! The orderly end of a runner: it begins nothing more, waits for what is at work, and stops what takes too long.

use std::sync::Arc;
use std::time::Duration;

use stepfold_tools::CancellationToken;
use tokio::sync::watch;

/// Whether a runner begins anything more, and how many workers it has.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    /// Nothing begins any more.
    closed: CancellationToken,
    /// What is at work stops where it is.
    stopped: CancellationToken,
    workers: Arc<watch::Sender<usize>>,
}

impl Closing {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Waits until nothing begins any more.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Does some work; none if it was stopped before it was done.
    pub(crate) async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.stopped.cancelled() => None,
        }
    }

    /// Counts a worker for as long as what is given lives.
    pub(crate) fn enter(&self) -> AtWork {
        self.workers.send_modify(|workers| *workers += 1);
        AtWork(Arc::clone(&self.workers))
    }

    /// Begins nothing more, and waits until all workers are gone; after the grace period they are stopped. Gives
    /// whether none had to be.
    pub(crate) async fn close(&self, grace: Duration) -> bool {
        self.closed.cancel();
        let mut workers = self.workers.subscribe();
        // The sender lives as long as this.
        let mut gone = std::pin::pin!(async move { workers.wait_for(|workers| *workers == 0).await.is_ok() });
        if tokio::time::timeout(grace, &mut gone).await.is_ok() {
            return true;
        }
        self.stopped.cancel();
        gone.await;
        false
    }
}

/// A worker that is there.
pub(crate) struct AtWork(Arc<watch::Sender<usize>>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.send_modify(|workers| *workers -= 1);
    }
}
