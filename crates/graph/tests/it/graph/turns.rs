//! Graphs as what a host runs: turn after turn, adjusted for one run, with hooks, and loaded after a change.

use expect_test::expect;
use stepfold_agent_loop::state_core::state::Schema;
use stepfold_agent_loop::{Breakpoint, HookAction, Input, Run};
use stepfold_graph::progress::keys::EXECUTION_COUNTS;
use stepfold_graph::{END, Graph, GraphBuilder, Node, NodeContext, NodeError, START, Update};

use super::kit::*;
use crate::loop_kit::{agent, chain, outcome_of, shown};

fn answering() -> Graph {
    async fn answer(node: NodeContext) -> Result<Update, NodeError> {
        let asked = node.state().messages().last().map(|message| message.text().into_owned());
        Ok(noted(&node).say(format!("you said: {}", asked.unwrap_or_default())))
    }
    Graph::builder("tested")
        .schema(Schema::builder().key(LOG).key(EXECUTION_COUNTS).build().unwrap())
        .node("a", note)
        .node("b", answer)
        .chain([START, "a", "b"])
        .build()
        .unwrap()
}

/// A turn continues with the state and the conversation, and counts again.
#[tokio::test]
async fn a_second_turn() {
    let graph = answering();
    let first = walk(&graph, "one").await.ended.unwrap();
    assert_eq!(first.text(), "you said: one");
    let second = walk(&graph, Input::after(first.into_run()).say("two")).await;
    assert_eq!(outcome_of(&second.ended).text(), "you said: two");
    expect![[r#"
        1: a
        2: b
        --
        user:      one
        assistant: you said: one
        user:      two
        assistant: you said: two
        --
        exit: the graph reached its end
        steps: 2
        state: {"execution_counts":{"a":1,"b":1},"log":["a","b","a","b"]}
    "#]]
    .assert_eq(&second.text());
}

/// Other limits for one run; the graph stays what it is.
#[tokio::test]
async fn adjusted_for_one_run() {
    let run = Run::new(answering().agent(), "one", "run").unwrap();
    let walked = walk_on(run, |run| run.with(|graph| graph.max_steps(1))).await;
    expect![[r#"
        1: a
        --
        user:      one
        --
        exit: the limit of steps was reached
        steps: 1
        state: {"execution_counts":{"a":1},"log":["a"]}
    "#]]
    .assert_eq(&walked.text());
}

/// Before the first superstep and after the last one; a hook may end the run before it has begun.
#[tokio::test]
async fn hooks() {
    let graph = || graph().node("a", note).edge(START, "a");
    let hooked = graph()
        .before_run(|hook| async move { HookAction::proceed().write(&hook, LOG, vec!["before".to_owned()]) })
        .after_run(|hook| async move { HookAction::proceed().write(&hook, LOG, vec!["after".to_owned()]) });
    let walked = walk(&hooked.build().unwrap(), "go").await;
    expect![[r#"
        1: a
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["before","a","after"]}
    "#]]
    .assert_eq(&walked.text());
    let stopped = graph().before_run(|_| async { Ok(HookAction::stop("not today")) });
    expect![[r#"
        --
        user:      go
        --
        exit: a hook ended the run: not today
        steps: 0
    "#]]
    .assert_eq(&walk(&stopped.build().unwrap(), "go").await.text());
}

/// A stored run of a graph that is another one by now: what changed is said, part by part.
#[tokio::test]
async fn loaded_after_a_change() {
    let old = |change: fn(GraphBuilder) -> GraphBuilder| {
        let graph = graph().node("a", note).node("b", note).edge(START, "a").edge("a", "b");
        change(graph).build().unwrap()
    };
    let graph = old(|graph| graph);
    let run = Run::new(graph.agent(), "go", "run").unwrap();
    let walked = walk_on(run, |run| run.break_at(Breakpoint::node("b"))).await;
    let stored = outcome_of(&walked.ended).run().to_json();
    assert!(Run::load(graph.agent(), &stored).is_ok());
    let mut text = String::new();
    for changed in [
        old(|graph| graph.edge("b", END)),
        old(|graph| graph.node("c", note).edge("b", "c")),
        super::kit::graph().node("b", note).node("a", note).chain([START, "a", "b"]).build().unwrap(),
        super::kit::graph()
            .node("a", note)
            .node("b", Node::new(note).max_executions(7))
            .chain([START, "a", "b"])
            .build()
            .unwrap(),
        super::kit::graph().node("a", note).edge(START, "a").build().unwrap(),
    ] {
        let error = Run::load(changed.agent(), &stored).unwrap_err();
        text.push_str(&format!("{}\n", chain(&error)));
        // It continues as far as it can.
        let (run, _) = Run::load_changed(changed.agent(), &stored).unwrap();
        text.push_str(&shown(&run.resume().await));
    }
    expect![[r#"
        agent changed since the run was stored: edges changed; force it with `load_changed`
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["a","b"]}
        agent changed since the run was stored: edges changed; node c is new; force it with `load_changed`
        user:      go
        --
        exit: the graph reached its end
        steps: 3
        state: {"log":["a","b","c"]}
        agent changed since the run was stored: node a: rules changed; node b: rules changed; force it with `load_changed`
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["a","b"]}
        agent changed since the run was stored: node b: rules changed; force it with `load_changed`
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["a","b"]}
        agent changed since the run was stored: edges changed; node b is gone; force it with `load_changed`
        user:      go
        --
        error: run 'run' failed after step 2: node 'b' failed: removed from the graph
        steps: 2
        state: {"log":["a"]}
    "#]]
    .assert_eq(&text);
}

/// The agent of a node has changed while its run waited.
#[tokio::test]
async fn an_agent_changed() {
    let graph = |script: &str| {
        let agent = agent(script).approval(stepfold_agent_loop::tools::Approval::Always);
        graph().node("a", agent.build().unwrap()).edge(START, "a").build().unwrap()
    };
    let walked = walk(&graph("assistant: > c1 search(q=\"x\")\nassistant: area 3"), "go").await;
    let stored = outcome_of(&walked.ended).run().to_json();
    let changed = agent("assistant: x").instructions("Be brief.").build().unwrap();
    let changed = super::kit::graph().node("a", changed).edge(START, "a").build().unwrap();
    expect!["agent changed since the run was stored: node a: agent: approval changed; node a: agent: instructions is new; force it with `load_changed`"].assert_eq(&chain(&Run::load(changed.agent(), &stored).unwrap_err()));
}
