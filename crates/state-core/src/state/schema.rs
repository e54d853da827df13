//! The schema of a state: its keys, their types, and their merge handlers.
//!
//! A schema is immutable and shared: cloning it is O(1). Each key is checked once, when the schema is built,
//! and all faults are reported together.

#![expect(
    clippy::needless_pass_by_value,
    reason = "keys and handlers are passed as they are written: a constant, a `&str`, `Handler::sum()`"
)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::delta::{Write, WriteChange};
use super::error::StateError;
use super::handler::{Handler, Handlers};
use super::key::{Key, WriteKey, encode, fault_of};
use super::merge::KeyMerge;
use super::state::ValueMap;
use super::stored::{StoredKeySchema, StoredSchema};
use super::value::StoredValue;
use crate::chat::Message;
use crate::decode::decode;
use crate::faults::{Issue, Issues};
use crate::json_schema::{DecodeCheck, ValueType, json_schema_of, standalone};

/// The key of the conversation. Every schema has it: typed, and append-only.
pub const MESSAGES: &str = "messages";

/// Names reserved for the outcome of a run. No key may have one, except `messages`, which may be declared
/// again with its own type.
pub const RESERVED_KEYS: [&str; 8] =
    [MESSAGES, "reply", "exit_reason", "transcript", "state", "steps", "usage", "calls_per_tool"];

/// The field attribute that names a handler: `#[schemars(extend("x-handler" = "sum"))]`.
const HANDLER_EXTENSION: &str = "x-handler";

/// The keys of a [`State`](super::State), with their types and merge handlers.
///
/// Arrays default to `merge_lists`, everything else to `replace_values`, including arrays of a fixed length,
/// such as tuples. `messages` is always present. A schema is strict: undeclared keys are errors; an
/// [open](SchemaBuilder::open) schema accepts undeclared keys of any type.
///
/// # Examples
/// With a builder:
/// ```
/// use stepfold_state_core::state::{Handler, Schema};
///
/// let schema = Schema::builder()
///     .key::<String>("user_name")
///     .key::<Vec<String>>("documents").description("titles found so far")
///     .key::<u64>("visits").handler(Handler::sum()).default(0)
///     .build()?;
/// assert_eq!(schema.key("documents").unwrap().handler(), &Handler::merge_lists());
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
/// From a plain struct, with handlers as extensions of fields (like `Annotated[list, add]` in LangGraph):
/// ```
/// use schemars::JsonSchema;
/// use stepfold_state_core::state::{Handler, Schema};
///
/// /// The state of a research run.
/// #[derive(JsonSchema)]
/// struct Research {
///     /// The user's question.
///     query: Option<String>,
///     #[schemars(extend("x-handler" = "upsert_by(id)"))]
///     tasks: Vec<serde_json::Value>,
/// }
///
/// let schema = Schema::of::<Research>()?;
/// assert_eq!(schema.key("query").unwrap().description(), Some("The user's question."));
/// assert_eq!(schema.key("tasks").unwrap().handler(), &Handler::upsert_by("id"));
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
#[doc(alias("state_schema", "channels"))]
#[derive(Clone)]
pub struct Schema(Arc<SchemaDefinition>);

#[derive(Clone)]
struct SchemaDefinition {
    keys: Vec<KeySchema>,
    /// The positions of the keys in `keys`. Most schemas have few keys, for which a tree is faster than a
    /// hash map.
    index: BTreeMap<Arc<str>, usize>,
    /// The rules of undeclared keys, in an open schema.
    undeclared: Option<KeySchema>,
    handlers: Handlers,
    /// The defaults, as the cells of a new state.
    // NOTE: Stored in new states and not looked up: a later change of a default must not change old states.
    initial: ValueMap,
}

/// The declaration of one key.
#[derive(Clone, Debug)]
pub struct KeySchema {
    name: Arc<str>,
    value_type: Arc<ValueType>,
    handler: Handler,
    description: Option<String>,
    default: Option<Value>,
}

impl KeySchema {
    /// The key, including its prefix.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The declared type as a JSON Schema.
    pub fn json_schema(&self) -> &Value {
        self.value_type.schema()
    }

    /// The default merge handler of writes.
    pub fn handler(&self) -> &Handler {
        &self.handler
    }

    /// The description of the key.
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// The value of the key before the first write, and after a removal.
    pub fn default(&self) -> Option<&Value> {
        self.default.as_ref()
    }

    /// Checks a whole value against the type of the key.
    ///
    /// # Errors
    /// [`StateError::WrongType`] with every fault, or [`StateError::TooDeep`].
    pub fn check(&self, value: &Value) -> Result<(), StateError> {
        let whole = self.merge(&self.name, &self.handler);
        whole.check_depth(value)?;
        whole.check_whole(value)
    }

    pub(crate) fn merge<'a>(&'a self, key: &'a str, handler: &'a Handler) -> KeyMerge<'a> {
        KeyMerge { key, value_type: &self.value_type, handler }
    }
}

impl Default for Schema {
    /// A schema without declared keys: a state that is only the conversation.
    fn default() -> Self {
        Schema::builder().build().unwrap_or_else(|_| unreachable!("a schema without keys is valid"))
    }
}

/// The items that a write appends to a list; see [`Schema::growth`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ListAppend {
    /// The new items.
    pub items: Vec<Value>,
    /// The maximum number of items to keep, counted from the end.
    pub keep: usize,
}

impl Schema {
    /// Starts a schema.
    pub fn builder() -> SchemaBuilder {
        SchemaBuilder { keys: Vec::new(), open: false, handlers: Handlers::new(), faults: Issues::default() }
    }

    /// The schema of a struct: one key per field, with the handler from the field's `x-handler` extension,
    /// the description from its doc comment, and the default from `#[serde(default)]` (if the field's type
    /// has `Serialize`, which schemars needs for defaults).
    ///
    /// Custom handlers named by fields must be registered: use [`SchemaBuilder::fields`].
    ///
    /// # Errors
    /// As [`SchemaBuilder::build`].
    pub fn of<T: JsonSchema>() -> Result<Self, StateError> {
        Schema::builder().fields::<T>().build()
    }

    /// Parses a schema from JSON, serialised or written by hand: `{"version": 1, "open": false, "keys":
    /// {"count": {"type": "integer", "handler": "sum"}}}`.
    ///
    /// A `type` is a JSON Schema; a bare name or list of names is short for `{"type": ...}`, and `true`
    /// accepts any type. Each key needs one. Unknown fields are ignored.
    ///
    /// # Errors
    /// When the JSON is invalid or of a newer format, names a handler that is neither built in nor among
    /// `handlers`, or has faults as in [`SchemaBuilder::build`].
    pub fn from_json(json: &str, handlers: &Handlers) -> Result<Self, StateError> {
        let stored = StoredSchema::from_json(json)?;
        let mut builder = Schema::builder().handlers(handlers);
        builder.open = stored.open;
        for (name, key) in stored.keys {
            if key.value_type.is_none() {
                let reason = "missing type; write \"type\": true for a value of any type";
                builder.faults.push(Issue::new(&*name, reason));
            }
            builder.keys.push(KeyDraft::of_stored(name, key));
        }
        builder.build()
    }

    /// The declaration of a key; `messages` is in every schema.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::state::{Handler, Schema};
    ///
    /// let schema = Schema::builder().key::<String>("topic").build()?;
    /// let messages = schema.key("messages").unwrap();
    /// assert_eq!((messages.json_schema()["type"].as_str(), messages.handler()), (Some("array"), &Handler::merge_lists()));
    /// assert_eq!(schema.keys().map(|key| key.name()).collect::<Vec<_>>(), ["topic", "messages"]);
    /// # Ok::<(), stepfold_state_core::state::StateError>(())
    /// ```
    pub fn key(&self, name: &str) -> Option<&KeySchema> {
        self.declared(name).or_else(|| (name == MESSAGES).then(messages_key))
    }

    /// All keys: the declared ones, in declaration order, and `messages`.
    pub fn keys(&self) -> impl Iterator<Item = &KeySchema> {
        self.declared_keys().chain([messages_key()])
    }

    /// The declared keys, in declaration order, without `messages`.
    pub fn declared_keys(&self) -> impl ExactSizeIterator<Item = &KeySchema> {
        self.0.keys.iter()
    }

    /// Whether the schema declares the key. `messages` is in every schema, but not declared.
    pub fn declares(&self, key: &str) -> bool {
        self.declared(key).is_some()
    }

    fn declared(&self, name: &str) -> Option<&KeySchema> {
        self.0.index.get(name).map(|index| &self.0.keys[*index])
    }

    /// Whether undeclared keys are accepted.
    pub fn is_open(&self) -> bool {
        self.0.undeclared.is_some()
    }

    /// Adds declarations of another schema after those of this one. Keys that this schema declares are
    /// unchanged; names that the other schema does not declare are skipped.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::state::Schema;
    ///
    /// let graph = Schema::builder().key::<String>("notes").key::<u64>("area").build()?;
    /// let own = Schema::builder().key::<u64>("found").build()?;
    /// let both = own.with_keys_of(&graph, ["notes", "found", "elsewhere"]);
    /// assert_eq!(both.declared_keys().map(|key| key.name()).collect::<Vec<_>>(), ["found", "notes"]);
    /// # Ok::<(), stepfold_state_core::state::StateError>(())
    /// ```
    pub fn with_keys_of<'a>(&self, other: &Schema, names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut inner = (*self.0).clone();
        for name in names {
            let (Some(key), false) = (other.declared(name), inner.index.contains_key(name)) else { continue };
            if let Some(value) = &key.default {
                inner.initial.insert_mut(Arc::clone(&key.name), StoredValue::from(value.clone()));
            }
            inner.index.insert(Arc::clone(&key.name), inner.keys.len());
            inner.keys.push(key.clone());
            // A function already registered with the name stays; the key has its handler in any case.
            let _ = inner.handlers.register(&key.handler);
        }
        Schema(Arc::new(inner))
    }

    /// The same keys, with their handlers and defaults, for values of any type; undeclared keys are accepted. It reads and
    /// folds what was written under an earlier schema of the same keys.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::state::{Handler, Schema};
    ///
    /// let schema = Schema::builder().key::<Vec<i64>>("numbers").build()?;
    /// assert!(schema.write("numbers", "seven").is_err());
    /// let untyped = schema.untyped();
    /// assert_eq!(untyped.write("numbers", "seven")?.handler(), Some(&Handler::merge_lists()));
    /// # Ok::<(), stepfold_state_core::state::StateError>(())
    /// ```
    #[must_use]
    pub fn untyped(&self) -> Self {
        let mut inner = (*self.0).clone();
        let any = undeclared_key();
        for key in &mut inner.keys {
            key.value_type = Arc::clone(&any.value_type);
        }
        inner.undeclared = Some(any);
        Schema(Arc::new(inner))
    }

    /// Creates a write with the key's own handler, checked as far as possible without the current value.
    ///
    /// # Errors
    /// [`StateError::UnknownKey`], [`StateError::WrongType`], [`StateError::TooDeep`], or
    /// [`StateError::MessagesAreEvents`] for `messages`.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::state::{Delta, Schema, State};
    ///
    /// let schema = Schema::builder().key::<Vec<i64>>("numbers").build()?;
    /// let mut delta = Delta::new();
    /// delta.push(schema.write("numbers", vec![1, 2])?);
    /// let mut state = State::new(&schema);
    /// state.apply(&delta)?;
    /// assert_eq!(state.get("numbers").unwrap(), serde_json::json!([1, 2]));
    /// # Ok::<(), stepfold_state_core::state::StateError>(())
    /// ```
    pub fn write<V, K: WriteKey<V>>(&self, key: K, value: V) -> Result<Write, StateError> {
        let name = key.name();
        let entry = self.writable(name)?;
        self.checked_write(entry, name, &entry.handler, key.encode(value)?)
    }

    /// Creates a write with another handler than the key's own. A custom one must be registered in this
    /// schema, or the write could not be replayed.
    ///
    /// # Errors
    /// As [`Schema::write`], and [`StateError::UnknownHandler`].
    pub fn write_with<V, K: WriteKey<V>>(
        &self,
        key: K,
        value: V,
        handler: &Handler,
    ) -> Result<Write, StateError> {
        let name = key.name();
        let entry = self.writable(name)?;
        let known = self.registered(handler)?;
        self.checked_write(entry, name, known, key.encode(value)?)
    }

    /// Creates a write that removes a key, which is then unset or has its default.
    ///
    /// # Errors
    /// [`StateError::UnknownKey`], or [`StateError::MessagesAreEvents`] for `messages`.
    pub fn removal(&self, key: &str) -> Result<Write, StateError> {
        let entry = self.writable(key)?;
        Ok(Write::remove(entry.name_for(key)))
    }

    /// Checks writes to a key by a handler (`None`: the key's own), independent of their values.
    ///
    /// # Errors
    /// [`StateError::UnknownKey`], [`StateError::UnknownHandler`], [`StateError::MessagesAreEvents`], or
    /// [`StateError::Merge`] when the handler can never return a value of the key's type.
    pub fn check_write_to(&self, key: &str, handler: Option<&Handler>) -> Result<(), StateError> {
        let entry = self.writable(key)?;
        let handler = self.registered(handler.unwrap_or(&entry.handler))?;
        match handler.type_conflict(&entry.value_type) {
            None => Ok(()),
            Some(message) => Err(StateError::Merge {
                key: key.to_owned(),
                handler: handler.to_string(),
                source: message.into(),
            }),
        }
    }

    /// Merges a write into the stored value of its key, for stores that run handlers themselves. Returns
    /// `None` for a removal of a key without a default. A key that is not stored has its default, as in a
    /// [`State`](super::State).
    ///
    /// # Errors
    /// As [`State::apply_write`](super::State::apply_write).
    pub fn merge(
        &self,
        current: Option<&StoredValue>,
        write: &Write,
    ) -> Result<Option<StoredValue>, StateError> {
        let entry = self.writable(write.key())?;
        let default = match (current, entry.default()) {
            (None, Some(default)) => Some(StoredValue::from(default.clone())),
            _ => None,
        };
        self.fold_write(entry, current.or(default.as_ref()), write)
    }

    /// The items that a write appends to a stored list of `length` items, if it does nothing else, whatever
    /// the current items are: then a store need not read them.
    ///
    /// `None` where the current items matter: handlers other than `merge_lists` and `keep_last`, removals,
    /// lists with rules of their own.
    ///
    /// # Errors
    /// As [`Schema::merge`], for faults of the new items.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_state_core::state::{Handler, Schema};
    ///
    /// let schema = Schema::builder().key::<Vec<i64>>("numbers").build()?;
    /// let growth = schema.growth(&schema.write("numbers", 3)?, 1_000_000)?.expect("it only appends");
    /// assert_eq!(growth.items, [json!(3)]);
    /// assert!(schema.growth(&schema.write_with("numbers", 3, &Handler::union())?, 1)?.is_none());
    /// # Ok::<(), stepfold_state_core::state::StateError>(())
    /// ```
    pub fn growth(&self, write: &Write, length: usize) -> Result<Option<ListAppend>, StateError> {
        let entry = self.writable(write.key())?;
        let WriteChange::Merge { handler, value } = write.change() else { return Ok(None) };
        let handler = handler.resolve(&self.0.handlers)?;
        let Some(keep) = handler.max_items() else { return Ok(None) };
        let items = match entry.merge(write.key(), handler).prepare(value.clone())? {
            Value::Array(items) => items,
            bare => vec![bare],
        };
        let length = length.saturating_add(items.len()).min(keep);
        Ok(entry.value_type.accepts_list_of(length).then_some(ListAppend { items, keep }))
    }

    pub(crate) fn fold_write(
        &self,
        entry: &KeySchema,
        current: Option<&StoredValue>,
        write: &Write,
    ) -> Result<Option<StoredValue>, StateError> {
        match write.change() {
            WriteChange::Merge { handler, value } => {
                let handler = handler.resolve(&self.0.handlers)?;
                entry.merge(write.key(), handler).merge(current, value.clone()).map(Some)
            }
            // NOTE: A key with a default is never unset (docs/decisions/state.md).
            WriteChange::Remove => Ok(entry.default().cloned().map(StoredValue::from)),
        }
    }

    fn checked_write(
        &self,
        entry: &KeySchema,
        name: &str,
        handler: &Handler,
        value: Value,
    ) -> Result<Write, StateError> {
        let handler = handler.resolve(&self.0.handlers)?;
        let value = entry.merge(name, handler).prepare(value)?;
        Ok(Write::merge(entry.name_for(name), handler.clone(), value))
    }

    fn registered<'a>(&'a self, handler: &'a Handler) -> Result<&'a Handler, StateError> {
        match handler.custom_name() {
            // NOTE: A delta with an unregistered handler could not be replayed.
            Some(name) => self.0.handlers.get(name),
            None => Ok(handler),
        }
    }

    fn writable(&self, key: &str) -> Result<&KeySchema, StateError> {
        // NOTE: An event contains its message; a delta with the same message could contradict it.
        if key == MESSAGES {
            return Err(StateError::MessagesAreEvents);
        }
        self.entry(key)
    }

    /// The rules of a key, declared or accepted by an open schema.
    pub(crate) fn entry(&self, key: &str) -> Result<&KeySchema, StateError> {
        if let Some(entry) = self.declared(key) {
            return Ok(entry);
        }
        let Some(undeclared) = &self.0.undeclared else {
            let known = self.keys().map(KeySchema::name).collect();
            return Err(StateError::UnknownKey { key: key.to_owned(), known });
        };
        match fault_of(key).or_else(|| fault_of_reserved(key)) {
            None => Ok(undeclared),
            Some(reason) => Err(StateError::InvalidKey { key: key.to_owned(), reason }),
        }
    }

    pub(crate) fn handlers(&self) -> &Handlers {
        &self.0.handlers
    }

    pub(crate) fn initial(&self) -> &ValueMap {
        &self.0.initial
    }
}

impl KeySchema {
    /// The shared name of a declared key, or a new one for an undeclared key of an open schema.
    pub(crate) fn name_for(&self, key: &str) -> Arc<str> {
        if *self.name == *key { Arc::clone(&self.name) } else { Arc::from(key) }
    }
}

impl PartialEq for Schema {
    /// Schemas are equal when their stored forms are equal.
    fn eq(&self, other: &Self) -> bool {
        // NOTE: Functions of custom handlers cannot be compared; their names are.
        Arc::ptr_eq(&self.0, &other.0) || serde_json::to_value(self).ok() == serde_json::to_value(other).ok()
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.declared_keys();
        let keys = keys.map(|key| (key.name(), format!("{}, {}", key.value_type, key.handler)));
        f.debug_map().entries(keys).finish()
    }
}

/// The form that [`Schema::from_json`] reads; keys are in declaration order.
impl Serialize for Schema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct KeyMap<'a>(&'a [KeySchema]);

        impl Serialize for KeyMap<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.iter().map(|key| (&*key.name, StoredKeySchema::of(key))))
            }
        }

        let mut fields = serializer.serialize_map(Some(3))?;
        fields.serialize_entry("version", &super::stored::SCHEMA_VERSION)?;
        fields.serialize_entry("open", &self.is_open())?;
        fields.serialize_entry("keys", &KeyMap(&self.0.keys))?;
        fields.end()
    }
}

/// Declares the keys of a [`Schema`] in order.
///
/// [`handler`](SchemaBuilder::handler), [`default`](SchemaBuilder::default) and
/// [`description`](SchemaBuilder::description) apply to the last declared key.
#[must_use = "a builder does nothing until it is built"]
pub struct SchemaBuilder {
    keys: Vec<KeyDraft>,
    open: bool,
    handlers: Handlers,
    faults: Issues,
}

/// A declared key, before validation.
struct KeyDraft {
    name: String,
    schema: Value,
    decodes: Option<DecodeCheck>,
    handler: Option<Handler>,
    description: Option<String>,
    default: Option<Value>,
}

impl KeyDraft {
    fn new(name: impl Into<String>, schema: Value) -> Self {
        KeyDraft { name: name.into(), schema, decodes: None, handler: None, description: None, default: None }
    }

    fn of_stored(name: String, key: StoredKeySchema) -> Self {
        KeyDraft {
            handler: key.handler,
            description: key.description,
            default: key.default,
            ..KeyDraft::new(name, key.value_type.unwrap_or(Value::Bool(true)))
        }
    }
}

impl SchemaBuilder {
    /// Declares a key with values of type `T`: give the type and a name, or a [`Key<T>`] constant.
    pub fn key<T: JsonSchema + DeserializeOwned>(mut self, key: impl Into<Key<T>>) -> Self {
        let key = key.into();
        let mut draft = KeyDraft::new(key.name(), key_type(json_schema_of::<T>()));
        draft.decodes = Some(decodes::<T>);
        self.keys.push(draft);
        self
    }

    /// Declares a key by a JSON Schema (draft 2020-12); a bare type name is short for `{"type": ...}`.
    pub fn key_schema(mut self, name: impl Into<String>, schema: Value) -> Self {
        self.keys.push(KeyDraft::new(name, super::stored::expand_type(schema)));
        self
    }

    /// Declares one key for each field of a struct; see [`Schema::of`]. Several structs can be combined.
    pub fn fields<T: JsonSchema>(mut self) -> Self {
        let mut schema = json_schema_of::<T>();
        // NOTE: A recursive field refers to definitions of the whole struct.
        let whole = schema.clone();
        let Some(Value::Object(fields)) = schema.get_mut("properties").map(Value::take) else {
            self.faults.push(Issue::new(std::any::type_name::<T>(), "expected a struct with named fields"));
            return self;
        };
        for (name, field) in fields {
            match draft_of_field(name, field, &whole) {
                Ok(draft) => self.keys.push(draft),
                Err(fault) => self.faults.push(fault),
            }
        }
        self
    }

    /// Sets the handler of the last declared key. A custom handler is registered, too.
    pub fn handler(self, handler: Handler) -> Self {
        self.amend("handler", |draft| {
            draft.handler = Some(handler);
            Ok(())
        })
    }

    /// Sets the default of the last declared key: its initial value.
    pub fn default(self, value: impl Serialize) -> Self {
        self.amend("default", |draft| {
            draft.default = Some(encode(&draft.name, &value).map_err(|error| error.to_string())?);
            Ok(())
        })
    }

    /// Sets the description of the last declared key.
    pub fn description(self, text: impl Into<String>) -> Self {
        self.amend("description", |draft| {
            draft.description = Some(text.into());
            Ok(())
        })
    }

    /// Accepts undeclared keys, of any type, merged by `replace_values`.
    pub fn open(mut self) -> Self {
        self.open = true;
        self
    }

    /// Registers a custom handler, for fields that name it and for writes that use it.
    pub fn register(mut self, handler: Handler) -> Self {
        if let Err(message) = self.handlers.register(&handler) {
            self.faults.push(Issue::new(format!("handler {handler}"), message));
        }
        self
    }

    /// Registers custom handlers.
    pub fn handlers(mut self, handlers: &Handlers) -> Self {
        for handler in handlers.iter() {
            self = self.register(handler.clone());
        }
        self
    }

    /// Validates the declarations and builds the schema.
    ///
    /// # Errors
    /// [`StateError::InvalidSchema`] with all faults: an invalid, reserved or duplicate key, a type that is
    /// not a valid JSON Schema or matches no value, a handler that can never return a value of the type, an
    /// invalid default.
    /// [`StateError::UnknownHandler`] for a handler that is neither built in nor registered.
    pub fn build(mut self) -> Result<Schema, StateError> {
        // NOTE: First for all keys: a key may name the custom handler of another one.
        for draft in &self.keys {
            if let Some(Err(message)) = draft.handler.as_ref().map(|handler| self.handlers.register(handler))
            {
                self.faults.push(Issue::new(&draft.name, message));
            }
        }
        let mut keys: Vec<KeySchema> = Vec::with_capacity(self.keys.len());
        let mut index = BTreeMap::new();
        let mut initial = ValueMap::new_sync();
        for draft in self.keys {
            if draft.name == MESSAGES && is_message_list(&draft.schema) {
                self.faults.extend(fault_of_messages(&draft));
                continue;
            }
            let key = match finish_key(draft, &self.handlers)? {
                Ok(key) => key,
                Err(fault) => {
                    self.faults.push(fault);
                    continue;
                }
            };
            if let Some(value) = &key.default {
                initial.insert_mut(Arc::clone(&key.name), StoredValue::from(value.clone()));
            }
            if index.insert(Arc::clone(&key.name), keys.len()).is_some() {
                self.faults.push(Issue::new(key.name(), "duplicate key"));
            }
            keys.push(key);
        }
        if !self.faults.is_empty() {
            return Err(StateError::InvalidSchema { faults: self.faults });
        }
        let undeclared = self.open.then(undeclared_key);
        Ok(Schema(Arc::new(SchemaDefinition { keys, index, undeclared, handlers: self.handlers, initial })))
    }

    fn amend(mut self, what: &str, change: impl FnOnce(&mut KeyDraft) -> Result<(), String>) -> Self {
        let result = match self.keys.last_mut() {
            Some(draft) => change(draft).map_err(|message| Issue::new(&draft.name, message)),
            None => Err(Issue::new(what, "must follow the declaration of a key")),
        };
        if let Err(fault) = result {
            self.faults.push(fault);
        }
        self
    }
}

impl fmt::Debug for SchemaBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|draft| &draft.name)).finish()
    }
}

/// Prepares the type of a key, or returns the fault of its declaration.
fn finish_key(draft: KeyDraft, handlers: &Handlers) -> Result<Result<KeySchema, Issue>, StateError> {
    let fault = |message: String| Ok(Err(Issue::new(&draft.name, message)));
    if let Some(reason) = fault_of(&draft.name).or_else(|| fault_of_reserved(&draft.name)) {
        return fault(reason.to_owned());
    }
    let value_type = match ValueType::new(draft.schema, draft.decodes) {
        Ok(value_type) => value_type,
        Err(message) => return fault(format!("invalid JSON Schema: {message}")),
    };
    let handler = match &draft.handler {
        Some(handler) => handler.resolve(handlers)?.clone(),
        None => Handler::default_for(&value_type),
    };
    if let Some(message) = handler.type_conflict(&value_type) {
        return fault(format!("invalid handler {handler}: {message}"));
    }
    let name: Arc<str> = draft.name.as_str().into();
    let value_type = Arc::new(value_type);
    let key = KeySchema { name, value_type, handler, description: draft.description, default: draft.default };
    if let Some(default) = &key.default {
        let whole = key.merge(&key.name, &key.handler);
        if let Err(error) = whole.check_depth(default).and_then(|()| whole.check_whole(default)) {
            return Ok(Err(Issue::new(key.name(), format!("invalid default: {error}"))));
        }
    }
    Ok(Ok(key))
}

fn fault_of_reserved(key: &str) -> Option<&'static str> {
    if key == MESSAGES {
        return Some("\"messages\" is a list of messages and cannot be declared with another type");
    }
    RESERVED_KEYS.contains(&key).then_some("the name is reserved for the outcome of a run")
}

/// An option that `messages` does not support, in a declaration with the right type.
fn fault_of_messages(draft: &KeyDraft) -> Option<Issue> {
    if draft.handler.as_ref().is_some_and(|handler| *handler != Handler::merge_lists()) {
        return Some(Issue::new(MESSAGES, "messages are always appended: the handler cannot be changed"));
    }
    let is_empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    let has_default = draft.default.as_ref().is_some_and(|default| !is_empty(default));
    has_default.then(|| Issue::new(MESSAGES, "a conversation begins empty: the default cannot be set"))
}

/// The declaration of the conversation, in every schema.
fn messages_key() -> &'static KeySchema {
    static KEY: LazyLock<KeySchema> = LazyLock::new(|| {
        let schema = json_schema_of::<Vec<Message>>();
        // NOTE: Compiling it took most of the start of a small process (docs/decisions/tools.md).
        let value_type = ValueType::of_internal(schema, decodes::<Vec<Message>>)
            .unwrap_or_else(|fault| unreachable!("the type of a conversation is valid: {fault}"));
        KeySchema {
            name: MESSAGES.into(),
            value_type: Arc::new(value_type),
            handler: Handler::merge_lists(),
            description: Some("The conversation.".to_owned()),
            default: None,
        }
    });
    &KEY
}

fn undeclared_key() -> KeySchema {
    KeySchema {
        // NOTE: Never shown: the actual key is passed with each merge.
        name: "".into(),
        value_type: Arc::new(ValueType::anything()),
        handler: Handler::replace_values(),
        description: None,
        default: None,
    }
}

/// The declaration from a field's schema: extensions are removed from it, the type stays.
fn draft_of_field(name: String, mut field: Value, whole: &Value) -> Result<KeyDraft, Issue> {
    let mut take = |extension: &str| field.as_object_mut().and_then(|fields| fields.remove(extension));
    let (handler, description, default) = (take(HANDLER_EXTENSION), take("description"), take("default"));
    let handler = match handler {
        None => None,
        Some(Value::String(text)) => match text.parse() {
            Ok(handler) => Some(handler),
            Err(error) => return Err(Issue::new(name, format!("{error}"))),
        },
        Some(_) => return Err(Issue::new(name, "expected a handler's name, a string, for x-handler")),
    };
    let description = description.and_then(|text| text.as_str().map(str::to_owned));
    Ok(KeyDraft { handler, description, default, ..KeyDraft::new(name, standalone(field, whole)) })
}

/// The type of a key, without the title that schemars generates for unnamed types.
fn key_type(mut schema: Value) -> Value {
    let is_named = schema.get("properties").is_some();
    if let Some(fields) = schema.as_object_mut().filter(|_| !is_named) {
        fields.remove("title");
    }
    schema
}

/// Whether a declaration of `messages` matches the built-in one.
fn is_message_list(schema: &Value) -> bool {
    // NOTE: An author's title and description do not change the type.
    let plain = |schema: &Value| {
        let mut schema = schema.clone();
        if let Some(fields) = schema.as_object_mut() {
            fields.retain(|name, _| !matches!(name.as_str(), "title" | "description"));
        }
        schema
    };
    let is_list =
        schema.get("type").is_some_and(|kind| *kind == json!("array") || *kind == json!(["array", "null"]));
    is_list && schema.get("items").map(plain) == Some(plain(&json_schema_of::<Message>()))
}

/// Checks whether the typed reader can read the value.
fn decodes<T: DeserializeOwned>(value: &Value) -> Result<(), Issue> {
    decode::<T>(value).map(drop).map_err(Issue::from)
}
