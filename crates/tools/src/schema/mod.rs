//! JSON Schemas in the form that all providers accept: without references, and closed unless they are another
//! party's. Providers make their own strict forms; this module only knows that null may replace an omitted property.

mod plain;
mod stand_in;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use self::plain::{UnlistedProperties, for_model};
pub(crate) use self::stand_in::drop_stand_in_nulls;
pub(crate) use self::words::without_words;
