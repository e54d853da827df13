//! Merges writes with stored values, inside a store's transaction.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stepfold_state_core::state::{Handler, StoredValue, Write};

use crate::error::SessionError;
use crate::ids::SessionId;
use crate::schema::{Adopted, SessionSchema};
use crate::session::TypedValue;
use crate::store::WriteOrigin;
use crate::time::Timestamp;

/// Merges a write with the stored value of its key. Returns `None` if the key is removed.
pub(crate) fn merge_write(
    schema: &SessionSchema,
    held: Option<&TypedValue>,
    write: &Write,
    what: WriteOrigin<'_>,
) -> Result<Option<StoredValue>, SessionError> {
    catch_panics(|| {
        let converted;
        let current = match held {
            Some(held) if held.schema == *schema.text() => Some(&held.cell),
            // NOTE: the write replaces the current value, which therefore need not match the schema.
            Some(_) if is_blind(write) => None,
            Some(held) => {
                converted = adopted(schema, write.key(), held)?;
                converted.as_ref()
            }
            None => None,
        };
        schema.schema().merge(current, write).map_err(SessionError::state(what))
    })
}

/// Whether the result of a write does not depend on the current value.
pub(crate) fn is_blind(write: &Write) -> bool {
    write.handler().is_none_or(|handler| *handler == Handler::replace_values())
}

/// The stored value, converted to the schema.
fn adopted(
    schema: &SessionSchema,
    key: &str,
    held: &TypedValue,
) -> Result<Option<StoredValue>, SessionError> {
    Ok(match schema.adopt(key, &held.cell, &held.schema)? {
        Adopted::Same => Some(held.cell.clone()),
        Adopted::Converted(cell) => Some(cell),
        Adopted::Hidden => None,
    })
}

/// Runs code that may call a custom handler or a migration. A panic only fails its own operation.
pub(crate) fn catch_panics<T>(run: impl FnOnce() -> Result<T, SessionError>) -> Result<T, SessionError> {
    // NOTE: handlers and migrations are code of the application. A panic in one must not end the writer's thread, nor
    // poison the lock of the memory store.
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(SessionError::Panicked))
}

/// The writes of a new session.
pub(crate) fn initial(
    schema: &SessionSchema,
    values: &serde_json::Map<String, serde_json::Value>,
) -> Result<Vec<Write>, SessionError> {
    schema.initial_writes(values).map_err(SessionError::state(WriteOrigin::NewSession))
}

/// Generates the id of a session: readable, and as unique as the store's number.
pub(crate) fn made_id(at: Timestamp, number: i64) -> Result<SessionId, SessionError> {
    // NOTE: no randomness below the runner: the time and the store's own number are unique. The id can be guessed, which
    // opens nothing: a session is reached by app, user and id together.
    SessionId::new(format!("{:x}-{number:x}", at.as_micros() / 1000))
}
