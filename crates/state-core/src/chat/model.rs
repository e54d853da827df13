//! The port that every model implements, and the stream that it answers with.
//!
//! There is one path: a whole reply is a stream collected. Nothing here waits by itself:
//! it is the caller who polls, on whatever runtime it has, or on none.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::{ChatRequest, Chunk, ModelError, ModelErrorKind, Reply, ReplyBuilder};

/// A model that one can talk to.
///
/// Implemented by providers, by scripted models in tests, and by layers that wrap another model (retry,
/// fallback, a recorder); called once for each step by whoever drives an agent. `&T`, `Box<T>` and
/// `Arc<T>` of a model are models, and so is a `dyn ChatModel`.
///
/// # Contract
/// - [`respond`](ChatModel::respond) returns at once; the work is done while the stream is polled.
/// - A request that fails is a stream whose first item is an error. An error is always the last item.
/// - A stream that is complete has a [`Chunk::Finished`] in it. One that ends without it was interrupted.
/// - Text is handed on byte for byte as it comes.
/// - Dropping the stream cancels the request.
///
/// # Examples
/// A model that repeats what it is told, polled without a runtime:
/// ```
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
///
/// use stepfold_state_core::chat::{
///     ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Transcript,
/// };
///
/// struct Echo;
///
/// impl ChatModel for Echo {
///     fn id(&self) -> &str {
///         "example/echo"
///     }
///
///     fn respond(&self, request: ChatRequest) -> ReplyStream {
///         let heard = request.messages.last().map(|message| message.text().into_owned());
///         ReplyStream::from_chunks([
///             Chunk::Text("You said: ".to_owned()),
///             Chunk::Text(heard.unwrap_or_default()),
///             Chunk::Finished(FinishReason::Stop),
///         ])
///     }
/// }
///
/// let request = ChatRequest::new(Transcript::new().with(Message::user("hello")));
/// let reply = pin!(Echo.respond(request).into_reply());
/// let Poll::Ready(reply) = reply.poll(&mut Context::from_waker(Waker::noop())) else {
///     panic!("this model never waits");
/// };
/// assert_eq!(reply?.message, Message::assistant("You said: hello"));
/// # Ok::<(), stepfold_state_core::chat::ModelError>(())
/// ```
pub trait ChatModel: Send + Sync {
    /// What the model is called in records and logs: the provider and the model, as in `openai/gpt-4.1`.
    /// It does not change while the model lives.
    fn id(&self) -> &str;

    /// Answers a conversation.
    fn respond(&self, request: ChatRequest) -> ReplyStream;
}

macro_rules! forward {
    ($($pointer:ty),+) => {
        $(
            impl<T: ChatModel + ?Sized> ChatModel for $pointer {
                fn id(&self) -> &str {
                    (**self).id()
                }

                fn respond(&self, request: ChatRequest) -> ReplyStream {
                    (**self).respond(request)
                }
            }
        )+
    };
}

forward!(&T, Box<T>, Arc<T>);

/// The bytes of a reply that are read by default: 32 MiB. A model that repeats itself for ever must not take all
/// memory.
pub const MAX_REPLY_BYTES: usize = 32 << 20;

/// A reply as it comes. An error is its last item; after its end it stays at its end.
pub struct ReplyStream {
    /// None once the stream has ended, so that its connection is let go at once.
    chunks: Option<Pin<Box<dyn Chunks>>>,
}

impl ReplyStream {
    /// A reply made of any stream.
    pub fn new(chunks: impl Stream<Item = Result<Chunk, ModelError>> + Send + 'static) -> Self {
        ReplyStream { chunks: Some(Box::pin(chunks)) }
    }

    /// A reply that is all there.
    pub fn from_chunks<I>(chunks: I) -> Self
    where
        I: IntoIterator<Item = Chunk>,
        I::IntoIter: Send + 'static,
    {
        ReplyStream::from_results(chunks.into_iter().map(Ok))
    }

    /// A reply that is all there, and that may end with an error.
    pub fn from_results<I>(results: I) -> Self
    where
        I: IntoIterator<Item = Result<Chunk, ModelError>>,
        I::IntoIter: Send + 'static,
    {
        ReplyStream::new(Ready(results.into_iter()))
    }

    /// The reply of a request that failed.
    pub fn failed(error: ModelError) -> Self {
        ReplyStream::from_results([Err(error)])
    }

    /// Waits for the whole reply, of at most [`MAX_REPLY_BYTES`].
    ///
    /// # Errors
    /// As [`into_reply_within`](ReplyStream::into_reply_within).
    pub async fn into_reply(self) -> Result<Reply, ModelError> {
        self.into_reply_within(MAX_REPLY_BYTES).await
    }

    /// Waits for the whole reply, of at most so many [bytes](ReplyBuilder::bytes).
    ///
    /// # Errors
    /// The error that the stream ended with, one of kind [`CutOff`](ModelErrorKind::CutOff) if it ended before
    /// it was finished, or one of kind [`ReplyTooLarge`](ModelErrorKind::ReplyTooLarge), after which nothing
    /// more is read. All carry [what had come](ModelError::partial) until then.
    ///
    /// # Examples
    /// ```
    /// # use std::pin::pin;
    /// # use std::task::{Context, Poll, Waker};
    /// use stepfold_state_core::chat::{Chunk, ModelErrorKind, ReplyStream};
    ///
    /// let endless = ReplyStream::from_chunks(std::iter::repeat_with(|| Chunk::Text("area 3 ".to_owned())));
    /// let reply = endless.into_reply_within(1_000);
    /// # let Poll::Ready(reply) = pin!(reply).poll(&mut Context::from_waker(Waker::noop())) else { panic!() };
    /// assert_eq!(reply.unwrap_err().kind(), &ModelErrorKind::ReplyTooLarge { limit: 1_000 });
    /// ```
    pub async fn into_reply_within(mut self, bytes: usize) -> Result<Reply, ModelError> {
        let mut reply = ReplyBuilder::new();
        while let Some(chunk) = poll_fn(|cx| Pin::new(&mut self).poll_next(cx)).await {
            match chunk {
                Ok(chunk) => reply.push(chunk),
                Err(error) => return Err(reply.fail(error)),
            }
            if reply.bytes() > bytes {
                let kind = ModelErrorKind::ReplyTooLarge { limit: bytes };
                return Err(reply.fail(ModelError::new(kind, "")));
            }
        }
        reply.finish()
    }
}

impl Stream for ReplyStream {
    type Item = Result<Chunk, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(chunks) = &mut self.chunks else {
            return Poll::Ready(None);
        };
        let polled = chunks.as_mut().poll_next(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.chunks = None;
        }
        polled
    }
}

impl fmt::Debug for ReplyStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyStream").field("has_ended", &self.chunks.is_none()).finish_non_exhaustive()
    }
}

/// A stream of chunks, in one word.
trait Chunks: Stream<Item = Result<Chunk, ModelError>> + Send {}

impl<S: Stream<Item = Result<Chunk, ModelError>> + Send> Chunks for S {}

/// A stream that never has to wait.
struct Ready<I>(I);

/// The iterator is never pinned.
impl<I> Unpin for Ready<I> {}

impl<I: Iterator> Stream for Ready<I> {
    type Item = I::Item;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}
