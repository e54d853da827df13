//! JSON Schemas as providers accept them: without references, closed, and in the strict form.
//!
//! Strict mode cannot say everything that a JSON Schema can. What it cannot is reported, and the plain
//! schema is sent instead: a schema that means something else would be worse than one that is not strict.

mod fit;
mod plain;
mod stand_in;
mod strict;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

pub(crate) use self::plain::for_model;
pub(crate) use self::stand_in::drop_stand_in_nulls;
pub(crate) use self::strict::strict;

/// Where a schema has schemas inside.
enum Place<'a> {
    One(&'a mut Value),
    Listed(&'a mut Vec<Value>),
    Named(&'a mut Map<String, Value>),
}

impl Place<'_> {
    fn for_each(self, visit: &mut impl FnMut(&mut Value)) {
        match self {
            Place::One(schema) => visit(schema),
            Place::Listed(schemas) => schemas.iter_mut().for_each(visit),
            Place::Named(schemas) => schemas.values_mut().for_each(visit),
        }
    }
}

/// The places of a schema where schemas stand, by keyword. Definitions are not among them: they are
/// followed where they are used.
fn children(fields: &mut Map<String, Value>) -> Vec<(&str, Place<'_>)> {
    fields.iter_mut().filter_map(|(name, value)| Some((name.as_str(), place(name, value)?))).collect()
}

fn place<'a>(keyword: &str, value: &'a mut Value) -> Option<Place<'a>> {
    match (keyword, value) {
        ("properties" | "patternProperties" | "dependentSchemas", Value::Object(schemas)) => {
            Some(Place::Named(schemas))
        }
        ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(schemas)) => {
            Some(Place::Listed(schemas))
        }
        (
            "items"
            | "additionalItems"
            | "unevaluatedItems"
            | "contains"
            | "additionalProperties"
            | "unevaluatedProperties"
            | "propertyNames"
            | "not"
            | "if"
            | "then"
            | "else",
            schema @ (Value::Object(_) | Value::Bool(_)),
        ) => Some(Place::One(schema)),
        _ => None,
    }
}

/// Keywords that say something to readers and nothing to a check.
fn is_annotation(keyword: &str) -> bool {
    const ANNOTATIONS: [&str; 9] = [
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$schema",
    ];
    ANNOTATIONS.contains(&keyword) || keyword.starts_with("x-")
}

/// How many objects and lists a schema is made of, roughly its parts.
fn count(schema: &Value) -> usize {
    match schema {
        Value::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
        Value::Array(items) => items.iter().map(count).sum(),
        _ => 0,
    }
}

/// The kinds that a schema names, if it does.
fn kinds(fields: &Map<String, Value>) -> Option<Vec<&str>> {
    match fields.get("type")? {
        Value::String(kind) => Some(vec![kind]),
        Value::Array(kinds) => Some(kinds.iter().filter_map(Value::as_str).collect()),
        _ => None,
    }
}

fn allows_kind(fields: &Map<String, Value>, kind: &str) -> bool {
    kinds(fields).is_none_or(|kinds| kinds.contains(&kind))
}

/// The values that a schema lists, if it lists them.
fn literals(fields: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (fields.get("const"), fields.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

fn is_required(fields: &Map<String, Value>, property: &str) -> bool {
    fields
        .get("required")
        .and_then(Value::as_array)
        .is_some_and(|names| names.iter().any(|name| name == property))
}

/// The alternatives of a schema.
fn branches(fields: &Map<String, Value>) -> Option<&Vec<Value>> {
    ["anyOf", "oneOf"].into_iter().find_map(|keyword| fields.get(keyword)?.as_array())
}

/// Whether null fits a schema.
fn allows_null(schema: &Value) -> bool {
    fit::fits(schema, &Value::Null)
}
