//! Deltas: the ordered writes of a step, as data.
//!
//! A write names its handler, so replaying needs no closures, only the custom handlers by name. Messages are
//! not writes: an event contains the message, and `messages` is its projection.

use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::handler::Handler;
use super::stored::read_present;

/// A change of one key: a value with its merge handler, or a removal.
///
/// Created and checked by [`Schema::write`](super::Schema::write).
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    key: Arc<str>,
    change: WriteChange,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WriteChange {
    Merge { handler: Handler, value: Value },
    Remove,
}

impl Write {
    pub(crate) fn merge(key: Arc<str>, handler: Handler, value: Value) -> Self {
        Write { key, change: WriteChange::Merge { handler, value } }
    }

    pub(crate) fn remove(key: Arc<str>) -> Self {
        Write { key, change: WriteChange::Remove }
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The merge handler; `None` for a removal.
    pub fn handler(&self) -> Option<&Handler> {
        match &self.change {
            WriteChange::Merge { handler, .. } => Some(handler),
            WriteChange::Remove => None,
        }
    }

    /// The new value; `None` for a removal.
    pub fn value(&self) -> Option<&Value> {
        match &self.change {
            WriteChange::Merge { value, .. } => Some(value),
            WriteChange::Remove => None,
        }
    }

    /// The same write with another value; a removal stays one.
    #[must_use]
    pub fn with_value(self, value: Value) -> Self {
        match self.change {
            WriteChange::Merge { handler, .. } => Write::merge(self.key, handler, value),
            WriteChange::Remove => self,
        }
    }

    /// Whether the write removes its key.
    pub fn is_removal(&self) -> bool {
        matches!(self.change, WriteChange::Remove)
    }

    pub(crate) fn change(&self) -> &WriteChange {
        &self.change
    }
}

/// Ordered writes. Folding them over a state gives the next state.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::state::{Delta, Schema, State};
///
/// let schema = Schema::builder().key::<Vec<i64>>("numbers").key::<String>("name").build()?;
/// let delta: Delta = [schema.write("numbers", vec![1])?, schema.write("name", "Ada")?].into_iter().collect();
///
/// // A delta is data: it can be stored, and replayed elsewhere.
/// let stored = serde_json::to_string(&delta).unwrap();
/// let (numbers, name) = (
///     r#"{"key":"numbers","handler":"merge_lists","value":[1]}"#,
///     r#"{"key":"name","handler":"replace_values","value":"Ada"}"#,
/// );
/// assert_eq!(stored, format!("[{numbers},{name}]"));
/// let mut state = State::new(&schema);
/// state.apply(&serde_json::from_str(&stored).unwrap())?;
/// assert_eq!(state.get("name").unwrap(), json!("Ada"));
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
#[doc(alias("state_update", "state_delta", "channel"))]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Delta(Vec<Write>);

impl Delta {
    /// No writes.
    pub const fn new() -> Self {
        Delta(Vec::new())
    }

    /// Appends a write.
    pub fn push(&mut self, write: Write) {
        self.0.push(write);
    }

    /// The writes, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Write> {
        self.0.iter()
    }

    /// The number of writes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no writes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Extend<Write> for Delta {
    fn extend<I: IntoIterator<Item = Write>>(&mut self, writes: I) {
        self.0.extend(writes);
    }
}

impl FromIterator<Write> for Delta {
    fn from_iter<I: IntoIterator<Item = Write>>(writes: I) -> Self {
        Delta(writes.into_iter().collect())
    }
}

impl IntoIterator for Delta {
    type Item = Write;
    type IntoIter = std::vec::IntoIter<Write>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Delta {
    type Item = &'a Write;
    type IntoIter = std::slice::Iter<'a, Write>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// `{"key", "handler", "value"}`, or `{"key", "remove": true}`.
#[derive(Serialize)]
struct WriteOut<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    handler: Option<&'a Handler>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a Value>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    remove: bool,
}

/// The same, for reading.
#[derive(Deserialize)]
struct WriteIn {
    key: Arc<str>,
    handler: Option<Handler>,
    #[serde(default, deserialize_with = "read_present")]
    value: Option<Value>,
    #[serde(default)]
    remove: bool,
}

impl Serialize for Write {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let remove = self.is_removal();
        WriteOut { key: &self.key, handler: self.handler(), value: self.value(), remove }
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Write {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = WriteIn::deserialize(deserializer)?;
        let change = match (stored.remove, stored.handler, stored.value) {
            (true, _, _) => WriteChange::Remove,
            (false, Some(handler), Some(value)) => WriteChange::Merge { handler, value },
            (false, None, _) => return Err(D::Error::missing_field("handler")),
            (false, _, None) => return Err(D::Error::missing_field("value")),
        };
        Ok(Write { key: stored.key, change })
    }
}
