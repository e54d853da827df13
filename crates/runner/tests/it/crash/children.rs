//! The other processes: this test binary, started again to run the agent.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stepfold_runner::{Runner, RunnerError, RunnerErrorKind, SessionHandle};
use stepfold_session_scopes::EventRange;
use stepfold_state_core::chat::Role;

use super::agent::{World, agent};
use super::points::Points;
use super::store::{Watched, open};

const PART: &str = "STEPFOLD_TEST_PART";

/// What a child is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    /// The store.
    pub(crate) address: String,
    /// The file of effects.
    pub(crate) world: PathBuf,
    pub(crate) session: String,
    pub(crate) turns: usize,
    /// Whether what the user says comes from this one; else it only resumes.
    pub(crate) speaks: bool,
    /// Whether it sends the next message without resuming the interrupted run: the runner does that.
    pub(crate) goes_ahead: bool,
    /// The number of the point at which it dies.
    pub(crate) dies_at: Option<u64>,
}

impl Part {
    /// To run three turns over a new file in a folder.
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Part::new(folder.join("sessions.db").to_str().unwrap().to_owned(), folder.join("world"), "s1")
    }

    /// To run three turns.
    pub(crate) fn new(address: String, world: PathBuf, session: &str) -> Self {
        Part {
            address,
            world,
            session: session.to_owned(),
            turns: 3,
            speaks: true,
            goes_ahead: false,
            dies_at: None,
        }
    }

    pub(crate) fn dying_at(&self, point: u64) -> Self {
        Part { dies_at: Some(point), ..self.clone() }
    }

    pub(crate) fn going_ahead(&self) -> Self {
        Part { goes_ahead: true, ..self.clone() }
    }

    pub(crate) fn only_resuming(&self) -> Self {
        Part { speaks: false, ..self.clone() }
    }

    pub(crate) fn start(&self) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::children::child", "--nocapture", "--test-threads=1"])
            .env(PART, serde_json::to_string(self).unwrap())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Process { child, lines, told: Told::default() }
    }

    /// Plays the part until its end, whatever that is.
    pub(crate) async fn play(&self) -> Told {
        let part = self.clone();
        tokio::task::spawn_blocking(move || part.start().end()).await.unwrap()
    }
}

/// A child at work.
pub(crate) struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
    told: Told,
}

/// What a child told before its end.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The points that it passed, by name.
    pub(crate) points: Vec<String>,
    /// The appends that the store acknowledged: version and event.
    pub(crate) acknowledged: Vec<(u64, String)>,
    /// Whether it was killed by SIGKILL.
    pub(crate) was_killed: bool,
}

impl Process {
    /// Reads a line; whether there was one.
    fn listen(&mut self) -> bool {
        let mut line = String::new();
        if self.lines.read_line(&mut line).unwrap() == 0 {
            return false;
        }
        if let Some(name) = line.strip_prefix("at ") {
            self.told.points.push(name.trim().to_owned());
        } else if let Some(receipt) = line.strip_prefix("acknowledged ") {
            // A line that the process could not end was not told.
            if let Some((version, event)) = receipt.strip_suffix('\n').and_then(|it| it.split_once(' ')) {
                self.told.acknowledged.push((version.parse().unwrap(), event.to_owned()));
            }
        }
        true
    }

    /// Waits until it has passed so many points, if it lives so long.
    pub(crate) fn listen_for(&mut self, points: usize) {
        while self.told.points.len() < points && self.listen() {}
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits for its end. It ends by itself when all is done, or is killed; it never fails.
    pub(crate) fn end(mut self) -> Told {
        while self.listen() {}
        let status = self.child.wait().unwrap();
        self.told.was_killed = status.signal() == Some(9);
        assert!(status.success() || self.told.was_killed, "a child failed: {status}");
        std::mem::take(&mut self.told)
    }
}

/// When a test fails, its children end with it.
impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does nothing, unless this process was started to play a part.
#[test]
fn child() {
    #[expect(clippy::disallowed_methods, reason = "this is how a parent says what it wants")]
    let Ok(part) = std::env::var(PART) else { return };
    // The line that the test harness has begun.
    println!();
    let part: Part = serde_json::from_str(&part).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(play(part));
}

async fn play(part: Part) {
    let points = Points::until(part.dies_at);
    let agent = agent(part.turns, &World::at(part.world.to_str().unwrap()), &points);
    let store = Watched { store: open(&part.address).await, watch: points };
    // A process that is started again has the name of the one that died, and continues at once. One that works beside it
    // has another.
    let worker = if part.speaks { "speaks" } else { "resumes" };
    let runner =
        Runner::builder(agent, store).worker(worker).unwrap().claim_for(Duration::from_secs(1)).build();
    let session = loop {
        match runner.session("ada", &*part.session).await {
            Ok(session) => break session,
            Err(error) => assert!(is_in_the_way(&error), "{error:?}"),
        }
    };
    while !is_done(&session, part.turns).await {
        match go_on(&session, &part).await {
            Ok(()) => {}
            // Another worker was faster: look again.
            Err(error) => assert!(is_in_the_way(&error), "{error:?}"),
        }
    }
}

/// Resumes the interrupted run, or sends the next message.
async fn go_on(session: &SessionHandle, part: &Part) -> Result<(), RunnerError> {
    let said = said(session).await;
    if part.goes_ahead && said < part.turns {
        // It may have been accepted before the last kill, and wait in the inbox: a key says that it is the same.
        let text = format!("turn {said}");
        return session.send_once(format!("turn-{said}"), text.as_str()).await?.await.map(drop);
    }
    match session.resume().await {
        // Another process may have ended the last turn, or this one has already taken the message in the inbox.
        Err(RunnerError { kind: RunnerErrorKind::NothingToResume, .. }) => match self::said(session).await {
            said if part.speaks && said < part.turns => session.run(format!("turn {said}")).await.map(drop),
            _ => {
                tokio::task::yield_now().await;
                Ok(())
            }
        },
        resumed => resumed.map(drop),
    }
}

fn is_in_the_way(error: &RunnerError) -> bool {
    matches!(
        error.kind,
        RunnerErrorKind::Conflict { .. }
            | RunnerErrorKind::Claimed { .. }
            | RunnerErrorKind::ClaimLost { .. }
    )
}

/// How often the user spoke.
async fn said(session: &SessionHandle) -> usize {
    let session = session.read(EventRange::All).await.unwrap();
    session.transcript().iter().filter(|message| message.role() == Role::User).count()
}

async fn is_done(session: &SessionHandle, turns: usize) -> bool {
    // In this order: what waits in the inbox is taken while this looks.
    let said = said(session).await;
    let last = session.last_run().await.unwrap();
    last.is_some_and(|run| run.exit().is_some()) && said == turns
}
