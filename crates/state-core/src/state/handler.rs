//! Merge handlers (reducers): named pure functions from the current and the new value to the merged one.
//!
//! Schemas and deltas store a handler by name only. So a custom handler must be registered under its name
//! wherever they are loaded, and an unknown name is an error.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::error::{HandlerError, StateError};
use crate::decode::decode;
use crate::faults::Issue;
use crate::json_schema::{ValueKinds, ValueType};

/// Merges a write into the current value of a key: a *reducer*.
///
/// | name | merges | an absent or null current value |
/// |---|---|---|
/// | `replace_values` | the new value replaces the current one (the default for all other types) | |
/// | `merge_lists` | appends the new items, or a new bare item (the default for arrays that can grow) | is `[]` |
/// | `union` | appends the items that are not in the list; 1 and 1.0 differ | is `[]` |
/// | `upsert_by(field)` | merges objects shallowly into those with the same value of `field`, appends others;
/// a bare null, where the type allows it, replaces all | is `[]` |
/// | `keep_last(n)` | `merge_lists`, then only the last n items stay | is `[]` |
/// | `merge_maps` | shallow merge of objects, new fields win | is `{}` |
/// | `sum` | adds numbers; an integer that does not fit 64 bits is an error | is 0 |
/// | `max`, `min` | the larger or smaller of two numbers or two strings | loses |
/// | `first_wins` | the first value stays | loses |
///
/// Lists grow at a cost in proportion to the new items, except that `union` and `upsert_by` search the
/// current ones. `merge_maps` copies the current object.
///
/// `merge_lists` and `replace_values` are those of Haystack 2.31 ("State"); the rules for null and for values
/// that are not lists are explained in `docs/decisions/state.md`.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::state::{Handler, Schema, State};
///
/// let schema = Schema::builder()
///     .key::<u64>("visits").handler(Handler::sum())
///     .key::<Vec<serde_json::Value>>("tasks").handler(Handler::upsert_by("id"))
///     .build()?;
/// let mut state = State::new(&schema);
/// state.set("visits", 1)?;
/// state.set("visits", 2)?;
/// state.set("tasks", json!([{"id": 1, "status": "running"}, {"id": 2, "status": "new"}]))?;
/// state.set("tasks", json!({"id": 1, "status": "completed"}))?;
/// assert_eq!(state.get("visits").unwrap(), json!(3));
/// assert_eq!(state.get("tasks").unwrap(), json!([{"id": 1, "status": "completed"}, {"id": 2, "status": "new"}]));
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
#[doc(alias("reducer", "merge"))]
#[derive(Clone)]
pub struct Handler(pub(crate) MergeRule);

#[derive(Clone)]
pub(crate) enum MergeRule {
    ReplaceValues,
    MergeLists,
    Union,
    UpsertBy(Arc<str>),
    KeepLast(usize),
    MergeMaps,
    Sum,
    Max,
    Min,
    FirstWins,
    Custom(CustomHandler),
}

/// A custom handler; without a function it is a parsed name that is not resolved yet.
#[derive(Clone)]
pub(crate) struct CustomHandler {
    pub(crate) name: Arc<str>,
    pub(crate) merge: Option<Arc<MergeFunction>>,
}

type MergeFunction = dyn Fn(Option<&Value>, Value) -> Result<Value, HandlerError> + Send + Sync;

const NAMES: [&str; 10] = [
    "replace_values",
    "merge_lists",
    "union",
    "upsert_by(field)",
    "keep_last(n)",
    "merge_maps",
    "sum",
    "max",
    "min",
    "first_wins",
];

impl Handler {
    /// The new value replaces the current one.
    pub fn replace_values() -> Self {
        Handler(MergeRule::ReplaceValues)
    }

    /// Appends the new items; a value that is not a list counts as one item.
    ///
    /// # Examples
    /// The default for arrays:
    /// ```
    /// use serde_json::json;
    /// use stepfold_state_core::state::{Schema, State};
    ///
    /// let schema = Schema::builder().key::<Vec<i64>>("documents").key::<String>("user_name").build()?;
    /// let mut state = State::new(&schema);
    /// state.set("documents", vec![1, 2])?;
    /// state.set("documents", vec![3, 4])?;
    /// assert_eq!(state.get("documents").unwrap(), json!([1, 2, 3, 4]));
    /// state.set("user_name", "Alice")?;
    /// state.set("user_name", "Bob")?;
    /// assert_eq!(state.get("user_name").unwrap(), "Bob");
    /// # Ok::<(), stepfold_state_core::state::StateError>(())
    /// ```
    pub fn merge_lists() -> Self {
        Handler(MergeRule::MergeLists)
    }

    /// Appends the items that are not in the list, by strict JSON equality.
    pub fn union() -> Self {
        Handler(MergeRule::Union)
    }

    /// Merges objects into those with the same value of `field`, and appends others.
    pub fn upsert_by(field: impl Into<Arc<str>>) -> Self {
        Handler(MergeRule::UpsertBy(field.into()))
    }

    /// Appends the new items and keeps the last `count`; a schema rejects a count of zero.
    pub fn keep_last(count: usize) -> Self {
        Handler(MergeRule::KeepLast(count))
    }

    /// Merges objects shallowly; new fields win.
    pub fn merge_maps() -> Self {
        Handler(MergeRule::MergeMaps)
    }

    /// Adds numbers. Two sessions that each add 1 give 2, in any commit order.
    pub fn sum() -> Self {
        Handler(MergeRule::Sum)
    }

    /// Keeps the larger of two numbers or of two strings.
    pub fn max() -> Self {
        Handler(MergeRule::Max)
    }

    /// Keeps the smaller of two numbers or of two strings.
    pub fn min() -> Self {
        Handler(MergeRule::Min)
    }

    /// Keeps the first non-null value.
    pub fn first_wins() -> Self {
        Handler(MergeRule::FirstWins)
    }

    /// A custom handler with a name: a letter or `_`, then letters, digits, `_`, `-`, `.`.
    ///
    /// `merge` must be pure: equal arguments must give equal results, or a replay diverges from the run. Its
    /// arguments are the current value (`None` if the key is unset) as plain JSON, which copies a list, and
    /// the new value; its result is checked against the declared type. The name is checked when the handler
    /// is used in a schema.
    ///
    /// `merge` must not block: no I/O, no long-held lock, no sleep. It runs on a worker thread of the async
    /// runtime; with PostgreSQL, inside a transaction that holds row locks, so a blocking handler delays
    /// other tasks and other writers of the same scope.
    ///
    /// # Examples
    /// ```
    /// use serde_json::{Value, json};
    /// use stepfold_state_core::state::{Handler, Schema, State};
    ///
    /// // Merges and sorts lists.
    /// let sorted = Handler::custom("sorted_merge", |current, new| {
    ///     let mut numbers: Vec<i64> = Vec::new();
    ///     for value in [current.cloned().unwrap_or(Value::Null), new] {
    ///         match value {
    ///             Value::Array(items) => numbers.extend(items.iter().filter_map(Value::as_i64)),
    ///             other => numbers.extend(other.as_i64()),
    ///         }
    ///     }
    ///     numbers.sort_unstable();
    ///     Ok(json!(numbers))
    /// });
    /// let mut state = State::new(&Schema::builder().key::<Vec<i64>>("numbers").handler(sorted).build()?);
    /// state.set("numbers", vec![3, 1])?;
    /// state.set("numbers", vec![2, 4])?;
    /// assert_eq!(state.get("numbers").unwrap(), json!([1, 2, 3, 4]));
    /// # Ok::<(), stepfold_state_core::state::StateError>(())
    /// ```
    pub fn custom<F>(name: impl Into<Arc<str>>, merge: F) -> Self
    where
        F: Fn(Option<&Value>, Value) -> Result<Value, HandlerError> + Send + Sync + 'static,
    {
        Handler(MergeRule::Custom(CustomHandler { name: name.into(), merge: Some(Arc::new(merge)) }))
    }

    /// A custom handler of typed values.
    ///
    /// `merge` gets the current value, `None` if the key is unset or null, and the new one. A value that does not fit `T` is
    /// an error of the handler that quotes neither the value nor its keys. A number that JSON does not have, such as an
    /// infinity, becomes null. The name and `merge` follow the rules of
    /// [`custom`](Handler::custom).
    ///
    /// # Examples
    /// ```
    /// use serde::{Deserialize, Serialize};
    /// use serde_json::json;
    /// use stepfold_state_core::state::{Handler, Schema, State};
    ///
    /// #[derive(Deserialize, Serialize, schemars::JsonSchema)]
    /// struct Ticket {
    ///     id: u32,
    ///     open: bool,
    /// }
    ///
    /// // Appends new tickets, and forgets those that are closed.
    /// let open_only = Handler::of::<Vec<Ticket>>("open_only", |current, new| {
    ///     let mut tickets = current.unwrap_or_default();
    ///     tickets.extend(new);
    ///     tickets.retain(|ticket| ticket.open);
    ///     Ok(tickets)
    /// });
    /// let mut state = State::new(&Schema::builder().key::<Vec<Ticket>>("tickets").handler(open_only).build()?);
    /// state.set("tickets", json!([{"id": 1, "open": true}, {"id": 2, "open": false}]))?;
    /// state.set("tickets", json!([{"id": 3, "open": true}]))?;
    /// assert_eq!(state.get("tickets").unwrap(), json!([{"id": 1, "open": true}, {"id": 3, "open": true}]));
    /// # Ok::<(), stepfold_state_core::state::StateError>(())
    /// ```
    pub fn of<T: DeserializeOwned + Serialize>(
        name: impl Into<Arc<str>>,
        merge: impl Fn(Option<T>, T) -> Result<T, HandlerError> + Send + Sync + 'static,
    ) -> Self {
        Handler::custom(name, move |current, new| {
            let current = current.filter(|current| !current.is_null()).map(decode).transpose();
            let current =
                current.map_err(|error| format!("invalid current value: {}", HandlerError::from(error)))?;
            let new =
                decode(&new).map_err(|error| format!("invalid new value: {}", HandlerError::from(error)))?;
            Ok(serde_json::to_value(merge(current, new)?)?)
        })
    }

    /// The stored name of the handler, with its parameter: `upsert_by(id)`.
    pub fn name(&self) -> String {
        self.to_string()
    }

    /// The name of a custom handler; `None` for a built-in one.
    pub(crate) fn custom_name(&self) -> Option<&str> {
        match &self.0 {
            MergeRule::Custom(custom) => Some(&custom.name),
            _ => None,
        }
    }

    /// The reason why the handler cannot be registered, if it cannot.
    fn fault_of_function(&self) -> Option<String> {
        match &self.0 {
            MergeRule::Custom(CustomHandler { merge: Some(_), .. }) => None,
            MergeRule::Custom(_) => {
                Some("missing function: create the handler with `Handler::custom`".to_owned())
            }
            _ => Some("built-in handlers must not be registered".to_owned()),
        }
    }

    /// The maximum number of items, for handlers that only append.
    pub(crate) fn max_items(&self) -> Option<usize> {
        match self.0 {
            MergeRule::MergeLists => Some(usize::MAX),
            MergeRule::KeepLast(count) => Some(count),
            _ => None,
        }
    }

    /// The default for a declared type: `merge_lists` for arrays (or null) that can grow, otherwise
    /// `replace_values`.
    pub(crate) fn default_for(value_type: &ValueType) -> Self {
        if value_type.is_growable_list() { Handler::merge_lists() } else { Handler::replace_values() }
    }

    /// The reason why the handler is invalid for every key, if so.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        match &self.0 {
            MergeRule::KeepLast(0) => Some("the number of kept items must be at least 1"),
            MergeRule::UpsertBy(field) if field.is_empty() => Some("missing field name"),
            _ => None,
        }
    }

    /// The reason why the handler can never return a value of the type, if so; it is written after the handler's name.
    pub(crate) fn type_conflict(&self, value_type: &ValueType) -> Option<String> {
        if let Some(fault) = self.fault() {
            return Some(fault.to_owned());
        }
        let needed = match &self.0 {
            // NOTE: They may return any type; each result is checked.
            MergeRule::ReplaceValues | MergeRule::FirstWins | MergeRule::Custom(_) => return None,
            MergeRule::MergeLists | MergeRule::Union | MergeRule::UpsertBy(_) | MergeRule::KeepLast(_) => {
                ValueKinds::ARRAY
            }
            MergeRule::MergeMaps => ValueKinds::OBJECT,
            MergeRule::Sum => ValueKinds::NUMBER,
            MergeRule::Max | MergeRule::Min => ValueKinds::NUMBER.union(ValueKinds::STRING),
        };
        let fits = value_type.kinds().meets(needed);
        (!fits).then(|| format!("requires {needed}, found {value_type}"))
    }

    /// The handler with its function: itself, or the registered one for a parsed name.
    pub(crate) fn resolve<'a>(&'a self, handlers: &'a Handlers) -> Result<&'a Handler, StateError> {
        match &self.0 {
            MergeRule::Custom(CustomHandler { name, merge: None }) => handlers.get(name),
            _ => Ok(self),
        }
    }
}

impl PartialEq for Handler {
    /// Handlers are equal when their stored forms are equal.
    fn eq(&self, other: &Self) -> bool {
        // NOTE: By rule where possible: comparing stored forms would format both at each comparison.
        match (&self.0, &other.0) {
            (MergeRule::Custom(_), _) | (_, MergeRule::Custom(_)) => self.to_string() == other.to_string(),
            (MergeRule::UpsertBy(mine), MergeRule::UpsertBy(theirs)) => mine == theirs,
            (MergeRule::KeepLast(mine), MergeRule::KeepLast(theirs)) => mine == theirs,
            (mine, theirs) => std::mem::discriminant(mine) == std::mem::discriminant(theirs),
        }
    }
}

impl Eq for Handler {}

impl fmt::Display for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            MergeRule::ReplaceValues => f.write_str("replace_values"),
            MergeRule::MergeLists => f.write_str("merge_lists"),
            MergeRule::Union => f.write_str("union"),
            MergeRule::UpsertBy(field) => write!(f, "upsert_by({field})"),
            MergeRule::KeepLast(count) => write!(f, "keep_last({count})"),
            MergeRule::MergeMaps => f.write_str("merge_maps"),
            MergeRule::Sum => f.write_str("sum"),
            MergeRule::Max => f.write_str("max"),
            MergeRule::Min => f.write_str("min"),
            MergeRule::FirstWins => f.write_str("first_wins"),
            MergeRule::Custom(custom) => f.write_str(&custom.name),
        }
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handler({self})")
    }
}

/// Parses a handler's name. An unknown name is taken as a custom handler, which a schema looks up among its
/// registered handlers.
impl FromStr for Handler {
    type Err = StateError;

    fn from_str(name: &str) -> Result<Self, StateError> {
        let unknown =
            || StateError::UnknownHandler { name: name.to_owned(), known: NAMES.into_iter().collect() };
        let parameter =
            |prefix: &str| name.strip_prefix(prefix)?.strip_suffix(')').filter(|text| !text.is_empty());
        let rule = match name {
            "replace_values" => MergeRule::ReplaceValues,
            "merge_lists" => MergeRule::MergeLists,
            "union" => MergeRule::Union,
            "merge_maps" => MergeRule::MergeMaps,
            "sum" => MergeRule::Sum,
            "max" => MergeRule::Max,
            "min" => MergeRule::Min,
            "first_wins" => MergeRule::FirstWins,
            _ => {
                if let Some(field) = parameter("upsert_by(") {
                    MergeRule::UpsertBy(field.into())
                } else if let Some(count) = parameter("keep_last(") {
                    MergeRule::KeepLast(count.parse().map_err(|_| unknown())?)
                } else if is_custom_name(name) {
                    // NOTE: A text does not know the registered handlers; a schema resolves the name.
                    MergeRule::Custom(CustomHandler { name: name.into(), merge: None })
                } else {
                    return Err(unknown());
                }
            }
        };
        Ok(Handler(rule))
    }
}

/// Whether a custom handler may have this name: not a built-in one, and parsable.
fn is_custom_name(name: &str) -> bool {
    // NOTE: Without the parameter: `keep_last` alone must not become the name of a custom handler.
    let built_in = NAMES.iter().any(|known| known.split('(').next() == Some(name));
    let starts_well = name.starts_with(|first: char| first.is_alphabetic() || first == '_');
    let is_plain = |character: char| character.is_alphanumeric() || matches!(character, '_' | '-' | '.');
    starts_well && !built_in && name.chars().all(is_plain)
}

impl Serialize for Handler {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Handler {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Custom handlers by name, required to load a schema or to replay a delta.
///
/// # Examples
/// ```
/// use stepfold_state_core::state::{Handler, Handlers, Schema};
///
/// let stored = r#"{"version": 1, "keys": {"note": {"type": "string", "handler": "join"}}}"#;
/// assert!(Schema::from_json(stored, &Handlers::new()).is_err());
///
/// let handlers = Handlers::new().with(Handler::custom("join", |_, new| Ok(new)))?;
/// assert!(Schema::from_json(stored, &handlers).is_ok());
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Handlers(BTreeMap<Arc<str>, Handler>);

impl Handlers {
    /// No custom handlers: only the built-in ones are known.
    pub fn new() -> Self {
        Handlers::default()
    }

    /// Registers a custom handler. Built-in ones need no registration.
    ///
    /// # Errors
    /// [`StateError::InvalidSchema`] when its name is invalid, or registered with another function.
    #[expect(clippy::needless_pass_by_value, reason = "a handler is created where it is registered")]
    pub fn with(mut self, handler: Handler) -> Result<Self, StateError> {
        match handler.fault_of_function().map_or_else(|| self.register(&handler), Err) {
            Ok(()) => Ok(self),
            Err(message) => Err(StateError::InvalidSchema {
                faults: Issue::new(format!("handler {handler}"), message).into(),
            }),
        }
    }

    /// Registers the function of a custom handler, or returns the reason why it cannot be.
    pub(crate) fn register(&mut self, handler: &Handler) -> Result<(), String> {
        // NOTE: Built-in handlers need no registration, and a parsed name is resolved later.
        let MergeRule::Custom(CustomHandler { name, merge: Some(merge) }) = &handler.0 else { return Ok(()) };
        if !is_custom_name(name) {
            return Err(format!(
                "invalid handler name \"{name}\": expected a letter or '_', then letters, digits, '_', '-' or '.', \
                 and not the name of a built-in handler"
            ));
        }
        // NOTE: Functions can be compared by pointer only; clones of one handler, for several keys, share theirs.
        match self.0.get(name).map(|known| &known.0) {
            Some(MergeRule::Custom(CustomHandler { merge: Some(known), .. }))
                if !Arc::ptr_eq(known, merge) =>
            {
                Err(format!("duplicate handler \"{name}\": two functions have this name"))
            }
            _ => {
                self.0.insert(Arc::clone(name), handler.clone());
                Ok(())
            }
        }
    }

    pub(crate) fn get(&self, name: &str) -> Result<&Handler, StateError> {
        self.0.get(name).ok_or_else(|| StateError::UnknownHandler {
            name: name.to_owned(),
            known: NAMES.into_iter().chain(self.0.keys().map(|name| &**name)).collect(),
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Handler> {
        self.0.values()
    }
}
