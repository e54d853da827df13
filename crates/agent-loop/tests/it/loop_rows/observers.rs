//! Watching a run, and talking to it meanwhile.

use expect_test::expect;
use futures_util::StreamExt;
use serde_json::json;
use stepfold_agent_loop::state_core::chat::{Message, ModelParams, Role};
use stepfold_agent_loop::tools::{Tool, ToolContext, ToolError};
use stepfold_agent_loop::{Agent, Exit, HookAction, Observer, ObserverError, RunEvent, Traces};
use tokio::sync::mpsc;

use super::kit::*;
use super::spans::Spans;

const SCRIPT: &str =
    "assistant: ~\"hm\"   \"I look.\"   > c1 look(q=\"secret\")   > c2 fails()\nassistant: area 3";

/// An agent whose tool reports progress.
fn looking() -> Agent {
    let look = Tool::new("look", "Looks.", |context: ToolContext| async move {
        context.report(json!("halfway"));
        // Long after the other call, however slowly the events are read.
        for _ in 0..32 {
            tokio::task::yield_now().await;
        }
        Ok::<_, ToolError>("found")
    });
    let look = look.parameters(json!({"additionalProperties": true, "type": "object"})).build().unwrap();
    let fails = tool("fails", |_| Err(ToolError::permanent("no such area"))).build().unwrap();
    Agent::builder(script(SCRIPT)).name("analyst").tools([look, fails]).build().unwrap()
}

/// An event in a line.
fn line(event: &RunEvent) -> String {
    match event {
        RunEvent::Asking { step, model, request } => {
            format!("asking {model}, step {step}, {} messages", request.messages.len())
        }
        RunEvent::Committed(event) => format!("committed {}", event.name()),
        event => format!("{event:?}"),
    }
}

/// Every event, in order, before anything else happens.
#[tokio::test]
async fn observer_vector() {
    let mut seen = Vec::new();
    play(&looking(), "where?", |run| run.observe(&mut seen)).await.unwrap();
    let lines: Vec<String> = seen.iter().map(line).collect();
    expect![[r#"
        committed began
        asking test-kit/script, step 1, 1 messages
        Reasoning("h")
        Reasoning("m")
        Text("I loo")
        Text("k.")
        ToolCallDelta { index: 0, call_id: Some("c1"), tool: Some("look"), arguments: "{\"q\":\"" }
        ToolCallDelta { index: 0, call_id: None, tool: None, arguments: "secret\"}" }
        ToolCallDelta { index: 1, call_id: Some("c2"), tool: Some("fails"), arguments: "{" }
        ToolCallDelta { index: 1, call_id: None, tool: None, arguments: "}" }
        committed replied
        ToolStarted { call_id: "c1", tool: "look", arguments: "{\"q\":\"secret\"}" }
        ToolStarted { call_id: "c2", tool: "fails", arguments: "{}" }
        committed started
        ToolProgress { call_id: "c1", report: String("halfway") }
        ToolFinished { call_id: "c2", tool: "fails", status: Failed(Error), text: "no such area" }
        committed answered
        ToolFinished { call_id: "c1", tool: "look", status: Succeeded, text: "found" }
        committed answered
        asking test-kit/script, step 2, 4 messages
        Text("a")
        Text("rea 3")
        committed replied
        Ended(Text)
    "#]]
    .assert_eq(&(lines.join("\n") + "\n"));
}

/// The run waits while the channel is full, and continues when there is no listener any more.
#[tokio::test(start_paused = true)]
async fn observer_channel() {
    let agent = looking();
    let mut expected = Vec::new();
    play(&agent, "where?", |run| run.observe(&mut expected)).await.unwrap();
    let (sender, mut receiver) = mpsc::channel(1);
    let run = play(&agent, "where?", |run| run.observe(sender));
    let listen = async {
        let mut seen = Vec::new();
        while let Some(event) = receiver.recv().await {
            seen.push(event);
        }
        seen
    };
    let (ended, seen) = tokio::join!(run, listen);
    assert_eq!((ended.unwrap().exit(), seen), (&Exit::Text, expected));
}

#[tokio::test(start_paused = true)]
async fn observer_channel_with_a_dropped_receiver() {
    let (sender, mut receiver) = mpsc::channel(1);
    let agent = looking();
    let run = play(&agent, "where?", |run| run.observe(sender));
    let leaves = async move {
        receiver.recv().await.unwrap();
    };
    let (ended, ()) = tokio::join!(run, leaves);
    assert_eq!(ended.unwrap().exit(), &Exit::Text);
}

/// Each in its turn; the first that fails is the last that is told.
#[tokio::test]
async fn observer_tuple() {
    struct Refuses;
    impl Observer for Refuses {
        async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
            match event {
                RunEvent::ToolStarted { .. } => Err("enough".into()),
                _ => Ok(()),
            }
        }
    }
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let ended = play(&looking(), "where?", |run| run.observe((&mut first, Refuses, (), &mut last))).await;
    assert!(chain(&ended.unwrap_err()).ends_with("enough"));
    let started = |event: &&RunEvent| matches!(event, RunEvent::ToolStarted { .. });
    assert_eq!((first.iter().filter(started).count(), last.iter().filter(started).count()), (1, 0));
    // Both hear how it ended.
    assert_eq!(
        (first.last(), last.last()),
        (Some(&RunEvent::Ended(Exit::Failed)), Some(&RunEvent::Ended(Exit::Failed)))
    );
}

/// One path: the same events, the same end.
#[tokio::test(start_paused = true)]
async fn streaming_equals_not_streaming() {
    let agent = looking();
    let mut expected = Vec::new();
    let whole = agent.run("where?").id("run").observe(&mut expected).await.unwrap();
    let mut stream = agent.run("where?").id("run").stream();
    let mut seen = Vec::new();
    while let Some(event) = stream.next().await {
        seen.push(event);
    }
    let streamed = stream.outcome().await.unwrap();
    assert_eq!(seen, expected);
    assert_eq!(streamed.run().to_json(), whole.run().to_json());
    // Half read, and then no more.
    let mut stream = agent.run("where?").id("run").stream();
    stream.next().await.unwrap();
    assert_eq!(stream.outcome().await.unwrap().run().to_json(), whole.run().to_json());
}

#[tokio::test]
async fn streaming_of_an_error() {
    let agent = agent("").build().unwrap();
    let mut stream = agent.run("where?").stream();
    let mut last = None;
    while let Some(event) = stream.next().await {
        last = Some(event);
    }
    assert_eq!(last, Some(RunEvent::Ended(Exit::Failed)));
    assert!(stream.outcome().await.unwrap_err().model_error().is_some());
}

/// What the user says meanwhile joins the run before the next request.
#[tokio::test]
async fn steering() {
    let (sender, inbox) = mpsc::channel(4);
    let say = sender.clone();
    let fetch = tool("fetch", move |_| {
        for text in ["area 7, I mean", "and hurry"] {
            say.try_send(Message::user(text)).unwrap();
        }
        Ok(json!("an area"))
    });
    let agent = Agent::builder(script("assistant: > c1 fetch(id=3)\nassistant: area 7"))
        .tools([fetch.build().unwrap()])
        .build()
        .unwrap();
    let mut seen = Vec::new();
    let ended = play(&agent, "where?", |run| run.inbox(inbox).observe(&mut seen)).await;
    expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=3)
        tool c1:   an area
        user:      area 7, I mean
        user:      and hurry
        assistant: area 7
        --
        exit: the model answered
        steps: 2, calls: fetch 1
    "#]]
    .assert_eq(&shown(&ended));
    assert_eq!(committed(&seen), ["began", "replied", "started", "answered", "steered", "replied"]);
}

/// What is left when the run ends stays in the channel.
#[tokio::test]
async fn steering_that_comes_too_late() {
    let (sender, mut inbox) = mpsc::channel(4);
    let agent = agent("assistant: area 3")
        .on_exit(move |_| {
            sender.try_send(Message::user("one more thing")).unwrap();
            async { Ok(HookAction::proceed()) }
        })
        .build()
        .unwrap();
    let (forward, taken) = mpsc::channel(1);
    play(&agent, "where?", |run| run.inbox(taken)).await.unwrap();
    drop(forward);
    assert_eq!(inbox.try_recv().unwrap().text(), "one more thing");
}

/// Hooks before the model see it, once for each request.
#[tokio::test]
async fn steering_and_hooks() {
    let (sender, inbox) = mpsc::channel(4);
    sender.try_send(Message::user("area 7, I mean")).unwrap();
    let notes = Notes::default();
    let seen = notes.clone();
    let agent = agent("assistant: area 7")
        .before_model(move |context: stepfold_agent_loop::HookContext| {
            seen.add(context.state.messages().last().unwrap().text());
            async { Ok(HookAction::proceed()) }
        })
        .build()
        .unwrap();
    play(&agent, "where?", |run| run.inbox(inbox)).await.unwrap();
    assert_eq!(notes.text(), "area 7, I mean\n");
}

/// Whatever is sent, the conversation stays well-formed.
#[tokio::test]
async fn steering_with_a_broken_message() {
    let (sender, inbox) = mpsc::channel(4);
    sender.try_send(message("assistant: > c1 fetch(id=1)")).unwrap();
    sender.try_send(Message::new(Role::User)).unwrap();
    let agent = Agent::builder(script("assistant: area 7").after(1)).tools(tools()).build().unwrap();
    let outcome = play(&agent, "where?", |run| run.inbox(inbox)).await.unwrap();
    assert_eq!(outcome.exit(), &Exit::Text);
}

async fn traced(agent: &Agent, traces: Traces) -> String {
    Spans::of(agent.run("where?").id("run-1").observe(traces)).await
}

/// Named as the OpenTelemetry conventions name them; no content of messages.
#[tokio::test]
async fn observer_traces() {
    let params = ModelParams::default().with_temperature(0.5);
    let agent = looking().to_builder().params(params).build().unwrap();
    let text = traced(&agent, Traces::new("analyst")).await;
    expect![[r#"
        1 invoke_agent
          gen_ai.agent.name = analyst
          gen_ai.conversation.id = run-1
          gen_ai.operation.name = invoke_agent
          otel.name = invoke_agent analyst
          stepfold.exit = the model answered
        2 chat in 1
          gen_ai.operation.name = chat
          gen_ai.request.model = test-kit/script
          gen_ai.request.temperature = 0.5
          gen_ai.response.finish_reasons = tool_calls
          gen_ai.usage.input_tokens = 0
          gen_ai.usage.output_tokens = 0
          otel.kind = client
          otel.name = chat test-kit/script
        3 execute_tool in 1
          gen_ai.operation.name = execute_tool
          gen_ai.tool.call.id = c1
          gen_ai.tool.name = look
          otel.name = execute_tool look
        4 execute_tool in 1
          error.type = Failed(Error)
          gen_ai.operation.name = execute_tool
          gen_ai.tool.call.id = c2
          gen_ai.tool.name = fails
          otel.name = execute_tool fails
          otel.status_code = ERROR
        5 chat in 1
          gen_ai.operation.name = chat
          gen_ai.request.model = test-kit/script
          gen_ai.request.temperature = 0.5
          gen_ai.response.finish_reasons = stop
          gen_ai.usage.input_tokens = 0
          gen_ai.usage.output_tokens = 0
          otel.kind = client
          otel.name = chat test-kit/script
    "#]]
    .assert_eq(&text);
    for secret in ["where?", "secret", "found", "area"] {
        assert!(!text.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn observer_traces_with_content() {
    let text = traced(&looking(), Traces::new("analyst").with_content()).await;
    let content: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| line.contains("messages") || line.contains("tool.call"))
        .collect();
    expect![[r#"
          gen_ai.input.messages = [{"role":"user","parts":[{"text":"where?"}]}]
          gen_ai.input.messages = [{"role":"user","parts":[{"text":"where?"}]}]
          gen_ai.output.messages = [{"role":"assistant","parts":[{"reasoning":"hm"},{"text":"I look."},{"tool_call":{"id":"c1","name":"look","arguments":{"q":"secret"}}},{"tool_call":{"id":"c2","name":"fails","arguments":{}}}]}]
          gen_ai.tool.call.arguments = {"q":"secret"}
          gen_ai.tool.call.id = c1
          gen_ai.tool.call.result = found
          gen_ai.tool.call.arguments = {}
          gen_ai.tool.call.id = c2
          gen_ai.tool.call.result = no such area
          gen_ai.input.messages = [{"role":"user","parts":[{"text":"where?"}]},{"role":"assistant","parts":[{"reasoning":"hm"},{"text":"I look."},{"tool_call":{"id":"c1","name":"look","arguments":{"q":"secret"}}},{"tool_call":{"id":"c2","name":"fails","arguments":{}}}]},{"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"look","value":"found"}}]},{"role":"tool","parts":[{"tool_result":{"call_id":"c2","name":"fails","error":"no such area"}}]}]
          gen_ai.output.messages = [{"role":"assistant","parts":[{"text":"area 3"}]}]"#]].assert_eq(&content.join("\n"));
}

/// What a provider ran itself is told when its reply tells of it, and is a span within the model's.
#[tokio::test]
async fn observer_of_server_tools() {
    let agent = agent(
        r#"assistant: @{"anthropic": {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "stalls"}}}   @{"anthropic": {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}}   @{"openai": {"type": "code_interpreter_call", "id": "ci_1", "code": "1 + 1"}}   @{"gemini": {"executableCode": {"code": "2 + 2"}}}   "area 3""#,
    );
    let agent = agent.build().unwrap();
    let mut seen = Vec::new();
    play(&agent, "where?", |run| run.observe(&mut seen)).await.unwrap();
    let lines: Vec<String> = seen.iter().map(line).collect();
    expect![[r#"
        committed began
        asking test-kit/script, step 1, 1 messages
        ServerToolUsed { call_id: Some("s1"), tool: "web_search", arguments: "{\"query\":\"stalls\"}" }
        ServerToolUsed { call_id: Some("ci_1"), tool: "code_interpreter", arguments: "\"1 + 1\"" }
        ServerToolUsed { call_id: None, tool: "code_execution", arguments: "{\"code\":\"2 + 2\"}" }
        Text("a")
        Text("r")
        Text("ea 3")
        committed replied
        Ended(Text)
    "#]]
    .assert_eq(&(lines.join("\n") + "\n"));
    let text = traced(&agent, Traces::new("analyst")).await;
    let tools: Vec<&str> = text.lines().filter(|line| line.contains("tool")).map(str::trim).collect();
    expect![[r#"
        3 execute_tool in 2
        gen_ai.operation.name = execute_tool
        gen_ai.tool.call.id = s1
        gen_ai.tool.name = web_search
        gen_ai.tool.type = extension
        otel.name = execute_tool web_search
        4 execute_tool in 2
        gen_ai.operation.name = execute_tool
        gen_ai.tool.call.id = ci_1
        gen_ai.tool.name = code_interpreter
        gen_ai.tool.type = extension
        otel.name = execute_tool code_interpreter
        5 execute_tool in 2
        gen_ai.operation.name = execute_tool
        gen_ai.tool.name = code_execution
        gen_ai.tool.type = extension
        otel.name = execute_tool code_execution"#]]
    .assert_eq(&tools.join("\n"));
    let text = traced(&agent, Traces::new("analyst").with_content()).await;
    assert!(text.contains(r#"gen_ai.tool.call.arguments = {"query":"stalls"}"#), "{text}");
}

#[tokio::test]
async fn observer_traces_of_an_error() {
    let agent = agent("").build().unwrap();
    expect![[r#"
        1 invoke_agent
          error.type = run_error
          gen_ai.agent.name = analyst
          gen_ai.conversation.id = run-1
          gen_ai.operation.name = invoke_agent
          otel.name = invoke_agent analyst
          otel.status_code = ERROR
          stepfold.exit = the run failed
        2 chat in 1
          error.type = model_error
          gen_ai.operation.name = chat
          gen_ai.request.model = test-kit/script
          otel.kind = client
          otel.name = chat test-kit/script
          otel.status_code = ERROR
    "#]]
    .assert_eq(&traced(&agent, Traces::new("analyst")).await);
}
