//! Rewrites a schema: references inlined to a bounded depth, keywords of older drafts in the form of 2020-12, and invalid
//! rules omitted.
//!
//! The result accepts at least the values of the server's schema. Where a part accepts more, because a rule was
//! omitted, the rules around it that would then accept less are loosened as well: `not`, `oneOf`, `if`.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::references::ReferenceNames;
use super::rules::{is_about_document, is_rule, is_usable_pattern, is_valid, names_of, number_bounds, types};

/// The nesting of a schema as JSON, below that of what can be stored.
const MAX_DEPTH: usize = 90;

/// The limits on inlined references.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlineLimits {
    /// The repetitions of a reference inside itself.
    pub(super) repeats: usize,
    /// The nested references.
    pub(super) references: usize,
    /// The parts of the whole.
    pub(super) parts: usize,
}

pub(super) struct SchemaWriter<'a> {
    root: &'a Value,
    names: ReferenceNames<'a>,
    limits: InlineLimits,
    /// The base of references.
    document: &'a Value,
    /// The targets that are being inlined.
    open: Vec<&'a Value>,
    parts: usize,
    omissions: BTreeSet<String>,
}

/// A rewritten schema.
struct WrittenSchema {
    schema: Value,
    /// Whether it accepts exactly the values of the server's schema.
    is_exact: bool,
}

/// The keywords of a schema while it is written.
#[derive(Default)]
struct SchemaKeywords {
    fields: Map<String, Value>,
    /// The targets of its references.
    targets: Vec<Value>,
    /// The keywords that accept more than the server's, or are omitted.
    loose: BTreeSet<String>,
}

impl<'a> SchemaWriter<'a> {
    pub(super) fn new(root: &'a Value, limits: InlineLimits) -> Self {
        SchemaWriter {
            root,
            names: ReferenceNames::of(root),
            limits,
            document: root,
            open: vec![root],
            parts: 0,
            omissions: BTreeSet::new(),
        }
    }

    /// Rewrites the whole schema. Returns it and the omissions; `None` if it has too many parts.
    pub(super) fn whole(mut self) -> Option<(Value, BTreeSet<String>)> {
        let written = self.schema(self.root, 0)?;
        Some((written.schema, self.omissions))
    }

    fn schema(&mut self, schema: &'a Value, depth: usize) -> Option<WrittenSchema> {
        self.parts += 1;
        if self.parts > self.limits.parts {
            return None;
        }
        Some(match schema {
            Value::Bool(takes_all) => {
                WrittenSchema { schema: if *takes_all { json!({}) } else { json!(false) }, is_exact: true }
            }
            Value::Object(_) if depth >= MAX_DEPTH => {
                self.omit(format!("what is nested deeper than {MAX_DEPTH} levels"));
                Self::stand_in(schema)
            }
            Value::Object(fields) => {
                let outer = self.document;
                if fields.get("$id").and_then(Value::as_str).is_some_and(|id| !id.starts_with('#')) {
                    self.document = schema;
                }
                let written = self.object(fields, depth);
                self.document = outer;
                written?
            }
            other => {
                self.omit(format!("`{}`, which is no schema", brief(other)));
                WrittenSchema { schema: json!({}), is_exact: false }
            }
        })
    }

    fn object(&mut self, fields: &'a Map<String, Value>, depth: usize) -> Option<WrittenSchema> {
        let mut keywords = SchemaKeywords::default();
        for (keyword, value) in fields {
            if !is_about_document(keyword, value) {
                self.keyword(keyword, value, fields, depth, &mut keywords)?;
            }
        }
        let is_nullable = fields.get("nullable") == Some(&Value::Bool(true));
        Some(keywords.finish(is_nullable))
    }

    fn keyword(
        &mut self,
        keyword: &str,
        value: &'a Value,
        beside: &'a Map<String, Value>,
        depth: usize,
        into: &mut SchemaKeywords,
    ) -> Option<()> {
        let was_tuple = beside.get("items").is_some_and(Value::is_array);
        match (keyword, value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference)) => {
                let target = self.inline_reference(reference, depth + 2)?;
                into.add_target(target);
            }
            ("type", names) => self.plain(keyword, names, types(names), into),
            ("required", names) => self.plain(keyword, names, names_of(names).map(Value::Array), into),
            ("properties" | "patternProperties" | "dependentSchemas", Value::Object(schemas)) => {
                self.map(keyword, schemas, depth, into)?;
            }
            ("dependencies", Value::Object(both)) => self.dependencies(both, depth, into)?,
            ("items", Value::Array(schemas)) if schemas.is_empty() => {}
            ("items", Value::Array(schemas)) => self.list("prefixItems", schemas, depth, into)?,
            ("prefixItems", _) if was_tuple => {}
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(schemas)) if !schemas.is_empty() => {
                self.list(keyword, schemas, depth, into)?;
            }
            ("additionalItems", _) if !was_tuple => {}
            ("additionalItems", schema) => self.one("items", schema, depth, into)?,
            (
                "items"
                | "contains"
                | "additionalProperties"
                | "unevaluatedItems"
                | "unevaluatedProperties"
                | "propertyNames"
                | "not"
                | "if"
                | "then"
                | "else",
                schema @ (Value::Object(_) | Value::Bool(_)),
            ) => self.one(keyword, schema, depth, into)?,
            (keyword, value) if is_of_schemas(keyword) => self.plain(keyword, value, None, into),
            (keyword, value) => {
                let kept = is_valid(keyword, value).then(|| value.clone());
                self.plain(keyword, value, kept, into);
            }
        }
        Some(())
    }

    /// A keyword without schemas, if it is usable.
    fn plain(&mut self, keyword: &str, value: &Value, kept: Option<Value>, into: &mut SchemaKeywords) {
        if let Some(kept) = kept {
            into.fields.insert(keyword.to_owned(), kept);
        } else if is_rule(keyword) {
            self.omit(format!("{keyword} `{}`, which is invalid", brief(value)));
            into.loose.insert(keyword.to_owned());
        }
    }

    fn one(
        &mut self,
        keyword: &str,
        schema: &'a Value,
        depth: usize,
        into: &mut SchemaKeywords,
    ) -> Option<()> {
        let is_answer = keyword.starts_with("additional") || keyword.starts_with("unevaluated");
        // NOTE: All readers know the boolean form of these keywords.
        if is_answer && schema.is_boolean() {
            into.fields.insert(keyword.to_owned(), schema.clone());
            return Some(());
        }
        let written = self.schema(schema, depth + 1)?;
        into.insert(keyword, written);
        Some(())
    }

    fn list(
        &mut self,
        keyword: &str,
        schemas: &'a [Value],
        depth: usize,
        into: &mut SchemaKeywords,
    ) -> Option<()> {
        let mut list = Vec::with_capacity(schemas.len());
        let mut is_exact = true;
        for schema in schemas {
            let written = self.schema(schema, depth + 2)?;
            is_exact &= written.is_exact;
            list.push(written.schema);
        }
        into.insert(keyword, WrittenSchema { schema: Value::Array(list), is_exact });
        Some(())
    }

    fn map(
        &mut self,
        keyword: &str,
        schemas: &'a Map<String, Value>,
        depth: usize,
        into: &mut SchemaKeywords,
    ) -> Option<()> {
        into.fields.entry(keyword).or_insert_with(|| json!({}));
        for (name, schema) in schemas {
            if keyword == "patternProperties" && !is_usable_pattern(name) {
                self.omit(format!("the pattern `{name}`, which is invalid"));
                into.loose.insert(keyword.to_owned());
                continue;
            }
            let written = self.schema(schema, depth + 2)?;
            into.insert_in(keyword, name, written);
        }
        Some(())
    }

    /// Splits a keyword of draft 7 into its two successors.
    fn dependencies(
        &mut self,
        both: &'a Map<String, Value>,
        depth: usize,
        into: &mut SchemaKeywords,
    ) -> Option<()> {
        for (name, value) in both {
            let (keyword, written) = match names_of(value) {
                Some(names) => {
                    ("dependentRequired", WrittenSchema { schema: Value::Array(names), is_exact: true })
                }
                None => ("dependentSchemas", self.schema(value, depth + 2)?),
            };
            into.insert_in(keyword, name, written);
        }
        Some(())
    }

    fn inline_reference(&mut self, reference: &str, depth: usize) -> Option<WrittenSchema> {
        let Some((document, target)) = self.names.target(self.document, reference) else {
            self.omit(format!("the reference `{reference}`, which leads out of this schema"));
            return Some(WrittenSchema { schema: json!({}), is_exact: false });
        };
        let repeats = self.open.iter().filter(|open| std::ptr::eq(**open, target)).count();
        // NOTE: A recursive schema is followed to a depth, not refused: honest filters and trees are recursive. See
        // docs/decisions/mcp.md.
        if repeats > self.limits.repeats {
            self.omit(format!("the recursion of `{reference}`, below {repeats} levels of it"));
            return Some(Self::stand_in(target));
        }
        if self.open.len() > self.limits.references {
            self.omit(format!("`{reference}`, below {} references", self.limits.references));
            return Some(Self::stand_in(target));
        }
        let outer = std::mem::replace(&mut self.document, document);
        self.open.push(target);
        let written = self.schema(target, depth);
        self.open.pop();
        self.document = outer;
        written
    }

    /// The stand-in for a schema beyond the limits.
    fn stand_in(schema: &Value) -> WrittenSchema {
        let mut stand_in = json!({"description": "More of the same, nested deeper."});
        let kind = schema.get("type").filter(|_| schema.get("nullable").is_none()).and_then(types);
        if let Some(kind) = kind {
            stand_in["type"] = kind;
        }
        WrittenSchema { schema: stand_in, is_exact: false }
    }

    fn omit(&mut self, what: String) {
        self.omissions.insert(what);
    }
}

impl SchemaKeywords {
    fn insert(&mut self, keyword: &str, written: WrittenSchema) {
        if !written.is_exact {
            self.loose.insert(keyword.to_owned());
        }
        self.fields.insert(keyword.to_owned(), written.schema);
    }

    fn insert_in(&mut self, keyword: &str, name: &str, written: WrittenSchema) {
        if !written.is_exact {
            self.loose.insert(keyword.to_owned());
        }
        let map = self.fields.entry(keyword).or_insert_with(|| json!({}));
        if let Value::Object(map) = map {
            map.insert(name.to_owned(), written.schema);
        }
    }

    fn add_target(&mut self, target: WrittenSchema) {
        if !target.is_exact {
            self.loose.insert("allOf".to_owned());
        }
        self.targets.push(target.schema);
    }

    fn finish(mut self, is_nullable: bool) -> WrittenSchema {
        number_bounds(&mut self.fields);
        self.loosen();
        self.close();
        let is_exact = self.loose.is_empty();
        let schema = self.with_targets();
        WrittenSchema { schema: if is_nullable { nullable(schema) } else { schema }, is_exact }
    }

    /// Removes rules that would accept less because a part of them accepts more.
    fn loosen(&mut self) {
        let is_loose = |keyword: &str| self.loose.contains(keyword);
        let mut removed = Vec::new();
        // NOTE: The negation of a wider schema is narrower than the original.
        if is_loose("not") {
            removed.push("not");
        }
        if is_loose("if") {
            removed.extend(["if", "then", "else"]);
        }
        if is_loose("contains") {
            removed.push("maxContains");
        }
        // NOTE: A property that is no longer listed would be refused as an additional one.
        if is_loose("properties") && !self.fields.contains_key("properties") || is_loose("patternProperties")
        {
            removed.push("additionalProperties");
        }
        if !self.loose.is_empty() {
            removed.extend(["unevaluatedProperties", "unevaluatedItems"]);
        }
        if is_loose("oneOf")
            && let Some(branches) = self.fields.remove("oneOf")
        {
            match self.fields.get("anyOf") {
                None => drop(self.fields.insert("anyOf".to_owned(), branches)),
                Some(_) => self.targets.push(json!({ "anyOf": branches })),
            }
        }
        for keyword in removed {
            if self.fields.remove(keyword).is_some() {
                self.loose.insert(keyword.to_owned());
            }
        }
    }

    /// `unevaluatedProperties`, where no other rule lists properties, in the form that all readers know.
    fn close(&mut self) {
        let is_alone =
            self.targets.is_empty() && !IN_PLACE.iter().any(|name| self.fields.contains_key(*name));
        if is_alone
            && let Some(unlisted) = self.fields.remove("unevaluatedProperties")
            && !self.fields.contains_key("additionalProperties")
        {
            self.fields.insert("additionalProperties".to_owned(), unlisted);
        }
    }

    fn with_targets(mut self) -> Value {
        if self.fields.is_empty() && self.targets.len() == 1 {
            return self.targets.remove(0);
        }
        if !self.targets.is_empty() {
            let all = self.fields.entry("allOf").or_insert_with(|| json!([]));
            if let Value::Array(all) = all {
                all.append(&mut self.targets);
            }
        }
        Value::Object(self.fields)
    }
}

/// Keywords with schemas for the same value.
const IN_PLACE: [&str; 8] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"];

/// Whether the value of a keyword is a schema, or several.
fn is_of_schemas(keyword: &str) -> bool {
    let others = [
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "properties",
        "patternProperties",
        "dependencies",
        "items",
        "prefixItems",
        "contains",
        "additionalProperties",
        "unevaluatedItems",
        "unevaluatedProperties",
        "propertyNames",
    ];
    IN_PLACE.contains(&keyword) || others.contains(&keyword)
}

/// Allows null in addition: `nullable` of OpenAPI.
fn nullable(schema: Value) -> Value {
    let Value::Object(mut fields) = schema else { return schema };
    let is_plain = !IN_PLACE.iter().any(|name| fields.contains_key(*name)) && !fields.contains_key("const");
    let Some(kinds) = fields.get_mut("type").filter(|_| is_plain) else {
        let schema = Value::Object(fields);
        return if schema == json!({}) { schema } else { json!({"anyOf": [schema, {"type": "null"}]}) };
    };
    match kinds {
        Value::Array(names) if names.contains(&json!("null")) => {}
        Value::Array(names) => names.push(json!("null")),
        name => *name = json!([name, "null"]),
    }
    if let Some(Value::Array(values)) = fields.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
    Value::Object(fields)
}

/// The beginning of a value, for a person.
fn brief(value: &Value) -> String {
    let mut text = value.to_string();
    if let Some((end, _)) = text.char_indices().nth(40) {
        text.truncate(end);
        text.push('…');
    }
    text
}
