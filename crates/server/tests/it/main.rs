//! Clients of the server, written by hand: each message is checked as it stands on the wire.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a helper of a test fails the test, and takes what reads best"
)]

mod http;
mod interop_conformance;
mod mcp;
mod mcp_http;
