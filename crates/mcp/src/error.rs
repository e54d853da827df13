//! Errors of servers.

use std::time::Duration;

use thiserror::Error;

/// An error of a server.
#[derive(Error)]
#[non_exhaustive]
pub enum McpError {
    /// The description of the server is invalid.
    #[error("invalid MCP server `{server}`: {reason}")]
    Invalid {
        /// The server.
        server: String,
        /// The reason.
        reason: String,
    },
    /// The server could not be started or reached.
    #[error("MCP server `{server}` could not be started: {reason}")]
    Start {
        /// The server.
        server: String,
        /// The reason, with the end of its standard error.
        reason: String,
    },
    /// The server requires an authorization that is missing.
    #[error("MCP server `{server}` requires authorization: {reason}")]
    Unauthorized {
        /// The server.
        server: String,
        /// The challenge, from its `WWW-Authenticate` header.
        challenge: String,
        /// The reason, and the remedy.
        reason: String,
    },
    /// The server did not answer in time.
    #[error(
        "MCP server `{server}` did not answer `{method}` within {timeout:?}; raise `start_timeout`, or check what delays the server"
    )]
    Timeout {
        /// The server.
        server: String,
        /// The method of the request.
        method: &'static str,
        /// The timeout.
        timeout: Duration,
    },
    /// The server refused a request, or the connection ended before the answer.
    #[error("MCP server `{server}` failed to answer `{method}`: {reason}")]
    Request {
        /// The server.
        server: String,
        /// The method of the request.
        method: &'static str,
        /// The reason.
        reason: String,
    },
    /// The server offers more than a bound allows.
    #[error("MCP server `{server}` offers more than {limit} {what}; raise the limit, or use another server")]
    TooMany {
        /// The server.
        server: String,
        /// The kind of the items.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
}

stepfold_state_core::debug_as_text!(McpError);
