//! Outcomes that come later: delivered under a token, from any process; and deadlines that pass.

use std::future::IntoFuture;

use futures_util::future::BoxFuture;
use serde_json::Value;
use stepfold_agent_loop::{ApprovalRequest, Decision, DecisionError, Run};
use stepfold_session_scopes::{EventRange, SessionKey, TakeOver};

use crate::access::decision_lookup::RecordedDecision;
use crate::core::runner_core::Runner;
use crate::error::{RunnerError, RunnerErrorKind};
use crate::handle::session_handle::SessionHandle;
use crate::record::history::session_of;
use crate::session::claim::{ClaimHolder, ClaimWait};
use crate::session::command::WorkerCommand;
use crate::session::decision_reply::DecisionReceipt;

impl Runner {
    /// Delivers an outcome that comes later, under the [token](stepfold_tools::Later::token) of its call: a value, or
    /// the reason of a failure, which the model reads. When awaited, it returns once the outcome is stored; the run
    /// continues in its own task, or by [`recover`](Runner::recover) if this process dies.
    ///
    /// Any process with a runner of the same agent on the same store may deliver it. Of several outcomes, the first
    /// counts; the same one again is a repeat, and returns the first receipt, however long ago that was. A fork of a
    /// session that waits does so under a token of its own, which its [pending request](crate::SessionHandle::pending)
    /// has. If the call has handed out the token and is not stored as waiting yet, or other calls of its step still
    /// run, this waits for them as [`when_claimed`](crate::RunnerBuilder::when_claimed) says.
    ///
    /// # Errors
    /// [`RunnerErrorKind::InvalidToken`]; [`RunnerErrorKind::NotAwaited`] if nothing waits for the outcome (any more);
    /// [`RunnerErrorKind::Decision`] if another outcome came first, the deadline has passed, or the outcome does not fit the
    /// schema of the call; as [`ResumeRun::submit`](crate::ResumeRun::submit).
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use serde_json::{Value, json};
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    /// use stepfold_tools::{Tool, ToolContext, ToolError};
    ///
    /// # async fn order_taxi(_callback: &str) -> Result<(), ToolError> { Ok(()) }
    /// async fn taxi(context: ToolContext) -> Result<Value, ToolError> {
    ///     let taxi = context.later("taxi").within(Duration::from_secs(600));
    ///     if taxi.is_new() {
    ///         order_taxi(taxi.token()).await?;
    ///     }
    ///     taxi.outcome()
    /// }
    /// # let model = Script::parse("assistant: > c1 taxi()\nassistant: it comes at nine")?;
    /// let agent = Agent::builder(model).tools([Tool::new("taxi", "Orders a taxi.", taxi).build()?]).build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.run("a taxi, please").await?;
    /// let token = session.pending().await?.remove(0).token.unwrap();
    ///
    /// // Later, in the handler of a webhook:
    /// let receipt = runner.complete(&token, Ok(json!({"at": "09:00"}))).await?;
    /// // The webhook is sent twice.
    /// assert_eq!(runner.complete(&token, Ok(json!({"at": "09:00"}))).await?, receipt);
    /// # if let Some(going) = session.running() { going.await?; }
    /// assert_eq!(session.state().await?.messages().last().unwrap().text(), "it comes at nine");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[doc(alias("callback", "webhook", "resolve", "awakeable", "deferred"))]
    pub fn complete(&self, token: &str, outcome: Result<Value, String>) -> CompleteCall {
        CompleteCall { runner: self.clone(), token: token.to_owned(), outcome, by: None }
    }

    /// The session of a token of a later outcome, whether it still waits for it or not: for a program that checks who may
    /// [`complete`](Runner::complete) it.
    ///
    /// # Errors
    /// [`RunnerErrorKind::InvalidToken`] if it is not a token, or one of another app.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let agent = Agent::builder(model).name("clerk").build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new()).build();
    /// let session = runner.session_of_token("clerk/ada/s1@life/run-1/c1/form")?;
    /// assert_eq!(session, runner.key("ada", "s1")?);
    /// assert!(runner.session_of_token("form").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn session_of_token(&self, token: &str) -> Result<SessionKey, RunnerError> {
        let invalid = |why: String| {
            RunnerError::new(None, RunnerErrorKind::InvalidToken { token: token.to_owned(), why })
        };
        let key = session_of(token).ok_or_else(|| {
            invalid("expected the token of a call, which begins with app, user and session".to_owned())
        })?;
        if key.app != self.0.app {
            return Err(invalid(format!("expected app `{}`, found `{}`", self.0.app, key.app)));
        }
        Ok(key)
    }
}

/// Delivers the outcome of a call when awaited. See [`Runner::complete`].
#[must_use = "nothing is delivered until it is awaited"]
#[derive(Debug)]
pub struct CompleteCall {
    runner: Runner,
    token: String,
    outcome: Result<Value, String>,
    by: Option<String>,
}

impl CompleteCall {
    /// Sets who delivers the outcome, which is recorded.
    pub fn by(mut self, name: impl Into<String>) -> Self {
        self.by = Some(name.into());
        self
    }

    async fn deliver(self) -> Result<DecisionReceipt, RunnerError> {
        let session = self.runner.handle(self.runner.session_of_token(&self.token)?);
        let decision = match self.outcome {
            Ok(outcome) => Decision::Complete { outcome },
            Err(reason) => Decision::Reject { reason },
        };
        session.complete(&self.token, decision, self.by).await
    }
}

impl IntoFuture for CompleteCall {
    type Output = Result<DecisionReceipt, RunnerError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.deliver())
    }
}

/// Whether a session waits for an outcome.
enum AwaitStatus {
    /// This request waits for it.
    By(Box<ApprovalRequest>),
    /// It was delivered before.
    Delivered(Box<RecordedDecision>),
    /// A worker is running, and the call may be about to wait.
    Perhaps,
    /// The run was interrupted, and the call may be about to wait when it continues.
    OnceRecovered,
    Not,
}

impl SessionHandle {
    async fn complete(
        &self,
        token: &str,
        decision: Decision,
        by: Option<String>,
    ) -> Result<DecisionReceipt, RunnerError> {
        let (mut waited, mut has_recovered) = (ClaimWait::default(), false);
        loop {
            match self.awaits(token).await? {
                AwaitStatus::By(request) => {
                    // NOTE: an outcome is a decision and not a message of the inbox: a deadline could come first after
                    // it was accepted.
                    let decided = self.resume().decide(request.id, decision).idempotency_key(token);
                    let decided = match by {
                        Some(by) => decided.by(by),
                        None => decided,
                    };
                    return Ok(decided.submit().await?.0);
                }
                AwaitStatus::Delivered(first) => return delivered(self.key(), token, *first, &decision),
                AwaitStatus::Perhaps if waited.pause(&self.core().claims, &*self.core().clock).await => {}
                AwaitStatus::OnceRecovered if !has_recovered => {
                    has_recovered = true;
                    // The next round finds out whether the call waits; another worker may recover the run as well.
                    let _ = self.start_command(WorkerCommand::Recover)?.outcome().await;
                }
                // The call may be about to wait.
                AwaitStatus::Perhaps => return Err(self.busy("the run has not come to wait for it")),
                AwaitStatus::OnceRecovered | AwaitStatus::Not => {
                    return Err(RunnerError::new(
                        self.key(),
                        RunnerErrorKind::NotAwaited { token: token.to_owned() },
                    ));
                }
            }
        }
    }

    async fn awaits(&self, token: &str) -> Result<AwaitStatus, RunnerError> {
        // Before the run is read: a call that begins to wait in between is found then.
        let is_running = self.running().is_some() || self.is_claimed().await?;
        let run = self.unfinished().await?;
        let pending = run.as_ref().map(Run::pending).unwrap_or_default();
        let is_it = |request: &ApprovalRequest| request.token.as_deref() == Some(token);
        if let Some(request) = pending.into_iter().find(is_it) {
            return Ok(AwaitStatus::By(Box::new(request)));
        }
        Ok(match (self.access().decision_with_key(token).await?, run) {
            (Some(recorded), _) => AwaitStatus::Delivered(Box::new(recorded)),
            (None, Some(_)) if is_running => AwaitStatus::Perhaps,
            (None, Some(run)) if run.pending().is_empty() => AwaitStatus::OnceRecovered,
            (None, _) => AwaitStatus::Not,
        })
    }

    async fn is_claimed(&self) -> Result<bool, RunnerError> {
        let session = self.read_events(EventRange::None).await?;
        Ok(self.holder(&session) == ClaimHolder::Other)
    }

    /// Lets [recovery](crate::Runner::recover) find a session that waits for a [later outcome](stepfold_agent_loop::AskReason::Later)
    /// when its deadline has passed. For a session that was stored without a worker, such as an imported one;
    /// [`fork`](SessionHandle::fork) does it.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn note_deadline(&self) -> Result<(), RunnerError> {
        let access = self.access();
        if !access.may_have_deadline().await? {
            return Ok(());
        }
        if self.unfinished().await?.and_then(|run| run.next_deadline()).is_none() {
            return Ok(());
        }
        // Without claims in the store, deadlines are looked at when the session is used.
        if access.claim(TakeOver::Never).await.is_ok() {
            // Another worker may have continued it since.
            access.release_as_found().await;
        }
        Ok(())
    }
}

/// The answer to an outcome after one was stored.
fn delivered(
    key: &SessionKey,
    token: &str,
    first: RecordedDecision,
    decision: &Decision,
) -> Result<DecisionReceipt, RunnerError> {
    if first.decision == *decision {
        let RecordedDecision { version, request, by, invocation, .. } = first;
        return Ok(DecisionReceipt { version, requests: vec![request], by, invocation });
    }
    let error = DecisionError::KeyReused { idempotency_key: token.to_owned() };
    Err(RunnerError::decided_before(key, error, first.at))
}
