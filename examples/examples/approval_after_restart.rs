//! A payment that waits for an approver after the process that requested it has ended.
//!
//! The program starts itself twice: the first process ends at the question, the second one decides.
//!
//! `cargo run -p stepfold-examples --example approval_after_restart`
#![allow(clippy::unwrap_used, reason = "an example fails where it is wrong")]

use std::error::Error;
use std::path::Path;
use std::process::Command;

use stepfold::agent_loop::Pause;
use stepfold::prelude::*;
use stepfold::providers::Scripted;
use stepfold::session_scopes::SqliteStore;
use stepfold_examples::say;

/// Pays a bill.
#[tool(approval(Approval::Always), writes(["paid"]))]
async fn pay(euro: u64, state: StateWriter) -> Result<String, ToolError> {
    state.set("paid", euro)?;
    Ok(format!("paid {euro} euro"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["ask", file] => ask(file.as_ref()).await,
        ["decide", file] => decide(file.as_ref()).await,
        _ => {
            let folder = tempfile::tempdir()?;
            let file = folder.path().join("sessions.sqlite");
            for part in ["ask", "decide"] {
                let status = Command::new(std::env::current_exe()?).arg(part).arg(&file).status()?;
                assert!(status.success(), "the part `{part}` failed");
            }
            Ok(())
        }
    }
}

/// The first process: the agent wants to pay, and the run pauses.
async fn ask(file: &Path) -> Result<(), Box<dyn Error>> {
    let session = runner(file, "assistant: > c1 pay(euro=500)")?.session("ada", "bills").await?;
    let outcome = session.run("pay the bill").await?;
    assert_eq!(outcome.exit(), &Exit::Paused(Pause::Approval));
    say(format_args!("process {}: the run waits for approval", std::process::id()));
    Ok(())
}

/// The second process: an approver looks at what waits, and corrects it.
async fn decide(file: &Path) -> Result<(), Box<dyn Error>> {
    let session = runner(file, "assistant: The bill is paid.")?.session("ada", "bills").await?;
    let pending = session.pending().await?;
    say(format_args!("process {}: pending is {}", std::process::id(), pending[0].call.name));
    let corrected = Decision::modify(serde_json::json!({"euro": 50}));
    let outcome = session.resume().decide(pending[0].id.as_str(), corrected).await?;
    say(outcome.transcript());
    assert_eq!(outcome.state().get("paid").unwrap(), 50);
    assert!(session.pending().await?.is_empty());
    Ok(())
}

/// Both processes have the same agent, but for what its model is going to say.
fn runner(file: &Path, script: &str) -> Result<Runner, Box<dyn Error>> {
    let agent = Agent::builder(Scripted::conversation(script)?)
        .schema(Schema::builder().key::<u64>("paid").build()?)
        .tool(pay_tool())
        .build()?;
    Ok(Runner::builder(agent, SqliteStore::open(file)?).app("bills")?.build())
}
