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

mod graph;
#[path = "../../../agent-loop/tests/it/loop_rows/kit.rs"]
#[allow(dead_code, reason = "the loop's own tests use the rest")]
mod loop_kit;
#[path = "../../../agent-loop/tests/it/loop_rows/spans.rs"]
mod loop_spans;
mod messages;
mod progress;
