//! Work that takes long, on a thread of its own: the threads that serve requests and hold claims are few, and others wait
//! for them.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinError;

use super::problem::Problem;

/// Does the work on a thread of its own. It ends at its next await after the timeout, or after this is dropped.
pub(in crate::http) async fn on_own_thread<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
    timeout: Option<Duration>,
) -> Result<T, Problem> {
    // Dropped with this function, before its end or at it.
    let (_here, left) = oneshot::channel::<()>();
    let late = async move {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let bounded = async move {
        tokio::select! {
            biased;
            _ = left => Err(Problem::unavailable("the client has left")),
            () = late => Err(Problem::takes_too_long(timeout.unwrap_or_default())),
            answered = work => answered,
        }
    };
    // NOTE: A blocking thread drives the future: reading a whole session would keep a worker thread from the claims that it
    // renews.
    let runtime = Handle::current();
    joined(tokio::task::spawn_blocking(move || runtime.block_on(bounded)).await)
}

/// The result of a task, which may have been stopped.
pub(in crate::http) fn joined<T>(ended: Result<Result<T, Problem>, JoinError>) -> Result<T, Problem> {
    let stopped = "the request was stopped: its handler panicked or the server stops";
    ended.unwrap_or_else(|_| Err(Problem::unavailable(stopped)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Work that looks now and then whether it continues, until it is stopped; and what it drops then.
    async fn endless(steps: Arc<AtomicUsize>, _held: oneshot::Sender<()>) -> Result<(), Problem> {
        loop {
            steps.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn work_ends_when_nobody_waits_for_it() {
        let (steps, (held, released)) = (Arc::<AtomicUsize>::default(), oneshot::channel());
        let work = tokio::spawn(on_own_thread(endless(Arc::clone(&steps), held), None));
        // This thread is free meanwhile.
        while steps.load(Ordering::SeqCst) < 10 {
            tokio::task::yield_now().await;
        }
        work.abort();
        assert!(released.await.is_err(), "the work was dropped");
    }

    #[tokio::test]
    async fn work_ends_after_its_timeout() {
        let (held, released) = oneshot::channel();
        let ended = on_own_thread(endless(Arc::default(), held), Some(Duration::from_millis(20))).await;
        assert_eq!(ended.unwrap_err().kind(), "timeout");
        assert!(released.await.is_err(), "the work was dropped");
    }

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        let panics = async { std::panic::resume_unwind(Box::new("broken")) };
        assert_eq!(on_own_thread::<()>(panics, None).await.unwrap_err().kind(), "unavailable");
    }
}
