//! The keywords of a schema: subschemas, annotations, and a few rules.

use serde_json::{Map, Value};

/// Keywords for readers, without effect on validation.
const ANNOTATIONS: [&str; 11] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$schema",
    "$defs",
    "definitions",
    "$comment",
];

/// Whether a keyword has no effect on validation: an annotation, or definitions.
pub fn is_annotation(name: &str) -> bool {
    ANNOTATIONS.contains(&name) || name.starts_with("x-")
}

/// Whether a schema has no rules except these.
pub(super) fn has_only_rules(schema: &Value, rules: &[&str]) -> bool {
    schema
        .as_object()
        .is_none_or(|fields| fields.keys().all(|name| rules.contains(&name.as_str()) || is_annotation(name)))
}

/// The subschemas of a schema, each with its keyword. Definitions are excluded: they are followed where they
/// are used.
///
/// The walk goes by keyword, not by name: a property may be called `items` or `$ref`. (The one of `schemars`
/// skips `unevaluatedProperties`, `unevaluatedItems` and `dependentSchemas`.)
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::json_schema::subschemas_mut;
///
/// let mut schema = json!({"properties": {"items": {"type": "array", "items": {"type": "string"}}}});
/// let inside = subschemas_mut(schema.as_object_mut().expect("an object"));
/// assert_eq!(inside.len(), 1);
/// assert_eq!((inside[0].0, &inside[0].1["type"]), ("properties", &json!("array")));
/// ```
pub fn subschemas_mut(schema: &mut Map<String, Value>) -> Vec<(&str, &mut Value)> {
    let mut found = Vec::new();
    for (keyword, value) in schema {
        let keyword = keyword.as_str();
        match (keyword, value) {
            ("properties" | "patternProperties" | "dependentSchemas", Value::Object(schemas)) => {
                found.extend(schemas.values_mut().map(|schema| (keyword, schema)));
            }
            // NOTE: An array in it lists names of properties, not schemas.
            ("dependencies", Value::Object(schemas)) => {
                let is_schema = |value: &&mut Value| value.is_object() || value.is_boolean();
                found.extend(schemas.values_mut().filter(is_schema).map(|schema| (keyword, schema)));
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(schemas)) => {
                found.extend(schemas.iter_mut().map(|schema| (keyword, schema)));
            }
            (
                "items"
                | "additionalItems"
                | "unevaluatedItems"
                | "contains"
                | "additionalProperties"
                | "unevaluatedProperties"
                | "propertyNames"
                | "contentSchema"
                | "not"
                | "if"
                | "then"
                | "else",
                schema @ (Value::Object(_) | Value::Bool(_)),
            ) => found.push((keyword, schema)),
            _ => {}
        }
    }
    found
}

/// The values that a schema lists by `const` or `enum`, if any.
pub fn literals(schema: &Map<String, Value>) -> Option<&[Value]> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(Value::Array(values))) => Some(values),
        _ => None,
    }
}

/// Whether a schema requires a property.
pub fn is_required(schema: &Map<String, Value>, property: &str) -> bool {
    let required = schema.get("required").and_then(Value::as_array);
    required.is_some_and(|names| names.iter().any(|name| name == property))
}

/// The alternatives of a schema, by `anyOf` or `oneOf`.
pub fn alternatives(schema: &Map<String, Value>) -> Option<&Vec<Value>> {
    ["anyOf", "oneOf"].into_iter().find_map(|keyword| schema.get(keyword)?.as_array())
}
