//! What bounds a graph: executions of a node, supersteps, tokens, time.

use std::time::Duration;

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::state_core::state::Schema;
use stepfold_agent_loop::{Agent, RunEvent, RunLimits};
use stepfold_graph::progress::keys::{EXECUTION_COUNTS, MAX_EXECUTIONS};
use stepfold_graph::{AgentNode, END, Graph, GraphBuilder, Node, START, Update};

use super::check;
use super::kit::*;
use crate::loop_kit::{costing, script};

/// `a`, over and over again.
fn looping(node: Node) -> GraphBuilder {
    graph().node("a", node).node("instead", note).edge(START, "a").edge("a", "a").edge(START, "instead")
}

#[tokio::test]
async fn three_executions() {
    check(
        looping(Node::new(note)),
        "go",
        expect![[r#"
        1: a, instead
        2: a
        3: a
        --
        user:      go
        --
        exit: node 'a' reached its limit of executions
        steps: 3
        state: {"log":["a","instead","a","a"]}
    "#]],
    )
    .await;
}

#[tokio::test]
async fn executions_of_the_node() {
    check(
        looping(Node::new(note).max_executions(1)),
        "go",
        expect![[r#"
        1: a, instead
        --
        user:      go
        --
        exit: node 'a' reached its limit of executions
        steps: 1
        state: {"log":["a","instead"]}
    "#]],
    )
    .await;
}

/// What the state says comes first, also when nodes write it while the graph runs.
#[tokio::test]
async fn executions_of_the_state() {
    let schema = || Schema::builder().key(LOG).key(MAX_EXECUTIONS).key(EXECUTION_COUNTS).build().unwrap();
    let graph = || {
        Graph::builder("tested")
            .schema(schema())
            .node("a", Node::new(note).max_executions(2))
            .edge(START, "a")
            .edge("a", "a")
    };
    check(
        graph(),
        "go",
        expect![[r#"
        1: a
        2: a
        --
        user:      go
        --
        exit: node 'a' reached its limit of executions
        steps: 2
        state: {"execution_counts":{"a":2},"log":["a","a"]}
    "#]],
    )
    .await;
    check(
        graph(),
        values(json!({"max_executions": {"a": 4, "b": 1}})),
        expect![[r#"
        1: a
        2: a
        3: a
        4: a
        --
        --
        exit: node 'a' reached its limit of executions
        steps: 4
        state: {"execution_counts":{"a":4},"log":["a","a","a","a"],"max_executions":{"a":4,"b":1}}
    "#]],
    )
    .await;
    check(
        graph(),
        values(json!({"max_executions": {"a": 0}})),
        expect![[r#"
        --
        --
        exit: node 'a' reached its limit of executions
        steps: 0
        state: {"max_executions":{"a":0}}
    "#]],
    )
    .await;
    let graph = Graph::builder("tested")
        .schema(schema())
        .node("a", |node| async move {
            Ok(noted(&node)).map(|update: Update| update.set("max_executions", json!({"a": 2})))
        })
        .edge(START, "a")
        .edge("a", "a");
    check(
        graph,
        "go",
        expect![[r#"
        1: a
        2: a
        --
        user:      go
        --
        exit: node 'a' reached its limit of executions
        steps: 2
        state: {"execution_counts":{"a":2},"log":["a","a"],"max_executions":{"a":2}}
    "#]],
    )
    .await;
}

/// A superstep with many branches of a node is one execution.
#[tokio::test]
async fn many_branches_are_one_execution() {
    let graph = graph()
        .node("each", Node::new(note).max_executions(2))
        .fan_out(START, "each", "items")
        .fan_out("each", "each", "items");
    check(
        graph,
        items(json!([1, 2, 3])),
        expect![[r#"
        1: each(1), each(2), each(3)
        2: each(1), each(2), each(3)
        --
        --
        exit: node 'each' reached its limit of executions
        steps: 2
        state: {"items":[1,2,3],"log":["each(1)","each(2)","each(3)","each(1)","each(2)","each(3)"]}
    "#]],
    )
    .await;
}

#[tokio::test]
async fn another_node_at_the_limit() {
    let graph = graph()
        .node("a", Node::new(note).at_limit("give_up"))
        .node("give_up", note)
        .edge(START, "a")
        .edge("a", "a")
        .edge("give_up", END);
    check(
        graph,
        "go",
        expect![[r#"
        1: a
        2: a
        3: a
        4: give_up
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 4
        state: {"log":["a","a","a","give_up"]}
    "#]],
    )
    .await;
    let graph = looping(Node::new(note).max_executions(2).at_limit(END));
    check(
        graph,
        "go",
        expect![[r#"
        1: a, instead
        2: a
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["a","instead","a"]}
    "#]],
    )
    .await;
}

/// Two that stand in for each other end the run when both may not run.
#[tokio::test]
async fn two_stand_in_for_each_other() {
    let graph = graph()
        .node("a", Node::new(note).max_executions(1).at_limit("b"))
        .node("b", Node::new(note).max_executions(1).at_limit("a"))
        .edge(START, "a")
        .edge("a", "a")
        .edge("b", "b");
    check(
        graph,
        "go",
        expect![[r#"
        1: a
        2: b
        --
        user:      go
        --
        exit: node 'b' reached its limit of executions
        steps: 2
        state: {"log":["a","b"]}
    "#]],
    )
    .await;
}

#[tokio::test]
async fn supersteps() {
    check(
        looping(Node::new(note)).max_steps(2),
        "go",
        expect![[r#"
        1: a, instead
        2: a
        --
        user:      go
        --
        exit: the limit of steps was reached
        steps: 2
        state: {"log":["a","instead","a"]}
    "#]],
    )
    .await;
    // What ends with its last superstep has come to its end.
    check(
        graph().node("a", note).edge(START, "a").max_steps(1),
        "go",
        expect![[r#"
        1: a
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["a"]}
    "#]],
    )
    .await;
}

/// What a superstep stores does not grow with those before it, nor with the nodes of the graph.
#[tokio::test]
async fn bytes_of_a_superstep() {
    let schema = Schema::builder().key(EXECUTION_COUNTS).build().unwrap();
    let mut graph = Graph::builder("tested").schema(schema);
    let names: Vec<String> = (100..200).map(|number| format!("node-{number}")).collect();
    for name in &names {
        graph = graph.node(name, |_| async { Ok(()) });
    }
    let way: Vec<&str> = std::iter::once(START).chain(names.iter().map(String::as_str)).collect();
    let walked = walk(&graph.chain(way).build().unwrap(), "go").await;
    let bytes = |step: u64| -> usize {
        let events = walked.seen.iter().filter_map(RunEvent::committed).filter(|event| event.step == step);
        let bare = events.map(|event| {
            let mut event = event.clone();
            event.elapsed = Duration::ZERO;
            serde_json::to_string(&event).unwrap().len()
        });
        bare.sum()
    };
    assert_eq!((bytes(20), bytes(99)), (bytes(10), bytes(10)));
}

/// The agents' tokens count, and those of an agent that fails.
#[tokio::test]
async fn tokens() {
    let agent = |reply: &str| {
        let model = costing(script(""), reply, 30, 10);
        Agent::builder(model).build().unwrap()
    };
    let graph = |node: Node| {
        graph()
            .node("a", node)
            .node("b", note)
            .chain([START, "a", "b"])
            .limits(RunLimits::default().with_tokens(40))
    };
    let asks = |reply| Node::agent(AgentNode::new(agent(reply)).asks("how many?"));
    check(
        graph(asks("assistant: three")),
        "go",
        expect![[r#"
        1: a
        --
        user:      go
        --
        exit: the limit of tokens was reached
        steps: 1, tokens: 30 + 10
    "#]],
    )
    .await;
    // Calls an unknown tool, has no tools, and has nothing more to say.
    check(
        graph(asks("assistant: > c1 x()").continue_after_error()),
        "go",
        expect![[r#"
        1: a
        --
        user:      go
        --
        exit: the limit of tokens was reached
        steps: 1, tokens: 30 + 10
    "#]],
    )
    .await;
}

/// A branch beside it that never ends does not hold the run up.
#[tokio::test(start_paused = true)]
async fn time() {
    let graph = graph()
        .node("a", |node| async move {
            // tidy: allow sleep, because time is paused.
            tokio::time::sleep(Duration::from_secs(3)).await;
            Ok(noted(&node))
        })
        .node("never", |_| std::future::pending::<Result<(), _>>())
        .edge(START, "a")
        .edge(START, "never")
        .max_time(Duration::from_secs(5));
    check(
        graph,
        "go",
        expect![[r#"
        1: a, never
           timed_out
        --
        user:      go
        --
        exit: the limit of time was reached
        steps: 1
        state: {"log":["a"]}
    "#]],
    )
    .await;
}

/// Between two supersteps as well.
#[tokio::test(start_paused = true)]
async fn time_between_supersteps() {
    let slow = |node| async move {
        // tidy: allow sleep, because time is paused.
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(noted(&node))
    };
    let graph =
        graph().node("a", slow).node("b", slow).chain([START, "a", "b"]).max_time(Duration::from_secs(3));
    check(
        graph,
        "go",
        expect![[r#"
        1: a
        --
        user:      go
        --
        exit: the limit of time was reached
        steps: 1
        state: {"log":["a"]}
    "#]],
    )
    .await;
}
