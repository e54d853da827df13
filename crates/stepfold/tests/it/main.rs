//! What the facade joins, seen from outside.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper of a test fails the test, and takes what reads best"
)]

mod coming_from;
mod mcp;
mod otel;
