//! Whether a turn of a session that is kept open costs the same after many turns. `cargo bench -p stepfold-runner
//! --bench flat`; `TURNS=20000` for more turns than the default; names of stores for these only.
//!
//! Each turn appends one item to a list: of the session, or of the user; or another session of the user appends it, and the
//! turn that is measured with it reads it. In the last part a large value is stored that no turn reads. Printed is the CPU time of a turn in each fifth of the turns, in the cheapest and in the middle one of
//! twenty batches, and the last fifth against the first. CPU time is that of all threads, and of the server where there is
//! one. Whatever else the machine does makes a batch dearer, and none cheaper.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a benchmark reads the clock, stops when it cannot go on, and says what it found"
)]

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use stepfold_agent_loop::{Agent, Input};
use stepfold_runner::{Runner, SessionHandle};
use stepfold_session_scopes::{AnyStore, Durability, MemoryStore, PostgresStore, SqliteOptions};
use stepfold_state_core::chat::{ChatModel, ChatRequest, Chunk, FinishReason, ReplyStream};
use stepfold_state_core::state::Schema;
use tempfile::TempDir;

#[path = "../../session-scopes/tests/it/server.rs"]
mod server;

/// Batches of a fifth.
const BATCHES: usize = 20;

/// How often it is asked what waits for a decision.
const ASKED: u32 = 50;

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

/// An empty store, and what it needs.
struct Place {
    store: AnyStore,
    /// The database of a store in a server.
    address: Option<String>,
    _folder: Option<TempDir>,
}

impl Place {
    async fn open(kind: &str, database: usize) -> Option<Self> {
        match kind {
            "memory" => {
                Some(Place { store: AnyStore::new(MemoryStore::new()), address: None, _folder: None })
            }
            "sqlite" => {
                let folder = tempfile::tempdir().expect("a folder can be made");
                let file = SqliteOptions::new(folder.path().join("sessions.db"));
                let store = file.durability(Durability::Process).open().expect("the file is new");
                Some(Place { store: AnyStore::new(store), address: None, _folder: Some(folder) })
            }
            _ => {
                let address = server::server()?.database(&format!("flat_{database}")).await;
                let store = PostgresStore::open(address.clone()).await.expect("the server is ours");
                Some(Place { store: AnyStore::new(store), address: Some(address), _folder: None })
            }
        }
    }

    /// What measures the work of the store and of this process.
    async fn meter(&self) -> Meter {
        let Some(address) = &self.address else { return Meter { backends: Vec::new() } };
        let connected = tokio_postgres::connect(address, tokio_postgres::NoTls).await;
        let (client, connection) = connected.expect("the server is ours");
        let driver = tokio::spawn(connection);
        let query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() \
                     AND pid <> pg_backend_pid()";
        let rows = client.query(query, &[]).await.expect("the server is ours");
        drop(client);
        driver.await.expect("it does not panic").expect("the connection closes");
        Meter {
            backends: rows
                .iter()
                .map(|row| format!("/proc/{}/schedstat", row.get::<_, i32>(0)).into())
                .collect(),
        }
    }
}

/// Measures CPU time, in user and in system mode.
struct Meter {
    /// What tells it of the processes of a server that work for us.
    backends: Vec<PathBuf>,
}

impl Meter {
    #[cfg(target_os = "linux")]
    fn read(&self) -> Duration {
        let threads = std::fs::read_dir("/proc/self/task").expect("Linux tells");
        let threads = threads.map(|thread| thread.expect("Linux tells").path().join("schedstat"));
        let nanos = |path: PathBuf| {
            let times = std::fs::read_to_string(path).ok()?;
            times.split(' ').next()?.parse::<u64>().ok()
        };
        Duration::from_nanos(threads.chain(self.backends.iter().cloned()).filter_map(nanos).sum())
    }

    /// The time that passes: other systems tell us nothing else.
    #[cfg(not(target_os = "linux"))]
    fn read(&self) -> Duration {
        use std::sync::OnceLock;
        use std::time::Instant;

        static BEGAN: OnceLock<Instant> = OnceLock::new();
        BEGAN.get_or_init(Instant::now).elapsed()
    }
}

async fn session(store: &AnyStore, id: &str, values: Value) -> SessionHandle {
    let schema =
        Schema::builder().key::<Vec<String>>("log").key::<String>("pdf").key::<Vec<String>>("user:log");
    let agent = Agent::builder(Model).schema(schema.build().expect("the schema is valid"));
    let runner = Runner::builder(agent.build().expect("the agent is valid"), store.clone()).build();
    runner.create("ada", id, values).await.expect("the store works")
}

/// Who takes turns: a session, and maybe another one of its user before it. Values are written by the first of them.
struct Sessions {
    other: Option<SessionHandle>,
    kept_open: SessionHandle,
    values: Value,
}

impl Sessions {
    fn alone(kept_open: SessionHandle, values: Value) -> Self {
        Sessions { other: None, kept_open, values }
    }

    async fn turns(&self, count: usize) {
        for _ in 0..count {
            let mut input = Input::from("go").with_values(self.values.clone());
            if let Some(other) = &self.other {
                other.run(input).await.expect("the store works");
                input = Input::from("go");
            }
            self.kept_open.run(input).await.expect("the store works");
        }
    }
}

/// The CPU time of a turn, in the cheapest and in the middle one of so many batches.
async fn measured(meter: &Meter, sessions: &Sessions, batch: usize) -> [Duration; 2] {
    let mut times = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let before = meter.read();
        sessions.turns(batch).await;
        times.push(meter.read().saturating_sub(before) / batch as u32);
    }
    times.sort_unstable();
    [times[0], times[BATCHES / 2]]
}

async fn fifths(place: &Place, what: &str, values: Value, by_another: bool, count: usize) {
    let other = if by_another { Some(session(&place.store, "s2", json!({})).await) } else { None };
    let sessions = Sessions { other, kept_open: session(&place.store, "s1", json!({})).await, values };
    sessions.turns(20).await;
    let meter = place.meter().await;
    let batch = (count / 5 / BATCHES).max(1);
    let mut fifths = Vec::with_capacity(5);
    for _ in 0..5 {
        fifths.push(measured(&meter, &sessions, batch).await);
    }
    for (kind, place) in [("at least", 0), ("median", 1)] {
        let times: Vec<Duration> = fifths.iter().map(|times| times[place]).collect();
        let ratio = times[4].as_secs_f64() / times[0].as_secs_f64();
        println!("  {what}, {kind}: {times:.1?}, ratio {ratio:.2}");
    }
}

async fn unread(place: &Place, megabytes: usize) {
    let session = session(&place.store, "s1", json!({"pdf": "x".repeat(megabytes * 1_000_000)})).await;
    let sessions = Sessions::alone(session, json!({}));
    // The first turn reads it.
    sessions.turns(20).await;
    let meter = place.meter().await;
    let [least, median] = measured(&meter, &sessions, 50).await;
    println!("  with a value of {megabytes} MB that nobody reads: at least {least:.1?}, median {median:.1?}");
    let before = meter.read();
    for _ in 0..ASKED {
        sessions.kept_open.pending().await.expect("the store works");
    }
    let pending = meter.read().saturating_sub(before) / ASKED;
    println!("  what waits for a decision there, asked for (`pending`): mean {pending:.1?}");
}

async fn measure(kind: &str, count: usize) {
    let parts = [
        ("nothing is written", json!({}), false),
        ("an item of a list", json!({"log": ["item"]}), false),
        ("an item of a `user:` list", json!({"user:log": ["item"]}), false),
        ("an item of a `user:` list, by another session", json!({"user:log": ["item"]}), true),
    ];
    println!("CPU time of a turn, {kind}, {count} turns by fifths");
    for (number, (what, values, by_another)) in parts.into_iter().enumerate() {
        let Some(place) = Place::open(kind, number).await else { return };
        fifths(&place, what, values, by_another, count).await;
    }
    for megabytes in [0, 100] {
        let Some(place) = Place::open(kind, 100 + megabytes).await else { return };
        unread(&place, megabytes).await;
    }
}

fn main() {
    let count = std::env::var("TURNS").ok().and_then(|turns| turns.parse().ok()).unwrap_or(2_000);
    let named: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    for kind in ["memory", "sqlite", "postgres"] {
        if named.is_empty() || named.iter().any(|name| name == kind) {
            runtime.block_on(measure(kind, count));
        }
    }
}
