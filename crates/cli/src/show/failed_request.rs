//! A failed request to a model, as it is shown before the next attempt.

use std::fmt;

use serde::Serialize;
use stepfold::providers::layer::FailedAttempt;

/// A request that failed and is sent again. Only its kind is shown: if all attempts fail, the error shows the cause.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FailedRequest {
    attempt: usize,
    attempts: usize,
    error: String,
    #[serde(skip)]
    kind: String,
    pub(crate) model: String,
    pause_ms: u128,
}

impl From<&FailedAttempt<'_>> for FailedRequest {
    fn from(failed: &FailedAttempt<'_>) -> Self {
        FailedRequest {
            attempt: failed.attempt,
            attempts: failed.max_attempts,
            error: failed.error.to_string(),
            kind: failed.error.kind().to_string(),
            model: failed.model.to_owned(),
            pause_ms: failed.pause.as_millis(),
        }
    }
}

impl fmt::Display for FailedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FailedRequest { attempt, attempts, kind, model, pause_ms, .. } = self;
        let (next, seconds) = (attempt + 1, pause_ms.div_ceil(1000));
        write!(f, "{model} did not answer ({kind}); attempt {next} of {attempts} in {seconds} s")
    }
}
