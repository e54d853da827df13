//! Work that was done is kept in graphs as well: what branches and the agents among them did is recorded before a hook or
//! an observer that failed stops the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use stepfold_agent_loop::tools::{Effect, Retry};
use stepfold_agent_loop::{
    Agent, AgentBuilder, HookAction, HookError, HookPoint, Observer, ObserverError, Run, RunError, RunEvent,
    RunFault,
};
use stepfold_graph::{Graph, Node, NodeContext, NodeError, START};
use tokio::sync::Notify;

use super::kit::*;
use crate::loop_kit::{Notes, script};

/// Fails once, at the event that it picks; then the calls that wait for it continue.
struct FailsOnce<F> {
    is_it: F,
    has_failed: bool,
    go: Arc<Notify>,
}

impl<F: Fn(&RunEvent) -> bool + Send> Observer for FailsOnce<F> {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        if self.has_failed || !(self.is_it)(event) {
            return Ok(());
        }
        self.has_failed = true;
        self.go.notify_one();
        Err("the screen is gone".into())
    }
}

/// An agent that pays once; its tool must not run twice.
fn paying(notes: &Notes) -> AgentBuilder {
    let pay = notes.tool("pay").build().unwrap();
    let model = script("assistant: > c1 pay()\nassistant: paid");
    Agent::builder(model).name("payer").instructions("Pay.").tools([pay])
}

/// The same with a hook after its tool that fails once, and has `go` continue.
fn paying_with_hook(notes: &Notes, go: &Arc<Notify>) -> Agent {
    let (seen, failed, go) = (notes.clone(), Arc::new(AtomicBool::new(false)), Arc::clone(go));
    let hook = move |_| {
        seen.add("hook");
        let is_first = !failed.swap(true, Ordering::SeqCst);
        go.notify_one();
        std::future::ready(match is_first {
            true => Err(HookError::new("no connection")),
            false => Ok(HookAction::proceed()),
        })
    };
    paying(notes).hook(HookPoint::AfterTool, hook).build().unwrap()
}

/// A node that must not run twice, and ends when it may.
fn shipping(notes: &Notes, go: &Arc<Notify>) -> Node {
    let (notes, go) = (notes.clone(), Arc::clone(go));
    let ship = move |node: NodeContext| {
        let (notes, go) = (notes.clone(), Arc::clone(&go));
        async move {
            node.emit("progress", "packed").await;
            go.notified().await;
            notes.add("ship");
            Ok::<_, NodeError>(noted(&node))
        }
    };
    Node::new(ship).effect(Effect::AtMostOnce)
}

/// `pay` and `ship` side by side; there is no room for `look` until one of them has ended.
fn shop(notes: &Notes, pay: Node, go: &Arc<Notify>) -> Graph {
    let looking = notes.clone();
    let look = move |node: NodeContext| {
        looking.add("look");
        std::future::ready(Ok::<_, NodeError>(noted(&node)))
    };
    let graph = graph().node("pay", pay).node("ship", shipping(notes, go)).node("look", look);
    let graph = ["pay", "ship", "look"].into_iter().fold(graph, |graph, node| graph.edge(START, node));
    graph.max_parallel(2).build().unwrap()
}

fn again(graph: &Graph, error: RunError) -> Run {
    Run::load(graph.agent(), &error.into_run().to_json()).unwrap()
}

/// Nothing ran twice, and nothing is unknown.
async fn comes_to_the_same(run: Run, notes: &Notes) {
    let walked = walk_on(run, |run| run).await;
    let outcome = walked.ended.as_ref().unwrap();
    assert!(outcome.unknown_calls().is_empty(), "{}", walked.text());
    assert_eq!(["pay", "ship", "look"].map(|what| notes.count(what)), [1, 1, 1], "{}", notes.text());
    assert_eq!(walked.log(), ["ship", "look"]);
}

type IsIt = fn(&RunEvent) -> bool;

fn is_inner(event: &RunEvent, is_it: IsIt) -> bool {
    matches!(event, RunEvent::Inner { event, .. } if is_it(event))
}

/// Whatever it is told of when it fails: neither what a branch did is lost, nor what an agent did, nor what runs beside.
#[tokio::test]
async fn an_observer_that_fails_once_loses_nothing() {
    let words: [(&str, IsIt); 7] = [
        (
            "the start of a node",
            |event| matches!(event, RunEvent::NodeStarted { node, .. } if node == "look"),
        ),
        ("the end of a node", |event| matches!(event, RunEvent::NodeFinished { .. })),
        ("what a node says", |event| matches!(event, RunEvent::Output { .. })),
        ("the start of a call", |event| {
            is_inner(event, |event| matches!(event, RunEvent::ToolStarted { .. }))
        }),
        ("the end of a call", |event| {
            is_inner(event, |event| matches!(event, RunEvent::ToolFinished { .. }))
        }),
        ("a request", |event| is_inner(event, |event| matches!(event, RunEvent::Asking { step: 2, .. }))),
        ("text", |event| is_inner(event, |event| matches!(event, RunEvent::Text(_)))),
    ];
    for (word, is_it) in words {
        let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
        let graph = shop(&notes, Node::agent(paying(&notes).build().unwrap()), &go);
        let run = Run::new(graph.agent(), items(json!([])), "run").unwrap();
        let observer = FailsOnce { is_it, has_failed: false, go: Arc::clone(&go) };
        let error = walk_on(run, |run| run.observe(observer)).await.ended.unwrap_err();
        assert!(matches!(error.fault(), RunFault::Observer(_)), "{word}: {error}");
        assert_eq!(notes.count("ship"), 1, "{word}: the sibling came to its end");
        comes_to_the_same(again(&graph, error), &notes).await;
    }
}

/// The hook of an agent that is a node fails: the payment stays made, the sibling completes, and the agent continues
/// with the hook.
#[tokio::test]
async fn a_hook_of_an_agent_that_fails_once_loses_nothing() {
    let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
    let graph = shop(&notes, Node::agent(paying_with_hook(&notes, &go)), &go);
    let run = Run::new(graph.agent(), items(json!([])), "run").unwrap();
    let error = walk_on(run, |run| run).await.ended.unwrap_err();
    assert!(matches!(error.fault(), RunFault::Node { .. }), "{error}");
    comes_to_the_same(again(&graph, error), &notes).await;
    assert_eq!(notes.count("hook"), 2);
}

/// A node that is tried again continues with the hook, too.
#[tokio::test(start_paused = true)]
async fn a_hook_of_an_agent_that_is_tried_again() {
    let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
    let graph = shop(&notes, Node::agent(paying_with_hook(&notes, &go)).retry(Retry::times(2)), &go);
    let run = Run::new(graph.agent(), items(json!([])), "run").unwrap();
    comes_to_the_same(run, &notes).await;
    assert_eq!(notes.count("hook"), 2);
}

/// A refused commit stops everything at once, and says where what is lost was done.
#[tokio::test]
async fn a_refused_commit_names_what_is_lost_inside() {
    for (outcome, lost) in [("outcome", "pay/c1"), ("node", "pay")] {
        let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
        let graph = shop(&notes, Node::agent(paying(&notes).build().unwrap()), &go);
        let is_it = move |told: &RunEvent| {
            let json = serde_json::to_value(told).unwrap();
            let kind = &json["committed"]["kind"];
            let inner = &kind["inner"]["event"]["kind"];
            kind["answered"][0].get(outcome).is_some() || inner["answered"][0].get(outcome).is_some()
        };
        let observer = FailsOnce { is_it, has_failed: false, go: Arc::default() };
        let run = Run::new(graph.agent(), items(json!([])), "run").unwrap();
        let error = walk_on(run, |run| run.record_with(observer)).await.ended.unwrap_err();
        assert!(matches!(error.fault(), RunFault::Commit { .. }), "{error}");
        assert_eq!((error.unrecorded(), notes.count("ship")), (&[lost.to_owned()][..], 0), "{outcome}");
    }
}
