//! Canonical JSON, for digests: equal values have equal text, whatever the order in which a build keeps fields.

use serde_json::{Map, Value};

/// A value as compact JSON with the fields of its objects sorted by name. 1 and 1.0 differ.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::canonical_json;
///
/// assert_eq!(canonical_json(&json!({"b": [1, {"d": 2, "c": 3.0}], "a": null})), r#"{"a":null,"b":[1,{"c":3.0,"d":2}]}"#);
/// ```
pub fn canonical_json(value: &Value) -> String {
    let mut text = Vec::with_capacity(128);
    write(value, &mut text);
    // NOTE: `serde_json` writes UTF-8 only, so the default is never used.
    String::from_utf8(text).unwrap_or_default()
}

/// An object in the same form.
pub fn canonical_object(object: &Map<String, Value>) -> String {
    let mut text = Vec::with_capacity(128);
    write_object(object, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

fn write_object(object: &Map<String, Value>, text: &mut Vec<u8>) {
    let mut fields: Vec<_> = object.iter().collect();
    // NOTE: Without the feature `preserve_order` they are sorted already.
    if !fields.is_sorted_by_key(|(name, _)| *name) {
        fields.sort_unstable_by_key(|(name, _)| *name);
    }
    text.push(b'{');
    for (place, (name, value)) in fields.into_iter().enumerate() {
        if place > 0 {
            text.push(b',');
        }
        write_scalar(name, text);
        text.push(b':');
        write(value, text);
    }
    text.push(b'}');
}

fn write(value: &Value, text: &mut Vec<u8>) {
    match value {
        Value::Object(object) => write_object(object, text),
        Value::Array(items) => {
            text.push(b'[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    text.push(b',');
                }
                write(item, text);
            }
            text.push(b']');
        }
        scalar => write_scalar(scalar, text),
    }
}

/// Writes a string, a number, a boolean or null.
fn write_scalar(value: &(impl serde::Serialize + ?Sized), text: &mut Vec<u8>) {
    // NOTE: Writing to memory cannot fail.
    let _ = serde_json::to_writer(text, value);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// The earlier implementation: stored digests must not change.
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Object(object) => {
                let fields: BTreeMap<&String, &Value> = object.iter().collect();
                fields.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect()
            }
            Value::Array(items) => items.iter().map(sorted).collect(),
            value => value.clone(),
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::vec((any::<String>(), inner), 0..8)
                    .prop_map(|fields| fields.into_iter().collect::<Value>()),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_text_is_that_of_a_sorted_value(value in values()) {
            prop_assert_eq!(canonical_json(&value), sorted(&value).to_string());
        }
    }
}
