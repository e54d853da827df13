//! Lists of sessions.

use serde_json::json;
use stepfold_state_core::chat::Message;

use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, at, cases, ensure, ensure_eq, ensure_error, event,
    schema, with,
};
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::UserId;
use stepfold_session_scopes::{
    CreateSession, DeleteSession, EventRange, Expected, ListSessions, ListUsers, SessionCursor, SessionStore,
};
use stepfold_session_scopes::{Event, RunRecord};

cases! {
    lists_are_paged_newest_first,
    lists_give_metadata_unless_asked_for_more,
    lists_have_all_that_are_unfinished_or_contain_a_text,
    a_strange_cursor_is_an_error,
    users_are_listed_in_order,
}

async fn lists_are_paged_newest_first(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    for number in 0..7i64 {
        // Two were made at the same time: the later one counts as newer.
        let request = CreateSession::with_key(context.key(&format!("s{number}"))?, &schema, at(number / 2));
        context.store.create(request).await?;
    }
    let mut late = event("e1")?;
    late.at = at(100);
    context.append(&context.key("s2")?, Expected::Any, late, &schema).await?;
    let (mut after, mut pages) = (None, Vec::new());
    loop {
        let list = ListSessions::new(context.app.as_str(), "alice")?.limit(3).after(after);
        let page = context.store.list(list).await?;
        pages.push(page.sessions.iter().map(|session| session.key.id.to_string()).collect::<Vec<_>>());
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    ensure_eq!(pages, [vec!["s2", "s6", "s5"], vec!["s4", "s3", "s1"], vec!["s0"]]);
    let none = context.store.list(ListSessions::new(context.app.as_str(), "unknown")?).await?;
    ensure!(none.sessions.is_empty() && none.next.is_none(), "{none:?}");
    Ok(())
}

async fn lists_give_metadata_unless_asked_for_more(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key =
        context.create(&schema, "s1", json!({"app:text": "a", "list": [1], "user:text": "u"})).await?.key;
    for id in ["e1", "e2"] {
        context.write(&key, Expected::Any, id, &schema, &[("list", json!([id]))]).await?;
    }
    let list = ListSessions::new(context.app.as_str(), "alice")?;
    let plain = context.store.list(list.clone()).await?.sessions.remove(0);
    ensure!(plain.values.is_none() && plain.events.is_empty(), "{plain:?}");
    ensure_eq!((plain.version, plain.created, plain.updated), (2, at(0), at(1)));
    let full = context.store.list(list.with_state().events(EventRange::Last(1))).await?.sessions.remove(0);
    let stored = json!({"app:text": "a", "defaulted": 10, "list": [1, "e1", "e2"], "user:text": "u"});
    ensure_eq!(full.to_json(), stored);
    ensure_eq!(full.events.iter().map(|committed| committed.version).collect::<Vec<_>>(), [2]);
    Ok(())
}

/// A store may list others as well.
async fn lists_have_all_that_are_unfinished_or_contain_a_text(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    for id in ["Ended", "Waiting", "Idle"] {
        context.create(&schema, id, json!({})).await?;
    }
    let step = |id: &str| {
        let event = event(id)?.with_message(Message::user(format!("Which area of {id}?")));
        Ok::<_, CaseFault>(event.with_record(RunRecord::new("run", 1, "a step")?))
    };
    for id in ["Ended", "Waiting"] {
        context.append(&context.key(id)?, Expected::Any, step(id)?, &schema).await?;
    }
    let ended =
        event("last")?.with_record(RunRecord::new("run", 1, "a step")?).with_metadata(Event::EXIT, "final");
    context.append(&context.key("Ended")?, Expected::Any, ended, &schema).await?;
    let list = || ListSessions::new(context.app.as_str(), "alice");
    for (list, wanted, is_by_message) in [
        (list()?.unfinished(), "Waiting", false),
        (list()?.containing("IDL"), "Idle", false),
        (list()?.containing("area of END"), "Ended", true),
        (list()?.containing("waiting?").unfinished(), "Waiting", true),
    ] {
        let page = context.store.list(list).await?;
        let is_found = page.sessions.iter().any(|session| session.key.id.as_str() == wanted);
        ensure!(is_found == (context.lists_messages || !is_by_message), "{wanted}: {page:?}");
    }
    Ok(())
}

async fn a_strange_cursor_is_an_error(context: CaseContext) -> StoreCaseResult {
    for text in ["", "x", "1", "1.x", "'; --"] {
        let list = ListSessions::new(context.app.as_str(), "alice")?.after(Some(SessionCursor::new(text)));
        ensure_error!(context.store.list(list).await, SessionError::InvalidCursor);
    }
    Ok(())
}

async fn users_are_listed_in_order(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    for (user, id) in [("eve", "s1"), ("ada", "s1"), ("ada", "s2"), ("bob", "s1"), ("Zoe", "s1")] {
        let mut request = CreateSession::with_key(context.key(id)?, &schema, at(0));
        request.user = UserId::new(user)?;
        context.store.create(request).await?;
    }
    let list = ListUsers::new(context.app.as_str())?;
    let names = |users: Vec<UserId>| users.iter().map(ToString::to_string).collect::<Vec<_>>();
    ensure_eq!(names(context.store.users(list.clone()).await?), ["Zoe", "ada", "bob", "eve"]);
    let after = UserId::new("ada")?;
    let page = with(list.clone(), |list| (list.after, list.limit) = (Some(after), 1));
    ensure_eq!(names(context.store.users(page).await?), ["bob"]);
    let mut key = context.key("s1")?;
    key.user = UserId::new("bob")?;
    context.store.delete(DeleteSession::new(key)).await?;
    ensure_eq!(names(context.store.users(list).await?), ["Zoe", "ada", "eve"]);
    ensure_eq!(names(context.store.users(ListUsers::new("another-app")?).await?), [""; 0]);
    Ok(())
}
