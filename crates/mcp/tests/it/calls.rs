//! Calls and their results.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stepfold_mcp::{McpServer, ServerLimits};
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
    // A call that has run is not lost for the form of its result.
    check(&line(&server, "sum_wrong", json!({})).await, "Succeeded: {\"total\":\"three\"}");
    check(&line(&server, "sum_none", json!({})).await, "Succeeded: 3");
}

#[tokio::test]
async fn odd_results_are_shown_over_either_revision() {
    for mode in ["plain", "modern"] {
        let server = peer(mode).build().unwrap();
        let returns = async |result: Value| line(&server, "returns", json!({ "result": result })).await;
        let beside = json!({"content": [{"type": "text", "text": "see:"}, {"type": "video", "data": "aGk=", "mimeType": "video/mp4"}]});
        check(
            &returns(beside).await,
            "Succeeded: see:\n[content of unknown type `video`] {\"mimeType\":\"video/mp4\",\"data\":\"aGk=\"}",
        );
        check(
            &returns(json!({"content": [], "structuredContent": {"code": 7}, "isError": true})).await,
            "Failed(Error): {\"code\":7}",
        );
        check(
            &returns(
                json!({"content": [{"type": "text", "text": "Three."}], "structuredContent": {"total": 3}}),
            )
            .await,
            "Succeeded: Three.\n{\"total\":3}",
        );
        check(
            &returns(json!({"content": null, "isError": true})).await,
            "Failed(Error): the tool failed and does not say why",
        );
        check(&returns(json!({"toolResult": [1]})).await, "Succeeded: {\"toolResult\":[1]}");
        check(
            &returns(json!({"content": [{"type": "text"}, {"type": "text", "text": 5}]})).await,
            "Succeeded: \n5",
        );
        check(&returns(json!("done")).await, "Succeeded: done");
        check(&returns(json!([1, 2])).await, "Succeeded: [1,2]");
        check(&returns(json!({})).await, "Succeeded: ");
    }
}

/// Half a character at the end of a text that was cut, and an invalid number: readers refuse the whole message.
#[tokio::test]
async fn a_message_that_is_json_for_its_writer_alone_is_read() {
    let server = peer("plain").build().unwrap();
    check(&line(&server, "cut", json!({})).await, "Succeeded: cut \u{fffd}");
}

/// What is logged: the fields of each event, in one line.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl tracing::field::Visit for Log {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0.lock().unwrap(), "{field}: {value:?}; ");
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("stepfold_mcp")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn what_was_odd_is_traced() {
    let log = Log::default();
    let logged = tracing::subscriber::set_default(log.clone());
    let server = peer("plain").build().unwrap();
    line(&server, "other", json!({})).await;
    assert_eq!(log.0.lock().unwrap().as_str(), "");
    line(&server, "returns", json!({"result": {"content": [{"type": "video"}]}})).await;
    line(&server, "sum_none", json!({})).await;
    line(&server, "sum_wrong", json!({})).await;
    server.stop().await;
    let server = peer("broken").build().unwrap();
    server.start().await.unwrap();
    drop(logged);
    let log = log.0.lock().unwrap();
    for part in [
        "what: \"returns\"; odd: \"content of unknown type `video`\"",
        "what: \"sum_none\"; odd: \"the tool has an outputSchema and gave no structuredContent\"",
        "what: \"sum_wrong\"; odd: \"the structuredContent does not fit the outputSchema: ",
        "tool: \"list\"; reason: \"invalid inputSchema: expected type \\\"object\\\", found \\\"array\\\"\"",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
}

/// A response that the SDK does not read is an answer anyway: its call would end with its timeout.
#[tokio::test]
async fn a_response_in_another_form_is_an_answer() {
    let server = peer("plain").build().unwrap();
    let says = async |message: Value| line(&server, "says", json!({ "message": message })).await;
    let head = "Failed(Error): MCP server `peer` refused the call: ";
    let done = json!({"content": [{"type": "text", "text": "done"}]});
    check(&says(json!({"result": done, "error": null})).await, "Succeeded: done");
    check(&says(json!({"jsonrpc": "2.0", "id": "text", "result": done})).await, "Succeeded: done");
    check(&says(json!({"jsonrpc": "2.0", "result": null})).await, "Succeeded: ");
    check(&says(json!({"jsonrpc": "2.0"})).await, "Succeeded: ");
    check(&says(json!({"jsonrpc": "2.0", "error": "boom"})).await, &format!("{head}boom"));
    check(
        &says(json!({"jsonrpc": "2.0", "error": {"code": "E1", "message": "boom"}})).await,
        &format!("{head}boom"),
    );
}

#[tokio::test]
async fn a_refusal_says_why_wherever_it_says_it() {
    let server = peer("plain").build().unwrap();
    let refuses = async |error: Value| line(&server, "refuse", json!({ "error": error })).await;
    let head = "Failed(Error): MCP server `peer` refused the call: ";
    for (error, expected) in [
        (json!({"code": -32000, "message": "", "data": {"quota": 0}}), "{\"quota\":0}"),
        (json!({"code": -32000, "message": "no", "data": "the disk is full"}), "no: the disk is full"),
        (json!({"code": -32000, "message": "the disk is full", "data": "full"}), "the disk is full"),
        (json!({"code": -32000, "message": " "}), "it does not say why"),
    ] {
        check(&refuses(error).await, &format!("{head}{expected}"));
    }
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
async fn told_of_cancellation(server: &McpServer) {
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
    let effect = async |server: McpServer, tool: &str| offered(&server).await.get(tool).unwrap().effect();
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

#[tokio::test]
async fn resources_and_prompts_in_odd_shapes_are_read() {
    let server = peer("broken").build().unwrap();
    let resources = server.resources().await.unwrap();
    assert_eq!(resources.iter().map(|resource| resource.uri.as_str()).collect::<Vec<_>>(), ["note:///1"]);
    let prompts = server.prompts().await.unwrap();
    assert_eq!(prompts.iter().map(|prompt| prompt.name.as_str()).collect::<Vec<_>>(), ["review"]);
    let parts = server.read_resource("a:b").await.unwrap();
    assert_eq!(parts, [Part::text("[resource a:b] {\"kind\":\"later\"}"), Part::text("[resource]\nhello")]);
    let messages = server.prompt("review", serde_json::Map::new()).await.unwrap();
    let expected = [Part::text("[content of unknown type `poem`]\nroses"), Part::text("red")];
    assert_eq!(messages[0].parts(), expected);
}

#[test]
fn what_cannot_work_is_refused_before_anything_starts() {
    let fault = |builder: stepfold_mcp::McpServerBuilder| builder.build().unwrap_err().to_string();
    check(
        &fault(McpServer::command("a b", ["x"])),
        "invalid MCP server `a b`: the name must be 1 to 32 letters, digits, `_` or `-`",
    );
    check(
        &fault(McpServer::command("a", Vec::<String>::new())),
        "invalid MCP server `a`: the command names no program",
    );
    check(
        &fault(McpServer::http("a", "ftp://x")),
        "invalid MCP server `a`: invalid URL `ftp://x`: must begin with http:// or https://",
    );
    check(
        &fault(McpServer::http("a", "http://x").env("A", "b")),
        "invalid MCP server `a`: `env` is for a command, and the server is at a URL",
    );
    check(
        &fault(McpServer::http("a", "http://x").header("a b", "c")),
        "invalid MCP server `a`: invalid header `a b`",
    );
    let limits = ServerLimits::default().with_start_timeout(Duration::ZERO);
    check(
        &fault(McpServer::command("a", ["x"]).limits(limits)),
        "invalid MCP server `a`: a timeout must be more than zero",
    );
    // Secrets are not printed.
    let remote = McpServer::http("a", "http://x").bearer_token("s3cret").build().unwrap();
    assert!(!format!("{remote:?}").contains("s3cret"));
}
