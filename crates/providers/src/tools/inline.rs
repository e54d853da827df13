//! Inlines the references of a schema: servers differ in the references that they accept, and not in schemas without.

use std::ptr;

use serde_json::{Map, Value, json};
use stepfold_state_core::json_schema::{is_annotation, subschemas_mut, target};

/// The limit on the parts of a schema with its references written out.
const MAX_PARTS: usize = 10_000;

/// Limits on the repetitions of a definition inside itself, and on nested references. The first pair that keeps the schema
/// small enough is used.
// NOTE: Servers differ in the references that they accept, and recursion has no form without them: it is followed to
// a depth that keeps the schema small.
const DEPTHS: [(usize, usize); 7] = [(2, 32), (2, 12), (1, 8), (1, 6), (1, 4), (1, 2), (0, 0)];

/// Inlines the local references of a schema. A recursive reference is followed some levels deep; below that, and for
/// references to other documents, any value is allowed. `None` if the result is too large.
pub(super) fn without_references(root: &Value) -> Option<Value> {
    DEPTHS.into_iter().find_map(|(nested, open)| {
        let mut written = root.clone();
        let mut inliner = ReferenceInliner { root, nested, most: open, open: Vec::new(), parts: 0 };
        inliner.write_out(&mut written, root)?;
        Some(written)
    })
}

struct ReferenceInliner<'a> {
    root: &'a Value,
    nested: usize,
    most: usize,
    /// The targets that are being written out.
    open: Vec<&'a Value>,
    parts: usize,
}

impl<'a> ReferenceInliner<'a> {
    /// Writes out a schema whose references are relative to `base`. `None` if it is too large.
    fn write_out(&mut self, schema: &mut Value, base: &'a Value) -> Option<()> {
        self.parts += 1;
        if self.parts > MAX_PARTS {
            return None;
        }
        let Some(fields) = schema.as_object_mut() else { return Some(()) };
        let own = fields.get("$id").or_else(|| fields.get("id")).and_then(Value::as_str);
        let base = own.and_then(|id| find_by_id(self.root, id)).unwrap_or(base);
        let reference =
            ["$ref", "$dynamicRef", "$recursiveRef"].into_iter().find_map(|name| fields.remove(name));
        fields.retain(|name, value| !is_definition(name, value));
        for (_, inside) in subschemas_mut(fields) {
            self.write_out(inside, base)?;
        }
        if let Some(reference) = reference.as_ref().and_then(Value::as_str) {
            let meant = self.target(reference, base)?;
            add_target(fields, meant);
        }
        Some(())
    }

    /// Resolves a reference; to any value if its target is unknown or nested too deeply.
    fn target(&mut self, reference: &str, base: &'a Value) -> Option<Value> {
        let Some((found, base)) = resolve(reference, base, self.root) else { return Some(json!({})) };
        let nested = self.open.iter().filter(|open| ptr::eq(**open, found)).count();
        if nested >= self.nested || self.open.len() >= self.most {
            return Some(json!({}));
        }
        self.open.push(found);
        let mut written = found.clone();
        let is_written = self.write_out(&mut written, base);
        self.open.pop();
        is_written.map(|()| written)
    }
}

/// Whether a field is about the location of a schema, not about its values.
fn is_definition(name: &str, value: &Value) -> bool {
    let is_place = matches!(
        name,
        "$schema" | "$id" | "id" | "$anchor" | "$dynamicAnchor" | "$recursiveAnchor" | "$vocabulary"
    );
    matches!(name, "$defs" | "definitions") || (is_place && !value.is_object())
}

/// Adds the target of a reference to the schema that has it. Annotations of the schema take precedence; rules of both
/// apply.
fn add_target(fields: &mut Map<String, Value>, meant: Value) {
    match meant {
        Value::Object(meant) if fields.keys().all(|name| is_annotation(name)) => {
            for (name, value) in meant {
                fields.entry(name).or_insert(value);
            }
        }
        Value::Object(meant) if meant.is_empty() => {}
        meant if fields.is_empty() && meant.is_boolean() => {
            if meant == json!(false) {
                fields.insert("not".to_owned(), json!({}));
            }
        }
        meant => match fields.get_mut("allOf") {
            Some(Value::Array(all)) => all.push(meant),
            _ => {
                fields.insert("allOf".to_owned(), json!([meant]));
            }
        },
    }
}

/// Returns the target of a reference, and the base of references in it.
fn resolve<'a>(reference: &str, base: &'a Value, root: &'a Value) -> Option<(&'a Value, &'a Value)> {
    let (id, fragment) = reference.split_once('#').unwrap_or((reference, ""));
    let base = if id.is_empty() { base } else { find_by_id(root, id)? };
    let found = match decoded(fragment) {
        whole if whole.is_empty() => base,
        pointer if pointer.starts_with('/') => target(base, &format!("#{pointer}"))?,
        name => find_by_anchor(base, &name)?,
    };
    (found.is_object() || found.is_boolean()).then_some((found, base))
}

/// A fragment of a reference without escapes.
fn decoded(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let [first, others @ ..] = rest {
        let escaped =
            others.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            bytes.push(byte);
            rest = &others[2..];
        } else {
            bytes.push(*first);
            rest = others;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The part with this id.
fn find_by_id<'a>(root: &'a Value, id: &str) -> Option<&'a Value> {
    let id = id.trim_end_matches('#');
    let is_it = |text: &str| text.trim_end_matches('#') == id;
    find(root, &|fields| {
        ["$id", "id"].iter().any(|name| fields.get(*name).and_then(Value::as_str).is_some_and(is_it))
    })
}

/// The part with this name.
fn find_by_anchor<'a>(base: &'a Value, name: &str) -> Option<&'a Value> {
    find(base, &|fields| {
        let anchors = ["$anchor", "$dynamicAnchor"].iter().filter_map(|keyword| fields.get(*keyword));
        anchors.filter_map(Value::as_str).any(|anchor| anchor == name)
            || fields.get("$id").and_then(Value::as_str).and_then(|id| id.strip_prefix('#')) == Some(name)
    })
}

/// The first object that a test accepts. The nesting is that of a parsed document, which is bounded.
fn find<'a>(value: &'a Value, is_it: &impl Fn(&Map<String, Value>) -> bool) -> Option<&'a Value> {
    match value {
        Value::Object(fields) if is_it(fields) => Some(value),
        Value::Object(fields) => fields.values().find_map(|field| find(field, is_it)),
        Value::Array(items) => items.iter().find_map(|item| find(item, is_it)),
        _ => None,
    }
}
