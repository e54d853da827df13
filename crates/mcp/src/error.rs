//! Why a server cannot be used.

use std::time::Duration;

use thiserror::Error;

/// Why a server cannot be used.
#[derive(Error)]
#[non_exhaustive]
pub enum McpError {
    /// The server was described in a way that cannot work.
    #[error("invalid MCP server `{server}`: {reason}")]
    Invalid {
        /// The server.
        server: String,
        /// Why not.
        reason: String,
    },
    /// The server could not be started or reached.
    #[error("MCP server `{server}` could not be started: {reason}")]
    Start {
        /// The server.
        server: String,
        /// Why not, with the end of what it wrote to its standard error.
        reason: String,
    },
    /// The server wants an authorization that it was not given.
    #[error("MCP server `{server}` requires authorization: {reason}")]
    Unauthorized {
        /// The server.
        server: String,
        /// What the server wants, as its `WWW-Authenticate` header says it.
        challenge: String,
        /// Why it was not given, and what to do.
        reason: String,
    },
    /// The server did not answer in time.
    #[error(
        "MCP server `{server}` did not answer `{method}` within {timeout:?}; raise the timeout, or check what delays the server"
    )]
    Timeout {
        /// The server.
        server: String,
        /// What it was asked.
        method: &'static str,
        /// The timeout.
        timeout: Duration,
    },
    /// The server refused a request, or the connection ended before the answer.
    #[error("MCP server `{server}` failed to answer `{method}`: {reason}")]
    Request {
        /// The server.
        server: String,
        /// What it was asked.
        method: &'static str,
        /// Why there is no answer.
        reason: String,
    },
    /// The server offers more than a bound allows.
    #[error("MCP server `{server}` offers more than {limit} {what}; raise the limit, or use another server")]
    TooMany {
        /// The server.
        server: String,
        /// What it offers.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
}

stepfold_state_core::debug_as_text!(McpError);
