//! The server of a test of memory: a process of its own, whose memory Linux tells.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use stepfold_runner::Runner;
use stepfold_server::http::{Limits, Principal, Role, Server, Token, Tokens};
use stepfold_session_scopes::SqliteStore;
use tokio::net::TcpListener;

use super::sessions::agent;

/// The variable that makes a process the server: the budget of a user in bytes, and the path of the store.
const SERVES: &str = "STEPFOLD_TEST_SERVES";

/// Does nothing, unless this process was started as the server. It says its address, and a token for each user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::print_stdout, reason = "a line for its parent")]
async fn server() {
    #[expect(clippy::disallowed_methods, reason = "this is how a parent says what it wants")]
    let Ok(part) = std::env::var(SERVES) else { return };
    let (budget, path) = part.split_once(' ').unwrap();
    let runner = Runner::builder(agent(), SqliteStore::open(path).unwrap()).build();
    let mut limits = Limits::default();
    limits.memory_per_user = budget.parse().unwrap();
    let (mut tokens, mut secrets) = (Tokens::new(), Vec::new());
    for user in ["ada", "bob"] {
        let token = Token::random().unwrap();
        tokens = tokens.with(&token, Principal::new(user, Role::Act).unwrap());
        secrets.push(token.secret().to_owned());
    }
    let server = Server::builder().app(runner).auth(tokens).limits(limits).build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // After the line that the test harness has begun.
    println!("\n{} {}", listener.local_addr().unwrap(), secrets.join(" "));
    server.serve(listener).await;
}

/// The server's process, seen from outside.
pub(super) struct Process {
    child: Child,
    pub(super) address: String,
    /// The tokens of `ada` and `bob`.
    tokens: Vec<String>,
    /// Its memory before any request.
    pub(super) base: usize,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts it with a budget for each user, and at most so much memory of its own: an allocation beyond that aborts it.
    pub(super) fn start(store: &Path, budget: usize, most: usize) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", &format!("ulimit -d {}; exec \"$0\" \"$@\"", most >> 10)])
            .arg(program)
            .args(["--exact", "http::memory::process::server", "--nocapture", "--test-threads=1"])
            // Or glibc keeps large blocks that were freed, in the arena of each thread, which is no fault of the account.
            .env("MALLOC_MMAP_THRESHOLD_", "131072")
            .env(SERVES, format!("{budget} {}", store.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.find_map(|line| line.ok().filter(|line| line.starts_with("127.0.0.1:")));
        let mut words = line.expect("it says where it is").split(' ').map(str::to_owned).collect::<Vec<_>>();
        let address = words.remove(0);
        let mut process = Process { child, address, tokens: words, base: 0 };
        process.base = process.memory("RssAnon").expect("it lives");
        process
    }

    /// Bytes of its memory, if it lives.
    fn memory(&self, name: &str) -> Option<usize> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10)
    }

    /// The most that it ever had resident, without what it has of files.
    pub(super) fn peak(&self) -> Option<usize> {
        let files = self.memory("RssFile")? + self.memory("RssShmem")?;
        Some(self.memory("VmHWM")?.saturating_sub(files))
    }

    pub(super) fn token(&self, user: &str) -> &str {
        &self.tokens[usize::from(user == "bob")]
    }
}
