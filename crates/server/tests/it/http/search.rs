//! Sessions are found however many are newer.

use http::Method;
use serde_json::{Value, json};
use stepfold_session_scopes::{CreateSession, SessionStore as _, Timestamp};

use super::site::Site;

/// More than a page has.
const NEWER: i64 = 4_500;

async fn full_site() -> Site {
    let site = Site::new("assistant: > c1 pay()\nassistant: paid").await;
    let waits = site.post("ada", "/sessions/oldest/run", json!({"text": "pay for the Rhubarb"})).await;
    assert_eq!(waits.status, 404, "a run creates no session");
    site.post("ada", "/sessions", json!({"id": "oldest"})).await;
    let run = site.post("ada", "/sessions/oldest/run", json!({"text": "pay for the Rhubarb"})).await.json();
    assert_eq!(run["status"], "waiting");
    let schema = site.runner.schema();
    for number in 0..NEWER {
        // Later than any clock.
        let at = Timestamp::from_micros(i64::MAX / 2 + number);
        let key = site.runner.key("ada", format!("newer-{number}")).unwrap();
        site.runner.store().create(CreateSession::with_key(key, schema, at)).await.unwrap();
    }
    site
}

/// All sessions of a query, and the number of its pages.
async fn all(site: &Site, query: &str) -> (Vec<String>, usize) {
    let (mut found, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page: Value = site.get("ada", &format!("/sessions?{query}{after}")).await.json();
        pages += 1;
        found.extend(
            page["sessions"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()),
        );
        match page["next"].as_str() {
            Some(next) => {
                after = format!(
                    "&after={}",
                    percent_encoding::utf8_percent_encode(next, percent_encoding::NON_ALPHANUMERIC)
                );
            }
            None => return (found, pages),
        }
    }
}

#[tokio::test]
async fn what_is_sought_is_found_at_any_age() {
    let site = full_site().await;
    for query in
        ["q=oldest", "q=rhubarb", "status=waiting", "stopped=true", "q=RHUB&status=waiting", "q=old&limit=1"]
    {
        let (found, pages) = all(&site, query).await;
        assert_eq!(found, ["oldest"], "{query}");
        assert_eq!(pages, 1, "{query}");
    }
    for query in ["q=nothing", "status=failed", "q=rhubarb&status=idle"] {
        assert_eq!(all(&site, query).await.0, [""; 0], "{query}");
    }
    let (found, _) = all(&site, "q=newer-12&limit=50").await;
    assert_eq!(found.len(), 111, "{found:?}");
    let first = site.ask("ada", Method::GET, "/sessions?q=newer&limit=20", &[], "").await.json();
    assert_eq!(first["sessions"].as_array().unwrap().len(), 20);
}

/// Messages of the principal's own sessions, page by page, and of no one else's.
#[tokio::test]
async fn messages_are_found_by_their_words() {
    let site = Site::new("assistant: The bakery takes 5 euro.").await;
    for (user, session) in [("ada", "monday"), ("bob", "monday"), ("ada", "tuesday")] {
        site.post(user, "/sessions", json!({"id": session})).await;
        let text = format!("the fee of {user}'s bakery, on {session}");
        let ran = site.post(user, &format!("/sessions/{session}/run"), json!({"text": text})).await;
        assert_eq!(ran.status, 200, "{}", ran.text);
    }
    let found = async |user: &'static str, query: &str| {
        site.get(user, &format!("/search?query=bakery{query}")).await.json()
    };
    let all = found("reader", "").await;
    let rows = all["found"].as_array().unwrap();
    assert_eq!((rows.len(), &all["next"]), (4, &Value::Null), "{all}");
    assert!(!all.to_string().contains("bob"), "{all}");
    let reply = rows.iter().find(|row| row["role"] == "assistant").expect("the reply");
    assert_eq!((&reply["version"], &reply["excerpt"]), (&json!(2), &json!("The bakery takes 5 euro.")));
    // Page by page, the same.
    let (mut paged, mut after) = (Vec::new(), json!(0));
    while !after.is_null() {
        let page = found("ada", &format!("&limit=1&after={after}")).await;
        paged.extend(page["found"].as_array().unwrap().clone());
        after = page["next"].clone();
    }
    assert_eq!(&paged, rows);
    assert_eq!(found("ada", "&session=tuesday").await["found"].as_array().unwrap().len(), 2);
    assert_eq!(found("ada", "&limit=1000&after=1000").await["found"], json!([]));
    assert_eq!(site.get("ada", "/search?query=fee&limit=0").await.status, 400);
    assert_eq!(site.get("bob", "/search?query=bakery&session=tuesday").await.problem().0, 404);
    assert_eq!(site.get("ada", "/search?query=%2C").await.problem(), (400, "invalid".to_owned()));
}
