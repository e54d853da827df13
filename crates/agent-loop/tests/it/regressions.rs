//! Faults that were found by running, each with the smallest run that showed it.

use std::sync::Arc;

use serde_json::{Value, json};
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, Decision, Exit, Output, Recording, Run};
use stepfold_state_core::state::Schema;
use stepfold_tools::{Approval, CallLimits, RawArgs, ResultSource, Tool, ToolBuilder, ToolError};
use tokio::sync::Notify;

fn script(text: &str) -> Script {
    Script::parse(text).unwrap()
}

fn constant(name: &str, value: Value) -> ToolBuilder {
    let function = move |RawArgs(_): RawArgs| {
        let value = value.clone();
        async move { Ok::<_, ToolError>(value) }
    };
    Tool::new(name, "Gives a value.", function).parameters(json!({"properties": {}, "type": "object"}))
}

/// Calls that wait for others start while yet others, which must not run twice, are under way. That was
/// refused, and the run failed.
#[tokio::test]
async fn calls_start_in_waves() {
    let gate = Arc::new(Notify::new());
    let (wait, open) = (Arc::clone(&gate), gate);
    let schema = Schema::builder().key::<i64>("n").build().unwrap();
    let parameters = json!({"properties": {}, "type": "object"});
    let slow = Tool::new("slow", "Ends last.", move |RawArgs(_): RawArgs| {
        let wait = Arc::clone(&wait);
        async move {
            wait.notified().await;
            Ok::<_, ToolError>("slow")
        }
    });
    let read = Tool::new("read", "Reads what was written.", move |RawArgs(_): RawArgs| {
        let open = Arc::clone(&open);
        async move {
            open.notify_one();
            Ok::<_, ToolError>("read")
        }
    });
    let tools = [
        slow.parameters(parameters.clone()).build().unwrap(),
        constant("write", json!(1)).output_to_state("n", ResultSource::Whole).build().unwrap(),
        read.parameters(parameters).reads(["n"]).build().unwrap(),
    ];
    let agent = Agent::builder(script("assistant: > c1 slow() > c2 write() > c3 read()\nassistant: done"))
        .schema(schema)
        .tools(tools)
        .build()
        .unwrap();
    let run = Run::new(&agent, "go", "run-1").unwrap();
    let mut recording = Recording::of(&run);
    let outcome = run.resume().observe(&mut recording).await.unwrap();
    assert_eq!(outcome.exit(), &Exit::Text);
    assert_eq!(recording.replay(&agent).unwrap().digest(), outcome.run().digest());
}

#[tokio::test]
async fn calls_start_one_after_the_other() {
    let agent = Agent::builder(script("assistant: > c1 a() > c2 a() > c3 a()\nassistant: done"))
        .tools([constant("a", json!(1)).build().unwrap()])
        .tool_limits(CallLimits::default().with_concurrency(2))
        .build()
        .unwrap();
    assert_eq!(agent.run("go").await.unwrap().exit(), &Exit::Text);
}

/// Blank text is text, as the original has it; but it is not output.
#[tokio::test]
async fn blank_text_ends_the_run() {
    let tools = || [constant("a", json!(1)).build().unwrap()];
    let agent = Agent::builder(script("assistant: \"  \"")).tools(tools()).build().unwrap();
    assert_eq!(agent.run("go").await.unwrap().exit(), &Exit::Text);

    let output = Output::schema("number", json!({"type": "integer"}));
    let agent =
        Agent::builder(script("assistant: \"  \"\nassistant: 7")).output_with(output).build().unwrap();
    let outcome = agent.run("go").await.unwrap();
    assert_eq!((outcome.exit(), outcome.output::<u8>().unwrap()), (&Exit::Output, 7));
}

/// An exit tool that was rejected is not an exit, and keeps no other exit tool from being one.
#[tokio::test]
async fn a_rejected_exit_tool_does_not_keep_the_other() {
    let agent = Agent::builder(script("assistant: > c1 ask() > c2 end()\nassistant: never"))
        .tools([
            constant("ask", json!(1)).approval(Approval::Always).build().unwrap(),
            constant("end", json!(2)).build().unwrap(),
        ])
        .exit_on(["ask", "end"])
        .build()
        .unwrap();
    let run = agent.run("go").await.unwrap().into_run();
    let id = run.pending().remove(0).id;
    let outcome = run.resume().decide(id, Decision::reject("no"));
    assert_eq!(outcome.await.unwrap().exit(), &Exit::Tool("end".to_owned()));
}

/// The tools of one run may leave out those that the agent's exit conditions name.
#[tokio::test]
async fn tools_of_one_run_leave_exit_tools_out() {
    let agent = Agent::builder(script("assistant: done"))
        .tools([constant("a", json!(1)).build().unwrap(), constant("end", json!(2)).build().unwrap()])
        .exit_on(["end"])
        .build()
        .unwrap();
    let outcome = agent.run("go").with(|agent| agent.only_tools(["a"])).await.unwrap();
    assert_eq!(outcome.exit(), &Exit::Text);
    let error = agent.run("go").with(|agent| agent.exit_on(["typo"])).await.unwrap_err();
    assert_eq!(error.outcome().exit(), &Exit::Failed);
}
