//! The text form of a conversation, for tests, fixtures, logs and docs. Parsing the printed form gives the
//! same conversation, whatever its content.
//!
#![doc = include_str!("notation.md")]

mod parse;
mod print;

pub use parse::NotationError;

/// The characters of an unquoted id or name.
const fn is_token_char(c: char) -> bool {
    matches!(c, 'A'..='Z' | 'a'..='z' | '0'..='9' | '_' | '-' | '.' | '/')
}
