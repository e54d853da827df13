//! The tests of the whole crate, at its boundaries, in one binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::format_push_string,
    clippy::needless_pass_by_value,
    clippy::items_after_statements,
    reason = "a helper of a test fails the test, takes what reads best, and need not be fast"
)]

mod chat;
mod decode;
// What a whole JSON Schema finds, only this feature can say.
#[cfg(feature = "validation")]
mod messages;
mod state;
