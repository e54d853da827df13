//! Two processes and one session: the second one must not touch what the first is doing.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::Runner;
use stepfold_session_scopes::{EventRange, SqliteStore};
use stepfold_tools::{Effect, Tool, ToolError};

const ROLE: &str = "STEPFOLD_TEST_LIVE";

/// A process that says what it does, line by line, and continues when it is told to.
struct Process {
    child: Child,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
}

impl Process {
    fn start(role: &str, store: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::live::child", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{role} {}", store.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let hears = child.stdin.take().unwrap();
        Process { child, says, hears }
    }

    /// Waits for a line that begins so, and gives the rest of it.
    fn listen_for(&mut self, beginning: &str) -> String {
        let mut line = String::new();
        while self.says.read_line(&mut line).unwrap() > 0 {
            if let Some(rest) = line.trim().strip_prefix(beginning) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("it ended, and did not say `{beginning}`");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn agent() -> Agent {
    let pay = || async {
        println!("paying");
        let read = || std::io::stdin().read_line(&mut String::new());
        tokio::task::spawn_blocking(read).await.map_err(ToolError::fatal)?.map_err(ToolError::fatal)?;
        Ok::<_, ToolError>("paid")
    };
    let pay = Tool::new("pay", "Pays.", pay).effect(Effect::AtMostOnce).build().unwrap();
    let model =
        Script::parse("assistant: > c1 pay()\nassistant: it is paid\nassistant: you are welcome").unwrap();
    Agent::builder(model).name("clerk").tools([pay]).build().unwrap()
}

/// Does nothing, unless this process was started to play a role.
#[test]
fn child() {
    #[expect(clippy::disallowed_methods, reason = "this is how a parent says what it wants")]
    let Ok(role) = std::env::var(ROLE) else { return };
    println!();
    let (text, store) = role.split_once(' ').unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(store).unwrap();
        let session = Runner::builder(agent(), store).build().session("ada", "s1").await.unwrap();
        let run = session.send(text).await.unwrap();
        println!("accepted");
        match run.await {
            Ok(outcome) => println!("outcome {}", outcome.text()),
            Err(error) => println!("outcome {error}"),
        }
    });
}

/// The fault that claims are there for: the second process took the run over, answered the running call as one whose
/// outcome is unknown, and the first lost its result.
#[test]
fn a_second_process_that_sends_to_a_session_at_work_waits_for_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let mut first = Process::start("pay!", &path);
    first.listen_for("paying");
    let mut second = Process::start("thanks!", &path);
    second.listen_for("accepted");
    first.hears.write_all(b"\n").unwrap();
    assert_eq!(first.listen_for("outcome"), "it is paid");
    assert_eq!(second.listen_for("outcome"), "you are welcome");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(&path).unwrap();
        let session = Runner::builder(agent(), store).build().session("ada", "s1").await.unwrap();
        let stored = session.read(EventRange::All).await.unwrap();
        expect_test::expect![[r#"
            user:      pay!
            assistant: > c1 pay()
            tool c1:   paid
            assistant: it is paid
            user:      thanks!
            assistant: you are welcome
        "#]]
        .assert_eq(&stored.transcript().to_string());
        assert!(stored.claim.is_none());
    });
}
