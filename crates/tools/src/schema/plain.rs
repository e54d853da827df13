//! The plain form: references inlined, an object at the top, and objects closed where possible, if they are ours to close.
//!
//! A schema is walked by keyword, not by name: a parameter may be called "definitions" or "$ref".

use serde_json::{Map, Value, json};
use stepfold_state_core::json_schema::{is_annotation, subschemas_mut, target};

/// The maximum number of subschemas after inlining. A few short definitions that use each other can expand to
/// billions.
const MAX_SCHEMAS: usize = 10_000;
/// The maximum nesting of subschemas after inlining.
const MAX_DEPTH: usize = 96;

/// Formats that add nothing to the type, its `minimum` and its `maximum`.
const NUMBER_FORMATS: [&str; 14] = [
    "int", "int8", "int16", "int32", "int64", "int128", "uint", "uint8", "uint16", "uint32", "uint64",
    "uint128", "float", "double",
];

/// Whether objects accept unlisted properties if the schema does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UnlistedProperties {
    /// Rejected: the reader of the arguments would ignore them.
    #[default]
    Rejected,
    /// Accepted, as in JSON Schema: another party reads the arguments itself.
    Accepted,
}

/// Converts an object's schema: without references, and closed, that is, without properties beyond the listed
/// ones, unless these are taken.
///
/// An object with alternatives in addition to its own properties (as `#[serde(flatten)]` generates for an
/// enum) is closed by moving the properties into each alternative. Where that is not possible it stays open.
///
/// # Errors
/// When the schema is not that of an object, or a reference cannot be inlined.
pub(crate) fn for_model(schema: Value, unlisted: UnlistedProperties) -> Result<Map<String, Value>, String> {
    let root = schema.clone();
    let mut inliner =
        SchemaInliner { root: &root, open_references: vec!["#".to_owned()], schemas: 0, depth: 0 };
    let Value::Object(mut fields) = inliner.inlined(schema)? else {
        return Err("invalid parameters: expected a JSON Schema object".to_owned());
    };
    // NOTE: The name of the Rust type, which means nothing to a model.
    fields.remove("title");
    check_top(&fields)?;
    fields.entry("type").or_insert_with(|| json!("object"));
    fields.entry("properties").or_insert_with(|| json!({}));
    if unlisted == UnlistedProperties::Rejected {
        close(&mut fields, true, &mut { MAX_SCHEMAS });
    }
    Ok(fields)
}

/// Providers require one object at the top, without alternatives.
fn check_top(fields: &Map<String, Value>) -> Result<(), String> {
    match fields.get("type") {
        None => {}
        Some(kind) if kind == "object" => {}
        Some(other) => return Err(format!("invalid parameters: expected type \"object\", found {other}")),
    }
    match ["oneOf", "anyOf", "allOf", "not", "if", "enum", "const"]
        .into_iter()
        .find(|name| fields.contains_key(*name))
    {
        None => Ok(()),
        Some(keyword) => Err(format!(
            "unsupported {keyword} at the top of the parameters: providers reject it; move it into a property \
             (for an enum, remove `#[serde(flatten)]`)"
        )),
    }
}

/// Inlines the references of a schema, within limits.
struct SchemaInliner<'a> {
    root: &'a Value,
    /// The references that are being inlined.
    open_references: Vec<String>,
    schemas: usize,
    depth: usize,
}

impl SchemaInliner<'_> {
    fn inlined(&mut self, schema: Value) -> Result<Value, String> {
        self.schemas += 1;
        if self.schemas > MAX_SCHEMAS {
            return Err(format!(
                "schema too large: more than {MAX_SCHEMAS} parts after inlining its references"
            ));
        }
        if self.depth >= MAX_DEPTH {
            return Err(format!("schema nested deeper than {MAX_DEPTH} levels"));
        }
        self.depth += 1;
        let inlined = match schema {
            Value::Object(fields) => self.object(fields),
            // NOTE: Invalid schemas are detected later, when the schema is prepared for validation.
            Value::Bool(true) => Ok(json!({})),
            other => Ok(other),
        };
        self.depth -= 1;
        inlined
    }

    fn object(&mut self, mut fields: Map<String, Value>) -> Result<Value, String> {
        if let Some(keyword) =
            ["$dynamicRef", "$recursiveRef"].into_iter().find(|name| fields.contains_key(*name))
        {
            return Err(format!(
                "unsupported {keyword}: it cannot be inlined, and providers reject it; write the schema out"
            ));
        }
        // NOTE: Definitions are inlined where they are used.
        fields.retain(|name, _| !matches!(name.as_str(), "$schema" | "$defs" | "definitions"));
        if fields.get("format").and_then(Value::as_str).is_some_and(|format| NUMBER_FORMATS.contains(&format))
        {
            fields.remove("format");
        }
        for (keyword, schema) in subschemas_mut(&mut fields) {
            // NOTE: A boolean is a schema, but here it stays one: providers know `additionalProperties: false`.
            let is_plain_boolean = schema.is_boolean()
                && (keyword.starts_with("additional") || keyword.starts_with("unevaluated"));
            if !is_plain_boolean {
                *schema = self.inlined(schema.take())?;
            }
        }
        let schema = match fields.remove("$ref") {
            Some(Value::String(reference)) => overlaid(self.target(&reference)?, fields),
            Some(_) => return Err("invalid $ref: expected a string".to_owned()),
            None => Value::Object(fields),
        };
        Ok(without_lone_all_of(schema))
    }

    fn target(&mut self, reference: &str) -> Result<Value, String> {
        if self.open_references.iter().any(|open| open == reference) {
            return Err(format!(
                "recursive type ({reference}): providers reject references; \
                 limit the recursion, or use a JSON value instead"
            ));
        }
        let target = target(self.root, reference)
            .cloned()
            .ok_or_else(|| format!("unknown reference {reference} in this schema"))?;
        self.open_references.push(reference.to_owned());
        let inlined = self.inlined(target);
        self.open_references.pop();
        inlined
    }
}

/// Older generators wrap a reference in order to add keywords.
fn without_lone_all_of(schema: Value) -> Value {
    match schema {
        Value::Object(mut fields)
            if fields.get("allOf").and_then(Value::as_array).is_some_and(|schemas| schemas.len() == 1) =>
        {
            match fields.remove("allOf") {
                Some(Value::Array(mut schemas)) => overlaid(schemas.remove(0), fields),
                _ => Value::Object(fields),
            }
        }
        other => other,
    }
}

/// A schema with additional keywords: a description replaces its own, rules are added to its own.
fn overlaid(target: Value, additions: Map<String, Value>) -> Value {
    let Value::Object(mut target) = target else {
        let has_rules = additions.keys().any(|name| !is_annotation(name));
        return if has_rules { json!({"allOf": [target, additions]}) } else { target };
    };
    let mut rules = Map::new();
    for (name, value) in additions {
        if is_annotation(&name) || !target.contains_key(&name) {
            target.insert(name, value);
        } else if target[&name] != value {
            rules.insert(name, value);
        }
    }
    if rules.is_empty() {
        return Value::Object(target);
    }
    match merged(&target, &rules) {
        Some(merged) => Value::Object(merged),
        None => json!({"allOf": [target, rules]}),
    }
}

/// Merges two objects' schemas, if they do not constrain the same properties.
fn merged(first: &Map<String, Value>, second: &Map<String, Value>) -> Option<Map<String, Value>> {
    let mut merged = first.clone();
    for (name, value) in second {
        match (merged.get_mut(name), value) {
            (None, value) => {
                merged.insert(name.clone(), value.clone());
            }
            (Some(known), value) if known == value || is_annotation(name) => {}
            (Some(Value::Object(known)), Value::Object(more)) if name == "properties" => {
                for (property, schema) in more {
                    if known.get(property).is_some_and(|known| known != schema) {
                        return None;
                    }
                    known.insert(property.clone(), schema.clone());
                }
            }
            (Some(Value::Array(known)), Value::Array(more)) if name == "required" => {
                let new: Vec<_> = more.iter().filter(|property| !known.contains(property)).cloned().collect();
                known.extend(new);
            }
            _ => return None,
        }
    }
    Some(merged)
}

/// Keywords with rules for the same object, which may have properties of their own.
const IN_PLACE: [&str; 8] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"];

/// Closes every object that lists its properties, unless another rule applies to it.
fn close(fields: &mut Map<String, Value>, may_close: bool, budget: &mut usize) {
    for (keyword, schema) in subschemas_mut(fields) {
        if !IN_PLACE.contains(&keyword) {
            close_value(schema, true, budget);
        }
    }
    // NOTE: After the subschemas: closed ones are copied into each alternative.
    distribute(fields, budget);
    // NOTE: `additionalProperties` sees only the properties beside it, and would refuse those of another rule.
    let is_only_rule = !IN_PLACE.iter().any(|keyword| fields.contains_key(*keyword));
    if may_close
        && is_only_rule
        && fields.contains_key("properties")
        && !fields.contains_key("additionalProperties")
    {
        fields.remove("unevaluatedProperties");
        fields.insert("additionalProperties".to_owned(), json!(false));
    }
    let others = |name: &&str| !matches!(*name, "anyOf" | "oneOf") && fields.contains_key(*name);
    let only_alternatives = !IN_PLACE.iter().any(others) && !fields.contains_key("properties");
    for (keyword, schema) in subschemas_mut(fields) {
        if IN_PLACE.contains(&keyword) {
            let may_close = may_close && only_alternatives && matches!(keyword, "anyOf" | "oneOf");
            close_value(schema, may_close, budget);
        }
    }
}

fn close_value(schema: &mut Value, may_close: bool, budget: &mut usize) {
    if let Value::Object(fields) = schema {
        close(fields, may_close, budget);
    }
}

/// Moves the properties of an object into each of its alternatives, which is equivalent and can be closed.
fn distribute(fields: &mut Map<String, Value>, budget: &mut usize) {
    let Some(keyword) = ["anyOf", "oneOf"].into_iter().find(|name| fields.contains_key(*name)) else {
        return;
    };
    let is_alone = !IN_PLACE.iter().any(|other| *other != keyword && fields.contains_key(*other));
    let is_object = fields.get("type").is_none_or(|kind| kind == "object");
    let is_open = !fields.contains_key("additionalProperties")
        && matches!(fields.get("unevaluatedProperties"), None | Some(Value::Bool(false)));
    if !is_alone || !is_object || !is_open || !fields.contains_key("properties") {
        return;
    }
    let mut own = Map::new();
    for name in ["type", "properties", "required"] {
        if let Some(value) = fields.get(name) {
            own.insert(name.to_owned(), value.clone());
        }
    }
    let Some(Value::Array(branches)) = fields.get(keyword) else { return };
    let merged: Option<Vec<Value>> = branches
        .iter()
        .map(|branch| {
            let branch = branch.as_object()?;
            let is_object = branch.get("type").is_none_or(|kind| kind == "object");
            let is_open = !branch.contains_key("additionalProperties");
            if is_object && is_open { merged(&own, branch).map(Value::Object) } else { None }
        })
        .collect();
    let Some(merged) = merged else { return };
    let cost: usize = merged.iter().map(count).sum();
    // NOTE: Each alternative gets a copy of the properties; nested alternatives would multiply them.
    if cost > *budget {
        return;
    }
    *budget -= cost;
    for name in ["type", "properties", "required", "unevaluatedProperties"] {
        fields.remove(name);
    }
    fields.insert(keyword.to_owned(), Value::Array(merged));
}

/// The number of objects and lists in a schema, roughly its size.
fn count(schema: &Value) -> usize {
    match schema {
        Value::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
        Value::Array(items) => items.iter().map(count).sum(),
        _ => 0,
    }
}
