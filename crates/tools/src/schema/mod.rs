//! JSON Schemas as providers accept them: without references, closed, and in the strict form.
//!
//! Strict mode cannot say everything that a JSON Schema can. What it cannot is reported, and the plain
//! schema is sent instead: a schema that means something else would be worse than one that is not strict.

mod plain;
mod stand_in;
mod strict;
#[cfg(test)]
mod tests;

pub(crate) use self::plain::for_model;
pub(crate) use self::stand_in::drop_stand_in_nulls;
pub(crate) use self::strict::strict;
