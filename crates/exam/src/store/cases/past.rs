//! Reading a session at an earlier version.

use serde_json::json;

use super::versions::{fork, played, prune};
use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, at, cases, ensure_eq, ensure_error, event, schema,
    values_of,
};
use stepfold_session_scopes::Session;
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::SessionKey;
use stepfold_session_scopes::{DeleteSession, EventRange, Expected, GetSession, PruneBound, SessionStore};

cases! {
    every_version_is_read_as_it_was,
    a_rewound_session_is_read_as_it_was,
    a_fork_is_read_as_it_was,
    a_version_that_is_not_kept_is_refused,
    shared_values_of_a_version_are_those_of_today,
    some_values_and_events_of_a_version,
    a_version_is_brought_up_to_date,
    hidden_events_are_read_only_if_they_are_wanted,
}

async fn at_version(context: &CaseContext, key: &SessionKey, version: u64) -> Result<Session, SessionError> {
    context.store.get(GetSession::new(key.clone()).at_version(version)).await
}

async fn every_version_is_read_as_it_was(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, states) = played(&context, &schema, "s1").await?;
    let now = context.get(&key).await?;
    for (version, state) in states.iter().enumerate() {
        let session = at_version(&context, &key, version as u64).await?;
        ensure_eq!(session.to_json(), *state);
        ensure_eq!(session.events, now.events[..version]);
        ensure_eq!((session.version, session.newest), (version as u64, 8));
        ensure_eq!((session.created, session.updated), (now.created, now.updated));
        values_of(&session.state(&schema)?);
    }
    // Nothing was changed by that.
    let again = context.get(&key).await?;
    ensure_eq!((again.version, again.to_json()), (now.version, now.to_json()));
    Ok(())
}

async fn a_rewound_session_is_read_as_it_was(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, mut states) = played(&context, &schema, "s1").await?;
    for (number, to) in [3, 0, 8, 5, 10].into_iter().enumerate() {
        context.rewind(&key, &format!("back{number}"), to).await?;
        states.push(states[usize::try_from(to).unwrap_or_default()].clone());
        let writes = [("list", json!(["more", number])), ("tasks", json!({"id": 2, "n": number}))];
        context.write(&key, Expected::Any, &format!("more{number}"), &schema, &writes).await?;
        states.push(context.get(&key).await?.to_json());
    }
    for (version, state) in states.iter().enumerate() {
        let session = at_version(&context, &key, version as u64).await?;
        ensure_eq!(session.to_json(), *state);
        let fork = fork(&context, &key, &format!("f{version}"), version as u64).await?;
        let fork = context.get(&fork).await?;
        ensure_eq!(session.visible, fork.visible);
        ensure_eq!(session.events, fork.events);
    }
    Ok(())
}

async fn a_fork_is_read_as_it_was(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, states) = played(&context, &schema, "s1").await?;
    let fork = fork(&context, &key, "f1", 5).await?;
    context.write(&fork, 5, "own", &schema, &[("list", json!(["own"])), ("text", json!("own"))]).await?;
    let own = context.get(&fork).await?;
    context.store.delete(DeleteSession::new(key)).await?;
    for (version, state) in states[..=5].iter().chain([&own.to_json()]).enumerate() {
        let session = at_version(&context, &fork, version as u64).await?;
        ensure_eq!(session.to_json(), *state);
        ensure_eq!(session.events, own.events[..version]);
    }
    Ok(())
}

async fn a_version_that_is_not_kept_is_refused(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, states) = played(&context, &schema, "s1").await?;
    ensure_error!(
        at_version(&context, &key, 9).await,
        SessionError::NoSuchVersion { oldest: 0, newest: 8, .. }
    );
    prune(&context, &key, PruneBound::Version(5)).await?;
    for (version, state) in states.iter().enumerate() {
        let session = at_version(&context, &key, version as u64).await;
        if version < 5 {
            ensure_error!(session, SessionError::NoSuchVersion { oldest: 5, newest: 8, .. });
            let nothing = GetSession::new(key.clone()).without_state().events(EventRange::None);
            let nothing = context.store.get(nothing.at_version(version as u64)).await;
            ensure_error!(nothing, SessionError::NoSuchVersion { oldest: 5, newest: 8, .. });
            continue;
        }
        let session = session?;
        ensure_eq!(session.to_json(), *state);
        ensure_eq!(session.events.len(), version - 5);
    }
    let nothing = at_version(&context, &context.key("nothing")?, 0).await;
    ensure_error!(nothing, SessionError::NotFound { .. });
    Ok(())
}

async fn shared_values_of_a_version_are_those_of_today(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let values = json!({"app:sum": 1, "sum": 1, "user:list": [1]});
    let key = context.create(&schema, "s1", values).await?.key;
    let writes = [("app:sum", json!(1)), ("sum", json!(1)), ("user:list", json!([2]))];
    context.write(&key, 0, "e1", &schema, &writes).await?;
    let session = at_version(&context, &key, 0).await?;
    let stored = json!({"app:sum": 2, "defaulted": 10, "sum": 1, "user:list": [1, 2]});
    ensure_eq!(session.to_json(), stored);
    ensure_eq!(session.scopes, context.get(&key).await?.scopes);
    Ok(())
}

async fn some_values_and_events_of_a_version(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({"list": [0], "text": "x"})).await?.key;
    for (version, seconds) in [10, 20, 15, 30, 40].into_iter().enumerate() {
        let mut event = event(&format!("e{version}"))?;
        event.at = at(seconds);
        let writes = [("list", json!([version])), ("later", json!(version))];
        let writes = &writes[..if version < 2 { 1 } else { 2 }];
        let event = event.with_delta(crate::store::context::delta(&schema, writes)?);
        context.append(&key, Expected::Any, event, &schema).await?;
    }
    let get = || GetSession::new(key.clone()).at_version(3);
    let session = context.store.get(get().keys(["list", "later", "user:x"])).await?;
    ensure_eq!(session.to_json(), json!({"later": 2, "list": [0, 0, 1, 2]}));
    let session = context.store.get(get().keys(["later", "text"]).at_version(2)).await?;
    ensure_eq!(session.to_json(), json!({"text": "x"}));
    let versions = async |range| {
        let session = context.store.get(get().events(range).without_state()).await?;
        Ok::<_, SessionError>(session.events.iter().map(|event| event.version).collect::<Vec<_>>())
    };
    ensure_eq!(versions(EventRange::All).await?, [1, 2, 3]);
    ensure_eq!(versions(EventRange::None).await?, [0; 0]);
    ensure_eq!(versions(EventRange::Last(2)).await?, [2, 3]);
    ensure_eq!(versions(EventRange::Last(0)).await?, [0; 0]);
    ensure_eq!(versions(EventRange::Last(9)).await?, [1, 2, 3]);
    ensure_eq!(versions(EventRange::AfterVersion(1)).await?, [2, 3]);
    ensure_eq!(versions(EventRange::AfterVersion(4)).await?, [0; 0]);
    ensure_eq!(versions(EventRange::Since(at(18))).await?, [0; 0]);
    ensure_eq!(versions(EventRange::Since(at(15))).await?, [2, 3]);
    ensure_eq!(versions(EventRange::Since(at(35))).await?, [0; 0]);
    Ok(())
}

async fn a_version_is_brought_up_to_date(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    let now = context.get(&key).await?.state(&schema)?;
    for version in 0..8 {
        let before = at_version(&context, &key, version).await?;
        let get = GetSession::new(key.clone()).changed_since(before.seen());
        // Forth, and back again.
        let session = context.store.get(get.clone()).await?;
        let state = session.update(before.state(&schema)?, &schema)?;
        ensure_eq!(values_of(&state), values_of(&now));
        let get = GetSession::new(key.clone()).changed_since(session.seen()).at_version(version);
        let state = context.store.get(get).await?.update(state, &schema)?;
        ensure_eq!(values_of(&state), values_of(&before.state(&schema)?));
    }
    Ok(())
}

async fn hidden_events_are_read_only_if_they_are_wanted(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    for (number, to) in [5, 2, 9].into_iter().enumerate() {
        context.rewind(&key, &format!("back{number}"), to).await?;
        context.write(&key, Expected::Any, &format!("more{number}"), &schema, &[("sum", json!(1))]).await?;
    }
    // A fork in what is hidden today, and one of today that goes back to before it was one.
    let hidden = fork(&context, &key, "f1", 7).await?;
    let rewound = fork(&context, &key, "f2", 14).await?;
    context.rewind(&rewound, "back", 3).await?;
    for key in [key, hidden, rewound] {
        let all = context.get(&key).await?;
        let ranges = [
            EventRange::All,
            EventRange::Last(3),
            EventRange::AfterVersion(4),
            EventRange::Page { after: 2, limit: 3 },
            EventRange::Since(at(1)),
            EventRange::Since(at(2)),
        ];
        for version in all.oldest..=all.newest {
            let get = GetSession::new(key.clone()).at_version(version).without_state();
            let whole = context.store.get(get.clone()).await?;
            let visible: Vec<_> = whole.visible_events().cloned().collect();
            for range in ranges {
                let session = context.store.get(get.clone().events(range).visible()).await?;
                let expected: Vec<_> = match range {
                    EventRange::Last(count) => visible[visible.len().saturating_sub(count)..].to_vec(),
                    EventRange::AfterVersion(after) => {
                        visible.iter().filter(|event| event.version > after).cloned().collect()
                    }
                    EventRange::Page { after, limit } => {
                        let later = visible.iter().filter(|event| event.version > after);
                        later.take(limit).cloned().collect()
                    }
                    EventRange::Since(time) => {
                        let older = visible.iter().rposition(|event| event.event.at < time);
                        visible[older.map_or(0, |older| older + 1)..].to_vec()
                    }
                    _ => visible.clone(),
                };
                ensure_eq!(session.events, expected);
                ensure_eq!(session.visible, whole.visible);
            }
        }
    }
    Ok(())
}
