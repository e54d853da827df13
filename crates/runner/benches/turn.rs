//! What a turn costs beside the model and the tool. `cargo bench -p stepfold-runner`.
//!
//! A turn here is two replies and one call that does nothing: four commits, `began`, `replied`, `answered` and
//! `replied`. SQLite's commits survive the process but are not flushed to the disk, so that
//! what is measured is our own work. What a long run takes on the disk, and what a whole step of it takes with its
//! commits flushed, is printed before: plain, and with the marker of a call that must not run twice. So is what a fresh
//! process takes that makes one such run and ends.
//!
//! For a program that counts instructions, `--count WHAT TIMES` does one thing so often and nothing else: `run`, a turn of one
//! call in a new session in memory; `step`, a step of a run in memory; `calls` and `calls-sqlite`, a turn of 64 calls; `reopen` and
//! `reopen-sqlite`, a turn in a session of 10,000 messages that is opened for it; `budgets0-sqlite`, `budgets1-sqlite` and
//! `budgets3-sqlite`, a step of a run with so many budgets, and `-flushed` in place of `-sqlite` with each commit flushed.

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
use stepfold_runner::{Budget, Runner, RunnerBuilder, SessionHandle};
use stepfold_session_scopes::{AnyStore, Durability, EventRange, MemoryStore, SqliteOptions};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCall,
};
use stepfold_tools::{Effect, Tool, ToolError};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The argument of a process that makes one run and ends.
const ONE_RUN: &str = "--one-run";

fn main() {
    if std::env::args().any(|argument| argument == ONE_RUN) {
        return runtime().block_on(async { turn(&session(&AnyStore::new(MemoryStore::new())).await).await });
    }
    let mut arguments = std::env::args().skip_while(|argument| argument != "--count").skip(1);
    if let Some(what) = arguments.next() {
        let times = arguments.next().and_then(|times| times.parse().ok()).expect("`--count WHAT TIMES`");
        return runtime().block_on(counted(&what, times));
    }
    fresh_process();
    bytes_of_500_steps();
    whole_step();
    step_with_budgets();
    divan::main();
}

/// Calls the tool, then says that it is done; so many calls in a row, each with others beside it.
struct Model {
    calls: u32,
    /// The calls of one reply.
    at_once: usize,
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
            true => (calls(log.len(), self.at_once), FinishReason::ToolCalls),
            false => (Message::assistant("done"), FinishReason::Stop),
        };
        ReplyStream::from_chunks(Chunk::of(&message).into_iter().chain([Chunk::Finished(finish)]))
    }
}

fn calls(number: usize, at_once: usize) -> Message {
    let call = |place| ToolCall::new(format!("c{number}-{place}"), "nothing", serde_json::json!({}));
    (0..at_once).map(call).fold(Message::new(Role::Assistant), Message::with_part)
}

fn agent(calls: u32, effect: Effect) -> Agent {
    let nothing = Tool::new("nothing", "Does nothing.", async || Ok::<_, ToolError>("ok"));
    agent_of(calls, 1, nothing.effect(effect).build().expect("the tool is valid"))
}

fn agent_of(calls: u32, at_once: usize, tool: Tool) -> Agent {
    Agent::builder(Model { calls, at_once, made: AtomicU32::new(0) })
        .instructions("You do what has to be done.")
        .tools([tool])
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
    let durability = if kind == "flushed" { Durability::Full } else { Durability::Process };
    (sqlite(folder.path(), durability), Some(folder))
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

/// Does one thing so often.
async fn counted(what: &str, times: u32) {
    let (what, kind) = what.split_once('-').unwrap_or((what, "memory"));
    let (store, _folder) = open(kind);
    match what {
        "run" => {
            let runner = Runner::builder(agent(1, Effect::Pure), store).build();
            for number in 0..times {
                turn(&runner.session("ada", format!("s{number}")).await.expect("the store works")).await;
            }
        }
        // A service that builds its agent for each request.
        "agent" => {
            for number in 0..times {
                let runner = Runner::builder(agent(1, Effect::Pure), store.clone()).build();
                turn(&runner.session("ada", format!("s{number}")).await.expect("the store works")).await;
            }
        }
        "kept" => {
            let session = session(&store).await;
            for _ in 0..times {
                turn(&session).await;
            }
        }
        "fork" => {
            let session = session_of(&store, 1_000, Effect::Pure).await;
            turn(&session).await;
            for number in 0..times {
                session.fork(format!("f{number}"), None).await.expect("the id is free");
            }
        }
        "step" => turn(&session_of(&store, times, Effect::Pure).await).await,
        "budgets0" => turn(&session_with_budgets(&store, times, 0).await).await,
        "budgets1" => turn(&session_with_budgets(&store, times, 1).await).await,
        "budgets3" => turn(&session_with_budgets(&store, times, 3).await).await,
        "calls" => {
            let runner = Runner::builder(agent_of(1, AT_ONCE, nothing()), store).build();
            let session = runner.session("ada", "s1").await.expect("the store works");
            for _ in 0..times {
                turn(&session).await;
            }
        }
        _ => {
            filled(&store, 10_000).await;
            for _ in 0..times {
                turn(&session(&store).await).await;
            }
        }
    }
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

/// A turn of one call in a new session.
#[divan::bench]
fn one_run_in_memory(bencher: Bencher<'_, '_>) {
    let runtime = runtime();
    let runner = Runner::builder(agent(1, Effect::Pure), MemoryStore::new()).build();
    let mut number = 0_u64;
    bencher.bench_local(|| {
        number += 1;
        runtime.block_on(async {
            let session = runner.session("ada", format!("s{number}")).await.expect("the store works");
            turn(&session).await;
        });
    });
}

/// A turn with this many calls in one reply.
const AT_ONCE: usize = 64;

fn bench_at_once(bencher: Bencher<'_, '_>, store: &AnyStore, tool: Tool) {
    let runtime = runtime();
    let runner = Runner::builder(agent_of(1, AT_ONCE, tool), store.clone()).build();
    let session = runtime.block_on(runner.session("ada", "s1")).expect("the store works");
    bencher.bench_local(|| runtime.block_on(turn(&session)));
}

fn nothing() -> Tool {
    let nothing = Tool::new("nothing", "Does nothing.", async || Ok::<_, ToolError>("ok"));
    nothing.effect(Effect::Pure).build().expect("the tool is valid")
}

/// Calls that end at once.
#[divan::bench(consts = [0, 1], sample_count = 50)]
fn calls_at_once<const STORE: usize>(bencher: Bencher<'_, '_>) {
    let (store, _folder) = open(STORES[STORE]);
    bench_at_once(bencher, &store, nothing());
}

/// The same, with each commit flushed.
#[divan::bench(sample_count = 50)]
fn calls_at_once_flushed(bencher: Bencher<'_, '_>) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    bench_at_once(bencher, &sqlite(folder.path(), Durability::Full), nothing());
}

/// Calls that take 10 ms, with each commit flushed.
#[divan::bench(sample_count = 50)]
fn waiting_calls_at_once_flushed(bencher: Bencher<'_, '_>) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let wait = Tool::new("nothing", "Waits.", async || {
        // tidy: allow sleep, because calls that take their time are what is measured.
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok::<_, ToolError>("ok")
    });
    let wait = wait.effect(Effect::Pure).build().expect("the tool is valid");
    bench_at_once(bencher, &sqlite(folder.path(), Durability::Full), wait);
}

/// What a process takes that makes one run in memory and ends.
fn fresh_process() {
    let program = std::env::current_exe().expect("the program has a path");
    let mut times: Vec<Duration> = (0..50)
        .map(|_| {
            let began = Instant::now();
            let ended = std::process::Command::new(&program).arg(ONE_RUN).status();
            assert!(ended.expect("the program runs").success(), "the run fails");
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!(
        "a fresh process with one run in memory: {:?}, the median of {}",
        times[times.len() / 2],
        times.len()
    );
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
    // The last thread of the store that closes the file moves the log into it and removes the log.
    let log = folder.join("sessions.db-wal");
    let began = Instant::now();
    while log.exists() && began.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
    folder.join("sessions.db").metadata().expect("the store made it").len()
}

/// A step of one call, of a run of many: its commits, and all that the runner and the loop do for them.
/// A session whose run makes so many steps under budgets that hold them all.
async fn session_with_budgets(store: &AnyStore, steps: u32, budgets: usize) -> SessionHandle {
    let budgets = (0..budgets).map(|number| Budget::tokens(format!("b{number}"), u64::MAX));
    let builder = Runner::builder(agent(steps, Effect::Pure), store.clone());
    let runner = budgets.fold(builder, RunnerBuilder::budget).build();
    runner.session("ada", "s1").await.expect("the store works")
}

/// The lowest of some repeats, since other work on the machine only adds to them.
fn step_with_budgets() {
    for (flushed, durability) in [("not flushed", Durability::Process), ("flushed", Durability::Full)] {
        for budgets in [0, 1, 3] {
            let step = || {
                let folder = tempfile::tempdir().expect("a folder can be made");
                let store = sqlite(folder.path(), durability);
                runtime().block_on(async {
                    let session = session_with_budgets(&store, STEPS, budgets).await;
                    let began = Instant::now();
                    turn(&session).await;
                    began.elapsed() / STEPS
                })
            };
            let lowest = (0..5).map(|_| step()).min().unwrap_or_default();
            println!("a step of one call over SQLite, {budgets} budgets, {flushed}: {lowest:?}");
        }
    }
}

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
