//! The data that all sessions of a runner share.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepfold_agent_loop::Ids;
use stepfold_session_scopes::{AnyStore, AppId, SessionError, SessionId, SessionKey, UserId};

use crate::budget::{BudgetPolicies, RefusedRequests};
use crate::core::heartbeat_registry::HeartbeatRegistry;
use crate::core::load::BacklogCounters;
use crate::core::observers::ObserverFactories;
use crate::core::programs::{AgentProgram, OlderAgents};
use crate::core::redaction::SessionRedaction;
use crate::core::shutdown::RunnerShutdown;
use crate::core::watchers::ChangeFeed;
use crate::error::RunnerError;
use crate::ports::WallClock;
use crate::retention::{RetentionCounters, RetentionPolicy};
use crate::session::busy::WhenBusy;
use crate::session::claim::ClaimSettings;
use crate::session::table::SessionTable;
use crate::upgrade::WhenChanged;

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
    /// The agent of today: that of every new run.
    pub(crate) program: Arc<AgentProgram>,
    pub(crate) older: OlderAgents,
    pub(crate) store: AnyStore,
    pub(crate) app: AppId,
    pub(crate) busy: WhenBusy,
    pub(crate) max_waiting: usize,
    pub(crate) ids: Arc<dyn Ids>,
    pub(crate) clock: Arc<dyn WallClock>,
    pub(crate) observers: ObserverFactories,
    pub(crate) claims: ClaimSettings,
    /// The number of equal failures after which a run is abandoned; never if `None`.
    pub(crate) abandon_after: Option<u32>,
    pub(crate) when_changed: WhenChanged,
    pub(crate) budgets: BudgetPolicies,
    /// The requests that did not fit into one.
    pub(crate) refused: RefusedRequests,
    /// Replaces sensitive parts of content before it is stored.
    pub(crate) redaction: Option<SessionRedaction>,
    pub(crate) retention: Option<RetentionPolicy>,
    /// Deletions and failures of retention.
    pub(crate) retained: RetentionCounters,
    pub(crate) shutdown: RunnerShutdown,
    pub(crate) changes: ChangeFeed,
    /// The heartbeat of the claims that are held.
    pub(crate) heartbeat: HeartbeatRegistry,
    /// The figures of the last poll of a recovery.
    pub(crate) backlog: BacklogCounters,
    /// The sessions in use, so that each has one running invocation at a time.
    pub(crate) sessions: Mutex<SessionTable>,
}

impl RunnerCore {
    pub(crate) fn sessions(&self) -> MutexGuard<'_, SessionTable> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what this process knows of a session that it does not run.
    pub(crate) fn forget(&self, key: &SessionKey) {
        let local = self.sessions().all().into_iter().find(|local| local.key == *key);
        if let Some(local) = local
            && let Ok(mut cache) = Arc::clone(&local.cache).try_lock_owned()
        {
            (cache.history, cache.stopped) = (None, None);
        }
    }
}

impl Runner {
    /// An error of the store that is about no session.
    pub(crate) fn failed(&self, error: SessionError) -> RunnerError {
        let key = SessionKey { app: self.0.app.clone(), user: no_user(), id: no_session() };
        RunnerError::store(&key, error)
    }
}

/// Stands for a user in an error that is about none.
fn no_user() -> UserId {
    UserId::new("-").unwrap_or_else(|_| unreachable!("a dash is a valid id"))
}

fn no_session() -> SessionId {
    SessionId::new("-").unwrap_or_else(|_| unreachable!("a dash is a valid id"))
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner")
            .field("app", &self.0.app)
            .field("agent", &self.0.program.agent)
            .finish_non_exhaustive()
    }
}
