//! What the simulator and a second look found in graphs, each by itself.

use serde_json::{Value, json};
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, Decision, Decisions, Exit, Input, Recording, Run, RunEvent, RunFault};
use stepfold_graph::{AgentNode, END, Graph, Node, NodeContext, NodeError, START, Update};
use stepfold_state_core::chat::{FinishReason, Message, ToolCall, Usage};
use stepfold_state_core::state::{Handler, Schema};
use stepfold_tools::{Approval, Effect, RawArgs, Retry, Tool, ToolError};

use super::block_on;

fn pay() -> Tool {
    Tool::new("pay", "Pays.", |RawArgs(arguments): RawArgs| async move { Ok::<_, ToolError>(arguments) })
        .parameters(json!({"properties": {"n": {"type": "integer"}}, "required": ["n"], "type": "object"}))
        .approval(Approval::Always)
        .build()
        .unwrap()
}

fn clerk() -> Graph {
    let reply = Message::new(stepfold_state_core::chat::Role::Assistant).with_part(ToolCall::new(
        "c1",
        "pay",
        json!({"n": 1}),
    ));
    let usage = Usage::new(5, 2);
    let model = Script::new([]).then(reply, FinishReason::ToolCalls, usage).then(
        Message::assistant("paid"),
        FinishReason::Stop,
        usage,
    );
    let agent = Agent::builder(model).tools([pay()]).build().unwrap();
    let node = Node::agent(AgentNode::new(agent));
    Graph::builder("clerk").node("clerk", node).chain([START, "clerk", END]).build().unwrap()
}

/// A null is an item: also when it was stored.
#[test]
fn null_items_are_stored() {
    let asks = |node: NodeContext| async move {
        node.ask("q", json!({}))?;
        Ok::<_, NodeError>(Update::new().set("log", json!([node.item()])))
    };
    let graph = Graph::builder("nulls")
        .schema(Schema::builder().key::<Vec<Value>>("log").key::<Vec<Value>>("items").build().unwrap())
        .node("each", asks)
        .fan_out(START, "each", "items")
        .edge("each", END)
        .build()
        .unwrap();
    let input = Input::new().with_values(json!({"items": [null, null, 1]}));
    let paused = block_on(graph.run(input).into_future()).unwrap();
    let stored = paused.run().to_json();
    let run = Run::load(graph.agent(), &stored).unwrap();
    assert_eq!(run.to_json(), stored);
    let ids: Vec<String> = run.pending().into_iter().map(|request| request.id).collect();
    assert_eq!(ids.len(), 3);
    for (place, id) in ids.iter().enumerate() {
        assert!(id.starts_with(&format!("each#{place}/q#")), "{id}");
    }
    let decisions: Decisions = ids.into_iter().map(|id| (id, Decision::Approve)).collect();
    let outcome = block_on(run.resume().decide_all(decisions).into_future()).unwrap();
    assert_eq!(
        (outcome.exit(), outcome.state().get("log").unwrap().to_json()),
        (&Exit::End, json!([null, null, 1]))
    );
}

/// A decision that the agent's tool would not take is refused, and another one can be given.
#[test]
fn decisions_are_checked_by_the_agent_that_they_are_for() {
    let paused = block_on(clerk().run("pay").into_future()).unwrap();
    let wrong = Decision::modify(json!({"n": "many"}));
    let id = paused.pending().remove(0).id;
    let error = block_on(paused.into_run().resume().decide(&*id, wrong).into_future()).unwrap_err();
    assert!(matches!(error.fault(), RunFault::Decision(_)), "{error}");
    let run = error.into_run();
    assert_eq!(run.pending().len(), 1);
    let outcome = block_on(run.resume().decide(id, Decision::Approve).into_future()).unwrap();
    assert_eq!((outcome.exit(), outcome.text()), (&Exit::End, "paid".into()));
}

/// What an agent has said and cost is not lost when the graph is cancelled while it waits.
#[test]
fn a_waiting_agent_is_cancelled_with_what_it_did() {
    let paused = block_on(clerk().run("pay").into_future()).unwrap();
    let token = stepfold_tools::CancellationToken::new();
    token.cancel();
    let outcome = block_on(paused.into_run().resume().cancel_with(token).into_future()).unwrap();
    assert_eq!(outcome.exit(), &Exit::Cancelled);
    assert_eq!(outcome.usage().total_tokens(), 7);
    assert_eq!(outcome.transcript().check(), Ok(()));
    assert!(outcome.transcript().to_string().contains("> c1 pay(n=1)"), "{}", outcome.transcript());
}

/// A replay against a graph whose agent has changed says where, inside of that agent.
#[test]
fn a_replay_goes_through_the_runs_of_agents() {
    let graph = |instructions: &str, answers: &str| {
        let agent = Agent::builder(Script::parse("assistant: done").unwrap());
        let agent = agent.instructions(instructions.to_owned()).build().unwrap();
        Graph::builder("g")
            .schema(Schema::builder().key::<String>("one").key::<String>("two").build().unwrap())
            .node("work", AgentNode::new(agent).answers(answers))
            .chain([START, "work", END])
            .build()
            .unwrap()
    };
    let first = graph("Be brief.", "one");
    let run = Run::new(first.agent(), "go", "run-1").unwrap();
    let mut recording = Recording::of(&run);
    let outcome = block_on(run.resume().observe(&mut recording).into_future()).unwrap();
    assert_eq!(recording.replay(first.agent()).unwrap().digest(), outcome.run().digest());
    let differs = |graph: &Graph| recording.replay(graph.agent()).unwrap_err().to_string();
    assert_eq!(
        differs(&graph("Be kind.", "one")),
        "event 2 (inner, step 1) differs at $.kind.inner.event.kind.began.instructions: \
         recorded \"Be brief.\", replayed \"Be kind.\"",
    );
    assert_eq!(
        differs(&graph("Be brief.", "two")),
        "event 4 (answered, step 1) differs at $.delta[0].key: recorded \"one\", replayed \"two\"",
    );
    let nothing = |_: NodeContext| async { Ok::<_, NodeError>(()) };
    let other = Graph::builder("g")
        .schema(first.schema().clone())
        .node("other", nothing)
        .chain([START, "other", END])
        .build()
        .unwrap();
    assert_eq!(
        differs(&other),
        "event 1 (planned, step 1) differs at $.kind.planned.branches[0].node: \
         recorded \"work\", replayed \"other\"",
    );
}

/// Catching up, the runs of agents in earlier supersteps meet values that have what they wrote.
#[test]
fn an_agent_that_counts_can_be_caught_up_with() {
    let schema = || Schema::builder().key::<u8>("count").handler(Handler::sum()).build().unwrap();
    let count = Agent::builder(Script::parse("assistant: done").unwrap())
        .schema(schema())
        .before_model(|context| async move {
            stepfold_agent_loop::HookAction::proceed().write(&context, "count", json!(200))
        })
        .build()
        .unwrap();
    let nothing = |_: NodeContext| async { Ok::<_, NodeError>(()) };
    let graph = Graph::builder("g")
        .schema(schema())
        .node("count", AgentNode::new(count))
        .node("then", nothing)
        .chain([START, "count", "then", END])
        .build()
        .unwrap();
    let mut seen = Vec::new();
    let outcome = block_on(graph.run("go").id("run-1").observe(&mut seen).into_future()).unwrap();
    assert_eq!(outcome.state().get("count").unwrap(), 200);
    let mut state = outcome.state().clone();
    state.replace_messages(stepfold_state_core::chat::Transcript::new());
    let mut run = Run::new(graph.agent(), Input::on(state), "run-1").unwrap();
    for event in seen.iter().filter_map(RunEvent::committed) {
        run.catch_up(event.clone()).unwrap();
    }
    assert_eq!(run.digest(), outcome.run().digest());
}

/// What must not run twice is not tried again.
#[test]
fn a_retry_of_what_must_not_run_twice_is_refused() {
    let nothing = |_: NodeContext| async { Ok::<_, NodeError>(()) };
    let node = Node::new(nothing).effect(Effect::AtMostOnce).retry(Retry::times(1));
    let error = Graph::builder("g").node("once", node).chain([START, "once", END]).build().unwrap_err();
    assert!(error.to_string().contains("must not run twice"), "{error}");
}
