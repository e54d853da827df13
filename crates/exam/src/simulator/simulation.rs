//! The simulator: runs an agent once for each point at which its run can end.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use stepfold_agent_loop::{
    Agent, ApprovalRequest, AskReason, Breakpoint, Clock, Decision, Decisions, Event, Exit, Input, Outcome,
    Pause, Run, RunBuilder, RunFault,
};

use super::comparison::{RunSegment, SimulatedRun, compare};
use super::effect_ledger::EffectLedger;
use super::failing_observer::{FailingObserver, ObserverStop};
use super::{RUN_ID, json_of, same};
use crate::executions::Executions;

/// Runs an agent or a graph uninterrupted, and then again with an end at every point where a process can end, and
/// checks that the result is the same.
///
/// Model, tools, hooks, nodes and routers have to be deterministic; a [`Script`](stepfold_agent_loop::test_kit::Script) is. Tools and
/// nodes that note their [executions](Executions) are counted. Nothing is waited for but what these wait for, and the
/// clock of the runs stands still.
///
/// The points, for every event of the uninterrupted run, those of runs inside among them:
/// - stopped *after* the event: the run is serialised, loaded, and resumed;
/// - *folded*: the events up to it are committed to a fresh run, as a store does, and that is resumed. Both have
///   to be the same, byte for byte;
/// - the observer fails *before* the event is stored: its cause has happened, without a record;
/// - the observer fails *after* the event is stored, and what was in memory is lost.
///
/// And for every notice of calls and nodes under way: the observer fails once, which loses nothing.
///
/// And once: stopped by a breakpoint before every request to the model, every call and every node, each time
/// serialised.
///
/// The checks of each:
/// - The conversation passes [`check`](stepfold_state_core::chat::Transcript::check); folding all events over the
///   first state gives the last one; a [replay](stepfold_agent_loop::Recording::replay) gives the same digest.
/// - Unless something was interrupted that must not run twice, the whole run at its end (state, conversation, exit,
///   counts, and of a graph that failed all its branches) is byte for byte the uninterrupted one, each request to a
///   model was the same, also those of runs inside, and every call and every branch was executed as often,
///   but for those that were under way at the end: these were executed once more at most, under the same key.
/// - Where the failure of a call ends the uninterrupted run (it is [raised](stepfold_agent_loop::AgentBuilder::raise_on_failure), or
///   fatal), a run that was ended after it continues; its conversation begins with that of the uninterrupted one. An
///   agent that is a node or a tool must not have such calls: what is around it may go one way or the other then.
/// - A call or a function node that [must not run twice](stepfold_tools::Effect::AtMostOnce) was executed once at most,
///   and once more each time that it asked. If it was under way, its outcome is unknown; up to there conversation, writes
///   and requests are those of the uninterrupted run, and so are the requests of agents that ran beside it, and of those
///   that came after it in the same reply and began with the same values. A call whose outcome is unknown writes nothing,
///   so that one that reads what it writes may begin with others. What the model or the graph makes of it is its own
///   affair.
///
/// A graph is simulated as `graph.agent()`. Tools that a run inside asks for again
/// at each step are taken to be run at most once, and agents among such tools to share no values.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::Agent;
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_exam::{Executions, Simulator};
/// use stepfold_tools::{Tool, ToolContext, ToolError};
///
/// let executions = Executions::new();
/// let counter = executions.clone();
/// let pay = Tool::new("pay", "Pays the open bill.", move |context: ToolContext| {
///     counter.note(&context);
///     async move { Ok::<_, ToolError>("paid") }
/// });
/// let model = Script::parse("assistant: > c1 pay()\nassistant: That is done.")?;
/// let agent = Agent::builder(model).tools([pay.build()?]).build()?;
///
/// let simulated = Simulator::new(&agent).counting(&executions).check("Pay the bill.").await?;
/// assert_eq!(simulated.outcome().text(), "That is done.");
/// // Four events: begun, replied, started, answered; and the reply at the end.
/// assert_eq!((simulated.events(), simulated.runs() > 20), (5, true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Simulator<'a> {
    agent: &'a Agent,
    executions: Executions,
    decide: Arc<DecideFunction>,
    seed: u64,
}

type DecideFunction = dyn Fn(&ApprovalRequest) -> Decision + Send + Sync;

/// The result of a simulation without a failure.
#[derive(Clone, Debug)]
pub struct SimulationReport {
    outcome: Outcome,
    events: usize,
    runs: usize,
    interrupted: usize,
}

impl SimulationReport {
    /// The outcome of the uninterrupted run; a partial one if it failed.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The number of events of the uninterrupted run.
    pub fn events(&self) -> usize {
        self.events
    }

    /// The number of runs that were compared with it.
    pub fn runs(&self) -> usize {
        self.runs
    }

    /// The number of runs in which a call was interrupted that must not run twice.
    pub fn interrupted(&self) -> usize {
        self.interrupted
    }
}

/// A run whose result differs. It names the point of interruption, the seed, and the difference.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed}, {point}: {what}")]
pub struct SimulationError {
    seed: u64,
    point: InterruptionPoint,
    what: String,
}

/// The point at which a run was interrupted. Events are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InterruptionPoint {
    Nowhere,
    After(usize),
    Folded(usize),
    FailedBefore(usize),
    FailedAfter(usize),
    Told(usize),
    EveryBreakpoint,
}

impl fmt::Display for InterruptionPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InterruptionPoint::Nowhere => f.write_str("uninterrupted"),
            InterruptionPoint::After(event) => write!(f, "stopped after event {event}"),
            InterruptionPoint::Folded(event) => write!(f, "folded up to event {event}"),
            InterruptionPoint::FailedBefore(event) => write!(f, "died before event {event} was stored"),
            InterruptionPoint::FailedAfter(event) => write!(f, "died after event {event} was stored"),
            InterruptionPoint::Told(word) => {
                write!(f, "the observer failed when it was told for the {word}. time")
            }
            InterruptionPoint::EveryBreakpoint => f.write_str("stopped at every breakpoint"),
        }
    }
}

/// The maximum number of stops: a run that never ends is a fault, too.
const MOST_STOPS: usize = 10_000;

impl<'a> Simulator<'a> {
    /// A simulator of this agent, which approves all calls and has those not run again that may have happened.
    pub fn new(agent: &'a Agent) -> Self {
        let decide = |request: &ApprovalRequest| match request.reason {
            AskReason::MayHaveHappened => Decision::reject("it may have happened"),
            AskReason::Later => Decision::complete("it came"),
            _ => Decision::Approve,
        };
        Simulator { agent, executions: Executions::new(), decide: Arc::new(decide), seed: 0 }
    }

    /// Counts the executions that tools note here.
    #[must_use]
    pub fn counting(mut self, executions: &Executions) -> Self {
        self.executions = executions.clone();
        self
    }

    /// Sets the decisions about calls, which must be the same for the same request.
    #[must_use]
    pub fn deciding(mut self, decide: impl Fn(&ApprovalRequest) -> Decision + Send + Sync + 'static) -> Self {
        self.decide = Arc::new(decide);
        self
    }

    /// Sets the seed that agent and input were generated from, for the text of a failure.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Runs the agent on this input as often as there are points to end at.
    ///
    /// # Errors
    /// [`SimulationError`] for the first run whose result differs.
    pub async fn check(&self, input: impl Into<Input>) -> Result<SimulationReport, SimulationError> {
        let input = input.into();
        let at = |point| move |what| SimulationError { seed: self.seed, point, what };
        let whole = self.uninterrupted(&input).await.map_err(at(InterruptionPoint::Nowhere))?;
        let mut simulated = SimulationReport {
            outcome: whole.outcome.clone(),
            events: whole.events.len(),
            runs: 0,
            interrupted: 0,
        };
        for event in 0..=whole.events.len() {
            let points = [InterruptionPoint::After(event), InterruptionPoint::Folded(event)];
            let failing = [InterruptionPoint::FailedBefore(event), InterruptionPoint::FailedAfter(event)];
            let failing = failing.into_iter().filter(|_| event > 0);
            for point in points.into_iter().chain(failing) {
                let ended = self.ended_at(point, &input, &whole).await.map_err(at(point))?;
                simulated.runs += 1;
                simulated.interrupted += usize::from(ended.was_interrupted());
            }
        }
        for word in 1..=whole.words {
            let point = InterruptionPoint::Told(word);
            self.ended_at(point, &input, &whole).await.map_err(at(point))?;
            simulated.runs += 1;
        }
        self.check_with_breakpoints(&input, &whole).await.map_err(at(InterruptionPoint::EveryBreakpoint))?;
        simulated.runs += 1;
        Ok(simulated)
    }

    fn fresh(&self, input: &Input) -> Result<Run, String> {
        Run::new(self.agent, input.clone(), RUN_ID).map_err(|error| error.to_string())
    }

    async fn uninterrupted(&self, input: &Input) -> Result<SimulatedRun, String> {
        let start = self.fresh(input)?;
        self.executions.take();
        let segment = self.segment(start.clone(), ObserverStop::Never, &[]).await?;
        let ended = SimulatedRun::of(start, vec![segment], self.executions.take());
        ended.check()?;
        Ok(ended)
    }

    /// A run with an end at this point, compared with the uninterrupted one.
    async fn ended_at(
        &self,
        point: InterruptionPoint,
        input: &Input,
        whole: &SimulatedRun,
    ) -> Result<SimulatedRun, String> {
        let start = self.fresh(input)?;
        let stop = match point {
            InterruptionPoint::After(event) | InterruptionPoint::Folded(event) => ObserverStop::After(event),
            InterruptionPoint::FailedBefore(event) => ObserverStop::Before(event),
            InterruptionPoint::FailedAfter(event) => ObserverStop::Stored(event),
            InterruptionPoint::Told(word) => ObserverStop::Told(word),
            InterruptionPoint::Nowhere | InterruptionPoint::EveryBreakpoint => ObserverStop::Never,
        };
        self.executions.take();
        let first = self.segment(start.clone(), stop, &[]).await?;
        let folded = folded(start.clone(), &first.stored)?;
        let stopped = match point {
            InterruptionPoint::After(_) | InterruptionPoint::FailedBefore(_) | InterruptionPoint::Told(_) => {
                first.outcome.run().to_json()
            }
            _ => folded.to_json(),
        };
        same("the run at its end", &folded.to_json(), &stopped)?;
        let loaded = Run::load(self.agent, &stopped).map_err(|error| error.to_string())?;
        same("the run that was loaded", &stopped, &loaded.to_json())?;
        let second = self.segment(loaded, ObserverStop::Never, &first.stored).await?;
        let mut ended = SimulatedRun::of(start, vec![first, second], self.executions.take());
        ended.check()?;
        if let InterruptionPoint::Told(_) = point {
            ended.check_nothing_lost()?;
        }
        compare(&ended, whole)?;
        Ok(ended)
    }

    /// A run that stops before each request and each call, and is stored each time.
    async fn check_with_breakpoints(&self, input: &Input, whole: &SimulatedRun) -> Result<(), String> {
        let start = self.fresh(input)?;
        let tools = self.agent.tools().cloned().unwrap_or_default();
        let breakpoints = tools.names().map(|tool| Breakpoint::tool(tool).every());
        let nodes = self.agent.planner().map(|planner| planner.names().to_vec()).unwrap_or_default();
        let nodes = nodes.into_iter().map(|node| Breakpoint::node(node).every());
        let breakpoints: Vec<Breakpoint> =
            [Breakpoint::model().every()].into_iter().chain(breakpoints).chain(nodes).collect();
        self.executions.take();
        let (mut segments, mut run) = (Vec::<RunSegment>::new(), start.clone());
        loop {
            let before: Vec<Event> = segments.iter().flat_map(|segment| segment.stored.clone()).collect();
            let segment = self.segment(run, ObserverStop::At(breakpoints.clone()), &before).await?;
            let is_paused = matches!(segment.outcome.exit(), Exit::Paused(Pause::Breakpoint(_)));
            let stopped = segment.outcome.run().to_json();
            segments.push(segment);
            if !is_paused {
                break;
            }
            if segments.len() > MOST_STOPS {
                return Err("the run never ends".to_owned());
            }
            run = Run::load(self.agent, &stopped).map_err(|error| error.to_string())?;
        }
        let ended = SimulatedRun::of(start, segments, self.executions.take());
        ended.check()?;
        same("the exit", &whole.words(), &ended.words())?;
        same("the state", &json_of(whole.state()), &json_of(ended.state()))?;
        same("the executions", &whole.executions, &ended.executions)
    }

    /// Continues with a run, after the events that it has, until it ends, or is ended.
    async fn segment(&self, run: Run, stop: ObserverStop, before: &[Event]) -> Result<RunSegment, String> {
        let mut watch = FailingObserver::new(stop.clone(), EffectLedger::of(self.agent, before));
        let decide = |requests: Vec<ApprovalRequest>| {
            let decided = requests.into_iter().map(|request| {
                let decision = (self.decide)(&request);
                (request.id, decision)
            });
            std::future::ready(decided.collect::<Vec<_>>())
        };
        let (mut run, mut later) = (run, Decisions::new());
        let ended = loop {
            let mut going =
                run.resume().clock(FrozenClock).approve_with(decide).observe(&mut watch).decide_all(later);
            if let ObserverStop::At(breakpoints) = &stop {
                going = breakpoints.iter().cloned().fold(going, RunBuilder::break_at);
            }
            let ended = going.await;
            // Outcomes that come later come when nothing else is left to do.
            later = match &ended {
                Ok(outcome) if *outcome.exit() == Exit::Paused(Pause::Approval) => {
                    self.later_decisions(outcome.run())
                }
                _ => Decisions::new(),
            };
            match ended {
                Ok(outcome) if !later.is_empty() => run = outcome.into_run(),
                ended => break ended,
            }
        };
        let mut is_raised = false;
        let (outcome, fault) = match ended {
            Ok(outcome) => (outcome, None),
            Err(error) => {
                is_raised = matches!(error.fault(), RunFault::Tool(_));
                let fault = match error.fault() {
                    RunFault::Observer(_) | RunFault::Commit { .. } => None,
                    fault => Some(fault.to_string()),
                };
                (error.outcome().clone(), fault)
            }
        };
        let FailingObserver { stored, words, asked, under_way, .. } = watch;
        Ok(RunSegment { outcome, fault, is_raised, stored, words, asked, under_way })
    }
}

impl Simulator<'_> {
    /// The outcomes that a run waits for.
    fn later_decisions(&self, run: &Run) -> Decisions {
        let later = run.pending().into_iter().filter(ApprovalRequest::is_later);
        later.map(|request| (request.id.clone(), (self.decide)(&request))).collect::<Vec<_>>().into()
    }
}

impl fmt::Debug for Simulator<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulator")
            .field("agent", &self.agent)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// Time stands still.
// NOTE: Durations are parts of events, and runs are compared byte for byte.
struct FrozenClock;

impl Clock for FrozenClock {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn time_of_day(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }
}

/// A fresh run with the events of a store.
fn folded(mut run: Run, events: &[Event]) -> Result<Run, String> {
    for event in events {
        // As they come out of a store.
        let stored = json_of(event);
        let event = serde_json::from_str(&stored).map_err(|error| error.to_string())?;
        run.commit(event).map_err(|error| format!("a stored event does not fit: {error}"))?;
    }
    Ok(run)
}
