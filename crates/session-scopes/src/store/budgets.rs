//! Budgets: amounts that are reserved before a request to a model, and settled with its reply.
//!
//! A budget is a counter in the store with two sums: what is *settled*, and what is *reserved* for requests under way. A
//! reservation adds to all its budgets, or to none, and only where `settled + reserved + amount <= limit` holds in the
//! same statement. So concurrent workers cannot all pass a check and overspend together. A reservation is in one of three
//! states; each operation gives the next one, or changes nothing:
//!
//! | operation | none | reserved | settled |
//! |---|---|---|---|
//! | [`reserve`](crate::SessionStore::reserve) | reserved, or `BudgetExhausted` | reserved | settled |
//! | an append [that reserves](crate::AppendEvent::reserving) | reserved, or [refused](AppendReservation::Refused) | reserved | settled |
//! | [`settle`](crate::SessionStore::settle), or an append [with it](crate::AppendEvent::settling) | none | settled | settled |
//! | settle with [`ReservationEnd::Release`] | none | none | settled |
//! | [`settle_open`](crate::SessionStore::settle_open), a rewind or a deletion of its session | none | settled, at its estimate | settled |
//! | a reservation [under a later claim](ReserveSpend::settling_earlier_claims) of its session | none | settled, at its estimate | settled |

use std::sync::Arc;

use crate::ids::{AppId, Author, BudgetId, LifeId, ReservationId, SessionKey, UserId};
use crate::time::Timestamp;

/// The largest amount of a budget, and of a reservation. Larger ones count as this.
pub const MAX_BUDGET_AMOUNT: u64 = 1 << 53;

/// An amount to be reserved in a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetAmount {
    /// The budget.
    pub budget: BudgetId,
    /// The amount.
    pub amount: u64,
    /// The limit of the budget.
    pub limit: u64,
    /// Other parts of a rolling window: what is settled and reserved in them counts towards the limit as well.
    pub beside: Vec<BudgetId>,
    /// The time from which the sums of the budget count for nothing; `None` for a budget without an end.
    pub kept_until: Option<Timestamp>,
}

/// The maximum number of [other parts](BudgetAmount::beside) of a rolling window. Further ones do not count.
pub const MAX_WINDOW_PARTS: usize = 16;

impl BudgetAmount {
    /// An amount in a budget with this limit, in the budget's unit.
    pub fn new(budget: BudgetId, amount: u64, limit: u64) -> Self {
        let (amount, limit) = (amount.min(MAX_BUDGET_AMOUNT), limit.min(MAX_BUDGET_AMOUNT));
        BudgetAmount { budget, amount, limit, beside: Vec::new(), kept_until: None }
    }

    /// Sets the time from which the sums of the budget count for nothing: after the end of its window, and after the clocks
    /// of all workers have passed it. A reservation that begins a window deletes some budgets whose time has come and in which
    /// nothing is reserved, of any app. The last reservation decides.
    #[must_use]
    pub const fn kept_until(mut self, at: Timestamp) -> Self {
        self.kept_until = Some(at);
        self
    }

    /// Sets the other parts of a rolling window, at most [`MAX_WINDOW_PARTS`]. Workers whose clocks differ reserve in
    /// different parts at the same time: for a limit that holds, each reserves nothing in a budget that all have in common as
    /// well.
    #[must_use]
    pub fn beside(mut self, parts: impl IntoIterator<Item = BudgetId>) -> Self {
        self.beside = parts.into_iter().take(MAX_WINDOW_PARTS).collect();
        self
    }
}

/// The tokens and the cost of a request, estimated or actual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpendAmounts {
    /// Tokens of input.
    pub input_tokens: u64,
    /// Tokens of output.
    pub output_tokens: u64,
    /// The cost in billionths of a dollar; `None` if the price is unknown.
    pub nanodollars: Option<u64>,
}

impl SpendAmounts {
    /// Tokens of input and output, and the cost if it is known.
    pub const fn new(input_tokens: u64, output_tokens: u64, nanodollars: Option<u64>) -> Self {
        SpendAmounts { input_tokens, output_tokens, nanodollars }
    }
}

/// Amounts to be reserved for a request to a model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReserveSpend {
    /// The id. A repeated request with it reserves nothing more.
    pub id: ReservationId,
    /// The session whose run makes the request.
    pub key: SessionKey,
    /// The token of the claim under which the run works, if there is one.
    pub token: Option<u64>,
    /// The time from which the reservation counts as abandoned, unless its claim is held.
    pub expires: Timestamp,
    /// The time.
    pub at: Timestamp,
    /// The id of the model.
    pub model: Arc<str>,
    /// The budgets with their amounts.
    pub amounts: Vec<BudgetAmount>,
    /// The estimate of the request.
    pub estimate: SpendAmounts,
    /// Whether it settles what workers with earlier claims of the session have left open, at their estimates.
    pub settles_earlier_claims: bool,
}

impl ReserveSpend {
    /// A reservation in no budget so far.
    pub fn new(
        id: ReservationId,
        key: SessionKey,
        model: &str,
        estimate: SpendAmounts,
        at: Timestamp,
    ) -> Self {
        // NOTE: PostgreSQL cannot store this character, and no name of a model has it.
        let model = model.replace('\0', "").into();
        let (token, amounts, settles_earlier_claims) = (None, Vec::new(), false);
        ReserveSpend { id, key, token, expires: at, at, model, amounts, estimate, settles_earlier_claims }
    }

    /// Sets the claim under which the run works, and the time at which it expires unless it is renewed.
    #[must_use]
    pub const fn under_claim(mut self, token: Option<u64>, expires: Timestamp) -> Self {
        (self.token, self.expires) = (token, expires);
        self
    }

    /// Settles what workers with earlier claims of the session have left open, at their estimates: for the first request of
    /// a run. It has no effect without a claim, or if the reservation is refused.
    #[must_use]
    pub const fn settling_earlier_claims(mut self) -> Self {
        self.settles_earlier_claims = true;
        self
    }

    /// Adds amounts. Those of one budget are added up; the smallest of its limits counts.
    #[must_use]
    pub fn with(mut self, amounts: impl IntoIterator<Item = BudgetAmount>) -> Self {
        for added in amounts {
            match self.amounts.iter_mut().find(|known| known.budget == added.budget) {
                Some(known) => {
                    known.amount = known.amount.saturating_add(added.amount).min(MAX_BUDGET_AMOUNT);
                    known.limit = known.limit.min(added.limit);
                    known.kept_until = known.kept_until.max(added.kept_until);
                }
                None => self.amounts.push(added),
            }
        }
        // NOTE: always in one order, so that transactions with several budgets cannot wait for each other in a circle.
        self.amounts.sort_by(|one, other| one.budget.cmp(&other.budget));
        self
    }
}

/// A reservation to be ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettleSpend {
    /// The reservation.
    pub id: ReservationId,
    /// Its end.
    pub end: ReservationEnd,
}

impl SettleSpend {
    /// Ends a reservation.
    pub const fn new(id: ReservationId, end: ReservationEnd) -> Self {
        SettleSpend { id, end }
    }
}

/// The end of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReservationEnd {
    /// The request was answered, and these are the actual amounts.
    Actual {
        /// The amounts by budget. Budgets of the reservation that are not named settle what they reserved.
        amounts: Vec<(BudgetId, u64)>,
        /// The model that answered; that of the reservation if `None`.
        model: Option<Arc<str>>,
        /// Tokens and cost.
        actual: SpendAmounts,
    },
    /// The outcome of the request is unknown, or its usage was not reported: the estimate counts.
    Estimate,
    /// The request was not sent, or cost nothing: the reservation is deleted.
    Release,
}

/// The sums of a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetBalance {
    /// The budget.
    pub budget: BudgetId,
    /// The settled amount.
    pub settled: u64,
    /// The amount that is reserved for requests under way.
    pub reserved: u64,
    /// The limit to which it was [raised](crate::SessionStore::raise_budgets), or 0. The higher limit of this and the one in a
    /// reservation holds.
    pub raised_to: u64,
}

impl BudgetBalance {
    /// A response of a store.
    pub const fn new(budget: BudgetId, settled: u64, reserved: u64) -> Self {
        BudgetBalance { budget, settled, reserved, raised_to: 0 }
    }

    /// Sets the limit to which it was raised.
    #[must_use]
    pub const fn raised_to(mut self, limit: u64) -> Self {
        self.raised_to = limit;
        self
    }

    /// The limit that holds, given that of a reservation.
    #[must_use]
    pub fn limit(&self, of_reservation: u64) -> u64 {
        of_reservation.max(self.raised_to)
    }
}

/// The result of a [reservation with an append](crate::AppendEvent::reserving).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AppendReservation {
    /// The amounts are reserved; these are the sums of the budgets.
    Made(Vec<BudgetBalance>),
    /// A budget has too little left: nothing is reserved.
    Refused,
}

/// A raise of budgets.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RaiseBudgets {
    /// The budgets: one, or the current and the coming parts of a rolling window.
    pub budgets: Vec<BudgetId>,
    /// The limit.
    pub limit: u64,
    /// The time from which their sums count for nothing; `None` for budgets without an end.
    pub kept_until: Option<Timestamp>,
    /// The record of the raise, which is stored if it changes a limit.
    pub record: Option<BudgetRaise>,
}

impl RaiseBudgets {
    /// Raises budgets to a limit, in the budgets' unit.
    pub fn new(budgets: impl IntoIterator<Item = BudgetId>, limit: u64) -> Self {
        let mut budgets: Vec<BudgetId> = budgets.into_iter().collect();
        // NOTE: always in one order, so that transactions with several budgets cannot wait for each other in a circle.
        budgets.sort();
        RaiseBudgets { budgets, limit: limit.min(MAX_BUDGET_AMOUNT), kept_until: None, record: None }
    }

    /// Stores who raised them, when, and from what limit. A raise that changes no limit stores nothing.
    #[must_use]
    pub fn recorded(mut self, record: BudgetRaise) -> Self {
        self.record = Some(BudgetRaise { to: self.limit, ..record });
        self
    }

    /// Sets the [time](BudgetAmount::kept_until) from which their sums count for nothing.
    #[must_use]
    pub const fn kept_until(mut self, at: Option<Timestamp>) -> Self {
        self.kept_until = at;
        self
    }
}

/// A raise of a budget, as the store has recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetRaise {
    /// The id.
    pub id: Arc<str>,
    /// The application through which it was raised.
    pub app: AppId,
    /// The user whose budget it is; `None` for one that users share.
    pub user: Option<UserId>,
    /// The name of the budget.
    pub budget: Arc<str>,
    /// The sharers of the budget: `user ada`, `app shop`.
    pub shared_by: Arc<str>,
    /// The unit of the limits.
    pub unit: Arc<str>,
    /// The limit before.
    pub from: u64,
    /// The limit after.
    pub to: u64,
    /// The person, or the program, that raised it.
    pub by: Author,
    /// The time.
    pub at: Timestamp,
}

impl BudgetRaise {
    /// A raise of a budget of an app by an author, from no limit to none so far, with a random id.
    pub fn new(app: AppId, budget: impl Into<Arc<str>>, by: Author, at: Timestamp) -> Self {
        let (id, none) = (LifeId::random().to_string().into(), Arc::<str>::from(""));
        let (budget, shared_by) = (budget.into(), Arc::clone(&none));
        BudgetRaise { id, app, user: None, budget, shared_by, unit: none, from: 0, to: 0, by, at }
    }

    /// Sets the user whose budget it is.
    #[must_use]
    pub fn of_user(mut self, user: Option<UserId>) -> Self {
        self.user = user;
        self
    }

    /// Sets the sharers and the unit of the budget.
    #[must_use]
    pub fn shared_by(mut self, sharers: impl Into<Arc<str>>, unit: impl Into<Arc<str>>) -> Self {
        (self.shared_by, self.unit) = (sharers.into(), unit.into());
        self
    }

    /// Sets the limits before and after.
    #[must_use]
    pub const fn limits(mut self, from: u64, to: u64) -> Self {
        (self.from, self.to) = (from, to);
        self
    }
}

/// Raises of budgets to be listed, newest first.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListRaises {
    /// The application through which they were raised; all if `None`.
    pub app: Option<AppId>,
    /// The user whose budgets they are; those of all users, and of budgets that users share, if `None`.
    pub user: Option<UserId>,
    /// The maximum number.
    pub limit: usize,
}

impl Default for ListRaises {
    fn default() -> Self {
        ListRaises::new()
    }
}

impl ListRaises {
    /// The newest 1,000 raises, of all apps.
    pub const fn new() -> Self {
        ListRaises { app: None, user: None, limit: 1_000 }
    }

    /// Restricts the list to those through an app.
    #[must_use]
    pub fn of_app(mut self, app: AppId) -> Self {
        self.app = Some(app);
        self
    }

    /// Restricts the list to budgets of a user.
    #[must_use]
    pub fn of_user(mut self, user: UserId) -> Self {
        self.user = Some(user);
        self
    }

    /// Sets the maximum number.
    #[must_use]
    pub const fn at_most(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

/// Budgets to be read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReadBudgets {
    /// The budgets.
    pub budgets: Vec<BudgetId>,
}

impl ReadBudgets {
    /// The sums of these budgets.
    pub fn new(budgets: impl IntoIterator<Item = BudgetId>) -> Self {
        ReadBudgets { budgets: budgets.into_iter().collect() }
    }
}

/// The open reservations of a session, to be settled at their estimates.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SettleOpen {
    /// The session.
    pub key: SessionKey,
}

impl SettleOpen {
    /// Settles all open reservations of a session. For a worker that holds its claim and has no request under way: then
    /// they are those of a worker that has died.
    pub const fn new(key: SessionKey) -> Self {
        SettleOpen { key }
    }
}

/// The state of a request in the list of spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SpendState {
    /// The request is under way, or its worker has died and no other has resumed the run.
    Reserved,
    /// The amounts are those that the provider reported.
    Settled,
    /// The amounts are the estimate: the outcome of the request was lost, or the provider reported no usage.
    Unsettled,
}

impl SpendState {
    /// The name in reports: `reserved`, `settled`, `unsettled`.
    pub const fn as_str(self) -> &'static str {
        match self {
            SpendState::Reserved => "reserved",
            SpendState::Settled => "settled",
            SpendState::Unsettled => "unsettled",
        }
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) const fn to_db(self) -> i64 {
        match self {
            SpendState::Reserved => 0,
            SpendState::Settled => 1,
            SpendState::Unsettled => 2,
        }
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn from_db(state: i64) -> Result<Self, crate::error::SessionError> {
        match state {
            0 => Ok(SpendState::Reserved),
            1 => Ok(SpendState::Settled),
            2 => Ok(SpendState::Unsettled),
            other => Err(crate::error::SessionError::damaged(
                "request in the list of spend",
                format!("unknown state {other}"),
            )),
        }
    }
}

/// A request to a model, as the list of spend has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpendRecord {
    /// The id of its reservation.
    pub id: ReservationId,
    /// The session whose run made it. It may have been deleted since.
    pub key: SessionKey,
    /// The time of the reservation.
    pub at: Timestamp,
    /// The model that answered, or was asked.
    pub model: Arc<str>,
    /// Whether its amounts are actual ones.
    pub state: SpendState,
    /// Tokens and cost, at the prices of then.
    pub amounts: SpendAmounts,
}

impl SpendRecord {
    /// A response of a store.
    pub const fn new(
        id: ReservationId,
        key: SessionKey,
        at: Timestamp,
        model: Arc<str>,
        state: SpendState,
        amounts: SpendAmounts,
    ) -> Self {
        SpendRecord { id, key, at, model, state, amounts }
    }
}

/// Requests of an app to be listed, in the order of their times.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListSpend {
    /// The application.
    pub app: AppId,
    /// The user; all users if `None`.
    pub user: Option<UserId>,
    /// The time of the first request.
    pub since: Timestamp,
    /// The time after the last request.
    pub until: Timestamp,
    /// The time and the id of the last request of the previous page.
    pub after: Option<(Timestamp, ReservationId)>,
    /// The maximum number.
    pub limit: usize,
}

impl ListSpend {
    /// The first 1,000 requests of an app.
    pub const fn new(app: AppId) -> Self {
        let (since, until) = (Timestamp::from_micros(i64::MIN), Timestamp::from_micros(i64::MAX));
        ListSpend { app, user: None, since, until, after: None, limit: 1_000 }
    }

    /// Restricts the list to requests of a user's sessions.
    #[must_use]
    pub fn of_user(mut self, user: UserId) -> Self {
        self.user = Some(user);
        self
    }

    /// Restricts the list to requests from this time on.
    #[must_use]
    pub const fn since(mut self, at: Timestamp) -> Self {
        self.since = at;
        self
    }

    /// Restricts the list to requests before this time.
    #[must_use]
    pub const fn until(mut self, at: Timestamp) -> Self {
        self.until = at;
        self
    }

    /// Continues after the last request of the previous page.
    #[must_use]
    pub fn after(mut self, last: &SpendRecord) -> Self {
        self.after = Some((last.at, last.id.clone()));
        self
    }
}
