//! Attempts to read what was erased: by every operation of the document, with each value of each of its parameters, and by the
//! protocols of others. Each place is read before the erasure too, so that it is known to have had the content.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use stepfold_agent_loop::Agent;
use stepfold_runner::{Runner, SessionRecall};
use stepfold_server::http::{App, ExperimentFolder, Limits};
use stepfold_session_scopes::{AnyStore, MemoryStore, SqliteStore};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCall,
};
use stepfold_state_core::state::Schema;
use stepfold_tools::{RawArgs, Tool, ToolContext, ToolError};

use super::clients::{A2A, ALL, request, rpc};
use super::openapi::operations;
use super::site::{Reply, Site};

/// Content of events that are erased by their versions, of an erased call, of an erased session, and of an erased user.
const MARKERS: [&str; 4] = ["event-4711", "call-4712", "session-4713", "user-4714"];

/// A word of all messages, by which they are found.
const WORD: &str = "rhubarb";

/// Notes what it is told to, recalls, and repeats all that it is shown when it is asked to.
struct Clerk;

impl ChatModel for Clerk {
    fn id(&self) -> &'static str {
        "test/clerk"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let said = request.messages.iter().rev().find(|message| message.role() == Role::User);
        let said = said.map(|message| message.text().into_owned()).unwrap_or_default();
        let has_called = request.messages.last().is_some_and(|message| message.role() == Role::Tool);
        let call = |name: &str, arguments: Value| {
            Message::new(Role::Assistant).with_part(ToolCall::new("", name, arguments))
        };
        let message = match said.split_once(' ') {
            _ if said.contains("repeat") => Message::assistant(format!("{:?}", request.messages)),
            Some(("note", text)) if !has_called => call("note", json!({"text": text})),
            Some(("recall", query)) if !has_called => call("recall_sessions", json!({"query": query})),
            _ => Message::assistant("noted"),
        };
        let reason = if message.has_tool_calls() { FinishReason::ToolCalls } else { FinishReason::Stop };
        ReplyStream::from_chunks(Chunk::of(&message).into_iter().chain([Chunk::Finished(reason)]))
    }
}

fn agent(store: &AnyStore) -> Agent {
    let note = |RawArgs(arguments): RawArgs, context: ToolContext| async move {
        context.writer().set("user:note", arguments["text"].clone())?;
        Ok::<_, ToolError>(arguments)
    };
    let note = Tool::new("note", "Notes.", note).parameters(
        json!({"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": true}),
    );
    let recall = SessionRecall::over(store.clone()).toolset().unwrap();
    let schema = Schema::builder().key::<String>("user:note").key::<String>("topic").build().unwrap();
    let agent = Agent::builder(Clerk).name("clerk").schema(schema);
    agent.tools(recall.with_tool(note.writes(["user:note"]).build().unwrap())).build().unwrap()
}

async fn site(store: AnyStore, folder: &std::path::Path) -> Site {
    let runner = Runner::builder(agent(&store), store).app("clerk").unwrap().build();
    let app = App::from(runner).experiments(ExperimentFolder::new(folder));
    Site::of(app, Limits::default()).await
}

async fn send_json(
    site: &Site,
    user: &str,
    method: Method,
    path: &str,
    more: &[(&str, &str)],
    body: &str,
) -> Reply {
    let bearer = site.bearer(user);
    let mut headers = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
    headers.extend(more);
    site.raw(method, path, &headers, body).await
}

/// Replaces texts of messages, and not their ids: ids of messages stay with events.
fn set_text(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_text = ["text", "content", "message"].contains(&name.as_str());
                if is_text && value.as_str() == Some(from) {
                    *value = to.into();
                } else {
                    set_text(value, from, to);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| set_text(item, from, to)),
        _ => {}
    }
}

/// Sends a message to `s1` by a protocol.
async fn say(site: &Site, protocol: &str, id: &str, text: &str) -> Reply {
    let (path, headers, mut body) = request(protocol, id);
    set_text(&mut body, id, text);
    let reply = send_json(site, "ada", Method::POST, path, &headers, &body.to_string()).await;
    assert_eq!(reply.status, 200, "{protocol}: {}", reply.text);
    reply
}

/// The messages of people before anything is erased.
async fn plant(site: &Site) {
    let [event, call, session, user] = MARKERS;
    for (name, id) in [("ada", "s1"), ("ada", "s2"), ("bob", "b1")] {
        site.post(name, "/sessions", json!({"id": id})).await;
    }
    for protocol in ALL {
        say(site, protocol, &format!("m-{protocol}"), &format!("{WORD} {event}")).await;
    }
    for (name, id, text) in [
        ("ada", "s1", format!("note {WORD} {call}")),
        ("ada", "s2", format!("{WORD} {session}")),
        ("bob", "b1", format!("note {WORD} {user}")),
    ] {
        let run = site.post(name, &format!("/sessions/{id}/run"), json!({"text": text})).await;
        assert_eq!(run.status, 200, "{}", run.text);
        let case = json!({"data_set": "mine", "session": id});
        let added = site.post(name, "/cases", case).await;
        assert!(added.status.is_success(), "{}", added.text);
    }
    edit(site, "s2", json!({"topic": format!("{WORD} {session}")})).await;
    for (session, fork) in [("s1", "f1"), ("f1", "f2"), ("s2", "f3")] {
        let forked = site.post("ada", &format!("/sessions/{session}/fork"), json!({"id": fork})).await;
        assert!(forked.status.is_success(), "{}", forked.text);
    }
}

async fn edit(site: &Site, session: &str, values: Value) {
    let path = format!("/sessions/{session}");
    let expected = site.get("ada", &path).await.json()["version"].clone();
    let body = json!({"set": values, "expected": expected}).to_string();
    let edited = site.ask("ada", Method::PATCH, &format!("{path}/state"), &[], &body).await;
    assert!(edited.status.is_success(), "{}", edited.text);
}

/// Values that a parameter of this name and schema may have.
fn candidates(parameter: &Value) -> Vec<String> {
    let name = parameter["name"].as_str().unwrap();
    let texts: &[&str] = match name {
        "app" => &["clerk"],
        "user" => &["ada", "bob"],
        "session" | "with" => &["s1", "f1", "f2", "f3", "s2", "b1", "copy"],
        "version" | "at" | "from" | "to" | "around" | "before" => &["0", "1", "2", "3", "8", "24"],
        "limit" => &["1", "100"],
        "after" | "Last-Event-ID" => &["0", "1", "9"],
        "query" | "q" => &[WORD, "[erased]"],
        "key" => &["user:note", "topic"],
        "format" | "as" => &["json", "test", "scripted", "rust"],
        "sessions" => &["clerk/s1", "clerk/s1,clerk/f1,clerk/f2", "clerk/s2"],
        "path" => &["0", ""],
        "experiment" | "baseline" | "label" => &["mine"],
        _ => &["true", "1", "idle"],
    };
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// All paths of an operation, each with a query of what it needs, and of one more.
fn requests_of(path: &str, operation: &Value) -> Vec<String> {
    let parameters = operation["parameters"].as_array().unwrap();
    let mut paths = vec![path.to_owned()];
    for parameter in parameters.iter().filter(|parameter| parameter["in"] == "path") {
        let place = format!("{{{}}}", parameter["name"].as_str().unwrap());
        let of = |path: &String| {
            candidates(parameter).iter().map(|text| path.replace(&place, &encoded(text))).collect::<Vec<_>>()
        };
        paths = paths.iter().flat_map(of).collect();
    }
    let queries = queries(parameters.iter().filter(|parameter| parameter["in"] == "query").collect());
    let with =
        |path: &String| queries.iter().map(|query| format!("/api/v1{path}?{query}")).collect::<Vec<_>>();
    paths
        .iter()
        .map(|path| path.trim_start_matches("/api/v1").to_owned())
        .collect::<Vec<_>>()
        .iter()
        .flat_map(with)
        .collect()
}

fn queries(parameters: Vec<&Value>) -> Vec<String> {
    let pairs = |parameter: &Value| {
        let name = parameter["name"].as_str().unwrap().to_owned();
        candidates(parameter).into_iter().map(|text| format!("{name}={}", encoded(&text))).collect::<Vec<_>>()
    };
    let (needed, free): (Vec<&Value>, Vec<&Value>) =
        parameters.into_iter().partition(|parameter| parameter["required"] == true);
    let mut base = vec![String::new()];
    for parameter in needed {
        let more = pairs(parameter);
        base = base.iter().flat_map(|query| more.iter().map(move |pair| format!("{query}{pair}&"))).collect();
    }
    let mut all = base.clone();
    for parameter in free {
        for pair in pairs(parameter) {
            all.extend(base.iter().map(|query| format!("{query}{pair}&")));
        }
    }
    all
}

fn is_stream(operation: &Value) -> bool {
    operation
        .pointer("/responses/200/content")
        .is_some_and(|content| content.get("text/event-stream").is_some())
}

/// The events that a stream sends at once; it has no end.
async fn beginning(site: &Site, name: &str, path: &str) -> String {
    let bearer = site.bearer(name);
    let (_, _, mut body) = site.open(Method::GET, path, &[("authorization", bearer.as_str())], "").await;
    let mut text = String::new();
    while let Ok(Some(Ok(frame))) = tokio::time::timeout(Duration::from_millis(30), body.frame()).await {
        text += &String::from_utf8_lossy(&frame.into_data().unwrap_or_default());
    }
    text
}

/// The findings: for each marker the operations, or protocols, that told it.
type Told = BTreeMap<&'static str, BTreeSet<String>>;

fn note(told: &mut Told, by: &str, text: &str) {
    for marker in MARKERS {
        if text.contains(marker) {
            told.entry(marker).or_default().insert(by.to_owned());
        }
    }
}

/// Reads all that a user can by the API.
async fn read_api(site: &Site, name: &str, told: &mut Told) -> usize {
    let mut asked = 0;
    for (path, method, operation) in operations(&site.server.openapi()) {
        let id = operation["operationId"].as_str().unwrap();
        if method != "get" {
            continue;
        }
        for path in requests_of(&path, &operation) {
            asked += 1;
            let text = if is_stream(&operation) {
                beginning(site, name, &path).await
            } else {
                let reply = send_json(site, name, Method::GET, &path, &[], "").await;
                let is_fault = reply.status.is_server_error() && reply.status != StatusCode::NOT_IMPLEMENTED;
                assert!(!is_fault, "{path}: {}", reply.text);
                reply.text
            };
            note(told, id, &text);
        }
    }
    asked
}

fn modern(method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    });
    rpc(method, params)
}

async fn read_mcp(site: &Site, told: &mut Told) {
    for session in ["s1", "f1", "f2", "f3", "s2", "b1", "copy"] {
        let uri = format!("stepfold://sessions/{session}/transcript");
        for (method, what) in [("resources/list", ""), ("resources/read", uri.as_str())] {
            let headers = [
                ("accept", "application/json, text/event-stream"),
                ("mcp-protocol-version", "2026-07-28"),
                ("mcp-method", method),
                ("mcp-name", what),
            ];
            let body = modern(method, json!({"uri": uri})).to_string();
            let reply = send_json(site, "ada", Method::POST, "/mcp", &headers, &body).await;
            note(told, "mcp", &reply.text);
        }
    }
}

/// Reads by the protocols of others, without sending a message.
async fn read_protocols(site: &Site, told: &mut Told) {
    let sessions = ["s1", "f1", "f2", "f3", "s2", "copy"];
    for path in sessions.map(|id| format!("/apps/clerk/users/user/sessions/{id}")) {
        note(told, "adk", &send_json(site, "ada", Method::GET, &path, &[], "").await.text);
    }
    let listed = send_json(site, "ada", Method::GET, "/apps/clerk/users/user/sessions", &[], "").await;
    note(told, "adk", &listed.text);
    let mut calls = vec![("ListTasks", json!({"historyLength": 100, "includeArtifacts": true}))];
    for session in sessions {
        calls.push(("ListTasks", json!({"contextId": session, "historyLength": 100})));
        let tasks = ["m-a2a", "m-api", "m-adk"]
            .map(|id| json!({"id": format!("{id}@{session}"), "historyLength": 100}));
        calls.extend(tasks.iter().map(|task| ("GetTask", task.clone())));
        calls.extend(tasks.map(|task| ("SubscribeToTask", task)));
    }
    for (method, params) in calls {
        let body = rpc(method, params).to_string();
        note(told, "a2a", &send_json(site, "ada", Method::POST, "/a2a/clerk", &[A2A], &body).await.text);
    }
    read_mcp(site, told).await;
}

async fn read_all(site: &Site) -> Told {
    let mut told = Told::new();
    for name in ["root", "bob"] {
        let asked = read_api(site, name, &mut told).await;
        assert!(asked > 300, "{asked}");
    }
    read_protocols(site, &mut told).await;
    told
}

async fn erase(site: &Site, body: Value) {
    let erased = site.post("root", "/erasures", body).await;
    assert_eq!(erased.status, 200, "{}", erased.text);
}

/// Erases each subject in its own way.
async fn erase_all(site: &Site) {
    let page = site.get("ada", "/sessions/s1/events?limit=100").await.json();
    let has_marker = |event: &&Value| event.to_string().contains(MARKERS[0]);
    let versions: Vec<&Value> =
        page["events"].as_array().unwrap().iter().filter(has_marker).map(|event| &event["version"]).collect();
    assert_eq!(versions.len(), ALL.len(), "{page}");
    erase(site, json!({"user": "ada", "session": "f2", "versions": versions, "reason": "r"})).await;
    erase(site, json!({"user": "ada", "session": "s1", "call": "call-1", "reason": "r"})).await;
    let noted =
        page["events"].as_array().unwrap().iter().filter(|event| event.to_string().contains(MARKERS[1]));
    let noted: Vec<&Value> = noted.map(|event| &event["version"]).collect();
    erase(site, json!({"user": "ada", "session": "s1", "versions": noted, "reason": "r"})).await;
    erase(site, json!({"user": "ada", "session": "s2", "reason": "r"})).await;
    erase(site, json!({"user": "bob", "everything": true, "reason": "r"})).await;
    // The value that the call has written is the user's, and is replaced as such.
    edit(site, "s1", json!({"user:note": "other"})).await;
}

/// The next attempts of a client: copies and turns, in which a model tells all that it is shown.
async fn try_more(site: &Site, told: &mut Told) {
    let newest = site.get("ada", "/sessions/s1").await.json()["version"].as_u64().unwrap();
    for version in 0..=newest {
        let body = json!({"id": format!("v{version}"), "at": version});
        let forked = site.post("ada", "/sessions/s1/fork", body).await;
        assert!(forked.status.is_success(), "{}", forked.text);
        note(told, "fork", &forked.text);
        for path in ["", "/events?limit=100", "/state", "/export", "/model"] {
            note(told, "fork", &site.get("ada", &format!("/sessions/v{version}{path}")).await.text);
        }
        let rewound =
            site.post("ada", &format!("/sessions/v{version}/rewind"), json!({"to": version / 2})).await;
        note(told, "rewind", &rewound.text);
        note(
            told,
            "replay",
            &site.post("ada", &format!("/sessions/v{version}/replay"), json!({})).await.text,
        );
    }
    let export = site.get("ada", "/sessions/s1/export").await;
    let imported = site.post("ada", "/import?id=copy", export.json()).await;
    assert_eq!(imported.status, 201, "{}", imported.text);
    for protocol in ALL {
        let repeated = say(site, protocol, &format!("again-{protocol}"), "please repeat").await;
        assert!(repeated.text.contains("[erased]"), "{protocol} shows the conversation: {}", repeated.text);
        note(told, protocol, &repeated.text);
    }
    let recalled = say(site, "api", "recall", &format!("recall {WORD}")).await;
    note(told, "recall", &recalled.text);
    note(told, "recall", &site.get("ada", "/sessions/s1/events?limit=200").await.text);
}

async fn nothing_erased_is_told(store: AnyStore) {
    let folder = tempfile::tempdir().unwrap();
    let site = site(store, folder.path()).await;
    plant(&site).await;
    let before = read_all(&site).await;
    let [event, call, session, user] = MARKERS.map(|marker| before[marker].clone());
    for by in
        ["list_events", "read_event", "export", "search", "read_model_step", "live", "adk", "a2a", "mcp"]
    {
        assert!(event.contains(by), "{by} does not tell the messages: {event:?}");
    }
    for by in ["list_events", "read_state", "blame", "diff", "export"] {
        assert!(call.contains(by) && user.contains(by), "{by}: {call:?}, {user:?}");
    }
    for by in ["list_sessions", "list_events", "search", "adk", "mcp"] {
        assert!(session.contains(by), "{by} does not tell the session: {session:?}");
    }
    erase_all(&site).await;
    let mut told = read_all(&site).await;
    assert_eq!(told, Told::new(), "erased content is told");
    try_more(&site, &mut told).await;
    read_all(&site).await.into_iter().for_each(|(marker, by)| told.entry(marker).or_default().extend(by));
    assert_eq!(told, Told::new(), "erased content is told again");
}

#[tokio::test]
async fn nothing_erased_is_told_from_memory() {
    nothing_erased_is_told(AnyStore::new(MemoryStore::new())).await;
}

#[tokio::test]
async fn nothing_erased_is_told_from_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    nothing_erased_is_told(AnyStore::new(SqliteStore::open(folder.path().join("s.db")).unwrap())).await;
}
