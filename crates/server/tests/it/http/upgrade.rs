//! The unfinished runs of a store beside the agent of today.

use std::sync::Arc;

use serde_json::json;
use stepfold_agent_loop::Agent;
use stepfold_runner::{Runner, WhenChanged};
use stepfold_server::http::Limits;
use stepfold_session_scopes::MemoryStore;
use stepfold_state_core::state::Schema;
use stepfold_tools::{Approval, Tool, ToolError, Toolset};

use super::site::{Site, agent};

const SCRIPT: &str = "assistant: > c1 pay()\nassistant: paid";

/// A server of this agent, over the store of one that has left runs of ada and of bob that wait.
async fn deployed(change: impl Fn(Agent) -> Agent, policy: WhenChanged) -> Site {
    let store = Arc::new(MemoryStore::new());
    let before = Runner::builder(agent(SCRIPT, Vec::new()), Arc::clone(&store)).build();
    for (user, session) in [("ada", "s1"), ("bob", "s2")] {
        before.session(user, session).await.unwrap().run("pay").await.unwrap();
    }
    let agent = change(agent(SCRIPT, Vec::new()));
    Site::over(Runner::builder(agent, store).when_changed(policy).build(), Limits::default()).await
}

fn told(agent: Agent) -> Agent {
    agent.to_builder().instructions("Be brief.").build().unwrap()
}

#[tokio::test]
async fn a_check_lists_what_has_changed_of_the_principal_or_of_all() {
    let site = deployed(told, WhenChanged::Compatible).await;
    let row = |user: &str, session: &str| {
        json!({
            "user": user, "session": session, "version": 2, "status": "compatible", "continues": true,
            "left": false, "reasons": ["instructions is new"],
        })
    };
    let rows = |runs: Vec<serde_json::Value>| {
        json!({
            "checked": runs.len(), "unchanged": 0, "compatible": runs.len(), "forced": 0, "pinned": 0, "left": 0, "refused": 0,
            "has_more": false, "runs": runs,
        })
    };
    assert_eq!(site.get("reader", "/upgrade").await.json(), rows(vec![row("ada", "s1")]));
    assert_eq!(site.get("ada", "/upgrade").await.json(), rows(vec![row("ada", "s1")]));
    assert_eq!(site.get("bob", "/upgrade").await.json(), rows(vec![row("ada", "s1"), row("bob", "s2")]));
    let first = site.get("bob", "/upgrade?limit=1").await.json();
    assert_eq!((&first["checked"], &first["has_more"]), (&json!(1), &json!(true)));
    assert_eq!(site.get("bob", "/upgrade?limits=1").await.status, 400);
    // It has written nothing.
    assert_eq!(site.get("ada", "/sessions/s1").await.json()["version"], 2);
}

#[tokio::test]
async fn a_check_says_what_the_policy_does_not_continue() {
    let site = deployed(told, WhenChanged::Refuse).await;
    let rows = site.get("ada", "/upgrade").await.json();
    assert_eq!((&rows["refused"], &rows["runs"][0]["continues"]), (&json!(1), &json!(false)));
    let without_pay = |agent: Agent| agent.to_builder().tools(Toolset::default()).build().unwrap();
    let site = deployed(without_pay, WhenChanged::Compatible).await;
    let rows = site.get("ada", "/upgrade").await.json();
    assert_eq!(rows["runs"][0]["status"], "touched");
    assert_eq!(rows["runs"][0]["reasons"], json!(["tool pay is gone, and call `c1` is open"]));
    let site = deployed(|agent| agent, WhenChanged::Refuse).await;
    let rows = site.get("ada", "/upgrade").await.json();
    assert_eq!((&rows["unchanged"], &rows["runs"]), (&json!(1), &json!([])));
}

/// A message before which a refused run waits is stored by some requests: the answer says so, and its sender does not repeat it.
#[tokio::test]
async fn a_stored_message_is_told_though_its_run_is_refused() {
    let site = deployed(told, WhenChanged::Refuse).await;
    for path in ["run", "messages"] {
        let before = site.get("ada", "/sessions/s1").await.json()["inbox"].as_array().unwrap().len();
        let answer = site.post("ada", &format!("/sessions/s1/{path}"), json!({"text": "more"})).await;
        assert_eq!(answer.status, 409, "{path}");
        let problem = answer.json();
        let after = site.get("ada", "/sessions/s1").await.json()["inbox"].as_array().unwrap().len();
        assert_eq!(problem["kind"], "agent_changed");
        assert_eq!(problem["accepted"].as_bool().unwrap_or_default(), after > before, "{path}: {problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert_eq!(detail.contains("the message is stored"), after > before, "{path}: {detail}");
    }
}

/// An answer for a refused run is stored, and nothing runs: the response says why; one that continues a run says nothing.
#[tokio::test]
async fn an_answer_tells_that_this_version_does_not_continue_the_run() {
    for policy in [WhenChanged::Refuse, WhenChanged::Compatible] {
        let site = deployed(told, policy).await;
        let reasons = match policy {
            WhenChanged::Refuse => json!(["instructions is new"]),
            _ => json!(null),
        };
        let forked = site.post("root", "/sessions/s1/fork", json!({"id": "f1", "run": true})).await;
        assert_eq!(
            (forked.status.as_u16(), &forked.json()["not_continued"]),
            (201, &reasons),
            "{}",
            forked.text
        );
        let waiting = site.post("root", "/sessions/s1/fork", json!({"id": "f2"})).await;
        assert_eq!((waiting.status.as_u16(), &waiting.json()["not_continued"]), (201, &json!(null)));
        let request = site.get("ada", "/sessions/s1").await.json()["pending"][0]["id"].clone();
        let decisions = json!({"decisions": {request.as_str().unwrap(): "approve"}});
        let decided = site.post("ada", "/sessions/s1/decisions", decisions).await;
        assert_eq!(
            (decided.status.as_u16(), &decided.json()["not_continued"]),
            (202, &reasons),
            "{}",
            decided.text
        );
    }
}

/// A request that is asked again, since its tool has changed, is not the one that was shown: the answer names the new one.
#[tokio::test]
async fn an_answer_names_the_request_that_is_asked_again() {
    let site = deployed(dearer, WhenChanged::Always).await;
    let before = deployed(|agent| agent, WhenChanged::Always).await;
    let shown = before.get("ada", "/sessions/s1").await.json()["pending"][0]["id"].clone();
    let decisions = json!({"decisions": {shown.as_str().unwrap(): "approve"}});
    let decided = site.post("ada", "/sessions/s1/decisions", decisions).await;
    assert_eq!(decided.problem(), (409, "not_pending".to_owned()));
    let again = site.get("ada", "/sessions/s1").await.json()["pending"][0]["id"].clone();
    assert_ne!(again, shown);
    let words = format!("it is asked again as `{}`", again.as_str().unwrap());
    assert!(decided.json()["detail"].as_str().unwrap().contains(&words), "{}", decided.text);
}

/// An agent whose tool has another effect.
fn dearer(agent: Agent) -> Agent {
    let pay =
        Tool::new("pay", "Pays the bill.", async || Ok::<_, ToolError>("paid")).approval(Approval::Always);
    agent.to_builder().tools([pay.build().unwrap()]).build().unwrap()
}

/// A value that does not fit is not read by force either: the answer says so, forced or not.
#[tokio::test]
async fn an_answer_tells_of_a_value_that_does_not_fit() {
    for is_forced in [false, true] {
        let store = Arc::new(MemoryStore::new());
        let before = Runner::builder(agent(SCRIPT, Vec::new()), Arc::clone(&store)).build();
        let session = before.create("ada", "s1", json!({"spent": 2})).await.unwrap();
        session.run("pay").await.unwrap();
        let request = session.pending().await.unwrap().remove(0).id;
        let as_text = Schema::builder().key::<String>("spent").build().unwrap();
        let pay = Tool::new("pay", "Pays.", async || Ok::<_, ToolError>("paid")).approval(Approval::Always);
        let today = agent(SCRIPT, Vec::new()).to_builder().schema(as_text).tools([pay.build().unwrap()]);
        let runner = Runner::builder(today.build().unwrap(), store).build();
        let site = Site::over(runner, Limits::default()).await;
        let decisions = json!({"decisions": {request: "approve"}, "with_changed_agent": is_forced});
        let decided = site.post("ada", "/sessions/s1/decisions", decisions).await;
        assert_eq!(decided.status, 202, "{}", decided.text);
        let reasons = decided.json()["not_continued"].to_string();
        assert!(reasons.contains("spent") && reasons.contains("integer"), "{is_forced}: {}", decided.text);
    }
}
