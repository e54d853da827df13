//! Isolation of tenants: an id alone gives no access.

use serde_json::json;

use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, at, cases, ensure_eq, ensure_error, schema,
};
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::SessionKey;
use stepfold_session_scopes::{CreateSession, DeleteSession, ListSessions, ScopeKey, SessionStore};

cases! {
    one_id_is_another_session_for_each_user_and_app,
    a_known_id_opens_nothing_of_another_tenant,
    ids_are_names_and_nothing_else,
}

async fn one_id_is_another_session_for_each_user_and_app(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let other_app = format!("{}-2", context.app);
    let tenants =
        [(context.app.as_str(), "alice"), (context.app.as_str(), "bob"), (other_app.as_str(), "alice")];
    for (number, (app, user)) in tenants.into_iter().enumerate() {
        let request = CreateSession::with_key(SessionKey::new(app, user, "s1")?, &schema, at(0));
        context
            .store
            .create(request.values(json!({"app:sum": 1, "sum": number, "user:sum": number}))?)
            .await?;
    }
    for (number, (app, user)) in tenants.into_iter().enumerate() {
        let session = context.get(&SessionKey::new(app, user, "s1")?).await?;
        let visits = if app == context.app { 2 } else { 1 };
        let stored = json!({"app:sum": visits, "defaulted": 10, "sum": number, "user:sum": number});
        ensure_eq!(session.to_json(), stored);
    }
    Ok(())
}

async fn a_known_id_opens_nothing_of_another_tenant(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    context.create(&schema, "s1", json!({"text": "alice's", "user:text": "alice's"})).await?;
    let bobs = SessionKey::new(context.app.as_str(), "bob", "s1")?;
    ensure_error!(context.get(&bobs).await, SessionError::NotFound { .. });
    let append = context.write(&bobs, 0, "e1", &schema, &[("text", json!("bob's"))]).await;
    ensure_error!(append, SessionError::NotFound { .. });
    ensure_error!(context.rewind(&bobs, "e1", 0).await, SessionError::NotFound { .. });
    let deleted = context.store.delete(DeleteSession::new(bobs).with_user_state()).await;
    ensure_error!(deleted, SessionError::NotFound { .. });
    ensure_eq!(context.store.list(ListSessions::new(context.app.as_str(), "bob")?).await?.sessions.len(), 0);
    ensure_eq!(context.store.read_scope(ScopeKey::user(context.app.as_str(), "bob")?).await?.len(), 0);
    let stored = json!({"defaulted": 10, "text": "alice's", "user:text": "alice's"});
    ensure_eq!(context.get(&context.key("s1")?).await?.to_json(), stored);
    Ok(())
}

async fn ids_are_names_and_nothing_else(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let ids = [
        "'; DROP TABLE stepfold_sessions; --",
        "\" OR 1=1 --",
        "$1",
        "%",
        "_",
        "../../etc/passwd",
        "/",
        "a/b",
        "\\",
        "NULL",
        "日本語 🦀",
        "é",
        "e\u{301}",
        "S",
        "s",
        "ß",
    ];
    for id in ids {
        context.create(&schema, id, json!({"text": id})).await?;
        context.write(&context.key(id)?, 0, id, &schema, &[(id_as_key(id).as_str(), json!(id))]).await?;
    }
    for id in ids {
        let session = context.get(&context.key(id)?).await?;
        ensure_eq!(session.get("text").map(stepfold_state_core::state::ValueRef::to_json), Some(json!(id)));
        ensure_eq!(
            session.get(&id_as_key(id)).map(stepfold_state_core::state::ValueRef::to_json),
            Some(json!(id))
        );
        ensure_eq!(session.events[0].event.id.as_str(), id);
    }
    let listed = context.store.list(ListSessions::new(context.app.as_str(), "alice")?).await?;
    ensure_eq!(listed.sessions.len(), ids.len());
    Ok(())
}

/// A key of a form that is allowed, as strange as the id.
fn id_as_key(id: &str) -> String {
    format!("user:{}", id.replace(':', "."))
}
