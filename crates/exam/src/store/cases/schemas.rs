//! Sessions stored under one schema and opened under another.

use serde_json::json;
use stepfold_state_core::state::{Handler, Schema, StateError};

use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, cases, ensure, ensure_eq, ensure_error,
};
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::SessionSchema;
use stepfold_session_scopes::{Expected, GetSession, ScopeKey, SessionStore};

cases! {
    compatible_changes_load,
    incompatible_changes_are_an_error_that_names_both_types,
    registered_migrations_run,
    a_key_that_is_declared_no_more_stays_in_the_store,
    shared_values_know_the_schema_they_were_written_under,
    a_session_is_read_without_a_schema,
}

fn old() -> Result<SessionSchema, StateError> {
    let builder = Schema::builder().key::<i64>("count").handler(Handler::sum()).key::<Vec<String>>("tags");
    Ok(builder.key::<i64>("app:count").handler(Handler::sum()).build()?.into())
}

async fn compatible_changes_load(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&old()?, "s1", json!({"app:count": 1, "count": 1, "tags": ["a"]})).await?.key;
    let builder = Schema::builder().key::<Option<f64>>("count").key::<Vec<String>>("tags");
    let new = builder.key::<String>("title").default("none").key::<i64>("app:count").build()?.into();
    let state = context.get(&key).await?.state(&new)?;
    ensure_eq!(
        crate::store::context::values_of(&state),
        json!({"app:count": 1, "count": 1, "tags": ["a"], "title": "none"})
    );
    context.write(&key, 0, "e1", &new, &[("tags", json!(["b"])), ("title", json!("x"))]).await?;
    let state = context.get(&key).await?.state(&new)?;
    ensure_eq!(
        crate::store::context::values_of(&state),
        json!({"app:count": 1, "count": 1, "tags": ["a", "b"], "title": "x"})
    );
    Ok(())
}

async fn incompatible_changes_are_an_error_that_names_both_types(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&old()?, "s1", json!({"count": 1})).await?.key;
    let new = SessionSchema::new(Schema::builder().key::<String>("count").build()?);
    let Err(SessionError::SchemaMismatch { key: name, stored, opened, .. }) =
        context.get(&key).await?.state(&new)
    else {
        return Err(CaseFault::new("the value was loaded as another type"));
    };
    ensure_eq!((name.as_str(), stored.as_str(), opened.as_str()), ("count", "integer", "string"));
    // A write does not get past it either, unless it replaces the value.
    let sum = SessionSchema::new(Schema::builder().key::<String>("count").handler(Handler::max()).build()?);
    let result = context.write(&key, 0, "e1", &sum, &[("count", json!("x"))]).await;
    ensure_error!(result, SessionError::SchemaMismatch { .. });
    context.write(&key, 0, "e1", &new, &[("count", json!("one"))]).await?;
    ensure_eq!(context.get(&key).await?.to_json(), json!({"count": "one"}));
    Ok(())
}

async fn registered_migrations_run(context: CaseContext) -> StoreCaseResult {
    let values = json!({"app:count": 2, "count": 1, "tags": ["a", "b"]});
    let key = context.create(&old()?, "s1", values).await?.key;
    let builder = Schema::builder().key::<Vec<i64>>("count").key::<String>("tags");
    let new = SessionSchema::new(builder.key::<Vec<i64>>("app:count").build()?)
        .migration("count", |old| Ok(json!([old])))
        .migration("app:count", |old| Ok(json!([old])))
        .migration("tags", |old| {
            let tags = old.as_array().ok_or("no list")?;
            Ok(json!(tags.iter().filter_map(|tag| tag.as_str()).collect::<Vec<_>>().join(",")))
        });
    let read = context.get(&key).await?.state(&new)?;
    ensure_eq!(
        crate::store::context::values_of(&read),
        json!({"app:count": [2], "count": [1], "tags": "a,b"})
    );
    // Handlers meet the converted value in the store, too.
    let writes = [("app:count", json!(3)), ("count", json!(3))];
    context.write(&key, 0, "e1", &new, &writes).await?;
    let read = context.get(&key).await?.state(&new)?;
    ensure_eq!(
        crate::store::context::values_of(&read),
        json!({"app:count": [2, 3], "count": [1, 3], "tags": "a,b"})
    );
    Ok(())
}

async fn a_key_that_is_declared_no_more_stays_in_the_store(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&old()?, "s1", json!({"app:count": 1, "count": 1, "tags": ["a"]})).await?.key;
    let new = SessionSchema::new(Schema::builder().key::<Vec<String>>("tags").build()?);
    context.write(&key, 0, "e1", &new, &[("tags", json!("b"))]).await?;
    let session = context.get(&key).await?;
    let state = session.state(&new)?;
    ensure!(!state.has("count") && !state.has("app:count"), "{state:?}");
    ensure_eq!(session.to_json(), json!({"app:count": 1, "count": 1, "tags": ["a", "b"]}));
    context.write(&key, 1, "e2", &old()?, &[("count", json!(1))]).await?;
    ensure_eq!(
        context
            .get(&key)
            .await?
            .state(&old()?)?
            .get("count")
            .map(stepfold_state_core::state::ValueRef::to_json),
        Some(json!(2))
    );
    Ok(())
}

async fn shared_values_know_the_schema_they_were_written_under(context: CaseContext) -> StoreCaseResult {
    context.create(&old()?, "s1", json!({"app:count": 1})).await?;
    let new = SessionSchema::new(Schema::builder().key::<Vec<String>>("app:count").build()?);
    // The session itself was never stored under the old schema.
    let key = context.create(&new, "s2", json!({})).await?.key;
    let read = context.get(&key).await?.state(&new);
    match &read {
        Err(SessionError::SchemaMismatch { key, stored, opened, .. })
            if key == "app:count" && stored == "integer" && opened == "list of string" => {}
        other => {
            return Err(CaseFault::new(format!(
                "{other:?}, expected a mismatch of integer and list of string"
            )));
        }
    }
    let result = context.write(&key, Expected::Any, "e1", &new, &[("app:count", json!(["x"]))]).await;
    ensure_error!(result, SessionError::SchemaMismatch { .. });
    Ok(())
}

async fn a_session_is_read_without_a_schema(context: CaseContext) -> StoreCaseResult {
    let values = json!({"app:count": 2, "count": 1, "tags": ["a", "b"]});
    let before = context.create(&old()?, "s1", values.clone()).await?;
    let key = before.key.clone();
    context.write(&key, 0, "e1", &old()?, &[("tags", json!(["c"])), ("count", json!(1))]).await?;
    let new = SessionSchema::new(Schema::builder().key::<String>("count").key::<i64>("tags").build()?);
    let session = context.get(&key).await?;
    ensure_error!(session.state(&new), SessionError::SchemaMismatch { .. });
    ensure_error!(session.update(before.state(&old()?)?, &new), SessionError::SchemaMismatch { .. });
    // Stored values can still be read, in every way.
    let now = json!({"app:count": 2, "count": 2, "tags": ["a", "b", "c"]});
    ensure_eq!(session.to_json(), now);
    ensure_eq!(session.get("count").map(stepfold_state_core::state::ValueRef::to_json), Some(json!(2)));
    let own = session.values.as_ref().map(|values| {
        let values = values.session.iter().map(|(key, value)| (key.to_owned(), value.to_json()));
        serde_json::Value::Object(values.collect())
    });
    ensure_eq!(own, Some(json!({"count": 2, "tags": ["a", "b", "c"]})));
    let get = || GetSession::new(key.clone());
    ensure_eq!(context.store.get(get().at_version(0)).await?.to_json(), values);
    ensure_eq!(context.store.get(get().keys(["count"])).await?.to_json(), json!({"count": 2}));
    let changed = context.store.get(get().changed_since(before.seen())).await?;
    ensure_eq!(changed.to_json(), json!({"count": 2, "tags": ["a", "b", "c"]}));
    let app = context.store.read_scope(ScopeKey::app(context.app.as_str())?).await?;
    ensure_eq!(app.get("app:count").map(stepfold_state_core::state::ValueRef::to_json), Some(json!(2)));
    Ok(())
}
