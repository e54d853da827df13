//! Golden files: what version 1 wrote loads for ever, and continues as it would have.
//!
//! A change of format adds files; it never changes one of these. The file holds a run that waits for a
//! decision in the middle of a step, a recording, and events of every kind.

use std::fs;
use std::path::PathBuf;

use expect_test::expect;
use serde_json::{Value, json};
use stepfold_agent_loop::state_core::state::{Handler, Schema};
use stepfold_agent_loop::tools::{Approval, Effect, ResultSource};
use stepfold_agent_loop::{
    Agent, AgentBuilder, Decision, Event, HookAction, HookContext, LoadError, Recording, Run,
};
use stepfold_trim::Trim;

use super::kit::*;

const KINDS: [&str; 12] = [
    "answered",
    "asks",
    "began",
    "cancelled",
    "decided",
    "hooked",
    "interrupted",
    "replied",
    "started",
    "steered",
    "summarized",
    "timed_out",
];

fn file() -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/loop-v1.json");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// The agent of the run and of the recording. As the files, it does not change.
fn clerk() -> AgentBuilder {
    let schema =
        Schema::builder().key::<i64>("visits").handler(Handler::sum()).key::<String>("name").build().unwrap();
    let amount =
        json!({"properties": {"amount": {"type": "integer"}}, "required": ["amount"], "type": "object"});
    let pay = tool("pay", |arguments| Ok(arguments["amount"].clone())).parameters(amount);
    let look =
        tool("look", |_| Ok(json!(1))).output_to_state("visits", ResultSource::Whole).effect(Effect::Pure);
    Agent::builder(script(
        "assistant: > c1 look()\nassistant: I pay.   > c2 pay(amount=3)   > c3 look()   > c4 pay(amount=4)\nassistant: paid",
    ).after(1))
    .name("clerk")
    .instructions("You help {name}.")
    .schema(schema)
    .tools([pay.approval(Approval::Once).build().unwrap(), look.build().unwrap()])
    .exit_on(["pay"])
    .trim(Trim::keep_last(1))
    .before_model(|context: HookContext| async move { HookAction::proceed().write(&context, "visits", 10) })
}

/// Going on with the stored run, and answering what it asks.
#[tokio::test]
async fn run() {
    let stored = file()["run"].clone();
    let agent = clerk().build().unwrap();
    let run = Run::load(&agent, &stored.to_string()).unwrap();
    assert_eq!(without_agents(serde_json::from_str(&run.to_json()).unwrap()), without_agents(stored));
    assert_eq!(run.pending().len(), 1);
    let ended = decide(run, [("c4", Decision::Approve)]).await;
    expect![[r#"
        system:    Speak French.
        user:      a
        assistant: b
        user:      pay!
        assistant: > c1 look()
        tool c1:   1
        assistant: > c1-1 look()
        tool c1-1: 1
        assistant: I pay.   > c2 pay(amount=3)   > c3 look()   > c4 pay(amount=4)
        tool:      @{"tool_result": {"call_id": "c2", "name": "pay", "parts": [{"text": "30"}, {"text": "\n[The arguments were changed before the call ran, to {\"amount\":30}]"}]}}
        tool c3:   1
        tool c4:   4
        --
        exit: tool 'pay' was called
        steps: 3, calls: look 3, pay 2
        state: {"name":"Ada","visits":33}
    "#]].assert_eq(&shown(&ended));
}

#[test]
fn recording() {
    let stored = file()["recording"].clone();
    let recording = Recording::from_json(&stored.to_string()).unwrap();
    assert_eq!(serde_json::to_value(&recording).unwrap(), stored);
    let agent = clerk().build().unwrap();
    assert_eq!(agent.changes_since(recording.agent()), []);
    let run = recording.replay(&agent).unwrap();
    expect![[r#"
        system:    Speak French.
        user:      a
        assistant: b
        user:      pay!
        assistant: > c1 look()
        tool c1:   1
        assistant: > c1-1 look()
        tool c1-1: 1
        assistant: I pay.   > c2 pay(amount=3)   > c3 look()   > c4 pay(amount=4)
        tool:      @{"tool_result": {"call_id": "c2", "name": "pay", "parts": [{"text": "30"}, {"text": "\n[The arguments were changed before the call ran, to {\"amount\":30}]"}]}}
        tool c3:   1
        tool c4!:  tool 'pay' not run: the call was rejected: too much
        Some(Tool("pay")) {"name":"Ada","visits":33}"#]].assert_eq(&format!("{}{:?} {}", run.transcript(), run.exit(), Value::Object(values(run.state()))));
}

#[test]
fn events() {
    let stored = file()["events"].clone();
    let mut names = Vec::new();
    for stored in stored.as_array().unwrap() {
        let event: Event = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(serde_json::to_value(&event).unwrap(), *stored);
        names.push(event.name());
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names, KINDS);
}

/// What a newer program wrote beside what we know does not stop us; a newer format number does.
#[test]
fn newer_files() {
    let agent = clerk().build().unwrap();
    let with = |what: &str, field: &str, value: Value| {
        let mut json = file()[what].clone();
        json[field] = value;
        json.to_string()
    };
    Run::load(&agent, &with("run", "color", "blue".into())).unwrap();
    Recording::from_json(&with("recording", "color", "blue".into())).unwrap();
    let event: Result<Event, _> = serde_json::from_value({
        let mut event = file()["events"][0].clone();
        event["color"] = "blue".into();
        event
    });
    event.unwrap();
    for error in [
        Run::load(&agent, &with("run", "version", 3.into())).unwrap_err(),
        Recording::from_json(&with("recording", "version", 3.into())).unwrap_err(),
    ] {
        assert!(matches!(error, LoadError::NewerFormat { found: 3, supported: 2, .. }), "{error}");
    }
}

/// A stored value without the fingerprints of agents, whose form is another one today.
fn without_agents(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let is_agent =
                |(name, value): &(String, Value)| name == "agent" && value.get("exit conditions").is_some();
            let members = members.into_iter().filter(|member| !is_agent(member));
            Value::Object(members.map(|(name, value)| (name, without_agents(value))).collect())
        }
        Value::Array(items) => items.into_iter().map(without_agents).collect(),
        value => value,
    }
}
