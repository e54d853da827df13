//! Whether a turn of a session that is kept open costs the same after many turns. `cargo bench -p stepfold-runner
//! --bench flat`; `TURNS=20000` for more turns than the default.
//!
//! Each turn appends one item to a list: of the session, or of the user. In the third part a large value is stored that
//! nobody reads. Printed is the mean time of a turn in the first and in the last fifth, and their ratio.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a benchmark reads the clock, stops when it cannot go on, and says what it found"
)]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepfold_agent_loop::{Agent, Input};
use stepfold_runner::{Runner, SessionHandle};
use stepfold_session_scopes::{AnyStore, Durability, MemoryStore, SqliteOptions};
use stepfold_state_core::chat::{ChatModel, ChatRequest, Chunk, FinishReason, ReplyStream};
use stepfold_state_core::state::Schema;
use tempfile::TempDir;

/// Says that it is done.
struct Model;

impl ChatModel for Model {
    fn id(&self) -> &'static str {
        "bench"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        ReplyStream::from_chunks([Chunk::Text("done".to_owned()), Chunk::Finished(FinishReason::Stop)])
    }
}

/// A store, and the folder that it may need.
fn open(kind: &str) -> (AnyStore, Option<TempDir>) {
    if kind == "memory" {
        return (AnyStore::new(MemoryStore::new()), None);
    }
    let folder = tempfile::tempdir().expect("a folder can be made");
    let options = SqliteOptions::new(folder.path().join("sessions.db")).durability(Durability::Process);
    (AnyStore::new(options.open().expect("the file is new")), Some(folder))
}

async fn session(store: &AnyStore, values: Value) -> SessionHandle {
    let schema =
        Schema::builder().key::<Vec<String>>("log").key::<String>("pdf").key::<Vec<String>>("user:log");
    let agent = Agent::builder(Model).schema(schema.build().expect("the schema is valid"));
    let runner = Runner::builder(agent.build().expect("the agent is valid"), store.clone()).build();
    runner.create("ada", "s1", values).await.expect("the store works")
}

async fn turn(session: &SessionHandle, values: &Value) -> Duration {
    let began = Instant::now();
    session.run(Input::from("go").with_values(values.clone())).await.expect("the store works");
    began.elapsed()
}

fn mean(times: &[Duration]) -> Duration {
    times.iter().sum::<Duration>() / (times.len().max(1) as u32)
}

fn main() {
    let turns =
        std::env::var("TURNS").ok().and_then(|turns| turns.parse().ok()).unwrap_or(2_000_usize).max(5);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    for kind in ["memory", "sqlite"] {
        for (what, values) in [
            ("nothing is written", json!({})),
            ("an item of a list", json!({"log": ["item"]})),
            ("an item of a `user:` list", json!({"user:log": ["item"]})),
        ] {
            let (store, _folder) = open(kind);
            let times: Vec<Duration> = runtime.block_on(async {
                let session = session(&store, json!({})).await;
                let mut times = Vec::with_capacity(turns);
                for _ in 0..turns {
                    times.push(turn(&session, &values).await);
                }
                times
            });
            let (first, last) = (mean(&times[..turns / 5]), mean(&times[turns - turns / 5..]));
            let ratio = last.as_secs_f64() / first.as_secs_f64();
            println!(
                "{kind}, {turns} turns, {what}: first fifth {first:?}, last fifth {last:?}, ratio {ratio:.2}"
            );
        }
        for megabytes in [0, 100] {
            let (store, _folder) = open(kind);
            let time = runtime.block_on(async {
                let session = session(&store, json!({"pdf": "x".repeat(megabytes * 1_000_000)})).await;
                // The first turn reads it.
                turn(&session, &json!({})).await;
                let mut times = Vec::new();
                for _ in 0..200 {
                    times.push(turn(&session, &json!({})).await);
                }
                mean(&times)
            });
            println!("{kind}, with a value of {megabytes} MB that nobody reads: a turn {time:?}");
        }
    }
}
