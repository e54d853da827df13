//! The builder of a runner.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stepfold_agent_loop::{Agent, Ids, ModelView, Observer, Redact};
use stepfold_session_scopes::{
    AnyStore, AppId, SessionError, SessionKey, SessionSchema, SessionStore, WorkerId,
};
use stepfold_state_core::chat::{PriceSource, Prices};
use stepfold_trim::TokenCounter;

use crate::budget::{Budget, BudgetPolicies, RefusedRequests, SharedRateLimit};
use crate::core::heartbeat_registry::HeartbeatRegistry;
use crate::core::load::BacklogCounters;
use crate::core::observers::ObserverFactories;
use crate::core::process;
use crate::core::programs::{AgentProgram, OlderAgents};
use crate::core::redaction::SessionRedaction;
use crate::core::runner_core::{Runner, RunnerCore};
use crate::core::shutdown::RunnerShutdown;
use crate::core::watchers::ChangeFeed;
use crate::ports::{AgentArchive, EarlierAgent, ShortIds, SystemClock, WallClock};
use crate::retention::{RetentionCounters, RetentionPolicy};
use crate::session::busy::WhenBusy;
use crate::session::claim::{ClaimSettings, DeathCheck, WhenClaimed};
use crate::session::table::SessionTable;
use crate::upgrade::WhenChanged;

/// Builds a [`Runner`].
#[must_use = "a builder does nothing until it is built"]
pub struct RunnerBuilder {
    agent: Agent,
    store: AnyStore,
    app: AppId,
    schema: SessionSchema,
    busy: WhenBusy,
    max_waiting: usize,
    ids: Arc<dyn Ids>,
    clock: Arc<dyn WallClock>,
    observers: ObserverFactories,
    claims: ClaimSettings,
    max_paused: usize,
    abandon_after: Option<u32>,
    when_changed: WhenChanged,
    older: OlderAgents,
    budgets: BudgetPolicies,
    redaction: Option<SessionRedaction>,
    retention: Option<RetentionPolicy>,
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
            busy: WhenBusy::default(),
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
            when_changed: WhenChanged::default(),
            older: OlderAgents::default(),
            budgets: BudgetPolicies::default(),
            redaction: None,
            retention: None,
        }
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
    pub fn when_busy(mut self, busy: WhenBusy) -> Self {
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

    /// Sets the handling of unfinished runs of an agent that has changed since; [compatible](WhenChanged::Compatible) by
    /// default: a run continues with the new agent if nothing that is open in it depends on the change.
    pub fn when_changed(mut self, when: WhenChanged) -> Self {
        self.when_changed = when;
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

    /// Registers an agent of an earlier version of the program: runs that began with it continue with it, under
    /// [`WhenChanged::Pinned`].
    pub fn also(mut self, agent: impl Into<EarlierAgent>) -> Self {
        self.older.register(agent.into());
        self
    }

    /// Sets the archive of the agents of earlier versions, for [`WhenChanged::Pinned`]. Registered agents come first.
    ///
    /// Agents are [kept](AgentArchive::keep) under every policy, so that runs can be pinned later.
    pub fn archive(mut self, archive: impl AgentArchive + 'static) -> Self {
        self.older.set_archive(Arc::new(archive));
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

    /// Adds a [budget](Budget) for requests to models. Several hold at once: a request is reserved in all of them, or not
    /// sent.
    ///
    /// A store [without budgets](stepfold_session_scopes::SessionStore::reserve) admits no request then.
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budgets.budgets.push(budget);
        self
    }

    /// Adds a [rate limit](SharedRateLimit) that all processes on the store share. Several hold at once.
    pub fn rate_limit(mut self, limit: SharedRateLimit) -> Self {
        self.budgets.rate_limits.push(limit);
        self
    }

    /// Sets the prices of models, for budgets in dollars and for the list of spend; empty by default.
    pub fn prices(mut self, prices: Prices) -> Self {
        self.budgets.prices = prices;
        self
    }

    /// Sets the source of prices for models that the [table](RunnerBuilder::prices) does not have, such as that of the crate
    /// `genai-prices`; none by default.
    pub fn default_prices(mut self, source: impl PriceSource + 'static) -> Self {
        self.budgets.source = Some(Arc::new(source));
        self
    }

    /// Sets the counter of input tokens, for budgets; an [approximation](stepfold_trim::ApproximateTokens) by default.
    pub fn count_tokens_with(mut self, counter: impl TokenCounter + 'static) -> Self {
        self.budgets.counter = Arc::new(counter);
        self
    }

    /// Replaces sensitive parts of all content before it is stored: of messages, arguments, results, written values, questions, answers
    /// and failures. Observers and subscribers see it as it is stored.
    ///
    /// The functions of tools get the arguments that the model has written, and [`ModelView`] says what the model is shown of the current
    /// run. Both last as long as the run stays in memory: after a restart the model is shown what is stored, and a call of
    /// whose arguments something was replaced does not run. It is answered to the model as lost. Values of the state are replaced in memory
    /// as well, except those of `temp:` keys.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, ModelView, Redaction};
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// let agent = Agent::builder(Script::parse("assistant: noted")?).build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new());
    /// let runner = runner.redact(Redaction::all(), ModelView::Keep).build();
    /// let outcome = runner.session("ada", "s1").await?.run("my card is 4111 1111 1111 1111").await?;
    /// assert_eq!(outcome.transcript().to_string(), "user:      my card is [card]\nassistant: noted\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn redact(mut self, redact: impl Redact + 'static, view: ModelView) -> Self {
        self.redaction = Some(SessionRedaction { redact: Arc::new(redact), view });
        self
    }

    /// Sets the retention of the application, which [`Runner::run_retention`] and [`Runner::retain`] apply. By default
    /// everything is kept.
    pub fn retention(mut self, policy: RetentionPolicy) -> Self {
        self.retention = Some(policy);
        self
    }

    /// Builds the runner.
    pub fn build(self) -> Runner {
        let RunnerBuilder { agent, store, app, schema, busy, max_waiting, ids, clock, observers, .. } = self;
        let (claims, abandon_after, when_changed) = (self.claims, self.abandon_after, self.when_changed);
        let (budgets, redaction, retention) = (self.budgets, self.redaction, self.retention);
        let sessions = Mutex::new(SessionTable::new(self.max_paused));
        Runner(Arc::new(RunnerCore {
            program: AgentProgram::new(agent, schema),
            older: self.older,
            store,
            app,
            busy,
            max_waiting,
            ids,
            clock,
            observers,
            claims,
            abandon_after,
            when_changed,
            budgets,
            refused: RefusedRequests::default(),
            redaction,
            retention,
            retained: RetentionCounters::default(),
            shutdown: RunnerShutdown::default(),
            changes: ChangeFeed::default(),
            heartbeat: HeartbeatRegistry::default(),
            backlog: BacklogCounters::default(),
            sessions,
        }))
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
