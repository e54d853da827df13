//! JSON Schemas as all providers accept them: without references, and closed unless they are another party's. Strict forms are made by providers, each by
//! its own taste; what is here knows only that null may stand for a property that is left out.

mod plain;
mod stand_in;
#[cfg(test)]
mod tests;

pub(crate) use self::plain::{UnlistedProperties, for_model};
pub(crate) use self::stand_in::drop_stand_in_nulls;
