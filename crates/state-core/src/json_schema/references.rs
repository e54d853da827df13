//! Local references of a schema: following them, and taking a part of a schema that has some.

use serde_json::{Value, json};

use super::keywords::{says_only, subschemas_mut};

/// How many `$ref`s in a row are followed when the shape of a type is read.
const MAX_REFS: usize = 16;

/// A part of a schema as a schema of its own: its references into the whole lead to a copy of that.
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

/// Leads all references to the root to `$defs/whole`. Whether there are any.
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

/// Follows local references as long as nothing but a reference stands there.
pub(super) fn resolve<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    for _ in 0..MAX_REFS {
        match referred(root, schema) {
            Some(found) if says_only(schema, &["$ref"]) => schema = found,
            _ => break,
        }
    }
    schema
}

/// What the local reference of a schema refers to, if it has one.
pub(super) fn referred<'a>(root: &'a Value, schema: &Value) -> Option<&'a Value> {
    target(root, schema.get("$ref")?.as_str()?)
}

/// What a local reference, such as `#/$defs/place`, refers to in the whole schema.
pub fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?)
}
