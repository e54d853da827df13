//! A graph in a session: each node's outcome is an event, and a process that dies at any of them costs nothing
//! that has one.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use expect_test::{Expect, expect};
use serde_json::json;
use stepfold_graph::{AgentNode, END, Graph, Node, NodeContext, NodeError, START, Update};
use stepfold_runner::agent_loop::{Decision, Decisions, Exit, Input, Pause};
use stepfold_runner::session_scopes::EventRange;
use stepfold_runner::{Runner, SessionHandle};
use stepfold_state_core::state::ValueRef;
use stepfold_tools::{Approval, Effect};

use crate::world::{Fault, World, each_store, paths, process, schema, shown};

const SCRIPT: &str = "\
assistant: > c1 look()  > c2 pay()
assistant: done
";

/// Two workers side by side, each with tools; then something that must not run twice; then a word to the user.
fn graph(world: &World) -> Graph {
    let trace = world.trace.clone();
    let ship = move |node: NodeContext| {
        trace.note(format!("ship {}", node.idempotency_key()));
        async move { Ok::<_, NodeError>(Update::new().set("log", vec!["ship"]).set("n", 10).set("app:n", 1)) }
    };
    let worker = world.agent(SCRIPT).build().unwrap();
    Graph::builder("clerk")
        .schema(schema())
        .node("plan", plan)
        .node("work", AgentNode::new(worker).asks("do {item}"))
        .node("ship", Node::new(ship).effect(Effect::AtMostOnce).on_error("report"))
        .node("report", report)
        .edge(START, "plan")
        .fan_out_with("plan", "work", |_| vec![json!("this"), json!("that")])
        .chain(["work", "ship", "report", END])
        .build()
        .unwrap()
}

async fn plan(_: NodeContext) -> Result<Update, NodeError> {
    Ok(Update::new().set("topic", "bills").set("temp:note", "only now"))
}

async fn report(node: NodeContext) -> Result<Update, NodeError> {
    // What is temporary lasts as long as the invocation, in one process.
    let log = node.get("log").map(ValueRef::to_json).unwrap_or_default();
    Ok(Update::new().say(match node.item() {
        None => format!("all is done: {log}"),
        Some(_) => format!("shipping may have failed: {log}"),
    }))
}

fn runner(world: &World) -> Runner {
    world.runner(graph(world).into()).build()
}

async fn finish(session: &SessionHandle) {
    match session.last_run().await.unwrap() {
        None => session.run("pay the bills").await.unwrap(),
        Some(run) if run.exit().is_none() => session.resume().await.unwrap(),
        Some(_) => return,
    };
}

#[test]
fn each_outcome_is_an_event() {
    each_store(|world| {
        process(async {
            let session = runner(world).session("ada", "s1").await.unwrap();
            let outcome = session.run("pay the bills").await.unwrap();
            assert_eq!(outcome.exit(), &Exit::End);
            let stored = session.read(EventRange::All).await.unwrap();
            let mut kinds = String::new();
            for committed in &stored.events {
                let actions = &committed.event.actions;
                let started = actions.started.join(", ");
                let line = format!("{} {} {started}", committed.event.kind, actions.delta.len());
                writeln!(kinds, "{}", line.trim_end()).unwrap();
            }
            expect![[r#"
                began 0
                planned 0
                answered 1
                planned 0
                inner 0
                inner 0
                inner 0
                inner 0
                inner 0 work#0/c2
                inner 0 work#1/c2
                inner 0
                inner 0
                inner 0
                inner 0
                inner 0
                inner 0
                answered 0
                answered 16
                planned 0
                started 0 ship
                answered 3
                planned 0
                answered 0
                planned 0
            "#]]
            .assert_eq(&kinds);
            expect![[r#"
                user:      pay the bills
                assistant: all is done: ["look","pay","look","pay","ship"]
                app:n = 5
                log = ["look","pay","look","pay","ship"]
                n = 14
                topic = "bills"
                user:n = 4
            "#]]
            .assert_eq(&shown(&session).await);
            // The next turn continues with the conversation, and counts executions again.
            let outcome = session.run("and these").await.unwrap();
            assert_eq!(outcome.exit(), &Exit::End);
            assert_eq!(outcome.transcript().len(), 4);
            assert_eq!(session.replay(graph(world).agent()).await.unwrap(), 2);
        });
    });
}

fn check(world: &World, fault: Fault, expected: &Expect) {
    let whole = process(async {
        world.wire.faults([]);
        let session = runner(world).session("ada", "whole").await.unwrap();
        session.run("pay the bills").await.unwrap();
        shown(&session).await
    });
    let whole_log = whole.lines().find_map(|line| line.strip_prefix("log = ")).unwrap();
    let appends = world.wire.appends();
    world.trace.take();
    let mut lines = String::new();
    for place in 0..appends {
        let id = format!("{fault:?}{place}");
        world.wire.faults([(place, fault)]);
        let died = world
            .wire
            .process(async { runner(world).session("bob", &*id).await.unwrap().run("pay the bills").await });
        assert!(died.is_none(), "{died:?}");
        let text = process(async {
            let session = runner(world).session("bob", &*id).await.unwrap();
            finish(&session).await;
            shown(&session).await
        });
        let mut ran: BTreeMap<String, usize> = BTreeMap::new();
        for line in world.trace.take() {
            if let Some((what, key)) = line.split_once(' ').filter(|(what, _)| *what != "the") {
                // Application, user, session and invocation come first.
                let key = key.splitn(5, '/').nth(4).unwrap();
                *ran.entry(format!("{key} {what}")).or_default() += 1;
            }
        }
        let again: String = ran
            .iter()
            .filter(|(_, times)| **times > 1)
            .map(|(what, times)| format!(", {what} x{times}"))
            .collect();
        let log = text.lines().find_map(|line| line.strip_prefix("log = ")).unwrap();
        writeln!(lines, "{place}: {} ran{again}; {log}", ran.len()).unwrap();
        // Unless the outcome of an at-most-once call is unknown, the result is the same.
        if log == whole_log {
            let own = |text: &str| {
                text.lines().filter(|line| !line.contains(":n =")).collect::<Vec<_>>().join("\n")
            };
            assert_eq!(own(&text), own(&whole), "{place}");
        }
    }
    expected.assert_eq(&lines);
}

#[test]
fn a_process_that_dies_after_a_commit() {
    each_store(|world| {
        check(
            world,
            Fault::DiesAfter,
            &expect![[r#"
        0: 5 ran; ["look","pay","look","pay","ship"]
        1: 5 ran; ["look","pay","look","pay","ship"]
        2: 5 ran; ["look","pay","look","pay","ship"]
        3: 5 ran; ["look","pay","look","pay","ship"]
        4: 5 ran; ["look","pay","look","pay","ship"]
        5: 5 ran; ["look","pay","look","pay","ship"]
        6: 5 ran; ["look","pay","look","pay","ship"]
        7: 5 ran; ["look","pay","look","pay","ship"]
        8: 4 ran; ["look","look","pay","ship"]
        9: 3 ran; ["look","look","ship"]
        10: 3 ran, 2/1/1/c1 look x2; ["look","look","ship"]
        11: 3 ran; ["look","look","ship"]
        12: 5 ran; ["look","pay","look","ship"]
        13: 5 ran; ["look","pay","look","pay","ship"]
        14: 5 ran; ["look","pay","look","pay","ship"]
        15: 5 ran; ["look","pay","look","pay","ship"]
        16: 5 ran; ["look","pay","look","pay","ship"]
        17: 5 ran; ["look","pay","look","pay","ship"]
        18: 5 ran; ["look","pay","look","pay","ship"]
        19: 4 ran; ["look","pay","look","pay"]
        20: 5 ran; ["look","pay","look","pay","ship"]
        21: 5 ran; ["look","pay","look","pay","ship"]
        22: 5 ran; ["look","pay","look","pay","ship"]
        23: 5 ran; ["look","pay","look","pay","ship"]
    "#]],
        );
    });
}

#[test]
fn a_process_that_dies_before_a_commit() {
    each_store(|world| {
        check(
            world,
            Fault::DiesBefore,
            &expect![[r#"
        0: 5 ran; ["look","pay","look","pay","ship"]
        1: 5 ran; ["look","pay","look","pay","ship"]
        2: 5 ran; ["look","pay","look","pay","ship"]
        3: 5 ran; ["look","pay","look","pay","ship"]
        4: 5 ran; ["look","pay","look","pay","ship"]
        5: 5 ran; ["look","pay","look","pay","ship"]
        6: 5 ran; ["look","pay","look","pay","ship"]
        7: 5 ran; ["look","pay","look","pay","ship"]
        8: 5 ran; ["look","pay","look","pay","ship"]
        9: 4 ran; ["look","look","pay","ship"]
        10: 3 ran, 2/0/1/c1 look x2, 2/1/1/c1 look x2; ["look","look","ship"]
        11: 3 ran, 2/1/1/c1 look x2; ["look","look","ship"]
        12: 5 ran; ["look","look","ship"]
        13: 5 ran; ["look","pay","look","ship"]
        14: 5 ran; ["look","pay","look","pay","ship"]
        15: 5 ran; ["look","pay","look","pay","ship"]
        16: 5 ran; ["look","pay","look","pay","ship"]
        17: 5 ran; ["look","pay","look","pay","ship"]
        18: 5 ran; ["look","pay","look","pay","ship"]
        19: 5 ran; ["look","pay","look","pay","ship"]
        20: 5 ran; ["look","pay","look","pay"]
        21: 5 ran; ["look","pay","look","pay","ship"]
        22: 5 ran; ["look","pay","look","pay","ship"]
        23: 5 ran; ["look","pay","look","pay","ship"]
    "#]],
        );
    });
}

#[test]
fn approvals_inside_nodes_outlive_the_process() {
    each_store(|world| {
        let graph = || {
            let agent = world.agent(SCRIPT).approval(Approval::when(|_| true)).build().unwrap();
            Graph::builder("clerk")
                .schema(schema())
                .node("work", AgentNode::new(agent).asks("do {item}"))
                .fan_out_with(START, "work", |_| vec![json!("this"), json!("that")])
                .edge("work", END)
                .build()
                .unwrap()
        };
        let paused = process(async {
            let session = world.runner(graph().into()).build().session("ada", "s1").await.unwrap();
            session.run(Input::from("pay")).await.unwrap().exit().clone()
        });
        assert_eq!(paused, Exit::Paused(Pause::Approval));
        process(async {
            let session = world.runner(graph().into()).build().session("ada", "s1").await.unwrap();
            let pending = session.pending().await.unwrap();
            assert_eq!(paths(&pending), ["work#0/c1", "work#0/c2", "work#1/c1", "work#1/c2"]);
            assert!(world.trace.take().iter().all(|line| line == "the model is asked"));
            let decide = pending.iter().map(|request| match request.call.id == "c2" {
                true => (request.id.clone(), Decision::reject("not now")),
                false => (request.id.clone(), Decision::Approve),
            });
            let outcome = session.resume().decide_all(decide.collect::<Decisions>()).await.unwrap();
            assert_eq!(outcome.exit(), &Exit::End);
            assert_eq!(outcome.state().get("log").unwrap(), json!(["look", "look"]));
        });
    });
}

#[test]
fn nothing_temporary_of_a_node_is_stored() {
    each_store(|world| {
        process(async {
            let agent = world.agent("assistant: done").instructions("Note: {temp:note}").build().unwrap();
            let graph = Graph::builder("clerk")
                .schema(schema())
                .node("hide", async |_: NodeContext| {
                    Ok::<_, NodeError>(Update::new().set("temp:note", "hush-hush"))
                })
                .node("work", AgentNode::new(agent).asks("do it"))
                .chain([START, "hide", "work", END])
                .build()
                .unwrap();
            let session = world.runner(graph.into()).build().session("ada", "s1").await.unwrap();
            let outcome = session.run("pay").await.unwrap();
            assert_eq!(outcome.state().get("temp:note").unwrap(), "hush-hush");
            let stored = session.read(EventRange::All).await.unwrap();
            let events = format!("{:?}", stored.events);
            assert!(events.contains("Note: {temp:note}") && !events.contains("hush-hush"), "{events}");
        });
        let bytes = world.stored_bytes();
        assert!(!bytes.windows(9).any(|part| part == b"hush-hush"));
    });
}
