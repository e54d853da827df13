//! Errors of running an agent in a session, with advice.

use std::sync::Arc;

use stepfold_agent_loop::{DecisionError, Divergence, EditError, FeedError, Outcome, RunError, StartError};
use stepfold_session_scopes::{InvocationId, SessionError, SessionKey, Timestamp, WorkerId};
use thiserror::Error;

/// An error of an invocation. Everything that was committed is kept.
///
/// Clones share their contents: several callers may wait for one invocation.
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum RunnerError {
    /// The form of an id is invalid, such as that of a user or of a session.
    #[error("{source}")]
    InvalidId {
        /// The cause, with the id.
        r#source: Arc<SessionError>,
    },
    /// The store failed or rejected a request.
    #[error("the store failed in session {key}{}: {source}", lost(unrecorded))]
    Store {
        /// The session.
        key: Box<SessionKey>,
        /// The calls whose outcomes could not be stored: see [`unrecorded`](RunnerError::unrecorded).
        unrecorded: Vec<String>,
        /// The cause.
        r#source: Arc<SessionError>,
    },
    /// Another worker wrote to the session. Earlier commits of this one are kept.
    #[error(
        "session {key} was changed by another worker; wait for it, then resume or send again{}: {source}",
        lost(unrecorded)
    )]
    Conflict {
        /// The session.
        key: Box<SessionKey>,
        /// The calls whose outcomes could not be stored: see [`unrecorded`](RunnerError::unrecorded).
        unrecorded: Vec<String>,
        /// The versions.
        r#source: Arc<SessionError>,
    },
    /// Another worker holds the claim on the session: it is running, or died less than the duration of a
    /// claim ago.
    #[error(
        "session {key} is claimed by worker {owner} until at least {expires}; wait for it, or take the session over \
         with `when_claimed`{}",
        if *is_accepted { "; the message is stored, and the next worker takes it" } else { "" }
    )]
    Claimed {
        /// The session.
        key: Box<SessionKey>,
        /// The worker.
        owner: WorkerId,
        /// The expiry of its claim, unless renewed.
        expires: Timestamp,
        /// Whether the message was stored.
        is_accepted: bool,
    },
    /// Another worker took over the session. The run stopped here; earlier commits are kept.
    #[error(
        "claim on session {key} lost: another worker took over and continues the run{}: {source}",
        lost(unrecorded)
    )]
    ClaimLost {
        /// The session.
        key: Box<SessionKey>,
        /// The calls whose outcomes could not be stored: see [`unrecorded`](RunnerError::unrecorded).
        unrecorded: Vec<String>,
        /// The error of the store.
        r#source: Arc<SessionError>,
    },
    /// The run before the message failed: an interrupted one, or that of an earlier message. The message is
    /// stored.
    #[error(
        "earlier run in session {key} failed{}: {cause}; the message is stored and comes after that run: \
         fix the cause and call `resume()`, or cancel the run with `abandon()`; `withdraw()` removes the \
         message",
        if *times > 1 { format!(" {times} times with the same error") } else { String::new() }
    )]
    EarlierRunFailed {
        /// The session.
        key: Box<SessionKey>,
        /// The id of the message's own invocation, for [`withdraw`](crate::SessionHandle::withdraw).
        message: InvocationId,
        /// The number of consecutive failures without progress, in any process, by the record.
        times: u32,
        /// The cause, with its own causes.
        cause: String,
        /// The last failure, with the partial outcome if there is one.
        r#source: Arc<RunError>,
    },
    /// An earlier message, the first in the inbox, cannot begin its run: nothing of it is stored. Later
    /// messages wait until the cause is fixed, or the message is withdrawn.
    #[error(
        "earlier message `{earlier}` in session {key} cannot begin: {source}; fix the cause, or remove it from \
         the inbox with `withdraw()`{}",
        if *is_accepted { "; the new message is stored and comes after it" } else { "" }
    )]
    EarlierCannotBegin {
        /// The session.
        key: Box<SessionKey>,
        /// The id of the earlier message's invocation, for [`withdraw`](crate::SessionHandle::withdraw).
        earlier: InvocationId,
        /// Whether there is a new message, and it was stored.
        is_accepted: bool,
        /// The cause.
        r#source: Arc<RunnerError>,
    },
    /// A token of an outcome that comes later is invalid, or of another app.
    #[error("invalid token `{token}`: {why}")]
    InvalidToken {
        /// The token.
        token: String,
        /// The cause.
        why: String,
    },
    /// Nothing waits for the outcome under a token.
    #[error(
        "no call in session {key} waits for token `{token}`: its deadline has passed, its run has ended or was taken back, \
         or it never waited"
    )]
    NotAwaited {
        /// The session.
        key: Box<SessionKey>,
        /// The token.
        token: String,
    },
    /// The run failed; it can be resumed.
    #[error("run in session {key} failed: {source}")]
    Run {
        /// The session.
        key: Box<SessionKey>,
        /// The cause, with the partial outcome if there is one.
        r#source: Arc<RunError>,
    },
    /// Recovery leaves the run to a person: it failed with what a repetition cannot mend, such as a request that the
    /// model's provider rejects as invalid.
    #[error(
        "run in session {key} is not recovered, since it would fail again: {cause}; fix the cause and call `resume()`, or \
         cancel the run with `abandon()`"
    )]
    LeftToPerson {
        /// The session.
        key: Box<SessionKey>,
        /// The cause of the failure.
        cause: String,
    },
    /// The input is invalid.
    #[error("invalid input for session {key}: {source}")]
    Input {
        /// The session.
        key: Box<SessionKey>,
        /// The cause.
        r#source: Arc<StartError>,
    },
    /// The session is busy, and the runner is configured to refuse, or too many messages wait.
    #[error("session {key} is busy: {reason}")]
    Busy {
        /// The session.
        key: Box<SessionKey>,
        /// The reason.
        reason: &'static str,
    },
    /// The run waits for decisions about calls.
    #[error(
        "session {key} waits for decisions about {}; decide with `resume()`, or cancel the run with `abandon()`{}",
        pending.join(", "),
        if *is_accepted { "; the message is stored and comes after that" } else { "" }
    )]
    Pending {
        /// The session.
        key: Box<SessionKey>,
        /// The ids of the requests.
        pending: Vec<String>,
        /// Whether the message was accepted before: it is in the inbox, and taken after the decisions.
        is_accepted: bool,
        /// The outcome of the interrupted run that this invocation has continued, if any.
        outcome: Option<Arc<Outcome>>,
    },
    /// The input would have to wait for the session, and cannot be stored.
    #[error(
        "input for busy session {key} cannot be queued: it has its own state, which is not stored; send messages and values, or send it again when the session is idle"
    )]
    CannotWait {
        /// The session.
        key: Box<SessionKey>,
    },
    /// Decisions were rejected. None of them was applied, and the run still waits.
    #[error(
        "invalid decision in session {key}: {error}{}",
        at.map(|at| format!(", at {at}")).unwrap_or_default()
    )]
    Decision {
        /// The session.
        key: Box<SessionKey>,
        /// The reason.
        error: Box<DecisionError>,
        /// The time of the earlier conflicting decision, if recorded.
        at: Option<Timestamp>,
    },
    /// An edit was rejected. Nothing of it was applied.
    #[error("session {key} was not edited: {error}")]
    Edit {
        /// The session.
        key: Box<SessionKey>,
        /// The reason.
        error: Arc<EditError>,
    },
    /// The message is neither in the inbox nor in the record: it was withdrawn, its run could not begin, or a
    /// rewind or retention removed it.
    #[error(
        "message removed from session {key}: it was withdrawn, could not begin, or was rewound or pruned; send it again, \
         with another key if it had one"
    )]
    Withdrawn {
        /// The session.
        key: Box<SessionKey>,
    },
    /// No run of the session is interrupted or paused.
    #[error("nothing to resume in session {key}: no run of it is interrupted or paused")]
    NothingToResume {
        /// The session.
        key: Box<SessionKey>,
    },
    /// The agent has changed since the run was interrupted.
    #[error(
        "agent changed since the run in session {key} was interrupted: {}; \
         force it with `with_changed_agent()`, or cancel the run with `abandon()`",
        changes.join("; ")
    )]
    AgentChanged {
        /// The session.
        key: Box<SessionKey>,
        /// The changes.
        changes: Vec<String>,
    },
    /// The record of a run is invalid.
    #[error("invalid record at version {version} of session {key}: {source}")]
    Record {
        /// The session.
        key: Box<SessionKey>,
        /// The version.
        version: u64,
        /// The cause.
        r#source: Arc<serde_json::Error>,
    },
    /// The record of a run has a newer format.
    #[error(
        "unsupported format {found} at version {version} of session {key}: written by a newer stepfold; update"
    )]
    NewerRecord {
        /// The session.
        key: Box<SessionKey>,
        /// The version.
        version: u64,
        /// The format of the record.
        found: u64,
    },
    /// The interrupted run cannot be restored from its record.
    #[error("interrupted run in session {key} cannot be restored at version {version}: {source}")]
    Recover {
        /// The session.
        key: Box<SessionKey>,
        /// The version of the conflicting event.
        version: u64,
        /// The cause.
        r#source: Arc<FeedError>,
    },
    /// A replay diverged from the record.
    #[error("invocation {invocation} of session {key} diverged: {source}")]
    Diverged {
        /// The session.
        key: Box<SessionKey>,
        /// The invocation.
        invocation: String,
        /// The version of the commit that differs; the last one of the run if only its end does.
        version: u64,
        /// The first difference.
        r#source: Arc<Divergence>,
    },
    /// The runner was [shut down](crate::Runner::shutdown). Commits are kept, and another process can
    /// continue immediately.
    #[error(
        "runner is shut down: session {key} is not processed here any more; continue in \
         another process{}",
        if *is_accepted { "; the message is stored, and the next worker takes it" } else { "" }
    )]
    ShutDown {
        /// The session.
        key: Box<SessionKey>,
        /// Whether a message was stored.
        is_accepted: bool,
    },
    /// A hook, an observer or a model panicked.
    #[error("invocation in session {key} panicked; commits are kept, so resume it")]
    Panicked {
        /// The session.
        key: Box<SessionKey>,
    },
}

impl RunnerError {
    pub(crate) fn decision(key: &SessionKey, error: DecisionError) -> Self {
        RunnerError::Decision { key: Box::new(key.clone()), error: Box::new(error), at: None }
    }

    /// A decision that conflicts with an earlier stored one.
    pub(crate) fn decided_before(key: &SessionKey, error: DecisionError, at: Timestamp) -> Self {
        RunnerError::Decision { key: Box::new(key.clone()), error: Box::new(error), at: Some(at) }
    }

    pub(crate) fn store(key: &SessionKey, source: SessionError) -> Self {
        RunnerError::not_stored(key, source, Vec::new())
    }

    /// The store did not accept an event of a run, and so not the outcomes of these calls.
    pub(crate) fn not_stored(key: &SessionKey, source: SessionError, unrecorded: Vec<String>) -> Self {
        let (key, source) = (Box::new(key.clone()), Arc::new(source));
        match &*source {
            SessionError::Conflict { .. } | SessionError::NotWaiting { .. } => {
                RunnerError::Conflict { key, unrecorded, source }
            }
            SessionError::InvalidId { .. } => RunnerError::InvalidId { source },
            SessionError::ClaimLost { .. } => RunnerError::ClaimLost { key, unrecorded, source },
            SessionError::Claimed { owner, expires, .. } => {
                RunnerError::Claimed { key, owner: owner.clone(), expires: *expires, is_accepted: false }
            }
            _ => RunnerError::Store { key, unrecorded, source },
        }
    }

    /// The ids of the completed calls, and of branches of a graph, that the store did not accept. If it did
    /// store them, a resumed run finds them; otherwise calls that must not run twice get an [unknown
    /// outcome](stepfold_agent_loop::Outcome::unknown_calls), and the others run again.
    pub fn unrecorded(&self) -> &[String] {
        match self {
            RunnerError::Store { unrecorded, .. }
            | RunnerError::Conflict { unrecorded, .. }
            | RunnerError::ClaimLost { unrecorded, .. } => unrecorded,
            _ => &[],
        }
    }

    /// The partial outcome of the failed run, or the outcome of the one that was recovered before the session
    /// waits.
    pub fn outcome(&self) -> Option<&Outcome> {
        match self {
            RunnerError::Pending { outcome, .. } => outcome.as_deref(),
            RunnerError::Run { source, .. } | RunnerError::EarlierRunFailed { source, .. } => {
                Some(source.outcome())
            }
            RunnerError::EarlierCannotBegin { source, .. } => source.outcome(),
            _ => None,
        }
    }
}

stepfold_state_core::debug_as_text!(RunnerError);

/// The part of an error message about lost outcomes.
fn lost(unrecorded: &[String]) -> String {
    match unrecorded {
        [] => String::new(),
        ids => format!("; unrecorded outcomes: `{}`", ids.join("`, `")),
    }
}
