//! The ending of a command: its exit status, and errors in one text.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use stepfold::runner::{RunnerError, RunnerErrorKind};
use stepfold::session_scopes::{ErrorKind, SessionError};
use stepfold::state_core::ErrorChain;

use crate::form::FileFaults;
use crate::other_process::with_short_workers;

/// The ending of a command. It determines the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandEnding {
    /// The command succeeded.
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
    /// Whether the run has ended, with an answer or without: nothing is left to resume.
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
            // NOTE: Shells report a process that a signal has ended as 128 and its number.
            CommandEnding::Stopped(signal) => 128_u8.saturating_add(signal),
        })
    }
}

/// Ends the command with this status, without a further report.
#[derive(Debug)]
pub(crate) struct SilentExit(pub(crate) CommandEnding);

impl fmt::Display for SilentExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the command is stopped")
    }
}

impl Error for SilentExit {}

/// A usage error: the command has done nothing.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for UsageError {}

/// A failure after which the message is stored; its text says so.
#[derive(Debug)]
pub(crate) struct StoredMessageError(pub(crate) String);

impl StoredMessageError {
    /// An error with this text: a [`StoredMessageError`] if the message is stored.
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

/// The advice about a changed agent in options of the command, where the library names its methods.
pub(crate) fn in_options(words: &str) -> String {
    let words =
        words.replace("`with_changed_agent()`", "--with-changed-agent").replace("`abandon()`", "--abandon");
    words.replace("register a migration", "set `migrate` of the key in the agent file")
}

/// The text of an error for users of the command, with advice in terms of the command line.
pub(crate) fn error_text(error: &anyhow::Error) -> String {
    with_short_workers(&command_text(error))
}

fn command_text(error: &anyhow::Error) -> String {
    // NOTE: The library advises by its methods; users of the command need the options.
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

/// Whether the request is at fault: nothing was done, and the exit status is that of a usage error.
pub(crate) fn is_usage_error(error: &anyhow::Error) -> bool {
    let is_input = || {
        let error = error.downcast_ref::<RunnerError>();
        matches!(
            error,
            Some(RunnerError { kind: RunnerErrorKind::Input { .. } | RunnerErrorKind::NothingToResume, .. })
        )
    };
    error.is::<UsageError>()
        || error.is::<FileFaults>()
        || is_input()
        || session_error(error).is_some_and(is_request_fault)
}

/// Whether the store is damaged or of another program: then a person has to inspect its file.
pub(crate) fn is_store_fault(error: &anyhow::Error) -> bool {
    let is_of_agent = |error: &SessionError| {
        matches!(error, SessionError::SchemaMismatch { .. } | SessionError::Migration { .. })
    };
    let is_of_file = |error: &SessionError| {
        matches!(error.kind(), ErrorKind::Broken | ErrorKind::Incompatible) && !is_of_agent(error)
    };
    session_error(error).is_some_and(is_of_file)
}

/// The error of a store, if a store caused this one.
fn session_error(error: &anyhow::Error) -> Option<&SessionError> {
    match error.downcast_ref::<RunnerError>() {
        Some(RunnerError {
            kind:
                RunnerErrorKind::Store { source, .. }
                | RunnerErrorKind::Conflict { source, .. }
                | RunnerErrorKind::InvalidId { source, .. },
            ..
        }) => Some(source),
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
            | SessionError::ErasureReused { .. }
    )
}
