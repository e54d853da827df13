//! Answers from the record of a case: to calls, by tool, canonical arguments and the values that the tool reads from the
//! state; and to requests for approval, by tool and arguments.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use stepfold_agent_loop::{
    ApprovalRequest, CallAnswer, CallAnswers, Decision, Event, EventKind, StartingCall,
};
use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::state::{State, ValueRef};
use stepfold_state_core::{canonical_json, shortened};
use stepfold_tools::{
    CallFailure, CallOutcome, CallStatus, Effect, Invocation, InvokeOptions, Resources, Tool, Tools,
};

use crate::run_redaction::RunRedaction;

/// The answers that a record has for a candidate. Each recorded answer is given once, in the order of the record.
#[derive(Default)]
pub(crate) struct RecordAnswers {
    calls: BTreeMap<CallKey, VecDeque<RecordedAnswer>>,
    decisions: BTreeMap<CallKey, VecDeque<Decision>>,
    /// The calls about which the record waits for a decision to this day.
    waiting: BTreeSet<CallKey>,
    /// The pure tools that may run where the record has no answer; of a live run, the tools that may run at most once.
    allowed: BTreeSet<String>,
    /// The scope of the idempotency keys of a live run, in which tools run.
    live: Option<String>,
    /// The rules by which the record is redacted: calls come with the arguments of the model.
    redaction: RunRedaction,
    /// The use of the answers.
    pub(crate) coverage: Coverage,
}

/// A tool and the arguments of the model, as canonical JSON.
type CallKey = (String, String);

/// The use of a record's answers by a candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// The calls that the record answered.
    pub(crate) answered: u64,
    /// The calls of pure tools that ran.
    pub(crate) ran: u64,
    /// The first call or request that the record does not have.
    pub(crate) left_at: Option<String>,
}

#[derive(Clone)]
struct RecordedAnswer {
    /// The state that the call saw.
    state: State,
    outcome: CallOutcome,
    inner: Vec<Event>,
}

impl RecordAnswers {
    /// The answers in the events of a run, on the state before them.
    pub(crate) fn of(mut state: State, events: &[Event], allowed: BTreeSet<String>) -> Self {
        let mut answers = RecordAnswers { allowed, ..RecordAnswers::default() };
        let mut step = RecordedStep::default();
        for event in events {
            if let EventKind::Replied { .. } = event.kind {
                std::mem::take(&mut step).add_to(&mut answers);
            }
            let _ = event.fold(&mut state);
            step.add(event, &state);
        }
        step.add_to(&mut answers);
        answers
    }

    /// The same answers to a candidate whose calls are redacted before they are looked for.
    pub(crate) fn redacted(self, redaction: &RunRedaction) -> Self {
        RecordAnswers { redaction: redaction.clone(), ..self }
    }

    /// No answers: tools run, in a scope of their own for idempotency keys.
    pub(crate) fn live(scope: String, allowed: BTreeSet<String>) -> Self {
        RecordAnswers { allowed, live: Some(scope), ..RecordAnswers::default() }
    }

    /// The answer to a call; one that a pure tool has given before may be given again.
    fn answer_to(&mut self, starting: &StartingCall) -> Option<CallAnswer> {
        let rules = &self.redaction;
        let recorded = self.calls.get_mut(&key_of(&rules.call(&starting.call)))?;
        let is_fed_alike = |answer: &RecordedAnswer| is_fed_alike(starting, rules, &answer.state);
        let place = recorded.iter().position(is_fed_alike)?;
        let is_repeatable = starting.tool.effect() == Effect::Pure;
        let is_last = !recorded.iter().skip(place + 1).any(is_fed_alike);
        let RecordedAnswer { outcome, inner, .. } =
            if is_repeatable && is_last { recorded.get(place)?.clone() } else { recorded.remove(place)? };
        let answer = CallAnswer::new(outcome).with_inner(inner);
        self.coverage.answered += 1;
        Some(answer)
    }

    /// The decision about a request; a recorded call that ran without one is approved.
    fn decide(&mut self, request: &ApprovalRequest) -> Option<Decision> {
        let call = self.redaction.call(&request.call);
        let key = key_of(&call);
        if let Some(decision) = self.decisions.get_mut(&key).and_then(VecDeque::pop_front) {
            return Some(decision);
        }
        if self.calls.get(&key).is_some_and(|answers| !answers.is_empty()) {
            return Some(Decision::Approve);
        }
        if self.waiting.contains(&key) {
            return None;
        }
        match self.live {
            Some(_) if self.allowed.contains(&request.call.name) => return Some(Decision::Approve),
            Some(_) => {
                self.leave(format!("{} needs an approval: allow the tool by name", named(&call)));
            }
            None => self.leave(format!("no recorded decision about {}", named(&call))),
        }
        None
    }

    fn leave(&mut self, at: String) {
        self.coverage.left_at.get_or_insert(at);
    }

    fn may_run(&self, tool: &Tool) -> bool {
        let is_allowed = self.allowed.contains(tool.name());
        let may_run = match (&self.live, tool.effect()) {
            (Some(_), effect) => effect != Effect::AtMostOnce || is_allowed,
            (None, effect) => effect == Effect::Pure && is_allowed,
        };
        may_run && !tool.is_hosted()
    }

    /// Why a call has no answer.
    fn missing(&self, starting: &StartingCall) -> String {
        let call = named(&self.redaction.call(&starting.call));
        match (&self.live, starting.tool.is_hosted()) {
            (None, _) => call,
            (Some(_), true) => format!("{call} would run an agent, which live cases do not"),
            (Some(_), false) => format!("{call} may run at most once: allow the tool by name"),
        }
    }
}

/// The calls of a reply in a record, with what is known of each.
#[derive(Default)]
struct RecordedStep {
    calls: Vec<ToolCall>,
    /// The state when the model had replied.
    state: Option<State>,
    outcomes: BTreeMap<usize, CallOutcome>,
    inner: BTreeMap<usize, Vec<Event>>,
    decisions: Vec<(String, Decision)>,
}

impl RecordedStep {
    fn add(&mut self, event: &Event, state: &State) {
        match &event.kind {
            EventKind::Replied { .. } => {
                let reply = event.messages.first();
                self.calls = reply.into_iter().flat_map(|reply| reply.tool_calls()).cloned().collect();
                self.state = Some(state.clone());
            }
            EventKind::Inner { place, event } => {
                self.inner.entry(*place).or_default().push((**event).clone());
            }
            EventKind::Decided { decisions, .. } => self.decisions.extend(decisions.iter().cloned()),
            _ => {}
        }
        for ended in event.outcomes() {
            if let Some(outcome) = ended.outcome.call() {
                self.outcomes.insert(ended.place, outcome.clone());
            }
        }
    }

    /// Each call saw the state before the step, with the writes of those before it: the tool reads no others.
    fn add_to(mut self, answers: &mut RecordAnswers) {
        let Some(mut state) = self.state.take() else { return };
        for (place, call) in self.calls.iter().enumerate() {
            let decision = self.decisions.iter().find(|(request, _)| is_about(request, &call.id));
            if let Some((_, decision)) = decision {
                answers.decisions.entry(key_of(call)).or_default().push_back(decision.clone());
            }
            let Some(outcome) = self.outcomes.remove(&place) else {
                answers.waiting.insert(key_of(call));
                continue;
            };
            let delta = outcome.delta.clone();
            if has_started(outcome.status) {
                let inner = self.inner.remove(&place).unwrap_or_default();
                let arguments = decision.and_then(|(_, decision)| modified(decision));
                let key = arguments.map_or_else(|| key_of(call), |given| key_with(&call.name, given));
                let answer = RecordedAnswer { state: state.clone(), outcome, inner };
                answers.calls.entry(key).or_default().push_back(answer);
            }
            let _ = state.apply(&delta);
        }
    }
}

/// The arguments that an approver gave in place of the model's.
fn modified(decision: &Decision) -> Option<&Value> {
    match decision {
        Decision::Modify { arguments, .. } => Some(arguments),
        _ => None,
    }
}

/// The id of a request begins with the id of its call, which may have a `#` of its own.
pub(crate) fn is_about(request: &str, call_id: &str) -> bool {
    request.rsplit_once('#').map_or(request, |(id, _)| id) == call_id
}

/// Whether the tool had been started: the other outcomes follow from the agent.
const fn has_started(status: CallStatus) -> bool {
    !matches!(
        status,
        CallStatus::NotStarted
            | CallStatus::Failed(
                CallFailure::UnknownTool
                    | CallFailure::MalformedArguments
                    | CallFailure::InvalidArguments
                    | CallFailure::Rejected
                    | CallFailure::NotRun
            )
    )
}

/// Whether the tool reads the same values from the state as in the record.
fn is_fed_alike(starting: &StartingCall, rules: &RunRedaction, recorded: &State) -> bool {
    let keys = starting.tool.reads().chain(starting.tool.input_keys());
    let value = |state: &State, key: &str| state.get(key).map(ValueRef::to_json);
    let own = |key: &str| value(&starting.state, key).map(|value| rules.value(value));
    keys.into_iter().all(|key| own(key) == value(recorded, key))
}

fn key_of(call: &ToolCall) -> CallKey {
    match call.arguments.as_object() {
        Some(arguments) => key_with(&call.name, &Value::Object(arguments.clone())),
        None => (call.name.clone(), call.arguments.to_text().into_owned()),
    }
}

fn key_with(tool: &str, arguments: &Value) -> CallKey {
    (tool.to_owned(), canonical_json(arguments))
}

fn named(call: &ToolCall) -> String {
    shortened(&format!("{}({})", call.name, key_of(call).1))
}

/// The answers of a record, shared by the two ports of one run.
#[derive(Clone)]
pub(crate) struct SharedAnswers(Arc<Mutex<RecordAnswers>>);

impl SharedAnswers {
    pub(crate) fn new(answers: RecordAnswers) -> Self {
        SharedAnswers(Arc::new(Mutex::new(answers)))
    }

    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut RecordAnswers) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The decisions that the record has about these requests.
    pub(crate) fn decisions(&self, requests: &[ApprovalRequest]) -> Vec<(String, Decision)> {
        self.with(|answers| {
            let decided = requests.iter().map(|request| Some((request.id.clone(), answers.decide(request)?)));
            decided.flatten().collect()
        })
    }
}

impl CallAnswers for SharedAnswers {
    fn answer<'a>(&'a mut self, starting: &'a StartingCall) -> BoxFuture<'a, Option<CallAnswer>> {
        let (answer, may_run) =
            self.with(|answers| (answers.answer_to(starting), answers.may_run(&starting.tool)));
        async move {
            match answer {
                Some(answer) => Some(answer),
                None if may_run => {
                    let scope = self.with(|answers| {
                        answers.coverage.ran += 1;
                        answers.live.clone()
                    });
                    run_function(starting, scope).await.map(CallAnswer::new)
                }
                None => {
                    self.with(|answers| answers.leave(answers.missing(starting)));
                    None
                }
            }
        }
        .boxed()
    }
}

/// Runs a call: of a pure tool, or of any that may run in this scope.
async fn run_function(starting: &StartingCall, scope: Option<String>) -> Option<CallOutcome> {
    let tools = Tools::of([starting.tool.clone()]).ok()?;
    let resources: Resources = starting.resources.clone();
    let mut options = InvokeOptions::default().with_resources(resources);
    if let Some(scope) = scope {
        options.key_scope = format!("{scope}/{}/{}", starting.step, starting.place);
    }
    let calls = vec![starting.call.clone()];
    Invocation::new(&tools, starting.state.clone(), calls, options).finish().await.outcomes.pop()
}
