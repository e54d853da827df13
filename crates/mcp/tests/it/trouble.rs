//! Servers that die, hang, and send too much.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use stepfold_mcp::{McpError, McpServer, ServerLimits};
use stepfold_tools::{CallStatus, Effect};
use tokio::io::AsyncReadExt as _;

use crate::kit::{call, invocation, line, line_of, offered, peer, until_progress};
use crate::peer::FILE;

#[tokio::test]
async fn a_server_that_dies_at_start_says_why() {
    let error = peer("dies").build().unwrap().start().await.unwrap_err();
    let expected = "MCP server `peer` could not be started: the process ended (exit status: 7); \
                    its standard error ends: no config file: /etc/peer.toml";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_error() {
    let error = McpServer::command("gone", ["/no/such/program"]).build().unwrap().start().await.unwrap_err();
    let expected = "MCP server `gone` could not be started: program /no/such/program not found; install it, or correct its path";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn a_server_that_does_not_answer_at_start_times_out() {
    let limits = ServerLimits::default().with_start_timeout(Duration::from_millis(300));
    let error = peer("silent").limits(limits).build().unwrap().start().await.unwrap_err();
    assert!(matches!(error, McpError::Timeout { method: "initialize", .. }), "{error:?}");
}

/// Which tools the server was asked to run, over all its lives.
fn ran(file: &tempfile::NamedTempFile) -> Vec<String> {
    std::fs::read_to_string(file.path())
        .unwrap()
        .lines()
        .map(|line| line.trim_matches('"').to_owned())
        .collect()
}

#[tokio::test]
async fn a_call_during_which_the_server_dies_is_unknown_and_not_repeated() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let server = peer("plain").env(FILE, file.path()).build().unwrap();
    let line = line(&server, "die", json!({})).await;
    let expected = "Unknown: the connection to MCP server `peer` ended during the call: \
                    the process ended (signal: 6 (SIGABRT)); its standard error ends: out of memory; \
                    the effect may have happened";
    assert_eq!(line.replace(" (core dumped)", ""), expected);
    // The next one finds it running again.
    assert_eq!(crate::kit::line(&server, "other", json!({})).await, "Succeeded: other is done");
    assert_eq!(ran(&file), ["die", "other"]);
}

#[tokio::test]
async fn a_server_that_is_killed_in_a_call_is_reported_as_unknown_in_each_call_and_started_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let server = peer("plain").env(FILE, file.path()).build().unwrap();
    for _ in 0..3 {
        let tools = offered(&server).await;
        let mut hanging = invocation(&tools, "hang", json!({}));
        until_progress(&mut hanging).await;
        let process = server.process_id().await.unwrap();
        kill_process(Pid::from_raw(process.cast_signed()).unwrap(), Signal::KILL).unwrap();
        let outcome = hanging.finish().await.outcomes.remove(0);
        assert_eq!(outcome.status, CallStatus::Unknown, "{outcome:?}");
        let expected = "the connection to MCP server `peer` ended during the call: the process ended (signal: 9 (SIGKILL)); the effect may have happened";
        assert_eq!(outcome.result.text(), expected);
    }
    assert_eq!(ran(&file), ["hang"; 3]);
}

#[tokio::test]
async fn an_interrupted_call_without_effect_is_a_failure_as_any() {
    let server = peer("plain").effect(Effect::Pure).build().unwrap();
    let line = line(&server, "die", json!({})).await;
    assert!(line.starts_with("Failed(Error): the connection to MCP server `peer` ended"), "{line}");
}

#[tokio::test]
async fn a_message_of_200_megabytes_ends_the_server() {
    let server = peer("plain").build().unwrap();
    let line = line(&server, "huge", json!({})).await;
    let expected = "Unknown: the connection to MCP server `peer` ended during the call: \
                    it sent a message of more than 16777216 bytes and was ended; the effect may have happened";
    assert_eq!(line, expected);
    assert_eq!(crate::kit::line(&server, "other", json!({})).await, "Succeeded: other is done");
}

#[tokio::test]
async fn a_server_that_floods_is_ended() {
    let limits = ServerLimits::default().with_message_bytes(64 * 1024);
    let server = peer("plain").limits(limits).build().unwrap();
    let line = line(&server, "flood", json!({})).await;
    let expected = "Unknown: the connection to MCP server `peer` ended during the call: \
                    it sent more than 262144 bytes after one request and was ended; the effect may have happened";
    assert_eq!(line, expected);
}

#[tokio::test]
async fn a_server_that_breaks_a_bound_ends_at_once_even_if_it_does_not_mind() {
    let server = peer("plain").build().unwrap();
    let tools = offered(&server).await;
    let process = Pid::from_raw(server.process_id().await.unwrap().cast_signed()).unwrap();
    let line = line_of(&crate::kit::call_with(&tools, "huge_stays", json!({})).await);
    assert!(line.contains("it sent a message of more than 16777216 bytes and was ended"), "{line}");
    assert!(rustix::process::test_kill_process(process).is_err(), "the process lives");
}

#[tokio::test]
async fn a_schema_whose_check_would_not_end_is_not_checked() {
    let server = peer("tangled").build().unwrap();
    for tool in ["twice", "nested"] {
        let line = line(&server, tool, json!({})).await;
        assert!(line.starts_with("Succeeded: "), "{tool}: {line}");
    }
}

#[tokio::test]
async fn invalid_json_is_not_an_answer() {
    let server = peer("plain").call_timeout(Duration::from_millis(300)).build().unwrap();
    let line = line(&server, "junk", json!({})).await;
    assert_eq!(line, "Failed(TimedOut): tool 'junk' timed out after 300ms; the effect may have happened");
    assert_eq!(crate::kit::line(&server, "other", json!({})).await, "Succeeded: other is done");
}

#[tokio::test]
async fn a_server_ends_with_all_that_it_has_started() {
    for politely in [true, false] {
        let home = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = peer("plain").build().unwrap();
        let arguments = json!({"address": home.local_addr().unwrap().to_string()});
        assert_eq!(line(&server, "child", arguments).await, "Succeeded: started");
        let (mut grandchild, _) = home.accept().await.unwrap();
        if politely {
            server.stop().await;
        }
        drop(server);
        // Ends when the process does that holds the other end.
        let read = grandchild.read(&mut [0]).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_restarted_is_a_failed_call_that_was_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("server");
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &program).unwrap();
    let argv = [program.as_os_str(), "--exact".as_ref(), "peer::serves".as_ref(), "--nocapture".as_ref()];
    let server = McpServer::command("peer", argv).prefix("").env(crate::peer::MODE, "plain").build().unwrap();
    let tools = offered(&server).await;
    assert_eq!(call(&server, "die", json!({})).await.status, CallStatus::Unknown);
    std::fs::remove_file(&program).unwrap();
    let line = line_of(&crate::kit::call_with(&tools, "other", json!({})).await);
    let expected = format!(
        "Failed(Error): tool 'other' was not called: MCP server `peer` could not be started: program {} not found; \
         install it, or correct its path",
        program.display()
    );
    assert_eq!(line, expected);
}
