//! Types of values by JSON Schemas: whatever a schema leaves open may be anything.

use serde_json::{Value, json};

/// Whether no value of this type, in the words of JSON Schema, is valid.
pub(super) fn excludes(schema: &Value, kind: &str) -> bool {
    let fits = |allowed: &str| allowed == kind || (allowed == "number" && kind == "integer");
    match schema.get("type") {
        Some(Value::String(allowed)) => !fits(allowed),
        Some(Value::Array(allowed)) => !allowed.iter().filter_map(Value::as_str).any(fits),
        _ => false,
    }
}

/// Whether a value of this type is neither valid nor an item of a valid list.
pub(super) fn excludes_as_item(schema: &Value, kind: &str) -> bool {
    let is_no_item = || match schema.get("items") {
        Some(items) => excludes(items, kind),
        None => excludes(schema, "array"),
    };
    excludes(schema, kind) && is_no_item()
}

/// The types that a schema allows, in words.
pub(super) fn display_types(schema: &Value) -> String {
    match schema.get("type") {
        Some(Value::String(allowed)) => allowed.clone(),
        Some(Value::Array(allowed)) => {
            allowed.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or ")
        }
        _ => "anything".to_owned(),
    }
}

/// The type that a schema asks for, if it is one.
pub(super) fn only(schema: &Value) -> Option<&str> {
    schema.get("type")?.as_str()
}

/// Some value of a type.
pub(super) fn sample(kind: &str) -> Option<Value> {
    Some(match kind {
        "string" => json!("text"),
        "integer" => json!(1),
        "number" => json!(1.5),
        "boolean" => json!(true),
        "array" => json!([]),
        "object" => json!({}),
        _ => return None,
    })
}
