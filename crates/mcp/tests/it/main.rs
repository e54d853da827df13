//! Tests at the crate's boundary, against servers that are written by hand: as a child process and over HTTP.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::format_collect,
    clippy::match_same_arms,
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    reason = "a helper of a test fails the test and takes what reads best, and a test that is skipped says so"
)]

mod calls;
mod interop;
mod kit;
mod lists;
mod messages;
mod peer;
mod questions;
mod remote;
mod trouble;
