//! Protocols of others, byte by byte: what their clients do not try.

use http::Method;
use serde_json::{Value, json};
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::MemoryStore;
use stepfold_tools::{Approval, RawArgs, Tool, ToolContext, ToolError};

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
    // A webhook that comes too late, or for a call that never waited.
    let token = run["pending"][0]["token"].as_str().unwrap().replace("c1", "c9");
    let late = site.post("ada", "/sessions/s1/complete", json!({"token": token, "result": 7})).await;
    assert_eq!(late.problem(), (409, "not_awaited".to_owned()));
    let other = site.post("ada", "/sessions/s1/complete", json!({"token": body["token"], "result": 8})).await;
    assert_eq!(other.problem(), (409, "key_reused".to_owned()));
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

/// By whatever protocol: a parameter that only the state sets is not a person's to give. They are told so, and the request
/// stays.
#[tokio::test]
async fn what_only_the_state_sets_is_refused_to_the_decider() {
    let parameters = json!({"type": "object", "properties": {
        "account": {"type": "integer"}, "euro": {"type": "integer"},
    }});
    let send = Tool::new("send", "Sends money.", async |RawArgs(arguments): RawArgs| {
        Ok::<_, ToolError>(arguments["account"].clone())
    });
    let send = send.parameters(parameters).input_from_state("spent", "account").approval(Approval::Always);
    let model = "assistant: > c1 send(euro=3)\nassistant: Sent.";
    let runner = Runner::builder(agent(model, vec![send.build().unwrap()]), MemoryStore::new()).build();
    let site = Site::over(runner, Limits::default()).await;
    site.post("ada", "/sessions", json!({"id": "s1", "values": {"spent": 7}})).await;
    let message = json!([{"id": "u1", "role": "user", "content": "send it"}]);
    let told = events(
        &post(&site, "/agui/clerk", &[], &json!({"threadId": "s1", "runId": "r1", "messages": message}))
            .await,
    );
    let id = told.last().unwrap()["outcome"]["interrupts"][0]["id"].clone();
    let given = json!({"euro": 3, "account": 8});
    let of_api = json!({"decisions": {id.as_str().unwrap(): {"modify": {"arguments": given}}}});
    let refused = site.post("ada", "/sessions/s1/decisions", of_api.clone()).await;
    assert_eq!(refused.status, 422, "{}", refused.text);
    let resume = json!({"threadId": "s1", "runId": "r2", "resume": [
        {"interruptId": id, "status": "resolved", "payload": {"approved": true, "arguments": given}},
    ]});
    let agui = post(&site, "/agui/clerk", &[], &resume).await;
    let list = json!({"jsonrpc": "2.0", "id": 7, "method": "ListTasks", "params": {}});
    let tasks = post(&site, "/a2a/clerk", &[("a2a-version", "1.0")], &list).await.json();
    let task = &tasks["result"]["tasks"][0]["id"];
    let answer = json!({"messageId": "a", "role": "ROLE_USER", "taskId": task, "parts": [{"data": of_api}]});
    let a2a = json!({"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": {"message": answer}});
    let a2a = post(&site, "/a2a/clerk", &[("a2a-version", "1.0")], &a2a).await;
    for refused in [refused, agui, a2a] {
        assert!(refused.text.contains("only the state sets it"), "{}", refused.text);
        let pending = site.get("ada", "/sessions/s1").await.json()["pending"].clone();
        assert_eq!(pending[0]["id"], id, "{pending}");
    }
    assert_eq!(versions(&site, "s1").await.last(), Some(&json!("replied")), "nothing is recorded");
}

/// A field of a completion that would give the answer another meaning is refused by its name, and leaves nothing behind.
#[tokio::test]
async fn a_completion_does_not_ignore_what_changes_its_meaning() {
    let site = Site::new("assistant: area 3").await;
    let completion = async |field: &str, value: Value| {
        let mut chat = json!({"model": "clerk", "messages": [{"role": "user", "content": "hi"}]});
        chat[field] = value;
        post(&site, "/v1/chat/completions", &[], &chat).await
    };
    let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}});
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    for (field, value) in [
        ("response_format", schema),
        ("response_format", json!({"type": "json_object"})),
        ("tools", tool.clone()),
        ("functions", json!([{"name": "f"}])),
        ("tool_choice", json!("none")),
        ("tool_choice", json!({"type": "function", "function": {"name": "f"}})),
        ("function_call", json!("none")),
        ("web_search_options", json!({"search_context_size": "low"})),
        ("n", json!(2)),
        ("stop", json!("\n")),
        ("stop", json!(["a"])),
        ("logprobs", json!(true)),
        ("top_logprobs", json!(2)),
        ("logit_bias", json!({"50256": -100})),
        ("modalities", json!(["text", "audio"])),
        ("audio", json!({"voice": "x", "format": "mp3"})),
        (
            "messages",
            json!([{"role": "assistant", "content": null, "tool_calls": tool}, {"role": "user", "content": "hi"}]),
        ),
        (
            "messages",
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        ),
    ] {
        let refused = completion(field, value.clone()).await;
        assert_eq!(refused.problem(), (400, "invalid".to_owned()), "{field}: {value}");
        let error = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(error.contains(field), "{field}: {error}");
    }
    let sessions = site.get("ada", "/sessions").await.json();
    assert_eq!(sessions["sessions"], json!([]));
    for (field, value) in [
        ("response_format", json!({"type": "text"})),
        ("response_format", json!(null)),
        ("tools", json!([])),
        ("tool_choice", json!("auto")),
        ("n", json!(1)),
        ("stop", json!(null)),
        ("logprobs", json!(false)),
        ("modalities", json!(["text"])),
        ("temperature", json!(0.2)),
        ("max_tokens", json!(5)),
        ("user", json!("u")),
        ("messages", json!([{"role": "assistant", "content": ""}, {"role": "user", "content": "hi"}])),
    ] {
        let answer = completion(field, value.clone()).await;
        let told = &answer.json()["choices"][0]["message"]["content"];
        assert_eq!(told, "area 3", "{field}: {value}: {}", answer.text);
    }
}

#[tokio::test]
async fn a_model_is_an_app() {
    let site = Site::new("").await;
    let bearer = site.bearer("reader");
    let get = async |path: &str| site.raw(Method::GET, path, &[("authorization", &bearer)], "").await;
    let model = get("/v1/models/clerk").await.json();
    assert_eq!(model, get("/v1/models").await.json()["data"][0]);
    assert_eq!((&model["id"], &model["object"]), (&json!("clerk"), &json!("model")));
    let unknown = get("/v1/models/gpt-9").await;
    assert_eq!((unknown.problem().0, &unknown.json()["error"]["code"]), (404, &json!("unknown_app")));
}

/// A page of an allowed origin may send what the official client of OpenAI sends, and no other header than ours.
#[tokio::test]
async fn a_page_may_use_the_client_of_openai() {
    let site = Site::new("").await;
    let asked =
        "authorization,content-type,x-stainless-arch,X-Stainless-Retry-Count, x-other,x-stainless-a b";
    let headers = [
        ("origin", "https://app.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", asked),
    ];
    let preflight = site.raw(Method::OPTIONS, "/v1/chat/completions", &headers, "").await;
    let allowed = preflight.headers["access-control-allow-headers"].to_str().unwrap().to_owned();
    let names: Vec<&str> = allowed.split(", ").collect();
    for name in ["authorization", "content-type", "user-agent", "x-stainless-arch", "x-stainless-retry-count"]
    {
        assert!(names.contains(&name), "{name}: {allowed}");
    }
    assert!(!allowed.contains("x-other") && !allowed.contains("a b"), "{allowed}");
    let foreign = [("origin", "https://evil.test"), headers[1], headers[2]];
    let refused = site.raw(Method::OPTIONS, "/v1/chat/completions", &foreign, "").await;
    assert!(!refused.headers.contains_key("access-control-allow-headers"));
}
