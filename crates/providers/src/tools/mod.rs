//! Tools and schemas as a server takes them, and back: between a request and its dialect, so that no dialect knows of it.
//!
//! In order: [`SchemaRules`] are the rules, as data; [`schema`] makes schemas that conform to them; [`Keys`] are the renamed
//! properties; an [`Offer`] is what a server is offered of some tools, and what is left out; a [`Form`] is that of a reply; and
//! a [`Restored`] decoder gives calls and replies their own names again.

mod format;
mod inline;
mod keys;
mod offer;
mod restore;
mod schema;
mod schema_rules;

pub(crate) use self::format::Form;
pub(crate) use self::keys::Keys;
pub(crate) use self::offer::{Offer, Offers, Wired};
pub(crate) use self::restore::Restored;
pub use self::schema_rules::SchemaRules;
