//! The simulator: it runs an agent, and then again and again with an end in the middle.
//!
//! What would surprise a reader: a run is not torn down from outside but by its own observer, which fails. An
//! observer is told of everything before it happens, so wherever a process can die there is a moment at which
//! the observer can fail.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use stepfold_state_core::state::State;
use stepfold_tools::Effect;

use super::executions::{Execution, Executions};
use crate::agent::Agent;
use crate::approval::{ApprovalRequest, AskReason, Decision};
use crate::driver::RunBuilder;
use crate::error::RunFault;
use crate::observe::{Observer, ObserverError, RunEvent};
use crate::outcome::Outcome;
use crate::ports::Clock;
use crate::replay::Recording;
use crate::run::{Breakpoint, Event, EventKind, Exit, Input, Pause, Run};

/// Runs an agent uninterrupted, and then again with an end at every point where a process can end, and checks
/// that it comes to the same.
///
/// Model, tools and hooks have to be deterministic; a [`Script`](super::Script) is. Tools that note their
/// [executions](Executions) are counted. Nothing is waited for but what the tools wait for, and the clock of the
/// runs stands still.
///
/// The points, for every event of the uninterrupted run:
/// - stopped *after* the event: the run is serialised, loaded, and resumed;
/// - *folded*: the events up to it are committed to a fresh run, as a store does, and that is resumed. Both have
///   to be the same, byte for byte;
/// - the observer fails *before* the event is stored: whatever led to it has happened, and nobody knows;
/// - the observer fails *after* the event is stored, and what was in memory is lost.
///
/// And once: stopped by a breakpoint before every request to the model and every call, each time serialised.
///
/// What is checked of each:
/// - The conversation passes [`check`](stepfold_state_core::chat::Transcript::check); folding all events over the
///   first state gives the last one; a [replay](Recording::replay) gives the same digest.
/// - Unless a call was interrupted that must not run twice, the whole run at its end (state, conversation, exit,
///   counts) is byte for byte the uninterrupted one, each request to the model was the same, and every call was
///   executed as often, but for those that were under way at the end: these were executed once more at most,
///   under the same key.
/// - Where the failure of a call ends the uninterrupted run (it is [raised](crate::AgentBuilder::raise_on_failure), or
///   fatal), a run that was ended behind it goes on; its conversation begins with that of the uninterrupted one.
/// - A call that [must not run twice](Effect::AtMostOnce) was executed once at most. If it was under way it is
///   answered as unknown; up to there the conversation is that of the uninterrupted run. What the model makes of
///   it is its own affair.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::Agent;
/// use stepfold_agent_loop::test_kit::{Executions, Script, Simulator};
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
    decide: Arc<Decide>,
    seed: u64,
}

type Decide = dyn Fn(&ApprovalRequest) -> Decision + Send + Sync;

/// What came of a simulation in which nothing was wrong.
#[derive(Clone, Debug)]
pub struct Simulated {
    outcome: Outcome,
    events: usize,
    runs: usize,
    interrupted: usize,
}

impl Simulated {
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

/// A run that did not come to the same. It says where it ended in the middle, under which seed, and what differs.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed}, {point}: {what}")]
pub struct SimulationError {
    seed: u64,
    point: Point,
    what: String,
}

/// Where a run was ended. Events are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    Nowhere,
    After(usize),
    Folded(usize),
    FailedBefore(usize),
    FailedAfter(usize),
    EveryBreakpoint,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Point::Nowhere => f.write_str("uninterrupted"),
            Point::After(event) => write!(f, "stopped after event {event}"),
            Point::Folded(event) => write!(f, "folded up to event {event}"),
            Point::FailedBefore(event) => write!(f, "died before event {event} was stored"),
            Point::FailedAfter(event) => write!(f, "died after event {event} was stored"),
            Point::EveryBreakpoint => f.write_str("stopped at every breakpoint"),
        }
    }
}

const RUN_ID: &str = "simulated";
/// More stops than any run has points: a run that never ends is a fault, too.
const MOST_STOPS: usize = 10_000;

impl<'a> Simulator<'a> {
    /// A simulator of this agent, which approves all calls and has those not run again that may have happened.
    pub fn new(agent: &'a Agent) -> Self {
        let decide = |request: &ApprovalRequest| match request.reason {
            AskReason::MayHaveHappened => Decision::reject("it may have happened"),
            AskReason::Rule | AskReason::Node => Decision::Approve,
        };
        Simulator { agent, executions: Executions::new(), decide: Arc::new(decide), seed: 0 }
    }

    /// With tools that note their executions here.
    #[must_use]
    pub fn counting(mut self, executions: &Executions) -> Self {
        self.executions = executions.clone();
        self
    }

    /// With these decisions about calls, which have to be the same for the same request.
    #[must_use]
    pub fn deciding(mut self, decide: impl Fn(&ApprovalRequest) -> Decision + Send + Sync + 'static) -> Self {
        self.decide = Arc::new(decide);
        self
    }

    /// With the seed that agent and input were generated from, to be told with a failure.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Runs the agent on this input as often as there are points to end at.
    ///
    /// # Errors
    /// [`SimulationError`] for the first run that did not come to the same.
    pub async fn check(&self, input: impl Into<Input>) -> Result<Simulated, SimulationError> {
        let input = input.into();
        let at = |point| move |what| SimulationError { seed: self.seed, point, what };
        let whole = self.uninterrupted(&input).await.map_err(at(Point::Nowhere))?;
        let mut simulated =
            Simulated { outcome: whole.outcome.clone(), events: whole.events.len(), runs: 0, interrupted: 0 };
        for event in 0..=whole.events.len() {
            let points = [Point::After(event), Point::Folded(event)];
            let failing = [Point::FailedBefore(event), Point::FailedAfter(event)];
            let failing = failing.into_iter().filter(|_| event > 0);
            for point in points.into_iter().chain(failing) {
                let ended = self.ended_at(point, &input, &whole).await.map_err(at(point))?;
                simulated.runs += 1;
                simulated.interrupted += usize::from(ended.was_interrupted());
            }
        }
        self.stepped(&input, &whole).await.map_err(at(Point::EveryBreakpoint))?;
        simulated.runs += 1;
        Ok(simulated)
    }

    fn fresh(&self, input: &Input) -> Result<Run, String> {
        Run::new(self.agent, input.clone(), RUN_ID).map_err(|error| error.to_string())
    }

    async fn uninterrupted(&self, input: &Input) -> Result<Ended, String> {
        let start = self.fresh(input)?;
        self.executions.take();
        let leg = self.leg(start.clone(), Stop::Never).await?;
        let ended = Ended::of(start, vec![leg], self.executions.take());
        ended.check()?;
        Ok(ended)
    }

    /// A run with an end at this point, compared with the uninterrupted one.
    async fn ended_at(&self, point: Point, input: &Input, whole: &Ended) -> Result<Ended, String> {
        let start = self.fresh(input)?;
        let stop = match point {
            Point::After(event) | Point::Folded(event) => Stop::After(event),
            Point::FailedBefore(event) => Stop::Before(event),
            Point::FailedAfter(event) => Stop::Stored(event),
            Point::Nowhere | Point::EveryBreakpoint => Stop::Never,
        };
        self.executions.take();
        let first = self.leg(start.clone(), stop).await?;
        let folded = folded(start.clone(), &first.stored)?;
        let stopped = match point {
            Point::After(_) | Point::FailedBefore(_) => first.outcome.run().to_json(),
            _ => folded.to_json(),
        };
        same("the run at its end", &folded.to_json(), &stopped)?;
        let loaded = Run::load(self.agent, &stopped).map_err(|error| error.to_string())?;
        same("the run that was loaded", &stopped, &loaded.to_json())?;
        let second = self.leg(loaded, Stop::Never).await?;
        let ended = Ended::of(start, vec![first, second], self.executions.take());
        ended.check()?;
        compare(&ended, whole)?;
        Ok(ended)
    }

    /// A run that stops before each request and each call, and is stored each time.
    async fn stepped(&self, input: &Input, whole: &Ended) -> Result<(), String> {
        let start = self.fresh(input)?;
        let tools = self.agent.static_offer().map(|offer| offer.tools.clone()).unwrap_or_default();
        let breakpoints = tools.names().map(|tool| Breakpoint::tool(tool).every());
        let breakpoints: Vec<Breakpoint> =
            [Breakpoint::model().every()].into_iter().chain(breakpoints).collect();
        self.executions.take();
        let (mut legs, mut run) = (Vec::new(), start.clone());
        loop {
            let leg = self.leg(run, Stop::At(breakpoints.clone())).await?;
            let is_paused = matches!(leg.outcome.exit(), Exit::Paused(Pause::Breakpoint(_)));
            let stopped = leg.outcome.run().to_json();
            legs.push(leg);
            if !is_paused {
                break;
            }
            if legs.len() > MOST_STOPS {
                return Err("the run never ends".to_owned());
            }
            run = Run::load(self.agent, &stopped).map_err(|error| error.to_string())?;
        }
        let ended = Ended::of(start, legs, self.executions.take());
        ended.check()?;
        same("the exit", &whole.words(), &ended.words())?;
        same("the state", &json_of(whole.state()), &json_of(ended.state()))?;
        same("the executions", &whole.executions, &ended.executions)
    }

    /// Goes on with a run until it ends, or is ended.
    async fn leg(&self, run: Run, stop: Stop) -> Result<Leg, String> {
        let mut watch = Watch { stop: stop.clone(), ..Watch::default() };
        let decide = |requests: Vec<ApprovalRequest>| {
            let decided = requests.into_iter().map(|request| {
                let decision = (self.decide)(&request);
                (request.id, decision)
            });
            std::future::ready(decided.collect::<Vec<_>>())
        };
        let mut going = run.resume().clock(Still).approve_with(decide).observe(&mut watch);
        if let Stop::At(breakpoints) = stop {
            going = breakpoints.into_iter().fold(going, RunBuilder::break_at);
        }
        let mut is_raised = false;
        let (outcome, fault) = match going.await {
            Ok(outcome) => (outcome, None),
            Err(error) => {
                is_raised = matches!(error.fault(), RunFault::Tool(_));
                let fault = match error.fault() {
                    RunFault::Observer(_) => None,
                    fault => Some(chain(fault)),
                };
                (error.outcome().clone(), fault)
            }
        };
        let Watch { stored, asked, under_way, .. } = watch;
        Ok(Leg { outcome, fault, is_raised, stored, asked, under_way })
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

/// When the observer fails.
#[derive(Clone, Debug, Default)]
enum Stop {
    #[default]
    Never,
    /// At the first word after this many events.
    After(usize),
    /// When it is told of this event, which it does not store.
    Before(usize),
    /// When it is told of this event, which it has stored.
    Stored(usize),
    /// Never; breakpoints stop the run.
    At(Vec<Breakpoint>),
}

/// Stores events, until it fails.
#[derive(Debug, Default)]
struct Watch {
    stop: Stop,
    stored: Vec<Event>,
    asked: BTreeMap<u64, String>,
    under_way: BTreeSet<String>,
}

impl Observer for Watch {
    async fn observe(&mut self, told: &RunEvent) -> Result<(), ObserverError> {
        let is_event = told.committed().is_some();
        let number = self.stored.len() + 1;
        match self.stop {
            Stop::After(event) if number > event => return Err("stopped".into()),
            Stop::Before(event) if is_event && number == event => return Err("died".into()),
            _ => {}
        }
        match told {
            RunEvent::Asking { step, request, .. } => {
                self.asked.insert(*step, request.messages.to_string());
            }
            RunEvent::ToolStarted { call_id, .. } => drop(self.under_way.insert(call_id.clone())),
            RunEvent::Committed(event) => self.store(event),
            _ => {}
        }
        match self.stop {
            Stop::Stored(event) if is_event && number == event => Err("died".into()),
            _ => Ok(()),
        }
    }
}

impl Watch {
    fn store(&mut self, event: &Event) {
        if let EventKind::Answered { outcome, .. } = &event.kind {
            self.under_way.remove(outcome.call_id());
        }
        self.stored.push(event.clone());
    }
}

/// Time stands still.
struct Still;

impl Clock for Still {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

/// A run from where it was to where it ended, or was ended.
struct Leg {
    outcome: Outcome,
    fault: Option<String>,
    is_raised: bool,
    stored: Vec<Event>,
    asked: BTreeMap<u64, String>,
    under_way: BTreeSet<String>,
}

/// A run, in one leg or several.
struct Ended {
    start: Run,
    outcome: Outcome,
    fault: Option<String>,
    /// Whether the fault is that of a call.
    is_raised: bool,
    /// Those of all legs.
    events: Vec<Event>,
    /// What the model was asked at each step, the last time that it was.
    asked: BTreeMap<u64, String>,
    /// The calls that were under way when the first leg was ended.
    under_way: BTreeSet<String>,
    executions: BTreeMap<String, Execution>,
}

impl Ended {
    fn of(start: Run, legs: Vec<Leg>, executions: BTreeMap<String, Execution>) -> Self {
        let mut ended = Ended {
            outcome: Outcome::failed(start.clone()),
            start,
            fault: None,
            is_raised: false,
            events: Vec::new(),
            asked: BTreeMap::new(),
            under_way: BTreeSet::new(),
            executions,
        };
        for leg in legs {
            ended.outcome = leg.outcome;
            ended.fault = leg.fault;
            ended.is_raised = leg.is_raised;
            ended.events.extend(leg.stored);
            ended.asked.extend(leg.asked);
            ended.under_way.extend(leg.under_way);
        }
        ended
    }

    fn last(&self) -> &Outcome {
        &self.outcome
    }

    fn state(&self) -> &State {
        self.outcome.state()
    }

    /// Why it ended.
    fn words(&self) -> String {
        let fault = self.fault.as_deref().unwrap_or_default();
        format!("{} {fault}", self.outcome.exit())
    }

    /// The effect of a tool, among the last that were offered.
    fn effect(&self, tool: &str) -> Effect {
        let tool = self.outcome.run().tools().and_then(|tools| tools.get(tool));
        tool.map_or(Effect::AtMostOnce, stepfold_tools::Tool::effect)
    }

    fn was_interrupted(&self) -> bool {
        self.events.iter().any(|event| matches!(event.kind, EventKind::Interrupted { .. }))
    }

    /// Whether somebody had a call run again that may have happened.
    fn was_allowed_again(&self, call: &str) -> bool {
        let mut is_uncertain = false;
        self.events.iter().any(|event| match &event.kind {
            EventKind::Interrupted { asks, .. } => {
                is_uncertain = *asks;
                false
            }
            EventKind::Decided { decisions } => {
                let allows = |decision: &Decision| !matches!(decision, Decision::Reject { .. });
                is_uncertain && decisions.iter().any(|(id, decision)| id == call && allows(decision))
            }
            _ => false,
        })
    }

    /// What holds for every run.
    fn check(&self) -> Result<(), String> {
        if !self.outcome.exit().is_resumable() {
            self.outcome.transcript().check().map_err(|faults| format!("not well-formed: {faults}"))?;
        }
        let mut state = self.start.state().clone();
        for event in &self.events {
            event.fold(&mut state).map_err(|error| chain(&error))?;
        }
        same("the state that the events give", &json_of(self.state()), &json_of(&state))?;
        same("the number of events", &self.outcome.run().events(), &(self.events.len() as u64))?;
        let mut recording = Recording::of(&self.start);
        for event in &self.events {
            recording.push(event.clone());
        }
        let replayed =
            recording.replay(self.start.agent()).map_err(|error| format!("replay: {}", chain(&error)))?;
        same("the digest of the replay", &self.outcome.run().digest(), &replayed.digest())?;
        same("the exit of the replay", &self.outcome.run().exit(), &replayed.exit())
    }

    /// The failure of a call that ends a run is told, not recorded: whoever goes on behind it goes on.
    fn agrees_until_raised(&self, whole: &Ended) -> Result<(), String> {
        let messages = |ended: &Ended| {
            let messages = ended.events.iter().flat_map(|event| event.messages.iter());
            messages.map(|message| json_of(&**message)).collect::<Vec<_>>()
        };
        let (expected, mut found) = (messages(whole), messages(self));
        found.truncate(expected.len());
        same("the conversation until the call failed", &expected, &found)
    }

    /// Up to the reply whose calls were interrupted, nothing differs.
    fn agrees_until_interrupted(&self, whole: &Ended) -> Result<(), String> {
        let is_interrupted = |event: &&Event| matches!(event.kind, EventKind::Interrupted { .. });
        let Some(step) = self.events.iter().find(is_interrupted).map(|event| event.step) else {
            return Ok(());
        };
        let until = |ended: &Ended| {
            let events = ended.events.iter().take_while(|event| event.step <= step);
            let messages = events.filter(|event| event.step_end.is_none() || event.step < step);
            let messages = messages.flat_map(|event| event.messages.iter());
            messages.map(|message| json_of(&**message)).collect::<Vec<_>>()
        };
        same("the conversation before the interruption", &until(whole), &until(self))?;
        let asked =
            |ended: &Ended| ended.asked.range(..=step).map(|(_, asked)| asked.clone()).collect::<Vec<_>>();
        same("the requests before the interruption", &asked(whole), &asked(self))
    }
}

/// Whether a run that was ended in the middle came to the same.
fn compare(ended: &Ended, whole: &Ended) -> Result<(), String> {
    for (key, execution) in &ended.executions {
        let must_not_repeat = whole.effect(&execution.tool) == Effect::AtMostOnce;
        if must_not_repeat && execution.times > 1 && !ended.was_allowed_again(&execution.call) {
            return Err(format!("{execution:?} with the key {key} must not run twice"));
        }
    }
    if ended.was_interrupted() {
        return ended.agrees_until_interrupted(whole);
    }
    if whole.is_raised {
        return ended.agrees_until_raised(whole);
    }
    same("the exit", &whole.words(), &ended.words())?;
    same("the run", &comparable(whole.last().run()), &comparable(ended.last().run()))?;
    same("the requests", &whole.asked, &ended.asked)?;
    compare_executions(ended, whole)
}

/// Every call was executed as often, but for those that were under way.
fn compare_executions(ended: &Ended, whole: &Ended) -> Result<(), String> {
    let keys: BTreeSet<&String> = whole.executions.keys().chain(ended.executions.keys()).collect();
    for key in keys {
        let times = |ended: &Ended| ended.executions.get(key).map_or(0, |execution| execution.times);
        let (expected, executed) = (times(whole), times(ended));
        let call = whole.executions.get(key).map_or("", |execution| execution.call.as_str());
        let most = if ended.under_way.contains(call) { expected * 2 } else { expected };
        if executed < expected || executed > most {
            return Err(format!("the call with the key {key} was executed {executed} times, not {expected}"));
        }
    }
    Ok(())
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

/// The run but for the number of its events: calls that were marked one by one may be marked together when the
/// run goes on, in one event.
fn comparable(run: &Run) -> String {
    let mut run = serde_json::to_value(run).unwrap_or_default();
    if let Some(tally) = run.get_mut("tally").and_then(serde_json::Value::as_object_mut) {
        tally.remove("events");
    }
    run.to_string()
}

fn json_of<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn same<T: PartialEq + fmt::Debug>(what: &str, expected: &T, found: &T) -> Result<(), String> {
    match expected == found {
        true => Ok(()),
        false => Err(format!("{what} differs\n  expected: {expected:?}\n  found:    {found:?}")),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
