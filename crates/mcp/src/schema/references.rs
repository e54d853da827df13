//! The targets of references in a server's schema: pointers, anchors, and ids within the same document.

use std::collections::BTreeMap;

use serde_json::Value;

/// The names of parts of a schema: ids and anchors.
pub(super) struct ReferenceNames<'a>(BTreeMap<String, &'a Value>);

impl<'a> ReferenceNames<'a> {
    pub(super) fn of(root: &'a Value) -> Self {
        let mut names = BTreeMap::new();
        collect(root, &mut names);
        ReferenceNames(names)
    }

    /// Returns the document of a reference and its target. No document is fetched.
    pub(super) fn target(&self, document: &'a Value, reference: &str) -> Option<(&'a Value, &'a Value)> {
        let (address, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let document = if address.is_empty() { document } else { *self.0.get(address)? };
        if fragment.is_empty() || fragment.starts_with('/') {
            return Some((document, document.pointer(&decoded(fragment)?)?));
        }
        Some((document, self.0.get(&format!("#{fragment}"))?))
    }
}

fn collect<'a>(value: &'a Value, names: &mut BTreeMap<String, &'a Value>) {
    match value {
        Value::Object(fields) => {
            for keyword in ["$id", "id"] {
                if let Some(Value::String(id)) = fields.get(keyword) {
                    names.entry(id.trim_end_matches('#').to_owned()).or_insert(value);
                }
            }
            for keyword in ["$anchor", "$dynamicAnchor"] {
                if let Some(Value::String(anchor)) = fields.get(keyword) {
                    names.entry(format!("#{anchor}")).or_insert(value);
                }
            }
            fields.values().for_each(|field| collect(field, names));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, names)),
        _ => {}
    }
}

/// Decodes the percent escapes of a fragment; `None` if it is not UTF-8.
fn decoded(fragment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}
