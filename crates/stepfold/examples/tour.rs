//! A tour of what is there: a run of an agent folded by hand, step by step, without a model.
//!
//! Run it with `cargo run --example tour -p stepfold`.
#![allow(clippy::print_stdout, reason = "an example talks to the person who runs it")]

use std::error::Error;

use serde_json::json;
use stepfold::state_core::chat::{Message, Role, ToolCall, ToolResult};
use stepfold::state_core::state::{Delta, Handler, Key, Schema, State, Template};

/// Areas found so far; a list, so writes are appended.
const AREAS: Key<Vec<i64>> = Key::new("areas");
/// How often was searched; a sum, so writes are added.
const SEARCHES: Key<u64> = Key::new("searches");

fn main() -> Result<(), Box<dyn Error>> {
    let schema = Schema::builder()
        .key(AREAS)
        .description("areas that were looked at")
        .key::<String>("user:name")
        .key(SEARCHES)
        .handler(Handler::sum())
        .default(0)
        .build()?;
    let mut state = State::with_values(&schema, json!({"user:name": "Ada"}))?;

    heading("The instructions, with values from the state");
    let instructions = Template::parse("You help {user:name}. Answer as {\"area\": 1}. {hint?}");
    println!("{}", instructions.render(&state)?);

    heading("A step: the model asks for two searches, and both answer");
    let start = state.clone();
    state.push_message(Message::user("which area has most stalls?"));
    let ask = |id: &str, query: &str| ToolCall::new(id, "search", json!({"q": query})).into();
    state.push_message(Message::from_parts(
        Role::Assistant,
        vec![ask("c1", "stalls"), ask("c2", "most stalls")],
    ));
    state.push_message(Message::tool(ToolResult::value("c1", "search", json!([3, 4]))));
    state.push_message(Message::tool(ToolResult::error("c2", "search", "timed out")));
    println!("{}", state.messages());

    heading("Its writes are data, checked where they are made");
    let mut delta = Delta::new();
    delta.push(schema.write(AREAS, vec![3, 4])?);
    delta.push(schema.write(SEARCHES, 2)?);
    println!("{}", serde_json::to_string_pretty(&delta)?);
    if let Err(refusal) = schema.write("searches", "many") {
        println!("refused: {refusal}");
    }

    heading("Folding them gives the next state; what changed can be told");
    state.apply(&delta)?;
    print!("{}", state.diff(&start));

    heading("A snapshot is still what it was, and all of it survives JSON");
    println!("searches then: {:?}, now: {:?}", start.get(SEARCHES)?, state.get(SEARCHES)?);
    let stored = serde_json::to_string(&state)?;
    assert_eq!(State::from_json(&schema, &stored)?, state);
    println!("{stored}");

    heading("An interrupted run is repaired before a model sees it");
    state.push_message(Message::from_parts(Role::Assistant, vec![ask("c3", "stalls by area")]));
    if let Err(faults) = state.messages().check() {
        println!("fault: {faults}");
    }
    let repaired = state.messages().repair();
    for repair in &repaired.repairs {
        println!("repair: {repair}");
    }
    repaired.transcript.check()?;
    Ok(())
}

fn heading(text: &str) {
    println!("\n== {text}");
}
