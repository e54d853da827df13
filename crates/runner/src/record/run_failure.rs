//! A failure of a run, and how often it was repeated.

use stepfold_session_scopes::SessionKey;

use crate::error::{RunnerError, RunnerErrorKind};

/// A failure of a run, and the number of equal ones in a row without progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunFailure {
    pub(crate) cause: String,
    pub(crate) times: u32,
    /// Whether recovery leaves the run to a person.
    pub(crate) is_left_to_person: bool,
}

impl RunFailure {
    /// Adds a failure.
    pub(crate) fn repeated(before: Option<&Self>, cause: &str, is_left_to_person: bool) -> Self {
        let before = before.filter(|before| before.cause == cause);
        let times = before.map_or(0, |before| before.times) + 1;
        RunFailure { cause: cause.to_owned(), times, is_left_to_person }
    }

    /// Why recovery does not try again, if it leaves the run to a person.
    pub(crate) fn left_to_person(&self, key: &SessionKey) -> Option<RunnerError> {
        let left = || RunnerError::new(key, RunnerErrorKind::LeftToPerson { cause: self.cause.clone() });
        self.is_left_to_person.then(left)
    }
}
