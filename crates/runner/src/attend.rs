//! Background work during a run: hears of its claim, and reads its inbox.

use std::sync::Arc;

use backon::Retryable;
use stepfold_session_scopes::{
    ClaimSession, DequeueInput, ErrorKind, InboxEntry, InvocationId, ReadInbox, ReleaseClaim, Renewed,
    SessionError, SessionStore, TakeOver,
};
use stepfold_tools::CancellationToken;
use tokio::task::JoinHandle;

use crate::inbox::{InboxMessage, MAX_CACHED_BYTES, input_of};
use crate::journal::append_backoff;
use crate::pulse::ClaimHeartbeat;
use crate::runner::Runner;
use crate::turn::SessionAccess;

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
            // The last append of the run may be releasing it just now.
            Err(lost @ SessionError::ClaimLost { .. }) if self.local.claim.token() == Some(token) => {
                return Err(lost);
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Reads the waiting entries of the inbox, and large contents of those only that the current run takes.
    pub(crate) async fn read_inbox(&self) -> Result<(), SessionError> {
        let inbox = &self.local.inbox;
        let mark = inbox.mark();
        let heads = ReadInbox::new(self.local.key.clone()).without_bodies_over(MAX_CACHED_BYTES);
        inbox.replace(self.runner.store.inbox(heads).await?, mark)?;
        match inbox.joining_without_content() {
            joining if joining.is_empty() => Ok(()),
            joining => inbox.fill(self.contents(joining).await?),
        }
    }

    /// Entries with their contents.
    async fn contents(&self, positions: Vec<u64>) -> Result<Vec<InboxEntry>, SessionError> {
        self.runner.store.inbox(ReadInbox::new(self.local.key.clone()).only(positions)).await
    }

    /// These entries, whose contents are read now if they are not known.
    pub(crate) async fn with_inputs(
        &self,
        entries: Vec<InboxMessage>,
    ) -> Result<Vec<InboxMessage>, SessionError> {
        let missing = entries.iter().filter(|entry| entry.input.is_none());
        let missing: Vec<u64> = missing.map(|entry| entry.position).collect();
        if missing.is_empty() {
            return Ok(entries);
        }
        let mut stored = self.contents(missing).await?;
        let fill = |mut entry: InboxMessage| {
            if entry.input.is_none() {
                let place = stored.iter().position(|stored| stored.position == entry.position);
                // Another worker has taken it, or it was withdrawn.
                let gone = || SessionError::NotWaiting {
                    key: Box::new(self.local.key.clone()),
                    position: entry.position,
                };
                entry.input = Some(input_of(stored.swap_remove(place.ok_or_else(gone)?))?);
            }
            Ok(entry)
        };
        entries.into_iter().map(fill).collect()
    }

    /// Cancels the run, if that was requested. A request that stays in the store is executed again, so it is
    /// removed only after the cancellation. Requests about other runs came too late, and go as well.
    pub(crate) async fn apply_cancellations(&self, run: Option<(&InvocationId, &CancellationToken)>) {
        let (cancels, dropped) = (self.local.inbox.drain_cancels(), self.local.inbox.drain_dropped());
        if cancels.is_empty() && dropped.is_empty() {
            return;
        }
        if let Some((run, cancellation)) = run
            && cancels.iter().any(|cancel| cancel.is_about(run))
        {
            cancellation.cancel();
        }
        let positions = cancels.iter().map(|cancel| cancel.position).chain(dropped);
        let mut request = DequeueInput::new(self.local.key.clone(), positions);
        request.token = self.local.claim.token();
        // The next reader finds one that could not be removed.
        let _ = self.runner.store.dequeue(request).await;
    }

    /// Claims the session, if the store supports claims.
    pub(crate) async fn claim(&self, take_over: TakeOver) -> Result<(), SessionError> {
        let claims = &self.runner.claims;
        let (owner, now) = (claims.worker.clone(), self.runner.clock.now());
        let mut request = ClaimSession::new(self.local.key.clone(), owner, claims.duration, now);
        request.take_over = take_over;
        let claim = || self.runner.store.claim(request.clone());
        match claim.retry(append_backoff()).when(|error| error.kind() == ErrorKind::Transient).await {
            Ok(claim) => self.local.claim.set(Some(&claim)),
            Err(error) if error.kind() == ErrorKind::Unsupported => self.local.claim.set_unsupported(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Releases a claim that was taken only to say what is left: with the claim no other worker changes that.
    pub(crate) async fn release_as_found(&self) {
        let session = Runner(Arc::clone(&self.runner)).handle(self.local.key.clone());
        let (due, is_unfinished) = match session.unfinished().await {
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
            request.unfinished = is_unfinished.then(|| self.runner.clock.now());
            request.due = self.local.claim.due();
            let release = || self.runner.store.release(request.clone());
            // One that could not be released expires.
            let _ = release.retry(append_backoff()).when(|error| error.kind() == ErrorKind::Transient).await;
        }
    }
}
