//! Exports in which one value was changed: each is refused, or is a session that answers every question, and hides no
//! other.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Map, Value, json};

use super::site::{Live, Site};

const BILL: &str =
    "assistant: > c1 pay()\nassistant: It is paid.\nassistant: > c2 pay()\nassistant: Five euro.\n";

/// A session with a decision, a turn that was rewound, an edit of a value, a label, and a run that waits.
async fn exported() -> Value {
    let site = Site::new(BILL).await;
    site.post("ada", "/sessions", json!({"id": "s1", "values": {"spent": 2}})).await;
    let run = site.post("ada", "/sessions/s1/run", json!({"text": "pay the bill"})).await.json();
    let request = run["pending"][0]["id"].as_str().unwrap();
    let mut live = site.live("ada", "s1", None).await;
    site.post("ada", "/sessions/s1/decisions", json!({"decisions": {request: "approve"}})).await;
    live.until("ended").await;
    let version = || async { site.get("ada", "/sessions/s1").await.json()["version"].clone() };
    let edit = json!({"set": {"spent": 1}, "expected": version().await}).to_string();
    site.ask("ada", Method::PATCH, "/sessions/s1/state", &[], &edit).await;
    let label = json!({"version": version().await}).to_string();
    site.ask("ada", Method::PUT, "/sessions/s1/labels/paid", &[], &label).await;
    site.post("ada", "/sessions/s1/rewind", json!({"to": 2, "expected": version().await})).await;
    site.post("ada", "/sessions/s1/abandon", json!({})).await;
    site.post("ada", "/sessions/s1/run", json!({"text": "once more"})).await;
    site.post("ada", "/sessions/s1/run", json!({"text": "and the other one"})).await;
    let export = site.get("ada", "/sessions/s1/export").await.json();
    assert_eq!(site.get("ada", "/sessions/s1").await.json()["status"], "waiting", "{export}");
    export
}

/// The place of each value of a document.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Array(items) => {
            for (place, item) in items.iter().enumerate() {
                places(item, &format!("{at}/{place}"), all);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                places(field, &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), all);
            }
        }
        _ => {}
    }
}

/// What a value becomes.
const CHANGES: usize = 22;

fn other(value: &Value, change: usize) -> Value {
    match change {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(0),
        3 => json!(-1),
        4 => json!(u64::MAX),
        5 => json!(1e300),
        6 => json!(9_007_199_254_740_993_u64),
        7 => json!(i64::MIN),
        8 => json!(""),
        9 => json!("\0\u{2028}\u{202e}<b>"),
        10 => json!("x".repeat(70_000)),
        11 => json!("app:motto"),
        12 => json!([]),
        13 => json!({}),
        14 => json!({"app:motto": "mine", "user:name": "Eve", "temp:x": 1, "__proto__": {}}),
        15 => (0..100).fold(json!(1), |inner, _| json!([inner])),
        16 => json!([value, value]),
        17 => json!({"is": value}),
        18 => match value {
            Value::Number(number) => json!(number.as_u64().unwrap_or_default() + 1),
            Value::String(text) => json!(format!("{text}x")),
            Value::Array(items) => items.iter().rev().cloned().collect(),
            Value::Object(fields) => fields
                .iter()
                .skip(1)
                .map(|(name, field)| (name.clone(), field.clone()))
                .collect::<Map<_, _>>()
                .into(),
            value => value.clone(),
        },
        19 => match value {
            Value::Array(items) => items.iter().chain(items.last()).cloned().collect(),
            Value::Object(fields) => {
                let mut fields = fields.clone();
                fields.insert("unknown".to_owned(), json!(1));
                fields.into()
            }
            value => value.clone(),
        },
        20 => match value {
            Value::Array(items) => items.iter().skip(1).cloned().collect(),
            Value::Number(number) => json!(number.to_string()),
            Value::String(text) => json!(text.chars().rev().collect::<String>()),
            value => value.clone(),
        },
        _ => match value {
            Value::Array(items) => items[..items.len().saturating_sub(1)].to_vec().into(),
            Value::Number(number) => json!(number.as_i64().unwrap_or_default() - 1),
            value => value.clone(),
        },
    }
}

fn changed(export: &Value, place: &str, change: usize) -> Value {
    let mut export = export.clone();
    let value = export.pointer_mut(place).unwrap();
    *value = other(value, change);
    export
}

/// Each question about a session, and what they are answered with.
async fn asked(site: &Site, id: &str) -> BTreeMap<String, u16> {
    let mut seen = BTreeMap::new();
    let detail = site.get("ada", &format!("/sessions/{id}")).await;
    let newest = detail.json()["version"].as_u64().unwrap_or_default();
    let mut paths: Vec<String> = [
        "",
        "/events",
        "/events?brief=true",
        "/blame?key=spent",
        "/usage",
        "/export",
        "/export?as=test",
        "/labels",
        "/forks",
        "/model",
        "/compare?with=good",
        "/diff?from=0",
    ]
    .map(str::to_owned)
    .to_vec();
    for version in 0..=(newest + 1).min(20) {
        paths.extend([
            format!("/events/{version}"),
            format!("/state?at={version}&origin=true"),
            format!("/model?at={version}"),
            format!("/diff?from=0&to={version}"),
        ]);
    }
    for path in paths {
        let reply = site.get("ada", &format!("/sessions/{id}{path}")).await;
        seen.insert(format!("GET {path}"), reply.status.as_u16());
    }
    for (path, body) in [
        ("replay", json!({})),
        ("fork", json!({"id": format!("{id}-fork"), "at": newest / 2})),
        ("resume", json!({})),
        ("cancel", json!({})),
        ("decisions", json!({"decisions": {"c2": "approve"}})),
        ("run", json!({"text": "hello"})),
        ("abandon", json!({})),
        ("rewind", json!({"to": 0, "expected": newest})),
        ("run", json!({"text": "hello"})),
    ] {
        let reply = site.post("ada", &format!("/sessions/{id}/{path}"), body).await;
        let status = reply.status.as_u16();
        // A script has only so many replies.
        let is_of_model = status == 502 && reply.problem().1 == "run_failed";
        seen.insert(format!("POST {path}"), if is_of_model { 200 } else { status });
    }
    seen
}

/// What is wrong with the answers to an import and about what it made.
async fn faults(site: &Site, id: &str, export: Value) -> Result<bool, String> {
    // A run that has not ended is imported by administrators.
    let reply = site.post("root", &format!("/import?id={id}"), export).await;
    let status = reply.status.as_u16();
    match status {
        201 => {}
        400 | 409 | 413 | 422 => {
            let left = site.get("ada", &format!("/sessions/{id}")).await.status;
            return if left == 404 {
                Ok(false)
            } else {
                Err(format!("refused with {status}, and left {left}"))
            };
        }
        _ => return Err(format!("import: {status} {}", reply.text)),
    }
    let mut live: Live = site.live("ada", id, None).await;
    if live.next().await.is_none() {
        return Err("live: nothing".to_owned());
    }
    drop(live);
    let wrong: Vec<String> = asked(site, id)
        .await
        .into_iter()
        .filter(|(_, status)| *status >= 500)
        .map(|(path, status)| format!("{path}: {status}"))
        .collect();
    if !wrong.is_empty() {
        return Err(wrong.join(", "));
    }
    let list = site.get("ada", "/sessions?limit=3").await;
    let shared = site.get("ada", "/sessions/good/state?at=0").await.json();
    match list.status.as_u16() {
        200 if shared["values"].get("app:motto").is_none() => Ok(true),
        200 => Err(format!("shared values were written: {shared}")),
        status => Err(format!("list: {status}")),
    }
}

async fn with_good(export: &Value) -> Site {
    let site = Site::new(BILL).await;
    let made = site.post("root", "/import?id=good", export.clone()).await;
    assert_eq!(made.status, 201, "{}", made.text);
    site
}

/// The number of changes that are tried; all are some 7,800.
fn cases() -> usize {
    #[expect(clippy::disallowed_methods, reason = "a long run is asked for in the environment")]
    std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(128)
}

#[tokio::test]
async fn a_changed_export_is_refused_or_answers_every_question() {
    let export = exported().await;
    let mut all = Vec::new();
    places(&export, "", &mut all);
    let site = with_good(&export).await;
    let every = (all.len() * CHANGES / cases()).max(1);
    let (mut made, mut refused, mut wrong) = (0, 0, Vec::new());
    for case in (0..all.len() * CHANGES).step_by(every) {
        let (place, change) = (&all[case / CHANGES], case % CHANGES);
        match faults(&site, &format!("m{case}"), changed(&export, place, change)).await {
            Ok(true) => made += 1,
            Ok(false) => refused += 1,
            Err(why) => wrong.push(format!("{place}, change {change}: {why}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(made > 0 && refused > 0, "{made} made, {refused} refused");
}
