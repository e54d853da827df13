//! The adapter against a server of Restate, with workers that are killed, frozen and thawed. `cargo xtask interop` installs the
//! server; without it, only what needs none is tested.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a helper of a test fails the test, takes what reads best, and talks to its children by lines"
)]

mod balancer;
#[path = "../../../exam/tests/it/host_graph.rs"]
mod host_graph;
#[path = "../../../providers/tests/it/installed.rs"]
mod installed;
mod interop;
mod interop_exam;
#[path = "../../../session-scopes/tests/it/server.rs"]
mod postgres;
mod server;
mod world;
