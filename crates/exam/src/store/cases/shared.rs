//! Shared scopes, which outlive sessions, read and written without a session.

use futures_util::future::join_all;
use serde_json::json;

use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, cases, delta, ensure, ensure_eq, ensure_error,
    schema,
};
use stepfold_session_scopes::IdempotencyKey;
use stepfold_session_scopes::ScopeValues;
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::SessionSchema;
use stepfold_session_scopes::{ScopeKey, SessionStore, WriteScope};

cases! {
    scopes_are_read_and_written_without_a_session,
    a_scope_takes_its_own_keys_only,
    a_write_with_an_idempotency_key_is_made_once,
    a_key_of_a_write_of_nothing_is_remembered,
    a_write_to_a_scope_is_made_whole_or_not_at_all,
    scopes_and_sessions_write_the_same_values,
}

fn write(
    scope: &ScopeKey,
    schema: &SessionSchema,
    key: &str,
    value: serde_json::Value,
) -> Result<WriteScope, SessionError> {
    Ok(WriteScope::new(scope.clone(), delta(schema, &[(key, value)])?, schema))
}

fn number(values: &ScopeValues, key: &str) -> Option<serde_json::Value> {
    values.get(key).map(stepfold_state_core::state::ValueRef::to_json)
}

async fn scopes_are_read_and_written_without_a_session(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (app, user) = (ScopeKey::app(context.app.as_str())?, ScopeKey::user(context.app.as_str(), "alice")?);
    ensure!(context.store.read_scope(app.clone()).await?.is_empty(), "a new app has values");
    for (scope, key) in [(&app, "app:list"), (&user, "user:list")] {
        context.store.write_scope(write(scope, &schema, key, json!([1]))?).await?;
        let values = context.store.write_scope(write(scope, &schema, key, json!([2]))?).await?;
        ensure_eq!(number(&values, key), Some(json!([1, 2])));
        let read = context.store.read_scope(scope.clone()).await?;
        ensure_eq!((number(&read, key), read.len()), (Some(json!([1, 2])), 1));
    }
    Ok(())
}

async fn a_scope_takes_its_own_keys_only(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (app, user) = (ScopeKey::app(context.app.as_str())?, ScopeKey::user(context.app.as_str(), "alice")?);
    for (scope, key) in
        [(&app, "user:sum"), (&app, "sum"), (&app, "temp:x"), (&user, "app:sum"), (&user, "sum")]
    {
        let result = context.store.write_scope(write(scope, &schema, key, json!(1))?).await;
        ensure_error!(result, SessionError::WrongScope { .. });
    }
    Ok(())
}

async fn a_write_with_an_idempotency_key_is_made_once(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let app = ScopeKey::app(context.app.as_str())?;
    let once = |value: i64| -> Result<WriteScope, SessionError> {
        Ok(write(&app, &schema, "app:sum", json!(value))?.once(IdempotencyKey::new("o1")?))
    };
    let (first, again) = (once(1)?, once(1)?);
    for result in join_all([context.store.write_scope(first), context.store.write_scope(again)]).await {
        ensure_eq!(number(&result?, "app:sum"), Some(json!(1)));
    }
    ensure_error!(context.store.write_scope(once(2)?).await, SessionError::IdempotencyKeyReused { .. });
    // Operation ids belong to their scope.
    let user = ScopeKey::user(context.app.as_str(), "alice")?;
    let other = write(&user, &schema, "user:sum", json!(5))?.once(IdempotencyKey::new("o1")?);
    ensure_eq!(number(&context.store.write_scope(other).await?, "user:sum"), Some(json!(5)));
    ensure_eq!(number(&context.store.read_scope(app).await?, "app:sum"), Some(json!(1)));
    Ok(())
}

async fn a_key_of_a_write_of_nothing_is_remembered(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let app = ScopeKey::app(context.app.as_str())?;
    let once = |writes: &[(&str, serde_json::Value)]| -> Result<WriteScope, SessionError> {
        let request = WriteScope::new(app.clone(), delta(&schema, writes)?, &schema);
        Ok(request.once(IdempotencyKey::new("o1")?))
    };
    for _ in 0..2 {
        ensure!(context.store.write_scope(once(&[])?).await?.is_empty(), "nothing was written");
    }
    let other = once(&[("app:sum", json!(1))])?;
    ensure_error!(context.store.write_scope(other).await, SessionError::IdempotencyKeyReused { .. });
    ensure!(context.store.read_scope(app.clone()).await?.is_empty(), "a refused write wrote");
    Ok(())
}

async fn a_write_to_a_scope_is_made_whole_or_not_at_all(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let app = ScopeKey::app(context.app.as_str())?;
    let writes = [("app:list", json!([1])), ("app:sum", json!(i64::MAX)), ("app:sum", json!(u64::MAX))];
    let broken = WriteScope::new(app.clone(), delta(&schema, &writes)?, &schema);
    let broken = broken.once(IdempotencyKey::new("o1")?);
    ensure_error!(context.store.write_scope(broken).await, SessionError::State { .. });
    ensure!(context.store.read_scope(app.clone()).await?.is_empty(), "a part was written");
    let whole = write(&app, &schema, "app:sum", json!(1))?.once(IdempotencyKey::new("o1")?);
    context.store.write_scope(whole).await?;
    Ok(())
}

async fn scopes_and_sessions_write_the_same_values(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let app = ScopeKey::app(context.app.as_str())?;
    let key = context.create(&schema, "s1", json!({"app:tasks": [{"id": 1}]})).await?.key;
    let task = json!({"id": 1, "status": "done"});
    context.store.write_scope(write(&app, &schema, "app:tasks", task)?).await?;
    context.write(&key, 0, "e1", &schema, &[("app:tasks", json!({"id": 2}))]).await?;
    let stored = json!({"app:tasks": [{"id": 1, "status": "done"}, {"id": 2}], "defaulted": 10});
    ensure_eq!(context.get(&key).await?.to_json(), stored);
    Ok(())
}
