//! Budgets: reservations of all or none, each settled once, and never more than the limit.

use futures_util::future::join_all;
use serde_json::json;

use super::claims::MINUTE;
use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, at, cases, ensure, ensure_eq, ensure_error, event,
    schema,
};
use stepfold_session_scopes::{
    AppId, BudgetAmount, BudgetBalance, BudgetId, BudgetRaise, ReservationId, SessionError, SessionKey,
    UserId,
};
use stepfold_session_scopes::{
    AppendClaim, AppendEvent, AppendReservation, ClaimSession, CreateSession, DeleteSession, ForkSession,
    ListRaises, ListSpend, RaiseBudgets, ReadBudgets, ReleaseClaim, ReservationEnd, ReserveSpend,
    RewindSession, SessionStore, SettleOpen, SettleSpend, SpendAmounts, SpendState, TakeOver,
};
use stepfold_session_scopes::{Author, EventId, Expected, InvocationId, WorkerId};

cases! {
    a_reservation_counts_until_it_is_settled,
    a_reservation_is_made_in_all_budgets_or_in_none,
    a_limit_below_the_first_reservation_holds,
    a_repeated_reservation_or_settlement_counts_once,
    a_released_reservation_leaves_nothing,
    a_reply_and_its_settlement_are_one_commit,
    an_append_that_fails_settles_nothing,
    an_append_reserves_once_under_the_claim_that_it_leaves,
    an_event_is_appended_without_a_reservation_that_does_not_fit,
    an_append_that_fails_reserves_nothing,
    appends_settle_first_and_reserve_all_or_nothing,
    open_reservations_of_a_session_count_as_their_estimates,
    a_deleted_session_leaves_no_open_reservation,
    a_rewound_session_leaves_no_open_reservation,
    a_session_that_does_not_exist_reserves_nothing,
    the_sums_of_ended_windows_are_deleted_once_nothing_is_reserved,
    the_first_reservation_under_a_claim_settles_those_of_earlier_claims,
    a_raised_limit_holds_until_a_higher_one,
    a_raise_that_changes_a_limit_is_recorded_once,
    of_two_first_raises_at_once_one_is_the_limit_before_the_other,
    the_parts_of_a_rolling_window_count_together,
    reservations_in_two_parts_of_a_window_at_once_never_exceed_its_limit,
    sixty_four_reservations_at_once_never_exceed_the_limit,
    a_fork_inherits_no_spend_and_a_rewind_refunds_none,
    spend_is_listed_in_pages,
}

impl CaseContext {
    /// The token of a new claim; none if the store has no claims.
    async fn claimed(&self, key: &SessionKey, owner: &str) -> Result<Option<u64>, CaseFault> {
        let claim = ClaimSession::new(key.clone(), WorkerId::new(owner)?, MINUTE, at(1));
        match self.store.claim(claim).await {
            Err(SessionError::Unsupported { .. }) => Ok(None),
            claim => Ok(Some(claim?.token)),
        }
    }

    /// A budget of this case only: the store may have those of others.
    fn budget(&self, name: &str) -> Result<BudgetId, SessionError> {
        BudgetId::new(format!("{}/{name}", self.app))
    }

    /// A session that spends.
    async fn session(&self, id: &str) -> Result<SessionKey, CaseFault> {
        Ok(self.create(&schema()?, id, json!({})).await?.key)
    }

    fn reservation(&self, id: &str) -> Result<ReservationId, SessionError> {
        ReservationId::new(format!("{}/{id}", self.app))
    }

    fn reserving(
        &self,
        key: &SessionKey,
        id: &str,
        budgets: &[(&str, u64, u64)],
    ) -> Result<ReserveSpend, SessionError> {
        let amounts: Result<Vec<_>, SessionError> = budgets
            .iter()
            .map(|(name, amount, limit)| Ok(BudgetAmount::new(self.budget(name)?, *amount, *limit)))
            .collect();
        let estimate = SpendAmounts::new(70, 30, Some(5_000));
        let request = ReserveSpend::new(self.reservation(id)?, key.clone(), "model-a", estimate, at(1));
        Ok(request.with(amounts?))
    }

    async fn reserve(
        &self,
        key: &SessionKey,
        id: &str,
        budgets: &[(&str, u64, u64)],
    ) -> Result<Vec<BudgetBalance>, SessionError> {
        self.store.reserve(self.reserving(key, id, budgets)?).await
    }

    fn settling(&self, id: &str, amounts: &[(&str, u64)]) -> Result<SettleSpend, SessionError> {
        let amounts: Result<Vec<_>, SessionError> =
            amounts.iter().map(|(name, amount)| Ok((self.budget(name)?, *amount))).collect();
        let actual = SpendAmounts::new(60, 20, Some(4_000));
        let end = ReservationEnd::Actual { amounts: amounts?, model: Some("model-b".into()), actual };
        Ok(SettleSpend::new(self.reservation(id)?, end))
    }

    /// The settled and the reserved amount of a budget.
    async fn sums(&self, name: &str) -> Result<(u64, u64), SessionError> {
        let read = self.store.balances(ReadBudgets::new([self.budget(name)?])).await?;
        Ok(read.first().map_or((0, 0), |found| (found.settled, found.reserved)))
    }
}

async fn a_reservation_counts_until_it_is_settled(context: CaseContext) -> StoreCaseResult {
    let key = context.session("s1").await?;
    ensure_eq!(context.sums("day").await?, (0, 0));
    let made = context.reserve(&key, "r1", &[("day", 60, 100)]).await?;
    ensure_eq!(made, [BudgetBalance::new(context.budget("day")?, 0, 60)]);
    ensure_error!(
        context.reserve(&key, "r2", &[("day", 41, 100)]).await,
        SessionError::BudgetExhausted { settled: 0, reserved: 60, limit: 100, requested: 41, .. }
    );
    ensure!(context.store.settle(context.settling("r1", &[("day", 35)])?).await?, "r1 was open");
    ensure_eq!(context.sums("day").await?, (35, 0));
    context.reserve(&key, "r2", &[("day", 65, 100)]).await?;
    ensure_eq!(context.sums("day").await?, (35, 65));
    // A raised limit counts for the next one.
    ensure_error!(
        context.reserve(&key, "r3", &[("day", 1, 100)]).await,
        SessionError::BudgetExhausted { .. }
    );
    context.reserve(&key, "r3", &[("day", 1, 101)]).await?;
    Ok(())
}

async fn a_reservation_is_made_in_all_budgets_or_in_none(context: CaseContext) -> StoreCaseResult {
    let key = context.session("s1").await?;
    context.reserve(&key, "r1", &[("a", 10, 100), ("b", 10, 15), ("c", 10, 100)]).await?;
    ensure_error!(
        context.reserve(&key, "r2", &[("a", 10, 100), ("b", 10, 15), ("c", 10, 100)]).await,
        SessionError::BudgetExhausted { reserved: 10, limit: 15, .. }
    );
    for name in ["a", "b", "c"] {
        ensure_eq!(context.sums(name).await?, (0, 10));
    }
    // A budget that the settlement does not name settles what was reserved in it.
    context.store.settle(context.settling("r1", &[("a", 4), ("b", 0)])?).await?;
    ensure_eq!(context.sums("a").await?, (4, 0));
    ensure_eq!(context.sums("b").await?, (0, 0));
    ensure_eq!(context.sums("c").await?, (10, 0));
    // The rejected request is in no list.
    let listed = context.store.spend(ListSpend::new(AppId::new(context.app.as_str())?)).await?;
    ensure_eq!(listed.len(), 1);
    Ok(())
}

async fn a_limit_below_the_first_reservation_holds(context: CaseContext) -> StoreCaseResult {
    let key = context.session("s1").await?;
    let refused = context.reserve(&key, "r1", &[("day", 11, 10)]).await;
    ensure_error!(refused, SessionError::BudgetExhausted { settled: 0, reserved: 0, .. });
    ensure_eq!(context.sums("day").await?, (0, 0));
    context.reserve(&key, "r1", &[("day", 10, 10)]).await?;
    Ok(())
}

async fn a_repeated_reservation_or_settlement_counts_once(context: CaseContext) -> StoreCaseResult {
    let key = context.session("s1").await?;
    context.reserve(&key, "r1", &[("day", 60, 100)]).await?;
    let again = context.reserve(&key, "r1", &[("day", 60, 100)]).await?;
    ensure_eq!(again, [BudgetBalance::new(context.budget("day")?, 0, 60)]);
    ensure!(context.store.settle(context.settling("r1", &[("day", 35)])?).await?, "r1 was open");
    ensure!(!context.store.settle(context.settling("r1", &[("day", 50)])?).await?, "r1 was settled");
    context.reserve(&key, "r1", &[("day", 60, 100)]).await?;
    ensure_eq!(context.sums("day").await?, (35, 0));
    ensure!(!context.store.settle(context.settling("unknown", &[])?).await?, "it was never made");
    Ok(())
}

async fn a_released_reservation_leaves_nothing(context: CaseContext) -> StoreCaseResult {
    let key = context.session("s1").await?;
    context.reserve(&key, "r1", &[("day", 60, 100)]).await?;
    let release = SettleSpend::new(context.reservation("r1")?, ReservationEnd::Release);
    ensure!(context.store.settle(release.clone()).await?, "r1 was open");
    ensure!(!context.store.settle(release).await?, "r1 was released");
    ensure_eq!(context.sums("day").await?, (0, 0));
    let listed = context.store.spend(ListSpend::new(AppId::new(context.app.as_str())?)).await?;
    ensure!(listed.is_empty(), "a request that was not sent is listed: {listed:?}");
    Ok(())
}

async fn a_reply_and_its_settlement_are_one_commit(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    context.reserve(&key, "r1", &[("day", 60, 100)]).await?;
    let append = AppendEvent::new(key.clone(), 0, event("e1")?, &schema)
        .settling([context.settling("r1", &[("day", 35)])?]);
    let receipt = context.store.append(append.clone()).await?;
    ensure_eq!(context.sums("day").await?, (35, 0));
    // A retry after a lost acknowledgement.
    ensure_eq!(context.store.append(append).await?, receipt);
    ensure_eq!(context.sums("day").await?, (35, 0));
    let listed = context.store.spend(ListSpend::new(key.app.clone())).await?;
    let [only] = listed.as_slice() else { return Err(CaseFault::new(format!("one request: {listed:?}"))) };
    ensure_eq!((only.state, &*only.model), (SpendState::Settled, "model-b"));
    ensure_eq!(only.amounts, SpendAmounts::new(60, 20, Some(4_000)));
    Ok(())
}

async fn an_append_that_fails_settles_nothing(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    context.reserve(&key, "r1", &[("day", 60, 100)]).await?;
    let append = AppendEvent::new(key.clone(), 7, event("e1")?, &schema)
        .settling([context.settling("r1", &[("day", 35)])?]);
    ensure_error!(context.store.append(append).await, SessionError::Conflict { .. });
    ensure_eq!(context.sums("day").await?, (0, 60));
    Ok(())
}

/// An event that makes a reservation, at a version of the session.
fn append_reserving(
    key: &SessionKey,
    version: u64,
    reserved: ReserveSpend,
) -> Result<AppendEvent, CaseFault> {
    let event = event(&format!("e{}", version + 1))?;
    Ok(AppendEvent::new(key.clone(), version, event, &schema()?).reserving(reserved))
}

async fn an_append_reserves_once_under_the_claim_that_it_leaves(context: CaseContext) -> StoreCaseResult {
    let key = context.session("s1").await?;
    if !context.store.reserves_with_appends() {
        return Ok(());
    }
    context.reserve(&key, "r0", &[("day", 7, 100)]).await?;
    let reserved = context.reserving(&key, "r1", &[("day", 60, 100)])?.settling_earlier_claims();
    let take = AppendClaim::Take { owner: WorkerId::new("a")?, duration: MINUTE, take_over: TakeOver::Never };
    let append = append_reserving(&key, 0, reserved)?.with_claim(take);
    let receipt = context.store.append(append.clone()).await?;
    // The claim of the append is the first one, and what was reserved before it is of a worker that is gone.
    let is_claimed = receipt.claim.is_some();
    let (settled, reserved) = if is_claimed { (7, 60) } else { (0, 67) };
    let made = BudgetBalance::new(context.budget("day")?, settled, reserved);
    ensure_eq!(receipt.reservation, Some(AppendReservation::Made(vec![made])));
    // A retry after a lost acknowledgement does not know the result.
    ensure_eq!(context.store.append(append).await?.reservation, None);
    ensure_eq!(context.sums("day").await?, (settled, reserved));
    // The reservation is one of this claim: the next one under it does not settle it, one under a later claim does.
    if let Some(claim) = receipt.claim {
        let next = context.reserving(&key, "r2", &[("day", 5, 100)])?.under_claim(Some(claim.token), at(60));
        context.store.reserve(next.settling_earlier_claims()).await?;
        ensure_eq!(context.sums("day").await?, (7, 65));
        context.store.release(ReleaseClaim::new(key.clone(), claim.token)).await?;
        let token = context.claimed(&key, "b").await?;
        let last = context.reserving(&key, "r3", &[("day", 1, 100)])?.under_claim(token, at(60));
        context.store.reserve(last.settling_earlier_claims()).await?;
        ensure_eq!(context.sums("day").await?, (72, 1));
    }
    Ok(())
}

async fn an_event_is_appended_without_a_reservation_that_does_not_fit(
    context: CaseContext,
) -> StoreCaseResult {
    let key = context.session("s1").await?;
    if !context.store.reserves_with_appends() {
        return Ok(());
    }
    context.reserve(&key, "r1", &[("a", 10, 100), ("b", 10, 15), ("c", 10, 100)]).await?;
    let reserved = context.reserving(&key, "r2", &[("a", 10, 100), ("b", 10, 15), ("c", 10, 100)])?;
    // A budget that is settled with it keeps its settlement, before and after the one that is full.
    context.reserve(&key, "r3", &[("a", 1, 100), ("c", 1, 100)]).await?;
    let append = append_reserving(&key, 0, reserved)?;
    let append = append.settling([context.settling("r3", &[("a", 2), ("c", 3)])?]);
    let receipt = context.store.append(append).await?;
    ensure_eq!((receipt.version, receipt.reservation), (1, Some(AppendReservation::Refused)));
    ensure_eq!(context.sums("a").await?, (2, 10));
    ensure_eq!(context.sums("b").await?, (0, 10));
    ensure_eq!(context.sums("c").await?, (3, 10));
    let listed = context.store.spend(ListSpend::new(key.app.clone())).await?;
    ensure_eq!(listed.len(), 2);
    // The same id is free for a request that fits.
    context.reserve(&key, "r2", &[("b", 5, 15)]).await?;
    // In a rolling window, what is beside counts.
    let reserved = context.in_window(&key, "w1", "part2", &["part1"])?;
    context.reserve(&key, "w0", &[("part1", 95, 100)]).await?;
    let receipt = context.store.append(append_reserving(&key, 1, reserved)?).await?;
    ensure_eq!(receipt.reservation, Some(AppendReservation::Refused));
    ensure_eq!(context.sums("part2").await?, (0, 0));
    Ok(())
}

async fn an_append_that_fails_reserves_nothing(context: CaseContext) -> StoreCaseResult {
    let key = context.session("s1").await?;
    let reserved = context.reserving(&key, "r1", &[("day", 60, 100)])?;
    let append = append_reserving(&key, 7, reserved)?;
    ensure_error!(context.store.append(append).await, SessionError::Conflict { .. });
    ensure_eq!(context.sums("day").await?, (0, 0));
    ensure!(context.store.spend(ListSpend::new(key.app)).await?.is_empty(), "nothing is reserved");
    Ok(())
}

/// The names and the limits of the budgets of the next case.
const LIMITED: [(&str, u64); 3] = [("a", 40), ("b", 60), ("c", 25)];

/// Numbers that look random, and are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The law of appends that settle and reserve: what is settled with them counts, what they reserve is in all budgets or in
/// none, and never more than the limit.
async fn appends_settle_first_and_reserve_all_or_nothing(context: CaseContext) -> StoreCaseResult {
    let key = context.session("s1").await?;
    if !context.store.reserves_with_appends() {
        return Ok(());
    }
    let mut numbers = Numbers(7);
    let (mut settled, mut open) = ([0_u64; 3], Vec::<(String, [u64; 3])>::new());
    let mut refused = 0;
    for version in 0..60 {
        let id = format!("r{version}");
        let amounts = [(); 3].map(|()| numbers.below(3) * numbers.below(12));
        let parts: Vec<(&str, u64, u64)> = (LIMITED.iter().zip(amounts))
            .filter(|(_, amount)| *amount > 0)
            .map(|((name, limit), amount)| (*name, amount, *limit))
            .collect();
        let mut ended = Vec::new();
        for _ in 0..numbers.below(3).min(open.len() as u64) {
            let index = numbers.below(open.len() as u64);
            let (id, reserved) = open.remove(usize::try_from(index).unwrap_or_default());
            // NOTE: less than a third of what was reserved, so that there is room for the next ones.
            let actual = reserved.map(|amount| amount / 4);
            let named: Vec<(&str, u64)> =
                (LIMITED.iter().zip(actual)).map(|((name, _), sum)| (*name, sum)).collect();
            ended.push(context.settling(&id, &named)?);
            settled = std::array::from_fn(|budget| settled[budget] + actual[budget]);
        }
        let append = append_reserving(&key, version, context.reserving(&key, &id, &parts)?)?;
        let receipt = context.store.append(append.settling(ended)).await?;
        let sum =
            |budget: usize| -> u64 { settled[budget] + open.iter().map(|(_, of)| of[budget]).sum::<u64>() };
        let fits =
            (0..3).all(|budget| amounts[budget] == 0 || sum(budget) + amounts[budget] <= LIMITED[budget].1);
        let is_made = matches!(receipt.reservation, Some(AppendReservation::Made(_)));
        ensure_eq!((version, is_made), (version, fits));
        if fits {
            open.push((id, amounts));
        } else {
            refused += 1;
        }
        for (budget, (name, limit)) in LIMITED.iter().enumerate() {
            let reserved = open.iter().map(|(_, of)| of[budget]).sum::<u64>();
            ensure_eq!((version, context.sums(name).await?), (version, (settled[budget], reserved)));
            ensure!(settled[budget] + reserved <= *limit, "{name} is above its limit");
        }
    }
    ensure!((10..50).contains(&refused), "{refused} of 60 were refused");
    Ok(())
}

async fn open_reservations_of_a_session_count_as_their_estimates(context: CaseContext) -> StoreCaseResult {
    let (key, other) = (context.session("s1").await?, context.session("s2").await?);
    context.reserve(&key, "r1", &[("day", 10, 100)]).await?;
    context.reserve(&key, "r2", &[("day", 20, 100)]).await?;
    context.reserve(&other, "r3", &[("day", 30, 100)]).await?;
    context.store.settle(context.settling("r1", &[("day", 4)])?).await?;
    ensure_eq!(context.store.settle_open(SettleOpen::new(key.clone())).await?, 1);
    ensure_eq!(context.store.settle_open(SettleOpen::new(key)).await?, 0);
    ensure_eq!(context.sums("day").await?, (24, 30));
    let listed = context.store.spend(ListSpend::new(other.app.clone())).await?;
    let states: Vec<SpendState> = listed.iter().map(|record| record.state).collect();
    ensure_eq!(states, [SpendState::Settled, SpendState::Unsettled, SpendState::Reserved]);
    ensure_eq!(listed[1].amounts, SpendAmounts::new(70, 30, Some(5_000)));
    Ok(())
}

async fn a_deleted_session_leaves_no_open_reservation(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    let other = context.create(&schema, "s2", json!({})).await?.key;
    context.reserve(&key, "r1", &[("day", 10, 100), ("ever", 10, 100)]).await?;
    context.reserve(&other, "r2", &[("day", 20, 100)]).await?;
    context.store.delete(DeleteSession::new(key)).await?;
    // The outcome of its request is unknown, so that its estimate counts.
    ensure_eq!(context.sums("day").await?, (10, 20));
    ensure_eq!(context.sums("ever").await?, (10, 0));
    let listed = context.store.spend(ListSpend::new(other.app)).await?;
    let states: Vec<SpendState> = listed.iter().map(|record| record.state).collect();
    ensure_eq!(states, [SpendState::Unsettled, SpendState::Reserved]);
    Ok(())
}

async fn a_rewound_session_leaves_no_open_reservation(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    context.store.append(AppendEvent::new(key.clone(), 0, event("e1")?, &schema)).await?;
    context.reserve(&key, "r1", &[("day", 10, 100)]).await?;
    let (id, invocation) = (EventId::new("e2")?, InvocationId::new("rewind")?);
    let rewind = RewindSession::new(key, Expected::Any, 0, id, invocation, Author::new("user")?, at(3));
    context.store.rewind(rewind).await?;
    ensure_eq!(context.sums("day").await?, (10, 0));
    Ok(())
}

async fn a_session_that_does_not_exist_reserves_nothing(context: CaseContext) -> StoreCaseResult {
    let key = context.key("s1")?;
    let refused = context.reserve(&key, "r1", &[("day", 10, 100)]).await;
    ensure_error!(refused, SessionError::NotFound { .. });
    let key = context.session("s1").await?;
    context.store.delete(DeleteSession::new(key.clone())).await?;
    let refused = context.reserve(&key, "r1", &[("day", 10, 100)]).await;
    ensure_error!(refused, SessionError::NotFound { .. });
    ensure_eq!(context.sums("day").await?, (0, 0));
    ensure_eq!(context.store.spend(ListSpend::new(key.app)).await?.len(), 0);
    Ok(())
}

async fn the_sums_of_ended_windows_are_deleted_once_nothing_is_reserved(
    context: CaseContext,
) -> StoreCaseResult {
    let key = context.session("s1").await?;
    let windows = [("r1", "day1", 10), ("r2", "day2", 20), ("r3", "day3", 30)];
    for (id, budget, end) in windows {
        let amount = BudgetAmount::new(context.budget(budget)?, 10, 100).kept_until(at(end));
        context.store.reserve(context.reserving(&key, id, &[("ever", 1, 100)])?.with([amount])).await?;
    }
    context.store.settle(context.settling("r1", &[("day1", 10)])?).await?;
    // A day later than the end of two: the one with an open request is kept, and the budget without an end.
    let later = async |id: &str, budget: &str| {
        let amount = BudgetAmount::new(context.budget(budget)?, 10, 100).kept_until(at(60));
        let mut request = context.reserving(&key, id, &[])?.with([amount]);
        request.at = at(25);
        Ok::<_, CaseFault>(context.store.reserve(request).await?)
    };
    later("r4", "day4").await?;
    ensure_eq!(context.sums("day1").await?, (0, 0));
    ensure_eq!(context.sums("day2").await?, (0, 10));
    ensure_eq!(context.sums("day3").await?, (0, 10));
    ensure_eq!(context.sums("ever").await?, (1, 2));
    context.store.settle(context.settling("r2", &[("day2", 10)])?).await?;
    later("r5", "day5").await?;
    ensure_eq!(context.sums("day2").await?, (0, 0));
    // The list of spend has all requests.
    ensure_eq!(context.store.spend(ListSpend::new(key.app)).await?.len(), 5);
    Ok(())
}

async fn the_first_reservation_under_a_claim_settles_those_of_earlier_claims(
    context: CaseContext,
) -> StoreCaseResult {
    let (key, other) = (context.session("s1").await?, context.session("s2").await?);
    let under = |request: ReserveSpend, token: Option<u64>| request.under_claim(token, at(60));
    let Some(earlier) = context.claimed(&key, "a").await? else { return Ok(()) };
    let beside = context.claimed(&other, "a").await?;
    for (key, id, token) in [(&key, "r1", None), (&key, "r2", Some(earlier)), (&other, "r3", beside)] {
        context.store.reserve(under(context.reserving(key, id, &[("day", 10, 100)])?, token)).await?;
    }
    context.store.release(ReleaseClaim::new(key.clone(), earlier)).await?;
    let token = context.claimed(&key, "b").await?;
    let first = under(context.reserving(&key, "r4", &[("day", 20, 100)])?, token);
    let first = first.settling_earlier_claims();
    context.store.reserve(first.clone()).await?;
    ensure_eq!(context.sums("day").await?, (20, 30));
    // Reservations of its own claim remain; without a claim, all do.
    let second = under(context.reserving(&key, "r5", &[("day", 5, 100)])?, token);
    context.store.reserve(second.settling_earlier_claims()).await?;
    let unclaimed = context.reserving(&key, "r6", &[("day", 5, 100)])?;
    context.store.reserve(unclaimed.settling_earlier_claims()).await?;
    context.store.reserve(first).await?;
    ensure_eq!(context.sums("day").await?, (25, 35));
    // A worker that has lost its claim reserves nothing: no one would settle it.
    let late = under(context.reserving(&key, "r7", &[("day", 5, 100)])?, Some(earlier));
    let refused = context.store.reserve(late.settling_earlier_claims()).await;
    ensure_error!(refused, SessionError::ClaimLost { .. });
    ensure_eq!(context.sums("day").await?, (25, 35));
    Ok(())
}

impl CaseContext {
    /// An amount in a part of a window with a limit of 100, beside others; and nothing in what they have in common.
    fn in_window(
        &self,
        key: &SessionKey,
        id: &str,
        part: &str,
        beside: &[&str],
    ) -> Result<ReserveSpend, SessionError> {
        let beside: Result<Vec<_>, SessionError> = beside.iter().map(|name| self.budget(name)).collect();
        let amount = BudgetAmount::new(self.budget(part)?, 10, 100).beside(beside?);
        let common = BudgetAmount::new(self.budget("window")?, 0, 0);
        Ok(self.reserving(key, id, &[])?.with([amount, common]))
    }
}

async fn a_raised_limit_holds_until_a_higher_one(context: CaseContext) -> StoreCaseResult {
    let key = context.session("s1").await?;
    let raise = async |name: &str, limit| {
        context.store.raise_budgets(RaiseBudgets::new([context.budget(name)?], limit)).await
    };
    context.reserve(&key, "r1", &[("day", 60, 100)]).await?;
    ensure_error!(
        context.reserve(&key, "r2", &[("day", 60, 100)]).await,
        SessionError::BudgetExhausted { limit: 100, .. }
    );
    for limit in [150, 150, 120] {
        raise("day", limit).await?;
    }
    ensure_error!(
        context.reserve(&key, "r2", &[("day", 91, 100)]).await,
        SessionError::BudgetExhausted { reserved: 60, limit: 150, requested: 91, .. }
    );
    let made = context.reserve(&key, "r2", &[("day", 90, 100)]).await?;
    ensure_eq!(made, [BudgetBalance::new(context.budget("day")?, 0, 150).raised_to(150)]);
    // A higher limit of a reservation holds as well.
    context.reserve(&key, "r3", &[("day", 10, 160)]).await?;
    // The first request may be larger than the limit before the raise, and the budget new.
    raise("new", 50).await?;
    ensure_error!(
        context.reserve(&key, "r4", &[("new", 51, 0)]).await,
        SessionError::BudgetExhausted { settled: 0, reserved: 0, limit: 50, .. }
    );
    context.reserve(&key, "r4", &[("new", 50, 0)]).await?;
    // Of a rolling window, its parts are raised.
    context
        .store
        .raise_budgets(RaiseBudgets::new([context.budget("part1")?, context.budget("part2")?], 200))
        .await?;
    context.reserve(&key, "r5", &[("part1", 190, 100)]).await?;
    context.store.reserve(context.in_window(&key, "r6", "part2", &["part1"])?).await?;
    ensure_error!(
        context.store.reserve(context.in_window(&key, "r7", "part2", &["part1"])?).await,
        SessionError::BudgetExhausted { settled: 0, reserved: 200, limit: 200, requested: 10, .. }
    );
    Ok(())
}

async fn a_raise_that_changes_a_limit_is_recorded_once(context: CaseContext) -> StoreCaseResult {
    let app = AppId::new(context.app.as_str())?;
    let (ada, listed) = (UserId::new("ada")?, ListRaises::new().of_app(app.clone()));
    let raise = async |name: &str, by: &str, second: i64, from: u64, to: u64| -> Result<(), SessionError> {
        let record = BudgetRaise::new(app.clone(), name, Author::new(by)?, at(second))
            .of_user((name == "day").then(|| ada.clone()))
            .shared_by("user ada", "tokens")
            .limits(from, to);
        let raise = RaiseBudgets::new([context.budget(name)?], to).recorded(record);
        context.store.raise_budgets(raise).await
    };
    ensure!(context.store.raises(listed.clone()).await?.is_empty(), "nothing was raised");
    raise("day", "carol", 5, 10, 20).await?;
    // Lower than before, and the same once more.
    raise("day", "dave", 6, 10, 15).await?;
    raise("day", "dave", 7, 10, 20).await?;
    // The limit before is the one that holds, if another raise came between.
    raise("day", "dave", 8, 10, 30).await?;
    raise("team", "carol", 9, 1, 2).await?;
    let found = context.store.raises(listed.clone()).await?;
    let told: Vec<_> = found
        .iter()
        .map(|raise| (&*raise.budget, raise.by.as_str(), raise.at, raise.from, raise.to))
        .collect();
    let expected =
        [("team", "carol", at(9), 1, 2), ("day", "dave", at(8), 20, 30), ("day", "carol", at(5), 10, 20)];
    ensure_eq!(told, expected);
    ensure_eq!(
        (&*found[1].shared_by, &*found[1].unit, &found[1].user),
        ("user ada", "tokens", &Some(ada.clone()))
    );
    ensure_eq!(context.store.raises(listed.clone().at_most(1)).await?, found[..1].to_vec());
    ensure_eq!(context.store.raises(listed.clone().of_user(ada)).await?, found[1..].to_vec());
    ensure!(context.store.raises(listed.of_user(UserId::new("bob")?)).await?.is_empty(), "Bob has none");
    Ok(())
}

/// Whichever comes first, the records tell how the limit has risen: from 10 to 20 and then to 30, or to 30 alone.
async fn of_two_first_raises_at_once_one_is_the_limit_before_the_other(
    context: CaseContext,
) -> StoreCaseResult {
    let app = AppId::new(context.app.as_str())?;
    let raise = async |name: &str, to: u64| -> Result<(), SessionError> {
        let record = BudgetRaise::new(app.clone(), name, Author::new("carol")?, at(5)).limits(10, to);
        let raise = RaiseBudgets::new([context.budget(name)?], to).recorded(record);
        context.store.raise_budgets(raise).await
    };
    for index in 0..24 {
        let name = format!("day{index}");
        for raised in join_all([raise(&name, 20), raise(&name, 30)]).await {
            raised?;
        }
        let raises = context.store.raises(ListRaises::new().of_app(app.clone())).await?;
        let own = raises.iter().filter(|raise| *raise.budget == *name);
        let mut told: Vec<(u64, u64)> = own.map(|raise| (raise.from, raise.to)).collect();
        told.sort_unstable();
        ensure!(told == [(10, 20), (20, 30)] || told == [(10, 30)], "{told:?}");
    }
    Ok(())
}

async fn the_parts_of_a_rolling_window_count_together(context: CaseContext) -> StoreCaseResult {
    let key = context.session("s1").await?;
    context.reserve(&key, "r1", &[("part1", 60, 100)]).await?;
    context.store.settle(context.settling("r1", &[("part1", 50)])?).await?;
    context.reserve(&key, "r2", &[("part2", 30, 100)]).await?;
    let fits = context.in_window(&key, "r3", "part3", &["part1", "part2", "part4"])?;
    for _ in 0..2 {
        let made = context.store.reserve(fits.clone()).await?;
        ensure!(made.contains(&BudgetBalance::new(context.budget("part3")?, 50, 40)), "{made:?}");
    }
    let next = context.in_window(&key, "r4", "part3", &["part1", "part2", "part4"])?;
    context.store.reserve(next).await?;
    ensure_error!(
        context.store.reserve(context.in_window(&key, "r5", "part4", &["part1", "part2", "part3"])?).await,
        SessionError::BudgetExhausted { settled: 50, reserved: 50, limit: 100, requested: 10, .. }
    );
    ensure_eq!(context.sums("part4").await?, (0, 0));
    // The first part has left the window.
    context.store.reserve(context.in_window(&key, "r5", "part4", &["part2", "part3"])?).await?;
    Ok(())
}

async fn reservations_in_two_parts_of_a_window_at_once_never_exceed_its_limit(
    context: CaseContext,
) -> StoreCaseResult {
    let key = context.session("s1").await?;
    let requests: Result<Vec<_>, SessionError> = (0..64)
        .map(|index| {
            let parts = if index % 2 == 0 { ("part1", "part2") } else { ("part2", "part1") };
            context.in_window(&key, &format!("r{index}"), parts.0, &[parts.1])
        })
        .collect();
    let made = join_all(requests?.into_iter().map(|request| context.store.reserve(request))).await;
    ensure_eq!(made.iter().filter(|result| result.is_ok()).count(), 10);
    let (one, other) = (context.sums("part1").await?, context.sums("part2").await?);
    ensure_eq!(one.1 + other.1, 100);
    Ok(())
}

async fn sixty_four_reservations_at_once_never_exceed_the_limit(context: CaseContext) -> StoreCaseResult {
    let key = context.session("s1").await?;
    let names: Vec<String> = (0..64).map(|index| format!("r{index}")).collect();
    let both = [("user", 10, 100), ("app", 10, 1_000)];
    let made = join_all(names.iter().map(|id| context.reserve(&key, id, &both))).await;
    let fits = made.iter().filter(|result| result.is_ok()).count();
    ensure_eq!(fits, 10);
    for refused in made.into_iter().filter(Result::is_err) {
        ensure_error!(refused, SessionError::BudgetExhausted { limit: 100, .. });
    }
    ensure_eq!(context.sums("user").await?, (0, 100));
    ensure_eq!(context.sums("app").await?, (0, 100));
    Ok(())
}

async fn a_fork_inherits_no_spend_and_a_rewind_refunds_none(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    context.reserve(&key, "r1", &[("day", 60, 100)]).await?;
    let append = AppendEvent::new(key.clone(), 0, event("e1")?, &schema)
        .settling([context.settling("r1", &[("day", 35)])?]);
    context.store.append(append).await?;
    context.store.fork(ForkSession::new(key.clone(), at(2))).await?;
    let (id, invocation) = (EventId::new("e2")?, InvocationId::new("rewind")?);
    let rewind =
        RewindSession::new(key.clone(), Expected::Any, 0, id, invocation, Author::new("user")?, at(3));
    context.store.rewind(rewind).await?;
    ensure_eq!(context.sums("day").await?, (35, 0));
    ensure_eq!(context.store.spend(ListSpend::new(key.app)).await?.len(), 1);
    Ok(())
}

async fn spend_is_listed_in_pages(context: CaseContext) -> StoreCaseResult {
    let key = context.session("s1").await?;
    let bob = SessionKey::new(context.app.as_str(), "bob", "s1")?;
    context.store.create(CreateSession::with_key(bob.clone(), &schema()?, at(0))).await?;
    for (id, key, second) in [("r3", &key, 5), ("r1", &bob, 9), ("r2", &key, 9)] {
        let mut request = context.reserving(key, id, &[])?;
        request.at = at(second);
        context.store.reserve(request).await?;
    }
    let names = |listed: &[stepfold_session_scopes::SpendRecord]| -> Vec<String> {
        listed.iter().filter_map(|record| Some(record.id.as_str().rsplit_once('/')?.1.to_owned())).collect()
    };
    let all = ListSpend::new(key.app.clone());
    let listed = context.store.spend(all.clone()).await?;
    ensure_eq!(names(&listed), ["r3", "r1", "r2"]);
    let rest = context.store.spend(all.clone().after(&listed[1])).await?;
    ensure_eq!(names(&rest), ["r2"]);
    ensure_eq!(names(&context.store.spend(all.clone().of_user(UserId::new("bob")?)).await?), ["r1"]);
    ensure_eq!(names(&context.store.spend(all.clone().since(at(9))).await?), ["r1", "r2"]);
    ensure_eq!(names(&context.store.spend(all.until(at(9))).await?), ["r3"]);
    Ok(())
}
