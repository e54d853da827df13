//! The server over streamable HTTP, as its requests stand on the wire.

use std::net::SocketAddr;

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use stepfold_server::mcp::{AgentServer, HttpOptions, HttpService};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::mcp::runner;

/// Serves at an address of this machine.
pub(crate) async fn listen(service: HttpService) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    address
}

struct Answer {
    status: u16,
    session: Option<String>,
    body: String,
}

impl Answer {
    /// The last message: of JSON, or of a stream.
    fn message(&self) -> Value {
        let line = self.body.lines().rev().find_map(|line| {
            let line = line.strip_prefix("data:").unwrap_or(line).trim();
            serde_json::from_str::<Value>(line).ok().filter(Value::is_object)
        });
        line.unwrap_or_else(|| panic!("no message in {:?}", self.body))
    }
}

/// A request with these headers more.
async fn post(address: SocketAddr, more: &[(&str, &str)], message: &Value) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = message.to_string();
    let mut head = format!("POST /mcp HTTP/1.1\r\ncontent-length: {}\r\nconnection: close\r\n", body.len());
    let mut headers =
        vec![("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    if !more.iter().any(|(name, _)| *name == "host") {
        headers.push(("host", "localhost"));
    }
    for (name, value) in headers.iter().chain(more) {
        head.extend([name, ": ", value, "\r\n"]);
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
    Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        session: session.map(str::to_owned),
        body: body.to_owned(),
    }
}

/// A request of the revision without `initialize`.
async fn ask(address: SocketAddr, user: Option<&str>, method: &str, mut params: Value) -> Answer {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    });
    let name = params["name"].as_str().or_else(|| params["uri"].as_str()).unwrap_or_default().to_owned();
    let mut headers = vec![("mcp-protocol-version", "2026-07-28"), ("mcp-method", method)];
    if !name.is_empty() {
        headers.push(("mcp-name", &name));
    }
    headers.extend(user.map(|user| ("x-user", user)));
    post(address, &headers, &json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})).await
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }})
}

fn call(arguments: Value) -> Value {
    json!({"name": "clerk", "arguments": arguments})
}

const TALK: &str = "assistant: hello\nassistant: again\n";

#[tokio::test]
async fn a_call_over_http_in_both_revisions() {
    let service = AgentServer::new(runner(TALK), "ada").into_http(HttpOptions::new());
    let address = listen(service.clone()).await;
    let answer = ask(address, None, "tools/call", call(json!({"message": "hi"}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let first = answer.message();
    assert_eq!(first["result"]["structuredContent"]["text"], "hello", "{first}");

    let begun = post(address, &[], &initialize()).await;
    let session = begun.session.clone().unwrap();
    assert_eq!(begun.message()["result"]["serverInfo"]["name"], "clerk");
    let headers = [("mcp-session-id", session.as_str()), ("mcp-protocol-version", "2025-11-25")];
    let said =
        post(address, &headers, &json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    assert_eq!(said.status, 202, "{}", said.body);
    // The conversation is in the store: another revision of the protocol continues with it.
    let arguments = json!({"message": "more", "session": first["result"]["structuredContent"]["session"]});
    let message = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call(arguments)});
    let second = post(address, &headers, &message).await.message();
    assert_eq!(second["result"]["structuredContent"]["text"], "again", "{second}");

    service.stop();
    let after = post(address, &headers, &message).await;
    assert_ne!(after.status, 200, "{}", after.body);
}

#[tokio::test]
async fn an_approval_is_required_input_of_a_request_that_stands_alone() {
    let script = "assistant: > c1 pay()\nassistant: It is paid.\n";
    let service = AgentServer::new(runner(script), "ada").into_http(HttpOptions::new().stateless());
    let address = listen(service).await;
    let asked = ask(address, None, "tools/call", call(json!({"message": "pay"}))).await.message();
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let id = asked["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap();
    let mut again = call(json!({"message": "pay"}));
    again["inputResponses"] = json!({id: {"action": "accept", "content": {"decision": "approve"}}});
    again["requestState"] = asked["result"]["requestState"].clone();
    let paid = ask(address, None, "tools/call", again).await.message();
    assert_eq!(paid["result"]["structuredContent"]["text"], "It is paid.", "{paid}");
}

#[tokio::test]
async fn other_hosts_origins_and_long_requests_are_refused() {
    let service = AgentServer::new(runner(TALK), "ada").into_http(HttpOptions::new().request_bytes(2_000));
    let address = listen(service).await;
    let status = async |headers: &[(&str, &str)]| post(address, headers, &initialize()).await.status;
    assert_eq!(status(&[("host", "evil.example.com")]).await, 403);
    assert_eq!(status(&[("origin", "https://evil.example.com")]).await, 403);
    assert_eq!(status(&[("origin", "null")]).await, 403);
    assert_eq!(status(&[("origin", "http://localhost:8080"), ("host", "127.0.0.1:1")]).await, 200);
    let mut long = initialize();
    long["params"]["clientInfo"]["name"] = json!("x".repeat(3_000));
    assert_eq!(post(address, &[], &long).await.status, 413);

    let public = HttpOptions::new().hosts(["agents.example.com"]).origins(["https://app.example.com:443"]);
    let address = listen(AgentServer::new(runner(TALK), "ada").into_http(public)).await;
    let status = async |headers: &[(&str, &str)]| post(address, headers, &initialize()).await.status;
    assert_eq!(status(&[]).await, 403);
    assert_eq!(status(&[("host", "agents.example.com"), ("origin", "https://app.example.com")]).await, 200);
}

#[tokio::test]
async fn each_request_works_in_the_sessions_of_its_user() {
    let options =
        HttpOptions::new().user_of(|parts| Some(parts.headers.get("x-user")?.to_str().ok()?.to_owned()));
    let address = listen(AgentServer::new(runner(TALK), "nobody").into_http(options)).await;
    let first = ask(address, Some("ada"), "tools/call", call(json!({"message": "hi"}))).await.message();
    assert_eq!(first["result"]["structuredContent"]["text"], "hello", "{first}");
    let listed = ask(address, Some("ada"), "resources/list", json!({})).await.message();
    let uri = listed["result"]["resources"][1]["uri"].as_str().unwrap().to_owned();
    let read = ask(address, Some("ada"), "resources/read", json!({"uri": uri})).await.message();
    assert_eq!(read["result"]["contents"][0]["text"], "user:      hi\nassistant: hello\n", "{read}");

    let others = ask(address, Some("eve"), "resources/list", json!({})).await.message();
    assert_eq!(others["result"]["resources"], json!([]), "{others}");
    let others = ask(address, Some("eve"), "resources/read", json!({"uri": uri})).await.message();
    assert_eq!(others["error"]["message"], format!("unknown resource `{uri}`"), "{others}");
    let nobody = ask(address, None, "tools/call", call(json!({"message": "hi"}))).await.message();
    assert_eq!(nobody["error"]["message"], "unknown user: sign in first", "{nobody}");
}
