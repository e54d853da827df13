//! Text blocks, and other values as text.

use serde_json::{Value, json};

/// The longest text of an unknown value that is shown.
const MAX_TEXT: usize = 4 * 1024;

/// The text of a text block.
pub(super) fn text_of(block: &Value) -> Option<&str> {
    if block["type"] == "text" { block["text"].as_str() } else { None }
}

pub(super) fn text_block(words: impl Into<String>) -> Value {
    json!({"type": "text", "text": words.into()})
}

/// A value as JSON, without long texts, which are bytes of media more often than not.
pub(super) fn readable(value: &Value) -> String {
    match value {
        Value::String(words) => words.clone(),
        other => without_long_texts(other.clone()).to_string(),
    }
}

fn without_long_texts(mut value: Value) -> Value {
    match &mut value {
        Value::String(words) if words.len() > MAX_TEXT => {
            *words = format!("[left out: a text of {} bytes]", words.len());
        }
        Value::Array(items) => {
            for item in items {
                *item = without_long_texts(item.take());
            }
        }
        Value::Object(fields) => {
            fields.values_mut().for_each(|field| *field = without_long_texts(field.take()));
        }
        _ => {}
    }
    value
}

/// The kind of a value, for a person.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
