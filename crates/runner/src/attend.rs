//! What is done beside a run: its claim is renewed, and what others put into the inbox meanwhile is fetched.

use backon::Retryable;
use stepfold_session_scopes::{
    ClaimSession, DequeueInput, ErrorKind, ReadInbox, ReleaseClaim, RenewClaim, SessionError, SessionStore,
    TakeOver,
};
use stepfold_tools::CancellationToken;
use tokio::task::JoinHandle;

use crate::journal::pauses;
use crate::turn::Turn;

/// A run that is attended to, until this is dropped. It is done in a task of its own: a tool or a hook that blocks the
/// thread of the run does not cost it the claim.
pub(crate) struct Attending(JoinHandle<SessionError>);

impl Attending {
    pub(crate) fn begin(turn: Turn, cancellation: CancellationToken) -> Self {
        let at_work = turn.runner.closing.enter();
        Attending(tokio::spawn(async move {
            let lost = {
                // Whoever waits for the end of the runner waits until this does not hold the store any more.
                let turn = turn;
                turn.attend(&cancellation).await
            };
            drop(at_work);
            lost
        }))
    }

    /// Waits until the claim is lost, and gives the reason.
    pub(crate) async fn lost(&mut self) -> SessionError {
        match (&mut self.0).await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(lost) => lost,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The runtime ends, and the run with it.
            Err(Err(_)) => std::future::pending().await,
        }
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Turn {
    /// Attends to a run for as long as the claim is held. Gives the reason when it is lost.
    async fn attend(&self, cancellation: &CancellationToken) -> SessionError {
        let (clock, claims) = (&self.runner.clock, &self.runner.claims);
        let mut beat = clock.sleep(claims.beat());
        loop {
            tokio::select! {
                () = self.slot.bell.notified() => {}
                () = &mut beat => {
                    beat = clock.sleep(claims.beat());
                    if let Err(lost) = self.renew().await {
                        return lost;
                    }
                }
            }
            // What cannot be read now is read at the next beat. Whatever takes it says why it cannot be read.
            if self.slot.mail.is_stale() && self.read_inbox().await.is_err() {
                continue;
            }
            self.obey_cancels(Some(cancellation)).await;
        }
    }

    /// Renews the claim. An error means that it is lost: a store that is away may be back before it expires.
    async fn renew(&self) -> Result<(), SessionError> {
        let Some(token) = self.slot.held.token() else { return Ok(()) };
        let duration = self.runner.claims.duration;
        let at = self.runner.clock.now();
        let request = RenewClaim { key: self.slot.key.clone(), token, duration, at };
        match self.runner.store.renew(request).await {
            Ok(renewed) => self.slot.mail.heard_of(renewed.inbox),
            // While the last append of the run gives it up, it is not held any more.
            Err(lost @ SessionError::ClaimLost { .. }) if self.slot.held.token() == Some(token) => {
                return Err(lost);
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Reads what waits in the inbox.
    pub(crate) async fn read_inbox(&self) -> Result<(), SessionError> {
        let mark = self.slot.mail.mark();
        let stored = self.runner.store.inbox(ReadInbox::new(self.slot.key.clone())).await?;
        self.slot.mail.replace(stored, mark)
    }

    /// Cancels the run, if that was asked for. A request that stays in the store is obeyed again; that is why it is
    /// dropped after the run was cancelled.
    pub(crate) async fn obey_cancels(&self, cancellation: Option<&CancellationToken>) {
        let cancels = self.slot.mail.take_cancels();
        if cancels.is_empty() {
            return;
        }
        if let Some(cancellation) = cancellation {
            cancellation.cancel();
        }
        let mut request = DequeueInput::new(self.slot.key.clone(), cancels);
        request.token = self.slot.held.token();
        // One that could not be dropped is found again by whoever reads next.
        let _ = self.runner.store.dequeue(request).await;
    }

    /// Claims the session, if the store has claims.
    pub(crate) async fn claim(&self, take_over: TakeOver) -> Result<(), SessionError> {
        let claims = &self.runner.claims;
        let (owner, now) = (claims.worker.clone(), self.runner.clock.now());
        let mut request = ClaimSession::new(self.slot.key.clone(), owner, claims.duration, now);
        request.take_over = take_over;
        let claim = || self.runner.store.claim(request.clone());
        match claim.retry(pauses()).when(|error| error.kind() == ErrorKind::Transient).await {
            Ok(claim) => self.slot.held.set(Some(&claim)),
            Err(error) if error.kind() == ErrorKind::Unsupported => self.slot.held.set_needless(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Gives the claim up, if it is held.
    pub(crate) async fn release(&self) {
        if let Some(token) = self.slot.held.take() {
            let request = ReleaseClaim { key: self.slot.key.clone(), token };
            let release = || self.runner.store.release(request.clone());
            // One that could not be given up expires.
            let _ = release.retry(pauses()).when(|error| error.kind() == ErrorKind::Transient).await;
        }
    }
}
