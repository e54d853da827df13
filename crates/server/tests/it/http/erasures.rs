//! Erasure over HTTP: by administrators, of any user's sessions, with a reason.

use serde_json::{Value, json};
use stepfold_session_scopes::{SessionStore as _, VerifySessions};

use super::site::Site;

const MARKER: &str = "555-0199";

async fn site() -> Site {
    let site = Site::new("assistant: Noted.\nassistant: Hello.\n").await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    site.post("ada", "/sessions/s1/run", json!({"text": format!("my number is {MARKER}")})).await;
    site.post("ada", "/sessions/s1/run", json!({"text": "hi"})).await;
    site
}

async fn text(site: &Site) -> String {
    let mut text = String::new();
    for path in
        ["/sessions/s1/events", "/sessions/s1/export", "/sessions", "/sessions/s1", "/sessions/s1/model"]
    {
        text += &site.get("ada", path).await.text;
    }
    text
}

#[tokio::test]
async fn administrators_erase_an_event() {
    let site = site().await;
    let body = json!({"user": "ada", "session": "s1", "versions": [1], "reason": "ticket 17", "id": "e1"});
    for name in ["ada", "reader"] {
        let refused = site.post(name, "/erasures", body.clone()).await;
        assert_eq!(refused.problem(), (403, "forbidden".to_owned()));
    }
    let mut dry = body.clone();
    dry["dry_run"] = true.into();
    let listed = site.post("root", "/erasures", dry).await.json();
    assert_eq!(
        (&listed["events"], &listed["dry_run"], &listed["found"]),
        (&json!(1), &json!(true), &json!(true))
    );
    assert!(text(&site).await.contains(MARKER));
    let erased = site.post("root", "/erasures", body.clone()).await.json();
    assert_eq!(erased["versions"], json!([{"session": "s1", "version": 1}]));
    let left = text(&site).await;
    assert!(!left.contains(MARKER) && left.contains("[erased]"), "{left}");
    // After a lost answer.
    assert_eq!(site.post("root", "/erasures", body).await.json(), erased);
    let records = site.get("root", "/erasures").await.json();
    let records = records["erasures"].as_array().unwrap();
    assert_eq!(records.len(), 1, "{records:?}");
    let field = |name: &str| records[0][name].clone();
    assert_eq!(
        [field("id"), field("kind"), field("by"), field("reason"), field("events")],
        [json!("e1"), json!("events"), json!("ada"), json!("ticket 17"), json!(1)]
    );
    assert_eq!(site.get("ada", "/erasures").await.problem().0, 403);
}

#[tokio::test]
async fn administrators_erase_a_user() {
    let site = site().await;
    let half = site.post("root", "/erasures", json!({"user": "ada", "reason": "ticket 18"})).await;
    assert_eq!(half.problem(), (400, "invalid".to_owned()));
    let body = json!({"user": "ada", "everything": true, "reason": "ticket 18", "vacuum": true});
    let erased = site.post("root", "/erasures", body).await.json();
    assert_eq!((&erased["sessions"], &erased["vacuumed"]), (&json!(["s1"]), &json!(true)));
    assert_eq!((&erased["found"], &erased["key"]), (&json!(true), &json!(false)));
    let again = site
        .post("root", "/erasures", json!({"user": "ada", "everything": true, "reason": "ticket 18"}))
        .await;
    assert_eq!(again.json()["found"], false, "{}", again.text);
    assert_eq!(site.get("ada", "/sessions/s1").await.status, 404);
    assert_eq!(site.get("ada", "/sessions").await.json()["sessions"], json!([]));
}

/// The answer has the id that the server has made: a repeat under it has the answer of the first, also where the session is gone.
#[tokio::test]
async fn the_id_of_an_erasure_is_told() {
    let site = site().await;
    let mut body = json!({"user": "ada", "session": "s1", "reason": "ticket 21", "dry_run": true});
    assert_eq!(site.post("root", "/erasures", body.clone()).await.json()["id"], Value::Null);
    body["dry_run"] = false.into();
    let first = site.post("root", "/erasures", body.clone()).await.json();
    assert_eq!(site.post("root", "/erasures", body.clone()).await.status, 404);
    (body["id"], body["vacuum"]) = (first["id"].clone(), true.into());
    let again = site.post("root", "/erasures", body).await.json();
    assert_eq!((&again["events"], &again["vacuumed"]), (&first["events"], &true.into()), "{again}");
}

/// An export of a session with gaps is imported with them.
#[tokio::test]
async fn an_export_with_erased_events_is_imported() {
    let site = site().await;
    let body = json!({"user": "ada", "session": "s1", "versions": [1, 2], "reason": "ticket 19"});
    site.post("root", "/erasures", body).await;
    let export: Value = site.get("ada", "/sessions/s1/export").await.json();
    let imported = site.post("ada", "/import?id=s2", export).await;
    assert_eq!(imported.status, 201, "{}", imported.text);
    let events = site.get("ada", "/sessions/s2/events").await.text;
    assert!(events.contains("[erased]") && !events.contains(MARKER), "{events}");
    // A copy of the copy too is marked as the origin is: for verification, and for replays.
    let export: Value = site.get("ada", "/sessions/s2/export").await.json();
    assert_eq!(site.post("ada", "/import?id=s3", export).await.status, 201);
    let report = site.runner.store().verify(VerifySessions::all()).await.unwrap();
    assert_eq!(report.faults, []);
    let marks = |id: &str| -> Vec<_> {
        let of = report.erasures.iter().filter(|erased| erased.key.id.as_str() == id);
        of.map(|erased| (erased.version, erased.erasure.clone())).collect()
    };
    let replay =
        async |id: &str| site.post("ada", &format!("/sessions/{id}/replay"), json!({})).await.problem();
    assert_eq!((marks("s1").len(), replay("s1").await.1), (2, "erased".to_owned()));
    for id in ["s2", "s3"] {
        assert_eq!((marks(id), replay(id).await), (marks("s1"), replay("s1").await), "{id}");
    }
}

#[tokio::test]
async fn invalid_erasures_are_refused() {
    let site = site().await;
    for (body, status) in [
        (json!({"user": "ada", "session": "s1", "versions": [99], "reason": "r"}), 404),
        (json!({"user": "ada", "session": "s9", "reason": "r"}), 404),
        (json!({"user": "ada", "session": "s1", "call": "c9", "reason": "r"}), 404),
        (json!({"user": "ada", "session": "s1", "versions": [1], "call": "c1", "reason": "r"}), 400),
        (json!({"user": "ada", "session": "s1", "everything": true, "reason": "r"}), 400),
        (json!({"user": "ada", "everything": true, "versions": [1], "reason": "r"}), 400),
        (json!({"user": "ada", "session": "s1", "versions": [1]}), 400),
        (json!({"user": "ada", "session": "s1", "versions": [1], "reason": " "}), 400),
    ] {
        let refused = site.post("root", "/erasures", body.clone()).await;
        assert_eq!(refused.status, status, "{body}: {}", refused.text);
    }
    assert!(text(&site).await.contains(MARKER));
}
