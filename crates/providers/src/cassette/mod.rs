//! Real conversations, recorded and replayed.
//!
//! A [`Cassette`] wraps a model and records its requests and replies in a text file that a person can read,
//! diff and review. Replayed, it answers from the file, without a network or a key, and rejects an unrecorded
//! request with a diff.

mod diff;
mod exchange;
mod file;
mod model;

pub use self::file::CassetteError;
pub use self::model::Cassette;
