//! Decodes JSON as a Rust type; errors say where and what kind of fault, and never show the value.
//!
//! `serde_json` quotes the value in the text of its errors, and values may be secrets. So it decodes, which is fast, and
//! only after a failure the value is read once more by a deserializer whose [error](misfit::Misfit) keeps what `serde`
//! reports as data: the kind, what was expected, and the path.

mod misfit;
mod object;
mod reader;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;
use thiserror::Error;

use self::misfit::Misfit;
#[cfg(feature = "validation")]
pub(crate) use self::misfit::push_field;
pub(crate) use self::object::object;
use self::reader::Reader;
use crate::state::Fault;

/// Why a JSON value cannot be decoded as a type. The value is not part of it.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::{DecodeErrorKind, decode};
///
/// let error = decode::<Vec<u64>>(&json!([1, "s3cret"])).unwrap_err();
/// assert_eq!((error.path(), error.kind()), ("$[1]", DecodeErrorKind::InvalidType));
/// assert_eq!(error.to_string(), "at $[1]: expected u64, found string");
/// ```
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("at {path}: {message}")]
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
    /// The type is as expected, the value is not: out of range, for instance.
    InvalidValue,
    /// A list is too short or too long.
    InvalidLength,
    /// An enum has no such variant.
    UnknownVariant,
    /// A struct has no such field.
    UnknownField,
    /// A field is missing.
    MissingField,
    /// A field is there twice.
    DuplicateField,
    /// The type itself refuses the value.
    Custom,
}

impl DecodeError {
    /// The kind of the fault.
    pub const fn kind(&self) -> DecodeErrorKind {
        self.kind
    }

    /// The place of the fault: a JSON path such as `$[2].title`, or a position in a text that is not JSON.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What is wrong there.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        Fault { path: error.path, message: error.message }
    }
}

/// Decodes a JSON value as a `T`, with errors that do not show the value.
///
/// # Errors
/// When the value is not a `T`: where, and why not. The reason that a type gives by itself (`serde`'s `custom`) is left
/// out if it quotes the value.
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
    T::deserialize(value).map_err(|_| explain::<T>(value).without_quotes())
}

/// Why a value that is not a `T` is none.
pub(crate) fn why_not<T: DeserializeOwned>(value: &Value) -> DecodeError {
    explain::<T>(value).without_quotes()
}

/// Decodes a text that holds values.
pub(crate) fn decode_text<T: DeserializeOwned>(json: &str) -> Result<T, DecodeError> {
    serde_json::from_str(json).map_err(|error| of_text::<T>(json, &error, Misfit::without_quotes))
}

/// Decodes a text that holds no values, a schema: the reasons that its types give are shown whole.
pub(crate) fn decode_declaration<T: DeserializeOwned>(json: &str) -> Result<T, DecodeError> {
    serde_json::from_str(json).map_err(|error| of_text::<T>(json, &error, Misfit::whole))
}

fn explain<T: DeserializeOwned>(value: &Value) -> Misfit {
    match T::deserialize(Reader(value)) {
        Err(misfit) => misfit.of(value),
        // A type that looks at the deserializer itself may take from one what it refuses from another.
        Ok(_) => Misfit::refused(),
    }
}

fn of_text<T: DeserializeOwned>(
    json: &str,
    error: &serde_json::Error,
    shown: fn(Misfit) -> DecodeError,
) -> DecodeError {
    match serde_json::from_str::<Value>(json) {
        Ok(value) => shown(explain::<T>(&value)),
        Err(syntax) if syntax.classify() != Category::Data => of_syntax(&syntax),
        Err(_) => of_syntax(error),
    }
}

/// The texts of syntax errors do not quote the JSON; a position is all that they say of it.
fn of_syntax(error: &serde_json::Error) -> DecodeError {
    let path = format!("line {} column {}", error.line(), error.column());
    let message = match error.classify() {
        Category::Data => "invalid data".to_owned(),
        _ => error.to_string().replace(&format!(" at {path}"), ""),
    };
    DecodeError { kind: DecodeErrorKind::Syntax, path, message }
}
