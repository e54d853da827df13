//! Tools and schemas as a server takes them, and back: between a request and its dialect, so that no dialect knows of it.
//!
//! In order: [`SchemaRules`](crate::SchemaRules) are the rules, as data; [`schema`] makes schemas that conform to them; [`RenamedKeys`] are the renamed
//! properties; an [`ToolOffer`] is what a server is offered of some tools, and what is left out; a [`ReplyForm`] is that of a reply; and
//! a [`RestoringDecoder`] decoder gives calls and replies their own names again.

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
