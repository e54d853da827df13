//! How a command ends: what it tells the shell, and errors as one text.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use stepfold::runner::RunnerError;
use stepfold::session_scopes::{ErrorKind, SessionError};
use stepfold::state_core::ErrorChain;

use crate::form::FileFaults;

/// How a command ended. The numbers are those of the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandEnding {
    /// All went well.
    Done,
    /// Something failed; the run can be resumed if there is one.
    Failed,
    /// The command line or the agent file is wrong.
    Usage,
    /// The run waits for decisions.
    Waits,
    /// The run ended without an answer: at a limit, by a refusal, truncated.
    NoAnswer,
    /// The user interrupted it.
    Interrupted,
    /// This signal ended it.
    Stopped(u8),
}

impl CommandEnding {
    /// Whether it is that of a run which has ended, with an answer or without: nothing of it is left to be resumed.
    pub(crate) fn has_run_ended(self) -> bool {
        matches!(self, CommandEnding::Done | CommandEnding::NoAnswer | CommandEnding::Failed)
    }
}

impl From<CommandEnding> for ExitCode {
    fn from(ending: CommandEnding) -> Self {
        ExitCode::from(match ending {
            CommandEnding::Done => 0,
            CommandEnding::Failed => 1,
            CommandEnding::Usage => 2,
            CommandEnding::Waits => 3,
            CommandEnding::NoAnswer => 4,
            CommandEnding::Interrupted => 130,
            CommandEnding::Stopped(signal) => 128_u8.saturating_add(signal),
        })
    }
}

/// That the command ends here, and nothing is left to be told.
#[derive(Debug)]
pub(crate) struct SilentExit(pub(crate) CommandEnding);

impl fmt::Display for SilentExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the command is stopped")
    }
}

impl Error for SilentExit {}

/// A wrong use of the command: nothing was done.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for UsageError {}

/// A failure after which the message is stored, and which says so.
#[derive(Debug)]
pub(crate) struct StoredMessageError(pub(crate) String);

impl StoredMessageError {
    /// A failure with this text, which says that the message is stored if it is.
    pub(crate) fn if_so(is_stored: bool, text: String) -> anyhow::Error {
        if is_stored { StoredMessageError(text).into() } else { anyhow::Error::msg(text) }
    }
}

impl fmt::Display for StoredMessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for StoredMessageError {}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    ErrorChain(error).to_string()
}

/// An error as a user of the command is told it.
pub(crate) fn error_text(error: &anyhow::Error) -> String {
    let Some(stored) = session_error(error) else {
        return chain(error.as_ref()).replace("with `when_claimed`", "with `--when-claimed take-over`");
    };
    if is_request_fault(stored) {
        return chain(stored);
    }
    let text = chain(error.as_ref());
    match stored {
        SessionError::SchemaMismatch { key, .. } => {
            let is_bare = key.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-".contains(letter));
            let table = if is_bare { format!("[state.{key}]") } else { format!("[state.\"{key}\"]") };
            let advice = format!(
                "set its migration in the agent file: `migrate = [\"text\"]` under {table}, for example, or `[\"drop\"]`"
            );
            text.replace("register a migration", &advice)
        }
        _ => text,
    }
}

/// Whether an error is about what was asked for, so that nothing was done and the exit status is that of a misuse.
pub(crate) fn is_usage_error(error: &anyhow::Error) -> bool {
    let is_input = || {
        let error = error.downcast_ref::<RunnerError>();
        matches!(error, Some(RunnerError::Input { .. } | RunnerError::NothingToResume { .. }))
    };
    error.is::<UsageError>()
        || error.is::<FileFaults>()
        || is_input()
        || session_error(error).is_some_and(is_request_fault)
}

/// Whether the store is damaged, or not ours: then a person has to look at its file.
pub(crate) fn is_store_fault(error: &anyhow::Error) -> bool {
    let is_of_agent = |error: &SessionError| {
        matches!(error, SessionError::SchemaMismatch { .. } | SessionError::Migration { .. })
    };
    let is_of_file = |error: &SessionError| {
        matches!(error.kind(), ErrorKind::Broken | ErrorKind::Incompatible) && !is_of_agent(error)
    };
    session_error(error).is_some_and(is_of_file)
}

/// What a store said, if it was a store.
fn session_error(error: &anyhow::Error) -> Option<&SessionError> {
    match error.downcast_ref::<RunnerError>() {
        Some(
            RunnerError::Store { source, .. }
            | RunnerError::Conflict { source, .. }
            | RunnerError::InvalidId { source, .. },
        ) => Some(source),
        Some(_) => None,
        None => error.chain().find_map(|error| error.downcast_ref()),
    }
}

fn is_request_fault(error: &SessionError) -> bool {
    matches!(
        error,
        SessionError::InvalidId { .. }
            | SessionError::NoStore { .. }
            | SessionError::NotFound { .. }
            | SessionError::AlreadyExists { .. }
            | SessionError::NoSuchVersion { .. }
            | SessionError::IdempotencyKeyReused { .. }
    )
}
