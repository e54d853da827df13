//! Accepts messages: in order of arrival, and when they are stored.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, oneshot};

use crate::error::RunnerError;

/// The queue of a session's senders: messages are accepted one at a time.
#[derive(Clone, Default)]
pub(crate) struct SenderQueue(Arc<AsyncMutex<()>>);

impl SenderQueue {
    /// Waits for earlier senders.
    pub(crate) async fn enter(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.0).lock_owned().await
    }
}

/// The reply to the sender of a message, once it is stored; then the next sender is admitted.
#[derive(Clone)]
pub(crate) struct AcceptanceReply(Arc<Mutex<Option<WaitingSender>>>);

struct WaitingSender {
    reply: oneshot::Sender<Result<(), RunnerError>>,
    _queue: OwnedMutexGuard<()>,
}

impl AcceptanceReply {
    pub(crate) fn new(queue: OwnedMutexGuard<()>) -> (Self, oneshot::Receiver<Result<(), RunnerError>>) {
        let (reply, accepted) = oneshot::channel();
        (AcceptanceReply(Arc::new(Mutex::new(Some(WaitingSender { reply, _queue: queue })))), accepted)
    }

    /// Whether the sender has the reply.
    pub(crate) fn is_sent(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Only the first result counts. The sender has it before the next one is admitted.
    pub(crate) fn send(&self, accepted: Result<(), RunnerError>) {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(WaitingSender { reply, _queue }) = open {
            // The sender may be gone.
            let _ = reply.send(accepted);
        }
    }
}
