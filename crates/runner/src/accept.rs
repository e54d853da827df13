//! Accepts messages: in order of arrival, and when they are stored.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, oneshot};

use crate::error::RunnerError;

/// The queue of a session's senders: messages are accepted one at a time.
#[derive(Clone, Default)]
pub(crate) struct Door(Arc<AsyncMutex<()>>);

impl Door {
    /// Waits for earlier senders.
    pub(crate) async fn enter(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.0).lock_owned().await
    }
}

/// Tells the sender of a message that it is stored, and admits the next one.
#[derive(Clone)]
pub(crate) struct Acceptance(Arc<Mutex<Option<Open>>>);

struct Open {
    told: oneshot::Sender<Result<(), RunnerError>>,
    _door: OwnedMutexGuard<()>,
}

impl Acceptance {
    pub(crate) fn new(door: OwnedMutexGuard<()>) -> (Self, oneshot::Receiver<Result<(), RunnerError>>) {
        let (told, accepted) = oneshot::channel();
        (Acceptance(Arc::new(Mutex::new(Some(Open { told, _door: door })))), accepted)
    }

    /// Whether the sender was told.
    pub(crate) fn is_told(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Only the first result counts. The sender is told before the next one is admitted.
    pub(crate) fn tell(&self, accepted: Result<(), RunnerError>) {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Open { told, _door }) = open {
            // The sender may be gone.
            let _ = told.send(accepted);
        }
    }
}
