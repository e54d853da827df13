//! The pauses between attempts to write to the store.

use std::future::Future;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use stepfold_session_scopes::{ErrorKind, SessionError};

/// The number of retries of an append when the store is busy or unreachable, and their total time.
pub(crate) const MAX_RETRIES: usize = 6;
const MAX_RETRY_TIME: Duration = Duration::from_secs(30);

/// The longest pause between two attempts to store a result, and their total.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const MAX_HOLD_TIME: Duration = Duration::from_secs(24 * 3_600);

/// Appends can be retried: the store recognises the event by its id.
pub(crate) fn append_backoff() -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(50))
        .with_max_times(MAX_RETRIES)
        .with_total_delay(Some(MAX_RETRY_TIME))
}

/// Repeats an operation while the store is busy or unreachable. A repeat must do no harm.
pub(crate) async fn retried<T, F>(operation: impl FnMut() -> F) -> Result<T, SessionError>
where
    F: Future<Output = Result<T, SessionError>>,
{
    operation.retry(append_backoff()).when(is_transient).await
}

/// Whether a repeat may succeed.
pub(crate) fn is_transient(error: &SessionError) -> bool {
    error.kind() == ErrorKind::Transient
}

/// The pauses of appends that hold results: never longer than the store's next chance by much, since another worker may
/// take the session when the claim has expired.
pub(crate) fn result_backoff() -> ExponentialBuilder {
    // NOTE: the result of a call that must not run twice cannot be had again; failing after seconds would turn it into
    // "unknown": docs/decisions/runner.md.
    append_backoff().with_max_delay(LONGEST_PAUSE).without_max_times().with_total_delay(Some(MAX_HOLD_TIME))
}
