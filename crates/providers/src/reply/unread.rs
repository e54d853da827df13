//! Unread fields of a reply, kept on request.

use serde_json::Value;
use stepfold_state_core::chat::{Chunk, Extras};

use super::decoder::{ReplyDecoder, parse_piece};
use crate::http::ReplyPiece;

/// The most bytes of JSON of such fields that are kept of a reply. A field that does not fit is left out.
const MAX_BYTES: usize = 16 << 10;

/// The destination of unread fields of a reply: a tier of service, filters, details of usage. At most 16 KiB of them are
/// kept; a cassette does not record those beside the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RawFields {
    /// They are dropped.
    #[default]
    Drop,
    /// They are in [`Reply::raw`](stepfold_state_core::chat::Reply::raw), which is not stored.
    Reply,
    /// They are the extra `raw` of the message, which is stored with it. They do not go back to the provider.
    Message,
}

/// Collects unread fields.
#[derive(Debug)]
pub(crate) struct UnreadFields {
    kept: RawFields,
    fields: Extras,
}

impl UnreadFields {
    pub(crate) const fn new(kept: RawFields) -> Self {
        UnreadFields { kept, fields: Extras::new() }
    }

    /// Collects the unread fields of a piece. A piece that is not JSON is left to the decoder, which reports it.
    pub(crate) fn read<D: ReplyDecoder>(&mut self, piece: &ReplyPiece) {
        if self.kept == RawFields::Drop {
            return;
        }
        // NOTE: A second parse of each piece, so that replies without raw fields cost nothing more. See
        // docs/decisions/providers.md.
        let Ok(Some(body)) = parse_piece::<Value>(piece) else {
            return;
        };
        for (object, read) in D::objects(&body, matches!(piece, ReplyPiece::Whole(_))) {
            let fields = object.as_object().into_iter().flatten();
            for (name, value) in fields.filter(|(name, _)| !read.contains(&name.as_str())) {
                self.keep(name, value);
            }
        }
    }

    /// Replaces an earlier value by a later one; objects are merged by field.
    fn keep(&mut self, name: &str, value: &Value) {
        let value = match (self.fields.get(name), value) {
            (_, Value::Null) => return,
            (Some(Value::Object(before)), Value::Object(more)) => {
                let mut all = before.clone();
                all.extend(
                    more.iter()
                        .filter(|(_, value)| !value.is_null())
                        .map(|(name, value)| (name.clone(), value.clone())),
                );
                Value::Object(all)
            }
            (_, value) => value.clone(),
        };
        let bytes = |name: &str, value: &Value| name.len() + value.to_string().len();
        let others = self.fields.iter().filter(|(other, _)| *other != name);
        let sum: usize = others.map(|(name, value)| bytes(name, value)).sum();
        if sum + bytes(name, &value) <= MAX_BYTES {
            self.fields.insert(name, value);
        }
    }

    /// The chunk with all unread fields, if there are some.
    pub(crate) fn chunk(&mut self) -> Option<Chunk> {
        let fields = std::mem::take(&mut self.fields);
        match self.kept {
            _ if fields.is_empty() => None,
            RawFields::Drop => None,
            RawFields::Reply => Some(Chunk::Raw(fields)),
            RawFields::Message => {
                let fields: Value =
                    fields.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect();
                Some(Chunk::MessageExtras(Extras::from_iter([("raw", fields)])))
            }
        }
    }
}
