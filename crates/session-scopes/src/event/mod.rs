//! Events: atomic commits.

mod stored;
mod types;

pub(crate) use self::types::exceeds;
pub use self::types::{Actions, CommittedEvent, Event, EventKind, Metadata, Record};
