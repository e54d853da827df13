//! Structured output, and calls that a model leaked as text.

use expect_test::expect;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use stepfold_agent_loop::state_core::chat::ToolChoice;
use stepfold_agent_loop::{Agent, AgentBuilder, Exit, Output, OutputMode};

use super::check;
use super::kit::*;

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Area {
    id: u32,
    stalls: u32,
}

const AREA: Area = Area { id: 3, stalls: 12 };

fn asking(mode: OutputMode, script: &str) -> AgentBuilder {
    agent(script).output_with(Output::of::<Area>().mode(mode))
}

#[tokio::test]
async fn output_by_schema() {
    let script = r#"
assistant: > c1 fetch(id=3)
assistant: "{\"id\": 3, \"stalls\": 12}"
"#;
    let model = Asked::new(self::script(script));
    let agent = asking(OutputMode::Schema, "").model(model.clone()).build().unwrap();
    let outcome = play(&agent, "which?", |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.output::<Area>().unwrap()), (&Exit::Output, AREA));
    assert!(model.requests().iter().all(|request| request.response_format.is_some()));
}

/// Everything that is wrong is said at once; the number of repairs is bounded.
#[tokio::test]
async fn output_by_schema_is_repaired() {
    let script = r#"
assistant: area 3
assistant: "{\"id\": -3}"
assistant: "{\"id\": 3, \"stalls\": 12}"
"#;
    check(asking(OutputMode::Schema, script), "which?", expect![[r#"
        user:      which?
        assistant: area 3
        user:      The output is not valid: the reply is not JSON: expected value at line 1 column 1. Reply with the corrected JSON and nothing else.
        assistant: {"id": -3}
        user:      The output is not valid: "stalls" is a required property at $; value is less than the minimum of 0 at $.id. Reply with the corrected JSON and nothing else.
        assistant: {"id": 3, "stalls": 12}
        --
        exit: the model gave valid output
        steps: 3
    "#]]).await;
}

#[tokio::test]
async fn output_is_not_repaired_for_ever() {
    let agent =
        agent(&"assistant: area 3\n".repeat(9)).output_with(Output::of::<Area>().repairs(1)).build().unwrap();
    let ended = play(&agent, "which?", |run| run).await;
    expect![[r#"
        user:      which?
        assistant: area 3
        user:      The output is not valid: the reply is not JSON: expected value at line 1 column 1. Reply with the corrected JSON and nothing else.
        assistant: area 3
        --
        exit: the model returned no valid output
        steps: 2
    "#]].assert_eq(&shown(&ended));
    let error = ended.unwrap().output::<Area>().unwrap_err();
    assert_eq!(error.to_string(), "missing output: the model returned no valid output");
}

#[tokio::test]
async fn output_is_not_repaired_beyond_the_step_limit() {
    let agent = agent(&"assistant: area 3\n".repeat(9)).output::<Area>().max_steps(2).build().unwrap();
    let outcome = play(&agent, "which?", |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.steps()), (&Exit::InvalidOutput, 2));
}

#[tokio::test]
async fn output_by_tool() {
    let script = r#"
assistant: > c1 fetch(id=3)
assistant: > c2 submit_output(id="three", stalls=12)
assistant: > c3 submit_output(id=3, stalls=12)   > c4 fetch(id=4)
"#;
    let model = Asked::new(self::script(script));
    let agent = asking(OutputMode::Tool, "").model(model.clone()).build().unwrap();
    let ended = play(&agent, "which?", |run| run).await;
    expect![[r#"
        user:      which?
        assistant: > c1 fetch(id=3)
        tool c1:   area 3
        assistant: > c2 submit_output(id="three", stalls=12)
        tool c2!:  The output is not valid: expected integer, found string at $.id. Call `submit_output` with valid arguments.
        assistant: > c3 submit_output(id=3, stalls=12)   > c4 fetch(id=4)
        tool c3:   accepted
        tool c4:   area 4
        --
        exit: the model gave valid output
        steps: 3, calls: fetch 2
    "#]].assert_eq(&shown(&ended));
    assert_eq!(ended.unwrap().output::<Area>().unwrap(), AREA);
    let request = &model.requests()[0];
    assert_eq!(
        (request.tools.last().unwrap().name.as_str(), &request.tool_choice),
        ("submit_output", &ToolChoice::Auto)
    );
}

/// An agent without other tools still has this one.
#[tokio::test]
async fn output_by_tool_alone() {
    let model = script("assistant:\nassistant: > c1 submit_output(output=[1, 2])");
    let output = Output::schema("numbers", json!({"items": {"type": "integer"}, "type": "array"}));
    let agent = Agent::builder(model).output_with(output.mode(OutputMode::Tool)).build().unwrap();
    let ended = play(&agent, "which?", |run| run).await;
    expect![[r#"
        user:      which?
        assistant:
        assistant: > c1 submit_output(output=[1, 2])
        tool c1:   accepted
        --
        exit: the model gave valid output
        steps: 2
    "#]]
    .assert_eq(&shown(&ended));
    assert_eq!(ended.unwrap().output::<Vec<u64>>().unwrap(), [1, 2]);
}

#[tokio::test]
async fn output_by_tool_is_not_repaired_for_ever() {
    let script = "assistant: > c1 submit_output()\nassistant: > c2 submit_output()\nassistant: never";
    let agent = agent(script).output_with(Output::of::<Area>().mode(OutputMode::Tool).repairs(1));
    check(agent, "which?", expect![[r#"
        user:      which?
        assistant: > c1 submit_output()
        tool c1!:  The output is not valid: "id" is a required property at $; "stalls" is a required property at $. Call `submit_output` with valid arguments.
        assistant: > c2 submit_output()
        tool c2!:  The output is not valid: "id" is a required property at $; "stalls" is a required property at $. Call `submit_output` with valid arguments.
        --
        exit: the model returned no valid output
        steps: 2
    "#]]).await;
}

#[tokio::test]
async fn output_by_prompt() {
    let script = r#"assistant: "Here it is:\n```json\n{\"id\": 3, \"stalls\": 12}\n```""#;
    let model = Asked::new(self::script(script));
    let agent = Agent::builder(model.clone())
        .instructions("Be brief.")
        .output_with(
            Output::schema("area", json!({"required": ["id"], "type": "object"})).mode(OutputMode::Prompt),
        )
        .build()
        .unwrap();
    let outcome = play(&agent, "which?", |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.output::<Area>().unwrap()), (&Exit::Output, AREA));
    expect![[r#"
        --
        system:    "Be brief.\n\nWhen you have the final answer, reply with one JSON value and nothing else, valid against this JSON Schema:\n{\"required\":[\"id\"],\"type\":\"object\"}"
        user:      which?
    "#]].assert_eq(&model.shown());
    assert!(model.requests()[0].response_format.is_none());
}

/// Text that was cut is not output, even if it could be read.
#[tokio::test]
async fn output_that_was_cut() {
    use stepfold_agent_loop::state_core::chat::{FinishReason, Usage};

    let reply = r#"assistant: "{\"id\": 3, \"stalls\": 12}""#;
    let model = ending(script(""), reply, FinishReason::Length, Usage::default());
    let agent = Agent::builder(model).output::<Area>().build().unwrap();
    let outcome = play(&agent, "which?", |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.run().output()), (&Exit::Length, None));
}

/// The best that could be had at the limit is an output, too.
#[tokio::test]
async fn output_as_a_final_answer() {
    let script = r#"
assistant: > c1 fetch(id=3)
assistant: "{\"id\": 3, \"stalls\": 12}"
"#;
    let agent = asking(OutputMode::Schema, script).max_steps(1).final_answer().build().unwrap();
    let outcome = play(&agent, "which?", |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.output::<Area>().unwrap()), (&Exit::MaxSteps, AREA));
}

#[tokio::test]
async fn leaked_calls() {
    let script = r#"
assistant: "{\"name\": \"fetch\", \"arguments\": {\"id\": 3}}"
assistant: "```json\n[{\"name\": \"search\", \"arguments\": {\"q\": \"x\"}}, {\"name\": \"fetch\", \"arguments\": {\"id\": 4}}]\n```"
assistant: "I would call {\"name\": \"fetch\"}"
"#;
    check(
        agent(script).recover_leaked_calls(),
        "where?",
        expect![[r#"
        user:      where?
        assistant: > call-1 fetch(id=3)
        tool call-1: area 3
        assistant: > call-2 search(q="x")   > call-3 fetch(id=4)
        tool call-2: [3, 4]
        tool call-3: area 4
        assistant: I would call {"name": "fetch"}
        --
        exit: the model answered
        steps: 3, calls: fetch 2, search 1
    "#]],
    )
    .await;
}

/// Opt-in.
#[tokio::test]
async fn leaked_calls_stay_text() {
    let script = r#"assistant: "{\"name\": \"fetch\", \"arguments\": {\"id\": 3}}""#;
    check(
        agent(script),
        "where?",
        expect![[r#"
        user:      where?
        assistant: {"name": "fetch", "arguments": {"id": 3}}
        --
        exit: the model answered
        steps: 1
    "#]],
    )
    .await;
}

/// A recovered call is a call like any other: it needs approval.
#[tokio::test]
async fn leaked_calls_need_approval() {
    use stepfold_agent_loop::tools::Approval;

    let script = r#"assistant: "{\"name\": \"fetch\", \"arguments\": {\"id\": 3}}""#;
    let agent = agent(script).recover_leaked_calls().approval(Approval::Always).build().unwrap();
    let paused = play(&agent, "where?", |run| run).await.unwrap();
    assert_eq!(paused.pending().len(), 1);
}
