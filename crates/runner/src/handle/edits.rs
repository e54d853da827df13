//! Edits of a session from outside: of a paused run, or of the values between runs.
//!
//! An edit is one append, with a claim for just that: so it is made whole or not at all, and a client that does not know
//! which sends it again under its key.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use stepfold_agent_loop::{
    Edit, EditError, Event as LoopEvent, FeedError, Outcome, RunAnswer, RunEvent, RunNeed,
};
use stepfold_session_scopes::{
    AppendClaim, AppendEvent, Author, CommittedEvent, ErrorKind, Event, EventId, EventKind, EventRange,
    InvocationId, Session, SessionError, SessionStore, TakeOver, Timestamp,
};

use crate::access::backoff::retried;
use crate::access::decision_lookup::{MAX_LISTED_EVENTS, newest_first};
use crate::access::unfinished_run::UnfinishedRun;
use crate::core::programs::AgentProgram;
use crate::error::{RunnerError, RunnerErrorKind};
use crate::handle::session_handle::SessionHandle;
use crate::handle::versions::FirstEvent;
use crate::record::events::{EventStamp, edit_tag, is_unfinished, loop_event, session_event};
use crate::record::history::SessionHistory;
use crate::session::cache::{SessionCache, StoppedRun};

/// The kind of an event that writes values between runs, and its metadata entry with what is known of the edit.
const STATE: &str = "state";

const EDIT: &str = "edit";

/// The receipt of a stored edit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EditReceipt {
    /// The version of the session with the edit.
    pub version: u64,
    /// The author of the edit, if known.
    pub by: Option<String>,
    /// Whether a run was open: the edit is an event of its record.
    pub is_of_run: bool,
}

/// An edit in the record of a session.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RecordedEdit {
    /// The edit.
    pub edit: Edit,
    /// The version of the session with the edit.
    pub version: u64,
    /// The time of storage.
    pub at: Timestamp,
}

/// Edits a session when awaited. See [`SessionHandle::edit`].
#[must_use = "nothing is edited until it is awaited"]
#[derive(Debug)]
pub struct EditSession {
    session: SessionHandle,
    edit: Edit,
    expected_version: Option<u64>,
    with_changed_agent: bool,
}

impl EditSession {
    pub(crate) fn new(session: SessionHandle, edit: Edit) -> Self {
        EditSession { session, edit, expected_version: None, with_changed_agent: false }
    }

    /// Makes the edit only at this version of the session, such as the one that a person was shown.
    pub fn expected_version(mut self, version: u64) -> Self {
        self.expected_version = Some(version);
        self
    }

    /// Forces the edit with an agent that changed since the run began.
    pub fn with_changed_agent(mut self) -> Self {
        self.with_changed_agent = true;
        self
    }
}

impl IntoFuture for EditSession {
    type Output = Result<EditReceipt, RunnerError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.session.clone().apply(self).await })
    }
}

/// Forks a session with an edit when awaited. See [`SessionHandle::fork_with`].
#[must_use = "nothing is forked until it is awaited"]
#[derive(Debug)]
pub struct ForkWithEdit {
    session: SessionHandle,
    id: Arc<str>,
    version: Option<u64>,
    edit: Edit,
    with_changed_agent: bool,
    is_waiting: bool,
}

impl ForkWithEdit {
    /// Leaves a run that is open in the fork until it is [resumed](SessionHandle::resume), as a fork without an edit does:
    /// recovery does not continue it.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use serde_json::json;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Edit};
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    /// use stepfold_state_core::state::Schema;
    ///
    /// let schema = Schema::builder().key::<u32>("stalls").build()?;
    /// let agent = Agent::builder(Script::parse("assistant: seven\nassistant: eight")?).schema(schema).build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new()).build();
    /// let session = runner.create("ada", "s1", json!({})).await?;
    /// session.run("How many?").await?;
    /// // Before the reply: the run is open there.
    /// let fork = session.fork_with("s2", Some(1), Edit::new().set("stalls", json!(8))).waiting().await?;
    /// assert!(fork.unfinished().await?.is_some());
    /// assert_eq!(fork.resume().await?.text(), "seven");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn waiting(mut self) -> Self {
        self.is_waiting = true;
        self
    }

    /// Forces the edit with an agent that changed since the run began.
    pub fn with_changed_agent(mut self) -> Self {
        self.with_changed_agent = true;
        self
    }
}

impl IntoFuture for ForkWithEdit {
    type Output = Result<SessionHandle, RunnerError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.session.clone().fork_and_edit(self).await })
    }
}

/// The metadata of an edit between runs: all but its writes.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct EditMetadata {
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
}

/// The event that an edit appends.
struct PreparedEdit {
    event: Event,
    /// The event of the open run, and that run.
    of_run: Option<(LoopEvent, Box<UnfinishedRun>)>,
    version: u64,
}

impl PreparedEdit {
    /// The agent of the open run; that of today between runs.
    fn program<'a>(&'a self, today: &'a Arc<AgentProgram>) -> &'a Arc<AgentProgram> {
        self.of_run.as_ref().map_or(today, |(_, stopped)| &stopped.program)
    }

    /// Whether the run continues without a decision.
    fn leaves_work(&self) -> bool {
        self.of_run.as_ref().is_some_and(|(_, stopped)| !matches!(stopped.run.decide(), RunNeed::Approval))
    }
}

impl SessionHandle {
    async fn apply(&self, request: EditSession) -> Result<EditReceipt, RunnerError> {
        let EditSession { edit, expected_version, with_changed_agent, .. } = request;
        self.check_open()?;
        // NOTE: an edit is not queued behind a run: it is about what a person was shown, which is over by then.
        let mut cache = self.lock_between_runs().await?;
        loop {
            let (session, take_over) = self.wait_until_free().await?;
            if let Some(receipt) = self.find_repeat(&edit).await? {
                return Ok(receipt);
            }
            if let Some(expected) = expected_version.filter(|expected| *expected != session.version) {
                return Err(self.failed(SessionError::Conflict {
                    key: Box::new(session.key),
                    expected,
                    actual: session.version,
                }));
            }
            let prepared = self.prepare(&mut cache, &edit, with_changed_agent).await?;
            if expected_version.is_some_and(|expected| expected != prepared.version) {
                continue;
            }
            match self.append(&prepared, take_over).await {
                Ok(version) => {
                    let (by, is_of_run) = (edit.by.clone(), prepared.of_run.is_some());
                    self.notify_edited(&mut cache, prepared.of_run, version).await;
                    return Ok(EditReceipt { version, by, is_of_run });
                }
                // Another worker was faster, perhaps with the same edit.
                Err(error) if error.kind() == ErrorKind::Conflict => cache.stopped = None,
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Forks the session at a version, at the newest one if `None`, with an edit as the first event of the fork: both are
    /// stored, or neither. What the edit may change, and how the fork continues, is as for [`edit`](SessionHandle::edit).
    ///
    /// # Errors
    /// As [`fork`](SessionHandle::fork) and [`edit`](SessionHandle::edit); there is no fork then.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use serde_json::json;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Edit};
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    /// use stepfold_state_core::state::Schema;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let schema = Schema::builder().key::<u32>("stalls").build()?;
    /// let agent = Agent::builder(model).schema(schema).build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new()).build();
    /// let session = runner.create("ada", "s1", json!({"stalls": 3})).await?;
    /// let fork = session.fork_with("s2", None, Edit::new().set("stalls", json!(7))).await?;
    /// assert_eq!(fork.state().await?.get("stalls").unwrap(), json!(7));
    /// assert_eq!(session.state().await?.get("stalls").unwrap(), json!(3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn fork_with(&self, id: impl Into<Arc<str>>, version: Option<u64>, edit: Edit) -> ForkWithEdit {
        let (session, id) = (self.clone(), id.into());
        ForkWithEdit { session, id, version, edit, with_changed_agent: false, is_waiting: false }
    }

    async fn fork_and_edit(&self, request: ForkWithEdit) -> Result<Self, RunnerError> {
        let ForkWithEdit { id, version, edit, with_changed_agent, is_waiting, .. } = request;
        if edit.is_empty() {
            return self.fork(id, version).await;
        }
        let session = self.read_at(version).await?;
        let (at, prepared) = (session.version, self.prepare_on(session, &edit, with_changed_agent).await?);
        let owner = self.core().claims.worker.clone();
        let claim = (!is_waiting && prepared.leaves_work()).then_some(AppendClaim::Take {
            owner,
            duration: Duration::ZERO,
            take_over: TakeOver::Never,
        });
        let program = Arc::clone(prepared.program(&self.core().program));
        let first = FirstEvent { event: prepared.event, schema: &program.schema, claim };
        let fork = self.fork_at(id, Some(at), Some(first)).await?;
        let read = fork.read(EventRange::None).await?;
        if read.version == at {
            // A store of one's own that does not know of first events.
            fork.delete(false).await?;
            return Err(self.failed(SessionError::Unsupported { what: "forks with a first event" }));
        }
        Ok(fork)
    }

    /// The event of an edit on the session as it was at a version.
    async fn prepare_on(
        &self,
        session: Session,
        edit: &Edit,
        with_changed_agent: bool,
    ) -> Result<PreparedEdit, RunnerError> {
        let newest = session.events.last().filter(|newest| newest.version == session.version);
        let version = session.version;
        if !newest.is_some_and(|newest| is_unfinished(&newest.event)) {
            return self.prepare_between_runs(edit, version);
        }
        let mut history = SessionHistory::default();
        history.extend(&session)?;
        let access = self.access().with_changed_agent(with_changed_agent);
        access.pin(&mut history).await;
        let read = (Arc::new(history), session);
        match access.unfinished_run(&SessionCache::default(), &read)? {
            Some(stopped) => self.prepare_in_run(edit, stopped, version),
            None => Err(self.refused(EditError::Ending)),
        }
    }

    async fn append(&self, prepared: &PreparedEdit, take_over: TakeOver) -> Result<u64, SessionError> {
        let (core, key) = (self.core(), self.key().clone());
        let schema = &prepared.program(&core.program).schema;
        let request = AppendEvent::new(key, prepared.version, prepared.event.clone(), schema);
        let owner = core.claims.worker.clone();
        let request = request.with_claim(match prepared.leaves_work() {
            // A claim that has expired is the sign of a run that has to continue: see `Runner::recover`.
            true => AppendClaim::Take { owner, duration: Duration::ZERO, take_over },
            false => AppendClaim::Once { take_over },
        });
        retried(|| core.store.append(request.clone())).await.map(|receipt| receipt.version)
    }

    /// The event of an edit on the session as it is.
    async fn prepare(
        &self,
        cache: &mut SessionCache,
        edit: &Edit,
        with_changed_agent: bool,
    ) -> Result<PreparedEdit, RunnerError> {
        // Values that do not fit the schema any more can be replaced: so none is read where no run is open.
        let newest = self.access().read_events(EventRange::Last(1)).await?;
        let is_open = newest.events.last().is_some_and(|newest| is_unfinished(&newest.event));
        if is_open {
            let access = self.access().with_changed_agent(with_changed_agent);
            let read = access.read_cached(cache).await?;
            return match access.unfinished_run(cache, &read)? {
                Some(stopped) => self.prepare_in_run(edit, stopped, read.0.version),
                None => Err(self.refused(EditError::Ending)),
            };
        }
        self.prepare_between_runs(edit, newest.version)
    }

    fn prepare_in_run(
        &self,
        edit: &Edit,
        stopped: Box<UnfinishedRun>,
        version: u64,
    ) -> Result<PreparedEdit, RunnerError> {
        let (core, failed) = (self.core(), |error| self.failed(error));
        let run = &stopped.run;
        let event = core.feed(run, RunAnswer::Edit(edit.clone())).map_err(|error| match error {
            FeedError::Edit(error) => self.refused(error),
            _ => self.refused(EditError::Ending),
        })?;
        let attempt = core.ids.next();
        let stamp = EventStamp {
            invocation: &stopped.invocation,
            place: stopped.place,
            attempt: Some(&attempt),
            author: &stopped.program.author,
            agent: &stopped.program.agent,
            at: core.clock.now(),
        };
        let stored = session_event(event.clone(), &stamp, Vec::new()).map_err(failed)?;
        Ok(PreparedEdit { event: stored, of_run: Some((event, stopped)), version })
    }

    fn prepare_between_runs(&self, edit: &Edit, version: u64) -> Result<PreparedEdit, RunnerError> {
        let (core, failed) = (self.core(), |error| self.failed(error));
        let results = edit.results.iter().map(|(id, _)| id);
        let calls = results.chain(edit.arguments.iter().map(|(id, _)| id));
        if let Some(id) = calls.into_iter().next() {
            return Err(self.refused(EditError::NoOpenRun { id: id.clone() }));
        }
        if edit.is_empty() {
            return Err(self.refused(EditError::Empty));
        }
        let edit = &core.redacted_edit(edit);
        let delta = edit.delta(core.program.schema.schema()).map_err(|error| self.refused(error))?;
        let name = core.ids.next();
        let event = Event::new(
            EventId::new(format!("{name}.0")).map_err(failed)?,
            InvocationId::new(name).map_err(failed)?,
            Author::new("user").map_err(failed)?,
            core.clock.now(),
        );
        let mut event = event.with_kind(EventKind::new(STATE)).with_delta(delta);
        let about = EditMetadata { by: edit.by.clone(), idempotency_key: edit.idempotency_key.clone() };
        if let (true, Ok(about)) =
            (edit.by.is_some() || about.idempotency_key.is_some(), serde_json::to_value(about))
        {
            event = event.with_metadata(EDIT, about);
        }
        if let Some(idempotency_key) = &edit.idempotency_key {
            event = event.with_tag(edit_tag(idempotency_key));
        }
        Ok(PreparedEdit { event, of_run: None, version })
    }

    /// Notifies watchers and observers of a stored edit, and applies it to the paused run that this process has cached.
    async fn notify_edited(
        &self,
        cache: &mut SessionCache,
        of_run: Option<(LoopEvent, Box<UnfinishedRun>)>,
        version: u64,
    ) {
        let (core, key) = (self.core(), self.key());
        core.changes.notify(key, version, false);
        let Some((event, stopped)) = of_run else { return };
        let UnfinishedRun { mut run, .. } = *stopped;
        // A run that was restored from the record lacks its `temp:` values, which is reported when it is restored again.
        let is_kept = cache.stopped.take().is_some();
        if is_kept && run.follow(&event).is_ok() {
            let life = cache.history.as_ref().and_then(|history| history.life.clone());
            cache.stopped = Some(StoppedRun::new(Arc::new(Outcome::recorded(run)), version, life, None));
        }
        let event = RunEvent::Committed(Box::new(event));
        for mut observer in core.observers.of(key) {
            // The edit is stored, whatever an observer makes of it.
            let _ = observer.observe_boxed(&event).await;
        }
    }

    /// The receipt of the same edit under the same key, if it was made before.
    async fn find_repeat(&self, edit: &Edit) -> Result<Option<EditReceipt>, RunnerError> {
        let Some(idempotency_key) = &edit.idempotency_key else { return Ok(None) };
        let edit = &self.core().redacted_edit(edit);
        let events = self.access().tagged([edit_tag(idempotency_key)]).await?;
        self.repeat_among(edit, idempotency_key, &events)
    }

    /// The receipt of the same edit under the same key among these events, newest first.
    fn repeat_among<'a>(
        &self,
        edit: &Edit,
        idempotency_key: &String,
        events: impl IntoIterator<Item = &'a CommittedEvent>,
    ) -> Result<Option<EditReceipt>, RunnerError> {
        for committed in events {
            let Some(recorded) = self.recorded(committed)? else { continue };
            if recorded.edit.idempotency_key.as_ref() != Some(idempotency_key) {
                continue;
            }
            if !edit.is_same(&recorded.edit, self.core().program.schema.schema()) {
                let idempotency_key = idempotency_key.clone();
                return Err(self.refused(EditError::KeyReused { idempotency_key }));
            }
            let is_of_run = committed.event.kind.as_str() != STATE;
            let (version, by) = (recorded.version, recorded.edit.by);
            return Ok(Some(EditReceipt { version, by, is_of_run }));
        }
        Ok(None)
    }

    /// The edits of the newest events, newest first.
    pub(crate) async fn recorded_edits(&self) -> Result<Vec<RecordedEdit>, RunnerError> {
        let session = self.access().read_events(EventRange::Last(MAX_LISTED_EVENTS)).await?;
        let events = newest_first(&session).into_iter();
        events.filter_map(|committed| self.recorded(committed).transpose()).collect()
    }

    /// The edit that an event stores, if it does.
    fn recorded(&self, committed: &CommittedEvent) -> Result<Option<RecordedEdit>, RunnerError> {
        let (event, version) = (&committed.event, committed.version);
        let edit = match event.kind.as_str() {
            "edited" => loop_event(self.key(), committed)?.as_ref().and_then(Edit::of),
            STATE if event.record.is_none() => {
                let about = event.metadata.read::<EditMetadata>(EDIT).unwrap_or_default();
                let mut edit = Edit::of_writes(&event.actions.delta);
                (edit.by, edit.idempotency_key) = (about.by, about.idempotency_key);
                Some(edit)
            }
            _ => None,
        };
        Ok(edit.map(|edit| RecordedEdit { edit, version, at: event.at }))
    }

    fn refused(&self, error: EditError) -> RunnerError {
        RunnerError::new(self.key(), RunnerErrorKind::Edit { error: Arc::new(error) })
    }
}
