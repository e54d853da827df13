//! The claim of this process on a session: taken, and released.

use stepfold_session_scopes::{ClaimSession, ErrorKind, ReleaseClaim, SessionError, SessionStore, TakeOver};

use crate::access::backoff::retried;
use crate::access::session_access::SessionAccess;

impl SessionAccess {
    /// Claims the session, if the store supports claims.
    pub(crate) async fn claim(&self, take_over: TakeOver) -> Result<(), SessionError> {
        let claims = &self.runner.claims;
        let (owner, now) = (claims.worker.clone(), self.runner.clock.now());
        let mut request = ClaimSession::new(self.local.key.clone(), owner, claims.duration, now);
        request.take_over = take_over;
        match retried(|| self.runner.store.claim(request.clone())).await {
            Ok(claim) => self.local.claim.set(Some(&claim)),
            Err(error) if error.kind() == ErrorKind::Unsupported => self.local.claim.set_unsupported(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Releases a claim that was taken only to record what is left: under the claim no other worker changes the session.
    pub(crate) async fn release_as_found(&self) {
        let (due, is_unfinished) = match self.unfinished().await {
            Ok(None) => (None, false),
            Ok(Some(run)) => (run.next_deadline(), run.pending().is_empty()),
            // A worker that can read it finds out what is left.
            Err(_) => (None, true),
        };
        self.local.claim.set_due(due.map(Into::into));
        self.release(is_unfinished).await;
    }

    /// Releases the claim, if it is held. If work is left, any worker may take it up.
    pub(crate) async fn release(&self, is_unfinished: bool) {
        if let Some(token) = self.local.claim.take() {
            let mut request = ReleaseClaim::new(self.local.key.clone(), token);
            // NOTE: there is no queue of runs: a claim that is left expired is the sign that work is left.
            request.unfinished = is_unfinished.then(|| self.runner.clock.now());
            request.due = self.local.claim.due();
            // One that could not be released expires.
            let _ = retried(|| self.runner.store.release(request.clone())).await;
        }
    }
}
