//! Events: atomic commits.

mod erasure;
mod list_entry;
mod recent;
mod stored;
mod tags;
mod types;

pub use self::erasure::Erasure;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::erasure::erasure_of;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::list_entry::ListEntry;
pub(crate) use self::list_entry::{FIRST, lower, searched_of};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::recent::RecentTexts;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::stored::texts_of_body;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::tags::{MARKS, TAG_BYTES, TagDigest, tag_digest, tags_of_body};
pub(crate) use self::types::exceeds;
pub use self::types::{Actions, CommittedEvent, Event, EventKind, Metadata, RunRecord};
