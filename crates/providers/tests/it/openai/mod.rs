//! OpenAI's dialect against a server that breaks every rule.

mod faults;
mod replies;
mod requests;

use serde_json::Value;
use stepfold_providers::layer::Timeout;
use stepfold_providers::openai::{OpenAi, OpenAiBuilder};
use stepfold_state_core::chat::{ChatModel, ChatRequest, Message, Transcript};

use crate::server::{Asked, Play, Server, all_equal, check_any, show};

/// A key that must not be seen anywhere.
const KEY: &str = "sk-do-not-show-me-1234567890";

fn request() -> ChatRequest {
    ChatRequest::new(Transcript::new().with(Message::user("which area?")))
}

/// What is wrong with a request, by the rules of chat completions.
fn check(asked: &Asked) -> Result<(), String> {
    check_any(asked)?;
    if asked.path() != "/v1/chat/completions" {
        return Err(format!("its path is {}", asked.path()));
    }
    if asked.header("authorization") != Some(format!("Bearer {KEY}")) {
        return Err("it has no key".to_owned());
    }
    let messages = asked.body["messages"].as_array().ok_or("it has no messages")?;
    let mut open: Vec<&Value> = Vec::new();
    for message in messages {
        if message["role"] == "tool" {
            let place = open.iter().position(|id| **id == message["tool_call_id"]);
            open.remove(place.ok_or(format!("a result without its call: {message}"))?);
            continue;
        }
        if !open.is_empty() {
            return Err(format!("a call without its result: {open:?}"));
        }
        open = message["tool_calls"].as_array().into_iter().flatten().map(|call| &call["id"]).collect();
        if !matches!(message["content"], Value::String(_) | Value::Array(_)) && open.is_empty() {
            return Err(format!("a message without content: {message}"));
        }
    }
    if open.is_empty() { Ok(()) } else { Err(format!("a call without its result: {open:?}")) }
}

fn builder(server: &Server) -> OpenAiBuilder {
    OpenAi::at(format!("{}/v1/", server.url), "some-model").key(KEY)
}

fn model(server: &Server) -> OpenAi {
    builder(server).build().unwrap()
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

/// An event with one choice.
fn delta(delta: &str) -> String {
    format!(
        "data: {{\"id\":\"r1\",\"model\":\"some-model-2\",\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n"
    )
}

/// An event with a finish reason.
fn finish(reason: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{reason}\"}}]}}\n\n")
}

const DONE: &str = "data: [DONE]\n\n";
