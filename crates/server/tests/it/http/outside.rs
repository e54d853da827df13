//! What is seen of a server from outside: its metrics, whether it is ready, and its log.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::Runner;
use stepfold_server::http::{Access, Limits, Metrics};
use stepfold_session_scopes::{MemoryStore, Timestamp};
use stepfold_state_core::chat::{Content, FinishReason, Message, Role, ToolCall, Usage};
use stepfold_tools::{Effect, Tool, ToolError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::live::{gated, waiting_site};
use super::openapi::operations;
use super::site::{Site, agent_of, names};

/// A reply with these token counts.
fn reply(message: Message, reason: FinishReason) -> (Message, FinishReason, Usage) {
    let mut usage = Usage::default();
    (usage.input_tokens, usage.output_tokens) = (1_000, 20);
    (message, reason, usage)
}

async fn metrics(site: &Site) -> String {
    let bearer = site.bearer("root");
    site.raw(Method::GET, "/api/v1/metrics", &[("authorization", &bearer)], "").await.text
}

/// The metrics of runs, while one waits in a tool and a message waits for it, and after it.
#[tokio::test]
async fn runs_tokens_tools_queues_and_claims_are_counted() {
    let (gate, wait) = gated();
    let call =
        Message::new(Role::Assistant).with_part(Content::ToolCall(ToolCall::new("c1", "wait", json!({}))));
    let mut model = Script::parse("").unwrap();
    let texts = ["done", "again"].map(|text| reply(Message::assistant(text), FinishReason::Stop));
    for (message, reason, usage) in [reply(call, FinishReason::ToolCalls)].into_iter().chain(texts) {
        model = model.then(message, reason, usage);
    }
    let counted = Metrics::new();
    let observer = counted.observer();
    let runner = Runner::builder(agent_of(model, vec![wait]), MemoryStore::new());
    let runner = runner.observe(move |_| observer.clone()).build();
    let site = Site::with(runner.into(), Limits::default(), |server| server.metrics(&counted)).await;
    assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
    let mut live = site.live("ada", "s1", None).await;
    for text in ["wait", "and again"] {
        assert_eq!(site.post("ada", "/sessions/s1/messages", json!({"text": text})).await.status, 202);
    }
    live.until("tool_started").await;
    let during = metrics(&site).await;
    gate.add_permits(1);
    for _ in 0..2 {
        live.until("ended").await;
    }
    let after = loop {
        let text = metrics(&site).await;
        // A claim is given back after the last commit.
        if text.contains("stepfold_claims{app=\"clerk\"} 0\n") {
            break text;
        }
    };
    for line in [
        "stepfold_running_sessions{app=\"clerk\"} 1",
        "stepfold_queued_messages{app=\"clerk\"} 1",
        "stepfold_claims{app=\"clerk\"} 1",
        "stepfold_lost_claims_total{app=\"clerk\"} 0",
        "stepfold_due_sessions{app=\"clerk\"} 0",
        "stepfold_blocked_sessions{app=\"clerk\"} 0",
        "stepfold_oldest_due_seconds{app=\"clerk\"} 0",
        "stepfold_live_streams 1",
        // A store without a pool has none.
        "db_client_connection_count{app=\"clerk\",db_client_connection_state=\"used\"} 0",
        "db_client_connection_max{app=\"clerk\"} 0",
        "db_client_connection_pending_requests{app=\"clerk\"} 0",
    ] {
        assert!(during.contains(&format!("{line}\n")), "{line} in {during}");
    }
    // The names that OpenTelemetry's conventions require.
    let model =
        "gen_ai_operation_name=\"chat\",gen_ai_provider_name=\"test-kit\",gen_ai_request_model=\"script\"";
    for line in [
        "stepfold_running_sessions{app=\"clerk\"} 0".to_owned(),
        "stepfold_queued_messages{app=\"clerk\"} 0".to_owned(),
        "stepfold_runs_total{exit=\"text\"} 2".to_owned(),
        "stepfold_steps_total 3".to_owned(),
        format!("gen_ai_client_token_usage_sum{{{model},gen_ai_token_type=\"input\"}} 3000.0"),
        format!("gen_ai_client_token_usage_sum{{{model},gen_ai_token_type=\"output\"}} 60.0"),
        format!("gen_ai_client_operation_duration_seconds_count{{{model}}} 3"),
        "gen_ai_execute_tool_duration_seconds_count{gen_ai_tool_name=\"wait\",status=\"succeeded\"} 1"
            .to_owned(),
    ] {
        assert!(after.contains(&format!("{line}\n")), "{line} in {after}");
    }
    // Their values come from the program: never from users.
    let labels = after.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (_, rest) = line.split_once('{')?;
        rest.split_once('}').map(|(labels, _)| labels.to_owned())
    });
    let names: BTreeSet<String> = labels
        .flat_map(|labels| labels.split("\",").map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|label| label.split_once('=').map(|(name, _)| name.to_owned()))
        .collect();
    let known = [
        "app",
        "db_client_connection_state",
        "exit",
        "gen_ai_operation_name",
        "gen_ai_provider_name",
        "gen_ai_request_model",
        "gen_ai_token_type",
        "gen_ai_tool_name",
        "le",
        "operation",
        "status",
    ];
    assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), known);
}

/// Health over a connection that was there before the server was told to stop.
#[tokio::test]
async fn a_server_that_stops_is_not_ready_and_still_healthy() {
    let (site, gate) = waiting_site(Limits::default()).await;
    let mut live = site.live("ada", "s1", None).await;
    site.post("ada", "/sessions/s1/messages", json!({"text": "wait"})).await;
    live.until("tool_started").await;
    let address = site.address.clone();
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let mut ask = async |path: &str| {
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        let (mut bytes, mut chunk) = (Vec::new(), [0; 1024]);
        // Both answers end with their words.
        loop {
            let read = stream.read(&mut chunk).await.unwrap();
            assert!(read > 0, "the connection was closed");
            bytes.extend_from_slice(&chunk[..read]);
            let text = String::from_utf8_lossy(&bytes);
            if let Some((head, body)) = text.split_once("\r\n\r\n").filter(|(_, body)| body.ends_with('\n')) {
                return (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned());
            }
        }
    };
    let word = |status: &str, body: &str| (status.to_owned(), body.to_owned());
    assert_eq!(ask("/readyz").await, word("200", "ready\n"));
    let stopping = tokio::spawn(site.stop());
    live.until("bye").await;
    assert_eq!(ask("/readyz").await, word("503", "stopping\n"));
    assert_eq!(ask("/healthz").await, word("200", "ok\n"));
    gate.add_permits(1);
    assert!(stopping.await.unwrap());
    assert!(TcpStream::connect(&address).await.is_err(), "nothing is accepted any more");
}

/// The time in which load balancers learn that a server stops: new connections are answered, and nothing else has ended
/// yet.
#[tokio::test]
async fn a_server_that_leaves_answers_until_others_know() {
    let mut limits = Limits::default();
    limits.shutdown_delay = Duration::from_secs(3);
    let (mut site, gate) = waiting_site(limits).await;
    let mut live = site.live("ada", "s1", None).await;
    drop(site.stop.take());
    loop {
        let ready = site.raw(Method::GET, "/readyz", &[], "").await;
        if ready.status == 503 {
            break;
        }
    }
    assert_eq!(site.post("ada", "/sessions/s1/messages", json!({"text": "wait"})).await.status, 202);
    let told = live.until("tool_started").await;
    assert!(!names(&told).contains(&"bye"), "{told:?}");
    gate.add_permits(1);
    live.until("ended").await;
    live.until("bye").await;
    let address = site.address.clone();
    assert!(site.stop().await);
    assert!(TcpStream::connect(&address).await.is_err(), "nothing is accepted any more");
}

/// The stream of a protocol that follows a run of another process ends with the server, as streams end, and is not
/// interrupted.
#[tokio::test]
async fn a_stream_of_a_protocol_ends_with_the_server() {
    let (site, _gate) = waiting_site(Limits::default()).await;
    let mut live = site.live("ada", "s1", None).await;
    site.post("ada", "/sessions/s1/messages", json!({"text": "wait"})).await;
    live.until("tool_started").await;
    let other = site.again("").await;
    let (bearer, address) = (other.bearer("ada"), other.address.clone());
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let request =
        format!("GET /ai/clerk/s1/stream HTTP/1.1\r\nhost: {address}\r\nauthorization: {bearer}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    while !String::from_utf8_lossy(&bytes).contains("data: ") {
        assert!(stream.read_buf(&mut bytes).await.unwrap() > 0);
    }
    let began = tokio::time::Instant::now();
    let (completed, read) = tokio::join!(other.stop(), stream.read_to_end(&mut bytes));
    read.unwrap();
    assert!(completed && bytes.ends_with(b"\r\n0\r\n\r\n"), "{}", String::from_utf8_lossy(&bytes));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

/// All that is logged, at every level.
#[derive(Default)]
struct Log(Mutex<String>);

impl Log {
    fn write(&self, record: impl FnOnce(&mut Line<'_>)) {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        record(&mut Line(&mut text));
        text.push('\n');
    }
}

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for &'static Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.write(|line| span.record(line));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        self.write(|line| values.record(line));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.write(|line| event.record(line));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Tokens, and what people, models and tools say, are in no line of the log, at whatever level, whatever a route is sent.
#[tokio::test]
async fn the_log_has_no_tokens_and_no_words() {
    const WORDS: &str = "7rhubarb7";
    let log: &'static Log = Box::leak(Box::default());
    tracing::subscriber::set_global_default(log).unwrap();
    let secret = |said: &str| format!("{WORDS} {said}");
    let (said, failed) = (secret("of a tool"), secret("of a failure"));
    let tell = move || std::future::ready(Ok::<_, ToolError>(said.clone()));
    let fail = move || std::future::ready(Err::<Value, _>(ToolError::new(failed.clone())));
    let (tell, fail) = (Tool::new("tell", "Tells.", tell), Tool::new("fail", "Fails.", fail));
    let tools = [tell.effect(Effect::Pure).build().unwrap(), fail.effect(Effect::Pure).build().unwrap()];
    let script = format!(
        "assistant: > c1 tell(text=\"{WORDS}\") > c2 fail() > c3 pay()\nassistant: {WORDS}\nassistant: {WORDS}"
    );
    let agent = agent_of(Script::parse(&script).unwrap(), tools.into());
    let site = Site::over(Runner::builder(agent, MemoryStore::new()).build(), Limits::default()).await;
    assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
    let mut live = site.live("ada", "s1", None).await;
    site.post("ada", "/sessions/s1/messages", json!({"text": WORDS})).await;
    let waiting = live.until("waiting").await;
    let request = waiting.last().unwrap().data["requests"][0]["id"].as_str().unwrap().to_owned();
    let reject = json!({"decisions": {request: {"reject": {"reason": WORDS}}}});
    assert_eq!(site.post("ada", "/sessions/s1/decisions", reject).await.status, 202);
    live.until("ended").await;
    site.post("ada", "/sessions/s1/messages", json!({"text": WORDS})).await;
    live.until("ended").await;
    // The script has ended, so the run fails.
    site.post("ada", "/sessions/s1/messages", json!({"text": WORDS})).await;
    live.until("failed").await;
    while !log.0.lock().unwrap().contains("invocation failed") {
        // tidy: allow sleep, because there is no event for a new line of a log
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Each route, with a token that counts and one that does not, a query and bodies that are wrong.
    for (path, method, _) in operations(&site.server.openapi()) {
        let path = path.replace("{app}", "clerk").replace("{session}", "s1").replace("{message}", "m1");
        let path = format!("{path}?{WORDS}={WORDS}");
        let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
        for bearer in [site.bearer("root"), format!("Bearer {WORDS}")] {
            for body in [json!({"text": WORDS, "id": 1, "messages": [WORDS]}).to_string(), WORDS.to_owned()] {
                let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
                let asked = site.raw(method.clone(), &path, &headers, &body);
                // A stream does not end.
                drop(tokio::time::timeout(Duration::from_secs(1), asked).await);
            }
        }
    }
    let log = log.0.lock().unwrap().clone();
    let tokens = ["ada", "bob", "reader", "root"].map(|name| site.bearer(name).replace("Bearer ", ""));
    for secret in tokens.iter().map(String::as_str).chain([WORDS]) {
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(secret)).collect();
        assert!(lines.is_empty(), "{lines:?}");
    }
}

/// A line for each request, at the end of its answer: with who asked for what, and nothing of what was said.
#[tokio::test]
async fn the_access_log_has_a_line_for_each_request() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    let runner =
        Runner::builder(agent_of(Script::parse("").unwrap(), Vec::new()), MemoryStore::new()).build();
    let site = Site::with(runner.into(), Limits::default(), |server| {
        server.access_log(move |access: &Access| {
            let mut access = access.clone();
            access.elapsed = Duration::ZERO;
            log.lock().unwrap().push(access.common_log(Timestamp::from_micros(0)));
        })
    });
    let site = site.await;
    site.post("ada", "/sessions", json!({"id": "s1", "values": {"user:name": "rhubarb"}})).await;
    site.get("reader", "/sessions?q=rhubarb").await;
    let live = site.live("ada", "s1", None).await;
    site.raw(Method::GET, "/api/v1/apps", &[("authorization", "Bearer rhubarb")], "").await;
    site.raw(Method::GET, "/healthz", &[], "").await;
    site.raw(Method::GET, "/rhubarb", &[("authorization", &site.bearer("bob"))], "").await;
    site.raw(Method::DELETE, "/api/v1/apps", &[("authorization", &site.bearer("bob"))], "").await;
    let before = lines.lock().unwrap().clone();
    drop(live);
    while lines.lock().unwrap().len() == before.len() {
        tokio::task::yield_now().await;
    }
    let all = lines.lock().unwrap().clone();
    let fields = |line: &String| {
        let (start, rest) = line.split_once(" [01/Jan/1970:00:00:00 +0000] ").unwrap();
        let (rest, elapsed) = rest.rsplit_once(' ').unwrap();
        let (rest, bytes) = rest.rsplit_once(' ').unwrap();
        assert!(
            start.starts_with("127.0.0.1 - ") && elapsed == "0" && bytes.parse::<u64>().unwrap() > 0,
            "{line}"
        );
        format!("{} {rest}", &start[12..])
    };
    let expected = [
        r#"ada "POST /api/v1/apps/clerk/sessions HTTP/1.1" 201"#,
        r#"reader "GET /api/v1/apps/clerk/sessions HTTP/1.1" 200"#,
        r#"- "GET /api/v1/apps HTTP/1.1" 401"#,
        r#"- "GET /healthz HTTP/1.1" 200"#,
        r#"bob "GET /rhubarb HTTP/1.1" 404"#,
        r#"- "DELETE /api/v1/apps HTTP/1.1" 405"#,
        r#"ada "GET /api/v1/apps/clerk/sessions/s1/live HTTP/1.1" 200"#,
    ];
    assert_eq!(all.iter().map(fields).collect::<Vec<_>>(), expected);
    assert_eq!(all.iter().filter(|line| line.contains("rhubarb")).count(), 1, "{all:?}");
}
