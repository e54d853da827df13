//! Real conversations, recorded once and replayed for ever.
//!
//! A [`Cassette`] goes around a model and writes down what it is asked and what it answers, in a text file
//! that a person can read, diff and review. Replayed, it answers from the file, without a network or a key,
//! and refuses whatever was not recorded by showing how it differs.

mod diff;
mod exchange;
mod file;
mod tape;

pub use self::file::CassetteError;
pub use self::tape::Cassette;
