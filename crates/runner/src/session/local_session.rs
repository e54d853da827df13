//! One session in this process: its cached data, its queue, its inbox and its claim.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepfold_session_scopes::SessionKey;
use tokio::sync::Notify;

use crate::session::acceptance::SenderQueue;
use crate::session::cache::SessionCache;
use crate::session::claim::HeldClaim;
use crate::session::inbox::InboxCache;
use crate::session::queue::{QueuePlace, SessionQueue};

pub(crate) struct LocalSession {
    pub(crate) key: SessionKey,
    /// Messages are accepted through it, one at a time, in order of arrival.
    pub(crate) senders: SenderQueue,
    /// Held by the worker that runs.
    pub(crate) cache: Arc<tokio::sync::Mutex<SessionCache>>,
    /// The known part of the session's inbox.
    pub(crate) inbox: InboxCache,
    /// The claim of this process.
    pub(crate) claim: HeldClaim,
    /// Notified when the inbox has unknown entries.
    pub(crate) inbox_changed: Notify,
    queue: Mutex<SessionQueue>,
    waiting: Arc<AtomicUsize>,
}

impl LocalSession {
    pub(crate) fn new(key: SessionKey) -> Self {
        LocalSession {
            key,
            senders: SenderQueue::default(),
            cache: Arc::default(),
            inbox: InboxCache::default(),
            claim: HeldClaim::default(),
            inbox_changed: Notify::new(),
            queue: Mutex::default(),
            waiting: Arc::default(),
        }
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, SessionQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a position in the queue; `None` if it is full.
    pub(crate) fn take_place(&self, limit: usize) -> Option<QueuePlace> {
        let waiting = self.waiting.fetch_add(1, Ordering::SeqCst);
        let entered = QueuePlace(Arc::clone(&self.waiting));
        (waiting < limit).then_some(entered)
    }

    /// The number of waiting messages.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Whether a message would have to wait.
    pub(crate) fn is_busy(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0 || self.queue().has_worker()
    }
}
