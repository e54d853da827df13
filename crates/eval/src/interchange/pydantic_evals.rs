//! Data sets of pydantic-evals: cases with inputs, and evaluators by name.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{LeftOut, OWN, invalid, own_case};
use crate::case::Case;
use crate::error::EvalError;
use crate::expectation::{CallOrder, CallRule, Expectation, ExpectedCall, ExpectedCalls};
use crate::judge::Rubric;

/// The file. Reports of whole experiments are its own.
#[derive(Deserialize)]
struct File {
    cases: Vec<Row>,
    #[serde(default)]
    evaluators: Vec<Value>,
}

#[derive(Clone, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Row {
    #[serde(default)]
    name: Option<String>,
    inputs: Value,
    #[serde(default)]
    metadata: Value,
    #[serde(default)]
    expected_output: Value,
    #[serde(default)]
    evaluators: Vec<Value>,
}

pub(super) fn read(value: Value, left_out: &mut LeftOut) -> Result<Vec<Case>, EvalError> {
    let file: File = serde_json::from_value(value).map_err(|error| EvalError::Line {
        what: "pydantic-evals data set",
        line: 1,
        column: None,
        why: error.to_string(),
    })?;
    let rows = file.cases.into_iter().enumerate();
    let cases = rows.map(|(index, mut row)| {
        row.evaluators.extend(file.evaluators.iter().cloned());
        case_of(&row, index, left_out)
    });
    cases.collect()
}

/// The case of a row. What stands beside it holds as far as the row was not edited.
fn case_of(row: &Row, index: usize, left_out: &mut LeftOut) -> Result<Case, EvalError> {
    let name = row.name.clone().unwrap_or_else(|| format!("case {}", index + 1));
    let own = own_case(row.metadata.get(OWN));
    let written =
        own.as_ref().and_then(|own| serde_json::from_value::<Row>(write(own, &mut LeftOut::default())).ok());
    let base = match (own, &written) {
        (Some(own), Some(written)) if row.inputs == written.inputs => Some(own),
        (None, _) => None,
        _ => {
            left_out.add(format!("case `{name}`: its record, since its inputs were edited"));
            None
        }
    };
    // Its own program writes evaluators in another form.
    let said = |row: &Row| {
        let mut unknown = LeftOut::default();
        (expectations(&name, row, &mut unknown), unknown)
    };
    let is_expected = |written: &Row| said(row) == said(written);
    if let (Some(base), true) = (&base, written.as_ref().is_some_and(is_expected)) {
        return Ok(Case { name, ..base.clone() });
    }
    let mut case = match base {
        Some(base) => Case { name: name.clone(), ..base },
        None => with_inputs(&name, &row.inputs)?,
    };
    case.expect = expectations(&name, row, left_out);
    Ok(case)
}

/// A case with these inputs: a text is the user's message, and an object may be one that [`inputs_of`] made.
fn with_inputs(name: &str, inputs: &Value) -> Result<Case, EvalError> {
    const FIELDS: [&str; 4] = ["say", "values", "conversation", "messages"];
    match inputs {
        Value::String(text) => Ok(Case::new(name, text.as_str())),
        Value::Object(fields)
            if !fields.is_empty() && fields.keys().all(|key| FIELDS.contains(&key.as_str())) =>
        {
            let mut fields = fields.clone();
            fields.insert("name".to_owned(), name.into());
            serde_json::from_value(Value::Object(fields)).map_err(|error| invalid(name, error.to_string()))
        }
        // A task of any type: the model reads its inputs as JSON.
        other => Ok(Case::new(name, other.to_string())),
    }
}

fn expectations(name: &str, row: &Row, left_out: &mut LeftOut) -> Vec<Expectation> {
    let mut found: Vec<Expectation> = Vec::new();
    for evaluator in &row.evaluators {
        let (kind, arguments) = spec(evaluator);
        match (expectation(&kind, &arguments, &row.expected_output), found.last_mut()) {
            (Some(Expectation::TextContains(more)), Some(Expectation::TextContains(texts))) => {
                texts.extend(more);
            }
            (Some(expectation), _) => found.push(expectation),
            (None, _) => left_out.add(format!("case `{name}`: evaluator {kind}")),
        }
    }
    let is_compared = row.evaluators.iter().any(|evaluator| spec(evaluator).0 == "EqualsExpected");
    if !row.expected_output.is_null() && !is_compared {
        left_out.add(format!("case `{name}`: expected_output, which no EqualsExpected compares"));
    }
    found
}

/// The name of an evaluator, and its arguments: `Name`, `{Name: first}` or `{Name: {argument: value}}`.
fn spec(evaluator: &Value) -> (String, Value) {
    match evaluator {
        Value::String(kind) => (kind.clone(), Value::Null),
        Value::Object(fields) => match (fields.iter().next(), fields.len()) {
            (Some((kind, arguments)), 1) => (kind.clone(), arguments.clone()),
            _ => (evaluator.to_string(), Value::Null),
        },
        other => (other.to_string(), Value::Null),
    }
}

/// The expectation that says the same; none if there is none, or if an argument changes the meaning.
fn expectation(kind: &str, arguments: &Value, expected: &Value) -> Option<Expectation> {
    let first = |name: &str| match arguments.as_object() {
        Some(fields) => fields.get(name).cloned(),
        None => Some(arguments.clone()).filter(|value| !value.is_null()),
    };
    let flag = |name: &str| arguments.get(name).and_then(Value::as_bool);
    let knows = |names: &[&str]| {
        let known = |key: &String| key == "evaluation_name" || names.contains(&key.as_str());
        arguments.as_object().is_none_or(|fields| fields.keys().all(known))
    };
    match kind {
        "Equals" if knows(&["value"]) => Some(Expectation::TextEquals(text_of(&first("value")?))),
        "EqualsExpected" if knows(&[]) && !expected.is_null() => {
            Some(Expectation::TextEquals(text_of(expected)))
        }
        "Contains" if knows(&["value", "case_sensitive", "as_strings"]) => {
            let text = text_of(&first("value")?);
            Some(match flag("case_sensitive") {
                Some(false) => Expectation::TextMatches(format!("(?i){}", escaped(&text))),
                _ => Expectation::TextContains(vec![text]),
            })
        }
        "MaxModelRequests" if knows(&["max_requests"]) => {
            first("max_requests")?.as_u64().map(Expectation::MaxSteps)
        }
        "MaxDuration" if knows(&["seconds"]) => first("seconds")?.as_f64().map(Expectation::MaxSeconds),
        "LLMJudge" if knows(&["rubric", "include_input"]) => {
            Some(Expectation::Judge(Rubric::new(first("rubric")?.as_str()?)))
        }
        "ToolCorrectness"
            if knows(&["expected_tools", "allow_extra"]) && flag("allow_extra") != Some(true) =>
        {
            calls(&first("expected_tools")?, CallOrder::AnyOrder)
        }
        "TrajectoryMatch"
            if knows(&["expected_trajectory", "order"])
                && arguments.get("order").and_then(Value::as_str) == Some("exact") =>
        {
            calls(&first("expected_trajectory")?, CallOrder::Exact)
        }
        _ => None,
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// An expression that matches this text.
fn escaped(text: &str) -> String {
    let mut pattern = String::new();
    for letter in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

fn calls(tools: &Value, order: CallOrder) -> Option<Expectation> {
    let call = |tool: &Value| Some(ExpectedCall { tool: tool.as_str()?.to_owned(), arguments: None });
    let calls = tools.as_array()?.iter().map(call).collect::<Option<Vec<_>>>()?;
    Some(Expectation::Calls(ExpectedCalls { calls, rule: CallRule::of(order) }))
}

/// A case as a row. The whole case stands beside it, unless the row says all of it.
pub(super) fn write(case: &Case, left_out: &mut LeftOut) -> Value {
    let mut row = Map::new();
    row.insert("name".to_owned(), case.name.clone().into());
    row.insert("inputs".to_owned(), inputs_of(case));
    let mut evaluators = Vec::new();
    for expectation in &case.expect {
        let written = evaluators_of(expectation);
        if written.is_empty() {
            left_out.add(format!("case `{}`: {}", case.name, expectation.name()));
        }
        evaluators.extend(written);
    }
    let mut lost = LeftOut::default();
    let alone = Row {
        name: Some(case.name.clone()),
        inputs: inputs_of(case),
        metadata: Value::Null,
        expected_output: Value::Null,
        evaluators: evaluators.clone(),
    };
    let is_whole = case_of(&alone, 0, &mut lost).is_ok_and(|again| again == *case);
    if !is_whole {
        row.insert("metadata".to_owned(), json!({ OWN: case }));
    }
    if !evaluators.is_empty() {
        row.insert("evaluators".to_owned(), evaluators.into());
    }
    Value::Object(row)
}

/// The inputs of the task: the user's message, or an object where that does not say all.
fn inputs_of(case: &Case) -> Value {
    let is_text = case.values.is_empty() && case.messages.is_empty() && case.conversation.is_empty();
    if is_text || case.record.is_some() {
        return case.question().into();
    }
    let whole = serde_json::to_value(Case { expect: Vec::new(), source: None, ..case.clone() });
    let mut whole = whole.unwrap_or_default();
    if let Some(fields) = whole.as_object_mut() {
        fields.remove("name");
    }
    whole
}

/// The evaluators that say the same.
fn evaluators_of(expectation: &Expectation) -> Vec<Value> {
    match expectation {
        Expectation::TextEquals(text) => vec![json!({"Equals": {"value": text}})],
        Expectation::TextContains(texts) => {
            texts.iter().map(|text| json!({"Contains": {"value": text}})).collect()
        }
        Expectation::MaxSteps(steps) => vec![json!({"MaxModelRequests": {"max_requests": steps}})],
        Expectation::MaxSeconds(seconds) => vec![json!({"MaxDuration": {"seconds": seconds}})],
        Expectation::Judge(Rubric { rubric, least: None }) => {
            vec![json!({"LLMJudge": {"rubric": rubric, "include_input": true}})]
        }
        Expectation::Calls(ExpectedCalls { calls, rule }) if rule.ignore.is_empty() => {
            let tools: Vec<&str> = calls.iter().map(|call| call.tool.as_str()).collect();
            let mut written = match rule.order {
                CallOrder::Exact => {
                    vec![json!({"TrajectoryMatch": {"expected_trajectory": tools, "order": "exact"}})]
                }
                CallOrder::AnyOrder => vec![json!({"ToolCorrectness": {"expected_tools": tools}})],
                CallOrder::InOrder | CallOrder::Subset => return Vec::new(),
            };
            written.extend(calls.iter().enumerate().filter_map(|(place, call)| argument(calls, place, call)));
            written
        }
        _ => Vec::new(),
    }
}

/// The evaluator of the arguments of a call that is the only one of its tool.
fn argument(calls: &[ExpectedCall], place: usize, call: &ExpectedCall) -> Option<Value> {
    let arguments = call.arguments.as_ref().filter(|arguments| arguments.is_object())?;
    let is_other = |(other, found): (usize, &ExpectedCall)| other != place && found.tool == call.tool;
    let is_only = !calls.iter().enumerate().any(is_other);
    is_only.then(|| {
        json!({"ArgumentCorrectness": {
            "tool_name": call.tool, "expected_arguments": arguments, "match_mode": "exact",
        }})
    })
}
