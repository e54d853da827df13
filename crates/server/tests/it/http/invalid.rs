//! A session whose record cannot be restored, by an agent that has changed or because the record is wrong: it is shown,
//! told why, and gone back in; and it hides no other.

use serde_json::{Value, json};
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::AnyStore;
use stepfold_state_core::state::Schema;

use super::site::Site;

const BILL: &str = "assistant: > c1 pay()\nassistant: It is paid.\nassistant: Five euro.\n";

/// An ended run, after which an event of it was stored that no run has there.
async fn site() -> Site {
    let site = Site::new(BILL).await;
    for (id, text) in [("good", "pay the bill"), ("waits", "and again")] {
        site.post("ada", "/sessions", json!({"id": id, "values": {"spent": 2}})).await;
        site.post("ada", &format!("/sessions/{id}/run"), json!({"text": text})).await;
    }
    let mut export = site.get("reader", "/sessions/good/export").await.json();
    let last = export["events"][1].clone();
    let invocation = last["id"].as_str().unwrap().split('.').next().unwrap();
    let record =
        json!(["stepfold.run", 1, {"kind": {"hooked": {"point": "before_run", "verdict": {"stop": "no"}}}}]);
    let body = json!({"v": 1, "author": "clerk", "kind": "hooked", "record": record});
    let added = json!({"version": 3, "id": format!("{invocation}.x"), "at": last["at"], "body": body});
    export["events"].as_array_mut().unwrap().push(added);
    export["version"] = json!(3);
    let imported = site.post("root", "/import?id=wrong", export).await;
    assert_eq!(imported.status, 201, "{}", imported.text);
    site
}

const WHY: &str = "session clerk/ada/wrong: interrupted run cannot be restored at version 3: unexpected event \"hooked\": \
                   the run needs decisions about approvals";

fn statuses(list: &Value) -> Vec<(&str, &str)> {
    let rows = list["sessions"].as_array().unwrap_or_else(|| panic!("{list}"));
    let mut all: Vec<_> =
        rows.iter().map(|row| (row["id"].as_str().unwrap(), row["status"].as_str().unwrap())).collect();
    all.sort_unstable();
    all
}

/// The end of a problem whose message is stored.
const STORED: &str = "; the message is stored, and is taken once the run continues or is abandoned";

#[tokio::test]
async fn a_record_that_cannot_be_restored_is_shown_and_hides_no_other() {
    let site = site().await;
    let list = site.get("ada", "/sessions").await.json();
    assert_eq!(statuses(&list), [("good", "waiting"), ("waits", "waiting"), ("wrong", "invalid")]);
    let detail = site.get("ada", "/sessions/wrong").await.json();
    let shown = ["status", "invalid", "unfinished", "pending"].map(|field| detail[field].clone());
    assert_eq!(shown, [json!("invalid"), json!(WHY), json!(true), json!([])]);
    let sound = site.get("ada", "/sessions/good").await.json();
    assert_eq!((&sound["invalid"], sound["pending"].as_array().map(Vec::len)), (&Value::Null, Some(1)));
    for path in ["/sessions/wrong/events", "/sessions/wrong/state?at=3", "/sessions/wrong/export"] {
        assert_eq!(site.get("ada", path).await.status, 200, "{path}");
    }
    // One stream of both.
    let mut live = site.live_from("ada", "/live?sessions=clerk/wrong,clerk/good&after=3,2", None).await;
    let hellos = [live.next().await.unwrap(), live.next().await.unwrap()];
    let pending = |of: &str| {
        let told = hellos.iter().find(|told| told.data["session"] == of).unwrap();
        told.data["pending"].as_array().unwrap().len()
    };
    assert_eq!((pending("wrong"), pending("good")), (0, 1));
    // Requests that would continue it say why not, and that a message is stored; nothing is committed.
    for (path, body) in [("run", json!({"text": "hello"})), ("resume", json!({}))] {
        let refused = site.post("ada", &format!("/sessions/wrong/{path}"), body).await;
        assert_eq!(refused.problem(), (409, "invalid_record".to_owned()), "{path}: {}", refused.text);
        let stored = if path == "run" { STORED } else { "" };
        assert_eq!(refused.json()["detail"], format!("{WHY}{stored}"));
        assert_eq!(refused.json()["accepted"].as_bool().unwrap_or_default(), path == "run");
    }
    assert_eq!(site.get("ada", "/sessions/wrong").await.json()["version"], 3);
}

#[tokio::test]
async fn a_run_that_cannot_be_restored_is_ended_or_the_session_goes_back() {
    let site = site().await;
    let forked = site.post("root", "/sessions/wrong/fork", json!({"id": "fork", "at": 2})).await;
    assert_eq!(forked.status, 201, "{}", forked.text);
    let ended = site.post("ada", "/sessions/wrong/abandon", json!({})).await.json();
    assert_eq!(ended, json!({"exit": "cancelled"}));
    let list = site.get("ada", "/sessions").await.json();
    let expected = [("fork", "waiting"), ("good", "waiting"), ("waits", "waiting"), ("wrong", "idle")];
    assert_eq!(statuses(&list), expected);
    let said = site.post("ada", "/sessions/wrong/run", json!({"text": "hello"})).await.json();
    assert_eq!(said["status"], "finished", "{said}");
}

#[tokio::test]
async fn values_of_another_type_are_told_as_such() {
    let site = site().await;
    let schema = Schema::builder().key::<String>("spent").build().unwrap();
    let model = Script::parse("assistant: Hello.\n").unwrap();
    let agent = Agent::builder(model).name("clerk").schema(schema).build().unwrap();
    let store: AnyStore = site.runner.store().clone();
    let other = Site::over(Runner::builder(agent, store).build(), Limits::default()).await;
    let back = other.post("ada", "/sessions/waits/rewind", json!({"to": 0, "expected": 2})).await;
    assert_eq!(back.status, 200, "{}", back.text);
    let refused = other.post("ada", "/sessions/waits/run", json!({"text": "hello"})).await;
    assert_eq!(refused.problem(), (409, "invalid_record".to_owned()), "{}", refused.text);
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("incompatible stored value of key \"spent\""), "{detail}");
    assert!(detail.ends_with(&format!("register a migration{STORED}")), "{detail}");
    // Its run is sound.
    let list = other.get("ada", "/sessions").await.json();
    assert_eq!(statuses(&list), [("good", "waiting"), ("waits", "idle"), ("wrong", "invalid")]);
}
