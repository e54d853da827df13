//! The strict form: accepted by OpenAI's strict mode, and equivalent to the plain one.
//!
//! Every property is required, optional ones are nullable, every object is closed, alternatives are `anyOf`.
//! Annotations that strict mode rejects (defaults, examples) are dropped; every rejected rule is a fault.

use serde_json::{Map, Value, json};
use stepfold_state_core::json_schema::{
    Kinds, allows_null, exclude_each_other, is_annotation, is_required, literals,
};
use stepfold_state_core::state::{Fault, Faults};

/// Rules supported by strict mode.
const RULES: [&str; 18] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "anyOf",
    "oneOf",
    "enum",
    "const",
    "format",
    "pattern",
    "multipleOf",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minItems",
    "maxItems",
];

/// Formats supported by strict mode.
const FORMATS: [&str; 9] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];

/// The limits on the nesting of objects, and on the number of properties and listed values.
const MAX_LEVELS: usize = 10;
const MAX_PROPERTIES: usize = 5_000;
const MAX_LITERALS: usize = 1_000;

/// Converts a plain schema to the strict form.
///
/// # Errors
/// All rules without a strict form.
pub(crate) fn strict(schema: &Value) -> Result<Value, Faults> {
    let mut strict = schema.clone();
    let mut form = Form::default();
    form.convert(&mut strict, "$", 1);
    form.check_sizes();
    if form.faults.is_empty() { Ok(strict) } else { Err(form.faults.into_iter().collect()) }
}

#[derive(Default)]
struct Form {
    faults: Vec<Fault>,
    properties: usize,
    literals: usize,
}

impl Form {
    fn fault(&mut self, path: &str, message: impl Into<String>) {
        self.faults.push(Fault::new(path, message));
    }

    fn check_sizes(&mut self) {
        if self.properties > MAX_PROPERTIES {
            self.fault("$", format!("more than {MAX_PROPERTIES} properties"));
        }
        if self.literals > MAX_LITERALS {
            self.fault("$", format!("more than {MAX_LITERALS} listed values"));
        }
    }

    fn convert(&mut self, schema: &mut Value, path: &str, level: usize) {
        let Some(fields) = schema.as_object_mut() else {
            let message = if *schema == json!(false) {
                "no value is allowed here"
            } else {
                "any value is allowed here"
            };
            return self.fault(path, message);
        };
        self.check_rules(fields, path);
        fields.retain(|name, _| !is_annotation(name) || matches!(name.as_str(), "title" | "description"));
        self.name_type_of_literals(fields, path);
        self.merge_alternatives(fields, path);
        if !["type", "anyOf", "oneOf"].into_iter().any(|name| fields.contains_key(name)) {
            self.fault(path, "any value is allowed here");
        }
        if is_kind(fields, Kinds::OBJECT) || fields.contains_key("properties") {
            self.convert_object(fields, path, level);
        }
        if is_kind(fields, Kinds::ARRAY) {
            let is_tuple = fields.contains_key("prefixItems");
            match fields.get_mut("items") {
                Some(items) => self.convert(items, &format!("{path}[]"), level),
                None if is_tuple => {}
                None => self.fault(path, "any item is allowed here"),
            }
        }
        if let Some(Value::Array(branches)) = fields.get_mut("anyOf") {
            for branch in branches {
                self.convert(branch, path, level);
            }
        }
    }

    fn check_rules(&mut self, fields: &Map<String, Value>, path: &str) {
        for (keyword, value) in fields {
            let is_known = RULES.contains(&keyword.as_str()) || is_annotation(keyword);
            if !is_known {
                self.fault(path, format!("keyword {keyword} has no strict form"));
            }
            if keyword == "format" && !value.as_str().is_some_and(|format| FORMATS.contains(&format)) {
                self.fault(path, format!("format {value} has no strict form"));
            }
        }
    }

    /// Strict mode requires a type even if all values are listed.
    fn name_type_of_literals(&mut self, fields: &mut Map<String, Value>, path: &str) {
        let Some(values) = literals(fields) else { return };
        self.literals += values.len();
        if values.iter().any(|value| value.is_array() || value.is_object()) {
            return self.fault(path, "lists and objects are not allowed as listed values");
        }
        let kinds = values.iter().map(Kinds::of_value).fold(Kinds::NONE, Kinds::union);
        let kind = match *kinds.type_names() {
            [kind] => json!(kind),
            ref several => json!(several),
        };
        if !fields.contains_key("type") {
            fields.insert("type".to_owned(), kind);
        }
    }

    /// For alternatives that exclude each other, `oneOf` and `anyOf` are equivalent.
    fn merge_alternatives(&mut self, fields: &mut Map<String, Value>, path: &str) {
        if !fields.contains_key("oneOf") && !fields.contains_key("anyOf") {
            return;
        }
        if let Some(Value::Array(branches)) = fields.get("oneOf") {
            let is_exclusive = branches.iter().enumerate().all(|(index, branch)| {
                branches[index + 1..].iter().all(|other| exclude_each_other(branch, other))
            });
            if !is_exclusive {
                return self
                    .fault(path, "keyword oneOf has no strict form if several alternatives may match");
            }
            if fields.contains_key("anyOf") {
                return self.fault(path, "oneOf together with anyOf has no strict form");
            }
        }
        if let Some(branches) = fields.remove("oneOf") {
            fields.insert("anyOf".to_owned(), branches);
        }
        if says_type_only(fields) {
            fields.remove("type");
        }
        let rules = fields.keys().find(|name| *name != "anyOf" && !is_annotation(name)).cloned();
        if let Some(rule) = rules {
            self.fault(path, format!("keyword {rule} together with alternatives has no strict form"));
        }
        as_plain_enum(fields);
    }

    fn convert_object(&mut self, fields: &mut Map<String, Value>, path: &str, level: usize) {
        if level > MAX_LEVELS {
            return self.fault(path, format!("objects nested deeper than {MAX_LEVELS} levels"));
        }
        let is_closed = fields.get("additionalProperties") == Some(&json!(false));
        let Some(Value::Object(mut properties)) = fields.remove("properties").filter(|_| is_closed) else {
            return self.fault(path, "any property is allowed here");
        };
        let unknown = fields.get("required").and_then(Value::as_array).and_then(|names| {
            names
                .iter()
                .filter_map(Value::as_str)
                .find(|name| !properties.contains_key(*name))
                .map(str::to_owned)
        });
        if let Some(name) = unknown {
            self.fault(path, format!("required property \"{name}\" has no schema"));
        }
        self.properties += properties.len();
        for (name, property) in &mut properties {
            let path = format!("{path}.{name}");
            let stands_for_two =
                allows_null(property) && property.get("default").is_some_and(|default| !default.is_null());
            let is_optional = !is_required(fields, name);
            if is_optional && stands_for_two {
                self.fault(
                    &path,
                    "an omitted value (the default) and null differ, and strict mode has only null for both",
                );
            }
            self.convert(property, &path, level + 1);
            if is_optional {
                make_nullable(property);
            }
        }
        let names = properties.keys().cloned().map(Value::String).collect();
        fields.insert("properties".to_owned(), Value::Object(properties));
        fields.insert("required".to_owned(), Value::Array(names));
        split_nullable_object(fields);
    }
}

/// Whether the type together with alternatives adds nothing to them.
fn says_type_only(fields: &Map<String, Value>) -> bool {
    let (Some(outer), Some(Value::Array(branches))) = (kinds(fields), fields.get("anyOf")) else {
        return false;
    };
    branches
        .iter()
        .all(|branch| branch.as_object().and_then(kinds).is_some_and(|inner| outer.contains(inner)))
}

/// Merges alternatives that only list values of one type into one list, unless any has an annotation.
fn as_plain_enum(fields: &mut Map<String, Value>) {
    let Some(Value::Array(branches)) = fields.get("anyOf") else { return };
    let mut values = Vec::new();
    let mut kind = None;
    for branch in branches {
        let Some(branch) = branch.as_object() else { return };
        let says_more = branch.keys().any(|name| !matches!(name.as_str(), "type" | "enum" | "const"));
        let Some(listed) = literals(branch).filter(|_| !says_more) else { return };
        let named = branch.get("type");
        if named.is_none() || kind.is_some_and(|kind| Some(kind) != named) {
            return;
        }
        kind = named;
        values.extend(listed.iter().cloned());
    }
    let Some(kind) = kind.cloned() else { return };
    fields.remove("anyOf");
    fields.insert("type".to_owned(), kind);
    fields.insert("enum".to_owned(), Value::Array(values));
}

/// Splits a nullable object into alternatives, which strict mode is known to accept.
fn split_nullable_object(fields: &mut Map<String, Value>) {
    if kinds(fields) != Some(Kinds::OBJECT.union(Kinds::NULL)) {
        return;
    }
    let mut object = std::mem::take(fields);
    object.insert("type".to_owned(), json!("object"));
    let description = object.remove("description");
    fields.insert("anyOf".to_owned(), json!([object, {"type": "null"}]));
    fields.extend(description.map(|text| ("description".to_owned(), text)));
}

/// Allows null, which strict mode uses in place of omitting a property.
fn make_nullable(schema: &mut Value) {
    if allows_null(schema) {
        return;
    }
    let Some(fields) = schema.as_object_mut() else { return };
    if let Some(Value::Array(branches)) = fields.get_mut("anyOf") {
        return branches.push(json!({"type": "null"}));
    }
    if is_kind(fields, Kinds::OBJECT) {
        fields.insert("type".to_owned(), json!(["object", "null"]));
        return split_nullable_object(fields);
    }
    if let Some(value) = fields.remove("const") {
        fields.insert("enum".to_owned(), json!([value]));
    }
    if let Some(Value::Array(values)) = fields.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
    match fields.get_mut("type") {
        Some(Value::Array(kinds)) if !kinds.contains(&json!("null")) => kinds.push(json!("null")),
        Some(kind @ Value::String(_)) => *kind = json!([kind.take(), "null"]),
        _ => {}
    }
}

/// The kinds that a schema names, if any.
fn kinds(fields: &Map<String, Value>) -> Option<Kinds> {
    fields.contains_key("type").then(|| Kinds::of_type(fields))
}

fn is_kind(fields: &Map<String, Value>, kind: Kinds) -> bool {
    kinds(fields).is_some_and(|kinds| kinds.contains(kind))
}
