//! How a command ends: what it tells the shell, and errors as one text.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

/// How a command ended. The numbers are those of the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All went well.
    Done,
    /// Something failed; the run can be resumed if there is one.
    Failed,
    /// The command line or the agent file is wrong.
    Usage,
    /// The run waits for decisions.
    Waits,
    /// The run ended without an answer: at a limit, by a refusal, cut off.
    NoAnswer,
    /// The user interrupted it.
    Interrupted,
}

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> Self {
        ExitCode::from(match ending {
            Ending::Done => 0,
            Ending::Failed => 1,
            Ending::Usage => 2,
            Ending::Waits => 3,
            Ending::NoAnswer => 4,
            Ending::Interrupted => 130,
        })
    }
}

/// A wrong use of the command: nothing was done.
#[derive(Debug)]
pub(crate) struct Misuse(pub(crate) String);

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Misuse {}

/// An error with its sources, in one text. A source that says what was said already is left out.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = error.source();
    }
    text
}
