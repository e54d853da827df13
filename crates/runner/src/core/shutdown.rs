//! Shutdown of a runner: starts nothing new, waits for running work, and stops work that exceeds the grace
//! period.

use std::sync::Arc;
use std::time::Duration;

use stepfold_tools::CancellationToken;
use tokio::sync::watch;

/// Whether a runner is shut down, and its number of workers.
#[derive(Debug, Default)]
pub(crate) struct RunnerShutdown {
    /// No new work starts.
    closed: CancellationToken,
    /// Running work stops immediately.
    stopped: CancellationToken,
    workers: Arc<watch::Sender<usize>>,
}

impl RunnerShutdown {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Waits until no new work starts.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Does some work; `None` if it was stopped before completion.
    pub(crate) async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.stopped.cancelled() => None,
        }
    }

    /// Counts a worker as long as the returned value lives.
    pub(crate) fn enter(&self) -> CountedWorker {
        // No caller waits for more of them.
        self.workers.send_if_modified(|workers| {
            *workers += 1;
            false
        });
        CountedWorker(Arc::clone(&self.workers))
    }

    /// Starts nothing new, and waits until all workers are done; stops them after the grace period. Returns
    /// whether none had to be stopped.
    pub(crate) async fn close(&self, grace: Duration) -> bool {
        self.closed.cancel();
        let mut workers = self.workers.subscribe();
        // The sender lives as long as `self`.
        let mut gone = std::pin::pin!(async move { workers.wait_for(|workers| *workers == 0).await.is_ok() });
        if tokio::time::timeout(grace, &mut gone).await.is_ok() {
            return true;
        }
        self.stopped.cancel();
        gone.await;
        false
    }
}

/// A counted worker.
pub(crate) struct CountedWorker(Arc<watch::Sender<usize>>);

impl Drop for CountedWorker {
    fn drop(&mut self) {
        self.0.send_if_modified(|workers| {
            *workers -= 1;
            *workers == 0
        });
    }
}
