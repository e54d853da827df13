//! Whether trying again helps.

use stepfold_agent_loop::RunFault;
use stepfold_session_scopes::{ErrorKind, SessionError};

use crate::error::{RunnerError, RunnerErrorKind};

/// The remedy for an error, for hosts that repeat requests by themselves.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::Agent;
/// use stepfold_runner::{Remedy, Runner};
/// use stepfold_session_scopes::MemoryStore;
///
/// # let model = Script::parse("assistant: area 3")?;
/// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
/// let session = runner.session("ada", "s1").await?;
/// // There is no run to resume, and there will not be one by asking again.
/// assert_eq!(session.resume().await.unwrap_err().remedy(), Remedy::Never);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// The same request may succeed soon, here or in another process: repeat it, with pauses.
    Retry,
    /// The same request may succeed after an action: a decision, a deployment, a repair. Repeating it before
    /// only costs.
    Wait,
    /// The same request never succeeds.
    Never,
}

impl RunnerError {
    /// Whether repeating the request helps.
    pub fn remedy(&self) -> Remedy {
        match &self.kind {
            RunnerErrorKind::Store { source, .. } => of_store(source),
            RunnerErrorKind::Conflict { .. }
            | RunnerErrorKind::Claimed { .. }
            | RunnerErrorKind::ClaimLost { .. }
            | RunnerErrorKind::Busy { .. }
            | RunnerErrorKind::ShutDown { .. }
            | RunnerErrorKind::Panicked => Remedy::Retry,
            RunnerErrorKind::Run { source, .. } => of_fault(source.fault()),
            // The message itself is fine, and comes after that run.
            RunnerErrorKind::EarlierRunFailed { source, .. } => match of_fault(source.fault()) {
                Remedy::Retry => Remedy::Retry,
                Remedy::Wait | Remedy::Never => Remedy::Wait,
            },
            RunnerErrorKind::EarlierCannotBegin { .. }
            | RunnerErrorKind::Pending { .. }
            | RunnerErrorKind::AgentChanged { .. }
            | RunnerErrorKind::PinnedAgent { .. }
            | RunnerErrorKind::Record { .. }
            | RunnerErrorKind::NewerRecord { .. }
            | RunnerErrorKind::Recover { .. }
            | RunnerErrorKind::LeftToPerson { .. } => Remedy::Wait,
            RunnerErrorKind::Input { .. }
            | RunnerErrorKind::CannotWait
            | RunnerErrorKind::Decision { .. }
            | RunnerErrorKind::Edit { .. }
            | RunnerErrorKind::Withdrawn
            | RunnerErrorKind::NothingToResume
            | RunnerErrorKind::Erased { .. }
            | RunnerErrorKind::UnknownCall { .. }
            | RunnerErrorKind::InvalidId { .. }
            | RunnerErrorKind::InvalidToken { .. }
            | RunnerErrorKind::NotAwaited { .. }
            | RunnerErrorKind::UnknownBudget { .. }
            | RunnerErrorKind::NotRaised { .. }
            | RunnerErrorKind::InvalidBudget { .. }
            | RunnerErrorKind::Diverged { .. } => Remedy::Never,
        }
    }

    /// Whether what is stored of the session cannot be restored by this agent and this version: a record is invalid or has
    /// a newer format, or values do not fit the schema. Nothing is lost: the session can be read; its run can be
    /// [abandoned](crate::SessionHandle::abandon); the session can be rewound to before it, and forked from there.
    pub fn is_invalid_record(&self) -> bool {
        match &self.kind {
            RunnerErrorKind::Record { .. }
            | RunnerErrorKind::NewerRecord { .. }
            | RunnerErrorKind::Recover { .. } => true,
            RunnerErrorKind::Store { source, .. } => {
                source.kind() == ErrorKind::Incompatible || matches!(**source, SessionError::Stored { .. })
            }
            _ => false,
        }
    }

    /// Whether the last run is one that another version of the agent may continue: the agent has changed, its own one cannot be
    /// loaded, or a stored value does not fit the schema. Decisions and outcomes for it are stored.
    pub fn is_of_other_agent(&self) -> bool {
        let is_changed =
            matches!(self.kind, RunnerErrorKind::AgentChanged { .. } | RunnerErrorKind::PinnedAgent { .. });
        is_changed || self.is_incompatible_value()
    }

    /// Whether a stored value does not fit the schema of the agent.
    pub(crate) fn is_incompatible_value(&self) -> bool {
        match &self.kind {
            RunnerErrorKind::Store { source, .. } => {
                matches!(**source, SessionError::SchemaMismatch { .. } | SessionError::Migration { .. })
            }
            _ => false,
        }
    }
}

fn of_store(error: &SessionError) -> Remedy {
    match error.kind() {
        ErrorKind::Transient
        | ErrorKind::Conflict
        | ErrorKind::Claimed
        | ErrorKind::ClaimLost
        | ErrorKind::Full => Remedy::Retry,
        ErrorKind::Incompatible | ErrorKind::Sealed | ErrorKind::Broken => Remedy::Wait,
        _ => Remedy::Never,
    }
}

/// Whether a run that failed with this waits for a person: a repeated request of its model fails again, and costs.
pub(crate) fn waits_for_person(fault: &RunFault) -> bool {
    match fault {
        RunFault::Model(error) => error.kind().is_permanent(),
        RunFault::Budget(_) => true,
        _ => false,
    }
}

fn of_fault(fault: &RunFault) -> Remedy {
    match fault {
        RunFault::Model(error) if error.is_retryable() => Remedy::Retry,
        // The run continues once the key, the model or the instructions are right.
        RunFault::Model(_) | RunFault::Agent(_) | RunFault::Feed(_) | RunFault::Budget(_) => Remedy::Wait,
        RunFault::Start(_) | RunFault::Decision(_) => Remedy::Never,
        // What runs again may succeed.
        _ => Remedy::Retry,
    }
}
