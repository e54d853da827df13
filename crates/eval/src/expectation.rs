//! Expectations: what has to hold of a trial, as data that a file can hold; and the ports for evaluators in code and for
//! programs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepfold_runner::OutsideRequests;
use stepfold_state_core::chat::Prices;
use stepfold_state_core::json_schema::ValueType;
use stepfold_state_core::{canonical_json, shortened, shortened_pair};

use crate::case::Case;
use crate::judge::{Judge, Rubric};
use crate::run_redaction::RunRedaction;
use crate::spending::Spending;
use crate::trial::{Trial, TrialCall};

/// Something that has to hold of a trial.
///
/// In a file it is a table with one key, or a string where it has no data:
/// `expect = [{ text_contains = ["area 3"] }, { state = { "/area" = 3 } }, "no_failed_calls"]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Expectation {
    /// The last reply is this text, apart from whitespace around it.
    TextEquals(String),
    /// The last reply contains each of these texts.
    TextContains(Vec<String>),
    /// The last reply contains none of these texts.
    TextLacks(Vec<String>),
    /// The last reply matches this regular expression.
    TextMatches(String),
    /// The last reply is JSON that fits this JSON Schema.
    TextSchema(Value),
    /// The state has these values, by JSON pointer: its keys are the first level. `null` also stands for no value.
    State(BTreeMap<String, Value>),
    /// These calls were made.
    Calls(ExpectedCalls),
    /// The calls of the record were made.
    RecordedCalls(CallRule),
    /// The state is that of the record, apart from these JSON pointers.
    RecordedState(#[serde(default)] Vec<String>),
    /// The last reply is that of the record.
    RecordedText,
    /// The last reply is an answer if and only if that of the record is one: the turn does not stop at a limit where the record answers, and
    /// does not answer where the record waits for a decision or stops at a limit.
    RecordedEnd,
    /// At most so many steps more than the record has.
    RecordedSteps(u64),
    /// An approval was requested for each recorded call for which the record has such a request.
    RecordedApprovals,
    /// The last reply is an answer: the turn neither waits nor stopped at a limit.
    Answered,
    /// No call failed. A call that an approver rejected has not failed.
    NoFailedCalls,
    /// At most so many replies of the model.
    MaxSteps(u64),
    /// At most so many tokens, in and out.
    MaxTokens(u64),
    /// At most this cost in dollars. It fails where no price is known.
    MaxCost(f64),
    /// The run took at most so many seconds, without pauses. In [`Mode::Roll`](crate::Mode::Roll) that is the model's time: the record
    /// answers the calls at once.
    MaxSeconds(f64),
    /// A program accepts the trial: it reads a JSON object from its input and writes one to its output.
    Program(Program),
    /// The [judge](crate::Judge) of the experiment accepts the trial by this rubric.
    Judge(Rubric),
}

/// A program that evaluates: see [`ProgramRunner`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Program {
    /// The program with its arguments.
    pub command: Vec<String>,
}

/// Calls that are expected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ExpectedCalls {
    /// The calls.
    pub calls: Vec<ExpectedCall>,
    /// The rule of their comparison.
    #[serde(flatten)]
    pub rule: CallRule,
}

/// A call that is expected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ExpectedCall {
    /// The tool.
    pub tool: String,
    /// The arguments; any if there are none here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
}

/// The rule of a comparison of calls with expected ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CallRule {
    /// Which others may be among them, and in which order.
    #[serde(default)]
    pub order: CallOrder,
    /// JSON pointers into arguments that are not compared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<String>,
}

/// Which calls may be among the expected ones, and in which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallOrder {
    /// These calls and no others, in any order.
    #[default]
    AnyOrder,
    /// These calls and no others, in this order.
    Exact,
    /// These calls in this order, and others between them.
    InOrder,
    /// No calls but these.
    Subset,
}

impl CallRule {
    /// Calls in this order.
    #[must_use]
    pub const fn of(order: CallOrder) -> Self {
        CallRule { order, ignore: Vec::new() }
    }

    /// Does not compare the argument at this JSON pointer.
    #[must_use]
    pub fn ignoring(mut self, pointer: impl Into<String>) -> Self {
        self.ignore.push(pointer.into());
        self
    }
}

/// The result of one evaluator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Score {
    /// The evaluator.
    pub evaluator: String,
    /// Whether the trial passed.
    pub passed: bool,
    /// The grade, from 0 to 1, where the evaluator says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Why not; or a remark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Score {
    /// A trial that passed.
    #[must_use]
    pub fn passed(evaluator: impl Into<String>) -> Self {
        Score { evaluator: evaluator.into(), passed: true, value: None, reason: None }
    }

    /// A trial that failed, with the reason.
    #[must_use]
    pub fn failed(evaluator: impl Into<String>, reason: impl Into<String>) -> Self {
        Score { evaluator: evaluator.into(), passed: false, value: None, reason: Some(reason.into()) }
    }
}

/// An evaluator in code. A function of a case and a trial is one.
pub trait Evaluator: Send + Sync {
    /// Evaluates a trial of a case. To be called again with the same arguments, it returns the same.
    fn evaluate(&self, case: &Case, trial: &Trial) -> Score;
}

impl<F: Fn(&Case, &Trial) -> Score + Send + Sync> Evaluator for F {
    fn evaluate(&self, case: &Case, trial: &Trial) -> Score {
        self(case, trial)
    }
}

/// The port for [programs](Expectation::Program): a host starts them, this crate does not.
pub trait ProgramRunner: Send + Sync {
    /// Runs the program with this input; its output is `{"passed": bool, "reason": string?}`.
    ///
    /// # Errors
    /// When there is no such output: the case is an [error](crate::CaseStatus::Error) then, and no failure of the candidate.
    fn run<'a>(&'a self, command: &'a [String], input: Value) -> BoxFuture<'a, Result<Value, String>>;
}

/// The context of evaluations: prices, programs, evaluators in code.
#[derive(Clone, Default)]
pub(crate) struct EvaluationContext {
    pub(crate) prices: Prices,
    pub(crate) programs: Option<Arc<dyn ProgramRunner>>,
    pub(crate) evaluators: Vec<Arc<dyn Evaluator>>,
    pub(crate) judge: Option<Judge>,
    pub(crate) spending: Spending,
    pub(crate) budgets: Option<OutsideRequests>,
    pub(crate) redaction: RunRedaction,
}

impl Expectation {
    /// The expectations of a case with a record and without its own: the same calls in any order, the same state, an
    /// approval wherever one was requested, an answer if there was one, and no step more. Texts differ between models, so a text is expected only
    /// where a case says so.
    pub fn of_record() -> Vec<Self> {
        vec![
            Expectation::RecordedCalls(CallRule::default()),
            Expectation::RecordedState(Vec::new()),
            Expectation::RecordedApprovals,
            Expectation::RecordedEnd,
            Expectation::RecordedSteps(0),
        ]
    }

    /// Checks what does not depend on a trial.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some(why) = self.vacuous() {
            return Err(format!("invalid `{}`: {why}", self.name()));
        }
        match self {
            Expectation::TextMatches(pattern) => expression(pattern).map(drop),
            Expectation::TextSchema(schema) => ValueType::of_schema(schema.clone())
                .map(drop)
                .map_err(|error| format!("invalid JSON Schema: {error}")),
            Expectation::Program(Program { command }) if command.is_empty() => {
                Err("missing program: `command` is empty".to_owned())
            }
            Expectation::Judge(rubric) => rubric.check(),
            Expectation::State(values) => values.keys().try_for_each(|pointer| check_pointer(pointer)),
            Expectation::Calls(ExpectedCalls { rule, .. }) | Expectation::RecordedCalls(rule) => {
                rule.ignore.iter().try_for_each(|pointer| check_pointer(pointer))
            }
            Expectation::RecordedState(ignore) => {
                ignore.iter().try_for_each(|pointer| check_pointer(pointer))
            }
            Expectation::MaxCost(most) if !(most.is_finite() && *most >= 0.0) => {
                Err(format!("invalid `max_cost` {most}: must be a number of dollars from 0"))
            }
            Expectation::MaxSeconds(most) if !(most.is_finite() && *most > 0.0) => {
                Err(format!("invalid `max_seconds` {most}: must be a number above 0"))
            }
            Expectation::TextEquals(_)
            | Expectation::RecordedText
            | Expectation::RecordedEnd
            | Expectation::RecordedSteps(_)
            | Expectation::RecordedApprovals
            | Expectation::Answered
            | Expectation::NoFailedCalls
            | Expectation::MaxSteps(_)
            | Expectation::MaxTokens(_)
            | Expectation::MaxCost(_)
            | Expectation::MaxSeconds(_)
            | Expectation::TextContains(_)
            | Expectation::TextLacks(_)
            | Expectation::Program(_) => Ok(()),
        }
    }

    /// Why every trial would pass, or none, whatever it is; `None` if the trial decides.
    fn vacuous(&self) -> Option<&'static str> {
        let of_texts = |texts: &[String]| match texts.iter().any(String::is_empty) {
            _ if texts.is_empty() => Some("the list is empty, so nothing is expected"),
            true => Some("each text contains the empty text"),
            false => None,
        };
        match self {
            Expectation::TextContains(texts) | Expectation::TextLacks(texts) => of_texts(texts),
            Expectation::TextMatches(pattern) if pattern.is_empty() => {
                Some("each text matches the empty pattern")
            }
            Expectation::State(values) if values.is_empty() => {
                Some("it has no value, so nothing is expected")
            }
            Expectation::Calls(ExpectedCalls { calls, rule: CallRule { order: CallOrder::InOrder, .. } })
                if calls.is_empty() =>
            {
                Some("any calls are `in_order` without a call, so nothing is expected")
            }
            Expectation::MaxSteps(0) => {
                Some("each turn has a reply of the model; set at least 1, or leave it out for no limit")
            }
            _ => None,
        }
    }

    /// The name of the kind, as in a file.
    pub const fn name(&self) -> &'static str {
        match self {
            Expectation::TextEquals(_) => "text_equals",
            Expectation::TextContains(_) => "text_contains",
            Expectation::TextLacks(_) => "text_lacks",
            Expectation::TextMatches(_) => "text_matches",
            Expectation::TextSchema(_) => "text_schema",
            Expectation::State(_) => "state",
            Expectation::Calls(_) => "calls",
            Expectation::RecordedCalls(_) => "recorded_calls",
            Expectation::RecordedState(_) => "recorded_state",
            Expectation::RecordedText => "recorded_text",
            Expectation::RecordedEnd => "recorded_end",
            Expectation::Answered => "answered",
            Expectation::RecordedSteps(_) => "recorded_steps",
            Expectation::RecordedApprovals => "recorded_approvals",
            Expectation::NoFailedCalls => "no_failed_calls",
            Expectation::MaxSteps(_) => "max_steps",
            Expectation::MaxTokens(_) => "max_tokens",
            Expectation::MaxCost(_) => "max_cost",
            Expectation::MaxSeconds(_) => "max_seconds",
            Expectation::Program(_) => "program",
            Expectation::Judge(_) => "judge",
        }
    }

    /// Whether it compares with the recorded turn.
    pub const fn needs_record(&self) -> bool {
        matches!(
            self,
            Expectation::RecordedCalls(_)
                | Expectation::RecordedState(_)
                | Expectation::RecordedText
                | Expectation::RecordedEnd
                | Expectation::RecordedSteps(_)
                | Expectation::RecordedApprovals
        )
    }

    /// Whether it is about the text of a reply alone.
    pub(crate) const fn is_about_text(&self) -> bool {
        matches!(
            self,
            Expectation::TextEquals(_)
                | Expectation::TextContains(_)
                | Expectation::TextLacks(_)
                | Expectation::TextMatches(_)
                | Expectation::TextSchema(_)
                | Expectation::RecordedText
                | Expectation::Judge(_)
        )
    }

    /// The port that the expectation needs and an experiment does not have, in words.
    pub(crate) fn missing_port(&self, context: &EvaluationContext) -> Option<String> {
        match self {
            Expectation::Judge(_) if context.judge.is_none() => {
                Some("no judge: the case has a rubric, the experiment has no judge".to_owned())
            }
            Expectation::Program(Program { command }) if context.programs.is_none() => {
                Some(program_fault(command, "no programs are run here"))
            }
            _ => None,
        }
    }

    /// Evaluates a trial.
    ///
    /// # Errors
    /// When it could not be evaluated: the trial is no failure then.
    pub(crate) async fn evaluate(
        &self,
        case: &Case,
        trials: &Trials<'_>,
        context: &EvaluationContext,
    ) -> Result<Score, String> {
        if let Expectation::Judge(rubric) = self {
            let judge = context.judge.as_ref().ok_or("no judge")?;
            return judge.judge((case, trials), rubric, context).await;
        }
        let found = match self {
            Expectation::Program(Program { command }) => run_program(case, trials, command, context).await?,
            Expectation::TextMatches(_) if trials.trial.text.len() > MAX_SEARCHED => {
                let bytes = trials.trial.text.len();
                return Err(format!(
                    "text of {bytes} bytes is not searched by `text_matches`: at most {MAX_SEARCHED}"
                ));
            }
            expectation if expectation.is_costly(trials) => expectation.fault_on_own_thread(trials).await?,
            expectation => expectation.fault(trials),
        };
        Ok(match found {
            None => Score::passed(self.name()),
            Some(reason) => Score::failed(self.name(), reason),
        })
    }

    /// Whether the evaluation may take long, by the size of what is compared: then it would hold up the timeout of its case.
    fn is_costly(&self, trials: &Trials<'_>) -> bool {
        let recorded = trials.recorded.map_or(0, |recorded| recorded.calls.len());
        let times = match self {
            Expectation::TextContains(texts) | Expectation::TextLacks(texts) => texts.len(),
            // A state of the automaton for each character or more, as an expression with `{100}` has.
            Expectation::TextMatches(pattern) => pattern.len().saturating_mul(16),
            Expectation::State(values) => values.len(),
            Expectation::Calls(expected) => expected.calls.len(),
            Expectation::RecordedCalls(_) | Expectation::RecordedApprovals => recorded,
            _ => 1,
        };
        trials.weight.saturating_mul(times.max(1)) > CHEAP
    }

    /// The same on a thread for work that blocks. It is left to itself when its case has timed out.
    async fn fault_on_own_thread(&self, trials: &Trials<'_>) -> Result<Option<String>, String> {
        let (expectation, trial) = (self.clone(), trials.trial.clone());
        let (recorded, cost, elapsed) = (trials.recorded.cloned(), trials.cost, trials.elapsed);
        let evaluated = tokio::task::spawn_blocking(move || {
            expectation.fault(&Trials { cost, elapsed, ..Trials::new(&trial, recorded.as_ref()) })
        });
        evaluated.await.map_err(|error| format!("evaluation failed: {error}"))
    }

    /// Why a trial does not fit; `None` if it does.
    fn fault(&self, trials: &Trials<'_>) -> Option<String> {
        let Trials { trial, recorded, cost, elapsed, .. } = trials;
        let of_record = |check: &dyn Fn(&Trial) -> Option<String>| match recorded {
            Some(recorded) => check(recorded),
            None => Some("the case has no record".to_owned()),
        };
        match self {
            Expectation::TextEquals(text) => different_text(text, &trial.text),
            Expectation::TextContains(texts) => {
                let missing = texts.iter().find(|text| !trial.text.contains(text.as_str()))?;
                Some(format!("expected `{missing}` in the text, found `{}`", shortened(&trial.text)))
            }
            Expectation::TextLacks(texts) => {
                let found = texts.iter().find(|text| trial.text.contains(text.as_str()))?;
                Some(format!("found `{found}` in the text"))
            }
            Expectation::TextMatches(pattern) => {
                let is_match = expression(pattern).is_ok_and(|regex| regex.is_match(&trial.text));
                (!is_match)
                    .then(|| format!("expected a match of `{pattern}`, found `{}`", shortened(&trial.text)))
            }
            Expectation::TextSchema(schema) => schema_fault(schema, &trial.text),
            Expectation::State(values) => state_fault(values, trial),
            Expectation::Calls(ExpectedCalls { calls, rule }) => calls_fault(calls, rule, &trial.calls),
            Expectation::RecordedCalls(rule) => of_record(&|recorded| {
                let expected: Vec<ExpectedCall> = recorded.calls.iter().map(ExpectedCall::of).collect();
                calls_fault(&expected, rule, &trial.calls)
            }),
            Expectation::RecordedState(ignore) => {
                of_record(&|recorded| values_fault(recorded, trial, ignore))
            }
            Expectation::RecordedText => of_record(&|recorded| different_text(&recorded.text, &trial.text)),
            Expectation::RecordedEnd => of_record(&|recorded| match (recorded.answered, trial.answered) {
                (true, false) => Some(unanswered(trial)),
                (false, true) => {
                    Some("the record waits, or has no answer; the candidate answered".to_owned())
                }
                _ => None,
            }),
            Expectation::Answered => (!trial.answered).then(|| unanswered(trial)),
            Expectation::RecordedSteps(more) => {
                of_record(&|recorded| over("steps", recorded.steps.saturating_add(*more), trial.steps))
            }
            Expectation::RecordedApprovals => of_record(&|recorded| approvals_fault(recorded, trial)),
            Expectation::NoFailedCalls => trial.has_failed_calls().then(|| {
                let failed = trial
                    .calls
                    .iter()
                    .filter(|call| matches!(call.status, Some(stepfold_tools::CallStatus::Failed(_))));
                format!(
                    "failed calls of: {}",
                    failed.map(|call| call.tool.as_str()).collect::<Vec<_>>().join(", ")
                )
            }),
            Expectation::MaxSteps(most) => over("steps", *most, trial.steps),
            Expectation::MaxTokens(most) => over("tokens", *most, trial.usage.total_tokens()),
            // Without the time, which is another one at each try.
            Expectation::MaxSeconds(most) => {
                (elapsed.as_secs_f64() > *most).then(|| format!("it took longer than {most} s"))
            }
            Expectation::MaxCost(most) => match cost {
                Some(cost) if cost <= most => None,
                Some(cost) => Some(format!("expected at most ${most}, found ${cost}")),
                None => Some("no price of the model is known".to_owned()),
            },
            Expectation::Program(_) | Expectation::Judge(_) => None,
        }
    }
}

/// A trial, with what it is compared with.
pub(crate) struct Trials<'a> {
    pub(crate) trial: &'a Trial,
    pub(crate) recorded: Option<&'a Trial>,
    /// In dollars.
    pub(crate) cost: Option<f64>,
    /// The time of the run.
    pub(crate) elapsed: Duration,
    /// An estimate of the bytes of the trial.
    pub(crate) weight: usize,
}

impl<'a> Trials<'a> {
    pub(crate) fn new(trial: &'a Trial, recorded: Option<&'a Trial>) -> Self {
        let of_values = trial.values.values().chain(trial.calls.iter().map(|call| &call.arguments));
        let weight = trial.text.len() + of_values.map(weight).sum::<usize>();
        Trials { trial, recorded, cost: None, elapsed: Duration::ZERO, weight }
    }
}

/// An estimate of the bytes of a value.
fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => 8 + items.iter().map(weight).sum::<usize>(),
        Value::Object(fields) => fields.iter().map(|(name, field)| 8 + name.len() + weight(field)).sum(),
        _ => 8,
    }
}

/// The most bytes of a text that a regular expression is searched in. The search takes the time of their product.
const MAX_SEARCHED: usize = 1 << 20;

/// The most bytes of a compiled regular expression.
const MAX_EXPRESSION: usize = 256 << 10;

/// The work that is done at once, in bytes that are looked at: some milliseconds.
const CHEAP: usize = 1 << 20;

/// The regular expression of a pattern, within its bound.
fn expression(pattern: &str) -> Result<regex_lite::Regex, String> {
    let built = regex_lite::RegexBuilder::new(pattern).size_limit(MAX_EXPRESSION).build();
    built.map_err(|error| format!("invalid regular expression `{pattern}`: {error}"))
}

impl ExpectedCall {
    /// A call with these arguments.
    #[must_use]
    pub fn new(tool: impl Into<String>, arguments: impl Into<Option<Value>>) -> Self {
        ExpectedCall { tool: tool.into(), arguments: arguments.into() }
    }

    fn of(call: &TrialCall) -> Self {
        ExpectedCall { tool: call.tool.clone(), arguments: Some(call.arguments.clone()) }
    }

    fn fits(&self, call: &TrialCall, ignore: &[String]) -> bool {
        self.tool == call.tool
            && self
                .arguments
                .as_ref()
                .is_none_or(|arguments| comparable(arguments, ignore) == comparable(&call.arguments, ignore))
    }
}

/// Arguments as canonical JSON, without those that are not compared.
pub(crate) fn comparable(arguments: &Value, ignore: &[String]) -> String {
    if ignore.is_empty() {
        return canonical_json(arguments);
    }
    let mut arguments = arguments.clone();
    for pointer in ignore {
        remove(&mut arguments, pointer);
    }
    canonical_json(&arguments)
}

/// A pointer that could never find a value is a fault of the case, and not of a candidate.
fn check_pointer(pointer: &str) -> Result<(), String> {
    match pointer.starts_with('/') {
        true => Ok(()),
        false => Err(format!("invalid JSON pointer `{pointer}`: must begin with `/`")),
    }
}

fn remove(value: &mut Value, pointer: &str) {
    let Some((parent, last)) = pointer.rsplit_once('/') else { return };
    let last = last.replace("~1", "/").replace("~0", "~");
    match value.pointer_mut(parent) {
        Some(Value::Object(fields)) => {
            fields.remove(&last);
        }
        Some(Value::Array(items)) => {
            if let Some(item) = last.parse::<usize>().ok().and_then(|index| items.get_mut(index)) {
                *item = Value::Null;
            }
        }
        _ => {}
    }
}

/// An expected call that was not made, and the one of the same tool that was made in place of it, in words.
fn missing_call(wanted: &ExpectedCall, made: &[&TrialCall]) -> String {
    match made.iter().find(|call| call.tool == wanted.tool) {
        Some(call) => {
            let (wanted, found) = shortened_pair(&call_text(wanted), &call_text(&ExpectedCall::of(call)));
            format!("missing call: {wanted}, found {found}")
        }
        None => format!("missing call: {}", named(wanted)),
    }
}

/// Why calls do not fit expected ones; `None` if they do.
pub(crate) fn calls_fault(expected: &[ExpectedCall], rule: &CallRule, calls: &[TrialCall]) -> Option<String> {
    let ignore = &rule.ignore;
    match rule.order {
        CallOrder::Exact => {
            let place = (0..expected.len().max(calls.len())).find(|place| {
                let (wanted, call) = (expected.get(*place), calls.get(*place));
                !wanted.zip(call).is_some_and(|(wanted, call)| wanted.fits(call, ignore))
            })?;
            let words = |call: Option<ExpectedCall>| {
                call.map_or_else(|| "no call".to_owned(), |call| call_text(&call))
            };
            let (wanted, found) = shortened_pair(
                &words(expected.get(place).cloned()),
                &words(calls.get(place).map(ExpectedCall::of)),
            );
            Some(format!("call {}: expected {wanted}, found {found}", place + 1))
        }
        CallOrder::InOrder => {
            let mut calls = calls.iter();
            let missing = expected.iter().find(|wanted| !calls.any(|call| wanted.fits(call, ignore)))?;
            Some(format!("missing call, in this order: {}", named(missing)))
        }
        CallOrder::AnyOrder => {
            let mut left: Vec<&TrialCall> = calls.iter().collect();
            for wanted in expected {
                match left.iter().position(|call| wanted.fits(call, ignore)) {
                    Some(place) => drop(left.remove(place)),
                    None => return Some(missing_call(wanted, &left)),
                }
            }
            left.first().map(|call| format!("unexpected call: {}", named(&ExpectedCall::of(call))))
        }
        CallOrder::Subset => {
            let mut left: Vec<&ExpectedCall> = expected.iter().collect();
            for call in calls {
                match left.iter().position(|wanted| wanted.fits(call, ignore)) {
                    Some(place) => drop(left.remove(place)),
                    None => return Some(format!("unexpected call: {}", named(&ExpectedCall::of(call)))),
                }
            }
            None
        }
    }
}

fn named(call: &ExpectedCall) -> String {
    shortened(&call_text(call))
}

fn call_text(call: &ExpectedCall) -> String {
    match &call.arguments {
        Some(arguments) => format!("{}({})", call.tool, canonical_json(arguments)),
        None => call.tool.clone(),
    }
}

fn different_text(expected: &str, found: &str) -> Option<String> {
    (expected.trim() != found.trim()).then(|| {
        let (expected, found) = shortened_pair(expected.trim(), found.trim());
        format!("expected `{expected}`, found `{found}`")
    })
}

fn unanswered(trial: &Trial) -> String {
    let exit = trial.exit.as_ref().map(|exit| format!(": {exit}")).unwrap_or_default();
    format!("the turn ended without an answer{exit}")
}

fn over(what: &str, most: u64, found: u64) -> Option<String> {
    (found > most).then(|| format!("expected at most {most} {what}, found {found}"))
}

fn schema_fault(schema: &Value, text: &str) -> Option<String> {
    let value: Value = match serde_json::from_str(text.trim()) {
        Ok(value) => value,
        Err(error) => return Some(format!("expected JSON, found `{}`: {error}", shortened(text))),
    };
    let schema = ValueType::of_schema(schema.clone()).map_err(|error| error.to_string());
    schema.and_then(|schema| schema.check(&value).map_err(|faults| faults.to_string())).err()
}

fn state_fault(expected: &BTreeMap<String, Value>, trial: &Trial) -> Option<String> {
    let values = Value::Object(trial.values.clone());
    expected.iter().find_map(|(pointer, wanted)| {
        let found = values.pointer(pointer).unwrap_or(&Value::Null);
        (canonical_json(found) != canonical_json(wanted)).then(|| {
            let (wanted, found) = value_texts(wanted, found);
            format!("{pointer}: expected {wanted}, found {found}")
        })
    })
}

fn values_fault(recorded: &Trial, trial: &Trial, ignore: &[String]) -> Option<String> {
    let without = |trial: &Trial| {
        let mut values = Value::Object(trial.values.clone());
        for pointer in ignore {
            remove(&mut values, pointer);
        }
        values
    };
    let (recorded, found) = (without(recorded), without(trial));
    let keys = |values: &Value| values.as_object().map(|values| values.keys().cloned().collect::<Vec<_>>());
    let mut keys: Vec<String> = keys(&recorded).into_iter().chain(keys(&found)).flatten().collect();
    keys.sort_unstable();
    keys.dedup();
    keys.iter().find_map(|key| {
        let (wanted, found) =
            (recorded.get(key).unwrap_or(&Value::Null), found.get(key).unwrap_or(&Value::Null));
        (canonical_json(wanted) != canonical_json(found)).then(|| {
            let (wanted, found) = value_texts(wanted, found);
            format!("state key `{key}`: recorded {wanted}, found {found}")
        })
    })
}

/// A recorded call that was asked about, and was made without a request.
fn approvals_fault(recorded: &Trial, trial: &Trial) -> Option<String> {
    let asked = recorded.calls.iter().filter(|call| call.asked);
    asked.into_iter().find_map(|wanted| {
        let fits = |call: &&TrialCall| ExpectedCall::of(wanted).fits(call, &[]);
        let made: Vec<&TrialCall> = trial.calls.iter().filter(fits).collect();
        (!made.is_empty() && made.iter().all(|call| !call.asked))
            .then(|| format!("no approval was requested for {}", named(&ExpectedCall::of(wanted))))
    })
}

/// Why a program rejects a trial; `None` if it accepts it.
///
/// # Errors
/// When the program is broken: that says nothing about the trial.
async fn run_program(
    case: &Case,
    trials: &Trials<'_>,
    command: &[String],
    context: &EvaluationContext,
) -> Result<Option<String>, String> {
    let fault = |why: String| program_fault(command, &why);
    let programs = context.programs.as_ref().ok_or("no programs are run here")?;
    let input = json!({
        "case": {"name": case.name, "say": case.say, "values": case.values},
        "trial": trials.trial,
        "recorded": trials.recorded,
    });
    let output = programs.run(command, input).await.map_err(fault)?;
    match output.get("passed").and_then(Value::as_bool) {
        Some(true) => Ok(None),
        Some(false) => {
            let reason = output.get("reason").and_then(Value::as_str);
            Ok(Some(reason.unwrap_or("the program said no").to_owned()))
        }
        None => Err(fault("expected `passed`, true or false, in its output".to_owned())),
    }
}

fn program_fault(command: &[String], why: &str) -> String {
    format!("program `{}`: {why}", shortened(&command.join(" ")))
}

/// Two values that differ, shortened so that they do so.
fn value_texts(wanted: &Value, found: &Value) -> (String, String) {
    shortened_pair(&canonical_json(wanted), &canonical_json(found))
}
