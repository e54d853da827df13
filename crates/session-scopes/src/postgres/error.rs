//! Maps errors of PostgreSQL to kinds by what a caller can do.

use deadpool::managed::PoolError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::ring::NO_RING;
use super::tls;
use crate::error::SessionError;

/// Maps an error of PostgreSQL; `what` follows "the store could not".
pub(super) fn failed(what: &'static str) -> impl Fn(Error) -> SessionError + Copy {
    move |error| {
        if error.code().is_some_and(|state| state.code() == NO_RING) {
            return SessionError::ring_missing();
        }
        if is_passing(&error) {
            SessionError::Unavailable { what, source: Box::new(error) }
        } else {
            SessionError::Store { what, source: Box::new(error) }
        }
    }
}

/// Whether the same may work later.
fn is_passing(error: &Error) -> bool {
    let Some(state) = error.code() else {
        // NOTE: no code, so the error is not the server's: the connection was lost, or never made.
        return !tls::is_refused(error);
    };
    // NOTE: connection lost, transaction rolled back (deadlocks too), resources exhausted, and interventions such as a
    // shutdown or a timeout.
    let classes = ["08", "40", "53", "57"];
    // NOTE: the third is a database that accepts no connections for now.
    let states = [
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
    ];
    classes.contains(&state.code().get(..2).unwrap_or_default()) || states.contains(state)
}

/// Turns an error of the pool into ours.
pub(super) fn no_connection(error: PoolError<Error>) -> SessionError {
    match error {
        PoolError::Backend(error) => failed("connect")(error),
        other => SessionError::Unavailable { what: "connect", source: Box::new(other) },
    }
}
