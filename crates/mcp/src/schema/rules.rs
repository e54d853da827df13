//! The keywords whose values are not schemas, and their valid values. A keyword with another value is omitted.

use serde_json::{Map, Value};
use stepfold_state_core::json_schema::{ValueKinds, ValueType, is_annotation};

/// Whether the value of a keyword is valid.
pub(super) fn is_valid(keyword: &str, value: &Value) -> bool {
    match keyword {
        "title" | "description" | "format" | "contentEncoding" | "contentMediaType" => value.is_string(),
        "pattern" => value.as_str().is_some_and(is_usable_pattern),
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties"
        | "minContains" | "maxContains" => value.is_u64(),
        "minimum" | "maximum" => value.is_number(),
        // A boolean is that of draft 4.
        "exclusiveMinimum" | "exclusiveMaximum" => value.is_number() || value.is_boolean(),
        "multipleOf" => value.as_f64().is_some_and(|step| step > 0.0),
        "uniqueItems" | "deprecated" | "readOnly" | "writeOnly" => value.is_boolean(),
        "enum" => value.as_array().is_some_and(|values| !values.is_empty()),
        "examples" => value.is_array(),
        "dependentRequired" => {
            value.as_object().is_some_and(|names| names.values().all(|names| names_of(names).is_some()))
        }
        _ => true,
    }
}

/// Whether a keyword is about the document, or is read with another one: it is meaningless in an inlined schema.
pub(super) fn is_about_document(keyword: &str, value: &Value) -> bool {
    match keyword {
        "$schema" | "$id" | "$anchor" | "$dynamicAnchor" | "$recursiveAnchor" | "$vocabulary"
        | "$comment" | "$defs" | "definitions" => true,
        "id" => value.is_string(),
        // Its mapping refers to definitions.
        "discriminator" => value.is_object(),
        "nullable" => value.is_boolean(),
        _ => false,
    }
}

/// Whether the omission of a keyword lets more values pass.
pub(super) fn is_rule(keyword: &str) -> bool {
    !is_annotation(keyword) && !matches!(keyword, "format" | "contentEncoding" | "contentMediaType")
}

/// Whether a pattern is valid here: servers use regular expressions of other dialects.
pub(super) fn is_usable_pattern(pattern: &str) -> bool {
    ValueType::of_schema(serde_json::json!({ "pattern": pattern })).is_ok()
}

/// The types of a `type` keyword, in the spelling of JSON Schema; none if one of them is unknown, which may be any.
pub(super) fn types(value: &Value) -> Option<Value> {
    let named = |name: &Value| {
        let name = name.as_str()?.to_lowercase();
        let is_known = ValueKinds::of_type_keyword(&Value::String(name.clone())) != ValueKinds::NONE;
        is_known.then_some(Value::String(name))
    };
    match value {
        Value::Array(listed) => {
            let mut types: Vec<Value> = Vec::with_capacity(listed.len());
            for name in listed {
                let name = named(name)?;
                if !types.contains(&name) {
                    types.push(name);
                }
            }
            (!types.is_empty()).then_some(Value::Array(types))
        }
        name => named(name),
    }
}

/// A list of names, each once.
pub(super) fn names_of(value: &Value) -> Option<Vec<Value>> {
    let mut names: Vec<Value> = Vec::new();
    for name in value.as_array()? {
        if !name.is_string() {
            return None;
        }
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    Some(names)
}

/// The bounds of draft 4, where `exclusiveMinimum` says of what kind `minimum` is.
pub(super) fn number_bounds(fields: &mut Map<String, Value>) {
    for (exclusive, inclusive) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        if let Some(&Value::Bool(is_exclusive)) = fields.get(exclusive) {
            fields.remove(exclusive);
            if is_exclusive && let Some(bound) = fields.remove(inclusive) {
                fields.insert(exclusive.to_owned(), bound);
            }
        }
    }
}
