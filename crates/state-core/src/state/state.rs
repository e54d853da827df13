//! The state: a fold of writes over the schema's defaults.
//!
//! All fields are persistent data structures, so a clone is O(1) and shares unchanged parts. So several
//! writes can be atomic: they are applied to a clone, which then replaces the state.

#![expect(
    clippy::needless_pass_by_value,
    reason = "keys and handlers are passed as they are written: a constant, a `&str`, `Handler::sum()`"
)]

use std::fmt;
use std::sync::Arc;

use rpds::RedBlackTreeMapSync;
use serde::de::DeserializeOwned;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::delta::{Delta, Write};
use super::diff::Diff;
use super::error::StateError;
use super::handler::{Handler, MergeRule};
use super::key::{Key, ReadKey, WriteKey, encode};
use super::schema::{KeySchema, MESSAGES, Schema};
use super::stored::{STATE_VERSION, StoredState, StoredValues};
use super::value::{StoredValue, ValueRef};
use crate::chat::{Message, Transcript};
use crate::decode::decode;
use crate::faults::Issue;

/// The set values by key, in key order.
// NOTE: A red-black tree copies one path after a snapshot; an `Arc<BTreeMap>` would be copied whole, which is too
// slow for a scope with ten thousand keys. A hash trie would not keep the order.
pub(crate) type ValueMap = RedBlackTreeMapSync<Arc<str>, StoredValue>;

/// Typed values by key, merged by the handlers of a [`Schema`], and the conversation.
///
/// Reading borrows and copies nothing. The cost of a write depends on the new value only: appending to a list
/// of 100,000 items costs the same as to one of 10. A failed write changes nothing. A clone is an O(1)
/// snapshot, independent of the original.
///
/// # Examples
/// As in Haystack 2.31, "State", "Usage":
/// ```
/// use serde_json::json;
/// use stepfold_state_core::state::{Schema, State};
///
/// let schema = Schema::builder()
///     .key::<String>("user_name")
///     .key::<Vec<serde_json::Value>>("documents")
///     .key::<i64>("count")
///     .build()?;
/// let mut state = State::with_values(&schema, json!({"user_name": "Alice", "documents": [], "count": 0}))?;
///
/// assert_eq!(state.get("user_name").unwrap(), json!("Alice"));
/// state.set("user_name", "Bob")?;
/// state.set("documents", json!([{"title": "Doc 1", "content": "Content 1"}]))?;
/// state.set("documents", json!([{"title": "Doc 2", "content": "Content 2"}]))?;
/// assert_eq!(state.get("user_name").unwrap(), json!("Bob"));
/// assert_eq!(state.get("documents").unwrap().len(), Some(2));
/// assert!(state.has("count") && state.get("unknown").is_none());
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
#[derive(Clone)]
pub struct State {
    schema: Schema,
    values: ValueMap,
    messages: Transcript,
}

impl State {
    /// A state with the defaults of the schema and an empty conversation.
    pub fn new(schema: &Schema) -> Self {
        State { schema: schema.clone(), values: schema.initial().clone(), messages: Transcript::new() }
    }

    /// A state with initial values, an object by key. They are validated and stored without running handlers.
    ///
    /// # Errors
    /// As [`State::set`], for the first invalid value.
    pub fn with_values(schema: &Schema, values: Value) -> Result<Self, StateError> {
        State::from_stored(schema, StoredValues::of("initial values", values)?)
    }

    /// Parses a state from its serialised JSON, and validates it against the schema.
    ///
    /// Unknown fields other than `version` and `values` are ignored. Missing keys have their default.
    ///
    /// # Errors
    /// When the JSON is invalid or of a newer format, has a key that the schema does not declare, or an
    /// invalid value.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::state::{Schema, State};
    ///
    /// let schema = Schema::builder().key::<f64>("ratio").build()?;
    /// let mut state = State::new(&schema);
    /// state.set("ratio", 1.0)?;
    /// let json = serde_json::to_string(&state).unwrap();
    /// assert_eq!(json, r#"{"version":1,"values":{"ratio":1.0,"messages":[]}}"#);
    /// assert_eq!(State::from_json(&schema, &json)?, state);
    /// # Ok::<(), stepfold_state_core::state::StateError>(())
    /// ```
    pub fn from_json(schema: &Schema, json: &str) -> Result<Self, StateError> {
        State::from_stored(schema, StoredState::from_json(json)?.values)
    }

    /// A state from stored values, and the conversation. Missing keys have their default.
    ///
    /// The values are *not* validated: they came from [`Schema::merge`] or [`KeySchema::check`] with the same
    /// types. So the cost depends on the number of keys only.
    ///
    /// # Errors
    /// [`StateError::UnknownKey`] or [`StateError::InvalidKey`] for a key that the schema does not accept.
    pub fn from_cells<K: AsRef<str>>(
        schema: &Schema,
        cells: impl IntoIterator<Item = (K, StoredValue)>,
        messages: Transcript,
    ) -> Result<Self, StateError> {
        let mut state = State::new(schema);
        state.messages = messages;
        for (key, cell) in cells {
            let entry = schema.entry(key.as_ref())?;
            state.values.insert_mut(entry.name_for(key.as_ref()), cell);
        }
        Ok(state)
    }

    /// Replaces values by stored ones; `None` resets a key to its default. Other keys and the conversation
    /// are unchanged.
    ///
    /// As in [`from_cells`](State::from_cells), the values are *not* validated.
    ///
    /// # Errors
    /// As [`from_cells`](State::from_cells). Nothing is changed then.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_state_core::state::{StoredValue, Schema, State};
    ///
    /// let schema = Schema::builder().key::<i64>("count").default(7).key::<String>("topic").build()?;
    /// let mut state = State::with_values(&schema, json!({"count": 1, "topic": "engines"}))?;
    /// state.replace_cells([("count", None), ("topic", Some(StoredValue::from(json!("stalls"))))])?;
    /// assert_eq!(state, State::with_values(&schema, json!({"topic": "stalls"}))?);
    /// # Ok::<(), stepfold_state_core::state::StateError>(())
    /// ```
    pub fn replace_cells<K: AsRef<str>>(
        &mut self,
        cells: impl IntoIterator<Item = (K, Option<StoredValue>)>,
    ) -> Result<(), StateError> {
        // NOTE: In a copy, which shares the tree and costs O(1): after a fault nothing is changed.
        let mut next = self.values.clone();
        for (key, cell) in cells {
            let key = key.as_ref();
            let entry = self.schema.entry(key)?;
            match cell.or_else(|| self.schema.initial().get(key).cloned()) {
                Some(cell) => next.insert_mut(entry.name_for(key), cell),
                None => {
                    next.remove_mut(key);
                }
            }
        }
        self.values = next;
        Ok(())
    }

    fn from_stored(schema: &Schema, stored: StoredValues) -> Result<Self, StateError> {
        let mut state = State::new(schema);
        state.messages = stored.messages;
        for (key, value) in stored.others {
            let entry = schema.entry(&key)?;
            let whole = entry.merge(&key, entry.handler());
            whole.check_depth(&value)?;
            whole.check_whole(&value)?;
            state.values.insert_mut(entry.name_for(&key), StoredValue::from(value));
        }
        Ok(state)
    }

    /// The schema of the state.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The value of a key; `None` if it is unset or unknown. The type of the key decides the result:
    ///
    /// | key | result | |
    /// |---|---|---|
    /// | `&str` | `Option<ValueRef<'_>>` | the JSON value, borrowed |
    /// | [`Key<T>`](super::Key) | `Result<Option<T>, StateError>` | the value, decoded |
    ///
    /// # Errors
    /// With a `Key<T>` only: [`StateError::Decode`] when the value is not a `T`.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::state::{Key, Schema, State};
    ///
    /// const AREA: Key<u32> = Key::new("area");
    ///
    /// let mut state = State::new(&Schema::builder().key(AREA).build()?);
    /// state.set(AREA, 3)?;
    /// assert_eq!(state.get("area").map(|value| value.to_json()), Some(3.into()));
    /// assert_eq!(state.get(AREA)?, Some(3));
    /// # Ok::<(), stepfold_state_core::state::StateError>(())
    /// ```
    pub fn get<K: ReadKey>(&self, key: K) -> K::Output<'_> {
        key.read(self)
    }

    /// Whether the key has a value. A stored null is a value; `messages` always has one.
    pub fn has<K: ReadKey>(&self, key: K) -> bool {
        self.value(key.name()).is_some()
    }

    pub(crate) fn value(&self, key: &str) -> Option<ValueRef<'_>> {
        if key == MESSAGES {
            return Some(ValueRef::Messages(&self.messages));
        }
        self.values.get(key).map(StoredValue::view)
    }

    /// Merges a value into a key with the key's own handler.
    ///
    /// List handlers treat a value that is not a list as one item, and an absent or null current value as an
    /// empty list; a new null is an item only where items may be null. `replace_values` stores a null where
    /// the type allows it. For `messages`, the value is a message or a list of messages, which are appended.
    ///
    /// # Errors
    /// [`StateError::UnknownKey`]; [`StateError::WrongType`] with the JSON path of each fault;
    /// [`StateError::Merge`] when the handler fails; [`StateError::TooDeep`]. Nothing is changed then.
    pub fn set<V, K: WriteKey<V>>(&mut self, key: K, value: V) -> Result<(), StateError> {
        let name = key.name();
        let value = key.encode(value)?;
        if name == MESSAGES {
            return self.set_messages(value, &MergeRule::MergeLists);
        }
        // NOTE: O(1). `entry` borrows the schema while the state is changed.
        let schema = self.schema.clone();
        let entry = schema.entry(name)?;
        self.merge(entry, name, entry.handler(), value)
    }

    /// Merges a value into a key with another handler, for this write only.
    ///
    /// # Errors
    /// As [`State::set`].
    ///
    /// # Examples
    /// As in Haystack 2.31, "State", with a `handler_override`:
    /// ```
    /// use serde_json::{Value, json};
    /// use stepfold_state_core::state::{Handler, Schema, State};
    ///
    /// let concatenate = Handler::custom("concatenate", |current, new| {
    ///     Ok(match current.and_then(Value::as_str) {
    ///         Some(current) => json!(format!("{current}-{}", new.as_str().unwrap_or_default())),
    ///         None => new,
    ///     })
    /// });
    /// let mut state = State::new(&Schema::builder().key::<String>("user_name").build()?);
    /// state.set("user_name", "Alice")?;
    /// state.set_with("user_name", "Bob", &concatenate)?;
    /// assert_eq!(state.get("user_name").unwrap(), json!("Alice-Bob"));
    /// # Ok::<(), stepfold_state_core::state::StateError>(())
    /// ```
    pub fn set_with<V, K: WriteKey<V>>(
        &mut self,
        key: K,
        value: V,
        handler: &Handler,
    ) -> Result<(), StateError> {
        let name = key.name();
        let value = key.encode(value)?;
        if name == MESSAGES {
            return self.set_messages(value, &handler.0);
        }
        let schema = self.schema.clone();
        let handler = handler.resolve(schema.handlers())?;
        self.merge(schema.entry(name)?, name, handler, value)
    }

    /// Appends one item to a list with the key's own handler; with `merge_lists` if that handler does not
    /// append (`replace_values`, `first_wins`).
    ///
    /// # Errors
    /// As [`State::set`].
    pub fn append<T: Serialize>(&mut self, key: Key<Vec<T>>, item: T) -> Result<(), StateError> {
        let items = Value::Array(vec![encode(key.name(), &item)?]);
        if key.name() == MESSAGES {
            return self.set_messages(items, &MergeRule::MergeLists);
        }
        let schema = self.schema.clone();
        let entry = schema.entry(key.name())?;
        match entry.handler().0 {
            // NOTE: By the key's own handler one item would replace the whole list, or be ignored.
            MergeRule::ReplaceValues | MergeRule::FirstWins => {
                self.merge(entry, key.name(), &Handler::merge_lists(), items)
            }
            _ => self.merge(entry, key.name(), entry.handler(), items),
        }
    }

    /// Removes a key: it is then unset or has its default. Null, by contrast, is a value.
    ///
    /// # Errors
    /// [`StateError::UnknownKey`], or [`StateError::MessagesAreEvents`] for `messages`.
    pub fn remove(&mut self, key: &str) -> Result<(), StateError> {
        let removal = self.schema.removal(key)?;
        self.apply_write(&removal)
    }

    /// Applies the writes of a delta, in order and atomically.
    ///
    /// # Errors
    /// As [`State::set`], for the first failing write; [`StateError::UnknownHandler`] when it names a custom
    /// handler that the schema does not know. Nothing is changed then.
    pub fn apply(&mut self, delta: &Delta) -> Result<(), StateError> {
        let mut next = self.clone();
        for write in delta {
            next.apply_write(write)?;
        }
        *self = next;
        Ok(())
    }

    /// Applies one write.
    ///
    /// # Errors
    /// As [`State::apply`].
    pub fn apply_write(&mut self, write: &Write) -> Result<(), StateError> {
        if write.key() == MESSAGES {
            return Err(StateError::MessagesAreEvents);
        }
        let schema = self.schema.clone();
        let entry = schema.entry(write.key())?;
        match schema.fold_write(entry, self.values.get(write.key()), write)? {
            Some(cell) => self.put(entry, write.key(), cell),
            None => {
                self.values.remove_mut(write.key());
            }
        }
        Ok(())
    }

    /// The conversation.
    pub fn messages(&self) -> &Transcript {
        &self.messages
    }

    /// Appends a message to the conversation. O(1), at any length.
    pub fn push_message(&mut self, message: impl Into<Arc<Message>>) {
        self.messages.push(message);
    }

    /// Replaces the conversation, for a repair or an explicit rewrite.
    pub fn replace_messages(&mut self, messages: Transcript) {
        self.messages = messages;
    }

    /// The changes from `earlier` to this state. Shared parts are skipped.
    pub fn diff(&self, earlier: &State) -> Diff {
        Diff::between(earlier, self)
    }

    /// The keys that have a value, in key order, with their values; `messages` is last.
    pub fn iter(&self) -> impl Iterator<Item = (&str, ValueRef<'_>)> {
        let messages = (MESSAGES, ValueRef::Messages(&self.messages));
        self.values.iter().map(|(key, cell)| (&**key, cell.view())).chain([messages])
    }

    /// Decodes the whole state as a struct, the counterpart of [`Schema::of`]. An unset key is a missing
    /// field.
    ///
    /// # Errors
    /// [`StateError::Decode`] when a field is missing or invalid.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, StateError> {
        let values = self.iter().map(|(key, value)| (key.to_owned(), value.to_json())).collect();
        decode(&Value::Object(values)).map_err(|source| StateError::Decode {
            key: "(the whole state)".to_owned(),
            wanted: std::any::type_name::<T>(),
            source,
        })
    }

    pub(crate) fn values(&self) -> &ValueMap {
        &self.values
    }

    fn merge(
        &mut self,
        entry: &KeySchema,
        key: &str,
        handler: &Handler,
        value: Value,
    ) -> Result<(), StateError> {
        let merged = entry.merge(key, handler).merge(self.values.get(key), value)?;
        self.put(entry, key, merged);
        Ok(())
    }

    fn put(&mut self, entry: &KeySchema, key: &str, cell: StoredValue) {
        match self.values.get_mut(key) {
            Some(place) => *place = cell,
            None => self.values.insert_mut(entry.name_for(key), cell),
        }
    }

    fn set_messages(&mut self, value: Value, rule: &MergeRule) -> Result<(), StateError> {
        let new = read_messages(value)?;
        let mut next = match rule {
            MergeRule::ReplaceValues => Transcript::new(),
            MergeRule::MergeLists => self.messages.clone(),
            other => {
                return Err(StateError::Merge {
                    key: MESSAGES.to_owned(),
                    handler: Handler(other.clone()).to_string(),
                    source: "messages are appended (merge_lists) or replaced (replace_values)".into(),
                });
            }
        };
        next.extend(new);
        self.messages = next;
        Ok(())
    }
}

/// Decodes a message, or each message of a list.
fn read_messages(value: Value) -> Result<Vec<Message>, StateError> {
    let read = match &value {
        Value::Array(_) => decode(&value),
        bare => decode(bare).map(|message| vec![message]),
    };
    read.map_err(|error| StateError::WrongType {
        key: MESSAGES.to_owned(),
        expected: "list of messages".to_owned(),
        faults: Issue::from(error).into(),
    })
}

impl PartialEq for State {
    /// States are equal when their values and messages are equal, whatever their schemas.
    fn eq(&self, other: &Self) -> bool {
        self.messages == other.messages
            && self.values.size() == other.values.size()
            && self.iter().eq(other.iter())
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(key, value)| (key, value.to_string()))).finish()
    }
}

/// `{"version": 1, "values": {...}}`, with the conversation under `messages`.
impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct ValuesByKey<'a>(&'a State);

        impl Serialize for ValuesByKey<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.iter())
            }
        }

        let mut fields = serializer.serialize_map(Some(2))?;
        fields.serialize_entry("version", &STATE_VERSION)?;
        fields.serialize_entry("values", &ValuesByKey(self))?;
        fields.end()
    }
}
