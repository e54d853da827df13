//! Local references of a schema: resolves them, and extracts parts of a schema that has some.

use serde_json::{Value, json};

use super::keywords::{has_only_rules, subschemas_mut};
use crate::depth::MAX_DEPTH;

/// The limit on consecutive `$ref`s that are followed.
const MAX_REFS: usize = 16;

/// Makes a part of a schema standalone: references into the whole schema lead to a copy of it.
pub(crate) fn standalone(mut part: Value, whole: &Value) -> Value {
    if redirect(&mut part) {
        let mut copy = whole.clone();
        redirect(&mut copy);
        if let Some(fields) = part.as_object_mut() {
            fields.insert("$defs".to_owned(), json!({ "whole": copy }));
        }
    }
    part
}

/// Redirects references from the root to `$defs/whole`. Returns whether there were any.
fn redirect(schema: &mut Value) -> bool {
    let Value::Object(fields) = schema else { return false };
    let mut found = false;
    if let Some(Value::String(target)) = fields.get_mut("$ref")
        && (target == "#" || target.starts_with("#/"))
    {
        target.insert_str(1, "/$defs/whole");
        found = true;
    }
    for keyword in ["$defs", "definitions"] {
        if let Some(Value::Object(named)) = fields.get_mut(keyword) {
            // NOTE: `|` and not `||`: every reference must be redirected.
            found = named.values_mut().fold(found, |found, schema| redirect(schema) | found);
        }
    }
    subschemas_mut(fields).into_iter().fold(found, |found, (_, schema)| redirect(schema) | found)
}

/// Follows local references while a schema consists of a reference only.
pub(super) fn resolve<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    // NOTE: A reference may lead to itself.
    for _ in 0..MAX_REFS {
        match reference_target(root, schema) {
            Some(found) if has_only_rules(schema, &["$ref"]) => schema = found,
            _ => break,
        }
    }
    schema
}

/// The target of a schema's local reference, if it has one.
pub(super) fn reference_target<'a>(root: &'a Value, schema: &Value) -> Option<&'a Value> {
    target(root, schema.get("$ref")?.as_str()?)
}

/// The target of a local reference, such as `#/$defs/place`, in the whole schema.
pub fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?)
}

/// The maximum number of parts of a schema with its references inlined.
const MAX_PARTS: usize = 10_000;

/// Checks that validating a value against an untrusted schema takes bounded work: the schema is not recursive, all its
/// references are local, and it is not too large with its references inlined. Otherwise a few definitions that use each
/// other twice, or one that uses itself, could take practically forever.
///
/// Each object in the schema counts as a schema, even in a value such as a default.
///
/// # Errors
/// The reason why the work is not bounded.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::json_schema::check_bounded;
///
/// assert!(check_bounded(&json!({"type": "array", "items": {"type": "string"}})).is_ok());
/// let tree = json!({"type": "array", "items": {"$ref": "#"}});
/// assert_eq!(check_bounded(&tree).unwrap_err(), "recursive type (#)");
/// ```
pub fn check_bounded(schema: &Value) -> Result<(), String> {
    SchemaPartCounter { root: schema, open: vec!["#"], parts: 0, depth: 0 }.count(schema)
}

/// Counts the parts of a schema with its references inlined.
struct SchemaPartCounter<'a> {
    root: &'a Value,
    /// The references that are being followed.
    open: Vec<&'a str>,
    parts: usize,
    depth: usize,
}

impl<'a> SchemaPartCounter<'a> {
    fn count(&mut self, value: &'a Value) -> Result<(), String> {
        self.parts += 1;
        if self.parts > MAX_PARTS {
            return Err(format!(
                "schema too large: more than {MAX_PARTS} parts with its references written out"
            ));
        }
        if self.depth > MAX_DEPTH {
            return Err(format!("schema nested deeper than {MAX_DEPTH} levels"));
        }
        self.depth += 1;
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.count(item))?,
            Value::Object(fields) => {
                self.check_base(value)?;
                if let Some(Value::String(reference)) = fields.get("$ref") {
                    self.follow(reference)?;
                }
                fields.values().try_for_each(|field| self.count(field))?;
            }
            _ => {}
        }
        self.depth -= 1;
        Ok(())
    }

    fn follow(&mut self, reference: &'a str) -> Result<(), String> {
        if self.open.contains(&reference) {
            return Err(format!("recursive type ({reference})"));
        }
        let target =
            target(self.root, reference).ok_or_else(|| format!("unsupported reference `{reference}`"))?;
        self.open.push(reference);
        self.count(target)?;
        self.open.pop();
        Ok(())
    }

    /// Rejects an `$id` in a part, since it changes the base of references, and dynamic references, since their target is
    /// unknown.
    fn check_base(&self, part: &Value) -> Result<(), String> {
        let is_text = |name: &&str| part.get(*name).is_some_and(Value::is_string);
        // NOTE: The root may have an `$id`: its references are relative to itself.
        let moved = ["$id", "id"].into_iter().filter(|_| self.depth > 1).find(is_text);
        match moved.or_else(|| ["$dynamicRef", "$recursiveRef"].into_iter().find(is_text)) {
            Some(keyword) => Err(format!("unsupported {keyword}")),
            None => Ok(()),
        }
    }
}
