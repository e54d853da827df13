//! Values that were stored under another schema: converted as the agent file says, and always readable as they are
//! stored.

use std::fmt;

use serde_json::{Value, json};
use stepfold::prelude::*;
use stepfold::session_scopes::{Adopted, Scope, Session, SessionError, SessionSchema};
use stepfold::state_core::state::KeySchema;

use crate::form::agent::{KeyMigration, ValueConversion};

/// The schema of an agent's sessions, with the conversions of its file for values of other types.
pub(crate) fn session_schema(schema: &Schema, migrations: Vec<KeyMigration>) -> SessionSchema {
    let mut migrated = SessionSchema::new(schema.clone());
    for (name, conversions) in migrations {
        let (declared, key) = (schema.clone(), name.clone());
        migrated = migrated.optional_migration(name, move |old| match declared.key(&key) {
            Some(key) => convert(key, &conversions, &old).map_err(Into::into),
            None => Ok(None),
        });
    }
    migrated
}

/// Converts a value: the first fitting result; none if the value is dropped.
fn convert(key: &KeySchema, conversions: &[ValueConversion], old: &Value) -> Result<Option<Value>, String> {
    for conversion in conversions {
        match conversion {
            ValueConversion::Drop => return Ok(None),
            conversion => {
                let converted = conversion.of(old, key.default());
                // NOTE: A result that does not fit is skipped, so that the list is a chain of fallbacks.
                if let Some(value) = converted.filter(|value| key.check(value).is_ok()) {
                    return Ok(Some(value));
                }
            }
        }
    }
    let tried = conversions.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Err(format!(
        "no conversion of {tried} fits the stored value; add \"drop\" or \"default\" to its `migrate`"
    ))
}

impl ValueConversion {
    fn of(self, old: &Value, default: Option<&Value>) -> Option<Value> {
        match (self, old) {
            (ValueConversion::Text, Value::String(_)) => Some(old.clone()),
            (ValueConversion::Text, _) => Some(Value::String(old.to_string())),
            (ValueConversion::Number, Value::String(text)) => {
                serde_json::from_str(text.trim()).ok().filter(Value::is_number)
            }
            (ValueConversion::Json, Value::String(text)) => serde_json::from_str(text).ok(),
            (ValueConversion::List, _) => Some(json!([old])),
            (ValueConversion::First, Value::Array(items)) => items.first().cloned(),
            (ValueConversion::Default, _) => default.cloned(),
            (
                ValueConversion::Number
                | ValueConversion::Json
                | ValueConversion::First
                | ValueConversion::Drop,
                _,
            ) => None,
        }
    }
}

/// The fit of a stored value to the current agent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ValueFit {
    /// The agent sees the stored value.
    Fits,
    /// The agent sees the result of a migration; nothing, if the value is dropped.
    Migrated(Option<Value>),
    /// The agent does not declare the key, and does not see the value.
    Undeclared,
    /// The value does not fit: the agent cannot run.
    Misfit(String),
}

/// Determines the fit of a key's stored value.
pub(crate) fn fit(session: &Session, schema: &SessionSchema, key: &str) -> ValueFit {
    let is_known = schema.schema().is_open() || schema.schema().key(key).is_some();
    let values = session.values.as_ref();
    let held = values.and_then(|values| match Scope::of(key) {
        Scope::App => values.app.held(key),
        Scope::User => values.user.held(key),
        Scope::Session => values.session.held(key),
        Scope::Temp => None,
    });
    match held.map(|held| schema.adopt(key, &held.cell, &held.schema)) {
        _ if !is_known => ValueFit::Undeclared,
        None | Some(Ok(Adopted::Same)) => ValueFit::Fits,
        Some(Ok(Adopted::Converted(cell))) => ValueFit::Migrated(Some(cell.view().to_json())),
        Some(Ok(Adopted::Hidden)) => ValueFit::Migrated(None),
        Some(Err(SessionError::SchemaMismatch { stored, opened, faults, .. })) => ValueFit::Misfit(format!(
            "stored as {stored}, declared as {opened}: {faults}; see `migrate` of the agent file"
        )),
        Some(Err(error)) => ValueFit::Misfit(crate::error::chain(&error)),
    }
}

impl fmt::Display for ValueFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueFit::Fits => Ok(()),
            ValueFit::Migrated(Some(value)) => write!(f, "the agent sees {value}"),
            ValueFit::Migrated(None) => f.write_str("dropped by its migration"),
            ValueFit::Undeclared => f.write_str("not declared by the agent"),
            ValueFit::Misfit(why) => f.write_str(why),
        }
    }
}

impl fmt::Display for ValueConversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValueConversion::Text => "text",
            ValueConversion::Number => "number",
            ValueConversion::Json => "json",
            ValueConversion::List => "list",
            ValueConversion::First => "first",
            ValueConversion::Default => "default",
            ValueConversion::Drop => "drop",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(conversion: ValueConversion, old: &Value, expected: Option<&Value>) {
        assert_eq!(conversion.of(old, Some(&json!(7))).as_ref(), expected, "{conversion} of {old}");
    }

    #[test]
    fn conversions_give_a_value_or_none() {
        check(ValueConversion::Text, &json!("a"), Some(&json!("a")));
        check(ValueConversion::Text, &json!([1, "a"]), Some(&json!("[1,\"a\"]")));
        check(ValueConversion::Number, &json!(" 3 "), Some(&json!(3)));
        check(ValueConversion::Number, &json!("three"), None);
        check(ValueConversion::Number, &json!("[3]"), None);
        check(ValueConversion::Json, &json!("{\"a\": 1}"), Some(&json!({"a": 1})));
        check(ValueConversion::Json, &json!(1), None);
        check(ValueConversion::List, &json!([1]), Some(&json!([[1]])));
        check(ValueConversion::First, &json!([1, 2]), Some(&json!(1)));
        check(ValueConversion::First, &json!([]), None);
        check(ValueConversion::Default, &json!(null), Some(&json!(7)));
    }
}
