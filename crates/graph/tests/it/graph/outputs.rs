//! What nodes say while they work, and what they append to `outputs`.

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::RunEvent;
use stepfold_agent_loop::state_core::state::Schema;
use stepfold_graph::progress::{node_output, tracking_keys};
use stepfold_graph::{AgentNode, Graph, Node, NodeContext, NodeError, START, Update};

use super::kit::*;
use crate::loop_kit::{agent, outcome_of};

/// What is told beside the commits, with the commits by name.
fn told(walked: &Walked) -> String {
    let line = |event: &RunEvent| match event {
        RunEvent::Committed(event) => event.name().to_owned(),
        RunEvent::Output { node, branch, kind, value } => format!("{node}#{branch} {kind:?}: {value}"),
        RunEvent::Inner { name, place, event, .. } => {
            let event = serde_json::to_string(event).unwrap();
            format!("{name}#{place} inside: {event}")
        }
        event => serde_json::to_string(event).unwrap(),
    };
    walked.seen.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn graph() -> stepfold_graph::GraphBuilder {
    Graph::builder("tested")
        .schema(tracking_keys(Schema::builder()).key(LOG).key(ITEMS).key(NEXT).build().unwrap())
}

/// Said while it works, and given at the end, each with its kind; only what is given is recorded.
#[tokio::test]
async fn by_kind() {
    async fn speak(node: NodeContext) -> Result<Update, NodeError> {
        node.emit("status", format!("working at {}", node.item().unwrap())).await;
        node.emit("status", json!({"half": true})).await;
        Ok(Update::new().output("finding", node.item().unwrap().clone()).result("done"))
    }
    let graph = graph().node("each", speak).fan_out(START, "each", "items").build().unwrap();
    let walked = walk(&graph, items(json!([1, 2]))).await;
    expect![[r#"
        began
        planned
        {"node_started":{"node":"each","branch":0}}
        {"node_started":{"node":"each","branch":1}}
        each#0 Some("status"): "working at 1"
        each#0 Some("status"): {"half":true}
        each#0 Some("finding"): 1
        each#0 None: "done"
        {"node_finished":{"node":"each","branch":0,"status":"succeeded","error":null}}
        answered
        each#1 Some("status"): "working at 2"
        each#1 Some("status"): {"half":true}
        each#1 Some("finding"): 2
        each#1 None: "done"
        {"node_finished":{"node":"each","branch":1,"status":"succeeded","error":null}}
        answered
        planned
        {"ended":"end"}"#]]
    .assert_eq(&told(&walked));
    let state = outcome_of(&walked.ended).state();
    expect![[r#"[{"content":1,"kind":"finding","node":"each"},{"content":"done","node":"each"},{"content":2,"kind":"finding","node":"each"},{"content":"done","node":"each"}]"#]].assert_eq(&sorted_text(state.get("outputs").unwrap().to_json()));
    expect![[r#"{"content":"done","node":"each"}"#]]
        .assert_eq(&sorted_text(node_output(state, "each").unwrap().unwrap().clone()));
}

/// More than the queue holds waits until it is taken.
#[tokio::test]
async fn more_than_the_queue() {
    let graph = graph()
        .node("a", |node: NodeContext| async move {
            for number in 0..1_000 {
                node.emit("number", number).await;
            }
            Ok::<_, NodeError>(())
        })
        .edge(START, "a")
        .build()
        .unwrap();
    let walked = walk(&graph, "go").await;
    let said: Vec<u64> = walked
        .seen
        .iter()
        .filter_map(|event| match event {
            RunEvent::Output { value, .. } => value.as_u64(),
            _ => None,
        })
        .collect();
    assert_eq!(said, (0..1_000).collect::<Vec<_>>());
}

/// A failed node has told what it said, and gives nothing.
#[tokio::test]
async fn said_before_a_failure() {
    let graph = graph()
        .node(
            "a",
            Node::new(|node: NodeContext| async move {
                node.emit("status", "begun").await;
                Err::<(), _>(NodeError::new("no"))
            })
            .continue_after_error(),
        )
        .edge(START, "a")
        .build()
        .unwrap();
    expect![[r#"
        began
        planned
        {"node_started":{"node":"a","branch":0}}
        a#0 Some("status"): "begun"
        {"node_finished":{"node":"a","branch":0,"status":"failed","error":"no"}}
        answered
        planned
        {"ended":"end"}"#]]
    .assert_eq(&told(&walk(&graph, "go").await));
}

/// What an agent does is told under its node; its answer is an output where the node is tracked.
#[tokio::test]
async fn of_an_agent() {
    let looking = agent("assistant: > c1 search(q=\"x\")\nassistant: area 3").build().unwrap();
    let node = Node::agent(AgentNode::new(looking).asks("where?")).tracked();
    let graph = graph().node("look", node).edge(START, "look").build().unwrap();
    let walked = walk(&graph, values(json!({"tasks": []}))).await;
    expect![[r#"
        began
        planned
        {"node_started":{"node":"look","branch":0}}
        inner
        look#0 inside: {"asking":{"step":1,"model":"test-kit/script"}}
        look#0 inside: {"tool_call_delta":{"index":0,"call_id":"c1","tool":"search","arguments":"{\"q\":\"x\""}}
        look#0 inside: {"tool_call_delta":{"index":0,"call_id":null,"tool":null,"arguments":"}"}}
        inner
        look#0 inside: {"tool_started":{"call_id":"c1","tool":"search","arguments":"{\"q\":\"x\"}"}}
        inner
        look#0 inside: {"tool_finished":{"call_id":"c1","tool":"search","status":"succeeded","text":"[3,4]"}}
        inner
        look#0 inside: {"asking":{"step":2,"model":"test-kit/script"}}
        look#0 inside: {"text":"a"}
        look#0 inside: {"text":"rea 3"}
        inner
        look#0 None: "area 3"
        {"node_finished":{"node":"look","branch":0,"status":"succeeded","error":null}}
        answered
        planned
        {"ended":"end"}"#]]
    .assert_eq(&told(&walked));
    let state = outcome_of(&walked.ended).state();
    expect![[r#"[{"content":"area 3","node":"look"}]"#]]
        .assert_eq(&sorted_text(state.get("outputs").unwrap().to_json()));
}
