//! Tools that share state, without a model seeing it: the programs of Haystack's documentation (2.31).
//!
//! `cargo run -p stepfold-examples --example tools_share_state`
#![allow(clippy::unwrap_used, reason = "an example fails where it is wrong")]

use std::error::Error;

use serde_json::{Value, json};
use stepfold::prelude::*;
use stepfold::providers::Scripted;
use stepfold::state_core::state::StateError;
use stepfold_examples::say;

/// Searches documents.
#[tool(
    effect(Effect::Pure),
    output_to_state("documents", "documents"),
    output_to_state("result_count", "count"),
    output_to_state("last_query", "query")
)]
async fn retrieve(query: String, #[from_state("user_name")] user: String) -> Result<Value, ToolError> {
    let documents = json!([
        {"title": "Doc 1", "content": format!("{query} for {user}")},
        {"title": "Doc 2", "content": format!("More about {query}")},
    ]);
    Ok(json!({"documents": documents, "count": 2, "query": query}))
}

/// Keeps the first of the documents that were found.
#[tool(effect(Effect::Pure), output_to_state("final_docs", "kept"))]
fn keep(max_results: usize, #[from_state("documents")] documents: Vec<Value>) -> Value {
    json!({"kept": documents.into_iter().take(max_results).collect::<Vec<_>>()})
}

/// The factorial of a small number.
#[tool(effect(Effect::Pure), output_to_state("results", ResultSource::Whole))]
fn factorial(n: u64) -> Result<Vec<u64>, ToolError> {
    let result = (1..=n).try_fold(1_u64, u64::checked_mul);
    Ok(vec![result.ok_or_else(|| ToolError::permanent("this is too large"))?])
}

/// Multiplies two numbers.
#[tool(effect(Effect::Pure), output_to_state("results", ResultSource::Whole))]
fn multiply(a: u64, b: u64) -> Result<Vec<u64>, ToolError> {
    Ok(vec![a.checked_mul(b).ok_or_else(|| ToolError::permanent("this is too large"))?])
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    a_chain_of_tools().await?;
    two_steps().await?;
    handlers()?;
    Ok(())
}

/// `keep` reads what `retrieve` writes, so it waits for it, though the model called both at once.
async fn a_chain_of_tools() -> Result<(), Box<dyn Error>> {
    let model = Scripted::conversation(
        "assistant: > c1 retrieve(query=\"Python\")   > c2 keep(max_results=1)\nassistant: One document is left.",
    )?;
    let schema = Schema::builder()
        .key::<String>("user_name")
        .key::<Vec<Value>>("documents")
        .key::<u64>("result_count")
        .key::<String>("last_query")
        .key::<Vec<Value>>("final_docs")
        .build()?;
    let agent = Agent::builder(model).schema(schema).tools([retrieve_tool(), keep_tool()]).build()?;
    let input =
        Input::from("Find and process documents about Python").with_values(json!({"user_name": "Alice"}));
    let outcome = agent.run(input).await?;
    say(outcome.transcript());
    assert_eq!(outcome.state().get("result_count").unwrap(), json!(2));
    assert_eq!(
        outcome.state().get("final_docs").unwrap(),
        json!([{"title": "Doc 1", "content": "Python for Alice"}])
    );
    Ok(())
}

/// The model has read the factor of the second step in the result of the first.
async fn two_steps() -> Result<(), Box<dyn Error>> {
    let model = Scripted::conversation(
        "assistant: > c1 factorial(n=5)\nassistant: > c2 multiply(a=120, b=2)\nassistant: It is 240.",
    )?;
    let agent = Agent::builder(model)
        .schema(Schema::builder().key::<Vec<u64>>("results").build()?)
        .tools([factorial_tool(), multiply_tool()])
        .build()?;
    let outcome = agent.run("Calculate the factorial of 5, then multiply it by 2").await?;
    say(outcome.transcript());
    // A list is appended to unless its key says otherwise.
    assert_eq!(outcome.state().get("results").unwrap(), json!([120, 240]));
    Ok(())
}

/// Merging values: by the key's handler, by one of your own, or by another one for a single write.
fn handlers() -> Result<(), StateError> {
    let sorted = Handler::custom("sorted", |current: Option<&Value>, new: Value| {
        let items = |value: &Value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
        let mut all: Vec<Value> = current.map(items).unwrap_or_default();
        all.extend(items(&new));
        all.sort_by_key(Value::as_i64);
        Ok(Value::Array(all))
    });
    let schema =
        Schema::builder().key::<Vec<i64>>("numbers").handler(sorted).key::<String>("user_name").build()?;
    let mut state = State::new(&schema);
    state.set("numbers", json!([3, 1]))?;
    state.set("numbers", json!([2, 4]))?;
    assert_eq!(state.get("numbers").unwrap(), json!([1, 2, 3, 4]));

    state.set("user_name", json!("Alice"))?;
    let joined = Handler::custom("joined", |current: Option<&Value>, new: Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(json!(current.map_or_else(|| text(&new), |current| text(current) + "-" + &text(&new))))
    });
    state.set_with("user_name", json!("Bob"), &joined)?;
    assert_eq!(state.get("user_name").unwrap(), json!("Alice-Bob"));

    // What does not fit is refused where it is written.
    say(schema.write("user_name", json!(6)).unwrap_err());
    Ok(())
}
