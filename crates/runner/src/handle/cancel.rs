//! Cancels the run of a session, wherever it is running.

use std::time::Duration;

use stepfold_agent_loop::Exit;
use stepfold_session_scopes::{DequeueInput, EventRange, InvocationId, Session, SessionStore};

use crate::error::{RunnerError, RunnerErrorKind};
use crate::handle::session_handle::SessionHandle;
use crate::record::events::{ends, exit_of, is_unfinished};
use crate::session::claim::LONGEST_PAUSE;
use crate::session::claim::{ClaimHolder, FIRST_PAUSE};
use crate::session::command::WorkerCommand;
use crate::session::invocation::InvocationResult;
use crate::session::queue::ActiveRun;

impl SessionHandle {
    /// Cancels a run that waits or was interrupted: its open calls are answered as cancelled, and the session
    /// is immediately usable.
    ///
    /// # Errors
    /// [`RunnerErrorKind::NothingToResume`], or when the store fails.
    pub async fn abandon(&self) -> InvocationResult {
        self.start_command(WorkerCommand::Abandon)?.outcome().await
    }

    /// Cancels the run of this process, if there is one: its open calls are answered as cancelled. Messages that wait
    /// stay accepted, also the one whose invocation waits here for another worker;
    /// [`Invocation::cancel`](crate::Invocation::cancel) cancels that.
    pub fn cancel(&self) {
        if let Some(run) = self.local.queue().run() {
            run.cancel();
        }
    }

    /// Cancels the run in the session: in this process, in another one, which is notified with its next
    /// commit or heartbeat, or in none, where it waits or was interrupted, as [`abandon`](SessionHandle::abandon) does.
    /// Messages that wait stay accepted.
    ///
    /// Returns whether the run was cancelled: it waits for its end, for at most two heartbeats. Returns false if there
    /// is no unfinished run, or it has ended before the cancellation reached it; nothing is left behind then. If
    /// another worker has not answered by then, the request stays stored for it, and the result is true.
    ///
    /// # Errors
    /// When the store fails, or has no inboxes and another worker is running.
    pub async fn cancel_everywhere(&self) -> Result<bool, RunnerError> {
        let holds_claim = self.local.claim.token().is_some() || self.local.claim.is_unsupported();
        let here = self.local.queue().run();
        if let Some(run) = here.clone().filter(|_| holds_claim) {
            return Ok(self.cancelled_here(run).await);
        }
        match (self.run_elsewhere().await?, here) {
            (Some((run, found)), _) => match self.cancelled_elsewhere(&run, &found).await? {
                Some(was_cancelled) => Ok(was_cancelled),
                None => self.cancelled_at_rest().await,
            },
            (None, Some(run)) => Ok(self.cancelled_here(run).await),
            (None, None) => self.cancelled_at_rest().await,
        }
    }

    /// Cancels a run that waits or was interrupted, if there is one.
    async fn cancelled_at_rest(&self) -> Result<bool, RunnerError> {
        if self.access().has_ended().await? {
            return Ok(false);
        }
        match self.abandon().await {
            Err(RunnerError {
                kind: RunnerErrorKind::NothingToResume | RunnerErrorKind::Erased { .. },
                ..
            }) => Ok(false),
            // It may have ended just before.
            abandoned => abandoned.map(|outcome| *outcome.exit() == Exit::Cancelled),
        }
    }

    async fn cancelled_here(&self, run: ActiveRun) -> bool {
        run.cancel();
        tokio::select! {
            biased;
            was_cancelled = run.was_cancelled() => was_cancelled,
            // A call that does not end yet.
            () = self.sleep(self.runner.0.claims.heartbeat_interval() * 2) => true,
        }
    }

    /// The invocation whose run another worker has, and the session as it was then.
    async fn run_elsewhere(&self) -> Result<Option<(InvocationId, Session)>, RunnerError> {
        let session = self.read_events(EventRange::Last(1)).await?;
        let is_elsewhere = self.holder(&session) == ClaimHolder::Other;
        let newest = session.events.last().filter(|newest| is_elsewhere && is_unfinished(&newest.event));
        Ok(newest.map(|newest| newest.event.invocation.clone()).map(|run| (run, session)))
    }

    /// Requests the cancellation of a run of another worker, waits for its end, and returns whether it was cancelled;
    /// `None` if its worker has left it unfinished.
    async fn cancelled_elsewhere(
        &self,
        run: &InvocationId,
        found: &Session,
    ) -> Result<Option<bool>, RunnerError> {
        // NOTE: the request names its run: when it arrives, that run may have ended and the next one begun.
        let position = self.access().enqueue_cancel(run).await?;
        let (mut at, mut waited, most) =
            (found.version, Duration::ZERO, self.runner.0.claims.heartbeat_interval() * 2);
        loop {
            let session = self.read_events(EventRange::AfterVersion(at)).await?;
            let end = session.events.iter().find(|it| it.event.invocation == *run && ends(&it.event));
            let is_other_life = session.life != found.life;
            // It was rewound, or the session deleted.
            let is_gone =
                is_other_life || session.events.last().is_some_and(|newest| newest.event.invocation != *run);
            let is_left = self.holder(&session) != ClaimHolder::Other;
            if end.is_some() || is_gone || is_left {
                // The worker removes it, unless it has left. In another life the position is another entry's.
                if !is_other_life {
                    self.remove_request(position).await?;
                }
                let is_cancelled = end.is_some_and(|end| exit_of(&end.event) == Some(Exit::Cancelled));
                return Ok((end.is_some() || is_gone).then_some(is_cancelled));
            }
            if waited >= most {
                // Its worker obeys at its next heartbeat.
                return Ok(Some(true));
            }
            at = session.version;
            let pause = waited.clamp(FIRST_PAUSE, LONGEST_PAUSE);
            self.sleep(pause).await;
            waited += pause;
        }
    }

    async fn remove_request(&self, position: u64) -> Result<Vec<u64>, RunnerError> {
        let request = DequeueInput::new(self.local.key.clone(), [position]);
        self.runner.0.store.dequeue(request).await.map_err(|error| self.failed(error))
    }

    /// Cancels the run that was current when a message was accepted, here or by another worker.
    pub(crate) async fn interrupt(&self, at_work: Option<ActiveRun>) {
        if let Some(run) = at_work {
            return run.cancel();
        }
        match self.run_elsewhere().await {
            Ok(Some((run, _))) => self.access().interrupt_elsewhere(&run).await,
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(session = %self.local.key, %error, "the run at work could not be interrupted");
            }
        }
    }
}
