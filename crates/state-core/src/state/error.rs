//! What can go wrong with a state, said with the key, the path and what to do.

use thiserror::Error;

use crate::decode::DecodeError;
use crate::error_chain::ErrorChain;
use crate::faults::{Faults, Names};

/// Why a schema, a state, a delta or a template refused something. Nothing was changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StateError {
    /// The schema does not declare the key (and is not open).
    #[error("the schema declares no key \"{key}\"; known keys: {known}")]
    UnknownKey {
        /// The key that was asked for.
        key: String,
        /// The keys that the schema declares.
        known: Names,
    },
    /// A key has a form that no scope accepts.
    #[error("\"{}\" is not a valid key: {reason}", key.escape_debug())]
    InvalidKey {
        /// The key as it was given.
        key: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A value does not fit the declared type of its key.
    #[error("key \"{key}\" holds {expected}, which this value is not: {faults}")]
    WrongType {
        /// The key that was written.
        key: String,
        /// The declared type, in words.
        expected: String,
        /// Every place where the value does not fit.
        faults: Faults,
    },
    /// A merge handler could not merge.
    #[error("handler {handler} cannot merge into key \"{key}\": {source}")]
    Merge {
        /// The key that was written.
        key: String,
        /// The handler's name.
        handler: String,
        /// Why it could not.
        r#source: HandlerError,
    },
    /// A schema, a delta or a caller names a handler that is neither built in nor registered.
    #[error("no handler is named \"{name}\"; known handlers: {known}")]
    UnknownHandler {
        /// The name as it was given.
        name: String,
        /// The built-in and registered names.
        known: Names,
    },
    /// A schema could not be built. All its faults are listed.
    #[error("the schema has faults: {faults}")]
    InvalidSchema {
        /// Each fault, with the key as its path.
        faults: Faults,
    },
    /// A stored value could not be read as the type that the caller asked for.
    #[error("key \"{key}\" cannot be read as {wanted}: {source}")]
    Decode {
        /// The key that was read.
        key: String,
        /// The Rust type that was asked for.
        wanted: &'static str,
        /// Where and why not.
        r#source: DecodeError,
    },
    /// A typed value could not be turned into JSON.
    #[error("the value for key \"{key}\" has no JSON form: {}", ErrorChain(source))]
    Encode {
        /// The key that was written.
        key: String,
        /// Why not.
        r#source: serde_json::Error,
    },
    /// A value nests too deeply to be stored and read again.
    #[error("the value for key \"{key}\" nests deeper than {} levels", crate::MAX_DEPTH)]
    TooDeep {
        /// The key that was written.
        key: String,
    },
    /// Messages are events of their own, not writes.
    #[error("\"messages\" is the projection of message events and takes no writes; push a message instead")]
    MessagesAreEvents,
    /// JSON could not be read.
    #[error("the {what} cannot be read: {source}")]
    Json {
        /// What was being read: a stored schema, a stored state, initial values.
        what: &'static str,
        /// Where and why not.
        r#source: DecodeError,
    },
    /// Stored JSON was written by a newer version of this crate.
    #[error("the {what} has format {found}, and this version reads up to {supported}; update stepfold")]
    NewerFormat {
        /// What was being read: a stored schema, a stored state.
        what: &'static str,
        /// The format that was found.
        found: u64,
        /// The newest format that is understood.
        supported: u64,
    },
    /// A template needs a key that the state does not have.
    #[error(
        "the template needs \"{key}\" (line {line}, column {column}), which the state does not have; \
         write {{{key}?}} if it may be absent; keys there are: {known}"
    )]
    MissingTemplateKey {
        /// The key that the placeholder names.
        key: String,
        /// The placeholder's line, from 1.
        line: usize,
        /// The placeholder's column in characters, from 1.
        column: usize,
        /// The keys that the state has.
        known: Names,
    },
}

/// Why a merge handler could not merge two values.
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
    /// An error with this message: lower case, no full stop, no values from the state.
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
