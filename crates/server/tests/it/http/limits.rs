//! Each limit, with the answer of a request beyond it.

use std::time::Duration;

use http::Method;
use serde_json::json;
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::{
    AppendEvent, Author, CreateSession, Event, EventId, InvocationId, MemoryStore, SessionId,
    SessionStore as _, Timestamp,
};
use stepfold_state_core::chat::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::live::{gated, waiting_site};
use super::site::{Site, agent};

/// A time that is over at once.
const AT_ONCE: Duration = Duration::from_millis(50);

async fn site(limits: Limits) -> Site {
    let runner = Runner::builder(agent("", Vec::new()), MemoryStore::new()).build();
    let site = Site::over(runner, limits).await;
    assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
    site
}

fn limits() -> Limits {
    Limits::default()
}

/// What the server answers to these bytes, until it closes the connection.
async fn answer_to(site: &Site, text: &str) -> String {
    let mut stream = TcpStream::connect(&site.address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_string(&mut answer));
    // A connection that is reset is closed as well.
    let _ = read.await.expect("the server closes the connection");
    answer
}

#[tokio::test]
async fn bodies_are_limited() {
    let mut limits = limits();
    limits.body = 1_000;
    let site = site(limits).await;
    let body = |bytes: usize| json!({"values": {"user:name": "x".repeat(bytes)}}).to_string();
    let send = |bytes: usize| {
        let (site, body) = (&site, body(bytes));
        async move { site.ask("ada", Method::POST, "/sessions", &[], &body).await }
    };
    assert_eq!(send(900).await.status, 201);
    assert_eq!(send(1_000).await.problem(), (413, "too_large".to_owned()));
}

#[tokio::test]
async fn slow_requests_are_ended() {
    let mut limits = limits();
    (limits.header_timeout, limits.body_timeout) = (AT_ONCE, AT_ONCE);
    let site = site(limits).await;
    // Headers without an end.
    assert!(!answer_to(&site, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n").await.contains("200 OK"));
    // A body without an end.
    let head = format!(
        "POST /api/v1/apps/clerk/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: {}\r\n\
         Content-Type: application/json\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{{",
        site.bearer("ada")
    );
    let answer = answer_to(&site, &head).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("\"kind\":\"timeout\""), "{answer}");
}

#[tokio::test]
async fn streams_are_limited() {
    let mut limits = limits();
    (limits.streams_per_user, limits.streams) = (2, 3);
    let site = site(limits).await;
    site.post("bob", "/sessions", json!({"id": "b1"})).await;
    let first = site.live("ada", "s1", None).await;
    let _second = site.live("ada", "s1", None).await;
    let refused = site.get("ada", "/sessions/s1/live").await;
    assert_eq!(refused.problem(), (429, "too_many".to_owned()));
    assert_eq!(refused.headers["retry-after"], "2");
    let _third = site.live("bob", "b1", None).await;
    assert_eq!(site.get("bob", "/sessions/b1/live").await.problem().0, 429, "of all users together");
    // One that is closed makes room, as soon as the server sees it.
    drop(first);
    let bearer = site.bearer("ada");
    loop {
        let headers = [("authorization", bearer.as_str()), ("last-event-id", "nonsense")];
        let path = "/api/v1/apps/clerk/sessions/s1/live";
        assert_eq!(site.raw(Method::GET, path, &headers, "").await.problem().0, 400);
        let metrics =
            site.raw(Method::GET, "/api/v1/metrics", &[("authorization", &site.bearer("root"))], "").await;
        if metrics.text.contains("stepfold_live_streams 2\n") {
            break;
        }
        tokio::task::yield_now().await;
    }
    let _again = site.live("ada", "s1", None).await;
}

/// An idle stream has comments, which no client reads as events.
#[tokio::test]
async fn an_idle_stream_is_kept_open() {
    let mut limits = limits();
    limits.keep_alive = AT_ONCE;
    let site = site(limits).await;
    let mut stream = TcpStream::connect(&site.address).await.unwrap();
    let request = format!(
        "GET /api/v1/apps/clerk/sessions/s1/live HTTP/1.0\r\nHost: localhost\r\nAuthorization: {}\r\n\r\n",
        site.bearer("ada")
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut bytes, mut chunk) = (Vec::new(), [0; 1024]);
    let comments = async {
        while String::from_utf8_lossy(&bytes).matches("\n:").count() < 3 {
            let read = stream.read(&mut chunk).await.unwrap();
            assert!(read > 0, "it has ended");
            bytes.extend_from_slice(&chunk[..read]);
        }
    };
    tokio::time::timeout(Duration::from_secs(20), comments).await.expect("it has comments");
    let text = String::from_utf8_lossy(&bytes);
    assert_eq!(text.matches("event: ").count(), 1, "{text}");
}

/// A request that keeps its connection, without its end.
const ASKED: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n";

/// Connections beyond the limit wait, and are served when others are closed.
#[tokio::test]
async fn connections_are_limited() {
    let mut limits = limits();
    limits.connections = 1;
    let runner = Runner::builder(agent("", Vec::new()), MemoryStore::new()).build();
    let site = Site::over(runner, limits).await;
    let mut first = TcpStream::connect(&site.address).await.unwrap();
    first.write_all(format!("{ASKED}\r\n").as_bytes()).await.unwrap();
    let mut chunk = [0; 4096];
    assert!(first.read(&mut chunk).await.unwrap() > 0);
    let closing = format!("{ASKED}Connection: close\r\n\r\n");
    let second = answer_to(&site, &closing);
    tokio::pin!(second);
    // The first one is served many times, and the second one is not accepted.
    let again = async {
        for _ in 0..100 {
            first.write_all(format!("{ASKED}\r\n").as_bytes()).await.unwrap();
            assert!(first.read(&mut chunk).await.unwrap() > 0);
        }
    };
    tokio::select! {
        answer = &mut second => panic!("{answer}"),
        () = again => {}
    }
    drop(first);
    assert!(second.await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn runs_are_limited() {
    let mut limits = limits();
    limits.runs_per_user = 1;
    let (site, gate) = waiting_site(limits).await;
    let mut live = site.live("ada", "s1", None).await;
    let sent = site.post("ada", "/sessions/s1/messages", json!({"text": "wait"})).await;
    assert_eq!(sent.status, 202, "{}", sent.text);
    live.until("tool_started").await;
    site.post("ada", "/sessions", json!({"id": "s2"})).await;
    for path in ["messages", "run"] {
        let refused = site.post("ada", &format!("/sessions/s2/{path}"), json!({"text": "hi"})).await;
        assert_eq!(refused.problem(), (429, "too_many".to_owned()), "{path}");
    }
    // Those of other users are theirs.
    site.post("bob", "/sessions", json!({"id": "b1"})).await;
    assert_eq!(site.post("bob", "/sessions/b1/messages", json!({"text": "hi"})).await.status, 202);
    gate.add_permits(2);
    live.until("ended").await;
}

#[tokio::test]
async fn a_reader_that_does_not_read_is_closed() {
    let mut limits = limits();
    limits.write_timeout = AT_ONCE;
    let script = "assistant: one\nassistant: two\nassistant: three\nassistant: four\n";
    let runner = Runner::builder(agent(script, Vec::new()), MemoryStore::new()).build();
    let site = Site::over(runner, limits).await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    // More than the system keeps for a connection.
    for _ in 0..4 {
        let run = site.post("ada", "/sessions/s1/run", json!({"text": "x".repeat(6 << 20)})).await;
        assert_eq!(run.status, 200);
    }
    let mut stream = TcpStream::connect(&site.address).await.unwrap();
    let request = format!(
        "GET /api/v1/apps/clerk/sessions/s1/live?after=0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: {}\r\n\r\n",
        site.bearer("ada")
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let bearer = site.bearer("root");
    let headers = [("authorization", bearer.as_str())];
    let metrics = || site.raw(Method::GET, "/api/v1/metrics", &headers, "");
    // It is opened, and closed without being read.
    while !metrics().await.text.contains("operation=\"live\",status=\"200\"") {}
    while !metrics().await.text.contains("stepfold_live_streams 0\n") {}
    drop(stream);
}

#[tokio::test]
async fn a_stop_drains_runs() {
    let (site, gate) = waiting_site(limits()).await;
    let mut live = site.live("ada", "s1", None).await;
    site.post("ada", "/sessions/s1/messages", json!({"text": "wait"})).await;
    live.until("tool_started").await;
    let (runner, stopping) = (site.runner.clone(), tokio::spawn(site.stop()));
    assert_eq!(live.until("bye").await.last().unwrap().data["reason"], "shutdown");
    gate.add_permits(1);
    assert!(stopping.await.unwrap(), "the run has completed");
    let session = runner.find_session("ada", "s1").await.unwrap().unwrap();
    assert!(session.unfinished().await.unwrap().is_none());
}

#[tokio::test]
async fn a_run_that_takes_too_long_is_left_to_others() {
    let mut limits = limits();
    limits.drain = Duration::ZERO;
    let (site, _gate) = waiting_site(limits).await;
    let mut live = site.live("ada", "s1", None).await;
    site.post("ada", "/sessions/s1/messages", json!({"text": "wait"})).await;
    live.until("tool_started").await;
    let next = site.again("assistant: done\n").await;
    assert!(!site.stop().await, "a run has not completed");
    let read = next.get("ada", "/sessions/s1").await.json();
    assert_eq!((&read["unfinished"], &read["claimed"]), (&json!(true), &json!(false)), "{read}");
}

#[tokio::test]
async fn metrics_count_what_happens() {
    let site = site(limits()).await;
    let bearer = site.bearer("root");
    let reply = site.raw(Method::GET, "/api/v1/metrics", &[("authorization", &bearer)], "").await;
    assert!(reply.headers["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    assert!(
        reply.text.contains("stepfold_http_requests_total{operation=\"create_session\",status=\"201\"} 1\n"),
        "{}",
        reply.text
    );
    assert!(reply.text.ends_with("# EOF\n"));
    for private in ["ada", "s1", "root"] {
        assert!(!reply.text.contains(private), "{private} in {}", reply.text);
    }
}

/// Requests about whole sessions take a place before their body is read, and have it until their answer was read.
#[tokio::test]
async fn heavy_requests_are_limited() {
    let mut limits = limits();
    (limits.heavy_per_user, limits.heavy) = (1, 1);
    let site = site(limits).await;
    site.post("bob", "/sessions", json!({"id": "s1"})).await;
    let export = site.get("ada", "/sessions/s1/export").await;
    assert_eq!(export.status, 200);
    assert!(export.headers.contains_key("content-disposition"));
    // An import that has not arrived.
    let mut slow = TcpStream::connect(&site.address).await.unwrap();
    let head = format!(
        "POST /api/v1/apps/clerk/import HTTP/1.1\r\nHost: localhost\r\nAuthorization: {}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        site.bearer("ada"),
        export.text.len()
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let refused = async |user: &str, path: &str| {
        let reply = match path {
            "import" => site.ask(user, Method::POST, "/import", &[], &export.text).await,
            "replay" => site.post(user, "/sessions/s1/replay", json!({})).await,
            _ => site.get(user, &format!("/sessions/s1/{path}")).await,
        };
        let is_refused = reply.status == 429;
        assert!(!is_refused || reply.problem() == (429, "too_many".to_owned()), "{}", reply.text);
        is_refused
    };
    while !refused("ada", "export").await {
        tokio::task::yield_now().await;
    }
    for path in ["export", "compare?with=s1", "import", "replay"] {
        assert!(refused("ada", path).await && refused("reader", "export").await, "{path}");
        assert!(refused("bob", path).await, "{path}: of all users together");
    }
    assert_eq!(site.get("ada", "/sessions/s1").await.status, 200, "others are served");
    slow.write_all(export.text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    while refused("ada", "export").await {
        tokio::task::yield_now().await;
    }
}

/// Creates a session with many commits, each of which says something else.
async fn long_session(site: &Site, id: &str) {
    let (store, schema) = (site.runner.store(), site.runner.schema());
    let at = Timestamp::from_micros(1);
    let mut create = CreateSession::new("clerk", "ada", schema, at).unwrap();
    create.id = Some(SessionId::new(id).unwrap());
    let key = store.create(create).await.unwrap().key;
    for version in 0..3_000 {
        let name = format!("{id}-{version}");
        let event = Event::new(
            EventId::new(name.as_str()).unwrap(),
            InvocationId::new(name.as_str()).unwrap(),
            Author::new("clerk").unwrap(),
            at,
        );
        let event = event.with_message(Message::user(format!("message {version} of {id}")));
        store.append(AppendEvent::new(key.clone(), version, event, schema)).await.unwrap();
    }
}

/// A server with one thread continues to serve while whole sessions are read.
#[tokio::test]
async fn heavy_requests_delay_no_others_and_end_in_time() {
    let site = Site::new("").await;
    long_session(&site, "s1").await;
    long_session(&site, "s2").await;
    for path in ["/compare?with=s2", "/export"] {
        let path = format!("/sessions/s1{path}");
        let heavy = site.get("ada", &path);
        let mut heavy = std::pin::pin!(heavy);
        let mut served = 0;
        let reply = loop {
            let healthy = site.raw(Method::GET, "/healthz", &[], "");
            tokio::select! {
                biased;
                reply = &mut heavy => break reply,
                healthy = healthy => {
                    assert_eq!(healthy.status, 200);
                    served += 1;
                }
            }
        };
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert!(served >= 5, "{served} requests were served meanwhile");
    }
    let mut limits = limits();
    limits.heavy_timeout = Duration::from_nanos(1);
    let hasty = Site::over(site.runner.clone(), limits).await;
    let late = hasty.get("ada", "/sessions/s1/compare?with=s2").await;
    assert_eq!(late.problem(), (503, "timeout".to_owned()));
    let small = hasty.post("ada", "/sessions", json!({"id": "s3"})).await;
    assert_eq!(small.status, 201, "{}", small.text);
}

/// A fork whose run is asked for continues at once, and its run is one of its user, as if it was resumed.
#[tokio::test]
async fn a_fork_that_goes_on_takes_a_place() {
    let mut limits = limits();
    limits.runs_per_user = 1;
    let (gate, wait) = gated();
    let agent = agent("assistant: > c1 wait()\nassistant: done\nassistant: forked\n", vec![wait]);
    let site = Site::over(Runner::builder(agent, MemoryStore::new()).build(), limits).await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    let mut live = site.live("ada", "s1", None).await;
    let send = async || site.post("ada", "/sessions/s1/messages", json!({"text": "wait"})).await;
    assert_eq!(send().await.status, 202);
    live.until("tool_started").await;
    let fork = async |body| site.post("ada", "/sessions/s1/fork", body).await;
    let changed = json!({"id": "s2", "at": 2, "set": {"spent": 3}, "run": true});
    assert_eq!(fork(changed.clone()).await.problem(), (429, "too_many".to_owned()));
    assert_eq!(site.get("ada", "/sessions/s2").await.status, 404, "it is refused before it is made");
    assert_eq!(fork(json!({"id": "s3", "at": 2})).await.status, 201, "nothing runs in it");
    let waits = json!({"id": "s4", "at": 2, "set": {"spent": 3}});
    assert_eq!(fork(waits).await.status, 201, "nothing runs in it, with changes too");
    gate.add_permits(1);
    live.until("ended").await;
    // A place is given back after the last event.
    let forked = loop {
        let forked = fork(changed.clone()).await;
        if forked.status != 429 {
            break forked;
        }
    };
    assert_eq!(forked.status, 201, "{}", forked.text);
    let mut live = site.live("ada", "s2", None).await;
    assert_eq!(send().await.problem(), (429, "too_many".to_owned()));
    gate.add_permits(1);
    let told = live.until("ended").await;
    assert_eq!(told.last().unwrap().data["exit"], "text", "{told:?}");
}
