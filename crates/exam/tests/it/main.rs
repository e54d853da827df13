//! Our own stores and hosts take the exams, and generated agents and graphs are ended everywhere.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::format_collect,
    clippy::format_push_string,
    clippy::items_after_statements,
    clippy::needless_pass_by_value,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::similar_names,
    reason = "a helper of a test fails the test, takes what reads best, and need not be fast"
)]

mod host_graph;
mod hosts;
#[path = "../../../agent-loop/tests/it/loop_rows/kit.rs"]
#[allow(dead_code, reason = "the loop's own tests use the rest")]
mod loop_kit;
#[path = "../../../session-scopes/tests/it/pgbouncer.rs"]
#[allow(dead_code, reason = "the stores' own tests use the rest")]
mod pgbouncer;
mod questions;
// One server for all: the tests of the stores start it, and so do these.
#[path = "../../../session-scopes/tests/it/server.rs"]
#[allow(dead_code, reason = "the stores' own tests use the rest")]
mod server;
mod simulated;
mod store_rows;
mod stores;
