//! The origin of writes, as errors name it.

use std::fmt;

use super::requests::ScopeKey;
use crate::ids::EventId;

/// The origin of writes, for errors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WriteOrigin<'a> {
    /// A new session.
    NewSession,
    Event(&'a EventId),
    /// Writes to a scope outside of any session.
    Scope(&'a ScopeKey),
}

impl fmt::Display for WriteOrigin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteOrigin::NewSession => f.write_str("initial values of a session"),
            WriteOrigin::Event(event) => write!(f, "delta of event {event}"),
            WriteOrigin::Scope(scope) => write!(f, "writes to {scope}"),
        }
    }
}
