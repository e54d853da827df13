//! How much a server sends: a total after each request, whatever it is sent in.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

/// How many messages of the longest length a server may send after one request.
const FLOOD: usize = 4;

/// Counts what a server sends since the last request. Shared by all streams of a connection.
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
    /// Of a server whose messages have at most so many bytes.
    pub(crate) fn new(limit: usize) -> Self {
        ByteMeter { limit, since_request: AtomicUsize::new(0), state: Mutex::default() }
    }

    /// The bytes that a message has at most.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// A request is sent: what comes from now on answers it.
    pub(crate) fn start_request(&self) {
        self.since_request.store(0, Ordering::Relaxed);
    }

    /// Adds to what was sent.
    ///
    /// # Errors
    /// What the server did, if it is too much now.
    pub(crate) fn count(&self, bytes: usize) -> Result<(), String> {
        let sent = self.since_request.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let most = self.limit.saturating_mul(FLOOD);
        if sent <= most { Ok(()) } else { Err(format!("it sent more than {most} bytes after one request")) }
    }

    /// Keeps the first reason for which the server is no longer read, and returns it.
    pub(crate) fn mark_broken(&self, reason: String) -> String {
        let mut state = self.state();
        if let Some(on_broken) = state.on_broken.take() {
            let _ = on_broken.send(());
        }
        state.broken.get_or_insert(reason).clone()
    }

    /// The bound that the server broke.
    pub(crate) fn broken(&self) -> Option<String> {
        self.state().broken.clone()
    }

    /// Is told when the server breaks a bound; closed if it never will.
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
