//! What a client does with a session.

use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use stepfold_runner::Runner;
use stepfold_server::http::{App, Limits};
use stepfold_session_scopes::MemoryStore;

use super::site::{Site, agent};

const BILL: &str = "assistant: > c1 pay()\nassistant: It is paid.\nassistant: Five euro.\n";

/// A site with the session `s1` of Ada, in which a bill waits for approval. Also the id of the request.
async fn site_with_bill() -> (Site, String) {
    let site = Site::new(BILL).await;
    let created = site.post("ada", "/sessions", json!({"id": "s1", "values": {"spent": 2}})).await;
    assert_eq!(created.status, 201, "{}", created.text);
    assert_eq!(created.headers["location"], "/api/v1/apps/clerk/sessions/s1");
    let run = site.post("ada", "/sessions/s1/run", json!({"text": "pay the bill"})).await.json();
    assert_eq!(
        (&run["status"], &run["pending"][0]["call"]["name"]),
        (&json!("waiting"), &json!("pay")),
        "{run}"
    );
    let request = run["pending"][0]["id"].as_str().unwrap().to_owned();
    (site, request)
}

/// With the bill paid, at version 5.
async fn site_with_paid_bill() -> Site {
    let (site, request) = site_with_bill().await;
    let mut live = site.live("ada", "s1", None).await;
    let decided =
        site.post("ada", "/sessions/s1/decisions", json!({"decisions": {&request: "approve"}})).await;
    assert_eq!(decided.status, 202, "{}", decided.text);
    live.until("ended").await;
    site
}

#[tokio::test]
async fn the_apps_are_listed() {
    let site = Site::new("").await;
    let bearer = site.bearer("reader");
    let odd = site.post("ada", "/sessions", json!({"id": "a/b ä"})).await;
    let path = odd.headers["location"].to_str().unwrap();
    assert_eq!(path, "/api/v1/apps/clerk/sessions/a%2Fb%20%C3%A4");
    assert_eq!(site.raw(Method::GET, path, &[("authorization", &bearer)], "").await.json()["id"], "a/b ä");
    let apps = site.raw(Method::GET, "/api/v1/apps", &[("authorization", &bearer)], "").await.json();
    let app = &apps["apps"][0];
    assert_eq!((&app["app"], &app["description"]), (&json!("clerk"), &json!("Pays.")), "{apps}");
    assert_eq!(app["schema"]["keys"]["spent"]["handler"], "sum", "{apps}");
    let read = site.get("reader", "").await.json();
    for (field, value) in app.as_object().unwrap() {
        assert_eq!(read[field], *value, "{field}");
    }
    assert_eq!(site.get("reader", "/graph").await.problem(), (404, "no_graph".to_owned()));
}

#[tokio::test]
async fn a_decision_continues_the_run_and_is_recorded_once() {
    let (site, request) = site_with_bill().await;
    let read = site.get("reader", "/sessions/s1").await.json();
    assert_eq!((&read["unfinished"], &read["pending"][0]["id"]), (&json!(true), &json!(request)), "{read}");

    let body = json!({"decisions": {&request: {"reject": {"reason": "too much"}}}}).to_string();
    let path = "/sessions/s1/decisions";
    let decide = |body: String, key: &'static str| {
        let site = &site;
        async move { site.ask("root", Method::POST, path, &[("idempotency-key", key)], &body).await }
    };
    let mut live = site.live("ada", "s1", None).await;
    let first = decide(body.clone(), "click-1").await;
    assert_eq!(first.status, 202, "{}", first.text);
    assert_eq!(first.json()["by"], "root");
    live.until("ended").await;
    // The answer was lost, and the browser sends it again.
    assert_eq!(decide(body.clone(), "click-1").await.text, first.text);
    let elsewhere = site.again("").await;
    let key = [("idempotency-key", "click-1")];
    assert_eq!(elsewhere.ask("bob", Method::POST, path, &key, &body).await.status, 404);
    assert_eq!(elsewhere.ask("root", Method::POST, path, &key, &body).await.text, first.text);

    let other = json!({"decisions": {&request: "approve"}}).to_string();
    assert_eq!(decide(other.clone(), "click-1").await.problem(), (409, "key_reused".to_owned()));
    let late = decide(other, "click-2").await;
    assert_eq!(late.problem(), (409, "decided".to_owned()));
    assert!(late.json()["detail"].as_str().unwrap().contains("already decided by root"), "{}", late.text);

    let events = site.get("reader", "/sessions/s1/events").await.json();
    let decided: Vec<&Value> =
        events["events"].as_array().unwrap().iter().filter(|event| event["kind"] == "decided").collect();
    assert_eq!(decided.len(), 1, "{events}");
    assert_eq!(decided[0]["decided_by"], "root");
}

#[tokio::test]
async fn a_message_with_a_key_is_taken_once() {
    let site = Site::new("assistant: hello\nassistant: again\n").await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    let mut live = site.live("ada", "s1", None).await;
    let send = |text: &'static str| {
        let (site, body) = (&site, json!({"text": text}).to_string());
        async move {
            let headers = [("idempotency-key", "\"click-1\"")];
            site.ask("ada", Method::POST, "/sessions/s1/messages", &headers, &body).await
        }
    };
    let (first, second) = (send("hi").await, send("hi").await);
    assert_eq!((first.status.as_u16(), first.json()["invocation"].as_str()), (202, Some("click-1")));
    assert_eq!(second.json(), first.json());
    live.until("ended").await;
    assert_eq!(send("hi").await.json(), first.json());
    assert_eq!(send("other").await.problem(), (409, "key_reused".to_owned()));

    // The same key with `run` returns the result, in this process or another.
    let other = site.again("").await;
    let headers = [("idempotency-key", "click-1")];
    let body = json!({"text": "hi"}).to_string();
    let run = other.ask("ada", Method::POST, "/sessions/s1/run", &headers, &body).await.json();
    assert_eq!((&run["status"], &run["text"]), (&json!("finished"), &json!("hello")), "{run}");
    let events = site.get("ada", "/sessions/s1/events").await.json();
    let kinds: Vec<&str> =
        events["events"].as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["began", "replied"]);

    // Another message under the key is an error, in any process: it must not be lost in silence.
    for site in [&site, &other] {
        for (path, text, values) in [
            ("run", "other", json!({})),
            ("messages", "other", json!({})),
            ("run", "hi", json!({"spent": 1})),
        ] {
            let body = json!({"text": text, "values": values}).to_string();
            let path = format!("/sessions/s1/{path}");
            let refused = site.ask("ada", Method::POST, &path, &headers, &body).await;
            assert_eq!(refused.problem(), (409, "key_reused".to_owned()), "{path} {body}");
        }
    }
    assert_eq!(site.get("ada", "/sessions/s1").await.json()["version"], 2);
}

#[tokio::test]
async fn history_is_read_at_any_version() {
    let site = site_with_paid_bill().await;
    let all = site.get("ada", "/sessions/s1/events").await.json();
    let newest = all["version"].as_u64().unwrap();

    // Page by page it is the same.
    let (mut after, mut paged) = (0, Vec::new());
    loop {
        let page = site.get("ada", &format!("/sessions/s1/events?after={after}&limit=2")).await.json();
        paged.extend(page["events"].as_array().unwrap().clone());
        let Some(next) = page["next"].as_u64() else { break };
        after = next;
    }
    assert_eq!(json!(paged), all["events"]);

    // The state at each version is what the writes up to it add up to.
    let mut spent = 2;
    for event in all["events"].as_array().unwrap() {
        for write in event["writes"].as_array().unwrap() {
            assert_eq!((&write["key"], &write["handler"]), (&json!("spent"), &json!("sum")));
            spent += write["value"].as_u64().unwrap();
        }
        let version = &event["version"];
        let state = site.get("ada", &format!("/sessions/s1/state?at={version}")).await.json();
        assert_eq!((&state["version"], &state["values"]["spent"]), (version, &json!(spent)));
    }
    assert_eq!(spent, 7);
    let state = site.get("ada", "/sessions/s1/state?origin=true").await.json();
    assert_eq!(state["origin"]["spent"]["handler"], "sum", "{state}");

    let diff = site.get("ada", &format!("/sessions/s1/diff?from=0&to={newest}")).await.json();
    assert_eq!(diff["changed"], json!([{"key": "spent", "before": 2, "after": 7}]));
    assert_eq!(diff["messages"].as_array().unwrap().len(), 4, "{diff}");
    let error = site.get("ada", "/sessions/s1/state?at=99").await;
    assert_eq!(error.problem(), (404, "unknown_version".to_owned()));
}

#[tokio::test]
async fn a_fork_goes_its_own_way() {
    let site = site_with_paid_bill().await;
    let fork = site.post("ada", "/sessions/s1/fork", json!({"at": 1, "id": "s2"})).await;
    assert_eq!(
        (fork.status.as_u16(), &fork.headers["location"]),
        (201, &"/api/v1/apps/clerk/sessions/s2".parse().unwrap())
    );
    assert_eq!(fork.json()["parent"], json!({"id": "s1", "version": 1}));
    let exists = site.post("ada", "/sessions/s1/fork", json!({"id": "s2"})).await;
    assert_eq!(exists.problem(), (409, "exists".to_owned()));

    let compared = site.get("ada", "/sessions/s1/compare?with=s2").await.json();
    assert_eq!((&compared["common"], &compared["right"]), (&json!(1), &json!([])), "{compared}");
    assert_eq!(compared["changed"], json!([{"key": "spent", "before": 7, "after": 2}]));
    let replayed = site.post("ada", "/sessions/s1/replay", json!({})).await.json();
    assert_eq!((&replayed["same"], &replayed["runs"]), (&json!(true), &json!(1)), "{replayed}");

    let listed = site.get("ada", "/sessions").await.json();
    let ids: Vec<&str> = listed["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|session| session["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids.len(), 2, "{ids:?}");
    let page = site.get("ada", "/sessions?limit=1").await.json();
    let next = page["next"].as_str().unwrap();
    let rest = site.get("ada", &format!("/sessions?limit=1&after={next}")).await.json();
    assert_ne!(page["sessions"][0]["id"], rest["sessions"][0]["id"]);
}

#[tokio::test]
async fn a_rewind_of_another_version_is_a_conflict_with_both() {
    let site = site_with_paid_bill().await;
    let newest = site.get("ada", "/sessions/s1").await.json()["version"].as_u64().unwrap();
    let stale = site.post("ada", "/sessions/s1/rewind", json!({"to": 0, "expected": newest - 1})).await;
    assert_eq!(stale.problem(), (409, "conflict".to_owned()));
    let problem = stale.json();
    assert_eq!((&problem["expected"], &problem["actual"]), (&json!(newest - 1), &json!(newest)), "{problem}");
    let done = site.post("ada", "/sessions/s1/rewind", json!({"to": 0, "expected": newest})).await.json();
    assert_eq!(done["version"], newest + 1);
    let events = site.get("ada", "/sessions/s1/events").await.json();
    let visible = |event: &Value| event["visible"] == json!(true);
    assert_eq!(
        events["events"].as_array().unwrap().iter().filter(|event| visible(event)).count(),
        1,
        "{events}"
    );
}

#[tokio::test]
async fn what_cannot_be_done_is_a_problem() {
    let (site, request) = site_with_bill().await;
    let post = |path: &'static str, body: Value| {
        let site = &site;
        async move { site.post("ada", path, body).await.problem() }
    };
    let kind = |status: u16, kind: &str| (status, kind.to_owned());
    assert_eq!(post("/sessions/s1/messages", json!({"text": "more"})).await, kind(409, "pending"));
    assert_eq!(post("/sessions/s1/decisions", json!({"decisions": {}})).await, kind(400, "invalid"));
    assert_eq!(
        post("/sessions/s1/decisions", json!({"decisions": {"c9": "approve"}})).await,
        kind(409, "not_pending")
    );
    assert_eq!(post("/sessions/s1/messages", json!({"txt": "more"})).await, kind(400, "invalid"));
    assert_eq!(post("/sessions/s1/messages", json!([])).await, kind(400, "invalid"));
    assert_eq!(post("/sessions", json!({"id": "s1"})).await, kind(409, "exists"));
    assert_eq!(post("/sessions", json!({"id": "a\nb"})).await, kind(400, "invalid"));
    assert_eq!(post("/sessions", json!({"values": {"spent": "much"}})).await, kind(400, "invalid"));
    assert_eq!(post("/sessions/none/messages", json!({"text": "more"})).await, kind(404, "unknown_session"));
    assert_eq!(site.get("ada", "/sessions/s1/events?limt=3").await.problem(), kind(400, "invalid"));
    assert_eq!(site.get("ada", "/nothing").await.problem(), kind(404, "unknown_path"));
    assert_eq!(site.ask("ada", Method::PUT, "/sessions", &[], "{}").await.problem(), kind(405, "method"));
    let withdrawn = site.ask("ada", Method::DELETE, "/sessions/s1/messages/m1", &[], "").await;
    assert_eq!(withdrawn.problem(), kind(409, "not_waiting"));

    // The run is abandoned, and nothing is left to resume.
    let ended = site.post("ada", "/sessions/s1/abandon", json!({})).await.json();
    assert_eq!(ended["exit"], "cancelled");
    assert_eq!(post("/sessions/s1/resume", json!({})).await, kind(409, "nothing_to_resume"));
    let body = json!({"decisions": {&request: "approve"}});
    assert_eq!(site.post("ada", "/sessions/s1/decisions", body).await.status, 409);
    assert_eq!(site.post("ada", "/sessions/s1/cancel", json!({})).await.json()["cancelled"], false);

    assert_eq!(site.ask("root", Method::DELETE, "/sessions/s1", &[], "").await.status, 204);
    assert_eq!(site.get("ada", "/sessions/s1").await.problem(), kind(404, "unknown_session"));
}

#[tokio::test]
async fn a_run_that_failed_is_resumed_by_another_process() {
    let site = Site::new("").await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    // The model has nothing to say.
    let failed = site.post("ada", "/sessions/s1/run", json!({"text": "hi"})).await;
    assert_eq!(failed.problem(), (502, "run_failed".to_owned()));
    let other = site.again("assistant: hello").await;
    let mut live = other.live("ada", "s1", None).await;
    let resumed = other.post("ada", "/sessions/s1/resume", json!({})).await;
    assert_eq!(resumed.status, 202, "{}", resumed.text);
    live.until("ended").await;
    let events = site.get("ada", "/sessions/s1/events").await.json();
    assert_eq!(events["events"].as_array().unwrap().last().unwrap()["kind"], "replied", "{events}");
}

#[tokio::test]
async fn health_is_told_to_anyone() {
    let site = Site::new("").await;
    for path in ["/healthz", "/readyz", "/", "/studio/app.js", "/api/v1/openapi.json"] {
        assert_eq!(site.raw(Method::GET, path, &[], "").await.status, 200, "{path}");
    }
    assert!(site.stop().await);
}

#[tokio::test]
async fn the_shape_of_a_graph_is_told() {
    let shape =
        json!({"nodes": [{"name": "ask"}, {"name": "write"}], "edges": [{"from": "ask", "to": "write"}]});
    let app =
        App::from(Runner::builder(agent("", Vec::new()), MemoryStore::new()).build()).graph(shape.clone());
    let site = Site::of(app, Limits::default()).await;
    assert_eq!(site.get("reader", "/graph").await.json(), shape);
    assert_eq!(site.get("reader", "").await.json()["graph"], shape);
    let plain = Site::new("").await;
    assert_eq!(plain.get("reader", "/graph").await.problem(), (404, "no_graph".to_owned()));
}

/// The router in a program of one's own: beside its routes, with all rules.
#[tokio::test]
async fn a_router_is_embedded_in_another_program() {
    let site = Site::new("assistant: hi\n").await;
    let own = axum::Router::new().route("/own", axum::routing::get(async || "mine"));
    let mut router = own.merge(site.server.router());
    let mut ask = async |method: Method, path: &str, headers: &[(&str, &str)], body: &str| {
        let mut request = http::Request::builder().method(method).uri(path).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(axum::body::Body::from(body.to_owned())).unwrap();
        let reply = tower_service::Service::call(&mut router, request).await.unwrap();
        let status = reply.status().as_u16();
        let bytes = reply.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    };
    assert_eq!(ask(Method::GET, "/own", &[], "").await, (200, "mine".to_owned()));
    let sessions = "/api/v1/apps/clerk/sessions";
    assert_eq!(ask(Method::GET, sessions, &[], "").await.0, 401);
    let bearer = site.bearer("ada");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    assert_eq!(ask(Method::POST, sessions, &headers, r#"{"id":"s1"}"#).await.0, 201);
    let (status, run) = ask(Method::POST, &format!("{sessions}/s1/run"), &headers, r#"{"text":"go"}"#).await;
    assert!(status == 200 && run.contains("hi"), "{status} {run}");
    let evil = [headers[0], headers[1], ("origin", "https://evil.test")];
    assert_eq!(ask(Method::POST, sessions, &evil, "{}").await.0, 403);
}
