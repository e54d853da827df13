//! What live streams and concurrent runs cost the server, which is a process of its own.
//! `cargo bench -p stepfold-server --all-features --bench streams`; Linux only, and `ulimit -n` above twice the streams.
//!
//! `STREAMS` (10,000) readers of `STREAMS` / 100 sessions, each session with a run of 50 pieces of text; then `RUNS`
//! (1,000) runs at once, each of a session of its own. Goals: 22 kB a stream above the idle server, 6 us of CPU an event
//! delivered. At last `TURNS` (200) turns of one session over SQLite, one after the other, without streams and beside
//! `STREAMS` idle ones: of other sessions, and of all sessions of the user. Goal: twice the CPU at most.

#![allow(clippy::expect_used, reason = "a benchmark stops when it cannot go on")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]
#![allow(
    clippy::disallowed_methods,
    reason = "it measures this machine, and is told its sizes by the environment"
)]
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use futures_util::future::join_all;
use stepfold_agent_loop::Agent;
use stepfold_runner::Runner;
use stepfold_server::http::{Limits, Principal, Role, Server, Token, Tokens};
use stepfold_session_scopes::{AnyStore, MemoryStore, SqliteStore};
use stepfold_state_core::chat::{ChatModel, ChatRequest, Chunk, FinishReason, ReplyStream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The variable that makes a process the server.
const SERVES: &str = "STEPFOLD_BENCH_SERVES";
/// The path of sessions.
const SESSIONS: &str = "/apps/bench/sessions";
const PIECES: usize = 50;
const READERS_OF_A_SESSION: usize = 100;

/// Says fifty words, one at a time, and lets others work between them.
struct Words;

impl ChatModel for Words {
    fn id(&self) -> &'static str {
        "bench"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        let words = (0..PIECES).map(|_| Ok(Chunk::Text("stepfold ".to_owned())));
        let chunks = words.chain([Ok(Chunk::Finished(FinishReason::Stop))]);
        ReplyStream::new(futures_util::stream::unfold(chunks, |mut chunks| async move {
            tokio::task::yield_now().await;
            chunks.next().map(|chunk| (chunk, chunks))
        }))
    }
}

fn size(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be built");
    if let Ok(file) = std::env::var(SERVES) {
        runtime.block_on(serve(&file));
    } else if std::env::args().any(|argument| argument == "--bench") {
        runtime.block_on(measure());
    }
}

/// The server, over a file if it has a name: it says its address and a token in a line.
async fn serve(file: &str) {
    let agent = Agent::builder(Words).name("bench").build().expect("the agent is valid");
    let store = match file {
        "" => AnyStore::new(MemoryStore::new()),
        file => AnyStore::new(SqliteStore::open(file).expect("the file can be made")),
    };
    let runner = Runner::builder(agent, store).build();
    let token = Token::random().expect("there is luck");
    let principal = Principal::new("ada", Role::Administer).expect("the name is valid");
    let mut limits = Limits::default();
    (limits.streams_per_user, limits.runs_per_user) = (usize::MAX, usize::MAX);
    (limits.streams, limits.connections) = (usize::MAX, 100_000);
    let server = Server::builder().app(runner).auth(Tokens::new().with(&token, principal)).limits(limits);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    println!("{} {}", listener.local_addr().expect("it has an address"), token.secret());
    server.build().expect("the server is valid").serve(listener).await;
}

/// The server's process, seen from outside.
struct Served {
    child: Child,
    address: String,
    token: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    fn start(file: &str) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut child =
            Command::new(program).env(SERVES, file).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("its output is piped");
        BufReader::new(output).read_line(&mut line).expect("it says where it is");
        let (address, token) = line.trim().split_once(' ').expect("an address and a token");
        let (address, token) = (address.to_owned(), token.to_owned());
        Served { child, address, token }
    }

    /// Resident memory, in kB.
    fn memory(&self) -> f64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("Linux tells");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// CPU time, in seconds: of hundredths.
    fn cpu(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("Linux tells");
        // After the name, which may have spaces: user and system time are the 12th and 13th.
        let fields = stat.rsplit_once(')').expect("a name").1.split_whitespace().skip(11).take(2);
        fields.map(|field| field.parse::<f64>().expect("a number")).sum::<f64>() / 100.0
    }

    async fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).await.expect("it listens");
        let (address, token, length) = (&self.address, &self.token, body.len());
        let request = format!(
            "{method} /api/v1{path} HTTP/1.0\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.expect("it reads");
        stream
    }

    /// Waits for the whole answer.
    async fn ask(&self, path: &str, body: String) {
        let mut answer = String::new();
        let mut stream = self.send("POST", &format!("{SESSIONS}{path}"), &body).await;
        stream.read_to_string(&mut answer).await.expect("it answers");
        assert!(answer.starts_with("HTTP/1.0 20"), "{answer}");
    }

    async fn create(&self, prefix: &str, sessions: usize) {
        for number in 0..sessions {
            self.ask("", format!("{{\"id\":\"{prefix}{number}\"}}")).await;
        }
    }
}

/// Reads a stream until this event has come; the number of events.
async fn read_until(stream: &mut TcpStream, last: &str) -> usize {
    let (mut buffer, mut text, mut events) = (vec![0; 16 << 10], String::new(), 0);
    let last = format!("event: {last}\n");
    loop {
        let read = stream.read(&mut buffer).await.expect("it goes on");
        assert!(read > 0, "the stream ended: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        let Some(end) = text.rfind("\n\n") else { continue };
        let rest = text.split_off(end + 2);
        events += text.matches("event: ").count();
        if text.contains(&last) {
            return events;
        }
        text = rest;
    }
}

async fn measure() {
    let (streams, runs) = (size("STREAMS", 10_000), size("RUNS", 1_000));
    let sessions = streams.div_ceil(READERS_OF_A_SESSION);
    let served = Served::start("");
    served.create("s", sessions).await;
    let idle = served.memory();
    let mut open = Vec::with_capacity(streams);
    for number in 0..streams {
        let mut stream = served.send("GET", &format!("{SESSIONS}/s{}/live", number % sessions), "").await;
        read_until(&mut stream, "hello").await;
        open.push(stream);
    }
    let each = (served.memory() - idle) / streams as f64;
    println!(
        "{streams} streams of {sessions} sessions: {each:.1} kB each above the idle server ({idle:.0} kB)"
    );

    let (cpu, began) = (served.cpu(), Instant::now());
    let readers = join_all(open.iter_mut().map(|stream| read_until(stream, "ended")));
    let senders = join_all((0..sessions).map(|number| {
        let served = &served;
        async move { served.ask(&format!("/s{number}/messages"), r#"{"text":"go"}"#.to_owned()).await }
    }));
    let (events, _) = tokio::join!(readers, senders);
    let events: usize = events.iter().sum();
    let (cpu, took) = (served.cpu() - cpu, began.elapsed().as_secs_f64());
    let each = cpu * 1e6 / events as f64;
    println!("{events} events delivered in {took:.2} s: {each:.2} us of CPU each, runs included");
    drop(open);

    served.create("r", runs).await;
    let (cpu, began) = (served.cpu(), Instant::now());
    let all = (0..runs).map(|number| {
        let served = &served;
        async move { served.ask(&format!("/r{number}/run"), r#"{"text":"go"}"#.to_owned()).await }
    });
    join_all(all).await;
    let (cpu, took) = (served.cpu() - cpu, began.elapsed().as_secs_f64());
    println!("{runs} runs at once in {took:.2} s: {:.0} us of CPU each", cpu * 1e6 / runs as f64);
    drop(served);
    turns_beside_streams(streams, size("TURNS", 200)).await;
}

/// Measures turns over SQLite beside idle streams.
async fn turns_beside_streams(streams: usize, turns: usize) {
    let alone = turns_beside(0, turns, "").await;
    println!("{turns} turns over SQLite without streams: {alone:.2} s of CPU");
    for (what, path) in
        [("of other sessions", "{SESSIONS}/s{}/live"), ("of all sessions of the user", "/live")]
    {
        let beside = turns_beside(streams, turns, path).await;
        let ratio = beside / alone;
        println!(
            "{turns} turns over SQLite beside {streams} streams {what}: {beside:.2} s of CPU, {ratio:.1} x"
        );
    }
}

async fn turns_beside(streams: usize, turns: usize, path: &str) -> f64 {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let served = Served::start(folder.path().join("sessions.db").to_str().expect("its path is text"));
    let sessions = streams.div_ceil(READERS_OF_A_SESSION);
    served.create("s", sessions).await;
    served.create("t", 1).await;
    let mut open = tokio::task::JoinSet::new();
    for number in 0..streams {
        let path = path.replace("{SESSIONS}", SESSIONS).replace("{}", &(number % sessions).to_string());
        let mut stream = served.send("GET", &path, "").await;
        read_until(&mut stream, "hello").await;
        open.spawn(async move { tokio::io::copy(&mut stream, &mut tokio::io::sink()).await });
    }
    // tidy: allow sleep, because what the streams begin with is told meanwhile, and no event says that it was
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let cpu = served.cpu();
    for _ in 0..turns {
        served.ask("/t0/run", r#"{"text":"go"}"#.to_owned()).await;
    }
    served.cpu() - cpu
}
