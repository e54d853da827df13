//! What can go wrong when an agent runs in a session, and what to do.

use std::sync::Arc;

use stepfold_agent_loop::{DecisionError, Divergence, FeedError, Outcome, RunError, StartError};
use stepfold_session_scopes::{InvocationId, SessionError, SessionKey, Timestamp, WorkerId};
use thiserror::Error;

/// Why an invocation did not run, or did not end well. Whatever was committed is there.
///
/// Clones share what is inside: several may wait for one invocation.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RunnerError {
    /// The store refused or failed.
    #[error("the store failed in session {key}{}: {source}", lost(unrecorded))]
    Store {
        /// The session.
        key: Box<SessionKey>,
        /// The calls whose outcomes could not be stored: see [`unrecorded`](RunnerError::unrecorded).
        unrecorded: Vec<String>,
        /// Why.
        r#source: Arc<SessionError>,
    },
    /// Another worker wrote to the session meanwhile. What this one had committed before is there.
    #[error(
        "another worker is writing to session {key}; wait for it, then resume or send again{}: {source}",
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
    /// Another worker holds the claim on the session: it is at work there, or died less than the duration of a claim
    /// ago.
    #[error(
        "worker {owner} is at work in session {key}, until {expires} at least; wait for it, or take the session over \
         with `when_claimed`{}",
        if *is_accepted { "; the message is stored, and taken by whoever is at work next" } else { "" }
    )]
    Claimed {
        /// The session.
        key: Box<SessionKey>,
        /// The worker.
        owner: WorkerId,
        /// When its claim expires, if it is not renewed.
        expires: Timestamp,
        /// Whether the message was stored.
        is_accepted: bool,
    },
    /// Another worker took the session over. The run stopped here; what was committed before is there.
    #[error("another worker took session {key} over, and goes on with the run{}: {source}", lost(unrecorded))]
    ClaimLost {
        /// The session.
        key: Box<SessionKey>,
        /// The calls whose outcomes could not be stored: see [`unrecorded`](RunnerError::unrecorded).
        unrecorded: Vec<String>,
        /// The store's reason.
        r#source: Arc<SessionError>,
    },
    /// The run before the message failed: one that was interrupted, or that of an earlier message. The message is stored.
    #[error(
        "the run before the message in session {key} failed{}: {cause}; the message is stored, and taken after that run: \
         resume it with `resume()` once the cause is mended, or give it up with `abandon()`; `withdraw()` takes the \
         message back",
        if *times > 1 { format!(" {times} times in the same way") } else { String::new() }
    )]
    EarlierRunFailed {
        /// The session.
        key: Box<SessionKey>,
        /// The name of the message's own invocation, by which it can be [withdrawn](crate::SessionHandle::withdraw).
        message: InvocationId,
        /// How many times in a row, without any progress between: in whatever process, as the record says.
        times: u32,
        /// The cause, and what caused that.
        cause: String,
        /// The last failure, with the outcome as far as there is one.
        r#source: Arc<RunError>,
    },
    /// An earlier message, which stands first in the inbox, cannot begin its run: nothing of it is stored. Nothing comes
    /// after it until the cause is mended, or the message is taken out of the inbox.
    #[error(
        "message `{earlier}` comes first in session {key}, and cannot begin: {source}; mend the cause, or take it out of \
         the inbox with `withdraw()`{}",
        if *is_accepted { "; the new message is stored, and taken after it" } else { "" }
    )]
    EarlierCannotBegin {
        /// The session.
        key: Box<SessionKey>,
        /// The name of the earlier message's invocation, by which it can be
        /// [withdrawn](crate::SessionHandle::withdraw).
        earlier: InvocationId,
        /// Whether there is a new message, and it was stored.
        is_accepted: bool,
        /// Why it cannot begin.
        r#source: Arc<RunnerError>,
    },
    /// The run failed; it can be resumed.
    #[error("the run in session {key} failed: {source}")]
    Run {
        /// The session.
        key: Box<SessionKey>,
        /// Why, with the outcome as far as there is one.
        r#source: Arc<RunError>,
    },
    /// The input does not fit.
    #[error("the input for session {key} does not fit: {source}")]
    Input {
        /// The session.
        key: Box<SessionKey>,
        /// Why not.
        r#source: Arc<StartError>,
    },
    /// The session is busy, and the runner was told to refuse, or too many wait already.
    #[error("session {key} is busy: {reason}")]
    Busy {
        /// The session.
        key: Box<SessionKey>,
        /// Why that is in the way.
        reason: &'static str,
    },
    /// The run waits for decisions about calls.
    #[error(
        "session {key} waits for decisions about {}; decide with `resume()`, or give the run up with `abandon()`{}",
        pending.join(", "),
        if *is_accepted { "; the message is stored, and taken after that" } else { "" }
    )]
    Pending {
        /// The session.
        key: Box<SessionKey>,
        /// The ids of the requests.
        pending: Vec<String>,
        /// Whether the message that met this was accepted before: it stands in the inbox, and is taken once all is
        /// decided.
        is_accepted: bool,
        /// The outcome of the interrupted run that this invocation has gone on with, if there was one.
        outcome: Option<Arc<Outcome>>,
    },
    /// The input would have to wait for the session, and cannot be stored.
    #[error(
        "session {key} is at work, and the input has a state of its own, which is not stored; send messages and values, or send it again when the session is idle"
    )]
    CannotWait {
        /// The session.
        key: Box<SessionKey>,
    },
    /// Decisions were refused. None of them was taken, and the run waits as before.
    #[error(
        "the decision in session {key} was refused: {error}{}",
        at.map(|at| format!(", at {at}")).unwrap_or_default()
    )]
    Decision {
        /// The session.
        key: Box<SessionKey>,
        /// Why.
        error: Box<DecisionError>,
        /// When the earlier decision was stored, if one stands in the way and the record has it.
        at: Option<Timestamp>,
    },
    /// The message is neither in the inbox nor in the record: it was withdrawn, its run could not begin, or a rewind or
    /// retention took it since.
    #[error(
        "the message was taken out of session {key}: withdrawn, not able to begin, rewound or pruned; send it again, \
         under another key if it had one"
    )]
    Withdrawn {
        /// The session.
        key: Box<SessionKey>,
    },
    /// No run of the session is interrupted or paused.
    #[error("there is nothing to resume in session {key}: its last run has ended")]
    NothingToResume {
        /// The session.
        key: Box<SessionKey>,
    },
    /// The agent has changed since the run was interrupted.
    #[error(
        "the agent has changed since the run in session {key} was interrupted: {}; \
         resume it all the same with `with_changed_agent()`, or give it up with `abandon()`",
        changes.join("; ")
    )]
    AgentChanged {
        /// The session.
        key: Box<SessionKey>,
        /// What changed.
        changes: Vec<String>,
    },
    /// The record of a run cannot be read.
    #[error("the record of version {version} of session {key} cannot be read: {source}")]
    Record {
        /// The session.
        key: Box<SessionKey>,
        /// The version.
        version: u64,
        /// Why not.
        r#source: Arc<serde_json::Error>,
    },
    /// The record of a run was written by a newer version.
    #[error("version {version} of session {key} was written by a newer stepfold (format {found}); update")]
    NewerRecord {
        /// The session.
        key: Box<SessionKey>,
        /// The version.
        version: u64,
        /// The format that was found.
        found: u64,
    },
    /// The interrupted run cannot be restored from its record.
    #[error(
        "the run that was interrupted in session {key} cannot be restored at version {version}: {source}"
    )]
    Recover {
        /// The session.
        key: Box<SessionKey>,
        /// The version of the event that does not fit.
        version: u64,
        /// Why not.
        r#source: Arc<FeedError>,
    },
    /// A replay diverged from the record.
    #[error("invocation {invocation} of session {key} diverged: {source}")]
    Diverged {
        /// The session.
        key: Box<SessionKey>,
        /// The invocation.
        invocation: String,
        /// Where, and how.
        r#source: Arc<Divergence>,
    },
    /// The runner was [shut down](crate::Runner::shutdown). What was committed is there, and another process can go on
    /// at once.
    #[error(
        "the runner is shut down, and does nothing more in session {key}; what was committed is there, go on in \
         another process{}",
        if *is_accepted { "; the message is stored, and taken by whoever is at work next" } else { "" }
    )]
    ShutDown {
        /// The session.
        key: Box<SessionKey>,
        /// Whether a message was stored.
        is_accepted: bool,
    },
    /// A hook, an observer or a model panicked.
    #[error("the invocation in session {key} panicked; what was committed is there, resume it")]
    Panicked {
        /// The session.
        key: Box<SessionKey>,
    },
}

impl RunnerError {
    pub(crate) fn decision(key: &SessionKey, error: DecisionError) -> Self {
        RunnerError::Decision { key: Box::new(key.clone()), error: Box::new(error), at: None }
    }

    /// A refused decision, since another one was stored then.
    pub(crate) fn decided_before(key: &SessionKey, error: DecisionError, at: Timestamp) -> Self {
        RunnerError::Decision { key: Box::new(key.clone()), error: Box::new(error), at: Some(at) }
    }

    pub(crate) fn store(key: &SessionKey, source: SessionError) -> Self {
        RunnerError::not_stored(key, source, Vec::new())
    }

    /// The store did not take an event of a run, and with it not the outcomes of these calls.
    pub(crate) fn not_stored(key: &SessionKey, source: SessionError, unrecorded: Vec<String>) -> Self {
        let (key, source) = (Box::new(key.clone()), Arc::new(source));
        match &*source {
            SessionError::Conflict { .. } | SessionError::NotWaiting { .. } => {
                RunnerError::Conflict { key, unrecorded, source }
            }
            SessionError::ClaimLost { .. } => RunnerError::ClaimLost { key, unrecorded, source },
            SessionError::Claimed { owner, expires, .. } => {
                RunnerError::Claimed { key, owner: owner.clone(), expires: *expires, is_accepted: false }
            }
            _ => RunnerError::Store { key, unrecorded, source },
        }
    }

    /// The ids of the calls, and of the branches of a graph, that came to an end which the store did not take. If it has
    /// them after all, whoever resumes the run finds them there; otherwise calls that must not run twice have an
    /// [unknown outcome](stepfold_agent_loop::Outcome::unknown_calls), and the others run again.
    pub fn unrecorded(&self) -> &[String] {
        match self {
            RunnerError::Store { unrecorded, .. }
            | RunnerError::Conflict { unrecorded, .. }
            | RunnerError::ClaimLost { unrecorded, .. } => unrecorded,
            _ => &[],
        }
    }

    /// The outcome of the run that failed, as far as it came, or of the one that was recovered before the session waits.
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

/// What an error says of outcomes that are lost.
fn lost(unrecorded: &[String]) -> String {
    match unrecorded {
        [] => String::new(),
        ids => format!("; outcomes that are not recorded: `{}`", ids.join("`, `")),
    }
}
