//! The modes of an experiment: how a candidate is confronted with a case. Only one of them touches the world: live.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use stepfold_agent_loop::{
    Agent, ApprovalRequest, CallAnswer, Divergence, Event, EventKind, Exit, Input, Observer, ObserverError,
    Pause, Run, RunAnswer, RunError, RunEvent, RunFault, StartingCall,
};
use stepfold_runner::OutsideRequests;
use stepfold_state_core::chat::{Cost, Message, Prices};
use stepfold_state_core::state::State;

use crate::answers::{Coverage, RecordAnswers, SharedAnswers};
use crate::case::{Case, values_of};
use crate::expectation::{CallRule, EvaluationContext, ExpectedCall, Score, calls_fault};
use crate::replaced_texts::ReplacedTexts;
use crate::run_redaction::RunRedaction;
use crate::spending::{RunMeter, Spending};
use crate::trial::{Trial, TrialCall};

/// The way in which a candidate is confronted with the cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mode {
    /// Replays the recorded turn without a model: fails where the candidate would have made another event.
    Replay,
    /// Asks for each recorded reply once, with the exact request rebuilt under the candidate, and compares the calls. No
    /// tool runs.
    Next,
    /// Runs the whole turn again. The record answers the calls; a call that it does not have ends the case as
    /// [`LeftRecord`](crate::CaseStatus::LeftRecord).
    #[default]
    Roll,
    /// Runs the whole turn with the tools of the candidate, on a state that is thrown away. A tool that may run at most once,
    /// and one that needs an approval, runs only if it is [allowed by name](crate::Experiment::allow_live); otherwise the case
    /// ends as [`LeftRecord`](crate::CaseStatus::LeftRecord). Idempotency keys are never those of a session.
    Live,
    /// Evaluates the recorded turn itself, without the candidate.
    Recorded,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Replay => "replay",
            Mode::Next => "next",
            Mode::Roll => "roll",
            Mode::Live => "live",
            Mode::Recorded => "recorded",
        })
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "replay" => Ok(Mode::Replay),
            "next" => Ok(Mode::Next),
            "roll" => Ok(Mode::Roll),
            "live" => Ok(Mode::Live),
            "recorded" => Ok(Mode::Recorded),
            other => Err(format!("unknown mode `{other}`; available: replay, next, roll, live, recorded")),
        }
    }
}

/// The result of a mode.
#[derive(Default)]
pub(crate) struct Attempt {
    pub(crate) ending: Ending,
    pub(crate) coverage: Coverage,
    /// The cost by the prices, if all models have one.
    pub(crate) cost: Option<Cost>,
    pub(crate) elapsed: std::time::Duration,
    /// The events of the candidate.
    pub(crate) events: Vec<Event>,
    /// The comparisons before an error.
    pub(crate) scores: Vec<Score>,
}

#[derive(Default)]
pub(crate) enum Ending {
    /// It was not tried.
    #[default]
    Skipped,
    /// The turn was made: it is evaluated.
    Made(Box<Trial>),
    /// The mode itself has compared; with what the model replied last.
    Compared(Vec<Score>, Box<Trial>),
    LeftRecord,
    Error(String),
    Unsuited(&'static str),
}

impl Attempt {
    fn ended(ending: Ending) -> Self {
        Attempt { ending, ..Attempt::default() }
    }

    fn failed(error: impl fmt::Display) -> Self {
        Attempt::ended(Ending::Error(error.to_string()))
    }
}

/// Replays the record of a case. Where it has a text with parts replaced, a text of the candidate with other parts in their places is not
/// another one.
pub(crate) async fn replay(agent: &Agent, case: &Case, redaction: &RunRedaction) -> Attempt {
    let Some((record, began)) = case.record.as_ref().zip(case.began()) else {
        return Attempt::ended(Ending::Unsuited("it has no record"));
    };
    let marked = ReplacedTexts::of(record.agent.as_ref(), agent, redaction);
    let replayed = async {
        if let Some(before) = &record.agent {
            Divergence::check_schema(before, agent.fingerprint())
                .map_err(|divergence| divergence.to_string())?;
        }
        let input = Input::recorded(case.state(agent.schema())?, began).with_summary(record.summary.clone());
        let run = Run::new(agent, input, run_id(case)).map_err(|error| error.to_string())?;
        let is_stored = |write: &stepfold_state_core::state::Write| !write.key().starts_with("temp:");
        let is_alike = |recorded: &str, made: &str| marked.are_alike(recorded, made);
        let replayed = run.replay_alike(&record.events, is_stored, is_alike).await;
        Ok::<_, String>(replayed.map(drop).map_err(|divergence| match &record.agent {
            Some(before) => divergence.explained(before, agent.fingerprint()).to_string(),
            None => divergence.to_string(),
        }))
    };
    let recorded = Box::new(Trial::recorded(case).unwrap_or_default());
    match replayed.await {
        Err(error) => Attempt::failed(format_args!("replay could not begin: {error}")),
        Ok(replayed) => {
            let score = match replayed.err().or_else(|| marked.hidden_change()) {
                None => Score::passed("replay"),
                Some(why) => Score::failed("replay", why),
            };
            Attempt::ended(Ending::Compared(vec![score], recorded))
        }
    }
}

/// Asks for each recorded reply.
pub(crate) async fn next(
    agent: &Agent,
    case: &Case,
    rule: &CallRule,
    EvaluationContext { prices, spending, budgets, redaction, .. }: &EvaluationContext,
) -> Attempt {
    if agent.planner().is_some() {
        return Attempt::ended(Ending::Unsuited("the candidate is a graph"));
    }
    if case.record.is_none() {
        return Attempt::ended(Ending::Unsuited("it has no record"));
    }
    let mut run = match begun(agent, case) {
        Ok(run) => run,
        Err(error) => return Attempt::failed(format_args!("run could not begin: {error}")),
    };
    let mut asked = NextReplies {
        rule,
        prices,
        spending,
        budgets: budgets.as_ref(),
        redaction,
        own_model: agent.model().id(),
        scores: Vec::new(),
        trial: Trial::default(),
        attempt: Attempt { cost: Some(Cost::default()), ..Attempt::default() },
    };
    for event in case.events().iter().skip(1) {
        let followed = match event.kind {
            EventKind::Replied { .. } => asked.ask(&run, event).await,
            _ => Ok(()),
        };
        let followed = followed.and_then(|()| {
            // The rest of the record was made by an agent that works otherwise: with other hooks, for example.
            run.follow(event).map_err(|error| NoReply::Left(error.to_string()))
        });
        match followed {
            Ok(()) => {}
            Err(NoReply::Failed(error)) => {
                let NextReplies { scores, attempt, .. } = asked;
                return Attempt { ending: Ending::Error(error), scores, ..attempt };
            }
            Err(NoReply::Left(why)) => {
                asked.attempt.coverage.left_at = Some(format!("left at step {}: {why}", event.step));
                break;
            }
        }
    }
    let NextReplies { scores, trial, attempt, .. } = asked;
    match (scores.is_empty(), attempt.coverage.left_at.is_some()) {
        (true, true) => Attempt { ending: Ending::LeftRecord, ..attempt },
        (true, false) => Attempt { ending: Ending::Unsuited("its record has no reply"), ..attempt },
        _ => Attempt { ending: Ending::Compared(scores, Box::new(trial)), ..attempt },
    }
}

/// A run of the candidate that has begun with the input of a case.
fn begun(agent: &Agent, case: &Case) -> Result<Run, String> {
    let input = case.input(case.state(agent.schema())?);
    let mut run = Run::new(agent, input, run_id(case)).map_err(|error| error.to_string())?;
    let began = run.feed(RunAnswer::Begin, std::time::Duration::ZERO).map_err(|error| error.to_string())?;
    run.follow(&began).map_err(|error| error.to_string())?;
    Ok(run)
}

/// The replies that a candidate gave, beside the recorded ones.
struct NextReplies<'a> {
    rule: &'a CallRule,
    prices: &'a Prices,
    spending: &'a Spending,
    budgets: Option<&'a OutsideRequests>,
    redaction: &'a RunRedaction,
    /// The id of the model, where its provider names none.
    own_model: &'a str,
    scores: Vec<Score>,
    /// Its replies, as one course.
    trial: Trial,
    attempt: Attempt,
}

impl NextReplies<'_> {
    /// Asks the model of a run for its next reply, without committing it, and compares the calls with the recorded ones.
    async fn ask(&mut self, run: &Run, recorded: &Event) -> Result<(), NoReply> {
        let mut seen = FirstReply::default();
        // The run stops before the candidate would call a tool ahead of its next reply: no function starts.
        let unanswered = |_: &StartingCall| None::<CallAnswer>;
        let meter = Arc::new(RunMeter::new(self.spending, self.budgets).map_err(NoReply::Failed)?);
        let asked = self.redaction.add_to(run.clone().resume());
        let asked = asked.answer_calls_with(unanswered).meter_with(meter);
        let ended = asked.record_with(&mut seen).await;
        let Some(replied) = seen.0 else {
            return Err(match ended {
                Ok(outcome) => NoReply::Failed(format!("the model was not asked: {}", outcome.exit())),
                Err(error) if matches!(error.fault(), RunFault::Unanswered { .. }) => {
                    NoReply::Left(error.fault().to_string())
                }
                Err(error) => NoReply::Failed(error.to_string()),
            });
        };
        let (wanted, found) = (reply_of(recorded), reply_of(&replied));
        let expected: Vec<ExpectedCall> = wanted
            .calls
            .iter()
            .map(|call| ExpectedCall::new(call.tool.as_str(), call.arguments.clone()))
            .collect();
        let name = format!("reply {}", self.scores.len() + 1);
        self.scores.push(match calls_fault(&expected, self.rule, &found.calls) {
            None => Score::passed(name),
            Some(fault) => Score::failed(name, fault),
        });
        self.attempt.coverage.answered += 1;
        if let EventKind::Replied { usage, model, .. } = &replied.kind {
            let price = self.prices.cost(model.as_deref().unwrap_or(self.own_model), usage);
            self.attempt.cost = self.attempt.cost.zip(price).map(|(before, price)| before + price);
            self.trial.usage += *usage;
        }
        self.trial.steps += 1;
        self.trial.text = found.text;
        self.trial.calls.extend(found.calls);
        self.attempt.events.push(replied);
        Ok(())
    }
}

/// Why there is no reply to compare.
enum NoReply {
    /// The candidate does not follow the record.
    Left(String),
    /// Its model failed, for example.
    Failed(String),
}

struct Reply {
    text: String,
    calls: Vec<TrialCall>,
}

fn reply_of(event: &Event) -> Reply {
    let Trial { text, calls, .. } = Trial::of(std::slice::from_ref(event), serde_json::Map::new(), None);
    Reply { text, calls }
}

/// Takes the first reply, and refuses its commit, so that nothing comes after it.
#[derive(Default)]
struct FirstReply(Option<Event>);

impl Observer for FirstReply {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        match event.committed() {
            Some(event) if matches!(event.kind, EventKind::Replied { .. }) => {
                self.0 = Some(event.clone());
                Err("the reply is all that is asked for".into())
            }
            _ => Ok(()),
        }
    }
}

/// The recorded turn itself.
pub(crate) fn recorded(case: &Case, prices: &Prices) -> Attempt {
    let Some(trial) = Trial::recorded(case) else {
        return Attempt::ended(Ending::Unsuited("it has no record"));
    };
    let mut cost = Some(Cost::default());
    for event in case.events() {
        if let EventKind::Replied { usage, model, .. } = &event.kind {
            let price = prices.cost(model.as_deref().unwrap_or_default(), usage);
            cost = cost.zip(price).map(|(before, price)| before + price);
        }
    }
    let elapsed = case.events().last().map_or(std::time::Duration::ZERO, |event| event.elapsed);
    Attempt { ending: Ending::Made(Box::new(trial)), cost, elapsed, ..Attempt::default() }
}

/// Runs the turn of a case; its record answers the calls, or the tools do. The run begins with the messages as they are written, on
/// the rest as a session stores it.
pub(crate) async fn roll(
    agent: &Agent,
    (written, case): (&Case, &Case),
    answers: impl FnOnce(State) -> RecordAnswers,
    EvaluationContext { prices, spending, budgets, redaction, .. }: &EvaluationContext,
) -> Attempt {
    if agent.planner().is_some() {
        return Attempt::ended(Ending::Unsuited("the candidate is a graph"));
    }
    let state = match case.state(agent.schema()) {
        Ok(state) => state,
        Err(error) => return Attempt::failed(format_args!("run could not begin: {error}")),
    };
    let input = written.input(state.clone());
    let meter = match RunMeter::new(spending, budgets.as_ref()) {
        Ok(meter) => Arc::new(meter),
        Err(error) => return Attempt::failed(format_args!("budgets failed: {error}")),
    };
    let answers = SharedAnswers::new(answers(state).redacted(redaction));
    let approver = answers.clone();
    let mut seen = CommittedEvents::default();
    let steps = Arc::clone(&seen.steps);
    let mut steered = steered_messages(case.events());
    let ended = redaction
        .add_to(agent.run(input))
        .id(run_id(case))
        .answer_calls_with(answers.clone())
        .approve_with(move |requests: Vec<ApprovalRequest>| std::future::ready(approver.decisions(&requests)))
        .inbox_with(move || {
            let is_due = steered.front().is_some_and(|(step, _)| *step <= steps.load(Ordering::Relaxed));
            is_due.then(|| steered.pop_front()).flatten().map(|(_, message)| message)
        })
        .meter_with(meter)
        .observe(&mut seen)
        .await;
    let coverage = answers.with(|answers| answers.coverage.clone());
    let events = std::mem::take(&mut seen.events);
    let outcome = match &ended {
        Ok(outcome) => outcome,
        Err(error) => error.outcome(),
    };
    let (cost, elapsed) = (outcome.cost(prices), outcome.elapsed());
    let ending = match &ended {
        Err(error) => failed(error),
        Ok(outcome) if is_left(outcome.exit(), &coverage) => Ending::LeftRecord,
        Ok(outcome) => match outcome.exit() {
            // It says nothing about the candidate.
            Exit::Paused(Pause::Budget(exhausted)) => Ending::Error(exhausted.to_string()),
            exit => Ending::Made(Box::new(Trial::of(&events, values_of(outcome.state()), Some(exit)))),
        },
    };
    Attempt { ending, coverage, cost, elapsed, events, ..Attempt::default() }
}

fn failed(error: &RunError) -> Ending {
    match error.fault() {
        RunFault::Unanswered { .. } => Ending::LeftRecord,
        // What a tool did to the recorded run, it does to this one.
        fault => Ending::Error(fault.to_string()),
    }
}

/// Whether a run waits for a decision that the record does not have.
fn is_left(exit: &Exit, coverage: &Coverage) -> bool {
    matches!(exit, Exit::Paused(Pause::Approval)) && coverage.left_at.is_some()
}

/// The id of the recorded run, so that ids of requests agree: recorded decisions name them.
fn run_id(case: &Case) -> String {
    match case.began().map(|began| &began.kind) {
        Some(EventKind::Began { id, .. }) => id.clone(),
        _ => format!("eval/{}", case.name),
    }
}

/// The messages that joined the recorded turn, each with the number of replies before it.
fn steered_messages(events: &[Event]) -> VecDeque<(u64, Message)> {
    let steered = events.iter().filter(|event| matches!(event.kind, EventKind::Steered));
    steered.flat_map(|event| event.messages.iter().map(|message| (event.step, (**message).clone()))).collect()
}

/// The events of a run, and the number of its replies so far.
#[derive(Default)]
struct CommittedEvents {
    events: Vec<Event>,
    steps: Arc<AtomicU64>,
}

impl Observer for CommittedEvents {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        if let Some(event) = event.committed() {
            self.steps.store(event.step, Ordering::Relaxed);
            self.events.push(event.clone());
        }
        Ok(())
    }
}
