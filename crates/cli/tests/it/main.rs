//! The command as a person meets it: files in, words out. No network, no key.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a helper of a test fails the test, and takes what reads best"
)]

mod approvals;
mod branches;
mod budgets;
mod checks;
mod chromium;
mod context;
mod conversations;
mod crashes;
mod documents;
mod erasure;
mod eval;
mod eval_bounds;
mod eval_faults;
mod eval_interop;
#[cfg(target_os = "linux")]
mod eval_memory;
#[cfg(unix)]
mod eval_signals;
mod experiment_kill;
mod graph_checks;
mod graphs;
mod history;
#[path = "../../../stepfold/tests/it/http_peer.rs"]
#[allow(dead_code, reason = "the tests of the facade use the rest")]
mod http_peer;
mod inbox;
#[path = "../../../providers/tests/it/installed.rs"]
mod installed;
mod interop;
mod keys;
mod logins;
mod mcp;
mod mcp_http;
mod migrations;
mod new;
mod outcomes;
#[path = "../../../session-scopes/tests/it/server.rs"]
#[allow(dead_code, clippy::print_stderr, reason = "the store's own tests use the rest")]
mod postgres;
mod protocol_kill;
mod redaction;
mod retention;
mod room;
mod serve;
mod serve_kill;
mod servers;
mod shown;
mod spans;
mod terminal;
mod tools;
mod upgrades;
mod usage;
mod words;
mod work;
