//! The answers of the original, Haystack, to 1,200 generated scenarios; see `tests/fixtures/README.md`.
//!
//! Everything goes through the public API. A deviation has to be listed with its reason, and what is
//! listed has to occur.

use serde_json::{Map, Value, json};
use stepfold_state_core::state::{Handler, Schema, State, StateError, ValueRef};

use super::{handlers, strict};

const SCENARIOS: &str = include_str!("../../fixtures/oracle-state.jsonl");

/// `(scenario, documented difference, reason)`. None is needed: every value of the
/// scenarios fits its declared type, and none has an optional array.
const DEVIATIONS: [(u64, &str, &str); 0] = [];

#[test]
fn answers_as_the_original_does() {
    let mut differing = Vec::new();
    let mut count = 0;
    for line in SCENARIOS.lines() {
        let Value::Object(line) = serde_json::from_str(line).unwrap() else { panic!("no object: {line}") };
        let (scenario, expected) = (&line["scenario"], &line["expected"]);
        let replayed = replay(scenario);
        let wanted = json!({"results": expected["results"], "data": expected["data"]});
        if strict(&replayed) != strict(&wanted) {
            differing.push((scenario["id"].as_u64().unwrap(), strict(&replayed), strict(&wanted)));
        }
        count += 1;
    }
    assert_eq!(count, 1_200);
    let listed: Vec<u64> = DEVIATIONS.iter().map(|(id, _, _)| *id).collect();
    for (id, replayed, wanted) in &differing {
        assert!(listed.contains(id), "scenario {id} differs:\n  ours:   {replayed}\n  theirs: {wanted}");
    }
    for id in listed {
        assert!(differing.iter().any(|(differing, _, _)| *differing == id), "scenario {id} does not deviate");
    }
}

/// What we answer, in the form of the oracle's answers.
fn replay(scenario: &Value) -> Value {
    let mut builder = Schema::builder().handlers(&handlers());
    for (key, declared) in scenario["schema"].as_object().unwrap() {
        builder = builder.key_schema(key, json_type(declared["type"].as_str().unwrap()));
        if let Some(name) = declared.get("handler") {
            builder = builder.handler(handler(name));
        }
    }
    let schema = builder.build().unwrap();
    let data = scenario.get("data").cloned().unwrap_or_else(|| json!({}));
    let mut state = State::with_values(&schema, data).unwrap();
    let results: Vec<Value> =
        scenario["ops"].as_array().unwrap().iter().map(|operation| operate(&mut state, operation)).collect();
    json!({"results": results, "data": data_of(&state)})
}

fn operate(state: &mut State, operation: &Value) -> Value {
    let key = operation["key"].as_str().unwrap_or_default();
    let answer = match operation["op"].as_str().unwrap() {
        "set" => {
            let value = operation["value"].clone();
            let written = match operation.get("handler_override") {
                Some(name) => state.set_with(key, value, &handler(name)),
                None => state.set(key, value),
            };
            match written {
                Ok(()) => Value::Null,
                Err(StateError::UnknownKey { .. }) => {
                    return json!({"ok": false, "error": {"kind": "UnknownKey"}});
                }
                Err(error) => return json!({"ok": false, "error": super::report(&error)}),
            }
        }
        "get" => state
            .get(key)
            .map_or_else(|| operation.get("default").cloned().unwrap_or_default(), ValueRef::to_json),
        "has" => state.has(key).into(),
        "data" => data_of(state),
        other => panic!("unknown operation {other}"),
    };
    json!({"ok": true, "value": answer})
}

fn data_of(state: &State) -> Value {
    let values = state.iter().filter(|(key, _)| *key != "messages");
    Value::Object(values.map(|(key, value)| (key.to_owned(), value.to_json())).collect::<Map<_, _>>())
}

fn handler(name: &Value) -> Handler {
    let ours = match name.as_str().unwrap() {
        "merge_dicts" => "merge_maps",
        "append_unique" => "union",
        "keep_first" => "first_wins",
        same => same,
    };
    ours.parse().unwrap()
}

fn json_type(python: &str) -> Value {
    match python {
        "str" => json!("string"),
        "int" => json!("integer"),
        "float" => json!("number"),
        "bool" => json!("boolean"),
        "dict" => json!("object"),
        "dict[str,int]" => json!({"type": "object", "additionalProperties": {"type": "integer"}}),
        "Optional[str]" => json!(["string", "null"]),
        "Optional[int]" => json!(["integer", "null"]),
        "Union[str,int]" => json!(["string", "integer"]),
        "Any" => json!({}),
        "list" | "list[Any]" => json!("array"),
        "list[str]" => json!({"type": "array", "items": {"type": "string"}}),
        "list[int]" => json!({"type": "array", "items": {"type": "integer"}}),
        "list[dict]" => json!({"type": "array", "items": {"type": "object"}}),
        other => panic!("unknown type {other}"),
    }
}
