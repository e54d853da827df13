//! What a careless or hostile client of any protocol may send: other users' sessions, decisions from everywhere at once,
//! repeated ids, history again, names of any form.

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::MemoryStore;
use stepfold_state_core::chat::Message;

use super::clients::{A2A, ALL, events, request, rpc};
use super::site::{Reply, Site, agent_of};

const PAY: &str = "assistant: > c1 pay()\nassistant: paid";

async fn post(site: &Site, user: &str, path: &str, more: &[(&str, &str)], body: &Value) -> Reply {
    let bearer = site.bearer(user);
    let mut headers = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
    headers.extend(more);
    site.raw(Method::POST, path, &headers, &body.to_string()).await
}

async fn say(site: &Site, user: &str, protocol: &str, text: &str) -> Reply {
    let (path, headers, body) = request(protocol, text);
    post(site, user, path, &headers, &body).await
}

async fn session(site: &Site) -> Value {
    site.get("ada", "/sessions/s1").await.json()
}

/// The ids of what waits in `s1`.
async fn pending(site: &Site) -> Vec<String> {
    let session = session(site).await;
    let pending = session["pending"].as_array().unwrap().iter();
    pending.map(|request| request["id"].as_str().unwrap().to_owned()).collect()
}

async fn spent(site: &Site) -> Value {
    site.get("ada", "/sessions/s1/state").await.json()["values"]["spent"].clone()
}

/// The task of the newest run in `s1`.
async fn task(site: &Site) -> String {
    let listed = post(site, "ada", "/a2a/clerk", &[A2A], &rpc("ListTasks", json!({"contextId": "s1"}))).await;
    listed.json()["result"]["tasks"][0]["id"].as_str().unwrap().to_owned()
}

/// A decision about a request in `s1`, as a client of the protocol sends it: the path, headers and the body.
fn decision(
    protocol: &str,
    id: &str,
    is_yes: bool,
    task: &str,
) -> (&'static str, Vec<(&'static str, &'static str)>, Value) {
    match protocol {
        "api" => {
            let decision = if is_yes { json!("approve") } else { json!({"reject": {"reason": "no"}}) };
            let body = json!({"decisions": {id: decision}});
            ("/api/v1/apps/clerk/sessions/s1/decisions", Vec::new(), body)
        }
        "agui" => {
            let resume = json!([{"interruptId": id, "status": "resolved", "payload": {"approved": is_yes}}]);
            let body = json!({"threadId": "s1", "runId": format!("r-{id}-{is_yes}"), "resume": resume});
            ("/agui/clerk", Vec::new(), body)
        }
        "ai" => {
            let approval = json!({"id": id, "approved": is_yes});
            let part = json!({"type": "dynamic-tool", "state": "approval-responded", "approval": approval});
            let message = json!({"id": "m1", "role": "assistant", "parts": [part]});
            ("/ai/clerk", Vec::new(), json!({"id": "s1", "messages": [message]}))
        }
        "adk" => {
            let answer =
                json!({"id": id, "name": "adk_request_confirmation", "response": {"confirmed": is_yes}});
            let message = json!({"role": "user", "parts": [{"functionResponse": answer}]});
            let body =
                json!({"appName": "clerk", "userId": "user", "sessionId": "s1", "newMessage": message});
            ("/run", Vec::new(), body)
        }
        "a2a" => {
            let decision = if is_yes { json!("approve") } else { json!({"reject": {"reason": "no"}}) };
            let part = json!({"data": {"decisions": {id: decision}}});
            let message = json!({"messageId": "d", "taskId": task, "role": "ROLE_USER", "parts": [part]});
            ("/a2a/clerk", vec![A2A], rpc("SendMessage", json!({"message": message})))
        }
        unknown => panic!("{unknown}"),
    }
}

const DECIDING: [&str; 5] = ["api", "agui", "ai", "adk", "a2a"];

/// Whether a decision was taken. One that was not is the client's fault, never the server's.
fn was_taken(protocol: &str, reply: &Reply) -> bool {
    assert!(!reply.status.is_server_error(), "{protocol}: {}", reply.text);
    if protocol == "a2a" && reply.status == 200 {
        let error = &reply.json()["error"];
        assert_ne!(error["code"], -32603, "{}", reply.text);
        return error.is_null();
    }
    reply.status.is_success()
}

async fn decide(site: &Site, protocol: &str, id: &str, is_yes: bool, task: &str) -> bool {
    let (path, headers, body) = decision(protocol, id, is_yes, task);
    was_taken(protocol, &post(site, "ada", path, &headers, &body).await)
}

#[tokio::test]
async fn decisions_from_all_protocols_at_once_count_once() {
    for _ in 0..4 {
        let site = Site::new(PAY).await;
        say(&site, "ada", "agui", "pay").await;
        let (ids, task) = (pending(&site).await, task(&site).await);
        assert_eq!(ids.len(), 1);
        let all = DECIDING.map(|protocol| decide(&site, protocol, &ids[0], protocol != "ai", &task));
        let taken: Vec<bool> = join_all(all).await;
        assert_eq!(taken.iter().filter(|taken| **taken).count(), 1, "{taken:?}");
        let rows = site.get("ada", "/sessions/s1/events").await.json();
        let kinds: Vec<_> = rows["events"].as_array().unwrap().iter().map(|row| &row["kind"]).collect();
        assert_eq!(kinds.iter().filter(|kind| **kind == "decided").count(), 1, "{kinds:?}");
    }
}

#[tokio::test]
async fn two_calls_of_one_reply_are_decided_by_clients_of_two_protocols() {
    for first in DECIDING {
        for second in DECIDING.into_iter().filter(|second| *second != first) {
            let site = Site::new("assistant: > c1 pay() > c2 pay()\nassistant: done").await;
            say(&site, "ada", "agui", "pay").await;
            let (ids, task) = (pending(&site).await, task(&site).await);
            assert_eq!(ids.len(), 2);
            assert!(decide(&site, first, &ids[0], true, &task).await, "{first}");
            assert_eq!(pending(&site).await, [ids[1].clone()], "{first}");
            assert!(decide(&site, second, &ids[1], false, &task).await, "{first}, {second}");
            assert_eq!(spent(&site).await, 5, "{first}, {second}");
        }
    }
}

/// Some models number their calls from the start in each reply: a later call may have the id of an earlier one.
#[tokio::test]
async fn a_call_with_the_id_of_an_earlier_one_is_decided_anew() {
    for protocol in DECIDING {
        let site = Site::new("assistant: > c1 pay()\nassistant: > c1 pay()\nassistant: paid twice\nassistant: > c1 pay()\nassistant: no").await;
        say(&site, "ada", "agui", "pay").await;
        for (is_yes, sum) in [(true, 5), (true, 10), (false, 10)] {
            let (ids, task) = (pending(&site).await, task(&site).await);
            assert_eq!(ids.len(), 1, "{protocol} {sum}");
            assert!(decide(&site, protocol, &ids[0], is_yes, &task).await, "{protocol} {sum}");
            // The own API answers before the run is over.
            while session(&site).await["running"] == true {
                tokio::task::yield_now().await;
            }
            assert_eq!(spent(&site).await, sum, "{protocol}");
            if sum == 10 && is_yes {
                say(&site, "ada", "agui", "again").await;
            }
        }
        assert_eq!(pending(&site).await, Vec::<String>::new(), "{protocol}");
    }
}

#[tokio::test]
async fn a_session_of_another_user_does_not_exist_for_any_protocol() {
    let site = Site::new(PAY).await;
    say(&site, "ada", "agui", "the secret is marzipan").await;
    let (ids, task, before) = (pending(&site).await, task(&site).await, session(&site).await);
    let listed =
        post(&site, "bob", "/a2a/clerk", &[A2A], &rpc("ListTasks", json!({"contextId": "s1"}))).await;
    assert_eq!(listed.json()["result"]["tasks"], json!([]));
    for path in ["/ai/clerk/s1/stream", "/apps/clerk/users/ada/sessions/s1"] {
        let bearer = site.bearer("bob");
        let reply = site.raw(Method::GET, path, &[("authorization", &bearer)], "").await;
        assert_eq!(reply.problem(), (404, "unknown_session".to_owned()), "{path}");
    }
    for protocol in DECIDING {
        let (path, headers, body) = decision(protocol, &ids[0], true, &task);
        let reply = post(&site, "bob", path, &headers, &body).await;
        assert!(!was_taken(protocol, &reply), "{protocol}: {}", reply.text);
        assert!(!reply.text.contains("marzipan"), "{protocol}: {}", reply.text);
    }
    for method in ["GetTask", "CancelTask", "SubscribeToTask"] {
        let reply = post(&site, "bob", "/a2a/clerk", &[A2A], &rpc(method, json!({"id": task}))).await.json();
        assert_eq!(reply["error"]["code"], -32001, "{method}: {reply}");
    }
    // What Bob calls s1 is a session of his own, or none.
    for protocol in ALL {
        let reply = say(&site, "bob", protocol, "what is the secret?").await;
        let is_said = reply.text.contains("marzipan");
        assert!(!is_said && !reply.status.is_server_error(), "{protocol}: {}", reply.text);
    }
    assert_eq!(session(&site).await, before);
}

#[tokio::test]
async fn a_reader_sends_and_decides_nothing_by_any_protocol() {
    let site = Site::new(PAY).await;
    say(&site, "ada", "agui", "pay").await;
    let (ids, task, before) = (pending(&site).await, task(&site).await, session(&site).await);
    for protocol in ALL {
        let reply = say(&site, "reader", protocol, "hi").await;
        assert_eq!(reply.problem(), (403, "forbidden".to_owned()), "{protocol}");
    }
    for protocol in DECIDING {
        let (path, headers, body) = decision(protocol, &ids[0], true, &task);
        let reply = post(&site, "reader", path, &headers, &body).await;
        assert_eq!(reply.problem(), (403, "forbidden".to_owned()), "{protocol}");
    }
    let cancel = rpc("CancelTask", json!({"id": task}));
    assert_eq!(post(&site, "reader", "/a2a/clerk", &[A2A], &cancel).await.problem().0, 403);
    assert_eq!(session(&site).await, before);
}

#[tokio::test]
async fn a_task_is_found_whatever_its_context_and_message_are_called() {
    for (context, message) in [
        ("team@example.com", "m1"),
        ("s1", "m@1"),
        ("a@b@c", "@"),
        ("50%40", "100%"),
        ("a/b", "m/1"),
        ("x", "a%40b"),
    ] {
        let site = Site::new(PAY).await;
        let body = json!({"messageId": message, "contextId": context, "role": "ROLE_USER", "parts": [{"text": "pay"}]});
        let sent =
            post(&site, "ada", "/a2a/clerk", &[A2A], &rpc("SendMessage", json!({"message": body}))).await;
        let task = &sent.json()["result"]["task"];
        assert_eq!(task["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{context} {message}");
        let got =
            post(&site, "ada", "/a2a/clerk", &[A2A], &rpc("GetTask", json!({"id": task["id"]}))).await.json();
        assert_eq!(got["result"]["id"], task["id"], "{context} {message}: {got}");
        let yes = json!({"messageId": "yes", "taskId": task["id"], "role": "ROLE_USER", "parts": [{"text": "approve"}]});
        let done = post(&site, "ada", "/a2a/clerk", &[A2A], &rpc("SendMessage", json!({"message": yes})))
            .await
            .json();
        assert_eq!(
            done["result"]["task"]["status"]["state"], "TASK_STATE_COMPLETED",
            "{context} {message}: {done}"
        );
    }
}

#[tokio::test]
async fn a_message_without_words_is_refused_by_every_protocol() {
    let site = Site::new("assistant: what?").await;
    assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
    for protocol in ["openai", "agui", "ai", "adk", "a2a", "mcp"] {
        for words in ["", " \n"] {
            let reply = say(&site, "ada", protocol, words).await;
            let is_refused = match protocol {
                "a2a" | "mcp" => {
                    let told = events(&reply);
                    told.iter().any(|told| told["error"].is_object() || told["result"]["isError"] == true)
                }
                _ => reply.status == 400,
            };
            assert!(is_refused, "{protocol}: {} {}", reply.status, reply.text);
        }
    }
    assert_eq!(session(&site).await["version"], 0);
}

/// A client of AG-UI sends the whole conversation each time. One that was answered by nothing is in it, with no message of
/// another behind it.
#[tokio::test]
async fn a_message_that_had_no_answer_is_not_taken_again() {
    let site = Site::new("").await;
    let first = json!({"id": "u1", "role": "user", "content": "one"});
    let body = json!({"threadId": "s1", "runId": "r1", "messages": [first]});
    let told = events(&post(&site, "ada", "/agui/clerk", &[], &body).await);
    assert_eq!(told.last().unwrap()["type"], "RUN_ERROR");
    let site = site.again("assistant: hello\nassistant: and two").await;
    let both = json!([first, {"id": "u2", "role": "user", "content": "two"}]);
    let body = json!({"threadId": "s1", "runId": "r2", "messages": both});
    let sent = [
        post(&site, "ada", "/agui/clerk", &[], &body).await,
        post(&site, "ada", "/agui/clerk", &[], &body).await,
    ];
    let rows = site.get("ada", "/sessions/s1/events").await.json();
    let said = |reply| events(reply).iter().filter_map(|event| event["delta"].as_str()).collect::<String>();
    assert!(sent.iter().all(|reply| said(reply).contains("and two")), "{} {}", sent[1].text, rows);
    let messages =
        rows["events"].as_array().unwrap().iter().flat_map(|row| row["messages"].as_array().unwrap());
    let said: Vec<_> = messages
        .filter(|message| message["role"] == "user")
        .map(|message| message.pointer("/parts/0/text").unwrap().as_str().unwrap().to_owned())
        .collect();
    assert_eq!(said, ["one", "two"]);
}

/// All texts in an event.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::Object(fields) => fields.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

/// A line of a stream ends where the server ends it, whatever a model or a tool says.
#[tokio::test]
async fn what_models_say_ends_no_line_of_a_stream() {
    let odd = "a\\r\\ndata: [DONE]\\u2028\\u2029\\u0085\\u0000 <img src=x>";
    let odd: String = serde_json::from_str(&format!("\"{odd}\"")).unwrap();
    for protocol in ["openai", "agui", "ai", "adk", "a2a"] {
        let agent = agent_of(Script::new([Message::assistant(odd.as_str())]).whole(), Vec::new());
        let site = Site::over(Runner::builder(agent, MemoryStore::new()).build(), Limits::default()).await;
        assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
        let reply = say(&site, "ada", protocol, "hi").await;
        let blocks = reply.text.split("\n\n").filter(|block| !block.is_empty());
        for data in blocks.map(|block| block.strip_prefix("data: ").expect(block)) {
            assert!(data == "[DONE]" || serde_json::from_str::<Value>(data).is_ok(), "{protocol}: {data}");
        }
        let told: Vec<String> = events(&reply).iter().map(|event| texts(event).concat()).collect();
        assert!(told.concat().contains(&odd), "{protocol}: {}", reply.text);
    }
}

/// What a client decides in a session that is not there creates none.
#[tokio::test]
async fn decisions_create_no_session() {
    for protocol in DECIDING {
        let site = Site::new(PAY).await;
        let taken = decide(&site, protocol, "ask-c1", true, "m@s1").await;
        assert!(!taken, "{protocol}");
        let sessions = site.get("ada", "/sessions").await.json();
        assert_eq!(sessions["sessions"], json!([]), "{protocol}");
        if ["agui", "ai"].contains(&protocol) {
            let (path, headers, body) = decision(protocol, "ask-c1", true, "");
            let reply = post(&site, "ada", path, &headers, &body).await;
            assert_eq!(reply.problem(), (404, "unknown_session".to_owned()), "{protocol}");
        }
    }
}

/// A client beyond a limit, in a session that is not there, in none or in one that is, leaves nothing behind: it sends its
/// message again.
#[tokio::test]
async fn a_refused_message_creates_no_session() {
    for limit in ["runs", "streams"] {
        let mut limits = Limits::default();
        match limit {
            "runs" => limits.runs_per_user = 0,
            _ => limits.streams_per_user = 0,
        }
        let runner =
            Runner::builder(agent_of(Script::parse("").unwrap(), Vec::new()), MemoryStore::new()).build();
        let site = Site::over(runner, limits).await;
        let protocols = ["openai", "agui", "ai", "a2a"];
        for protocol in protocols {
            let reply = say(&site, "ada", protocol, "hi").await;
            assert_eq!(reply.problem(), (429, "too_many".to_owned()), "{limit} {protocol}: {}", reply.text);
        }
        let (path, _, body) = request("openai", "hi");
        assert_eq!(post(&site, "ada", path, &[], &body).await.status, 429);
        assert_eq!(site.get("ada", "/sessions").await.json()["sessions"], json!([]), "{limit}");
        assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
        for protocol in protocols.into_iter().chain(["adk"]) {
            let reply = say(&site, "ada", protocol, "hi").await;
            assert_eq!(reply.problem(), (429, "too_many".to_owned()), "{limit} {protocol}: {}", reply.text);
        }
        let session = session(&site).await;
        assert_eq!((&session["version"], &session["inbox"]), (&json!(0), &json!([])), "{limit}");
    }
}

/// A completion without a session deletes what it has made, and no more than that.
#[tokio::test]
async fn a_completion_deletes_only_what_it_has_made() {
    let completion = json!({"model": "clerk", "messages": [{"role": "user", "content": "pay"}]});
    let key = [("idempotency-key", "k1")];
    let path = "/v1/chat/completions";
    let exists =
        async |site: &Site, id: &str| site.get("ada", &format!("/sessions/{id}")).await.status == 200;
    let site = Site::new(PAY).await;
    // The run waits, so that its session is kept; the decision of a person is in it then.
    let first = post(&site, "ada", path, &key, &completion).await;
    let id = first.headers["x-stepfold-session"].to_str().unwrap().to_owned();
    let detail = site.get("ada", &format!("/sessions/{id}")).await.json();
    let request = detail["pending"][0]["id"].as_str().unwrap();
    let mut live = site.live("ada", &id, None).await;
    site.post("ada", &format!("/sessions/{id}/decisions"), json!({"decisions": {request: "approve"}})).await;
    live.until("ended").await;
    drop(live);
    for _ in 0..2 {
        let again = post(&site, "ada", path, &key, &completion).await;
        assert_eq!(
            (again.status.as_u16(), &again.headers["x-stepfold-session"]),
            (200, &id.parse().unwrap())
        );
    }
    // A client that knows the key knows the id before the first request.
    let other = Site::new("assistant: one\nassistant: two\nassistant: three").await;
    assert_eq!(other.post("ada", "/sessions", json!({"id": id})).await.status, 201);
    other.post("ada", &format!("/sessions/{id}/run"), json!({"text": "hi"})).await;
    assert_eq!(post(&other, "ada", path, &key, &completion).await.status, 200);
    let alone = post(&other, "ada", path, &[], &completion).await;
    let of_request = alone.headers["x-stepfold-session"].to_str().unwrap();
    while exists(&other, of_request).await {
        tokio::task::yield_now().await;
    }
    // What is deleted is deleted soon after the answer.
    // tidy: allow sleep, because nothing tells that a session was not deleted
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(exists(&site, &id).await && exists(&other, &id).await);
}

/// Requests under one key at once, and later ones, have the answer of the first; an invalid key leaves no session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions_under_one_key_have_one_answer() {
    let site = Site::new("assistant: first\nassistant: second").await;
    let completion = json!({"model": "clerk", "messages": [{"role": "user", "content": "hi"}]});
    let path = "/v1/chat/completions";
    for round in 0..8 {
        let name = format!("k{round}");
        let key = [("idempotency-key", name.as_str())];
        let again = || post(&site, "ada", path, &key, &completion);
        let mut replies = futures_util::future::join_all((0..6).map(|_| again())).await;
        replies.push(again().await);
        for reply in replies {
            assert_eq!(reply.status, 200, "{}", reply.text);
            assert_eq!(reply.json()["choices"][0]["message"]["content"], "first");
        }
    }
    let versions = async || {
        let page = site.get("ada", "/sessions").await.json();
        page["sessions"].as_array().unwrap().iter().map(|row| row["version"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(versions().await, [2; 8], "each ran once");
    let long = "x".repeat(300);
    let refused = post(&site, "ada", path, &[("idempotency-key", &long)], &completion).await;
    assert_eq!((refused.status.as_u16(), versions().await.len()), (400, 8), "{}", refused.text);
}

/// A client of the AI SDK that lost the answer sends its whole message again.
#[tokio::test]
async fn a_decision_that_is_sent_again_is_taken_once() {
    let site =
        Site::new("assistant: > c1 pay()\nassistant: one\nassistant: > c2 pay()\nassistant: two").await;
    say(&site, "ada", "ai", "pay").await;
    let first = pending(&site).await.remove(0);
    let approval = |id: &str, is_yes: bool| json!({"type": "dynamic-tool", "state": "approval-responded", "approval": {"id": id, "approved": is_yes}});
    let sent = |parts: Value| {
        let body = json!({"id": "s1", "messages": [{"id": "m1", "role": "assistant", "parts": parts}]});
        let site = &site;
        async move { post(site, "ada", "/ai/clerk", &[], &body).await }
    };
    let text = |reply: &Reply| -> String {
        events(reply).iter().filter_map(|part| part["delta"].as_str()).collect()
    };
    for _ in 0..3 {
        assert_eq!(text(&sent(json!([approval(&first, true)])).await), "one");
    }
    let commits = session(&site).await["version"].clone();
    // Another decision about the same is a conflict, and a decision about nothing is invalid.
    assert_eq!(sent(json!([approval(&first, false)])).await.problem().0, 409);
    assert_eq!(sent(json!([approval("c9", true)])).await.problem(), (400, "invalid".to_owned()));
    assert_eq!(session(&site).await["version"], commits);
    // A message keeps the decisions that it had before.
    say(&site, "ada", "agui", "pay again").await;
    let second = pending(&site).await.remove(0);
    for _ in 0..2 {
        assert_eq!(text(&sent(json!([approval(&first, true), approval(&second, true)])).await), "two");
    }
    assert_eq!(spent(&site).await, 10);
}

#[tokio::test]
async fn a_message_id_with_another_text_is_invalid_in_a2a() {
    let site = Site::new("assistant: one\nassistant: two").await;
    let send = |text: &str| {
        let message =
            json!({"messageId": "m1", "contextId": "s1", "role": "ROLE_USER", "parts": [{"text": text}]});
        let call = rpc("SendMessage", json!({"message": message}));
        let site = &site;
        async move { post(site, "ada", "/a2a/clerk", &[A2A], &call).await.json() }
    };
    let task = send("hi").await["result"]["task"]["id"].clone();
    let commits = session(&site).await["version"].clone();
    let error = send("bye").await["error"].clone();
    assert_eq!((&error["code"], &error["data"][0]["reason"]), (&json!(-32602), &json!("INVALID_PARAMS")));
    assert!(error["message"].as_str().unwrap().contains("`messageId` was used"), "{error}");
    assert_eq!(send("hi").await["result"]["task"]["id"], task);
    assert_eq!(session(&site).await["version"], commits);
}
