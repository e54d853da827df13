//! State: its behaviours, its laws, recorded results of Haystack, and stored forms.

mod deep_research;
mod golden;
mod handlers;
mod laws;
mod oracle;
mod schemas;
mod semantics;
mod spec;
mod stored;
mod templates;
mod values;

use std::error::Error;

use serde_json::{Value, json};
use stepfold_state_core::state::{Handler, Handlers, Schema, State, StateError};

/// The text of an error, which includes its causes.
fn report(error: &StateError) -> String {
    assert!(error.source().is_none(), "the text shows all causes");
    error.to_string()
}

/// Custom handlers that the tests share.
fn handlers() -> Handlers {
    let sorted = Handler::custom("sorted_merge", |current, new| {
        let mut all: Vec<Value> = Vec::new();
        for value in [current.cloned().unwrap_or(Value::Null), new] {
            match value {
                Value::Null => {}
                Value::Array(items) => all.extend(items),
                bare => all.push(bare),
            }
        }
        all.sort_by(compare);
        Ok(Value::Array(all))
    });
    let concat = Handler::custom("concat_str", |current, new| {
        Ok(match current.and_then(Value::as_str) {
            None | Some("") => new,
            Some(current) => json!(format!("{current}-{}", new.as_str().unwrap_or_default())),
        })
    });
    let fail = Handler::custom("always_fails", |_, _| Err("expected a date".into()));
    let stray = Handler::custom("gives_a_number", |_, _| Ok(json!(1)));
    [sorted, concat, fail, stray]
        .into_iter()
        .fold(Handlers::new(), |handlers, handler| handlers.with(handler).unwrap())
}

fn compare(left: &Value, right: &Value) -> std::cmp::Ordering {
    match (left.as_str(), right.as_str()) {
        (Some(left), Some(right)) => left.cmp(right),
        _ => left.as_f64().partial_cmp(&right.as_f64()).unwrap(),
    }
}

/// The schema with these keys, as a stored schema has them.
fn schema(keys: &Value) -> Result<Schema, StateError> {
    Schema::from_json(&json!({"version": 1, "keys": keys}).to_string(), &handlers())
}

/// Runs a script, one operation a line, and tells what was answered and what the state is in the end:
/// `key = value`, `key = value by handler`, `remove key`, `key?` (get), `has key`.
fn run(keys: &Value, script: &str) -> String {
    let schema = match schema(keys) {
        Ok(schema) => schema,
        Err(error) => return format!("no schema! {}\n", report(&error)),
    };
    let mut state = State::new(&schema);
    let mut output = String::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let before = json_of(&state);
        match operate(&mut state, line) {
            Ok(None) => {}
            Ok(Some(answer)) => output += &format!("{line} -> {answer}\n"),
            Err(error) => {
                output += &format!("{line} ! {}\n", report(&error));
                assert_eq!(json_of(&state), before, "a failed write changed something");
            }
        }
    }
    for (key, value) in state.iter().filter(|(key, value)| *key != "messages" || value.len() != Some(0)) {
        output += &format!("{key}: {}\n", strict(&value.to_json()));
    }
    output
}

fn operate(state: &mut State, line: &str) -> Result<Option<String>, StateError> {
    if let Some(key) = line.strip_suffix('?') {
        return Ok(Some(state.get(key).map_or("unset".to_owned(), |value| strict(&value.to_json()))));
    }
    if let Some(key) = line.strip_prefix("has ") {
        return Ok(Some(state.has(key).to_string()));
    }
    if let Some(key) = line.strip_prefix("remove ") {
        return state.remove(key).map(|()| None);
    }
    let (key, value) = line.split_once(" = ").expect("an operation");
    let (value, handler) = match value.rsplit_once(" by ") {
        Some((value, handler)) => (value, Some(handler.parse::<Handler>()?)),
        None => (value, None),
    };
    let value: Value = serde_json::from_str(value).expect("a JSON value");
    match handler {
        Some(handler) => state.set_with(key, value, &handler)?,
        None => state.set(key, value)?,
    }
    Ok(None)
}

/// The stored form, in which 1, 1.0, 0.0 and -0.0 all differ; fields are in order whatever the features.
fn json_of(state: &State) -> String {
    strict(&serde_json::to_value(state).unwrap())
}

/// JSON with sorted fields: equal texts are equal values, to the last bit.
fn strict(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(strict).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let mut fields: Vec<String> =
                fields.iter().map(|(name, value)| format!("{}:{}", json!(name), strict(value))).collect();
            fields.sort_unstable();
            format!("{{{}}}", fields.join(","))
        }
        scalar => scalar.to_string(),
    }
}
