//! Where shared values come from: the origin that is shown is right, or the value was changed elsewhere. Over generated
//! writes, edits, removals, rewinds and forks of sessions of one user, in each store.

use http::Method;
use serde_json::{Value, json};
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::Runner;
use stepfold_server::http::{App, Limits};
use stepfold_session_scopes::{AnyStore, MemoryStore, PostgresStore, SqliteStore};
use stepfold_state_core::state::{Handler, Schema};
use stepfold_tools::{Args, Effect, Tool, ToolError};

use super::site::Site;
use crate::postgres::server;

/// Keys with their handlers: each scope that is shared, and one that is not.
const KEYS: [(&str, &str); 6] = [
    ("app:queries", "sum"),
    ("app:motto", "replace_values"),
    ("user:name", "replace_values"),
    ("user:tags", "union"),
    ("user:log", "merge_lists"),
    ("total", "sum"),
];

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Given {
    value: Value,
}

async fn echo(Args(given): Args<Given>) -> Result<Value, ToolError> {
    Ok(json!({"value": given.value}))
}

fn agent(script: &str) -> Agent {
    let schema = Schema::builder()
        .key::<i64>("app:queries")
        .handler(Handler::sum())
        .key::<String>("app:motto")
        .key::<String>("user:name")
        .key::<Vec<i64>>("user:tags")
        .handler(Handler::union())
        .key::<Vec<i64>>("user:log")
        .key::<i64>("total")
        .handler(Handler::sum())
        .build()
        .unwrap();
    let tools = KEYS.map(|(key, _)| {
        let name = format!("to_{}", key.replace(':', "_"));
        Tool::new(name, "Writes.", echo).effect(Effect::Pure).output_to_state(key, "value").build().unwrap()
    });
    Agent::builder(Script::parse(script).unwrap()).name("clerk").schema(schema).tools(tools).build().unwrap()
}

/// A value that a step writes: few ones, so that equal values of other sessions happen.
fn value_of(handler: &str, random: &mut fastrand::Rng) -> Value {
    match handler {
        "sum" => json!(random.i64(1..4)),
        "replace_values" => json!(["Ada", "Bob", "Eve"][random.usize(0..3)]),
        _ => json!([random.i64(0..4)]),
    }
}

/// What a write makes of a value, by the rule of its handler.
fn merged(before: Option<&Value>, handler: &str, value: &Value) -> Value {
    let items = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    match handler {
        "sum" => json!(before.and_then(Value::as_i64).unwrap_or(0) + value.as_i64().unwrap()),
        "merge_lists" => json!([items(before), items(Some(value))].concat()),
        "union" => {
            let mut all = items(before);
            all.extend(items(Some(value)).into_iter().filter(|item| !items(before).contains(item)));
            json!(all)
        }
        _ => value.clone(),
    }
}

/// A write: its handler, or none for a removal, and its value.
type Written = (String, Option<String>, Value);

/// A session of the reference: what each of its versions wrote, and which versions count.
#[derive(Clone, Default)]
struct Story {
    commits: Vec<Vec<Written>>,
    counting: Vec<u64>,
}

impl Story {
    /// The writes of a key that count, with their versions.
    fn writes(&self, key: &str) -> Vec<(u64, Written)> {
        let of = |version: u64| {
            let written = &self.commits[usize::try_from(version).unwrap() - 1];
            written.iter().filter(|write| write.0 == key).cloned().map(move |write| (version, write))
        };
        self.counting.iter().flat_map(|version| of(*version)).collect()
    }

    /// The value that these writes alone make.
    fn value(&self, key: &str) -> Option<Value> {
        self.writes(key).into_iter().fold(None, |before, (_, (_, handler, value))| {
            handler.map(|handler| merged(before.as_ref(), &handler, &value))
        })
    }
}

/// Reads the story of a session from its commits, whose `visible` says which of them count.
async fn story(site: &Site, session: &str) -> Story {
    let page = site.get("root", &format!("/sessions/{session}/events?limit=1000")).await.json();
    let rows = page["events"].as_array().unwrap();
    let write = |write: &Value| {
        let handler = write["handler"].as_str().map(str::to_owned);
        (write["key"].as_str().unwrap().to_owned(), handler, write["value"].clone())
    };
    let commits = rows.iter().map(|row| row["writes"].as_array().unwrap().iter().map(write).collect());
    let counting = rows.iter().filter(|row| row["visible"] == true);
    Story {
        commits: commits.collect(),
        counting: counting.map(|row| row["version"].as_u64().unwrap()).collect(),
    }
}

/// What was seen: both answers have to occur.
#[derive(Debug, Default)]
struct Seen {
    origins: usize,
    elsewhere: usize,
}

/// The law: the origin of a key is the last write that counts, and the value is the result of those that count; or the
/// key is among those that were changed elsewhere.
async fn check(site: &Site, session: &str, seen: &mut Seen) {
    let story = story(site, session).await;
    let state = site.get("root", &format!("/sessions/{session}/state?origin=true")).await.json();
    for (key, _) in KEYS {
        let writes = story.writes(key);
        let (origin, elsewhere) = (&state["origin"][key], &state["changed_elsewhere"][key]);
        let Some((last, _)) = writes.last() else {
            assert!(origin.is_null() && elsewhere.is_null(), "{key} of {session}: {state}");
            continue;
        };
        let is_origin = story.value(key).as_ref() == state["values"].get(key);
        let shown = if is_origin { origin } else { elsewhere };
        assert_eq!(shown["version"].as_u64(), Some(*last), "{key} of {session}: {state}");
        assert_eq!(shown["writes"].as_u64(), Some(writes.len() as u64), "{key} of {session}");
        let other = if is_origin { elsewhere } else { origin };
        assert!(other.is_null(), "{key} of {session}: {state}");
        assert!(key.contains(':') || is_origin, "{key} of {session}: {state}");
        seen.origins += usize::from(is_origin && key.contains(':'));
        seen.elsewhere += usize::from(!is_origin);
    }
}

/// A rewind, a fork, an edit or a run of one of the sessions.
async fn change(site: &Site, sessions: &mut Vec<String>, random: &mut fastrand::Rng) {
    let session = format!("/sessions/{}", sessions[random.usize(0..sessions.len())]);
    let newest = site.get("root", &session).await.json()["version"].as_u64().unwrap();
    let (key, handler) = KEYS[random.usize(0..KEYS.len())];
    let done = match random.u8(0..10) {
        0 if newest > 0 => {
            let body = json!({"to": random.u64(0..newest), "expected": newest});
            site.post("root", &format!("{session}/rewind"), body).await
        }
        1 if sessions.len() < 4 => {
            sessions.push(format!("s{}", sessions.len() + 1));
            let body = json!({"id": sessions.last(), "at": random.u64(0..=newest)});
            site.post("root", &format!("{session}/fork"), body).await
        }
        2 | 3 => {
            let body = match random.bool() {
                true => json!({"set": {key: value_of(handler, random)}, "expected": newest}),
                false => json!({"unset": [key], "expected": newest}),
            };
            site.ask("root", Method::PATCH, &format!("{session}/state"), &[], &body.to_string()).await
        }
        _ => site.post("root", &format!("{session}/run"), json!({"text": "go"})).await,
    };
    assert!(done.status.is_success(), "{}", done.text);
}

/// Runs that write random keys, a run of one step each.
fn script(random: &mut fastrand::Rng) -> String {
    let run = |_| {
        let calls = (0..random.usize(1..4)).map(|place| {
            let (key, handler) = KEYS[random.usize(0..KEYS.len())];
            let value = value_of(handler, random);
            format!(" > c{place} to_{}(value={value})", key.replace(':', "_"))
        });
        format!("assistant:{}\nassistant: done\n", calls.collect::<String>())
    };
    (0..80).map(run).collect()
}

/// Random changes of two sessions and their forks: their number with either answer. The store may have values already.
async fn the_law_holds(store: AnyStore, number: u64, seen: &mut Seen) {
    let mut random = fastrand::Rng::with_seed(number);
    let runner = Runner::builder(agent(&script(&mut random)), store).build();
    let site = Site::of(App::from(runner), Limits::default()).await;
    let mut sessions = vec!["s1".to_owned(), "s2".to_owned()];
    for session in &sessions {
        assert_eq!(site.post("root", "/sessions", json!({"id": session})).await.status, 201);
    }
    for _ in 0..25 {
        change(&site, &mut sessions, &mut random).await;
        check(&site, &sessions[random.usize(0..sessions.len())], seen).await;
    }
    for session in &sessions {
        check(&site, session, seen).await;
    }
    assert!(site.stop().await);
}

fn check_seen(seen: &Seen) {
    assert!(seen.origins > 10 && seen.elsewhere > 10, "{seen:?}");
}

#[tokio::test]
async fn the_origin_of_a_shared_value_is_right_or_it_changed_elsewhere() {
    let (mut seen, folder) = (Seen::default(), tempfile::tempdir().unwrap());
    for seed in 0..4 {
        the_law_holds(AnyStore::new(MemoryStore::new()), seed, &mut seen).await;
        let path = folder.path().join(format!("{seed}.db"));
        the_law_holds(AnyStore::new(SqliteStore::open(path).unwrap()), seed, &mut seen).await;
    }
    check_seen(&seen);
}

#[tokio::test]
async fn the_origin_of_a_shared_value_in_postgres() {
    let Some(server) = server() else { return };
    let mut seen = Seen::default();
    for seed in 0..3 {
        let address = server.database(&format!("shared_origins_{seed}")).await;
        the_law_holds(AnyStore::new(PostgresStore::open(&address).await.unwrap()), seed, &mut seen).await;
    }
    check_seen(&seen);
}

/// The sequences of the fault: another session has written a shared key since, and a step that is looked at is not the last.
#[tokio::test]
async fn a_shared_value_that_another_session_wrote_names_no_step_of_this_one() {
    let calls = "assistant: > c1 to_user_name(value=\"Ada\") > c2 to_app_queries(value=1)\nassistant: done\n";
    let site = Site::of(
        App::from(Runner::builder(agent(&calls.repeat(2)), MemoryStore::new()).build()),
        Limits::default(),
    )
    .await;
    let origin = async |session: &str, at: &str| {
        let path = format!("/sessions/{session}/state?origin=true{at}");
        let state = site.get("root", &path).await.json();
        (state["origin"].clone(), state["changed_elsewhere"].clone(), state["values"].clone())
    };
    for session in ["s1", "s2"] {
        site.post("root", "/sessions", json!({"id": session})).await;
    }
    site.post("root", "/sessions/s1/run", json!({"text": "go"})).await;
    let (own, elsewhere, _) = origin("s1", "").await;
    assert_eq!((&own["user:name"]["call_id"], &own["app:queries"]["call_id"]), (&json!("c1"), &json!("c2")));
    assert_eq!(elsewhere, Value::Null);
    let body = json!({"set": {"user:name": "Bob"}, "expected": 0}).to_string();
    site.ask("root", Method::PATCH, "/sessions/s2/state", &[], &body).await;
    site.post("root", "/sessions/s2/run", json!({"text": "go"})).await;
    let body = json!({"set": {"user:name": "Bob"}, "expected": 5}).to_string();
    let edited = site.ask("root", Method::PATCH, "/sessions/s2/state", &[], &body).await;
    assert_eq!(edited.status, 200, "{}", edited.text);
    let (own, elsewhere, values) = origin("s1", "").await;
    assert_eq!((&values["user:name"], &values["app:queries"]), (&json!("Bob"), &json!(2)));
    assert_eq!(own, json!({}), "{own}");
    assert_eq!(elsewhere["user:name"]["call_id"], "c1", "the last write here is told: {elsewhere}");
    // The current value is that of a later step.
    let (own, elsewhere, _) = origin("s2", "&at=4").await;
    assert_eq!((&own["user:name"], &elsewhere["user:name"]["call_id"]), (&Value::Null, &json!("c1")));
    let (own, ..) = origin("s2", "").await;
    assert_eq!(own["user:name"]["version"], 6);
}
