//! What reading a long session costs over HTTP, at its beginning and at its end.
//! `cargo bench -p stepfold-server --all-features --bench reads`
//!
//! A session of `COMMITS` (10,000) commits over a SQLite file: runs of one call that writes two keys. The first question
//! about origins reads the session; those after it cost what they show. Each figure is the median of `TIMES` (200) requests
//! on one connection, at versions near the beginning, and near the end, with the ratio of both. Goal: 2 ms for the state at
//! a version.

#![allow(clippy::expect_used, reason = "a benchmark stops when it cannot go on")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]
#![allow(
    clippy::disallowed_methods,
    reason = "it measures this machine, and is told its sizes by the environment"
)]
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use std::time::Instant;

use serde_json::{Value, json};
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::trim::Trim;
use stepfold_runner::Runner;
use stepfold_server::http::{Principal, Role, Server, Token, Tokens};
use stepfold_session_scopes::{EventRange, SqliteStore};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, ReplyStream, Role as Speaker, ToolCallChunk,
};
use stepfold_state_core::state::{Handler, Schema};
use stepfold_tools::{Effect, Tool, ToolError};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Calls a tool about each message, and then says that it did.
struct Caller;

impl ChatModel for Caller {
    fn id(&self) -> &'static str {
        "bench"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let is_asked = request.messages.last().is_some_and(|last| last.role() == Speaker::User);
        let chunks = if is_asked {
            let call = ToolCallChunk::new(0, "{}").with_id("c1").with_name("count");
            vec![Chunk::ToolCall(call), Chunk::Finished(FinishReason::ToolCalls)]
        } else {
            vec![Chunk::Text("It is counted.".to_owned()), Chunk::Finished(FinishReason::Stop)]
        };
        ReplyStream::new(futures_util::stream::iter(chunks.into_iter().map(Ok)))
    }
}

async fn count() -> Result<Value, ToolError> {
    Ok(json!({"one": 1, "note": "the stall at the gate"}))
}

fn agent() -> Agent {
    let count = Tool::new("count", "Counts a stall.", count)
        .output_to_state("counted", "one")
        .output_to_state("note", "note")
        .effect(Effect::Pure)
        .build()
        .expect("the tool is valid");
    let schema = Schema::builder().key::<u64>("counted").handler(Handler::sum()).key::<String>("note");
    let schema = schema.build().expect("the schema is valid");
    let agent = Agent::builder(Caller).name("bench").schema(schema).tools([count]);
    // As a person sees it: the model is not shown all of a long conversation.
    agent.trim(Trim::keep_last(20)).build().expect("the agent is valid")
}

fn size(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn main() {
    if std::env::args().any(|argument| argument == "--bench") {
        tokio::runtime::Runtime::new().expect("a runtime can be built").block_on(measure());
    }
}

/// A connection to the server.
struct Client {
    stream: BufReader<TcpStream>,
    token: String,
}

impl Client {
    /// The time of a request in microseconds, and the bytes of its answer.
    async fn get(&mut self, path: &str) -> (f64, usize) {
        let token = &self.token;
        let request = format!(
            "GET /api/v1/apps/bench/sessions/s1{path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        let began = Instant::now();
        self.stream.get_mut().write_all(request.as_bytes()).await.expect("it reads");
        let (mut length, mut is_first) = (0, true);
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).await.expect("it answers");
            assert!(!is_first || line.contains(" 200 "), "{path}: {line}");
            is_first = false;
            if let Some(number) = line.to_lowercase().strip_prefix("content-length: ") {
                length = number.trim().parse().expect("a number");
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.expect("it is whole");
        (began.elapsed().as_secs_f64() * 1e6, length)
    }

    /// The median time at versions from this one on.
    async fn median(&mut self, path: &str, from: u64, times: u64) -> (f64, usize) {
        let (mut all, mut bytes) = (Vec::new(), 0);
        for place in 0..times {
            let (at, before) = (from + place % 40, from + place % 40 - 1);
            let path = path.replace("AT", &at.to_string()).replace("BEFORE", &before.to_string());
            let (took, length) = self.get(&path).await;
            all.push(took);
            bytes = length;
        }
        all.sort_by(f64::total_cmp);
        (all[all.len() / 2], bytes)
    }
}

async fn measure() {
    let (commits, times) = (size("COMMITS", 10_000), size("TIMES", 200));
    let folder = tempfile::tempdir().expect("there is a folder");
    let store = SqliteStore::open(folder.path().join("sessions.db")).expect("the store opens");
    let runner = Runner::builder(agent(), store).build();
    let session = runner.session("ada", "s1").await.expect("it is made");
    let mut newest = 0;
    while newest < commits {
        session.run("count").await.expect("it runs");
        newest = session.read(EventRange::None).await.expect("it is read").version;
    }
    drop(session);
    let token = Token::random().expect("there is luck");
    let tokens = Tokens::new().with(&token, Principal::new("ada", Role::Administer).expect("valid"));
    let server = Server::builder().app(runner).auth(tokens).build().expect("the server is valid");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let stream = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("it listens");
    stream.set_nodelay(true).expect("it can be set");
    tokio::spawn(server.serve(listener));
    let mut client = Client { stream: BufReader::new(stream), token: token.secret().to_owned() };

    println!("{newest} commits over SQLite");
    let (first, _) = client.get("/state?origin=true").await;
    println!("{:<44} {:>9.2} ms", "the first question about origins", first / 1e3);
    println!("{:<44} {:>12} {:>12} {:>6} {:>9}", "", "beginning", "end", "ratio", "bytes");
    for (name, path, most) in [
        ("state at a version", "/state?at=AT", times),
        ("state with origins", "/state?at=AT&origin=true", times),
        ("blame, 20 writes", "/blame?key=counted&at=AT&limit=20", times),
        ("difference to the version before", "/diff?from=BEFORE&to=AT", times),
        ("a commit", "/events/AT", times),
        ("a page of 500 brief commits", "/events?after=AT&limit=500&brief=true", times),
        ("usage", "/usage?at=AT", times),
        ("what the model was shown", "/model?at=AT", times / 10),
    ] {
        let most = most.max(1);
        let (early, _) = client.median(path, 100, most).await;
        let (late, bytes) = client.median(path, newest - 550, most).await;
        let ratio = late / early;
        println!("{name:<44} {:>9.3} ms {:>9.3} ms {ratio:>6.1} {bytes:>9}", early / 1e3, late / 1e3);
    }
}
