//! Everything that can go wrong, and the kind that it is.

use std::time::Duration;

use expect_test::{Expect, expect};
use futures_util::StreamExt;
use stepfold_providers::Secret;
use stepfold_providers::anthropic::Anthropic;
use stepfold_state_core::chat::{ChatModel, ToolChoice, ToolSpec};

use super::{KEY, ask, block, end, event, json, request, said, start, stop, text};
use crate::server::{Play, Server};

async fn check(play: Play, expected: Expect) {
    expected.assert_eq(&ask(play, request()).await);
}

fn error(kind: &str, message: &str) -> String {
    format!(
        "{{\"type\":\"error\",\"error\":{{\"type\":\"{kind}\",\"message\":\"{message}\"}},\"request_id\":\"req_9\"}}"
    )
}

#[tokio::test]
async fn statuses() {
    let limited = error("rate_limit_error", "too many");
    check(
        Play::new(429, "content-type: application/json\nretry-after: 7\nrequest-id: req_1", limited.clone()),
        expect![[r#"
            rate limited, retry after 7s (anthropic, model claude, request req_1): status 429: too many [rate_limit_error]
        "#]],
    )
    .await;
    check(
        Play::json(429, &limited),
        expect![[r#"
        rate limited (anthropic, model claude): status 429: too many [rate_limit_error]
    "#]],
    )
    .await;
    check(
        Play::json(529, &error("overloaded_error", "Overloaded")),
        expect![[r#"
        overloaded (anthropic, model claude): status 529: Overloaded [overloaded_error]
    "#]],
    )
    .await;
    check(
        Play::json(500, &error("api_error", "Internal server error")),
        expect![[r#"
        transient failure (anthropic, model claude): status 500: Internal server error [api_error]
    "#]],
    )
    .await;
    check(
        Play::new(503, "retry-after: 2", "loading"),
        expect![[r#"
        overloaded, retry after 2s (anthropic, model claude): status 503: loading
    "#]],
    )
    .await;
    check(
        Play::json(401, &error("authentication_error", &format!("invalid x-api-key {KEY}"))),
        expect![[r#"
            not authorized (anthropic, model claude): status 401: invalid x-api-key *** [authentication_error]
        "#]],
    )
    .await;
    check(
        Play::json(403, &error("permission_error", "not yours")),
        expect![[r#"
        not authorized (anthropic, model claude): status 403: not yours [permission_error]
    "#]],
    )
    .await;
    check(
        Play::json(404, &error("not_found_error", "model: claude")),
        expect![[r#"
        not found (anthropic, model claude): status 404: model: claude [not_found_error]
    "#]],
    )
    .await;
    check(Play::json(413, &error("request_too_large", "Request exceeds the maximum size")), expect![[r#"
        conversation too long (anthropic, model claude): status 413: Request exceeds the maximum size [request_too_large]
    "#]])
        .await;
    check(
        Play::json(
            400,
            &error("invalid_request_error", "prompt is too long: 210,000 tokens > 200,000 maximum"),
        ),
        expect![[r#"
            conversation too long: expected at most 200000 tokens, found 210000 (anthropic, model claude): status 400: prompt is too long: 210,000 tokens > 200,000 maximum [invalid_request_error]
        "#]],
    )
    .await;
    check(Play::json(400, &error("invalid_request_error", "temperature: range: 0..1")), expect![[r#"
        invalid request (anthropic, model claude): status 400: temperature: range: 0..1 [invalid_request_error]
    "#]]).await;
}

#[tokio::test]
async fn streams_that_break() {
    check(Play::events(said()).cut(), expect![[r#"
        reply interrupted (anthropic, model claude, request req_7): connection lost during the reply: unexpected EOF during chunk size line
        had come: assistant: area 3
    "#]]).await;
    check(
        Play::events(said()).until_close(),
        expect![[r#"
        reply interrupted (anthropic, model claude, request req_7): the stream ended without a finish reason
        had come: assistant: area 3
    "#]],
    )
    .await;
    let half = said() + &text("!")[..50];
    check(Play::events(half.clone()).cut(), expect![[r#"
        reply interrupted (anthropic, model claude, request req_7): connection lost during the reply: unexpected EOF during chunk size line
        had come: assistant: area 3
    "#]]).await;
    check(
        Play::events(half.clone()).until_close(),
        expect![[r#"
        reply interrupted (anthropic, model claude, request req_7): the stream ended in the middle of an event
        had come: assistant: area 3
    "#]],
    )
    .await;
    check(
        Play::events(said() + &end()),
        expect![[r#"
        reply interrupted (anthropic, model claude, request req_7): the stream ended without a finish reason
        had come: assistant: area 3
    "#]],
    )
    .await;
    check(
        Play::events(""),
        expect![[r#"
        reply interrupted (anthropic, model claude, request req_7): the stream ended without a finish reason
    "#]],
    )
    .await;
    let call = start()
        + &block(r#"{"type":"tool_use","id":"t1","name":"drop","input":{}}"#)
        + &json("{\"table\": \"us");
    check(
        Play::events(call),
        expect![[r#"
        reply interrupted (anthropic, model claude, request req_7): the stream ended without a finish reason
        had come: assistant: > t1 drop!("{\"table\": \"us")
    "#]],
    )
    .await;
    check(
        Play::silence(),
        expect![[r#"
        timed out before the first chunk (anthropic, model claude): the limit is 300ms
    "#]],
    )
    .await;
    check(
        Play::events(start() + &event(r#"{"type":"ping"}"#)).stall(),
        expect![[r#"
        timed out before the first chunk (anthropic, model claude): the limit is 300ms
    "#]],
    )
    .await;
    check(
        Play::events(said()).stall(),
        expect![[r#"
        timed out between chunks (anthropic, model claude, request req_7): no data for 300ms
        had come: assistant: area 3
    "#]],
    )
    .await;
}

#[tokio::test]
async fn a_stop_reason_is_enough() {
    let whole = || said() + &stop("end_turn");
    check(
        Play::events(whole()),
        expect![[r#"
        assistant: area 3
        stop [12(8) + 7(0) tokens] [1 written to the cache]
    "#]],
    )
    .await;
    check(
        Play::events(whole()).cut(),
        expect![[r#"
        assistant: area 3
        stop [12(8) + 7(0) tokens] [1 written to the cache]
    "#]],
    )
    .await;
    check(
        Play::events(whole() + &end()).stall(),
        expect![[r#"
        assistant: area 3
        stop [12(8) + 7(0) tokens] [1 written to the cache]
    "#]],
    )
    .await;
}

#[tokio::test]
async fn what_is_no_reply() {
    check(
        Play::events(said() + "event: content_block_delta\ndata: {\"type\": \n\n" + &stop("end_turn")),
        expect![[r#"
            malformed reply (anthropic, model claude, request req_7): an event is not JSON: EOF while parsing a value at line 1 column 8
            had come: assistant: area 3
        "#]],
    )
    .await;
    check(
        Play::events(said() + "data: 7\n\n" + &stop("end_turn")),
        expect![[r#"
        malformed reply (anthropic, model claude, request req_7): expected a JSON object as the event
        had come: assistant: area 3
    "#]],
    )
    .await;
    check(
        Play::events(start() + &json("{}")),
        expect![[r#"
        malformed reply (anthropic, model claude, request req_7): arguments of an unknown call
    "#]],
    )
    .await;
    check(Play::new(200, "content-type: text/html", "<html>Log in</html>"), expect![[r#"
        malformed reply (anthropic, model claude): expected text/event-stream, found text/html: <html>Log in</html>
    "#]]).await;
    check(Play::json(200, "{\"type\": "), expect![[r#"
        malformed reply (anthropic, model claude): the reply is neither a stream nor JSON: EOF while parsing a value at line 1 column 9
    "#]]).await;
    check(
        Play::json(200, "{}"),
        expect![[r#"
        malformed reply (anthropic, model claude): expected a message as the reply
    "#]],
    )
    .await;
}

#[tokio::test]
async fn errors_under_a_good_status() {
    check(
        Play::json(200, &error("overloaded_error", "Overloaded")),
        expect![[r#"
        overloaded (anthropic, model claude): Overloaded [overloaded_error]
    "#]],
    )
    .await;
    check(
        Play::events(said() + &event(&error("overloaded_error", "Overloaded"))),
        expect![[r#"
        overloaded (anthropic, model claude, request req_7): Overloaded [overloaded_error]
        had come: assistant: area 3
    "#]],
    )
    .await;
    check(
        Play::events(
            said() + "event: error\ndata: {\"error\":{\"type\":\"api_error\",\"message\":\"boom\"}}\n\n",
        ),
        expect![[r#"
            transient failure (anthropic, model claude, request req_7): boom [api_error]
            had come: assistant: area 3
        "#]],
    )
    .await;
}

#[tokio::test]
async fn a_required_call_that_does_not_come() {
    let tools = [ToolSpec::new("search", "", serde_json::json!({"type": "object"}))];
    let asked = request().with_tools(tools).with_tool_choice(ToolChoice::Required);
    expect![[r#"
        tool choice ignored (anthropic, model claude, request req_7): missing tool call: the tool choice requires one
        had come: assistant: area 3
    "#]].assert_eq(&ask(Play::events(said() + &stop("end_turn") + &end()), asked).await);
}

#[tokio::test]
async fn a_dropped_stream_hangs_up() {
    let server = Server::start([Play::events(said()).stall()], usize::MAX, super::check).await;
    let mut stream = super::builder(&server).build().unwrap().respond(request());
    assert!(stream.next().await.unwrap().is_ok());
    drop(stream);
    tokio::time::timeout(Duration::from_secs(10), server.hung_up()).await.expect("the connection is let go");
}

/// Headers of the caller stay, whether the key is fixed or fetched.
#[tokio::test]
async fn a_fetched_key_takes_the_place_of_the_fixed_one_and_of_no_header() {
    let server = Server::start([Play::events(said())], usize::MAX, |_| Ok(())).await;
    let model = Anthropic::new("claude", "fixed-key")
        .base_url(&server.url)
        .header("anthropic-version", "2030-01-01")
        .key_from(|| async { Ok(Secret::new("fetched-key")) });
    model.build().unwrap().respond(request()).into_reply().await.unwrap_err();
    let asked = &server.asked()[0];
    let sent = ["x-api-key", "anthropic-version"].map(|name| asked.header(name).unwrap());
    assert_eq!(sent, ["fetched-key", "2030-01-01"]);
}

#[test]
fn a_builder_that_cannot_work_says_so() {
    for (builder, expected) in [
        (Anthropic::new("m", ""), "ANTHROPIC_API_KEY"),
        (Anthropic::new("m", KEY).base_url("api.example.test"), "invalid base URL"),
        (Anthropic::new("m", "two\nlines"), "cannot be sent"),
    ] {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("two"), "{error}");
    }
    assert!(!format!("{:?}", Anthropic::new("m", KEY)).contains(KEY));
}
