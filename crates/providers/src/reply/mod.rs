//! Replies of all dialects: decoded to their end, and complete or an error.
//!
//! In order: a [`ReplyDecoder`] turns pieces of a response into chunks, with checks of tool calls
//! (`calls`); [`UnreadFields`] collects the fields that no decoder reads; a [`ReplyReader`] drives both.

pub(crate) mod calls;
mod decoder;
mod reader;
mod unread;

pub(crate) use self::decoder::parse_piece;
pub(crate) use self::decoder::{FinishState, ReplyDecoder, ReplyFault};
pub(crate) use self::reader::ReplyReader;
pub use self::unread::RawFields;
pub(crate) use self::unread::UnreadFields;
