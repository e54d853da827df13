//! Spend under budgets: users see their own, administrators all; a run that waits for a budget is listed as waiting, and
//! continues when a principal with the role for it raises the limit.

use http::Method;
use serde_json::json;
use stepfold_runner::{Budget, BudgetScope, Runner};
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

/// An erasure says how many budgets of the user go, and its dry run the same.
#[tokio::test]
async fn an_erasure_counts_the_budgets_of_the_user() {
    let site = site(Budget::requests("own", 9).of(BudgetScope::User)).await;
    say(&site, "ada", "s1").await;
    say(&site, "bob", "s1").await;
    let erase = |dry_run: bool| {
        let body = json!({"user": "ada", "everything": true, "reason": "ticket 20", "dry_run": dry_run});
        site.post("root", "/erasures", body)
    };
    for dry_run in [true, false] {
        let erased = erase(dry_run).await.json();
        assert_eq!((&erased["budgets"], &erased["spend"]), (&json!(1), &json!(1)), "{erased}");
    }
    assert_eq!(erase(false).await.json()["budgets"], 0);
}

#[tokio::test]
async fn a_budget_is_raised_by_the_role_for_it_and_the_waiting_run_continues() {
    let site = site(Budget::requests("trial", 1).of(BudgetScope::Principal)).await;
    say(&site, "ada", "s1").await;
    say(&site, "ada", "s2").await;
    assert_eq!(site.get("ada", "/sessions/s2").await.json()["status"], "waiting");
    let raise = |limit| json!({"budget": "trial", "limit": limit, "user": "ada", "session": "s2"});
    for name in ["ada", "reader"] {
        let denied = site.post(name, "/budgets", raise(3)).await;
        assert_eq!(denied.problem(), (403, "forbidden".to_owned()), "{name}");
        assert!(denied.text.contains("the role `raise_budgets` is required"), "{}", denied.text);
    }
    // Another one than the limit, a budget, a user or a session that does not exist.
    assert_eq!(site.post("payer", "/budgets", raise(0)).await.problem(), (409, "not_raised".to_owned()));
    let unknown = site.post("payer", "/budgets", json!({"budget": "trail", "limit": 3, "user": "ada"})).await;
    assert_eq!(unknown.problem(), (404, "unknown_budget".to_owned()));
    assert!(unknown.text.contains("available: trial"), "{}", unknown.text);
    let absent = json!({"budget": "trial", "limit": 3, "user": "ada", "session": "s9"});
    assert_eq!(site.post("payer", "/budgets", absent).await.problem().0, 404);
    assert_eq!(site.get("ada", "/budgets").await.json()["budgets"][0]["limit"], 1);
    // Eve is not Ada: she raises, and the run of Ada's session continues.
    let raised = site.post("payer", "/budgets", raise(3)).await;
    assert_eq!(raised.status, 200, "{}", raised.text);
    let raised = raised.json();
    assert_eq!(
        (&raised["scope"], &raised["limit"], &raised["declared"], &raised["continues"]),
        (&json!("principal ada"), &json!(3), &json!(1), &json!(true))
    );
    // The raise is recorded with its principal: for its own user, and for those with the role; not for others.
    let listed = site.get("ada", "/budgets/raises").await.json();
    let raise_of = |raise: &serde_json::Value| {
        let names = ["budget", "scope", "unit", "from", "to", "by", "user"];
        json!(names.map(|name| raise[name].clone()))
    };
    let expected = json!(["trial", "principal ada", "requests", 1, 3, "payer", "ada"]);
    assert_eq!((listed["raises"].as_array().unwrap().len(), raise_of(&listed["raises"][0])), (1, expected));
    for (name, user) in [("payer", ""), ("payer", "?user=ada"), ("ada", "?user=ada")] {
        assert_eq!(site.get(name, &format!("/budgets/raises{user}")).await.json(), listed, "{name} {user}");
    }
    let none = json!({"raises": []});
    assert_eq!(site.get("payer", "/budgets/raises?user=bob").await.json(), none);
    assert_eq!(site.get("reader", "/budgets/raises?user=bob").await.problem(), (403, "forbidden".to_owned()));
    // A message after it is answered after it.
    say(&site, "ada", "s2").await;
    let handle = site.runner.session("ada", "s2").await.unwrap();
    let transcript = handle.last_run().await.unwrap().unwrap().transcript().to_string();
    assert_eq!(transcript.matches("assistant:").count(), 2, "{transcript}");
    // The next request does not fit again, and the same raise changes nothing.
    say(&site, "ada", "s3").await;
    assert_eq!(site.get("ada", "/sessions/s3").await.json()["budget"]["limit"], 3);
    assert_eq!(site.post("payer", "/budgets", raise(3)).await.json()["limit"], 3);
    // Administrators may do it too; of others than Ada it raises nothing.
    assert_eq!(site.post("bob", "/budgets", raise(4)).await.json()["limit"], 4);
    let of_bob = site.get("bob", "/budgets").await.json();
    assert_eq!(
        (&of_bob["budgets"][0]["scope"], &of_bob["budgets"][0]["limit"]),
        (&json!("principal bob"), &json!(1))
    );
}

#[tokio::test]
async fn tenants_see_their_own_budgets_and_metrics_name_no_user() {
    let agent = agent(SCRIPT, Vec::new());
    let prices = Prices::new().with(agent.model().id(), Price::new(1.0, 10.0));
    let builder = Runner::builder(agent, MemoryStore::new()).app("clerk").unwrap();
    let builder =
        builder.budget(Budget::requests("all", 2)).budget(Budget::usd("own", 0.5).of(BudgetScope::User));
    let site = Site::over(builder.prices(prices).build(), Limits::default()).await;
    for session in ["s1", "s2", "s3"] {
        say(&site, "ada", session).await;
    }
    let names = |listed: serde_json::Value| -> Vec<String> {
        let rows = listed["budgets"].as_array().unwrap().clone();
        rows.iter()
            .map(|row| format!("{} of {}", row["name"].as_str().unwrap(), row["scope"].as_str().unwrap()))
            .collect()
    };
    assert_eq!(names(site.get("reader", "/budgets").await.json()), ["own of user ada"]);
    assert_eq!(site.get("reader", "/budgets?user=bob").await.problem(), (403, "forbidden".to_owned()));
    let all = site.get("payer", "/budgets?user=ada").await.json();
    assert_eq!(names(all.clone()), ["all of app clerk", "own of user ada"]);
    assert_eq!((&all["budgets"][0]["spent"], &all["budgets"][0]["unit"]), (&json!(2), &json!("requests")));
    assert_eq!(
        (&all["budgets"][1]["limit"], &all["budgets"][1]["window"]),
        (&json!(500_000_000), &json!("ever"))
    );
    let bearer = site.bearer("root");
    let metrics = site.raw(Method::GET, "/api/v1/metrics", &[("authorization", &bearer)], "").await.text;
    for line in [
        r#"stepfold_budget_spent{app="clerk",budget="all",unit="requests"} 2.0"#,
        r#"stepfold_budget_reserved{app="clerk",budget="all",unit="requests"} 0.0"#,
        r#"stepfold_budget_limit{app="clerk",budget="all",unit="requests"} 2.0"#,
        r#"stepfold_budget_refused_requests_total{app="clerk",budget="all"} 1"#,
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
    assert!(!metrics.contains("ada") && !metrics.contains(r#"budget="own",unit"#), "{metrics}");
}
