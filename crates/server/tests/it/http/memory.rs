//! What one user's requests take of a process: a server in a process of its own, whose memory is looked at from outside.
#![cfg(target_os = "linux")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::{
    AnyStore, AppendEvent, Author, Event, EventId, GetSession, InvocationId, SessionStore as _, SqliteStore,
    Timestamp,
};
use stepfold_state_core::chat::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::site::{Site, agent};

/// The variable that makes a process of the test a server, and names the folder of its sessions.
const FOLDER: &str = "STEPFOLD_TEST_SERVER";

/// What a user may hold.
const BUDGET: usize = 48 << 20;

/// What the process has for itself while it answers: stacks, buffers of connections, pages of the database, and what the
/// allocator keeps.
const OWN: usize = 40 << 20;

/// The commits of the session, and the bytes of each: several times the budget.
const COMMITS: u64 = 160;
const COMMIT: usize = 1 << 20;

fn limits() -> Limits {
    let mut limits = Limits::default();
    (limits.memory_per_user, limits.memory) = (BUDGET, 2 * BUDGET);
    limits.body_timeout = Duration::from_secs(2);
    limits
}

#[expect(clippy::disallowed_methods, reason = "a process of a test is told what it is")]
fn folder() -> Option<String> {
    std::env::var(FOLDER).ok()
}

/// The server, in a process of its own; nothing in the process of the tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_until_its_input_ends() {
    let Some(folder) = folder() else { return };
    let store = AnyStore::new(SqliteStore::open(format!("{folder}/sessions.db")).unwrap());
    let of = || Runner::builder(agent("assistant: a\nassistant: b\n", Vec::new()), store.clone()).build();
    // Another process has made it, so that this one has nothing of it in memory. Its last run has ended.
    let made = Site::over(of(), limits()).await;
    assert_eq!(made.post("ada", "/sessions", json!({"id": "large"})).await.status, 201);
    assert_eq!(made.post("ada", "/sessions", json!({"id": "small"})).await.status, 201);
    fill(&made).await;
    assert_eq!(
        made.post("ada", "/sessions/large/run", json!({"text": "hi"})).await.json()["status"],
        "finished"
    );
    assert!(made.stop().await);
    let site = Site::over(of(), limits()).await;
    println!("\nserves {} {} {}", site.address, site.bearer("ada"), site.bearer("bob"));
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await.unwrap().unwrap();
}

async fn fill(site: &Site) {
    let key = site.runner.key("ada", "large").unwrap();
    let schema = site.runner.schema();
    for version in 0..COMMITS {
        let (id, run) = (EventId::new(format!("e{version}")).unwrap(), InvocationId::new("run").unwrap());
        let event = Event::new(id, run, Author::new("user").unwrap(), Timestamp::from_micros(1));
        let event = event.with_message(Message::user("x".repeat(COMMIT)));
        let append = AppendEvent::new(key.clone(), version, event, schema);
        site.runner.store().append(append).await.unwrap();
    }
    let get = GetSession::new(key).events(stepfold_session_scopes::EventRange::None);
    assert_eq!(site.runner.store().get(get).await.unwrap().version, COMMITS);
}

/// A server in another process.
struct Server {
    process: Child,
    address: String,
    ada: String,
    bob: String,
    _folder: tempfile::TempDir,
    /// What it says later, which it must be able to.
    _output: BufReader<ChildStdout>,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "http::memory::serves_until_its_input_ends", "--nocapture"])
            .env(FOLDER, folder.path())
            // One arena: what the allocator keeps of others is no memory of requests.
            .env("MALLOC_ARENA_MAX", "1")
            .env("MALLOC_TRIM_THRESHOLD_", "1000000")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let line = output.by_ref().lines().map_while(Result::ok).find(|line| line.starts_with("serves "));
        let line = line.expect("the server has begun");
        let mut parts = line.split(' ').skip(1).map(str::to_owned);
        let mut part = || parts.next().unwrap();
        let (address, ada, bob) = (part(), [part(), part()].join(" "), [part(), part()].join(" "));
        Server { process, address, ada, bob, _folder: folder, _output: output }
    }

    fn status(&self, field: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim_matches([':', ' ', '\t', 'k', 'B']).parse::<usize>().unwrap() << 10
    }

    /// How far the memory of the process rises meanwhile.
    async fn rise(&self, of: impl Future<Output = ()>) -> usize {
        let path = format!("/proc/{}/clear_refs", self.process.id());
        std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all(b"5").unwrap();
        let before = self.status("VmRSS");
        of.await;
        self.status("VmHWM").saturating_sub(before)
    }

    fn head(&self, method: &str, path: &str, length: usize) -> String {
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\nContent-Type: application/json\r\n\
             A2A-Version: 1.0\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n",
            self.address, self.ada
        )
    }

    /// Sends requests, as much of their bodies as there is, and reads so many bytes of each answer; then the answers are left
    /// unread until all have come. Returns their statuses, of those that were answered.
    async fn many(&self, requests: Vec<Request>) -> Vec<u16> {
        let asked = requests.into_iter().map(|request| async move {
            let ask = self.ask(request);
            tokio::time::timeout(Duration::from_secs(5), ask).await.ok().flatten()
        });
        let asked: Vec<_> = futures_util::future::join_all(asked).await.into_iter().flatten().collect();
        let status =
            |(_, answer): &(TcpStream, Vec<u8>)| std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok();
        asked.iter().filter_map(status).collect()
    }

    async fn ask(
        &self,
        Request { method, path, length, body, most }: Request,
    ) -> Option<(TcpStream, Vec<u8>)> {
        let mut stream = TcpStream::connect(&self.address).await.ok()?;
        let head = self.head(method, &path, length);
        stream.write_all(head.as_bytes()).await.ok()?;
        // One that is refused before its body is closed while it is sent.
        let _ = stream.write_all(&body).await;
        let (mut answer, mut chunk) = (Vec::new(), vec![0; 16 << 10]);
        while answer.len() < most {
            match stream.read(&mut chunk).await {
                Ok(0) | Err(_) => break,
                Ok(read) => answer.extend_from_slice(&chunk[..read]),
            }
        }
        Some((stream, answer))
    }
}

/// A request of the user.
#[derive(Clone)]
struct Request {
    method: &'static str,
    path: String,
    /// The length that its head tells.
    length: usize,
    body: Vec<u8>,
    /// The bytes of the answer that are read.
    most: usize,
}

/// The mixes of requests that are tried.
const MIXES: usize = 6;

const SESSIONS: &str = "/api/v1/apps/clerk/sessions";

fn get(path: &str) -> Request {
    Request { method: "GET", path: path.to_owned(), length: 0, body: Vec::new(), most: 1_000 }
}

fn post(path: &str, body: String) -> Request {
    let (path, length) = (path.to_owned(), body.len());
    Request { method: "POST", path, length, body: body.into_bytes(), most: 1_000 }
}

fn large(rest: &str) -> String {
    format!("{SESSIONS}/large{rest}")
}

/// The requests that take the most, by the row of what they take.
fn rows() -> Vec<(&'static str, Request)> {
    let unfinished = |path: &str, bytes: usize| {
        let request = post(path, "x".repeat(bytes));
        Request { length: bytes + 1, ..request }
    };
    let tree = |values: usize| {
        let list = vec!["[]"; values].join(",");
        post(SESSIONS, format!(r#"{{"values":{{"user:name":[{list}]}}}}"#))
    };
    let a2a = json!({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"contextId": "large"}});
    let text = json!({"text": "x".repeat(4 << 20)}).to_string();
    vec![
        ("an unfinished body", unfinished(SESSIONS, (8 << 20) - 1)),
        ("a body for login", unfinished("/api/v1/login", 8 << 20)),
        ("a tree of values", tree(100_000)),
        ("a large tree of values", tree(2_500_000)),
        ("a large message", post(&format!("{SESSIONS}/small/messages"), text)),
        ("an unread stream", get(&large("/live?after=0"))),
        ("a page of events", get(&large("/events?limit=1000"))),
        ("a brief page of events", get(&large("/events?limit=10000&brief=true"))),
        ("what a model was shown", get(&large("/model"))),
        ("a session of ADK", get("/apps/clerk/users/ada/sessions/large")),
        ("tasks of A2A", post("/a2a/clerk", a2a.to_string())),
        ("an export", get(&large("/export"))),
        ("a comparison", get(&large("/compare?with=large"))),
        ("a difference", get(&large("/diff?from=0"))),
        ("a replay", post(&large("/replay"), String::new())),
    ]
}

/// No request, however often it is sent at once, raises the process by more than a user may hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_takes_more_than_the_budget_of_its_user() {
    let server = Server::start();
    for (row, request) in rows() {
        let mut statuses = Vec::new();
        let rise = server.rise(async { statuses = server.many(vec![request; 24]).await }).await;
        assert!(rise <= BUDGET + OWN, "{row}: {} MiB more, {statuses:?}", rise >> 20);
        let is_known =
            |status: &u16| [200, 201, 202, 400, 404, 408, 409, 413, 415, 422, 429].contains(status);
        assert!(statuses.iter().all(is_known), "{row}: {statuses:?}");
    }
    // All at once, in any mix; and another user is served meanwhile.
    let (rows, mut random) = (rows(), fastrand::Rng::with_seed(7));
    for _ in 0..MIXES {
        let mix: Vec<Request> = (0..24).map(|_| rows[random.usize(..rows.len())].1.clone()).collect();
        let paths: Vec<_> = mix.iter().map(|request| (request.method, request.path.clone())).collect();
        let other = async {
            let head = server.head("GET", "/api/v1/apps", 0).replace(&server.ada, &server.bob);
            let mut stream = TcpStream::connect(&server.address).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200", "{paths:?}");
        };
        let rise = server.rise(async { drop(tokio::join!(server.many(mix), other)) }).await;
        assert!(rise <= BUDGET + OWN, "{} MiB more: {paths:?}", rise >> 20);
    }
}
