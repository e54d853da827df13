//! The observer that stores every commit of the loop in the session before anything else happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backon::Retryable;
use stepfold_agent_loop::{Event, EventKind, EventRefused, Observer, ObserverError, Run, RunEvent, RunNeed};
use stepfold_session_scopes::{
    AppendClaim, AppendEvent, CommittedEvent, ContentSalt, InvocationId, Receipt, SeenVersions, SessionError,
    SessionStore,
};

use crate::access::backoff::{MAX_RETRIES, append_backoff, is_transient, result_backoff};
use crate::budget::{NextRequest, RunMeter};
use crate::core::programs::AgentProgram;
use crate::core::runner_core::RunnerCore;
use crate::record::cached_values::{SharedWrites, versions_after};
use crate::record::events::{EventStamp, session_event, with_agent, with_exit, with_taken, with_worker};
use crate::session::acceptance::AcceptanceReply;
use crate::session::decision_reply::DecisionReply;
use crate::session::inbox::InboxMessage;
use crate::session::local_session::LocalSession;
use crate::upgrade::WhenChanged;

/// The most events of a run that are kept for what this process knows of the session. The end of a longer run is read
/// again.
const MAX_WRITTEN: usize = 256;

pub(crate) struct RunJournal {
    pub(crate) runner: Arc<RunnerCore>,
    /// The agent of the run.
    pub(crate) program: Arc<AgentProgram>,
    pub(crate) local: Arc<LocalSession>,
    pub(crate) invocation: InvocationId,
    /// The version of the session after the last append.
    pub(crate) version: u64,
    /// The same, for those who publish the events.
    pub(crate) shared_version: Arc<AtomicU64>,
    /// The versions of the run's values; `None` if unknown, or after a write of another worker.
    pub(crate) seen: Option<SeenVersions>,
    /// The number of stored events of the invocation.
    pub(crate) place: u64,
    /// The stored events, which need not be read again, as far as they are kept.
    pub(crate) written: Vec<CommittedEvent>,
    /// Distinguishes the events of a resumed run from those of another worker that resumes it too.
    pub(crate) attempt: Option<String>,
    /// The run after the stored events.
    pub(crate) ahead: Run,
    /// The meter of its requests to models, if there are budgets.
    pub(crate) meter: Option<Arc<RunMeter>>,
    /// The inbox entries that the run begins with.
    pub(crate) begins_with: Vec<InboxMessage>,
    /// Notified when decisions are stored.
    pub(crate) decision_reply: DecisionReply,
    /// Notified when the message that begins the run is stored.
    pub(crate) acceptance: Option<AcceptanceReply>,
}

impl RunJournal {
    pub(crate) async fn append(&mut self, event: &Event) -> Result<(), SessionError> {
        // NOTE: the exit is stored in the event that ends the run, so the journal folds a run of its own one event ahead
        // of the store: docs/decisions/runner.md.
        let (started, lasting) = (self.ahead.starts(event), self.ahead.lasting(event));
        // Whether the run ends here is determined by the current agent, and stored with the last event.
        let is_followed = self.ahead.follow(event).is_ok();
        let ended = self.ahead.exit().filter(|_| is_followed && !self.ahead.follows_other_agent());
        self.local.claim.set_due(self.ahead.next_deadline().map(Into::into));
        let stamp = EventStamp {
            invocation: &self.invocation,
            place: self.place,
            attempt: self.attempt.as_deref(),
            author: &self.program.author,
            agent: &self.program.agent,
            at: self.runner.clock.now(),
        };
        let mut stored = session_event(lasting, &stamp, started)?;
        if let EventKind::Began { .. } | EventKind::Upgraded { .. } = event.kind {
            stored = with_agent(stored, &self.program.agent);
            self.keep_agent().await?;
        }
        if matches!(event.kind, EventKind::Began { .. }) && !self.begins_with.is_empty() {
            stored = with_worker(stored, &self.runner.claims.worker);
        }
        if let Some(exit) = ended {
            stored = with_exit(stored, exit);
        }
        let taken = match event.kind {
            EventKind::Began { .. } => std::mem::take(&mut self.begins_with),
            EventKind::Steered => self.local.inbox.read_entries(),
            _ => Vec::new(),
        };
        let ids: Vec<InvocationId> = taken.iter().map(|entry| entry.id.clone()).collect();
        let claim =
            self.runner.claims.for_append(&self.local.claim, self.releases_claim(&event.kind, &taken));
        let writes = SharedWrites::of(&stored);
        // The heartbeat must not treat a released claim as lost.
        let local = Arc::clone(&self.local);
        let pending_release =
            matches!(claim, AppendClaim::Release { .. }).then(|| local.claim.begin_release());
        let request = AppendEvent::new(
            self.local.key.clone(),
            self.version,
            with_taken(stored, &ids),
            &self.program.schema,
        )
        .with_claim(claim)
        .taking(self.local.inbox.stored_positions(&taken));
        let spend = self.meter.as_ref().map(|meter| meter.with_append(event, self.next_request(is_followed)));
        let mut request = match &spend {
            Some(spend) => request.settling(spend.settled.clone()).reserving(spend.reserved.clone()),
            None => request,
        };
        request.salt = self.runner.ids.salt().map(ContentSalt::from_bytes);
        let receipt = self.store_event(&event.kind, &request).await?;
        if let Some((meter, spend)) = self.meter.as_ref().zip(spend) {
            meter.stored(&spend, receipt.reservation.as_ref());
        }
        if let Some(pending_release) = pending_release {
            pending_release.confirm();
        }
        self.version = receipt.version;
        self.shared_version.store(receipt.version, Ordering::SeqCst);
        self.runner.changes.notify(&self.local.key, receipt.version, true);
        self.seen = self.seen.and_then(|seen| versions_after(seen, writes, &receipt));
        self.place += 1;
        if self.written.len() < MAX_WRITTEN {
            self.written.push(CommittedEvent::new(receipt.version, request.event));
        }
        self.local.claim.set(receipt.claim.as_ref());
        self.decision_reply.stored(&event.kind, receipt.version, &self.invocation);
        if let Some(last) = taken.last() {
            self.local.inbox.remove_taken(last.position);
            self.local.queue().join_messages(&ids);
        }
        self.local.inbox.note_newest(receipt.inbox);
        if self.local.inbox.is_stale() {
            self.local.inbox_changed.notify_one();
        }
        if let (EventKind::Began { .. }, Some(acceptance)) = (&event.kind, self.acceptance.take()) {
            acceptance.send(Ok(()));
        }
        Ok(())
    }

    /// The request that follows the event, if the run as it is stored asks the model next.
    fn next_request(&self, is_followed: bool) -> Option<NextRequest> {
        let is_own = is_followed && !self.ahead.follows_other_agent();
        is_own.then(|| NextRequest::of(&self.ahead)).flatten()
    }

    /// Keeps the agent of the run for later versions of the program. Runs that are not pinned do without, if need be.
    async fn keep_agent(&self) -> Result<(), SessionError> {
        match self.runner.older.keep(&self.program).await {
            Err(error) if self.runner.when_changed != WhenChanged::Pinned => {
                tracing::warn!(session = %self.local.key, %error, "the agent of the run is not archived");
                Ok(())
            }
            kept => kept.map_err(|source| SessionError::Store { what: "keep the agent of the run", source }),
        }
    }

    /// Stores an event. What has happened in the run, such as the result of a call that must not run twice, is held
    /// while the store cannot be reached: until it is back, or another worker has taken the session, or the runner
    /// stops.
    async fn store_event(&self, kind: &EventKind, request: &AppendEvent) -> Result<Receipt, SessionError> {
        let can_be_repeated = matches!(kind, EventKind::Began { .. } | EventKind::Decided { .. });
        let pauses = if can_be_repeated { append_backoff() } else { result_backoff() };
        let mut attempts = 0;
        let held = |error: &SessionError, _| {
            attempts += 1;
            // Said once, after what usually passes.
            if attempts == MAX_RETRIES && !can_be_repeated {
                tracing::warn!(session = %self.local.key, %error, "results are held until the store can be reached");
            }
        };
        let append = || self.runner.store.append(request.clone());
        append.retry(pauses).when(is_transient).notify(held).await
    }

    /// Whether this event releases the claim: the run has ended or waits for decisions, and no entries wait
    /// in the inbox except those that it takes.
    fn releases_claim(&self, kind: &EventKind, taken: &[InboxMessage]) -> bool {
        let is_done = match self.ahead.decide() {
            RunNeed::Nothing(_) => true,
            // One call, or one branch of a graph, can wait while others still run. In that case the claim is
            // released at the end of the invocation.
            RunNeed::Approval => matches!(kind, EventKind::Asked { .. } | EventKind::Decided { .. }),
            _ => false,
        };
        // With a deadline, the release says when the session is due.
        is_done && self.local.claim.due().is_none() && self.local.inbox.has_only_first(taken.len())
    }
}

impl Observer for RunJournal {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        match event.committed() {
            Some(event) => self.append(event).await.map_err(|error| match error {
                SessionError::TooLarge { .. } | SessionError::TooDeep { .. } => {
                    EventRefused::new(error).into()
                }
                error => error.into(),
            }),
            None => Ok(()),
        }
    }
}
