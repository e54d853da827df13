//! Budgets in memory.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::SessionError;
use crate::ids::{AppId, BudgetId, LifeId, ReservationId, SessionKey, UserId};
use crate::store::{
    AppendReservation, BudgetAmount, BudgetBalance, BudgetRaise, ERASED_USER, EraseData, ListRaises,
    ListSpend, MAX_BUDGET_AMOUNT, RaiseBudgets, ReadBudgets, ReservationEnd, ReserveSpend, SettleOpen,
    SettleSpend, SpendRecord, SpendState,
};
use crate::time::Timestamp;

#[derive(Clone, Copy, Debug, Default)]
struct BudgetSums {
    settled: u64,
    reserved: u64,
    kept_until: Option<Timestamp>,
    raised_to: u64,
}

/// The sums of budgets, and the requests that they consist of.
#[derive(Debug, Default)]
pub(super) struct MemoryBudgets {
    sums: BTreeMap<BudgetId, BudgetSums>,
    /// Budgets by the time until which they are kept.
    ends: BTreeSet<(Timestamp, BudgetId)>,
    /// With the token of its claim, and the amounts that each reserved.
    requests: BTreeMap<ReservationId, (SpendRecord, Option<u64>, Vec<BudgetAmount>)>,
    /// Raises that changed a limit, each with the first of its budgets.
    raises: Vec<(BudgetId, BudgetRaise)>,
}

impl MemoryBudgets {
    fn balance(&self, budget: &BudgetId) -> BudgetBalance {
        let BudgetSums { settled, reserved, raised_to, .. } =
            self.sums.get(budget).copied().unwrap_or_default();
        BudgetBalance::new(budget.clone(), settled, reserved).raised_to(raised_to)
    }

    /// The sums of a budget with the other parts of its window.
    fn window(&self, part: &BudgetAmount) -> BudgetBalance {
        let beside = part.beside.iter().map(|budget| self.balance(budget));
        beside.fold(self.balance(&part.budget), |sums, other| {
            let (settled, reserved) = (sums.settled + other.settled, sums.reserved + other.reserved);
            BudgetBalance { settled, reserved, ..sums }
        })
    }

    pub(super) fn balances(&self, request: &ReadBudgets) -> Vec<BudgetBalance> {
        request.budgets.iter().map(|budget| self.balance(budget)).collect()
    }

    pub(super) fn reserve(&mut self, request: ReserveSpend) -> Result<Vec<BudgetBalance>, SessionError> {
        let ReserveSpend { id, key, at, model, amounts, estimate, token, .. } = request;
        if let Some(token) = token.filter(|_| request.settles_earlier_claims) {
            self.settle_where(|record, of| record.key == key && of.is_none_or(|of| of < token));
        }
        if !self.requests.contains_key(&id) {
            for part @ BudgetAmount { amount, limit, .. } in &amounts {
                let found = self.window(part);
                if found.settled.saturating_add(found.reserved).saturating_add(*amount) > found.limit(*limit)
                {
                    return Err(SessionError::budget_exhausted(found, *amount, *limit));
                }
            }
            for part in &amounts {
                self.add(part);
            }
            self.drop_ended(at);
            let record = SpendRecord::new(id.clone(), key, at, model, SpendState::Reserved, estimate);
            self.requests.insert(id, (record, token, amounts.clone()));
        }
        Ok(amounts.iter().map(|part| self.window(part)).collect())
    }

    /// Reserves with an append, under the claim that the append leaves.
    pub(super) fn reserve_with_append(
        &mut self,
        request: ReserveSpend,
        token: Option<u64>,
    ) -> AppendReservation {
        let token = token.or(request.token);
        let made = self.reserve(ReserveSpend { token, ..request });
        made.map_or(AppendReservation::Refused, AppendReservation::Made)
    }

    fn add(&mut self, BudgetAmount { budget, amount, kept_until, .. }: &BudgetAmount) {
        self.sums.entry(budget.clone()).or_default().reserved += amount;
        self.keep_until(budget, *kept_until);
    }

    fn keep_until(&mut self, budget: &BudgetId, kept_until: Option<Timestamp>) {
        let sums = self.sums.entry(budget.clone()).or_default();
        if sums.kept_until != kept_until {
            let before = std::mem::replace(&mut sums.kept_until, kept_until);
            if let Some(end) = before {
                self.ends.remove(&(end, budget.clone()));
            }
            self.ends.extend(kept_until.map(|end| (end, budget.clone())));
        }
    }

    /// Raises the limits of budgets, unless they were raised to as much before.
    pub(super) fn raise(&mut self, request: &RaiseBudgets) {
        let before = request.budgets.first().map_or(0, |budget| self.balance(budget).raised_to);
        let mut is_raised = false;
        for budget in &request.budgets {
            if !self.sums.contains_key(budget) {
                self.keep_until(budget, request.kept_until);
            }
            let sums = self.sums.entry(budget.clone()).or_default();
            is_raised |= request.limit > sums.raised_to;
            sums.raised_to = sums.raised_to.max(request.limit);
        }
        if let (Some(record), Some(budget), true) = (&request.record, request.budgets.first(), is_raised) {
            let from = record.from.max(before);
            self.raises.push((budget.clone(), BudgetRaise { from, ..record.clone() }));
        }
    }

    /// The recorded raises, newest first.
    pub(super) fn raises(&self, request: &ListRaises) -> Vec<BudgetRaise> {
        let ListRaises { app, user, limit } = request;
        let is_listed = |raise: &&BudgetRaise| {
            app.as_ref().is_none_or(|app| raise.app == *app)
                && user.as_ref().is_none_or(|user| raise.user.as_ref() == Some(user))
        };
        let mut listed: Vec<BudgetRaise> =
            self.raises.iter().map(|(_, raise)| raise).filter(is_listed).cloned().collect();
        listed.sort_by(|one, other| (other.at, &other.id).cmp(&(one.at, &one.id)));
        listed.truncate(*limit);
        listed
    }

    /// Deletes the sums of budgets whose time has come, and in which nothing is reserved.
    fn drop_ended(&mut self, now: Timestamp) {
        let ended = self.ends.iter().take_while(|(end, _)| *end < now);
        let is_quiet = |budget: &BudgetId| self.sums.get(budget).is_none_or(|sums| sums.reserved == 0);
        let dropped: Vec<_> = ended.filter(|(_, budget)| is_quiet(budget)).cloned().collect();
        for ended in dropped {
            self.sums.remove(&ended.1);
            self.ends.remove(&ended);
        }
    }

    /// Ends a reservation; returns whether it was open.
    pub(super) fn settle(&mut self, request: &SettleSpend) -> bool {
        let Some((record, _, amounts)) = self.requests.get_mut(&request.id) else { return false };
        if record.state != SpendState::Reserved {
            return false;
        }
        for BudgetAmount { budget, amount, .. } in amounts.iter() {
            let Some(BudgetSums { settled, reserved, .. }) = self.sums.get_mut(budget) else { continue };
            *reserved = reserved.saturating_sub(*amount);
            *settled = settled.saturating_add(match &request.end {
                ReservationEnd::Release => 0,
                ReservationEnd::Estimate => *amount,
                ReservationEnd::Actual { amounts, .. } => {
                    let actual = amounts.iter().find(|(named, _)| named == budget);
                    actual.map_or(*amount, |(_, amount)| (*amount).min(MAX_BUDGET_AMOUNT))
                }
            });
        }
        match &request.end {
            ReservationEnd::Release => drop(self.requests.remove(&request.id)),
            ReservationEnd::Estimate => record.state = SpendState::Unsettled,
            ReservationEnd::Actual { model, actual, .. } => {
                (record.state, record.amounts) = (SpendState::Settled, *actual);
                record.model = model.as_ref().unwrap_or(&record.model).clone();
            }
        }
        true
    }

    pub(super) fn settle_open(&mut self, request: &SettleOpen) -> u64 {
        self.settle_where(|record, _| record.key == request.key)
    }

    /// Settles the open reservations for which this holds, given the tokens of their claims; returns their number.
    fn settle_where(&mut self, is_meant: impl Fn(&SpendRecord, Option<u64>) -> bool) -> u64 {
        let is_open = |record: &SpendRecord, token: Option<u64>| {
            record.state == SpendState::Reserved && is_meant(record, token)
        };
        let open = self.requests.values().filter(|(record, token, _)| is_open(record, *token));
        let open: Vec<ReservationId> = open.map(|(record, ..)| record.id.clone()).collect();
        let settle = |id| self.settle(&SettleSpend::new(id, ReservationEnd::Estimate));
        open.into_iter().map(settle).filter(|was_open| *was_open).count() as u64
    }

    /// Takes the name of a user out of the requests, whose sums stay, and deletes the user's budgets; returns the numbers of
    /// both.
    pub(super) fn forget_spender(&mut self, request: &EraseData, app: &AppId, user: &UserId) -> (u64, u64) {
        let is_of_budgets =
            |id: &BudgetId| request.budgets.iter().any(|prefix| id.as_str().starts_with(&**prefix));
        let is_of_user = |record: &SpendRecord| record.key.app == *app && record.key.user == *user;
        let ids: Vec<ReservationId> = (self.requests.iter())
            .filter(|(_, (record, ..))| is_of_user(record))
            .map(|(id, _)| id.clone())
            .collect();
        if request.is_dry_run {
            let budgets = self.sums.keys().filter(|id| is_of_budgets(id)).count();
            return (ids.len() as u64, budgets as u64);
        }
        for id in &ids {
            self.settle(&SettleSpend::new(id.clone(), ReservationEnd::Estimate));
            let other = ReservationId::new(format!("erased {}", LifeId::random()));
            let other_key = SessionKey::new(app.as_str(), ERASED_USER, ERASED_USER);
            if let (Some((record, ..)), Ok(other), Ok(key)) = (self.requests.remove(id), other, other_key) {
                let record = SpendRecord { id: other.clone(), key, ..record };
                self.requests.insert(other, (record, None, Vec::new()));
            }
        }
        let before = self.sums.len();
        // The rest of the reserved amount is that of another app.
        self.sums.retain(|id, sums| sums.reserved > 0 || !is_of_budgets(id));
        self.raises.retain(|(id, _)| !is_of_budgets(id));
        (ids.len() as u64, (before - self.sums.len()) as u64)
    }

    pub(super) fn list(&self, request: &ListSpend) -> Vec<SpendRecord> {
        let ListSpend { app, user, since, until, after, limit } = request;
        let is_listed = |record: &&SpendRecord| {
            record.key.app == *app
                && user.as_ref().is_none_or(|user| record.key.user == *user)
                && (*since..*until).contains(&record.at)
                && after.as_ref().is_none_or(|(at, id)| (record.at, &record.id) > (*at, id))
        };
        let records = self.requests.values().map(|(record, ..)| record);
        let mut listed: Vec<SpendRecord> = records.filter(is_listed).cloned().collect();
        listed.sort_by(|one, other| (one.at, &one.id).cmp(&(other.at, &other.id)));
        listed.truncate(*limit);
        listed
    }
}
