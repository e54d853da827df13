//! The status of a session in a word, and the last run that it depends on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepfold_agent_loop::{ApprovalRequest, Run};
use stepfold_runner::{RunInEvents, RunnerError, RunnerErrorKind, SessionHandle, exhausted_budget, failure};
use stepfold_session_scopes::{EventRange, Session};

/// The status of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum Status {
    /// A worker has it, in any process.
    Running,
    /// Its run waits for decisions, or for a budget.
    Waiting,
    /// Its run was interrupted, and continues when it is resumed or recovered.
    Interrupted,
    /// Its run failed, and continues when it is resumed.
    Failed,
    /// Its last run has ended, or there was none.
    Idle,
    /// Its last run cannot be restored by this agent and this version: abandon it, rewind to before it, or fork from there.
    Invalid,
    /// No worker has it, and the rest is sealed: the server was started without the key ring of its store, or the key was
    /// destroyed.
    Sealed,
    /// There is no such session any more.
    Deleted,
}

impl Status {
    /// Whether a run of the session needs a person to go on.
    pub(in crate::http) fn is_stopped(self) -> bool {
        match self {
            Status::Waiting | Status::Interrupted | Status::Failed | Status::Invalid => true,
            Status::Running | Status::Idle | Status::Sealed | Status::Deleted => false,
        }
    }

    /// A session with its newest event, unless that is sealed, and its status.
    pub(in crate::http) async fn of(session: &SessionHandle) -> Result<(Session, Status), RunnerError> {
        match Status::of_content(session).await {
            Err(error) if error.is_sealed() => {
                let stored = session.read_events(EventRange::None).await?;
                let status = if is_running(session, &stored) { Status::Running } else { Status::Sealed };
                Ok((stored, status))
            }
            found => found,
        }
    }

    async fn of_content(session: &SessionHandle) -> Result<(Session, Status), RunnerError> {
        let stored = session.read_events(EventRange::Last(1)).await?;
        let status = match is_running(session, &stored) {
            true => Status::Running,
            false => Status::decide(session, &stored, &LastRun::of(session).await?),
        };
        Ok((stored, status))
    }

    /// The status of a session that was read with its newest event, and whose unfinished run this is.
    pub(in crate::http) fn decide(session: &SessionHandle, stored: &Session, run: &LastRun) -> Status {
        let newest = stored.events.last();
        let has_failed = newest.is_some_and(|newest| failure(&newest.event).is_some());
        let waits_for_budget = newest.is_some_and(|newest| exhausted_budget(&newest.event).is_some());
        match run {
            // NOTE: Running comes first: a run in progress is unfinished as well.
            _ if is_running(session, stored) => Status::Running,
            LastRun::Ended => Status::Idle,
            LastRun::Unfinished(pending) if !pending.is_empty() || waits_for_budget => Status::Waiting,
            LastRun::Unfinished(_) if has_failed => Status::Failed,
            LastRun::Unfinished(_) => Status::Interrupted,
            LastRun::Invalid(_) => Status::Invalid,
        }
    }
}

/// The last run of a session, for those who look at it: a record that cannot be restored hides neither the session nor
/// others.
pub(in crate::http) enum LastRun {
    /// It has ended, or there was none.
    Ended,
    /// It has not ended, and waits for these decisions, if any.
    Unfinished(Vec<ApprovalRequest>),
    /// It cannot be restored, for this reason.
    Invalid(String),
}

impl LastRun {
    pub(in crate::http) async fn of(session: &SessionHandle) -> Result<Self, RunnerError> {
        LastRun::from(session.unfinished().await)
    }

    fn from(unfinished: Result<Option<Run>, RunnerError>) -> Result<Self, RunnerError> {
        match unfinished {
            Ok(None) => Ok(LastRun::Ended),
            Ok(Some(run)) => Ok(LastRun::Unfinished(run.pending())),
            // The event that begins a run belongs to its record as well.
            // NOTE: An invalid record is a status, not an error: one such session must not fail the list of all sessions
            // (docs/decisions/server.md).
            Err(error)
                if error.is_invalid_record() || matches!(error.kind, RunnerErrorKind::Input { .. }) =>
            {
                Ok(LastRun::Invalid(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// The same from the newest events of the session; `None` if they do not suffice.
    pub(in crate::http) fn within(
        session: &SessionHandle,
        stored: &Session,
    ) -> Result<Option<Self>, RunnerError> {
        match session.unfinished_in(stored) {
            Ok(RunInEvents::Unfinished(run)) => LastRun::from(Ok(Some(*run))).map(Some),
            Ok(RunInEvents::Ended) => LastRun::from(Ok(None)).map(Some),
            Ok(_) => Ok(None),
            Err(error) => LastRun::from(Err(error)).map(Some),
        }
    }

    /// The requests that wait for decisions.
    pub(in crate::http) fn pending(&self) -> &[ApprovalRequest] {
        match self {
            LastRun::Unfinished(pending) => pending,
            LastRun::Ended | LastRun::Invalid(_) => &[],
        }
    }
}

pub(in crate::http) fn is_running(session: &SessionHandle, stored: &Session) -> bool {
    session.running().is_some() || stored.claim.is_some()
}
