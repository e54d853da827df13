//! Making and deleting sessions.

use serde_json::json;

use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, at, cases, ensure, ensure_eq, ensure_error, schema,
};
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::{CreateSession, DeleteSession, GetSession, ScopeKey, SessionStore};

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

async fn create_splits_the_initial_state_by_scope(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let values = json!({"app:theme": "dark", "temp:step": 1, "topic": "start", "user:name": "Ada"});
    let session = context.create(&schema, "s1", values).await?;
    let stored = json!({"app:theme": "dark", "defaulted": 10, "topic": "start", "user:name": "Ada"});
    ensure_eq!(session.to_json(), stored);
    ensure_eq!(session.version, 0);
    // Another session of the user inherits what is shared, and nothing else.
    let other = context.create(&schema, "s2", json!({})).await?;
    ensure_eq!(other.to_json(), json!({"app:theme": "dark", "defaulted": 10, "user:name": "Ada"}));
    let app = context.store.read_scope(ScopeKey::app(context.app.as_str())?).await?;
    ensure_eq!(app.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["app:theme"]);
    Ok(())
}

async fn create_sends_shared_values_through_their_handlers(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    for id in ["s1", "s2", "s3"] {
        context.create(&schema, id, json!({"app:sum": 1, "sum": 1, "user:list": [id]})).await?;
    }
    let session = context.get(&context.key("s2")?).await?;
    let stored = json!({"app:sum": 3, "defaulted": 10, "sum": 1, "user:list": ["s1", "s2", "s3"]});
    ensure_eq!(session.to_json(), stored);
    Ok(())
}

async fn create_makes_an_id_when_there_is_none(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let request = CreateSession::new(context.app.as_str(), "alice", &schema, at(0))?;
        ids.push(context.store.create(request).await?.key.id);
    }
    ids.sort();
    ids.dedup();
    ensure_eq!(ids.len(), 3);
    Ok(())
}

async fn create_with_an_id_in_use_changes_nothing(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let first = context.create(&schema, "s1", json!({"app:sum": 1, "topic": "first"})).await?;
    context.write(&first.key, 0, "e1", &schema, &[("topic", json!("second"))]).await?;
    let again = context.create(&schema, "s1", json!({"app:sum": 1, "topic": "third"})).await;
    ensure_error!(again, SessionError::AlreadyExists { .. });
    let session = context.get(&first.key).await?;
    ensure_eq!(session.to_json(), json!({"app:sum": 1, "defaulted": 10, "topic": "second"}));
    ensure_eq!(session.events.len(), 1);
    Ok(())
}

async fn create_stores_the_defaults_of_the_day(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let session = context.create(&schema, "s1", json!({})).await?;
    context.write(&session.key, 0, "e1", &schema, &[("defaulted", json!(1))]).await?;
    ensure_eq!(context.get(&session.key).await?.to_json(), json!({"defaulted": 11}));
    let given = context.create(&schema, "s2", json!({"defaulted": 5})).await?;
    ensure_eq!(given.to_json(), json!({"defaulted": 5}));
    Ok(())
}

async fn delete_removes_one_session_and_says_what(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let session = context.create(&schema, "s1", json!({"topic": "x", "user:name": "Ada"})).await?;
    context.write(&session.key, 0, "e1", &schema, &[("list", json!([1]))]).await?;
    context.create(&schema, "s2", json!({"topic": "y"})).await?;
    let mut deleted = context.store.delete(DeleteSession::new(session.key.clone())).await?;
    deleted.session_keys.sort();
    ensure_eq!(deleted.events, 1);
    ensure_eq!(deleted.session_keys, ["defaulted", "list", "topic"]);
    ensure!(deleted.user_keys.is_empty(), "{:?}", deleted.user_keys);
    ensure_error!(context.get(&session.key).await, SessionError::NotFound { .. });
    let again = context.store.delete(DeleteSession::new(session.key)).await;
    ensure_error!(again, SessionError::NotFound { .. });
    let other = context.get(&context.key("s2")?).await?;
    ensure_eq!(other.to_json(), json!({"defaulted": 10, "topic": "y", "user:name": "Ada"}));
    Ok(())
}

async fn delete_erases_the_user_when_asked(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let values = json!({"app:theme": "dark", "user:list": [1, 2], "user:name": "Ada"});
    let session = context.create(&schema, "s1", values).await?;
    let mut deleted = context.store.delete(DeleteSession::new(session.key).with_user_state()).await?;
    deleted.user_keys.sort();
    ensure_eq!(deleted.user_keys, ["user:list", "user:name"]);
    let user = context.store.read_scope(ScopeKey::user(context.app.as_str(), "alice")?).await?;
    ensure!(user.is_empty(), "values of the user are left: {user:?}");
    let app = context.store.read_scope(ScopeKey::app(context.app.as_str())?).await?;
    ensure_eq!(app.len(), 1);
    Ok(())
}

async fn deleted_sessions_can_be_created_again(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let session = context.create(&schema, "s1", json!({"topic": "x"})).await?;
    context.write(&session.key, 0, "e1", &schema, &[("list", json!([1]))]).await?;
    context.store.delete(DeleteSession::new(session.key.clone())).await?;
    let anew = context.create(&schema, "s1", json!({})).await?;
    ensure_eq!((anew.version, anew.to_json()), (0, json!({"defaulted": 10})));
    context.write(&session.key, 0, "e1", &schema, &[("list", json!([2]))]).await?;
    let session = context.store.get(GetSession::new(session.key)).await?;
    ensure_eq!(session.to_json(), json!({"defaulted": 10, "list": [2]}));
    ensure_eq!(session.events.len(), 1);
    Ok(())
}
