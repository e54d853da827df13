//! Budgets as they stand: their sums and limits, and raises.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use stepfold_agent_loop::{ExhaustedBudget, MeterError};
use stepfold_session_scopes::{
    Author, BudgetBalance, BudgetId, BudgetRaise, InvocationId, ListRaises, RaiseBudgets, ReadBudgets,
    SessionId, SessionKey, SessionStore as _, Timestamp, UserId,
};

use super::policy::{Budget, BudgetCounter, BudgetScope, Spender};
use crate::core::runner_core::Runner;
use crate::error::{RunnerError, RunnerErrorKind};

/// A user, a session and a run, as far as they are given: it names the counters of budgets that each of them has.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BudgetSpender {
    /// The user. Without one, only the budgets of an app or a group are meant.
    pub user: Option<UserId>,
    /// The session of the user.
    pub session: Option<SessionId>,
    /// The run of the session.
    pub run: Option<InvocationId>,
}

impl BudgetSpender {
    /// No user: only the budgets of an app or a group.
    pub const fn new() -> Self {
        BudgetSpender { user: None, session: None, run: None }
    }

    /// Sets the user.
    #[must_use]
    pub fn user(mut self, user: UserId) -> Self {
        self.user = Some(user);
        self
    }

    /// Sets the session of the user.
    #[must_use]
    pub fn session(mut self, session: SessionId) -> Self {
        self.session = Some(session);
        self
    }

    /// Sets the run of the session.
    #[must_use]
    pub fn run(mut self, run: InvocationId) -> Self {
        self.run = Some(run);
        self
    }

    fn in_app<'a>(&'a self, app: &'a str) -> Spender<'a> {
        Spender {
            app,
            user: self.user.as_ref().map(UserId::as_str),
            session: self.session.as_ref().map(SessionId::as_str),
            run: self.run.as_ref().map(InvocationId::as_str),
        }
    }
}

/// The sums of a budget in its current window.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BudgetStatus {
    /// The budget, with its own limit.
    pub budget: Budget,
    /// The sharers of the counter: `user ada`, `app shop`.
    pub shared_by: String,
    /// The settled amount, in the budget's unit.
    pub spent: u64,
    /// The amount that is reserved for requests under way.
    pub reserved: u64,
    /// The limit that holds: the budget's, or a higher one to which it was [raised](Runner::raise_budget).
    pub limit: u64,
    /// The end of the window, or of the current part of a rolling one; `None` for a budget without an end.
    pub until: Option<Timestamp>,
}

/// The requests that did not fit into a budget, by its name.
#[derive(Debug, Default)]
pub(crate) struct RefusedRequests(Mutex<BTreeMap<Arc<str>, u64>>);

impl RefusedRequests {
    pub(super) fn add(&self, budget: &Arc<str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(Arc::clone(budget)).or_default() += 1;
    }
}

impl Runner {
    /// The budgets of a spender as they stand now: those of the app and of groups, and those of the user, the session and the
    /// run that are given. Rate limits are not among them.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Store`], also of a store without budgets.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_runner::{Budget, BudgetScope, BudgetSpender, Runner};
    /// use stepfold_session_scopes::{Author, MemoryStore, UserId};
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let agent = Agent::builder(model).build()?;
    /// let budget = Budget::requests("trial", 2).of(BudgetScope::User);
    /// let runner = Runner::builder(agent, MemoryStore::new()).budget(budget).build();
    /// runner.session("ada", "s1").await?.run("which area has most stalls?").await?;
    ///
    /// let of_ada = BudgetSpender::new().user(UserId::new("ada")?);
    /// let found = runner.budgets(&of_ada).await?;
    /// assert_eq!((found[0].shared_by.as_str(), found[0].spent, found[0].limit), ("user ada", 1, 2));
    /// // Ada may make ten requests, in every process on the store.
    /// assert_eq!(runner.raise_budget(&of_ada, "trial", 10, &Author::new("carol")?).await?.limit, 10);
    /// assert_eq!(runner.budgets(&of_ada).await?[0].limit, 10);
    /// let raised = &runner.budget_raises(None).await?[0];
    /// assert_eq!((raised.by.as_str(), raised.from, raised.to), ("carol", 2, 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn budgets(&self, of: &BudgetSpender) -> Result<Vec<BudgetStatus>, RunnerError> {
        let (spender, at) = (of.in_app(self.0.app.as_str()), self.0.clock.now());
        let mut counters = Vec::new();
        for budget in &self.0.budgets.budgets {
            let counter = budget.counter(spender, at).map_err(|error| outside(budget, error))?;
            counters.extend(counter.map(|counter| (budget, counter)));
        }
        if counters.is_empty() {
            return Ok(Vec::new());
        }
        let ids = counters.iter().flat_map(|(_, counter)| parts(counter)).cloned();
        let read = self.store().balances(ReadBudgets::new(ids)).await.map_err(|error| self.failed(error))?;
        Ok(counters.into_iter().map(|(budget, counter)| status(budget, spender, &counter, &read)).collect())
    }

    /// Whether the limit of the budget for which a run of a session waits is higher than the one that its question names.
    pub(crate) async fn has_higher_limit(
        &self,
        question: &ExhaustedBudget,
        key: &SessionKey,
        run: &InvocationId,
    ) -> bool {
        let spender = BudgetSpender::new().user(key.user.clone()).session(key.id.clone()).run(run.clone());
        let Ok(budgets) = self.budgets(&spender).await else { return false };
        budgets.iter().any(|status| {
            *status.budget.name == *question.budget
                && status.shared_by == question.scope
                && status.budget.unit == question.unit
                && status.limit > question.limit
        })
    }

    /// Raises the limit of a budget, in its unit, for its current window: in every process on the store, from the next request
    /// on. The next window has the budget's own limit; of a rolling window of hours, the raise ends after as many. Runs that
    /// wait for it are continued by a [recovery](Runner::recover) in any process with this budget, or when they are
    /// [resumed](crate::SessionHandle::resume), or by the next message. Raising it to the limit that it was raised to before
    /// changes nothing. Who raised it is [recorded](Runner::budget_raises).
    ///
    /// It changes nothing but the limit: a fork or an export of a session does not have it, and a rewind does not take it
    /// back. It is erased with its user.
    ///
    /// # Errors
    /// [`RunnerErrorKind::UnknownBudget`] if there is none of this name, or its counter is that of a user, a session or a run
    /// that is not given; [`RunnerErrorKind::NotRaised`] if its limit is higher; [`RunnerErrorKind::Store`].
    pub async fn raise_budget(
        &self,
        of: &BudgetSpender,
        name: &str,
        limit: u64,
        by: &Author,
    ) -> Result<BudgetStatus, RunnerError> {
        let mut known = self.budgets(of).await?;
        let Some(place) = known.iter().position(|status| *status.budget.name == *name) else {
            let available = known.iter().map(|status| status.budget.name.to_string()).collect();
            let kind = RunnerErrorKind::UnknownBudget { budget: name.to_owned(), available };
            return Err(RunnerError::new(None, kind));
        };
        let status = known.swap_remove(place);
        if limit < status.limit {
            let BudgetStatus { budget, limit: current, .. } = status;
            let (limit, current) = (budget.unit.format(limit), budget.unit.format(current));
            let kind = RunnerErrorKind::NotRaised { budget: name.to_owned(), limit, current };
            return Err(RunnerError::new(None, kind));
        }
        let (spender, at) = (of.in_app(self.0.app.as_str()), self.0.clock.now());
        let failed = |error| outside(&status.budget, error);
        let counter = status.budget.counter(spender, at).map_err(failed)?;
        let raised = status.budget.raised(spender, at).map_err(failed)?;
        let raise =
            RaiseBudgets::new(raised, limit).kept_until(counter.and_then(|counter| counter.kept_until));
        let limit = raise.limit;
        let is_shared = matches!(status.budget.scope, BudgetScope::App | BudgetScope::Group(_));
        let record = BudgetRaise::new(self.0.app.clone(), Arc::clone(&status.budget.name), by.clone(), at)
            .of_user(of.user.clone().filter(|_| !is_shared))
            .shared_by(status.shared_by.as_str(), status.budget.unit.as_str())
            .limits(status.limit, limit);
        let raise = raise.recorded(record);
        self.store().raise_budgets(raise).await.map_err(|error| self.failed(error))?;
        Ok(BudgetStatus { limit, ..status })
    }

    /// The raises of budgets through this app, newest first, at most 1,000: of a user's budgets, or of all. The record of a
    /// raise goes with an erasure of the budget's user.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Store`], also of a store without budgets.
    pub async fn budget_raises(&self, of: Option<&UserId>) -> Result<Vec<BudgetRaise>, RunnerError> {
        let list = ListRaises::new().of_app(self.0.app.clone());
        let list = match of {
            Some(user) => list.of_user(user.clone()),
            None => list,
        };
        self.store().raises(list).await.map_err(|error| self.failed(error))
    }

    /// The requests that did not fit into a budget since the runner was built, by the budget's name: their runs have paused or
    /// failed. Budgets that took all are missing.
    pub fn refused_requests(&self) -> BTreeMap<Arc<str>, u64> {
        self.0.refused.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The counter and the other parts of its window.
fn parts(counter: &BudgetCounter) -> impl Iterator<Item = &BudgetId> {
    let beside = counter.rolling.iter().flat_map(|(_, beside)| beside);
    [&counter.id].into_iter().chain(beside)
}

fn status(
    budget: &Budget,
    spender: Spender<'_>,
    counter: &BudgetCounter,
    read: &[BudgetBalance],
) -> BudgetStatus {
    let found = |id: &BudgetId| read.iter().find(|balance| balance.budget == *id);
    let sum = |of: fn(&BudgetBalance) -> u64| parts(counter).filter_map(found).map(of).sum();
    BudgetStatus {
        budget: budget.clone(),
        shared_by: budget.shared_by(spender),
        spent: sum(|balance| balance.settled),
        reserved: sum(|balance| balance.reserved),
        limit: found(&counter.id).map_or(budget.limit, |balance| balance.limit(budget.limit)),
        until: counter.until,
    }
}

/// The error of a window or a name that does not exist.
fn outside(budget: &Budget, error: MeterError) -> RunnerError {
    let reason = match error {
        MeterError::Exhausted(error) => error.to_string(),
        MeterError::Failed(error) => error.to_string(),
        _ => "unknown error".to_owned(),
    };
    RunnerError::new(None, RunnerErrorKind::InvalidBudget { budget: budget.name.to_string(), reason })
}
