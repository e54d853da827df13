//! Tools and schemas in the form that a server accepts, and back: between a request and its dialect, so that no dialect
//! knows of it.
//!
//! In order: [`schema`] makes schemas conform to the [rules](crate::SchemaRules); [`RenamedKeys`] are the renamed
//! properties; a [`ToolOffer`] has the tools for a server, and those that are left out; a [`ReplyForm`] is the form
//! of a reply; a [`PreparedRequest`] has both; and a [`RestoringDecoder`] restores the original names of calls and
//! replies.

mod format;
mod inline;
mod keys;
mod offer;
mod restoring;
mod schema;

pub(crate) use self::format::ReplyForm;
pub(crate) use self::keys::RenamedKeys;
pub(crate) use self::offer::{OfferCache, PreparedRequest, ToolOffer};
pub(crate) use self::restoring::RestoringDecoder;
