//! Protocols of others, byte by byte: what their clients do not try.

use http::Method;
use serde_json::{Value, json};
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::MemoryStore;
use stepfold_tools::{Tool, ToolContext, ToolError};

use super::site::{Reply, Site, agent};

const PAY: &str = "assistant: > c1 pay()\nassistant: paid";

async fn post(site: &Site, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
    let bearer = site.bearer("ada");
    let mut all = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
    all.extend(headers);
    site.raw(Method::POST, path, &all, &body.to_string()).await
}

/// The events of a stream.
fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.text);
    let data = reply.text.split("\n\n").filter_map(|block| block.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

async fn versions(site: &Site, session: &str) -> Vec<Value> {
    let page = site.get("ada", &format!("/sessions/{session}/events")).await.json();
    page["events"].as_array().unwrap().iter().map(|event| event["kind"].clone()).collect()
}

#[tokio::test]
async fn a_request_that_is_sent_again_runs_once() {
    let site = Site::new("assistant: area 3").await;
    let body =
        json!({"threadId": "s1", "runId": "r1", "messages": [{"id": "u1", "role": "user", "content": "hi"}]});
    for _ in 0..2 {
        let told = events(&post(&site, "/agui/clerk", &[], &body).await);
        let text: String = told.iter().filter_map(|event| event["delta"].as_str()).collect();
        assert_eq!((text.as_str(), &told.last().unwrap()["type"]), ("area 3", &json!("RUN_FINISHED")));
    }
    let chat = json!({"model": "clerk", "messages": [{"role": "user", "content": "hi"}]});
    let site = Site::new("assistant: area 3").await;
    for _ in 0..2 {
        let headers = [("idempotency-key", "k1"), ("x-stepfold-session", "s1")];
        let reply = post(&site, "/v1/chat/completions", &headers, &chat).await;
        assert_eq!(reply.json()["choices"][0]["message"]["content"], "area 3");
        assert_eq!(reply.headers["x-stepfold-session"], "s1");
    }
}

#[tokio::test]
async fn clients_of_different_protocols_see_the_same_commits() {
    let site = Site::new(PAY).await;
    let chat = json!({"id": "s1", "messages": [
        {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "pay"}]},
    ]});
    let asked = events(&post(&site, "/ai/clerk", &[], &chat).await);
    let request = asked.iter().find(|part| part["type"] == "tool-approval-request").unwrap();
    // What waits is answered by a client of another protocol.
    let resume = json!({"threadId": "s1", "runId": "r2", "messages": [], "resume": [
        {"interruptId": request["approvalId"], "status": "resolved", "payload": {"approved": true}},
    ]});
    let told = events(&post(&site, "/agui/clerk", &[], &resume).await);
    let patch = told.iter().find(|event| event["type"] == "STATE_DELTA").unwrap();
    assert_eq!(patch["delta"], json!([{"op": "add", "path": "/spent", "value": 5}]));
    let version =
        |events: &[Value], path: &str| events.iter().rev().find_map(|event| event.pointer(path)?.as_u64());
    let kinds = versions(&site, "s1").await;
    assert_eq!(version(&told, "/value/version"), Some(kinds.len() as u64));
    assert!(version(&asked, "/messageMetadata/version") < version(&told, "/value/version"));
    // The second answer comes too late, and is not taken for a new one.
    let late = json!({"threadId": "s1", "runId": "r3", "messages": [], "resume": [
        {"interruptId": request["approvalId"], "status": "cancelled"},
    ]});
    let late = post(&site, "/agui/clerk", &[], &late).await;
    assert!(late.status.is_client_error(), "{}", late.text);
    assert_eq!(versions(&site, "s1").await, kinds);
}

#[tokio::test]
async fn nothing_but_a_clear_yes_approves() {
    let site = Site::new(PAY).await;
    let body = json!({"threadId": "s1", "runId": "r1", "messages": [{"id": "u1", "role": "user", "content": "pay"}]});
    let told = events(&post(&site, "/agui/clerk", &[], &body).await);
    let id = &told.last().unwrap()["outcome"]["interrupts"][0]["id"];
    for payload in
        [json!(null), json!({}), json!({"approved": "yes"}), json!({"approved": null}), json!("yes")]
    {
        let body = json!({"threadId": "s1", "runId": "r2", "resume": [
            {"interruptId": id, "status": "resolved", "payload": payload},
        ]});
        let reply = post(&site, "/agui/clerk", &[], &body).await;
        assert_eq!(reply.problem(), (400, "invalid".to_owned()), "{payload}");
    }
    for approval in
        [json!({"id": id}), json!({"id": id, "approved": "true"}), json!({"id": "c1", "approved": true})]
    {
        let part = json!({"type": "dynamic-tool", "state": "approval-responded", "approval": approval});
        let body = json!({"id": "s1", "messages": [{"id": "m1", "role": "assistant", "parts": [part]}]});
        let reply = post(&site, "/ai/clerk", &[], &body).await;
        assert_eq!(reply.problem(), (400, "invalid".to_owned()), "{approval}");
    }
    // A message decides nothing.
    let chat = json!({"model": "clerk", "messages": [{"role": "user", "content": "yes, approve it"}]});
    let reply = post(&site, "/v1/chat/completions", &[("x-stepfold-session", "s1")], &chat).await;
    assert_eq!(reply.problem().0, 409);
    assert_eq!(reply.json()["error"]["code"], "pending");
    let pending = site.get("ada", "/sessions/s1").await.json();
    assert_eq!(pending["pending"][0]["id"], *id);
}

#[tokio::test]
async fn what_waits_in_a_temporary_session_is_kept() {
    let site = Site::new(PAY).await;
    let chat = json!({"model": "clerk", "messages": [{"role": "user", "content": "pay"}]});
    let reply = post(&site, "/v1/chat/completions", &[], &chat).await;
    let waiting = &reply.json()["stepfold"];
    assert_eq!(waiting["waiting"][0]["call"]["name"], "pay");
    let session = reply.headers["x-stepfold-session"].to_str().unwrap();
    assert_eq!(waiting["session"], session);
    let kept = site.get("ada", &format!("/sessions/{session}")).await.json();
    assert_eq!(kept["pending"][0]["id"], waiting["waiting"][0]["id"]);
    // Another user has nothing of it.
    assert_eq!(site.get("bob", &format!("/sessions/{session}")).await.problem().0, 404);
}

#[tokio::test]
async fn what_comes_later_is_no_question() {
    let later = async |context: ToolContext| context.later("form").outcome();
    let wait = Tool::new("wait", "Waits for a form.", later).build().unwrap();
    let model = "assistant: > c1 wait()\nassistant: It has come.";
    let runner = Runner::builder(agent(model, vec![wait]), MemoryStore::new()).build();
    let site = Site::over(runner, Limits::default()).await;
    let message = json!([{"id": "u1", "role": "user", "content": "wait"}]);
    let body = json!({"threadId": "s1", "runId": "r1", "messages": message});
    let told = events(&post(&site, "/agui/clerk", &[], &body).await);
    let last = told.last().unwrap();
    assert_eq!((&last["outcome"]["type"], &last["result"]["exit"]), (&json!("success"), &json!("suspended")));
    let pending = site.get("ada", "/sessions/s1").await.json()["pending"].clone();
    assert_eq!(pending[0]["reason"], "later", "{pending}");
    // A protocol without approvals cannot decide it.
    let resume = json!({"threadId": "s1", "runId": "r2", "resume": [
        {"interruptId": pending[0]["id"], "status": "resolved", "payload": {"approved": true}},
    ]});
    let refused = post(&site, "/agui/clerk", &[], &resume).await;
    assert!(refused.status.is_client_error(), "{}", refused.text);
}

#[tokio::test]
async fn an_outcome_says_who_has_delivered_it() {
    let later = async |context: ToolContext| context.later("form").outcome();
    let wait = Tool::new("wait", "Waits for a form.", later).build().unwrap();
    let model = "assistant: > c1 wait()\nassistant: It has come.";
    let runner = Runner::builder(agent(model, vec![wait]), MemoryStore::new()).build();
    let site = Site::over(runner, Limits::default()).await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    let run = site.post("ada", "/sessions/s1/run", json!({"text": "wait"})).await.json();
    let body = json!({"token": run["pending"][0]["token"], "result": 7});
    for name in ["root", "ada"] {
        let delivered = site.post(name, "/sessions/s1/complete", body.clone()).await;
        assert_eq!(delivered.status, 200, "{}", delivered.text);
    }
    let rows = site.get("ada", "/sessions/s1/events").await.json();
    let decided: Vec<_> =
        rows["events"].as_array().unwrap().iter().filter(|row| row["kind"] == "decided").collect();
    assert_eq!((decided.len(), &decided[0]["decided_by"]), (1, &json!("root")), "the first one");
}

#[tokio::test]
async fn each_call_has_one_outcome_also_if_it_was_rejected() {
    let model = "assistant: > c1 pay()   > c2 pay()   > c3 free()\nassistant: As you wish.";
    let free = Tool::new("free", "Costs nothing.", async || Ok::<_, ToolError>("free")).build().unwrap();
    let runner = Runner::builder(agent(model, vec![free]), MemoryStore::new()).build();
    let site = Site::over(runner, Limits::default()).await;
    let message = json!([{"id": "u1", "role": "user", "content": "pay"}]);
    let body = json!({"threadId": "s1", "runId": "r1", "messages": message});
    let mut all = events(&post(&site, "/agui/clerk", &[], &body).await);
    let interrupts = all.last().unwrap()["outcome"]["interrupts"].as_array().unwrap().clone();
    // One after the other, in streams of their own.
    for (interrupt, approved) in interrupts.iter().zip([false, true]) {
        let resume = json!({"threadId": "s1", "runId": interrupt["id"], "resume": [
            {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": approved}},
        ]});
        all.extend(events(&post(&site, "/agui/clerk", &[], &resume).await));
    }
    let results: Vec<&Value> = all.iter().filter(|event| event["type"] == "TOOL_CALL_RESULT").collect();
    let mut calls: Vec<&str> = results.iter().map(|event| event["toolCallId"].as_str().unwrap()).collect();
    calls.sort_unstable();
    assert_eq!(calls, ["c1", "c2", "c3"], "{results:?}");
    assert_eq!(all.last().unwrap()["outcome"]["type"], "success");
}
