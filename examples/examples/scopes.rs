//! Keys of an app, a user, a session and one invocation: the programs of adk-rust's documentation (2.3).
//!
//! `cargo run -p stepfold-examples --example scopes`

use std::error::Error;

use serde_json::json;
use stepfold::prelude::*;
use stepfold::providers::Scripted;
use stepfold::session_scopes::{EventRange, KEY_PREFIX_USER, MemoryStore};
use stepfold::state_core::chat::ChatRequest;
use stepfold_examples::say;

/// Notes where the user is, and how often anybody was helped.
#[tool(writes(["user:city", "temp:draft", "topic", "app:helped"]))]
async fn note(city: String, state: StateWriter) -> Result<&'static str, ToolError> {
    state.set("temp:draft", json!("only this invocation sees this"))?;
    state.set("topic", json!("the weather"))?;
    state.set("user:city", json!(city))?;
    state.set("app:helped", json!(1))?;
    Ok("noted")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let schema = Schema::builder()
        .key::<String>("app:version")
        .key::<u64>("app:helped")
        .handler(Handler::sum())
        .key::<String>(format!("{KEY_PREFIX_USER}city"))
        .key::<String>("user:language")
        .key::<String>("topic")
        .key::<String>("temp:draft")
        .build()?;
    // Says back what it was instructed, after one call of the tool in each turn.
    let model = Scripted::from_fn(|request: &ChatRequest| {
        let is_noted = request.messages.last().is_some_and(|message| message.tool_result().is_some());
        let said = request.messages.first().map(|message| message.text().into_owned());
        if is_noted { said.unwrap_or_default() } else { "> c1 note(city=\"Turin\")".to_owned() }
    });
    let agent = Agent::builder(model)
        .instructions("Answer in {user:language} (v{app:version}). City: {user:city?}. Topic: {topic?}.")
        .schema(schema)
        .tool(note_tool())
        .build()?;
    let runner = Runner::builder(agent, MemoryStore::new()).app("my_app")?.build();

    let values = json!({"app:version": "1.0.0", "user:language": "Italian"});
    let first = runner.create("alice", "s1", values).await?;
    first.run("Where was I?").await?;

    // The same user in another session: it has the app's and the user's keys, not those of the first session.
    let second = runner.session("alice", "s2").await?;
    let outcome = second.run("And now?").await?;
    say(outcome.text());
    assert_eq!(outcome.text(), "Answer in Italian (v1.0.0). City: Turin. Topic: .");

    // Another user shares the app's keys only.
    let other = runner.session("bob", "s1").await?.read(EventRange::None).await?;
    say(other.to_json());
    assert_eq!(other.to_json(), json!({"app:helped": 2, "app:version": "1.0.0"}));

    // What began with `temp:` was never stored.
    let stored = first.read(EventRange::All).await?;
    assert!(stored.get("temp:draft").is_none());
    assert_eq!(stored.to_json()["topic"], "the weather");
    Ok(())
}
