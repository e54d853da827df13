//! Eval sets of the Agent Development Kit: conversations with the calls that are expected in each invocation.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{Message, Role};

use super::{LeftOut, OWN, invalid, own_case};
use crate::case::{Case, Conversation};
use crate::error::EvalError;
use crate::expectation::{CallOrder, CallRule, Expectation, ExpectedCall, ExpectedCalls};
use crate::judge::Rubric;
use crate::trial::Trial;

/// A field, which ADK reads under both names.
fn field<'a>(value: &'a Value, camel: &str, snake: &str) -> &'a Value {
    match value.get(camel).filter(|field| !field.is_null()) {
        Some(field) => field,
        None => value.get(snake).unwrap_or(&Value::Null),
    }
}

pub(super) fn read(value: &Value, left_out: &mut LeftOut) -> Result<Vec<Case>, EvalError> {
    let cases = match value {
        Value::Array(older) => older.iter().map(renewed).collect(),
        newer => field(newer, "evalCases", "eval_cases").as_array().cloned().unwrap_or_default(),
    };
    let read = cases.iter().map(|case| cases_of(case, left_out));
    Ok(read.collect::<Result<Vec<_>, _>>()?.concat())
}

/// A case of the older form, in the form of today.
fn renewed(older: &Value) -> Value {
    let invocation = |data: &Value| {
        let calls = data["expected_tool_use"].as_array().cloned().unwrap_or_default();
        let calls = calls.iter().map(|call| json!({"name": call["tool_name"], "args": call["tool_input"]}));
        json!({
            "userContent": content("user", data["query"].as_str().unwrap_or_default()),
            "finalResponse": content("model", data["reference"].as_str().unwrap_or_default()),
            "intermediateData": {"toolUses": calls.collect::<Vec<_>>()},
        })
    };
    let data = older["data"].as_array().cloned().unwrap_or_default();
    json!({
        "evalId": older["name"],
        "conversation": data.iter().map(invocation).collect::<Vec<_>>(),
        "sessionInput": older["initial_session"],
    })
}

fn content(role: &str, text: &str) -> Value {
    json!({"role": role, "parts": [{"text": text}]})
}

fn text_in(content: &Value) -> String {
    let parts = content["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
    parts.iter().filter_map(|part| part["text"].as_str()).collect()
}

/// A case for each invocation: the earlier ones are its conversation.
fn cases_of(value: &Value, left_out: &mut LeftOut) -> Result<Vec<Case>, EvalError> {
    let id = field(value, "evalId", "eval_id").as_str().unwrap_or_default();
    if let Some(case) = own(value) {
        return Ok(vec![case]);
    }
    if value.get(OWN).is_some() {
        left_out.add(format!("case `{id}`: its record, since the case was edited"));
    }
    let Some(invocations) = value["conversation"].as_array() else {
        left_out.add(format!("case `{id}`: it has no conversation, but a scenario for a simulated user"));
        return Ok(Vec::new());
    };
    let session = field(value, "sessionInput", "session_input");
    let values = session["state"].as_object().cloned().unwrap_or_default();
    let mut cases = Vec::new();
    let mut before: Vec<Arc<Message>> = Vec::new();
    for (place, invocation) in invocations.iter().enumerate() {
        let is_last = place + 1 == invocations.len();
        let name = if invocations.len() == 1 { id.to_owned() } else { format!("{id}/{}", place + 1) };
        let said = text_in(field(invocation, "userContent", "user_content"));
        if said.is_empty() {
            return Err(invalid(&name, "missing text of the user in `userContent`"));
        }
        let answer = text_in(field(invocation, "finalResponse", "final_response"));
        let mut case = Case::new(name, said.as_str());
        // Values that earlier invocations would have written are not known.
        case.values.clone_from(&values);
        case.conversation = Conversation::Messages(before.clone());
        case.expect = expectations((value, invocation), is_last, &case.name, left_out);
        cases.push(case);
        before.push(Arc::new(Message::user(said)));
        before.push(Arc::new(Message::assistant(answer)));
    }
    Ok(cases)
}

/// The case of ours that stands beside the fields, if they were not edited.
fn own(value: &Value) -> Option<Case> {
    let case = own_case(value.get(OWN))?;
    let written = write(&case, &mut LeftOut::default()).ok()?;
    // ADK writes files again with other defaults: only what was said is compared.
    is_said(&written, value).then_some(case)
}

/// Whether all of a value stands in another one.
fn is_said(said: &Value, other: &Value) -> bool {
    match (said, other) {
        (Value::Object(said), Value::Object(other)) => {
            let field = |key: &str| other.get(key).or_else(|| other.get(&snake(key)));
            said.iter().all(|(key, value)| match field(key) {
                Some(other) => is_said(value, other),
                None => value.as_array().is_some_and(Vec::is_empty),
            })
        }
        (Value::Array(said), Value::Array(other)) => {
            said.len() == other.len() && said.iter().zip(other).all(|(said, other)| is_said(said, other))
        }
        _ => said == other,
    }
}

fn snake(camel: &str) -> String {
    let mut name = String::new();
    for letter in camel.chars() {
        if letter.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

fn expectations(
    (case, invocation): (&Value, &Value),
    is_last: bool,
    name: &str,
    left_out: &mut LeftOut,
) -> Vec<Expectation> {
    let calls = expected_calls(field(invocation, "intermediateData", "intermediate_data"));
    let mut found = vec![Expectation::Calls(ExpectedCalls { calls, rule: CallRule::of(CallOrder::Exact) })];
    let state = field(case, "finalSessionState", "final_session_state");
    if let (true, Some(state)) = (is_last, state.as_object().filter(|state| !state.is_empty())) {
        let pointer = |key: &str| format!("/{}", key.replace('~', "~0").replace('/', "~1"));
        let values = state.iter().map(|(key, value)| (pointer(key), value.clone()));
        found.push(Expectation::State(values.collect()));
    }
    let rubrics = [case, invocation].map(|value| value["rubrics"].as_array().cloned().unwrap_or_default());
    for rubric in rubrics.concat() {
        let text = field(field(&rubric, "rubricContent", "rubric_content"), "textProperty", "text_property");
        if let Some(text) = text.as_str() {
            found.push(Expectation::Judge(Rubric::new(text)));
        }
    }
    if !field(invocation, "finalResponse", "final_response").is_null() {
        left_out.add(format!(
            "case `{name}`: the final response, which ADK compares by similarity; add text_contains or a judge"
        ));
    }
    found
}

/// The calls of an invocation: as a list, or in its events.
fn expected_calls(data: &Value) -> Vec<ExpectedCall> {
    let call = |call: &Value| {
        let tool = call["name"].as_str()?.to_owned();
        Some(ExpectedCall {
            tool,
            arguments: Some(call["args"].as_object().cloned().unwrap_or_default().into()),
        })
    };
    let empty = Vec::new();
    let listed = field(data, "toolUses", "tool_uses").as_array().unwrap_or(&empty);
    let events = field(data, "invocationEvents", "invocation_events").as_array().unwrap_or(&empty);
    let parts = events.iter().filter_map(|event| event["content"]["parts"].as_array()).flatten();
    let in_events = parts.map(|part| field(part, "functionCall", "function_call"));
    listed.iter().chain(in_events).filter_map(call).collect()
}

/// A case as an eval case: a turn before it is an invocation before it.
pub(super) fn write(case: &Case, left_out: &mut LeftOut) -> Result<Value, EvalError> {
    let before = case.messages_before().map_err(|why| invalid(&case.name, why))?;
    let mut conversation = invocations(&before);
    let recorded = Trial::recorded(case);
    let mut calls = recorded
        .as_ref()
        .map(|trial| trial.calls.iter().map(|call| tool_use(&call.tool, &call.arguments)).collect());
    let mut response = recorded.as_ref().map(|trial| trial.text.clone());
    let (mut state, mut rubrics) = (Map::new(), Vec::new());
    for expectation in &case.expect {
        match expectation {
            Expectation::TextEquals(text) => response = Some(text.clone()),
            Expectation::Judge(Rubric { rubric, .. }) => rubrics.push(json!({
                "rubricId": (rubrics.len() + 1).to_string(), "rubricContent": {"textProperty": rubric},
            })),
            Expectation::Calls(expected) if is_exact(expected) => {
                let written = expected
                    .calls
                    .iter()
                    .map(|call| tool_use(&call.tool, call.arguments.as_ref().unwrap_or(&Value::Null)));
                calls = Some(written.collect::<Vec<_>>());
            }
            Expectation::State(values) if top_level(values).is_some() => {
                state.extend(top_level(values).unwrap_or_default());
            }
            Expectation::RecordedCalls(_) | Expectation::RecordedText => {}
            other => left_out.add(format!("case `{}`: {}", case.name, other.name())),
        }
    }
    conversation.push(invocation(&case.question(), response.as_deref(), &calls.unwrap_or_default()));
    let source = case.source.as_ref();
    let mut written = json!({
        "evalId": case.name,
        "conversation": conversation,
        "sessionInput": {
            "appName": source.map_or("stepfold", |source| source.app.as_str()),
            "userId": source.map_or("user", |source| source.user.as_str()),
            "state": case.values,
        },
        "finalSessionState": state,
    });
    if !rubrics.is_empty() {
        written["rubrics"] = rubrics.into();
    }
    let is_whole = cases_of(&written, &mut LeftOut::default()).is_ok_and(|again| again == [case.clone()]);
    if !is_whole {
        written[OWN] = serde_json::to_value(case).map_err(|error| invalid(&case.name, error.to_string()))?;
    }
    Ok(written)
}

/// Whether ADK compares the calls alike: in this order, and with all arguments.
fn is_exact(expected: &ExpectedCalls) -> bool {
    let rule = &expected.rule;
    rule.order == CallOrder::Exact
        && rule.ignore.is_empty()
        && expected.calls.iter().all(|call| call.arguments.is_some())
}

/// The values by key, if each pointer is a key.
fn top_level(values: &BTreeMap<String, Value>) -> Option<Map<String, Value>> {
    let key = |pointer: &str| {
        let key = pointer.strip_prefix('/').filter(|key| !key.contains('/'))?;
        Some(key.replace("~1", "/").replace("~0", "~"))
    };
    values.iter().map(|(pointer, value)| Some((key(pointer)?, value.clone()))).collect()
}

fn tool_use(tool: &str, arguments: &Value) -> Value {
    json!({"name": tool, "args": arguments.as_object().cloned().unwrap_or_default()})
}

fn invocation(said: &str, response: Option<&str>, calls: &[Value]) -> Value {
    let mut written = json!({"userContent": content("user", said), "intermediateData": {"toolUses": calls}});
    if let Some(response) = response {
        written["finalResponse"] = content("model", response);
    }
    written
}

/// The turns of a conversation. What stands before the first message of the user belongs to none.
fn invocations(messages: &[Arc<Message>]) -> Vec<Value> {
    let mut turns: Vec<(String, Option<String>, Vec<Value>)> = Vec::new();
    for message in messages {
        match (message.role(), turns.last_mut()) {
            (Role::User, _) => turns.push((message.text().into_owned(), None, Vec::new())),
            (Role::Assistant, Some((_, response, calls))) => {
                *response = Some(message.text().into_owned());
                calls.extend(message.tool_calls().map(|call| {
                    let arguments = call.arguments.as_object().cloned();
                    tool_use(&call.name, &arguments.map_or(Value::Null, Value::Object))
                }));
            }
            _ => {}
        }
    }
    turns.into_iter().map(|(said, response, calls)| invocation(&said, response.as_deref(), &calls)).collect()
}
