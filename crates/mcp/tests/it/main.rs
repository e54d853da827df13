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

#[cfg(feature = "oauth")]
mod authority;
mod calls;
#[cfg(feature = "oauth")]
mod conformance;
#[path = "../../../providers/tests/it/installed.rs"]
mod installed;
mod interop;
#[cfg(feature = "oauth")]
mod interop_conformance;
mod kit;
mod lists;
mod messages;
#[cfg(feature = "oauth")]
mod oauth;
mod peer;
mod questions;
mod remote;
mod remote_killed;
mod trouble;
