//! JSON Schemas in the forms that providers accept: without references, closed, and strict.
//!
//! Strict mode supports only part of JSON Schema. If a schema has no strict form, that is reported and the
//! plain schema is sent instead: never a schema with another meaning.

mod plain;
mod stand_in;
mod strict;
#[cfg(test)]
mod tests;

pub(crate) use self::plain::for_model;
pub(crate) use self::stand_in::drop_stand_in_nulls;
pub(crate) use self::strict::strict;
