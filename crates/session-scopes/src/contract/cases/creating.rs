//! Making and deleting sessions.

use serde_json::json;

use crate::contract::room::{Case, Checked, Fault, Room, at, cases, ensure, ensure_eq, ensure_error, schema};
use crate::error::SessionError;
use crate::store::{CreateSession, DeleteSession, GetSession, ScopeKey, SessionStore};

cases! {
    create_splits_the_initial_state_by_scope,
    create_sends_shared_values_through_their_handlers,
    create_makes_an_id_when_there_is_none,
    create_with_an_id_in_use_changes_nothing,
    create_stores_the_defaults_of_the_day,
    delete_removes_one_session_and_says_what,
    delete_erases_the_user_when_asked,
    deleted_sessions_can_be_created_again,
}

async fn create_splits_the_initial_state_by_scope(room: Room) -> Checked {
    let schema = schema()?;
    let values = json!({"app:theme": "dark", "temp:step": 1, "topic": "start", "user:name": "Ada"});
    let session = room.create(&schema, "s1", values).await?;
    let stored = json!({"app:theme": "dark", "defaulted": 10, "topic": "start", "user:name": "Ada"});
    ensure_eq!(session.to_json(), stored);
    ensure_eq!(session.version, 0);
    // Another session of the user inherits what is shared, and nothing else.
    let other = room.create(&schema, "s2", json!({})).await?;
    ensure_eq!(other.to_json(), json!({"app:theme": "dark", "defaulted": 10, "user:name": "Ada"}));
    let app = room.store.read_scope(ScopeKey::app(room.app.as_str())?).await?;
    ensure_eq!(app.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["app:theme"]);
    Ok(())
}

async fn create_sends_shared_values_through_their_handlers(room: Room) -> Checked {
    let schema = schema()?;
    for id in ["s1", "s2", "s3"] {
        room.create(&schema, id, json!({"app:sum": 1, "sum": 1, "user:list": [id]})).await?;
    }
    let session = room.get(&room.key("s2")?).await?;
    let stored = json!({"app:sum": 3, "defaulted": 10, "sum": 1, "user:list": ["s1", "s2", "s3"]});
    ensure_eq!(session.to_json(), stored);
    Ok(())
}

async fn create_makes_an_id_when_there_is_none(room: Room) -> Checked {
    let schema = schema()?;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let request = CreateSession::new(room.app.as_str(), "alice", &schema, at(0))?;
        ids.push(room.store.create(request).await?.key.id);
    }
    ids.sort();
    ids.dedup();
    ensure_eq!(ids.len(), 3);
    Ok(())
}

async fn create_with_an_id_in_use_changes_nothing(room: Room) -> Checked {
    let schema = schema()?;
    let first = room.create(&schema, "s1", json!({"app:sum": 1, "topic": "first"})).await?;
    room.write(&first.key, 0, "e1", &schema, &[("topic", json!("second"))]).await?;
    let again = room.create(&schema, "s1", json!({"app:sum": 1, "topic": "third"})).await;
    ensure_error!(again, SessionError::AlreadyExists { .. });
    let session = room.get(&first.key).await?;
    ensure_eq!(session.to_json(), json!({"app:sum": 1, "defaulted": 10, "topic": "second"}));
    ensure_eq!(session.events.len(), 1);
    Ok(())
}

async fn create_stores_the_defaults_of_the_day(room: Room) -> Checked {
    let schema = schema()?;
    let session = room.create(&schema, "s1", json!({})).await?;
    room.write(&session.key, 0, "e1", &schema, &[("defaulted", json!(1))]).await?;
    ensure_eq!(room.get(&session.key).await?.to_json(), json!({"defaulted": 11}));
    let given = room.create(&schema, "s2", json!({"defaulted": 5})).await?;
    ensure_eq!(given.to_json(), json!({"defaulted": 5}));
    Ok(())
}

async fn delete_removes_one_session_and_says_what(room: Room) -> Checked {
    let schema = schema()?;
    let session = room.create(&schema, "s1", json!({"topic": "x", "user:name": "Ada"})).await?;
    room.write(&session.key, 0, "e1", &schema, &[("list", json!([1]))]).await?;
    room.create(&schema, "s2", json!({"topic": "y"})).await?;
    let mut deleted = room.store.delete(DeleteSession::new(session.key.clone())).await?;
    deleted.session_keys.sort();
    ensure_eq!(deleted.events, 1);
    ensure_eq!(deleted.session_keys, ["defaulted", "list", "topic"]);
    ensure!(deleted.user_keys.is_empty(), "{:?}", deleted.user_keys);
    ensure_error!(room.get(&session.key).await, SessionError::NotFound { .. });
    let again = room.store.delete(DeleteSession::new(session.key)).await;
    ensure_error!(again, SessionError::NotFound { .. });
    let other = room.get(&room.key("s2")?).await?;
    ensure_eq!(other.to_json(), json!({"defaulted": 10, "topic": "y", "user:name": "Ada"}));
    Ok(())
}

async fn delete_erases_the_user_when_asked(room: Room) -> Checked {
    let schema = schema()?;
    let values = json!({"app:theme": "dark", "user:list": [1, 2], "user:name": "Ada"});
    let session = room.create(&schema, "s1", values).await?;
    let mut deleted = room.store.delete(DeleteSession::new(session.key).with_user_state()).await?;
    deleted.user_keys.sort();
    ensure_eq!(deleted.user_keys, ["user:list", "user:name"]);
    let user = room.store.read_scope(ScopeKey::user(room.app.as_str(), "alice")?).await?;
    ensure!(user.is_empty(), "values of the user are left: {user:?}");
    let app = room.store.read_scope(ScopeKey::app(room.app.as_str())?).await?;
    ensure_eq!(app.len(), 1);
    Ok(())
}

async fn deleted_sessions_can_be_created_again(room: Room) -> Checked {
    let schema = schema()?;
    let session = room.create(&schema, "s1", json!({"topic": "x"})).await?;
    room.write(&session.key, 0, "e1", &schema, &[("list", json!([1]))]).await?;
    room.store.delete(DeleteSession::new(session.key.clone())).await?;
    let anew = room.create(&schema, "s1", json!({})).await?;
    ensure_eq!((anew.version, anew.to_json()), (0, json!({"defaulted": 10})));
    room.write(&session.key, 0, "e1", &schema, &[("list", json!([2]))]).await?;
    let session = room.store.get(GetSession::new(session.key)).await?;
    ensure_eq!(session.to_json(), json!({"defaulted": 10, "list": [2]}));
    ensure_eq!(session.events.len(), 1);
    Ok(())
}
