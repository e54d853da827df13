//! Rewinds, forks and retention.

use std::sync::Arc;

use serde_json::{Value, json};
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::Schema;

use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, at, cases, delta, ensure, ensure_eq, ensure_error,
    event, schema,
};
use stepfold_session_scopes::Event;
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::SessionSchema;
use stepfold_session_scopes::{
    CreateSession, DeleteSession, Expected, ForkSession, ListForks, PruneBound, PruneSession, Receipt,
    SessionStore,
};
use stepfold_session_scopes::{SessionId, SessionKey};

cases! {
    a_rewind_brings_back_every_version,
    a_rewind_leaves_app_and_user_alone,
    a_rewind_hides_what_was_said_and_erases_nothing,
    a_rewind_can_be_rewound,
    a_rewind_is_repeated_and_refused_as_an_append,
    a_fork_begins_with_every_version,
    forks_and_their_origin_go_their_own_ways,
    a_fork_of_a_fork_can_go_back_to_the_beginning,
    a_fork_outlives_its_origin,
    a_fork_under_an_id_in_use_changes_nothing,
    a_fork_is_made_with_its_first_event_or_not_at_all,
    a_session_is_made_with_its_events_or_not_at_all,
    retention_deletes_events_and_keeps_the_state,
    retention_by_time,
    retention_of_one_session_leaves_its_forks_whole,
}

/// Writes of every kind, one list of them for each event.
fn script() -> Vec<Vec<(&'static str, Value)>> {
    vec![
        vec![("list", json!([1])), ("text", json!("a"))],
        vec![("list", json!([2, 3])), ("tasks", json!([{"id": 1, "n": 1}, {"id": 2, "n": 1}]))],
        vec![("tasks", json!({"id": 1, "n": 2})), ("sum", json!(1))],
        vec![("recent", json!([1, 2, 3, 4])), ("text", json!("b"))],
        vec![("list", json!([4])), ("recent", json!([5])), ("map", json!({"a": 1}))],
        vec![("union", json!([1, 2])), ("tasks", json!([{"id": 2, "n": 3}, {"id": 3, "n": 1}]))],
        vec![("any", json!([1])), ("sum", json!(5))],
        vec![("any", json!([2])), ("list", json!([5, 6]))],
    ]
}

/// A session with the script's events, and its state at each version.
pub(super) async fn played(
    context: &CaseContext,
    schema: &SessionSchema,
    id: &str,
) -> Result<(SessionKey, Vec<Value>), SessionError> {
    let session = context.create(schema, id, json!({"list": [0], "text": "initial"})).await?;
    let key = session.key.clone();
    let mut states = vec![session.to_json()];
    for (version, writes) in script().into_iter().enumerate() {
        context.write(&key, version as u64, &format!("e{version}"), schema, &writes).await?;
        states.push(context.get(&key).await?.to_json());
    }
    Ok((key, states))
}

/// Ten more events, to check that events after a rewind are complete too.
async fn go_on(
    context: &CaseContext,
    schema: &SessionSchema,
    key: &SessionKey,
    name: &str,
) -> Result<Value, CaseFault> {
    let mut state = context.get(key).await?.state(schema)?;
    for (number, writes) in script().into_iter().enumerate() {
        state.apply(&delta(schema, &writes)?)?;
        context.write(key, Expected::Any, &format!("{name}-{number}"), schema, &writes).await?;
    }
    let expected = crate::store::context::values_of(&state);
    let stored = context.get(key).await?.to_json();
    ensure_eq!(stored, expected);
    Ok(stored)
}

async fn a_rewind_brings_back_every_version(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    for back in 0..=script().len() {
        let (key, states) = played(&context, &schema, &format!("s{back}")).await?;
        let receipt = context.rewind(&key, "back", back as u64).await?;
        ensure_eq!(receipt.version, states.len() as u64);
        let session = context.get(&key).await?;
        ensure!(
            session.to_json() == states[back],
            "version {back}: {}, was {}",
            session.to_json(),
            states[back]
        );
        ensure_eq!(session.events.last().and_then(|last| last.event.actions.rewound_to()), Some(back as u64));
        go_on(&context, &schema, &key, "more").await?;
    }
    Ok(())
}

async fn a_rewind_leaves_app_and_user_alone(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({"app:sum": 1, "sum": 1, "user:sum": 1})).await?.key;
    let writes = [("app:sum", json!(1)), ("sum", json!(1)), ("user:sum", json!(1))];
    context.write(&key, 0, "e1", &schema, &writes).await?;
    context.rewind(&key, "back", 0).await?;
    let stored = json!({"app:sum": 2, "defaulted": 10, "sum": 1, "user:sum": 2});
    ensure_eq!(context.get(&key).await?.to_json(), stored);
    Ok(())
}

async fn a_rewind_hides_what_was_said_and_erases_nothing(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    for text in ["one", "two", "three"] {
        context.append(&key, Expected::Any, event(text)?.with_message(Message::user(text)), &schema).await?;
    }
    context.rewind(&key, "back", 1).await?;
    context.append(&key, 4, event("four")?.with_message(Message::user("four")), &schema).await?;
    let session = context.get(&key).await?;
    ensure_eq!(session.transcript().to_string(), "user:      one\nuser:      four\n");
    ensure_eq!(session.events.len(), 5);
    let fork = context.store.fork(ForkSession::new(key, at(2))).await?;
    ensure_eq!(context.get(&fork.key).await?.transcript().to_string(), "user:      one\nuser:      four\n");
    Ok(())
}

async fn a_rewind_can_be_rewound(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, states) = played(&context, &schema, "s1").await?;
    let newest = script().len();
    // Back, forth to what was left, back again further, and to the first rewind itself.
    for (name, to) in [("b1", 3), ("b2", newest - 1), ("b3", 0), ("b4", newest), ("b5", 5)] {
        context.rewind(&key, name, to as u64).await?;
        ensure_eq!(context.get(&key).await?.to_json(), states[to]);
    }
    context.rewind(&key, "b6", newest as u64 + 1).await?;
    ensure_eq!(context.get(&key).await?.to_json(), states[3]);
    go_on(&context, &schema, &key, "more").await?;
    Ok(())
}

async fn a_rewind_is_repeated_and_refused_as_an_append(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    let receipt = context.rewind(&key, "back", 2).await?;
    ensure_eq!(context.rewind(&key, "back", 2).await?, receipt);
    ensure_error!(context.rewind(&key, "back", 3).await, SessionError::EventReused { .. });
    let beyond = context.rewind(&key, "beyond", 99).await;
    ensure_error!(beyond, SessionError::NoSuchVersion { version: 99, oldest: 0, newest: 9, .. });
    Ok(())
}

pub(super) async fn fork(
    context: &CaseContext,
    from: &SessionKey,
    id: &str,
    version: u64,
) -> Result<SessionKey, SessionError> {
    let request = ForkSession::new(from.clone(), at(2)).at_version(version).with_id(SessionId::new(id)?);
    Ok(context.store.fork(request).await?.key)
}

async fn a_fork_begins_with_every_version(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, states) = played(&context, &schema, "s1").await?;
    let origin = context.get(&key).await?;
    for (version, state) in states.iter().enumerate() {
        let fork = fork(&context, &key, &format!("f{version}"), version as u64).await?;
        let session = context.get(&fork).await?;
        ensure_eq!(session.to_json(), *state);
        ensure_eq!((session.version, session.events.len()), (version as u64, version));
        ensure_eq!(session.events, origin.events[..version]);
        let parent = session.parent.map(|parent| (parent.id, parent.version));
        ensure_eq!(parent, Some((key.id.clone(), version as u64)));
        go_on(&context, &schema, &fork, "more").await?;
    }
    ensure_eq!(context.get(&key).await?.to_json(), states[states.len() - 1]);
    let beyond = fork(&context, &key, "beyond", 9).await;
    ensure_error!(beyond, SessionError::NoSuchVersion { version: 9, oldest: 0, newest: 8, .. });
    Ok(())
}

async fn forks_and_their_origin_go_their_own_ways(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, states) = played(&context, &schema, "s1").await?;
    let first = fork(&context, &key, "f1", 5).await?;
    let second = fork(&context, &key, "f2", 5).await?;
    // The same ids and versions in each.
    let one = go_on(&context, &schema, &first, "x").await?;
    let two = go_on(&context, &schema, &second, "x").await?;
    ensure_eq!(one, two);
    ensure_eq!(context.get(&key).await?.to_json(), states[8]);
    go_on(&context, &schema, &key, "x").await?;
    ensure_eq!(context.get(&first).await?.to_json(), one);
    // A fork goes back by itself, also to before it was one.
    context.rewind(&first, "back", 2).await?;
    ensure_eq!(context.get(&first).await?.to_json(), states[2]);
    go_on(&context, &schema, &first, "y").await?;
    ensure_eq!(context.get(&second).await?.to_json(), two);
    Ok(())
}

async fn a_fork_of_a_fork_can_go_back_to_the_beginning(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (mut key, states) = played(&context, &schema, "s1").await?;
    for depth in (1..=6).rev() {
        key = fork(&context, &key, &format!("f{depth}"), depth).await?;
        context.append(&key, depth, event("own")?, &schema).await?;
    }
    for version in [1, 0] {
        context.rewind(&key, &format!("back{version}"), version as u64).await?;
        ensure_eq!(context.get(&key).await?.to_json(), states[version]);
    }
    go_on(&context, &schema, &key, "more").await?;
    Ok(())
}

async fn a_fork_outlives_its_origin(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, states) = played(&context, &schema, "s1").await?;
    let kept = fork(&context, &key, "f1", 4).await?;
    let events = context.get(&kept).await?.events;
    let deleted = context.store.delete(DeleteSession::new(key.clone())).await?;
    ensure_eq!(deleted.events, 8);
    ensure_error!(context.get(&key).await, SessionError::NotFound { .. });
    let session = context.get(&kept).await?;
    ensure_eq!((session.to_json(), &session.events), (states[4].clone(), &events));
    // A new session under the old id is another one.
    context.create(&schema, "s1", json!({})).await?;
    for version in [3, 0] {
        context.rewind(&kept, &format!("back{version}"), version as u64).await?;
        ensure_eq!(context.get(&kept).await?.to_json(), states[version]);
    }
    go_on(&context, &schema, &kept, "more").await?;
    context.store.delete(DeleteSession::new(kept)).await?;
    Ok(())
}

async fn a_fork_under_an_id_in_use_changes_nothing(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    let taken = context.create(&schema, "s2", json!({"text": "mine"})).await?;
    ensure_error!(fork(&context, &key, "s2", 1).await, SessionError::AlreadyExists { .. });
    ensure_eq!(context.get(&taken.key).await?.to_json(), taken.to_json());
    let nothing = fork(&context, &context.key("nothing")?, "s3", 0).await;
    ensure_error!(nothing, SessionError::NotFound { .. });
    Ok(())
}

async fn a_fork_is_made_with_its_first_event_or_not_at_all(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, states) = played(&context, &schema, "s1").await?;
    let request = |id: &str, event| {
        let request = ForkSession::new(key.clone(), at(2)).at_version(4).with_id(SessionId::new(id)?);
        Ok::<_, SessionError>(request.with_event(event, &schema, None))
    };
    let own = event("own")?.with_delta(delta(&schema, &[("sum", json!(7))])?);
    let fork = context.store.fork(request("f1", own.clone())?).await?;
    ensure_eq!(fork.version, 5);
    let session = context.get(&fork.key).await?;
    let (before, after) = (states[4]["sum"].as_u64(), session.to_json()["sum"].as_u64());
    ensure_eq!(after, before.map(|sum| sum + 7));
    ensure_eq!(session.events.last().map(|last| last.event.id.clone()), Some(own.id.clone()));
    go_on(&context, &schema, &fork.key, "more").await?;
    // A write that cannot be merged.
    let wrong = event("own")?.with_delta(delta(&loose()?, &[("sum", json!("many"))])?);
    ensure_error!(context.store.fork(request("f3", wrong)?).await, SessionError::State { .. });
    ensure_error!(context.get(&context.key("f3")?).await, SessionError::NotFound { .. });
    let forks = context.store.forks(ListForks::new(key.clone())).await?;
    ensure_eq!(forks.iter().map(|fork| fork.id.as_str()).collect::<Vec<_>>(), ["f1"]);
    // The id is free again.
    context.store.fork(request("f3", own)?).await?;
    Ok(())
}

/// A schema that declares no keys and accepts all.
fn loose() -> Result<SessionSchema, CaseFault> {
    let schema = Schema::builder().open().build().map_err(|error| CaseFault::new(error.to_string()))?;
    Ok(SessionSchema::new(schema))
}

async fn a_session_is_made_with_its_events_or_not_at_all(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    context.rewind(&key, "back", 3).await?;
    let shared = [("app:sum", json!(1)), ("user:sum", json!(1)), ("sum", json!(2))];
    context.write(&key, Expected::Any, "shared", &schema, &shared).await?;
    let origin = context.get(&key).await?;
    let events = || origin.events.iter().map(|committed| Arc::clone(&committed.event));
    let create = |id: &str, events: Vec<Arc<Event>>| {
        let request = CreateSession::with_key(context.key(id)?, &schema, at(9)).with_events(events);
        request.values(json!({"list": [0], "text": "initial"}))
    };
    let copy = context.store.create(create("s2", events().collect())?).await?;
    ensure_eq!(copy.version, origin.version);
    let copy = context.get(&copy.key).await?;
    // What was written to shared scopes is not written again.
    ensure_eq!((copy.to_json(), &copy.events), (origin.to_json(), &origin.events));
    ensure!(copy.life != origin.life, "a copy has a life of its own");
    for version in [3, 6, 0] {
        context.rewind(&copy.key, &format!("to{version}"), version).await?;
        context.rewind(&key, &format!("to{version}"), version).await?;
        ensure_eq!(context.get(&copy.key).await?.to_json(), context.get(&key).await?.to_json());
    }
    go_on(&context, &schema, &copy.key, "more").await?;
    // A write that cannot be merged, after some that can.
    let wrong = event("wrong")?.with_delta(delta(&loose()?, &[("sum", json!("many"))])?);
    let request = create("s3", events().chain([Arc::new(wrong)]).collect())?;
    ensure_error!(context.store.create(request).await, SessionError::State { .. });
    ensure_error!(context.get(&context.key("s3")?).await, SessionError::NotFound { .. });
    let again = create("s2", events().collect())?;
    ensure_error!(context.store.create(again).await, SessionError::AlreadyExists { .. });
    Ok(())
}

pub(super) async fn prune(
    context: &CaseContext,
    key: &SessionKey,
    before: PruneBound,
) -> Result<(u64, u64), SessionError> {
    let pruned = context.store.prune(PruneSession::new(key.clone(), before)).await?;
    Ok((pruned.events, pruned.oldest))
}

async fn retention_deletes_events_and_keeps_the_state(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, states) = played(&context, &schema, "s1").await?;
    ensure_eq!(prune(&context, &key, PruneBound::Version(5)).await?, (5, 5));
    ensure_eq!(prune(&context, &key, PruneBound::Version(3)).await?, (0, 5));
    let beyond = prune(&context, &key, PruneBound::Version(9)).await;
    ensure_error!(beyond, SessionError::NoSuchVersion { .. });
    let session = context.get(&key).await?;
    ensure_eq!((session.to_json(), session.version, session.oldest), (states[8].clone(), 8, 5));
    ensure_eq!(session.events.iter().map(|event| event.version).collect::<Vec<_>>(), [6, 7, 8]);
    ensure_error!(context.rewind(&key, "back", 4).await, SessionError::NoSuchVersion { oldest: 5, .. });
    ensure_error!(fork(&context, &key, "f4", 4).await, SessionError::NoSuchVersion { oldest: 5, .. });
    let forked = fork(&context, &key, "f5", 5).await?;
    ensure_eq!(context.get(&forked).await?.to_json(), states[5]);
    context.rewind(&key, "back", 5).await?;
    ensure_eq!(context.get(&key).await?.to_json(), states[5]);
    go_on(&context, &schema, &key, "more").await?;
    Ok(())
}

async fn retention_by_time(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    for (version, seconds) in [10, 20, 15, 30].into_iter().enumerate() {
        let mut event = event(&format!("e{version}"))?;
        event.at = at(seconds);
        context.append(&key, Expected::Any, event, &schema).await?;
    }
    ensure_eq!(prune(&context, &key, PruneBound::Time(at(10))).await?, (0, 0));
    ensure_eq!(prune(&context, &key, PruneBound::Time(at(18))).await?, (1, 1));
    // Of those after version 2, the first one that is young enough is the last.
    ensure_eq!(prune(&context, &key, PruneBound::Both { version: 2, time: at(18) }).await?, (2, 3));
    ensure_eq!(prune(&context, &key, PruneBound::Time(at(99))).await?, (1, 4));
    let Receipt { version, .. } = context.write(&key, 4, "more", &schema, &[("sum", json!(1))]).await?;
    ensure_eq!(version, 5);
    ensure_eq!(context.get(&key).await?.events.len(), 1);
    Ok(())
}

async fn retention_of_one_session_leaves_its_forks_whole(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, states) = played(&context, &schema, "s1").await?;
    let kept = fork(&context, &key, "f1", 6).await?;
    prune(&context, &key, PruneBound::Version(8)).await?;
    let session = context.get(&kept).await?;
    ensure_eq!((session.to_json(), session.events.len()), (states[6].clone(), 6));
    context.rewind(&kept, "back", 1).await?;
    ensure_eq!(context.get(&kept).await?.to_json(), states[1]);
    prune(&context, &kept, PruneBound::Version(6)).await?;
    ensure_eq!(context.get(&kept).await?.to_json(), states[1]);
    go_on(&context, &schema, &kept, "more").await?;
    ensure_eq!(context.get(&key).await?.to_json(), states[8]);
    go_on(&context, &schema, &key, "more").await?;
    Ok(())
}
