//! The virtual object of a session: what Restate calls.
//!
//! `run` and `decide` are exclusive, so the turns of a session come in order. One journaled call is one slice of a run,
//! and any worker may repeat it. No branch here depends on the agent: a journal that one version of an agent began,
//! another one can replay.

use std::time::{Duration, SystemTime};

use restate_sdk::context::RequestTarget;
use restate_sdk::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepfold_agent_loop::tools::decode_key_part;
use stepfold_agent_loop::{Exit, Input, Pause};
use stepfold_runner::{Runner, RunnerError, RunnerErrorKind, SessionHandle};
use tracing::Instrument as _;

use crate::key::session_of;
use crate::limits::RemoteReport;
use crate::slice::{ErrorReaction, SliceEnd, reaction};
use crate::wire::{DecideRequest, OBJECT, PendingRequests, ReceivedBody, TurnRequest};

/// The delay after a deadline at which the session is woken, so that the deadline has passed by the clocks of all
/// workers but a slow one.
const MARGIN: Duration = Duration::from_millis(5);

/// The task of the slices of an invocation.
#[derive(Clone, Debug)]
enum SliceTask {
    /// A turn, under its key.
    Run(String, Box<Input>),
    /// A run continues after decisions.
    Decide(DecideRequest),
    /// An interrupted run and waiting messages of the session are completed.
    Resume,
}

/// The times and options of a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerOptions {
    pub(crate) slice: Duration,
    /// The time for which a slice waits for its last step after its duration.
    pub(crate) linger: Duration,
    pub(crate) pauses: (Duration, Duration),
    pub(crate) with_changed_agent: bool,
}

impl WorkerOptions {
    fn pause(&self, number: u32) -> Duration {
        let (first, longest) = self.pauses;
        first.saturating_mul(1 << number.min(20)).min(longest)
    }
}

/// The virtual object.
pub(crate) struct SessionObject {
    /// One for each application.
    pub(crate) runners: Vec<Runner>,
    pub(crate) options: WorkerOptions,
}

#[object(name = "Session", client_visibility = "pub(crate)")]
impl SessionObject {
    /// Runs a turn: `{"idempotency_key": "request-7", "input": "..."}`, or the input alone, which is a text or the JSON
    /// of an input. Without a key, the run is named by the invocation. The reply is a report.
    #[handler]
    async fn run(
        &self,
        ctx: ObjectContext<'_>,
        body: ReceivedBody<Value>,
    ) -> HandlerResult<Json<RemoteReport>> {
        let TurnRequest { idempotency_key, input } = body.0.and_then(TurnRequest::parse).map_err(invalid)?;
        // Restate makes the id from the key of the request, if it has one.
        let key = idempotency_key.unwrap_or_else(|| ctx.invocation_id().to_owned());
        self.until_reported(&ctx, SliceTask::Run(key, Box::new(input))).await
    }

    /// Decides about requests of a run, and continues it.
    #[handler]
    async fn decide(
        &self,
        ctx: ObjectContext<'_>,
        body: ReceivedBody<DecideRequest>,
    ) -> HandlerResult<Json<RemoteReport>> {
        let decide = body.0.map_err(invalid)?;
        if decide.decisions.is_empty() {
            return Err(invalid("no decision: expected at least one in `decisions`".to_owned()).into());
        }
        self.until_reported(&ctx, SliceTask::Decide(decide)).await
    }

    /// Completes an interrupted run and waiting messages of the session.
    #[handler]
    async fn resume(&self, ctx: ObjectContext<'_>) -> HandlerResult<()> {
        self.until_done(&ctx, SliceTask::Resume).await.map(drop)
    }

    /// The requests that the session waits for.
    #[handler]
    async fn pending(&self, ctx: SharedObjectContext<'_>) -> HandlerResult<Json<PendingRequests>> {
        let session = self.session(ctx.key()).await?;
        let run = session.unfinished().await.map_err(handler_error)?;
        let Some(run) = run.filter(|run| !run.pending().is_empty()) else {
            return Ok(Json(PendingRequests::default()));
        };
        let name = run.id().rsplit('/').next().map(decode_key_part);
        Ok(Json(PendingRequests { run: name, requests: run.pending() }))
    }

    /// Cancels the run of the session, whether it is running on some worker, waits or was interrupted. Whether there
    /// was one.
    #[handler]
    async fn cancel(&self, ctx: SharedObjectContext<'_>) -> HandlerResult<Json<bool>> {
        let session = self.session(ctx.key()).await?;
        let Json(cancelled) = ctx.run(|| cancel(session)).name("cancel").await?;
        if cancelled.has_more {
            drop(ctx.request::<(), ()>(resume_target(ctx.key()), ()).send());
        }
        Ok(Json(cancelled.was_there))
    }
}

/// The result of a cancellation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct CancelResult {
    was_there: bool,
    has_more: bool,
}

async fn cancel(session: SessionHandle) -> HandlerResult<Json<CancelResult>> {
    let was_there = session.cancel_everywhere().await.map_err(handler_error)?;
    Ok(Json(CancelResult { was_there, has_more: was_there && has_more(&session).await? }))
}

/// The target of a request that resumes the waiting work of a session.
fn resume_target(object: &str) -> RequestTarget {
    RequestTarget::object(OBJECT, object, "resume")
}

/// Has Restate resume the session at a time. Of several requests for one time, one is kept, unless this invocation may
/// be the kept one: a clock of Restate that is ahead wakes too early.
fn wake_at(ctx: &ObjectContext<'_>, due: SystemTime, is_woken: bool) {
    #[expect(clippy::disallowed_methods, reason = "Restate takes a delay, and a session has the time of day")]
    let delay = due.duration_since(SystemTime::now()).unwrap_or_default() + MARGIN;
    let wake = ctx.request::<(), ()>(resume_target(ctx.key()), ());
    let since = due.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // NOTE: the invocation ends while the session waits: a durable sleep would keep the object, and decisions could not
    // come.
    let wake = if is_woken { wake } else { wake.idempotency_key(format!("due/{}", since.as_micros())) };
    drop(wake.send_after(delay));
}

/// Whether messages wait in the inbox.
async fn has_more(session: &SessionHandle) -> Result<bool, HandlerError> {
    session.inbox().await.map(|inbox| !inbox.is_empty()).map_err(handler_error)
}

impl SessionObject {
    async fn session(&self, object: &str) -> Result<SessionHandle, HandlerError> {
        let key = session_of(object)
            .ok_or_else(|| invalid(format!("invalid key `{object}`: expected app/user/session")))?;
        for runner in &self.runners {
            let served = runner.key(key.user.as_str(), key.id.as_str()).map_err(handler_error)?;
            if served == key {
                return runner.session(key.user.as_str(), key.id.as_str()).await.map_err(handler_error);
            }
        }
        Err(TerminalError::new_with_code(404, format!("unknown app `{}` in key `{object}`", key.app)).into())
    }

    async fn until_reported(
        &self,
        ctx: &ObjectContext<'_>,
        task: SliceTask,
    ) -> HandlerResult<Json<RemoteReport>> {
        let done = self.until_done(ctx, task).await?;
        // Only `resume` ends without a report.
        done.map(Json).ok_or_else(|| TerminalError::new("the session is at rest").into())
    }

    /// Runs slices until there is nothing left to do.
    async fn until_done(
        &self,
        ctx: &ObjectContext<'_>,
        task: SliceTask,
    ) -> HandlerResult<Option<RemoteReport>> {
        let session = self.session(ctx.key()).await?;
        let mut blocked = 0;
        loop {
            let slice = || self.slice(session.clone(), task.clone());
            // NOTE: one small value is journaled for each slice: the record in the store is the only journal of a run.
            let Json(end) = ctx.run(slice).name("slice").await?;
            match end {
                SliceEnd::Done { report, has_more, due } => {
                    if has_more {
                        drop(ctx.request::<(), ()>(resume_target(ctx.key()), ()).send());
                    }
                    if let Some(due) = due {
                        wake_at(ctx, due, matches!(task, SliceTask::Resume));
                    }
                    return Ok(Some(*report));
                }
                SliceEnd::AtRest => return Ok(None),
                SliceEnd::AtRestUntil(due) => {
                    wake_at(ctx, due, true);
                    return Ok(None);
                }
                SliceEnd::GoesOn => blocked = 0,
                SliceEnd::Blocked { .. } => {
                    ctx.sleep(self.options.pause(blocked)).await?;
                    blocked += 1;
                }
            }
        }
    }

    /// Runs for the time of a slice. A step that takes longer continues, and the next slice waits for it: a journaled
    /// call that lasts too long would be suspended inside, and never be continued.
    async fn slice(&self, session: SessionHandle, task: SliceTask) -> HandlerResult<Json<SliceEnd>> {
        let span = tracing::info_span!("slice", session = %session.key());
        let ended = tokio::select! {
            biased;
            ended = self.work(&session, task).instrument(span) => ended,
            () = tokio::time::sleep(self.options.slice + self.options.linger) => Ok(SliceEnd::GoesOn),
        };
        match ended {
            Ok(end) => Ok(Json(end)),
            Err(error) => match reaction(&error) {
                ErrorReaction::Sleep => {
                    tracing::warn!(session = %session.key(), %error, "session is blocked");
                    Ok(Json(SliceEnd::Blocked { reason: error.to_string() }))
                }
                ErrorReaction::Repeat | ErrorReaction::Refuse(_) => Err(handler_error(error)),
            },
        }
    }

    async fn work(&self, session: &SessionHandle, task: SliceTask) -> Result<SliceEnd, RunnerError> {
        let (key, input, decisions) = match task {
            SliceTask::Run(key, input) => (key, *input, None),
            // The run has its message already, or there is nothing to decide about.
            SliceTask::Decide(DecideRequest { run, decisions }) => (run, Input::new(), Some(decisions)),
            SliceTask::Resume => return resume(session, self.options.with_changed_agent).await,
        };
        // NOTE: a repeated slice is harmless, since `run_as` continues the run of its key or reports it.
        let mut run = session.run_as(key, input).stop_after(self.options.slice);
        if self.options.with_changed_agent {
            run = run.with_changed_agent();
        }
        let decides = decisions.is_some();
        let report = match decisions {
            Some(decisions) => run.decide_all(decisions).await?,
            None => run.await?,
        };
        // While the run waited, messages may have come that were refused with the advice to decide first.
        let has_more = decides && report.status.is_finished() && !session.inbox().await?.is_empty();
        Ok(SliceEnd::of_report(report, has_more))
    }
}

/// Resumes what was interrupted, or takes the next message that waits.
async fn resume(session: &SessionHandle, with_changed_agent: bool) -> Result<SliceEnd, RunnerError> {
    let mut resume = session.resume();
    if with_changed_agent {
        resume = resume.with_changed_agent();
    }
    match resume.await {
        Ok(outcome) if *outcome.exit() == Exit::Paused(Pause::Approval) => {
            Ok(SliceEnd::at_rest(outcome.run().next_deadline()))
        }
        Ok(outcome) => Ok(match outcome.exit() {
            Exit::Paused(Pause::Budget(budget)) => SliceEnd::at_rest(budget.until),
            _ => SliceEnd::GoesOn,
        }),
        Err(RunnerError { kind: RunnerErrorKind::NothingToResume, .. }) => Ok(SliceEnd::AtRest),
        // It may have been woken early.
        Err(RunnerError { kind: RunnerErrorKind::Pending { .. }, .. }) => {
            let run = session.unfinished().await?;
            Ok(SliceEnd::at_rest(run.and_then(|run| run.next_deadline())))
        }
        Err(error) => Err(error),
    }
}

fn invalid(message: String) -> TerminalError {
    TerminalError::new_with_code(400, message)
}

/// Converts an error for Restate: repeated, or reported to the caller.
fn handler_error(error: RunnerError) -> HandlerError {
    match reaction(&error) {
        ErrorReaction::Refuse(code) => TerminalError::new_with_code(code, error.to_string()).into(),
        ErrorReaction::Repeat | ErrorReaction::Sleep => error.into(),
    }
}
