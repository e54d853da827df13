//! Events: what was committed at once.

mod stored;
mod types;

pub use self::types::{Actions, CommittedEvent, Event, EventKind, Record};
