//! Forks, rewinds, deletes, replays and compares a session.

use std::sync::Arc;

use stepfold_agent_loop::Agent;
use stepfold_session_scopes::{
    AppendClaim, Author, DeleteSession, Deleted, Event, EventId, EventRange, ForkSession, InvocationId,
    RewindSession, SessionId, SessionSchema, SessionStore,
};

use crate::error::RunnerError;
use crate::handle::session_handle::SessionHandle;
use crate::log::compare::{Comparison, compare};

/// The first event of a fork.
pub(crate) struct FirstEvent<'a> {
    pub(crate) event: Event,
    /// The schema of the run that it belongs to.
    pub(crate) schema: &'a SessionSchema,
    pub(crate) claim: Option<AppendClaim>,
}

impl SessionHandle {
    /// Forks the session at a version; at the newest one if `None`. The agent's effects in the fork are
    /// separate: no idempotency key is shared.
    ///
    /// # Errors
    /// When the id is in use, the version does not exist, or the store fails.
    #[doc(alias("branch", "time_travel"))]
    pub async fn fork(&self, id: impl Into<Arc<str>>, version: Option<u64>) -> Result<Self, RunnerError> {
        self.fork_at(id.into(), version, None).await
    }

    /// A fork, perhaps with a first event of its own.
    pub(crate) async fn fork_at(
        &self,
        id: Arc<str>,
        version: Option<u64>,
        first: Option<FirstEvent<'_>>,
    ) -> Result<Self, RunnerError> {
        let core = self.core();
        let id = SessionId::new(id).map_err(|error| self.failed(error))?;
        let mut request = ForkSession::new(self.local.key.clone(), core.clock.now()).with_id(id);
        request.version = version;
        if let Some(FirstEvent { event, schema, claim }) = first {
            request = request.with_event(event, schema, claim);
        }
        let forked = core.store.fork(request).await.map_err(|error| self.failed(error))?;
        core.changes.notify(&forked.key, forked.version, false);
        let fork = self.runner.handle(forked.key);
        // The fork is there, whatever becomes of this: its next run or message notes the deadline as well.
        if let Err(error) = fork.note_deadline().await {
            tracing::warn!(session = %fork.key(), %error, "the deadline of a fork could not be noted");
        }
        Ok(fork)
    }

    /// Rewinds to a version, by an appended event: nothing is deleted, and values shared with other sessions
    /// stay. If another worker is running in the session, [`WhenClaimed`](crate::WhenClaimed) decides.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Busy`](crate::RunnerErrorKind::Busy) while the agent is running here; [`RunnerErrorKind::Claimed`](crate::RunnerErrorKind::Claimed) while another worker
    /// is; when the version does not exist, another worker was faster, or the store fails.
    #[doc(alias("time_travel", "rollback", "undo"))]
    pub async fn rewind(&self, to: u64) -> Result<u64, RunnerError> {
        self.rewind_to(None, to).await
    }

    /// Rewinds as [`rewind`](SessionHandle::rewind) does, if the session is at the expected version: for a caller that has
    /// shown this version to a person.
    ///
    /// # Errors
    /// As `rewind`; [`RunnerErrorKind::Conflict`](crate::RunnerErrorKind::Conflict) with both versions if the session is at another one.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::{Runner, RunnerError, RunnerErrorKind};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.run("which area has most stalls?").await?;
    /// let error = session.rewind_from(1, 0).await.unwrap_err();
    /// assert!(matches!(error.kind, RunnerErrorKind::Conflict { .. }));
    /// assert_eq!(session.rewind_from(2, 0).await?, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn rewind_from(&self, expected: u64, to: u64) -> Result<u64, RunnerError> {
        self.rewind_to(Some(expected), to).await
    }

    async fn rewind_to(&self, expected: Option<u64>, to: u64) -> Result<u64, RunnerError> {
        let mut cache = self.lock_between_runs().await?;
        (cache.history, cache.stopped) = (None, None);
        let (session, take_over) = self.wait_until_free().await?;
        let name = self.runner.0.ids.next();
        let failed = |error| self.failed(error);
        let request = RewindSession::new(
            self.local.key.clone(),
            expected.unwrap_or(session.version),
            to,
            EventId::new(format!("{name}.0")).map_err(failed)?,
            InvocationId::new(name).map_err(failed)?,
            Author::new("user").map_err(failed)?,
            self.runner.0.clock.now(),
        )
        .with_claim(AppendClaim::Once { take_over });
        let version = self.runner.0.store.rewind(request).await.map_err(failed)?.version;
        self.core().changes.notify(self.key(), version, false);
        Ok(version)
    }

    /// Deletes the session, and the values of its user (`user:`) if requested. Forks are unaffected. If another worker
    /// is running in the session, [`WhenClaimed`](crate::WhenClaimed) decides; a worker that is taken over loses its
    /// work.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Busy`](crate::RunnerErrorKind::Busy) while the agent is running here; [`RunnerErrorKind::Claimed`](crate::RunnerErrorKind::Claimed) while another worker
    /// is; when the session does not exist, or the store fails.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.run("which area has most stalls?").await?;
    /// assert_eq!(session.delete(false).await?.events, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn delete(&self, with_user_state: bool) -> Result<Deleted, RunnerError> {
        let mut cache = self.lock_between_runs().await?;
        let (_, take_over) = self.wait_until_free().await?;
        let mut request = DeleteSession::new(self.local.key.clone()).now(self.runner.0.clock.now());
        (request.user_state, request.take_over) = (with_user_state, take_over);
        let deleted = self.runner.0.store.delete(request).await.map_err(|error| self.failed(error))?;
        (cache.history, cache.stopped) = (None, None);
        self.local.inbox.clear();
        self.local.claim.take();
        self.core().changes.notify_deleted(self.key());
        Ok(deleted)
    }

    /// Replays every run of the session against another agent, without calling its model or its tools, and
    /// finds the first divergence.
    ///
    /// Each run starts with the session's own values as they were, and with the values of `app:` and `user:`
    /// keys in its record. A run matches if a live one would have the same events, given the recorded replies
    /// and outcomes, and would have offered the same tools. A dynamic toolset is listed at each step; those
    /// of inner agents are not. In a pruned session, the runs with an existing beginning are replayed; their
    /// view of a pruned conversation is taken from the record. Returns the number of matching runs: all of
    /// them.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Diverged`](crate::RunnerErrorKind::Diverged) for the first diverging run.
    pub async fn replay(&self, agent: &Agent) -> Result<usize, RunnerError> {
        crate::handle::replay::replay(&self.access(), agent).await
    }

    /// Compares the session with another one, such as a fork: the newest common version, the different
    /// events, the first difference, and the state changes. See [`Comparison`].
    ///
    /// # Errors
    /// When the store fails, or its records are invalid.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3\nassistant: area 7")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.run("which area has most stalls?").await?;
    /// let fork = session.fork("s2", Some(0)).await?;
    /// fork.run("which area has fewest?").await?;
    ///
    /// let comparison = session.compare(&fork).await?;
    /// assert_eq!((comparison.common, comparison.left.len(), comparison.right.len()), (0, 2, 2));
    /// let first = comparison.first.expect("they differ");
    /// assert!(first.to_string().contains("which area has fewest?"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn compare(&self, other: &SessionHandle) -> Result<Comparison, RunnerError> {
        let (left, right) = (self.read(EventRange::All).await?, other.read(EventRange::All).await?);
        compare(&left, &right, &self.runner.0.program.schema)
    }
}
