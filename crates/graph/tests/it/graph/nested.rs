//! Graphs as nodes of graphs, and as tools of agents.

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::state_core::state::{Key, Schema};
use stepfold_agent_loop::{Agent, Decision};
use stepfold_graph::{AgentNode, Graph, NodeContext, NodeError, START, Update};

use super::check;
use super::kit::*;
use crate::loop_kit::{play, reloaded, script, shown};

/// It works on the same state, and what it says is in the same conversation.
#[tokio::test]
async fn as_a_node() {
    let inner = graph()
        .node("x", note)
        .node("y", |node: NodeContext| async move { Ok::<_, NodeError>(noted(&node).say("from inside")) })
        .chain([START, "x", "y"])
        .build()
        .unwrap();
    let graph =
        graph().node("a", note).node("inner", inner).node("b", note).chain([START, "a", "inner", "b"]);
    check(
        graph,
        "go",
        expect![[r#"
        1: a
        2: inner
        3: b
        --
        user:      go
        assistant: from inside
        --
        exit: the graph reached its end
        steps: 3
        state: {"log":["a","x","y","b"]}
    "#]],
    )
    .await;
}

/// One for each item, each with an item as what the user says.
#[tokio::test]
async fn for_each_item() {
    let inner = graph()
        .node("x", |node: NodeContext| async move {
            let asked = node.state().messages().last().map(|message| message.text().into_owned());
            Ok::<_, NodeError>(Update::new().set(LOG, vec![format!("{asked:?} {}", node.idempotency_key())]))
        })
        .edge(START, "x")
        .build()
        .unwrap();
    let graph = graph().node("each", inner).fan_out(START, "each", "items");
    check(
        graph,
        items(json!(["one", 2])),
        expect![[r#"
        1: each("one"), each(2)
        --
        --
        exit: the graph reached its end
        steps: 1
        state: {"items":["one",2],"log":["Some(\"one\") run/1/0/1/0","Some(\"2\") run/1/1/1/0"]}
    "#]],
    )
    .await;
}

/// A failure inside is one of the node, and both levels can continue.
#[tokio::test]
async fn failures_inside() {
    let inner = graph().node("x", note).node("y", failing("no")).chain([START, "x", "y"]).build().unwrap();
    check(graph().node("inner", inner).edge(START, "inner"), "go", expect![[r#"
        1: inner
        --
        user:      go
        --
        error: run 'run' failed after step 1: node 'inner' failed: run 'run/1/0' failed after step 2: node 'y' failed: no
        steps: 1
    "#]]).await;
}

/// A graph that stops at a limit has not finished.
#[tokio::test]
async fn limits_inside() {
    let inner = graph().node("x", note).edge(START, "x").edge("x", "x").build().unwrap();
    let node = stepfold_graph::Node::agent(inner).continue_after_error();
    check(
        graph().node("inner", node).edge(START, "inner"),
        "go",
        expect![[r#"
        1: inner
           0 Failed (1): the agent did not finish: node 'x' reached its limit of executions
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
    "#]],
    )
    .await;
}

const STALLS: Key<Vec<u64>> = Key::new("stalls");

fn counting() -> Graph {
    Graph::builder("counting")
        .schema(Schema::builder().key(STALLS).build().unwrap())
        .node("count", |_: NodeContext| async { Ok::<_, NodeError>(Update::new().set(STALLS, vec![12])) })
        .node("say", |node: NodeContext| async move {
            let asked = node.state().messages().last().map(|message| message.text().into_owned());
            Ok::<_, NodeError>(Update::new().say(format!("12 stalls, asked: {}", asked.unwrap_or_default())))
        })
        .chain([START, "count", "say"])
        .build()
        .unwrap()
}

/// The model calls a graph, and reads what it says.
#[tokio::test]
async fn as_a_tool() {
    let count = counting().agent().as_tool("count", "Counts.").share(["stalls"]).build().unwrap();
    let agent = Agent::builder(script("assistant: > c1 count(task=\"area 3\")\nassistant: There are 12."))
        .schema(Schema::builder().key(STALLS).build().unwrap())
        .tools([count])
        .build()
        .unwrap();
    expect![[r#"
        user:      how many?
        assistant: > c1 count(task="area 3")
        tool c1:   12 stalls, asked: area 3
        assistant: There are 12.
        --
        exit: the model answered
        steps: 2, calls: count 1
        state: {"stalls":[12]}
    "#]]
    .assert_eq(&shown(&play(&agent, "how many?", |run| run).await));
}

/// A graph that is a tool asks an approver: the outer run waits.
#[tokio::test]
async fn a_tool_that_asks() {
    let graph = graph()
        .node("a", |node: NodeContext| async move {
            let decision = node.ask("publish", json!({"title": "Stalls"}))?;
            Ok::<_, NodeError>(Update::new().say(format!("{decision:?}")))
        })
        .edge(START, "a")
        .build()
        .unwrap();
    let publish = graph.agent().as_tool("publish", "Publishes.").build().unwrap();
    let agent = Agent::builder(script("assistant: > c1 publish(task=\"now\")\nassistant: done"));
    let agent = agent.tools([publish]).build().unwrap();
    let ended = play(&agent, "publish it", |run| run).await;
    expect![[r#"
        user:      publish it
        assistant: > c1 publish(task="now")
        --
        exit: the run waits for decisions
        steps: 1
        pending c1/a/publish#a571fe8a131ecac5: a({"title":"Stalls"}), Node
    "#]]
    .assert_eq(&shown(&ended));
    let run = reloaded(&ended.unwrap());
    let id = run.pending()[0].id.clone();
    let ended = crate::loop_kit::go_on(run, |run| run.decide(id, Decision::Approve)).await;
    expect![[r#"
        user:      publish it
        assistant: > c1 publish(task="now")
        tool c1:   Approve
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: publish 1
    "#]]
    .assert_eq(&shown(&ended));
}

/// A tool of an agent of a node of a graph of a graph.
#[tokio::test]
async fn deep_inside() {
    let count = counting().agent().as_tool("count", "Counts.").build().unwrap();
    let agent = Agent::builder(script("assistant: > c1 count(task=\"area 3\")\nassistant: There are 12."));
    let agent = agent.tools([count]).build().unwrap();
    let inner = graph().node("agent", AgentNode::new(agent)).edge(START, "agent").build().unwrap();
    check(
        graph().node("inner", inner).edge(START, "inner"),
        "how many?",
        expect![[r#"
        1: inner
        --
        user:      how many?
        assistant: > c1 count(task="area 3")
        tool c1:   12 stalls, asked: area 3
        assistant: There are 12.
        --
        exit: the graph reached its end
        steps: 1
    "#]],
    )
    .await;
}
