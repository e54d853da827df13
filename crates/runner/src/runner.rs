//! The runner: one agent, one store, any number of sessions.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::Value;
use stepfold_agent_loop::{Agent, Ids, Observer};
use stepfold_session_scopes::{
    AnyStore, AppId, CreateSession, ErrorKind, EventRange, GetSession, SessionError, SessionId, SessionKey,
    SessionSchema, SessionStore, UserId,
};

use crate::error::RunnerError;
use crate::handle::SessionHandle;
use crate::observers::Observers;
use crate::ports::{ShortIds, SystemClock, WallClock};
use crate::slot::Slot;

/// What happens to a message for a session whose agent is at work.
///
/// It is never lost: it is refused with an error, or it is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Busy {
    /// It is refused.
    Refuse,
    /// It waits until the work is done; at most [`max_waiting`](RunnerBuilder::max_waiting) do.
    #[default]
    Wait,
    /// The work is cancelled, and the message is next.
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
    /// The sessions that somebody holds, so that each is worked on by one invocation at a time.
    slots: Mutex<Slots>,
}

/// How many sessions are remembered that nobody holds.
const REMEMBERED: usize = 256;

#[derive(Default)]
struct Slots {
    held: HashMap<SessionKey, Weak<Slot>>,
    /// Those that were asked for last: who asks again finds what was read, and a pause with its `temp:` values.
    last: VecDeque<Arc<Slot>>,
}

impl Slots {
    fn get(&mut self, key: SessionKey) -> Arc<Slot> {
        let known = self.held.get(&key).and_then(Weak::upgrade);
        let slot = known.unwrap_or_else(|| Arc::new(Slot::new(key.clone())));
        self.last.retain(|other| !Arc::ptr_eq(other, &slot));
        self.last.push_back(Arc::clone(&slot));
        if self.last.len() > REMEMBERED {
            self.last.pop_front();
            self.held.retain(|_, slot| slot.strong_count() > 0);
        }
        self.held.insert(key, Arc::downgrade(&slot));
        slot
    }
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

    /// The store: for whatever the runner does not do, such as listing, forking and deleting sessions.
    pub fn store(&self) -> &AnyStore {
        &self.0.store
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
        let mut slots = self.0.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.get(key);
        SessionHandle::new(self.clone(), slot)
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

    /// How many messages may wait for one session; 16 unless said.
    pub fn max_waiting(mut self, messages: usize) -> Self {
        self.max_waiting = messages;
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
        let RunnerBuilder { agent, store, app, schema, busy, max_waiting, ids, clock, observers } = self;
        let slots = Mutex::default();
        Runner(Arc::new(Inner { agent, store, app, schema, busy, max_waiting, ids, clock, observers, slots }))
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
