//! Clients of the Model Context Protocol: the same rules as for all requests, and the sessions of the principal.

use http::Method;
use serde_json::{Value, json};
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::{AnyStore, MemoryStore};

use super::live::waiting_site;
use super::site::{Reply, Site, agent};

const JSON: (&str, &str) = ("content-type", "application/json");
const ACCEPT: (&str, &str) = ("accept", "application/json, text/event-stream");

/// The last message of a response, which is JSON or a stream.
fn message(reply: &Reply) -> Value {
    let found = reply.text.lines().rev().find_map(|line| {
        let line = line.strip_prefix("data:").unwrap_or(line).trim();
        serde_json::from_str::<Value>(line).ok().filter(Value::is_object)
    });
    found.unwrap_or_else(|| panic!("no message in {:?}", reply.text))
}

async fn post(site: &Site, name: &str, headers: &[(&str, &str)], message: &Value) -> Reply {
    let bearer = site.bearer(name);
    let mut all = vec![("authorization", bearer.as_str()), JSON, ACCEPT];
    all.extend(headers);
    site.raw(Method::POST, "/mcp", &all, &message.to_string()).await
}

/// A request of the revision without `initialize`.
fn modern(method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    });
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

const CALL: [(&str, &str); 3] =
    [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "clerk")];

fn call(message: &str) -> Value {
    json!({"name": "clerk", "arguments": {"message": message, "session": "s1"}})
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }})
}

async fn begin(site: &Site, name: &str) -> String {
    let begun = post(site, name, &[], &initialize()).await;
    assert_eq!(begun.status, 200, "{}", begun.text);
    begun.headers["mcp-session-id"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn both_revisions_are_served_in_the_sessions_of_the_principal() {
    let script = "assistant: > c1 pay()\nassistant: It is paid.\nassistant: You are welcome.\n";
    let site = Site::new(script).await;
    let asked = message(&post(&site, "ada", &CALL, &modern("tools/call", call("pay the bill"))).await);
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let request = asked["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap();
    let mut answer = call("pay the bill");
    answer["inputResponses"] = json!({request: {"action": "accept", "content": {"decision": "approve"}}});
    answer["requestState"] = asked["result"]["requestState"].clone();
    let paid = message(&post(&site, "ada", &CALL, &modern("tools/call", answer)).await);
    assert_eq!(paid["result"]["structuredContent"]["text"], "It is paid.", "{paid}");
    let events = site.get("ada", "/sessions/s1/events").await.json();
    let decided = events["events"].as_array().unwrap().iter().find(|event| event["kind"] == "decided");
    assert_eq!(decided.unwrap()["decided_by"], "ada", "{events}");

    let session = begin(&site, "ada").await;
    let headers = [("mcp-session-id", session.as_str()), ("mcp-protocol-version", "2025-11-25")];
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(post(&site, "ada", &headers, &ready).await.status, 202);
    let thanks = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call("thanks")});
    // The session of the protocol is its principal's: its id is useless to other principals.
    assert_eq!(post(&site, "bob", &headers, &thanks).await.status, 404);
    let said = message(&post(&site, "ada", &headers, &thanks).await);
    assert_eq!(said["result"]["structuredContent"]["text"], "You are welcome.", "{said}");

    let bearer = site.bearer("ada");
    let ended = [("authorization", bearer.as_str()), headers[0], headers[1]];
    assert!(site.raw(Method::DELETE, "/mcp", &ended, "").await.status.is_success());
    assert_eq!(post(&site, "ada", &headers, &thanks).await.status, 404);
}

#[tokio::test]
async fn requests_pass_what_all_requests_pass() {
    let site = Site::new("").await;
    let refused = async |name: &str, headers: &[(&str, &str)]| {
        let bearer = if name.is_empty() { String::new() } else { site.bearer(name) };
        let mut all = headers.to_vec();
        for good in [("authorization", bearer.as_str()), JSON, ACCEPT] {
            if !headers.iter().any(|(name, _)| *name == good.0) && !good.1.is_empty() {
                all.push(good);
            }
        }
        site.raw(Method::POST, "/mcp", &all, &initialize().to_string()).await.problem()
    };
    assert_eq!(refused("", &[]).await, (401, "unauthenticated".to_owned()));
    assert_eq!(refused("reader", &[]).await, (403, "forbidden".to_owned()));
    assert_eq!(refused("ada", &[("host", "evil.test")]).await, (421, "host".to_owned()));
    assert_eq!(refused("ada", &[("origin", "http://localhost:1")]).await, (403, "origin".to_owned()));
    assert_eq!(refused("ada", &[("sec-fetch-site", "same-site")]).await, (403, "origin".to_owned()));
    assert_eq!(refused("ada", &[("content-type", "text/plain")]).await, (415, "content_type".to_owned()));

    let bearer = site.bearer("ada");
    let headers = [("authorization", bearer.as_str()), JSON, ACCEPT];
    let body = initialize().to_string();
    let unknown = site.raw(Method::POST, "/mcp/nobody", &headers, &body).await;
    assert_eq!(unknown.problem(), (404, "unknown_app".to_owned()));
    assert_eq!(site.raw(Method::POST, "/mcp/clerk", &headers, &body).await.status, 200);
    // A page of an allowed origin may ask, and read the id of its session.
    let allowed = [headers[0], JSON, ACCEPT, ("origin", "https://app.example")];
    let begun = site.raw(Method::POST, "/mcp", &allowed, &body).await;
    assert_eq!(begun.headers["access-control-allow-origin"], "https://app.example");
    let exposed = begun.headers["access-control-expose-headers"].to_str().unwrap();
    assert!(exposed.contains("mcp-session-id"), "{exposed}");
}

#[tokio::test]
async fn calls_streams_and_clients_are_limited() {
    let mut limits = Limits::default();
    (limits.streams_per_user, limits.runs_per_user, limits.body) = (2, 0, 2_000);
    let runner = Runner::builder(agent("", Vec::new()), MemoryStore::new()).build();
    let site = Site::over(runner, limits).await;
    let refused = post(&site, "ada", &CALL, &modern("tools/call", call("pay"))).await;
    assert_eq!(refused.problem(), (429, "too_many".to_owned()));
    let long = modern("tools/call", call(&"x".repeat(3_000)));
    assert_eq!(post(&site, "ada", &CALL, &long).await.problem(), (413, "too_large".to_owned()));
    // Answers to what a task asks continue with its run.
    let update = [CALL[0], ("mcp-method", "tasks/update"), ("mcp-name", "i1@s1")];
    let answers = modern("tasks/update", json!({"taskId": "i1@s1", "inputResponses": {}}));
    assert_eq!(post(&site, "ada", &update, &answers).await.problem(), (429, "too_many".to_owned()));
    // What is not a call takes no place.
    let list = [CALL[0], ("mcp-method", "tools/list")];
    assert_eq!(post(&site, "ada", &list, &modern("tools/list", json!({}))).await.status, 200);
    let (first, _second) = (begin(&site, "ada").await, begin(&site, "ada").await);
    assert_eq!(post(&site, "ada", &[], &initialize()).await.problem(), (429, "too_many".to_owned()));
    begin(&site, "bob").await;
    let bearer = site.bearer("ada");
    let ended = [("authorization", bearer.as_str()), ("mcp-session-id", first.as_str())];
    assert!(site.raw(Method::DELETE, "/mcp", &ended, "").await.status.is_success());
    begin(&site, "ada").await;
}

#[tokio::test]
async fn a_closed_connection_cancels_nothing_and_gives_no_place_free() {
    let mut limits = Limits::default();
    limits.runs_per_user = 1;
    let (site, open) = waiting_site(limits).await;
    let mut live = site.live("ada", "s1", None).await;
    let bearer = site.bearer("ada");
    let mut headers = vec![("authorization", bearer.as_str()), JSON, ACCEPT];
    headers.extend(CALL);
    let call = modern("tools/call", call("wait"));
    let body = call.to_string();
    {
        let stream = site.raw(Method::POST, "/mcp", &headers, &body);
        let mut stream = std::pin::pin!(stream);
        tokio::select! {
            reply = &mut stream => panic!("{}", reply.text),
            _ = live.until("tool_started") => {}
        }
    }
    // The connection is closed; the run, and its place, are not.
    assert_eq!(post(&site, "ada", &CALL, &call).await.problem(), (429, "too_many".to_owned()));
    open.add_permits(1);
    let told = live.until("ended").await;
    assert_eq!(told.last().unwrap().data["exit"], "text", "{told:?}");
}

/// A poll continues with a task whose process died; but not without a place for its run.
#[tokio::test]
async fn a_poll_continues_with_a_task_if_a_place_is_free() {
    for (runs, is_done) in [(0, false), (1, true)] {
        let store = AnyStore::new(MemoryStore::new());
        let dead = Runner::builder(agent("", Vec::new()), store.clone()).build();
        let session = dead.session("ada", "s1").await.unwrap();
        let invocation = session.send("hello").await.unwrap();
        let task = format!("{}@s1", invocation.id());
        invocation.await.unwrap_err();
        let mut limits = Limits::default();
        limits.runs_per_user = runs;
        let site =
            Site::over(Runner::builder(agent("assistant: hi\n", Vec::new()), store).build(), limits).await;
        let headers = [CALL[0], ("mcp-method", "tasks/get"), ("mcp-name", task.as_str())];
        let mut ask = modern("tasks/get", json!({"taskId": task}));
        ask["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"] =
            json!({"io.modelcontextprotocol/tasks": {}});
        let told = message(&post(&site, "ada", &headers, &ask).await);
        assert_eq!(told["result"]["status"], "working", "{told}");
        assert!(site.stop().await);
        let run = session.last_run().await.unwrap().unwrap();
        assert_eq!(run.exit().is_some(), is_done);
    }
}

/// Tasks and resources of another principal are those that do not exist.
#[tokio::test]
async fn tasks_and_resources_of_another_user_do_not_exist() {
    let (site, _gate) = waiting_site(Limits::default()).await;
    let mut live = site.live("ada", "s1", None).await;
    let sent = site.post("ada", "/sessions/s1/messages", json!({"text": "wait"})).await.json();
    live.until("tool_started").await;
    let ask = async |name: &str, method: &str, params: Value, what: &str| {
        let mut ask = modern(method, params);
        ask["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"] =
            json!({"io.modelcontextprotocol/tasks": {}});
        let headers = [CALL[0], ("mcp-method", method), ("mcp-name", what)];
        message(&post(&site, name, &headers, &ask).await)
    };
    let task = format!("{}@s1", sent["invocation"].as_str().unwrap());
    for (method, params) in [
        ("tasks/get", json!({"taskId": task})),
        ("tasks/update", json!({"taskId": task, "inputResponses": {}})),
        ("tasks/cancel", json!({"taskId": task})),
    ] {
        let told = ask("bob", method, params, &task).await;
        assert_eq!(told["error"]["message"], format!("unknown task `{task}`"), "{method}: {told}");
    }
    let uri = "stepfold://sessions/s1/transcript";
    let told = ask("bob", "resources/read", json!({"uri": uri}), uri).await;
    assert_eq!(told["error"]["message"], format!("unknown resource `{uri}`"), "{told}");
    let read = ask("ada", "resources/read", json!({"uri": uri}), uri).await;
    assert!(read["result"]["contents"][0]["text"].as_str().unwrap().contains("wait"), "{read}");
    let listed = ask("bob", "resources/list", json!({}), "").await;
    assert_eq!(listed["result"]["resources"], json!([]), "{listed}");
    let status = ask("ada", "tasks/get", json!({"taskId": task}), &task).await;
    assert_eq!(status["result"]["status"], "working", "nothing was cancelled: {status}");
}
