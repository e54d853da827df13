//! A golden file: what version 1 wrote of a graph loads for ever, and continues as it would have.
//!
//! A change of format adds files; it never changes this one. It holds the run of a graph that waits in the middle of
//! a fan-out, with the runs of agents inside, and the recording of it.

use std::fs;
use std::path::PathBuf;

use expect_test::expect;
use serde_json::{Value, json};
use stepfold_agent_loop::state_core::state::{Handler, Schema};
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::tools::{Approval, ResultSource, Tool, ToolError};
use stepfold_agent_loop::{Agent, Decision, Decisions, Exit, Recording, Run};
use stepfold_graph::{AgentNode, END, Graph, NodeContext, NodeError, START, Update};

use super::kit::sorted_text;
use crate::loop_kit::{path_of, values};

fn file() -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/graph-v1.json");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// Two clerks side by side, each of which asks before paying; and a node that asks for itself. As the file, it does not
/// change.
fn office() -> Graph {
    let schema = || {
        let schema = Schema::builder().key::<u64>("paid").handler(Handler::sum()).key::<Vec<String>>("bills");
        schema.key::<Vec<String>>("answers").key::<bool>("closed").build().unwrap()
    };
    let pay = Tool::new("pay", "Pays a bill.", async || Ok::<_, ToolError>(3))
        .output_to_state("paid", ResultSource::Whole)
        .approval(Approval::Always)
        .build()
        .unwrap();
    let model = Script::parse("assistant: > c1 pay()\nassistant: paid").unwrap();
    let clerk = Agent::builder(model).name("clerk").schema(schema()).tools([pay]).build().unwrap();
    Graph::builder("office")
        .schema(schema())
        .node("open", async |_: NodeContext| {
            Ok::<_, NodeError>(Update::new().set("bills", vec!["rent", "tax"]))
        })
        .node("clerk", AgentNode::new(clerk).asks("Pay the {item}.").answers("answers"))
        .node("door", async |node: NodeContext| {
            let is_closed = node.ask("close", json!({"at": "noon"}))? == Decision::Approve;
            Ok::<_, NodeError>(Update::new().set("closed", is_closed))
        })
        .chain([START, "open"])
        .fan_out("open", "clerk", "bills")
        .edge("open", "door")
        .join(["clerk", "door"], "end")
        .node("end", async |_: NodeContext| Ok::<_, NodeError>(Update::new().say("all is paid")))
        .edge("end", END)
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_run_that_waits_in_a_fan_out() {
    let stored = file()["run"].clone();
    let office = office();
    let run = Run::load(office.agent(), &stored.to_string()).unwrap();
    assert_eq!(without_agents(serde_json::from_str(&run.to_json()).unwrap()), without_agents(stored));
    let pending: Vec<String> = run.pending().into_iter().map(|request| request.id).collect();
    assert_eq!(pending.iter().map(|id| path_of(id)).collect::<Vec<_>>(), ["clerk#1/c1", "door/close"]);
    let decisions: Decisions = pending.into_iter().map(|id| (id, Decision::Approve)).collect();
    let outcome = run.resume().decide_all(decisions).await.unwrap();
    assert_eq!(outcome.exit(), &Exit::End);
    assert_eq!(outcome.transcript().to_string(), "user:      go\nassistant: all is paid\n");
    let values = values(outcome.state());
    expect![[r#"{"answers":["paid","paid"],"bills":["rent","tax"],"closed":true,"paid":6}"#]]
        .assert_eq(&sorted_text(Value::Object(values)));
}

#[test]
fn a_recording() {
    let stored = file()["recording"].clone();
    let recording = Recording::from_json(&stored.to_string()).unwrap();
    assert_eq!(serde_json::to_value(&recording).unwrap(), stored);
    let office = office();
    assert_eq!(office.agent().changes_since(recording.agent()), []);
    let run = recording.replay(office.agent()).unwrap();
    let replayed = serde_json::from_str(&run.to_json()).unwrap();
    assert_eq!(without_agents(replayed), without_agents(file()["run"].clone()));
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
