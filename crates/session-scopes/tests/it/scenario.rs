//! What many tests begin with: a schema, events, a store in a folder.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use serde_json::Value;
use stepfold_session_scopes::{
    AnyStore, AppendEvent, Author, CreateSession, Event, EventId, GetSession, InvocationId, Receipt, Session,
    SessionError, SessionKey, SessionSchema, SessionStore, Timestamp,
};
use stepfold_state_core::state::{Handler, Schema};

use crate::keys::key_file;
use crate::sealed;

/// Made once, as a program does.
pub(crate) fn schema() -> SessionSchema {
    static SCHEMA: LazyLock<SessionSchema> = LazyLock::new(|| {
        let builder = Schema::builder()
            .key::<i64>("n")
            .handler(Handler::sum())
            .key::<Vec<Value>>("list")
            .key::<i64>("app:n")
            .handler(Handler::sum())
            .key::<Vec<Value>>("app:list")
            .key::<Vec<Value>>("app:union")
            .handler(Handler::union())
            .key::<Vec<Value>>("app:tasks")
            .handler(Handler::upsert_by("id"))
            .key::<Vec<Value>>("user:list")
            .key::<String>("user:name");
        SessionSchema::new(builder.open().build().unwrap())
    });
    SCHEMA.clone()
}

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000 + seconds * 1_000_000)
}

pub(crate) fn event(id: impl ToString) -> Event {
    Event::new(
        EventId::new(id.to_string()).unwrap(),
        InvocationId::new("i").unwrap(),
        Author::new("agent").unwrap(),
        at(1),
    )
}

/// An event of these writes, each by its key's own handler.
pub(crate) fn writing(id: impl ToString, writes: &[(&str, Value)]) -> Event {
    let schema = schema();
    let delta =
        writes.iter().map(|(key, value)| schema.schema().write(*key, value.clone()).unwrap()).collect();
    event(id).with_delta(delta)
}

pub(crate) async fn append(
    store: &impl SessionStore,
    key: &SessionKey,
    version: u64,
    event: Event,
) -> Result<Receipt, SessionError> {
    store.append(AppendEvent::new(key.clone(), version, event, &schema())).await
}

pub(crate) async fn create(store: &impl SessionStore, key: &SessionKey) -> Session {
    store.create(CreateSession::with_key(key.clone(), &schema(), at(0))).await.unwrap()
}

pub(crate) async fn get(store: &impl SessionStore, key: &SessionKey) -> Session {
    store.get(GetSession::new(key.clone())).await.unwrap()
}

pub(crate) fn key(id: impl ToString) -> SessionKey {
    SessionKey::new("app", "alice", id.to_string()).unwrap()
}

/// Opens a store by its path or URL, and, after `|`, the file of its key ring.
pub(crate) async fn open(address: &str) -> AnyStore {
    match address.split_once('|') {
        None => sealed::open_at(address, None, false).await.unwrap(),
        Some((address, ring)) => {
            sealed::open_at(address, Some(Arc::new(key_file(ring))), false).await.unwrap()
        }
    }
}

pub(crate) fn address_in(folder: &Path) -> String {
    folder.join("sessions.db").to_str().unwrap().to_owned()
}
