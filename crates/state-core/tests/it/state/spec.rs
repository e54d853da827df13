//! The examples of Haystack 2.31's documentation page "State", in Rust.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepfold_state_core::state::{Handler, Key, Schema, State, StateError};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Document {
    title: String,
    content: String,
}

const USER_NAME: Key<String> = Key::new("user_name");
const DOCUMENTS: Key<Vec<Document>> = Key::new("documents");
const COUNT: Key<i64> = Key::new("count");

#[test]
fn basic() -> Result<(), StateError> {
    let schema = Schema::builder().key(USER_NAME).key(DOCUMENTS).key(COUNT).build()?;
    let mut state = State::with_values(&schema, json!({"user_name": "Alice", "documents": [], "count": 0}))?;

    assert_eq!(state.get(USER_NAME)?, Some("Alice".to_owned()));
    assert_eq!(state.get(DOCUMENTS)?.unwrap_or_default(), []);
    assert!(state.has(USER_NAME));
    assert_eq!(state.messages().len(), 0);

    state.set(USER_NAME, "Bob".to_owned())?;
    let document = Document { title: "Doc 1".to_owned(), content: "Content 1".to_owned() };
    state.append(DOCUMENTS, document.clone())?;
    state.set(DOCUMENTS, vec![document.clone()])?;
    assert_eq!(state.get(DOCUMENTS)?, Some(vec![document.clone(), document]));
    Ok(())
}

#[test]
fn default_handlers() -> Result<(), StateError> {
    let schema = Schema::builder()
        .key::<Vec<i64>>("documents") // merge_lists
        .key::<String>("user_name") // replace_values
        .key::<i64>("count") // replace_values
        .build()?;
    let mut state = State::new(&schema);
    state.set("documents", vec![1, 2])?;
    state.set("documents", vec![3, 4])?;
    assert_eq!(state.get("documents").unwrap(), json!([1, 2, 3, 4]));

    state.set("user_name", "Alice")?;
    state.set("user_name", "Bob")?;
    assert_eq!(state.get("user_name").unwrap(), json!("Bob"));
    Ok(())
}

#[test]
fn custom_handler() -> Result<(), StateError> {
    // Merges and sorts lists.
    let custom_merge = Handler::custom("custom_merge", |current, new| {
        let read = |value: &Value| serde_json::from_value::<Vec<i64>>(value.clone()).unwrap_or_default();
        let mut numbers = current.map(read).unwrap_or_default();
        numbers.extend(read(&new));
        numbers.sort_unstable();
        Ok(json!(numbers))
    });
    let schema = Schema::builder().key::<Vec<i64>>("numbers").handler(custom_merge).build()?;
    let mut state = State::new(&schema);
    state.set("numbers", vec![3, 1])?;
    state.set("numbers", vec![2, 4])?;
    assert_eq!(state.get("numbers").unwrap(), json!([1, 2, 3, 4]));
    Ok(())
}

#[test]
fn handler_override() -> Result<(), StateError> {
    let concatenate = Handler::custom("concatenate_strings", |current, new| {
        Ok(match (current.and_then(Value::as_str), new.as_str()) {
            (Some(current), Some(new)) => json!(format!("{current}-{new}")),
            _ => new,
        })
    });
    let schema = Schema::builder().key(USER_NAME).build()?;
    let mut state = State::new(&schema);
    state.set("user_name", "Alice")?;
    state.set_with("user_name", "Bob", &concatenate)?;
    assert_eq!(state.get("user_name").unwrap(), json!("Alice-Bob"));
    Ok(())
}
