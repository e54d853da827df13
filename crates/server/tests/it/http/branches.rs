//! Labels on versions, and lists of forks.

use http::Method;
use serde_json::{Value, json};
use stepfold_runner::RecoverOptions;

use super::site::Site;

async fn site() -> Site {
    let site = Site::new("assistant: Yes.\nassistant: No.\n").await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    site.post("ada", "/sessions/s1/run", json!({"text": "one?"})).await;
    site
}

#[tokio::test]
async fn a_label_names_one_version() {
    let site = site().await;
    let path = "/sessions/s1/labels/before%20the%20tests";
    let set = |name: &'static str, version: u64| {
        let (site, body) = (&site, json!({"version": version}).to_string());
        async move { site.ask(name, Method::PUT, path, &[], &body).await }
    };
    assert_eq!(set("ada", 1).await.json(), json!({"label": "before the tests", "version": 1}));
    assert_eq!(set("ada", 2).await.json(), json!({"label": "before the tests", "version": 2, "before": 1}));
    let listed = site.get("reader", "/sessions/s1/labels").await.json();
    assert_eq!(listed, json!({"labels": [{"label": "before the tests", "version": 2}]}));
    assert_eq!(set("ada", 9).await.problem(), (404, "unknown_version".to_owned()));
    assert_eq!(set("reader", 1).await.problem(), (403, "forbidden".to_owned()));
    assert_eq!(site.ask("ada", Method::DELETE, path, &[], "").await.status, 204);
    let again = site.ask("ada", Method::DELETE, path, &[], "").await;
    assert_eq!(again.problem(), (404, "unknown_label".to_owned()));
    assert_eq!(site.get("reader", "/sessions/s1/labels").await.json(), json!({"labels": []}));
}

#[tokio::test]
async fn forks_are_listed_and_counted() {
    let site = site().await;
    for (id, at) in [("s2", 1), ("s3", 2)] {
        let forked = site.post("ada", "/sessions/s1/fork", json!({"id": id, "at": at})).await;
        assert_eq!(forked.status, 201, "{}", forked.text);
    }
    let forks = || async {
        let forks = site.get("reader", "/sessions/s1/forks").await.json();
        let row = |row: &Value| (row["id"].clone(), row["version"].clone());
        forks["forks"].as_array().unwrap().iter().map(row).collect::<Vec<_>>()
    };
    assert_eq!(forks().await, [(json!("s2"), json!(1)), (json!("s3"), json!(2))]);
    assert_eq!(site.get("reader", "/sessions/s1").await.json()["forks"], 2);
    let listed = site.get("reader", "/sessions?q=s1").await.json();
    assert_eq!(listed["sessions"][0]["forks"], 2, "{listed}");
    assert_eq!(site.ask("root", Method::DELETE, "/sessions/s2", &[], "").await.status, 204);
    assert_eq!(forks().await, [(json!("s3"), json!(2))]);
}

/// A fork waits, with changes or without, also where a process recovers runs; or it runs, if that is asked for.
#[tokio::test]
async fn a_fork_runs_only_if_it_is_asked_to() {
    for (body, runs) in [
        (json!({}), false),
        (json!({"set": {"spent": 3}}), false),
        (json!({"run": true}), true),
        (json!({"set": {"spent": 3}, "run": true}), true),
        (json!({"set": {"spent": 3}, "run": false}), false),
    ] {
        let site = site().await;
        let mut body = body.as_object().unwrap().clone();
        body.extend([("id".to_owned(), json!("s2")), ("at".to_owned(), json!(1))]);
        let forked = site.post("ada", "/sessions/s1/fork", json!(body)).await;
        assert_eq!(forked.status, 201, "{}", forked.text);
        site.runner.recover(RecoverOptions::new().once()).await.unwrap();
        if runs {
            site.live_from("ada", "/sessions/s2/live?after=1", None).await.until("ended").await;
        }
        let fork = site.get("reader", "/sessions/s2").await.json();
        assert_eq!(fork["unfinished"], !runs, "{body:?}: {fork}");
        if !runs {
            assert_eq!(site.post("ada", "/sessions/s2/resume", json!({})).await.status, 202);
            site.live_from("ada", "/sessions/s2/live?after=1", None).await.until("ended").await;
        }
    }
}
