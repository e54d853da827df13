//! The text form of a conversation. It parses and prints, and what it prints it parses to the same
//! conversation, whatever that may hold. Tests, fixtures, logs and docs use it.
//!
#![doc = include_str!("notation.md")]

mod parse;
mod print;

pub use parse::NotationError;

/// The characters of an id or a name that stands without quotes.
const fn is_token_char(c: char) -> bool {
    matches!(c, 'A'..='Z' | 'a'..='z' | '0'..='9' | '_' | '-' | '.' | '/')
}
