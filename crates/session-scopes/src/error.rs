//! What can go wrong with a session, said with the key, the versions and what to do.

use stepfold_state_core::ErrorChain;
use stepfold_state_core::state::{Faults, HandlerError, StateError, is_invisible};
use thiserror::Error;

use crate::ids::{EventId, OperationId, SessionKey, WorkerId};
use crate::store::MAX_INBOX;
use crate::time::Timestamp;

/// Why an operation on a session was refused or failed. Nothing was changed, with one exception: after an
/// error of the kind [`Transient`](ErrorKind::Transient) an append may or may not have been made. Repeat it
/// with the same event; it is made once.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// An id has a form that no store accepts.
    #[error("\"{}\" is not a valid {what} id: {reason}", shown(id))]
    InvalidId {
        /// What the id is of: app, user, session, event, ...
        what: &'static str,
        /// The id as it was given.
        id: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// There is no such session.
    #[error("there is no session {key}")]
    NotFound {
        /// The session that was asked for.
        key: Box<SessionKey>,
    },
    /// The id of a new session is in use.
    #[error("there is a session {key} already")]
    AlreadyExists {
        /// The session that was to be made.
        key: Box<SessionKey>,
    },
    /// Another writer was faster.
    #[error("session {key} is at version {actual}, not {expected}; load it again and decide anew")]
    Conflict {
        /// The session that was written.
        key: Box<SessionKey>,
        /// The version that the writer had seen.
        expected: u64,
        /// The version that the session has.
        actual: u64,
    },
    /// An event id is in use for another event of the session.
    #[error("session {key} has another event with the id {event}; give each event an id of its own")]
    EventReused {
        /// The session that was written.
        key: Box<SessionKey>,
        /// The id that was used twice.
        event: EventId,
    },
    /// The operation id of a write to a scope is in use for another write.
    #[error("{scope} has another write with the operation id {operation}; give each write an id of its own")]
    OperationReused {
        /// The scope that was written.
        scope: String,
        /// The id that was used twice.
        operation: OperationId,
    },
    /// Another worker holds the claim on the session.
    #[error(
        "cannot claim session {key}: worker {owner} holds it until {expires}; wait until it is released or has \
         expired, or take it over"
    )]
    Claimed {
        /// The session.
        key: Box<SessionKey>,
        /// The worker that holds it.
        owner: WorkerId,
        /// When its claim expires, by the store's time.
        expires: Timestamp,
    },
    /// A token is not that of the session's current claim: it was taken over or released.
    #[error(
        "lost the claim on session {key}: {} token {token}; stop working on it, and load it again",
        owner.as_ref().map_or("nobody holds".to_owned(), |owner| format!("worker {owner} holds it now, not"))
    )]
    ClaimLost {
        /// The session.
        key: Box<SessionKey>,
        /// The token that is no longer current.
        token: u64,
        /// The worker that holds the claim now.
        owner: Option<WorkerId>,
    },
    /// An entry that was to be taken from the inbox does not wait there: it was taken or withdrawn.
    #[error("no entry {position} waits in the inbox of session {key}; read the inbox again")]
    NotWaiting {
        /// The session.
        key: Box<SessionKey>,
        /// The position of the entry.
        position: u64,
    },
    /// As many entries wait in the inbox as it holds.
    #[error("the inbox of session {key} is full: {limit} entries wait; repeat it once some are taken")]
    InboxFull {
        /// The session.
        key: Box<SessionKey>,
        /// How many entries an inbox holds.
        limit: usize,
    },
    /// A session has as many labels as there may be.
    #[error(
        "cannot label a version of session {key}: it has {limit} labels, which is the most; take one away"
    )]
    TooManyLabels {
        /// The session.
        key: Box<SessionKey>,
        /// How many labels a session has at most.
        limit: usize,
    },
    /// The store does not have this.
    #[error("the store does not support {what}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// The session never had the version, or has it no more.
    #[error("session {key} has no version {version}; it can go back to {oldest} up to {newest}")]
    NoSuchVersion {
        /// The session.
        key: Box<SessionKey>,
        /// The version that was asked for.
        version: u64,
        /// The oldest version that can be had; retention moves it.
        oldest: u64,
        /// The current version.
        newest: u64,
    },
    /// A write does not go where it was sent: `write_app` takes keys of `app:` only, for instance.
    #[error("key \"{key}\" is not of the scope {scope}, which is the only one written here")]
    WrongScope {
        /// The key.
        key: String,
        /// The scope that can be written.
        scope: &'static str,
    },
    /// A delta, initial values or a schema do not fit.
    #[error("{what} cannot be applied: {source}")]
    State {
        /// What was to be applied.
        what: String,
        /// Why not.
        r#source: StateError,
    },
    /// A stored value does not fit the schema that it is opened with.
    #[error(
        "key \"{key}\" was stored as {stored} and is opened as {opened}, which it does not fit: {faults}; \
         register a migration for it"
    )]
    SchemaMismatch {
        /// The key.
        key: String,
        /// The type under which it was stored, in words.
        stored: String,
        /// The type that the schema declares now, in words.
        opened: String,
        /// Each place where the stored value does not fit.
        faults: Faults,
    },
    /// A state is not the one whose changes were read.
    #[error(
        "cannot append to the list \"{key}\" of a state: it has {found} items, expected at least {expected}; read the \
         session whole"
    )]
    OtherState {
        /// The key of the list.
        key: String,
        /// The length of the list in the state.
        found: usize,
        /// The length that it has to have at least.
        expected: usize,
    },
    /// A registered migration could not convert a stored value.
    #[error("the migration of key \"{key}\" failed: {source}")]
    Migration {
        /// The key.
        key: String,
        /// What the migration says.
        r#source: HandlerError,
    },
    /// An event is larger than a store takes.
    #[error("{what} has {bytes} bytes, more than the {limit} that are stored")]
    TooLarge {
        /// What is too large.
        what: String,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A part of an event nests too deeply to be stored and read again.
    #[error("{what} nests deeper than {} levels", stepfold_state_core::MAX_DEPTH)]
    TooDeep {
        /// The part.
        what: String,
    },
    /// A cursor was not made by this store for this list.
    #[error("the cursor of a page cannot be read; use the one that the page before gave")]
    InvalidCursor,
    /// What is stored cannot be read.
    #[error("invalid stored {what}: {source}")]
    Stored {
        /// What was being read.
        what: String,
        /// Why not.
        r#source: serde_json::Error,
    },
    /// What is stored was written by a newer version of this crate.
    #[error(
        "unsupported format {found} of the stored {what}: this version reads up to {supported}; update stepfold"
    )]
    NewerFormat {
        /// What was being read.
        what: &'static str,
        /// The format that was found.
        found: u64,
        /// The newest format that is understood.
        supported: u64,
    },
    /// What is stored has the number of a format, and not its form: an unreleased version of this crate wrote it.
    #[error(
        "the stored {what} are said to have format {format}, but have no {missing}: an unreleased stepfold made \
         them; use another file, or read them with the version that made them"
    )]
    OtherLayout {
        /// What was being read.
        what: &'static str,
        /// The format that they are said to have.
        format: u64,
        /// The first thing that is missing.
        missing: String,
    },
    /// The database has a table of our name that is not ours.
    #[error(
        "the database has a table \"{table}\" that stepfold did not make; use another database, schema or \
         file, or rename the table"
    )]
    ForeignTable {
        /// The table.
        table: String,
    },
    /// The database was busy, unreachable, or lost in between. Repeat the operation.
    #[error("the store could not {what} now: {}; repeat it with the same ids", ErrorChain(&**source))]
    Unavailable {
        /// What was being done.
        what: &'static str,
        /// What the database says.
        r#source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The database failed.
    #[error("the store could not {what}: {}", ErrorChain(&**source))]
    Store {
        /// What was being done.
        what: &'static str,
        /// What the database says.
        r#source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What is stored is not what was written: a digest or a checksum does not fit, or a part is gone.
    #[error(
        "the stored {what} is damaged: {why}; restore it from a backup, and verify the rest of the store"
    )]
    Damaged {
        /// What was being read.
        what: String,
        /// What does not fit.
        why: String,
    },
    /// There is no store at the path, and none may be made.
    #[error("there is no store of sessions at `{path}`: {why}; check the path")]
    NoStore {
        /// The path.
        path: String,
        /// What is there instead.
        why: &'static str,
    },
    /// The file of a store is empty. A store's file never is, so something has emptied it.
    #[error(
        "the file `{path}` is empty: no store's file ever is; restore it from a backup, or remove it to begin a new store"
    )]
    EmptyFile {
        /// The path.
        path: String,
    },
    /// The process that had a SQLite file open was killed, and the log that it needs since then is gone.
    #[error(
        "the write-ahead log `{path}-wal` is missing: the process that wrote `{path}` was killed, and what it \
         committed last is in that log; put the log beside the file again, or restore a backup"
    )]
    LogMissing {
        /// The path of the file.
        path: String,
    },
    /// The store was opened for reading.
    #[error("the store was opened for reading; open it for writing to change it")]
    ReadOnly,
    /// A custom handler or migration panicked. Its transaction was rolled back.
    #[error("a custom handler or migration panicked")]
    Panicked,
}

/// An id as it was given, with what does not print made visible.
fn shown(id: &str) -> String {
    let mut shown = String::new();
    for character in id.chars() {
        match is_invisible(character) {
            true => shown.extend(character.escape_unicode()),
            false => shown.extend(character.escape_debug()),
        }
    }
    shown
}

/// What a caller can do about an error, without looking at its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request can never work as it is.
    Invalid,
    /// There is no such session or version.
    NotFound,
    /// The id is taken.
    AlreadyExists,
    /// Another writer was faster: load again.
    Conflict,
    /// Another worker holds the session's claim: wait, or take it over.
    Claimed,
    /// The session's claim was lost: stop working on it.
    ClaimLost,
    /// Something that is bounded is full: repeat it later, with the same ids.
    Full,
    /// The store does not have this.
    Unsupported,
    /// The stored data and the schema, or the stored data and this version, do not go together.
    Incompatible,
    /// Repeat it, with the same ids.
    Transient,
    /// The store is broken; a person has to look.
    Broken,
}

impl SessionError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            SessionError::InvalidId { .. }
            | SessionError::EventReused { .. }
            | SessionError::OperationReused { .. }
            | SessionError::WrongScope { .. }
            | SessionError::State { .. }
            | SessionError::OtherState { .. }
            | SessionError::TooLarge { .. }
            | SessionError::TooDeep { .. }
            | SessionError::InvalidCursor
            | SessionError::ReadOnly
            | SessionError::Panicked => ErrorKind::Invalid,
            SessionError::NoStore { .. }
            | SessionError::NotFound { .. }
            | SessionError::NoSuchVersion { .. } => ErrorKind::NotFound,
            SessionError::AlreadyExists { .. } => ErrorKind::AlreadyExists,
            SessionError::Conflict { .. } | SessionError::NotWaiting { .. } => ErrorKind::Conflict,
            SessionError::Claimed { .. } => ErrorKind::Claimed,
            SessionError::ClaimLost { .. } => ErrorKind::ClaimLost,
            SessionError::InboxFull { .. } | SessionError::TooManyLabels { .. } => ErrorKind::Full,
            SessionError::Unsupported { .. } => ErrorKind::Unsupported,
            SessionError::SchemaMismatch { .. }
            | SessionError::Migration { .. }
            | SessionError::NewerFormat { .. }
            | SessionError::OtherLayout { .. }
            | SessionError::ForeignTable { .. } => ErrorKind::Incompatible,
            SessionError::Unavailable { .. } => ErrorKind::Transient,
            SessionError::Stored { .. }
            | SessionError::Store { .. }
            | SessionError::Damaged { .. }
            | SessionError::EmptyFile { .. }
            | SessionError::LogMissing { .. } => ErrorKind::Broken,
        }
    }

    pub(crate) fn not_found(key: &SessionKey) -> Self {
        SessionError::NotFound { key: Box::new(key.clone()) }
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn damaged(what: impl Into<String>, why: impl Into<String>) -> Self {
        SessionError::Damaged { what: what.into(), why: why.into() }
    }

    pub(crate) fn already_exists(key: &SessionKey) -> Self {
        SessionError::AlreadyExists { key: Box::new(key.clone()) }
    }

    pub(crate) fn conflict(key: &SessionKey, expected: u64, actual: u64) -> Self {
        SessionError::Conflict { key: Box::new(key.clone()), expected, actual }
    }

    pub(crate) fn event_reused(key: &SessionKey, event: &EventId) -> Self {
        SessionError::EventReused { key: Box::new(key.clone()), event: event.clone() }
    }

    pub(crate) fn not_waiting(key: &SessionKey, position: u64) -> Self {
        SessionError::NotWaiting { key: Box::new(key.clone()), position }
    }

    pub(crate) fn inbox_full(key: &SessionKey) -> Self {
        SessionError::InboxFull { key: Box::new(key.clone()), limit: MAX_INBOX }
    }

    pub(crate) fn input_reused(key: &SessionKey, operation: &OperationId) -> Self {
        SessionError::OperationReused {
            scope: format!("the inbox of session {key}"),
            operation: operation.clone(),
        }
    }

    pub(crate) fn no_such_version(key: &SessionKey, version: u64, oldest: u64, newest: u64) -> Self {
        SessionError::NoSuchVersion { key: Box::new(key.clone()), version, oldest, newest }
    }

    /// For what was to be applied to a session.
    pub(crate) fn state(what: impl std::fmt::Display) -> impl FnOnce(StateError) -> Self {
        move |source| SessionError::State { what: what.to_string(), source }
    }
}
