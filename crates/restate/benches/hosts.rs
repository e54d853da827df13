//! What a step of a run costs over Restate, against the runner alone. `cargo bench -p stepfold-restate --bench hosts`; names of
//! parts (`cost`, `rate`) and of stores (`sqlite`, `postgres`) for these only; `SESSIONS=200`, `ROUNDS=5`. The server is that of
//! `STEPFOLD_INTEROP_RESTATE`, which `cargo xtask interop` installs.
//!
//! - `cost`: the CPU time of a step of a run that the caller awaits, of one that a worker of Restate runs in a process of its
//!   own, and what the server uses beside that.
//! - `rate`: turns a second of many sessions, on one worker and on two.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark reads the clock, stops when it cannot go on, and says what it found"
)]
#![allow(dead_code, reason = "parts of the tests are used here")]

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stepfold_agent_loop::Agent;
use stepfold_restate::RestateWorker as Serving;
use stepfold_runner::{Runner, RunnerBuilder};
use stepfold_session_scopes::{
    AnyStore, Durability, EventRange, GetSession, PostgresStore, SessionKey, SessionStore, SqliteOptions,
};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCall,
};
use stepfold_tools::{Effect, Tool, ToolError};
use tempfile::TempDir;
use tokio::net::TcpListener;

#[path = "../tests/it/balancer.rs"]
mod balancer;
#[path = "../../providers/tests/it/installed.rs"]
mod installed;
#[path = "../../session-scopes/tests/it/server.rs"]
mod postgres;
#[path = "../tests/it/server.rs"]
mod server;

use balancer::Balancer;
use server::Server;

/// Tells this binary that it is a worker, and of which store.
const WORKER: &str = "STEPFOLD_BENCH_WORKER";

/// The name of the app, as the helper of the tests has it.
const APP: &str = "clerk";

/// The steps of a run: calls, each in a reply of its own, and the last reply.
const STEPS: usize = 5;

/// Calls a tool four times, and then says that it is done.
struct Model;

impl ChatModel for Model {
    fn id(&self) -> &'static str {
        "bench"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let since = request.messages.iter().rev().take_while(|message| message.role() != Role::User).count();
        let call = ToolCall::new(format!("c{since}"), "nothing", serde_json::json!({}));
        let (message, finish) = match since / 2 + 1 < STEPS {
            true => (Message::new(Role::Assistant).with_part(call), FinishReason::ToolCalls),
            false => (Message::assistant("done"), FinishReason::Stop),
        };
        ReplyStream::from_chunks(Chunk::of(&message).into_iter().chain([Chunk::Finished(finish)]))
    }
}

fn runner(store: &AnyStore) -> RunnerBuilder {
    let nothing = || async { Ok::<_, ToolError>("") };
    let tool = Tool::new("nothing", "Does nothing.", nothing).effect(Effect::Pure);
    let agent = Agent::builder(Model).name("bench").tools([tool.build().expect("the tool is valid")]);
    let agent = agent.build().expect("the agent is valid");
    Runner::builder(agent, store.clone()).app(APP).expect("a valid name")
}

async fn open(address: &str) -> AnyStore {
    if address.starts_with("postgres") {
        return AnyStore::new(PostgresStore::open(address.to_owned()).await.expect("the server is ours"));
    }
    let file = SqliteOptions::new(address).durability(Durability::Process);
    AnyStore::new(file.open().expect("the file is ours"))
}

fn key(number: usize) -> SessionKey {
    SessionKey::new(APP, format!("u{}", number % 20), format!("s{number}")).expect("a valid key")
}

/// A worker in a process of its own.
struct Worker {
    child: Child,
    address: SocketAddr,
}

impl Worker {
    fn start(store: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("there is one"));
        let mut child = command.env(WORKER, store).stdout(Stdio::piped()).spawn().expect("a worker starts");
        let mut line = String::new();
        let mut says = BufReader::new(child.stdout.take().expect("a pipe"));
        assert!(says.read_line(&mut line).expect("a pipe") > 0, "the worker has ended");
        Worker { child, address: line.trim().parse().expect("an address") }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn work(store: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a port");
    let worker = Serving::new(runner(&open(store).await).build());
    println!("{}", listener.local_addr().expect("it has one"));
    worker.serve(listener, std::future::pending::<()>()).await;
}

/// The CPU time of all threads of a process, in user and in system mode.
fn cpu(process: u32) -> Duration {
    let threads: Vec<PathBuf> = std::fs::read_dir(format!("/proc/{process}/task"))
        .expect("this is a benchmark for Linux")
        .map(|thread| thread.expect("Linux tells").path().join("schedstat"))
        .collect();
    let nanos = |path: PathBuf| std::fs::read_to_string(path).ok()?.split(' ').next()?.parse::<u64>().ok();
    Duration::from_nanos(threads.into_iter().filter_map(nanos).sum())
}

fn setting(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).expect("they are few")
}

fn millis(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// A store, a server of Restate, and sessions.
struct Place {
    address: String,
    store: AnyStore,
    server: Server,
    balancer: Balancer,
    sessions: usize,
    /// The newest version of each session.
    version: u64,
    _folder: TempDir,
}

impl Place {
    async fn open(kind: &str, part: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let address = match kind {
            "sqlite" => folder.path().join("sessions.db").display().to_string(),
            _ => postgres::server()?.database(&format!("restate_{part}")).await,
        };
        let (store, server) = (open(&address).await, Server::start().await?);
        let (balancer, sessions) = (Balancer::start().await, setting("SESSIONS", 200));
        let runner = runner(&store).build();
        for number in 0..sessions {
            let key = key(number);
            runner.session(key.user.as_str(), key.id.as_str()).await.expect("the store works");
        }
        let first = Worker::start(&address);
        balancer.to(&[first.address]);
        server.register(balancer.address).await;
        Some(Place { address, store, server, balancer, sessions, version: 0, _folder: folder })
    }

    fn workers(&self, number: usize) -> Vec<Worker> {
        let workers: Vec<Worker> = (0..number).map(|_| Worker::start(&self.address)).collect();
        self.balancer.to(&workers.iter().map(|worker| worker.address).collect::<Vec<_>>());
        workers
    }

    /// A turn of each session, as Restate runs it.
    async fn turn(&mut self) {
        self.version += (2 * STEPS) as u64;
        let client = self.server.client();
        for number in 0..self.sessions {
            let key = key(number);
            let session = client.session(key.user.as_str(), key.id.as_str()).expect("a valid key");
            session.send(&*format!("m{}", self.version), "go on").await.expect("the server works");
        }
        let mut number = 0;
        while number < self.sessions {
            let get = GetSession::new(key(number)).events(EventRange::None).without_state();
            match self.store.get(get).await.expect("the store works").version >= self.version {
                true => number += 1,
                // tidy: allow sleep, because other processes are asked, and do not tell by themselves
                false => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }
}

/// In turns, so that what the machine does beside is in both.
async fn cost(kind: &str, mut place: Place) {
    let (mut alone, mut worked, mut served) = (Vec::new(), Vec::new(), Vec::new());
    let workers = place.workers(1);
    let process = workers[0].child.id();
    // The first turn connects.
    place.turn().await;
    for _ in 0..setting("ROUNDS", 5) {
        let messages = runner(&place.store).build();
        let mut handles = Vec::new();
        for number in 0..place.sessions {
            let key = key(number);
            handles
                .push(messages.session(key.user.as_str(), key.id.as_str()).await.expect("the store works"));
        }
        let before = cpu(std::process::id());
        for handle in &handles {
            handle.run("go on").await.expect("it runs");
        }
        alone.push(cpu(std::process::id()).saturating_sub(before));
        place.version += (2 * STEPS) as u64;
        drop((handles, messages));
        let before = (cpu(process), cpu(place.server.process()));
        place.turn().await;
        worked.push(cpu(process).saturating_sub(before.0));
        served.push(cpu(place.server.process()).saturating_sub(before.1));
    }
    let steps = count(place.sessions * STEPS);
    let [alone, worked, served] = [alone, worked, served].map(|mut times| median(&mut times) / steps);
    let ratio = worked.as_secs_f64() / alone.as_secs_f64();
    let (alone, worked, served) = (millis(alone), millis(worked), millis(served));
    println!(
        "cost {kind}: a step of the runner alone {alone}, of a worker of Restate {worked}: {ratio:.2}; \
         of the server of Restate {served} more"
    );
}

async fn rate(kind: &str, mut place: Place) {
    for number in [1, 2, 1, 2] {
        let workers = place.workers(number);
        let began = Instant::now();
        place.turn().await;
        let took = began.elapsed();
        let used: Duration = workers.iter().map(|worker| cpu(worker.child.id())).sum();
        let rate = f64::from(count(place.sessions)) / took.as_secs_f64();
        let used = millis(used / count(place.sessions));
        println!(
            "rate {kind}: {number} workers, {rate:.0} turns of {STEPS} steps a second, {used} of CPU a turn"
        );
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    if let Ok(store) = std::env::var(WORKER) {
        return runtime.block_on(work(&store));
    }
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_asked = |among: &[&str], word: &str| {
        let some = asked.iter().any(|asked| among.contains(&&**asked));
        !some || asked.iter().any(|asked| asked == word)
    };
    let (parts, stores) = (["cost", "rate"], ["sqlite", "postgres"]);
    for part in parts.into_iter().filter(|part| is_asked(&parts, part)) {
        for kind in stores.into_iter().filter(|kind| is_asked(&stores, kind)) {
            runtime.block_on(async {
                match (part, Place::open(kind, part).await) {
                    (_, None) => eprintln!("skipped: PostgreSQL or the server of Restate is not installed"),
                    ("cost", Some(place)) => cost(kind, place).await,
                    (_, Some(place)) => rate(kind, place).await,
                }
            });
        }
    }
}
