//! Clients of the server, written by hand: each message is checked as it stands on the wire.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a helper of a test fails the test, and takes what reads best"
)]

mod browser;
#[path = "../../../mcp/tests/it/conformance.rs"]
mod conformance;
#[path = "../../../session-scopes/tests/it/counting.rs"]
#[allow(dead_code, clippy::print_stdout, reason = "the store's own tests use the rest")]
mod counting;
mod http;
#[path = "../../../providers/tests/it/installed.rs"]
mod installed;
mod interop_browser;
mod interop_conformance;
mod interop_generated;
mod interop_protocols;
mod mcp;
mod mcp_http;
mod page_json;
mod page_text;
#[path = "../../../session-scopes/tests/it/server.rs"]
#[allow(dead_code, clippy::print_stderr, reason = "the store's own tests use the rest")]
mod postgres;
