//! The report of a run that a host started under a key: small, serialisable, and the same for every host.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepfold_agent_loop::{ApprovalRequest, ExhaustedBudget, Exit, Pause, Run};
use stepfold_session_scopes::InvocationId;
use stepfold_state_core::chat::Usage;

/// The newest format of a [`RunReport`].
pub const REPORT_FORMAT: u32 = 1;

/// The result of a run that was started under an idempotency key: see
/// [`SessionHandle::run_as`](crate::SessionHandle::run_as).
///
/// Everything else is in the session at its version. A report of a newer format is refused when it is read.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, Exit};
/// use stepfold_runner::{RunReport, RunStatus, Runner};
/// use stepfold_session_scopes::MemoryStore;
///
/// # let model = Script::parse("assistant: area 3")?;
/// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
/// let session = runner.session("ada", "s1").await?;
/// let report = session.run_as("request-7", "which area has most stalls?").await?;
/// assert_eq!((&report.status, &*report.text), (&RunStatus::Finished(Exit::Text), "area 3"));
///
/// let stored = serde_json::to_string(&report)?;
/// assert_eq!(serde_json::from_str::<RunReport>(&stored)?, report);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StoredReport")]
#[non_exhaustive]
pub struct RunReport {
    /// The format: [`REPORT_FORMAT`].
    pub format: u32,
    /// The idempotency key of the input.
    pub idempotency_key: InvocationId,
    /// The status of the run.
    pub status: RunStatus,
    /// The text of the run's last reply; empty without a reply.
    pub text: String,
    /// The requested output, if the agent has one and it is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// The version of the session after the last event of the run.
    pub version: u64,
    /// The token usage of the run so far.
    pub usage: Usage,
    /// The budget for which a suspended run waits: call again under a higher limit, or in its next window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Box<ExhaustedBudget>>,
}

/// The status of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunStatus {
    /// It has ended.
    Finished(Exit),
    /// It waits for decisions about these requests: call again with them.
    Waiting(Vec<ApprovalRequest>),
    /// It was suspended between two steps, or has not begun because an earlier run of the session was: call
    /// again.
    Suspended,
}

impl RunStatus {
    /// Whether the run has ended.
    pub const fn is_finished(&self) -> bool {
        matches!(self, RunStatus::Finished(_))
    }

    fn of(run: &Run, exit: &Exit) -> Self {
        match exit {
            Exit::Paused(Pause::Approval) => RunStatus::Waiting(run.pending()),
            exit if exit.is_resumable() => RunStatus::Suspended,
            exit => RunStatus::Finished(exit.clone()),
        }
    }
}

impl RunReport {
    /// The report of a run at a version of its session.
    pub(crate) fn of_run(key: &InvocationId, run: &Run, exit: &Exit, version: u64) -> Self {
        RunReport {
            format: REPORT_FORMAT,
            idempotency_key: key.clone(),
            status: RunStatus::of(run, exit),
            text: run.last_words().unwrap_or_default(),
            output: run.output().cloned(),
            version,
            usage: run.usage(),
            budget: match exit {
                Exit::Paused(Pause::Budget(budget)) => Some(budget.clone()),
                _ => None,
            },
        }
    }

    /// The report of a run that has not begun, because an earlier one was suspended.
    pub(crate) fn not_begun(key: &InvocationId, version: u64) -> Self {
        RunReport {
            format: REPORT_FORMAT,
            idempotency_key: key.clone(),
            status: RunStatus::Suspended,
            text: String::new(),
            output: None,
            version,
            usage: Usage::default(),
            budget: None,
        }
    }
}

#[derive(Deserialize)]
struct StoredReport {
    format: u32,
    idempotency_key: InvocationId,
    status: RunStatus,
    text: String,
    #[serde(default)]
    output: Option<Value>,
    version: u64,
    usage: Usage,
    #[serde(default)]
    budget: Option<Box<ExhaustedBudget>>,
}

impl TryFrom<StoredReport> for RunReport {
    type Error = String;

    fn try_from(stored: StoredReport) -> Result<Self, String> {
        let StoredReport { format, idempotency_key, status, text, output, version, usage, budget } = stored;
        match format {
            1..=REPORT_FORMAT => {
                Ok(RunReport { format, idempotency_key, status, text, output, version, usage, budget })
            }
            newer => {
                Err(format!("unsupported format {newer} of a report: written by a newer stepfold; update"))
            }
        }
    }
}
