//! What a host of runs costs. `cargo bench -p stepfold-runner --bench hosts`; names of parts (`cost`, `rate`, `takeover`,
//! `keys`, `idle`, `check`, `retain`) and of stores (`memory`, `sqlite`, `postgres`) for these only; `SESSIONS=200`, `TURNS=20000`, `SECONDS=60`.
//!
//! - `cost`: the CPU time of a step of a run that the caller awaits, and of one that recovery takes from the inbox.
//! - `rate`: turns a second of many sessions, on one worker and on two, each a process of its own.
//! - `takeover`: the time from the signal until another worker has ended the run of one that was killed or frozen.
//! - `keys`: a repeated `run_as`, edit and decision, after many turns against after few.
//! - `idle`: the CPU time of a worker that recovers beside 10,000 sessions that have nothing to do.
//! - `check`: the time and the memory of `check_upgrade` over 100,000 sessions (`SESSIONS`), of which each second waits.
//! - `retain`: a pass of retention over as many, of which 100 have to go, and one that has nothing to do.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::too_many_lines,
    reason = "a benchmark reads the clock, stops when it cannot go on, and says what it found"
)]

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use stepfold_agent_loop::{Agent, Decision, Edit, Input};
use stepfold_runner::{
    RecoverOptions, RetentionOptions, RetentionPolicy, Runner, RunnerBuilder, UpgradeCounts,
};
use stepfold_session_scopes::{
    AnyStore, AppendEvent, Author, CreateSession, Durability, EnqueueInput, Event, EventId, EventRange,
    GetSession, IdempotencyKey, InboxKind, InvocationId, MemoryStore, PostgresStore, SessionKey,
    SessionSchema, SessionStore, SqliteOptions, Timestamp,
};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCall,
};
use stepfold_state_core::state::Schema;
use stepfold_tools::{Approval, Effect, Tool, ToolError};
use tempfile::TempDir;

#[path = "../../session-scopes/tests/it/server.rs"]
mod server;

/// Tells this binary that it is a worker, and of which store.
const WORKER: &str = "STEPFOLD_BENCH_WORKER";

/// The steps of a run: calls, each in a reply of its own, and the last reply.
const STEPS: usize = 5;

/// How long a worker may be silent.
const CLAIM: Duration = Duration::from_secs(1);

/// Calls a tool four times, and then says that it is done.
struct Model;

impl ChatModel for Model {
    fn id(&self) -> &'static str {
        "bench"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let since = request.messages.iter().rev().take_while(|message| message.role() != Role::User).count();
        let asks = request.messages.last().is_some_and(|message| message.text() == "ask");
        let name = if asks { "ask" } else { "nothing" };
        let call = ToolCall::new(format!("c{since}"), name, serde_json::json!({}));
        let (message, finish) = match since / 2 + 1 < STEPS {
            true => (Message::new(Role::Assistant).with_part(call), FinishReason::ToolCalls),
            false => (Message::assistant("done"), FinishReason::Stop),
        };
        ReplyStream::from_chunks(Chunk::of(&message).into_iter().chain([Chunk::Finished(finish)]))
    }
}

fn agent(waits: bool) -> Agent {
    let nothing = move || async move {
        if waits {
            println!("called");
            std::future::pending::<()>().await;
        }
        Ok::<_, ToolError>("")
    };
    let tool = Tool::new("nothing", "Does nothing.", nothing).effect(Effect::Pure);
    let ask = Tool::new("ask", "Does nothing.", || async { Ok::<_, ToolError>("") }).effect(Effect::Pure);
    let tools = [tool, ask.approval(Approval::Always)].map(|tool| tool.build().expect("the tool is valid"));
    let schema = Schema::builder().key::<u64>("n").build().expect("the schema is valid");
    let agent = Agent::builder(Model).name("bench").schema(schema).tools(tools);
    agent.build().expect("the agent is valid")
}

fn runner(store: &AnyStore, waits: bool) -> RunnerBuilder {
    Runner::builder(agent(waits), store.clone()).claim_for(CLAIM)
}

/// A store, and where another process finds it.
struct Place {
    store: AnyStore,
    address: String,
    _folder: Option<TempDir>,
}

impl Place {
    async fn open(kind: &str, name: &str) -> Option<Self> {
        let (address, folder) = match kind {
            "memory" => (String::new(), None),
            "sqlite" => {
                let folder = tempfile::tempdir().expect("a folder can be made");
                (folder.path().join("sessions.db").display().to_string(), Some(folder))
            }
            _ => (server::server()?.database(name).await, None),
        };
        Some(Place { store: open(&address).await, address, _folder: folder })
    }

    fn worker(&self, waits: bool) -> Worker {
        let mut command = Command::new(std::env::current_exe().expect("there is one"));
        command.env(WORKER, format!("{waits} {}", self.address)).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a worker starts");
        let says = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut worker = Worker { child, says };
        worker.listen_for("ready");
        worker
    }

    /// Makes sessions, and hands a message in to each.
    async fn hand_in(&self, sessions: usize, message: &str) {
        for number in 0..sessions {
            let key = key(number);
            runner(&self.store, false)
                .build()
                .session(key.user.as_str(), key.id.as_str())
                .await
                .expect("the store works");
            let body = Input::from("go on").to_json().expect("a text can wait");
            let named = IdempotencyKey::new(message).expect("a valid key");
            let at = Timestamp::from_micros(0);
            let entry = EnqueueInput::new(key, InboxKind::Message, named, body, at);
            self.store.enqueue(entry).await.expect("the store works");
        }
    }

    /// Waits until all sessions are at this version.
    async fn until(&self, sessions: usize, version: u64) {
        let mut number = 0;
        while number < sessions {
            let get = GetSession::new(key(number)).events(EventRange::None).without_state();
            match self.store.get(get).await.expect("the store works").version >= version {
                true => number += 1,
                // tidy: allow sleep, because other processes are asked, and do not tell by themselves
                false => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }
}

async fn open(address: &str) -> AnyStore {
    match address {
        "" => AnyStore::new(MemoryStore::new()),
        address if address.starts_with("postgres") || address.contains("host=") => {
            AnyStore::new(PostgresStore::open(address.to_owned()).await.expect("the server is ours"))
        }
        path => {
            let file = SqliteOptions::new(path).durability(Durability::Process);
            AnyStore::new(file.open().expect("the file is ours"))
        }
    }
}

fn key(number: usize) -> SessionKey {
    SessionKey::new("bench", format!("u{}", number % 20), format!("s{number}")).expect("a valid key")
}

/// A worker in a process of its own.
struct Worker {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Worker {
    fn listen_for(&mut self, what: &str) {
        let mut line = String::new();
        while line.trim() != what {
            line.clear();
            assert!(self.says.read_line(&mut line).expect("a pipe") > 0, "the worker has ended");
        }
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.expect("there is kill").success());
    }

    fn cpu(&self) -> Duration {
        cpu(&format!("/proc/{}/task", self.child.id()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The CPU time of all threads, in user and in system mode.
fn cpu(tasks: &str) -> Duration {
    let threads: Vec<PathBuf> = std::fs::read_dir(tasks)
        .expect("this is a benchmark for Linux")
        .map(|thread| thread.expect("Linux tells").path().join("schedstat"))
        .collect();
    let nanos = |path: PathBuf| std::fs::read_to_string(path).ok()?.split(' ').next()?.parse::<u64>().ok();
    Duration::from_nanos(threads.into_iter().filter_map(nanos).sum())
}

fn own_cpu() -> Duration {
    cpu("/proc/self/task")
}

fn setting(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn millis(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    if let Ok(role) = std::env::var(WORKER) {
        let (waits, address) = role.split_once(' ').expect("the parent says both");
        return runtime.block_on(work(waits == "true", address));
    }
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_asked = |among: &[&str], word: &str| {
        let some = asked.iter().any(|asked| among.contains(&&**asked));
        !some || asked.iter().any(|asked| asked == word)
    };
    let (parts, stores) =
        (["cost", "rate", "takeover", "keys", "idle", "check", "retain"], ["memory", "sqlite", "postgres"]);
    for part in parts.into_iter().filter(|part| is_asked(&parts, part)) {
        for kind in stores.into_iter().filter(|kind| is_asked(&stores, kind)) {
            runtime.block_on(measure(part, kind));
        }
    }
}

async fn work(waits: bool, address: &str) {
    let store = open(address).await;
    let recovery = runner(&store, waits).build().recover(RecoverOptions::new().parallel(8));
    println!("ready");
    recovery.await.expect("the store has claims");
}

async fn measure(part: &str, kind: &str) {
    // Only a process of its own can be killed, or tell its CPU time apart.
    if kind == "memory" && matches!(part, "rate" | "takeover" | "idle") {
        return;
    }
    let Some(place) = Place::open(kind, &format!("hosts_{part}")).await else {
        return eprintln!("skipped: PostgreSQL is not installed");
    };
    match part {
        "cost" => cost(kind, &place).await,
        "rate" => rate(kind, &place).await,
        "takeover" => takeover(kind, &place).await,
        "keys" => keys(kind, &place).await,
        "check" => check(kind, &place).await,
        "retain" => retain(kind, &place).await,
        _ => idle(kind, &place).await,
    }
}

/// In turns, so that what the machine does beside is in both.
async fn cost(kind: &str, place: &Place) {
    let sessions = setting("SESSIONS", 200);
    let (mut alone, mut recovered) = (Vec::new(), Vec::new());
    for round in 0..7 {
        let messages = runner(&place.store, false).build();
        let mut handles = Vec::new();
        for number in 0..sessions {
            let key = key(number);
            handles
                .push(messages.session(key.user.as_str(), key.id.as_str()).await.expect("the store works"));
        }
        let before = own_cpu();
        for handle in &handles {
            handle.run("go on").await.expect("it runs");
        }
        alone.push(own_cpu().saturating_sub(before));
        drop((handles, messages));
        place.hand_in(sessions, &format!("m{round}")).await;
        let recovery = runner(&place.store, false).build();
        let before = own_cpu();
        recovery.recover(RecoverOptions::new().parallel(8).once()).await.expect("it recovers");
        recovered.push(own_cpu().saturating_sub(before));
    }
    let steps = u32::try_from(sessions * STEPS).expect("they are few");
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2] / steps
    };
    let (alone, recovered) = (median(&mut alone), median(&mut recovered));
    let ratio = recovered.as_secs_f64() / alone.as_secs_f64();
    let (alone, recovered) = (millis(alone), millis(recovered));
    println!("cost {kind}: a step of the runner alone {alone}, of recovery {recovered}: {ratio:.2}");
}

async fn rate(kind: &str, place: &Place) {
    let sessions = setting("SESSIONS", 200);
    // Began, four times a reply and an outcome, and the last reply.
    let events = (2 * STEPS) as u64;
    let mut version = 0;
    for workers in [1, 2, 1, 2] {
        place.hand_in(sessions, &format!("m{version}")).await;
        version += events;
        let running: Vec<Worker> = (0..workers).map(|_| place.worker(false)).collect();
        // A message is left for as long as a claim to who has accepted it. The oldest is taken first.
        place.until(1, version - events + 1).await;
        let began = Instant::now();
        place.until(sessions, version).await;
        let took = began.elapsed();
        let cpu: Duration = running.iter().map(Worker::cpu).sum();
        let rate = f64::from(u32::try_from(sessions).expect("they are few")) / took.as_secs_f64();
        let cpu = millis(cpu / u32::try_from(sessions).expect("they are few"));
        println!(
            "rate {kind}: {workers} workers, {rate:.0} turns of {STEPS} steps a second, {cpu} of CPU a turn"
        );
    }
}

/// The new agent has other instructions.
async fn check(kind: &str, place: &Place) {
    let sessions = setting("SESSIONS", 100_000);
    let before = runner(&place.store, false).build();
    for number in 0..sessions {
        let user = format!("u{}", number % 1_000);
        let handle = before.session(user, number.to_string()).await.expect("the store works");
        handle.run(if number % 2 == 0 { "ask" } else { "go on" }).await.expect("it runs");
    }
    drop(before);
    let agent = agent(false).to_builder().instructions("Be brief.").build().expect("the agent is valid");
    let runner = Runner::builder(agent, place.store.clone()).build();
    let (memory, cpu, began) = (resident(), own_cpu(), Instant::now());
    let (mut check, mut counts, mut most) = (runner.check_upgrade(), UpgradeCounts::default(), memory);
    while let Some(run) = check.next().await.expect("the store works") {
        counts.add(&run);
        if counts.total() % 1_000 == 0 {
            most = most.max(resident());
        }
    }
    let (took, cpu) = (began.elapsed(), own_cpu().saturating_sub(cpu));
    let found = usize::try_from(counts.total()).expect("they are few");
    assert_eq!(found, sessions.div_ceil(2), "each run that waits");
    let each = millis(cpu / u32::try_from(found).expect("they are few"));
    let grown = most.saturating_sub(memory) >> 10;
    let (took, cpu) = (took.as_secs_f64(), cpu.as_secs_f64());
    println!(
        "check {kind}: {found} runs of {sessions} sessions in {took:.1} s, {cpu:.1} s of CPU ({each} a run), {grown} KiB more"
    );
}

/// Sessions of two events, all of them of yesterday but for those that have to go.
async fn retain(kind: &str, place: &Place) {
    const DUE: usize = 100;
    let sessions = setting("SESSIONS", 100_000);
    let schema: SessionSchema = Schema::builder().build().expect("the schema is valid").into();
    let (now, day) = (runner(&place.store, false).build().now(), Duration::from_secs(24 * 60 * 60));
    for number in 0..sessions {
        let at = now.before(if number % (sessions / DUE) == 0 { day * 100 } else { day });
        let user = format!("u{}", number % 1_000);
        let key = SessionKey::new("bench", user, number.to_string()).expect("the ids are valid");
        place.store.create(CreateSession::with_key(key.clone(), &schema, at)).await.expect("the store works");
        for version in 0..2 {
            let id = EventId::new(format!("e{version}")).expect("the id is valid");
            let (invocation, author) = (InvocationId::new("i"), Author::new("user"));
            let event = Event::new(id, invocation.expect("valid"), author.expect("valid"), at);
            let append = AppendEvent::new(key.clone(), version, event, &schema);
            place.store.append(append).await.expect("the store works");
        }
    }
    let policy = RetentionPolicy::new().delete_idle_after(day * 30).keep_events_for(day * 10);
    let runner = runner(&place.store, false).retention(policy).build();
    for due in [DUE, 0] {
        let (memory, cpu, began) = (resident(), own_cpu(), Instant::now());
        let report = runner.retain(RetentionOptions::new()).await.expect("the store works");
        let (took, cpu) = (began.elapsed().as_secs_f64(), own_cpu().saturating_sub(cpu).as_secs_f64());
        assert_eq!(report.deleted.len(), due, "exactly those that are due");
        let grown = resident().saturating_sub(memory) >> 10;
        println!(
            "retain {kind}: {due} of {sessions} sessions deleted in {took:.2} s, {cpu:.2} s of CPU, {grown} KiB more"
        );
    }
}

/// The bytes of this process in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("this is a benchmark for Linux");
    status.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("Linux tells") * 4_096
}

async fn takeover(kind: &str, place: &Place) {
    for (number, signal) in ["-KILL", "-STOP", "-KILL", "-STOP", "-KILL", "-STOP"].into_iter().enumerate() {
        let key = key(number);
        let session = runner(&place.store, false).build().session(key.user.as_str(), key.id.as_str()).await;
        let body = Input::from("go on").to_json().expect("a text can wait");
        let named = IdempotencyKey::new("m1").expect("a valid key");
        let entry =
            EnqueueInput::new(key.clone(), InboxKind::Message, named, body, Timestamp::from_micros(0));
        drop(session.expect("the store works"));
        let mut first = place.worker(true);
        place.store.enqueue(entry).await.expect("the store works");
        first.listen_for("called");
        let second = place.worker(false);
        let began = Instant::now();
        first.signal(signal);
        loop {
            let get = GetSession::new(key.clone()).events(EventRange::Last(1)).without_state();
            let read = place.store.get(get).await.expect("the store works");
            if read.events.last().is_some_and(|last| last.event.metadata.contains("exit")) {
                break;
            }
            // tidy: allow sleep, because this is what is measured, or other processes are asked
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let took = began.elapsed();
        drop((first, second));
        let ratio = took.as_secs_f64() / CLAIM.as_secs_f64();
        println!("takeover {kind}: {signal}, the run has ended after {took:?}, {ratio:.2} of the claim");
    }
}

/// What is repeated: an old run, an old edit, and an old decision. The first two in a process that has not read the session;
/// a decision continues the session, and so reads it where that is not in memory.
const REPEATED: [&str; 3] =
    ["key of `run_as`", "key of an edit", "key of a decision, in a session kept open,"];

async fn keys(kind: &str, place: &Place) {
    let turns = setting("TURNS", 2_000);
    let key = key(0);
    let open = async || {
        let reader = runner(&place.store, false).build();
        reader.session(key.user.as_str(), key.id.as_str()).await.expect("the store works")
    };
    let session = open().await;
    let edit = Edit::new().set("n", 1).with_idempotency_key("e1");
    session.edit(edit.clone()).await.expect("it is new");
    let request = session.run("ask").await.expect("it runs").pending()[0].id.clone();
    let decide = || session.resume().decide(&*request, Decision::Approve).idempotency_key("d1");
    decide().await.expect("it is decided");
    let mut measured = Vec::new();
    for turn in 1..=turns {
        session.run_as(format!("k{turn}"), "go on").await.expect("it runs");
        if turn != 20 && turn != turns {
            continue;
        }
        let mut times = [const { Vec::new() }; REPEATED.len()];
        for number in 0..40 {
            let reader = open().await;
            let before = own_cpu();
            let report = reader.run_as(format!("k{}", 1 + number % 10), "go on").await.expect("it was");
            times[0].push(own_cpu().saturating_sub(before));
            assert!(report.status.is_finished());
            let reader = open().await;
            let before = own_cpu();
            let receipt = reader.edit(edit.clone()).await.expect("it was made");
            times[1].push(own_cpu().saturating_sub(before));
            assert_eq!(receipt.version, 1);
            let before = own_cpu();
            let (receipt, _) = decide().submit().await.expect("it was decided");
            times[2].push(own_cpu().saturating_sub(before));
            assert!(receipt.version < 10);
        }
        measured.push(times.map(|mut times| {
            times.sort_unstable();
            times[times.len() / 2]
        }));
    }
    for (repeated, (few, many)) in REPEATED.iter().zip(measured[0].into_iter().zip(measured[1])) {
        let ratio = many.as_secs_f64() / few.as_secs_f64();
        let (few, many) = (millis(few), millis(many));
        println!(
            "keys {kind}: an old {repeated} after 20 turns {few}, after {turns} turns {many}: {ratio:.2}"
        );
    }
}

async fn idle(kind: &str, place: &Place) {
    let (sessions, seconds) = (setting("SESSIONS", 10_000), setting("SECONDS", 60));
    let writer = runner(&place.store, false).build();
    let worker = place.worker(false);
    for sessions in [0, sessions] {
        for number in 0..sessions {
            let key = key(number);
            let session = writer.session(key.user.as_str(), key.id.as_str()).await.expect("the store works");
            session.run("go on").await.expect("it runs");
        }
        // What the worker has heard of commits is done with.
        // tidy: allow sleep, because this is what is measured, or other processes are asked
        tokio::time::sleep(Duration::from_secs(3)).await;
        let before = worker.cpu();
        // tidy: allow sleep, because this is what is measured, or other processes are asked
        tokio::time::sleep(Duration::from_secs(seconds as u64)).await;
        let used = worker.cpu().saturating_sub(before);
        println!(
            "idle {kind}: beside {sessions} sessions a worker used {} of CPU in {seconds} s",
            millis(used)
        );
    }
}
