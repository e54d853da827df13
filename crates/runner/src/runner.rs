//! The runner: one agent, one store, any number of sessions.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::Stream;
use serde_json::Value;
use stepfold_agent_loop::{Agent, Ids, Observer};
use stepfold_session_scopes::{
    AnyStore, AppId, Author, Claim, CreateSession, ErrorKind, EventRange, GetSession, ListUsers, Session,
    SessionError, SessionId, SessionKey, SessionSchema, SessionStore, StoreConnections, Timestamp, UserId,
    WorkerId,
};

use crate::backlog::BacklogCounters;
use crate::claim::{ClaimSettings, DeathCheck, WhenClaimed};
use crate::closing::RunnerShutdown;
use crate::error::RunnerError;
use crate::handle::SessionHandle;
use crate::observers::ObserverFactories;
use crate::ports::{ShortIds, SystemClock, WallClock};
use crate::process;
use crate::pulse::HeartbeatRegistry;
use crate::slots::SessionTable;
use crate::watch::{ChangeFeed, SessionChange};

/// The handling of a message for a busy session.
///
/// A message is never lost: it is refused with an error, or accepted, and then taken once, in order, or
/// [withdrawn](SessionHandle::withdraw) by its id. Each accepted message has an invocation of its own, which tells its
/// sender the outcome of the run that took it, by the record alone:
///
/// | | the sender is told | the sender of the run at work is told | a repeat under its key is told |
/// |---|---|---|---|
/// | [`Wait`](Busy::Wait) | the outcome of its own run, after those of earlier messages; [`Busy`](RunnerError::Busy) if too many wait | the outcome of that run, unchanged | the outcome of its own run, at once if that has ended |
/// | [`Refuse`](Busy::Refuse) | [`Busy`](RunnerError::Busy): nothing is stored | the outcome of that run, unchanged | the same as above: a repeat is not refused |
/// | [`Interrupt`](Busy::Interrupt) | the outcome of its own run; `Busy` if too many wait, and then nothing is cancelled | that its run was [cancelled](crate::agent_loop::Exit::Cancelled), or its end if that came first | the outcome of its own run; it cancels nothing |
/// | [`Steer`](Busy::Steer) | the outcome of the run that took it; if it came too late, of one of its own | the outcome of that run, which answers both | the same as its sender: it joins nothing again |
///
/// Of a run that failed, or waits for decisions, each is told that, and a later repeat how it ended. A repeat is a message
/// with the same key and content, from any process and however late. A key is known for as long as the record of the session
/// has the events of its message, and for the last 1,000 messages of its inbox if a rewind or retention has removed them. Within
/// those 1,000, other content under the key is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Busy {
    /// Refuses it, if an invocation of this runner is running. [`WhenClaimed`] decides if another worker is.
    Refuse,
    /// Queues it; at most [`max_waiting`](RunnerBuilder::max_waiting) messages wait.
    #[default]
    Wait,
    /// Cancels the run at work, in this process or another one, once the message is accepted. Messages that wait stay
    /// accepted, and come before it.
    Interrupt,
    /// Adds it to the current run, before the next request to the model. If the run has ended by then, the
    /// message is next.
    Steer,
}

/// Runs an agent in the sessions of a store.
///
/// Every commit of the loop is stored before anything else happens. So a process may die at any moment, and
/// another one continues where it stopped. Cloning is cheap.
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
/// let agent = Agent::builder(model).build()?;
/// let runner = Runner::builder(agent, MemoryStore::new()).app("stalls")?.build();
///
/// let session = runner.session("ada", "s1").await?;
/// assert_eq!(session.run("which area has most stalls?").await?.text(), "area 3");
/// // The next turn continues the conversation, in this process or another.
/// let outcome = session.run("and fewest?").await?;
/// assert_eq!(outcome.transcript().to_string(), "\
/// user:      which area has most stalls?
/// assistant: area 3
/// user:      and fewest?
/// assistant: area 7
/// ");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Runner(pub(crate) Arc<RunnerCore>);

pub(crate) struct RunnerCore {
    pub(crate) agent: Agent,
    /// The author of what the agent does, once its name has been checked.
    author: OnceLock<Author>,
    pub(crate) store: AnyStore,
    pub(crate) app: AppId,
    pub(crate) schema: SessionSchema,
    pub(crate) busy: Busy,
    pub(crate) max_waiting: usize,
    pub(crate) ids: Arc<dyn Ids>,
    pub(crate) clock: Arc<dyn WallClock>,
    pub(crate) observers: ObserverFactories,
    pub(crate) claims: ClaimSettings,
    /// The number of equal failures after which a run is abandoned; never if `None`.
    pub(crate) abandon_after: Option<u32>,
    pub(crate) shutdown: RunnerShutdown,
    pub(crate) changes: ChangeFeed,
    /// The heartbeat of the claims that are held.
    pub(crate) heartbeat: HeartbeatRegistry,
    /// What the last look of a recovery found.
    pub(crate) backlog: BacklogCounters,
    /// The sessions in use, so that each has one running invocation at a time.
    sessions: Mutex<SessionTable>,
}

/// What a runner does now: see [`Runner::load`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Load {
    /// Sessions with a running invocation.
    pub running: usize,
    /// Messages that wait in the queues of sessions for an invocation to end.
    pub waiting: usize,
    /// Claims on sessions that it holds.
    pub claims: usize,
    /// Claims that it has lost since it was built: another worker has taken the session.
    pub lost_claims: u64,
    /// Sessions in which work was left and no worker was at the last look of a [recovery](Runner::recover): at least so many.
    pub due: usize,
    /// Those of them that could not be recovered: they wait for a deployment, a repair, or the end of a pause.
    pub blocked: usize,
    /// The longest time that one of them has waited.
    pub oldest: Duration,
    /// Connections of the store to its database.
    pub connections: StoreConnections,
}

/// Builds a [`Runner`].
#[must_use = "a builder does nothing until it is built"]
pub struct RunnerBuilder {
    agent: Agent,
    store: AnyStore,
    app: AppId,
    schema: SessionSchema,
    busy: Busy,
    max_waiting: usize,
    ids: Arc<dyn Ids>,
    clock: Arc<dyn WallClock>,
    observers: ObserverFactories,
    claims: ClaimSettings,
    max_paused: usize,
    abandon_after: Option<u32>,
}

impl Runner {
    /// Creates a runner of this agent, or graph, with this store. The application has the agent's name by
    /// [default](RunnerBuilder::app).
    pub fn builder(agent: impl Into<Agent>, store: impl SessionStore) -> RunnerBuilder {
        let agent = agent.into();
        let schema = SessionSchema::new(agent.schema().clone());
        let app = AppId::new(agent.name()).or_else(|_| AppId::new("app"));
        RunnerBuilder {
            agent,
            store: AnyStore::new(store),
            app: app.unwrap_or_else(|_| unreachable!("\"app\" is a valid id")),
            schema,
            busy: Busy::default(),
            max_waiting: 16,
            ids: Arc::new(ShortIds),
            clock: Arc::new(SystemClock),
            observers: ObserverFactories::default(),
            claims: ClaimSettings {
                worker: WorkerId::new(ShortIds.next())
                    .unwrap_or_else(|_| unreachable!("letters and digits are a valid id")),
                is_dead: DeathCheck::default(),
                duration: Duration::from_secs(30),
                when_claimed: WhenClaimed::default(),
                leaves_inbox: false,
            },
            max_paused: 4_096,
            abandon_after: None,
        }
    }

    /// Opens the session of a user; creates it if it does not exist.
    ///
    /// # Errors
    /// [`RunnerError::Store`] for invalid ids, and when the store fails.
    pub async fn session(
        &self,
        user: impl Into<Arc<str>>,
        id: impl Into<Arc<str>>,
    ) -> Result<SessionHandle, RunnerError> {
        let key = self.key(user, id)?;
        let get = GetSession::new(key.clone()).events(EventRange::None).without_state();
        let found = self.0.store.get(get).await;
        let made = match found {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let request = CreateSession::with_key(key.clone(), &self.0.schema, self.0.clock.now());
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

    /// Opens the session of a user if it exists; `None` otherwise. It creates nothing.
    ///
    /// # Errors
    /// [`RunnerError::InvalidId`], and when the store fails.
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
        let get = GetSession::new(key.clone()).events(EventRange::None).without_state();
        match self.0.store.get(get).await {
            Ok(_) => Ok(Some(self.handle(key))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(RunnerError::store(&key, error)),
        }
    }

    /// Creates a session with initial values: an object by key, of any scope.
    ///
    /// # Errors
    /// [`RunnerError::Store`] when the session exists, when a value is invalid, and when the store fails.
    pub async fn create(
        &self,
        user: impl Into<Arc<str>>,
        id: impl Into<Arc<str>>,
        values: Value,
    ) -> Result<SessionHandle, RunnerError> {
        let key = self.key(user, id)?;
        let failed = |error| RunnerError::store(&key, error);
        let request = CreateSession::with_key(key.clone(), &self.0.schema, self.0.clock.now());
        self.0.store.create(request.values(values).map_err(failed)?).await.map_err(failed)?;
        self.0.changes.notify(&key, 0, false);
        Ok(self.handle(key))
    }

    /// Shuts down the runner, with all its clones and sessions: the orderly end of a process.
    ///
    /// Nothing new starts: requests are refused with [`ShutDown`](RunnerError::ShutDown), and messages in
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
    /// use stepfold_runner::{Runner, RunnerError};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// let invocation = session.send("which area has most stalls?").await?;
    /// assert!(runner.shutdown(Duration::from_secs(10)).await);
    /// assert_eq!(invocation.await?.text(), "area 3");
    /// assert!(matches!(session.send("and fewest?").await, Err(RunnerError::ShutDown { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn shutdown(&self, grace: Duration) -> bool {
        self.0.shutdown.close(grace).await
    }

    /// The time of its [clock](RunnerBuilder::clock), for requests to its store.
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

    /// What this runner and its clones do now, for metrics.
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
    pub fn load(&self) -> Load {
        let mut load = self.0.backlog.load(self.0.clock.now());
        load.connections = self.0.store.connections();
        for local in self.0.sessions().all() {
            load.running += usize::from(local.queue().has_worker());
            load.waiting += local.waiting();
            load.claims += usize::from(local.claim.token().is_some());
        }
        load
    }

    /// Watches the sessions that this runner and its clones work in: their creation and deletion, each stored event, and
    /// each end of an invocation. Any number of watchers is supported; none slows a run down.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use futures_util::StreamExt;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::{Runner, SessionChange};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// let mut changes = runner.watch();
    /// session.run("which area has most stalls?").await?;
    /// let Some(SessionChange::Changed { key, version: 1, is_running: true, .. }) = changes.next().await else {
    ///     panic!("the message is stored first")
    /// };
    /// assert_eq!(&key, session.key());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn watch(&self) -> impl Stream<Item = SessionChange> + Send + Unpin + use<> {
        self.0.changes.watch()
    }

    /// Watches the sessions of one user, as [`watch`](Runner::watch) does: changes of other users are not reported. Other
    /// processes may have changed some when [`SessionChange::Missed`] says so: when the store
    /// [tells](SessionStore::notices) of it, and every 15 seconds; each second, if it does not tell.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use futures_util::StreamExt;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::{Runner, SessionChange};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3\nassistant: area 4")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let (ada, bob) = (runner.session("ada", "s1").await?, runner.session("bob", "s1").await?);
    /// let mut changes = runner.watch_user(&bob.key().user).await;
    /// ada.run("which area has most stalls?").await?;
    /// bob.run("which area has fewest?").await?;
    /// assert!(matches!(changes.next().await, Some(SessionChange::Changed { key, .. }) if key == *bob.key()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn watch_user(
        &self,
        user: &UserId,
    ) -> impl Stream<Item = SessionChange> + Send + Unpin + use<> {
        let changes = self.0.changes.watch_user(user);
        self.listen_to_notices().await;
        futures_util::stream::select(changes, Box::pin(self.poll_ticks()))
    }

    /// Watches one session: the newest change, if this runner made one since the one before. Changes of other sessions
    /// are not reported.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use futures_util::StreamExt;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::{Runner, SessionChange};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// let mut changes = runner.watch_session(session.key());
    /// session.run("which area has most stalls?").await?;
    /// assert!(matches!(changes.next().await, Some(SessionChange::Changed { version: 2, is_running: false, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn watch_session(
        &self,
        key: &SessionKey,
    ) -> impl Stream<Item = SessionChange> + Send + Unpin + use<> {
        self.0.changes.watch_session(key).into_changes()
    }

    /// Lists users of the application that have sessions, in the order of their ids: at most `limit`, after one if given.
    ///
    /// # Errors
    /// [`RunnerError::Store`] when the store fails, or does not list users.
    pub async fn users(&self, after: Option<UserId>, limit: usize) -> Result<Vec<UserId>, RunnerError> {
        let mut request = ListUsers::of(self.0.app.clone());
        (request.after, request.limit) = (after, limit);
        self.0.store.users(request).await.map_err(|error| self.failed(error))
    }

    /// An error of the store that is about no session.
    pub(crate) fn failed(&self, error: SessionError) -> RunnerError {
        let key = SessionKey { app: self.0.app.clone(), user: no_user(), id: no_session() };
        RunnerError::store(&key, error)
    }

    /// The store: for operations that the runner does not have, such as listing sessions.
    pub fn store(&self) -> &AnyStore {
        &self.0.store
    }

    /// The claim of another worker that may be running in a session: as the session was read, unless the
    /// worker is [known to be dead](RunnerBuilder::worker_is_dead).
    pub fn other_worker<'a>(&self, session: &'a Session) -> Option<&'a Claim> {
        self.0.claims.other_worker(session)
    }

    /// The agent.
    pub fn agent(&self) -> &Agent {
        &self.0.agent
    }

    /// The schema of the sessions.
    pub fn schema(&self) -> &SessionSchema {
        &self.0.schema
    }

    /// The key of a session of the runner's application.
    ///
    /// # Errors
    /// [`RunnerError::InvalidId`].
    pub fn key(&self, user: impl Into<Arc<str>>, id: impl Into<Arc<str>>) -> Result<SessionKey, RunnerError> {
        let app = self.0.app.clone();
        let failed = |error: SessionError| RunnerError::InvalidId { source: Arc::new(error) };
        let user = UserId::new(user).map_err(failed)?;
        let id = SessionId::new(id).map_err(failed)?;
        Ok(SessionKey { app, user, id })
    }

    pub(crate) fn handle(&self, key: SessionKey) -> SessionHandle {
        let local = self.0.sessions().get(key);
        SessionHandle::new(self.clone(), local)
    }
}

/// Stands for a user in an error that is about none.
fn no_user() -> UserId {
    UserId::new("-").unwrap_or_else(|_| unreachable!("a dash is a valid id"))
}

fn no_session() -> SessionId {
    SessionId::new("-").unwrap_or_else(|_| unreachable!("a dash is a valid id"))
}

impl RunnerCore {
    /// The author of what the agent does: its name.
    pub(crate) fn author(&self) -> Result<&Author, SessionError> {
        match self.author.get() {
            Some(author) => Ok(author),
            None => Author::new(self.agent.name()).map(|author| self.author.get_or_init(|| author)),
        }
    }

    pub(crate) fn sessions(&self) -> MutexGuard<'_, SessionTable> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunnerBuilder {
    /// Sets the name of the application: the first part of every session's key.
    ///
    /// # Errors
    /// [`SessionError::InvalidId`].
    pub fn app(mut self, name: impl Into<Arc<str>>) -> Result<Self, SessionError> {
        self.app = AppId::new(name)?;
        Ok(self)
    }

    /// Sets the schema of the sessions, with migrations for values stored with an earlier one; the agent's
    /// schema by default. It must be the agent's schema except for migrations.
    pub fn schema(mut self, schema: SessionSchema) -> Self {
        self.schema = schema;
        self
    }

    /// Sets the handling of a message for a busy session.
    pub fn when_busy(mut self, busy: Busy) -> Self {
        self.busy = busy;
        self
    }

    /// Sets how many messages may wait for one session in this process; 16 by default. Messages that join a
    /// run do not count; the store limits its inbox.
    pub fn max_waiting(mut self, messages: usize) -> Self {
        self.max_waiting = messages;
        self
    }

    /// Sets the name of this worker in the [claims](WhenClaimed) on sessions; random by default.
    ///
    /// A fixed name is for a single worker that restarts under its name, such as a member of a stateful set:
    /// it immediately continues the sessions it left, without waiting until its claims have expired.
    ///
    /// **It must be unique among running processes.** Two with the same name count as one worker: each takes
    /// over the other's work as if it had left that itself, so calls in progress run again or get an unknown
    /// outcome. The store cannot tell them apart. Several processes with one configuration need a different
    /// part in the name, such as the number of the replica; or the random name.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let replica = 0;
    /// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new()).worker(format!("server-{replica}"))?.build();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SessionError::InvalidId`].
    pub fn worker(mut self, name: impl Into<Arc<str>>) -> Result<Self, SessionError> {
        self.claims.worker = WorkerId::new(name)?;
        Ok(self)
    }

    /// Names this worker after its process, and immediately takes over sessions of a killed process, without
    /// waiting until its claim has expired: if both run on the same host, for the same user and in the same
    /// PID namespace, and name their workers this way. Only Linux supports this; elsewhere a claim has to
    /// expire.
    ///
    /// For programs that people start: a process that is stopped (`SIGSTOP`) or blocked is alive, and waited
    /// for.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new()).process_worker().build();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn process_worker(mut self) -> Self {
        self.claims.worker = WorkerId::new(process::worker_name(&ShortIds.next()))
            .unwrap_or_else(|_| unreachable!("letters, digits and dashes are a valid id"));
        self.worker_is_dead(|worker| process::is_dead(worker.as_str()))
    }

    /// Sets a check whether another worker is dead, so that its sessions are taken over immediately; by
    /// default, none is known to be. The check must be reliable: a worker that is alive loses its work.
    pub fn worker_is_dead(mut self, is_dead: impl Fn(&WorkerId) -> bool + Send + Sync + 'static) -> Self {
        self.claims.is_dead = DeathCheck::new(is_dead);
        self
    }

    /// Sets the duration of a claim on a session; 30 seconds by default. During a run, a heartbeat renews it
    /// each third of this time. So it is the time after which others may take over from a process that died.
    pub fn claim_for(mut self, duration: Duration) -> Self {
        self.claims.duration = duration;
        self
    }

    /// Sets the reaction to another worker's claim on a session; [waits](WhenClaimed::default) by default.
    pub fn when_claimed(mut self, when: WhenClaimed) -> Self {
        self.claims.when_claimed = when;
        self
    }

    /// Leaves messages of other workers in the inbox: after its own invocations a worker of this runner
    /// releases the claim. By default it processes the whole inbox.
    ///
    /// For processes that end after an invocation, or that have another model or other tools than the senders
    /// of those messages. Messages before one of its own are processed in any case, to keep the order.
    pub fn leave_inbox(mut self) -> Self {
        self.claims.leaves_inbox = true;
        self
    }

    /// Sets how many sessions with a waiting run and `temp:` values are kept in memory, in addition to those
    /// in use; 4,096 by default. Beyond that, the oldest lose their `temp:` values, and nothing else; a
    /// resumed run reports which: [`Outcome::missing_temp`](stepfold_agent_loop::Outcome::missing_temp).
    pub fn max_paused(mut self, sessions: usize) -> Self {
        self.max_paused = sessions;
        self
    }

    /// Abandons an interrupted run automatically when it has failed this many times with the same error and a
    /// message waits for it; never by default. The record of the session counts: consecutive failures without
    /// progress, in any process.
    pub fn abandon_after(mut self, failures: u32) -> Self {
        self.abandon_after = Some(failures.max(1));
        self
    }

    /// Sets the source of invocation ids; random ones ([`ShortIds`]) by default.
    pub fn ids(mut self, ids: impl Ids + 'static) -> Self {
        self.ids = Arc::new(ids);
        self
    }

    /// Sets the clock; the system clock by default.
    pub fn clock(mut self, clock: impl WallClock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Adds an observer of every invocation, notified after storage and publication: `make` creates one for
    /// each, such as [`Traces`](stepfold_agent_loop::Traces). Observers are notified in the order in which
    /// they were added. A failing one stops the run, which can be resumed; nothing stored is lost.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Traces};
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new()).observe(|_| Traces::new("analyst")).build();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn observe<O: Observer + 'static>(
        mut self,
        make: impl Fn(&SessionKey) -> O + Send + Sync + 'static,
    ) -> Self {
        self.observers.push(make);
        self
    }

    /// Builds the runner.
    pub fn build(self) -> Runner {
        let RunnerBuilder { agent, store, app, schema, busy, max_waiting, ids, clock, observers, .. } = self;
        let (claims, abandon_after) = (self.claims, self.abandon_after);
        let sessions = Mutex::new(SessionTable::new(self.max_paused));
        Runner(Arc::new(RunnerCore {
            agent,
            author: OnceLock::new(),
            store,
            app,
            schema,
            busy,
            max_waiting,
            ids,
            clock,
            observers,
            claims,
            abandon_after,
            shutdown: RunnerShutdown::default(),
            changes: ChangeFeed::default(),
            heartbeat: HeartbeatRegistry::default(),
            backlog: BacklogCounters::default(),
            sessions,
        }))
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner")
            .field("app", &self.0.app)
            .field("agent", &self.0.agent)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RunnerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunnerBuilder")
            .field("app", &self.app)
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}
