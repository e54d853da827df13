//! The exam of hosts: the port, the workers, the cases.

mod cases;
mod child;
mod run_host;

use std::fmt;
use std::path::PathBuf;

pub use self::child::child;
pub use self::run_host::{ExamEffects, HostError, RunHost, WorkerReady};

/// The test suite that every host of runs has to pass, with workers in processes of their own that are killed, frozen and
/// thawed.
///
/// A host brings runs to their end over a store: [`Runner::recover`](stepfold_runner::Runner::recover) is one, an engine for
/// durable execution is another. The exam starts the test binary again for each worker, at the test that calls [`child`],
/// and hands inputs in as a client.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
/// use stepfold_runner::agent_loop::{Agent, Decision};
/// use stepfold_exam::{HostError, HostExam, RunHost, WorkerReady};
/// use stepfold_runner::session_scopes::{AnyStore, SessionKey};
///
/// # struct MyHost;
/// # impl MyHost { async fn open(_: String) -> Self { MyHost } }
/// impl RunHost for MyHost {
///     async fn work(&self, agent: Agent, claim: Duration, ready: WorkerReady) -> Result<(), HostError> {
/// #       let _ = (agent, claim, ready);
///         todo!()
///     }
/// #   async fn submit(&self, _: &Agent, _: &SessionKey, _: &str, _: &str) -> Result<(), HostError> { todo!() }
/// #   async fn decide(&self, _: &Agent, _: &SessionKey, _: &str, _: Vec<(String, Decision)>) -> Result<(), HostError> { todo!() }
/// #   async fn cancel(&self, _: &Agent, _: &SessionKey) -> Result<(), HostError> { todo!() }
/// #   async fn store(&self) -> Result<AnyStore, HostError> { todo!() }
///     // And what a client does: submit, decide, cancel; and a graph, for a case of its own.
/// }
///
/// // Does nothing, unless the exam has started this process.
/// #[test]
/// fn child() {
///     stepfold_exam::child(MyHost::open);
/// }
///
/// #[tokio::test]
/// async fn exam() {
///     let host = MyHost::open("address".to_owned()).await;
///     HostExam::new(host, "address", "child").run().await.passed().unwrap();
/// }
/// ```
#[must_use = "nothing is examined until it runs"]
#[derive(Debug)]
pub struct HostExam<H> {
    host: H,
    /// The address at which a worker opens the host.
    address: String,
    /// The test that is a worker.
    child: String,
    /// A folder for the world that calls have effects on.
    folder: PathBuf,
    sessions: usize,
}

impl<H: RunHost> HostExam<H> {
    /// An exam of this host, which a worker opens by its address, in the test of the same binary that calls [`child`].
    #[expect(clippy::disallowed_methods, reason = "each exam has a folder of its own")]
    pub fn new(host: H, address: impl Into<String>, child: impl Into<String>) -> Self {
        let folder = std::env::temp_dir().join(format!("stepfold-exam-{}", uuid::Uuid::new_v4().simple()));
        HostExam { host, address: address.into(), child: child.into(), folder, sessions: 24 }
    }

    /// Sets the number of sessions in the case of many; 24 by default.
    pub fn sessions(mut self, sessions: usize) -> Self {
        self.sessions = sessions.max(1);
        self
    }

    /// Runs all cases. A failing one does not stop the others.
    ///
    /// # Panics
    /// When the folder for the world cannot be created.
    #[expect(clippy::expect_used, reason = "an exam without a world cannot be taken")]
    pub async fn run(self) -> HostExamReport {
        std::fs::create_dir_all(&self.folder).expect("the folder of temporary files can be written");
        let cases = cases::all(&self).await;
        // What is left is in a folder of temporary files.
        let _ = std::fs::remove_dir_all(&self.folder);
        HostExamReport { cases }
    }
}

/// The result of an exam.
#[derive(Debug)]
#[non_exhaustive]
pub struct HostExamReport {
    /// Each case, with what was found if it failed.
    pub cases: Vec<(&'static str, Result<(), String>)>,
}

impl HostExamReport {
    /// Whether all cases passed.
    ///
    /// # Errors
    /// The report as text, if one did not.
    pub fn passed(&self) -> Result<(), String> {
        match self.cases.iter().all(|(_, result)| result.is_ok()) {
            true => Ok(()),
            false => Err(self.to_string()),
        }
    }
}

impl fmt::Display for HostExamReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (case, result) in &self.cases {
            match result {
                Ok(()) => writeln!(f, "passed {case}")?,
                Err(found) => writeln!(f, "FAILED {case}: {found}")?,
            }
        }
        Ok(())
    }
}
