//! The worker of a session: runs its invocations in sequence.
//!
//! # Transitions
//!
//! | phase | event | next phase |
//! |---|---|---|
//! | idle | a job arrives | working: [`SessionQueue::begin`](crate::session::queue::SessionQueue::begin) |
//! | working | a job arrives | working; the job waits: a command in this process, a message in the inbox of the store |
//! | working | the invocation has ended, and jobs wait | working: commands first, then messages in order |
//! | working | the run has ended, no job waits, and messages are left in the inbox | working: [`TakeLeft`](WorkerCommand::TakeLeft), unless the runner leaves the inbox to others |
//! | working | the invocation has ended otherwise | idle, and the claim is released |
//! | working | the invocation panicked | as after any end; the messages that are left wait for their sender |
//! | working | the runtime ends | idle: [`WorkerGuard`] |
//!
//! The phases of an invocation are those of [`next_action`](crate::worker::next_action).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use stepfold_agent_loop::{Exit, Pause};
use stepfold_session_scopes::InvocationId;

use crate::access::session_access::SessionAccess;
use crate::core::shutdown::CountedWorker;
use crate::error::{RunnerError, RunnerErrorKind};
use crate::remedy::waits_for_person;
use crate::session::command::WorkerCommand;
use crate::session::invocation::InvocationResult;
use crate::session::local_session::LocalSession;
use crate::session::queue::{InvocationTicket, WorkerJob};
use crate::worker::driver::InvocationDriver;

/// The worker of a session: one task, while the queue of the session in this process is not empty.
pub(crate) struct SessionWorker {
    access: SessionAccess,
}

impl SessionWorker {
    pub(crate) fn new(access: SessionAccess) -> Self {
        SessionWorker { access }
    }

    /// Runs invocations in sequence, until the queue of this process is empty.
    pub(crate) async fn work(self, first: WorkerJob, worker: WorkerGuard, counted: CountedWorker) {
        self.run_jobs(first, worker).await;
        // After this drop, nothing here uses the store.
        drop(counted);
    }

    async fn run_jobs(self, first: WorkerJob, mut worker: WorkerGuard) {
        let mut job = Some(first);
        while let Some(WorkerJob { command, mut ticket }) = job.take() {
            // NOTE: a panic of a hook or a tool ends the invocation and not the worker, which other messages wait for.
            let taken = AssertUnwindSafe(Box::pin(self.take(command, &mut ticket))).catch_unwind().await;
            let ended = taken.ok();
            // A panic skipped the release of the claim.
            if ended.is_none() && !self.access.local.queue().has_jobs() {
                self.access.release(true).await;
            }
            job = self.next_job(&ticket, ended.as_ref());
            worker.is_running = job.is_some();
            ticket.end(ended);
        }
    }

    /// The next job of this process; or messages left in the inbox, unless the last invocation failed: the
    /// next sender retries that.
    fn next_job(&self, ticket: &InvocationTicket, ended: Option<&InvocationResult>) -> Option<WorkerJob> {
        let takes_more = ended.is_some_and(|ended| self.takes_more(ended));
        let left_in_inbox = || {
            let id = takes_more.then(|| self.access.runner.ids.next());
            let ticket = InvocationTicket::new(&self.access.local.key, InvocationId::new(id?).ok()?, None);
            Some(WorkerJob { command: WorkerCommand::TakeLeft, ticket })
        };
        let mut queue = self.access.local.queue();
        let next = queue.next(left_in_inbox);
        // NOTE: With the queue held, and after it has let go of the invocation: a watcher that is told that nothing runs finds
        // nothing running, and no later beginning is told before this end.
        let version = ticket.current.invocation.version();
        self.access.runner.changes.notify(&self.access.local.key, version, next.is_some());
        next
    }

    /// Logs a failure; that of a recovery is logged there.
    fn log_failure(&self, invocation: &InvocationId, error: &RunnerError) {
        let error = self.access.runner.redacted_text(error.to_string());
        tracing::info!(session = %self.access.local.key, %invocation, error, "invocation failed");
    }

    async fn take(&self, command: WorkerCommand, ticket: &mut InvocationTicket) -> InvocationResult {
        let cache = Arc::clone(&self.access.local.cache).lock_owned().await;
        ticket.leave_queue();
        let is_recovery = matches!(command, WorkerCommand::Recover);
        let mut driver = InvocationDriver::new(self.access.clone(), cache, ticket, command);
        let ended = Box::pin(self.until_stopped(&mut driver)).await;
        if let (Err(error), false) = (&ended, is_recovery) {
            self.log_failure(driver.ticket.current.invocation.id(), error);
        }
        // A message that was accepted stays accepted, whatever the result of its run.
        driver.accept(ended.as_ref().map(drop).map_err(Clone::clone));
        if let Err(error) = &ended {
            driver.decision_reply.send(Err(error.clone()));
        }
        self.drop_late_cancels(&ended).await;
        // The last event of a run released the claim, unless the run stopped before, or messages waited.
        match &ended {
            _ if self.continues(&ended) => {}
            // A refused decision changes nothing: what a dead worker left is left still.
            Err(RunnerError { kind: RunnerErrorKind::Decision { .. }, .. }) => {
                if self.access.local.claim.token().is_some() {
                    self.access.release_as_found().await;
                }
            }
            _ => self.access.release(leaves_work(&ended)).await,
        }
        ended
    }

    /// Removes requests to cancel a run that has ended meanwhile.
    async fn drop_late_cancels(&self, ended: &InvocationResult) {
        let has_ended = ended.as_ref().is_ok_and(|outcome| !outcome.exit().is_resumable());
        // A request that could not be removed is removed at the next read of the inbox.
        if has_ended && self.access.local.inbox.is_stale() && self.access.read_inbox().await.is_ok() {
            self.access.apply_cancellations(None).await;
        }
    }

    /// Works until the invocation has ended, or the runner is stopped. After a shutdown, nothing begins.
    async fn until_stopped(&self, driver: &mut InvocationDriver<'_>) -> InvocationResult {
        let shutdown = &self.access.runner.shutdown;
        if !shutdown.is_closed()
            && let Some(ended) = shutdown.unless_stopped(Box::pin(driver.run_to_end())).await
        {
            return ended;
        }
        Err(driver.shut_down())
    }

    /// Whether this worker continues with another job.
    fn continues(&self, ended: &InvocationResult) -> bool {
        self.access.local.queue().has_jobs() || self.takes_more(ended)
    }

    /// Whether it takes messages left in the inbox, after an invocation with this result.
    fn takes_more(&self, ended: &InvocationResult) -> bool {
        let has_ended = matches!(ended, Ok(outcome) if !outcome.exit().is_resumable());
        has_ended && !self.access.runner.claims.leaves_inbox && !self.access.local.inbox.is_empty()
    }
}

/// Whether a run with this end can continue without a decision.
fn leaves_work(ended: &InvocationResult) -> bool {
    match ended {
        Ok(outcome) => {
            let waits = matches!(outcome.exit(), Exit::Paused(Pause::Approval | Pause::Budget(_)));
            outcome.exit().is_resumable() && !waits
        }
        Err(RunnerError {
            kind:
                RunnerErrorKind::Pending { .. }
                | RunnerErrorKind::NothingToResume
                | RunnerErrorKind::Erased { .. }
                | RunnerErrorKind::LeftToPerson { .. },
            ..
        }) => false,
        Err(RunnerError {
            kind: RunnerErrorKind::Run { source, .. } | RunnerErrorKind::EarlierRunFailed { source, .. },
            ..
        }) => !waits_for_person(source.fault()),
        Err(_) => true,
    }
}

/// Marks the worker of a session as gone when its runtime ends, before its task was first polled as well.
pub(crate) struct WorkerGuard {
    local: Arc<LocalSession>,
    is_running: bool,
}

impl WorkerGuard {
    pub(crate) fn of(local: &Arc<LocalSession>) -> Self {
        WorkerGuard { local: Arc::clone(local), is_running: true }
    }
}

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        if self.is_running {
            self.local.queue().reset();
        }
    }
}
