//! Spend, added up by session, user, model or day.

use std::collections::BTreeMap;

use stepfold_session_scopes::{
    ListSpend, SessionId, SessionStore as _, SpendRecord, SpendState, Timestamp, UserId,
};
use stepfold_state_core::chat::Cost;

use crate::core::runner_core::Runner;
use crate::error::RunnerError;

/// The groups by which requests are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SpendGroup {
    /// By session, with its user: `ada/s1`.
    #[default]
    Session,
    /// By user.
    User,
    /// By the model that answered.
    Model,
    /// By day, in UTC: `2026-11-28`.
    Day,
}

impl SpendGroup {
    /// The name: `session`, `user`, `model`, `day`.
    pub const fn as_str(self) -> &'static str {
        match self {
            SpendGroup::Session => "session",
            SpendGroup::User => "user",
            SpendGroup::Model => "model",
            SpendGroup::Day => "day",
        }
    }

    fn of(self, record: &SpendRecord) -> String {
        match self {
            SpendGroup::Session => format!("{}/{}", record.key.user, record.key.id),
            SpendGroup::User => record.key.user.to_string(),
            SpendGroup::Model => record.model.to_string(),
            // The day of the time in UTC, as it prints.
            SpendGroup::Day => record.at.to_string().chars().take(10).collect(),
        }
    }
}

/// The requests of a [report](Runner::spend).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SpendQuery {
    /// The groups.
    pub by: SpendGroup,
    /// The user; all users if `None`.
    pub user: Option<UserId>,
    /// The id of the session; all sessions if `None`.
    pub session: Option<SessionId>,
    /// The time of the first request; of all times if `None`.
    pub since: Option<Timestamp>,
    /// The time after the last request; up to now if `None`.
    pub until: Option<Timestamp>,
}

impl SpendQuery {
    /// All requests of the app.
    pub const fn by(by: SpendGroup) -> Self {
        SpendQuery { by, user: None, session: None, since: None, until: None }
    }

    /// Restricts it to a user's sessions.
    #[must_use]
    pub fn of_user(mut self, user: UserId) -> Self {
        self.user = Some(user);
        self
    }

    /// Restricts it to sessions with this id.
    #[must_use]
    pub fn of_session(mut self, session: SessionId) -> Self {
        self.session = Some(session);
        self
    }

    /// Restricts it to requests from this time on.
    #[must_use]
    pub const fn since(mut self, at: Timestamp) -> Self {
        self.since = Some(at);
        self
    }

    /// Restricts it to requests before this time.
    #[must_use]
    pub const fn until(mut self, at: Timestamp) -> Self {
        self.until = Some(at);
        self
    }
}

/// The sums of some requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpendSum {
    /// Requests, those under way included.
    pub requests: u64,
    /// Requests that count as their estimates: under way, lost, or without a reported usage.
    pub estimated: u64,
    /// Tokens of input.
    pub input_tokens: u64,
    /// Tokens of output.
    pub output_tokens: u64,
    /// The cost of those with a price, at the prices of then.
    pub cost: Cost,
    /// Requests whose price was unknown.
    pub unpriced: u64,
}

impl SpendSum {
    fn add(&mut self, record: &SpendRecord) {
        let amounts = record.amounts;
        self.requests += 1;
        self.estimated += u64::from(record.state != SpendState::Settled);
        self.input_tokens = self.input_tokens.saturating_add(amounts.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(amounts.output_tokens);
        match amounts.nanodollars {
            Some(nanodollars) => self.cost = self.cost + Cost::from_nanodollars(nanodollars),
            None => self.unpriced += 1,
        }
    }
}

/// Spend by group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpendReport {
    /// The sums, in the order of the groups' names.
    pub groups: BTreeMap<String, SpendSum>,
    /// The sum of all.
    pub total: SpendSum,
}

impl SpendReport {
    fn add(&mut self, by: SpendGroup, record: &SpendRecord) {
        self.groups.entry(by.of(record)).or_default().add(record);
        self.total.add(record);
    }
}

impl Runner {
    /// Adds up the requests of the app whose amounts were reserved, those of deleted sessions included. Empty for a runner
    /// without budgets. It reads the whole list, page by page, and keeps the sums only.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Store`](crate::RunnerErrorKind::Store), also of a store without budgets.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_runner::{Budget, Runner, SpendGroup, SpendQuery};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let agent = Agent::builder(model).build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new()).budget(Budget::requests("all", 100)).build();
    /// runner.session("ada", "s1").await?.run("which area has most stalls?").await?;
    ///
    /// let report = runner.spend(SpendQuery::by(SpendGroup::User)).await?;
    /// assert_eq!((report.groups["ada"].requests, report.total.requests), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn spend(&self, query: SpendQuery) -> Result<SpendReport, RunnerError> {
        let SpendQuery { by, user, session, since, until } = query;
        let mut request = ListSpend::new(self.0.app.clone());
        request.user = user;
        request.since = since.unwrap_or(request.since);
        request.until = until.unwrap_or(request.until);
        let is_asked = |record: &&SpendRecord| session.as_ref().is_none_or(|id| record.key.id == *id);
        let mut report = SpendReport::default();
        loop {
            let page = self.store().spend(request.clone()).await.map_err(|error| self.failed(error))?;
            page.iter().filter(is_asked).for_each(|record| report.add(by, record));
            match page.last() {
                Some(last) if page.len() >= request.limit => request = request.after(last),
                _ => return Ok(report),
            }
        }
    }
}
