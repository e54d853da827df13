//! The meter of a run: reserves before each request, and hands the settlement of a reply to the journal, which stores
//! both in one commit.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use stepfold_agent_loop::{Event, EventKind, MeterError, MeteredRequest, RequestEnd, RequestMeter};
use stepfold_session_scopes::{
    BudgetBalance, InvocationId, ReservationEnd, ReservationId, ReserveSpend, SessionError, SessionStore,
    SettleOpen, SettleSpend, SpendAmounts, Timestamp, bounded_id,
};
use stepfold_state_core::chat::Usage;
use tokio::time::{Instant, sleep};

use super::policy::{CountedInput, MeteredReply, ReservedPart, Spender};
use crate::access::backoff::retried;
use crate::core::runner_core::RunnerCore;
use crate::session::local_session::LocalSession;

/// The pauses between two attempts of a request that waits for a rate limit. The longest one is short, since requests that
/// cost less than their estimates give capacity back at any time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The place of a run inside of others.
type RunPlace = Vec<usize>;

/// A request under way.
struct OpenRequest {
    id: ReservationId,
    model: Arc<str>,
    parts: Arc<[ReservedPart]>,
    at: Timestamp,
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
/// event; all others are stored immediately, and kept while the store cannot be reached.
#[derive(Default)]
struct MeteredRequests {
    open: HashMap<RunPlace, OpenRequest>,
    due: HashMap<RunPlace, SettleSpend>,
    late: Vec<SettleSpend>,
}

pub(crate) struct RunMeter {
    runner: Arc<RunnerCore>,
    local: Arc<LocalSession>,
    run: InvocationId,
    requests: Mutex<MeteredRequests>,
    /// The input of the last request at each place.
    counted: Mutex<HashMap<RunPlace, CountedInput>>,
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

    /// The settlement of the reply that an event records, if it records one.
    pub(crate) fn settlement(&self, event: &Event) -> Option<SettleSpend> {
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

    /// The event with this settlement is stored.
    pub(crate) fn stored(&self, settled: &SettleSpend) {
        self.requests().due.retain(|_, due| due.id != settled.id);
    }

    /// Ends what is left when the run has stopped: requests without a reply count as their estimates, and replies whose
    /// commit failed as what they were.
    pub(crate) async fn finish(&self) {
        let left: Vec<SettleSpend> = {
            let MeteredRequests { open, due, late } = &mut *self.requests();
            let open = open.drain().map(|(_, open)| open.lost());
            let due = due.drain().map(|(_, due)| due);
            open.chain(due).chain(late.drain(..)).collect()
        };
        for end in left {
            self.settle(end).await;
        }
    }

    async fn settle(&self, end: SettleSpend) {
        if let Err(error) = retried(|| self.runner.store.settle(end.clone())).await {
            tracing::warn!(session = %self.local.key, %error, "a reservation could not be settled");
            self.requests().late.push(end);
        }
    }

    /// Reserves a request. While a rate limit has no capacity, it waits, and asks the store again; nothing is reserved meanwhile.
    async fn reserve(&self, request: MeteredRequest<'_>) -> Result<(), MeterError> {
        self.settle_left_at(request.place).await;
        let (began, input) = (Instant::now(), self.count_input(request));
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

    fn count_input(&self, request: MeteredRequest<'_>) -> u64 {
        let last = {
            let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
            if counted.len() >= MAX_COUNTED && !counted.contains_key(request.place) {
                counted.clear();
            }
            counted.remove(request.place)
        };
        // NOTE: outside of the lock, since a counter may take long.
        let input = self.runner.budgets.count_input(request.request, last.as_ref());
        let tokens = input.tokens();
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).insert(request.place.to_vec(), input);
        tokens
    }

    async fn reserve_once(
        &self,
        request: MeteredRequest<'_>,
        (parts, estimate): (&Arc<[ReservedPart]>, SpendAmounts),
        now: Timestamp,
    ) -> Result<(), SessionError> {
        let key = &self.local.key;
        let token = self.local.claim.token();
        let id = format!("{key}/{}.{}", token.unwrap_or_default(), self.runner.ids.next());
        let id = ReservationId::new(bounded_id(id))?;
        let amounts = parts.iter().flat_map(ReservedPart::amounts_within_limit);
        let mut reserve = ReserveSpend::new(id.clone(), key.clone(), request.model, estimate, now)
            .under_claim(token, now.after(self.runner.claims.duration))
            .with(amounts);
        if !self.has_reserved.load(Ordering::SeqCst) {
            reserve = reserve.settling_earlier_claims();
        }
        let (model, parts_open) = (request.model.into(), Arc::clone(parts));
        let open = OpenRequest { id, model, parts: parts_open, at: now, is_admitted: false };
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
