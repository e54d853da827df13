//! The pauses between attempts to write to the store.

use std::time::Duration;

use backon::ExponentialBuilder;

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

/// The pauses of appends that hold results: never longer than the store's next chance by much, since another worker may
/// take the session when the claim has expired.
pub(crate) fn result_backoff() -> ExponentialBuilder {
    // NOTE: the result of a call that must not run twice cannot be had again; failing after seconds would turn it into
    // "unknown": docs/decisions/runner.md.
    append_backoff().with_max_delay(LONGEST_PAUSE).without_max_times().with_total_delay(Some(MAX_HOLD_TIME))
}
