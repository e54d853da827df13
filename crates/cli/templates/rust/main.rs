//! An agent with a list of tasks: `cargo run -- 'Remind me to buy tea.'`, and `cargo test`.
#![allow(clippy::print_stdout, reason = "a program prints its answers")]

use std::error::Error;

use stepfold::prelude::*;
use stepfold::providers::Scripted;
use stepfold::session_scopes::SqliteStore;

/// Adds a task to the list.
#[tool(effect(Effect::Pure), writes(["tasks"]))]
async fn add_task(task: String, state: StateWriter) -> Result<&'static str, ToolError> {
    state.set("tasks", vec![task])?; // a list: merged by appending
    Ok("added")
}

fn agent() -> Result<Agent, Box<dyn Error>> {
    // A live one: stepfold::providers::model("openai:gpt-4.1"), with the feature `openai`.
    let model =
        Scripted::conversation("assistant: > c1 add_task(task=\"Buy tea.\")\nassistant: Noted: buy tea.")?;
    let schema = Schema::builder().key::<Vec<String>>("tasks").build()?;
    let instructions = "You keep a list of tasks. The list so far: {tasks?}.";
    Ok(Agent::builder(model).instructions(instructions).schema(schema).tool(add_task_tool()).build()?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let question = std::env::args().nth(1).unwrap_or_else(|| "Remind me to buy tea.".to_owned());
    let runner = Runner::builder(agent()?, SqliteStore::open("sessions.db")?).build();
    let outcome = runner.session("me", "monday").await?.run(question).await?;
    println!("{}", outcome.text());
    if let Some(tasks) = outcome.state().get("tasks") {
        println!("tasks: {tasks}");
    }
    Ok(())
}

#[tokio::test]
async fn a_task_is_noted() -> Result<(), Box<dyn Error>> {
    let outcome = agent()?.run("Remind me to buy tea.").await?;
    assert_eq!(outcome.state().get("tasks").unwrap().to_string(), r#"["Buy tea."]"#);
    Ok(())
}
