//! The opening of a reply: the chunks before visible content. During the opening, the request can be
//! abandoned and sent again, here or elsewhere.

use futures_util::{StreamExt, stream};
use stepfold_state_core::chat::{Chunk, ModelError, ModelErrorKind, ReplyStream};

/// A reply after its opening: the chunks until then, and the rest of the stream.
pub(super) struct Begun {
    held: Vec<Chunk>,
    rest: ReplyStream,
}

/// Waits until a reply has begun.
///
/// # Errors
/// The error before that.
pub(super) async fn opening(mut reply: ReplyStream) -> Result<Begun, ModelError> {
    let mut held = Vec::new();
    while let Some(chunk) = reply.next().await {
        let chunk = chunk?;
        let is_noticed = is_noticed(&chunk);
        held.push(chunk);
        if is_noticed {
            return Ok(Begun { held, rest: reply });
        }
    }
    Err(ModelError::new(ModelErrorKind::Truncated, "the stream ended before the first chunk"))
}

impl Begun {
    /// The whole reply again.
    pub(super) fn into_stream(self) -> ReplyStream {
        ReplyStream::new(stream::iter(self.held.into_iter().map(Ok)).chain(self.rest))
    }
}

/// Whether a repeated chunk would be visible. Identity and usage are replaced.
fn is_noticed(chunk: &Chunk) -> bool {
    match chunk {
        Chunk::Identity { .. } | Chunk::Usage(_) => false,
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
