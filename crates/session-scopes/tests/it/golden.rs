//! Golden files: what version 1 wrote loads for ever. A change of format adds files; it never changes one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use stepfold_session_scopes::{
    Author, ClaimSession, CreateSession, DequeueInput, EnqueueInput, Event, EventId, ForkSession, GetSession,
    IdempotencyKey, InboxKind, InvocationId, Label, LabelVersion, LifeId, ListForks, ReadInbox, ReadLabels,
    RewindSession, SessionError, SessionStore, SqliteStore, VerifySessions, WorkerId,
};
use stepfold_state_core::chat::{Message, ToolCall, ToolResult};

use crate::scenario::{append, at, event, key, schema, writing};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// One event of everything, one of as little as there can be, one of each kind of our own: what was
/// written when the format was made.
fn events() -> Vec<Event> {
    let schema = schema();
    let delta = serde_json::from_value(json!([
        {"handler": "sum", "key": "app:n", "value": 1},
        {"handler": "upsert_by(id)", "key": "app:tasks", "value": [{"id": 1}]},
        {"key": "user:name", "remove": true},
        {"handler": "replace_values", "key": "note", "value": null},
    ]))
    .unwrap();
    let _ = schema;
    let mut full = event("e1")
        .with_message(Message::assistant("I look.\u{0}").with_part(ToolCall::new(
            "c1",
            "search",
            json!({"q": 1}),
        )))
        .with_message(Message::tool(ToolResult::value("c1", "search", json!([3, 4.0]))))
        .with_delta(delta)
        .with_started(["c2", "c3"])
        .with_metadata("trace", json!({"id": 7}));
    full.kind = stepfold_session_scopes::EventKind::new("step");
    full.record =
        Some(stepfold_session_scopes::RunRecord::new("run", 1, &json!({"phase": "tools"})).unwrap());
    let started = event("e3").with_kind(stepfold_session_scopes::EventKind::STARTED).with_started(["c2"]);
    vec![full, event("e2"), started]
}

#[test]
fn events_of_version_1() {
    let text = read("events-v1.jsonl");
    let lines: Vec<&str> = text.lines().collect();
    let expected = events();
    // The last line is a rewind, which only a store makes.
    assert_eq!(lines.len(), expected.len() + 1);
    for (line, expected) in lines.iter().zip(&expected) {
        let event = Event::from_stored(line).unwrap();
        assert_eq!(event, *expected);
        let same: (Value, Value) =
            (serde_json::from_str(line).unwrap(), serde_json::from_str(&event.to_stored().unwrap()).unwrap());
        assert_eq!(same.0, same.1);
    }
    let rewind = Event::from_stored(lines[expected.len()]).unwrap();
    assert_eq!(rewind.actions.rewound_to(), Some(2));
}

#[test]
fn newer_events() {
    let mut stored: Value = serde_json::from_str(read("events-v1.jsonl").lines().next().unwrap()).unwrap();
    stored["not_known_yet"] = json!(1);
    assert_eq!(Event::from_stored(&stored.to_string()).unwrap(), events()[0]);
    stored["v"] = json!(2);
    let error = Event::from_stored(&stored.to_string()).unwrap_err();
    assert!(matches!(error, SessionError::NewerFormat { found: 2, supported: 1, .. }), "{error:?}");
    for broken in ["", "{}", "[]", r#"{"v": 1}"#] {
        assert!(matches!(Event::from_stored(broken), Err(SessionError::Stored { .. })), "{broken}");
    }
}

fn input(name: &str, text: &str) -> EnqueueInput {
    let (key, idempotency_key) = (key("golden"), IdempotencyKey::new(name).unwrap());
    EnqueueInput::new(key, InboxKind::Message, idempotency_key, json!({ "text": text }), at(3))
}

/// Writes the file of tables again, if `STEPFOLD_RECORD` is set: for as long as version 1 is not released.
#[tokio::test]
async fn record() {
    #[expect(clippy::disallowed_methods, reason = "this is how a developer says what he wants")]
    let Ok(_) = std::env::var("STEPFOLD_RECORD") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sessions.db");
    let store = SqliteStore::open(&file).unwrap();
    let values = json!({"list": [1], "user:name": "Ada", "app:tasks": [{"id": 1}]});
    let mut request = CreateSession::with_key(key("golden"), &schema(), at(0)).values(values).unwrap();
    request.life = Some(LifeId::new("golden-life").unwrap());
    store.create(request).await.unwrap();
    let tasks = json!({"id": 1, "done": true});
    let first = [("list", json!([2])), ("n", json!(2)), ("app:n", json!(1)), ("app:tasks", tasks)];
    append(&store, &key("golden"), 0, writing("e1", &first).with_message(Message::user("hi"))).await.unwrap();
    let mut fork = ForkSession::new(key("golden"), at(2)).with_id(key("fork").id);
    fork.life = Some(LifeId::new("fork-life").unwrap());
    store.fork(fork).await.unwrap();
    let label = Label::new("noted").unwrap();
    store.set_label(LabelVersion::new(key("golden"), label, 1)).await.unwrap();
    let second = [("list", json!([9])), ("n", json!(5)), ("app:n", json!(2))];
    append(&store, &key("golden"), 1, writing("e2", &second)).await.unwrap();
    let rewind = RewindSession::new(
        key("golden"),
        2,
        1,
        EventId::new("e4").unwrap(),
        InvocationId::new("i").unwrap(),
        Author::new("user").unwrap(),
        at(1),
    );
    store.rewind(rewind).await.unwrap();
    append(&store, &key("golden"), 3, writing("e5", &[("list", json!([3]))])).await.unwrap();
    let (owner, minute) = (WorkerId::new("worker-1").unwrap(), Duration::from_secs(60));
    store.claim(ClaimSession::new(key("golden"), owner, minute, at(0))).await.unwrap();
    for (name, text) in [("m1", "now"), ("m2", "later")] {
        store.enqueue(input(name, text)).await.unwrap();
    }
    store.dequeue(DequeueInput::new(key("golden"), [1])).await.unwrap();
    drop(store);
    fs::write(path("sqlite-v1.sql"), dump(&file)).unwrap();
}

/// A file as statements.
fn dump(file: &Path) -> String {
    let connection = rusqlite::Connection::open(file).unwrap();
    let texts = |query: &str| -> Vec<String> {
        let mut query = connection.prepare(query).unwrap();
        query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let mut dump = texts("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid");
    for table in texts("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY rowid") {
        let columns = texts(&format!("SELECT 'quote(' || name || ')' FROM pragma_table_info('{table}')"));
        let values = columns.join(" || ', ' || ");
        dump.extend(texts(&format!("SELECT 'INSERT INTO {table} VALUES (' || {values} || ')' FROM {table}")));
    }
    dump.into_iter().map(|statement| statement + ";\n").collect()
}

/// A file that version 1 of the tables wrote is opened, read, and gone on with.
#[tokio::test]
async fn sqlite_of_version_1() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("sessions.db");
    rusqlite::Connection::open(&copy).unwrap().execute_batch(&read("sqlite-v1.sql")).unwrap();
    let store = SqliteStore::open(&copy).unwrap();
    assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
    let session = store.get(GetSession::new(key("golden"))).await.unwrap();
    let stored = json!({
        "app:n": 3, "app:tasks": [{"done": true, "id": 1}], "list": [1, 2, 3], "n": 2, "user:name": "Ada",
    });
    assert_eq!(session.to_json(), stored);
    assert_eq!((session.version, session.events.len()), (4, 4));
    assert_eq!(session.transcript().to_string(), "user:      hi\n");
    let claim = session.claim.unwrap();
    assert_eq!((claim.owner.as_str(), claim.token, session.inbox), ("worker-1", (1 << 24) + 1, 2));
    // Both were accepted then: one waits, one was taken.
    for (name, text, position) in [("m1", "now", 1), ("m2", "later", 2)] {
        let enqueued = store.enqueue(input(name, text)).await.unwrap();
        assert_eq!((enqueued.position, enqueued.is_repeat), (position, true), "{name}");
    }
    let waiting = store.inbox(ReadInbox::new(key("golden"))).await.unwrap();
    assert_eq!(waiting.len(), 1);
    assert_eq!((waiting[0].idempotency_key.as_str(), &waiting[0].body), ("m2", &json!({"text": "later"})));
    let fork = store.get(GetSession::new(key("fork"))).await.unwrap();
    assert_eq!((fork.get("list").unwrap().to_json(), fork.version), (json!([1, 2]), 1));
    let forks = store.forks(ListForks::new(key("golden"))).await.unwrap();
    assert_eq!(forks.iter().map(|fork| (fork.id.as_str(), fork.version)).collect::<Vec<_>>(), [("fork", 1)]);
    let labels = store.labels(ReadLabels::new(key("golden"))).await.unwrap();
    assert_eq!(labels, [(Label::new("noted").unwrap(), 1)]);
    append(&store, &key("golden"), 4, writing("more", &[("list", json!([4]))])).await.unwrap();
    let session = store.get(GetSession::new(key("golden"))).await.unwrap();
    assert_eq!(session.get("list").unwrap(), json!([1, 2, 3, 4]));
    assert_eq!(session.state(&schema()).unwrap().get("n").unwrap(), json!(2));
}
