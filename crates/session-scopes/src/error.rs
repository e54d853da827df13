//! Errors of sessions, with the key, the versions and advice.

use stepfold_state_core::ErrorChain;
use stepfold_state_core::state::{HandlerError, Issues, StateError, is_ignorable};
use thiserror::Error;

use crate::ids::{BudgetId, ErasureId, EventId, IdempotencyKey, SessionKey, WorkerId};
use crate::keys::KeyRingError;
use crate::store::BudgetBalance;
use crate::time::Timestamp;

/// An error of an operation on a session. Nothing was changed, with one exception: after an error of the kind
/// [`Transient`](ErrorKind::Transient) an append may or may not have been committed. Repeat it with the same event;
/// it is committed once.
#[derive(Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The form of an id is invalid.
    #[error("invalid {what} id \"{}\": {reason}", shown(id))]
    InvalidId {
        /// The kind of id: app, user, session, event, ...
        what: &'static str,
        /// The id.
        id: String,
        /// The reason.
        reason: &'static str,
    },
    /// The session does not exist.
    #[error("session {key} not found")]
    NotFound {
        /// The session.
        key: Box<SessionKey>,
    },
    /// The id of a new session is in use.
    #[error("session {key} already exists")]
    AlreadyExists {
        /// The session.
        key: Box<SessionKey>,
    },
    /// Another writer was faster.
    #[error(
        "version conflict in session {key}: expected version {expected}, found {actual}; load it again and retry"
    )]
    Conflict {
        /// The session.
        key: Box<SessionKey>,
        /// The version that the writer expected.
        expected: u64,
        /// The version of the session.
        actual: u64,
    },
    /// An event id is in use for another event of the session.
    #[error(
        "duplicate event id {event} in session {key}: another event has it; use a unique id for each event"
    )]
    EventReused {
        /// The session.
        key: Box<SessionKey>,
        /// The duplicate id.
        event: EventId,
    },
    /// The id of an erasure is that of an earlier one, and the request has content that is not erased. Nothing was erased.
    #[error(
        "erasure id `{erasure}` reused: an earlier erasure has it, and what is to be erased now is still there; nothing was erased: \
         use a new id"
    )]
    ErasureReused {
        /// The id.
        erasure: ErasureId,
    },
    /// The content of an event was erased, so nothing can be done that needs it.
    #[error("event of version {version} of session {key} was erased; begin again without it")]
    Erased {
        /// The session.
        key: Box<SessionKey>,
        /// The version of the event.
        version: u64,
    },
    /// The idempotency key of an input, or of a write to a scope, was used for another one.
    #[error("idempotency key `{idempotency_key}` was used for another write to {scope}; use a new key")]
    IdempotencyKeyReused {
        /// The scope.
        scope: String,
        /// The key.
        idempotency_key: IdempotencyKey,
    },
    /// Another worker holds the claim on the session.
    #[error(
        "session {key} is claimed by worker {owner} until {expires}; wait until the claim is released or \
         expired, or take it over"
    )]
    Claimed {
        /// The session.
        key: Box<SessionKey>,
        /// The worker that holds the claim.
        owner: WorkerId,
        /// The expiry of its claim, by the store's time.
        expires: Timestamp,
    },
    /// A token is outdated: the claim was taken over or released.
    #[error(
        "claim on session {key} lost: {} token {token}; stop the work, and load the session again",
        owner.as_ref().map_or("no worker holds".to_owned(), |owner| format!("worker {owner} holds it now, not"))
    )]
    ClaimLost {
        /// The session.
        key: Box<SessionKey>,
        /// The outdated token.
        token: u64,
        /// The worker that now holds the claim.
        owner: Option<WorkerId>,
    },
    /// An entry to be taken from the inbox was already taken or withdrawn.
    #[error(
        "inbox entry {position} of session {key} not found: it was taken or withdrawn; read the inbox again"
    )]
    NotWaiting {
        /// The session.
        key: Box<SessionKey>,
        /// The position of the entry.
        position: u64,
    },
    /// The inbox is full.
    #[error("inbox of session {key} is full: {limit} entries wait; retry after some are taken")]
    InboxFull {
        /// The session.
        key: Box<SessionKey>,
        /// The maximum number of entries.
        limit: usize,
    },
    /// A reservation does not fit into a budget.
    #[error(
        "budget {budget} exhausted: {settled} settled and {reserved} reserved of {limit}, requested {requested}; raise \
         its limit, or wait until its window ends"
    )]
    BudgetExhausted {
        /// The budget.
        budget: BudgetId,
        /// The settled amount.
        settled: u64,
        /// The amount that is reserved for requests under way.
        reserved: u64,
        /// The limit.
        limit: u64,
        /// The amount that was to be reserved.
        requested: u64,
    },
    /// A session has the maximum number of labels.
    #[error("too many labels in session {key}: it has the maximum of {limit}; remove one")]
    TooManyLabels {
        /// The session.
        key: Box<SessionKey>,
        /// The maximum number of labels.
        limit: usize,
    },
    /// A session that is deleted [if unused](crate::DeleteSession::if_unused_at) is in use.
    #[error("session {key} is in use: {why}; nothing was deleted")]
    InUse {
        /// The session.
        key: Box<SessionKey>,
        /// The use.
        why: &'static str,
    },
    /// The store does not support the operation.
    #[error("{what} not supported by the store")]
    Unsupported {
        /// The operation.
        what: &'static str,
    },
    /// The version never existed, or was pruned.
    #[error("version {version} of session {key} not found; available: {oldest} to {newest}")]
    NoSuchVersion {
        /// The session.
        key: Box<SessionKey>,
        /// The requested version.
        version: u64,
        /// The oldest available version; retention moves it.
        oldest: u64,
        /// The current version.
        newest: u64,
    },
    /// A write has a key of another scope: `write_app` takes keys of `app:` only, for example.
    #[error("invalid scope of key \"{key}\": expected a key of {scope}")]
    WrongScope {
        /// The key.
        key: String,
        /// The allowed scope.
        scope: &'static str,
    },
    /// A delta, initial values or a schema are invalid.
    #[error("invalid {what}: {source}")]
    State {
        /// The input.
        what: String,
        /// The cause.
        r#source: StateError,
    },
    /// A stored value does not match the schema of the opened session.
    #[error(
        "incompatible stored value of key \"{key}\": stored as {stored}, opened as {opened}: {faults}; \
         register a migration"
    )]
    SchemaMismatch {
        /// The key.
        key: String,
        /// The stored type, in words.
        stored: String,
        /// The type in the current schema, in words.
        opened: String,
        /// Each fault of the stored value.
        faults: Issues,
    },
    /// A state does not match the changes that were read.
    #[error(
        "list \"{key}\" of the state cannot be updated: expected at least {expected} items, found {found}; read the \
         whole session"
    )]
    OtherState {
        /// The key of the list.
        key: String,
        /// The length of the list in the state.
        found: usize,
        /// The minimum expected length.
        expected: usize,
    },
    /// A registered migration could not convert a stored value.
    #[error("migration of key \"{key}\" failed: {source}")]
    Migration {
        /// The key.
        key: String,
        /// The migration's error.
        r#source: HandlerError,
    },
    /// An event exceeds the size limit.
    #[error("{what} too large: expected at most {limit} bytes, found {bytes}")]
    TooLarge {
        /// The part that is too large.
        what: String,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A part of an event is nested too deeply to be stored and read again.
    #[error("{what} nested too deeply: expected at most {} levels", stepfold_state_core::MAX_DEPTH)]
    TooDeep {
        /// The part.
        what: String,
    },
    /// A cursor is not one of this store and list.
    #[error("invalid cursor: use the one of the previous page")]
    InvalidCursor,
    /// Stored data is invalid.
    #[error("invalid stored {what}: {source}")]
    Stored {
        /// The stored data.
        what: String,
        /// The cause.
        r#source: serde_json::Error,
    },
    /// Stored data has a newer format.
    #[error(
        "unsupported format {found} of the stored {what}: this version reads up to {supported}; update stepfold"
    )]
    NewerFormat {
        /// The stored data.
        what: &'static str,
        /// The format of the data.
        found: u64,
        /// The newest supported format.
        supported: u64,
    },
    /// Stored data has an older format, which a store that is opened for reading does not upgrade.
    #[error(
        "unsupported format {found} of the stored {what}: this version reads {current}; open the store for writing, which \
         upgrades it, as `stepfold work` and `serve` do"
    )]
    OlderFormat {
        /// The stored data.
        what: &'static str,
        /// The format of the data.
        found: u64,
        /// The format that is read.
        current: u64,
    },
    /// Stored data has the number of a format, but not its layout: an unreleased version of this crate wrote it.
    #[error(
        "invalid stored {what}: declared format {format}, but {missing} is missing; an unreleased stepfold wrote \
         them: use another file, or the version that wrote them"
    )]
    OtherLayout {
        /// The stored data.
        what: &'static str,
        /// The declared format.
        format: u64,
        /// The first missing element.
        missing: String,
    },
    /// The database has a table with the name of a stepfold table, created by another program.
    #[error(
        "foreign table \"{table}\" in the database: not created by stepfold; use another database, schema or \
         file, or rename the table"
    )]
    ForeignTable {
        /// The table.
        table: String,
    },
    /// Content of a user is sealed, and its key is not there.
    #[error("{what} is sealed: {why}")]
    Sealed {
        /// The content.
        what: String,
        /// The reason.
        why: &'static str,
    },
    /// The store was opened with another key ring before.
    #[error(
        "the keys of the store are in the key ring `{stored}`, not in `{given}`; open the store with that one"
    )]
    OtherKeyRing {
        /// The name of the ring that the store remembers.
        stored: String,
        /// The name of the given ring.
        given: String,
    },
    /// The key ring failed.
    #[error("the key ring failed: {source}")]
    KeyRing {
        /// The error of the ring.
        r#source: KeyRingError,
    },
    /// The database was busy or unreachable, or the connection was lost. Repeat the operation.
    #[error("the store could not {what}: {}; retry with the same ids", ErrorChain(&**source))]
    Unavailable {
        /// The operation.
        what: &'static str,
        /// The error of the database.
        r#source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The database failed.
    #[error("the store could not {what}: {}", ErrorChain(&**source))]
    Store {
        /// The operation.
        what: &'static str,
        /// The error of the database.
        r#source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Stored data is damaged: a digest or a checksum differs, or a part is missing.
    #[error("stored {what} damaged: {why}; restore it from a backup, and verify the rest of the store")]
    Damaged {
        /// The stored data.
        what: String,
        /// The fault.
        why: String,
    },
    /// There is no store at the path, and none may be created.
    #[error("session store `{path}` not found: {why}; check the path")]
    NoStore {
        /// The path.
        path: String,
        /// The reason.
        why: &'static str,
    },
    /// The file of a store is empty. A store's file never is, so another program has truncated it.
    #[error(
        "store file `{path}` is empty: another program truncated it; restore it from a backup, or remove it to begin a new store"
    )]
    EmptyFile {
        /// The path.
        path: String,
    },
    /// The file of a store was removed, renamed or replaced while this process had it open: no other process finds what
    /// this one writes.
    #[error(
        "store file `{path}` was removed or replaced while it was open; restore it, and restart the process: what it \
         wrote since is lost"
    )]
    FileReplaced {
        /// The path.
        path: String,
    },
    /// The process that had a SQLite file open was killed, and the required log is missing.
    #[error(
        "write-ahead log `{path}-wal` is missing: the process that wrote `{path}` was killed, and its last \
         commits are in that log; restore the log next to the file, or restore a backup"
    )]
    LogMissing {
        /// The path of the file.
        path: String,
    },
    /// The store is read-only.
    #[error("the store is read-only: open it for writing")]
    ReadOnly,
    /// A custom handler or migration panicked. Its transaction was rolled back.
    #[error("a custom handler or migration panicked")]
    Panicked,
}

/// An id with invisible characters escaped.
fn shown(id: &str) -> String {
    let mut shown = String::new();
    for character in id.chars() {
        match is_ignorable(character) {
            true => shown.extend(character.escape_unicode()),
            false => shown.extend(character.escape_debug()),
        }
    }
    shown
}

/// The kind of a [`SessionError`], for callers to branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is invalid.
    Invalid,
    /// The session or version does not exist.
    NotFound,
    /// The id is in use.
    AlreadyExists,
    /// Another writer was faster: load again.
    Conflict,
    /// Another worker holds the session's claim: wait, or take it over.
    Claimed,
    /// The session's claim was lost: stop working on it.
    ClaimLost,
    /// A limit is reached: repeat it later, with the same ids.
    Full,
    /// The store does not support the operation.
    Unsupported,
    /// The stored data is incompatible with the schema or with this version.
    Incompatible,
    /// The content is sealed, and its key is not there: the user was erased, or the store needs its key ring.
    Sealed,
    /// Repeat it, with the same ids.
    Transient,
    /// The store is broken: an operator has to repair it.
    Broken,
}

stepfold_state_core::debug_as_text!(SessionError);

impl SessionError {
    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            SessionError::InvalidId { .. }
            | SessionError::EventReused { .. }
            | SessionError::ErasureReused { .. }
            | SessionError::Erased { .. }
            | SessionError::IdempotencyKeyReused { .. }
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
            SessionError::Conflict { .. } | SessionError::NotWaiting { .. } | SessionError::InUse { .. } => {
                ErrorKind::Conflict
            }
            SessionError::Claimed { .. } => ErrorKind::Claimed,
            SessionError::ClaimLost { .. } => ErrorKind::ClaimLost,
            SessionError::InboxFull { .. }
            | SessionError::TooManyLabels { .. }
            | SessionError::BudgetExhausted { .. } => ErrorKind::Full,
            SessionError::Unsupported { .. } => ErrorKind::Unsupported,
            SessionError::SchemaMismatch { .. }
            | SessionError::Migration { .. }
            | SessionError::NewerFormat { .. }
            | SessionError::OlderFormat { .. }
            | SessionError::OtherLayout { .. }
            | SessionError::OtherKeyRing { .. }
            | SessionError::ForeignTable { .. } => ErrorKind::Incompatible,
            SessionError::Sealed { .. } => ErrorKind::Sealed,
            SessionError::KeyRing { source } if source.is_transient() => ErrorKind::Transient,
            SessionError::Unavailable { .. } => ErrorKind::Transient,
            SessionError::Stored { .. }
            | SessionError::Store { .. }
            | SessionError::Damaged { .. }
            | SessionError::KeyRing { .. }
            | SessionError::EmptyFile { .. }
            | SessionError::FileReplaced { .. }
            | SessionError::LogMissing { .. } => ErrorKind::Broken,
        }
    }

    /// The same, with the name of the session whose stored data is invalid or damaged.
    pub(crate) fn of_session(mut self, session: Option<&SessionKey>) -> Self {
        if let (SessionError::Damaged { what, .. } | SessionError::Stored { what, .. }, Some(session)) =
            (&mut self, session)
        {
            let name = session.to_string();
            if !what.contains(&name) {
                what.push_str(" of session ");
                what.push_str(&name);
            }
        }
        self
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

    pub(crate) fn erased(key: &SessionKey, version: u64) -> Self {
        SessionError::Erased { key: Box::new(key.clone()), version }
    }

    /// The error of an operation that needs a key ring, in a store that was opened without.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn ring_missing() -> Self {
        let why = "the store was opened without its key ring; open it with the ring";
        SessionError::Sealed { what: "content".to_owned(), why }
    }

    pub(crate) fn not_waiting(key: &SessionKey, position: u64) -> Self {
        SessionError::NotWaiting { key: Box::new(key.clone()), position }
    }

    pub(crate) fn inbox_full(key: &SessionKey, limit: usize) -> Self {
        SessionError::InboxFull { key: Box::new(key.clone()), limit }
    }

    pub(crate) fn budget_exhausted(found: BudgetBalance, requested: u64, limit: u64) -> Self {
        let limit = found.limit(limit);
        let BudgetBalance { budget, settled, reserved, .. } = found;
        SessionError::BudgetExhausted { budget, settled, reserved, limit, requested }
    }

    pub(crate) fn input_reused(key: &SessionKey, idempotency_key: &IdempotencyKey) -> Self {
        SessionError::IdempotencyKeyReused {
            scope: format!("the inbox of session {key}"),
            idempotency_key: idempotency_key.clone(),
        }
    }

    pub(crate) fn no_such_version(key: &SessionKey, version: u64, oldest: u64, newest: u64) -> Self {
        SessionError::NoSuchVersion { key: Box::new(key.clone()), version, oldest, newest }
    }

    /// Wraps an error of input for a session.
    pub(crate) fn state(what: impl std::fmt::Display) -> impl FnOnce(StateError) -> Self {
        move |source| SessionError::State { what: what.to_string(), source }
    }
}
