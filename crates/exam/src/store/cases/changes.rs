//! Reading the changes since a version, and the values of some keys.

use serde_json::{Value, json};
use stepfold_state_core::state::{Handler, Schema};

use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, cases, delta, ensure, ensure_eq, schema, values_of,
};
use stepfold_session_scopes::ScopeVersions;
use stepfold_session_scopes::SeenVersions;
use stepfold_session_scopes::Session;
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::SessionKey;
use stepfold_session_scopes::SessionSchema;
use stepfold_session_scopes::{
    DeleteSession, Expected, ForkSession, GetSession, PruneSession, ScopeKey, SessionStore, WriteScope,
};

cases! {
    the_versions_of_scopes_count_their_writes,
    a_receipt_tells_the_versions_of_scopes,
    what_has_changed_since_is_what_was_written,
    a_key_that_was_removed_since_is_reported,
    where_nothing_has_changed_nothing_is_read,
    what_others_wrote_to_scopes_has_changed,
    a_state_kept_over_a_rewind_is_brought_up_to_date,
    a_state_kept_over_a_prune_is_brought_up_to_date,
    a_fork_is_read_from_where_it_begins,
    an_erased_user_is_not_taken_for_an_earlier_one,
    only_the_keys_that_are_asked_for_are_read,
    more_removals_than_a_scope_remembers,
    an_incremental_read_brings_every_earlier_state_up_to_date,
    an_incremental_read_under_another_type_brings_a_state_up_to_date,
    an_incremental_read_leaves_out_what_the_schema_does_not_know,
}

async fn since(context: &CaseContext, key: &SessionKey, seen: SeenVersions) -> Result<Session, SessionError> {
    context.store.get(GetSession::new(key.clone()).changed_since(seen)).await
}

fn removed(session: &Session) -> Vec<&str> {
    let scopes = session.values.iter().flat_map(|values| [&values.app, &values.user, &values.session]);
    scopes.flat_map(stepfold_session_scopes::ScopeValues::removed).collect()
}

/// Whether each scope was read whole: app, user, session.
fn whole(session: &Session) -> [bool; 3] {
    let whole = session.values.as_ref().map(|values| [&values.app, &values.user, &values.session]);
    whole.map(|scopes| scopes.map(stepfold_session_scopes::ScopeValues::is_whole)).unwrap_or_default()
}

/// A session's values brought up to date are those that it has.
async fn ensure_updated(context: &CaseContext, schema: &SessionSchema, before: &Session) -> StoreCaseResult {
    let session = since(context, &before.key, before.seen()).await?;
    let kept = session.update(before.state(schema)?, schema)?;
    let fresh = context.get(&before.key).await?;
    ensure_eq!(values_of(&kept), values_of(&fresh.state(schema)?));
    ensure_eq!(session.seen(), fresh.seen());
    Ok(())
}

async fn the_versions_of_scopes_count_their_writes(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let session = context.create(&schema, "s1", json!({"text": "x"})).await?;
    let first = session.scopes;
    let key = session.key;
    let counted = |app, user| ScopeVersions { app: first.app + app, user: first.user + user };
    context.write(&key, 0, "e1", &schema, &[("app:sum", json!(1)), ("app:text", json!("x"))]).await?;
    ensure_eq!(context.get(&key).await?.scopes, counted(1, 0));
    // Also a write that changes nothing counts, so that one more than before is one's own.
    context.write(&key, 1, "e2", &schema, &[("app:sum", json!(0)), ("user:first", json!("x"))]).await?;
    ensure_eq!(context.get(&key).await?.scopes, counted(2, 1));
    context.write(&key, 2, "e3", &schema, &[("user:first", json!("y")), ("text", json!("y"))]).await?;
    ensure_eq!(context.get(&key).await?.scopes, counted(2, 2));
    let removal = schema.schema().removal("user:nothing")?;
    let user = ScopeKey::user(context.app.as_str(), "alice")?;
    context.store.write_scope(WriteScope::new(user, [removal].into_iter().collect(), &schema)).await?;
    ensure_eq!(context.get(&key).await?.scopes, counted(2, 3));
    context.create(&schema, "s2", json!({"app:sum": 1})).await?;
    ensure_eq!(context.get(&key).await?.scopes, counted(3, 3));
    Ok(())
}

async fn a_receipt_tells_the_versions_of_scopes(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({"app:sum": 1})).await?.key;
    for (version, writes) in
        [vec![("text", json!("x"))], vec![("app:sum", json!(1)), ("user:sum", json!(1))], vec![]]
            .into_iter()
            .enumerate()
    {
        let receipt = context.write(&key, version as u64, &format!("e{version}"), &schema, &writes).await?;
        ensure_eq!(receipt.scopes, context.get(&key).await?.scopes);
        let again = context.write(&key, version as u64, &format!("e{version}"), &schema, &writes).await?;
        ensure_eq!(again, receipt);
    }
    let receipt = context.rewind(&key, "back", 1).await?;
    ensure_eq!(receipt.scopes, context.get(&key).await?.scopes);
    Ok(())
}

async fn what_has_changed_since_is_what_was_written(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let values = json!({"text": "x", "list": [1], "app:sum": 1, "user:text": "x", "user:list": [1]});
    let before = context.create(&schema, "s1", values).await?;
    let key = before.key.clone();
    let writes = [("list", json!([2])), ("map", json!({"a": 1})), ("app:max", json!(7))];
    context.write(&key, 0, "e1", &schema, &writes).await?;
    context.write(&key, 1, "e2", &schema, &[("user:list", json!([2]))]).await?;
    let session = since(&context, &key, before.seen()).await?;
    ensure_eq!(whole(&session), [false; 3]);
    ensure_eq!(removed(&session), Vec::<&str>::new());
    let keys: Vec<String> = changed(&session);
    ensure_eq!(keys, ["app:max", "list", "map", "user:list"]);
    ensure_updated(&context, &schema, &before).await
}

/// The keys of the values that were read, and of those lists that have grown.
fn changed(session: &Session) -> Vec<String> {
    let scopes = session.values.iter().flat_map(|values| [&values.app, &values.user, &values.session]);
    let changed = scopes.flat_map(|values| {
        let read = values.iter().map(|(key, _)| key);
        read.chain(values.appended().map(|(key, _)| key))
    });
    let mut keys: Vec<String> = changed.map(str::to_owned).collect();
    keys.sort();
    keys
}

async fn a_key_that_was_removed_since_is_reported(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let values = json!({"text": "x", "list": [1], "app:sum": 1, "user:text": "x", "defaulted": 1});
    let before = context.create(&schema, "s1", values).await?;
    let key = before.key.clone();
    for (number, name) in ["list", "app:sum", "user:text", "text", "defaulted"].into_iter().enumerate() {
        let removal = [schema.schema().removal(name)?].into_iter().collect();
        let event = crate::store::context::event(&format!("e{number}"))?.with_delta(removal);
        context.append(&key, Expected::Any, event, &schema).await?;
    }
    // One that is there again was not removed.
    context.write(&key, Expected::Any, "again", &schema, &[("text", json!("again"))]).await?;
    let session = since(&context, &key, before.seen()).await?;
    ensure_eq!(removed(&session), ["app:sum", "user:text", "list"]);
    ensure_eq!(session.get("text").map(stepfold_state_core::state::ValueRef::to_json), Some(json!("again")));
    ensure_updated(&context, &schema, &before).await?;
    // What was removed before is not told again.
    let session = since(&context, &key, session.seen()).await?;
    ensure_eq!((removed(&session), changed(&session)), (Vec::new(), Vec::new()));
    Ok(())
}

async fn where_nothing_has_changed_nothing_is_read(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let values = json!({"text": "x", "list": [1], "app:sum": 1, "user:text": "x"});
    let session = context.create(&schema, "s1", values).await?;
    // What is written elsewhere does not matter.
    let other = context.create(&schema, "s2", json!({"text": "x"})).await?.key;
    context.write(&other, 0, "e1", &schema, &[("text", json!("y"))]).await?;
    let again = since(&context, &session.key, session.seen()).await?;
    ensure_eq!(again.to_json(), json!({}));
    ensure_eq!((whole(&again), removed(&again), again.events.len()), ([false; 3], Vec::new(), 0));
    Ok(())
}

async fn what_others_wrote_to_scopes_has_changed(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let before = context.create(&schema, "s1", json!({"user:list": [1], "app:list": [1]})).await?;
    let other = context.create(&schema, "s2", json!({"user:sum": 1})).await?.key;
    context.write(&other, 0, "e1", &schema, &[("user:list", json!([2])), ("text", json!("mine"))]).await?;
    let app = ScopeKey::app(context.app.as_str())?;
    context
        .store
        .write_scope(WriteScope::new(app, delta(&schema, &[("app:list", json!([2]))])?, &schema))
        .await?;
    let session = since(&context, &before.key, before.seen()).await?;
    ensure_eq!(changed(&session), ["app:list", "user:list", "user:sum"]);
    ensure_updated(&context, &schema, &before).await
}

async fn a_state_kept_over_a_rewind_is_brought_up_to_date(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({"text": "x", "list": [0]})).await?.key;
    for (version, name) in (0..6_u64).zip(NAMES.into_iter().cycle()) {
        let writes = [("list", json!([version])), ("sum", json!(1)), (name, json!(version))];
        context.write(&key, version, &format!("e{version}"), &schema, &writes).await?;
    }
    for (number, to) in [4, 0, 6, 2, 9].into_iter().enumerate() {
        let before = context.get(&key).await?;
        context.rewind(&key, &format!("back{number}"), to).await?;
        ensure_updated(&context, &schema, &before).await?;
        let writes = [("list", json!(["more"])), ("tasks", json!({"id": number}))];
        context.write(&key, Expected::Any, &format!("more{number}"), &schema, &writes).await?;
        ensure_updated(&context, &schema, &before).await?;
    }
    Ok(())
}

const NAMES: [&str; 3] = ["max", "one", "two"];

async fn a_state_kept_over_a_prune_is_brought_up_to_date(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let before = context.create(&schema, "s1", json!({"text": "x", "list": [0]})).await?;
    let key = before.key.clone();
    let removal = [schema.schema().removal("text")?].into_iter().collect();
    context.append(&key, 0, crate::store::context::event("e0")?.with_delta(removal), &schema).await?;
    for version in 1..4_u64 {
        context.write(&key, version, &format!("e{version}"), &schema, &[("list", json!([version]))]).await?;
    }
    context
        .store
        .prune(PruneSession::new(key.clone(), stepfold_session_scopes::PruneBound::Version(2)))
        .await?;
    ensure_updated(&context, &schema, &before).await?;
    let session = since(&context, &key, before.seen()).await?;
    ensure!(whole(&session)[2], "what was pruned is said to be known");
    Ok(())
}

async fn a_fork_is_read_from_where_it_begins(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({"text": "x", "list": [0]})).await?.key;
    for version in 0..4_u64 {
        context.write(&key, version, &format!("e{version}"), &schema, &[("list", json!([version]))]).await?;
    }
    let fork =
        context.store.fork(ForkSession::new(key, crate::store::context::at(2)).at_version(2)).await?.key;
    let before = context.get(&fork).await?;
    ensure_updated(&context, &schema, &before).await?;
    context.write(&fork, 2, "own", &schema, &[("list", json!(["own"]))]).await?;
    let session = since(&context, &fork, before.seen()).await?;
    ensure_eq!((whole(&session), changed(&session)), ([false; 3], vec!["list".to_owned()]));
    ensure_updated(&context, &schema, &before).await?;
    context.rewind(&fork, "back", 1).await?;
    ensure_updated(&context, &schema, &before).await
}

async fn an_erased_user_is_not_taken_for_an_earlier_one(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let before = context.create(&schema, "s1", json!({"user:text": "x", "user:sum": 1})).await?;
    let other = context.create(&schema, "s2", json!({"user:list": [1]})).await?.key;
    let before_later = context.get(&before.key).await?;
    context.store.delete(DeleteSession::new(other).with_user_state()).await?;
    for before in [&before, &before_later] {
        ensure_updated(&context, &schema, before).await?;
    }
    for number in 0..4_u64 {
        let writes = [("user:list", json!([number]))];
        context.write(&before.key, number, &format!("e{number}"), &schema, &writes).await?;
        for before in [&before, &before_later] {
            ensure_updated(&context, &schema, before).await?;
        }
    }
    Ok(())
}

async fn only_the_keys_that_are_asked_for_are_read(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let values = json!({"text": "x", "list": [1], "app:sum": 1, "user:text": "x", "user:list": [1]});
    let before = context.create(&schema, "s1", values).await?;
    let key = before.key.clone();
    let keys = ["list", "user:text", "app:max", "nothing"];
    let session = context.store.get(GetSession::new(key.clone()).keys(keys)).await?;
    ensure_eq!(session.to_json(), json!({"list": [1], "user:text": "x"}));
    ensure_eq!((whole(&session), removed(&session)), ([false; 3], vec!["app:max", "nothing"]));
    // They are brought up to date, the others stay what they were.
    context.write(&key, 0, "e1", &schema, &[("list", json!([2])), ("text", json!("y"))]).await?;
    let session = context.store.get(GetSession::new(key.clone()).keys(keys)).await?;
    let state = session.update(before.state(&schema)?, &schema)?;
    ensure_eq!((value(&state, "list"), value(&state, "text")), (json!([1, 2]), json!("x")));
    // Of what has changed, those that are asked for.
    let get = GetSession::new(key).keys(["text", "user:text"]).changed_since(before.seen());
    ensure_eq!(context.store.get(get).await?.to_json(), json!({"text": "y"}));
    Ok(())
}

fn value(state: &stepfold_state_core::state::State, key: &str) -> Value {
    state.get(key).map(stepfold_state_core::state::ValueRef::to_json).unwrap_or_default()
}

/// The changes that a state needs bring it up to date.
async fn ensure_updated_incrementally(
    context: &CaseContext,
    schema: &SessionSchema,
    before: &Session,
) -> StoreCaseResult {
    let get = GetSession::new(before.key.clone()).changed_since(before.seen()).incremental(schema);
    let kept = context.store.get(get).await?.update(before.state(schema)?, schema)?;
    ensure_eq!(values_of(&kept), values_of(&context.get(&before.key).await?.state(schema)?));
    Ok(())
}

async fn an_incremental_read_brings_every_earlier_state_up_to_date(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let values = json!({"user:list": [0, 1], "app:tasks": [{"id": 1}], "user:recent": [1, 2], "list": [1]});
    let key = context.create(&schema, "s1", values).await?.key;
    let other = context.create(&schema, "s2", json!({})).await?.key;
    let mut seen = vec![context.get(&key).await?];
    for (number, writes) in [
        vec![("user:list", json!([2, 3])), ("app:tasks", json!([{"id": 2}]))],
        vec![("user:list", json!([4])), ("user:recent", json!([3, 4]))],
        // An item in the middle is another one.
        vec![("app:tasks", json!([{"id": 1, "done": true}, {"id": 3}]))],
        vec![("user:recent", json!([5, 6, 7, 8, 9])), ("user:union", json!([1, 2]))],
        vec![("user:union", json!([2, 1])), ("user:recent", json!([]))],
        vec![("user:union", json!([3, 2])), ("app:list", json!([])), ("list", json!([2]))],
        vec![("app:list", json!([1])), ("user:recent", json!([10]))],
    ]
    .into_iter()
    .enumerate()
    {
        context.write(&other, Expected::Any, &format!("e{number}"), &schema, &writes).await?;
        for before in &seen {
            ensure_updated_incrementally(&context, &schema, before).await?;
        }
        seen.push(context.get(&key).await?);
    }
    // A list that is begun again, and one that is removed and begun again.
    let user = ScopeKey::user(context.app.as_str(), "alice")?;
    let replace = Handler::replace_values();
    let again = schema.schema().write_with("user:list", json!([7, 8, 9]), &replace)?;
    for write in [again, schema.schema().removal("user:union")?, schema.schema().write("user:union", [3])?] {
        let delta = [write].into_iter().collect();
        context.store.write_scope(WriteScope::new(user.clone(), delta, &schema)).await?;
        for before in &seen {
            ensure_updated_incrementally(&context, &schema, before).await?;
        }
        seen.push(context.get(&key).await?);
    }
    Ok(())
}

async fn an_incremental_read_under_another_type_brings_a_state_up_to_date(
    context: CaseContext,
) -> StoreCaseResult {
    let opened = |item: &str| {
        let list = json!({"type": "array", "items": {"type": item}});
        let schema = Schema::builder().key_schema("user:list", list).build()?;
        Ok::<_, CaseFault>(SessionSchema::new(schema))
    };
    let texts = opened("string")?;
    let of_texts = |old: Value| Ok(old.as_array().into_iter().flatten().map(Value::to_string).collect());
    let (texts, numbers) = (texts.migration("user:list", of_texts), opened("integer")?);
    let before = context.create(&numbers, "s1", json!({"user:list": [1, 2]})).await?;
    let state = values_of(&before.state(&texts)?);
    ensure_eq!(state, json!({"user:list": ["1", "2"]}));
    // Others continue under the type that the reader converts, and then under the reader's.
    let other = context.create(&numbers, "s2", json!({})).await?.key;
    context.write(&other, 0, "e1", &numbers, &[("user:list", json!([3]))]).await?;
    ensure_updated_incrementally(&context, &texts, &before).await?;
    context.write(&other, 1, "e2", &texts, &[("user:list", json!(["4"]))]).await?;
    ensure_updated_incrementally(&context, &texts, &before).await
}

async fn an_incremental_read_leaves_out_what_the_schema_does_not_know(
    context: CaseContext,
) -> StoreCaseResult {
    let all = schema()?;
    let one = SessionSchema::new(Schema::builder().key::<String>("user:text").build()?);
    let before = context.create(&all, "s1", json!({"user:text": "x", "text": "x"})).await?;
    let writes =
        [("user:text", json!("y")), ("user:list", json!([1])), ("app:sum", json!(1)), ("text", json!("y"))];
    context.write(&before.key, 0, "e1", &all, &writes).await?;
    let get = GetSession::new(before.key.clone()).changed_since(before.seen()).incremental(&one);
    ensure_eq!(context.store.get(get).await?.to_json(), json!({"user:text": "y"}));
    ensure_updated_incrementally(&context, &one, &before).await
}

async fn more_removals_than_a_scope_remembers(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let before = context.create(&schema, "s1", json!({"user:text": "x"})).await?;
    let user = ScopeKey::user(context.app.as_str(), "alice")?;
    let mut delta = stepfold_state_core::state::Delta::new();
    delta.extend([schema.schema().removal("user:text")?]);
    context.store.write_scope(WriteScope::new(user.clone(), delta, &schema)).await?;
    let later = context.get(&before.key).await?;
    let keys: Vec<String> =
        (0..=stepfold_session_scopes::REMEMBERED_REMOVALS).map(|number| format!("user:{number}")).collect();
    let writes = keys.iter().map(|key| schema.schema().write(key.as_str(), 1)).collect::<Result<_, _>>()?;
    context.store.write_scope(WriteScope::new(user.clone(), writes, &schema)).await?;
    let removals = keys.iter().map(|key| schema.schema().removal(key)).collect::<Result<_, _>>()?;
    context.store.write_scope(WriteScope::new(user, removals, &schema)).await?;
    for before in [&before, &later] {
        let session = since(&context, &before.key, before.seen()).await?;
        ensure!(whole(&session)[1], "what is forgotten is said to be known");
        ensure_updated(&context, &schema, before).await?;
    }
    Ok(())
}
