//! A meter of the bytes that a server sends: a total since each request, over all streams.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

/// The limit on the bytes after one request, in messages of maximum length.
// NOTE: More than one message, since progress and notifications come along with a response.
const FLOOD: usize = 4;

/// Counts the bytes from a server since the last request. Shared by all streams of a connection.
#[derive(Debug)]
pub(crate) struct ByteMeter {
    limit: usize,
    since_request: AtomicUsize,
    state: Mutex<MeterState>,
}

#[derive(Debug, Default)]
struct MeterState {
    broken: Option<String>,
    on_broken: Option<oneshot::Sender<()>>,
}

impl ByteMeter {
    /// Creates a meter for messages of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        ByteMeter { limit, since_request: AtomicUsize::new(0), state: Mutex::default() }
    }

    /// The limit on the bytes of a message.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Resets the total: a request is sent.
    pub(crate) fn start_request(&self) {
        // NOTE: Relaxed: the total is a bound on memory, and needs no order with other data.
        self.since_request.store(0, Ordering::Relaxed);
    }

    /// Adds to the total.
    ///
    /// # Errors
    /// The exceeded limit.
    pub(crate) fn count(&self, bytes: usize) -> Result<(), String> {
        let sent = self.since_request.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let most = self.limit.saturating_mul(FLOOD);
        if sent <= most { Ok(()) } else { Err(format!("it sent more than {most} bytes after one request")) }
    }

    /// Marks the meter as broken: the server is no longer read. Keeps and returns the first reason.
    pub(crate) fn mark_broken(&self, reason: String) -> String {
        let mut state = self.state();
        if let Some(on_broken) = state.on_broken.take() {
            let _ = on_broken.send(());
        }
        state.broken.get_or_insert(reason).clone()
    }

    /// The limit that the server exceeded.
    pub(crate) fn broken(&self) -> Option<String> {
        self.state().broken.clone()
    }

    /// Returns a receiver that is notified when the server exceeds a limit; closed if it never does.
    pub(crate) fn watch(&self) -> oneshot::Receiver<()> {
        let (on_broken, watched) = oneshot::channel();
        self.state().on_broken = Some(on_broken);
        watched
    }

    fn state(&self) -> std::sync::MutexGuard<'_, MeterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_after_each_request_is_bounded() {
        let meter = ByteMeter::new(10);
        for _ in 0..3 {
            meter.start_request();
            assert_eq!(meter.count(40), Ok(()));
        }
        assert_eq!(meter.count(1), Err("it sent more than 40 bytes after one request".to_owned()));
        let mut watched = meter.watch();
        assert!(watched.try_recv().is_err());
        assert_eq!(meter.mark_broken("first".to_owned()), "first");
        assert_eq!(meter.mark_broken("second".to_owned()), "first");
        assert_eq!((watched.try_recv(), meter.broken().as_deref()), (Ok(()), Some("first")));
    }
}
