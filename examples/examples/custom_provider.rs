//! A model of your own: anything that answers a conversation with a stream of chunks.
//!
//! This one is a set of rules. One that talks to a server does the same between the request and the chunks;
//! what a caller may rely on is written at `ChatModel`.
//!
//! `cargo run -p stepfold-examples --example custom_provider`
#![allow(clippy::unwrap_used, reason = "an example fails where it is wrong")]

use std::error::Error;

use serde_json::json;
use stepfold::prelude::*;
use stepfold::state_core::chat::{
    ChatRequest, Chunk, FinishReason, ModelError, ModelErrorKind, ReplyStream, ToolCallChunk, Usage,
};
use stepfold_examples::say;

/// Calls the first tool that it is offered with the numbers of the question, and says the result.
struct Rules;

impl ChatModel for Rules {
    fn id(&self) -> &'static str {
        "house/rules-1"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let Some(last) = request.messages.last() else {
            // Callers look at the kind, people at the words.
            let error = ModelError::new(ModelErrorKind::InvalidRequest, "the conversation is empty");
            return ReplyStream::failed(error.with_provider("house"));
        };
        let text = last.text();
        let numbers: Vec<u64> =
            text.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
        let (chunks, reason) = match (last.tool_result(), request.tools.first()) {
            (Some(result), _) => (said(&format!("It is {}.", result.text())), FinishReason::Stop),
            (None, Some(tool)) => (called(&tool.name, &numbers), FinishReason::ToolCalls),
            (None, None) => (said("I have no tool for this."), FinishReason::Stop),
        };
        let usage = Usage::new(7, 3);
        // A reply is complete only if it says so; without the last chunk it counts as truncated.
        ReplyStream::from_chunks(chunks.into_iter().chain([Chunk::Usage(usage), Chunk::Finished(reason)]))
    }
}

/// Text comes in pieces, whatever is ready.
fn said(text: &str) -> Vec<Chunk> {
    text.split_inclusive(' ').map(|word| Chunk::Text(word.to_owned())).collect()
}

fn called(tool: &str, numbers: &[u64]) -> Vec<Chunk> {
    let arguments = json!({"numbers": numbers}).to_string();
    vec![Chunk::ToolCall(ToolCallChunk::new(0, arguments).with_id("call-1").with_name(tool))]
}

/// Adds numbers.
#[tool(effect(Effect::Pure))]
fn add(numbers: Vec<u64>) -> u64 {
    numbers.iter().sum()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let agent = Agent::builder(Rules).tool(add_tool()).build()?;
    let outcome = agent.run("what is 15 + 27?").await?;
    say(outcome.transcript());
    assert_eq!(outcome.text(), "It is 42.");
    assert_eq!((outcome.steps(), outcome.usage().output_tokens), (2, 6));

    let error = Rules.respond(ChatRequest::new(Transcript::new())).into_reply().await.unwrap_err();
    assert_eq!(error.kind(), &ModelErrorKind::InvalidRequest);
    say(error);
    Ok(())
}
