//! Workers in processes of their own, and the world that their calls have effects on.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_restate::RestateWorker;
use stepfold_runner::{Runner, SessionHandle};
use stepfold_session_scopes::{EventRange, Session, SqliteStore};
use stepfold_tools::{Approval, Effect, Tool, ToolContext, ToolError};
use tokio::net::TcpListener;

const ROLE: &str = "STEPFOLD_TEST_WORKER";

/// How long a claim lasts without a heartbeat.
pub(crate) const CLAIM: Duration = Duration::from_millis(900);

/// What a worker is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    folder: PathBuf,
    /// The call that waits until the worker is told to continue, if any.
    slow: Option<String>,
    is_idempotent: bool,
    asks: bool,
    /// How long each call waits before its effect, by a deadline of the run.
    nap: Option<Duration>,
    /// What the agent is told, which is a part of what it is.
    instructions: String,
    slice: Duration,
}

impl Place {
    pub(crate) fn new(folder: &Path) -> Self {
        Place {
            folder: folder.to_owned(),
            slow: None,
            is_idempotent: false,
            asks: false,
            nap: None,
            instructions: "Pay.".to_owned(),
            slice: Duration::from_secs(60),
        }
    }

    pub(crate) fn slow(&self, call: &str) -> Self {
        Place { slow: Some(call.to_owned()), ..self.clone() }
    }

    pub(crate) fn idempotent(&self) -> Self {
        Place { is_idempotent: true, ..self.clone() }
    }

    pub(crate) fn asking(&self) -> Self {
        Place { asks: true, ..self.clone() }
    }

    pub(crate) fn napping(&self, nap: Duration) -> Self {
        Place { nap: Some(nap), ..self.clone() }
    }

    pub(crate) fn told(&self, instructions: &str) -> Self {
        Place { instructions: instructions.to_owned(), ..self.clone() }
    }

    pub(crate) fn slice(&self, slice: Duration) -> Self {
        Place { slice, ..self.clone() }
    }

    /// How often each call had its effect, by its idempotency key.
    pub(crate) fn effects(&self) -> BTreeMap<String, usize> {
        let mut effects = BTreeMap::new();
        for key in std::fs::read_to_string(self.folder.join("world")).unwrap_or_default().lines() {
            *effects.entry(key.to_owned()).or_default() += 1;
        }
        effects
    }

    pub(crate) fn runner(&self) -> Runner {
        let store = SqliteStore::open(self.folder.join("sessions.db")).unwrap();
        Runner::builder(self.agent(), store).claim_for(CLAIM).build()
    }

    /// The session of the tests, as it is stored.
    pub(crate) async fn stored(&self, user: &str, id: &str) -> (SessionHandle, Session) {
        let session = self.runner().session(user, id).await.unwrap();
        let read = session.read(EventRange::All).await.unwrap();
        (session, read)
    }

    /// Pays five times, and says so.
    fn agent(&self) -> Agent {
        let place = self.clone();
        let pay = move |context: ToolContext| {
            let place = place.clone();
            async move {
                if place.slow.as_deref() == Some(context.call_id()) {
                    println!("paying");
                    let read = || std::io::stdin().read_line(&mut String::new());
                    let told = tokio::task::spawn_blocking(read).await.map_err(ToolError::fatal)?;
                    told.map_err(ToolError::fatal)?;
                }
                if let Some(nap) = place.nap {
                    context.sleep_for("nap", nap)?;
                }
                let file = OpenOptions::new().create(true).append(true).open(place.folder.join("world"));
                let line = format!("{}\n", context.idempotency_key());
                file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(ToolError::fatal)?;
                println!("paid");
                Ok::<_, ToolError>("paid")
            }
        };
        let effect = if self.is_idempotent { Effect::Idempotent } else { Effect::AtMostOnce };
        let mut pay = Tool::new("pay", "Pays.", pay).effect(effect);
        if self.asks {
            // The same arguments each time.
            pay = pay.approval(Approval::Once);
        }
        let calls: Vec<String> = (1..=5).map(|number| format!("assistant: > c{number} pay()\n")).collect();
        let calls = calls.concat();
        // Five calls in the first turn of a session, one in the second.
        let script = format!("{calls}assistant: done\nassistant: > c6 pay()\nassistant: done again");
        let script = Script::parse(&script).unwrap();
        let agent = Agent::builder(script).name("clerk").instructions(&*self.instructions);
        agent.tools([pay.build().unwrap()]).build().unwrap()
    }
}

/// A worker in a process of its own: it says what it does, line by line, and continues when it is told to.
pub(crate) struct Process {
    child: Child,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
    pub(crate) address: SocketAddr,
}

impl Process {
    pub(crate) fn start(place: &Place) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "world::child", "--nocapture", "--test-threads=1"])
            .env(ROLE, serde_json::to_string(place).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let hears = child.stdin.take().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut process = Process { child, says, hears, address };
        process.address = process.listen_for("listening").parse().unwrap();
        process
    }

    /// Waits for a line that begins so, and gives the rest of it.
    pub(crate) fn listen_for(&mut self, beginning: &str) -> String {
        let mut line = String::new();
        while self.says.read_line(&mut line).unwrap() > 0 {
            if let Some(rest) = line.trim().strip_prefix(beginning) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("it ended, and did not say `{beginning}`");
    }

    pub(crate) fn go_on(&mut self) {
        self.hears.write_all(b"\n").unwrap();
    }

    pub(crate) fn signal(&self, signal: &str) {
        assert!(
            Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success()
        );
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does nothing, unless this process was started to be a worker.
#[test]
fn child() {
    #[expect(clippy::disallowed_methods, reason = "this is how a parent says what it wants")]
    let Ok(role) = std::env::var(ROLE) else { return };
    println!();
    let place: Place = serde_json::from_str(&role).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("listening {}", listener.local_addr().unwrap());
        let worker = RestateWorker::new(place.runner()).slice(place.slice);
        let pauses = (Duration::from_millis(200), Duration::from_millis(200));
        worker.pauses(pauses.0, pauses.1).serve(listener, std::future::pending::<()>()).await;
    });
}

/// The calls that were answered as unknown.
pub(crate) fn unknown(session: &Session) -> usize {
    let transcript = session.transcript();
    let results = transcript.iter().filter_map(|message| message.tool_result());
    results.filter(|result| result.text().contains("its outcome is unknown")).count()
}
