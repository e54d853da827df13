//! Maps errors of SQLite to kinds by what a caller can do.

use rusqlite::{Error, ErrorCode};

use super::tables::RING_FUNCTION;
use crate::error::SessionError;

/// Maps an error of SQLite; `what` follows "the store could not".
pub(super) fn failed(what: &'static str) -> impl Fn(Error) -> SessionError + Copy {
    move |error| {
        // NOTE: a statement that adds content in a store with a ring, without the ring.
        if error.to_string().contains(RING_FUNCTION) {
            return SessionError::ring_missing();
        }
        let source = Box::new(error);
        match source.sqlite_error_code() {
            Some(
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::DiskFull
                | ErrorCode::OperationInterrupted
                | ErrorCode::FileLockingProtocolFailed,
            ) => SessionError::Unavailable { what, source },
            _ => SessionError::Store { what, source },
        }
    }
}

/// The error of a store whose threads have ended.
pub(super) fn closed() -> SessionError {
    SessionError::Store { what: "respond", source: "its thread has ended".into() }
}
