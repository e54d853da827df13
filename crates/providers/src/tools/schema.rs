//! Schemas in the form that a server accepts: the same values, or more.
//!
//! The reader of the arguments or the reply checks them against the original schema; a rule that a form cannot express is
//! added to the description in words. In order: references are inlined, keywords of older drafts and invalid ones are
//! repaired, the root becomes one plain object, and keywords that the server refuses become words.

use serde_json::{Map, Value, json};
use stepfold_state_core::json_schema::{ValueKinds, ValueType, is_annotation, literals, subschemas_mut};

use super::inline::without_references;
use crate::rules::schemas::SchemaRules;

/// The limit on the bytes of a rule in words.
const MAX_WORDS: usize = 1_000;

/// Converts the parameters of a tool to the form that the server accepts; names of properties stay.
///
/// # Errors
/// The reason why there is no such form.
pub(super) fn parameters(rules: &SchemaRules, schema: &Value) -> Result<Value, String> {
    let Value::Object(mut fields) = plain(rules, schema)? else {
        return Err("its schema allows no arguments".to_owned());
    };
    flatten(&mut fields);
    if fields.contains_key("type") && !ValueKinds::of_type(&fields).contains(ValueKinds::OBJECT) {
        return Err("its arguments are no object".to_owned());
    }
    fields.insert("type".to_owned(), json!("object"));
    if rules.needs_properties {
        // OpenAI: "object schema missing properties".
        fields.entry("properties").or_insert_with(|| json!({}));
    }
    restrict(rules, &mut fields);
    Ok(Value::Object(fields))
}

/// Converts the schema of a reply to the form that the server accepts; names of properties stay.
///
/// # Errors
/// The reason why there is no such form.
pub(super) fn reply(rules: &SchemaRules, schema: &Value) -> Result<Value, String> {
    match plain(rules, schema)? {
        Value::Object(mut fields) => {
            restrict(rules, &mut fields);
            Ok(Value::Object(fields))
        }
        _ => Err("it allows no reply".to_owned()),
    }
}

/// A schema of the current draft without references.
fn plain(rules: &SchemaRules, schema: &Value) -> Result<Value, String> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(format!(
            "its schema is no JSON Schema: expected an object, found {}",
            ValueKinds::of_value(schema)
        ));
    }
    let mut plain = without_references(schema).ok_or_else(|| "its schema is too large".to_owned())?;
    repair(rules, &mut plain, 1);
    Ok(plain)
}

/// Makes a schema one of the current draft; only `false` stays a boolean.
fn repair(rules: &SchemaRules, schema: &mut Value, level: usize) {
    let is_too_deep = level > rules.max_levels;
    let fields = match schema {
        Value::Object(fields) if !is_too_deep => fields,
        Value::Bool(false) => return,
        _ => return *schema = json!({}),
    };
    repair_types(fields);
    update_older_drafts(fields);
    fields.retain(|name, value| is_valid(name, value));
    remove_invalid_patterns(fields);
    repair_names(fields);
    for (_, inside) in subschemas_mut(fields) {
        repair(rules, inside, level + 1);
    }
    replace_false(fields);
    if ValueKinds::of_type(fields).contains(ValueKinds::ARRAY) && fields.contains_key("type") {
        fields.entry("items").or_insert_with(|| json!({}));
    }
}

/// The name of a type in JSON Schema; some generators write it as their language does.
fn type_name(name: &str) -> Option<&'static str> {
    Some(match name.to_ascii_lowercase().as_str() {
        "string" | "str" | "text" => "string",
        "integer" | "int" | "long" => "integer",
        "number" | "float" | "double" | "decimal" => "number",
        "boolean" | "bool" => "boolean",
        "array" | "list" | "tuple" => "array",
        "object" | "dict" | "map" => "object",
        "null" | "none" | "nil" => "null",
        _ => return None,
    })
}

/// Types by their names. One that is unknown may be any.
fn repair_types(fields: &mut Map<String, Value>) {
    let named = match fields.get("type") {
        None => return,
        Some(Value::String(name)) => type_name(name).map(|name| json!(name)),
        Some(Value::Array(names)) => {
            let names = names.iter().map(|name| type_name(name.as_str()?)).collect::<Option<Vec<_>>>();
            let mut distinct = Vec::new();
            for name in names.into_iter().flatten() {
                if !distinct.contains(&name) {
                    distinct.push(name);
                }
            }
            (!distinct.is_empty()).then(|| json!(distinct))
        }
        Some(_) => None,
    };
    match named {
        Some(named) => {
            fields.insert("type".to_owned(), named);
        }
        None => {
            fields.remove("type");
        }
    }
}

/// Keywords of older drafts, and of OpenAPI.
fn update_older_drafts(fields: &mut Map<String, Value>) {
    for (bound, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
        if fields.get(exclusive) == Some(&json!(true))
            && let Some(value) = fields.remove(bound)
        {
            fields.insert(exclusive.to_owned(), value);
        }
    }
    if let Some(Value::Array(_)) = fields.get("items")
        && let Some(items) = fields.remove("items")
    {
        fields.entry("prefixItems").or_insert(items);
        if let Some(more) = fields.remove("additionalItems") {
            fields.insert("items".to_owned(), more);
        }
    }
    fields.remove("additionalItems");
    if let Some(Value::Object(dependencies)) = fields.remove("dependencies") {
        for (name, dependency) in dependencies {
            let keyword = if dependency.is_array() { "dependentRequired" } else { "dependentSchemas" };
            let all = fields.entry(keyword).or_insert_with(|| json!({}));
            if let Some(all) = all.as_object_mut() {
                all.insert(name, dependency);
            }
        }
    }
    if fields.remove("nullable") == Some(json!(true)) {
        apply_nullable(fields);
    }
}

fn apply_nullable(fields: &mut Map<String, Value>) {
    match fields.get_mut("type") {
        Some(Value::Array(kinds)) if !kinds.contains(&json!("null")) => kinds.push(json!("null")),
        Some(kind @ Value::String(_)) if *kind != "null" => *kind = json!([kind.take(), "null"]),
        _ => {}
    }
    for (keyword, null) in [("enum", Value::Null), ("anyOf", json!({"type": "null"}))] {
        if let Some(Value::Array(values)) = fields.get_mut(keyword)
            && !values.contains(&null)
        {
            values.push(null);
        }
    }
}

/// Whether the value of a keyword has the form that the draft of 2020 demands.
//
// json-schema.org/draft/2020-12/schema. Anthropic checks it: github.com/anthropics/claude-code/issues/63673,
// github.com/anthropics/anthropic-sdk-java/issues/241.
fn is_valid(keyword: &str, value: &Value) -> bool {
    let is_count = || {
        value.as_u64().is_some() || value.as_f64().is_some_and(|count| count >= 0.0 && count.fract() == 0.0)
    };
    match keyword {
        "title" | "description" | "$comment" | "pattern" | "format" | "contentEncoding"
        | "contentMediaType" => value.is_string(),
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => value.is_number(),
        "multipleOf" => value.as_f64().is_some_and(|step| step > 0.0),
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties"
        | "minContains" | "maxContains" => is_count(),
        "uniqueItems" | "deprecated" | "readOnly" | "writeOnly" => value.is_boolean(),
        "examples" | "required" => value.is_array(),
        "enum" | "anyOf" | "oneOf" | "allOf" | "prefixItems" => {
            value.as_array().is_some_and(|all| !all.is_empty())
        }
        "properties" | "patternProperties" | "dependentSchemas" | "dependentRequired" => value.is_object(),
        "items"
        | "additionalProperties"
        | "contains"
        | "not"
        | "if"
        | "then"
        | "else"
        | "propertyNames"
        | "unevaluatedItems"
        | "unevaluatedProperties"
        | "contentSchema" => value.is_object() || value.is_boolean(),
        _ => true,
    }
}

/// Removes patterns that are invalid regular expressions, if the schema library is compiled in to tell.
fn remove_invalid_patterns(fields: &mut Map<String, Value>) {
    let is_pattern =
        // NOTE: Without the feature `validation` every pattern passes: the library that tells is not compiled in.
        |pattern: &str| ValueType::of_schema(json!({"type": "string", "pattern": pattern})).is_ok();
    if fields.get("pattern").and_then(Value::as_str).is_some_and(|pattern| !is_pattern(pattern)) {
        fields.remove("pattern");
    }
    if let Some(Value::Object(all)) = fields.get_mut("patternProperties") {
        all.retain(|pattern, _| is_pattern(pattern));
    }
}

/// Lists of names: each once. In the third draft a property says itself that it is required.
fn repair_names(fields: &mut Map<String, Value>) {
    let mut required = Vec::new();
    if let Some(Value::Object(properties)) = fields.get("properties") {
        let says_so = properties.iter().filter(|(_, schema)| schema["required"] == true);
        required.extend(says_so.map(|(name, _)| json!(name)));
    }
    if let Some(Value::Array(names)) = fields.get_mut("required") {
        names.append(&mut required);
        distinct_names(names);
    } else if !required.is_empty() {
        fields.insert("required".to_owned(), required.into());
    }
    if let Some(Value::Object(all)) = fields.get_mut("dependentRequired") {
        all.retain(|_, names| names.is_array());
        all.values_mut().filter_map(Value::as_array_mut).for_each(distinct_names);
    }
    if let Some(Value::Array(values)) = fields.get_mut("enum") {
        let mut seen = Vec::new();
        values.retain(|value| {
            !seen.contains(value) && {
                seen.push(value.clone());
                true
            }
        });
    }
}

fn distinct_names(names: &mut Vec<Value>) {
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| name.as_str().is_some_and(|name| seen.insert(name.to_owned())));
}

/// Replaces schemas that allow no value, where a server accepts no boolean.
fn replace_false(fields: &mut Map<String, Value>) {
    let nothing = json!(false);
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.retain(|_, schema| *schema != nothing);
    }
    for keyword in ["anyOf", "oneOf"] {
        if let Some(Value::Array(branches)) = fields.get_mut(keyword) {
            branches.retain(|branch| *branch != nothing);
            if branches.is_empty() {
                fields.remove(keyword);
            }
        }
    }
    if fields.get("items") == Some(&nothing) {
        let count = fields.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
        let most = fields.get("maxItems").and_then(Value::as_u64);
        if most.is_none_or(|most| usize::try_from(most).is_ok_and(|most| most > count)) {
            fields.insert("maxItems".to_owned(), json!(count));
        }
        fields.insert("items".to_owned(), json!({}));
    }
    for (keyword, inside) in subschemas_mut(fields) {
        let may_be_false =
            matches!(keyword, "additionalProperties" | "unevaluatedProperties" | "unevaluatedItems");
        if *inside == nothing && !may_be_false {
            *inside = json!({"not": {}});
        }
    }
}

/// Makes one plain object of a root with alternatives: it has the properties of all, and requires what all require.
//
// OpenAI: "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"
// (github.com/langchain-ai/langchainjs/issues/9804), with 'const' as well
// (github.com/goruck/home-generative-agent/pull/545). Anthropic: "input_schema does not support oneOf, allOf, or
// anyOf at the top level" (github.com/anthropics/claude-code/ issues/5319).
fn flatten(fields: &mut Map<String, Value>) {
    if let Some(Value::Array(all)) = fields.remove("allOf") {
        for part in all {
            if let Value::Object(mut part) = part {
                flatten(&mut part);
                merge(fields, part);
            }
        }
    }
    for keyword in ["anyOf", "oneOf"] {
        if let Some(Value::Array(branches)) = fields.remove(keyword) {
            let branches = branches.into_iter().filter_map(|branch| match branch {
                Value::Object(mut branch) => {
                    flatten(&mut branch);
                    let kinds = ValueKinds::of_type(&branch);
                    (!branch.contains_key("type") || kinds.contains(ValueKinds::OBJECT)).then_some(branch)
                }
                _ => None,
            });
            let branches: Vec<Map<String, Value>> = branches.collect();
            if branches.is_empty() {
                fields.insert("type".to_owned(), json!("null"));
            } else {
                merge_alternatives(fields, branches);
            }
        }
    }
    let refused = ["not", "enum", "const"];
    let refused = refused.into_iter().filter_map(|name| Some((name, fields.remove(name)?)));
    let refused: Vec<(&str, Value)> = refused.collect();
    describe(fields, refused.iter().map(|(name, value)| format!("{name}: {value}")));
}

/// Adds the rules of a schema to another one: both apply as far as one object can express it.
fn merge(fields: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        let Some(known) = fields.get_mut(&name) else {
            fields.insert(name, value);
            continue;
        };
        match (name.as_str(), known, value) {
            ("properties" | "patternProperties", Value::Object(known), Value::Object(more)) => {
                for (name, schema) in more {
                    match (known.get_mut(&name), schema) {
                        (Some(Value::Object(known)), Value::Object(more)) => merge(known, more),
                        (None, schema) => {
                            known.insert(name, schema);
                        }
                        _ => {}
                    }
                }
            }
            ("required", Value::Array(known), Value::Array(more)) => {
                known.extend(more);
                distinct_names(known);
            }
            ("items", Value::Object(known), Value::Object(more)) => merge(known, more),
            // NOTE: One of both applies: fewer rules, and never others.
            _ => {}
        }
    }
}

/// Adds alternatives to an object: the properties of all, and what all require.
fn merge_alternatives(fields: &mut Map<String, Value>, branches: Vec<Map<String, Value>>) {
    let required = |branch: &Map<String, Value>| -> Vec<Value> {
        branch.get("required").and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let groups: Vec<Vec<Value>> = branches.iter().map(required).collect();
    let common = groups[0].iter().filter(|name| groups.iter().all(|group| group.contains(name)));
    let common: Vec<Value> = common.cloned().collect();
    let are_closed = branches.iter().all(|branch| branch.get("additionalProperties") == Some(&json!(false)));
    let mut variants: Map<String, Value> = Map::new();
    let mut words = Vec::new();
    for branch in branches {
        words.extend(branch.get("description").and_then(Value::as_str).map(str::to_owned));
        // NOTE: Other rules of one alternative do not apply to the others.
        let Some(Value::Object(properties)) = branch.get("properties") else { continue };
        for (name, schema) in properties {
            let all = variants.entry(name.clone()).or_insert_with(|| json!([]));
            if let Some(all) = all.as_array_mut()
                && !all.contains(schema)
            {
                all.push(schema.clone());
            }
        }
    }
    let united = variants.into_iter().map(|(name, all)| (name, one_of_all(all)));
    let united: Map<String, Value> = united.collect();
    let mut more = Map::new();
    let has_properties = !united.is_empty();
    more.insert("properties".to_owned(), united.into());
    if !common.is_empty() {
        more.insert("required".to_owned(), common.into());
    }
    if are_closed && has_properties {
        more.insert("additionalProperties".to_owned(), json!(false));
    }
    // A property that the object itself describes has that description in each alternative.
    let own = fields.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    merge(fields, more);
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.extend(own);
    }
    let names = |group: &Vec<Value>| {
        let names = group.iter().filter_map(Value::as_str).map(|name| format!("`{name}`"));
        names.collect::<Vec<_>>().join(" and ")
    };
    if groups.iter().all(|group| !group.is_empty()) && groups.iter().any(|group| *group != groups[0]) {
        let groups: Vec<String> = groups.iter().map(names).collect();
        words.insert(0, format!("requires {}", groups.join(", or ")));
    }
    describe(fields, words.into_iter());
}

/// A schema for each of these: one list of values for tags, else alternatives.
fn one_of_all(all: Value) -> Value {
    let Value::Array(mut all) = all else { return json!({}) };
    if all.len() == 1 {
        return all.remove(0);
    }
    let mut listed: Vec<Value> = Vec::new();
    for schema in &all {
        match schema.as_object().and_then(literals) {
            Some(values) => {
                for value in values {
                    if !listed.contains(value) {
                        listed.push(value.clone());
                    }
                }
            }
            None => return json!({"anyOf": all}),
        }
    }
    json!({"enum": listed})
}

/// Adds rules in words to the description.
fn describe(fields: &mut Map<String, Value>, words: impl Iterator<Item = String>) {
    let words: Vec<String> = words.filter(|words| words.len() <= MAX_WORDS).collect();
    if !words.is_empty() {
        let description = fields.get("description").and_then(Value::as_str).unwrap_or_default();
        let description = format!("{description} ({})", words.join(", "));
        fields.insert("description".to_owned(), description.trim_start().into());
    }
}

/// Keeps the keywords that the server accepts; the others become words.
fn restrict(rules: &SchemaRules, fields: &mut Map<String, Value>) {
    let Some(keywords) = rules.keywords else { return };
    if let Some(Value::Array(all)) = fields.remove("allOf") {
        for part in all {
            if let Value::Object(part) = part {
                merge(fields, part);
            }
        }
    }
    list_values(fields);
    // NOTE: With fewer rules, several alternatives may match.
    if let Some(branches) = fields.remove("oneOf") {
        fields.entry("anyOf").or_insert(branches);
    }
    if rules.types_in_alternatives {
        move_types(fields);
    }
    let is_refused = |name: &str| !keywords.contains(&name);
    let opens = fields
        .keys()
        .any(|name| is_refused(name) && matches!(name.as_str(), "patternProperties" | "dependentSchemas"));
    if opens && fields.get("additionalProperties").is_some_and(|more| *more != json!(true)) {
        fields.remove("additionalProperties");
    }
    let refused: Vec<String> = fields.keys().filter(|name| is_refused(name)).cloned().collect();
    let refused = refused.into_iter().filter_map(|name| {
        let value = fields.remove(&name)?;
        (!is_annotation(&name)).then(|| format!("{name}: {value}"))
    });
    let refused: Vec<String> = refused.collect();
    describe(fields, refused.into_iter());
    remove_unknown_required(fields);
    for (_, inside) in subschemas_mut(fields) {
        if let Value::Object(inside) = inside {
            restrict(rules, inside);
        }
    }
}

/// Listed values are texts or numbers; a lone value is a list of one.
fn list_values(fields: &mut Map<String, Value>) {
    if let Some(value) = fields.remove("const") {
        fields.entry("enum").or_insert_with(|| json!([value]));
    }
    let Some(Value::Array(values)) = fields.get("enum") else { return };
    let is_word = |value: &Value| value.is_number() || value.as_str().is_some_and(|text| !text.is_empty());
    if values.iter().all(is_word) {
        let kinds = values.iter().map(ValueKinds::of_value).fold(ValueKinds::NONE, ValueKinds::union);
        if let ([kind], None) = (&*kinds.type_names(), fields.get("type")) {
            fields.insert("type".to_owned(), json!(kind));
        }
    } else if let Some(values) = fields.remove("enum") {
        describe(fields, std::iter::once(format!("one of {values}")));
    }
}

/// Moves the type beside alternatives into them. An object with other rules beside them is flattened.
fn move_types(fields: &mut Map<String, Value>) {
    if !fields.contains_key("anyOf") {
        return;
    }
    let has_rules = fields.keys().any(|name| !is_annotation(name) && name != "anyOf" && name != "type");
    if has_rules {
        return flatten(fields);
    }
    let kind = fields.remove("type");
    if let (Some(kind), Some(Value::Array(branches))) = (kind, fields.get_mut("anyOf")) {
        for branch in branches.iter_mut().filter_map(Value::as_object_mut) {
            branch.entry("type").or_insert_with(|| kind.clone());
        }
    }
}

/// Removes required properties that have no schema.
//
// github.com/MoonshotAI/kimi-code/issues/1610: "required property 'codecType' is not defined in properties".
fn remove_unknown_required(fields: &mut Map<String, Value>) {
    let properties = fields.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    let Some(Value::Array(names)) = fields.get_mut("required") else { return };
    let is_known = |name: &Value| name.as_str().is_some_and(|name| properties.contains_key(name));
    let unknown: Vec<Value> = names.iter().filter(|name| !is_known(name)).cloned().collect();
    names.retain(is_known);
    if names.is_empty() {
        fields.remove("required");
    }
    describe(fields, unknown.iter().map(|name| format!("required: {name}")));
}
