//! One object at the top of a schema, without alternatives: servers use them there, and providers refuse them.
//!
//! A property keeps its schema from the alternative that lists it. The combinations of properties are no longer
//! expressed: the server checks them.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use stepfold_state_core::json_schema::ValueKinds;

type SchemaFields = Map<String, Value>;

/// Merges a schema into one object with the properties of its alternatives; `None` if it accepts no object.
pub(super) fn merged(schema: Value, omissions: &mut BTreeSet<String>) -> Option<SchemaFields> {
    let mut fields = match schema {
        Value::Object(fields) => fields,
        Value::Bool(true) => Map::new(),
        _ => return None,
    };
    if fields
        .remove("type")
        .is_some_and(|kinds| !ValueKinds::of_type_keyword(&kinds).contains(ValueKinds::OBJECT))
    {
        return None;
    }
    let mut left = |keyword: &str| omissions.insert(format!("{keyword} at the top, which providers refuse"));
    let rules = ["not", "if", "then", "else", "anyOf", "oneOf", "allOf", "enum", "const"];
    let found = rules.map(|keyword| {
        let rule = fields.remove(keyword);
        if rule.is_some() && keyword != "allOf" {
            left(keyword);
        }
        rule
    });
    let [_, _, then, otherwise, any, one, all, values, value] = found;
    if fields.remove("unevaluatedProperties").is_some() {
        left("unevaluatedProperties");
    }
    for branch in list(all) {
        fields = merge_both(fields, merged(branch, omissions)?);
    }
    for branches in [list(any), list(one), objects(values), objects(value.map(|value| json!([value])))] {
        if !branches.is_empty() {
            fields = merge_both(fields, merge_alternatives(branches, omissions)?);
        }
    }
    if then.is_some() || otherwise.is_some() {
        let mut branches: Vec<Value> = then.into_iter().chain(otherwise).collect();
        branches.push(json!({}));
        fields = merge_both(fields, merge_alternatives(branches, omissions)?);
    }
    Some(fields)
}

fn list(schemas: Option<Value>) -> Vec<Value> {
    match schemas {
        Some(Value::Array(schemas)) => schemas,
        _ => Vec::new(),
    }
}

/// Schemas of the listed values.
fn objects(values: Option<Value>) -> Vec<Value> {
    let of_value = |value: Value| {
        let Value::Object(fields) = value else { return json!(false) };
        let required: Vec<String> = fields.keys().cloned().collect();
        let properties: SchemaFields =
            fields.into_iter().map(|(name, value)| (name, json!({"enum": [value]}))).collect();
        json!({"properties": properties, "required": required, "additionalProperties": false})
    };
    list(values).into_iter().map(of_value).collect()
}

/// Merges two objects: the result accepts values that match both.
fn merge_both(mut first: SchemaFields, mut second: SchemaFields) -> SchemaFields {
    // NOTE: `additionalProperties` applies beside the patterns of its own schema only.
    if first.contains_key("patternProperties") && !first.contains_key("additionalProperties") {
        second.remove("additionalProperties");
    }
    for (name, schema) in take_properties(&mut second) {
        let properties = first.entry("properties").or_insert_with(|| json!({}));
        match properties.get_mut(&name) {
            Some(known) if *known == schema => {}
            Some(known) => *known = json!({"allOf": [known.take(), schema]}),
            None => properties[name] = schema,
        }
    }
    let mut required = take_required(&mut first);
    for name in take_required(&mut second) {
        if !required.contains(&name) {
            required.push(name);
        }
    }
    if !required.is_empty() {
        first.insert("required".to_owned(), Value::Array(required));
    }
    for (keyword, value) in second {
        first.entry(keyword).or_insert(value);
    }
    first
}

/// Merges alternatives: the result accepts values that match one of them; `None` if no alternative accepts an object.
fn merge_alternatives(branches: Vec<Value>, omissions: &mut BTreeSet<String>) -> Option<SchemaFields> {
    let mut branches: Vec<SchemaFields> =
        branches.into_iter().filter_map(|branch| merged(branch, omissions)).collect();
    if branches.len() <= 1 {
        return branches.pop();
    }
    let is_closed = |branch: &SchemaFields| {
        branch.get("additionalProperties") == Some(&json!(false)) && !branch.contains_key("patternProperties")
    };
    let mut together = Map::new();
    if branches.iter().all(is_closed) {
        together.insert("additionalProperties".to_owned(), json!(false));
    }
    let mut required: Option<Vec<Value>> = None;
    let mut properties: Map<String, Value> = Map::new();
    for branch in &mut branches {
        let names = take_required(branch);
        required = Some(match required {
            None => names,
            Some(known) => known.into_iter().filter(|name| names.contains(name)).collect(),
        });
        for (name, schema) in take_properties(branch) {
            // NOTE: An alternative that forbids the property does not limit its value in the others.
            if schema == json!(false) {
                continue;
            }
            match properties.get_mut(&name).and_then(Value::as_array_mut) {
                Some(known) if known.contains(&schema) => {}
                Some(known) => known.push(schema),
                None => drop(properties.insert(name, json!([schema]))),
            }
        }
    }
    let properties: SchemaFields =
        properties.into_iter().map(|(name, schemas)| (name, any_of(schemas))).collect();
    together.insert("properties".to_owned(), Value::Object(properties));
    if let Some(required) = required.filter(|required| !required.is_empty()) {
        together.insert("required".to_owned(), Value::Array(required));
    }
    Some(together)
}

/// Accepts any of these schemas: one list of values, if all of them only list values.
fn any_of(schemas: Value) -> Value {
    let Value::Array(mut schemas) = schemas else { return schemas };
    if schemas.len() == 1 {
        return schemas.remove(0);
    }
    let listed = |schema: &Value| match schema.as_object()?.iter().next() {
        Some((keyword, Value::Array(values))) if keyword == "enum" && schema.as_object()?.len() == 1 => {
            Some(values.clone())
        }
        Some((keyword, value)) if keyword == "const" && schema.as_object()?.len() == 1 => {
            Some(vec![value.clone()])
        }
        _ => None,
    };
    match schemas.iter().map(listed).collect::<Option<Vec<_>>>() {
        Some(values) => json!({"enum": values.concat()}),
        None => json!({ "anyOf": schemas }),
    }
}

fn take_properties(fields: &mut SchemaFields) -> SchemaFields {
    match fields.remove("properties") {
        Some(Value::Object(properties)) => properties,
        _ => Map::new(),
    }
}

fn take_required(fields: &mut SchemaFields) -> Vec<Value> {
    list(fields.remove("required"))
}
