//! The routes of ADK: the principal's sessions whatever the path says, events of commits, confirmations.

use http::Method;
use serde_json::{Value, json};
use stepfold_server::http::{Principal, Role, Server, ServerError, Token, Tokens};

use super::site::{Reply, Site};

const SESSIONS: &str = "/apps/clerk/users/user/sessions";

async fn ask(site: &Site, name: &str, method: Method, path: &str, body: &Value) -> Reply {
    let bearer = site.bearer(name);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    site.raw(method, path, &headers, &body).await
}

/// Runs a message, or an answer, and returns its events.
async fn run(site: &Site, name: &str, session: &str, part: Value, streaming: bool) -> Vec<Value> {
    let body = json!({
        "appName": "clerk", "userId": "user", "sessionId": session, "streaming": streaming,
        "newMessage": {"role": "user", "parts": [part]},
    });
    let reply = ask(site, name, Method::POST, "/run_sse", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let lines = reply.text.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn create(site: &Site, name: &str) -> String {
    let state = json!({"state": {"__session_metadata__": {"displayName": "the bill"}}});
    let created = ask(site, name, Method::POST, SESSIONS, &state).await.json();
    assert_eq!(created["state"], state["state"], "the title is echoed");
    created["id"].as_str().unwrap().to_owned()
}

fn parts(event: &Value) -> &Value {
    &event["content"]["parts"][0]
}

fn answer(asked: &Value, response: Value) -> Value {
    let call = &parts(asked)["functionCall"];
    json!({"functionResponse": {"id": call["id"], "name": call["name"], "response": response}})
}

#[tokio::test]
async fn a_turn_with_a_confirmation() {
    let script =
        "assistant: > c1 pay()\nassistant: It is paid.\nassistant: > c2 pay()\nassistant: As you wish.\n";
    let site = Site::new(script).await;
    let session = create(&site, "ada").await;
    let events = run(&site, "ada", &session, json!({"text": "pay the bill"}), false).await;
    assert_eq!(parts(&events[0])["functionCall"], json!({"id": "c1", "name": "pay", "args": {}}));
    assert!(events[0]["usageMetadata"]["totalTokenCount"].is_u64(), "{}", events[0]);
    let asked = events.last().unwrap();
    let call = &parts(asked)["functionCall"];
    assert_eq!(call["name"], "adk_request_confirmation");
    assert_eq!(call["args"]["originalFunctionCall"], parts(&events[0])["functionCall"]);
    assert_eq!(asked["longRunningToolIds"], json!([call["id"]]));

    let answered = answer(asked, json!({"confirmed": true, "payload": {}}));
    let events = run(&site, "ada", &session, answered, false).await;
    let paid = events.iter().find(|event| parts(event)["functionResponse"]["name"] == "pay").unwrap();
    assert_eq!(parts(paid)["functionResponse"]["response"], json!({"euro": 5}));
    assert_eq!(paid["actions"]["stateDelta"], json!({"spent": 5}), "the value after the merge");
    assert_eq!(parts(events.last().unwrap())["text"], "It is paid.");

    let events = run(&site, "ada", &session, json!({"text": "again"}), true).await;
    let asked = events.last().unwrap();
    let stored = ask(&site, "ada", Method::GET, &format!("{SESSIONS}/{session}"), &Value::Null).await.json();
    assert_eq!(
        parts(stored["events"].as_array().unwrap().last().unwrap()),
        parts(asked),
        "also after a reload"
    );
    let events = run(&site, "ada", &session, answer(asked, json!({"confirmed": false})), true).await;
    let partial: String = events
        .iter()
        .filter(|event| event["partial"] == true)
        .filter_map(|event| parts(event)["text"].as_str())
        .collect();
    assert_eq!(partial, "As you wish.");
    assert_eq!(parts(events.last().unwrap())["text"], "As you wish.");

    let stored = ask(&site, "ada", Method::GET, &format!("{SESSIONS}/{session}"), &Value::Null).await.json();
    let mut ids: Vec<&str> =
        stored["events"].as_array().unwrap().iter().map(|event| event["id"].as_str().unwrap()).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "ids are unique");
    let titled = json!({"displayName": "pay the bill"});
    assert_eq!(stored["state"], json!({"spent": 5, "__session_metadata__": titled}));
    let listed = ask(&site, "ada", Method::GET, SESSIONS, &Value::Null).await.json();
    assert_eq!(
        (listed[0]["id"].as_str(), &listed[0]["state"]["__session_metadata__"]),
        (Some(&*session), &titled)
    );
}

#[tokio::test]
async fn a_query_that_nothing_reads_is_no_error() {
    let site = Site::new("").await;
    // The page of ADK sends this one.
    for path in ["/list-apps?relative_path=./", "/version?any=1", &format!("{SESSIONS}?any=1")] {
        assert_eq!(ask(&site, "ada", Method::GET, path, &Value::Null).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn the_user_of_a_path_is_the_principal() {
    let site = Site::new("").await;
    let session = create(&site, "ada").await;
    for (name, user, status) in [("ada", "bob", 200), ("bob", "ada", 404), ("bob", "user", 404)] {
        let path = format!("/apps/clerk/users/{user}/sessions/{session}");
        assert_eq!(
            ask(&site, name, Method::GET, &path, &Value::Null).await.status,
            status,
            "{name} of {user}"
        );
    }
    assert_eq!(ask(&site, "bob", Method::GET, SESSIONS, &Value::Null).await.json(), json!([]));
    let body = json!({"appName": "clerk", "userId": "ada", "sessionId": session, "newMessage": {"parts": [{"text": "hi"}]}});
    for path in ["/run", "/run_sse"] {
        assert_eq!(ask(&site, "bob", Method::POST, path, &body).await.problem().0, 404, "{path}");
        assert_eq!(ask(&site, "reader", Method::POST, path, &body).await.problem().0, 403, "{path}");
    }
    for (method, path) in [(Method::GET, "/list-apps"), (Method::GET, SESSIONS), (Method::POST, "/run_sse")] {
        let json = ("content-type", "application/json");
        assert_eq!(site.raw(method.clone(), path, &[json], "{}").await.problem().0, 401, "{path}");
        let foreign = [json, ("origin", "http://127.0.0.1:1")];
        assert_eq!(site.raw(method, path, &foreign, "{}").await.problem().0, 403, "{path}");
    }
    let shared = json!({"state_delta": {"app:motto": "pay"}});
    let path = format!("{SESSIONS}/{session}");
    assert_eq!(ask(&site, "ada", Method::PATCH, &path, &shared).await.problem().0, 403);
}

#[test]
fn a_folder_without_a_page_is_no_bundle() {
    let folder = tempfile::tempdir().unwrap();
    let runner = crate::mcp::runner("");
    let tokens = Tokens::new().with(&Token::random().unwrap(), Principal::new("ada", Role::Act).unwrap());
    let built = Server::builder().app(runner).auth(tokens).adk_web(folder.path()).build();
    assert!(matches!(built, Err(ServerError::AdkWeb(_))), "{built:?}");
}
