//! Decodes JSON as a Rust type; errors have a path and a kind, and never show the value.
//!
//! `serde_json` quotes values in its errors, and values may be secrets. So `serde_json` decodes, which is fast. Only
//! after a failure the value is read again, by a deserializer whose [error](fault::DecodeFault) keeps the reports of
//! `serde` as data: the kind, the expectation, and the path.

mod deserializer;
mod fault;
mod object;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;
use thiserror::Error;

use self::deserializer::ValueDeserializer;
use self::fault::DecodeFault;
#[cfg(feature = "validation")]
pub(crate) use self::fault::push_field;
pub(crate) use self::object::object;
use crate::faults::Issue;

/// An error of decoding a JSON value as a type. It does not contain the value.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::{DecodeErrorKind, decode};
///
/// let error = decode::<Vec<u64>>(&json!([1, "s3cret"])).unwrap_err();
/// assert_eq!((error.path(), error.kind()), ("$[1]", DecodeErrorKind::InvalidType));
/// assert_eq!(error.to_string(), "expected u64, found string at $[1]");
/// ```
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message} at {path}")]
pub struct DecodeError {
    kind: DecodeErrorKind,
    path: String,
    message: String,
}

/// The kind of a [`DecodeError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// The text is not JSON.
    Syntax,
    /// A value of another type was expected.
    InvalidType,
    /// The type is as expected, but the value is invalid: out of range, for instance.
    InvalidValue,
    /// A list is too short or too long.
    InvalidLength,
    /// An enum has no such variant.
    UnknownVariant,
    /// A struct has no such field.
    UnknownField,
    /// A field is missing.
    MissingField,
    /// A field is duplicated.
    DuplicateField,
    /// The type's own validation rejects the value.
    Custom,
}

impl DecodeError {
    /// The kind of the error.
    pub const fn kind(&self) -> DecodeErrorKind {
        self.kind
    }

    /// The location: a JSON path such as `$[2].title`, or a position in a text that is not JSON.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The message, without the location.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<DecodeError> for Issue {
    fn from(error: DecodeError) -> Self {
        Issue { path: error.path, message: error.message }
    }
}

/// Decodes a JSON value as a `T`, with errors that do not show the value.
///
/// # Errors
/// [`DecodeError`], with the location, when the value is not a `T`. A type's own message (`serde`'s `custom`)
/// is replaced if it quotes the value.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::decode;
///
/// assert_eq!(decode::<Vec<u64>>(&json!([1, 2]))?, [1, 2]);
/// # Ok::<(), stepfold_state_core::DecodeError>(())
/// ```
pub fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, DecodeError> {
    // NOTE: `serde_json` quotes the value in its message, so the value is read once more for an error without it
    // (docs/decisions/state.md).
    T::deserialize(value).map_err(|_| explain::<T>(value).into_unquoted_error())
}

/// The error of a value that is not a `T`.
pub(crate) fn decode_error<T: DeserializeOwned>(value: &Value) -> DecodeError {
    explain::<T>(value).into_unquoted_error()
}

/// Decodes a text that contains values.
pub(crate) fn decode_text<T: DeserializeOwned>(json: &str) -> Result<T, DecodeError> {
    serde_json::from_str(json)
        .map_err(|error| text_error::<T>(json, &error, DecodeFault::into_unquoted_error))
}

/// Decodes a text without values, a schema: messages of types are shown whole.
pub(crate) fn decode_declaration<T: DeserializeOwned>(json: &str) -> Result<T, DecodeError> {
    serde_json::from_str(json).map_err(|error| text_error::<T>(json, &error, DecodeFault::into_error))
}

fn explain<T: DeserializeOwned>(value: &Value) -> DecodeFault {
    match T::deserialize(ValueDeserializer(value)) {
        Err(fault) => fault.bound_to(value),
        // NOTE: A type that inspects its deserializer may accept a value from this one.
        Ok(_) => DecodeFault::rejected(),
    }
}

fn text_error<T: DeserializeOwned>(
    json: &str,
    error: &serde_json::Error,
    shown: fn(DecodeFault) -> DecodeError,
) -> DecodeError {
    match serde_json::from_str::<Value>(json) {
        Ok(value) => shown(explain::<T>(&value)),
        Err(syntax) if syntax.classify() != Category::Data => syntax_error(&syntax),
        Err(_) => syntax_error(error),
    }
}

/// Messages of syntax errors do not quote the JSON; they only give a position.
fn syntax_error(error: &serde_json::Error) -> DecodeError {
    let path = format!("line {} column {}", error.line(), error.column());
    let message = match error.classify() {
        Category::Data => "invalid data".to_owned(),
        // NOTE: The position is in `path`; it would be printed twice.
        _ => error.to_string().replace(&format!(" at {path}"), ""),
    };
    DecodeError { kind: DecodeErrorKind::Syntax, path, message }
}
