//! Rate limits that processes share: counters of the last minute in the store.

use std::sync::Arc;
use std::time::Duration;

use stepfold_agent_loop::MeterError;

use super::policy::{Budget, BudgetScope, OUTPUT_ESTIMATE, ReservedPart};
use super::window::BudgetWindow;

/// The longest time that a request waits, by default.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// A limit on requests and tokens per minute, that all processes on a store share.
///
/// A provider limits each key and model. Before each request, the runner reserves it in the last minute, together with its
/// [budgets](crate::Budget): all take their part, or none does. A request that does not fit waits, without any lock, until one
/// of the last minute has left it. Capacity comes back in steps of five seconds, so that no minute has more than the limit, and
/// up to a twelfth less passes under constant load.
///
/// Tokens are estimated as those of budgets, and corrected when the reply is stored. A request that the provider refuses does not
/// count. The clocks of the hosts must agree within twenty seconds; after a step of the clock, a request waits for at most a
/// minute more than it should.
///
/// Programs without a store have the layer `RateLimit` of the providers, which counts in one process.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::Agent;
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_runner::{Runner, SharedRateLimit};
/// use stepfold_session_scopes::MemoryStore;
///
/// # let model = Script::parse("assistant: area 3")?;
/// let agent = Agent::builder(model).build()?;
/// let limit = SharedRateLimit::new("team key").requests(500).tokens(30_000);
/// let runner = Runner::builder(agent, MemoryStore::new()).rate_limit(limit).build();
/// assert_eq!(runner.session("ada", "s1").await?.run("which area has most stalls?").await?.text(), "area 3");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use = "a rate limit does nothing until a runner has it"]
pub struct SharedRateLimit {
    /// The key of the provider whose limit it is, by a name: limits of this name share their counters, whatever their app.
    pub key: Arc<str>,
    /// The id of the model, or its name without the provider; each model by itself if `None`.
    pub model: Option<Arc<str>>,
    /// The requests per minute.
    pub requests: Option<u64>,
    /// The tokens of input and output per minute.
    pub tokens: Option<u64>,
    /// The longest time that a request waits. The run fails then, and can be resumed.
    pub max_wait: Duration,
    /// The tokens of output that count for a request without a maximum.
    pub output_estimate: u64,
}

impl SharedRateLimit {
    /// A limit of a provider's key, by a name for the key and not the key itself. So far it limits nothing.
    pub fn new(key: impl Into<Arc<str>>) -> Self {
        let (max_wait, output_estimate) = (MAX_WAIT, OUTPUT_ESTIMATE);
        SharedRateLimit {
            key: key.into(),
            model: None,
            requests: None,
            tokens: None,
            max_wait,
            output_estimate,
        }
    }

    /// Restricts it to requests to a model: `openai/gpt-5-mini`, or `gpt-5-mini` of any provider.
    pub fn of_model(mut self, id: impl Into<Arc<str>>) -> Self {
        self.model = Some(id.into());
        self
    }

    /// Sets the requests per minute.
    pub const fn requests(mut self, per_minute: u64) -> Self {
        self.requests = Some(per_minute);
        self
    }

    /// Sets the tokens of input and output per minute.
    pub const fn tokens(mut self, per_minute: u64) -> Self {
        self.tokens = Some(per_minute);
        self
    }

    /// Sets the longest time that a request waits; five minutes by default.
    pub const fn max_wait(mut self, time: Duration) -> Self {
        self.max_wait = time;
        self
    }

    /// Sets the tokens of output that count for a request without a maximum; 4,096 by default.
    pub const fn output_estimate(mut self, tokens: u64) -> Self {
        self.output_estimate = tokens;
        self
    }

    pub(super) fn is_for(&self, model: &str) -> bool {
        let name = model.split_once('/').map(|(_, name)| name);
        self.model.as_deref().is_none_or(|only| only == model || Some(only) == name)
    }

    pub(super) fn sharers<'a>(&'a self, model: &'a str) -> [&'a str; 3] {
        ["rate", &self.key, model]
    }

    /// Its counters, as budgets of the last minute.
    pub(super) fn counters(&self) -> impl Iterator<Item = Budget> {
        let key = || Arc::clone(&self.key);
        let requests = self.requests.map(|limit| Budget::requests(key(), limit));
        let tokens = self.tokens.map(|limit| Budget::tokens(key(), limit));
        let output = self.output_estimate;
        requests.into_iter().chain(tokens).map(move |counter| {
            // NOTE: the scope has no effect: the names of those who share it are given.
            counter.of(BudgetScope::App).each(BudgetWindow::minute()).output_estimate(output)
        })
    }
}

impl ReservedPart {
    /// Marks it as a part of a rate limit, for which the request waits.
    ///
    /// # Errors
    /// The request needs more than the whole limit, so that it would wait for ever.
    pub(super) fn of_rate_limit(mut self, limit: &SharedRateLimit) -> Result<Self, MeterError> {
        let Budget { unit, limit: per_minute, .. } = self.budget;
        if self.amount > per_minute {
            let (needed, most) = (unit.format(self.amount), unit.format(per_minute));
            let error = format!(
                "rate limit `{}` exceeded: the request needs {needed}, and {most} per minute are allowed; raise the limit, or \
                 lower the maximum of output tokens",
                limit.key
            );
            return Err(MeterError::Failed(error.into()));
        }
        self.max_wait = Some(limit.max_wait);
        Ok(self)
    }

    /// The error of a request that has waited for too long.
    pub(super) fn waited(&self, time: Duration) -> MeterError {
        let Budget { name, unit, limit, .. } = &self.budget;
        let per_minute = unit.format(*limit);
        let error = format!(
            "rate limit `{name}` of {per_minute} per minute exceeded: no capacity in {} seconds; resume the run, or raise the limit",
            time.as_secs()
        );
        MeterError::Failed(error.into())
    }
}
