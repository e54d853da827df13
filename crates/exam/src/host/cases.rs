//! The cases of the exam.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use stepfold_agent_loop::{Agent, Decision, Exit};
use stepfold_session_scopes::{EventRange, GetSession, Session, SessionKey, SessionStore};

use super::HostExam;
use super::child::{CLAIM, ExamClient, ROLE, WorkerKind, agent};
use super::run_host::{ExamEffects, HostError, RunHost};
use stepfold_runner::Runner;
use stepfold_runner::exit_of;

/// The timeout of each wait in a case.
const PATIENCE: Duration = Duration::from_secs(120);

/// The interval between two polls.
const LOOK: Duration = Duration::from_millis(20);

type CaseResult = Result<(), HostError>;

macro_rules! ensure {
    ($holds:expr, $($found:tt)+) => {
        if !$holds {
            return Err(format!($($found)+).into());
        }
    };
}

/// Runs all of them, one after the other.
pub(super) async fn all<H: RunHost>(exam: &HostExam<H>) -> Vec<(&'static str, Result<(), String>)> {
    let mut cases = Vec::new();
    macro_rules! run {
        ($($case:ident($($given:expr),*);)*) => {$(
            let name = concat!(stringify!($case), $(" ", stringify!($given)),*);
            let room = ExamRoom::new(exam, name);
            let result = $case(room $(, $given)*).await;
            cases.push((name, result.map_err(|error| error.to_string())));
        )*};
    }
    run! {
        what_is_submitted_twice_runs_once();
        a_killed_worker_is_replaced("look");
        a_killed_worker_is_replaced("save");
        a_killed_worker_is_replaced("pay");
        a_worker_is_killed_in_a_decided_call();
        a_frozen_worker_is_replaced_and_refused();
        a_run_is_cancelled_from_another_process();
        decisions_are_taken_while_no_worker_is_alive();
        a_change_that_touches_an_open_call_leaves_the_run_alone();
        many_sessions_outlive_a_worker();
        a_rolling_deployment_loses_no_run();
    }
    if exam.host.graph(ExamEffects::on("", false)).is_some() {
        run! {
            a_worker_is_killed_in_a_graph();
        }
    }
    cases
}

/// The room of a case: its sessions, and the file that its calls have effects on.
struct ExamRoom<'a, H> {
    exam: &'a HostExam<H>,
    name: String,
    world: PathBuf,
    agent: Agent,
}

impl<'a, H: RunHost> ExamRoom<'a, H> {
    fn new(exam: &'a HostExam<H>, case: &str) -> Self {
        let name = case.replace([' ', '"'], "-");
        let world = exam.folder.join(&name);
        ExamRoom { exam, agent: agent(&ExamEffects::on(&world, false), WorkerKind::Usual), name, world }
    }

    fn session(&self, number: usize) -> Result<SessionKey, HostError> {
        Ok(SessionKey::new("exam", format!("u{}", number % 7), format!("{}-{number}", self.name))?)
    }

    fn worker(&self, kind: WorkerKind) -> Result<ExamWorker, HostError> {
        let mut worker = ExamWorker::start(self.exam, kind, &self.world, None)?;
        worker.listen_for("ready")?;
        Ok(worker)
    }

    async fn submit(&self, session: &SessionKey, input: &str) -> CaseResult {
        self.exam.host.submit(&self.agent, session, "k1", input).await
    }

    /// The number of effects of each call, by its idempotency key.
    fn effects(&self) -> BTreeMap<String, usize> {
        let mut effects = BTreeMap::new();
        for key in std::fs::read_to_string(&self.world).unwrap_or_default().lines() {
            *effects.entry(key.to_owned()).or_default() += 1;
        }
        effects
    }

    async fn read(&self, key: &SessionKey) -> Result<Session, HostError> {
        let get = GetSession::new(key.clone()).events(EventRange::All);
        Ok(self.exam.host.store().await?.get(get).await?)
    }

    /// Polls until it holds.
    async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> Result<bool, HostError>) -> CaseResult {
        let looks = PATIENCE.as_millis() / LOOK.as_millis();
        for _ in 0..looks {
            if holds().await? {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        Err(format!("after {PATIENCE:?}, {what}").into())
    }

    /// The session after its run has ended, and how that ended.
    async fn ended(&self, key: &SessionKey) -> Result<(Session, Exit), HostError> {
        let what = format!("the run in session {key} has not ended");
        self.until(&what, async || Ok(exit(&self.read(key).await?).is_some())).await?;
        let session = self.read(key).await?;
        let exit = exit(&session).ok_or("the end of a run was taken back")?;
        Ok((session, exit))
    }

    /// The ids of the requests that the run in a session waits for, when it does.
    async fn waits(&self, key: &SessionKey) -> Result<Vec<String>, HostError> {
        let runner = Runner::builder(self.agent.clone(), self.exam.host.store().await?).app("exam")?.build();
        let session = runner.session(key.user.as_str(), key.id.as_str()).await?;
        let mut pending = Vec::new();
        self.until("no request is pending", async || {
            pending = session.pending().await?.into_iter().map(|request| request.id).collect();
            Ok(!pending.is_empty())
        })
        .await?;
        Ok(pending)
    }
}

/// The exit of the run in a session, if it has ended.
fn exit(session: &Session) -> Option<Exit> {
    session.events.iter().rev().find_map(|committed| exit_of(&committed.event))
}

/// The calls of a session that were answered as unknown.
fn unknown(session: &Session) -> usize {
    let transcript = session.transcript();
    let results = transcript.iter().filter_map(|message| message.tool_result());
    results.filter(|result| result.text().contains("its outcome is unknown")).count()
}

/// A worker in a process of its own.
struct ExamWorker {
    child: Child,
    says: Receiver<String>,
    hears: ChildStdin,
}

impl ExamWorker {
    fn start<H>(
        exam: &HostExam<H>,
        kind: WorkerKind,
        world: &std::path::Path,
        client: Option<&ExamClient>,
    ) -> Result<Self, HostError> {
        let client = client.map(serde_json::to_string).transpose()?.unwrap_or_default();
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--exact", &exam.child, "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{}\n{}\n{}\n{client}", kind.word(), exam.address, world.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = BufReader::new(child.stdout.take().ok_or("a child without output")?);
        let hears = child.stdin.take().ok_or("a child without input")?;
        let (said, says) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(rest) = line.strip_prefix("exam: ") {
                    // The case may have ended.
                    let _ = said.send(rest.to_owned());
                }
            }
        });
        Ok(ExamWorker { child, says, hears })
    }

    fn listen_for(&mut self, what: &str) -> CaseResult {
        loop {
            match self.says.recv_timeout(PATIENCE) {
                Ok(line) if line == what => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("a worker does not say `{what}`").into());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("a worker has ended, and did not say `{what}`").into());
                }
            }
        }
    }

    /// Whether it has said this by now.
    fn has_said(&self, what: &str) -> bool {
        self.says.try_iter().any(|line| line == what)
    }

    fn signal(&self, signal: &str) -> CaseResult {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status()?;
        ensure!(status.success(), "a worker cannot be sent {signal}");
        Ok(())
    }
}

impl Drop for ExamWorker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn what_is_submitted_twice_runs_once<H: RunHost>(room: ExamRoom<'_, H>) -> CaseResult {
    let key = room.session(0)?;
    let input = "assistant: > c1 pay()\nassistant: done";
    room.submit(&key, input).await?;
    let _workers = (room.worker(WorkerKind::Usual)?, room.worker(WorkerKind::Usual)?);
    room.submit(&key, input).await?;
    room.ended(&key).await?;
    room.submit(&key, input).await?;
    let (session, exit) = room.ended(&key).await?;
    ensure!(exit == Exit::Text, "it ended so: {exit}");
    ensure!(room.effects().values().eq([&1]), "effects: {:?}", room.effects());
    let replies = session.transcript().iter().filter(|message| message.text() == "done").count();
    ensure!(replies == 1, "{replies} runs");
    Ok(())
}

async fn a_killed_worker_is_replaced<H: RunHost>(room: ExamRoom<'_, H>, tool: &str) -> CaseResult {
    let key = room.session(0)?;
    let mut first = room.worker(WorkerKind::Slow)?;
    room.submit(&key, &format!("assistant: > c1 {tool}()\nassistant: done")).await?;
    first.listen_for(&format!("calls {tool}"))?;
    let _second = room.worker(WorkerKind::Usual)?;
    first.signal("-KILL")?;
    let (session, exit) = room.ended(&key).await?;
    ensure!(exit == Exit::Text, "it ended so: {exit}");
    // What must not happen twice may have happened.
    let (effects, lost) = if tool == "pay" { (0, 1) } else { (1, 0) };
    ensure!(unknown(&session) == lost, "{} calls are unknown", unknown(&session));
    ensure!(room.effects().len() == effects, "effects: {:?}", room.effects());
    Ok(())
}

async fn a_worker_is_killed_in_a_decided_call<H: RunHost>(room: ExamRoom<'_, H>) -> CaseResult {
    let key = room.session(0)?;
    let first = room.worker(WorkerKind::Slow)?;
    room.submit(&key, "assistant: > c1 send()\nassistant: done").await?;
    let decisions = room.waits(&key).await?.into_iter().map(|id| (id, Decision::Approve)).collect();
    let address = (key.app.to_string(), key.user.to_string(), key.id.to_string());
    let client = ExamClient { key: address, decisions };
    let client = ExamWorker::start(room.exam, WorkerKind::Slow, &room.world, Some(&client))?;
    // A client that decides may begin the call itself, and leave it as unknown.
    let called = async || {
        let is_called = first.has_said("calls send") || client.has_said("calls send");
        Ok(is_called || exit(&room.read(&key).await?).is_some())
    };
    room.until("no worker begins the call", called).await?;
    drop((first, client));
    let _second = room.worker(WorkerKind::Usual)?;
    let (session, _) = room.ended(&key).await?;
    ensure!(unknown(&session) == 1 && room.effects().is_empty(), "effects: {:?}", room.effects());
    Ok(())
}

async fn a_frozen_worker_is_replaced_and_refused<H: RunHost>(room: ExamRoom<'_, H>) -> CaseResult {
    let key = room.session(0)?;
    let mut first = room.worker(WorkerKind::Slow)?;
    room.submit(&key, "assistant: > c1 pay()\nassistant: > c2 save()\nassistant: done").await?;
    first.listen_for("calls pay")?;
    let _second = room.worker(WorkerKind::Usual)?;
    first.signal("-STOP")?;
    let (before, _) = room.ended(&key).await?;
    first.signal("-CONT")?;
    first.hears.write_all(b"\n")?;
    // It has the effect after all, which is what was unknown, or hears before that it lost its claim. In any case
    // nothing of it is written, as long as one looks.
    tokio::time::sleep(CLAIM * 3).await;
    let after = room.read(&key).await?;
    ensure!(after.events == before.events, "a write of the thawed worker was taken");
    ensure!(room.effects().values().all(|times| *times == 1), "effects: {:?}", room.effects());
    Ok(())
}

async fn a_run_is_cancelled_from_another_process<H: RunHost>(room: ExamRoom<'_, H>) -> CaseResult {
    let key = room.session(0)?;
    let mut worker = room.worker(WorkerKind::Slow)?;
    room.submit(&key, "assistant: > c1 look()\nassistant: done").await?;
    worker.listen_for("calls look")?;
    room.exam.host.cancel(&room.agent, &key).await?;
    let (_, exit) = room.ended(&key).await?;
    ensure!(exit == Exit::Cancelled, "it ended so: {exit}");
    Ok(())
}

async fn decisions_are_taken_while_no_worker_is_alive<H: RunHost>(room: ExamRoom<'_, H>) -> CaseResult {
    let key = room.session(0)?;
    let first = room.worker(WorkerKind::Usual)?;
    room.submit(&key, "assistant: > c1 send()\nassistant: done").await?;
    let pending = room.waits(&key).await?;
    first.signal("-KILL")?;
    drop(first);
    let decided: Vec<_> = pending.into_iter().map(|id| (id, Decision::Approve)).collect();
    room.exam.host.decide(&room.agent, &key, "k1", decided.clone()).await?;
    // The answer to the client was lost.
    room.exam.host.decide(&room.agent, &key, "k1", decided).await?;
    let _second = room.worker(WorkerKind::Usual)?;
    let (_, exit) = room.ended(&key).await?;
    ensure!(exit == Exit::Text, "it ended so: {exit}");
    ensure!(room.effects().values().all(|times| *times == 1), "effects: {:?}", room.effects());
    Ok(())
}

async fn a_change_that_touches_an_open_call_leaves_the_run_alone<H: RunHost>(
    room: ExamRoom<'_, H>,
) -> CaseResult {
    let key = room.session(0)?;
    let mut first = room.worker(WorkerKind::Slow)?;
    room.submit(&key, "assistant: > c1 save()\nassistant: done").await?;
    first.listen_for("calls save")?;
    first.signal("-KILL")?;
    drop(first);
    let changed = room.worker(WorkerKind::Changed)?;
    tokio::time::sleep(CLAIM * 3).await;
    ensure!(
        exit(&room.read(&key).await?).is_none() && room.effects().is_empty(),
        "a changed agent continued"
    );
    drop(changed);
    let _same = room.worker(WorkerKind::Usual)?;
    room.ended(&key).await?;
    ensure!(room.effects().len() == 1, "effects: {:?}", room.effects());
    Ok(())
}

/// A worker is killed while nodes run side by side: none of them has its effect twice, and the run ends.
async fn a_worker_is_killed_in_a_graph<H: RunHost>(mut room: ExamRoom<'_, H>) -> CaseResult {
    room.agent = room.exam.host.graph(ExamEffects::on(&room.world, false)).ok_or("the host has no graph")?;
    let key = room.session(0)?;
    let mut first = room.worker(WorkerKind::SlowGraph)?;
    room.submit(&key, "pay").await?;
    first.listen_for("waits")?;
    room.until("the other nodes have no effect", async || Ok(room.effects().len() == 2)).await?;
    let _second = room.worker(WorkerKind::Graph)?;
    first.signal("-KILL")?;
    let (_, exit) = room.ended(&key).await?;
    ensure!(exit == Exit::End, "it ended so: {exit}");
    // The one that waited had begun, and whether it had its effect is unknown.
    let effects = room.effects();
    ensure!(effects.len() == 2 && effects.values().all(|times| *times == 1), "effects: {effects:?}");
    Ok(())
}

/// Two versions work in one store, and the older one dies: the newer one continues its runs, each with one upgrade at most.
async fn a_rolling_deployment_loses_no_run<H: RunHost>(room: ExamRoom<'_, H>) -> CaseResult {
    let calls: Vec<String> = (1..=5).map(|number| format!("assistant: > c{number} save()\n")).collect();
    let input = format!("{}assistant: done", calls.concat());
    let held = room.session(0)?;
    let mut slow = room.worker(WorkerKind::Slow)?;
    room.submit(&held, &input).await?;
    slow.listen_for("calls save")?;
    let older = room.worker(WorkerKind::Usual)?;
    let _newer = room.worker(WorkerKind::Newer)?;
    let others = 1..room.exam.sessions.min(20);
    for number in others.clone() {
        room.submit(&room.session(number)?, &input).await?;
    }
    slow.signal("-KILL")?;
    older.signal("-KILL")?;
    for number in others.chain([0]) {
        let key = room.session(number)?;
        let (session, exit) = room.ended(&key).await?;
        ensure!(exit == Exit::Text, "the run in session {key} ended so: {exit}");
        let upgrades = session.events.iter().filter(|it| it.event.kind.as_str() == "upgraded").count();
        let expected = if number == 0 { 1..=1 } else { 0..=1 };
        ensure!(expected.contains(&upgrades), "the run in session {key} has {upgrades} upgrades");
    }
    Ok(())
}

/// Each call has its effect once at most, or is unknown, and all runs end.
async fn many_sessions_outlive_a_worker<H: RunHost>(room: ExamRoom<'_, H>) -> CaseResult {
    const CALLS: usize = 5;
    let calls: Vec<String> = (1..=CALLS).map(|number| format!("assistant: > c{number} pay()\n")).collect();
    let input = format!("{}assistant: done", calls.concat());
    let sessions = room.exam.sessions;
    for number in 0..sessions {
        room.submit(&room.session(number)?, &input).await?;
    }
    let (first, _second) = (room.worker(WorkerKind::Usual)?, room.worker(WorkerKind::Usual)?);
    room.until("the workers do nothing", async || Ok(room.effects().len() >= sessions)).await?;
    first.signal("-KILL")?;
    let mut lost = 0;
    for number in 0..sessions {
        lost += unknown(&room.ended(&room.session(number)?).await?.0);
    }
    let effects = room.effects();
    ensure!(effects.values().all(|times| *times == 1), "a call had its effect twice");
    // What is unknown may have had its effect, if the worker was killed between it and its outcome.
    let (done, calls) = (effects.len(), sessions * CALLS);
    ensure!(done <= calls && done + lost >= calls, "{done} effects and {lost} unknown of {calls} calls");
    Ok(())
}
