//! What is stored of an event is all of it, in every store.

use proptest::collection::{hash_map, vec};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use stepfold_session_scopes::{
    AppendEvent, Author, Event, EventId, EventKind, GetSession, InvocationId, MemoryStore, PostgresStore,
    RunRecord, SessionStore, SqliteStore, Timestamp,
};
use stepfold_state_core::chat::{Message, ToolCall, ToolResult};
use stepfold_state_core::state::Handler;

use crate::scenario::{create, key, schema};

fn text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..6).prop_map(String::from_iter)
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9).prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            hash_map(text(), inner, 0..4).prop_map(|fields| Value::Object(Map::from_iter(fields))),
        ]
    })
}

fn message() -> impl Strategy<Value = Message> {
    (text(), json_value()).prop_flat_map(|(text, value)| {
        prop_oneof![
            Just(Message::user(text.as_str())),
            Just(Message::assistant(text).with_part(ToolCall::new(
                "c1",
                "search",
                json!({"q": value.clone()})
            ))),
            Just(Message::tool(ToolResult::value("c1", "search", value))),
        ]
    })
}

/// Ids as runners make them and others, with the invocation that they imply and others.
fn names() -> impl Strategy<Value = (String, String)> {
    let name = || {
        prop_oneof![Just("i"), Just("i.j"), Just("..."), Just(".i"), Just("i ."), Just("\u{e9}"), Just("i2")]
    };
    (name(), name(), any::<bool>()).prop_map(|(invocation, other, is_made)| {
        let id = if is_made { format!("{invocation}.") } else { other.to_owned() };
        (id, invocation.to_owned())
    })
}

fn kind() -> impl Strategy<Value = EventKind> {
    prop_oneof![Just(EventKind::MESSAGE), Just(EventKind::STARTED), text().prop_map(EventKind::new)]
}

fn record() -> impl Strategy<Value = RunRecord> {
    (text(), any::<u64>(), json_value())
        .prop_map(|(format, version, data)| RunRecord::new(format, version, &data).unwrap())
}

/// Values for keys of all scopes; none is a removal.
fn writes() -> impl Strategy<Value = Vec<(String, Option<Value>)>> {
    let key = prop_oneof![Just("free"), Just("app:free"), Just("user:free")].prop_map(str::to_owned);
    vec((key, proptest::option::of(json_value())), 0..3)
}

/// An event, but for a number behind its id.
fn event() -> impl Strategy<Value = Event> {
    let said = (vec(message(), 0..3), kind(), vec(text(), 0..3));
    let kept = (proptest::option::of(record()), hash_map(text(), json_value(), 0..3), writes());
    (names(), any::<i64>(), said, kept).prop_map(|((id, invocation), at, said, kept)| {
        let ((messages, kind, started), (record, metadata, writes)) = (said, kept);
        let (id, invocation) = (EventId::new(id).unwrap(), InvocationId::new(invocation).unwrap());
        let mut event = Event::new(id, invocation, Author::new("agent").unwrap(), Timestamp::from_micros(at))
            .with_kind(kind)
            .with_started(started);
        event.messages = messages.into_iter().map(Into::into).collect();
        event.record = record;
        event.metadata = metadata.into_iter().collect();
        let (schema, replace) = (schema(), Handler::replace_values());
        let write = |(key, value): (String, Option<Value>)| match value {
            Some(value) => schema.schema().write_with(key.as_str(), value, &replace).unwrap(),
            None => schema.schema().removal(key.as_str()).unwrap(),
        };
        event.with_delta(writes.into_iter().map(write).collect())
    })
}

proptest! {
    #[test]
    fn an_event_survives_both_forms(event in event()) {
        prop_assert_eq!(&Event::from_stored(&event.to_stored().unwrap()).unwrap(), &event);
        let body = event.to_body().unwrap();
        prop_assert_eq!(&Event::from_body(event.id.clone(), event.at, &body).unwrap(), &event);
    }
}

async fn survives(store: &impl SessionStore, events: &[Event]) -> Result<(), TestCaseError> {
    create(store, &key("s")).await;
    for (version, event) in (0..).zip(events) {
        store.append(AppendEvent::new(key("s"), version, event.clone(), &schema())).await.unwrap();
    }
    let session = store.get(GetSession::new(key("s"))).await.unwrap();
    let read: Vec<Event> = session.events.iter().map(|committed| (*committed.event).clone()).collect();
    prop_assert_eq!(&read, events);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn an_event_survives_every_store(events in vec(event(), 1..8)) {
        let numbered = events.into_iter().zip(0..).map(|(mut event, number)| {
            event.id = EventId::new(format!("{}{number}", event.id)).unwrap();
            event
        });
        let events: Vec<Event> = numbered.collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            survives(&MemoryStore::new(), &events).await?;
            let folder = tempfile::tempdir().unwrap();
            survives(&SqliteStore::open(folder.path().join("sessions.db")).unwrap(), &events).await?;
            let Some(server) = crate::server::server() else { return Ok(()) };
            static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
            let name = format!("stored_{}", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
            survives(&PostgresStore::open(server.database(&name).await).await.unwrap(), &events).await
        })?;
    }
}
