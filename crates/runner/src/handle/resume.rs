//! Resumes a run: after decisions, an interruption or a failure.

use std::future::IntoFuture;

use futures_util::future::BoxFuture;
use stepfold_agent_loop::{Decision, Decisions};

use crate::error::{RunnerError, RunnerErrorKind};
use crate::handle::session_handle::SessionHandle;
use crate::session::command::WorkerCommand;
use crate::session::decision_reply::{DecisionReceipt, DecisionReply};
use crate::session::invocation::{Invocation, InvocationResult};

/// Resumes a run when awaited. See [`SessionHandle::resume`].
#[must_use = "nothing is resumed until it is awaited or started"]
#[derive(Debug)]
pub struct ResumeRun {
    session: SessionHandle,
    decisions: Decisions,
    with_changed_agent: bool,
}

impl ResumeRun {
    pub(crate) fn new(session: SessionHandle) -> Self {
        ResumeRun { session, decisions: Decisions::new(), with_changed_agent: false }
    }

    /// Adds a decision about a pending call, by the id of the request. All decisions are one commit.
    pub fn decide(mut self, id: impl Into<String>, decision: Decision) -> Self {
        self.decisions = self.decisions.decide(id, decision);
        self
    }

    /// Sets the author of the decisions, which is recorded.
    pub fn by(mut self, name: impl Into<String>) -> Self {
        self.decisions = self.decisions.by(name);
        self
    }

    /// Makes the decisions idempotent: the same decisions with the same key are a repeat, even from another process and
    /// after the run continued or ended; a repeat returns the first receipt and changes nothing. Other decisions with
    /// the key are rejected, in later runs of the session too, however long ago that was. The author is not compared: the
    /// receipt of a repeat has the first author. Without a key, a second decision about a request is an error with the
    /// first one's author, content and time.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.decisions = self.decisions.with_idempotency_key(key);
        self
    }

    /// Adds decisions about pending calls.
    pub fn decide_all(mut self, decisions: impl Into<Decisions>) -> Self {
        self.decisions = self.decisions.and(decisions);
        self
    }

    /// Forces the resumption with an agent that changed since the run began.
    pub fn with_changed_agent(mut self) -> Self {
        self.with_changed_agent = true;
        self
    }

    /// Starts the resumption in its own task.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Busy`] when too many messages wait.
    pub fn start(self) -> Result<Invocation, RunnerError> {
        let ResumeRun { session, decisions, with_changed_agent } = self;
        session.start_command(WorkerCommand::Resume {
            decisions,
            with_changed_agent,
            decision_reply: DecisionReply::default(),
        })
    }

    /// Submits the decisions, and returns their receipt after storage. The run continues in its own task.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Decision`] when they are rejected:
    /// [`AlreadyDecided`](stepfold_agent_loop::DecisionError) for a second decision about a request.
    /// [`RunnerErrorKind::NothingToResume`] without a decision. As [`start`](ResumeRun::start), and when the store
    /// fails.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_tools::{Approval, Tool, ToolError};
    /// use stepfold_agent_loop::{Agent, Decision};
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # async fn pay() -> Result<&'static str, ToolError> { Ok("paid") }
    /// # let model = Script::parse("assistant: > c1 pay()\nassistant: done")?;
    /// let pay = Tool::new("pay", "Pays a bill.", pay).approval(Approval::Always).build()?;
    /// let agent = Agent::builder(model).tools([pay]).build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.run("pay the bill").await?;
    /// let id = session.pending().await?[0].id.clone();
    ///
    /// // The response to the first click was lost, so the browser sends it again.
    /// let click = || session.resume().decide(&*id, Decision::Approve).by("ada").idempotency_key("click-1");
    /// let (receipt, invocation) = click().submit().await?;
    /// assert_eq!(invocation.await?.text(), "done");
    /// assert_eq!(click().submit().await?.0, receipt);
    ///
    /// // Bob is too late.
    /// let error = session.resume().decide(&*id, Decision::reject("no")).by("bob").submit().await.unwrap_err();
    /// assert!(error.to_string().contains("already decided by ada"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn submit(self) -> Result<(DecisionReceipt, Invocation), RunnerError> {
        let ResumeRun { session, decisions, with_changed_agent } = self;
        let (decision_reply, stored) = DecisionReply::new();
        let command = WorkerCommand::Resume { decisions, with_changed_agent, decision_reply };
        let invocation = session.start_command(command)?;
        match stored.await {
            Ok(receipt) => Ok((receipt?, invocation)),
            // It ended, and nothing was decided.
            Err(_) => Err(session.error(RunnerErrorKind::NothingToResume)),
        }
    }
}

impl IntoFuture for ResumeRun {
    type Output = InvocationResult;
    type IntoFuture = BoxFuture<'static, InvocationResult>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.start()?.outcome().await })
    }
}
