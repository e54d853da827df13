//! Visits counted by several processes at once: a write says what to do (`sum` 1), not what comes out.
//!
//! `cargo run -p stepfold-examples --example parallel_visits`

use std::error::Error;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use stepfold::prelude::*;
use stepfold::providers::Scripted;
use stepfold::session_scopes::{EventRange, SqliteStore};
use stepfold::state_core::chat::ChatRequest;
use stepfold_examples::say;

const PROCESSES: usize = 4;
const VISITS: usize = 10;

/// Counts a visit.
#[tool(writes(["app:visits"]))]
async fn visit(state: StateWriter) -> Result<&'static str, ToolError> {
    state.set("app:visits", 1)?;
    Ok("counted")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [file, user] = arguments.as_slice() {
        return visits(file.as_ref(), user).await;
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("sessions.sqlite");
    let start = |number: usize| {
        Command::new(std::env::current_exe()?).arg(&file).arg(format!("user-{number}")).spawn()
    };
    let processes = (0..PROCESSES).map(start).collect::<Result<Vec<_>, _>>()?;
    for mut process in processes {
        assert!(process.wait()?.success(), "a process failed");
    }
    let session = runner(&file)?.session("nobody", "s").await?.read(EventRange::None).await?;
    say(format_args!("{PROCESSES} processes with {VISITS} visits each: {}", session.to_json()));
    assert_eq!(session.to_json(), json!({"app:visits": PROCESSES * VISITS}));
    Ok(())
}

async fn visits(file: &Path, user: &str) -> Result<(), Box<dyn Error>> {
    let session = runner(file)?.session(user, "s").await?;
    for _ in 0..VISITS {
        session.run("hello").await?;
    }
    Ok(())
}

fn runner(file: &Path) -> Result<Runner, Box<dyn Error>> {
    let model = Scripted::from_fn(|request: &ChatRequest| {
        let is_counted = request.messages.last().is_some_and(|message| message.tool_result().is_some());
        if is_counted { "welcome" } else { "> c1 visit()" }
    });
    let agent = Agent::builder(model)
        .schema(Schema::builder().key::<u64>("app:visits").handler(Handler::sum()).build()?)
        .tool(visit_tool())
        .build()?;
    Ok(Runner::builder(agent, SqliteStore::open(file)?).app("shop")?.build())
}
