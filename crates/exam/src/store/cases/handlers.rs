//! Merge handlers run in the store, on the current values.

use futures_util::future::join_all;
use serde_json::{Value, json};
use stepfold_state_core::state::{Handler, Schema, State};

use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, cases, delta, ensure, ensure_eq, ensure_error,
    event, schema, values_of,
};
use stepfold_session_scopes::Expected;
use stepfold_session_scopes::Session;
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::SessionSchema;

cases! {
    every_handler_does_what_it_does_in_a_state,
    several_writes_of_one_event_are_folded_in_order,
    parallel_writers_lose_nothing,
    long_lists_grow_and_shrink,
    custom_handlers_run_in_the_store,
    a_panic_in_a_handler_fails_its_append_only,
}

/// Writes to make one after the other, of every handler.
fn writes() -> Vec<(&'static str, Value)> {
    vec![
        ("list", json!([1, 2])),
        ("sum", json!(4)),
        ("list", json!("bare")),
        ("union", json!([1, 2, 1])),
        ("tasks", json!([{"id": 1, "status": "new"}, {"id": 2}])),
        ("map", json!({"a": 1, "b": {"c": 1}})),
        ("recent", json!([1, 2, 3, 4, 5])),
        ("first", json!("one")),
        ("max", json!(3)),
        ("min", json!(3)),
        ("longest", json!("aaa")),
        ("list", json!([[3], {"four": 4}, null, 1.0])),
        ("union", json!([2, 3, 1.0])),
        ("tasks", json!({"id": 2, "status": "done"})),
        ("tasks", json!([{"id": 3}, {"id": 1, "status": "running"}])),
        ("map", json!({"b": 2})),
        ("recent", json!(6)),
        ("first", json!("two")),
        ("max", json!(2)),
        ("min", json!(2)),
        ("sum", json!(-1)),
        ("longest", json!("a")),
        ("text", json!("x")),
        ("undeclared", json!([1])),
        ("undeclared", json!([2])),
        ("list", json!([])),
        ("recent", json!([7, 8])),
        ("longest", json!("aaaa")),
        ("list", json!([5])),
    ]
}

async fn every_handler_does_what_it_does_in_a_state(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    let mut state = State::new(schema.schema());
    for (version, (name, value)) in writes().into_iter().enumerate() {
        state.set(name, value.clone())?;
        context.write(&key, version as u64, &format!("e{version}"), &schema, &[(name, value)]).await?;
        let stored = context.get(&key).await?.to_json();
        ensure!(stored == values_of(&state), "after {name}: {stored}, expected {}", values_of(&state));
    }
    Ok(())
}

async fn several_writes_of_one_event_are_folded_in_order(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let all = writes();
    for size in [2, 5, all.len()] {
        let id = format!("s{size}");
        let key = context.create(&schema, &id, json!({})).await?.key;
        let mut state = State::new(schema.schema());
        for (number, writes) in all.chunks(size).enumerate() {
            let delta = delta(&schema, writes)?;
            state.apply(&delta)?;
            let event = event(&format!("e{number}"))?.with_delta(delta);
            context.append(&key, Expected::Any, event, &schema).await?;
        }
        ensure_eq!(context.get(&key).await?.to_json(), values_of(&state));
    }
    Ok(())
}

async fn parallel_writers_lose_nothing(context: CaseContext) -> StoreCaseResult {
    const WRITERS: usize = 8;
    const WRITES: usize = 5;
    let schema = schema()?;
    let mut keys = Vec::new();
    for writer in 0..WRITERS {
        keys.push(context.create(&schema, &format!("s{writer}"), json!({})).await?.key);
    }
    let writers = keys.iter().enumerate().map(|(writer, key)| {
        let (context, schema) = (&context, &schema);
        async move {
            for write in 0..WRITES {
                let item = json!([format!("{writer}-{write}")]);
                let task = json!({"id": write, writer.to_string(): true});
                let mut writes = Vec::new();
                for scope in ["app", "user"] {
                    writes.push((format!("{scope}:sum"), json!(1)));
                    writes.push((format!("{scope}:list"), item.clone()));
                    writes.push((format!("{scope}:union"), json!([write, format!("{writer}-{write}")])));
                    writes.push((format!("{scope}:tasks"), task.clone()));
                }
                let writes: Vec<_> =
                    writes.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
                context.write(key, write as u64, &format!("e{write}"), schema, &writes).await?;
            }
            Ok::<(), SessionError>(())
        }
    });
    join_all(writers).await.into_iter().collect::<Result<(), _>>()?;
    let session = context.get(&keys[0]).await?;
    for scope in ["app", "user"] {
        check_totals(&session, scope, WRITERS, WRITES)?;
    }
    Ok(())
}

fn check_totals(session: &Session, scope: &str, writers: usize, count: usize) -> StoreCaseResult {
    let value = |name: &str| {
        session.get(&format!("{scope}:{name}")).map(stepfold_state_core::state::ValueRef::to_json)
    };
    let items = |name: &str| value(name).as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
    let total = writers * count;
    ensure_eq!(value("sum"), Some(json!(total)));
    ensure_eq!(items("list").len(), total);
    ensure_eq!(items("union").len(), total + count);
    let tasks = items("tasks");
    ensure_eq!(tasks.len(), count);
    let fields = tasks.iter().all(|task| task.as_object().is_some_and(|task| task.len() == writers + 1));
    ensure!(fields, "an update of a task was lost: {tasks:?}");
    for writer in 0..writers {
        let own: Vec<_> = (0..count).map(|write| json!(format!("{writer}-{write}"))).collect();
        let kept: Vec<_> = items("list").into_iter().filter(|item| own.contains(item)).collect();
        ensure_eq!(kept, own);
    }
    Ok(())
}

async fn long_lists_grow_and_shrink(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    let mut state = State::new(schema.schema());
    for version in 0..60u64 {
        let prefix = if version % 2 == 0 { "" } else { "app:" };
        let items: Vec<u64> = (0..version % 7).collect();
        let writes = [(format!("{prefix}list"), json!(items)), (format!("{prefix}recent"), json!(items))];
        let writes = writes.each_ref().map(|(key, value)| (key.as_str(), value.clone()));
        state.apply(&delta(&schema, &writes)?)?;
        context.write(&key, version, &format!("e{version}"), &schema, &writes).await?;
    }
    ensure_eq!(context.get(&key).await?.to_json(), values_of(&state));
    Ok(())
}

async fn custom_handlers_run_in_the_store(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({"longest": "aa"})).await?.key;
    for (version, (text, longest)) in [("b", "aa"), ("cccc", "cccc"), ("ddd", "cccc")].into_iter().enumerate()
    {
        context.write(&key, version as u64, text, &schema, &[("longest", json!(text))]).await?;
        let read = context.get(&key).await?;
        ensure_eq!(
            read.get("longest").map(stepfold_state_core::state::ValueRef::to_json),
            Some(json!(longest))
        );
    }
    // A schema that does not know the handler does not guess.
    let unaware = SessionSchema::new(Schema::builder().open().build()?);
    let text = r#"[{"key": "longest", "handler": "longest", "value": "x"}]"#;
    let event = event("e9")?.with_delta(serde_json::from_str(text)?);
    let result = context.append(&key, Expected::Any, event, &unaware).await;
    ensure_error!(result, SessionError::State { .. });
    Ok(())
}

async fn a_panic_in_a_handler_fails_its_append_only(context: CaseContext) -> StoreCaseResult {
    let handler = Handler::custom("fragile", |_, new| {
        if new == "break" {
            // As a panic, but without a word on the console.
            std::panic::resume_unwind(Box::new("as the case wants it"));
        }
        Ok(new)
    });
    let builder = Schema::builder().key::<String>("fragile").handler(handler);
    let schema = SessionSchema::new(builder.key::<i64>("app:sum").handler(Handler::sum()).build()?);
    let key = context.create(&schema, "s1", json!({})).await?.key;
    let writes = [("app:sum", json!(1)), ("fragile", json!("break"))];
    let result = context.write(&key, 0, "e1", &schema, &writes).await;
    ensure_error!(result, SessionError::Panicked);
    context.write(&key, 0, "e2", &schema, &[("app:sum", json!(1)), ("fragile", json!("x"))]).await?;
    ensure_eq!(context.get(&key).await?.to_json(), json!({"app:sum": 1, "fragile": "x"}));
    Ok(())
}
