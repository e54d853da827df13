//! A decoder that restores the original names of calls and replies, for all dialects.
//!
//! Arguments and texts that have another form on the wire are held back until they are whole; an empty chunk stands
//! for each fragment, so that a slow reply does not look like a silent one. All others stream as they come.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use stepfold_state_core::chat::{Chunk, ModelErrorKind, ToolCallChunk};

use super::{ReplyForm, ToolOffer};
use crate::http::ReplyPiece;
use crate::reply::{FinishState, ReplyDecoder, ReplyFault};

/// Reads one reply and restores the names of the request.
pub(crate) struct RestoringDecoder<D> {
    decoder: D,
    offer: Arc<ToolOffer>,
    form: ReplyForm,
    /// The calls by index, as far as their arguments are held back.
    calls: BTreeMap<usize, HeldCall>,
    /// The text that is held back.
    text: String,
}

#[derive(Default)]
struct HeldCall {
    /// The original name, once it is known.
    name: Option<String>,
    arguments: String,
}

impl<D: ReplyDecoder> RestoringDecoder<D> {
    pub(crate) fn new(decoder: D, offer: Arc<ToolOffer>, form: ReplyForm) -> Self {
        RestoringDecoder { decoder, offer, form, calls: BTreeMap::new(), text: String::new() }
    }

    fn is_plain(&self) -> bool {
        self.offer.is_plain() && self.form.is_plain()
    }

    /// Passes on chunks of the decoder.
    fn pass(&mut self, chunks: Vec<Chunk>, out: &mut Vec<Chunk>) {
        for chunk in chunks {
            match chunk {
                Chunk::Text(text) if !self.form.is_plain() => {
                    self.text.push_str(&text);
                    // NOTE: Whether the value is wrapped is known at the last brace. The empty chunk keeps the idle
                    // timeout from ending a slow reply.
                    out.push(Chunk::Text(String::new()));
                }
                Chunk::ToolCall(call) => {
                    self.end_text(out);
                    out.push(Chunk::ToolCall(self.call(call)));
                }
                Chunk::Finished(_) => {
                    self.release(out);
                    out.push(chunk);
                }
                Chunk::Identity { .. } | Chunk::Usage(_) | Chunk::MessageExtras(_) | Chunk::Raw(_) => {
                    out.push(chunk);
                }
                chunk => {
                    self.end_text(out);
                    out.push(chunk);
                }
            }
        }
    }

    /// Restores the name of a call, and holds back arguments that may differ.
    fn call(&mut self, mut chunk: ToolCallChunk) -> ToolCallChunk {
        if let Some(name) = &mut chunk.name {
            *name = self.offer.name(name).to_owned();
        }
        if self.offer.has_keys() {
            let call = self.calls.entry(chunk.index).or_default();
            if chunk.name.is_some() {
                call.name.clone_from(&chunk.name);
            }
            let may_differ = call.name.as_deref().is_none_or(|name| self.offer.keys(name).is_some());
            if may_differ {
                call.arguments.push_str(&std::mem::take(&mut chunk.arguments));
            } else {
                // Arguments that arrived before the name.
                chunk.arguments.insert_str(0, &std::mem::take(&mut call.arguments));
            }
        }
        chunk
    }

    /// Passes on the text and the arguments that are held back.
    fn release(&mut self, out: &mut Vec<Chunk>) {
        self.end_text(out);
        for (index, HeldCall { name, arguments }) in std::mem::take(&mut self.calls) {
            if !arguments.is_empty() {
                let keys = name.and_then(|name| self.offer.keys(&name));
                let own = keys.and_then(|keys| keys.restored(&arguments));
                out.push(Chunk::ToolCall(ToolCallChunk::new(index, own.unwrap_or(arguments))));
            }
        }
    }

    fn end_text(&mut self, out: &mut Vec<Chunk>) {
        if !self.text.is_empty() {
            let text = std::mem::take(&mut self.text);
            out.push(Chunk::Text(self.form.restored(&text).unwrap_or(text)));
        }
    }

    /// Restores the names of tools in a fault.
    fn own(&self, bad: ReplyFault) -> ReplyFault {
        match bad {
            ReplyFault::Kind(ModelErrorKind::ToolChoiceIgnored, mut message) => {
                for (wired, name) in self.offer.renamed() {
                    message = message.replace(&format!("`{wired}`"), &format!("`{name}`"));
                }
                ReplyFault::Kind(ModelErrorKind::ToolChoiceIgnored, message)
            }
            bad => bad,
        }
    }

    fn read(
        &mut self,
        out: &mut Vec<Chunk>,
        read: impl FnOnce(&mut D, &mut Vec<Chunk>) -> Result<(), ReplyFault>,
    ) -> Result<(), ReplyFault> {
        if self.is_plain() {
            return read(&mut self.decoder, out);
        }
        let mut chunks = Vec::new();
        let result = read(&mut self.decoder, &mut chunks);
        self.pass(chunks, out);
        result.map_err(|bad| {
            self.release(out);
            self.own(bad)
        })
    }
}

impl<D: ReplyDecoder> ReplyDecoder for RestoringDecoder<D> {
    fn push(&mut self, piece: ReplyPiece, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        self.read(out, |decoder, out| decoder.push(piece, out))
    }

    fn end(&self) -> &FinishState {
        self.decoder.end()
    }

    fn is_finished(&self) -> bool {
        self.decoder.is_finished()
    }

    fn is_over(&self) -> bool {
        self.decoder.is_over()
    }

    fn objects(body: &Value, is_whole: bool) -> Vec<(&Value, &'static [&'static str])> {
        D::objects(body, is_whole)
    }

    fn finish(&mut self, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        self.read(out, ReplyDecoder::finish)
    }

    fn abandon(&mut self, out: &mut Vec<Chunk>) {
        let mut last = Vec::new();
        self.decoder.abandon(&mut last);
        self.pass(last, out);
        self.release(out);
    }

    fn held(&self) -> usize {
        self.text.len() + self.decoder.held()
    }
}
