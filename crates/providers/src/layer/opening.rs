//! The opening of a reply: what comes before anything that a reader would notice. As long as a reply is
//! in its opening, the request can be given up and sent again, here or elsewhere.

use futures_util::{StreamExt, stream};
use stepfold_state_core::chat::{Chunk, ModelError, ModelErrorKind, ReplyStream};

/// A reply that has begun: the chunks that came until then, and the stream of the rest.
pub(super) struct Begun {
    held: Vec<Chunk>,
    rest: ReplyStream,
}

/// Waits until a reply has begun.
///
/// # Errors
/// What it failed with before.
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
    Err(ModelError::new(ModelErrorKind::CutOff, "the stream ended before anything came"))
}

impl Begun {
    /// The whole reply again.
    pub(super) fn into_stream(self) -> ReplyStream {
        ReplyStream::new(stream::iter(self.held.into_iter().map(Ok)).chain(self.rest))
    }
}

/// Whether a reader would notice the chunk twice. What it is called and what it cost is replaced.
fn is_noticed(chunk: &Chunk) -> bool {
    match chunk {
        Chunk::Identity { .. } | Chunk::Usage(_) => false,
        Chunk::Text(text) | Chunk::Reasoning(text) => !text.is_empty(),
        _ => true,
    }
}

/// The error that stands for all attempts: of the kind of the last one, with what each came to, if that is to be listed.
pub(super) fn all_failed(last: ModelError, what: &str, attempts: &[String]) -> ModelError {
    let listed = if attempts.is_empty() { String::new() } else { format!(": {}", attempts.join("; ")) };
    let message = format!("{} ({what}{listed})", last.message());
    last.with_message(message.trim_start())
}
