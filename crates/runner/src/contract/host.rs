//! The port of the exam: what a host does, and what its clients do.

use std::time::Duration;

use stepfold_agent_loop::{Agent, Decision};
use stepfold_session_scopes::{AnyStore, SessionKey};

/// An error of a host under examination.
pub type HostError = Box<dyn std::error::Error + Send + Sync>;

/// A host of runs under examination: where workers take work, and how clients hand it in.
///
/// Implemented by tests of a host. [`work`](Host::work) is called in processes of their own, the other methods in that of
/// the exam. Sessions are of the app `exam`, and exist when something is submitted to them.
pub trait Host: Send + Sync + 'static {
    /// As a worker: takes work for this agent until the process is killed, and says so once with [`Ready::now`]. `claim` is
    /// how long a worker may be silent before another one takes its work over.
    fn work(
        &self,
        agent: Agent,
        claim: Duration,
        ready: Ready,
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
}

/// Tells the exam that a worker takes work.
#[derive(Debug)]
pub struct Ready(pub(super) ());

impl Ready {
    /// From now on.
    #[expect(clippy::print_stdout, reason = "this is how a child talks to the exam")]
    pub fn now(self) {
        println!("\nexam: ready");
    }
}
