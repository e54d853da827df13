//! The port of the exam: what a host does, and what its clients do.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stepfold_agent_loop::{Agent, Decision};
use stepfold_session_scopes::{AnyStore, SessionKey};

/// An error of a host under examination.
pub type HostError = Box<dyn std::error::Error + Send + Sync>;

/// A host of runs under examination: where workers take work, and how clients hand it in.
///
/// Implemented by tests of a host. [`work`](RunHost::work) is called in processes of their own, the other methods in
/// that of the exam. Sessions are of the app `exam`, and exist when something is submitted to them.
pub trait RunHost: Send + Sync + 'static {
    /// As a worker: takes work for this agent until the process is killed, and says so once with [`WorkerReady::now`].
    /// `claim` is how long a worker may be silent before another one takes its work over.
    fn work(
        &self,
        agent: Agent,
        claim: Duration,
        ready: WorkerReady,
    ) -> impl Future<Output = Result<(), HostError>> + Send;

    /// As a client: hands an input in under an idempotency key, any number of times, while perhaps no worker is alive.
    /// Returns when it is accepted.
    fn submit(
        &self,
        agent: &Agent,
        session: &SessionKey,
        idempotency_key: &str,
        input: &str,
    ) -> impl Future<Output = Result<(), HostError>> + Send;

    /// As a client: decides requests of the run under a key. Returns when that is accepted.
    fn decide(
        &self,
        agent: &Agent,
        session: &SessionKey,
        idempotency_key: &str,
        decisions: Vec<(String, Decision)>,
    ) -> impl Future<Output = Result<(), HostError>> + Send;

    /// As a client: cancels what runs in a session, in whatever process.
    fn cancel(
        &self,
        agent: &Agent,
        session: &SessionKey,
    ) -> impl Future<Output = Result<(), HostError>> + Send;

    /// The store with the record of the sessions.
    fn store(&self) -> impl Future<Output = Result<AnyStore, HostError>> + Send;

    /// A graph for the case in which a worker is killed while nodes run side by side; without one, that case is not run.
    ///
    /// Three nodes run in one superstep, all of which must not run twice ([`Effect::AtMostOnce`]), and each calls
    /// [`ExamEffects::have`] once, with its name and its idempotency key. Whatever comes of them, the graph continues
    /// and ends.
    ///
    /// [`Effect::AtMostOnce`]: stepfold_tools::Effect::AtMostOnce
    fn graph(&self, effects: ExamEffects) -> Option<Agent> {
        let _ = effects;
        None
    }
}

/// The effects of calls and nodes: lines of a file, which the exam counts by idempotency key.
#[derive(Clone, Debug)]
pub struct ExamEffects {
    world: PathBuf,
    waits: Arc<AtomicBool>,
}

impl ExamEffects {
    /// Effects on this file. If it waits, the first one does so until the exam says that it continues.
    pub(super) fn on(world: impl Into<PathBuf>, waits: bool) -> Self {
        ExamEffects { world: world.into(), waits: Arc::new(AtomicBool::new(waits)) }
    }

    /// Has an effect under a key.
    ///
    /// # Errors
    /// When the file cannot be written.
    #[expect(clippy::print_stdout, reason = "this is how a child talks to the exam")]
    pub async fn have(&self, name: &str, idempotency_key: &str) -> Result<(), HostError> {
        println!("\nexam: calls {name}");
        if self.waits.swap(false, Ordering::Relaxed) {
            println!("\nexam: waits");
            tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
        }
        let mut file = OpenOptions::new().create(true).append(true).open(&self.world)?;
        Ok(file.write_all(format!("{idempotency_key}\n").as_bytes())?)
    }
}

/// Tells the exam that a worker takes work.
#[derive(Debug)]
pub struct WorkerReady(pub(super) ());

impl WorkerReady {
    /// From now on.
    #[expect(clippy::print_stdout, reason = "this is how a child talks to the exam")]
    pub fn now(self) {
        println!("\nexam: ready");
    }
}
