//! Golden files: what version 1 wrote loads for ever, and comes out as it was.
//!
//! A change of format adds files; it never changes one of these.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use stepfold_state_core::chat::Content;
use stepfold_state_core::state::{Schema, State, StateError};

use super::handlers;

fn read(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn pretty(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap() + "\n"
}

fn schema_v1() -> Schema {
    Schema::from_json(&read("schema-v1.json"), &handlers()).unwrap()
}

#[test]
fn schema() {
    assert_eq!(pretty(&schema_v1()), read("schema-v1.json"));
}

#[test]
fn state() {
    let state = State::from_json(&schema_v1(), &read("state-v1.json")).unwrap();
    assert_eq!(pretty(&state), read("state-v1.json"));
    assert_eq!(state.messages().check(), Ok(()));
    let mut kinds: Vec<&str> = state
        .messages()
        .iter()
        .flat_map(|message| message.parts())
        .map(|part| match &part.content {
            Content::Unknown(_) => "unknown",
            content => content.kind(),
        })
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, ["file", "image", "reasoning", "text", "tool_call", "tool_result", "unknown"]);
}

/// What a newer program wrote beside what we know does not stop us; a newer format number does.
#[test]
fn newer_files() {
    let with = |name: &str, field: &str, value: Value| {
        let mut json: Value = serde_json::from_str(&read(name)).unwrap();
        json[field] = value;
        json.to_string()
    };
    let state = State::from_json(&schema_v1(), &with("state-v1.json", "digest", "abc".into())).unwrap();
    assert_eq!(state, State::from_json(&schema_v1(), &read("state-v1.json")).unwrap());
    assert_eq!(
        Schema::from_json(&with("schema-v1.json", "author", "me".into()), &handlers()).unwrap(),
        schema_v1(),
    );
    for error in [
        State::from_json(&schema_v1(), &with("state-v1.json", "version", 2.into())).unwrap_err(),
        Schema::from_json(&with("schema-v1.json", "version", 2.into()), &handlers()).unwrap_err(),
    ] {
        assert!(matches!(error, StateError::NewerFormat { found: 2, supported: 1, .. }), "{error}");
    }
}
