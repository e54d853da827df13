//! The worker of a session: runs invocations in sequence; and their common store operations.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use backon::Retryable;
use futures_util::FutureExt;
use stepfold_agent_loop::{Decisions, Exit, Input, Pause};
use stepfold_session_scopes::{
    DequeueInput, EnqueueInput, Enqueued, ErrorKind, EventRange, GetSession, IdempotencyKey, InboxKind,
    InvocationId, Session, SessionError, SessionStore,
};

use crate::accept::AcceptanceReply;
use crate::closing::CountedWorker;
use crate::decided::DecisionReply;
use crate::error::RunnerError;
use crate::history::SessionHistory;
use crate::inbox::{CancelRequest, InboxMessage, MessageKind};
use crate::invocation::Ended;
use crate::journal::append_backoff;
use crate::kept::CachedValues;
use crate::record::{begins, has_deadline, is_unfinished};
use crate::remedy::waits_for_person;
use crate::run_as::RunOptions;
use crate::runner::{Busy, RunnerCore};
use crate::slot::{InvocationTicket, LocalSession, SessionCache, WorkerJob};
use crate::work::InvocationDriver;

/// The task of an invocation.
pub(crate) enum WorkerCommand {
    /// A new turn, with a message that is stored by its first event.
    Begin { input: Box<Input>, busy: Busy, acceptance: AcceptanceReply },
    /// A new turn, with a message in the inbox.
    TakeInbox,
    /// A new turn, with a message left in the inbox: no caller here waits for it.
    TakeLeft,
    /// As [`TakeInbox`](WorkerCommand::TakeInbox), under an idempotency key; or, if it was taken before, what is left of its run.
    RunAs(RunOptions),
    /// Resume the last run, or take the inbox, unless another worker does.
    Recover,
    /// Resume the last run.
    Resume { decisions: Decisions, with_changed_agent: bool, decision_reply: DecisionReply },
    /// Cancel the last run.
    Abandon,
}

/// A runner and one of its sessions.
#[derive(Clone)]
pub(crate) struct SessionAccess {
    pub(crate) runner: Arc<RunnerCore>,
    pub(crate) local: Arc<LocalSession>,
}

/// The folded events of a session, and the session with its values.
pub(crate) type ReadSession = (Arc<SessionHistory>, Session);

impl SessionAccess {
    /// Runs invocations in sequence, until the queue of this process is empty.
    pub(crate) async fn work(self, first: WorkerJob, worker: WorkerGuard, counted: CountedWorker) {
        self.run_jobs(first, worker).await;
        // After this drop, nothing here uses the store.
        drop(counted);
    }

    async fn run_jobs(self, first: WorkerJob, mut worker: WorkerGuard) {
        let mut job = Some(first);
        while let Some(WorkerJob { command, mut ticket }) = job.take() {
            let taken =
                AssertUnwindSafe(Box::pin(self.clone().take(command, &mut ticket))).catch_unwind().await;
            let ended = taken.ok();
            // A panic skipped the release of the claim.
            if ended.is_none() && !self.local.queue().has_jobs() {
                self.release(true).await;
            }
            job = self.next_job(ended.as_ref());
            worker.is_running = job.is_some();
            ticket.end(ended);
        }
    }

    /// The next job of this process; or messages left in the inbox, unless the last invocation failed: the
    /// next sender retries that.
    fn next_job(&self, ended: Option<&Ended>) -> Option<WorkerJob> {
        let takes_more = ended.is_some_and(|ended| self.takes_more(ended));
        let left_in_inbox = || {
            let id = takes_more.then(|| self.runner.ids.next());
            let ticket = InvocationTicket::new(&self.local.key, InvocationId::new(id?).ok()?, None);
            Some(WorkerJob { command: WorkerCommand::TakeLeft, ticket })
        };
        self.local.queue().next(left_in_inbox)
    }

    async fn take(self, command: WorkerCommand, ticket: &mut InvocationTicket) -> Ended {
        let cache = Arc::clone(&self.local.cache).lock_owned().await;
        ticket.leave_queue();
        let access = self.clone();
        let mut driver = InvocationDriver::new(self, cache, ticket, command);
        let ended = Box::pin(access.until_stopped(&mut driver)).await;
        // A message that was accepted stays accepted, whatever the result of its run.
        driver.accept(ended.as_ref().map(drop).map_err(Clone::clone));
        if let Err(error) = &ended {
            driver.decision_reply.send(Err(error.clone()));
        }
        access.drop_late_cancels(&ended).await;
        // The last event of a run released the claim, unless the run stopped before, or messages waited.
        if !access.continues(&ended) {
            access.release(leaves_work(&ended)).await;
        }
        ended
    }

    /// Removes requests to cancel a run that has ended meanwhile.
    async fn drop_late_cancels(&self, ended: &Ended) {
        let has_ended = ended.as_ref().is_ok_and(|outcome| !outcome.exit().is_resumable());
        // One that could not be removed goes with the next look.
        if has_ended && self.local.inbox.is_stale() && self.read_inbox().await.is_ok() {
            self.apply_cancellations(None).await;
        }
    }

    /// Works until the invocation has ended, or the runner is stopped. After a shutdown, nothing begins.
    async fn until_stopped(&self, driver: &mut InvocationDriver<'_>) -> Ended {
        let shutdown = &self.runner.shutdown;
        if !shutdown.is_closed()
            && let Some(ended) = shutdown.unless_stopped(Box::pin(driver.run_to_end())).await
        {
            return ended;
        }
        Err(driver.shut_down())
    }

    /// Whether this worker continues with another job.
    fn continues(&self, ended: &Ended) -> bool {
        self.local.queue().has_jobs() || self.takes_more(ended)
    }

    /// Whether it takes messages left in the inbox, after an invocation with this result.
    fn takes_more(&self, ended: &Ended) -> bool {
        let has_ended = matches!(ended, Ok(outcome) if !outcome.exit().is_resumable());
        has_ended && !self.runner.claims.leaves_inbox && !self.local.inbox.is_empty()
    }

    /// Stores a message that has to wait. Without inboxes in the store, only this process has it. Returns whether it was
    /// stored before.
    pub(crate) async fn enqueue(
        &self,
        kind: MessageKind,
        id: InvocationId,
        input: Input,
    ) -> Result<bool, RunnerError> {
        match self.enqueue_stored(kind, id.clone(), input.clone()).await {
            Err(RunnerError::Store { source, .. }) if source.kind() == ErrorKind::Unsupported => {
                self.local.inbox.add_local(kind, id, input);
                Ok(false)
            }
            stored => stored,
        }
    }

    /// Stores a message in the inbox of the store. Returns whether it was stored before: a repeat is never new, and may have
    /// been taken.
    pub(crate) async fn enqueue_stored(
        &self,
        kind: MessageKind,
        id: InvocationId,
        input: Input,
    ) -> Result<bool, RunnerError> {
        let Some(body) = input.to_json() else {
            return Err(RunnerError::CannotWait { key: Box::new(self.local.key.clone()) });
        };
        let Enqueued { position, is_repeat, .. } = self.put(kind.stored(), id.as_str(), body).await?;
        match is_repeat {
            true => self.local.inbox.note_newest(position),
            false => self.local.inbox.add_accepted(InboxMessage::accepted(position, kind, id, input)),
        }
        self.local.inbox_changed.notify_one();
        Ok(is_repeat)
    }

    /// Removes a message from the inbox; returns whether it was there.
    pub(crate) async fn dequeue(&self, entry: &InboxMessage) -> Result<bool, SessionError> {
        let inbox = &self.local.inbox;
        if inbox.stored_positions(std::slice::from_ref(entry)).is_empty() {
            inbox.remove(entry.position);
            return Ok(true);
        }
        let request = DequeueInput::new(self.local.key.clone(), [entry.position]);
        let dropped = self.runner.store.dequeue(request).await?;
        inbox.remove(entry.position);
        Ok(!dropped.is_empty())
    }

    /// Requests the cancellation of a run that another worker has. Returns the position of the request.
    pub(crate) async fn enqueue_cancel(&self, run: &InvocationId) -> Result<u64, RunnerError> {
        let id = self.runner.ids.next();
        Ok(self.put(InboxKind::Cancel, &id, CancelRequest::body(run)).await?.position)
    }

    /// The same for a message that interrupts it and is accepted, whatever becomes of this.
    pub(crate) async fn interrupt_elsewhere(&self, run: &InvocationId) {
        if let Err(error) = self.enqueue_cancel(run).await {
            tracing::warn!(session = %self.local.key, %error, "the run of another worker could not be interrupted");
        }
    }

    async fn put(&self, kind: InboxKind, id: &str, body: serde_json::Value) -> Result<Enqueued, RunnerError> {
        let failed = |error| RunnerError::store(&self.local.key, error);
        let (key, at) = (self.local.key.clone(), self.runner.clock.now());
        let idempotency_key = IdempotencyKey::new(id).map_err(failed)?;
        let request = EnqueueInput::new(key, kind, idempotency_key, body, at);
        let enqueue = || self.runner.store.enqueue(request.clone());
        enqueue
            .retry(append_backoff())
            .when(|error| error.kind() == ErrorKind::Transient)
            .await
            .map_err(failed)
    }

    /// The session with changes since `known`, and its history. `left` are values newer than those of the
    /// history.
    pub(crate) async fn read_since(
        &self,
        cached: Option<Arc<SessionHistory>>,
        newer: Option<CachedValues>,
    ) -> Result<ReadSession, RunnerError> {
        if let Some(history) = cached
            && let Some(read) = self.read_changes(history, newer).await?
        {
            return Ok(read);
        }
        let session = self.get(GetSession::new(self.local.key.clone())).await?;
        let mut history = SessionHistory::default();
        history.extend(&session)?;
        // Code that uses the values reports those that do not match the schema.
        history.values = CachedValues::read(&session, &self.runner.schema).ok();
        Ok((Arc::new(history), session))
    }

    /// Reads the changes of the session for its worker.
    pub(crate) async fn read_cached(&self, cache: &mut SessionCache) -> Result<ReadSession, RunnerError> {
        let (history, newer) = (cache.history.take(), cache.run_values());
        let read = self.read_since(history, newer).await?;
        // Another worker continued it, or created it again.
        cache.stopped.take_if(|stopped| !stopped.is_current(&read.0));
        cache.history = Some(Arc::clone(&read.0));
        Ok(read)
    }

    /// The session with changes since `known`; `None` if it has to be read from its beginning.
    async fn read_changes(
        &self,
        cached: Arc<SessionHistory>,
        newer: Option<CachedValues>,
    ) -> Result<Option<ReadSession>, RunnerError> {
        // No other owner, except a concurrent reader.
        let mut history = Arc::unwrap_or_clone(cached);
        let Some(values) = newer.or_else(|| history.values.take()) else { return Ok(None) };
        let get = GetSession::new(self.local.key.clone())
            .events(EventRange::AfterVersion(history.version))
            .changed_since(values.seen())
            .incremental(&self.runner.schema);
        let session = self.get(get).await?;
        // A rewind hides events that were folded.
        let is_rewound = session.events.iter().any(|event| event.event.actions.rewound_to().is_some());
        if is_rewound || !history.is_of(&session) {
            return Ok(None);
        }
        let Ok(values) = values.updated(&session, &self.runner.schema) else { return Ok(None) };
        history.extend(&session)?;
        history.values = Some(values);
        Ok(Some((Arc::new(history), session)))
    }

    async fn get(&self, get: GetSession) -> Result<Session, RunnerError> {
        let session = self.runner.store.get(get.visible().now(self.runner.clock.now())).await;
        session.map_err(|error| RunnerError::store(&self.local.key, error))
    }

    /// The session: only changes if it is cached and no worker runs in it; otherwise all of it.
    pub(crate) async fn read(&self) -> Result<ReadSession, RunnerError> {
        let Ok(mut cache) = self.local.cache.try_lock() else { return self.read_since(None, None).await };
        let (history, newer) = (cache.history.take(), cache.run_values());
        let read = self.read_since(history, newer).await?;
        cache.history = Some(Arc::clone(&read.0));
        Ok(read)
    }

    /// Whether the newest event is of no unfinished run: then none is unfinished, whatever stands before it.
    pub(crate) async fn has_ended(&self) -> Result<bool, RunnerError> {
        let session = self.get_end(1).await?;
        Ok(session.visible_events().next_back().is_some_and(|newest| !is_unfinished(&newest.event)))
    }

    /// Whether something may wait with a deadline. It reads no more than the last step, and of a run that has ended one event.
    pub(crate) async fn may_have_deadline(&self) -> Result<bool, RunnerError> {
        let mut events = 1;
        loop {
            let session = self.get_end(events).await?;
            let mut newest = session.visible_events().rev();
            if let Some(found) = newest.find_map(|committed| has_deadline(&committed.event)) {
                return Ok(found);
            }
            if session.events.len() < events {
                return Ok(false);
            }
            events *= 8;
        }
    }

    /// The last events, without values.
    async fn get_end(&self, events: usize) -> Result<Session, RunnerError> {
        let get = GetSession::new(self.local.key.clone()).events(EventRange::Last(events)).without_state();
        let session = self.runner.store.get(get).await;
        session.map_err(|error| RunnerError::store(&self.local.key, error))
    }

    /// The end of the session, from the beginning of its last run, or earlier. Earlier messages and all
    /// values are missing.
    pub(crate) async fn read_end(&self) -> Result<ReadSession, RunnerError> {
        let mut events = 16;
        loop {
            let session = self.get_end(events).await?;
            let has_begun = session.visible_events().any(|committed| begins(&committed.event));
            if has_begun || session.events.len() < events {
                let mut history = SessionHistory::default();
                history.extend(&session)?;
                return Ok((Arc::new(history), session));
            }
            events *= 4;
        }
    }
}

/// Whether a run that ended so can continue without anybody deciding about it.
fn leaves_work(ended: &Ended) -> bool {
    match ended {
        Ok(outcome) => outcome.exit().is_resumable() && *outcome.exit() != Exit::Paused(Pause::Approval),
        Err(
            RunnerError::Pending { .. }
            | RunnerError::NothingToResume { .. }
            | RunnerError::Decision { .. }
            | RunnerError::LeftToPerson { .. },
        ) => false,
        Err(RunnerError::Run { source, .. } | RunnerError::EarlierRunFailed { source, .. }) => {
            !waits_for_person(source.fault())
        }
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
