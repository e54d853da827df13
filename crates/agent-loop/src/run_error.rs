//! Why a run failed, with the run up to that point: the caller can go on with it.

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
use crate::outcome::Outcome;
use crate::run::Run;

/// Why a run failed. It can go on from where it is: nothing that was committed is lost.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// # use stepfold_agent_loop::test_kit::Script;
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
pub struct RunError(Box<Failed>);

struct Failed {
    fault: RunFault,
    outcome: Outcome,
}

/// What failed.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum RunFault {
    /// The agent could not be adjusted for the run.
    #[error("the agent could not be adjusted for the run: {0}")]
    Agent(AgentError),
    /// The input does not fit.
    #[error("the run could not begin: {0}")]
    Start(StartError),
    /// The model did not answer.
    #[error("the model did not answer: {0}")]
    Model(ModelError),
    /// A call failed, and its failure is for the caller.
    #[error("a tool call ended the run: {0}")]
    Tool(FatalError),
    /// A node failed after all attempts and has no `on_error`. A resumed run attempts it again.
    #[error("node '{node}' failed: {error}")]
    Node {
        /// The branch: the node, with its place in the superstep if it has an item.
        node: String,
        /// Why, in words.
        error: String,
    },
    /// The tools of the step could not be listed.
    #[error("the tools of the step could not be listed: {0}")]
    Tools(ToolsetError),
    /// A hook failed. After a tool, what the call and those beside it did was committed first; resumed, the run begins
    /// with that hook.
    #[error("a hook failed ({point:?}): {}", ErrorChain(&**source))]
    Hook {
        /// Where.
        point: HookPoint,
        /// Why.
        r#source: Box<dyn Error + Send + Sync>,
    },
    /// An observer failed that was only told of something. What had happened was committed, and what was under way came
    /// to its end, before the run stopped.
    #[error("the observer failed: {}", ErrorChain(&**.0))]
    Observer(Box<dyn Error + Send + Sync>),
    /// The observer that was to record an event failed, so that it was not committed. The run stopped at once, since it
    /// is not known whether the event is in the record.
    #[error("the observer failed, so the event was not committed{}: {}", lost(unrecorded), ErrorChain(&**source))]
    Commit {
        /// The calls, and the branches of a graph, whose outcomes are lost with it: see [`RunError::unrecorded`].
        unrecorded: Vec<String>,
        /// Why.
        r#source: Box<dyn Error + Send + Sync>,
    },
    /// Decisions were refused. Nothing was committed: the run waits as before, and can be decided about again.
    #[error("the decision was refused: {0}")]
    Decision(DecisionError),
    /// An answer did not fit: the instructions cannot be rendered.
    #[error("the run could not go on: {0}")]
    Feed(FeedError),
}

/// What an error says of outcomes that are lost.
fn lost(unrecorded: &[String]) -> String {
    match unrecorded {
        [] => String::new(),
        ids => format!("; unrecorded outcomes: `{}`", ids.join("`, `")),
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
    /// Why the run stops: it failed, or, when only decisions were refused, it waits as before.
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
        RunError(Box::new(Failed { fault, outcome: Outcome::new(run, exit) }))
    }

    /// What failed.
    pub fn fault(&self) -> &RunFault {
        &self.0.fault
    }

    /// What failed, without the run.
    pub fn into_fault(self) -> RunFault {
        self.0.fault
    }

    /// The model's error, if that is what failed.
    pub fn model_error(&self) -> Option<&ModelError> {
        match &self.0.fault {
            RunFault::Model(error) => Some(error),
            _ => None,
        }
    }

    /// The ids of the calls, and of the branches of a graph, that came to an end which could not be
    /// [recorded](RunFault::Commit). Resumed, the run finds them in the record if they are there after all; otherwise it
    /// takes those that must not run twice for [unknown](Outcome::unknown_calls), and runs the others again.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// # use stepfold_agent_loop::test_kit::Script;
    /// # use stepfold_tools::{Tool, ToolError};
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

    /// What there is until now.
    pub fn outcome(&self) -> &Outcome {
        &self.0.outcome
    }

    /// The run, to go on with it: [`Run::resume`].
    pub fn into_run(self) -> Run {
        self.0.outcome.into_run()
    }

    /// The same with the outcomes of interrupted runs that were finished before this run began.
    #[must_use]
    pub fn with_recovered(self, recovered: impl IntoIterator<Item = Arc<Outcome>>) -> Self {
        let Failed { fault, outcome } = *self.0;
        RunError(Box::new(Failed { fault, outcome: outcome.with_recovered(recovered) }))
    }
}

impl fmt::Debug for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunError").field("fault", &self.0.fault).field("run", self.outcome().run()).finish()
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = self.outcome().run();
        if let RunFault::Decision(_) = self.0.fault {
            return write!(f, "run '{}' waits after step {}: {}", run.id(), run.steps(), self.0.fault);
        }
        write!(f, "run '{}' failed after step {}: {}", run.id(), run.steps(), self.0.fault)
    }
}

/// The text shows what failed and its causes, so there is no `source()`; see [`fault`](RunError::fault).
impl Error for RunError {}
