//! Everything that can go wrong, and the kind that it is.

use std::time::Duration;

use expect_test::{Expect, expect};
use futures_util::StreamExt;
use stepfold_providers::layer::{ChatModelExt, Retry, Trace};
use stepfold_providers::openai::OpenAi;
use stepfold_state_core::chat::{ChatModel, ModelErrorKind, TimeoutKind, ToolChoice, ToolSpec};

use super::{DONE, KEY, ask, builder, check as check_request, delta, finish, model, request};
use crate::server::{Play, Server};

async fn check(play: Play, expected: Expect) {
    expected.assert_eq(&ask(play, request()).await);
}

fn text(text: &str) -> String {
    delta(&format!("{{\"content\":\"{text}\"}}"))
}

#[tokio::test]
async fn statuses() {
    let limited =
        r#"{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}"#;
    let with = |headers: &str| Play::new(429, &format!("content-type: application/json\n{headers}"), limited);
    check(with("retry-after: 7\nx-request-id: req_1"), expect![[r#"
        rate limited, retry after 7s (openai-compatible, model some-model, request req_1): status 429: Rate limit reached [rate_limit_exceeded]
    "#]]).await;
    check(with("x-request-id: req_1"), expect![[r#"
        rate limited (openai-compatible, model some-model, request req_1): status 429: Rate limit reached [rate_limit_exceeded]
    "#]]).await;
    check(with("x-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 1m2s"), expect![[r#"
        rate limited, retry after 62s (openai-compatible, model some-model): status 429: Rate limit reached [rate_limit_exceeded]
    "#]]).await;
    check(
        Play::json(500, r#"{"error":{"message":"boom"}}"#),
        expect![[r#"
        transient failure (openai-compatible, model some-model): status 500: boom
    "#]],
    )
    .await;
    check(
        Play::json(503, r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#),
        expect![[r#"
            overloaded (openai-compatible, model some-model): status 503: Loading model [503]
        "#]],
    )
    .await;
    check(
        Play::json(401, &format!(r#"{{"error":{{"message":"Wrong key: {KEY}"}}}}"#)),
        expect![[r#"
        not authorized (openai-compatible, model some-model): status 401: Wrong key: ***
    "#]],
    )
    .await;
    check(
        Play::json(404, r#"{"error":{"message":"The model `x` does not exist","code":"model_not_found"}}"#),
        expect![[r#"
            not found (openai-compatible, model some-model): status 404: The model `x` does not exist [model_not_found]
        "#]],
    )
    .await;
    check(
        Play::json(400, r#"{"error":{"message":"Unknown parameter: 'x'.","code":"unknown_parameter"}}"#),
        expect![[r#"
            invalid request (openai-compatible, model some-model): status 400: Unknown parameter: 'x'. [unknown_parameter]
        "#]],
    )
    .await;
    check(Play::json(400, r#"{"error":{"message":"This model's maximum context length is 10 tokens. However, your messages resulted in 12 tokens.","code":"context_length_exceeded"}}"#), expect![[r#"
        conversation too long: expected at most 10 tokens, found 12 (openai-compatible, model some-model): status 400: This model's maximum context length is 10 tokens. However, your messages resulted in 12 tokens. [context_length_exceeded]
    "#]]).await;
    check(
        Play::json(400, r#"{"error":{"message":"The response was filtered","code":"content_filter"}}"#),
        expect![[r#"
            refused (openai-compatible, model some-model): status 400: The response was filtered [content_filter]
        "#]],
    )
    .await;
    check(
        Play::new(307, "location: http://127.0.0.1:1/", ""),
        expect![[r#"
        not found (openai-compatible, model some-model): status 307: redirects are not followed, since they would get the key
    "#]],
    )
    .await;
    check(
        Play::new(502, "content-type: text/html", "<html>bad gateway</html>"),
        expect![[r#"
        transient failure (openai-compatible, model some-model): status 502: <html>bad gateway</html>
    "#]],
    )
    .await;
    // A body that never ends does not keep us.
    check(
        Play::new(500, "content-type: text/plain", "half a").cut(),
        expect![[r#"
        transient failure (openai-compatible, model some-model): status 500: half a
    "#]],
    )
    .await;
}

#[tokio::test]
async fn streams_that_break() {
    // Between two chunks, and in the middle of one; seen by the client, and not.
    check(Play::events(text("area")).cut(), expect![[r#"
        reply interrupted (openai-compatible, model some-model, request req_7): connection lost during the reply: unexpected EOF during chunk size line
        had come: assistant: area
    "#]]).await;
    check(Play::events(text("area")).until_close(), expect![[r#"
        reply interrupted (openai-compatible, model some-model, request req_7): the stream ended without a finish reason
        had come: assistant: area
    "#]]).await;
    let half = text("area") + &text(" 3")[..40];
    check(Play::events(half.clone()).cut(), expect![[r#"
        reply interrupted (openai-compatible, model some-model, request req_7): connection lost during the reply: unexpected EOF during chunk size line
        had come: assistant: area
    "#]]).await;
    check(Play::events(half.clone()).until_close(), expect![[r#"
        reply interrupted (openai-compatible, model some-model, request req_7): the stream ended in the middle of an event
        had come: assistant: area
    "#]]).await;
    check(Play::events(half), expect![[r#"
        reply interrupted (openai-compatible, model some-model, request req_7): the stream ended in the middle of an event
        had come: assistant: area
    "#]]).await;
    // No finish reason, whatever else was said.
    check(Play::events(text("area")), expect![[r#"
        reply interrupted (openai-compatible, model some-model, request req_7): the stream ended without a finish reason
        had come: assistant: area
    "#]]).await;
    check(Play::events(text("area") + DONE), expect![[r#"
        reply interrupted (openai-compatible, model some-model, request req_7): the stream ended without a finish reason
        had come: assistant: area
    "#]]).await;
    check(Play::events(DONE), expect![[r#"
        reply interrupted (openai-compatible, model some-model, request req_7): the stream ended without a finish reason
    "#]]).await;
    check(Play::events(""), expect![[r#"
        reply interrupted (openai-compatible, model some-model, request req_7): the stream ended without a finish reason
    "#]]).await;
    // A call that was cut is not a call.
    let call =
        r#"{"tool_calls":[{"index":0,"id":"c1","function":{"name":"drop","arguments":"{\"table\": \"us"}}]}"#;
    check(Play::events(delta(call)), expect![[r#"
        reply interrupted (openai-compatible, model some-model, request req_7): the stream ended without a finish reason
        had come: assistant: > c1 drop!("{\"table\": \"us")
    "#]]).await;
}

#[tokio::test]
async fn a_finish_reason_is_enough() {
    check(
        Play::events(text("area 3") + &finish("stop")),
        expect![[r#"
        assistant: area 3
        stop
    "#]],
    )
    .await;
    check(
        Play::events(text("area 3") + &finish("stop")).cut(),
        expect![[r#"
        assistant: area 3
        stop
    "#]],
    )
    .await;
    check(
        Play::events(text("area 3") + &finish("stop")).stall(),
        expect![[r#"
        assistant: area 3
        stop
    "#]],
    )
    .await;
    check(
        Play::events(text("area 3") + &finish("stop") + "data: {\"cho"),
        expect![[r#"
        assistant: area 3
        stop
    "#]],
    )
    .await;
}

#[tokio::test]
async fn silence() {
    check(
        Play::silence(),
        expect![[r#"
        timed out before the first chunk (openai-compatible, model some-model): the limit is 300ms
    "#]],
    )
    .await;
    check(
        Play::events(": working on it\n\n").stall(),
        expect![[r#"
        timed out before the first chunk (openai-compatible, model some-model): the limit is 300ms
    "#]],
    )
    .await;
    check(
        Play::events(text("area")).stall(),
        expect![[r#"
        timed out between chunks (openai-compatible, model some-model, request req_7): no data for 300ms
        had come: assistant: area
    "#]],
    )
    .await;
}

#[tokio::test]
async fn what_is_no_reply() {
    check(Play::events(text("area") + "data: {\"choices\": [}\n\n" + &finish("stop") + DONE), expect![[r#"
        malformed reply (openai-compatible, model some-model, request req_7): an event is not JSON: expected value at line 1 column 14
        had come: assistant: area
    "#]])
        .await;
    check(Play::events(text("area") + "data: 7\n\n" + &finish("stop")), expect![[r#"
        malformed reply (openai-compatible, model some-model, request req_7): an event has an unknown shape: invalid type: integer `7`, expected struct RawChunk at line 1 column 1
        had come: assistant: area
    "#]]).await;
    check(
        Play::events([b"data: \"\xff\"\n\n".to_vec(), finish("stop").into_bytes()].concat()),
        expect![[r#"
            malformed reply (openai-compatible, model some-model, request req_7): the stream is not UTF-8
        "#]],
    )
    .await;
    check(Play::new(200, "content-type: text/html", "<html>Log in</html>"), expect![[r#"
        malformed reply (openai-compatible, model some-model): expected text/event-stream, found text/html: <html>Log in</html>
    "#]]).await;
    check(Play::json(200, "{\"choices\": ["), expect![[r#"
        malformed reply (openai-compatible, model some-model): the reply is neither a stream nor JSON: EOF while parsing a list at line 1 column 13
    "#]]).await;
    check(
        Play::json(200, "{}"),
        expect![[r#"
        reply interrupted (openai-compatible, model some-model): the stream ended without a finish reason
    "#]],
    )
    .await;
}

#[tokio::test]
async fn errors_under_a_good_status() {
    check(
        Play::json(200, r#"{"error":{"message":"Too many","code":429}}"#),
        expect![[r#"
        rate limited (openai-compatible, model some-model): Too many [429]
    "#]],
    )
    .await;
    check(
        Play::json(200, r#"{"object":"error","message":"context window exceeded","code":400}"#),
        expect![[r#"
            conversation too long (openai-compatible, model some-model): context window exceeded [400]
        "#]],
    )
    .await;
    check(
        Play::events(
            text("area") + "data: {\"error\":{\"message\":\"Provider returned error\",\"code\":502}}\n\n",
        ),
        expect![[r#"
            transient failure (openai-compatible, model some-model, request req_7): Provider returned error [502]
            had come: assistant: area
        "#]],
    )
    .await;
    check(
        Play::events(text("area") + "event: error\ndata: {\"error\":\"out of memory\"}\n\n"),
        expect![[r#"
            transient failure (openai-compatible, model some-model, request req_7): out of memory
            had come: assistant: area
        "#]],
    )
    .await;
    check(Play::events(text("area") + &finish("error")), expect![[r#"
        transient failure (openai-compatible, model some-model, request req_7): the server reports that the reply ended with an error
        had come: assistant: area
    "#]]).await;
    check(Play::events(text("area") + &finish("insufficient_system_resource")), expect![[r#"
        overloaded (openai-compatible, model some-model, request req_7): the server ran out of resources during the reply
        had come: assistant: area
    "#]]).await;
}

#[tokio::test]
async fn a_required_call_that_does_not_come() {
    let tools = || [ToolSpec::new("search", "", serde_json::json!({"type": "object"}))];
    let asked = |choice| request().with_tools(tools()).with_tool_choice(choice);
    let said = || Play::events(text("area 3") + &finish("stop") + DONE);
    expect![[r#"
        tool choice ignored (openai-compatible, model some-model, request req_7): missing tool call: the tool choice requires one
        had come: assistant: area 3
    "#]].assert_eq(&ask(said(), asked(ToolChoice::Required)).await);
    expect![[r#"
        tool choice ignored (openai-compatible, model some-model, request req_7): missing call of tool `search`: the tool choice requires it
        had come: assistant: area 3
    "#]].assert_eq(&ask(said(), asked(ToolChoice::Named("search".to_owned()))).await);
    // One that was cut has an excuse.
    let cut = Play::events(text("area 3") + &finish("length") + DONE);
    expect![[r#"
        assistant: area 3
        length
    "#]]
    .assert_eq(&ask(cut, asked(ToolChoice::Required)).await);
}

#[tokio::test]
async fn an_unreachable_server() {
    let server = Server::start([Play::silence()], 1, check_request).await;
    let port_of_nobody = { std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() };
    let model = OpenAi::at(format!("http://{port_of_nobody}/v1"), "m").key(KEY).build().unwrap();
    let error = model.respond(request()).into_reply().await.unwrap_err();
    assert_eq!(error.kind(), &ModelErrorKind::Transient);
    assert!(error.to_string().contains(&format!("could not connect to http://{port_of_nobody}")), "{error}");
    // A builder that cannot work says so at once.
    for (builder, expected) in [
        (OpenAi::at("localhost:8080", "m"), "invalid base URL"),
        (OpenAi::at("", "m"), "invalid base URL"),
        (OpenAi::at("http://ada:two@127.0.0.1/v1", "m"), "must not contain a user or a password"),
        (OpenAi::at("http://127.0.0.1/v1?version=1", "m"), "without `?` and `#`"),
        (OpenAi::preset(&stepfold_providers::openai::Preset::AZURE, "m").key("k"), "missing base URL"),
        (super::builder(&server).key("two\nlines"), "cannot be sent"),
        (super::builder(&server).header("bad name", "x"), "invalid header name"),
        (OpenAi::preset(&stepfold_providers::openai::Preset::OPENAI, "m"), "OPENAI_API_KEY"),
    ] {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("two"), "{error}");
    }
}

/// A full listen queue lets new connections wait, on Linux at least.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_connection_that_is_not_accepted_times_out() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let connect =
        || tokio::time::timeout(Duration::from_millis(100), tokio::net::TcpStream::connect(address));
    let mut queue = Vec::new();
    while let Ok(connected) = connect().await {
        queue.push(connected.unwrap());
    }
    let limit = Duration::from_millis(100);
    let model = OpenAi::at(format!("http://{address}/v1"), "m").connect_timeout(limit).build().unwrap();
    let error = model.respond(request()).into_reply().await.unwrap_err();
    assert_eq!(error.kind(), &ModelErrorKind::TimedOut(TimeoutKind::Connect), "{error}");
}

#[tokio::test]
async fn a_guard_keeps_requests_at_home() {
    let guard = stepfold_providers::forbid_real_requests();
    let model = OpenAi::at("http://example.test/v1", "m").build().unwrap();
    let error = model.respond(request()).into_reply().await.unwrap_err();
    assert_eq!(error.kind(), &ModelErrorKind::Unsupported);
    let server = Server::start([Play::events(text("here") + &finish("stop"))], 1, check_request).await;
    assert!(super::model(&server).respond(request()).into_reply().await.is_ok());
    drop(guard);
}

#[tokio::test]
async fn retry_sees_what_the_server_asks_for() {
    let limited = Play::new(429, "retry-after: 0", "");
    let plays = [limited, Play::json(503, ""), Play::events(text("area 3") + &finish("stop") + DONE)];
    let server = Server::start(plays, usize::MAX, check_request).await;
    let quick = Retry::default().pauses(Duration::from_millis(1), Duration::from_secs(1));
    let reply = model(&server).layer(quick).respond(request()).into_reply().await.unwrap();
    assert_eq!(reply.message.text(), "area 3");
    let asked = server.asked();
    assert_eq!((asked.len(), &asked[2].raw), (3, &asked[0].raw));
}

#[tokio::test]
async fn no_cassette_and_no_trace_has_the_key() {
    let folder = crate::cassette::Folder::new("key");
    let wrong = Play::json(401, &format!(r#"{{"error":{{"message":"Wrong key: {KEY}"}}}}"#));
    let told = Play::events(text(&format!("your key is {KEY}")) + &finish("stop") + DONE);
    let server = Server::start([wrong, told], usize::MAX, check_request).await;
    let model = stepfold_providers::Cassette::record(folder.tape(), model(&server).layer(Trace::default()))
        .unwrap()
        .hiding(KEY);
    model.respond(request()).into_reply().await.unwrap_err();
    model.respond(request()).into_reply().await.unwrap();
    assert!(folder.text().contains("Wrong key: ***") && folder.text().contains("your key is ***"));
    assert!(!folder.text().contains(KEY), "{}", folder.text());
    assert!(!format!("{model:?} {:?} {:?}", super::model(&server), builder(&server)).contains(KEY));
}

#[tokio::test]
async fn a_dropped_stream_hangs_up() {
    let server = Server::start([Play::events(text("area")).stall()], usize::MAX, check_request).await;
    let mut stream = builder(&server).build().unwrap().respond(request());
    assert!(stream.next().await.unwrap().is_ok());
    drop(stream);
    tokio::time::timeout(Duration::from_secs(10), server.hung_up()).await.expect("the connection is let go");
}

#[tokio::test]
async fn a_slow_reader_is_waited_for() {
    // Five megabytes, read after all of it was sent: nothing is lost.
    let piece = "x".repeat(1_000);
    let body: String = (0..5_000).map(|_| text(&piece)).collect();
    let server =
        Server::start([Play::events(body + &finish("stop") + DONE)], usize::MAX, check_request).await;
    let mut stream = builder(&server).build().unwrap().respond(request());
    let mut length = 0;
    while let Some(chunk) = stream.next().await {
        if let stepfold_state_core::chat::Chunk::Text(text) = chunk.unwrap() {
            length += text.len();
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(length, 5_000_000);
}
