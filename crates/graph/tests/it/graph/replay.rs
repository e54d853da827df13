//! The record of a graph goes through the machine again, without its nodes.

use expect_test::expect;
use stepfold_agent_loop::state_core::state::{Handler, Schema};
use stepfold_agent_loop::tools::{Effect, ResultSource, ToolBuilder};
use stepfold_agent_loop::{Agent, Recording, Run};
use stepfold_graph::{AgentNode, END, Graph, START};

use crate::loop_kit::{chain, script, tool};

const SCRIPT: &str =
    "assistant: > c1 visit(n=1)   > c2 visit(n=2)\nassistant: > c3 visit(n=1)\nassistant: done";

fn visit(name: &str) -> ToolBuilder {
    tool(name, |arguments| Ok(arguments["n"].clone())).output_to_state("visits", ResultSource::Whole)
}

/// The run of an agent that is a node is compared as well.
#[tokio::test]
async fn replay_of_a_node_whose_agent_has_changed() {
    let graph = |tool: ToolBuilder| {
        let schema = Schema::builder().key::<i64>("visits").handler(Handler::sum()).build().unwrap();
        let agent = Agent::builder(script(SCRIPT)).schema(schema.clone()).tools(vec![tool.build().unwrap()]);
        let graph = Graph::builder("round").schema(schema);
        let node = AgentNode::new(agent.build().unwrap());
        graph.node("visit", node).chain([START, "visit", END]).build().unwrap()
    };
    let agent = graph(visit("visit"));
    let run = Run::new(agent.agent(), "go", "run").unwrap();
    let mut recording = Recording::of(&run);
    let outcome = run.resume().observe(&mut recording).await.unwrap();
    let same = recording.replay(graph(visit("visit")).agent()).unwrap();
    assert_eq!(same.digest(), outcome.run().digest());
    let replayed = |tool: ToolBuilder| chain(&recording.replay(graph(tool).agent()).unwrap_err());
    expect!["event 4 (inner, step 1) differs for 'c1': recorded that it ran, replayed unknown tool 'visit'; available: go"].assert_eq(&replayed(visit("go")));
    expect!["event 4 (inner, step 1) differs for 'c1': recorded that it is marked before it runs, replayed that it runs unmarked"].assert_eq(&replayed(visit("visit").effect(Effect::Pure)));
    expect!["event 2 (inner, step 1) offers other tools, or with other bindings to the state"]
        .assert_eq(&replayed(visit("visit").writes(["visits"])));
}
