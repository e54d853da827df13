//! The error of a run, with the run up to that point, which the caller can resume.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use stepfold_state_core::ErrorChain;
use stepfold_state_core::chat::ModelError;
use stepfold_tools::{FatalError, ToolsetError};
use thiserror::Error as ThisError;

use crate::agent::HookPoint;
use crate::decisions::DecisionError;
use crate::error::{AgentError, FeedError, StartError};
use crate::exit::{Exit, Pause};
use crate::meter::{ExhaustedBudget, MeterError};
use crate::outcome::Outcome;
use crate::run::Run;

/// An error of a run. It can be resumed: nothing that was committed is lost.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, Exit};
///
/// // The script has no reply, so the request fails.
/// let agent = Agent::builder(Script::parse("")?).build()?;
/// let error = agent.run("hello?").await.unwrap_err();
/// assert!(error.model_error().is_some());
/// assert_eq!(error.outcome().exit(), &Exit::Failed);
/// assert_eq!(error.into_run().transcript().to_string(), "user:      hello?\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct RunError(Box<FailedRun>);

struct FailedRun {
    fault: RunFault,
    outcome: Outcome,
}

/// The fault of a run.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum RunFault {
    /// The agent could not be adjusted for the run.
    #[error("agent could not be adjusted for the run: {0}")]
    Agent(AgentError),
    /// The input does not fit.
    #[error("run could not begin: {0}")]
    Start(StartError),
    /// The model did not answer.
    #[error("model request failed: {0}")]
    Model(ModelError),
    /// A budget has too little left for the next request, which was not sent.
    #[error("{0}")]
    Budget(Box<ExhaustedBudget>),
    /// The next request could not be metered, so it was not sent.
    #[error("request could not be metered: {}", ErrorChain(&**.0))]
    Meter(Box<dyn Error + Send + Sync>),
    /// A call failed, and its failure is for the caller.
    #[error("tool call failed: {0}")]
    Tool(FatalError),
    /// A call, or a branch of a graph, was to be [answered](crate::CallAnswers) in place of its function, and has no
    /// answer. The run waits before it.
    #[error("no answer for call `{id}` of tool '{tool}'")]
    Unanswered {
        /// The tool, or the node.
        tool: String,
        /// The id of the call, or the label of the branch.
        id: String,
    },
    /// A node failed after all attempts and has no `on_error`. A resumed run attempts it again.
    #[error("node '{node}' failed: {error}")]
    Node {
        /// The branch: the node, with its index in the superstep if it has an item.
        node: String,
        /// The reason.
        error: String,
    },
    /// The tools of the step could not be listed.
    #[error("tools of the step could not be listed: {0}")]
    Tools(ToolsetError),
    /// A hook failed. After a tool, the outcomes of the call and of concurrent ones were committed first; a
    /// resumed run begins with that hook.
    #[error("hook {point} failed: {}", ErrorChain(&**source))]
    Hook {
        /// The point of the hook.
        point: HookPoint,
        /// The cause.
        r#source: Box<dyn Error + Send + Sync>,
    },
    /// An observer that does not record failed. Events before it were committed, and running calls completed,
    /// before the run stopped.
    #[error("observer failed: {}", ErrorChain(&**.0))]
    Observer(Box<dyn Error + Send + Sync>),
    /// The observer that was to record an event failed, so that it was not committed. The run stopped at once, since it
    /// is not known whether the event is in the record.
    #[error("observer failed, so the event was not committed{}: {}", unrecorded_suffix(unrecorded), ErrorChain(&**source))]
    Commit {
        /// The calls, and the branches of a graph, whose outcomes are lost with it: see [`RunError::unrecorded`].
        unrecorded: Vec<String>,
        /// The cause.
        r#source: Box<dyn Error + Send + Sync>,
    },
    /// Decisions were rejected. Nothing was committed: the run still waits, and can be decided again.
    #[error("invalid decision: {0}")]
    Decision(DecisionError),
    /// An answer did not fit: the instructions cannot be rendered.
    #[error("run could not continue: {0}")]
    Feed(FeedError),
}

/// The part of an error message about lost outcomes.
fn unrecorded_suffix(unrecorded: &[String]) -> String {
    match unrecorded {
        [] => String::new(),
        ids => format!("; unrecorded outcomes: `{}`", ids.join("`, `")),
    }
}

impl From<MeterError> for RunFault {
    fn from(error: MeterError) -> Self {
        match error {
            MeterError::Exhausted(budget) => RunFault::Budget(budget),
            MeterError::Failed(source) => RunFault::Meter(source),
        }
    }
}

impl From<FeedError> for RunFault {
    fn from(error: FeedError) -> Self {
        match error {
            FeedError::Decision(error) => RunFault::Decision(error),
            error => RunFault::Feed(error),
        }
    }
}

impl RunFault {
    /// The reason of the stop: a failure, or, after rejected decisions, the pause as before.
    pub(crate) fn exit(&self, run: &Run) -> Exit {
        match self {
            RunFault::Decision(_) if !run.pending().is_empty() => Exit::Paused(Pause::Approval),
            _ => Exit::Failed,
        }
    }
}

impl RunError {
    pub(crate) fn new(fault: RunFault, run: Run) -> Self {
        let exit = fault.exit(&run);
        RunError(Box::new(FailedRun { fault, outcome: Outcome::new(run, exit) }))
    }

    /// The fault.
    pub fn fault(&self) -> &RunFault {
        &self.0.fault
    }

    /// The fault, without the run.
    pub fn into_fault(self) -> RunFault {
        self.0.fault
    }

    /// The model's error, if it is the fault.
    pub fn model_error(&self) -> Option<&ModelError> {
        match &self.0.fault {
            RunFault::Model(error) => Some(error),
            _ => None,
        }
    }

    /// The ids of the completed calls, and of branches of a graph, that could not be
    /// [recorded](RunFault::Commit). A resumed run finds them in the record if they were stored; otherwise
    /// calls that must not run twice become [unknown](Outcome::unknown_calls), and the others run again.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_tools::{Tool, ToolError};
    /// use stepfold_agent_loop::{Agent, Observer, ObserverError, RunEvent};
    ///
    /// /// A store whose disk is full when the payment has been made.
    /// struct Full;
    ///
    /// impl Observer for Full {
    ///     async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
    ///         match event.committed() {
    ///             Some(event) if event.name() == "answered" => Err("the disk is full".into()),
    ///             _ => Ok(()),
    ///         }
    ///     }
    /// }
    ///
    /// # async fn pay() -> Result<&'static str, ToolError> { Ok("paid") }
    /// # let pay = Tool::new("pay", "Pays a bill.", pay).build()?;
    /// # let model = Script::parse("assistant: > c1 pay()\nassistant: paid")?;
    /// let agent = Agent::builder(model).tools([pay]).build()?;
    /// let error = agent.run("pay the bill").record_with(Full).await.unwrap_err();
    /// assert_eq!(error.unrecorded(), ["c1"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn unrecorded(&self) -> &[String] {
        match &self.0.fault {
            RunFault::Commit { unrecorded, .. } => unrecorded,
            _ => &[],
        }
    }

    /// The partial outcome.
    pub fn outcome(&self) -> &Outcome {
        &self.0.outcome
    }

    /// The run, to be resumed: [`Run::resume`].
    pub fn into_run(self) -> Run {
        self.0.outcome.into_run()
    }

    /// Adds the outcomes of interrupted runs that were completed before this run began.
    #[must_use]
    pub fn with_recovered(self, recovered: impl IntoIterator<Item = Arc<Outcome>>) -> Self {
        let FailedRun { fault, outcome } = *self.0;
        RunError(Box::new(FailedRun { fault, outcome: outcome.with_recovered(recovered) }))
    }
}

stepfold_state_core::debug_as_text!(RunError);

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = self.outcome().run();
        if let RunFault::Decision(_) = self.0.fault {
            return write!(f, "run '{}' waits after step {}: {}", run.id(), run.steps(), self.0.fault);
        }
        write!(f, "run '{}' failed after step {}: {}", run.id(), run.steps(), self.0.fault)
    }
}

/// The text includes the causes, so there is no `source()`; see [`fault`](RunError::fault).
impl Error for RunError {}
