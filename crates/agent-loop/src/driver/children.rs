//! Driving the runs inside of items: agents that are tools or nodes. Each is driven by the driver of agents; what it
//! tells goes to the driver of the run around it, and it continues when that has taken note.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use stepfold_state_core::ErrorChain;
use stepfold_tools::CancellationToken;
use tokio::sync::{mpsc, oneshot};

use super::functions::Happened;
use super::trouble::outcomes_in;
use crate::agent::NotBegun;
use crate::approval::{ApprovalRequest, Decision, nested_path};
use crate::exit::{Exit, Pause};
use crate::observe::{Observer, ObserverError, RunEvent};
use crate::planned::Attempts;
use crate::ports::Clock;
use crate::run::Run;
use crate::run_error::RunFault;

/// What runs inside tell until the driver takes it. They wait while there is more.
const QUEUE: usize = 64;

/// What a run inside came to.
pub(super) enum ChildEnd {
    /// It has ended.
    Ended,
    /// It waits for decisions.
    Waits,
    /// It requires a decision before it begins.
    Asks(Box<ApprovalRequest>),
    /// It was stopped, or the run around it failed beside it.
    Stopped,
    /// It could not be run to its end.
    Failed { error: String, tries: u32 },
    /// The time of an attempt was up, which was this one.
    TimedOut(u32),
}

/// What a run inside tells the driver, which answers when it has taken note of it: whether the run continues.
pub(super) struct Told {
    pub(super) place: usize,
    pub(super) event: RunEvent,
    pub(super) goes_on: oneshot::Sender<bool>,
}

impl Told {
    /// The calls or branches that came to an end, if that is what it tells.
    pub(super) fn outcomes(&self, run: &Run) -> Vec<String> {
        let outcomes = || {
            let inner = outcomes_in(run.item(self.place)?.child()?, self.event.committed()?);
            let label = run.task(self.place)?.label();
            Some(inner.iter().map(|inner| nested_path(&label, inner)).collect())
        };
        outcomes().unwrap_or_default()
    }
}

/// The runs inside of the items of a step.
pub(super) struct Children<'a> {
    /// Created for the first one: most steps have none.
    started: Option<Started<'a>>,
    clock: Arc<dyn Clock + 'a>,
}

/// The runs inside that were started, and the channel for their events.
struct Started<'a> {
    running: FuturesUnordered<BoxFuture<'a, (usize, ChildEnd)>>,
    told: mpsc::Receiver<Told>,
    teller: mpsc::Sender<Told>,
}

impl Started<'_> {
    fn new() -> Self {
        let (teller, told) = mpsc::channel(QUEUE);
        Started { running: FuturesUnordered::new(), told, teller }
    }
}

impl<'a> Children<'a> {
    pub(super) fn new(clock: Arc<dyn Clock + 'a>) -> Self {
        Children { started: None, clock }
    }

    /// The next event of a run inside, or the end of one; `None` if none was started. Cancel-safe: a dropped future
    /// loses nothing.
    pub(super) async fn next(&mut self) -> Option<Happened> {
        let Started { running, told, .. } = self.started.as_mut()?;
        tokio::select! {
            biased;
            Some(told) = told.recv() => Some(Happened::Told(told)),
            Some((place, end)) = running.next() => Some(Happened::Inside(place, end)),
            else => None,
        }
    }

    /// The next event of a run inside, if there is one by now.
    pub(super) fn try_told(&mut self) -> Option<Told> {
        self.started.as_mut()?.told.try_recv().ok()
    }

    /// Starts those of these items that have a run inside, from where it is, until `stop` is cancelled.
    pub(super) fn start(&mut self, run: &Run, places: &[usize], stop: &CancellationToken) {
        for place in places.iter().copied() {
            let Some(task) = run.task(place) else { continue };
            let Some(inside) = run.inside(task) else { continue };
            let child = match run.item(place).and_then(|item| item.child()) {
                Some(child) => Ok(child.clone()),
                None => run.begin_inside(task, inside),
            };
            match child {
                Ok(child) => self.drive(run, (place, child), (1, Duration::ZERO), stop),
                Err(NotBegun::Asks(request)) => self.end(place, ChildEnd::Asks(request)),
                Err(NotBegun::Failed(error)) => self.end(place, ChildEnd::Failed { error, tries: 1 }),
            }
        }
    }

    /// Once more after the time of an attempt was up, from where the run inside is by now. Whether it may be attempted
    /// again.
    pub(super) fn again(&mut self, run: &Run, place: usize, tries: u32, stop: &CancellationToken) -> bool {
        let Some(pause) = run.attempts(place).pauses().nth(tries as usize - 1) else { return false };
        let Some(child) = run.item(place).and_then(|item| item.child()) else { return false };
        self.drive(run, (place, child.clone()), (tries + 1, pause), stop);
        true
    }

    fn end(&mut self, place: usize, end: ChildEnd) {
        let started = self.started.get_or_insert_with(Started::new);
        started.running.push(Box::pin(std::future::ready((place, end))));
    }

    /// Drives a run inside after a pause.
    fn drive(
        &mut self,
        run: &Run,
        (place, child): (usize, Run),
        (tries, pause): (u32, Duration),
        stop: &CancellationToken,
    ) {
        let decided = run.task(place).map(|task| task.decisions()).unwrap_or_default();
        // A decision about its prompt is not one of its own.
        let pending = if decided.is_empty() { Vec::new() } else { child.pending() };
        let is_own = |id: &str| pending.iter().any(|request| request.id == id);
        let decisions = decided.iter().filter(|(id, _)| is_own(id)).cloned().collect();
        let attempts = run.attempts(place);
        let started = self.started.get_or_insert_with(Started::new);
        let teller = Teller { place, teller: started.teller.clone() };
        let (stop, clock) = (stop.clone(), Arc::clone(&self.clock));
        started.running.push(Box::pin(async move {
            if !pause.is_zero() {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return (place, ChildEnd::Stopped),
                    () = tokio::time::sleep(pause) => {}
                }
            }
            (place, drive(attempts, child, decisions, &teller, &stop, &clock, tries).await)
        }));
    }
}

/// Drives a run inside until it ends, waits, has failed as often as it may, or the time of an attempt is up.
async fn drive(
    attempts: Attempts,
    mut child: Run,
    mut decisions: Vec<(String, Decision)>,
    teller: &Teller,
    stop: &CancellationToken,
    clock: &Arc<dyn Clock + '_>,
    mut tries: u32,
) -> ChildEnd {
    let mut pauses = attempts.pauses().skip(tries as usize - 1);
    loop {
        let running = child
            .resume()
            .clock(Arc::clone(clock))
            .observe(teller.clone())
            .cancel_with(stop.clone())
            .decide_all(std::mem::take(&mut decisions))
            .into_future();
        let ended = match attempts.timeout {
            None => running.await,
            Some(timeout) => match tokio::time::timeout(timeout, running).await {
                Ok(ended) => ended,
                // How far it has come only the run around it knows.
                Err(_) => return ChildEnd::TimedOut(tries),
            },
        };
        let error = match ended {
            Ok(outcome) if matches!(outcome.exit(), Exit::Paused(Pause::Approval)) => return ChildEnd::Waits,
            Ok(_) => return ChildEnd::Ended,
            // The run around it has failed, which knows why.
            Err(error) if matches!(error.fault(), RunFault::Observer(_) | RunFault::Commit { .. }) => {
                return ChildEnd::Stopped;
            }
            Err(error) => error,
        };
        let Some(pause) = pauses.next() else {
            return ChildEnd::Failed { error: ErrorChain(&error).to_string(), tries };
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return ChildEnd::Stopped,
            () = tokio::time::sleep(pause) => {}
        }
        child = error.into_run();
        tries += 1;
    }
}

/// Tells the driver of the run around it what a run inside does, and waits until it has taken note of it.
#[derive(Clone)]
struct Teller {
    place: usize,
    teller: mpsc::Sender<Told>,
}

impl Observer for Teller {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        if let RunEvent::Ended(_) = event {
            return Ok(());
        }
        let (goes_on, answer) = oneshot::channel();
        let told = Told { place: self.place, event: event.clone(), goes_on };
        self.teller.send(told).await?;
        match answer.await? {
            true => Ok(()),
            false => Err("the run around it has failed".into()),
        }
    }
}
