//! Stored schemas, states and deltas that are damaged, foreign or newer: typed errors, and nothing lost.

use expect_test::{Expect, expect};
use serde_json::json;
use stepfold_state_core::state::{Delta, Schema, State, StateError};

use super::{handlers, json_of, report};

fn check_schema(json: &str, expected: Expect) {
    let text = match Schema::from_json(json, &handlers()) {
        Ok(schema) => serde_json::to_string(&schema).unwrap(),
        Err(error) => report(&error),
    };
    expected.assert_eq(&text);
}

fn check_state(json: &str, expected: Expect) {
    let text = match State::from_json(&some_schema(), json) {
        Ok(state) => json_of(&state),
        Err(error) => report(&error),
    };
    expected.assert_eq(&text);
}

fn some_schema() -> Schema {
    Schema::builder().key::<Vec<i64>>("numbers").key::<String>("name").default("Ada").build().unwrap()
}

#[test]
fn schemas() {
    check_schema("", expect!["invalid stored schema: EOF while parsing a value at line 1 column 0"]);
    check_schema("{", expect!["invalid stored schema: EOF while parsing an object at line 1 column 1"]);
    check_schema("[]", expect!["invalid stored schema: expected an object with a version, found list at $"]);
    check_schema("{}", expect!["invalid stored schema: missing field `version` at $"]);
    check_schema(
        r#"{"version": "1"}"#,
        expect!["invalid stored schema: expected u64, found string at $.version"],
    );
    check_schema(
        r#"{"version": 1} x"#,
        expect!["invalid stored schema: trailing characters at line 1 column 16"],
    );
    check_schema(r#"{"version": 1}"#, expect![[r#"{"version":1,"open":false,"keys":{}}"#]]);
    check_schema(
        r#"{"version": 1, "keys": []}"#,
        expect!["invalid stored schema: expected an object of keys, found list at $.keys"],
    );
    check_schema(
        r#"{"version": 1, "keys": {"a": {"handler": "a b"}}}"#,
        expect![[
            r#"invalid stored schema: unknown handler "a b"; known handlers: replace_values, merge_lists, union, upsert_by(field), keep_last(n), merge_maps, sum, max, min, first_wins at $.keys.a.handler"#
        ]],
    );
    check_schema(
        r#"{"version": 1, "keys": {"a": {"type": true}, "a": {"type": true}}}"#,
        expect!["invalid schema: a: duplicate key"],
    );
    check_schema(
        r#"{"version": 1, "keys": {"a": {}, "b": {"handler": "sum"}}}"#,
        expect![[
            r#"invalid schema: a: missing type; write "type": true for a value of any type; b: missing type; write "type": true for a value of any type"#
        ]],
    );
    check_schema(
        r#"{"version": 1, "keys": {"a": {"type": null}}}"#,
        expect!["invalid schema: a: invalid JSON Schema: expected an object or a boolean"],
    );
    check_schema(
        r#"{"version": 1, "made_by": "a friend", "keys": {"a": {"type": "integer", "colour": 1}, "b": {"type": true, "default": null}}}"#,
        expect![[
            r#"{"version":1,"open":false,"keys":{"a":{"type":{"type":"integer"},"handler":"replace_values"},"b":{"type":true,"handler":"replace_values","default":null}}}"#
        ]],
    );
}

#[test]
fn a_newer_schema() {
    let error = Schema::from_json(r#"{"keys": "of another form", "version": 2}"#, &handlers()).unwrap_err();
    assert!(matches!(error, StateError::NewerFormat { found: 2, supported: 1, .. }));
    expect!["unsupported format 2 of the stored schema: this version reads up to 1; update stepfold"]
        .assert_eq(&report(&error));
}

#[test]
fn states() {
    check_state("null", expect!["invalid stored state: expected an object with a version, found null at $"]);
    check_state(r#"{"version": 1}"#, expect!["invalid stored state: missing field `values` at $"]);
    check_state(
        r#"{"version": 1, "values": {}, "shard": 7}"#,
        expect![[r#"{"values":{"messages":[],"name":"Ada"},"version":1}"#]],
    );
    check_state(
        r#"{"version": 1, "values": {"numbers": [1, "secret"]}}"#,
        expect![[r#"invalid value for key "numbers": expected integer, found string at $[1]"#]],
    );
    check_state(
        r#"{"version": 1, "values": {"secret": 1}}"#,
        expect![[r#"unknown key "secret"; known keys: numbers, name, messages"#]],
    );
    check_state(
        r#"{"version": 1, "values": {"messages": [{"role": "user", "parts": 1}]}}"#,
        expect![[
            r#"invalid stored state: expected a list of parts, or a string, found integer at $.values.messages[0].parts"#
        ]],
    );
    check_state(
        r#"{"version": 1, "values": {"numbers": [1, 2"#,
        expect!["invalid stored state: EOF while parsing a list at line 1 column 42"],
    );
    check_state(
        r#"{"version": 3, "values": 1}"#,
        expect!["unsupported format 3 of the stored state: this version reads up to 1; update stepfold"],
    );
}

#[test]
fn every_truncation_is_an_error() {
    let mut state = State::new(&some_schema());
    state.set("numbers", vec![1, 22, 333]).unwrap();
    state.set("name", "Zoë \"😀\"").unwrap();
    let json = serde_json::to_string(&state).unwrap();
    for end in (0..json.len()).filter(|end| json.is_char_boundary(*end)) {
        let error = State::from_json(&some_schema(), &json[..end]).unwrap_err();
        assert!(matches!(error, StateError::Json { what: "stored state", .. }), "{error}");
    }
}

#[test]
fn deltas() {
    let read = |json: &str| match serde_json::from_str::<Delta>(json) {
        Ok(delta) => {
            let mut state = State::new(&some_schema());
            match state.apply(&delta) {
                Ok(()) => json_of(&state),
                Err(error) => report(&error),
            }
        }
        Err(error) => error.to_string(),
    };
    let texts = [
        r#"[{"key": "numbers", "handler": "merge_lists", "value": [1], "at": "noon"}, {"key": "name", "remove": true}]"#,
        r#"[{"key": "name", "handler": "replace_values", "value": null}]"#,
        r#"[{"key": "name", "handler": "replace_values"}]"#,
        r#"[{"key": "name", "value": "Bob"}]"#,
        r#"[{"handler": "sum", "value": 1}]"#,
        r#"[{"key": "name", "handler": "unheard_of", "value": "Bob"}]"#,
        r#"[{"key": "numbers", "handler": "merge_lists", "value": [1]}, {"key": "colour", "remove": true}]"#,
        r#"[{"key": "messages", "handler": "merge_lists", "value": []}]"#,
        r#"{"key": "name"}"#,
    ]
    .map(read);
    expect![[r#"
        {"values":{"messages":[],"name":"Ada","numbers":[1]},"version":1}
        invalid value for key "name": expected string, found null at $
        missing field `value` at line 1 column 46
        missing field `handler` at line 1 column 33
        missing field `key` at line 1 column 31
        unknown handler "unheard_of"; known handlers: replace_values, merge_lists, union, upsert_by(field), keep_last(n), merge_maps, sum, max, min, first_wins
        unknown key "colour"; known keys: numbers, name, messages
        key "messages" cannot be written: it is the projection of message events; push a message instead
        invalid type: map, expected a sequence at line 1 column 0"#]].assert_eq(&texts.join("\n"));
}

#[test]
fn decoding_a_value_as_another_type_never_shows_it() {
    let mut state = State::new(&Schema::builder().open().build().unwrap());
    state.set("name", "secret").unwrap();
    state.set("list", json!([1, "secret, expected nothing"])).unwrap();
    let one = state.get(stepfold_state_core::state::Key::<u64>::new("name")).unwrap_err();
    let list = state.get(stepfold_state_core::state::Key::<Vec<u64>>::new("list")).unwrap_err();
    expect![[r#"
        key "name" cannot be decoded as u64: expected u64, found string at $
        key "list" cannot be decoded as alloc::vec::Vec<u64>: expected u64, found string at $[1]"#]]
    .assert_eq(&format!("{}\n{}", report(&one), report(&list)));
}
