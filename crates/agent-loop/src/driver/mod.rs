//! The driver: satisfies the needs of a run, on tokio, and notifies observers of every event before its commit.
//!
//! [`drive`] is the whole control flow of an agent.

mod attempts;
mod call_answers;
mod hooks;
mod model;
mod options;
mod redaction;
mod step;
mod step_event;
mod step_failure;
mod step_functions;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use stepfold_tools::CancellationToken;

pub use self::call_answers::{CallAnswer, CallAnswers, StartingCall};
pub use self::options::RunBuilder;
use self::redaction::DriverRedaction;
use self::step_failure::refusal;
pub use self::stream::RunStream;
use crate::agent::HookPoint;
use crate::approval::{Decision, DynApprover};
use crate::decisions::Decisions;
use crate::error::FeedError;
use crate::exit::{Breakpoint, Exit, Pause};
use crate::meter::{MeteredRequest, RequestEnd, RequestMeter};
use crate::observe::{DynObserver, Observer, ObserverError, RunEvent};
use crate::ports::Clock;
use crate::redact::{KeptOriginals, ReplyRedaction};
use crate::run::{Event, Run, RunAnswer, RunNeed};
use crate::run_error::RunFault;
use stepfold_state_core::chat::{ChatRequest, Message, NextAttempt};

/// Runs until the end, or until the run waits for decisions.
async fn drive(run: &mut Run, driver: &mut RunDriver<'_>) -> Result<Exit, RunFault> {
    if !driver.options.decisions.is_empty() {
        boxed(|| driver.commit_given_decisions(run)).await?;
    }
    loop {
        if driver.is_cancelled() && run.events() > 0 && run.exit().is_none() {
            boxed(|| driver.end_early(run, RunAnswer::Cancelled)).await?;
        }
        if let Some(breakpoint) = run.breakpoint(&driver.options.breakpoints) {
            let breakpoint = breakpoint.clone();
            run.stop_here();
            return Ok(Exit::Paused(Pause::Breakpoint(breakpoint)));
        }
        if driver.is_suspended(run) {
            return Ok(Exit::Paused(Pause::Suspended));
        }
        match run.decide() {
            RunNeed::Nothing(exit) => return Ok(exit),
            RunNeed::Model => boxed(|| driver.ask_model(run)).await?,
            RunNeed::Calls | RunNeed::Nodes => boxed(|| driver.run_step(run)).await?,
            need => {
                if let Some(pause) = boxed(|| driver.answer_need(run, need)).await? {
                    return Ok(Exit::Paused(pause));
                }
            }
        }
    }
}

/// Boxes a large future where it is made: on the stack, those of twenty nested agents would not fit.
#[inline(never)]
fn boxed<'f, T, F: Future<Output = T> + Send + 'f>(work: impl FnOnce() -> F) -> BoxFuture<'f, T> {
    Box::pin(work())
}

/// Returns the next message that the user has sent meanwhile, without waiting.
type SteeringInbox<'a> = Box<dyn FnMut() -> Option<Message> + Send + 'a>;

/// The options that a caller gives to a run: its observers, its approver, its inbox, and the tokens that stop it.
#[derive(Default)]
struct DriverOptions<'a> {
    /// The recorder, asked about commits before the observers. With one, observers cannot refuse them.
    recorder: Option<Box<dyn DynObserver + 'a>>,
    observers: Vec<Box<dyn DynObserver + 'a>>,
    approver: Option<Box<dyn DynApprover + 'a>>,
    /// Answers calls in place of the functions of their tools.
    call_answers: Option<Box<dyn CallAnswers + 'a>>,
    /// Decisions that were given with the run, until they are used.
    decisions: Decisions,
    breakpoints: Vec<Breakpoint>,
    cancellation: CancellationToken,
    /// Asks for a pause at the next boundary of steps.
    suspension: CancellationToken,
    /// Whether an upgrade is recorded only with what continues the run.
    upgrades_late: bool,
    inbox: Option<SteeringInbox<'a>>,
    metering: Metering,
    redaction: DriverRedaction,
}

/// The meter of requests to models, and the place at which the run is inside of others.
#[derive(Clone, Default)]
struct Metering {
    meter: Option<Arc<dyn RequestMeter>>,
    place: Vec<usize>,
}

/// A request under way with the id of its model, kept for further attempts.
struct KeptRequest(Option<(String, ChatRequest)>);

impl Metering {
    /// That of a run inside, at a place of this one.
    fn inside(&self, place: usize) -> Self {
        let place = self.place.iter().copied().chain([place]).collect();
        Metering { meter: self.meter.clone(), place }
    }

    async fn admit(&self, model: &str, request: &ChatRequest) -> Result<(), RunFault> {
        let Some(meter) = &self.meter else { return Ok(()) };
        meter.admit(MeteredRequest { place: &self.place, model, request }).await.map_err(RunFault::from)
    }

    /// The request, for further attempts; nothing without a meter.
    fn keep(&self, model: &str, request: &ChatRequest) -> KeptRequest {
        KeptRequest(self.meter.as_ref().map(|_| (model.to_owned(), request.clone())))
    }

    /// Ends a failed attempt, and admits the next one.
    async fn next_attempt(&self, request: &mut KeptRequest, next: &NextAttempt) -> Result<(), RunFault> {
        let Some((model, request)) = &mut request.0 else { return Ok(()) };
        if let Some(other) = &next.model {
            other.clone_into(model);
        }
        self.end(if next.failed_free { RequestEnd::Refused } else { RequestEnd::Lost }).await;
        self.admit(model, request).await
    }

    async fn end(&self, end: RequestEnd<'_>) {
        if let Some(meter) = &self.meter {
            meter.end(&self.place, end).await;
        }
    }
}

/// The driver of one run: its options, its clock, and where it took the run over.
struct RunDriver<'a> {
    options: DriverOptions<'a>,
    /// The step of the last reply that this driver received: its calls were checked against the tools of this process.
    replied: Option<u64>,
    /// The steps that the run had made when the driver took over.
    first_step: u64,
    clock: Arc<dyn Clock + 'a>,
    /// The time on the clock when the driver took over.
    started_at: Duration,
    /// The duration of the run until then.
    elapsed_before: Duration,
    /// The part of a reply that observers are not shown yet, since it may become sensitive.
    reply: ReplyRedaction,
}

impl<'a> RunDriver<'a> {
    /// The driver takes the run over as it is.
    fn new(run: &Run, options: DriverOptions<'a>, clock: Arc<dyn Clock + 'a>) -> Self {
        let (started_at, elapsed_before) = (clock.now(), run.elapsed());
        let (first_step, reply) = (run.steps(), ReplyRedaction::default());
        RunDriver { options, replied: None, first_step, clock, started_at, elapsed_before, reply }
    }

    fn elapsed(&self) -> Duration {
        self.elapsed_before + self.clock.now().saturating_sub(self.started_at)
    }

    /// The time that is left; none if there is no limit.
    fn time_left(&self, run: &Run) -> Option<Duration> {
        run.limits().time.map(|limit| limit.saturating_sub(self.elapsed()))
    }

    fn is_time_up(&self, run: &Run) -> bool {
        self.time_left(run).is_some_and(|left| left.is_zero())
    }

    fn is_cancelled(&self) -> bool {
        self.options.cancellation.is_cancelled()
    }

    /// Whether the run pauses here: a pause was asked for, and the next step would begin. One step is made in any case,
    /// so that a run that is suspended again and again ends.
    fn is_suspended(&self, run: &Run) -> bool {
        let is_boundary = |need| {
            matches!(
                need,
                RunNeed::Hook(HookPoint::BeforeModel)
                    | RunNeed::Summary(_)
                    | RunNeed::Model
                    | RunNeed::Superstep
            )
        };
        self.options.suspension.is_cancelled() && run.steps() > self.first_step && is_boundary(run.decide())
    }

    /// Whether the driver has nothing to continue a run with that waits, and that it would have to upgrade.
    fn only_looks(&self, run: &Run) -> bool {
        self.options.upgrades_late && run.waits_beside_upgrade() && self.options.approver.is_none()
    }

    /// Answers a need that is neither the model nor the work of a step. Returns the reason if the run waits.
    async fn answer_need(&mut self, run: &mut Run, need: RunNeed) -> Result<Option<Pause>, RunFault> {
        let answer = match need {
            RunNeed::Begin => RunAnswer::Begin,
            // NOTE: An agent that continues nothing is not recorded: two versions that look at a waiting run in turn would write an
            // event each time.
            RunNeed::Upgrade if self.only_looks(run) => {
                return Ok(Some(Pause::Approval));
            }
            RunNeed::Upgrade => RunAnswer::Upgrade,
            // The question shows the tool as it is listed now.
            RunNeed::Interrupted if run.lacks_tools() && !self.is_cancelled() => {
                return self.offer_all_tools(run).await.map(|()| None);
            }
            RunNeed::Interrupted => RunAnswer::Interrupted,
            RunNeed::Superstep => RunAnswer::Plan,
            // Decisions are checked against the tools of the step.
            RunNeed::Approval if run.lacks_tools() && self.options.approver.is_some() => {
                return self.offer_all_tools(run).await.map(|()| None);
            }
            RunNeed::Approval => match self.decisions(run).await {
                Some(decisions) => RunAnswer::Decisions(decisions),
                None if self.is_cancelled() => return Ok(None),
                None => return Ok(Some(Pause::Approval)),
            },
            RunNeed::Hook(HookPoint::BeforeModel) if self.commit_steering(run).await? => return Ok(None),
            RunNeed::Hook(HookPoint::AfterTool) => return self.run_pending_hook(run).await.map(|()| None),
            RunNeed::Hook(point) => return self.ask_hooks(run, point).await.map(|()| None),
            RunNeed::Summary(plan) => return self.summarize(run, &plan).await.map(|()| None),
            // They are done by `drive`.
            RunNeed::Model | RunNeed::Calls | RunNeed::Nodes | RunNeed::Nothing(_) => return Ok(None),
        };
        self.commit(run, answer).await.map(|()| None)
    }

    /// Commits the event of an answer, after the observers.
    async fn commit(&mut self, run: &mut Run, answer: RunAnswer) -> Result<(), RunFault> {
        let (event, kept) = self.event_of(run, answer)?;
        self.commit_event(run, event, kept).await
    }

    /// Notifies the observer of an event, and then commits it. After a [refusal](RunFault::Commit) nothing
    /// may be committed: the observer may have stored the event. After any other fault the event is
    /// committed.
    async fn commit_event(
        &mut self,
        run: &mut Run,
        event: Box<Event>,
        kept: KeptOriginals,
    ) -> Result<(), RunFault> {
        let dropped = run.view().dropped();
        let event = RunEvent::Committed(event);
        let observed = self.observe(&event).await;
        let RunEvent::Committed(event) = event else { return Ok(()) };
        // NOTE: A store that answers with an error may have the event anyway, after a lost connection for instance. To
        // commit anything after it could fork the record, so everything stops here.
        let notified = observed.map_err(|source| refusal(run, &event, source))?;
        run.follow(&event).map_err(RunFault::from)?;
        run.keep_originals(kept);
        notified?;
        if run.view().dropped() > dropped {
            let words = run.view().to_string();
            self.notify(|| RunEvent::Trimmed(words)).await?;
        }
        Ok(())
    }

    /// Records an event and notifies observers of it: an error if it must not be committed. The inner result is that of
    /// the passive observers.
    async fn observe(&mut self, event: &RunEvent) -> Result<Result<(), RunFault>, ObserverError> {
        if let Some(recorder) = &mut self.options.recorder {
            recorder.observe_boxed(event).await?;
        }
        match self.options.observers.observe(event).await {
            // NOTE: With a recorder the event is stored by now, so a passive observer can no longer prevent the commit.
            Err(source) if self.options.recorder.is_none() => Err(source),
            notified => Ok(notified.map_err(RunFault::Observer)),
        }
    }

    /// Ends the run early, if it is where it can be ended.
    async fn end_early(&mut self, run: &mut Run, answer: RunAnswer) -> Result<(), RunFault> {
        match run.decide() {
            // All that is left is to say good-bye.
            RunNeed::Hook(HookPoint::AfterRun) | RunNeed::Nothing(_) | RunNeed::Begin => Ok(()),
            // What has happened is heard of first. If a hook fails again, the result that it has not seen is withheld.
            RunNeed::Hook(HookPoint::AfterTool) => match self.run_pending_hook(run).await {
                Err(RunFault::Hook { .. } | RunFault::Feed(_)) => self.commit(run, answer).await,
                result => result,
            },
            _ => self.commit(run, answer).await,
        }
    }

    /// Notifies the observers of something that is not committed.
    async fn notify(&mut self, event: impl FnOnce() -> RunEvent) -> Result<(), RunFault> {
        match self.options.observers.is_empty() {
            true => Ok(()),
            false => self.notify_redacted(event()).await,
        }
    }

    /// Commits the decisions that were given with the run, before anything else happens: a failure must not lose them.
    async fn commit_given_decisions(&mut self, run: &mut Run) -> Result<(), RunFault> {
        let decisions = std::mem::take(&mut self.options.decisions);
        if self.is_cancelled() {
            return Ok(());
        }
        // Decisions are stored even if a server fails: answers and other arguments fit the question as it is recorded. A record of an
        // earlier version does not have the schema of a listed tool.
        let is_modified = |(id, decision): &(String, Decision)| {
            matches!(decision, Decision::Modify { .. }) && run.needs_tools_to_modify(id)
        };
        let needs_tools =
            decisions.decisions.iter().any(is_modified) || run.check_decisions(&decisions).is_err();
        if needs_tools {
            self.list_tools_again(run).await?;
        }
        if matches!(run.decide(), RunNeed::Upgrade) {
            run.check_decisions(&decisions).map_err(FeedError::from)?;
            self.commit(run, RunAnswer::Upgrade).await?;
        }
        self.commit(run, RunAnswer::Decisions(decisions)).await?;
        match needs_tools {
            true => Ok(()),
            false => self.list_tools_again(run).await,
        }
    }

    /// Lists the tools again: a server may have changed them since the question.
    async fn list_tools_again(&mut self, run: &mut Run) -> Result<(), RunFault> {
        self.offer_tools(run).await?;
        self.offer_all_tools(run).await
    }

    /// The approver's decisions about pending requests; `None` if there is nothing new.
    async fn decisions(&mut self, run: &Run) -> Option<Decisions> {
        let approver = self.options.approver.as_ref()?;
        let mut requests = run.pending();
        // No approver knows what comes from outside.
        requests.retain(|request| !request.is_later());
        if requests.is_empty() {
            return None;
        }
        let asked = self.clock.now();
        let decided = tokio::select! {
            biased;
            () = self.options.cancellation.cancelled() => Vec::new(),
            decided = approver.decide_boxed(requests) => decided,
        };
        // To wait for an approver is a pause, whether the process stays or not.
        // NOTE: The limit of time is for work: a decision may take a week.
        self.started_at += self.clock.now().saturating_sub(asked);
        (!decided.is_empty()).then(|| decided.into())
    }
}
