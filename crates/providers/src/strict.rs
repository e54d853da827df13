//! Strict forms of schemas, of tools and of replies: accepted by a provider's strict mode, and equal in meaning.
//!
//! Strict modes differ. OpenAI: every property is required, the optional ones are nullable. Anthropic:
//! properties may be optional, but numbers, texts and lists have no bounds. For both every object is closed, and
//! alternatives are `anyOf`. Annotations that a strict mode refuses are left out; every rule that it refuses is a fault.

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::ToolSpec;
use stepfold_state_core::json_schema::{
    ValueKinds, allows_null, exclude_each_other, is_annotation, is_required, literals, subschemas_mut,
};
use stepfold_state_core::state::{Issue, Issues};

/// The keywords and limits of a provider's strict mode.
#[derive(Debug)]
pub(crate) struct StrictDialect {
    /// The keywords that are rules.
    rules: &'static [&'static str],
    formats: &'static [&'static str],
    /// The keywords that are annotations.
    annotations: &'static [&'static str],
    /// Whether every property must be required, so that null replaces an omitted one.
    requires_all: bool,
    /// The limits on the nesting of objects, and on all properties and listed values of a schema.
    max_levels: usize,
    max_properties: usize,
    max_literals: usize,
    /// The limits on optional properties and on properties of several types.
    max_optional: usize,
    max_unions: usize,
}

/// OpenAI's, by its description of structured outputs.
pub(crate) const OPENAI: StrictDialect = StrictDialect {
    rules: &[
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
    ],
    formats: &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"],
    annotations: &["title", "description"],
    requires_all: true,
    max_levels: 10,
    max_properties: 5_000,
    max_literals: 1_000,
    max_optional: usize::MAX,
    max_unions: usize::MAX,
};

/// Anthropic's, by its description of structured outputs. Its limits hold for all strict tools of a request; here each
/// schema is held to them.
pub(crate) const ANTHROPIC: StrictDialect = StrictDialect {
    rules: &[
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
        "minItems",
    ],
    formats: &["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"],
    annotations: &["title", "description", "default"],
    requires_all: false,
    max_levels: usize::MAX,
    max_properties: usize::MAX,
    max_literals: usize::MAX,
    max_optional: 24,
    max_unions: 16,
};

/// The strict form of a plain schema: closed, without references.
///
/// # Errors
/// Everything that the strict form cannot express.
pub(crate) fn strict(dialect: &'static StrictDialect, schema: &Value) -> Result<Value, Issues> {
    let mut strict = schema.clone();
    let mut form =
        StrictConverter { dialect, faults: Vec::new(), properties: 0, literals: 0, optional: 0, unions: 0 };
    form.convert(&mut strict, "$", 1);
    form.check_sizes();
    if form.faults.is_empty() { Ok(strict) } else { Err(form.faults.into_iter().collect()) }
}

/// Converts the parameters of a tool to the strict form, if the tool asks for it. A schema without such a form is sent
/// unchanged: a strict schema of another meaning would be worse than none.
pub(crate) fn parameters(dialect: &'static StrictDialect, spec: &ToolSpec) -> Option<Value> {
    if !spec.strict {
        return None;
    }
    match strict(dialect, &spec.parameters) {
        Ok(strict) => Some(strict),
        Err(faults) => {
            tracing::warn!(tool = spec.name, %faults, "no strict form: the schema is sent unchanged");
            None
        }
    }
}

/// Converts the schema of a reply for Anthropic, which holds every reply to its schema: objects are closed, and
/// refused bounds are moved into descriptions, since the reader of the reply checks them. A schema without such a form
/// is sent unchanged, and the API rejects it with its reason.
#[cfg(feature = "anthropic")]
pub(crate) fn reply_schema(schema: &Value) -> Value {
    let mut loose = schema.clone();
    loosen(&ANTHROPIC, &mut loose);
    strict(&ANTHROPIC, &loose).unwrap_or_else(|faults| {
        tracing::warn!(%faults, "the schema of the reply has no strict form and is sent as it is");
        schema.clone()
    })
}

/// Converts the schema of a reply for OpenAI's strict mode, if each value of that form is one of the schema. An
/// optional property is null there, which a reader of the reply may not accept: such a schema has no form.
#[cfg(feature = "openai")]
pub(crate) fn exact_reply_schema(schema: &Value) -> Option<Value> {
    let mut loose = schema.clone();
    loosen(&OPENAI, &mut loose);
    if has_optional(&mut loose) {
        tracing::warn!("the schema of the reply has optional properties and is sent without `strict`");
        return None;
    }
    match strict(&OPENAI, &loose) {
        Ok(form) => Some(form),
        Err(faults) => {
            tracing::warn!(%faults, "the schema of the reply has no strict form and is sent without `strict`");
            None
        }
    }
}

/// Whether an object may omit a property that it names.
#[cfg(feature = "openai")]
fn has_optional(schema: &mut Value) -> bool {
    let Some(fields) = schema.as_object_mut() else { return false };
    let names = fields.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
    let is_optional = names.filter(|name| !is_required(fields, name)).count() > 0;
    is_optional || subschemas_mut(fields).into_iter().any(|(_, inside)| has_optional(inside))
}

/// The rules that only narrow the values. Without them a schema accepts more, and never less.
const BOUNDS: &[&str] = &[
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "uniqueItems",
];

/// Closes objects that name their properties, and moves the bounds that are refused into descriptions.
fn loosen(dialect: &StrictDialect, schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    let is_open = fields.get("additionalProperties").is_none_or(|more| *more == json!(true));
    let names_some = fields.get("properties").and_then(Value::as_object).is_some_and(|all| !all.is_empty());
    if is_open && names_some {
        fields.insert("additionalProperties".to_owned(), json!(false));
    }
    if !fields.contains_key("anyOf")
        && let Some(branches) = fields.remove("oneOf")
    {
        fields.insert("anyOf".to_owned(), branches);
    }
    let is_refused = |name: &str, value: &Value| match name {
        "format" => !value.as_str().is_some_and(|format| dialect.formats.contains(&format)),
        "minItems" => value.as_u64().is_none_or(|count| count > 1),
        name => !dialect.rules.contains(&name),
    };
    let refused =
        BOUNDS.iter().filter(|name| fields.get(**name).is_some_and(|value| is_refused(name, value)));
    let refused: Vec<&str> = refused.copied().collect();
    let moved = refused.into_iter().filter_map(|name| Some(format!("{name}: {}", fields.remove(name)?)));
    let moved: Vec<String> = moved.collect();
    if !moved.is_empty() {
        let description = fields.get("description").and_then(Value::as_str).unwrap_or_default();
        let description = format!("{description} ({})", moved.join(", "));
        fields.insert("description".to_owned(), description.trim_start().into());
    }
    for (_, inside) in subschemas_mut(fields) {
        loosen(dialect, inside);
    }
}

struct StrictConverter {
    dialect: &'static StrictDialect,
    faults: Vec<Issue>,
    properties: usize,
    literals: usize,
    optional: usize,
    unions: usize,
}

impl StrictConverter {
    fn fault(&mut self, path: &str, message: impl Into<String>) {
        self.faults.push(Issue::new(path, message));
    }

    fn check_sizes(&mut self) {
        let counts = [
            (self.properties, self.dialect.max_properties, "properties"),
            (self.literals, self.dialect.max_literals, "listed values"),
            (self.optional, self.dialect.max_optional, "optional properties"),
            (self.unions, self.dialect.max_unions, "properties of several types"),
        ];
        for (_, limit, what) in counts.into_iter().filter(|(count, limit, _)| count > limit) {
            self.fault("$", format!("more than {limit} {what}"));
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
        let kept = self.dialect.annotations;
        fields.retain(|name, _| !is_annotation(name) || kept.contains(&name.as_str()));
        self.name_type_of_literals(fields, path);
        self.merge_alternatives(fields, path);
        if !["type", "anyOf", "oneOf"].into_iter().any(|name| fields.contains_key(name)) {
            self.fault(path, "any value is allowed here");
        }
        if is_kind(fields, ValueKinds::OBJECT) || fields.contains_key("properties") {
            self.convert_object(fields, path, level);
        }
        if is_kind(fields, ValueKinds::ARRAY) {
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
            let is_known = self.dialect.rules.contains(&keyword.as_str()) || is_annotation(keyword);
            if !is_known {
                self.fault(path, format!("keyword {keyword} has no strict form"));
            }
            if keyword == "format"
                && !value.as_str().is_some_and(|format| self.dialect.formats.contains(&format))
            {
                self.fault(path, format!("format {value} has no strict form"));
            }
            let is_bound = !self.dialect.rules.contains(&"maxItems");
            if keyword == "minItems" && is_bound && value.as_u64().is_none_or(|count| count > 1) {
                self.fault(path, format!("keyword minItems has no strict form for {value}"));
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
        let kinds = values.iter().map(ValueKinds::of_value).fold(ValueKinds::NONE, ValueKinds::union);
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
        if has_redundant_type(fields) {
            fields.remove("type");
        }
        let rules = fields.keys().find(|name| *name != "anyOf" && !is_annotation(name)).cloned();
        if let Some(rule) = rules {
            self.fault(path, format!("keyword {rule} together with alternatives has no strict form"));
        }
        merge_into_enum(fields);
    }

    fn convert_object(&mut self, fields: &mut Map<String, Value>, path: &str, level: usize) {
        if level > self.dialect.max_levels {
            return self
                .fault(path, format!("objects nested deeper than {} levels", self.dialect.max_levels));
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
            self.unions += usize::from(is_union(property));
            if !self.dialect.requires_all {
                self.optional += usize::from(!is_required(fields, name));
                self.convert(property, &path, level + 1);
                continue;
            }
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
                // NOTE: Strict mode of OpenAI requires each property; the tool reads null as an omitted one. See
                // docs/decisions/providers.md.
                make_nullable(property);
            }
        }
        let names = properties.keys().cloned().map(Value::String).collect();
        fields.insert("properties".to_owned(), Value::Object(properties));
        if self.dialect.requires_all {
            fields.insert("required".to_owned(), Value::Array(names));
        }
        split_nullable_object(fields);
    }
}

/// Whether a property may be of several types.
fn is_union(schema: &Value) -> bool {
    schema["type"].is_array() || schema["anyOf"].is_array() || schema["oneOf"].is_array()
}

/// Whether the type beside alternatives is redundant.
fn has_redundant_type(fields: &Map<String, Value>) -> bool {
    let (Some(outer), Some(Value::Array(branches))) = (kinds(fields), fields.get("anyOf")) else {
        return false;
    };
    branches
        .iter()
        .all(|branch| branch.as_object().and_then(kinds).is_some_and(|inner| outer.contains(inner)))
}

/// Merges alternatives that only list values of one type into one list, unless any has an annotation.
fn merge_into_enum(fields: &mut Map<String, Value>) {
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
    if kinds(fields) != Some(ValueKinds::OBJECT.union(ValueKinds::NULL)) {
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
    if is_kind(fields, ValueKinds::OBJECT) {
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
fn kinds(fields: &Map<String, Value>) -> Option<ValueKinds> {
    fields.contains_key("type").then(|| ValueKinds::of_type(fields))
}

fn is_kind(fields: &Map<String, Value>, kind: ValueKinds) -> bool {
    kinds(fields).is_some_and(|kinds| kinds.contains(kind))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use expect_test::{Expect, expect};
    use proptest::prelude::*;
    use stepfold_state_core::json_schema::ValueType;

    use super::*;

    /// OpenAI's form of a plain schema, or why there is none; one property a line.
    #[expect(clippy::needless_pass_by_value, reason = "an expectation is written where it is checked")]
    fn check(plain: Value, expected: Expect) {
        expected.assert_eq(&shown(&OPENAI, &plain));
    }

    fn shown(dialect: &'static StrictDialect, plain: &Value) -> String {
        match strict(dialect, plain) {
            Ok(mut strict) => {
                let properties = strict["properties"].take();
                strict.as_object_mut().unwrap().remove("properties");
                let mut text = format!("strict: {}\n", sorted(&strict));
                let properties: BTreeMap<&String, &Value> = properties.as_object().unwrap().iter().collect();
                let line = |(name, property)| format!("  {name}: {}\n", sorted(property));
                text.extend(properties.into_iter().map(line));
                text
            }
            Err(faults) => {
                let line = |fault: &Issue| format!("not strict: at {}: {}\n", fault.path, fault.message);
                let mut faults: Vec<String> = faults.iter().map(line).collect();
                faults.sort();
                faults.concat()
            }
        }
    }

    /// With keywords and names in one order, whatever features the build has.
    fn sorted(value: &Value) -> String {
        fn sort(value: &Value) -> Value {
            match value {
                Value::Object(fields) => {
                    let mut names: Vec<_> = fields.keys().collect();
                    names.sort();
                    let sorted = |name: &String| match &fields[name] {
                        Value::Array(required) if name == "required" => {
                            let mut required = required.clone();
                            required.sort_by_key(Value::to_string);
                            Value::Array(required)
                        }
                        value => sort(value),
                    };
                    names.into_iter().map(|name| (name.clone(), sorted(name))).collect()
                }
                Value::Array(items) => items.iter().map(sort).collect(),
                other => other.clone(),
            }
        }
        sort(value).to_string()
    }

    #[test]
    fn enums() {
        check(
            json!({"additionalProperties":false,"required":["documented","unit"],"type":"object","properties":{"documented":{"oneOf":[{"enum":["Second","Third"],"type":"string"},{"const":"First","description":"The first.","type":"string"}]},"maybe_documented":{"anyOf":[{"oneOf":[{"enum":["Second","Third"],"type":"string"},{"const":"First","description":"The first.","type":"string"}]},{"type":"null"}]},"maybe_unit":{"enum":["Low","High",null],"type":["string","null"]},"unit":{"enum":["Low","High"],"type":"string"}}}),
            expect![[r#"
                strict: {"additionalProperties":false,"required":["documented","maybe_documented","maybe_unit","unit"],"type":"object"}
                  documented: {"anyOf":[{"enum":["Second","Third"],"type":"string"},{"const":"First","description":"The first.","type":"string"}]}
                  maybe_documented: {"anyOf":[{"anyOf":[{"enum":["Second","Third"],"type":"string"},{"const":"First","description":"The first.","type":"string"}]},{"type":"null"}]}
                  maybe_unit: {"enum":["Low","High",null],"type":["string","null"]}
                  unit: {"enum":["Low","High"],"type":"string"}
            "#]],
        );
    }

    #[test]
    fn enums_with_fields() {
        check(
            json!({"additionalProperties":false,"required":["tagged"],"type":"object","properties":{"external":{"anyOf":[{"oneOf":[{"enum":["Nothing"],"type":"string"},{"additionalProperties":false,"properties":{"Id":{"minimum":0,"type":"integer"}},"required":["Id"],"type":"object"},{"additionalProperties":false,"properties":{"Named":{"additionalProperties":false,"properties":{"name":{"type":"string"}},"required":["name"],"type":"object"}},"required":["Named"],"type":"object"}]},{"type":"null"}]},"tagged":{"oneOf":[{"additionalProperties":false,"properties":{"colour":{"type":["string","null"]},"kind":{"const":"Circle","type":"string"},"radius":{"type":"number"}},"required":["kind","radius"],"type":"object"},{"additionalProperties":false,"properties":{"kind":{"const":"Point","type":"string"}},"required":["kind"],"type":"object"}]}}}),
            expect![[r#"
                strict: {"additionalProperties":false,"required":["external","tagged"],"type":"object"}
                  external: {"anyOf":[{"anyOf":[{"enum":["Nothing"],"type":"string"},{"additionalProperties":false,"properties":{"Id":{"minimum":0,"type":"integer"}},"required":["Id"],"type":"object"},{"additionalProperties":false,"properties":{"Named":{"additionalProperties":false,"properties":{"name":{"type":"string"}},"required":["name"],"type":"object"}},"required":["Named"],"type":"object"}]},{"type":"null"}]}
                  tagged: {"anyOf":[{"additionalProperties":false,"properties":{"colour":{"type":["string","null"]},"kind":{"const":"Circle","type":"string"},"radius":{"type":"number"}},"required":["colour","kind","radius"],"type":"object"},{"additionalProperties":false,"properties":{"kind":{"const":"Point","type":"string"}},"required":["kind"],"type":"object"}]}
            "#]],
        );
    }

    #[test]
    fn structs_and_lists() {
        check(
            json!({"additionalProperties":false,"required":["holes","pair","place"],"type":"object","properties":{"count":{"default":0,"maximum":255,"minimum":0,"type":"integer"},"earlier":{"additionalProperties":false,"description":"Where it was, if known.","properties":{"height":{"default":0,"type":"integer"},"latitude":{"description":"Degrees north.","type":"number"}},"required":["latitude"],"type":["object","null"]},"holes":{"items":{"minimum":0,"type":["integer","null"]},"type":"array"},"pair":{"items":{"type":"integer"},"maxItems":2,"minItems":2,"type":"array"},"place":{"additionalProperties":false,"description":"Where it is.","properties":{"height":{"default":0,"type":"integer"},"latitude":{"description":"Degrees north.","type":"number"}},"required":["latitude"],"type":"object"},"places":{"items":{"additionalProperties":false,"description":"A place.","properties":{"height":{"default":0,"type":"integer"},"latitude":{"description":"Degrees north.","type":"number"}},"required":["latitude"],"type":"object"},"type":"array"}}}),
            expect![[r#"
                strict: {"additionalProperties":false,"required":["count","earlier","holes","pair","place","places"],"type":"object"}
                  count: {"maximum":255,"minimum":0,"type":["integer","null"]}
                  earlier: {"anyOf":[{"additionalProperties":false,"properties":{"height":{"type":["integer","null"]},"latitude":{"description":"Degrees north.","type":"number"}},"required":["height","latitude"],"type":"object"},{"type":"null"}],"description":"Where it was, if known."}
                  holes: {"items":{"minimum":0,"type":["integer","null"]},"type":"array"}
                  pair: {"items":{"type":"integer"},"maxItems":2,"minItems":2,"type":"array"}
                  place: {"additionalProperties":false,"description":"Where it is.","properties":{"height":{"type":["integer","null"]},"latitude":{"description":"Degrees north.","type":"number"}},"required":["height","latitude"],"type":"object"}
                  places: {"items":{"additionalProperties":false,"description":"A place.","properties":{"height":{"type":["integer","null"]},"latitude":{"description":"Degrees north.","type":"number"}},"required":["height","latitude"],"type":"object"},"type":["array","null"]}
            "#]],
        );
    }

    #[test]
    fn what_strict_mode_cannot_say_is_reported() {
        check(
            json!({"additionalProperties":false,"required":["any","anything","character","map","objects","tuple"],"type":"object","properties":{"any":{},"anything":{"items":{},"type":"array"},"character":{"maxLength":1,"minLength":1,"type":"string"},"defaulted":{"default":5,"type":["integer","null"]},"map":{"additionalProperties":{"type":"integer"},"type":"object"},"objects":{"additionalProperties":true,"type":"object"},"tuple":{"maxItems":2,"minItems":2,"prefixItems":[{"type":"integer"},{"type":"string"}],"type":"array"}}}),
            expect![[r#"
                not strict: at $.any: any value is allowed here
                not strict: at $.anything[]: any value is allowed here
                not strict: at $.character: keyword maxLength has no strict form
                not strict: at $.character: keyword minLength has no strict form
                not strict: at $.defaulted: an omitted value (the default) and null differ, and strict mode has only null for both
                not strict: at $.map: any property is allowed here
                not strict: at $.objects: any property is allowed here
                not strict: at $.tuple: keyword prefixItems has no strict form
            "#]],
        );
    }

    #[test]
    fn flattened_structs_are_closed() {
        check(
            json!({"additionalProperties":false,"description":"A place.","required":["latitude","query"],"type":"object","properties":{"height":{"default":0,"type":"integer"},"latitude":{"description":"Degrees north.","type":"number"},"query":{"type":"string"}}}),
            expect![[r#"
                strict: {"additionalProperties":false,"description":"A place.","required":["height","latitude","query"],"type":"object"}
                  height: {"type":["integer","null"]}
                  latitude: {"description":"Degrees north.","type":"number"}
                  query: {"type":"string"}
            "#]],
        );
    }

    #[test]
    fn flattened_enums_are_closed_by_alternative() {
        check(
            json!({"additionalProperties":false,"required":["shape"],"type":"object","properties":{"shape":{"oneOf":[{"additionalProperties":false,"properties":{"colour":{"type":["string","null"]},"kind":{"const":"Circle","type":"string"},"name":{"type":"string"},"radius":{"type":"number"}},"required":["kind","name","radius"],"type":"object"},{"additionalProperties":false,"properties":{"kind":{"const":"Point","type":"string"},"name":{"type":"string"}},"required":["kind","name"],"type":"object"}]}}}),
            expect![[r#"
                strict: {"additionalProperties":false,"required":["shape"],"type":"object"}
                  shape: {"anyOf":[{"additionalProperties":false,"properties":{"colour":{"type":["string","null"]},"kind":{"const":"Circle","type":"string"},"name":{"type":"string"},"radius":{"type":"number"}},"required":["colour","kind","name","radius"],"type":"object"},{"additionalProperties":false,"properties":{"kind":{"const":"Point","type":"string"},"name":{"type":"string"}},"required":["kind","name"],"type":"object"}]}
            "#]],
        );
    }

    #[test]
    fn references_of_raw_schemas_are_followed() {
        check(
            json!({"additionalProperties":false,"required":["from"],"type":"object","properties":{"deep":{"additionalProperties":false,"properties":{"day":{"format":"date","type":"string"},"more":{"type":"string"}},"required":["more"],"type":"object"},"from":{"description":"The first day.","format":"date","type":"string"},"to":{"description":"The last day.","format":"date","type":"string"}}}),
            expect![[r#"
                strict: {"additionalProperties":false,"required":["deep","from","to"],"type":"object"}
                  deep: {"anyOf":[{"additionalProperties":false,"properties":{"day":{"format":"date","type":["string","null"]},"more":{"type":"string"}},"required":["day","more"],"type":"object"},{"type":"null"}]}
                  from: {"description":"The first day.","format":"date","type":"string"}
                  to: {"description":"The last day.","format":"date","type":["string","null"]}
            "#]],
        );
    }

    #[test]
    fn alternatives_and_rules() {
        check(
            json!({"additionalProperties":false,"type":"object","properties":{"apart":{"oneOf":[{"type":"integer"},{"type":"string"}],"type":["integer","string"]},"day":{"examples":["2024-02-29"],"format":"date","type":"string"},"either":{"anyOf":[{"additionalProperties":false,"properties":{"a":{"type":"string"},"b":{"type":"string"}},"required":["a"],"type":"object"},{"additionalProperties":false,"properties":{"a":{"type":"string"},"b":{"type":"string"}},"required":["b"],"type":"object"}]},"level":{"enum":[1,2,"max"]},"link":{"format":"uri","type":"string"},"mode":{"const":"fast"},"nothing":false,"open":{"additionalProperties":true,"properties":{"a":{"type":"string"}},"type":"object"},"overlap":{"oneOf":[{"type":"integer"},{"type":"number"}]},"short":{"minLength":3,"type":"string"}}}),
            expect![[r#"
                not strict: at $.link: format "uri" has no strict form
                not strict: at $.nothing: no value is allowed here
                not strict: at $.open: any property is allowed here
                not strict: at $.overlap: keyword oneOf has no strict form if several alternatives may match
                not strict: at $.short: keyword minLength has no strict form
            "#]],
        );
    }

    #[test]
    fn anthropic_takes_optional_properties_and_no_bounds() {
        let plain = json!({
            "type": "object",
            "properties": {
                "q": {"type": "string", "format": "uri"},
                "limit": {"type": "integer", "default": 5},
                "sort": {"oneOf": [{"const": "asc", "type": "string"}, {"const": "desc", "type": "string"}]},
                "ids": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            },
            "required": ["q"],
            "additionalProperties": false,
        });
        expect![[r#"
            strict: {"additionalProperties":false,"required":["q"],"type":"object"}
              ids: {"items":{"type":"integer"},"minItems":1,"type":"array"}
              limit: {"default":5,"type":"integer"}
              q: {"format":"uri","type":"string"}
              sort: {"enum":["asc","desc"],"type":"string"}
        "#]]
        .assert_eq(&shown(&ANTHROPIC, &plain));
        let bounded = json!({
            "type": "object",
            "properties": {
                "limit": {"type": "integer", "minimum": 1},
                "ids": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 9},
                "code": {"type": "string", "pattern": "a+"},
            },
            "additionalProperties": false,
        });
        expect![[r#"
            not strict: at $.code: keyword pattern has no strict form
            not strict: at $.ids: keyword maxItems has no strict form
            not strict: at $.ids: keyword minItems has no strict form for 2
            not strict: at $.limit: keyword minimum has no strict form
        "#]]
        .assert_eq(&shown(&ANTHROPIC, &bounded));
        let many: Map<String, Value> =
            (0..25).map(|at| (format!("p{at}"), json!({"type": "string"}))).collect();
        let many = json!({"type": "object", "properties": many, "additionalProperties": false});
        expect![[r#"
            not strict: at $: more than 24 optional properties
        "#]]
        .assert_eq(&shown(&ANTHROPIC, &many));
    }

    /// As `schemars` makes it of a type: open objects, formats and bounds of numbers.
    #[test]
    #[cfg(feature = "anthropic")]
    fn a_schema_of_a_reply_is_closed_and_its_bounds_are_reported() {
        let derived = json!({
            "title": "Area",
            "type": "object",
            "properties": {
                "id": {"type": "integer", "format": "uint64", "minimum": 0, "description": "Its number."},
                "code": {"type": ["string", "null"], "maxLength": 3, "default": null},
                "day": {"type": "string", "format": "date"},
                "stalls": {"type": "array", "minItems": 2, "items": {
                    "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
                }},
                "size": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
            },
            "required": ["id", "stalls"],
        });
        let form = reply_schema(&derived);
        assert_eq!(reply_schema(&form), form);
        expect![[r#"
            {"additionalProperties":false,"properties":{"code":{"default":null,"description":"(maxLength: 3)","type":["string","null"]},"day":{"format":"date","type":"string"},"id":{"description":"Its number. (format: \"uint64\", minimum: 0)","type":"integer"},"size":{"anyOf":[{"type":"integer"},{"type":"number"}]},"stalls":{"description":"(minItems: 2)","items":{"additionalProperties":false,"properties":{"name":{"type":"string"}},"required":["name"],"type":"object"},"type":"array"}},"required":["id","stalls"],"title":"Area","type":"object"}"#]]
        .assert_eq(&sorted(&form));
        // A map cannot be closed: the API rejects it.
        for map in [
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            json!({"type": "object"}),
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "string"}}}),
        ] {
            assert_eq!(reply_schema(&map), map);
        }
    }

    /// A plain schema, a value of it, and the same value as OpenAI's strict mode has it.
    type Case = (Value, Value, Value);

    fn case() -> impl Strategy<Value = Case> {
        let same = |schema: Value, value: Value| (schema, value.clone(), value);
        let leaf = prop_oneof![
            Just(same(json!({"type": "integer"}), json!(7))),
            Just(same(json!({"type": "string", "format": "date"}), json!("2024-02-29"))),
            Just(same(json!({"type": ["number", "null"]}), json!(0.5))),
            Just(same(json!({"type": ["boolean", "null"]}), Value::Null)),
            Just(same(json!({"enum": ["a", "b", 3]}), json!(3))),
            Just(same(json!({"const": "fast"}), json!("fast"))),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let list = |((schema, value, filled), count): (Case, usize)| {
                let schema = json!({"type": "array", "items": schema});
                (schema, vec![value; count].into(), vec![filled; count].into())
            };
            prop_oneof![
                record(inner.clone()).prop_map(|(case, _)| case),
                (inner.clone(), 0..3_usize).prop_map(list),
                (record(inner.clone()), record(inner)).prop_map(|((one, _), (other, _))| {
                    let tagged = |(mut schema, mut value, mut filled): Case, tag: &str| {
                        schema["properties"]["tag"] = json!({"type": "string", "const": tag});
                        schema["required"].as_array_mut().unwrap().push(json!("tag"));
                        (value["tag"], filled["tag"]) = (json!(tag), json!(tag));
                        (schema, value, filled)
                    };
                    let ((first, value, filled), (second, ..)) = (tagged(one, "t1"), tagged(other, "t2"));
                    (json!({"oneOf": [first, second]}), value, filled)
                }),
            ]
        })
    }

    /// A record, each property with whether it is required and, if not, whether it is there.
    fn record(inner: impl Strategy<Value = Case>) -> impl Strategy<Value = (Case, usize)> {
        let properties = prop::collection::vec((inner, any::<bool>(), any::<bool>()), 0..4);
        properties.prop_map(|properties| {
            let (mut schemas, mut required) = (Map::new(), Vec::new());
            let (mut value, mut filled) = (Map::new(), Map::new());
            let count = properties.len();
            for (at, ((schema, plain, strict), is_required, is_there)) in properties.into_iter().enumerate() {
                let name = format!("p{at}");
                schemas.insert(name.clone(), schema);
                if is_required {
                    required.push(json!(name));
                }
                if is_required || is_there {
                    value.insert(name.clone(), plain);
                    filled.insert(name, strict);
                } else {
                    filled.insert(name, Value::Null);
                }
            }
            let schema = json!({"type": "object", "properties": schemas, "required": required, "additionalProperties": false});
            ((schema, value.into(), filled.into()), count)
        })
    }

    /// All properties are required and all objects closed, as OpenAI wants it.
    fn assert_strict(schema: &Value) {
        let fields = schema.as_object().unwrap();
        assert!(fields.contains_key("type") || fields.contains_key("anyOf"), "no type in {schema}");
        assert!(!fields.contains_key("oneOf"), "{schema}");
        if let Some(Value::Object(properties)) = fields.get("properties") {
            assert_eq!(fields["additionalProperties"], json!(false));
            let names: Vec<&str> =
                fields["required"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            assert_eq!(names, properties.keys().collect::<Vec<_>>());
            properties.values().for_each(assert_strict);
        }
        fields.get("items").into_iter().for_each(assert_strict);
        fields.get("anyOf").and_then(Value::as_array).into_iter().flatten().for_each(assert_strict);
    }

    proptest! {
        #[test]
        fn strict_forms_take_what_the_plain_one_takes((case, _) in record(case())) {
            let (plain, value, filled) = case;
            ValueType::of_schema(plain.clone()).unwrap().check(&value).unwrap();
            let openai = strict(&OPENAI, &plain).unwrap();
            assert_strict(&openai);
            ValueType::of_schema(openai).unwrap().check(&filled).unwrap();
            // Its limits may be too low for the schema; nothing else is in the way.
            match strict(&ANTHROPIC, &plain) {
                Ok(anthropic) => ValueType::of_schema(anthropic).unwrap().check(&value).unwrap(),
                Err(faults) => prop_assert!(faults.iter().all(|fault| fault.path == "$"), "{}", faults),
            }
            #[cfg(feature = "anthropic")]
            ValueType::of_schema(reply_schema(&plain)).unwrap().check(&value).unwrap();
        }
    }
}
