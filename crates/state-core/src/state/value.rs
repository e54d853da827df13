//! Values of a state, and borrowed views of them.
//!
//! A top-level array is a persistent [`List`], so that appending and keeping earlier versions costs the same
//! at any length. That is why reading returns a [`ValueRef`] and not a `&Value`.

use std::fmt;
use std::sync::Arc;

use serde::de::value::SeqDeserializer;
use serde::de::{DeserializeOwned, Deserializer, Visitor};
use serde::{Serialize, Serializer, forward_to_deserialize_any};
use serde_json::Value;

use crate::chat::Transcript;
use crate::decode::{DecodeError, decode, decode_error};
use crate::list::List;

/// A stored value, for stores that keep values between states. Cloning is O(1).
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::state::{StoredValue, Schema};
///
/// let schema = Schema::builder().key::<Vec<i64>>("numbers").build()?;
/// let stored = StoredValue::from(json!([1, 2]));
/// let merged = schema.merge(Some(&stored), &schema.write("numbers", 3)?)?.expect("nothing was removed");
/// assert_eq!(merged.view(), json!([1, 2, 3]));
/// assert_eq!(stored.view(), json!([1, 2]));
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
#[derive(Clone, Debug)]
pub struct StoredValue(pub(crate) ValueContent);

/// The content of a cell.
#[derive(Clone, Debug)]
pub(crate) enum ValueContent {
    /// An array. Its items are shared, so that copying a chunk of the list does not copy them.
    List(List<Arc<Value>>),
    /// Any value except an array.
    Json(Arc<Value>),
}

impl StoredValue {
    /// A list with these items, which may be shared with other lists.
    pub fn list(items: List<Arc<Value>>) -> Self {
        StoredValue(ValueContent::List(items))
    }

    /// The value, borrowed.
    pub fn view(&self) -> ValueRef<'_> {
        match &self.0 {
            ValueContent::List(items) => ValueRef::List(items),
            ValueContent::Json(value) => ValueRef::Json(value),
        }
    }

    /// Whether both are the same version of the same value, by pointer.
    pub(crate) fn ptr_eq(&self, other: &StoredValue) -> bool {
        match (&self.0, &other.0) {
            (ValueContent::List(mine), ValueContent::List(theirs)) => mine.ptr_eq(theirs),
            (ValueContent::Json(mine), ValueContent::Json(theirs)) => Arc::ptr_eq(mine, theirs),
            _ => false,
        }
    }
}

impl From<Value> for StoredValue {
    fn from(value: Value) -> Self {
        match value {
            Value::Array(items) => StoredValue(ValueContent::List(items.into_iter().map(Arc::new).collect())),
            other => StoredValue(ValueContent::Json(Arc::new(other))),
        }
    }
}

/// A borrowed view of a value in a [`State`](super::State). It is `Copy` and copies nothing.
///
/// Compare it with a `serde_json::Value`, print it (compact JSON), serialise it, decode it, iterate over its
/// items, or copy it with [`to_json`](ValueRef::to_json).
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::state::{Schema, State};
///
/// let mut state = State::new(&Schema::builder().key::<Vec<i64>>("numbers").build()?);
/// state.set("numbers", vec![1, 2])?;
///
/// let numbers = state.get("numbers").expect("it was set");
/// assert_eq!(numbers, json!([1, 2]));
/// assert_eq!(numbers.to_string(), "[1,2]");
/// assert_eq!(numbers.len(), Some(2));
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ValueRef<'a> {
    /// Any value except an array (or an array borrowed from a caller).
    Json(&'a Value),
    /// An array of a state.
    List(&'a List<Arc<Value>>),
    /// The conversation: the value of the key `messages`.
    Messages(&'a Transcript),
}

impl<'a> ValueRef<'a> {
    /// A copy as plain JSON. The cost is in proportion to the size.
    pub fn to_json(self) -> Value {
        match self {
            ValueRef::Json(value) => value.clone(),
            ValueRef::List(items) => Value::Array(items.iter().map(|item| (**item).clone()).collect()),
            // NOTE: A message always has a JSON form: its maps have string keys, its numbers are JSON numbers.
            ValueRef::Messages(messages) => serde_json::to_value(messages).unwrap_or_default(),
        }
    }

    /// Decodes the value as a `T`.
    ///
    /// # Errors
    /// [`DecodeError`] with the location, when the value is not a `T`.
    pub fn decode<T: DeserializeOwned>(self) -> Result<T, DecodeError> {
        match self {
            ValueRef::Json(value) => decode(value),
            ValueRef::List(items) => {
                // NOTE: The list is copied only after a failure, for the path of the error.
                T::deserialize(ListDeserializer(items)).map_err(|_| decode_error::<T>(&self.to_json()))
            }
            ValueRef::Messages(_) => decode(&self.to_json()),
        }
    }

    /// The JSON value; `None` for an array of a state and for the conversation.
    pub fn as_json(self) -> Option<&'a Value> {
        match self {
            ValueRef::Json(value) => Some(value),
            ValueRef::List(_) | ValueRef::Messages(_) => None,
        }
    }

    /// The text of a string; `None` for other values.
    pub fn as_str(self) -> Option<&'a str> {
        self.as_json().and_then(Value::as_str)
    }

    /// Whether the value is null. A stored null is a value: `has` returns true for it.
    pub fn is_null(self) -> bool {
        matches!(self, ValueRef::Json(Value::Null))
    }

    /// The number of items of an array, fields of an object or messages; `None` for other values.
    #[expect(clippy::len_without_is_empty, reason = "most values have no length")]
    pub fn len(self) -> Option<usize> {
        match self {
            ValueRef::Json(Value::Array(items)) => Some(items.len()),
            ValueRef::Json(Value::Object(fields)) => Some(fields.len()),
            ValueRef::Json(_) => None,
            ValueRef::List(items) => Some(items.len()),
            ValueRef::Messages(messages) => Some(messages.len()),
        }
    }

    /// The items of an array, borrowed; empty for other values (messages have a type of their own).
    pub fn items(self) -> Box<dyn DoubleEndedIterator<Item = &'a Value> + 'a> {
        match self {
            ValueRef::Json(Value::Array(items)) => Box::new(items.iter()),
            ValueRef::List(items) => Box::new(items.iter().map(|item| &**item)),
            ValueRef::Json(_) | ValueRef::Messages(_) => Box::new(std::iter::empty()),
        }
    }

    /// The item of an array at `index`.
    pub fn item(self, index: usize) -> Option<&'a Value> {
        match self {
            ValueRef::Json(value) => value.get(index),
            ValueRef::List(items) => items.get(index).map(|item| &**item),
            ValueRef::Messages(_) => None,
        }
    }

    /// The field of an object.
    pub fn field(self, name: &str) -> Option<&'a Value> {
        self.as_json().and_then(|value| value.get(name))
    }
}

impl<'a> From<&'a Value> for ValueRef<'a> {
    fn from(value: &'a Value) -> Self {
        ValueRef::Json(value)
    }
}

impl PartialEq<Value> for ValueRef<'_> {
    fn eq(&self, other: &Value) -> bool {
        match (self, other) {
            (ValueRef::Json(value), other) => *value == other,
            (ValueRef::List(items), Value::Array(others)) => {
                items.len() == others.len() && items.iter().map(|item| &**item).eq(others)
            }
            (ValueRef::List(_), _) => false,
            (ValueRef::Messages(_), other) => self.to_json() == *other,
        }
    }
}

macro_rules! equals {
    ($($other:ty),+) => {$(
        /// Compares as `serde_json::Value` does.
        impl PartialEq<$other> for ValueRef<'_> {
            fn eq(&self, other: &$other) -> bool {
                self.as_json().is_some_and(|value| value == other)
            }
        }
    )+};
}

equals!(str, &str, String, bool, i32, i64, u32, u64, usize, f64);

impl PartialEq for ValueRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (ValueRef::List(mine), ValueRef::List(theirs)) => mine == theirs,
            (ValueRef::Messages(mine), ValueRef::Messages(theirs)) => mine == theirs,
            (mine, ValueRef::Json(value)) => *mine == **value,
            (ValueRef::Json(value), theirs) => *theirs == **value,
            _ => false,
        }
    }
}

/// Compact JSON.
impl fmt::Display for ValueRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl Serialize for ValueRef<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            ValueRef::Json(value) => value.serialize(serializer),
            ValueRef::List(items) => items.serialize(serializer),
            ValueRef::Messages(messages) => messages.serialize(serializer),
        }
    }
}

/// Decodes a typed value from a list without building a JSON array first.
struct ListDeserializer<'a>(&'a List<Arc<Value>>);

impl<'de> Deserializer<'de> for ListDeserializer<'de> {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        let mut items = SeqDeserializer::new(self.0.iter().map(|item| &**item));
        let value = visitor.visit_seq(&mut items)?;
        items.end()?;
        Ok(value)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}
