//! What fails: retries, timeouts, panics, nodes for errors, and going on where a run has failed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::state_core::chat::{
    ChatModel, ChatRequest, ModelError, ModelErrorKind, ReplyStream,
};
use stepfold_agent_loop::tools::{CancellationToken, Effect, Retry};
use stepfold_agent_loop::{Agent, RunFault};
use stepfold_graph::{AgentNode, END, GraphBuilder, Node, NodeContext, NodeError, START, Update};

use super::check;
use super::kit::*;
use crate::loop_kit::{Notes, chain, outcome_of, reloaded, script};

/// `a` in question, `b` beside it, `c` behind it.
fn graph_with(node: Node) -> GraphBuilder {
    graph().node("a", node).node("b", note).node("c", note).edge(START, "a").edge(START, "b").edge("a", "c")
}

/// Fails so often, then notes that it ran.
fn failing_first(times: usize) -> Node {
    let tries = Arc::new(AtomicUsize::new(0));
    Node::new(move |node: NodeContext| {
        let number = tries.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            match number > times {
                true => Ok(noted(&node)),
                false => Err(NodeError::new(format!("try {number}"))),
            }
        }
    })
}

/// Unless something is said, the run fails, what the others did is kept, and the run can continue.
#[tokio::test]
async fn the_run_fails() {
    check(
        graph_with(Node::new(failing("no"))),
        "go",
        expect![[r#"
        1: a, b
        --
        user:      go
        --
        error: run 'run' failed after step 1: node 'a' failed: no
        steps: 1
    "#]],
    )
    .await;
}

/// Of two, the first in the order of the branches is the error, whichever failed first.
#[tokio::test(start_paused = true)]
async fn the_first_failure_is_the_error() {
    let graph = graph()
        .node("a", |_: NodeContext| async {
            // tidy: allow sleep, because time is paused.
            tokio::time::sleep(Duration::from_secs(1)).await;
            Err::<(), _>(NodeError::new("late"))
        })
        .node("b", failing("early"))
        .edge(START, "a")
        .edge(START, "b");
    check(
        graph,
        "go",
        expect![[r#"
        1: a, b
        --
        user:      go
        --
        error: run 'run' failed after step 1: node 'a' failed: late
        steps: 1
    "#]],
    )
    .await;
}

/// An error with its causes, in one line.
#[tokio::test]
async fn errors_have_causes() {
    #[derive(Debug, thiserror::Error)]
    #[error("the page cannot be fetched")]
    struct Fetch(#[source] std::num::ParseIntError);
    let node = Node::new(|_: NodeContext| async {
        "x".parse::<u8>().map_err(Fetch)?;
        Ok::<_, NodeError>(())
    });
    check(graph_with(node), "go", expect![[r#"
        1: a, b
        --
        user:      go
        --
        error: run 'run' failed after step 1: node 'a' failed: the page cannot be fetched: invalid digit found in string
        steps: 1
    "#]]).await;
}

#[tokio::test(start_paused = true)]
async fn tries() {
    let retry = || Retry::times(2);
    check(
        graph_with(failing_first(2).retry(retry())),
        "go",
        expect![[r#"
        1: a, b
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["a","b","c"]}
    "#]],
    )
    .await;
    check(
        graph_with(failing_first(3).retry(retry()).continue_after_error()),
        "go",
        expect![[r#"
        1: a, b
           0 Failed (3): try 3
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn permanent_errors_are_not_tried_again() {
    let node = Node::new(|_: NodeContext| async { Err::<(), _>(NodeError::permanent("never")) });
    check(
        graph_with(node.retry(Retry::times(5)).continue_after_error()),
        "go",
        expect![[r#"
        1: a, b
           0 Failed (1): never
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]],
    )
    .await;
    // Nor is a value that does not fit: the next try would give the same.
    let node = Node::new(|_: NodeContext| async { Ok::<_, NodeError>(Update::new().set("nxet", 1)) });
    check(
        graph_with(node.retry(Retry::times(5)).continue_after_error()),
        "go",
        expect![[r#"
        1: a, b
           0 Failed (1): unknown key "nxet"; known keys: log, items, next, messages
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]],
    )
    .await;
}

/// Each attempt has its timeout, and a token of its own that is cancelled then.
#[tokio::test(start_paused = true)]
async fn timeouts() {
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let slow = || {
        let given = Arc::clone(&tokens);
        let hangs = move |context: NodeContext| {
            given.lock().unwrap().push(context.cancellation().clone());
            std::future::pending::<Result<(), NodeError>>()
        };
        Node::new(hangs).timeout(Duration::from_secs(20))
    };
    check(
        graph_with(slow()),
        "go",
        expect![[r#"
        1: a, b
        --
        user:      go
        --
        error: run 'run' failed after step 1: node 'a' failed: it took longer than 20s
        steps: 1
    "#]],
    )
    .await;
    check(
        graph_with(slow().retry(Retry::times(2)).continue_after_error()),
        "go",
        expect![[r#"
        1: a, b
           0 TimedOut (3): it took longer than 20s
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]],
    )
    .await;
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.iter().map(CancellationToken::is_cancelled).collect::<Vec<_>>(), [true; 4]);
}

#[tokio::test(start_paused = true)]
async fn panics() {
    fn early(_: NodeContext) -> std::future::Ready<Result<(), NodeError>> {
        panic!("before the future")
    }
    async fn late(_: NodeContext) -> Result<(), NodeError> {
        tokio::task::yield_now().await;
        panic!("inside {}", "the future")
    }
    check(
        graph_with(Node::new(early).continue_after_error()),
        "go",
        expect![[r#"
        1: a, b
           0 Failed (1): node panicked: before the future
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]],
    )
    .await;
    check(
        graph_with(Node::new(late).retry(Retry::times(1)).continue_after_error()),
        "go",
        expect![[r#"
        1: a, b
           0 Failed (2): node panicked: inside the future
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]],
    )
    .await;
}

/// What decides where to go, and what makes items, prompts and agents.
#[tokio::test]
async fn panics_elsewhere() {
    let router = graph()
        .node("a", note)
        .edge(START, "a")
        .route("a", ["a", END], |_| -> &'static str { panic!("no way") });
    check(router, "go", expect![[r#"
        1: a
        --
        user:      go
        --
        error: run 'run' failed after step 1: run could not continue: route after node 'a' failed: its router panicked: no way
        steps: 1
        state: {"log":["a"]}
    "#]]).await;
    let items = graph().node("a", note).fan_out_with(START, "a", |_| panic!("no items"));
    check(items, "go", expect![[r#"
        --
        user:      go
        --
        error: run 'run' failed after step 0: run could not continue: route after START failed: its items panicked: no items
        steps: 0
    "#]]).await;
    let agent = || Agent::builder(script("assistant: three")).build().unwrap();
    let prompt = AgentNode::new(agent()).asks_with(|_| panic!("no words"));
    check(
        graph_with(Node::agent(prompt).continue_after_error()),
        "go",
        expect![[r#"
        1: a, b
           0 Failed (1): its prompt panicked: no words
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]],
    )
    .await;
    let adjusted = AgentNode::new(agent()).adjust(|_, _| panic!("no model"));
    check(
        graph_with(Node::agent(adjusted).continue_after_error()),
        "go",
        expect![[r#"
        1: a, b
           0 Failed (1): what adjusts its agent panicked: no model
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]],
    )
    .await;
}

#[tokio::test]
async fn going_on_after_errors() {
    check(
        graph_with(Node::new(failing("no")).continue_after_error()),
        "go",
        expect![[r#"
        1: a, b
           0 Failed (1): no
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]],
    )
    .await;
}

/// It gets which node failed, why, and with which item; the edges of the failed one are not followed.
#[tokio::test]
async fn a_node_for_errors() {
    async fn odd(node: NodeContext) -> Result<Update, NodeError> {
        let item: u64 = node.item_as()?;
        if item.is_multiple_of(2) { Ok(noted(&node)) } else { Err(NodeError::new("odd")) }
    }
    check(
        graph_with(Node::new(failing("no")).on_error("b")),
        "go",
        expect![[r#"
        1: a, b
           0 Failed (1): no
        2: b({"error":"no","node":"a"})
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","b({\"error\":\"no\",\"node\":\"a\"})"]}
    "#]],
    )
    .await;
    let graph = graph()
        .node("each", Node::new(odd).on_error("aid"))
        .node("aid", note)
        .node("behind", note)
        .fan_out(START, "each", "items")
        .edge("each", "behind");
    check(graph, items(json!([1, 2, 3, "x"])), expect![[r#"
        1: each(1), each(2), each(3), each("x")
           0 Failed (1): odd
           2 Failed (1): odd
           3 Failed (1): invalid item of node 'each': expected u64, found string at $
        2: aid({"error":"odd","item":1,"node":"each"}), aid({"error":"odd","item":3,"node":"each"}), aid({"error":"invalid item of node 'each': expected u64, found string at $","item":"x","node":"each"}), behind
        --
        --
        exit: the graph reached its end
        steps: 2
        state: {"items":[1,2,3,"x"],"log":["each(2)","aid({\"error\":\"odd\",\"item\":1,\"node\":\"each\"})","aid({\"error\":\"odd\",\"item\":3,\"node\":\"each\"})","aid({\"error\":\"invalid item of node 'each': expected u64, found string at $\",\"item\":\"x\",\"node\":\"each\"})","behind"]}
    "#]]).await;
}

/// A failed node can go to the end.
#[tokio::test]
async fn the_end_after_an_error() {
    check(
        graph_with(Node::new(failing("no")).on_error(END)),
        "go",
        expect![[r#"
        1: a, b
           0 Failed (1): no
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["b"]}
    "#]],
    )
    .await;
}

#[tokio::test]
async fn items_of_another_type() {
    async fn number(node: NodeContext) -> Result<Update, NodeError> {
        node.item_as::<u64>().map(|_| Update::new())
    }
    check(
        graph_with(Node::new(number).continue_after_error()),
        "go",
        expect![[r#"
        1: a, b
           0 Failed (1): missing item of node 'a': it is not a fan-out branch
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]],
    )
    .await;
    let graph =
        graph().node("each", Node::new(number).continue_after_error()).fan_out(START, "each", "items");
    check(
        graph,
        items(json!(["x"])),
        expect![[r#"
            1: each("x")
               0 Failed (1): invalid item of node 'each': expected u64, found string at $
            --
            --
            exit: the graph reached its end
            steps: 1
            state: {"items":["x"]}
        "#]],
    )
    .await;
}

/// Only the branch that failed runs again, under the key that it had.
#[tokio::test]
async fn going_on_where_a_run_failed() {
    let (notes, is_repaired) = (Notes::default(), Arc::new(AtomicUsize::new(0)));
    let graph = {
        let (notes, is_repaired) = (notes.clone(), Arc::clone(&is_repaired));
        graph()
            .node("each", move |node: NodeContext| {
                notes.add(format!("{} {}", node.item().unwrap(), node.idempotency_key()));
                let fails = *node.item().unwrap() == 2 && is_repaired.load(Ordering::SeqCst) == 0;
                async move {
                    match fails {
                        true => Err(NodeError::new("the line is down")),
                        false => Ok(noted(&node)),
                    }
                }
            })
            .fan_out(START, "each", "items")
            .build()
            .unwrap()
    };
    let walked = walk(&graph, items(json!([1, 2, 3]))).await;
    expect![[r#"
        1: each(1), each(2), each(3)
        --
        --
        error: run 'run' failed after step 1: node 'each#1' failed: the line is down
        steps: 1
        state: {"items":[1,2,3]}
    "#]]
    .assert_eq(&walked.text());
    assert!(matches!(walked.ended.as_ref().unwrap_err().fault(), RunFault::Node { .. }));
    is_repaired.store(1, Ordering::SeqCst);
    let walked = walk_on(reloaded(outcome_of(&walked.ended)), |run| run).await;
    expect![[r#"
        --
        --
        exit: the graph reached its end
        steps: 1
        state: {"items":[1,2,3],"log":["each(1)","each(2)","each(3)"]}
    "#]]
    .assert_eq(&walked.text());
    expect![[r#"
        1 run/1/0
        2 run/1/1
        3 run/1/2
        2 run/1/1
    "#]]
    .assert_eq(&notes.text());
}

/// What must not run twice is not tried by going on: it has failed, and the graph ends.
#[tokio::test]
async fn at_most_once_fails_once() {
    check(
        graph_with(Node::new(failing("no")).effect(Effect::AtMostOnce)),
        "go",
        expect![[r#"
            1: a, b
               started: [0]
               0 Failed (1): no
            --
            user:      go
            --
            exit: node 'a' failed: no
            steps: 1
            state: {"log":["b"]}
        "#]],
    )
    .await;
}

/// An agent that does not finish, a model that does not answer.
#[tokio::test(start_paused = true)]
async fn agents_that_fail() {
    let agent = |text: &str| Agent::builder(script(text)).max_steps(1).tools(crate::loop_kit::tools());
    let unfinished = agent("assistant: > c1 fetch(id=1)").build().unwrap();
    check(
        graph_with(Node::agent(unfinished).continue_after_error()),
        "go",
        expect![[r#"
        1: a, b
           0 Failed (1): the agent did not finish: the limit of steps was reached
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]],
    )
    .await;
    let silent = agent("").build().unwrap();
    check(graph_with(Node::agent(silent.clone()).continue_after_error()), "go", expect![[r#"
        1: a, b
           0 Failed (1): run 'run/1/0' failed after step 0: model request failed: invalid request: the script has 0 replies, and is asked for one more
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]]).await;
    let prompt = AgentNode::new(silent.clone()).asks("how many in {next}?");
    check(graph_with(Node::agent(prompt).continue_after_error()), "go", expect![[r#"
        1: a, b
           0 Failed (1): missing key "next" for the template at line 1, column 13; write {next?} if it is optional; known keys: messages
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]]).await;
    let fault = walk(&graph_with(Node::agent(silent)).build().unwrap(), "go").await.ended.unwrap_err();
    expect!["run 'run' failed after step 1: node 'a' failed: run 'run/1/0' failed after step 0: model request failed: invalid request: the script has 0 replies, and is asked for one more"].assert_eq(&chain(&fault));
}

/// An agent's timeout is tried again as well: it continues where it was.
#[tokio::test(start_paused = true)]
async fn an_agents_timeout() {
    use crate::loop_kit::Silent;
    let silent = Agent::builder(Silent).build().unwrap();
    let node = Node::agent(silent).timeout(Duration::from_secs(20));
    check(
        graph_with(node.clone().continue_after_error()),
        "go",
        expect![[r#"
        1: a, b
           0 TimedOut (1): it took longer than 20s
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]],
    )
    .await;
    check(
        graph_with(node.retry(Retry::times(2)).continue_after_error()),
        "go",
        expect![[r#"
        1: a, b
           0 TimedOut (3): it took longer than 20s
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]],
    )
    .await;
}

/// All of a try's errors are in the text that is told and recorded.
#[tokio::test]
async fn failures_as_a_stream() {
    let graph = graph_with(Node::new(failing("no")).continue_after_error()).build().unwrap();
    let walked = walk(&graph, "go").await;
    let told: Vec<String> = walked
        .seen
        .iter()
        .filter(|event| event.committed().is_none())
        .map(|event| serde_json::to_string(event).unwrap())
        .collect();
    expect![[r#"
        {"node_started":{"node":"a","branch":0}}
        {"node_started":{"node":"b","branch":1}}
        {"node_finished":{"node":"a","branch":0,"status":"failed","error":"no"}}
        {"node_finished":{"node":"b","branch":1,"status":"succeeded","error":null}}
        {"node_started":{"node":"c","branch":0}}
        {"node_finished":{"node":"c","branch":0,"status":"succeeded","error":null}}
        {"ended":"end"}"#]]
    .assert_eq(&told.join("\n"));
}

/// Cannot be reached so often, then says its lines.
struct Flaky {
    failures: AtomicUsize,
    script: stepfold_agent_loop::test_kit::Script,
}

impl ChatModel for Flaky {
    fn id(&self) -> &'static str {
        "flaky"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let left = self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match left {
            Ok(_) => ReplyStream::failed(ModelError::new(ModelErrorKind::Transient, "the line is down")),
            Err(_) => self.script.respond(request),
        }
    }
}

/// An agent continues where its model failed; nothing is asked or called twice.
#[tokio::test(start_paused = true)]
async fn an_agent_is_tried_again() {
    let notes = Notes::default();
    let looking = |failures: usize| {
        let script = script("assistant: > c1 look(q=\"x\")\nassistant: area 3");
        Agent::builder(Flaky { failures: AtomicUsize::new(failures), script })
            .tools([notes.tool("look").build().unwrap()])
            .build()
            .unwrap()
    };
    let node = |failures| Node::agent(looking(failures)).retry(Retry::times(2)).continue_after_error();
    check(
        graph_with(node(2)),
        "go",
        expect![[r#"
        1: a, b
        2: c
        --
        user:      go
        assistant: > c1 look(q="x")
        tool c1:   {"q": "x"}
        assistant: area 3
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]],
    )
    .await;
    check(graph_with(node(3)), "go", expect![[r#"
        1: a, b
           0 Failed (3): run 'run/1/0' failed after step 0: model request failed: transient failure: the line is down
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]]).await;
    assert_eq!(notes.count("look"), 1);
}

/// A node inside a graph inside failed: both continue, and what had its outcome is not run again.
#[tokio::test]
async fn going_on_inside() {
    let inner = graph()
        .node("x", note)
        .node("y", failing_first(1))
        .node("z", note)
        .chain([START, "x", "y", "z"])
        .build()
        .unwrap();
    let graph = graph().node("inner", inner).node("behind", note).chain([START, "inner", "behind"]);
    let walked = walk(&graph.build().unwrap(), "go").await;
    expect![[r#"
        1: inner
        --
        user:      go
        --
        error: run 'run' failed after step 1: node 'inner' failed: run 'run/1/0' failed after step 2: node 'y' failed: try 1
        steps: 1
    "#]].assert_eq(&walked.text());
    let walked = walk_on(reloaded(outcome_of(&walked.ended)), |run| run).await;
    expect![[r#"
        2: behind
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["x","y","z","behind"]}
    "#]]
    .assert_eq(&walked.text());
}

/// A node that stands in for its own failures ends at its limit.
#[tokio::test]
async fn a_node_for_its_own_errors() {
    check(
        graph_with(Node::new(failing("no")).on_error("a")),
        "go",
        expect![[r#"
        1: a, b
           0 Failed (1): no
        2: a({"error":"no","node":"a"})
           0 Failed (1): no
        3: a({"error":"no","item":{"error":"no","node":"a"},"node":"a"})
           0 Failed (1): no
        --
        user:      go
        --
        exit: node 'a' reached its limit of executions
        steps: 3
        state: {"log":["b"]}
    "#]],
    )
    .await;
}
