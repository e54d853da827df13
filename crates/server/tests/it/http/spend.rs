//! Spend under budgets: users see their own, administrators all; a run that waits for a budget is listed as waiting.

use serde_json::json;
use stepfold_runner::{Budget, Runner};
use stepfold_server::http::Limits;
use stepfold_session_scopes::MemoryStore;
use stepfold_state_core::chat::{Price, Prices};

use super::site::{Site, agent};

const SCRIPT: &str = "assistant: one\nassistant: two\nassistant: three\n";

async fn site(budget: Budget) -> Site {
    let agent = agent(SCRIPT, Vec::new());
    let prices = Prices::new().with(agent.model().id(), Price::new(1.0, 1_000.0));
    let builder = Runner::builder(agent, MemoryStore::new()).app("clerk").unwrap();
    Site::over(builder.prices(prices).budget(budget).build(), Limits::default()).await
}

async fn say(site: &Site, name: &str, session: &str) {
    site.post(name, "/sessions", json!({"id": session})).await;
    let run = site.post(name, &format!("/sessions/{session}/run"), json!({"text": "hello"})).await;
    assert_eq!(run.status, 200, "{}", run.text);
}

#[tokio::test]
async fn users_see_what_they_have_spent_and_administrators_all() {
    let site = site(Budget::usd("all", 100.0)).await;
    for (name, session) in [("ada", "s1"), ("ada", "s2"), ("bob", "s1")] {
        say(&site, name, session).await;
    }
    let spent = site.get("ada", "/spend").await.json();
    let groups = |spent: &serde_json::Value| -> Vec<String> {
        spent["spend"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["group"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(groups(&spent), ["ada/s1", "ada/s2"]);
    // The script reports no usage: its requests count as their estimates, at their price.
    assert_eq!((&spent["total"]["requests"], &spent["total"]["estimated"]), (&json!(2), &json!(2)));
    let cost: f64 = spent["total"]["cost"].as_str().unwrap().parse().unwrap();
    assert!(cost > 8.0, "two times 4,096 tokens at $1000 a million: {cost}");
    assert_eq!(groups(&site.get("reader", "/spend?by=user").await.json()), ["ada"]);
    let denied = site.get("ada", "/spend?all_users=true").await.problem();
    assert_eq!(denied, (403, "forbidden".to_owned()));
    let all = site.get("bob", "/spend?all_users=true&by=user").await.json();
    assert_eq!(
        (groups(&all), &all["total"]["requests"]),
        (vec!["ada".to_owned(), "bob".to_owned()], &json!(3))
    );
    let none = site.get("bob", "/spend?all_users=true&until_us=1&by=day").await.json();
    assert_eq!((groups(&none), &none["left_out"]), (Vec::new(), &json!(0)));
    assert_eq!(site.get("ada", "/spend?by=colour").await.problem().0, 400);
}

#[tokio::test]
async fn a_run_that_waits_for_a_budget_is_listed_as_waiting() {
    let site = site(Budget::requests("none", 0)).await;
    say(&site, "ada", "s1").await;
    let listed = site.get("ada", "/sessions").await.json();
    assert_eq!(listed["sessions"][0]["status"], "waiting", "{listed}");
    let detail = site.get("ada", "/sessions/s1").await.json();
    assert_eq!(detail["status"], "waiting");
    let question = &detail["budget"];
    assert_eq!((&question["name"], &question["scope"]), (&json!("none"), &json!("app clerk")));
    let amounts = ["spent", "reserved", "limit", "requested"].map(|name| question[name].as_u64().unwrap());
    assert_eq!((amounts, &question["unit"]), ([0, 0, 0, 1], &json!("requests")));
    site.post("ada", "/sessions", json!({"id": "s2"})).await;
    let run = site.post("ada", "/sessions/s2/run", json!({"text": "hello"})).await.json();
    assert_eq!((&run["status"], &run["budget"]["name"]), (&json!("suspended"), &json!("none")));
    let events = site.get("ada", "/sessions/s1/events").await.json();
    let failure =
        events["events"].as_array().unwrap().last().unwrap()["failure"].as_str().unwrap().to_owned();
    assert!(failure.contains("budget `none` of app clerk exhausted"), "{failure}");
    assert_eq!(site.post("ada", "/sessions/s1/abandon", json!({})).await.status.as_u16() / 100, 2);
    let detail = site.get("ada", "/sessions/s1").await.json();
    assert_eq!((&detail["status"], &detail["budget"]), (&json!("idle"), &serde_json::Value::Null));
}
