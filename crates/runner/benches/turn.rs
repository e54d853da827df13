//! What a turn costs beside the model and the tool. `cargo bench -p stepfold-runner`.
//!
//! A turn here is two replies and one call that does nothing: four commits, `began`, `replied`, `answered` and
//! `replied`. SQLite's commits survive the process but are not flushed to the disk, so that
//! what is measured is our own work. What a long run takes on the disk, and what a whole step of it takes with its
//! commits flushed, is printed before: plain, and with the marker of a call that must not run twice.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark reads the clock, stops when it cannot go on, and says what it found"
)]

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use divan::Bencher;
use stepfold_agent_loop::Agent;
use stepfold_runner::{Runner, SessionHandle};
use stepfold_session_scopes::{AnyStore, Durability, EventRange, MemoryStore, SqliteOptions};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCall,
};
use stepfold_tools::{Effect, Tool, ToolError};
use tempfile::TempDir;
use tokio::runtime::Runtime;

fn main() {
    bytes_of_500_steps();
    whole_step();
    divan::main();
}

/// Calls the tool, then says that it is done; so many calls in a row.
struct Model {
    calls: u32,
    /// The calls of this turn.
    made: AtomicU32,
}

impl ChatModel for Model {
    fn id(&self) -> &'static str {
        "bench"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let log = &request.messages;
        let begins = log.last().is_some_and(|message| message.role() == Role::User);
        let made = if begins { 0 } else { self.made.load(Ordering::Relaxed) };
        self.made.store(made + 1, Ordering::Relaxed);
        let (message, finish) = match made < self.calls {
            true => (call(log.len()), FinishReason::ToolCalls),
            false => (Message::assistant("done"), FinishReason::Stop),
        };
        ReplyStream::from_chunks(Chunk::of(&message).into_iter().chain([Chunk::Finished(finish)]))
    }
}

fn call(number: usize) -> Message {
    let call = ToolCall::new(format!("c{number}"), "nothing", serde_json::json!({}));
    Message::new(Role::Assistant).with_part(call)
}

fn agent(calls: u32, effect: Effect) -> Agent {
    let nothing = Tool::new("nothing", "Does nothing.", async || Ok::<_, ToolError>("ok"));
    Agent::builder(Model { calls, made: AtomicU32::new(0) })
        .instructions("You do what has to be done.")
        .tools([nothing.effect(effect).build().expect("the tool is valid")])
        .max_steps(10_000)
        .repeat_guard(None)
        .build()
        .expect("the agent is valid")
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built")
}

const STORES: [&str; 2] = ["memory", "sqlite"];
const MESSAGES: [usize; 3] = [10, 1_000, 10_000];
/// Of the run whose steps are measured.
const STEPS: u32 = 500;

/// A store, and the folder that it may need.
fn open(kind: &str) -> (AnyStore, Option<TempDir>) {
    if kind == "memory" {
        return (AnyStore::new(MemoryStore::new()), None);
    }
    let folder = tempfile::tempdir().expect("a folder can be made");
    (sqlite(folder.path(), Durability::Process), Some(folder))
}

fn sqlite(folder: &Path, durability: Durability) -> AnyStore {
    let options = SqliteOptions::new(folder.join("sessions.db")).durability(durability);
    AnyStore::new(options.open().expect("the file is new"))
}

async fn session_of(store: &AnyStore, calls: u32, effect: Effect) -> SessionHandle {
    let runner = Runner::builder(agent(calls, effect), store.clone()).build();
    runner.session("ada", "s1").await.expect("the store works")
}

/// One whose turns make one call.
async fn session(store: &AnyStore) -> SessionHandle {
    session_of(store, 1, Effect::Pure).await
}

async fn turn(session: &SessionHandle) {
    session.run("go").await.expect("the script says what is asked for");
}

/// A session with so many messages, which is as many events, made by turns.
async fn filled(store: &AnyStore, messages: usize) -> SessionHandle {
    let handle = session(store).await;
    for _ in 0..messages / 4 {
        turn(&handle).await;
    }
    handle
}

/// A turn in a session that is kept open: only what is new is read.
#[divan::bench(args = MESSAGES, consts = [0, 1], sample_count = 20, sample_size = 5)]
fn kept_open<const STORE: usize>(bencher: Bencher<'_, '_>, messages: usize) {
    let runtime = runtime();
    let (store, _folder) = open(STORES[STORE]);
    let session = runtime.block_on(filled(&store, messages));
    bencher.bench_local(|| runtime.block_on(turn(&session)));
}

/// A turn in a session that is opened for it: all of it is read.
#[divan::bench(args = MESSAGES, consts = [0, 1], sample_count = 10, sample_size = 2)]
fn reopened<const STORE: usize>(bencher: Bencher<'_, '_>, messages: usize) {
    let runtime = runtime();
    let (store, _folder) = open(STORES[STORE]);
    runtime.block_on(filled(&store, messages));
    bencher.bench_local(|| runtime.block_on(async { turn(&session(&store).await).await }));
}

/// What 500 steps of one call take on the disk, once the store is closed.
fn bytes_of_500_steps() {
    let mut empty = 0;
    for (what, effect) in
        [("nothing", None), ("plain", Some(Effect::Pure)), ("marked", Some(Effect::AtMostOnce))]
    {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let runtime = runtime();
        let store = sqlite(folder.path(), Durability::Process);
        let events = runtime.block_on(async {
            let Some(effect) = effect else { return 0 };
            let session = session_of(&store, STEPS, effect).await;
            turn(&session).await;
            session.read(EventRange::All).await.expect("the store works").events.len()
        });
        drop((store, runtime));
        let size = closed_size(folder.path());
        if effect.is_none() {
            empty = size;
        }
        let a_step = (size - empty) / u64::from(STEPS);
        println!("{STEPS} steps over SQLite, {what}: {events} events, {size} bytes; a step {a_step} bytes");
    }
}

/// The size of the file once the store is closed.
fn closed_size(folder: &Path) -> u64 {
    // Whoever closes the file last, in a thread of the store, moves the log into it and removes the log.
    let log = folder.join("sessions.db-wal");
    let began = Instant::now();
    while log.exists() && began.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
    folder.join("sessions.db").metadata().expect("the store made it").len()
}

/// A step of one call, of a run of many: its commits, and all that the runner and the loop do for them.
fn whole_step() {
    let over = |what: &str, effect: Effect, store: &AnyStore| {
        runtime().block_on(async {
            let session = session_of(store, STEPS, effect).await;
            let began = Instant::now();
            turn(&session).await;
            println!("a step of one call over {what}: {:?}", began.elapsed() / STEPS);
        });
    };
    for (kind, effect) in [("plain", Effect::Pure), ("marked", Effect::AtMostOnce)] {
        over(&format!("memory, {kind}"), effect, &AnyStore::new(MemoryStore::new()));
        for (flushed, durability) in [("not flushed", Durability::Process), ("flushed", Durability::Full)] {
            let folder = tempfile::tempdir().expect("a folder can be made");
            over(&format!("SQLite, {kind}, {flushed}"), effect, &sqlite(folder.path(), durability));
        }
    }
}
