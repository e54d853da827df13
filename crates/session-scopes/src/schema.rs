//! The schema of an opened session, and the migration of values stored with another schema.
//!
//! A stored value is only examined when its declared type changed: it fits, or a registered migration
//! converts it, or it is an error with the key and both types. The value of an undeclared key stays in the
//! store, invisible.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use stepfold_state_core::json_schema::{ValueKinds, ValueType};
use stepfold_state_core::state::{
    Handler, HandlerError, Issues, KeySchema, Schema, StateError, StoredValue, Write,
};

use crate::error::SessionError;
use crate::scope::{Scope, split};

type ValueConverter = dyn Fn(Value) -> Result<Option<Value>, HandlerError> + Send + Sync;

/// A [`Schema`] with migrations for values that were stored under an earlier one. Cloning is O(1): make it
/// once and hand it to every operation.
///
/// # Examples
/// ```
/// use serde_json::{Value, json};
/// use stepfold_session_scopes::SessionSchema;
/// use stepfold_state_core::state::Schema;
///
/// // `tag` was a string once.
/// let schema = Schema::builder().key::<Vec<String>>("tag").build()?;
/// let schema = SessionSchema::new(schema).migration("tag", |old| Ok(json!([old])));
/// assert!(schema.schema().key("tag").is_some());
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
#[derive(Clone)]
pub struct SessionSchema(Arc<SchemaInner>);

#[derive(Clone)]
struct SchemaInner {
    schema: Schema,
    text: Arc<str>,
    migrations: BTreeMap<String, Arc<ValueConverter>>,
    /// Whether a value that does not fit is hidden in place of an error.
    hides_misfits: bool,
    /// The parsed schemas of stored values, most recently used first.
    stored: Arc<Mutex<Vec<ParsedSchema>>>,
}

/// The number of parsed schemas of stored values that are cached.
const KNOWN_SCHEMAS: usize = 8;

/// The parsed schema of stored values.
#[derive(Clone)]
struct ParsedSchema {
    text: Arc<str>,
    schema: Arc<Value>,
}

impl SessionSchema {
    /// A schema without migrations.
    pub fn new(schema: Schema) -> Self {
        // NOTE: a schema has string keys and plain values, so its serialization does not fail.
        let text = serde_json::to_string(&schema).unwrap_or_default();
        let (migrations, stored) = (BTreeMap::new(), Arc::default());
        SessionSchema(Arc::new(SchemaInner {
            schema,
            text: text.into(),
            migrations,
            hides_misfits: false,
            stored,
        }))
    }

    /// Converts the value of a key that was stored under another type and does not fit the one declared
    /// now. `convert` must be pure; it may run more than once.
    #[must_use]
    pub fn migration<F>(self, key: impl Into<String>, convert: F) -> Self
    where
        F: Fn(Value) -> Result<Value, HandlerError> + Send + Sync + 'static,
    {
        self.optional_migration(key, move |old| convert(old).map(Some))
    }

    /// Whether values of a key are converted that were stored under another type.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_session_scopes::SessionSchema;
    ///
    /// let schema = SessionSchema::new(Default::default()).migration("tag", |old| Ok(json!([old])));
    /// assert!(schema.has_migration("tag") && !schema.has_migration("area"));
    /// ```
    pub fn has_migration(&self, key: &str) -> bool {
        self.0.migrations.contains_key(key)
    }

    /// As [`migration`](Self::migration), for values that cannot always be converted: if `convert` returns
    /// `None`, the key is unset. The stored value stays until the key is written again.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_session_scopes::SessionSchema;
    /// use stepfold_state_core::state::Schema;
    ///
    /// // `areas` was text before; text that is not a number is dropped.
    /// let schema = Schema::builder().key::<u64>("areas").build()?;
    /// let schema = SessionSchema::new(schema)
    ///     .optional_migration("areas", |old| Ok(old.as_str().and_then(|text| text.parse::<u64>().ok()).map(|areas| json!(areas))));
    /// # Ok::<(), stepfold_state_core::state::StateError>(())
    /// ```
    #[must_use]
    pub fn optional_migration<F>(mut self, key: impl Into<String>, convert: F) -> Self
    where
        F: Fn(Value) -> Result<Option<Value>, HandlerError> + Send + Sync + 'static,
    {
        Arc::make_mut(&mut self.0).migrations.insert(key.into(), Arc::new(convert));
        self
    }

    /// The same for a reader that needs no value: those that neither fit nor are converted are unset in place of an error.
    /// The stored values stay.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_session_scopes::{Adopted, SessionSchema};
    /// use stepfold_state_core::state::Schema;
    ///
    /// let before = SessionSchema::new(Schema::builder().key::<String>("areas").build()?);
    /// let schema = SessionSchema::new(Schema::builder().key::<u64>("areas").build()?);
    /// let stored = json!("north").into();
    /// assert!(schema.adopt("areas", &stored, before.text()).is_err());
    /// assert!(matches!(schema.hiding_misfits().adopt("areas", &stored, before.text())?, Adopted::Hidden));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn hiding_misfits(&self) -> Self {
        let mut schema = self.clone();
        Arc::make_mut(&mut schema.0).hides_misfits = true;
        schema
    }

    /// A schema that reads each stored value as it is: of the same keys, [for any type](Schema::untyped), without migrations.
    #[must_use]
    pub fn untyped(&self) -> Self {
        SessionSchema::new(self.schema().untyped())
    }

    /// The schema itself.
    pub fn schema(&self) -> &Schema {
        &self.0.schema
    }

    /// The JSON of the schema, stored with values written with it.
    pub fn text(&self) -> &Arc<str> {
        &self.0.text
    }

    /// Converts a value that was written with the schema `stored` (JSON) to this one.
    ///
    /// # Errors
    /// [`SessionError::SchemaMismatch`], or [`SessionError::Migration`].
    pub fn adopt(&self, key: &str, cell: &StoredValue, stored: &str) -> Result<Adopted, SessionError> {
        if *self.0.text == *stored {
            return Ok(Adopted::Same);
        }
        let Some(declared) = self.schema().key(key) else {
            return Ok(if self.schema().is_open() { Adopted::Same } else { Adopted::Hidden });
        };
        let stored_type = self.stored_type(key, stored);
        if stored_type.as_ref() == Some(declared.json_schema()) {
            return Ok(Adopted::Same);
        }
        let value = cell.view().to_json();
        // NOTE: a value that happens to fit is kept even if its type has changed: most changes of a schema only widen
        // types.
        let Err(misfit) = declared.check(&value) else { return Ok(Adopted::Same) };
        match self.convert(key, &value, declared, (stored_type, misfit)) {
            Err(_) if self.0.hides_misfits => Ok(Adopted::Hidden),
            adopted => adopted,
        }
    }

    /// Converts a value that does not fit.
    fn convert(
        &self,
        key: &str,
        value: &Value,
        declared: &KeySchema,
        (stored_type, misfit): (Option<Value>, StateError),
    ) -> Result<Adopted, SessionError> {
        let mismatch = |misfit| mismatch(key, value, stored_type.as_ref(), misfit);
        let Some(convert) = self.0.migrations.get(key) else { return Err(mismatch(misfit)) };
        let converted = convert(value.clone())
            .map_err(|source| SessionError::Migration { key: key.to_owned(), source })?;
        let Some(converted) = converted else { return Ok(Adopted::Hidden) };
        declared.check(&converted).map_err(mismatch)?;
        Ok(Adopted::Converted(StoredValue::from(converted)))
    }

    /// The type that a stored schema declares for a key.
    fn stored_type(&self, key: &str, stored: &str) -> Option<Value> {
        self.read_stored(stored)?.get("keys")?.get(key)?.get("type").cloned()
    }

    /// The parsed schema of this text, cached: the values of a session were mostly written with few schemas,
    /// in any order.
    fn read_stored(&self, text: &str) -> Option<Arc<Value>> {
        let mut known = self.0.stored.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = known.iter().position(|stored| *stored.text == *text) {
            // NOTE: most recently used first: the values of a session were mostly written with few schemas, so a search of
            // eight entries suffices.
            known[..=place].rotate_right(1);
        } else {
            let schema = Arc::new(serde_json::from_str(text).ok()?);
            known.truncate(KNOWN_SCHEMAS - 1);
            known.insert(0, ParsedSchema { text: text.into(), schema });
        }
        known.first().map(|stored| Arc::clone(&stored.schema))
    }

    /// Whether a value written with the schema `stored` fits without examining it.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn has_type_of(&self, key: &str, stored: &str) -> bool {
        let declared = || self.schema().key(key).map(|declared| declared.json_schema().clone());
        *self.0.text == *stored || declared() == self.stored_type(key, stored)
    }

    /// The writes that a new session begins with: given values, and the defaults of the session's own keys.
    ///
    /// Values of the session's own keys are set directly; those of `app:` and `user:` are merged by their
    /// handlers, since there may be values. Those of `temp:` are validated and dropped.
    ///
    /// # Errors
    /// As `State::set`, for the first value that does not fit.
    pub fn initial_writes(&self, values: &serde_json::Map<String, Value>) -> Result<Vec<Write>, StateError> {
        let replace = Handler::replace_values();
        let mut writes = Vec::new();
        for key in self.schema().declared_keys() {
            if let (Scope::Session, Some(default)) = (Scope::of(key.name()), key.default())
                && !values.contains_key(key.name())
            {
                writes.push(self.schema().write_with(key.name(), default.clone(), &replace)?);
            }
        }
        for (key, value) in values {
            let write = match Scope::of(key) {
                Scope::Session => self.schema().write_with(key.as_str(), value.clone(), &replace)?,
                // NOTE: other sessions may have written these scopes, so a new session merges its values by the handlers
                // and does not replace theirs.
                Scope::App | Scope::User | Scope::Temp => self.schema().write(key.as_str(), value.clone())?,
            };
            writes.push(write);
        }
        let delta = writes.iter().cloned().collect();
        split(&delta)?;
        writes.retain(|write| Scope::of(write.key()) != Scope::Temp);
        Ok(writes)
    }
}

impl From<Schema> for SessionSchema {
    fn from(schema: Schema) -> Self {
        SessionSchema::new(schema)
    }
}

impl fmt::Debug for SessionSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionSchema")
            .field("schema", &self.0.schema)
            .field("migrations", &self.0.migrations.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// A stored value in another schema; see [`SessionSchema::adopt`].
#[derive(Clone, Debug)]
pub enum Adopted {
    /// Unchanged.
    Same,
    /// Converted by a migration.
    Converted(StoredValue),
    /// Hidden: the schema does not declare the key, or its migration returned nothing. The stored value is
    /// unchanged.
    Hidden,
}

fn mismatch(key: &str, value: &Value, stored: Option<&Value>, misfit: StateError) -> SessionError {
    let (opened, faults) = match misfit {
        StateError::WrongType { expected, faults, .. } => (expected, faults),
        other => (other.to_string(), Issues::default()),
    };
    let stored = match stored.map(|schema| ValueType::of_schema(schema.clone())) {
        Some(Ok(stored)) => stored.to_string(),
        // NOTE: an open schema accepted the key without a type, so the type of the value is named.
        _ => ValueKinds::of_value(value).to_string(),
    };
    SessionError::SchemaMismatch { key: key.to_owned(), stored, opened, faults }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    fn opened(build: impl FnOnce() -> Schema) -> SessionSchema {
        SessionSchema::new(build())
    }

    fn number() -> SessionSchema {
        opened(|| Schema::builder().key::<i64>("n").build().unwrap())
    }

    #[test]
    fn a_mismatch_names_the_key_and_both_types() {
        let text = opened(|| Schema::builder().key::<String>("n").build().unwrap());
        let error = text.adopt("n", &StoredValue::from(json!(1)), number().text()).unwrap_err();
        expect![[r#"incompatible stored value of key "n": stored as integer, opened as string: expected string, found integer at $; register a migration"#]]
            .assert_eq(&error.to_string());
    }

    #[test]
    fn schemas_of_values_that_alternate_are_read_once() {
        let texts: Vec<String> = (0..KNOWN_SCHEMAS).map(|number| format!(r#"{{"keys":{number}}}"#)).collect();
        let schema = number();
        let read = || texts.iter().map(|text| schema.read_stored(text).unwrap()).collect::<Vec<_>>();
        for (first, again) in read().iter().zip(read()) {
            assert!(Arc::ptr_eq(first, &again), "{again}");
        }
        assert!(schema.read_stored("{").is_none());
        assert_eq!(*schema.read_stored(&texts[3]).unwrap(), json!({"keys": 3}));
    }

    #[test]
    fn compatible_changes_load() {
        let optional = opened(|| Schema::builder().key::<Option<i64>>("n").build().unwrap());
        assert!(matches!(
            optional.adopt("n", &StoredValue::from(json!(1)), number().text()),
            Ok(Adopted::Same)
        ));
        let none = opened(|| Schema::builder().build().unwrap());
        assert!(matches!(
            none.adopt("n", &StoredValue::from(json!(1)), number().text()),
            Ok(Adopted::Hidden)
        ));
    }

    #[test]
    fn migrations_convert_and_their_results_are_checked() {
        let text = || opened(|| Schema::builder().key::<String>("n").build().unwrap());
        let good = text().migration("n", |old| Ok(json!(old.to_string())));
        let Ok(Adopted::Converted(cell)) = good.adopt("n", &StoredValue::from(json!(1)), number().text())
        else {
            panic!("the migration was not run");
        };
        assert_eq!(cell.view(), json!("1"));
        let useless = text().migration("n", Ok);
        let error = useless.adopt("n", &StoredValue::from(json!(1)), number().text()).unwrap_err();
        assert!(matches!(error, SessionError::SchemaMismatch { .. }), "{error}");
        let none = text().optional_migration("n", |_| Ok(None));
        assert!(matches!(
            none.adopt("n", &StoredValue::from(json!(1)), number().text()),
            Ok(Adopted::Hidden)
        ));
        let failing = text().migration("n", |_| Err("no".into()));
        let error = failing.adopt("n", &StoredValue::from(json!(1)), number().text()).unwrap_err();
        assert!(matches!(error, SessionError::Migration { .. }), "{error}");
    }
}
