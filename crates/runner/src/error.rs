//! Errors of running an agent in a session, with advice.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use stepfold_agent_loop::{
    DecisionError, Divergence, EditError, FeedError, Outcome, RunError, RunFault, StartError,
};
use stepfold_session_scopes::{ErrorKind, InvocationId, SessionError, SessionKey, Timestamp, WorkerId};
use thiserror::Error as ThisError;

/// An error of an invocation in a session. Everything that was committed is kept.
///
/// Clones share their contents: several callers may wait for one invocation.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::Agent;
/// use stepfold_runner::{Runner, RunnerErrorKind};
/// use stepfold_session_scopes::MemoryStore;
///
/// let runner = Runner::builder(Agent::builder(Script::parse("")?).build()?, MemoryStore::new()).build();
/// let error = runner.session("ada", "s1").await?.resume().await.unwrap_err();
/// assert!(matches!(error.kind, RunnerErrorKind::NothingToResume));
/// assert_eq!(error.key.unwrap().id.as_str(), "s1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct RunnerError {
    /// The session; `None` if the request names none: an invalid id or token.
    pub key: Option<Box<SessionKey>>,
    /// What failed.
    pub kind: RunnerErrorKind,
}

/// The kinds of errors of an invocation. The text leaves out the session.
#[derive(Clone, Debug, ThisError)]
#[non_exhaustive]
pub enum RunnerErrorKind {
    /// The form of an id is invalid, such as that of a user or of a session.
    #[error("{source}")]
    InvalidId {
        /// The cause, with the id.
        r#source: Arc<SessionError>,
    },
    /// The store failed or rejected a request.
    #[error("the store failed{}: {source}", lost(unrecorded))]
    Store {
        /// The calls whose outcomes could not be stored: see [`unrecorded`](RunnerError::unrecorded).
        unrecorded: Vec<String>,
        /// The cause.
        r#source: Arc<SessionError>,
    },
    /// Another worker wrote to the session. Earlier commits of this one are kept.
    #[error(
        "another worker changed the session; wait for it, then resume or send again{}: {source}",
        lost(unrecorded)
    )]
    Conflict {
        /// The calls whose outcomes could not be stored: see [`unrecorded`](RunnerError::unrecorded).
        unrecorded: Vec<String>,
        /// The versions.
        r#source: Arc<SessionError>,
    },
    /// Another worker holds the claim on the session: it is running, or died less than the duration of a
    /// claim ago.
    #[error(
        "claimed by worker {owner} until at least {expires}; wait for it, or take the session over with \
         `when_claimed`{}",
        if *is_accepted { "; the message is stored, and the next worker takes it" } else { "" }
    )]
    Claimed {
        /// The worker.
        owner: WorkerId,
        /// The expiry of its claim, unless renewed.
        expires: Timestamp,
        /// Whether the message was stored.
        is_accepted: bool,
    },
    /// Another worker took over the session. The run stopped here; earlier commits are kept.
    #[error("claim lost: another worker took over and continues the run{}: {source}", lost(unrecorded))]
    ClaimLost {
        /// The calls whose outcomes could not be stored: see [`unrecorded`](RunnerError::unrecorded).
        unrecorded: Vec<String>,
        /// The error of the store.
        r#source: Arc<SessionError>,
    },
    /// The run before the message failed: an interrupted one, or that of an earlier message. The message is
    /// stored.
    #[error(
        "earlier run failed{}: {cause}; the message is stored and comes after that run: fix the cause and call \
         `resume()`, or cancel the run with `abandon()`; `withdraw()` removes the message",
        if *times > 1 { format!(" {times} times with the same error") } else { String::new() }
    )]
    EarlierRunFailed {
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
        "earlier message `{earlier}` cannot begin: {}; fix the cause, or remove it from the inbox with `withdraw()`{}",
        source.kind,
        if *is_accepted { "; the new message is stored and comes after it" } else { "" }
    )]
    EarlierCannotBegin {
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
        "no call waits for token `{token}`: its deadline has passed, its run has ended or was taken back, or it never waited"
    )]
    NotAwaited {
        /// The token.
        token: String,
    },
    /// The run failed; it can be resumed.
    #[error("{}", failed_run(source))]
    Run {
        /// The cause, with the partial outcome if there is one.
        r#source: Arc<RunError>,
    },
    /// Recovery leaves the run to a person: it failed with what a repetition cannot mend, such as a request that the
    /// model's provider rejects as invalid.
    #[error(
        "run is not recovered, since it would fail again: {cause}; fix the cause and call `resume()`, or cancel the run \
         with `abandon()`"
    )]
    LeftToPerson {
        /// The cause of the failure.
        cause: String,
    },
    /// The input is invalid.
    #[error("invalid input: {source}")]
    Input {
        /// The cause.
        r#source: Arc<StartError>,
    },
    /// The session is busy, and the runner is configured to refuse, or too many messages wait.
    #[error("busy: {reason}")]
    Busy {
        /// The reason.
        reason: &'static str,
    },
    /// The run waits for decisions about calls.
    #[error(
        "the run waits for decisions about {}; decide with `resume()`, or cancel the run with `abandon()`{}",
        pending.join(", "),
        if *is_accepted { "; the message is stored and comes after that" } else { "" }
    )]
    Pending {
        /// The ids of the requests.
        pending: Vec<String>,
        /// Whether the message was accepted before: it is in the inbox, and taken after the decisions.
        is_accepted: bool,
        /// The outcome of the interrupted run that this invocation has continued, if any.
        outcome: Option<Arc<Outcome>>,
    },
    /// The input would have to wait for the session, and cannot be stored.
    #[error(
        "input for a busy session cannot be queued: it has its own state, which is not stored; send messages and values, or \
         send it again when the session is idle"
    )]
    CannotWait,
    /// Decisions were rejected. None of them was applied, and the run still waits.
    #[error("invalid decision: {error}{}", at.map(|at| format!(", at {at}")).unwrap_or_default())]
    Decision {
        /// The reason.
        error: Box<DecisionError>,
        /// The time of the earlier conflicting decision, if recorded.
        at: Option<Timestamp>,
    },
    /// An edit was rejected. Nothing of it was applied.
    #[error("{error}")]
    Edit {
        /// The reason.
        error: Arc<EditError>,
    },
    /// The message is neither in the inbox nor in the record: it was withdrawn, its run could not begin, or a
    /// rewind or retention removed it.
    #[error(
        "message removed: it was withdrawn, could not begin, or was rewound or pruned; send it again, with another key if it \
         had one"
    )]
    Withdrawn,
    /// The content of an event was erased that a run, or a replay, needs.
    #[error(
        "event of version {version} was erased, and the run cannot continue without it; send a new message"
    )]
    Erased {
        /// The version of the event.
        version: u64,
    },
    /// No event of the session has a call with this id.
    #[error("unknown call `{call}`: no event of the session has it; list the calls of the session")]
    UnknownCall {
        /// The id.
        call: String,
    },
    /// No run of the session is interrupted or paused.
    #[error("nothing to resume: no run is interrupted or paused")]
    NothingToResume,
    /// The agent has changed since the run was interrupted.
    #[error(
        "agent changed since the run was interrupted: {}; force it with `with_changed_agent()`, or cancel the run with \
         `abandon()`",
        changes.join("; ")
    )]
    AgentChanged {
        /// The changes.
        changes: Vec<String>,
    },
    /// The agent that the run is pinned to cannot be loaded: its archive is out of reach, or what it has cannot be built.
    #[error(
        "agent {digest}, which the run continues with, cannot be loaded: {source}; continue with the agent of today by \
         `with_changed_agent()`, or cancel the run with `abandon()`"
    )]
    PinnedAgent {
        /// The digest of its fingerprint.
        digest: String,
        /// The cause.
        r#source: Arc<crate::ports::ArchiveError>,
    },
    /// The record of a run is invalid.
    #[error("invalid record at version {version}: {source}")]
    Record {
        /// The version.
        version: u64,
        /// The cause.
        r#source: Arc<serde_json::Error>,
    },
    /// The record of a run has a newer format.
    #[error("unsupported format {found} at version {version}: written by a newer stepfold; update")]
    NewerRecord {
        /// The version.
        version: u64,
        /// The format of the record.
        found: u64,
    },
    /// The interrupted run cannot be restored from its record.
    #[error("interrupted run cannot be restored at version {version}: {source}")]
    Recover {
        /// The version of the conflicting event.
        version: u64,
        /// The cause.
        r#source: Arc<FeedError>,
    },
    /// A replay diverged from the record.
    #[error("invocation {invocation} diverged at version {version}: {source}")]
    Diverged {
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
        "runner is shut down: the session is not processed here any more; continue in another process{}",
        if *is_accepted { "; the message is stored, and the next worker takes it" } else { "" }
    )]
    ShutDown {
        /// Whether a message was stored.
        is_accepted: bool,
    },
    /// A runner has no budget of this name for the user, the session and the run that are given.
    #[error(
        "unknown budget `{budget}`{}; the budget of a user, a session or a run needs the user, the session or the run",
        listed_budgets(available)
    )]
    UnknownBudget {
        /// The name.
        budget: String,
        /// The names of those that there are.
        available: Vec<String>,
    },
    /// A budget has a higher limit than the one to which it was to be raised.
    #[error(
        "budget `{budget}` not raised to {limit}: its limit is {current}; a limit is lowered where the budget is declared"
    )]
    NotRaised {
        /// The name.
        budget: String,
        /// The limit to which it was to be raised.
        limit: String,
        /// The limit that it has.
        current: String,
    },
    /// A budget has no counter at this time: its name is too long, or the time is outside of the calendar.
    #[error("invalid budget `{budget}`: {reason}")]
    InvalidBudget {
        /// The name.
        budget: String,
        /// The reason.
        reason: String,
    },
    /// A hook, an observer or a model panicked.
    #[error("invocation panicked; commits are kept, so resume it")]
    Panicked,
}

fn listed_budgets(available: &[String]) -> String {
    match available {
        [] => "; there is none".to_owned(),
        _ => format!("; available: {}", available.join(", ")),
    }
}

impl fmt::Display for RunnerError {
    /// The session and the kind; the kind alone if its text names the session.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.kind.to_string();
        let session = self.key.as_ref().map(|key| format!("session {key}"));
        match session.filter(|session| !what.contains(session)) {
            Some(session) => write!(f, "{session}: {what}"),
            None => f.write_str(&what),
        }
    }
}

impl Error for RunnerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.kind.source()
    }
}

impl RunnerError {
    /// An error of this kind, in a session unless the request names none.
    ///
    /// # Examples
    /// ```
    /// use stepfold_runner::{RunnerError, RunnerErrorKind};
    /// use stepfold_session_scopes::SessionKey;
    ///
    /// let key = SessionKey::new("stalls", "ada", "s1")?;
    /// let error = RunnerError::new(&key, RunnerErrorKind::Busy { reason: "an invocation is running" });
    /// assert_eq!(error.to_string(), "session stalls/ada/s1: busy: an invocation is running");
    /// # Ok::<(), stepfold_session_scopes::SessionError>(())
    /// ```
    pub fn new<'a>(key: impl Into<Option<&'a SessionKey>>, kind: RunnerErrorKind) -> Self {
        RunnerError { key: key.into().cloned().map(Box::new), kind }
    }

    pub(crate) fn decision(key: &SessionKey, error: DecisionError) -> Self {
        RunnerError::new(key, RunnerErrorKind::Decision { error: Box::new(error), at: None })
    }

    /// A decision that conflicts with an earlier stored one.
    pub(crate) fn decided_before(key: &SessionKey, error: DecisionError, at: Timestamp) -> Self {
        RunnerError::new(key, RunnerErrorKind::Decision { error: Box::new(error), at: Some(at) })
    }

    pub(crate) fn store(key: &SessionKey, source: SessionError) -> Self {
        RunnerError::not_stored(key, source, Vec::new())
    }

    /// The store did not accept an event of a run, and so not the outcomes of these calls.
    pub(crate) fn not_stored(key: &SessionKey, source: SessionError, unrecorded: Vec<String>) -> Self {
        let source = Arc::new(source);
        let kind = match &*source {
            SessionError::Conflict { .. } | SessionError::NotWaiting { .. } => {
                RunnerErrorKind::Conflict { unrecorded, source }
            }
            SessionError::InvalidId { .. } => RunnerErrorKind::InvalidId { source },
            SessionError::ClaimLost { .. } => RunnerErrorKind::ClaimLost { unrecorded, source },
            SessionError::Claimed { owner, expires, .. } => {
                RunnerErrorKind::Claimed { owner: owner.clone(), expires: *expires, is_accepted: false }
            }
            _ => RunnerErrorKind::Store { unrecorded, source },
        };
        RunnerError::new(key, kind)
    }

    /// The ids of the completed calls, and of branches of a graph, that the store did not accept. If it did
    /// store them, a resumed run finds them; otherwise calls that must not run twice get an [unknown
    /// outcome](stepfold_agent_loop::Outcome::unknown_calls), and the others run again.
    pub fn unrecorded(&self) -> &[String] {
        match &self.kind {
            RunnerErrorKind::Store { unrecorded, .. }
            | RunnerErrorKind::Conflict { unrecorded, .. }
            | RunnerErrorKind::ClaimLost { unrecorded, .. } => unrecorded,
            _ => &[],
        }
    }

    /// Whether the session does not exist: it was never made, or was deleted. A caller that lists sessions and reads each of them
    /// leaves such a session out.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// let runner = Runner::builder(Agent::builder(Script::parse("")?).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.delete(false).await?;
    /// assert!(session.state().await.unwrap_err().is_session_not_found());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn is_session_not_found(&self) -> bool {
        matches!(self.of_store(), Some(SessionError::NotFound { .. }))
    }

    /// Whether the content of the session is sealed and its key is not there: the store was opened without its key ring, or the
    /// user was erased. What needs no content can still be read: lists show such a session.
    pub fn is_sealed(&self) -> bool {
        self.of_store().is_some_and(|error| error.kind() == ErrorKind::Sealed)
    }

    /// The error of the store, if it is one.
    pub(crate) fn of_store(&self) -> Option<&SessionError> {
        match &self.kind {
            RunnerErrorKind::Store { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Whether the id of an event is in use.
    pub(crate) fn is_event_reused(&self) -> bool {
        matches!(self.of_store(), Some(SessionError::EventReused { .. }))
    }

    /// The partial outcome of the failed run, or the outcome of the one that was recovered before the session
    /// waits.
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.kind {
            RunnerErrorKind::Pending { outcome, .. } => outcome.as_deref(),
            RunnerErrorKind::Run { source } | RunnerErrorKind::EarlierRunFailed { source, .. } => {
                Some(source.outcome())
            }
            RunnerErrorKind::EarlierCannotBegin { source, .. } => source.outcome(),
            _ => None,
        }
    }
}

stepfold_state_core::debug_as_text!(RunnerError);

/// The failure of a run without its id, which contains the name of the session.
fn failed_run(error: &RunError) -> String {
    let (fault, steps) = (error.fault(), error.outcome().run().steps());
    let what = if let RunFault::Decision(_) = fault { "waits" } else { "failed" };
    format!("run {what} after step {steps}: {fault}")
}

/// The part of an error message about lost outcomes.
fn lost(unrecorded: &[String]) -> String {
    match unrecorded {
        [] => String::new(),
        ids => format!("; unrecorded outcomes: `{}`", ids.join("`, `")),
    }
}
