//! Tests at the crate's boundary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::format_collect,
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    reason = "a helper of a test fails the test, takes what reads best, need not be fast; expectations are long, and whoever skips says so"
)]

#[cfg(all(feature = "anthropic", feature = "check", feature = "gemini", feature = "openai"))]
mod accepted;
#[cfg(feature = "anthropic")]
mod anthropic;
mod attempts;
#[cfg(all(feature = "anthropic", feature = "check", feature = "gemini", feature = "openai"))]
mod bodies;
#[cfg(all(feature = "anthropic", feature = "gemini", feature = "openai"))]
mod by_name;
mod cassette;
#[cfg(all(feature = "anthropic", feature = "gemini", feature = "openai"))]
mod corpus;
#[cfg(all(feature = "anthropic", feature = "gemini", feature = "openai"))]
mod hostile;
#[cfg(all(feature = "anthropic", feature = "gemini", feature = "openai"))]
mod installed;
#[cfg(all(feature = "anthropic", feature = "gemini", feature = "openai"))]
mod interop;
mod layer;
#[cfg(all(feature = "anthropic", feature = "gemini", feature = "openai"))]
mod limits;
#[cfg(all(feature = "anthropic", feature = "gemini", feature = "openai"))]
mod messages;
#[cfg(feature = "openai")]
mod openai;
#[cfg(all(feature = "anthropic", feature = "gemini", feature = "openai"))]
mod said;
#[cfg(all(feature = "anthropic", feature = "check", feature = "gemini", feature = "openai"))]
mod schemas;
mod scripted;
#[cfg(feature = "http")]
mod server;
#[cfg(feature = "openai")]
mod tls;
#[cfg(all(feature = "anthropic", feature = "gemini", feature = "openai"))]
mod wire;
#[cfg(all(feature = "anthropic", feature = "gemini", feature = "openai"))]
mod wires;

/// Lets time pass on a paused clock.
async fn pass(time: std::time::Duration) {
    // tidy: allow sleep, because tokio's clock is paused and jumps: no test waits.
    tokio::time::sleep(time).await;
}
