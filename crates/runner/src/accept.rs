//! When a message is accepted: in the order in which it came, and once it is stored.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, oneshot};

use crate::error::RunnerError;

/// The door of a session: messages come in one at a time.
#[derive(Clone, Default)]
pub(crate) struct Door(Arc<AsyncMutex<()>>);

impl Door {
    /// Waits for those who came before.
    pub(crate) async fn enter(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.0).lock_owned().await
    }
}

/// Tells whoever sent a message that it is stored, and lets the next one in.
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

    /// Whether the sender has heard of it.
    pub(crate) fn is_told(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// The first word counts. The sender hears of it before the next one comes in.
    pub(crate) fn tell(&self, accepted: Result<(), RunnerError>) {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Open { told, _door }) = open {
            // Nobody may wait for it any more.
            let _ = told.send(accepted);
        }
    }
}
