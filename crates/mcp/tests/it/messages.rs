//! Every error message, in one list: read it aloud after a change.

use std::time::Duration;

use expect_test::expect;
use stepfold_mcp::McpError;

#[test]
fn every_error_message() {
    let server = || "stalls".to_owned();
    let errors = [
        McpError::Invalid { server: server(), reason: "missing program".to_owned() },
        McpError::Start { server: server(), reason: "program `stalls-mcp` not found".to_owned() },
        McpError::Unauthorized {
            server: server(),
            challenge: "Bearer".to_owned(),
            reason: "not signed in; sign in with `Server::sign_in`".to_owned(),
        },
        McpError::Timeout { server: server(), method: "tools/list", timeout: Duration::from_secs(30) },
        McpError::Request { server: server(), method: "tools/call", reason: "connection closed".to_owned() },
        McpError::TooMany { server: server(), what: "tools", limit: 128 },
    ];
    let list: Vec<String> = errors.iter().map(ToString::to_string).collect();
    expect![[r"
        invalid MCP server `stalls`: missing program
        MCP server `stalls` could not be started: program `stalls-mcp` not found
        MCP server `stalls` requires authorization: not signed in; sign in with `Server::sign_in`
        MCP server `stalls` did not answer `tools/list` within 30s; raise `start_timeout`, or check what delays the server
        MCP server `stalls` failed to answer `tools/call`: connection closed
        MCP server `stalls` offers more than 128 tools; raise the limit, or use another server
    "]]
    .assert_eq(&(list.join("\n") + "\n"));
}
