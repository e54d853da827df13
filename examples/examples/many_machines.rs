//! From one process over SQLite to many machines over Restate: five changed lines.
//!
//! `cargo run -p stepfold-examples --features restate --example many_machines`
//!
//! With the argument `restate`, it needs a server (`npx @restatedev/restate-server`, under the Business Source License
//! 1.1), with which it is registered while it runs: `curl localhost:9070/deployments --json '{"uri":
//! "http://localhost:9080"}'`.
#![allow(clippy::unwrap_used, reason = "an example fails where it is wrong")]

use std::error::Error;
use std::path::Path;

use stepfold::prelude::*;
use stepfold::providers::Scripted;
use stepfold::restate::{RestateClient, RestateWorker};
use stepfold::session_scopes::SqliteStore;
use stepfold_examples::say;
use tokio::net::TcpListener;

fn agent() -> Result<Agent, Box<dyn Error>> {
    let model = Scripted::conversation("assistant: Area 3 has most stalls.")?;
    Ok(Agent::builder(model).name("analyst").build()?)
}

/// One process.
async fn over_sqlite(file: &Path) -> Result<(), Box<dyn Error>> {
    // begin
    let store = SqliteStore::open(file)?;
    let runner = Runner::builder(agent()?, store).build();
    let session = runner.session("ada", "monday").await?;
    let report = session.run_as("request-7", "which area has most stalls?").await?;
    say(format_args!("{}", report.text));
    // end
    Ok(())
}

/// Any number of machines; then the store is PostgreSQL, which is one more line.
async fn over_restate(file: &Path) -> Result<(), Box<dyn Error>> {
    // begin
    let store = SqliteStore::open(file)?;
    let runner = Runner::builder(agent()?, store).build();
    let listener = TcpListener::bind("127.0.0.1:9080").await?;
    tokio::spawn(RestateWorker::new(runner).serve(listener, std::future::pending::<()>()));
    let session = RestateClient::connect("http://127.0.0.1:8080", "analyst")?.session("ada", "monday")?;
    let report = session.run_as("request-7", "which area has most stalls?").await?;
    say(format_args!("{}", report.text));
    // end
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("sessions.sqlite");
    match std::env::args().nth(1).as_deref() {
        Some("restate") => over_restate(&file).await,
        _ => over_sqlite(&file).await,
    }
}
