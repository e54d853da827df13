//! The opening of a reply: the chunks before visible content. During the opening, the request can be
//! abandoned and sent again, here or elsewhere.

use futures_util::{StreamExt, stream};
use stepfold_state_core::chat::{Chunk, ModelError, ModelErrorKind, ReplyStream};

/// A reply after its opening: the chunks until then, and the rest of the stream.
pub(super) struct BegunReply {
    held: Vec<Chunk>,
    rest: ReplyStream,
}

/// Waits until a reply has begun.
///
/// # Errors
/// The error before that.
pub(super) async fn opening(mut reply: ReplyStream) -> Result<BegunReply, ModelError> {
    let mut held = Vec::new();
    while let Some(chunk) = reply.next().await {
        let chunk = chunk?;
        let has_begun = is_content(&chunk);
        held.push(chunk);
        if has_begun {
            return Ok(BegunReply { held, rest: reply });
        }
    }
    Err(ModelError::new(ModelErrorKind::Truncated, "the stream ended before the first chunk"))
}

impl BegunReply {
    /// Names the model that answers, where its provider does not.
    pub(super) fn answered_by(mut self, model: &str) -> Self {
        self.held.insert(0, Chunk::Identity { id: None, model: Some(model.to_owned()) });
        self
    }

    /// The whole reply again.
    pub(super) fn into_stream(self) -> ReplyStream {
        ReplyStream::new(stream::iter(self.held.into_iter().map(Ok)).chain(self.rest))
    }
}

/// Whether a chunk is content of the reply, or its end. Identity, usage, and fields of the whole message are replaced by
/// those of another attempt; empty text and usage keep a connection alive and are no progress.
pub(crate) fn is_content(chunk: &Chunk) -> bool {
    match chunk {
        Chunk::Identity { .. } | Chunk::Usage(_) | Chunk::MessageExtras(_) | Chunk::Raw(_) => false,
        // NOTE: Some servers send empty text for minutes while a model reasons.
        Chunk::Text(text) | Chunk::Reasoning(text) => !text.is_empty(),
        _ => true,
    }
}

/// The error of all attempts: with the kind of the last one, and a list of all if requested.
pub(super) fn all_failed(last: ModelError, what: &str, attempts: &[String]) -> ModelError {
    let listed = if attempts.is_empty() { String::new() } else { format!(": {}", attempts.join("; ")) };
    let message = format!("{} ({what}{listed})", last.message());
    last.with_message(message.trim_start())
}
