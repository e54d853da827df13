//! An agent that another agent calls like any tool: one to look things up, one to talk.
//!
//! They share one key of the state; the inner conversation stays inside.
//!
//! `cargo run -p stepfold-examples --example agent_as_tool`
#![allow(clippy::unwrap_used, reason = "an example fails where it is wrong")]

use std::error::Error;

use serde_json::json;
use stepfold::prelude::*;
use stepfold::providers::Scripted;
use stepfold_examples::say;

/// Looks a word up.
#[tool(effect(Effect::Pure), writes(["sources"]))]
async fn look_up(word: String, state: StateWriter) -> Result<String, ToolError> {
    state.set("sources", json!([format!("dictionary: {word}")]))?;
    Ok(format!("{word}: to bend upon itself"))
}

fn schema() -> Result<Schema, Box<dyn Error>> {
    Ok(Schema::builder().key::<Vec<String>>("sources").build()?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let researcher = Agent::builder(Scripted::conversation(
        "assistant: > r1 look_up(word=\"fold\")\nassistant: To fold is to bend upon itself.",
    )?)
    .instructions("You look things up, and say what you found.")
    .schema(schema()?)
    .tool(look_up_tool())
    .build()?;

    let research =
        researcher.as_tool("research", "Finds out what is not known.").share(["sources"]).build()?;
    let writer = Agent::builder(Scripted::conversation(
        "assistant: > w1 research(task=\"what does `fold` mean?\")\nassistant: A fold bends upon itself.",
    )?)
    .schema(schema()?)
    .tools([research])
    .build()?;

    let outcome = writer.run("explain the word fold in a sentence").await?;
    say(outcome.transcript());
    assert_eq!(outcome.text(), "A fold bends upon itself.");
    // What the inner agent wrote to the shared key has come out; its messages have not.
    assert_eq!(outcome.state().get("sources").unwrap(), json!(["dictionary: fold"]));
    assert_eq!(outcome.transcript().len(), 4);
    Ok(())
}
