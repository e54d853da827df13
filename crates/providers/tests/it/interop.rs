//! Peers that others wrote. `cargo xtask interop` installs them and says where they are; without it these
//! tests say that they are skipped.
//!
//! - aimock, which plays OpenAI (both APIs), Anthropic and Gemini by their published forms, faults included;
//! - the server of llama.cpp with a real model, as small as they come.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};
use stepfold_providers::anthropic::Anthropic;
use stepfold_providers::gemini::Gemini;
use stepfold_providers::layer::{ChatModelExt, Retry};
use stepfold_providers::openai::{OpenAi, OpenAiResponses, Preset};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ModelErrorKind, ModelParams, ResponseFormat,
    ToolResult, ToolSpec, Transcript,
};

use crate::installed::installed;

/// A program that is stopped at the end.
struct Peer(Child);

impl Peer {
    fn start(command: &mut Command) -> Self {
        Peer(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A retry that waits for a peer to get ready.
fn patient() -> Retry {
    let (min, max) = (Duration::from_millis(20), Duration::from_millis(100));
    Retry::attempts(1_000).pauses(min, max).max_total(Duration::from_secs(60))
}

fn request(text: &str) -> ChatRequest {
    ChatRequest::new(Transcript::new().with(Message::user(text)))
}

#[tokio::test]
async fn aimock_speaks_all_dialects() {
    let Some(program) = installed("STEPFOLD_INTEROP_AIMOCK") else {
        return;
    };
    let fixtures = std::env::temp_dir().join(format!("stepfold-aimock-{}.json", std::process::id()));
    std::fs::write(&fixtures, fixtures_json().to_string()).unwrap();
    let port = free_port();
    let _peer =
        Peer::start(Command::new(program).args(["--strict", "-p", &port.to_string(), "-f"]).arg(&fixtures));
    let url = format!("http://127.0.0.1:{port}");
    let openai = OpenAi::preset(&Preset::OPENAI, "gpt-4.1")
        .base_url(format!("{url}/v1"))
        .key("k-1234")
        .build()
        .unwrap();
    let anthropic = Anthropic::new("claude-sonnet-4-5", "k-1234").base_url(&url).build().unwrap();
    // Ready once it answers.
    let hello = openai.clone().layer(patient()).respond(request("hello")).into_reply().await.unwrap();
    assert_eq!(hello.message.text(), "Hello there, how are you?");
    speaks(&openai).await;
    speaks(&anthropic).await;
    let responses = OpenAiResponses::at(format!("{url}/v1"), "gpt-5.4").key("k-1234").build().unwrap();
    speaks(&responses).await;
    let gemini = Gemini::new("gemini-3-flash", "k-1234").base_url(format!("{url}/v1beta")).build().unwrap();
    speaks(&gemini).await;
    std::fs::remove_file(fixtures).unwrap();
}

/// A reply that is cut. Some dialects send half a dozen events before its first letter.
const CUT: &str = "this reply is cut long before its end, which is farther away than one would think";

fn fixtures_json() -> Value {
    json!({"fixtures": [
        {"match": {"toolCallId": "call_a"}, "response": {"content": "area 3"}},
        {"match": {"toolCallId": "call_b"}, "response": {"content": "area 3"}},
        {"match": {"userMessage": "which area?"}, "response": {"toolCalls": [
            {"id": "call_a", "name": "search", "arguments": {"q": "stalls"}},
            {"id": "call_b", "name": "fetch", "arguments": {"id": 7}},
        ]}},
        {"match": {"userMessage": "limited"},
            "response": {"error": {"message": "Rate limited", "type": "rate_limit_error"}, "status": 429}},
        {"match": {"userMessage": "broken"},
            "response": {"error": {"message": "Boom", "type": "server_error"}, "status": 500}},
        {"match": {"userMessage": "cut"},
            "response": {"content": CUT}, "chunkSize": 5, "latency": 20, "truncateAfterChunks": 8},
        {"match": {"userMessage": "hello"}, "response": {"content": "Hello there, how are you?"}},
    ]})
}

/// A turn with tools, and each of the faults.
async fn speaks(model: &impl ChatModel) {
    let tools = ["search", "fetch"].map(|name| ToolSpec::new(name, "A tool.", json!({"type": "object"})));
    let mut messages = Transcript::new().with(Message::system("be kind")).with(Message::user("which area?"));
    let asked = ChatRequest::new(messages.clone()).with_tools(tools.clone());
    let reply = model.respond(asked).into_reply().await.unwrap();
    assert_eq!(reply.finish_reason, FinishReason::ToolCalls);
    // Its Gemini names neither.
    assert!(model.id().starts_with("gemini") || (reply.id.is_some() && reply.model.is_some()));
    let calls: Vec<_> = reply.message.tool_calls().cloned().collect();
    assert_eq!(calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>(), ["search", "fetch"]);
    assert_eq!(calls[0].arguments.as_object().unwrap()["q"], "stalls");
    assert_eq!(calls[1].arguments.as_object().unwrap()["id"], 7);
    messages.push(reply.message);
    for call in calls {
        messages.push(Message::tool(ToolResult::value(call.id, call.name, json!([3]))));
    }
    let asked = ChatRequest::new(messages).with_tools(tools);
    let reply = model.respond(asked).into_reply().await.unwrap();
    assert_eq!((reply.message.text().as_ref(), reply.finish_reason), ("area 3", FinishReason::Stop));

    let kind = async |text: &str| model.respond(request(text)).into_reply().await.unwrap_err();
    let limited = kind("limited").await;
    let wait = Some(Duration::from_secs(1));
    assert_eq!((limited.kind(), limited.retry_after()), (&ModelErrorKind::RateLimited, wait));
    assert_eq!(kind("broken").await.kind(), &ModelErrorKind::Transient);
    assert_eq!(kind("nobody expects this").await.kind(), &ModelErrorKind::Overloaded);
    let cut = kind("cut").await;
    assert_eq!(cut.kind(), &ModelErrorKind::Truncated, "{cut}");
    let partial = cut.partial().unwrap().message.text().into_owned();
    assert!(CUT.starts_with(&partial) && !partial.is_empty(), "{partial}");
}

#[tokio::test]
async fn llama_cpp_with_a_real_model() {
    let Some(python) = installed("STEPFOLD_INTEROP_PYTHON") else {
        return;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/interop/llama_server.py");
    let port = free_port();
    let _peer = Peer::start(Command::new(python).arg(script).arg(port.to_string()));
    let model = OpenAi::preset(&Preset::LLAMA_CPP, "smollm2")
        .base_url(format!("http://127.0.0.1:{port}/v1"))
        .build()
        .unwrap();
    let params =
        |tokens| ModelParams::default().with_max_output_tokens(tokens).with_seed(7).with_temperature(0.0);

    // First the server is unreachable, then it loads, then it answers; each has its kind.
    let mut kinds = Vec::new();
    let hello = loop {
        match model.respond(request("Say hello.").with_params(params(8))).into_reply().await {
            Ok(reply) => break reply,
            Err(error) => kinds.push(error.kind().clone()),
        }
        assert!(kinds.len() < 100_000, "it never gets ready");
        tokio::task::yield_now().await;
    };
    assert!(kinds.contains(&ModelErrorKind::Overloaded), "nobody saw it load: {}", kinds.len());
    assert!(kinds.iter().all(|kind| [ModelErrorKind::Overloaded, ModelErrorKind::Transient].contains(kind)));

    // It was cut by the limit, says so, and says what it cost.
    assert_eq!((&hello.finish_reason, hello.usage.output_tokens), (&FinishReason::Length, 8));
    assert!(hello.usage.input_tokens > 8 && !hello.message.text().is_empty());

    // It streams: more than one piece.
    let asked = request("Count to ten.").with_params(params(16));
    let chunks: Vec<_> = model.respond(asked).map(Result::unwrap).collect().await;
    assert!(chunks.iter().filter(|chunk| matches!(chunk, Chunk::Text(_))).count() > 3);

    // The same seed says the same; the second time its prompt is in the cache.
    let again =
        async || model.respond(request("Say hello.").with_params(params(8))).into_reply().await.unwrap();
    assert_eq!(again().await.message, again().await.message);

    // Held to a schema, even this model speaks JSON.
    let schema = json!({
        "additionalProperties": false,
        "properties": {"area": {"maximum": 9, "minimum": 1, "type": "integer"}},
        "required": ["area"],
        "type": "object",
    });
    let format = ResponseFormat::JsonSchema { name: "area".to_owned(), schema, strict: true };
    let asked = request("Which area?").with_params(params(32)).with_response_format(format);
    let reply = model.respond(asked).into_reply().await.unwrap();
    let area: Value = serde_json::from_str(&reply.message.text()).unwrap();
    assert!((1..=9).contains(&area["area"].as_u64().unwrap()), "{area}");

    // Too much for its window, with the numbers.
    let long = request(&"stalls ".repeat(4_000)).with_params(params(8));
    let error = model.respond(long).into_reply().await.unwrap_err();
    assert!(
        matches!(error.kind(), ModelErrorKind::TooLong { limit: Some(limit), used: Some(used) } if used > limit),
        "{error}"
    );
}
