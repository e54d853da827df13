//! Calls and their results.

use std::time::Duration;

use serde_json::json;
use stepfold_mcp::{Server, ServerLimits};
use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::chat::{Content, MediaSource, Part, ToolContent};
use stepfold_tools::{CancellationToken, Effect, Invocation, InvokeOptions};

use crate::kit::{call, call_with, invocation, line, line_of, offered, peer, state, until_progress};

#[track_caller]
fn check(line: &str, expected: &str) {
    assert_eq!(line, expected);
}

#[tokio::test]
async fn text_and_errors_are_tool_messages() {
    let server = peer("plain").build().unwrap();
    check(&line(&server, "echo", json!({"text": "hi"})).await, "Succeeded: hi");
    check(&line(&server, "empty", json!({})).await, "Succeeded: ");
    check(&line(&server, "fail", json!({})).await, "Failed(Error): no such file");
    let refused = "Failed(Error): MCP server `peer` refused the call: the path lies outside";
    check(&line(&server, "refuse", json!({})).await, refused);
    assert!(line(&server, "echo", json!({})).await.starts_with("Failed(InvalidArguments): "));
    assert_eq!(server.instructions().await.unwrap().as_deref(), Some("Be kind to it."));
}

#[tokio::test]
async fn media_and_resources_are_parts() {
    let server = peer("plain").build().unwrap();
    let outcome = call(&server, "picture", json!({})).await;
    let ToolContent::Parts(parts) = outcome.result.content() else { panic!("{outcome:?}") };
    let words = |part: &Part| match &part.content {
        Content::Text(text) => text.clone(),
        Content::Image(media) | Content::File(media) => {
            let MediaSource::Base64(data) = &media.source else { panic!("{media:?}") };
            format!("{} {} {data}", part.content.kind(), media.media_type.as_deref().unwrap())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(
        parts.iter().map(words).collect::<Vec<_>>(),
        [
            "see:",
            "image image/png aGk=",
            "[omitted: image/png with invalid base64]",
            "file audio/wav aGk=",
            "[resource note:///1]\nhello",
            "[resource two at note:///2, text/plain]",
        ]
    );
}

#[tokio::test]
async fn structured_content_is_the_value_and_is_checked() {
    let server = peer("plain").build().unwrap();
    assert_eq!(
        call(&server, "sum", json!({})).await.result.content(),
        &ToolContent::Value(json!({"total": 3}))
    );
    let wrong = line(&server, "sum_wrong", json!({})).await;
    let expected = "Failed(Error): the call has run, but its result cannot be used: its structuredContent does not fit the outputSchema: ";
    assert!(wrong.starts_with(expected) && wrong.contains("$.total"), "{wrong}");
    check(
        &line(&server, "sum_none", json!({})).await,
        "Failed(Error): the call has run, but its result cannot be used: the tool has an outputSchema and gave no structuredContent",
    );
}

#[tokio::test]
async fn progress_is_reported_to_the_run() {
    let server = peer("plain").build().unwrap();
    let tools = offered(&server).await;
    let mut invocation = invocation(&tools, "progress", json!({}));
    assert_eq!(
        until_progress(&mut invocation).await,
        json!({"progress": 1.0, "total": 2.0, "message": "part 1"})
    );
    check(&line_of(&invocation.finish().await.outcomes[0]), "Succeeded: done");
}

#[tokio::test]
async fn a_cancelled_call_is_cancelled_at_the_server() {
    let server = peer("plain").build().unwrap();
    let tools = offered(&server).await;
    let stop = CancellationToken::new();
    let calls = vec![ToolCall::new("c1", "hang", json!({}))];
    let options = InvokeOptions::scoped("session/1").with_cancellation(stop.clone());
    let mut hanging = Invocation::new(&tools, state(), calls, options);
    until_progress(&mut hanging).await;
    stop.cancel();
    let outcome = hanging.finish().await.outcomes.remove(0);
    check(&line_of(&outcome), "Cancelled: tool 'hang' cancelled while it ran; the effect may have happened");
    told_of_cancellation(&server).await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_cancelled_at_the_server() {
    let server = peer("plain").call_timeout(Duration::from_millis(300)).build().unwrap();
    let tools = offered(&server).await;
    let line = line_of(&call_with(&tools, "hang", json!({})).await);
    check(&line, "Failed(TimedOut): tool 'hang' timed out after 300ms; the effect may have happened");
    told_of_cancellation(&server).await;
}

/// The server is told at some time, behind or before the next call.
async fn told_of_cancellation(server: &Server) {
    let told = async {
        while line(server, "cancelled", json!({})).await != "Succeeded: 1" {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.expect("the server is told");
}

#[tokio::test]
async fn a_server_has_few_variables() {
    let server = peer("plain").env("TOKEN", "x").build().unwrap();
    let line = line(&server, "environment", json!({})).await;
    let known =
        ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "STEPFOLD_MCP_PEER", "TOKEN"];
    let names: Vec<&str> = line.strip_prefix("Succeeded: ").unwrap().split(' ').collect();
    assert!(names.iter().all(|name| known.contains(name)) && names.contains(&"TOKEN"), "{names:?}");
}

#[tokio::test]
async fn clones_and_toolsets_share_one_process() {
    let server = peer("plain").build().unwrap();
    assert_eq!(server.process_id().await, None);
    let (one, two) = (server.toolset(), server.clone().toolset());
    let (first, second) = (state(), state());
    let (one, two) = tokio::join!(one.resolve(&first), two.resolve(&second));
    let process = server.process_id().await.unwrap();
    check(&line_of(&call_with(&one.unwrap(), "echo", json!({"text": "a"})).await), "Succeeded: a");
    check(&line_of(&call_with(&two.unwrap(), "echo", json!({"text": "b"})).await), "Succeeded: b");
    assert_eq!(server.process_id().await, Some(process));
    server.stop().await;
    assert_eq!(server.process_id().await, None);
    check(&line(&server, "echo", json!({"text": "again"})).await, "Succeeded: again");
    assert_ne!(server.process_id().await, Some(process));
}

#[tokio::test]
async fn effects_are_declared_by_the_user_or_a_trusted_server() {
    let effect = async |server: Server, tool: &str| offered(&server).await.get(tool).unwrap().effect();
    assert_eq!(effect(peer("plain").build().unwrap(), "echo").await, Effect::AtMostOnce);
    assert_eq!(effect(peer("plain").trust_hints().build().unwrap(), "echo").await, Effect::Pure);
    let declared = peer("plain").effect(Effect::Idempotent).effect_of("o*", Effect::Pure);
    assert_eq!(effect(declared.build().unwrap(), "other").await, Effect::Pure);
}

#[tokio::test]
async fn resources_and_prompts_are_read() {
    let server = peer("plain").build().unwrap();
    let resources = server.resources().await.unwrap();
    assert_eq!((resources[0].uri.as_str(), resources[0].size), ("note:///1", Some(5)));
    let parts = server.read_resource("note:///1").await.unwrap();
    assert_eq!(parts[0], Part::text("[resource note:///1]\nhello"));
    assert_eq!(parts[1].content.kind(), "image");
    let error = server.read_resource("note:///9").await.unwrap_err();
    check(&error.to_string(), "MCP server `peer` failed to answer `resources/read`: no such method");
    let prompts = server.prompts().await.unwrap();
    assert_eq!(
        (prompts[0].name.as_str(), &prompts[0].arguments),
        ("review", &vec![("code".to_owned(), true)])
    );
    let arguments = json!({"code": "fn main() {}"}).as_object().cloned().unwrap();
    let messages = server.prompt("review", arguments).await.unwrap();
    assert!(messages.iter().all(|message| message.parts().len() == 1), "{messages:?}");
    let said: Vec<String> = messages.iter().map(|message| message.text().into_owned()).collect();
    assert_eq!(said, ["fn main() {}", "I look at it."]);
}

#[test]
fn what_cannot_work_is_refused_before_anything_starts() {
    let fault = |builder: stepfold_mcp::ServerBuilder| builder.build().unwrap_err().to_string();
    check(
        &fault(Server::command("a b", ["x"])),
        "invalid MCP server `a b`: the name must be 1 to 32 letters, digits, `_` or `-`",
    );
    check(
        &fault(Server::command("a", Vec::<String>::new())),
        "invalid MCP server `a`: the command names no program",
    );
    check(
        &fault(Server::http("a", "ftp://x")),
        "invalid MCP server `a`: invalid URL `ftp://x`: must begin with http:// or https://",
    );
    check(
        &fault(Server::http("a", "http://x").env("A", "b")),
        "invalid MCP server `a`: `env` is for a command, and the server is at a URL",
    );
    check(
        &fault(Server::http("a", "http://x").header("a b", "c")),
        "invalid MCP server `a`: invalid header `a b`",
    );
    let limits = ServerLimits::default().with_start_timeout(Duration::ZERO);
    check(
        &fault(Server::command("a", ["x"]).limits(limits)),
        "invalid MCP server `a`: a timeout must be more than zero",
    );
    // Secrets are not printed.
    let remote = Server::http("a", "http://x").bearer_token("s3cret").build().unwrap();
    assert!(!format!("{remote:?}").contains("s3cret"));
}
