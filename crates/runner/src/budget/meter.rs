//! The meter of a run: reserves before each request, and hands the settlement of a reply to the journal, which stores
//! both in one commit.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use stepfold_agent_loop::{Event, EventKind, MeterError, MeteredRequest, RequestEnd, RequestMeter};
use stepfold_session_scopes::{
    AppendReservation, BudgetBalance, InvocationId, ReservationEnd, ReservationId, ReserveSpend,
    SessionError, SessionStore, SettleOpen, SettleSpend, SpendAmounts, Timestamp, bounded_id,
};
use stepfold_state_core::chat::Usage;
use tokio::time::{Instant, sleep};

use super::ahead::{AheadRequest, AppendSpend, NextRequest};
use super::policy::{CountedInput, MeteredReply, RequestEstimate, ReservedPart, Spender};
use crate::access::backoff::retried;
use crate::core::runner_core::RunnerCore;
use crate::error::RunnerError;
use crate::session::local_session::LocalSession;

/// The pauses between two attempts of a request that waits for a rate limit. The longest one is short, since requests that
/// cost less than their estimates give capacity back at any time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The place of a run inside of others.
type RunPlace = Vec<usize>;

/// A request under way.
pub(super) struct OpenRequest {
    pub(super) id: ReservationId,
    pub(super) model: Arc<str>,
    pub(super) parts: Arc<[ReservedPart]>,
    pub(super) at: Timestamp,
    /// Whether the store has answered that it is reserved. It is not sent before.
    is_admitted: bool,
}

impl OpenRequest {
    /// The end of a request without one: it counts as its estimate, unless it was not sent.
    fn lost(self) -> SettleSpend {
        let end = if self.is_admitted { ReservationEnd::Estimate } else { ReservationEnd::Release };
        SettleSpend::new(self.id, end)
    }
}

/// The requests of a run. A request is *open* until its end; the settlement of a reply is *due* until the commit of its
/// event; all others are *late* until they are stored. One is reserved *ahead*, by the append before it.
#[derive(Default)]
struct MeteredRequests {
    open: HashMap<RunPlace, OpenRequest>,
    due: HashMap<RunPlace, SettleSpend>,
    late: Vec<SettleSpend>,
    ahead: Option<AheadRequest>,
}

/// The inputs of the last requests, so that a growing conversation is counted once.
#[derive(Default)]
struct CountedInputs {
    /// The last request at each place.
    by_place: HashMap<RunPlace, CountedInput>,
    /// The request that was reserved ahead. Its messages are those that are stored, also where the model is shown originals.
    ahead: Option<CountedInput>,
}

pub(crate) struct RunMeter {
    runner: Arc<RunnerCore>,
    local: Arc<LocalSession>,
    run: InvocationId,
    requests: Mutex<MeteredRequests>,
    counted: Mutex<CountedInputs>,
    /// Whether the run has reserved before.
    has_reserved: AtomicBool,
}

/// The most places whose inputs are kept: those of runs inside that have ended are among them.
const MAX_COUNTED: usize = 64;

impl RunMeter {
    /// The meter of a run, if the runner has budgets or rate limits.
    pub(crate) fn of(
        runner: &Arc<RunnerCore>,
        local: &Arc<LocalSession>,
        run: &InvocationId,
    ) -> Option<Arc<Self>> {
        let meter = || RunMeter {
            runner: Arc::clone(runner),
            local: Arc::clone(local),
            run: run.clone(),
            requests: Mutex::default(),
            counted: Mutex::default(),
            has_reserved: AtomicBool::new(false),
        };
        let is_metered = runner.budgets.has_limits();
        is_metered.then(|| Arc::new(meter()))
    }

    fn requests(&self) -> MutexGuard<'_, MeteredRequests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spender(&self) -> Spender<'_> {
        Spender::of_run(&self.local.key, &self.run)
    }

    /// Settles what a dead worker has left open in the session, whose claim this one holds.
    pub(crate) async fn settle_abandoned(&self) -> Result<(), SessionError> {
        let store = &self.runner.store;
        let left = retried(|| store.settle_open(SettleOpen::new(self.local.key.clone()))).await?;
        if left > 0 {
            tracing::warn!(session = %self.local.key, requests = left, "lost requests count as their estimates");
        }
        Ok(())
    }

    /// The part of an append that stores this event: it settles the reply that the event records, and reserves for the request
    /// that follows, or keeps what is reserved for it.
    pub(crate) fn with_append(&self, event: &Event, next: Option<NextRequest>) -> AppendSpend {
        let settled: Vec<SettleSpend> = self.settlement(event).into_iter().collect();
        let mut spend = AppendSpend { settled, reserved: None };
        let next = next.filter(|_| self.runner.store.reserves_with_appends());
        let next = next.and_then(|next| {
            let last = self.last_input();
            let next = next.with_tools_of(last.as_ref());
            let input =
                next.as_ref().map(|next| self.runner.budgets.count_input(&next.request, last.as_ref()));
            let tokens = input.as_ref().map_or(0, CountedInput::tokens);
            self.counted().ahead = input.or(last);
            next.map(|next| (next, tokens))
        });
        let now = self.runner.clock.now();
        if let Some(ahead) = &self.requests().ahead
            && let Some((next, input)) = &next
            && ahead.covers(next.metered(), *input, now)
        {
            return spend;
        }
        self.release_ahead(&mut spend);
        spend.reserved = next.and_then(|(next, input)| self.plan_ahead(&next, input, now));
        spend
    }

    /// Releases what is reserved for a request that is not the next one, with an append.
    fn release_ahead(&self, spend: &mut AppendSpend) {
        let requests = &mut *self.requests();
        let released = requests.ahead.take().map(|ahead| ahead.released());
        requests.late.extend(released.clone());
        spend.settled.extend(released);
    }

    /// The reservation of the next request. An error is left to the ordinary one.
    fn plan_ahead(&self, next: &NextRequest, input: u64, now: Timestamp) -> Option<ReserveSpend> {
        let request = next.metered();
        let RequestEstimate { estimate, parts } =
            self.runner.budgets.estimate((request, input), self.spender(), now).ok()?;
        let (reserve, open) = self.reservation(request.model, (&parts.into(), estimate), now).ok()?;
        self.requests().ahead = Some(AheadRequest::new(open, &next.request, input));
        Some(reserve)
    }

    /// Notes the result of an append. Without one, it is unknown whether the next request is reserved.
    pub(crate) fn stored(&self, spend: &AppendSpend, reservation: Option<&AppendReservation>) {
        let requests = &mut *self.requests();
        requests.due.retain(|_, due| !spend.ends(&due.id));
        requests.late.retain(|late| !spend.ends(&late.id));
        match (reservation, &mut requests.ahead) {
            (Some(AppendReservation::Made(balances)), Some(ahead)) if spend.reserved.is_some() => {
                ahead.is_reserved = true;
                self.has_reserved.store(true, Ordering::SeqCst);
                self.warn(&ahead.open.parts, balances);
            }
            (Some(AppendReservation::Refused), ahead) if spend.reserved.is_some() => *ahead = None,
            _ => {}
        }
    }

    /// Admits a request with what is reserved ahead, if that covers it; what does not is released.
    async fn admit_ahead(&self, request: MeteredRequest<'_>, input: u64) -> bool {
        if !request.place.is_empty() {
            return false;
        }
        let now = self.runner.clock.now();
        let released = {
            let requests = &mut *self.requests();
            match requests.ahead.take() {
                None => return false,
                Some(ahead) if ahead.covers(request, input, now) => {
                    requests.open.insert(Vec::new(), OpenRequest { is_admitted: true, ..ahead.open });
                    return true;
                }
                Some(ahead) => ahead.released(),
            }
        };
        self.settle(released).await;
        false
    }

    /// The settlement of the reply that an event records, if it records one.
    fn settlement(&self, event: &Event) -> Option<SettleSpend> {
        let (mut place, mut event) = (Vec::new(), event);
        while let EventKind::Inner { place: inside, event: inner } = &event.kind {
            place.push(*inside);
            event = inner;
        }
        match event.kind {
            EventKind::Replied { .. } | EventKind::Summarized { .. } => {
                self.requests().due.get(&place).cloned()
            }
            _ => None,
        }
    }

    /// Ends what is left when the run has stopped: requests without a reply count as their estimates, replies whose
    /// commit failed as what they were, and a request that was reserved ahead and not sent as nothing.
    pub(crate) async fn finish(&self) {
        let left: Vec<SettleSpend> = {
            let MeteredRequests { open, due, late, ahead } = &mut *self.requests();
            let ahead = ahead.take().map(|ahead| ahead.released());
            let open = open.drain().map(|(_, open)| open.lost());
            let due = due.drain().map(|(_, due)| due);
            open.chain(due).chain(ahead).chain(late.drain(..)).collect()
        };
        for end in left {
            self.settle(end).await;
        }
    }

    async fn settle(&self, end: SettleSpend) {
        // NOTE: noted before the store is asked: a run that is dropped meanwhile settles it at its end.
        self.requests().late.push(end.clone());
        match retried(|| self.runner.store.settle(end.clone())).await {
            Ok(_) => self.requests().late.retain(|late| late.id != end.id),
            Err(error) => {
                tracing::warn!(session = %self.local.key, %error, "a reservation could not be settled");
            }
        }
    }

    /// Reserves a request. While a rate limit has no capacity, it waits, and asks the store again; nothing is reserved meanwhile.
    async fn reserve(&self, request: MeteredRequest<'_>) -> Result<(), MeterError> {
        self.settle_left_at(request.place).await;
        let (began, input) = (Instant::now(), self.count_input(request));
        if self.admit_ahead(request, input).await {
            return Ok(());
        }
        loop {
            let now = self.runner.clock.now();
            let estimate = self.runner.budgets.estimate((request, input), self.spender(), now)?;
            let parts: Arc<[ReservedPart]> = estimate.parts.into();
            let Err(error) = self.reserve_once(request, (&parts, estimate.estimate), now).await else {
                return Ok(());
            };
            let SessionError::BudgetExhausted { budget, .. } = &error else {
                return Err(MeterError::Failed(Box::new(error)));
            };
            let Some(part) = parts.iter().find(|part| part.counter.id == *budget) else {
                return Err(MeterError::Failed(format!("unknown budget {budget}").into()));
            };
            let Some(max_wait) = part.max_wait else { return Err(self.exhausted(part, &error)) };
            let pause = part.time_left(now).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            if began.elapsed().saturating_add(pause) > max_wait {
                return Err(part.waited(began.elapsed()));
            }
            sleep(pause).await;
        }
    }

    fn counted(&self) -> MutexGuard<'_, CountedInputs> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The input with which the next request of the outermost run begins, as far as it was counted.
    fn last_input(&self) -> Option<CountedInput> {
        let counted = &mut *self.counted();
        counted.ahead.take().or_else(|| counted.by_place.get(&[] as &[usize]).cloned())
    }

    fn count_input(&self, request: MeteredRequest<'_>) -> u64 {
        let (last, ahead) = {
            let CountedInputs { by_place, ahead } = &mut *self.counted();
            if by_place.len() >= MAX_COUNTED && !by_place.contains_key(request.place) {
                by_place.clear();
            }
            let last = by_place.remove(request.place);
            let begins = |ahead: &&CountedInput| ahead.begins_twin(request.request, last.as_ref());
            let ahead = ahead.as_ref().filter(|_| request.place.is_empty()).filter(begins).cloned();
            (last, ahead)
        };
        // NOTE: outside of the lock, since a counter may take long.
        let (budgets, sent) = (&self.runner.budgets, request.request);
        let input = match &ahead {
            Some(ahead) => budgets.count_after(sent, Some(ahead), Some(ahead)).with_twin(ahead),
            None => budgets.count_input(sent, last.as_ref()),
        };
        let tokens = input.tokens();
        self.counted().by_place.insert(request.place.to_vec(), input);
        tokens
    }

    /// A reservation of these parts, and its request.
    fn reservation(
        &self,
        model: &str,
        (parts, estimate): (&Arc<[ReservedPart]>, SpendAmounts),
        now: Timestamp,
    ) -> Result<(ReserveSpend, OpenRequest), SessionError> {
        let key = &self.local.key;
        let token = self.local.claim.token();
        let id = format!("{key}/{}.{}", token.unwrap_or_default(), self.runner.ids.next());
        let id = ReservationId::new(bounded_id(id))?;
        let amounts = parts.iter().flat_map(ReservedPart::amounts_within_limit);
        let mut reserve = ReserveSpend::new(id.clone(), key.clone(), model, estimate, now)
            .under_claim(token, now.after(self.runner.claims.duration))
            .with(amounts);
        if !self.has_reserved.load(Ordering::SeqCst) {
            reserve = reserve.settling_earlier_claims();
        }
        let (model, parts) = (model.into(), Arc::clone(parts));
        Ok((reserve, OpenRequest { id, model, parts, at: now, is_admitted: false }))
    }

    async fn reserve_once(
        &self,
        request: MeteredRequest<'_>,
        (parts, estimate): (&Arc<[ReservedPart]>, SpendAmounts),
        now: Timestamp,
    ) -> Result<(), SessionError> {
        let (reserve, open) = self.reservation(request.model, (parts, estimate), now)?;
        // NOTE: noted before the store is asked: a run that is dropped meanwhile releases it.
        self.requests().open.insert(request.place.to_vec(), open);
        match retried(|| self.runner.store.reserve(reserve.clone())).await {
            Ok(balances) => {
                self.has_reserved.store(true, Ordering::SeqCst);
                self.warn(parts, &balances);
                if let Some(open) = self.requests().open.get_mut(request.place) {
                    open.is_admitted = true;
                }
                Ok(())
            }
            Err(error) => {
                let requests = &mut *self.requests();
                let open = requests.open.remove(request.place);
                // NOTE: a store that failed may have reserved it. One that refused has not.
                let is_refused = matches!(
                    error,
                    SessionError::BudgetExhausted { .. }
                        | SessionError::NotFound { .. }
                        | SessionError::ClaimLost { .. }
                );
                if !is_refused {
                    requests.late.extend(open.map(OpenRequest::lost));
                }
                Err(error)
            }
        }
    }

    /// Settles what an earlier run at this place has left: one that was dropped, by a timeout for example, before the end
    /// of its request or before the commit of its reply.
    async fn settle_left_at(&self, place: &[usize]) {
        let (open, due) = {
            let requests = &mut *self.requests();
            (requests.open.remove(place), requests.due.remove(place))
        };
        for left in open.map(OpenRequest::lost).into_iter().chain(due) {
            self.settle(left).await;
        }
    }

    /// The question of a run that does not fit into a budget.
    fn exhausted(&self, part: &ReservedPart, error: &SessionError) -> MeterError {
        let mut found = BudgetBalance::new(part.counter.id.clone(), 0, 0);
        if let SessionError::BudgetExhausted { settled, reserved, limit, .. } = error {
            (found.settled, found.reserved, found.raised_to) = (*settled, *reserved, *limit);
        }
        self.runner.refused.add(&part.budget.name);
        MeterError::Exhausted(Box::new(part.exhausted(self.spender(), &found)))
    }

    fn warn(&self, parts: &[ReservedPart], balances: &[BudgetBalance]) {
        for part in parts {
            let Some(found) = balances.iter().find(|balance| balance.budget == part.counter.id) else {
                continue;
            };
            let (sum, limit) = (found.settled.saturating_add(found.reserved), found.limit(part.budget.limit));
            if part.has_reached_warning(sum, limit) {
                let unit = part.budget.unit;
                let (spent, limit) = (unit.format(sum), unit.format(limit));
                tracing::warn!(session = %self.local.key, budget = %part.budget.name, %spent, %limit, "budget is nearly spent");
            }
        }
    }

    /// The settlement of a reply.
    fn reply(&self, open: OpenRequest, model: Option<&str>, usage: &Usage) -> SettleSpend {
        let OpenRequest { id, model: asked, parts, at, .. } = open;
        let reply = MeteredReply { parts: &parts, asked: &asked, answered: model, usage, at };
        let end = match self.runner.budgets.actual(&reply) {
            Some((amounts, actual)) => {
                ReservationEnd::Actual { amounts, model: model.map(Into::into), actual }
            }
            None => ReservationEnd::Estimate,
        };
        SettleSpend::new(id, end)
    }
}

impl RequestMeter for RunMeter {
    fn admit<'a>(&'a self, request: MeteredRequest<'a>) -> BoxFuture<'a, Result<(), MeterError>> {
        Box::pin(self.reserve(request))
    }

    fn end<'a>(&'a self, place: &'a [usize], end: RequestEnd<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Some(open) = self.requests().open.remove(place) else { return };
            let settled = match end {
                RequestEnd::Recorded { model, usage } => {
                    let due = self.reply(open, model, usage);
                    self.requests().due.insert(place.to_vec(), due);
                    return;
                }
                RequestEnd::Unrecorded { model, usage } => self.reply(open, model, usage),
                RequestEnd::Refused => SettleSpend::new(open.id, ReservationEnd::Release),
                _ => open.lost(),
            };
            self.settle(settled).await;
        })
    }
}

/// Requests to models that no run of a session sends, such as those of an evaluation, in the budgets and rate limits of the
/// session's runner: see [`SessionHandle::outside_requests`](crate::SessionHandle::outside_requests).
#[derive(Clone)]
pub struct OutsideRequests {
    runner: Arc<RunnerCore>,
    local: Arc<LocalSession>,
}

impl fmt::Debug for OutsideRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutsideRequests").field("session", &self.local.key).finish_non_exhaustive()
    }
}

impl OutsideRequests {
    /// `None` for a runner without budgets and rate limits. Settles what a killed process has left open.
    pub(crate) async fn of(
        runner: &Arc<RunnerCore>,
        local: &Arc<LocalSession>,
    ) -> Result<Option<Self>, SessionError> {
        if !runner.budgets.has_limits() {
            return Ok(None);
        }
        retried(|| runner.store.settle_open(SettleOpen::new(local.key.clone()))).await?;
        Ok(Some(OutsideRequests { runner: Arc::clone(runner), local: Arc::clone(local) }))
    }

    /// The meter of one run outside of the session: each has the budgets of a run of its own.
    ///
    /// # Errors
    /// When the runner's ids are invalid.
    pub fn meter(&self) -> Result<Arc<dyn RequestMeter>, RunnerError> {
        let id = InvocationId::new(self.runner.ids.next());
        let run = id.map_err(|error| RunnerError::store(&self.local.key, error))?;
        Ok(Arc::new(OutsideMeter(RunMeter::of(&self.runner, &self.local, &run))))
    }
}

/// Settles each reply at once: no event of the session records it.
struct OutsideMeter(Option<Arc<RunMeter>>);

/// Ends what is left of a run that was dropped.
impl Drop for OutsideMeter {
    fn drop(&mut self) {
        if let Some(meter) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { meter.finish().await });
        }
    }
}

impl RequestMeter for OutsideMeter {
    fn admit<'a>(&'a self, request: MeteredRequest<'a>) -> BoxFuture<'a, Result<(), MeterError>> {
        match &self.0 {
            Some(meter) => meter.admit(request),
            None => Box::pin(std::future::ready(Ok(()))),
        }
    }

    fn end<'a>(&'a self, place: &'a [usize], end: RequestEnd<'a>) -> BoxFuture<'a, ()> {
        let end = match end {
            RequestEnd::Recorded { model, usage } => RequestEnd::Unrecorded { model, usage },
            end => end,
        };
        match &self.0 {
            Some(meter) => meter.end(place, end),
            None => Box::pin(std::future::ready(())),
        }
    }
}
