//! Anthropic's dialect against a server that breaks every rule.

mod faults;
mod replies;
mod requests;

use serde_json::Value;
use stepfold_providers::anthropic::{Anthropic, AnthropicBuilder};
use stepfold_providers::layer::Timeout;
use stepfold_state_core::chat::{ChatModel, ChatRequest, Message, Transcript};

use crate::server::{Asked, Play, Server, all_equal, check_any, show};

/// A key that must not be seen anywhere.
const KEY: &str = "sk-ant-do-not-show-me-1234567890";

fn request() -> ChatRequest {
    ChatRequest::new(Transcript::new().with(Message::user("which area?")))
}

/// What is wrong with a request, by the rules of the Messages API.
fn check(asked: &Asked) -> Result<(), String> {
    check_any(asked)?;
    let has_headers = asked.header("x-api-key").as_deref() == Some(KEY)
        && asked.header("anthropic-version").as_deref() == Some("2023-06-01")
        && asked.header("authorization").is_none();
    if asked.path() != "/v1/messages" || !has_headers {
        return Err(format!("its head is {}", asked.head));
    }
    if !asked.body["max_tokens"].is_u64() {
        return Err("it has no max_tokens".to_owned());
    }
    let mut open: Vec<&Value> = Vec::new();
    let mut speaker = &Value::Null;
    for message in asked.body["messages"].as_array().ok_or("it has no messages")? {
        if &message["role"] == speaker {
            return Err(format!("{speaker} speaks twice"));
        }
        speaker = &message["role"];
        let blocks =
            message["content"].as_array().filter(|blocks| !blocks.is_empty()).ok_or("an empty message")?;
        for block in blocks {
            if block["type"] == "tool_result" {
                let place = open.iter().position(|id| **id == block["tool_use_id"]);
                open.remove(place.ok_or(format!("a result without its call: {block}"))?);
            } else if !open.is_empty() {
                return Err(format!("a call without its result: {open:?}"));
            }
            if block["type"] == "text" && block["text"] == "" {
                return Err("an empty text".to_owned());
            }
        }
        open.extend(blocks.iter().filter(|block| block["type"] == "tool_use").map(|block| &block["id"]));
    }
    if open.is_empty() { Ok(()) } else { Err(format!("a call without its result: {open:?}")) }
}

fn builder(server: &Server) -> AnthropicBuilder {
    Anthropic::new("claude", KEY).base_url(&server.url)
}

/// What a model makes of a response, which comes at once and byte by byte: the same both times.
async fn ask(play: Play, request: ChatRequest) -> String {
    let mut shown = Vec::new();
    for piece in play.pieces() {
        let server = Server::start([play.clone()], *piece, check).await;
        let limit = Some(play.limit());
        let timeout = Timeout::NONE.first_token(limit).idle(limit);
        let model = builder(&server).timeout(timeout).build().unwrap();
        shown.push(show(model.respond(request.clone()).into_reply().await, KEY));
    }
    all_equal(shown)
}

/// An event, whose name is the type of its data.
fn event(data: &str) -> String {
    let value: Value = serde_json::from_str(data).unwrap();
    format!("event: {}\ndata: {data}\n\n", value["type"].as_str().unwrap())
}

fn start() -> String {
    event(
        r#"{"type":"message_start","message":{"id":"msg_1","model":"claude-4","content":[],"stop_reason":null,"usage":{"input_tokens":3,"cache_read_input_tokens":8,"cache_creation_input_tokens":1,"output_tokens":1}}}"#,
    )
}

fn block(block: &str) -> String {
    event(&format!("{{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{block}}}"))
}

fn delta(delta: &str) -> String {
    event(&format!("{{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{delta}}}"))
}

fn text(text: &str) -> String {
    delta(&format!("{{\"type\":\"text_delta\",\"text\":\"{text}\"}}"))
}

fn json(json: &str) -> String {
    delta(&serde_json::json!({"type": "input_json_delta", "partial_json": json}).to_string())
}

fn end_block() -> String {
    event(r#"{"type":"content_block_stop","index":0}"#)
}

fn stop(reason: &str) -> String {
    event(&format!(
        "{{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"{reason}\"}},\"usage\":{{\"output_tokens\":7}}}}"
    ))
}

fn end() -> String {
    event(r#"{"type":"message_stop"}"#)
}

/// A reply of text, but for its end.
fn said() -> String {
    start() + &block(r#"{"type":"text","text":""}"#) + &text("area") + &text(" 3") + &end_block()
}
