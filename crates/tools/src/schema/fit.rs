//! Whether a value fits a schema, by what tells alternatives apart: kinds, listed values, properties.
//!
//! No full validation: bounds and patterns are not looked at. It is asked only where one alternative out
//! of several has to be found; the arguments are validated afterwards.

use serde_json::{Map, Value};

use super::{allows_kind, is_required, literals};

pub(super) fn fits(schema: &Value, value: &Value) -> bool {
    match schema {
        Value::Object(fields) => fits_fields(fields, value),
        other => *other != Value::Bool(false),
    }
}

fn fits_fields(fields: &Map<String, Value>, value: &Value) -> bool {
    let any = |keyword: &str| match fields.get(keyword).and_then(Value::as_array) {
        Some(schemas) => schemas.iter().any(|schema| fits(schema, value)),
        None => true,
    };
    let all = || match fields.get("allOf").and_then(Value::as_array) {
        Some(schemas) => schemas.iter().all(|schema| fits(schema, value)),
        None => true,
    };
    fits_kind(fields, value)
        && literals(fields).is_none_or(|values| values.contains(&value))
        && any("anyOf")
        && any("oneOf")
        && all()
        && match value {
            Value::Object(properties) => fits_object(fields, properties),
            Value::Array(items) => {
                fields.get("items").is_none_or(|schema| items.iter().all(|item| fits(schema, item)))
            }
            _ => true,
        }
}

fn fits_object(fields: &Map<String, Value>, properties: &Map<String, Value>) -> bool {
    let known = fields.get("properties").and_then(Value::as_object);
    let others = fields.get("additionalProperties");
    let has_all = fields
        .get("required")
        .and_then(Value::as_array)
        .is_none_or(|names| names.iter().filter_map(Value::as_str).all(|name| properties.contains_key(name)));
    has_all
        && properties.iter().all(|(name, value)| match known.and_then(|known| known.get(name)) {
            Some(schema) => fits(schema, value),
            None => others.is_none_or(|schema| fits(schema, value)),
        })
}

/// As everywhere in stepfold, `1.0` is not an integer.
fn fits_kind(fields: &Map<String, Value>, value: &Value) -> bool {
    match value {
        Value::Null => allows_kind(fields, "null"),
        Value::Bool(_) => allows_kind(fields, "boolean"),
        Value::Number(number) if number.is_f64() => allows_kind(fields, "number"),
        Value::Number(_) => allows_kind(fields, "number") || allows_kind(fields, "integer"),
        Value::String(_) => allows_kind(fields, "string"),
        Value::Array(_) => allows_kind(fields, "array"),
        Value::Object(_) => allows_kind(fields, "object"),
    }
}

/// Whether no value fits both schemas, as far as can be seen.
pub(super) fn exclude_each_other(first: &Value, second: &Value) -> bool {
    let (Value::Object(first), Value::Object(second)) = (first, second) else {
        return *first == Value::Bool(false) || *second == Value::Bool(false);
    };
    match (literals(first), literals(second)) {
        (Some(values), _) => {
            !values.into_iter().any(|value| fits_fields(first, value) && fits_fields(second, value))
        }
        (None, Some(values)) => {
            !values.into_iter().any(|value| fits_fields(first, value) && fits_fields(second, value))
        }
        (None, None) => have_no_kind_in_common(first, second) || are_objects_apart(first, second),
    }
}

fn have_no_kind_in_common(first: &Map<String, Value>, second: &Map<String, Value>) -> bool {
    let samples = ["null", "boolean", "integer", "number", "string", "array", "object"];
    let allows =
        |fields, kind| allows_kind(fields, kind) || (kind == "integer" && allows_kind(fields, "number"));
    !samples.into_iter().any(|kind| allows(first, kind) && allows(second, kind))
}

/// Both are objects, and a property tells which.
fn are_objects_apart(first: &Map<String, Value>, second: &Map<String, Value>) -> bool {
    let are_objects =
        [first, second].into_iter().all(|fields| fields.get("type").is_some_and(|kind| kind == "object"));
    are_objects && (requires_other(first, second) || requires_other(second, first))
}

/// Whether `first` requires a property that `second` does not allow, or only with other values.
fn requires_other(first: &Map<String, Value>, second: &Map<String, Value>) -> bool {
    let Some(Value::Object(properties)) = first.get("properties") else { return false };
    properties.iter().filter(|(name, _)| is_required(first, name)).any(|(name, schema)| {
        match second.get("properties").and_then(|known| known.get(name)) {
            Some(other) => is_required(second, name) && exclude_each_other(schema, other),
            None => second.get("additionalProperties") == Some(&Value::Bool(false)),
        }
    })
}
