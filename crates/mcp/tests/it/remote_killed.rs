//! A server over HTTP in a process of its own, which is killed in the middle of calls.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use stepfold_mcp::{McpServer, McpServerBuilder};
use stepfold_tools::CallStatus;
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::kit::{invocation, line, offered, until_progress};
use crate::peer::{FILE, Peer};
use crate::remote::{Form, serve};

/// The folder of the test, which says that this binary is a server.
const FOLDER: &str = "STEPFOLD_MCP_HTTP";

/// Where a server listens, which another one continues with, and what was called over all of their lives.
struct Place(TempDir);

impl Place {
    fn address(&self) -> Option<SocketAddr> {
        address(self.0.path())
    }

    fn called(&self) -> Vec<String> {
        let calls = std::fs::read_to_string(self.0.path().join("calls")).unwrap_or_default();
        calls.lines().map(|line| line.trim_matches('"').to_owned()).collect()
    }

    fn server(&self) -> McpServerBuilder {
        let url = format!("http://{}/mcp", self.address().expect("a server has started"));
        McpServer::http("remote", url).prefix("").bearer_token("s3cret").header("x-tenant", "t1")
    }

    async fn start(&self) -> Process {
        let _ = std::fs::remove_file(self.0.path().join("ready"));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "remote_killed::serves", "--nocapture"]).stdout(Stdio::null());
        command.env(FOLDER, self.0.path()).env(FILE, self.0.path().join("calls"));
        let process = Process(command.spawn().unwrap());
        while !self.0.path().join("ready").exists() {
            // tidy: allow sleep, because another process is waited for
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        process
    }
}

fn address(folder: &Path) -> Option<SocketAddr> {
    std::fs::read_to_string(folder.join("address")).ok()?.parse().ok()
}

struct Process(Child);

impl Process {
    /// As `kill -9` does.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The server, where this binary is started as one. Otherwise there is nothing to see.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "this is how a parent says what it wants")]
async fn serves() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let before = address(folder);
    // The port may be held by what the kernel has left of the killed one.
    let listener = loop {
        match TcpListener::bind(before.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap())).await {
            Ok(listener) => break listener,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    std::fs::write(folder.join("address"), listener.local_addr().unwrap().to_string()).unwrap();
    std::fs::write(folder.join("ready"), "").unwrap();
    let peer = Arc::new(Mutex::new(Peer::new("plain")));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(serve(stream, Arc::clone(&peer), Form::Events));
    }
}

#[tokio::test]
async fn a_server_over_http_that_is_killed_in_a_call_is_reported_as_unknown_and_reached_again() {
    let place = Place(tempfile::tempdir().unwrap());
    let mut process = place.start().await;
    let server = place.server().build().unwrap();
    for _ in 0..3 {
        let tools = offered(&server).await;
        let mut hanging = invocation(&tools, "hang", json!({}));
        until_progress(&mut hanging).await;
        process.kill();
        let outcome = hanging.finish().await.outcomes.remove(0);
        assert_eq!(outcome.status, CallStatus::Unknown, "{outcome:?}");
        let text = outcome.result.text();
        assert!(text.starts_with("the connection to MCP server `remote` ended during the call: "), "{text}");
        assert!(text.ends_with("; the effect may have happened") && !text.contains("s3cret"), "{text}");
        // Another one at the same address.
        process = place.start().await;
    }
    assert_eq!(line(&server, "other", json!({})).await, "Succeeded: other is done");
    assert_eq!(place.called(), ["hang", "hang", "hang", "other"], "no call was made twice");
}

#[tokio::test]
async fn a_call_that_only_reads_at_a_trusted_server_is_not_unknown() {
    let place = Place(tempfile::tempdir().unwrap());
    let mut process = place.start().await;
    for trusts in [true, false] {
        let server = if trusts { place.server().trust_hints() } else { place.server() };
        let server = server.build().unwrap();
        let tools = offered(&server).await;
        let mut hanging = invocation(&tools, "peek", json!({}));
        until_progress(&mut hanging).await;
        process.kill();
        let outcome = hanging.finish().await.outcomes.remove(0);
        assert_eq!(outcome.status == CallStatus::Unknown, !trusts, "{outcome:?}");
        process = place.start().await;
    }
    assert_eq!(place.called(), ["peek", "peek"]);
}
