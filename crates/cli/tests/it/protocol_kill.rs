//! `stepfold serve` is killed in the middle of a stream of each protocol: the next process continues, nothing is done twice, and
//! a client that connects again sees the end.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::thread;

use serde_json::{Value, json};

use self::GoesOn::{ByRecovery, OnRequest};
use crate::room::Room;
use crate::serve_kill::{SESSION, Site};

/// One tool leaves a mark, and must not run twice; the other one holds the run until it is let go.
const TOOLS: &str = r#"
[tools.mark]
description = "Leaves a mark."
effect = "at_most_once"
command = { argv = ["sh", "-c", "echo marked >> effects; echo marked"] }

[tools.hold]
description = "Holds the run."
effect = "idempotent"
command = { argv = ["sh", "-c", "read line < $(cat phase); echo held"] }
"#;

const SCRIPT: &str = "assistant: > c1 mark()\nassistant: > c2 hold()\nassistant: All is done.\n";

/// A request of a client: method and path, headers, and the body.
struct Request {
    line: &'static str,
    headers: &'static str,
    body: Value,
}

impl Request {
    fn new(line: &'static str, headers: &'static str, body: Value) -> Self {
        Request { line, headers, body }
    }

    fn open(&self, site: &Site) -> TcpStream {
        let body = if self.body.is_null() { String::new() } else { self.body.to_string() };
        site.send(0, self.line, self.headers, &body).unwrap()
    }
}

fn rpc(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

/// The whole rest of a response, as far as it came.
fn rest(mut stream: TcpStream) -> String {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut chunk) {
        bytes.extend_from_slice(&chunk[..count]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The pieces of text in a stream, one behind the other.
fn assembled(told: &str) -> String {
    let lines = told.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let paths = ["/delta", "/choices/0/delta/content", "/content/parts/0/text"];
    let piece = |event: Value| paths.iter().find_map(|path| event.pointer(path)?.as_str().map(str::to_owned));
    events.filter_map(piece).collect()
}

/// Reads until this is told.
fn until(stream: &mut TcpStream, text: &str) -> String {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let told = String::from_utf8_lossy(&bytes).into_owned();
        if told.contains(text) || assembled(&told).contains(text) {
            return told;
        }
        assert!(!told.starts_with("HTTP/1.0 204"), "nothing runs");
        let count = stream.read(&mut chunk).unwrap();
        assert!(count > 0, "no `{text}` in {told}");
        bytes.extend_from_slice(&chunk[..count]);
    }
}

/// A gate, at which the tool of the next process holds the run.
fn gate(site: &Site, name: &str) {
    assert!(Command::new("mkfifo").arg(site.room.path(name)).status().unwrap().success());
    site.room.write("phase", name);
}

/// Waits until the tool holds the run there.
fn held(site: &Site, name: &str) -> File {
    // It opens when the tool does.
    OpenOptions::new().write(true).open(site.room.path(name)).unwrap()
}

/// How the next process continues the run.
enum GoesOn {
    /// By itself, when the claim of the killed one has expired.
    ByRecovery,
    /// A request of a person, at once.
    OnRequest,
}

/// Kills the server while the stream of `sent` continues and has told `seen`. The run is held again in the next process, when
/// clients connect again with `again`, whose streams have told their texts before it is let go. All of them see the end.
fn check(sent: &Request, seen: &str, goes_on: GoesOn, again: &[(&Request, &str)]) {
    let site = Site::new(Room::new(TOOLS, SCRIPT));
    gate(&site, "first");
    let mut server = site.start();
    assert_eq!(site.ask(0, "POST /api/v1/apps/a/sessions", "", r#"{"id":"s1"}"#).unwrap().0, 201);
    let mut stream = sent.open(&site);
    let first = held(&site, "first");
    if !seen.is_empty() {
        until(&mut stream, seen);
    }
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(!rest(stream).contains("All is done."), "it was cut in the middle");
    gate(&site, "second");
    drop(first);

    let mut server = site.start();
    if let OnRequest = goes_on {
        // At once, also where recovery has continued it already.
        let (status, told) = site.ask(0, &format!("POST {SESSION}/resume"), "", "{}").unwrap();
        assert_eq!(status, 202, "{told}");
    }
    let mut second = held(&site, "second");
    let mut streams = Vec::new();
    for (request, seen) in again {
        let mut stream = request.open(&site);
        let told = until(&mut stream, seen);
        streams.push((request.line, told, thread::spawn(move || rest(stream))));
    }
    second.write_all(b"go\n").unwrap();
    drop(second);
    for (line, told, stream) in streams {
        let told = told + &stream.join().unwrap();
        assert!(told.contains("All is done.") || assembled(&told).contains("All is done."), "{line}: {told}");
    }
    let rows = loop {
        let read = site.ask(0, &format!("GET {SESSION}"), "", "").unwrap().1;
        if read["unfinished"] == false {
            break site.ask(0, &format!("GET {SESSION}/events?limit=100"), "", "").unwrap().1;
        }
    };
    // What reads the session afterwards, in the protocols that do.
    let read = [
        Request::new("GET /apps/a/users/user/sessions/s1", "", Value::Null),
        Request::new("POST /a2a/a", "a2a-version: 1.0\r\n", rpc("ListTasks", json!({"contextId": "s1"}))),
    ];
    for request in read {
        let told = rest(request.open(&site));
        assert!(told.contains("All is done."), "{}: {told}", request.line);
    }
    let told = rows.to_string();
    assert_eq!(told.matches("\"began\"").count(), 1, "one run: {told}");
    assert_eq!(std::fs::read_to_string(site.room.path("effects")).unwrap(), "marked\n", "once");
    server.kill().unwrap();
    server.wait().unwrap();
}

fn ai_stream() -> Request {
    Request::new("GET /ai/a/s1/stream", "", Value::Null)
}

fn ai() -> Request {
    let parts = json!([{"type": "text", "text": "go"}]);
    Request::new(
        "POST /ai/a",
        "",
        json!({"id": "s1", "messages": [{"id": "u1", "role": "user", "parts": parts}]}),
    )
}

/// A signal to end is no kill: readers are told, no one else is served, and the run completes.
#[test]
fn sigterm_lets_a_run_complete() {
    let site = Site::new(Room::new(TOOLS, SCRIPT));
    gate(&site, "first");
    let mut server = site.start();
    assert_eq!(site.ask(0, "POST /api/v1/apps/a/sessions", "", r#"{"id":"s1"}"#).unwrap().0, 201);
    let mut live = site.send(0, &format!("GET {SESSION}/live?after=0"), "", "").unwrap();
    assert_eq!(site.ask(0, &format!("POST {SESSION}/messages"), "", r#"{"text":"go"}"#).unwrap().0, 202);
    let mut first = held(&site, "first");
    assert!(Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap().success());
    let told = until(&mut live, "event: bye");
    assert!(told.contains("shutdown") && !told.contains("All is done."), "{told}");
    // No one is accepted any more.
    while site.send(0, "GET /readyz", "", "").is_some() {}
    assert!(server.try_wait().unwrap().is_none(), "it waits for the run");
    first.write_all(b"go\n").unwrap();
    drop(first);
    assert_eq!(server.wait().unwrap().code(), Some(143));
    let mut server = site.start();
    let session = site.ask(0, &format!("GET {SESSION}"), "", "").unwrap().1;
    assert_eq!(session["unfinished"], false, "{session}");
    let rows = site.ask(0, &format!("GET {SESSION}/events?limit=100"), "", "").unwrap().1.to_string();
    assert!(rows.contains("All is done.") && rows.matches("\"began\"").count() == 1, "{rows}");
    assert_eq!(std::fs::read_to_string(site.room.path("effects")).unwrap(), "marked\n", "once");
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn openai_streaming() {
    let messages = json!([{"role": "user", "content": "go"}]);
    let body = json!({"model": "a", "messages": messages, "stream": true});
    let headers = "x-stepfold-session: s1\r\nidempotency-key: k1\r\n";
    let request = Request::new("POST /v1/chat/completions", headers, body);
    // The first chunk has no text yet. A client that sends its request again has the answer of the same run.
    check(&request, "chat.completion.chunk", OnRequest, &[(&request, "HTTP/1.0 200"), (&ai_stream(), "c1")]);
}

#[test]
fn agui() {
    let messages = json!([{"id": "u1", "role": "user", "content": "go"}]);
    let request =
        Request::new("POST /agui/a", "", json!({"threadId": "s1", "runId": "r1", "messages": messages}));
    check(&request, "TOOL_CALL_RESULT", OnRequest, &[(&request, "RUN_STARTED"), (&ai_stream(), "c1")]);
}

#[test]
fn ai_sdk() {
    check(&ai(), "tool-output-available", OnRequest, &[(&ai_stream(), "c1"), (&ai(), "\"start\"")]);
}

#[test]
fn adk_run_sse() {
    let message = json!({"role": "user", "parts": [{"text": "go"}]});
    let body = json!({"appName": "a", "userId": "user", "sessionId": "s1", "newMessage": message});
    check(&Request::new("POST /run_sse", "", body), "functionResponse", ByRecovery, &[(&ai_stream(), "c1")]);
}

#[test]
fn a2a_streaming() {
    let message =
        json!({"messageId": "m1", "contextId": "s1", "role": "ROLE_USER", "parts": [{"text": "go"}]});
    let sent = Request::new(
        "POST /a2a/a",
        "a2a-version: 1.0\r\n",
        rpc("SendStreamingMessage", json!({"message": message})),
    );
    let subscribe =
        Request::new("POST /a2a/a", "a2a-version: 1.0\r\n", rpc("SubscribeToTask", json!({"id": "m1@s1"})));
    let again = [(&subscribe, "TASK_STATE_WORKING"), (&sent, "TASK_STATE_WORKING")];
    check(&sent, "TASK_STATE_WORKING", OnRequest, &again);
}

#[test]
fn mcp_over_http() {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "progressToken": 1,
    });
    let arguments = json!({"message": "go", "session": "s1"});
    let headers = "accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n\
                   mcp-method: tools/call\r\nmcp-name: a\r\n";
    let params = json!({"name": "a", "arguments": arguments, "_meta": meta});
    check(
        &Request::new("POST /mcp", headers, rpc("tools/call", params)),
        "",
        OnRequest,
        &[(&ai_stream(), "c1")],
    );
}
