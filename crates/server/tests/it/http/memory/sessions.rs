//! The sessions of a test of memory, in one SQLite file.

use std::path::Path;

use serde_json::{Value, json};
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::Runner;
use stepfold_session_scopes::{
    AppendEvent, Author, CreateSession, Event, EventId, InvocationId, SessionKey, SessionStore as _,
    SqliteStore, Timestamp,
};
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::{Delta, Handler, Schema};

/// The stored bytes of a session that is read whole, with a budget of 64 MiB.
const FEW_BYTES: usize = 10 << 20;

/// The stored bytes of a large commit or value.
const LARGE: usize = 8 << 20;

/// A large session with messages of 8 MiB.
const MESSAGES: &str = "messages";
/// One with messages of 4 KiB.
const COMMITS: &str = "commits";
/// One whose state is texts of 8 MiB.
const STATE: &str = "state";
/// A session that is read whole: 2,560 messages of 4 KiB.
const WHOLE: &str = "whole";
/// Another one, whose state is 10 lists with 10,000 short texts each.
const VALUES: &str = "values";
/// Another one, whose 20 commits write a list of 170,000 empty lists each.
const LISTS: &str = "lists";
/// A session that has nothing.
pub(super) const SMALL: &str = "small";

/// Sessions of the user whose requests are measured.
pub(super) const ALL: [&str; 6] = [MESSAGES, COMMITS, STATE, WHOLE, VALUES, LISTS];

/// An agent whose sessions may have any values.
pub(super) fn agent() -> Agent {
    let schema = Schema::builder().open().build().unwrap();
    Agent::builder(Script::parse("").unwrap()).name("clerk").schema(schema).build().unwrap()
}

fn at() -> Timestamp {
    Timestamp::from_micros(1)
}

fn event(session: &str, version: usize) -> Event {
    let name = format!("{session}-{version}");
    Event::new(
        EventId::new(name.as_str()).unwrap(),
        InvocationId::new(name.as_str()).unwrap(),
        Author::new("clerk").unwrap(),
        at(),
    )
}

/// So many bytes of JSON: a list of empty lists.
pub(super) fn lists(bytes: usize) -> String {
    format!("[{}[]]", "[],".repeat(bytes / 3))
}

/// Fills the file with one session of each shape of `ada`, large ones of so many stored bytes, and a small one of `bob`.
pub(super) async fn prepare(path: &Path, bytes: usize) {
    let store = SqliteStore::open(path).unwrap();
    let runner = Runner::builder(agent(), store).build();
    let (store, schema) = (runner.store(), runner.schema());
    let create = async |user: &str, session: &str, values: Value, events: Vec<Event>| {
        let key = SessionKey::new("clerk", user, session).unwrap();
        let create = CreateSession::with_key(key, schema, at()).values(values).unwrap();
        store.create(create.with_events(events.into_iter().map(Into::into))).await.unwrap().key
    };
    create("bob", SMALL, json!({}), Vec::new()).await;
    for (session, bytes, size) in
        [(MESSAGES, bytes, LARGE), (COMMITS, bytes, 4 << 10), (WHOLE, FEW_BYTES, 4 << 10)]
    {
        let message = |version| event(session, version).with_message(Message::user("x".repeat(size)));
        create("ada", session, json!({}), (0..bytes / size).map(message).collect()).await;
    }
    let key = create("ada", LISTS, json!({}), Vec::new()).await;
    let value: Value = serde_json::from_str(&lists(FEW_BYTES / 20)).unwrap();
    let write = runner.agent().schema().write_with("found", value, &Handler::replace_values()).unwrap();
    let delta: Delta = [write].into_iter().collect();
    for (version, number) in (0..).zip(0..20) {
        let event = event(LISTS, number).with_delta(delta.clone());
        store.append(AppendEvent::new(key.clone(), version, event, schema)).await.unwrap();
    }
    let text = "x".repeat(LARGE);
    let values = (0..bytes / LARGE).map(|number| (format!("text_{number}"), json!(text))).collect();
    create("ada", STATE, Value::Object(values), Vec::new()).await;
    let texts: Vec<String> = (0..10_000).map(|number| format!("{number:0100}")).collect();
    let values = (0..10).map(|number| (format!("texts_{number}"), json!(texts))).collect();
    create("ada", VALUES, Value::Object(values), Vec::new()).await;
}
