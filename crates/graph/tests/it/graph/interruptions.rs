//! Cancelled in the middle, and after a crash.

use expect_test::expect;
use serde_json::{Value, json};
use stepfold_agent_loop::tools::{CancellationToken, Effect};
use stepfold_agent_loop::{Agent, Decision, Observer, ObserverError, Run, RunEvent};
use stepfold_graph::{Graph, Node, NodeContext, NodeError, START};

use super::kit::*;
use crate::loop_kit::{Notes, Silent, agent, outcome_of};

/// What is done is kept, what is open is cancelled, and nothing more runs.
#[tokio::test]
async fn cancelled_in_the_middle() {
    let token = CancellationToken::new();
    let cancelling = {
        let token = token.clone();
        move |_: NodeContext| {
            token.cancel();
            std::future::pending::<Result<(), NodeError>>()
        }
    };
    let graph = graph()
        .node("a", note)
        .node("never", |_: NodeContext| std::future::pending::<Result<(), NodeError>>())
        .node("cancels", cancelling)
        .node(
            "once",
            Node::new(|_| std::future::pending::<Result<(), NodeError>>()).effect(Effect::AtMostOnce),
        )
        .node("agent", Agent::builder(Silent).build().unwrap())
        .node("behind", note)
        .edge(START, "a")
        .edge(START, "never")
        .edge(START, "once")
        .edge(START, "agent")
        .edge(START, "cancels")
        .edge("a", "behind")
        .build()
        .unwrap();
    let run = Run::new(graph.agent(), "go", "run").unwrap();
    let walked = walk_on(run, |run| run.cancel_with(token)).await;
    expect![[r#"
        1: a, never, cancels, once, agent
           started: [3]
           cancelled
        --
        user:      go
        --
        exit: the run was cancelled
        steps: 1
        state: {"log":["a"]}
    "#]]
    .assert_eq(&walked.text());
}

/// Between two tries, and while a queue waits.
#[tokio::test(start_paused = true)]
async fn cancelled_between_tries() {
    let token = CancellationToken::new();
    let cancelling = {
        let token = token.clone();
        move |_: NodeContext| {
            token.cancel();
            std::future::ready(Err::<(), _>(NodeError::new("no")))
        }
    };
    let graph = graph()
        .node("each", Node::new(cancelling).retry(stepfold_agent_loop::tools::Retry::times(3)))
        .fan_out(START, "each", "items")
        .max_parallel(1)
        .build()
        .unwrap();
    let run = Run::new(graph.agent(), items(json!([1, 2])), "run").unwrap();
    let walked = walk_on(run, |run| run.cancel_with(token)).await;
    expect![[r#"
        1: each(1), each(2)
           cancelled
        --
        --
        exit: the run was cancelled
        steps: 1
        state: {"items":[1,2]}
    "#]]
    .assert_eq(&walked.text());
}

/// Lets so many commits through, then fails: the process dies there.
struct Dies {
    left: usize,
    stored: Vec<stepfold_agent_loop::Event>,
}

impl Observer for Dies {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        let Some(event) = event.committed() else { return Ok(()) };
        if self.left == 0 {
            return Err("the process dies".into());
        }
        self.left -= 1;
        self.stored.push(event.clone());
        Ok(())
    }
}

/// The run as another process finds it when this one dies after so many commits.
async fn crashed(graph: &Graph, commits: usize) -> Run {
    let mut dies = Dies { left: commits, stored: Vec::new() };
    let run = Run::new(graph.agent(), items(json!([1, 2])), "run").unwrap();
    let mut other = run.clone();
    run.resume().observe(&mut dies).await.unwrap_err();
    for event in dies.stored {
        other.commit(event).unwrap();
    }
    Run::load(graph.agent(), &other.to_json()).unwrap()
}

fn once(notes: &Notes) -> Node {
    let notes = notes.clone();
    Node::new(move |node: NodeContext| {
        notes.add(format!("{} {}", node.item().unwrap(), node.idempotency_key()));
        // They end one after the other, in the order of their items.
        let turns = node.item().and_then(Value::as_u64).unwrap_or_default();
        async move {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            Ok::<_, NodeError>(noted(&node))
        }
    })
}

/// Only what has no outcome runs again, under the same key.
#[tokio::test]
async fn a_crash() {
    let notes = Notes::default();
    let graph = graph().node("each", once(&notes)).fan_out(START, "each", "items").build().unwrap();
    // Began, planned, the first outcome.
    let walked = walk_on(crashed(&graph, 3).await, |run| run).await;
    expect![[r#"
        --
        --
        exit: the graph reached its end
        steps: 1
        state: {"items":[1,2],"log":["each(1)","each(2)"]}
        1 run/1/0
        2 run/1/1
        2 run/1/1
    "#]]
    .assert_eq(&(walked.text() + &notes.text()));
}

/// What must not run twice and had started has failed, as unknown.
#[tokio::test]
async fn a_crash_of_what_must_not_run_twice() {
    let notes = Notes::default();
    let node = once(&notes).effect(Effect::AtMostOnce);
    let graph = graph()
        .node("each", node.clone().continue_after_error())
        .fan_out(START, "each", "items")
        .build()
        .unwrap();
    // Began, planned, started, the first outcome.
    let walked = walk_on(crashed(&graph, 4).await, |run| run).await;
    expect![[r#"
           interrupted: [1]
        --
        --
        exit: the graph reached its end
        steps: 1
        state: {"items":[1,2],"log":["each(1)"]}
        1 run/1/0
        2 run/1/1
    "#]]
    .assert_eq(&(walked.text() + &notes.text()));
}

/// What may have begun while it was repeatable is not run again once it must not run twice.
#[tokio::test]
async fn a_crash_of_what_must_not_run_twice_by_now() {
    for (was, is_run_again) in
        [(Effect::Pure, false), (Effect::Idempotent, false), (Effect::AtMostOnce, true)]
    {
        let notes = Notes::default();
        let graph = |effect, limit| {
            let node = once(&notes).effect(effect).max_executions(limit).continue_after_error();
            graph().node("each", node).fan_out(START, "each", "items").build().unwrap()
        };
        // Began, planned, and the first outcome, or the start, which is not committed.
        let lost = crashed(&graph(was, 9), if is_run_again { 2 } else { 3 }).await;
        let now = graph(Effect::AtMostOnce, 7);
        let (run, _) = Run::load_changed(now.agent(), &lost.to_json()).unwrap();
        let walked = walk_on(run, |run| run).await;
        assert_eq!(notes.text(), "1 run/1/0\n2 run/1/1\n", "{was:?}");
        assert_eq!(outcome_of(&walked.ended).unknown_calls().is_empty(), is_run_again, "{}", walked.text());
    }
}

/// Who reads the outcome sees which nodes have an unknown one, and which calls of agents that are nodes.
#[tokio::test]
async fn interrupted_nodes_are_listed_in_the_outcome() {
    let listed = |walked: &Walked| {
        let calls = outcome_of(&walked.ended).unknown_calls().into_iter();
        calls
            .map(|call| format!("{} {}({})", call.id, call.tool, call.arguments.to_text()))
            .collect::<Vec<_>>()
    };
    let node = once(&Notes::default()).effect(Effect::AtMostOnce).continue_after_error();
    let functions = graph().node("each", node).fan_out(START, "each", "items").build().unwrap();
    let walked = walk_on(crashed(&functions, 4).await, |run| run).await;
    assert_eq!(listed(&walked), [r#"each#1 each({"item":2})"#]);

    let paying =
        agent("assistant: > c1 submit(amount=3)\nassistant: paid").instructions("Pay.").build().unwrap();
    let agents = graph().node("pay", paying).edge(START, "pay").build().unwrap();
    // Began, planned; inside: began, replied, started.
    let run = crashed(&agents, 5).await;
    let token = stepfold_agent_loop::tools::CancellationToken::new();
    token.cancel();
    for walked in [walk_on(run.clone(), |run| run).await, walk_on(run, |run| run.cancel_with(token)).await] {
        assert_eq!(listed(&walked), [r#"pay/c1 submit({"amount":3})"#], "{}", walked.text());
    }
}

/// Or an approver is asked.
#[tokio::test]
async fn a_crash_and_a_question() {
    let mut text = String::new();
    for decision in [Decision::Approve, Decision::reject("it happened")] {
        let notes = Notes::default();
        let node = once(&notes).effect(Effect::AtMostOnce).continue_after_error();
        let graph =
            graph().node("each", node).fan_out(START, "each", "items").ask_when_uncertain().build().unwrap();
        let walked = walk_on(crashed(&graph, 4).await, |run| run).await;
        text.push_str(&walked.text());
        let outcome = outcome_of(&walked.ended);
        let id = outcome.pending()[0].id.clone();
        let walked = walk_on(outcome.run().clone(), |run| run.decide(id, decision)).await;
        text.push_str(&(walked.text() + &notes.text()));
    }
    expect![[r#"
           interrupted: [1]
        --
        --
        exit: the run waits for decisions
        steps: 1
        state: {"items":[1,2]}
        pending each#1#fe5a98d6b69c61d3: each({"item":2}), MayHaveHappened
           started: [1]
        --
        --
        exit: the graph reached its end
        steps: 1
        state: {"items":[1,2],"log":["each(1)","each(2)"]}
        1 run/1/0
        2 run/1/1
        2 run/1/1
           interrupted: [1]
        --
        --
        exit: the run waits for decisions
        steps: 1
        state: {"items":[1,2]}
        pending each#1#fe5a98d6b69c61d3: each({"item":2}), MayHaveHappened
        --
        --
        exit: the graph reached its end
        steps: 1
        state: {"items":[1,2],"log":["each(1)"]}
        1 run/1/0
        2 run/1/1
    "#]]
    .assert_eq(&text);
}

/// An agent continues after its last commit.
#[tokio::test]
async fn a_crash_inside_an_agent() {
    let looking = agent("assistant: > c1 search(q=\"x\")\nassistant: area 3").build().unwrap();
    let graph = graph().node("each", looking).fan_out(START, "each", "items").build().unwrap();
    let whole = walk(&graph, items(json!([1, 2]))).await;
    let events = whole.seen.iter().filter(|event| event.committed().is_some()).count();
    for commits in 1..events {
        let run = crashed(&graph, commits).await;
        let ended = walk_on(run, |run| run).await.ended.unwrap();
        assert_eq!(ended.run().digest(), outcome_of(&whole.ended).run().digest(), "after {commits}");
    }
}
