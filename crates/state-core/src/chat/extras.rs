//! What a provider wants kept beside a message or a part: signatures, cache marks, ids of its own.
//! Nobody else reads it. Empty, which it nearly always is, it takes one word and no allocation.

use serde_json::{Map, Value};

use crate::{MAX_DEPTH, depth};

/// Named JSON values of one provider that survive every round trip untouched.
///
/// Only the provider that wrote an extra gives it a meaning. One exception to "untouched": a value
/// nested deeper than [`MAX_DEPTH`], which could be written but not read again, is kept as its JSON text.
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

    /// The value kept under `name`.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.as_ref()?.get(name)
    }

    /// Keeps `value` under `name`, in place of what was there.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.0.get_or_insert_default().insert(name.into(), storable(value.into()));
    }

    /// Whether there is nothing in it.
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

/// `value`, or its JSON text if it is nested too deep to be read again once written.
pub(crate) fn storable(value: Value) -> Value {
    if depth::exceeds(&value, MAX_DEPTH) { Value::String(value.to_string()) } else { value }
}
