//! Committing events: all or nothing, once, and in order.

use futures_util::future::join_all;
use serde_json::json;
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::Delta;

use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, cases, delta, ensure, ensure_eq, ensure_error,
    event, schema,
};
use stepfold_session_scopes::Event;
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::Timestamp;
use stepfold_session_scopes::{
    DeleteSession, Expected, FindEvent, FindTagged, ForkSession, PruneBound, PruneSession, ScopeKey,
    SessionStore, VerifySessions,
};
use stepfold_session_scopes::{EventId, SessionKey};

cases! {
    an_append_writes_all_scopes,
    an_append_is_made_whole_or_not_at_all,
    temp_is_never_stored,
    a_stale_writer_gets_a_conflict,
    of_sixteen_stale_appends_one_is_accepted,
    a_repeated_append_gives_the_first_receipt,
    an_event_id_with_other_content_is_an_error,
    an_event_is_found_by_its_id,
    a_tagged_event_is_found_after_ten_thousand_others,
    a_tagged_event_is_found_in_forks_and_until_retention_takes_it,
    of_sixteen_repeats_one_is_made,
    keys_are_checked_in_deltas,
    removals_remove_and_null_is_a_value,
    an_append_to_nothing_is_an_error,
}

async fn an_append_writes_all_scopes(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({"text": "a"})).await?.key;
    let writes = [("app:text", json!("A")), ("text", json!("b")), ("user:text", json!("U"))];
    let receipt = context.write(&key, 0, "e1", &schema, &writes).await?;
    ensure_eq!((receipt.version, receipt.event.as_str()), (1, "e1"));
    let session = context.get(&key).await?;
    let stored = json!({"app:text": "A", "defaulted": 10, "text": "b", "user:text": "U"});
    ensure_eq!((session.version, session.to_json()), (1, stored));
    let app = context.store.read_scope(ScopeKey::app(context.app.as_str())?).await?;
    ensure_eq!(app.len(), 1);
    Ok(())
}

async fn an_append_is_made_whole_or_not_at_all(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let values = json!({"app:sum": 1, "list": [1], "sum": i64::MAX, "user:sum": 1});
    let key = context.create(&schema, "s1", values.clone()).await?.key;
    let before = context.get(&key).await?.to_json();
    // The last write overflows where it is folded, behind others in every scope.
    let writes =
        [("app:sum", json!(1)), ("user:sum", json!(1)), ("list", json!([2])), ("sum", json!(u64::MAX))];
    let failed = context.write(&key, 0, "e1", &schema, &writes).await;
    ensure_error!(failed, SessionError::State { .. });
    let session = context.get(&key).await?;
    ensure_eq!((session.version, session.events.len(), session.to_json()), (0, 0, before));
    // The same id can be used by an append that works.
    context.write(&key, 0, "e1", &schema, &writes[..3]).await?;
    Ok(())
}

async fn temp_is_never_stored(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({"temp:secret": "s3cr3t"})).await?.key;
    let writes = [("temp:secret", json!("s3cr3t")), ("text", json!("x"))];
    let receipt = context.write(&key, 0, "e1", &schema, &writes).await?;
    let session = context.get(&key).await?;
    ensure_eq!(session.to_json(), json!({"defaulted": 10, "text": "x"}));
    ensure!(!format!("{session:?}").contains("s3cr3t"), "a value of temp: was stored: {session:?}");
    // What was dropped makes no difference to a repeat.
    ensure_eq!(context.write(&key, 0, "e1", &schema, &writes).await?, receipt);
    Ok(())
}

async fn a_stale_writer_gets_a_conflict(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    context.write(&key, 0, "e1", &schema, &[("sum", json!(1))]).await?;
    for stale in [0, 2, u64::MAX] {
        let result = context.write(&key, stale, "e2", &schema, &[("sum", json!(1))]).await;
        match result {
            Err(SessionError::Conflict { expected, actual: 1, .. }) if expected == stale => {}
            other => return Err(CaseFault::new(format!("{other:?}, expected a conflict of {stale} and 1"))),
        }
    }
    ensure_eq!(
        context.get(&key).await?.get("sum").map(stepfold_state_core::state::ValueRef::to_json),
        Some(json!(1))
    );
    Ok(())
}

async fn of_sixteen_stale_appends_one_is_accepted(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    let appends = (0..16).map(|writer| {
        let (context, key, schema) = (&context, &key, &schema);
        async move { context.write(key, 0, &format!("e{writer}"), schema, &[("sum", json!(1))]).await }
    });
    let results = join_all(appends).await;
    let accepted = results.iter().filter(|result| result.is_ok()).count();
    let conflicts =
        results.iter().filter(|result| matches!(result, Err(SessionError::Conflict { .. }))).count();
    ensure_eq!((accepted, conflicts), (1, 15));
    let session = context.get(&key).await?;
    ensure_eq!((session.version, session.events.len()), (1, 1));
    Ok(())
}

async fn a_repeated_append_gives_the_first_receipt(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    let writes = [("app:sum", json!(1)), ("list", json!([1]))];
    let receipt = context.write(&key, 0, "e1", &schema, &writes).await?;
    context.write(&key, 1, "e2", &schema, &[]).await?;
    for expected in [Expected::Version(0), Expected::Any] {
        ensure_eq!(context.write(&key, expected, "e1", &schema, &writes).await?, receipt);
    }
    let session = context.get(&key).await?;
    ensure_eq!(session.to_json(), json!({"app:sum": 1, "defaulted": 10, "list": [1]}));
    ensure_eq!(session.version, 2);
    Ok(())
}

async fn an_event_id_with_other_content_is_an_error(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    context.append(&key, 0, event("e1")?.with_message(Message::user("a")), &schema).await?;
    let other = event("e1")?.with_message(Message::user("b"));
    ensure_error!(context.append(&key, 1, other, &schema).await, SessionError::EventReused { .. });
    let mut later = event("e1")?.with_message(Message::user("a"));
    later.at = Timestamp::from_micros(later.at.as_micros() + 1);
    ensure_error!(context.append(&key, 1, later, &schema).await, SessionError::EventReused { .. });
    // Ids belong to their session.
    let second = context.create(&schema, "s2", json!({})).await?.key;
    context.append(&second, 0, event("e1")?, &schema).await?;
    Ok(())
}

/// A rewind hides nothing from it, retention does, and a fork has its own.
async fn an_event_is_found_by_its_id(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    for number in 0..5 {
        context.write(&key, number, &format!("e{number}"), &schema, &[("sum", json!(1))]).await?;
    }
    let find = async |key: &SessionKey, id: &str| {
        context.store.find_event(FindEvent::new(key.clone(), EventId::new(id)?)).await
    };
    if let Err(SessionError::Unsupported { .. }) = find(&key, "e0").await {
        return Ok(());
    }
    ensure_eq!(
        (find(&key, "e0").await?, find(&key, "e4").await?, find(&key, "e5").await?),
        (Some(1), Some(5), None)
    );
    context.rewind(&key, "back", 2).await?;
    ensure_eq!((find(&key, "e4").await?, find(&key, "back").await?), (Some(5), Some(6)));
    let fork = ForkSession::new(key.clone(), crate::store::context::at(2)).at_version(2);
    let fork = context.store.fork(fork).await?.key;
    context.write(&fork, 2, "e9", &schema, &[("sum", json!(1))]).await?;
    ensure_eq!(
        (find(&fork, "e9").await?, find(&key, "e9").await?, find(&fork, "e0").await?),
        (Some(3), None, None)
    );
    ensure_error!(find(&context.key("other")?, "e0").await, SessionError::NotFound { .. });
    context.store.prune(PruneSession::new(key.clone(), PruneBound::Version(2))).await?;
    ensure_eq!((find(&key, "e0").await?, find(&key, "e2").await?), (None, Some(3)));
    Ok(())
}

fn tagged(id: &str, tags: &[&str]) -> Result<Event, SessionError> {
    Ok(tags.iter().fold(event(id)?, |event, tag| event.with_tag(*tag)))
}

async fn find_tagged(
    context: &CaseContext,
    key: &SessionKey,
    tags: &[&str],
) -> Result<Vec<Option<u64>>, SessionError> {
    context.store.find_tagged(FindTagged::new(key.clone(), tags.iter().copied())).await
}

/// Found with any number of events after it, and not once a rewind has hidden it.
async fn a_tagged_event_is_found_after_ten_thousand_others(context: CaseContext) -> StoreCaseResult {
    const LAST: u64 = 10_000;
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    if let Err(SessionError::Unsupported { .. }) = find_tagged(&context, &key, &["a"]).await {
        return Ok(());
    }
    let strange = "\u{0} '; DROP".repeat(500);
    context.append(&key, 0, tagged("e1", &["a", "b", &strange, "a"])?, &schema).await?;
    context
        .append(&key, 1, tagged("e2", &["b"])?.with_delta(delta(&schema, &[("sum", json!(1))])?), &schema)
        .await?;
    for version in 2..LAST {
        context.append(&key, version, event(&format!("e{}", version + 1))?, &schema).await?;
    }
    let found = find_tagged(&context, &key, &["a", "b", "c", &strange]).await?;
    ensure_eq!(found, [Some(1), Some(2), None, Some(1)]);
    // A repeated append adds nothing.
    let late = tagged("late", &["a"])?;
    for expected in [Expected::Version(LAST), Expected::Any] {
        context.append(&key, expected, late.clone(), &schema).await?;
    }
    ensure_eq!(find_tagged(&context, &key, &["a", "b"]).await?, [Some(LAST + 1), Some(2)]);
    context.rewind(&key, "back", LAST).await?;
    ensure_eq!(find_tagged(&context, &key, &["a", "b"]).await?, [Some(1), Some(2)]);
    context.rewind(&key, "further", 1).await?;
    ensure_eq!(find_tagged(&context, &key, &["a", "b"]).await?, [Some(1), Some(1)]);
    // Back in the part that the last rewind had hidden.
    context.rewind(&key, "forth", LAST + 1).await?;
    ensure_eq!(find_tagged(&context, &key, &["a", "b"]).await?, [Some(LAST + 1), Some(2)]);
    context.rewind(&key, "begin", 0).await?;
    ensure_eq!(find_tagged(&context, &key, &["a", "b"]).await?, [None, None]);
    ensure_error!(find_tagged(&context, &context.key("other")?, &["a"]).await, SessionError::NotFound { .. });
    Ok(())
}

async fn a_tagged_event_is_found_in_forks_and_until_retention_takes_it(
    context: CaseContext,
) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    if let Err(SessionError::Unsupported { .. }) = find_tagged(&context, &key, &["a"]).await {
        return Ok(());
    }
    for (version, tag) in [(0, "a"), (1, "b"), (2, "c"), (3, "a")] {
        context.append(&key, version, tagged(&format!("e{version}"), &[tag])?, &schema).await?;
    }
    let fork = ForkSession::new(key.clone(), crate::store::context::at(2)).at_version(2);
    let fork = context.store.fork(fork).await?.key;
    ensure_eq!(find_tagged(&context, &fork, &["a", "b", "c"]).await?, [Some(1), Some(2), None]);
    context.append(&fork, 2, tagged("own", &["d"])?, &schema).await?;
    ensure_eq!(find_tagged(&context, &fork, &["d"]).await?, [Some(3)]);
    ensure_eq!(find_tagged(&context, &key, &["a", "d"]).await?, [Some(4), None]);
    let read = context.get(&fork).await?;
    ensure_eq!(read.events.last().map(|last| last.event.tags().to_vec()), Some(vec!["d".to_owned()]));
    // Retention in one session takes nothing from the other one, nor does its end.
    context.store.prune(PruneSession::new(key.clone(), PruneBound::Version(2))).await?;
    ensure_eq!(find_tagged(&context, &key, &["a", "b", "c"]).await?, [Some(4), None, Some(3)]);
    ensure_eq!(find_tagged(&context, &fork, &["a", "b"]).await?, [Some(1), Some(2)]);
    context.store.delete(DeleteSession::new(key.clone())).await?;
    ensure_eq!(find_tagged(&context, &fork, &["a", "b", "c", "d"]).await?, [Some(1), Some(2), None, Some(3)]);
    match context.store.verify(VerifySessions::session(fork.clone())).await {
        Ok(verified) => ensure_eq!(verified.faults, []),
        Err(SessionError::Unsupported { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    context.store.prune(PruneSession::new(fork.clone(), PruneBound::Version(1))).await?;
    ensure_eq!(find_tagged(&context, &fork, &["a", "b"]).await?, [None, Some(2)]);
    Ok(())
}

async fn of_sixteen_repeats_one_is_made(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    let appends = (0..16).map(|_| context.write(&key, Expected::Any, "e1", &schema, &[]));
    for receipt in join_all(appends).await {
        ensure_eq!(receipt?.version, 1);
    }
    ensure_eq!(context.get(&key).await?.version, 1);
    Ok(())
}

async fn keys_are_checked_in_deltas(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    let long = "x".repeat(257);
    for name in
        ["", "app:", "user: ", "other:x", "a\u{0}b", "\u{202E}x", long.as_str(), "temp:\n", "messages"]
    {
        let text = json!([{"handler": "replace_values", "key": name, "value": 1}]).to_string();
        let delta: Delta = serde_json::from_str(&text)?;
        let result = context.append(&key, 0, event("e1")?.with_delta(delta), &schema).await;
        ensure!(matches!(result, Err(SessionError::State { .. })), "{name:?}: {result:?}");
    }
    let longest = "x".repeat(256);
    context.write(&key, 0, "e1", &schema, &[(longest.as_str(), json!(1))]).await?;
    let read = context.get(&key).await?;
    ensure_eq!(read.get(&longest).map(stepfold_state_core::state::ValueRef::to_json), Some(json!(1)));
    Ok(())
}

async fn removals_remove_and_null_is_a_value(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let values = json!({"any": 1, "app:any": 1, "defaulted": 5, "list": [1], "user:list": [1]});
    let key = context.create(&schema, "s1", values).await?.key;
    context.write(&key, 0, "e1", &schema, &[("any", json!(null)), ("app:any", json!(null))]).await?;
    let session = context.get(&key).await?;
    ensure!(
        session.get("any").is_some_and(stepfold_state_core::state::ValueRef::is_null),
        "null was not stored"
    );
    ensure!(
        session.get("app:any").is_some_and(stepfold_state_core::state::ValueRef::is_null),
        "null was not stored"
    );
    let removals = ["any", "app:any", "defaulted", "list", "user:list", "never"];
    let removals: Result<Delta, _> = removals.iter().map(|key| schema.schema().removal(key)).collect();
    let again = delta(&schema, &[("list", json!([2])), ("user:list", json!([2]))])?;
    context.append(&key, 1, event("e2")?.with_delta(removals?).with_delta(again), &schema).await?;
    let stored = json!({"defaulted": 10, "list": [2], "user:list": [2]});
    ensure_eq!(context.get(&key).await?.to_json(), stored);
    Ok(())
}

async fn an_append_to_nothing_is_an_error(context: CaseContext) -> StoreCaseResult {
    let key = context.key("nothing")?;
    let result = context.write(&key, Expected::Any, "e1", &schema()?, &[("app:sum", json!(1))]).await;
    ensure_error!(result, SessionError::NotFound { .. });
    let app = context.store.read_scope(ScopeKey::app(context.app.as_str())?).await?;
    ensure!(app.is_empty(), "the app was written though the session is not there");
    Ok(())
}
