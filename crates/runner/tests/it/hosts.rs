//! The exam of a host of many workers, with children that are killed, frozen and thawed: over SQLite and PostgreSQL.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use futures_util::StreamExt;
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, Input};
use stepfold_runner::session_scopes::{
    EnqueueInput, EventRange, IdempotencyKey, InboxKind, Session, SessionStore, Timestamp,
};
use stepfold_runner::{RecoverOptions, RunStatus, Runner, SessionChange, SessionHandle, WatchScope};
use stepfold_tools::{Effect, Tool, ToolContext, ToolError};
use tokio::time::Instant;

use crate::crash::server::server;
use crate::crash::store::open;

const ROLE: &str = "STEPFOLD_TEST_HOST";

/// How long a claim lasts without a heartbeat.
const CLAIM: Duration = Duration::from_millis(900);

/// The store of all workers, and the world that their calls have effects on.
#[derive(Clone)]
struct Place {
    address: String,
    world: PathBuf,
}

impl Place {
    /// How often each call had its effect, by its idempotency key.
    fn effects(&self) -> BTreeMap<String, usize> {
        let mut effects = BTreeMap::new();
        for key in std::fs::read_to_string(&self.world).unwrap_or_default().lines() {
            *effects.entry(key.to_owned()).or_default() += 1;
        }
        effects
    }
}

/// A worker in a process of its own: it says what it does, line by line, and continues when it is told to.
struct Worker {
    child: Child,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
}

impl Worker {
    fn start(role: &str, place: &Place) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "hosts::child", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{role}\n{}\n{}", place.address, place.world.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let hears = child.stdin.take().unwrap();
        Worker { child, says, hears }
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

    fn signal(&self, signal: &str) {
        assert!(
            Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success()
        );
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Pays five times. The first payment of a slow one waits until it is told to continue.
fn agent(world: &Path, is_slow: bool) -> Agent {
    let world = world.to_owned();
    let pay = move |context: ToolContext| {
        let world = world.clone();
        async move {
            if is_slow && context.call_id() == "c1" {
                println!("paying");
                let read = || std::io::stdin().read_line(&mut String::new());
                tokio::task::spawn_blocking(read)
                    .await
                    .map_err(ToolError::fatal)?
                    .map_err(ToolError::fatal)?;
            }
            let file = OpenOptions::new().create(true).append(true).open(&world);
            let line = format!("{}\n", context.idempotency_key());
            file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(ToolError::fatal)?;
            println!("paid");
            Ok::<_, ToolError>("paid")
        }
    };
    let pay = Tool::new("pay", "Pays.", pay).effect(Effect::AtMostOnce).build().unwrap();
    let calls: Vec<String> = (1..=5).map(|number| format!("assistant: > c{number} pay()")).collect();
    let script = Script::parse(&format!("{}\nassistant: done", calls.join("\n"))).unwrap();
    Agent::builder(script).name("clerk").tools([pay]).build().unwrap()
}

/// Has the payments made by the other agent, in another session.
async fn caller(place: &Place, is_slow: bool) -> Runner {
    let pay = runner(place, is_slow).await.as_remote_tool("pay_all", "Pays all.").unwrap();
    let script = Script::parse("assistant: > c1 pay_all(request=\"pay\")\nassistant: all is paid").unwrap();
    let agent = Agent::builder(script).name("caller").tools([pay]).build().unwrap();
    let runner = Runner::builder(agent, open(&place.address).await);
    runner.app("callers").unwrap().claim_for(CLAIM).build()
}

async fn runner(place: &Place, is_slow: bool) -> Runner {
    let agent = agent(&place.world, is_slow);
    Runner::builder(agent, open(&place.address).await).claim_for(CLAIM).build()
}

/// Does nothing, unless this process was started to play a role.
#[test]
fn child() {
    #[expect(clippy::disallowed_methods, reason = "this is how a parent says what it wants")]
    let Ok(role) = std::env::var(ROLE) else { return };
    println!();
    let mut parts = role.lines();
    let (role, address) = (parts.next().unwrap(), parts.next().unwrap().to_owned());
    let place = Place { address, world: parts.next().unwrap().into() };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        match role {
            "begin" => {
                let session = runner(&place, true).await.session("ada", "s1").await.unwrap();
                match session.run_as("k1", "pay").await {
                    Ok(report) => println!("outcome {}", report.text),
                    Err(error) => println!("outcome {error}"),
                }
            }
            "call" => {
                let session = caller(&place, true).await.session("ada", "s1").await.unwrap();
                drop(session.run("go").await);
            }
            "callers" => work(caller(&place, false).await).await,
            _ => work(runner(&place, false).await).await,
        }
    });
}

/// Recovers until it is killed, and says which sessions it has worked in.
async fn work(runner: Runner) {
    let mut changes = runner.watch(WatchScope::All).await;
    let recovery = tokio::spawn(runner.recover(RecoverOptions::new().parallel(8)));
    println!("ready");
    while let Some(change) = changes.next().await {
        if let SessionChange::Changed { key, is_running: false, .. } = change {
            println!("ended {}", key.id);
        }
    }
    recovery.await.unwrap().unwrap();
}

/// Has a test done over each store of several processes.
async fn each_place<F: Future<Output = ()>>(name: &str, test: impl Fn(Place) -> F) {
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("sessions.db").display().to_string();
    println!("over SQLite");
    test(Place { address, world: folder.path().join("world") }).await;
    if let Some(server) = server() {
        println!("over PostgreSQL");
        let address = server.database(name).await;
        test(Place { address, world: folder.path().join("world-of-postgres") }).await;
    }
}

async fn stored(place: &Place) -> (SessionHandle, Session) {
    let session = runner(place, false).await.session("ada", "s1").await.unwrap();
    let read = session.read(EventRange::All).await.unwrap();
    (session, read)
}

/// The calls that were answered as unknown.
fn unknown(session: &Session) -> usize {
    let transcript = session.transcript();
    let results = transcript.iter().filter_map(|message| message.tool_result());
    results.filter(|result| result.text().contains("its outcome is unknown")).count()
}

/// A worker is killed in a call, or frozen. Another one continues when the claim has expired. If the first is thawed, its
/// writes are refused.
async fn another_goes_on(place: Place, signal: &str) {
    let mut second = Worker::start("work", &place);
    second.listen_for("ready");
    let mut first = Worker::start("begin", &place);
    first.listen_for("paying");
    first.signal(signal);
    let since = Instant::now();
    assert_eq!(second.listen_for("ended"), "s1");
    println!("{signal}: another one was done after {:?}, with claims of {CLAIM:?}", since.elapsed());
    let (session, before) = stored(&place).await;
    assert_eq!((unknown(&before), place.effects().len()), (1, 4));
    // A query reports it.
    let report = session.run_as("k1", "pay").await.unwrap();
    assert!(matches!(report.status, RunStatus::Finished(_)), "{report:?}");
    assert_eq!(report.text, "done");
    if signal == "-STOP" {
        first.signal("-CONT");
        first.hears.write_all(b"\n").unwrap();
        // It paid after all, which is what was unknown; it says nothing of it, and is told how the run ended or that
        // it lost it.
        let outcome = first.listen_for("outcome");
        assert!(outcome == "done" || outcome.contains("lost"), "{outcome}");
        let (_, after) = stored(&place).await;
        assert_eq!(after.events, before.events, "a write of the thawed worker was taken");
        assert!(place.effects().values().all(|times| *times == 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_worker_is_killed_in_a_call_another_continues() {
    each_place("host_killed", |place| another_goes_on(place, "-KILL")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_worker_is_frozen_another_continues_and_writes_after_the_thaw_are_refused() {
    each_place("host_frozen", |place| another_goes_on(place, "-STOP")).await;
}

/// The agent of the caller and the one that it calls are each recovered by a worker of its own app, behind a process that
/// ran both and was killed. What the first reports reaches the second by the store alone, through timers.
async fn an_agent_of_another_process_is_called(place: Place) {
    let (mut called, mut callers) = (Worker::start("work", &place), Worker::start("callers", &place));
    called.listen_for("ready");
    callers.listen_for("ready");
    let mut first = Worker::start("call", &place);
    first.listen_for("paying");
    first.signal("-KILL");
    let session = caller(&place, false).await.session("ada", "s1").await.unwrap();
    let ended = loop {
        // Also when it is suspended.
        assert_eq!(callers.listen_for("ended"), "s1");
        let read = session.read(EventRange::All).await.unwrap();
        if read.transcript().last().is_some_and(|message| message.text() == "all is paid") {
            break read;
        }
    };
    let transcript = ended.transcript();
    let results: Vec<_> = transcript.iter().filter_map(|message| message.tool_result()).collect();
    assert_eq!(results.iter().map(|result| result.text()).collect::<Vec<_>>(), ["done"]);
    // The payment in which the process died is unknown.
    let effects = place.effects();
    assert!(effects.len() == 4 && effects.values().all(|times| *times == 1), "{effects:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_of_another_process_is_called_once_and_waited_for() {
    each_place("host_remote", an_agent_of_another_process_is_called).await;
}

/// The number of sessions: more in a long run.
fn session_count() -> usize {
    match proptest::prelude::ProptestConfig::default().cases {
        256 => 24,
        _ => 200,
    }
}

/// Many sessions with messages, two workers, one of which is killed midway: every call at most once, each has its effect or
/// is unknown, and all end.
async fn many_sessions(place: Place) {
    let runner = runner(&place, false).await;
    let sessions = session_count();
    for number in 0..sessions {
        let session = runner.session(format!("u{}", number % 7), format!("s{number}")).await.unwrap();
        let message = EnqueueInput::new(
            session.key().clone(),
            InboxKind::Message,
            IdempotencyKey::new("k1").unwrap(),
            Input::from("pay").to_json().unwrap(),
            Timestamp::from_micros(0),
        );
        runner.store().enqueue(message).await.unwrap();
    }
    let (first, _second) = (Worker::start("work", &place), Worker::start("work", &place));
    // Either may have done most of it by then.
    while place.effects().len() < sessions {
        // tidy: allow sleep, because the effects are those of other processes, in a file.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.signal("-KILL");
    let mut open: BTreeSet<usize> = (0..sessions).collect();
    let mut lost = 0;
    while !open.is_empty() {
        // tidy: allow sleep, because the sessions are those of other processes.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut ended = Vec::new();
        for number in &open {
            let session = runner.session(format!("u{}", number % 7), format!("s{number}")).await.unwrap();
            if session.last_run().await.unwrap().is_some_and(|run| run.exit().is_some()) {
                lost += unknown(&session.read(EventRange::All).await.unwrap());
                ended.push(*number);
            }
        }
        open.retain(|number| !ended.contains(number));
    }
    let effects = place.effects();
    assert!(effects.values().all(|times| *times == 1), "a call had its effect twice");
    // What is unknown may have had its effect, if the worker was killed between it and its outcome.
    let calls = sessions * 5;
    assert!(effects.len() <= calls && effects.len() + lost >= calls, "{} + {lost} of {calls}", effects.len());
    println!("{sessions} sessions: {} effects, {lost} calls unknown", effects.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_one_of_two_workers_is_killed_all_sessions_come_to_their_end() {
    each_place("host_many", many_sessions).await;
}
