//! The port that meters requests to models: it admits each before it is sent, and is told its end.

use std::error::Error;
use std::fmt;
use std::time::SystemTime;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use stepfold_state_core::chat::{ChatRequest, Cost, Usage};

/// Meters the requests to models of a run and of all runs inside of it: replies, repairs of output, summaries.
///
/// Implemented by hosts with budgets; the driver calls it. Each request is [admitted](RequestMeter::admit) before it is
/// sent, and has one [end](RequestMeter::end); none if the driver is dropped meanwhile. So does each attempt of a layer that
/// [repeats](stepfold_state_core::chat::NextAttempt) requests or falls back to other models. At one place in a run, one
/// request is under way at a time. A replay sends no requests, so it calls no meter.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use futures_util::future::BoxFuture;
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, MeterError, MeteredRequest, RequestEnd, RequestMeter};
///
/// /// Counts requests, and refuses the third.
/// struct Two(AtomicU64);
///
/// impl RequestMeter for Two {
///     fn admit<'a>(&'a self, _: MeteredRequest<'a>) -> BoxFuture<'a, Result<(), MeterError>> {
///         let is_third = self.0.fetch_add(1, Ordering::SeqCst) == 2;
///         Box::pin(async move { if is_third { Err(MeterError::Failed("two are enough".into())) } else { Ok(()) } })
///     }
///
///     fn end<'a>(&'a self, _: &'a [usize], _: RequestEnd<'a>) -> BoxFuture<'a, ()> {
///         Box::pin(async {})
///     }
/// }
///
/// let agent = Agent::builder(Script::parse("assistant: a\nassistant: b\nassistant: c")?).build()?;
/// let meter = Arc::new(Two(AtomicU64::new(0)));
/// for expected in [true, true, false] {
///     assert_eq!(agent.run("hello").meter_with(meter.clone()).await.is_ok(), expected);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub trait RequestMeter: Send + Sync {
    /// Admits a request, before observers hear of it. It may wait: if the run is cancelled or its time is up, the future is
    /// dropped, and the request is not sent.
    ///
    /// # Errors
    /// The request is not sent, and the run stops before it, or pauses.
    fn admit<'a>(&'a self, request: MeteredRequest<'a>) -> BoxFuture<'a, Result<(), MeterError>>;

    /// Notes the end of the request at a place.
    fn end<'a>(&'a self, place: &'a [usize], end: RequestEnd<'a>) -> BoxFuture<'a, ()>;
}

/// A request that is about to be sent.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MeteredRequest<'a> {
    /// The place of the run inside: the places of the calls and branches from the outermost run on; empty for that run.
    pub place: &'a [usize],
    /// The id of the model.
    pub model: &'a str,
    /// The request.
    pub request: &'a ChatRequest,
}

impl<'a> MeteredRequest<'a> {
    /// A request to a model, by the run at a place.
    pub const fn new(place: &'a [usize], model: &'a str, request: &'a ChatRequest) -> Self {
        MeteredRequest { place, model, request }
    }
}

/// The end of a request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum RequestEnd<'a> {
    /// A reply has come, and the next event of this place records it.
    Recorded {
        /// The model that answered, if the provider says so.
        model: Option<&'a str>,
        /// The usage; all zero if the provider did not report it.
        usage: &'a Usage,
    },
    /// A reply has come that no event records, such as one that ignores the required tool choice.
    Unrecorded {
        /// The model that answered, if the provider says so.
        model: Option<&'a str>,
        /// The usage; all zero if the provider did not report it.
        usage: &'a Usage,
    },
    /// The provider refused the request, and charges nothing.
    Refused,
    /// There is no reply, and the provider may charge for the request: it was cancelled, its time was up, or the
    /// connection was lost.
    Lost,
}

/// The reason why a request is not admitted.
#[derive(Debug)]
#[non_exhaustive]
pub enum MeterError {
    /// A budget has too little left.
    Exhausted(Box<ExhaustedBudget>),
    /// It could not be decided: the store did not answer, or the price of the model is unknown. Nothing is sent then.
    Failed(Box<dyn Error + Send + Sync>),
}

/// The unit of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BudgetUnit {
    /// US dollars, in billionths.
    Usd,
    /// Tokens of input and output.
    Tokens,
    /// Requests.
    Requests,
}

impl BudgetUnit {
    /// The name: `usd`, `tokens`, `requests`.
    pub const fn as_str(self) -> &'static str {
        match self {
            BudgetUnit::Usd => "usd",
            BudgetUnit::Tokens => "tokens",
            BudgetUnit::Requests => "requests",
        }
    }

    /// An amount as text: `$0.250000`, `4000 tokens`.
    pub fn format(self, amount: u64) -> String {
        match self {
            BudgetUnit::Usd => Cost::from_nanodollars(amount).to_string(),
            BudgetUnit::Tokens | BudgetUnit::Requests => format!("{amount} {}", self.as_str()),
        }
    }
}

/// A budget with too little left for a request: the question `budget` of a run. It is answered by a higher limit, by the
/// end of the budget's window, or by cancelling the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExhaustedBudget {
    /// The budget, as its owner named it.
    pub budget: String,
    /// Who shares it: a session, a user, an app or a group.
    pub scope: String,
    /// The unit of the amounts.
    pub unit: BudgetUnit,
    /// The spent amount.
    pub spent: u64,
    /// The amount that is reserved for requests under way.
    pub reserved: u64,
    /// The limit.
    pub limit: u64,
    /// The amount that the request needs, by its estimate.
    pub requested: u64,
    /// The end of the budget's window; `None` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<SystemTime>,
    /// Whether the run [pauses](crate::Pause::Budget) rather than fails.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pauses: bool,
}

impl ExhaustedBudget {
    /// A budget in which nothing is spent or reserved, and that has no window.
    pub fn new(budget: impl Into<String>, scope: impl Into<String>, unit: BudgetUnit, limit: u64) -> Self {
        let (budget, scope) = (budget.into(), scope.into());
        let (spent, reserved, requested, until, pauses) = (0, 0, 0, None, false);
        ExhaustedBudget { budget, scope, unit, spent, reserved, limit, requested, until, pauses }
    }
}

impl ExhaustedBudget {
    /// Whether only the reservations of other requests stand in the way, which end within minutes: the request fits into
    /// what is not spent.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::{BudgetUnit, ExhaustedBudget};
    ///
    /// let mut budget = ExhaustedBudget::new("daily", "app shop", BudgetUnit::Requests, 10);
    /// (budget.spent, budget.reserved, budget.requested) = (8, 2, 1);
    /// assert!(budget.waits_for_reservations());
    /// budget.spent = 10;
    /// assert!(!budget.waits_for_reservations());
    /// ```
    pub const fn waits_for_reservations(&self) -> bool {
        self.spent.saturating_add(self.requested) <= self.limit
    }
}

impl fmt::Display for ExhaustedBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExhaustedBudget { budget, scope, unit, spent, reserved, limit, requested, .. } = self;
        let [spent, reserved, limit, requested] =
            [spent, reserved, limit, requested].map(|amount| unit.format(*amount));
        write!(
            f,
            "budget `{budget}` of {scope} exhausted: {spent} spent and {reserved} reserved of {limit}, the request needs \
             {requested}; raise its limit{}, or cancel the run",
            if self.until.is_some() { ", wait for its next window" } else { "" }
        )
    }
}

impl Error for ExhaustedBudget {}
