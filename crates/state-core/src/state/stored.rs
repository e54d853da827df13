//! The stored JSON of schemas and states, with version numbers.
//!
//! Unknown fields are ignored; a newer version number is an error. The golden files in `tests/golden` have
//! one sample of each version ever written.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::StateError;
use super::handler::Handler;
use super::schema::{KeySchema, MESSAGES};
use crate::chat::Transcript;
use crate::decode::{decode, decode_declaration, decode_error, decode_text, object};

/// The current format version of stored schemas.
pub(crate) const SCHEMA_VERSION: u64 = 1;
/// The current format version of stored states.
pub(crate) const STATE_VERSION: u64 = 1;

/// A stored schema.
pub(crate) struct StoredSchema {
    pub(crate) open: bool,
    pub(crate) keys: Vec<(String, StoredKeySchema)>,
}

/// A key of a stored schema.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredKeySchema {
    /// `None` if the field is missing, which is a fault of a schema.
    #[serde(rename = "type", default, deserialize_with = "read_type")]
    pub(crate) value_type: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) handler: Option<Handler>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "read_present")]
    pub(crate) default: Option<Value>,
}

impl StoredKeySchema {
    pub(crate) fn of(key: &KeySchema) -> Self {
        StoredKeySchema {
            value_type: Some(key.json_schema().clone()),
            handler: Some(key.handler().clone()),
            description: key.description().map(str::to_owned),
            default: key.default().cloned(),
        }
    }
}

fn read_type<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(expand_type).map(Some)
}

/// Reads the value of an optional field: null is a value, only an absent field is `None`.
pub(crate) fn read_present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// `"integer"` and `["integer", "null"]` are short for schemas with that `type`.
pub(crate) fn expand_type(schema: Value) -> Value {
    match schema {
        names @ (Value::String(_) | Value::Array(_)) => json!({ "type": names }),
        schema => schema,
    }
}

impl StoredSchema {
    pub(crate) fn from_json(json: &str) -> Result<Self, StateError> {
        #[derive(Deserialize)]
        struct SchemaEnvelope {
            #[serde(default)]
            open: bool,
            #[serde(default)]
            keys: OrderedEntries<StoredKeySchema>,
        }

        check_version("stored schema", json, SCHEMA_VERSION)?;
        let envelope: SchemaEnvelope =
            decode_declaration(json).map_err(|source| StateError::Json { what: "stored schema", source })?;
        Ok(StoredSchema { open: envelope.open, keys: envelope.keys.0 })
    }
}

/// A stored state, not yet validated against a schema.
#[derive(Deserialize)]
pub(crate) struct StoredState {
    pub(crate) values: StoredValues,
}

impl StoredState {
    pub(crate) fn from_json(json: &str) -> Result<Self, StateError> {
        check_version("stored state", json, STATE_VERSION)?;
        decode_text(json).map_err(|source| StateError::Json { what: "stored state", source })
    }
}

/// The values by key, with the conversation decoded directly.
#[derive(Default)]
pub(crate) struct StoredValues {
    pub(crate) messages: Transcript,
    pub(crate) others: Vec<(String, Value)>,
}

impl StoredValues {
    /// Splits the values without copying any but messages.
    pub(crate) fn of(what: &'static str, values: Value) -> Result<Self, StateError> {
        // NOTE: Read again as a whole, so that the path in the error begins at the values.
        let decode_failure =
            |values: &Value| StateError::Json { what, source: decode_error::<StoredValues>(values) };
        let Value::Object(mut fields) = values else { return Err(decode_failure(&values)) };
        let messages = fields.get(MESSAGES).map(decode).transpose();
        let Ok(messages) = messages else { return Err(decode_failure(&Value::Object(fields))) };
        fields.remove(MESSAGES);
        Ok(StoredValues { messages: messages.unwrap_or_default(), others: fields.into_iter().collect() })
    }
}

impl<'de> Deserialize<'de> for StoredValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StoredValuesVisitor;

        impl<'de> Visitor<'de> for StoredValuesVisitor {
            type Value = StoredValues;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of values by key")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StoredValues, A::Error> {
                let mut values = StoredValues::default();
                while let Some(key) = map.next_key::<String>()? {
                    if key == MESSAGES {
                        values.messages = map.next_value()?;
                    } else {
                        values.others.push((key, map.next_value()?));
                    }
                }
                Ok(values)
            }
        }

        deserializer.deserialize_map(StoredValuesVisitor)
    }
}

/// The entries of an object in source order, whatever map type `serde_json` uses.
struct OrderedEntries<T>(Vec<(String, T)>);

impl<T> Default for OrderedEntries<T> {
    fn default() -> Self {
        OrderedEntries(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OrderedEntries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OrderedEntriesVisitor(PhantomData))
    }
}

struct OrderedEntriesVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OrderedEntriesVisitor<T> {
    type Value = OrderedEntries<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of keys")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OrderedEntries<T>, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(OrderedEntries(entries))
    }
}

/// Checks the version before the rest is read: a newer version may have other fields.
fn check_version(what: &'static str, json: &str, supported: u64) -> Result<(), StateError> {
    let FormatVersion(found) = decode_text(json).map_err(|source| StateError::Json { what, source })?;
    if found > supported {
        return Err(StateError::NewerFormat { what, found, supported });
    }
    Ok(())
}

/// The field `version`; the rest is skipped.
struct FormatVersion(u64);

impl<'de> Deserialize<'de> for FormatVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct VersionField {
            version: u64,
        }

        object(deserializer, "an object with a version")
            .map(|VersionField { version }| FormatVersion(version))
    }
}
