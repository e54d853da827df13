//! The port that every model implements, and its reply stream.
//!
//! There is one path: a whole reply is a collected stream, so that everything that holds for streams holds for
//! whole replies. Nothing here needs a runtime: the caller polls.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::{
    ChatRequest, Chunk, ModelError, ModelErrorKind, OmittedTool, Reply, ReplyBuilder, ToolSpec, WireRequest,
};

/// A chat model.
///
/// Implemented by providers, by scripted models in tests, and by wrappers of another model (retry, fallback,
/// recorder); called once per step by the agent loop. `&T`, `Box<T>` and `Arc<T>` of a model are models, and
/// so is `dyn ChatModel`.
///
/// # Contract
/// - [`respond`](ChatModel::respond) returns immediately; the work is done while the stream is polled.
/// - A failed request is a stream whose first item is an error. An error is always the last item.
/// - A complete stream contains a [`Chunk::Finished`]. A stream that ends without it was interrupted.
/// - Text is passed on unchanged, byte for byte.
/// - Dropping the stream cancels the request.
///
/// # Examples
/// An echo model, polled without a runtime:
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
    /// The model's name in records and logs: the provider and the model, as in `openai/gpt-4.1`. It is
    /// constant for the lifetime of the model.
    fn id(&self) -> &str;

    /// Requests a reply to a conversation.
    fn respond(&self, request: ChatRequest) -> ReplyStream;

    /// The tools that this model leaves out of a request that offers these, since its provider cannot take them; none by
    /// default. A wrapper returns those of the models in it.
    fn omitted_tools(&self, _: &Arc<[ToolSpec]>) -> Vec<OmittedTool> {
        Vec::new()
    }

    /// The request as the model's server would read it, and the changes made for that server. `None`, the default, for a
    /// model without a server. A wrapper of a model forwards it.
    ///
    /// It sends nothing. The result is an error if [`respond`](ChatModel::respond) would refuse the request.
    fn wire_request(&self, _: &ChatRequest) -> Option<Result<WireRequest, ModelError>> {
        None
    }
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

                fn omitted_tools(&self, tools: &Arc<[ToolSpec]>) -> Vec<OmittedTool> {
                    (**self).omitted_tools(tools)
                }

                fn wire_request(&self, request: &ChatRequest) -> Option<Result<WireRequest, ModelError>> {
                    (**self).wire_request(request)
                }
            }
        )+
    };
}

forward!(&T, Box<T>, Arc<T>);

/// The default limit on the bytes of a reply: 32 MiB. A model that repeats itself endlessly must not exhaust
/// memory.
pub const MAX_REPLY_BYTES: usize = 32 << 20;

/// A streamed reply. An error is its last item; after its end it keeps returning `None`.
pub struct ReplyStream {
    /// `None` after the end of the stream, so that its connection is released immediately.
    chunks: Option<Pin<Box<dyn ChunkStream>>>,
}

impl ReplyStream {
    /// A reply from any stream.
    pub fn new(chunks: impl Stream<Item = Result<Chunk, ModelError>> + Send + 'static) -> Self {
        ReplyStream { chunks: Some(Box::pin(chunks)) }
    }

    /// A reply from existing chunks.
    pub fn from_chunks<I>(chunks: I) -> Self
    where
        I: IntoIterator<Item = Chunk>,
        I::IntoIter: Send + 'static,
    {
        ReplyStream::from_results(chunks.into_iter().map(Ok))
    }

    /// A reply from existing chunks, which may end with an error.
    pub fn from_results<I>(results: I) -> Self
    where
        I: IntoIterator<Item = Result<Chunk, ModelError>>,
        I::IntoIter: Send + 'static,
    {
        ReplyStream::new(ReadyStream(results.into_iter()))
    }

    /// The reply to a failed request.
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

    /// Waits for the whole reply, of at most this many [bytes](ReplyBuilder::bytes).
    ///
    /// # Errors
    /// The error at the end of the stream; [`Truncated`](ModelErrorKind::Truncated) if the stream ended before the
    /// reply was finished; or [`ReplyTooLarge`](ModelErrorKind::ReplyTooLarge), after which nothing more is
    /// read. All carry the [partial reply](ModelError::partial).
    ///
    /// # Examples
    /// ```
    /// use std::pin::pin;
    /// use std::task::{Context, Poll, Waker};
    /// use stepfold_state_core::chat::{Chunk, ModelErrorKind, ReplyStream};
    ///
    /// let endless = ReplyStream::from_chunks(std::iter::repeat_with(|| Chunk::Text("area 3 ".to_owned())));
    /// let reply = endless.into_reply_within(1_000);
    /// # let Poll::Ready(reply) = pin!(reply).poll(&mut Context::from_waker(Waker::noop())) else { panic!() };
    /// assert_eq!(reply.unwrap_err().kind(), &ModelErrorKind::ReplyTooLarge { limit: 1_000 });
    /// ```
    pub async fn into_reply_within(mut self, bytes: usize) -> Result<Reply, ModelError> {
        let mut reply = ReplyBuilder::new();
        // NOTE: `futures-core` has no `next`, and this crate depends on no runtime.
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

/// A stream of chunks, as one trait.
trait ChunkStream: Stream<Item = Result<Chunk, ModelError>> + Send {}

impl<S: Stream<Item = Result<Chunk, ModelError>> + Send> ChunkStream for S {}

/// A stream that is always ready.
struct ReadyStream<I>(I);

/// The iterator is never pinned.
impl<I> Unpin for ReadyStream<I> {}

impl<I: Iterator> Stream for ReadyStream<I> {
    type Item = I::Item;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}
