//! The answers of the original, Haystack, to 29 hand-made and 250 generated runs; see
//! `tests/fixtures/README.md`.
//!
//! Everything goes through the public API. A deviation has to belong to a class below, each of which is a row
//! that the comparison calls better; and each class has to occur.

mod agents;
mod deviations;

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use stepfold_agent_loop::{DecisionError, Exit, Input, Outcome, RunError, RunFault};
use stepfold_state_core::chat::{Message, Role};
use stepfold_tools::{CallFailure, CallStatus};

use agents::{Answers, Scripted, adjust, agent, list, object, text};

const HAND_MADE: &str = include_str!("../../fixtures/agent/fixtures.jsonl");
const GENERATED: &str = include_str!("../../fixtures/agent/scenarios.jsonl");

#[tokio::test]
async fn answers_as_the_original_does() {
    let (mut faults, mut count, mut same) = (String::new(), 0, 0);
    let mut occurred = std::collections::BTreeMap::new();
    for line in HAND_MADE.lines().chain(GENERATED.lines()) {
        let line: Value = serde_json::from_str(line).unwrap();
        let scenario = &line["scenario"];
        let theirs = theirs(&line);
        let ours = replay(scenario).await;
        count += 1;
        let mut case = deviations::Case::new(scenario, ours, theirs);
        let rows = case.explained();
        same += usize::from(rows.is_empty());
        for row in rows {
            *occurred.entry(row).or_insert(0) += 1;
        }
        if case.ours != case.theirs {
            let (ours, theirs) = (case.ours, case.theirs);
            writeln!(faults, "scenario {}\n  ours:   {ours}\n  theirs: {theirs}", scenario["id"]).unwrap();
        }
    }
    assert_eq!(count, 279);
    assert_eq!(faults, "", "{faults}");
    for (row, _) in deviations::ROWS {
        assert!(occurred.contains_key(row), "\"{row}\" does not occur");
    }
    assert!(same >= 188, "only {same} are the same without more; by row {occurred:#?}");
}

/// The original's answer, in the form of ours. Where 2.31 and 3.4 differ, 3.4 holds, but for exit conditions.
fn theirs(line: &Value) -> Value {
    let is_checked_at_build = !list(&line["scenario"]["exit_conditions"]).is_empty();
    let expected = match line.get("expected_2_31") {
        Some(older) if is_checked_at_build && older["error"].is_object() => older,
        _ => &line["expected_3_4"],
    };
    let error = &expected["error"];
    if error.is_object() {
        let kind = match (text(&error["class"]), expected["llm_calls"].as_u64()) {
            (_, Some(0)) => "refused",
            (_, None) => unreachable!(),
            ("ToolInvocationError" | "ToolNotFoundException", _) => "tool",
            _ if text(&error["message"]).contains("failed to merge") => "tool",
            _ => "model",
        };
        return json!({"asked": expected["asked"], "error": kind, "llm_calls": expected["llm_calls"]});
    }
    let messages: Vec<Value> = list(&expected["messages"]).iter().map(their_message).collect();
    json!({
        "asked": expected["asked"],
        "exit": expected["exit_reason"],
        "llm_calls": expected["llm_calls"],
        "messages": messages,
        "state": expected["state"],
    })
}

fn their_message(message: &Value) -> Value {
    let mut ours = json!({"role": message["role"]});
    if let Some(text) = message["text"].as_str().filter(|text| !text.is_empty()) {
        ours["text"] = text.into();
    }
    let calls: Vec<Value> = list(&message["tool_calls"]).to_vec();
    if !calls.is_empty() {
        ours["calls"] = calls.into();
    }
    if let Some(result) = list(&message["tool_results"]).first() {
        let words = text(&result["result"]);
        let said = match result["error"] == true {
            true => json!({"error": their_kind(words)}),
            false => json!({"value": content(words)}),
        };
        ours["result"] = json!({"id": result["id"], "name": result["name"], "said": said});
    }
    ours
}

fn their_kind(words: &str) -> &str {
    ["not found", "rejected", "merge"].into_iter().find(|kind| words.contains(kind)).unwrap_or("invoke")
}

/// What we answer.
struct Replayed {
    answer: Value,
    /// How our calls ended.
    statuses: Vec<(String, CallStatus)>,
    /// Why the agent was refused, if it was.
    refusal: String,
}

async fn replay(scenario: &Value) -> Replayed {
    let answers = Answers::new(scenario);
    let (agent, model) = match agent(scenario) {
        Ok(agent) => agent,
        Err(refusal) => {
            let refused = json!({"asked": [], "error": "refused", "llm_calls": 0});
            return Replayed { answer: refused, statuses: Vec::new(), refusal };
        }
    };
    let mut input = Input::from("hi");
    if let Value::Object(values) = &scenario["state"] {
        input = input.with_values(Value::Object(values.clone()));
    }
    let mut seen = Vec::new();
    let decide = |requests| {
        let decided = answers.decide(requests);
        async move { decided }
    };
    let ended = agent
        .run(input)
        .observe(&mut seen)
        .approve_with(decide)
        .with(|builder| adjust(builder, scenario))
        .await;
    let outcome = ended.as_ref().unwrap_or_else(|error| error.outcome());
    // What waits for a decision is answered when it is there.
    let is_open = ended.as_ref().is_err_and(|error| matches!(error.fault(), RunFault::Decision(_)));
    assert!(is_open || outcome.transcript().check().is_ok(), "scenario {}", scenario["id"]);
    let statuses = statuses(&seen);
    let mut ours = match &ended {
        Ok(outcome) => shown(outcome, &statuses),
        Err(error) => json!({"error": kind_of(error)}),
    };
    ours["asked"] = answers.asked();
    ours["llm_calls"] = asked(&model).into();
    Replayed { answer: ours, statuses, refusal: String::new() }
}

fn asked(model: &Scripted) -> usize {
    model.asked.load(std::sync::atomic::Ordering::Relaxed)
}

fn kind_of(error: &RunError) -> &'static str {
    match error.fault() {
        RunFault::Model(_) => "model",
        RunFault::Tool(_) => "tool",
        RunFault::Agent(_) | RunFault::Start(_) => "refused",
        RunFault::Decision(DecisionError::InvalidArguments { .. }) => "modified arguments",
        fault => panic!("{fault}"),
    }
}

/// How each call ended, by its id, the end of its step included.
fn statuses(seen: &[stepfold_agent_loop::RunEvent]) -> Vec<(String, CallStatus)> {
    use stepfold_agent_loop::EventKind;
    let mut statuses: Vec<(String, CallStatus)> = Vec::new();
    for event in seen.iter().filter_map(|event| event.committed()) {
        match &event.kind {
            EventKind::Answered(_) | EventKind::Replied { .. } => {
                let calls = event.outcomes();
                let calls = calls.iter().filter_map(|item| item.outcome.call());
                statuses.extend(calls.map(|outcome| (outcome.call_id().to_owned(), outcome.status)));
            }
            EventKind::Decided { decisions, .. } => {
                let is_rejected =
                    |decision: &_| matches!(decision, stepfold_agent_loop::Decision::Reject { .. });
                let rejected = decisions.iter().filter(|(_, decision)| is_rejected(decision));
                let status = CallStatus::Failed(CallFailure::Rejected);
                let call = |id: &str| id.split('#').next().unwrap_or_default().to_owned();
                statuses.extend(rejected.map(|(id, _)| (call(id), status)));
            }
            _ => {}
        }
        let results = event.messages.iter().filter_map(|message| message.tool_result()).collect::<Vec<_>>();
        for place in event.step_end.iter().flat_map(|end| &end.unmerged) {
            let id = results[*place].call_id();
            let status = statuses.iter_mut().find(|(call, _)| call == id).unwrap();
            status.1 = CallStatus::Failed(CallFailure::Merge);
        }
    }
    statuses
}

fn shown(outcome: &Outcome, statuses: &[(String, CallStatus)]) -> Value {
    let exit = match outcome.exit() {
        Exit::Text | Exit::NoTools => "text",
        Exit::Tool(name) => name,
        Exit::MaxSteps => "max_agent_steps",
        Exit::Length => "length",
        Exit::ContentFilter => "content_filter",
        exit => panic!("{exit}"),
    };
    // The original has the instructions in its log, ours are in the request.
    let instructions = outcome.run().instructions();
    let instructions = instructions.map(|text| json!({"role": "system", "text": text}));
    let messages = outcome.transcript().iter().map(|message| our_message(message, statuses));
    let messages: Vec<Value> = instructions.into_iter().chain(messages).collect();
    let values = outcome.state().iter().filter(|(key, _)| *key != "messages");
    let state: Map<String, Value> = values.map(|(key, value)| (key.to_owned(), value.to_json())).collect();
    json!({"exit": exit, "messages": messages, "state": state})
}

fn our_message(message: &Message, statuses: &[(String, CallStatus)]) -> Value {
    let mut ours = json!({"role": message.role().as_str()});
    if let Some(result) = message.tool_result() {
        let said = match result.is_error() {
            true => json!({"error": our_kind(result.call_id(), statuses)}),
            false => json!({"value": content(&result.text())}),
        };
        ours["result"] = json!({"id": result.call_id(), "name": result.name(), "said": said});
        return ours;
    }
    assert_ne!(message.role(), Role::Tool);
    if !message.text().is_empty() {
        ours["text"] = message.text().into();
    }
    let call = |call: &stepfold_state_core::chat::ToolCall| {
        let arguments = Value::Object(call.arguments.as_object().unwrap().clone());
        json!({"arguments": arguments, "id": call.id, "name": call.name})
    };
    let calls: Vec<Value> = message.tool_calls().map(call).collect();
    if !calls.is_empty() {
        ours["calls"] = calls.into();
    }
    ours
}

fn our_kind(id: &str, statuses: &[(String, CallStatus)]) -> &'static str {
    match statuses.iter().find(|(call, _)| call == id).unwrap().1 {
        CallStatus::Failed(CallFailure::UnknownTool) => "not found",
        CallStatus::Failed(CallFailure::Rejected) => "rejected",
        CallStatus::Failed(CallFailure::Merge) => "merge",
        CallStatus::Failed(CallFailure::NotRun) => "not run",
        CallStatus::Failed(CallFailure::Error | CallFailure::InvalidArguments) => "invoke",
        status => panic!("{status:?}"),
    }
}

/// What the model reads: the original puts spaces into its JSON, ours is compact.
fn content(text: &str) -> Value {
    let (open, inner, close) = match text.strip_prefix("<<").and_then(|text| text.strip_suffix(">>")) {
        Some(inner) => ("<<", inner, ">>"),
        None => ("", text, ""),
    };
    match serde_json::from_str::<Value>(inner) {
        Ok(Value::Object(fields)) => {
            let fields: Map<String, Value> =
                fields.into_iter().map(|(name, value)| (name, again(value))).collect();
            json!([open, fields, close])
        }
        Ok(value) => json!([open, value, close]),
        Err(_) => json!([open, inner, close]),
    }
}

/// Of several texts, each may be JSON in turn.
fn again(value: Value) -> Value {
    match value.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()) {
        Some(inner @ (Value::Array(_) | Value::Object(_))) => json!({"json": inner}),
        _ => value,
    }
}
