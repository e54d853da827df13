//! Tests at the crate's boundary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a helper of a test fails the test and takes what reads best"
)]

mod layer;
mod scripted;

/// Lets time pass on a paused clock.
async fn pass(time: std::time::Duration) {
    // tidy: allow sleep, because tokio's clock is paused: it jumps, and nobody waits.
    tokio::time::sleep(time).await;
}
