//! Budgets as a program declares them, and the amounts of a request in each.

use std::sync::Arc;
use std::time::Duration;

use stepfold_agent_loop::{BudgetUnit, ExhaustedBudget, MeterError, MeteredRequest};
use stepfold_session_scopes::{
    BudgetAmount, BudgetBalance, BudgetId, InvocationId, MAX_BUDGET_AMOUNT, SessionError, SessionKey,
    SpendAmounts, Timestamp, bounded_id,
};
use stepfold_state_core::chat::{
    ChatRequest, Cost, Message, Price, PriceSource, Prices, ToolSpec, Transcript, Usage,
};
use stepfold_trim::{ApproximateTokens, TokenCounter};

use super::rate::SharedRateLimit;
use super::window::{BudgetError, BudgetWindow, RollingParts};

/// The tokens of output that count for a request without a maximum, unless the budget says otherwise.
pub(super) const OUTPUT_ESTIMATE: u64 = 4_096;

/// The time for which the sum of a run is kept after its last request.
const KEPT_RUN: Duration = Duration::from_secs(400 * 24 * 3_600);

/// The sessions that share a budget.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BudgetScope {
    /// Each run has its own, with the runs inside of it. A run that is resumed continues with what it has left; the next
    /// message begins another.
    Run,
    /// Each session has its own.
    Session,
    /// The sessions of a user in the runner's app.
    User,
    /// All sessions of the runner's app.
    App,
    /// The sessions of a user in all apps of the store whose runners have this budget: for a server, those of the principals
    /// of a user, whatever app they use.
    Principal,
    /// All sessions of runners with a budget of this group, whatever their app: a team, a tenant, a key.
    Group(String),
}

/// The reaction of a run to an exhausted budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenExhausted {
    /// The run [pauses](stepfold_agent_loop::Pause::Budget) before the request, and releases its claim. At the end of the
    /// budget's window a [recovery](crate::Runner::recover) continues it; or [`resume`](crate::SessionHandle::resume) does
    /// under a higher limit; or it is [abandoned](crate::SessionHandle::abandon).
    #[default]
    Pause,
    /// The run fails before the request, with [`RunFault::Budget`](stepfold_agent_loop::RunFault::Budget). It can be resumed.
    Fail,
}

/// A limit on what runs spend on models, that holds over any number of workers.
///
/// Before each request to a model, the runner reserves its estimate in all budgets at once; the reply's commit settles the
/// actual amounts. The estimate is the counted input and the maximum output at the prices of the model. So the settled
/// amount exceeds the limit only by what single replies exceed their estimates; with an exact
/// [counter](crate::RunnerBuilder::count_tokens_with) and a
/// [maximum of output tokens](stepfold_state_core::chat::ModelParams::max_output_tokens), never.
///
/// The spent amount belongs to the store and not to a session's history: a fork inherits none, a rewind refunds none, a
/// replay spends none, and a deleted session's spend remains.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, Exit, Pause};
/// use stepfold_runner::{Budget, BudgetScope, BudgetWindow, Runner};
/// use stepfold_session_scopes::MemoryStore;
///
/// # let model = Script::parse("assistant: area 3\nassistant: area 7")?;
/// let agent = Agent::builder(model).build()?;
/// let budget = Budget::requests("trial", 1).of(BudgetScope::User).each(BudgetWindow::month("Europe/Berlin")?);
/// let runner = Runner::builder(agent, MemoryStore::new()).budget(budget).build();
///
/// let session = runner.session("ada", "s1").await?;
/// assert_eq!(session.run("which area has most stalls?").await?.text(), "area 3");
/// // Another session of the same user: the run pauses before the request.
/// let outcome = runner.session("ada", "s2").await?.run("and fewest?").await?;
/// let Exit::Paused(Pause::Budget(exhausted)) = outcome.exit() else { panic!("no pause") };
/// assert_eq!((exhausted.scope.as_str(), exhausted.spent, exhausted.limit), ("user ada", 1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use = "a budget does nothing until a runner has it"]
pub struct Budget {
    /// The name, unique among the budgets of its scope.
    pub name: Arc<str>,
    /// The unit of its limit.
    pub unit: BudgetUnit,
    /// The limit.
    pub limit: u64,
    /// The sessions that share it.
    pub scope: BudgetScope,
    /// The time for which it counts.
    pub window: BudgetWindow,
    /// The reaction of a run.
    pub when_exhausted: WhenExhausted,
    /// The share of the limit from which a warning is logged, once per window and crossing.
    pub warn_at: Option<f64>,
    /// The tokens of output that count for a request without a maximum.
    pub output_estimate: u64,
    /// The price of models without one.
    pub unknown_price: Option<Price>,
}

impl Budget {
    fn new(name: impl Into<Arc<str>>, unit: BudgetUnit, limit: u64) -> Self {
        Budget {
            name: name.into(),
            unit,
            limit: limit.min(MAX_BUDGET_AMOUNT),
            scope: BudgetScope::App,
            window: BudgetWindow::ever(),
            when_exhausted: WhenExhausted::default(),
            warn_at: None,
            output_estimate: OUTPUT_ESTIMATE,
            unknown_price: None,
        }
    }

    /// A budget in US dollars, at the [prices](crate::RunnerBuilder::prices) of the runner. By default it is shared by the
    /// runner's app, counts for ever, and pauses.
    pub fn usd(name: impl Into<Arc<str>>, dollars: f64) -> Self {
        Budget::new(name, BudgetUnit::Usd, Cost::from_dollars(dollars).nanodollars())
    }

    /// A budget in tokens of input and output.
    pub fn tokens(name: impl Into<Arc<str>>, tokens: u64) -> Self {
        Budget::new(name, BudgetUnit::Tokens, tokens)
    }

    /// A budget in requests to models.
    pub fn requests(name: impl Into<Arc<str>>, requests: u64) -> Self {
        Budget::new(name, BudgetUnit::Requests, requests)
    }

    /// Sets the sessions that share it.
    pub fn of(mut self, scope: BudgetScope) -> Self {
        self.scope = scope;
        self
    }

    /// Sets the window.
    pub fn each(mut self, window: BudgetWindow) -> Self {
        self.window = window;
        self
    }

    /// Sets the reaction of a run.
    pub const fn when_exhausted(mut self, when: WhenExhausted) -> Self {
        self.when_exhausted = when;
        self
    }

    /// Logs a warning when settled and reserved amounts reach this share of the limit.
    pub const fn warn_at(mut self, share: f64) -> Self {
        self.warn_at = Some(share);
        self
    }

    /// Sets the tokens of output that count for a request without a maximum; 4,096 by default.
    pub const fn output_estimate(mut self, tokens: u64) -> Self {
        self.output_estimate = tokens;
        self
    }

    /// Sets the price of models that have none in the runner's table. Without it, a budget in dollars refuses them.
    pub const fn unknown_price(mut self, price: Price) -> Self {
        self.unknown_price = Some(price);
        self
    }

    /// The names of those who share this budget; `None` if the spender is known too little.
    fn sharers<'a>(&'a self, spender: Spender<'a>) -> Option<Vec<&'a str>> {
        let Spender { app, user, session, run } = spender;
        Some(match &self.scope {
            BudgetScope::Run => vec!["run", app, user?, session?, run?],
            BudgetScope::Session => vec!["session", app, user?, session?],
            BudgetScope::User => vec!["user", app, user?],
            BudgetScope::Principal => vec!["principal", user?],
            BudgetScope::App => vec!["app", app],
            BudgetScope::Group(group) => vec!["group", group],
        })
    }

    /// Its counter at an instant; `None` if the spender is known too little.
    pub(super) fn counter(
        &self,
        spender: Spender<'_>,
        at: Timestamp,
    ) -> Result<Option<BudgetCounter>, MeterError> {
        self.sharers(spender).map(|sharers| self.counter_of(&sharers, at)).transpose()
    }

    fn counter_of(&self, sharers: &[&str], at: Timestamp) -> Result<BudgetCounter, MeterError> {
        let window = self.window.at(at).map_err(refused)?;
        let of_run = matches!(self.scope, BudgetScope::Run).then(|| end_of_day(at.after(KEPT_RUN)));
        let id = |name: &String| self.id(sharers, name).map_err(refused);
        let rolling = match &window.rolling {
            None => None,
            Some(RollingParts { whole, beside }) => {
                Some((id(whole)?, beside.iter().map(id).collect::<Result<_, _>>()?))
            }
        };
        let kept_until = window.kept_until.or(of_run);
        Ok(BudgetCounter { id: id(&window.name)?, rolling, until: window.until, kept_until })
    }

    /// The counters of the window that a raise at an instant is about.
    pub(super) fn raised(&self, spender: Spender<'_>, at: Timestamp) -> Result<Vec<BudgetId>, MeterError> {
        let Some(sharers) = self.sharers(spender) else { return Ok(Vec::new()) };
        let names = self.window.names_from(at).map_err(refused)?;
        names.iter().map(|name| self.id(&sharers, name).map_err(refused)).collect()
    }

    /// The counter of this budget in a window.
    fn id(&self, sharers: &[&str], window: &str) -> Result<BudgetId, SessionError> {
        // NOTE: as JSON, so that no name can be taken for another one with separators in it.
        let name = json_of(&(sharers, &*self.name, self.unit.as_str(), window));
        BudgetId::new(bounded_id(name))
    }

    pub(super) fn shared_by(&self, spender: Spender<'_>) -> String {
        let Spender { app, user, session, run } = spender;
        let (kind, name) = match &self.scope {
            BudgetScope::Run => ("run", run),
            BudgetScope::Session => ("session", session),
            BudgetScope::User => ("user", user),
            BudgetScope::Principal => ("principal", user),
            BudgetScope::App => ("app", Some(app)),
            BudgetScope::Group(group) => ("group", Some(group.as_str())),
        };
        format!("{kind} {}", name.unwrap_or("?"))
    }
}

/// The run that makes a request, as far as it is known.
#[derive(Clone, Copy)]
pub(crate) struct Spender<'a> {
    pub(crate) app: &'a str,
    pub(crate) user: Option<&'a str>,
    pub(crate) session: Option<&'a str>,
    pub(crate) run: Option<&'a str>,
}

impl<'a> Spender<'a> {
    /// A run of a session.
    pub(crate) fn of_run(key: &'a SessionKey, run: &'a InvocationId) -> Self {
        let SessionKey { app, user, id } = key;
        let (user, session, run) = (Some(user.as_str()), Some(id.as_str()), Some(run.as_str()));
        Spender { app: app.as_str(), user, session, run }
    }
}

/// The counted input of a request. The next one of the same run begins with most of its messages, so that a long
/// conversation is not counted again for each.
#[derive(Clone)]
pub(crate) struct CountedInput {
    messages: Transcript,
    /// Equal messages of the other of two runs that fold the same events: the stored one and the running one. Their lists
    /// grow one by one.
    twin: Option<Transcript>,
    tools: Arc<[ToolSpec]>,
    in_messages: usize,
    in_tools: usize,
    in_format: usize,
}

impl CountedInput {
    pub(super) fn tools(&self) -> Arc<[ToolSpec]> {
        Arc::clone(&self.tools)
    }

    /// Whether a request begins with all of its messages.
    fn begins(&self, request: &ChatRequest) -> bool {
        request.messages.starts_with(&self.messages)
    }

    /// The same for a request of its twin, whose last request is known: only messages after that one are compared.
    pub(super) fn begins_twin(&self, request: &ChatRequest, last: Option<&CountedInput>) -> bool {
        let known = last.and_then(|last| {
            let twin = last.twin.as_ref()?;
            (last.begins(request) && self.messages.starts_with(twin)).then(|| twin.len())
        });
        let known = known.unwrap_or(0);
        let new = self.messages.iter_from(known);
        request.messages.len() >= self.messages.len()
            && new
                .zip(request.messages.iter_from(known))
                .all(|(own, other)| Arc::ptr_eq(own, other) || own == other)
    }

    /// Notes that it begins with the messages of its twin.
    pub(super) fn with_twin(mut self, twin: &CountedInput) -> Self {
        self.twin = Some(twin.messages.clone());
        self
    }

    pub(crate) const fn tokens(&self) -> u64 {
        self.in_messages.saturating_add(self.in_tools).saturating_add(self.in_format) as u64
    }
}

/// The counter of a budget at an instant.
#[derive(Clone)]
pub(crate) struct BudgetCounter {
    pub(crate) id: BudgetId,
    /// Of a rolling window: its id as a whole, and those of its other parts.
    pub(super) rolling: Option<(BudgetId, Vec<BudgetId>)>,
    pub(super) until: Option<Timestamp>,
    pub(super) kept_until: Option<Timestamp>,
}

/// The budgets of a runner, its prices and its counter of tokens.
#[derive(Clone)]
pub(crate) struct BudgetPolicies {
    pub(crate) budgets: Vec<Budget>,
    pub(crate) rate_limits: Vec<SharedRateLimit>,
    pub(crate) prices: Prices,
    /// The prices of models that the table does not have.
    pub(crate) source: Option<Arc<dyn PriceSource>>,
    pub(crate) counter: Arc<dyn TokenCounter>,
}

impl Default for BudgetPolicies {
    fn default() -> Self {
        let (budgets, rate_limits, prices, source) = (Vec::new(), Vec::new(), Prices::new(), None);
        BudgetPolicies { budgets, rate_limits, prices, source, counter: Arc::new(ApproximateTokens) }
    }
}

/// Adds the part of a rate limit. Of limits that share a counter, one for all models and one for this, the tightest holds.
fn add_limit(parts: &mut Vec<ReservedPart>, part: ReservedPart) {
    match parts.iter_mut().find(|known| known.counter.id == part.counter.id) {
        None => parts.push(part),
        Some(known) => {
            let amount = known.amount.max(part.amount);
            if part.budget.limit < known.budget.limit {
                *known = part;
            }
            known.amount = amount;
        }
    }
}

/// A budget's part in a reservation.
#[derive(Clone)]
pub(crate) struct ReservedPart {
    pub(crate) budget: Budget,
    pub(crate) counter: BudgetCounter,
    pub(crate) amount: u64,
    /// Of a rate limit: the longest time that a request waits for it.
    pub(crate) max_wait: Option<Duration>,
}

/// The estimate of a request, and its parts in all budgets.
pub(crate) struct RequestEstimate {
    pub(crate) estimate: SpendAmounts,
    pub(crate) parts: Vec<ReservedPart>,
}

impl BudgetPolicies {
    pub(crate) fn has_limits(&self) -> bool {
        !self.budgets.is_empty() || !self.rate_limits.is_empty()
    }

    /// The parts of a request with this input in all budgets, at an instant.
    pub(crate) fn estimate(
        &self,
        (request, input): (MeteredRequest<'_>, u64),
        spender: Spender<'_>,
        at: Timestamp,
    ) -> Result<RequestEstimate, MeterError> {
        let mut parts = Vec::with_capacity(self.budgets.len());
        for budget in &self.budgets {
            if let Some(counter) = budget.counter(spender, at)? {
                parts.push(self.part(budget, counter, (request, input), at)?);
            }
        }
        for limit in self.rate_limits.iter().filter(|limit| limit.is_for(request.model)) {
            for budget in limit.counters() {
                let counter = budget.counter_of(&limit.sharers(request.model), at)?;
                let part = self.part(&budget, counter, (request, input), at)?;
                add_limit(&mut parts, part.of_rate_limit(limit)?);
            }
        }
        let output = parts.iter().map(|part| output_tokens(&part.budget, request)).max().unwrap_or(0);
        let nanodollars = self.highest_cost(request.model, input, output, at);
        Ok(RequestEstimate { estimate: SpendAmounts::new(input, output, nanodollars), parts })
    }

    fn part(
        &self,
        budget: &Budget,
        counter: BudgetCounter,
        (request, input): (MeteredRequest<'_>, u64),
        at: Timestamp,
    ) -> Result<ReservedPart, MeterError> {
        let output = output_tokens(budget, request);
        let amount = match budget.unit {
            BudgetUnit::Requests => 1,
            BudgetUnit::Tokens => input.saturating_add(output),
            BudgetUnit::Usd => {
                let unknown = || budget.unknown_price.map(|price| highest_cost_at(&price, input, output));
                let cost = self.highest_cost(request.model, input, output, at).or_else(unknown);
                // NOTE: a request of unknown cost would count as nothing, which no limit can hold against.
                cost.ok_or_else(|| unknown_price(budget, request.model))?
            }
            _ => return Err(MeterError::Failed(format!("unknown unit of budget `{}`", budget.name).into())),
        };
        let amount = amount.min(MAX_BUDGET_AMOUNT);
        Ok(ReservedPart { budget: budget.clone(), counter, amount, max_wait: None })
    }

    /// Counts the input of a request: only what the last one has not.
    pub(crate) fn count_input(&self, request: &ChatRequest, last: Option<&CountedInput>) -> CountedInput {
        let begins_with = last.filter(|last| last.begins(request));
        self.count_after(request, last, begins_with)
    }

    /// Counts the input of a request that begins with another one, if it is known to, and has the tools of the last one.
    pub(super) fn count_after(
        &self,
        request: &ChatRequest,
        last: Option<&CountedInput>,
        begins_with: Option<&CountedInput>,
    ) -> CountedInput {
        let ChatRequest { messages, tools, response_format, .. } = request;
        let same_tools = last.filter(|last| Arc::ptr_eq(&last.tools, tools));
        let in_tools = same_tools.map_or_else(
            || tools.iter().map(tokens_of_tool).fold(0, usize::saturating_add),
            |last| last.in_tools,
        );
        let (known, counted) = begins_with.map_or((0, 0), |known| (known.messages.len(), known.in_messages));
        let new = messages.iter_from(known).map(|message: &Arc<Message>| self.counter.count(message));
        let in_messages = new.fold(counted, usize::saturating_add);
        let format = response_format.as_ref();
        let in_format = format.map_or(0, |format| ApproximateTokens::of_text(&json_of(format)));
        CountedInput {
            messages: messages.clone(),
            twin: None,
            tools: Arc::clone(tools),
            in_messages,
            in_tools,
            in_format,
        }
    }

    /// The cost by the table, or else by the source of default prices; `None` if neither has the model.
    fn cost(&self, model: &str, usage: &Usage, at: Timestamp) -> Option<u64> {
        let by_table = self.prices.price(model).map(|price| price.cost(usage));
        let by_source = || self.source.as_ref()?.cost(model, usage, at.into());
        by_table.or_else(by_source).map(Cost::nanodollars)
    }

    /// The cost of a request of which nothing is read from the provider's cache.
    fn highest_cost(&self, model: &str, input: u64, output: u64, at: Timestamp) -> Option<u64> {
        let plain = Usage::new(input, output);
        let mut written = plain;
        written.cache_write_tokens = input;
        [plain, written].iter().map(|usage| self.cost(model, usage, at)).max().flatten()
    }

    /// The amounts of a reply with this usage; `None` if the provider reported no usage.
    pub(crate) fn actual(&self, reply: &MeteredReply<'_>) -> Option<(Vec<(BudgetId, u64)>, SpendAmounts)> {
        let MeteredReply { parts, usage, .. } = reply;
        let tokens = usage.input_tokens.saturating_add(usage.output_tokens);
        if tokens == 0 {
            return None;
        }
        let cost = self.reply_cost(reply);
        let amount = |part: &ReservedPart| match part.budget.unit {
            BudgetUnit::Requests => 1,
            BudgetUnit::Tokens => tokens,
            _ => cost.or_else(|| part.unknown_cost(usage)).unwrap_or(part.amount),
        };
        let amounts = parts.iter().map(|part| (part.counter.id.clone(), amount(part))).collect();
        let known = parts.iter().find_map(|part| part.unknown_cost(usage));
        Some((amounts, SpendAmounts::new(usage.input_tokens, usage.output_tokens, cost.or(known))))
    }

    /// The cost of a reply by the first of these that is known: the table's price of the model that answered, the cost that
    /// the provider reported, the default price of the model that answered, the price of the model that was asked.
    fn reply_cost(&self, reply: &MeteredReply<'_>) -> Option<u64> {
        let MeteredReply { asked, answered, usage, at, .. } = *reply;
        // NOTE: providers report names without their own, which prices may not have.
        let answered = answered.unwrap_or(asked);
        let own = || self.prices.price(answered).map(|price| price.cost(usage).nanodollars());
        let reported = || (!usage.cost.is_zero()).then(|| usage.cost.nanodollars());
        let default = || self.cost(answered, usage, at).or_else(|| self.cost(asked, usage, at));
        let asked = || self.prices.price(asked).map(|price| price.cost(usage).nanodollars());
        own().or_else(asked).or_else(reported).or_else(default)
    }
}

/// A reply, with the reservation of its request.
#[derive(Clone, Copy)]
pub(crate) struct MeteredReply<'a> {
    pub(crate) parts: &'a [ReservedPart],
    /// The model that was asked.
    pub(crate) asked: &'a str,
    /// The model that answered, if its provider says so.
    pub(crate) answered: Option<&'a str>,
    pub(crate) usage: &'a Usage,
    /// The time of the reservation: prices are those of then.
    pub(crate) at: Timestamp,
}

impl ReservedPart {
    /// The cost by the budget's price of unknown models.
    fn unknown_cost(&self, usage: &Usage) -> Option<u64> {
        self.budget.unknown_price.map(|price| price.cost(usage).nanodollars())
    }

    /// The amount, and nothing in the whole of a rolling window, which all workers have in common.
    pub(crate) fn amounts_within_limit(&self) -> impl Iterator<Item = BudgetAmount> + use<> {
        let BudgetCounter { id, rolling, kept_until, .. } = &self.counter;
        let amount = BudgetAmount::new(id.clone(), self.amount, self.budget.limit);
        let (amount, whole) = match rolling {
            None => (amount, None),
            Some((whole, beside)) => {
                (amount.beside(beside.clone()), Some(BudgetAmount::new(whole.clone(), 0, 0)))
            }
        };
        let kept_until = *kept_until;
        [amount].into_iter().chain(whole).map(move |amount| match kept_until {
            Some(at) => amount.kept_until(at),
            None => amount,
        })
    }

    /// The end of the window, or of its current part.
    pub(crate) const fn until(&self) -> Option<Timestamp> {
        self.counter.until
    }

    /// The time until the window, or its current part, ends.
    pub(crate) fn time_left(&self, now: Timestamp) -> Duration {
        let micros = self.counter.until.map_or(0, |until| until.as_micros().saturating_sub(now.as_micros()));
        Duration::from_micros(micros.try_into().unwrap_or_default())
    }

    /// The question of a run that does not fit.
    pub(crate) fn exhausted(&self, spender: Spender<'_>, found: &BudgetBalance) -> ExhaustedBudget {
        let Budget { name, unit, limit, .. } = &self.budget;
        let (shared_by, limit) = (self.budget.shared_by(spender), found.limit(*limit));
        let mut exhausted = ExhaustedBudget::new(&**name, shared_by, *unit, limit);
        (exhausted.spent, exhausted.reserved, exhausted.requested) =
            (found.settled, found.reserved, self.amount);
        exhausted.until = self.counter.until.map(Into::into);
        exhausted.pauses = self.budget.when_exhausted == WhenExhausted::Pause;
        exhausted
    }

    /// Whether a reservation has brought the budget to its warning, given its sum after it and its limit.
    pub(crate) fn has_reached_warning(&self, sum: u64, limit: u64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "limits are below 2^53")]
        let is_beyond = |sum: u64, share: f64| sum as f64 >= limit as f64 * share;
        self.budget
            .warn_at
            .is_some_and(|share| is_beyond(sum, share) && !is_beyond(sum.saturating_sub(self.amount), share))
    }
}

/// The end of a day in UTC: a time that changes seldom, so that a request changes no index of the store.
fn end_of_day(at: Timestamp) -> Timestamp {
    const DAY: i64 = 24 * 3_600 * 1_000_000;
    Timestamp::from_micros(at.as_micros().div_euclid(DAY).saturating_add(1).saturating_mul(DAY))
}

fn output_tokens(budget: &Budget, request: MeteredRequest<'_>) -> u64 {
    request.request.params.max_output_tokens.unwrap_or(budget.output_estimate)
}

/// The cost of a request of which nothing is read from the provider's cache, at a price.
fn highest_cost_at(price: &Price, input: u64, output: u64) -> u64 {
    let dearest = price.cache_write.map_or(price.input, |write| write.max(price.input));
    Price::new(dearest, price.output).cost(&Usage::new(input, output)).nanodollars()
}

/// The estimate of a request's cost at these prices, as a [`Budget`] reserves it: of its input, of which nothing is read from the provider's
/// cache, and its maximum output, or 4,096 tokens. `None` for a model without a price.
///
/// # Examples
/// ```
/// use stepfold_runner::estimated_cost;
/// use stepfold_state_core::chat::{ChatRequest, Price, Prices};
///
/// let prices = Prices::new().with("test/model", Price::new(1.0, 2.0));
/// let request = ChatRequest::default();
/// assert_eq!(estimated_cost(&prices, "test/model", &request).map(|cost| cost.nanodollars()), Some(8_192_000));
/// assert_eq!(estimated_cost(&prices, "test/other", &request), None);
/// ```
#[must_use]
pub fn estimated_cost(prices: &Prices, model: &str, request: &ChatRequest) -> Option<Cost> {
    let price = prices.price(model)?;
    let input = BudgetPolicies::default().count_input(request, None).tokens();
    let output = request.params.max_output_tokens.unwrap_or(OUTPUT_ESTIMATE);
    Some(Cost::from_nanodollars(highest_cost_at(price, input, output)))
}

fn tokens_of_tool(spec: &ToolSpec) -> usize {
    ApproximateTokens::of_text(&json_of(spec))
}

fn json_of(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn refused(error: impl std::error::Error + Send + Sync + 'static) -> MeterError {
    MeterError::Failed(Box::new(error))
}

fn unknown_price(budget: &Budget, model: &str) -> MeterError {
    let error = format!(
        "unknown price of model `{model}` for budget `{}`: add it to the prices, or set the budget's price of unknown models",
        budget.name
    );
    MeterError::Failed(error.into())
}

impl From<BudgetError> for MeterError {
    fn from(error: BudgetError) -> Self {
        refused(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All conversations of at most four messages out of two texts.
    fn conversations() -> Vec<Vec<&'static str>> {
        let mut all = vec![Vec::new()];
        let mut from = 0;
        for _ in 0..4 {
            let to = all.len();
            for at in from..to {
                for text in ["a", "b"] {
                    let longer: Vec<_> = all[at].iter().copied().chain([text]).collect();
                    all.push(longer);
                }
            }
            from = to;
        }
        all
    }

    /// Shares no message with another one.
    fn counted(texts: &[&str]) -> CountedInput {
        let messages = texts.iter().copied().map(Message::user).collect();
        let (tools, in_messages, in_tools, in_format) = (Arc::default(), 0, 0, 0);
        CountedInput { messages, twin: None, tools, in_messages, in_tools, in_format }
    }

    /// What is known of the twin's last request saves comparisons, and changes no result.
    #[test]
    fn a_request_of_a_twin_is_compared_by_its_messages() {
        let all = conversations();
        assert_eq!(all.len(), 31);
        for own in &all {
            let input = counted(own);
            for asked in &all {
                let request = ChatRequest::new(counted(asked).messages);
                let begins = asked.starts_with(own);
                assert_eq!(input.begins_twin(&request, None), begins, "{own:?} of {asked:?}");
                for last in &all {
                    for shared in 0..=last.len() {
                        let last_input = counted(last).with_twin(&counted(&last[..shared]));
                        let found = input.begins_twin(&request, Some(&last_input));
                        assert_eq!(
                            found, begins,
                            "{own:?} of {asked:?} after {last:?}, of which {shared} are the twin's"
                        );
                    }
                }
            }
        }
    }
}
