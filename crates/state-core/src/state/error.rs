//! Errors of a state, with the key, the path and advice.

use serde_json::error::Category;
use thiserror::Error;

use crate::decode::{DecodeError, DecodeErrorKind};
use crate::error_chain::ErrorChain;
use crate::faults::{Issues, NameList};

/// An error of a schema, a state, a delta or a template. Nothing was changed.
#[derive(Error)]
#[non_exhaustive]
pub enum StateError {
    /// The schema does not declare the key and is not open.
    #[error("unknown key \"{key}\"; known keys: {known}")]
    UnknownKey {
        /// The key.
        key: String,
        /// The declared keys.
        known: NameList,
    },
    /// The form of a key is invalid.
    #[error("invalid key \"{}\": {reason}", key.escape_debug())]
    InvalidKey {
        /// The key.
        key: String,
        /// The reason.
        reason: &'static str,
    },
    /// A value does not match the declared type of its key.
    #[error("invalid value for key \"{key}\": {faults}")]
    WrongType {
        /// The key.
        key: String,
        /// The declared type, in words.
        expected: String,
        /// Every fault of the value.
        faults: Issues,
    },
    /// A merge handler failed.
    #[error("handler {handler} failed for key \"{key}\": {source}")]
    Merge {
        /// The key.
        key: String,
        /// The handler's name.
        handler: String,
        /// The cause.
        r#source: HandlerError,
    },
    /// A schema, a delta or a caller names a handler that is neither built in nor registered.
    #[error("unknown handler \"{name}\"; known handlers: {known}")]
    UnknownHandler {
        /// The name.
        name: String,
        /// The built-in and registered names.
        known: NameList,
    },
    /// A schema is invalid. All its faults are listed.
    #[error("invalid schema: {faults}")]
    InvalidSchema {
        /// The faults, each with the key as its path.
        faults: Issues,
    },
    /// A stored value does not match the requested Rust type.
    #[error("key \"{key}\" cannot be decoded as {wanted}: {source}")]
    Decode {
        /// The key.
        key: String,
        /// The requested Rust type.
        wanted: &'static str,
        /// The decoding error.
        r#source: DecodeError,
    },
    /// A typed value cannot be serialised as JSON.
    #[error("value for key \"{key}\" cannot be serialised as JSON: {}", ErrorChain(source))]
    Encode {
        /// The key.
        key: String,
        /// The cause.
        r#source: serde_json::Error,
    },
    /// A value is nested too deeply to be stored and read again.
    #[error("value for key \"{key}\" nested too deeply: expected at most {} levels", crate::MAX_DEPTH)]
    TooDeep {
        /// The key.
        key: String,
    },
    /// Messages are events, not writes.
    #[error(
        "key \"messages\" cannot be written: it is the projection of message events; push a message instead"
    )]
    MessagesAreEvents,
    /// JSON input is invalid.
    #[error("invalid {what}: {source}")]
    Json {
        /// The input: a stored schema, a stored state, initial values.
        what: &'static str,
        /// The decoding error.
        r#source: DecodeError,
    },
    /// Stored JSON was written by a newer version of this crate.
    #[error(
        "unsupported format {found} of the {what}: this version reads up to {supported}; update stepfold"
    )]
    NewerFormat {
        /// The input: a stored schema, a stored state.
        what: &'static str,
        /// The format of the input.
        found: u64,
        /// The newest supported format.
        supported: u64,
    },
    /// A template requires a key that has no value.
    #[error(
        "missing key \"{key}\" for the template at line {line}, column {column}; \
         write {{{key}?}} if it is optional; known keys: {known}"
    )]
    MissingTemplateKey {
        /// The key of the placeholder.
        key: String,
        /// The placeholder's line, from 1.
        line: usize,
        /// The placeholder's column in characters, from 1.
        column: usize,
        /// The keys that have a value.
        known: NameList,
    },
}

/// An error of a merge handler.
///
/// # Examples
/// ```
/// use stepfold_state_core::state::HandlerError;
///
/// let error = HandlerError::new("expected a date");
/// assert_eq!(error.to_string(), "expected a date");
/// ```
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct HandlerError(String);

impl HandlerError {
    /// Creates an error with this message: lower case, no full stop, no values from the state.
    pub fn new(message: impl Into<String>) -> Self {
        HandlerError(message.into())
    }
}

impl From<&str> for HandlerError {
    fn from(message: &str) -> Self {
        HandlerError::new(message)
    }
}

impl From<String> for HandlerError {
    fn from(message: String) -> Self {
        HandlerError(message)
    }
}

/// The kind of the error. Its text is left out, since it quotes values; [`decode`](crate::decode()) has errors that do
/// not.
impl From<serde_json::Error> for HandlerError {
    fn from(error: serde_json::Error) -> Self {
        HandlerError::from(match error.classify() {
            Category::Data => "value does not fit the type",
            Category::Io | Category::Syntax | Category::Eof => "value cannot be written or read as JSON",
        })
    }
}

/// The fault without its path, whose keys may be data, and without a type's own message, which may quote a part of the value:
/// the current value may be that of another user.
impl From<DecodeError> for HandlerError {
    fn from(error: DecodeError) -> Self {
        HandlerError::from(match error.kind() {
            DecodeErrorKind::Custom => "invalid value for the type",
            _ => error.message(),
        })
    }
}

crate::debug_as_text!(StateError);
