//! Expectations: what has to hold of a trial, as data that a file can hold; and the ports for evaluators in code and for
//! programs.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepfold_state_core::canonical_json;
use stepfold_state_core::chat::Prices;
use stepfold_state_core::json_schema::ValueType;

use crate::case::Case;
use crate::judge::{Judge, Rubric};
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
    /// The last reply is an answer if that of the record is one: the turn did not stop at a limit, for example.
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
        match self {
            Expectation::TextMatches(pattern) => regex_lite::Regex::new(pattern)
                .map(drop)
                .map_err(|error| format!("invalid regular expression `{pattern}`: {error}")),
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
            _ => Ok(()),
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
            let judge = context
                .judge
                .as_ref()
                .ok_or("no judge: the case has a rubric, the experiment has no judge")?;
            return judge.judge((case, trials), rubric, &context.spending).await;
        }
        let found = match self {
            Expectation::Program(Program { command }) => run_program(case, trials, command, context).await,
            expectation => expectation.fault(trials),
        };
        Ok(match found {
            None => Score::passed(self.name()),
            Some(reason) => Score::failed(self.name(), reason),
        })
    }

    /// Why a trial does not fit; `None` if it does.
    fn fault(&self, trials: &Trials<'_>) -> Option<String> {
        let Trials { trial, recorded, cost } = trials;
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
                let is_match = regex_lite::Regex::new(pattern).is_ok_and(|regex| regex.is_match(&trial.text));
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

/// The call of the same tool that was made in place of an expected one, in words.
fn instead(wanted: &ExpectedCall, made: &[&TrialCall]) -> String {
    let made = made.iter().find(|call| call.tool == wanted.tool);
    made.map(|call| format!(", found {}", named(&ExpectedCall::of(call)))).unwrap_or_default()
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
            Some(format!(
                "call {}: expected {}, found {}",
                place + 1,
                expected.get(place).map_or_else(|| "no call".to_owned(), named),
                calls.get(place).map_or_else(|| "no call".to_owned(), |call| named(&ExpectedCall::of(call))),
            ))
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
                    None => {
                        return Some(format!("missing call: {}{}", named(wanted), instead(wanted, &left)));
                    }
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
    match &call.arguments {
        Some(arguments) => shortened(&format!("{}({})", call.tool, canonical_json(arguments))),
        None => call.tool.clone(),
    }
}

fn different_text(expected: &str, found: &str) -> Option<String> {
    (expected.trim() != found.trim())
        .then(|| format!("expected `{}`, found `{}`", shortened(expected.trim()), shortened(found.trim())))
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
        (canonical_json(found) != canonical_json(wanted))
            .then(|| format!("{pointer}: expected {}, found {}", value_text(wanted), value_text(found)))
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
            format!("state key `{key}`: recorded {}, found {}", value_text(wanted), value_text(found))
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

async fn run_program(
    case: &Case,
    trials: &Trials<'_>,
    command: &[String],
    context: &EvaluationContext,
) -> Option<String> {
    let Some(programs) = &context.programs else {
        return Some("no programs are run here".to_owned());
    };
    let input = json!({
        "case": {"name": case.name, "say": case.say, "values": case.values},
        "trial": trials.trial,
        "recorded": trials.recorded,
    });
    match programs.run(command, input).await {
        Err(error) => Some(format!("program failed: {error}")),
        Ok(output) => match output.get("passed").and_then(Value::as_bool) {
            Some(true) => None,
            Some(false) => {
                let reason = output.get("reason").and_then(Value::as_str);
                Some(reason.unwrap_or("the program said no").to_owned())
            }
            None => Some("program failed: expected `passed` in its output".to_owned()),
        },
    }
}

fn value_text(value: &Value) -> String {
    shortened(&canonical_json(value))
}

/// A text of at most 200 characters.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(200) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}
