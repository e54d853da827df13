//! Attempts of the work inside of items: of the functions of nodes, and of the runs of agents that are tools or nodes.
//! Each is attempted as often, and as long, as its node says.
//!
//! A run inside is driven by the driver of agents. Its events are notices for the driver of the run around it, and it
//! continues when that has handled them.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use stepfold_state_core::ErrorChain;
use stepfold_tools::CancellationToken;
use tokio::sync::{mpsc, oneshot};

use super::Metering;
use super::redaction::DriverRedaction;
use super::step_event::{AttemptEnd, EndedAttempt, InnerNotice, StepEvent};
use crate::agent::{BranchEnd, Emitter, NotBegun};
use crate::approval::Decision;
use crate::exit::{Exit, Pause};
use crate::observe::{Observer, ObserverError, RunEvent};
use crate::outcome::Outcome;
use crate::planned::{NodeOutcome, NodeStatus};
use crate::ports::Clock;
use crate::run::Run;
use crate::run_error::{RunError, RunFault};

/// The capacity of the channel for notices. Functions and inner runs wait while it is full.
const QUEUE: usize = 64;

/// The attempts of the work inside of a step's items.
pub(super) struct AttemptPool<'a> {
    /// Created for the first one: most steps have none.
    started: Option<RunningAttempts<'a>>,
    clock: Arc<dyn Clock + 'a>,
    /// That of the run around them.
    metering: Metering,
    redaction: DriverRedaction,
}

/// The attempts that were started, and the channel for their notices.
struct RunningAttempts<'a> {
    running: FuturesUnordered<BoxFuture<'a, EndedAttempt>>,
    notices: mpsc::Receiver<InnerNotice>,
    sender: mpsc::Sender<InnerNotice>,
}

impl RunningAttempts<'_> {
    fn new() -> Self {
        let (sender, notices) = mpsc::channel(QUEUE);
        RunningAttempts { running: FuturesUnordered::new(), notices, sender }
    }
}

impl<'a> AttemptPool<'a> {
    pub(super) fn new(clock: Arc<dyn Clock + 'a>, metering: Metering, redaction: DriverRedaction) -> Self {
        AttemptPool { started: None, clock, metering, redaction }
    }

    /// The next notice, or the next end, with those of functions that end at the same moment; `None` if nothing is
    /// work. Cancel-safe: a dropped future loses nothing.
    pub(super) async fn next(&mut self) -> Option<StepEvent> {
        let RunningAttempts { running, notices, .. } = self.started.as_mut()?;
        let first = tokio::select! {
            biased;
            Some(notice) = notices.recv() => return Some(StepEvent::Notice(notice)),
            Some(first) = running.next() => first,
            else => return None,
        };
        let mut ended = vec![first];
        // What is said in the moment of an end comes before the next one.
        while notices.is_empty()
            && ended.last().is_some_and(|ended| !ended.end.is_of_run())
            && let Some(Some(next)) = running.next().now_or_never()
        {
            ended.push(next);
        }
        Some(StepEvent::AttemptsEnded(ended))
    }

    /// The next notice that is there already.
    pub(super) fn try_notice(&mut self) -> Option<InnerNotice> {
        self.started.as_mut()?.notices.try_recv().ok()
    }

    /// Starts the inner work of these items, until `stop` is cancelled.
    pub(super) fn start(&mut self, run: &Run, places: &[usize], stop: &CancellationToken) {
        for place in places {
            self.attempt(run, *place, (1, Duration::ZERO), stop);
        }
    }

    /// Starts an attempt after a pause, of a run from where it is by now; nothing for a call without an agent inside.
    pub(super) fn attempt(
        &mut self,
        run: &Run,
        place: usize,
        (tries, pause): (u32, Duration),
        stop: &CancellationToken,
    ) {
        let Some(task) = run.task(place) else { return };
        // Work that it has delegated checks the token, also after its timeout.
        let own = stop.child_token();
        let work = match (run.inside(task), run.planner()) {
            (Some(inside), _) => {
                let child = match run.inside_of(place) {
                    Some(child) => Ok(child.clone()),
                    None => run.begin_inner_run(task, inside),
                };
                match child {
                    Ok(child) => {
                        AttemptFuture::Run(self.drive_inner_run(place, child, &task.decisions(), own.clone()))
                    }
                    Err(begun) => AttemptFuture::NotBegun(begun),
                }
            }
            (None, Some(planner)) => {
                let emitter = emitter(place, self.notice_sender());
                AttemptFuture::Function(Arc::clone(planner).call(task.branch(), own.clone(), emitter))
            }
            (None, None) => return,
        };
        let (attempts, stop) = (run.attempts(place), stop.clone());
        self.started().running.push(Box::pin(async move {
            let is_stopped = tries > 1
                && tokio::select! {
                    biased;
                    () = stop.cancelled() => true,
                    () = tokio::time::sleep(pause) => false,
                };
            let end = match attempts.timeout {
                _ if is_stopped => AttemptEnd::Stopped,
                None => work.end(&stop).await,
                // How far a run has come only the run around it knows.
                Some(timeout) => tokio::time::timeout(timeout, work.end(&stop)).await.unwrap_or_else(|_| {
                    own.cancel();
                    AttemptEnd::Failed(NodeStatus::TimedOut, attempts.too_long())
                }),
            };
            EndedAttempt { place, tries, end }
        }));
    }

    fn drive_inner_run(
        &mut self,
        place: usize,
        child: Run,
        decisions: &[(String, Decision)],
        stop: CancellationToken,
    ) -> BoxFuture<'a, Result<Outcome, RunError>> {
        let decisions = own_decisions(&child, decisions);
        let running = child.resume().clock(Arc::clone(&self.clock)).cancel_with(stop).decide_all(decisions);
        let running = running.metering(self.metering.inside(place)).redaction(self.redaction.clone());
        running.observe(NoticeSender { place, notice_sender: self.notice_sender() }).into_future()
    }

    fn notice_sender(&mut self) -> mpsc::Sender<InnerNotice> {
        self.started().sender.clone()
    }

    fn started(&mut self) -> &mut RunningAttempts<'a> {
        self.started.get_or_insert_with(RunningAttempts::new)
    }
}

/// The future of an attempt.
enum AttemptFuture<'a> {
    Run(BoxFuture<'a, Result<Outcome, RunError>>),
    Function(BoxFuture<'static, BranchEnd>),
    NotBegun(NotBegun),
}

impl AttemptFuture<'_> {
    /// Waits until the attempt ends, waits or fails. A function is dropped when it is stopped; a run ends by itself.
    async fn end(self, stop: &CancellationToken) -> AttemptEnd {
        match self {
            AttemptFuture::Run(running) => match running.await {
                Ok(outcome) if matches!(outcome.exit(), Exit::Paused(Pause::Approval)) => AttemptEnd::Waits,
                Ok(_) => AttemptEnd::Ended,
                // The run around it has failed, which knows why.
                Err(error) if matches!(error.fault(), RunFault::Observer(_) | RunFault::Commit { .. }) => {
                    AttemptEnd::Stopped
                }
                // It is not its failure: the whole run stops, and continues with that request.
                Err(error) if matches!(error.fault(), RunFault::Budget(_) | RunFault::Meter(_)) => {
                    AttemptEnd::Unmetered(error.into_fault())
                }
                Err(error) => AttemptEnd::Failed(NodeStatus::Failed, ErrorChain(&error).to_string()),
            },
            AttemptFuture::Function(called) => tokio::select! {
                biased;
                () = stop.cancelled() => AttemptEnd::Stopped,
                end = called => match end {
                    BranchEnd::Outcome(outcome) => AttemptEnd::Outcome(outcome),
                    BranchEnd::Failed(error) => AttemptEnd::Failed(NodeStatus::Failed, error),
                    BranchEnd::Asks(request) => AttemptEnd::Asks(request),
                },
            },
            AttemptFuture::NotBegun(NotBegun::Asks(request)) => AttemptEnd::Asks(request),
            // To begin once more would give the same.
            AttemptFuture::NotBegun(NotBegun::Failed(error)) => {
                AttemptEnd::Outcome(NodeOutcome::failed(NodeStatus::Failed, error, 1))
            }
        }
    }
}

/// The decisions about requests of the run inside itself: one about its prompt is not.
fn own_decisions(child: &Run, decided: &[(String, Decision)]) -> Vec<(String, Decision)> {
    if decided.is_empty() {
        return Vec::new();
    }
    let pending = child.pending();
    let is_own = |id: &str| pending.iter().any(|request| request.id == id);
    decided.iter().filter(|(id, _)| is_own(id)).cloned().collect()
}

fn emitter(place: usize, notice_sender: mpsc::Sender<InnerNotice>) -> Emitter {
    Emitter::new(move |kind, value| {
        let notice_sender = notice_sender.clone();
        Box::pin(async move {
            // The receiver may be gone when the run is torn down.
            let _ = notice_sender.send(InnerNotice::Output { place, kind, value }).await;
        })
    })
}

/// Sends the events of an inner run to the driver of the run around it, and waits until that has handled them.
struct NoticeSender {
    place: usize,
    notice_sender: mpsc::Sender<InnerNotice>,
}

impl Observer for NoticeSender {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        // NOTE: The end of an inner run is the end of its attempt, which the driver around it receives anyway.
        if let RunEvent::Ended(_) = event {
            return Ok(());
        }
        let (acknowledge, answer) = oneshot::channel();
        let notice = InnerNotice::Inner { place: self.place, event: event.clone(), acknowledge };
        self.notice_sender.send(notice).await?;
        // NOTE: An inner run continues only after its commit is stored by the run around it.
        match answer.await? {
            true => Ok(()),
            false => Err("the run around it has failed".into()),
        }
    }
}
