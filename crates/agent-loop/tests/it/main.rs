//! The tests of the whole crate, at its boundaries, in one binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    clippy::format_collect,
    clippy::format_push_string,
    reason = "a helper of a test fails the test, and an `Expect` reads best inline"
)]

mod loop_rows;
mod messages;
mod oracle;
mod redaction;
mod regressions;
