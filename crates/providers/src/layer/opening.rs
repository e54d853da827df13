//! The opening of a reply: the chunks before visible content. During the opening, the request can be
//! abandoned and sent again, here or elsewhere.

use futures_util::{StreamExt, stream};
use stepfold_state_core::chat::{Chunk, ModelError, ModelErrorKind, NextAttempt, ReplyStream};

/// A reply after its opening: the chunks until then, and the rest of the stream.
pub(super) struct BegunReply {
    held: Vec<Chunk>,
    rest: ReplyStream,
}

/// The opening of a reply that is being read.
pub(super) struct Opening {
    held: Vec<Chunk>,
    reply: ReplyStream,
}

/// A step of an opening.
pub(super) enum OpeningStep {
    /// A layer inside makes another attempt, of which the caller hears before it is made.
    NextAttempt(Opening, NextAttempt),
    /// The reply has begun.
    Begun(BegunReply),
}

impl Opening {
    pub(super) const fn of(reply: ReplyStream) -> Self {
        Opening { held: Vec::new(), reply }
    }

    /// Waits until the reply has begun, or a layer inside makes another attempt.
    ///
    /// # Errors
    /// The error before that.
    pub(super) async fn step(mut self) -> Result<OpeningStep, ModelError> {
        while let Some(chunk) = self.reply.next().await {
            let chunk = chunk?;
            if let Chunk::NextAttempt(next) = chunk {
                return Ok(OpeningStep::NextAttempt(self, next));
            }
            let has_begun = is_content(&chunk);
            self.held.push(chunk);
            if has_begun {
                return Ok(OpeningStep::Begun(BegunReply { held: self.held, rest: self.reply }));
            }
        }
        Err(ModelError::new(ModelErrorKind::Truncated, "the stream ended before the first chunk"))
    }
}

/// The progress of attempts to get a reply.
pub(super) enum Attempted<A> {
    /// Another attempt is made when the attempts are continued.
    Again(NextAttempt, A),
    /// The last attempt has begun to answer, or failed.
    Ended(Result<BegunReply, ModelError>),
}

/// The reply of attempts: each is continued only when its caller asks for the chunk after [`Chunk::NextAttempt`].
pub(super) fn reply_of<A, F>(attempts: A, continue_: impl Fn(A) -> F + Send + 'static) -> ReplyStream
where
    A: Send + 'static,
    F: Future<Output = Attempted<A>> + Send + 'static,
{
    let parts = stream::unfold((Some(attempts), continue_), |(attempts, continue_)| async move {
        Some(match continue_(attempts?).await {
            Attempted::Again(next, attempts) => {
                (ReplyStream::from_chunks([Chunk::NextAttempt(next)]), (Some(attempts), continue_))
            }
            Attempted::Ended(Ok(begun)) => (begun.into_stream(), (None, continue_)),
            Attempted::Ended(Err(error)) => (ReplyStream::failed(error), (None, continue_)),
        })
    });
    ReplyStream::new(parts.flatten())
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
        Chunk::Identity { .. }
        | Chunk::Usage(_)
        | Chunk::MessageExtras(_)
        | Chunk::Raw(_)
        | Chunk::NextAttempt(_) => false,
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
