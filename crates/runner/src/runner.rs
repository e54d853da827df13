//! The runner: one agent, one store, any number of sessions.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use stepfold_agent_loop::{Agent, Ids, Observer};
use stepfold_session_scopes::{
    AnyStore, AppId, Claim, CreateSession, ErrorKind, EventRange, GetSession, Session, SessionError,
    SessionId, SessionKey, SessionSchema, SessionStore, UserId, WorkerId,
};

use crate::claim::{Claims, IsDead, WhenClaimed};
use crate::closing::Closing;
use crate::error::RunnerError;
use crate::handle::SessionHandle;
use crate::observers::Observers;
use crate::ports::{ShortIds, SystemClock, WallClock};
use crate::process;
use crate::slots::Slots;

/// What happens to a message for a session whose agent is at work.
///
/// It is never lost: it is refused with an error, or it is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Busy {
    /// It is refused, if an invocation of this runner is at work. While another worker is, [`WhenClaimed`] decides.
    Refuse,
    /// It waits until the work is done; at most [`max_waiting`](RunnerBuilder::max_waiting) do.
    #[default]
    Wait,
    /// The work is cancelled, and the message is next. A message that still waits for another worker is
    /// [withdrawn](crate::Invocation::cancel).
    Interrupt,
    /// It joins the work before the next request to the model. If the work is done by then, it is next.
    Steer,
}

/// Runs an agent in the sessions of a store.
///
/// Every commit of the loop is stored before anything else happens. So a process may die at any moment, and
/// another one goes on where it stopped. Cloning is cheap.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// # use stepfold_agent_loop::test_kit::Script;
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
/// // The next turn goes on with the conversation; so would one in another process.
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
pub struct Runner(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) agent: Agent,
    pub(crate) store: AnyStore,
    pub(crate) app: AppId,
    pub(crate) schema: SessionSchema,
    pub(crate) busy: Busy,
    pub(crate) max_waiting: usize,
    pub(crate) ids: Arc<dyn Ids>,
    pub(crate) clock: Arc<dyn WallClock>,
    pub(crate) observers: Observers,
    pub(crate) claims: Claims,
    /// After so many equal failures a run is given up; never, if none.
    pub(crate) abandon_after: Option<u32>,
    pub(crate) closing: Closing,
    /// The sessions that somebody holds, so that each is worked on by one invocation at a time.
    slots: Mutex<Slots>,
}

/// Puts a [`Runner`] together.
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
    observers: Observers,
    claims: Claims,
    max_paused: usize,
    abandon_after: Option<u32>,
}

impl Runner {
    /// Starts a runner of this agent, or graph, on this store. The application is called as the agent is, unless
    /// [said](RunnerBuilder::app).
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
            observers: Observers::default(),
            claims: Claims {
                worker: WorkerId::new(ShortIds.next())
                    .unwrap_or_else(|_| unreachable!("letters and digits are a valid id")),
                is_dead: IsDead::default(),
                duration: Duration::from_secs(30),
                when_claimed: WhenClaimed::default(),
                leaves_inbox: false,
            },
            max_paused: 4_096,
            abandon_after: None,
        }
    }

    /// The session of a user; it is made if there is none.
    ///
    /// # Errors
    /// [`RunnerError::Store`] for ids of a form that no store accepts, and when the store fails.
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
                    // Another worker was as fast.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
                    made => made.map(drop),
                }
            }
            found => found.map(drop),
        };
        made.map_err(|error| RunnerError::store(&key, error))?;
        Ok(self.handle(key))
    }

    /// A new session, with values to begin with: an object by key, of any scope.
    ///
    /// # Errors
    /// [`RunnerError::Store`] when there is such a session, when a value does not fit, and when the store
    /// fails.
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
        Ok(self.handle(key))
    }

    /// Shuts the runner down, for all its clones and sessions: an orderly end of a process.
    ///
    /// From now on nothing begins: what is asked for is refused with [`ShutDown`](RunnerError::ShutDown), and messages
    /// that wait in an inbox stay there. What is at work has the grace period to come to its end; then it is stopped
    /// where it is, as a crash would, but its claim is released, so that another process can resume it at once. Gives
    /// whether everything came to its end by itself. Whoever wants runs to be cancelled cancels them before.
    ///
    /// Without it, a process that ends takes what its workers are doing with it, also what they have begun by themselves:
    /// a message of another process that was waiting in the inbox.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// # use stepfold_agent_loop::test_kit::Script;
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
        self.0.closing.close(grace).await
    }

    /// The store: for whatever the runner does not do, such as listing and forking sessions.
    pub fn store(&self) -> &AnyStore {
        &self.0.store
    }

    /// The claim of another worker that may be at work in a session: as the session was read, and unless the worker is
    /// [known to be dead](RunnerBuilder::worker_is_dead).
    pub fn other_worker<'a>(&self, session: &'a Session) -> Option<&'a Claim> {
        self.0.claims.of_other(session)
    }

    /// The agent.
    pub fn agent(&self) -> &Agent {
        &self.0.agent
    }

    /// The schema that sessions are opened with.
    pub fn schema(&self) -> &SessionSchema {
        &self.0.schema
    }

    /// The key of a session of the runner's application.
    ///
    /// # Errors
    /// [`RunnerError::Store`] for ids of a form that no store accepts.
    pub fn key(&self, user: impl Into<Arc<str>>, id: impl Into<Arc<str>>) -> Result<SessionKey, RunnerError> {
        let app = self.0.app.clone();
        let unknown = |app: &AppId| SessionKey {
            app: app.clone(),
            user: UserId::new("-").unwrap_or_else(|_| unreachable!("a dash is a valid id")),
            id: SessionId::new("-").unwrap_or_else(|_| unreachable!("a dash is a valid id")),
        };
        let failed = |error: SessionError| RunnerError::store(&unknown(&app), error);
        let user = UserId::new(user).map_err(failed)?;
        let id = SessionId::new(id).map_err(failed)?;
        Ok(SessionKey { app, user, id })
    }

    pub(crate) fn handle(&self, key: SessionKey) -> SessionHandle {
        let slot = self.0.slots().get(key);
        SessionHandle::new(self.clone(), slot)
    }
}

impl Inner {
    pub(crate) fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunnerBuilder {
    /// The name of the application: the first part of every session's key.
    ///
    /// # Errors
    /// [`SessionError::InvalidId`].
    pub fn app(mut self, name: impl Into<Arc<str>>) -> Result<Self, SessionError> {
        self.app = AppId::new(name)?;
        Ok(self)
    }

    /// The schema that sessions are opened with, with migrations for values that were stored under an earlier
    /// one; the agent's unless said. It has to be the agent's but for those.
    pub fn schema(mut self, schema: SessionSchema) -> Self {
        self.schema = schema;
        self
    }

    /// What happens to a message for a session that is busy.
    pub fn when_busy(mut self, busy: Busy) -> Self {
        self.busy = busy;
        self
    }

    /// How many messages may wait for one session in this process; 16 by default. Messages that join a run that is at work
    /// do not count; the store bounds its inbox.
    pub fn max_waiting(mut self, messages: usize) -> Self {
        self.max_waiting = messages;
        self
    }

    /// The name of this worker in the [claims](WhenClaimed) on sessions; a random one by default.
    ///
    /// A fixed name is for a worker of which there is exactly one, and that is started again under it, such as a member of
    /// a stateful set: it goes on at once with the sessions that it left, without waiting until its claims have expired.
    ///
    /// **It must be unique among the processes that are alive.** Two with the same name count as one worker: each takes
    /// over what the other one is doing, as if it had left that itself, so that calls in flight run again or have an
    /// unknown outcome. The store cannot tell them apart. Several processes of one configuration need something that
    /// differs in the name, such as the number of the replica; or the random name.
    ///
    /// # Examples
    /// ```
    /// # use stepfold_agent_loop::test_kit::Script;
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

    /// Names this worker after its process, and takes over at once what another process left that was killed, without
    /// waiting until its claim has expired: where both run on the same host, for the same user and in the same PID
    /// namespace, and named their workers so. Other systems than Linux cannot tell; there a claim has to expire.
    ///
    /// For programs that people start: one that is stopped (`SIGSTOP`) or blocked is alive, and waited for.
    ///
    /// # Examples
    /// ```
    /// # use stepfold_agent_loop::test_kit::Script;
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

    /// How to tell that another worker is dead, so that what it left is taken over at once; by default, nobody can. It
    /// has to be sure: a worker that is alive loses what it does.
    pub fn worker_is_dead(mut self, is_dead: impl Fn(&WorkerId) -> bool + Send + Sync + 'static) -> Self {
        self.claims.is_dead = IsDead::new(is_dead);
        self
    }

    /// How long a claim on a session holds unless it is renewed; 30 seconds by default. While a run is at work,
    /// a heartbeat renews it each third of this time. So it is the time after which others may take over what a
    /// process left that died.
    pub fn claim_for(mut self, duration: Duration) -> Self {
        self.claims.duration = duration;
        self
    }

    /// What happens when another worker holds the claim on a session; by default, this one
    /// [waits](WhenClaimed::default).
    pub fn when_claimed(mut self, when: WhenClaimed) -> Self {
        self.claims.when_claimed = when;
        self
    }

    /// Leaves to other workers the messages that they have stored for a session meanwhile: after its own invocations a
    /// worker of this runner gives the claim up. By default it goes on with what is in the inbox, whoever stored it.
    ///
    /// For processes that end after an invocation, or that have another model or other tools than the senders of those
    /// messages. Messages that were stored before one of its own are taken in any case, for the order.
    pub fn leave_inbox(mut self) -> Self {
        self.claims.leaves_inbox = true;
        self
    }

    /// How many sessions with a run that waits and has `temp:` values are kept in memory, beyond those that
    /// somebody holds; 4,096 by default. When more wait, the oldest lose their `temp:` values, and nothing else;
    /// whoever resumes one is told which: [`Outcome::missing_temp`](stepfold_agent_loop::Outcome::missing_temp).
    pub fn max_paused(mut self, sessions: usize) -> Self {
        self.max_paused = sessions;
        self
    }

    /// Gives an interrupted run up by itself, when it has failed this many times in the same way and a message waits
    /// for it; never by default. The record of the session counts: failures in a row without any progress between, in
    /// whatever process.
    pub fn abandon_after(mut self, failures: u32) -> Self {
        self.abandon_after = Some(failures.max(1));
        self
    }

    /// Where the names of invocations come from; random ones ([`ShortIds`]) unless said.
    pub fn ids(mut self, ids: impl Ids + 'static) -> Self {
        self.ids = Arc::new(ids);
        self
    }

    /// What time it is; the system's unless said.
    pub fn clock(mut self, clock: impl WallClock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Has every invocation observed, after it was stored and published: `make` gives an observer for each, such as
    /// [`Traces`](stepfold_agent_loop::Traces). Observers added before are told first. One that fails stops the run,
    /// which can be resumed; nothing that was stored is lost.
    ///
    /// # Examples
    /// ```
    /// # use stepfold_agent_loop::test_kit::Script;
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

    /// The runner.
    pub fn build(self) -> Runner {
        let RunnerBuilder { agent, store, app, schema, busy, max_waiting, ids, clock, observers, .. } = self;
        let (claims, abandon_after) = (self.claims, self.abandon_after);
        let slots = Mutex::new(Slots::new(self.max_paused));
        Runner(Arc::new(Inner {
            agent,
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
            closing: Closing::default(),
            slots,
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
