//! A provider's extra data of a message or a part: signatures, cache marks, ids. Other code ignores it. When
//! empty, which is the common case, it takes one word and no allocation.

use serde_json::{Map, Value};

use crate::{MAX_DEPTH, depth};

/// A provider's named JSON values, preserved through every round trip.
///
/// Only the provider that wrote an extra interprets it. One exception to exact preservation: a value nested
/// deeper than [`MAX_DEPTH`], which could be written but not read again, is kept as its JSON text.
///
/// # Examples
/// ```
/// use stepfold_state_core::chat::Extras;
///
/// let mut extras = Extras::new();
/// extras.insert("signature", "EqQB");
/// assert_eq!(extras.get("signature").unwrap(), "EqQB");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras(Option<Box<Map<String, Value>>>);

impl Extras {
    /// No extras. It allocates nothing.
    pub const fn new() -> Self {
        Extras(None)
    }

    /// The value with this name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.as_ref()?.get(name)
    }

    /// Sets a value; replaces an existing one.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.0.get_or_insert_default().insert(name.into(), storable(value.into()));
    }

    /// Whether there are no extras.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The number of extras.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |map| map.len())
    }

    /// All names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().flat_map(|map| map.iter()).map(|(name, value)| (name.as_str(), value))
    }
}

impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Extras {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(items: I) -> Self {
        let mut extras = Extras::new();
        extras.extend(items);
        extras
    }
}

impl<K: Into<String>, V: Into<Value>> Extend<(K, V)> for Extras {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, items: I) {
        for (name, value) in items {
            self.insert(name, value);
        }
    }
}

impl From<Map<String, Value>> for Extras {
    fn from(map: Map<String, Value>) -> Self {
        map.into_iter().collect()
    }
}

/// The value, or its JSON text if it is nested too deeply to be read again.
pub(crate) fn storable(value: Value) -> Value {
    // NOTE: Rejecting the value would lose data of a provider or a tool, so it becomes text
    // (docs/decisions/state.md).
    if depth::exceeds(&value, MAX_DEPTH) { Value::String(value.to_string()) } else { value }
}
