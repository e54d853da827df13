//! Reads a session: its state, its runs, its decisions and its inbox.

use stepfold_agent_loop::{ApprovalRequest, Decision, Run};
use stepfold_session_scopes::{
    DequeueInput, EventRange, InboxKind, InvocationId, ReadInbox, Session, SessionStore,
};
use stepfold_state_core::state::State;

use crate::access::decision_lookup::RecordedDecision;
use crate::access::unfinished_run::RunInEvents;
use crate::error::RunnerError;
use crate::handle::edits::RecordedEdit;
use crate::handle::session_handle::SessionHandle;
use crate::session::inbox::WaitingMessage;

impl SessionHandle {
    /// The pending approval requests. It reads as little as [`unfinished`](SessionHandle::unfinished).
    ///
    /// # Errors
    /// When the store fails, or its records are invalid.
    pub async fn pending(&self) -> Result<Vec<ApprovalRequest>, RunnerError> {
        Ok(self.unfinished().await?.map(|run| run.pending()).unwrap_or_default())
    }

    /// The last run, if it has not ended: to inspect its requests, or where it was interrupted.
    ///
    /// It reads only the events of that run, without values: in a process that has not used the session, the
    /// run has neither the conversation before it nor the state. [`last_run`](SessionHandle::last_run) has
    /// both.
    ///
    /// # Errors
    /// As [`pending`](SessionHandle::pending).
    pub async fn unfinished(&self) -> Result<Option<Run>, RunnerError> {
        self.access().unfinished().await
    }

    /// The same, of a session that was read with its newest events.
    ///
    /// # Errors
    /// When the records are invalid.
    pub fn unfinished_in(&self, session: &Session) -> Result<RunInEvents, RunnerError> {
        self.access().unfinished_in(session)
    }

    /// The stored state, with the conversation. Data that this process has cached is not read again.
    ///
    /// # Errors
    /// As [`pending`](SessionHandle::pending).
    pub async fn state(&self) -> Result<State, RunnerError> {
        let access = self.access();
        let (history, session) = access.read().await?;
        history.state(&session, &access.program(&history).schema)
    }

    /// The decisions in the newest 4,096 events of the record, newest first, with requests, authors and
    /// times.
    ///
    /// # Errors
    /// As [`pending`](SessionHandle::pending).
    pub async fn decisions(&self) -> Result<Vec<RecordedDecision>, RunnerError> {
        self.access().recorded_decisions().await
    }

    /// A decision as the record has it: with what the runner [redacts](crate::RunnerBuilder::redact) replaced. For a host that is sent
    /// a decision again, and compares it with a [recorded](SessionHandle::decisions) one.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Decision};
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// let agent = Agent::builder(Script::parse("assistant: hello")?).build()?;
    /// let session = Runner::builder(agent, MemoryStore::new()).build().session("ada", "s1").await?;
    /// assert_eq!(session.as_recorded(Decision::reject("no")), Decision::reject("no"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn as_recorded(&self, decision: Decision) -> Decision {
        self.runner.0.redacted_decision(decision)
    }

    /// The edits in the newest 4,096 events of the record, newest first, with authors and times.
    ///
    /// # Errors
    /// As [`pending`](SessionHandle::pending).
    pub async fn edits(&self) -> Result<Vec<RecordedEdit>, RunnerError> {
        self.recorded_edits().await
    }

    /// The messages in the inbox, in order of acceptance: they wait for a run that is running, waits for
    /// decisions, was interrupted or failed.
    ///
    /// # Errors
    /// When the store fails, or has no inboxes.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::{Runner, RunnerError, RunnerErrorKind};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// // A model without a reply: the run fails, and can be resumed.
    /// let runner = Runner::builder(Agent::builder(Script::parse("")?).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.run("first").await.unwrap_err();
    /// let error = session.run("second").await.unwrap_err();
    /// let RunnerError { kind: RunnerErrorKind::EarlierRunFailed { message, times: 2, .. }, .. } = error else { panic!("{error}") };
    ///
    /// let waiting = session.inbox().await?;
    /// assert_eq!((waiting.len(), &waiting[0].id), (1, &message));
    /// assert!(session.withdraw(&message).await?);
    /// assert!(session.inbox().await?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn inbox(&self) -> Result<Vec<WaitingMessage>, RunnerError> {
        let entries = self.runner.0.store.inbox(ReadInbox::new(self.local.key.clone())).await;
        let entries = entries.map_err(|error| self.failed(error))?;
        let messages = entries.into_iter().filter(|entry| entry.kind != InboxKind::Cancel);
        messages.map(|entry| WaitingMessage::read(entry).map_err(|error| self.failed(error))).collect()
    }

    /// Removes a waiting message from the inbox, by the [id](crate::Invocation::id) of its invocation. Returns false
    /// if it does not wait: it was taken, or withdrawn before.
    ///
    /// # Errors
    /// As [`inbox`](SessionHandle::inbox).
    pub async fn withdraw(&self, message: &InvocationId) -> Result<bool, RunnerError> {
        let key = &self.local.key;
        let entries = self.runner.0.store.inbox(ReadInbox::new(key.clone())).await;
        let entries = entries.map_err(|error| self.failed(error))?;
        let Some(entry) = entries.iter().find(|entry| entry.idempotency_key.as_str() == message.as_str())
        else {
            return Ok(false);
        };
        let request = DequeueInput::new(key.clone(), [entry.position]);
        let dropped = self.runner.0.store.dequeue(request).await.map_err(|error| self.failed(error))?;
        self.local.inbox.remove(entry.position);
        // Its invocation may wait for another worker.
        self.local.inbox_changed.notify_one();
        Ok(!dropped.is_empty())
    }

    /// The last stored run, if the session had one; it may have ended. The first call in a process reads the
    /// whole session.
    ///
    /// # Errors
    /// As [`pending`](SessionHandle::pending).
    pub async fn last_run(&self) -> Result<Option<Run>, RunnerError> {
        self.access().last_run().await
    }

    /// The stored session, with this range of its events, and with the claim of a worker if it has not expired.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn read(&self, events: EventRange) -> Result<Session, RunnerError> {
        let access = self.access();
        access.get(access.request().events(events).now(self.runner.0.clock.now())).await
    }

    /// The same without its values, which may be large.
    ///
    /// # Errors
    /// As [`read`](SessionHandle::read).
    pub async fn read_events(&self, events: EventRange) -> Result<Session, RunnerError> {
        let access = self.access();
        access.get(access.request().events(events).without_state().now(self.runner.0.clock.now())).await
    }
}
