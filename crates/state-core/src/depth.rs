//! The nesting limit of values, so that everything stored can be read again.
//!
//! The JSON reader stops at 128 levels. States, events and snapshots wrap values in a few levels of their
//! own, hence the lower limit here.

use serde_json::Value;

/// The maximum nesting of arrays and objects of a value in a state or a message.
///
/// Deeper values could be written as JSON but not read again, so they are rejected on input.
pub const MAX_DEPTH: usize = 100;

/// Whether `value` nests more than `limit` levels of arrays and objects. Visits at most `limit` levels.
pub(crate) fn exceeds(value: &Value, limit: usize) -> bool {
    match value {
        Value::Array(items) => limit == 0 || items.iter().any(|item| exceeds(item, limit - 1)),
        Value::Object(fields) => limit == 0 || fields.values().any(|field| exceeds(field, limit - 1)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counts_levels_not_items() {
        assert!(!exceeds(&json!(1), 0));
        assert!(exceeds(&json!([]), 0));
        assert!(!exceeds(&json!([[1, 2, 3], {}]), 2));
        assert!(exceeds(&json!([[1, 2, 3], {"a": []}]), 2));
    }
}
