//! What the facade joins, seen from outside.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a helper of a test fails the test, and takes what reads best; a test that is skipped says so"
)]

#[cfg(all(feature = "anthropic", feature = "check", feature = "gemini", feature = "openai"))]
mod accepted;
mod coming_from;
mod costs;
mod http_peer;
#[path = "../../../providers/tests/it/installed.rs"]
mod installed;
mod mcp;
mod mcp_changes;
mod otel;
#[cfg(all(feature = "anthropic", feature = "gemini", feature = "openai", feature = "test-kit"))]
mod prompt_cache;
#[cfg(all(feature = "anthropic", feature = "check", feature = "gemini", feature = "openai"))]
mod too_long;
