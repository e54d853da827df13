//! A run under an idempotency key: a function that any worker may repeat.
//!
//! Nothing is remembered beside the session. The key is the id of the invocation, which the inbox and the events have.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use stepfold_agent_loop::{Decision, Decisions, Input};
use stepfold_session_scopes::InvocationId;
use stepfold_tools::CancellationToken;

use crate::access::key_lookup::{MessageFate, has_hidden_inherited};
use crate::error::{RunnerError, RunnerErrorKind};
use crate::handle::session_handle::SessionHandle;
use crate::record::history::is_run_of;
use crate::record::report::RunReport;
use crate::session::command::RunOptions;
use crate::session::invocation::{Invocation, InvocationResult};

/// A run under an idempotency key, when awaited. See [`SessionHandle::run_as`].
#[must_use = "nothing runs until it is awaited"]
#[derive(Debug)]
pub struct RunAs {
    session: SessionHandle,
    key: Arc<str>,
    input: Input,
    decisions: Decisions,
    stop_after: Option<Duration>,
    with_changed_agent: bool,
}

impl RunAs {
    pub(crate) fn new(session: SessionHandle, key: Arc<str>, input: Input) -> Self {
        let (decisions, stop_after, with_changed_agent) = (Decisions::new(), None, false);
        RunAs { session, key, input, decisions, stop_after, with_changed_agent }
    }

    /// Adds a decision about a request of the run, by its id.
    pub fn decide(self, id: impl Into<String>, decision: Decision) -> Self {
        self.decide_all([(id.into(), decision)])
    }

    /// Adds decisions about requests of the run. All decisions are one commit. The same decisions again are a repeat,
    /// and change nothing; another decision about a request is refused.
    pub fn decide_all(mut self, decisions: impl Into<Decisions>) -> Self {
        self.decisions = self.decisions.and(decisions);
        self
    }

    /// Suspends the run at the first boundary of steps after this time. A step is finished first, with all its calls
    /// (of a graph: a superstep, with the agents in it), and each call makes one at least.
    pub fn stop_after(mut self, time: Duration) -> Self {
        self.stop_after = Some(time);
        self
    }

    /// Forces the run to continue with an agent that changed since it began.
    pub fn with_changed_agent(mut self) -> Self {
        self.with_changed_agent = true;
        self
    }

    async fn run(self) -> Result<RunReport, RunnerError> {
        let RunAs { session, key, input, decisions, stop_after, with_changed_agent } = self;
        let key = InvocationId::new(key).map_err(|error| session.failed(error))?;
        let decisions = keyed(&key, decisions);
        session.check_open()?;
        // Who decides may leave out the message, which the run has.
        let decides_alone = !decisions.is_empty() && input.only_messages().is_some_and(<[_]>::is_empty);
        let message = (!decides_alone).then_some(&input);
        if let Some(report) = session.access().find_ended_report(&key).await? {
            session.access().check_input(&key, message).await?;
            session.access().check_decided(&decisions).await?;
            return Ok(report);
        }
        let (read, known) = session.access().read_with_report(&key).await?;
        let mut is_taken = read.0.taker(&key).is_some();
        if is_taken {
            session.access().check_input(&key, message).await?;
        }
        if let Some(report) = known.filter(|report| report.status.is_finished()) {
            session.access().check_decided(&decisions).await?;
            return Ok(report);
        }
        let is_looked_up = !is_taken && (!decisions.is_empty() || has_hidden_inherited(&read.1));
        drop(read);
        if is_looked_up {
            match session.access().message_fate(&key).await? {
                MessageFate::Ended(report) => {
                    session.access().check_input(&key, message).await?;
                    session.access().check_decided(&decisions).await?;
                    return Ok(*report);
                }
                MessageFate::Unfinished => return Err(session.withdrawn()),
                // A worker has begun it since the first read.
                MessageFate::Begun => is_taken = true,
                // A run that has not begun has asked nothing.
                MessageFate::Unknown => session.access().check_decided(&decisions).await?,
            }
        }
        // NOTE: the message goes through the inbox even if the session is idle: the inbox remembers the key.
        let suspension = CancellationToken::new();
        if stop_after.is_some_and(|time| time.is_zero()) {
            suspension.cancel();
        }
        let options = RunOptions { decisions, with_changed_agent, suspension: suspension.clone() };
        let started = session.start_as(&key, (!is_taken).then_some(input), options).await;
        let ended = match &started {
            Ok(invocation) => session.until_suspended(invocation, stop_after, &suspension).await,
            Err(error) => Err(error.clone()),
        };
        match (ended, started) {
            (Ok(outcome), Ok(invocation)) if is_run_of(outcome.run(), &key) => {
                Ok(RunReport::of_run(&key, outcome.run(), outcome.exit(), invocation.version()))
            }
            // Messages that came too late to join its run had one of their own; or an earlier run was suspended.
            (Ok(_), Ok(invocation)) => {
                let report = session.access().read_with_report(&key).await?.1;
                Ok(report.unwrap_or_else(|| RunReport::not_begun(&key, invocation.version())))
            }
            // Its run was hidden by a rewind.
            (Err(error), _) if may_be_hidden(&error) => match session.access().message_fate(&key).await? {
                MessageFate::Ended(report) => Ok(*report),
                MessageFate::Unfinished | MessageFate::Begun | MessageFate::Unknown => Err(error),
            },
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
        }
    }
}

impl SessionHandle {
    /// Waits for the outcome; asks for a suspension after the time.
    async fn until_suspended(
        &self,
        invocation: &Invocation,
        stop_after: Option<Duration>,
        suspension: &CancellationToken,
    ) -> InvocationResult {
        if let Some(time) = stop_after {
            tokio::select! {
                biased;
                ended = invocation.outcome() => return ended,
                () = self.sleep(time) => suspension.cancel(),
            }
        }
        invocation.outcome().await
    }
}

/// Decisions that may be sent again: with a key that other decisions of the run do not have.
fn keyed(key: &InvocationId, decisions: Decisions) -> Decisions {
    if decisions.is_empty() || decisions.idempotency_key.is_some() {
        return decisions;
    }
    let mut ids: Vec<&str> = decisions.decisions.iter().map(|(id, _)| id.as_str()).collect();
    ids.sort_unstable();
    let key = format!("{key}/{}", ids.join(","));
    decisions.with_idempotency_key(key)
}

/// Whether the message may have been taken by a run that a rewind hid.
fn may_be_hidden(error: &RunnerError) -> bool {
    matches!(error.kind, RunnerErrorKind::Withdrawn) || error.is_event_reused()
}

impl IntoFuture for RunAs {
    type Output = Result<RunReport, RunnerError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
