//! The unfinished runs of a store beside the agent of today.

use std::sync::Arc;

use serde_json::json;
use stepfold_agent_loop::Agent;
use stepfold_runner::{Runner, WhenChanged};
use stepfold_server::http::Limits;
use stepfold_session_scopes::MemoryStore;
use stepfold_tools::Toolset;

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
            "reasons": ["instructions is new"],
        })
    };
    let rows = |runs: Vec<serde_json::Value>| {
        json!({
            "checked": runs.len(), "unchanged": 0, "compatible": runs.len(), "pinned": 0, "refused": 0,
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
