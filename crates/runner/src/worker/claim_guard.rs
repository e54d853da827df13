//! Background work during a run: keeps its claim, and reads its inbox.

use stepfold_session_scopes::{InvocationId, Renewed, SessionError};
use stepfold_tools::CancellationToken;
use tokio::task::JoinHandle;

use crate::access::session_access::SessionAccess;
use crate::worker::heartbeat::ClaimHeartbeat;

/// The background work of a run, until this is dropped. It runs in its own task, so a tool or a hook that
/// blocks the thread of the run does not cost it the claim.
pub(crate) struct ClaimGuard(JoinHandle<SessionError>);

impl ClaimGuard {
    pub(crate) fn start(access: SessionAccess, run: InvocationId, cancellation: CancellationToken) -> Self {
        let counted = access.runner.shutdown.enter();
        ClaimGuard(tokio::spawn(async move {
            let lost = {
                // A shutdown waits until this has released the store.
                let access = access;
                access.attend(&run, &cancellation).await
            };
            drop(counted);
            lost
        }))
    }

    /// Waits until the claim is lost, and returns the reason.
    pub(crate) async fn lost(&mut self) -> SessionError {
        match (&mut self.0).await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(lost) => lost,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The runtime ends, and the run with it.
            Err(Err(_)) => std::future::pending().await,
        }
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl SessionAccess {
    /// Runs as long as the claim is held. Returns the reason when it is lost.
    async fn attend(&self, run: &InvocationId, cancellation: &CancellationToken) -> SessionError {
        let mut heartbeat = ClaimHeartbeat::begin(&self.runner, &self.local);
        loop {
            tokio::select! {
                () = self.local.inbox_changed.notified() => {}
                (token, renewed) = heartbeat.next() => {
                    if let Err(lost) = self.renewed(token, renewed) {
                        return lost;
                    }
                }
            }
            // A failed read is repeated at the next heartbeat. Code that takes entries reports the error.
            if self.local.inbox.is_stale() && self.read_inbox().await.is_err() {
                continue;
            }
            self.apply_cancellations(Some((run, cancellation))).await;
        }
    }

    /// Takes the result of a heartbeat for a claim of this run. An error means that it is lost.
    fn renewed(&self, token: u64, result: Result<Renewed, SessionError>) -> Result<(), SessionError> {
        match result {
            Ok(renewed) => self.local.inbox.note_newest(renewed.inbox),
            // NOTE: the last append of the run may be releasing it just now; then it is not lost.
            Err(lost @ SessionError::ClaimLost { .. }) if self.local.claim.token() == Some(token) => {
                return Err(lost);
            }
            Err(_) => {}
        }
        Ok(())
    }
}
