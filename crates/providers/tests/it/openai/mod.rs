//! OpenAI's dialect against a server that breaks every rule.

mod faults;
mod replies;
mod requests;

use std::time::Duration;

use serde_json::Value;
use stepfold_providers::layer::Timeouts;
use stepfold_providers::openai::{OpenAi, OpenAiBuilder};
use stepfold_state_core::chat::{ChatModel, ChatRequest, Message, Transcript};

use crate::server::{Asked, Play, Server, check_any};

/// A key that must not be seen anywhere.
pub(crate) const KEY: &str = "sk-do-not-show-me-1234567890";

pub(crate) fn request() -> ChatRequest {
    ChatRequest::new(Transcript::new().with(Message::user("which area?")))
}

/// What is wrong with a request, by the rules of chat completions.
pub(crate) fn check(asked: &Asked) -> Result<(), String> {
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

pub(crate) fn builder(server: &Server) -> OpenAiBuilder {
    OpenAi::at(format!("{}/v1/", server.url), "some-model").key(KEY)
}

/// A model with limits that a test can wait for.
fn model(server: &Server) -> OpenAi {
    let limit = Some(Duration::from_millis(150));
    builder(server).timeouts(Timeouts { first_token: limit, idle: limit, total: None }).build().unwrap()
}

/// What a model makes of a response, which comes at once and byte by byte: the same both times.
async fn ask(play: Play, request: ChatRequest) -> String {
    let at_once = ask_in_pieces(&play, &request, usize::MAX).await;
    if play_is_small(&play) {
        let byte_by_byte = ask_in_pieces(&play, &request, 1).await;
        assert_eq!(at_once, byte_by_byte);
    }
    at_once
}

fn play_is_small(play: &Play) -> bool {
    format!("{play:?}").len() < 100_000
}

async fn ask_in_pieces(play: &Play, request: &ChatRequest, piece: usize) -> String {
    let server = Server::start([play.clone()], piece, check).await;
    let shown = show(model(&server).respond(request.clone()).into_reply().await);
    assert!(!shown.contains(KEY), "{shown}");
    shown
}

/// A reply, or the error and all that is known of it, as text.
pub(crate) fn show(
    reply: Result<stepfold_state_core::chat::Reply, stepfold_state_core::chat::ModelError>,
) -> String {
    match reply {
        Ok(reply) => {
            let usage = reply.usage;
            let said: Transcript = [reply.message].into_iter().collect();
            let used = match usage.total_tokens() {
                0 => String::new(),
                _ => format!(
                    " [{}({}) + {}({}) tokens]",
                    usage.input_tokens,
                    usage.cached_input_tokens,
                    usage.output_tokens,
                    usage.reasoning_tokens
                ),
            };
            format!("{}\n{}{used}\n", said.to_string().trim_end(), reply.finish_reason)
        }
        Err(error) => {
            let partial = error.partial().filter(|partial| !partial.message.parts().is_empty());
            let partial = partial.map_or_else(String::new, |partial| {
                let said: Transcript = [partial.message.clone()].into_iter().collect();
                format!("had come: {}\n", said.to_string().trim_end())
            });
            assert!(error.provider().is_some() && error.model().is_some(), "{error}");
            format!("{error}\n{partial}")
        }
    }
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
