//! Local references of a schema: resolves them, and extracts parts of a schema that has some.

use serde_json::{Value, json};

use super::keywords::{says_only, subschemas_mut};

/// The limit on consecutive `$ref`s that are followed.
const MAX_REFS: usize = 16;

/// Makes a part of a schema a schema of its own: references into the whole lead to a copy.
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
            found = named.values_mut().fold(found, |found, schema| redirect(schema) | found);
        }
    }
    subschemas_mut(fields).into_iter().fold(found, |found, (_, schema)| redirect(schema) | found)
}

/// Follows local references while a schema consists of a reference only.
pub(super) fn resolve<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    for _ in 0..MAX_REFS {
        match referred(root, schema) {
            Some(found) if says_only(schema, &["$ref"]) => schema = found,
            _ => break,
        }
    }
    schema
}

/// The target of a schema's local reference, if it has one.
pub(super) fn referred<'a>(root: &'a Value, schema: &Value) -> Option<&'a Value> {
    target(root, schema.get("$ref")?.as_str()?)
}

/// The target of a local reference, such as `#/$defs/place`, in the whole schema.
pub fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?)
}
