//! Tests at the crate's boundary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::format_collect,
    clippy::items_after_statements,
    clippy::needless_pass_by_value,
    clippy::similar_names,
    reason = "a helper of a test fails the test, takes what reads best, and need not be fast"
)]

use std::time::Duration;

mod laws;
#[cfg(feature = "macros")]
mod macros;
mod messages;
#[cfg(feature = "search")]
mod recall;
mod semantics;
mod toolset;
#[cfg(feature = "macros")]
mod ui;

/// Lets time pass on a paused clock.
async fn pass(time: Duration) {
    // tidy: allow sleep, because tokio's clock is paused and jumps: no test waits.
    tokio::time::sleep(time).await;
}
