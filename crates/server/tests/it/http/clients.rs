//! Clients of different protocols in one session: each sees what the others did, and none that leaves cancels anything.

use http::{Method, StatusCode};
use serde_json::{Value, json};
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::AnyStore;

use super::live::waiting_site;
use super::site::{Reply, Site, agent};

/// Each protocol that sends messages.
pub(super) const ALL: [&str; 7] = ["api", "openai", "agui", "ai", "adk", "a2a", "mcp"];

pub(super) const A2A: (&str, &str) = ("a2a-version", "1.0");

/// A message in the session `s1`: the path, headers, and the body.
pub(super) fn request(
    protocol: &str,
    text: &str,
) -> (&'static str, Vec<(&'static str, &'static str)>, Value) {
    match protocol {
        "api" => ("/api/v1/apps/clerk/sessions/s1/run", Vec::new(), json!({"text": text})),
        "openai" => {
            let messages = json!([{"role": "user", "content": text}]);
            let body = json!({"model": "clerk", "messages": messages, "stream": true});
            ("/v1/chat/completions", vec![("x-stepfold-session", "s1")], body)
        }
        "agui" => {
            let messages = json!([{"id": text, "role": "user", "content": text}]);
            ("/agui/clerk", Vec::new(), json!({"threadId": "s1", "runId": text, "messages": messages}))
        }
        "ai" => {
            let parts = json!([{"type": "text", "text": text}]);
            let body = json!({"id": "s1", "messages": [{"id": text, "role": "user", "parts": parts}]});
            ("/ai/clerk", Vec::new(), body)
        }
        "adk" => {
            let message = json!({"role": "user", "parts": [{"text": text}]});
            let body =
                json!({"appName": "clerk", "userId": "user", "sessionId": "s1", "newMessage": message});
            ("/run_sse", Vec::new(), body)
        }
        "a2a" => {
            let message =
                json!({"messageId": text, "contextId": "s1", "role": "ROLE_USER", "parts": [{"text": text}]});
            ("/a2a/clerk", vec![A2A], rpc("SendStreamingMessage", json!({"message": message})))
        }
        "mcp" => {
            let meta = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            });
            let arguments = json!({"message": text, "session": "s1"});
            let headers = vec![
                ("accept", "application/json, text/event-stream"),
                ("mcp-protocol-version", "2026-07-28"),
                ("mcp-method", "tools/call"),
                ("mcp-name", "clerk"),
            ];
            let params = json!({"name": "clerk", "arguments": arguments, "_meta": meta});
            ("/mcp", headers, rpc("tools/call", params))
        }
        unknown => panic!("{unknown}"),
    }
}

pub(super) fn rpc(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

async fn ask(site: &Site, method: Method, path: &str, more: &[(&str, &str)], body: &str) -> Reply {
    let bearer = site.bearer("ada");
    let mut headers = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
    headers.extend(more);
    site.raw(method, path, &headers, body).await
}

async fn send(site: &Site, protocol: &str, text: &str) -> Reply {
    let (path, headers, body) = request(protocol, text);
    let reply = ask(site, Method::POST, path, &headers, &body.to_string()).await;
    assert_eq!(reply.status, 200, "{protocol}: {}", reply.text);
    reply
}

async fn subscribe(site: &Site, task: &str) -> Reply {
    let body = rpc("SubscribeToTask", json!({"id": task})).to_string();
    ask(site, Method::POST, "/a2a/clerk", &[A2A], &body).await
}

/// The events of a stream; or the one of an answer without.
pub(super) fn events(reply: &Reply) -> Vec<Value> {
    let lines = reply.text.lines().map(|line| line.strip_prefix("data:").unwrap_or(line).trim());
    lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter(Value::is_object).collect()
}

/// The version of the session, where an answer has it.
fn version(reply: &Reply) -> Option<u64> {
    let paths =
        ["/value/version", "/result/version", "/messageMetadata/version", "/stepfold/version", "/version"];
    let found = |event: &Value| paths.iter().find_map(|path| event.pointer(path)?.as_u64());
    events(reply).iter().rev().find_map(found)
}

/// The text of an answer: assembled if it is a stream, else with what stands around it.
fn told(reply: &Reply) -> String {
    let delta = |event: &Value| {
        let is_text = ["TEXT_MESSAGE_CONTENT", "text-delta"].iter().any(|kind| event["type"] == *kind);
        let content = event.pointer("/choices/0/delta/content");
        content.or_else(|| event.get("delta").filter(|_| is_text))?.as_str().map(str::to_owned)
    };
    let deltas: String = events(reply).iter().filter_map(delta).collect();
    if deltas.is_empty() { reply.text.clone() } else { deltas }
}

/// What each protocol that reads sessions has of `s1`: the texts, in order.
async fn read_by_all(site: &Site) -> Vec<(&'static str, Vec<String>)> {
    let text_of = |value: &Value| value.as_str().map(str::to_owned);
    let rows = site.get("ada", "/sessions/s1/events").await.json();
    let messages =
        rows["events"].as_array().unwrap().iter().flat_map(|row| row["messages"].as_array().unwrap());
    let own = messages.filter_map(|message| text_of(message.pointer("/parts/0/text")?)).collect();
    let path = "/apps/clerk/users/user/sessions/s1";
    let session = ask(site, Method::GET, path, &[], "").await.json();
    let told = session["events"].as_array().unwrap().iter();
    let adk = told.filter_map(|event| text_of(event.pointer("/content/parts/0/text")?)).collect();
    let body = rpc("ListTasks", json!({"contextId": "s1"})).to_string();
    let listed = ask(site, Method::POST, "/a2a/clerk", &[A2A], &body).await.json();
    let tasks = listed["result"]["tasks"].as_array().unwrap().iter().rev();
    let history = tasks.flat_map(|task| task["history"].as_array().unwrap());
    let a2a = history.filter_map(|message| text_of(message.pointer("/parts/0/text")?)).collect();
    vec![("api", own), ("adk", adk), ("a2a", a2a)]
}

#[tokio::test]
async fn what_one_client_sends_all_others_see() {
    for first in ALL {
        for second in ALL.into_iter().filter(|second| *second != first) {
            let site = Site::new("assistant: one\nassistant: two\n").await;
            assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
            let answers = [send(&site, first, "m1").await, send(&site, second, "m2").await];
            assert!(told(&answers[0]).contains("one"), "{first}: {}", answers[0].text);
            // The model has a reply for each turn: the second one continues where the first one ended.
            assert!(told(&answers[1]).contains("two"), "{first}, {second}: {}", answers[1].text);
            let newest = site.get("ada", "/sessions/s1").await.json()["version"].as_u64();
            if !matches!(second, "adk" | "a2a" | "mcp") {
                assert_eq!(version(&answers[1]), newest, "{first}, {second}: {}", answers[1].text);
            }
            for (reader, texts) in read_by_all(&site).await {
                assert_eq!(texts, ["m1", "one", "m2", "two"], "{first}, {second}, read by {reader}");
            }
        }
    }
}

#[tokio::test]
async fn a_client_of_any_protocol_that_leaves_cancels_nothing() {
    for protocol in ALL {
        let (site, gate) = waiting_site(Limits::default()).await;
        let mut live = site.live("ada", "s1", None).await;
        let (path, headers, body) = request(protocol, "wait");
        let body = body.to_string();
        {
            let request = ask(&site, Method::POST, path, &headers, &body);
            let mut request = std::pin::pin!(request);
            tokio::select! {
                reply = &mut request => panic!("{protocol}: {}", reply.text),
                _ = live.until("tool_started") => {}
            }
        }
        // The connection is closed.
        gate.add_permits(1);
        let told = live.until("ended").await;
        assert_eq!(told.last().unwrap().data["exit"], "text", "{protocol}");
        assert_eq!(read_by_all(&site).await[0].1.last().unwrap(), "done", "{protocol}");
    }
}

/// The id of the task, as its session has it.
async fn task(site: &Site) -> String {
    let body = rpc("ListTasks", json!({"contextId": "s1"})).to_string();
    let listed = ask(site, Method::POST, "/a2a/clerk", &[A2A], &body).await.json();
    listed["result"]["tasks"][0]["id"].as_str().unwrap().to_owned()
}

/// A client that comes while the run of another one continues sees it from its beginning, and its end.
#[tokio::test]
async fn a_run_of_any_client_is_followed_by_others() {
    for sender in ALL {
        let (site, gate) = waiting_site(Limits::default()).await;
        let mut live = site.live("ada", "s1", None).await;
        let (task, stream) = ("/ai/clerk/s1/stream", async {
            live.until("tool_started").await;
            let id = task(&site).await;
            let both = async {
                tokio::join!(ask(&site, Method::GET, "/ai/clerk/s1/stream", &[], ""), subscribe(&site, &id))
            };
            let open = async {
                // Both are open before the run can end.
                while streams(&site).await < 3 {
                    tokio::task::yield_now().await;
                }
                gate.add_permits(1);
            };
            tokio::join!(both, open).0
        });
        let (sent, (resumed, subscribed)) = tokio::join!(send(&site, sender, "wait"), stream);
        assert_eq!(resumed.status, 200, "{task}");
        for (reader, reply) in [(sender, &sent), ("ai", &resumed), ("a2a", &subscribed)] {
            assert!(told(reply).contains("done"), "{reader} of {sender}: {}", reply.text);
        }
        let parts = events(&resumed);
        let called = parts.iter().position(|part| part["toolCallId"] == "c1").unwrap();
        assert_eq!((&parts[0]["type"], &parts[called]["toolName"]), (&json!("start"), &json!("wait")));
        assert_eq!(parts.last().unwrap()["type"], "finish", "{}", resumed.text);
        let state = events(&subscribed).last().unwrap()["result"]["statusUpdate"]["status"]["state"].clone();
        assert_eq!(state, "TASK_STATE_COMPLETED", "{}", subscribed.text);
        // Nothing runs any more: there is nothing to open again.
        let after = ask(&site, Method::GET, "/ai/clerk/s1/stream", &[], "").await;
        assert_eq!((after.status, after.text.as_str()), (StatusCode::NO_CONTENT, ""));
    }
}

/// The number of open streams: with that of the test.
async fn streams(site: &Site) -> usize {
    let bearer = site.bearer("root");
    let metrics = site.raw(Method::GET, "/api/v1/metrics", &[("authorization", &bearer)], "").await.text;
    let count = metrics.lines().find_map(|line| line.strip_prefix("stepfold_live_streams "));
    count.unwrap().parse().unwrap()
}

/// A run of one process, followed at another one over the same store.
#[tokio::test]
async fn a_run_of_another_process_is_followed() {
    let (site, gate) = waiting_site(Limits::default()).await;
    let store: AnyStore = site.runner.store().clone();
    let other = Site::over(Runner::builder(agent("", Vec::new()), store).build(), Limits::default()).await;
    let mut live = site.live("ada", "s1", None).await;
    let follow = async {
        live.until("tool_started").await;
        let id = task(&other).await;
        let both = async {
            tokio::join!(ask(&other, Method::GET, "/ai/clerk/s1/stream", &[], ""), subscribe(&other, &id))
        };
        let open = async {
            while streams(&other).await < 2 {
                tokio::task::yield_now().await;
            }
            gate.add_permits(1);
        };
        tokio::join!(both, open).0
    };
    let (sent, (resumed, subscribed)) = tokio::join!(send(&site, "a2a", "wait"), follow);
    for reply in [&sent, &resumed, &subscribed] {
        assert!(reply.text.contains("done"), "{}", reply.text);
    }
    let last = events(&subscribed).last().unwrap()["result"]["statusUpdate"].clone();
    assert_eq!(last["status"]["state"], "TASK_STATE_COMPLETED", "{}", subscribed.text);
    let finish = events(&resumed).last().unwrap().clone();
    assert_eq!((&finish["type"], &finish["messageMetadata"]["exit"]), (&json!("finish"), &json!("text")));
}
