//! The runner: one agent, one store, any number of sessions.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stepfold_agent_loop::{Agent, ModelView, Redact};
use stepfold_session_scopes::{
    AnyStore, Claim, CreateSession, ErrorKind, EventRange, GetSession, ListUsers, OutlineSessions, Session,
    SessionError, SessionId, SessionKey, SessionOutline, SessionSchema, SessionStore, Timestamp, UserId,
};

use crate::core::load::RunnerLoad;
use crate::core::runner_core::Runner;
use crate::error::{RunnerError, RunnerErrorKind};
use crate::handle::session_handle::SessionHandle;

impl Runner {
    /// Opens the session of a user; creates it if it does not exist.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Store`] for invalid ids, and when the store fails.
    pub async fn session(
        &self,
        user: impl Into<Arc<str>>,
        id: impl Into<Arc<str>>,
    ) -> Result<SessionHandle, RunnerError> {
        let key = self.key(user, id)?;
        let found = self.look_up(&key).await;
        let made = match found {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let request =
                    CreateSession::with_key(key.clone(), &self.0.program.schema, self.0.clock.now());
                match self.0.store.create(request).await {
                    // Another worker has created it meanwhile.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
                    made => made.map(|_| self.0.changes.notify(&key, 0, false)),
                }
            }
            found => found.map(drop),
        };
        made.map_err(|error| RunnerError::store(&key, error))?;
        Ok(self.handle(key))
    }

    /// Whether the session exists: without its events and values.
    async fn look_up(&self, key: &SessionKey) -> Result<Session, SessionError> {
        self.0.store.get(GetSession::new(key.clone()).events(EventRange::None).without_state()).await
    }

    /// Opens the session of a user if it exists; `None` otherwise. It creates nothing.
    ///
    /// # Errors
    /// [`RunnerErrorKind::InvalidId`], and when the store fails.
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
    /// assert!(runner.find_session("ada", "s1").await?.is_none());
    /// runner.session("ada", "s1").await?;
    /// assert!(runner.find_session("ada", "s1").await?.is_some());
    /// assert!(runner.find_session("bob", "s1").await?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn find_session(
        &self,
        user: impl Into<Arc<str>>,
        id: impl Into<Arc<str>>,
    ) -> Result<Option<SessionHandle>, RunnerError> {
        let key = self.key(user, id)?;
        match self.look_up(&key).await {
            Ok(_) => Ok(Some(self.handle(key))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(RunnerError::store(&key, error)),
        }
    }

    /// Sessions of a user at a glance, by [one request](SessionStore::outlines) to the store: each with its handle. The app
    /// of the request is that of the runner, and claims expire by the clock of the runner.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Store`] when the store fails.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::{RunInEvents, Runner};
    /// use stepfold_session_scopes::{MemoryStore, OutlineSessions};
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.send("which area has most stalls?").await?.await?;
    /// let key = session.key().clone();
    /// let outlines = runner.outlines(OutlineSessions::new(key.app, key.user, [key.id])).await?;
    /// let (same, outline) = outlines[0].as_ref().unwrap();
    /// assert_eq!(outline.session.events[0].version, outline.session.version);
    /// assert!(matches!(same.unfinished_in(&outline.session)?, RunInEvents::Ended));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn outlines(
        &self,
        mut request: OutlineSessions,
    ) -> Result<Vec<Option<(SessionHandle, SessionOutline)>>, RunnerError> {
        let Some(first) = request.ids.first() else { return Ok(Vec::new()) };
        let key = self.key(request.user.as_str(), first.as_str())?;
        request.app = key.app.clone();
        request.now = Some(self.0.clock.now());
        let outlines =
            self.0.store.outlines(request).await.map_err(|error| RunnerError::store(&key, error))?;
        let with_handle = |outline: SessionOutline| (self.handle(outline.session.key.clone()), outline);
        Ok(outlines.into_iter().map(|outline| outline.map(with_handle)).collect())
    }

    /// Creates a session with initial values: an object by key, of any scope.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Store`] when the session exists, when a value is invalid, and when the store fails.
    pub async fn create(
        &self,
        user: impl Into<Arc<str>>,
        id: impl Into<Arc<str>>,
        values: Value,
    ) -> Result<SessionHandle, RunnerError> {
        let key = self.key(user, id)?;
        let failed = |error| RunnerError::store(&key, error);
        let request = CreateSession::with_key(key.clone(), &self.0.program.schema, self.0.clock.now());
        let values = self.0.redacted_values(values);
        self.0.store.create(request.values(values).map_err(failed)?).await.map_err(failed)?;
        self.0.changes.notify(&key, 0, false);
        Ok(self.handle(key))
    }

    /// Shuts down the runner, with all its clones and sessions: the orderly end of a process.
    ///
    /// Nothing new starts: requests are refused with [`ShutDown`](RunnerErrorKind::ShutDown), and messages in
    /// inboxes stay there. Running work has the grace period to complete; then it is stopped immediately,
    /// like in a crash, but its claim is released, so that another process can resume it at once. Returns
    /// whether all work completed. To cancel runs, cancel them before.
    ///
    /// Without it, a process that ends interrupts its workers, including those that it started by itself: for
    /// a message of another process in the inbox.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use std::time::Duration;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::{Runner, RunnerError, RunnerErrorKind};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// let invocation = session.send("which area has most stalls?").await?;
    /// assert!(runner.shutdown(Duration::from_secs(10)).await);
    /// assert_eq!(invocation.await?.text(), "area 3");
    /// assert!(matches!(session.send("and fewest?").await, Err(RunnerError { kind: RunnerErrorKind::ShutDown { .. }, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn shutdown(&self, grace: Duration) -> bool {
        self.0.shutdown.close(grace).await
    }

    /// The time of its [clock](crate::RunnerBuilder::clock), for requests to its store.
    ///
    /// # Examples
    /// ```
    /// use std::time::SystemTime;
    ///
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// let agent = Agent::builder(Script::parse("assistant: hello")?).build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new()).build();
    /// assert!(runner.now() > SystemTime::UNIX_EPOCH.into());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// Returns the current load of this runner and its clones, for metrics.
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
    /// let load = runner.load();
    /// assert_eq!((load.running, load.waiting), (0, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn load(&self) -> RunnerLoad {
        let mut load = self.0.backlog.load(self.0.clock.now());
        load.connections = self.0.store.connections();
        (load.expired_sessions, load.expired_events, load.retention_failures) = self.0.retained.counts();
        for local in self.0.sessions().all() {
            load.running += usize::from(local.queue().has_worker());
            load.waiting += local.waiting();
            load.claims += usize::from(local.claim.token().is_some());
        }
        load
    }

    /// Lists users of the application that have sessions, in the order of their ids: at most `limit`, after one if given.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Store`] when the store fails, or does not list users.
    pub async fn users(&self, after: Option<UserId>, limit: usize) -> Result<Vec<UserId>, RunnerError> {
        let mut request = ListUsers::of(self.0.app.clone());
        (request.after, request.limit) = (after, limit);
        self.0.store.users(request).await.map_err(|error| self.failed(error))
    }

    /// The store: for operations that the runner does not have, such as listing sessions.
    pub fn store(&self) -> &AnyStore {
        &self.0.store
    }

    /// The claim of another worker that may be running in a session: as the session was read, unless the
    /// worker is [known to be dead](crate::RunnerBuilder::worker_is_dead).
    pub fn other_worker<'a>(&self, session: &'a Session) -> Option<&'a Claim> {
        self.0.claims.other_worker(session)
    }

    /// The agent.
    pub fn agent(&self) -> &Agent {
        &self.0.program.agent
    }

    /// The [redaction](crate::RunnerBuilder::redact) before storing, if there is one: for programs that copy what sessions hold.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, ModelView, Redaction, redacted};
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// let agent = Agent::builder(Script::parse("assistant: noted")?).build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new()).redact(Redaction::all(), ModelView::Keep).build();
    /// let (rules, view) = runner.redaction().unwrap();
    /// assert_eq!(redacted(&*rules, "ada@example.org"), "[email]");
    /// assert_eq!(view, ModelView::Keep);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn redaction(&self) -> Option<(Arc<dyn Redact>, ModelView)> {
        let redaction = self.0.redaction.as_ref()?;
        Some((Arc::clone(&redaction.redact), redaction.view))
    }

    /// Whether requests to models count in budgets or rate limits.
    pub fn has_spend_limits(&self) -> bool {
        self.0.budgets.has_limits()
    }

    /// The schema of the sessions.
    pub fn schema(&self) -> &SessionSchema {
        &self.0.program.schema
    }

    /// The key of a session of the runner's application.
    ///
    /// # Errors
    /// [`RunnerErrorKind::InvalidId`].
    pub fn key(&self, user: impl Into<Arc<str>>, id: impl Into<Arc<str>>) -> Result<SessionKey, RunnerError> {
        let app = self.0.app.clone();
        let failed = |error: SessionError| {
            RunnerError::new(None, RunnerErrorKind::InvalidId { source: Arc::new(error) })
        };
        let user = UserId::new(user).map_err(failed)?;
        let id = SessionId::new(id).map_err(failed)?;
        Ok(SessionKey { app, user, id })
    }

    pub(crate) fn handle(&self, key: SessionKey) -> SessionHandle {
        let local = self.0.sessions().get(key);
        SessionHandle::new(self.clone(), local)
    }
}
