//! What can go wrong when an agent runs in a session, and what to do.

use std::sync::Arc;

use stepfold_agent_loop::{DecisionError, Divergence, FeedError, RunError, StartError};
use stepfold_session_scopes::{SessionError, SessionKey, Timestamp, WorkerId};
use thiserror::Error;

/// Why an invocation did not run, or did not end well. Whatever was committed is there.
///
/// Clones share what is inside: several may wait for one invocation.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RunnerError {
    /// The store refused or failed.
    #[error("the store failed in session {key}{}", lost(unrecorded))]
    Store {
        /// The session.
        key: Box<SessionKey>,
        /// The calls whose outcomes could not be stored: see [`unrecorded`](RunnerError::unrecorded).
        unrecorded: Vec<String>,
        /// Why.
        source: Arc<SessionError>,
    },
    /// Another worker wrote to the session meanwhile. What this one had committed before is there.
    #[error(
        "another worker is writing to session {key}; wait for it, then resume or send again{}",
        lost(unrecorded)
    )]
    Conflict {
        /// The session.
        key: Box<SessionKey>,
        /// The calls whose outcomes could not be stored: see [`unrecorded`](RunnerError::unrecorded).
        unrecorded: Vec<String>,
        /// The versions.
        source: Arc<SessionError>,
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
    #[error("another worker took session {key} over, and goes on with the run{}", lost(unrecorded))]
    ClaimLost {
        /// The session.
        key: Box<SessionKey>,
        /// The calls whose outcomes could not be stored: see [`unrecorded`](RunnerError::unrecorded).
        unrecorded: Vec<String>,
        /// The store's reason.
        source: Arc<SessionError>,
    },
    /// An interrupted run stands before the message, and fails each time it is driven.
    #[error(
        "the run in session {key} failed {times} times in the same way: {cause}; resume it with `resume()` once the \
         cause is mended, or give it up with `abandon()`; the message is stored, and taken after that"
    )]
    FailsAgain {
        /// The session.
        key: Box<SessionKey>,
        /// How many times, in this process.
        times: u32,
        /// The cause, and what caused that.
        cause: String,
        /// The last failure, with the outcome as far as there is one.
        source: Arc<RunError>,
    },
    /// The run failed; it can be resumed.
    #[error("the run in session {key} failed")]
    Run {
        /// The session.
        key: Box<SessionKey>,
        /// Why, with the outcome as far as there is one.
        source: Arc<RunError>,
    },
    /// The input does not fit.
    #[error("the input for session {key} does not fit")]
    Input {
        /// The session.
        key: Box<SessionKey>,
        /// Why not.
        source: Arc<StartError>,
    },
    /// The session is busy, and the runner was told to refuse, or too many wait already.
    #[error("session {key} is busy: {reason}")]
    Busy {
        /// The session.
        key: Box<SessionKey>,
        /// Why that is in the way.
        reason: &'static str,
    },
    /// Somebody has to decide about calls before anything else can happen.
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
    },
    /// The input would have to wait for the session, and cannot be stored.
    #[error(
        "session {key} is at work, and the input has a state of its own, which is not stored; send messages and          values, or send it again when the session is idle"
    )]
    CannotWait {
        /// The session.
        key: Box<SessionKey>,
    },
    /// Decisions were refused. None of them was taken, and the run waits as before.
    #[error("the decision in session {key} was refused: {error}")]
    Decision {
        /// The session.
        key: Box<SessionKey>,
        /// Why.
        error: Box<DecisionError>,
    },
    /// There is nothing that was cut off.
    #[error("there is nothing to resume in session {key}: its last run has ended")]
    NothingToResume {
        /// The session.
        key: Box<SessionKey>,
    },
    /// The run that was cut off is of an agent that was another one.
    #[error(
        "the agent has changed since the run in session {key} was cut off: {}; \
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
    #[error("the record of version {version} of session {key} cannot be read")]
    Record {
        /// The session.
        key: Box<SessionKey>,
        /// The version.
        version: u64,
        /// Why not.
        source: Arc<serde_json::Error>,
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
    /// The record of the run does not lead where it should.
    #[error("the run that was cut off in session {key} cannot be put together again at version {version}")]
    Recover {
        /// The session.
        key: Box<SessionKey>,
        /// The version of the event that does not fit.
        version: u64,
        /// Why not.
        source: Arc<FeedError>,
    },
    /// A replay went another way than the record.
    #[error("invocation {invocation} of session {key} goes another way")]
    Diverged {
        /// The session.
        key: Box<SessionKey>,
        /// The invocation.
        invocation: String,
        /// Where, and how.
        source: Arc<Divergence>,
    },
    /// The task of the invocation died of a panic in a hook, an observer or a model.
    #[error("the invocation in session {key} panicked; what was committed is there, resume it")]
    Panicked {
        /// The session.
        key: Box<SessionKey>,
    },
}

impl RunnerError {
    pub(crate) fn decision(key: &SessionKey, error: DecisionError) -> Self {
        RunnerError::Decision { key: Box::new(key.clone()), error: Box::new(error) }
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

    /// What the run had come to, if it was the run that failed.
    pub fn outcome(&self) -> Option<&stepfold_agent_loop::Outcome> {
        match self {
            RunnerError::Run { source, .. } | RunnerError::FailsAgain { source, .. } => {
                Some(source.outcome())
            }
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
