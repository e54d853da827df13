//! A reply of a scripted model: its content, its end, its chunks.

use futures_util::{StreamExt, stream};
use stepfold_state_core::chat::{
    Chunk, Content, FinishReason, Message, ModelError, ModelErrorKind, NotationError, Reply, ReplyStream,
    Role, Transcript, Usage,
};

/// One reply of a [`Scripted`](super::Scripted) model.
///
/// Made from text, it is an assistant message in the
/// [notation](stepfold_state_core::chat::notation): plain text is text, `> c1 search(q="stalls")` is a
/// call. It can be made from a [`Message`], a whole [`Reply`], a [`ModelError`] or its kind as well.
///
/// By default it ends with [`FinishReason::ToolCalls`] if there are calls, otherwise with
/// [`FinishReason::Stop`]; it has no usage; and it streams in pieces, as servers do: the same ones each time, by the
/// [seed](super::Scripted::with_seed) of its model and its place.
///
/// # Examples
/// ```
/// use stepfold_providers::ScriptedReply;
/// use stepfold_state_core::chat::{FinishReason, Message, ModelErrorKind, Usage};
///
/// let calls = ScriptedReply::from(r#"I look it up. > c1 search(q="stalls") > c2 fetch(id=7)"#);
/// let cut = ScriptedReply::from("so far, so").finished(FinishReason::Length);
/// let paid = ScriptedReply::from(Message::assistant("area 3"))
///     .with_usage(Usage::new(12, 3));
/// let busy = ScriptedReply::from(ModelErrorKind::Overloaded);
/// # let _ = (calls, cut, paid, busy);
/// ```
#[derive(Clone, Debug)]
pub struct ScriptedReply {
    pub(super) message: Result<Message, NotationError>,
    finish_reason: Option<FinishReason>,
    usage: Option<Usage>,
    id: Option<String>,
    model: Option<String>,
    end: ScriptedEnd,
    pieces: ChunkSplit,
    pub(super) may_call_unknown_tools: bool,
}

/// The division of a reply into chunks.
#[derive(Clone, Copy, Debug)]
enum ChunkSplit {
    /// As a server streams it.
    Streamed,
    /// Text and reasoning in chunks of at most this many characters.
    OfAtMost(usize),
    /// A chunk for each part.
    Whole,
}

/// The end of a reply.
#[derive(Clone, Debug)]
enum ScriptedEnd {
    /// The reply is complete.
    Finished,
    /// The stream just ends.
    Truncated,
    /// The reply ends with an error.
    Failed(ModelError),
    /// The stream never ends.
    Hangs,
}

impl ScriptedReply {
    /// A reply with this content; text is notation.
    pub fn new(reply: impl Into<Self>) -> Self {
        reply.into()
    }

    /// A reply that never begins, for tests of timeouts and cancellation.
    pub fn silence() -> Self {
        ScriptedReply::from(Message::new(Role::Assistant)).hanging()
    }

    /// This reply with another finish reason.
    #[must_use]
    pub fn finished(mut self, reason: FinishReason) -> Self {
        self.finish_reason = Some(reason);
        self
    }

    /// Sets the usage.
    #[must_use]
    pub fn with_usage(mut self, usage: Usage) -> Self {
        self.usage = Some(usage);
        self
    }

    /// Sets the provider's id of the reply.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Splits text and reasoning into chunks of exactly this many characters, and the rest.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use futures_util::{FutureExt, StreamExt};
    /// use stepfold_providers::{Scripted, ScriptedReply};
    /// use stepfold_state_core::chat::{ChatModel, ChatRequest, Chunk, Message, Transcript};
    ///
    /// let model = Scripted::new([ScriptedReply::from("area 3").in_pieces(4)]);
    /// let request = ChatRequest::new(Transcript::new().with(Message::user("which?")));
    /// let first = model.respond(request).next().await.unwrap()?;
    /// assert_eq!(first, Chunk::Text("area".to_owned()));
    /// # Ok::<(), stepfold_state_core::chat::ModelError>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn in_pieces(mut self, characters: usize) -> Self {
        self.pieces = ChunkSplit::OfAtMost(characters.max(1));
        self
    }

    /// Sends each part in one chunk.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use futures_util::{FutureExt, StreamExt};
    /// use stepfold_providers::{Scripted, ScriptedReply};
    /// use stepfold_state_core::chat::{ChatModel, ChatRequest, Chunk, Message, Transcript};
    ///
    /// let model = Scripted::new([ScriptedReply::from("area 3").whole()]);
    /// let request = ChatRequest::new(Transcript::new().with(Message::user("which?")));
    /// let first = model.respond(request).next().await.unwrap()?;
    /// assert_eq!(first, Chunk::Text("area 3".to_owned()));
    /// # Ok::<(), stepfold_state_core::chat::ModelError>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn whole(mut self) -> Self {
        self.pieces = ChunkSplit::Whole;
        self
    }

    /// This reply, whose stream ends without being finished.
    #[must_use]
    pub fn truncated(mut self) -> Self {
        self.end = ScriptedEnd::Truncated;
        self
    }

    /// Ends the reply with an error after its content.
    #[must_use]
    pub fn failing(mut self, error: ModelError) -> Self {
        self.end = ScriptedEnd::Failed(error);
        self
    }

    /// Makes the stream hang after its content.
    #[must_use]
    pub fn hanging(mut self) -> Self {
        self.end = ScriptedEnd::Hangs;
        self
    }

    /// Allows calls of tools that the request does not offer. By default such a call counts as a mistake in the
    /// script, and the request fails.
    #[must_use]
    pub fn calling_unknown_tools(mut self) -> Self {
        self.may_call_unknown_tools = true;
        self
    }

    /// Returns the stream of this reply. The seed divides it into chunks unless the reply sets its own; without a
    /// seed it has one chunk for each part.
    pub(super) fn into_stream(self, seed: Option<u64>) -> ReplyStream {
        let message = match &self.message {
            Ok(message) => message,
            Err(error) => return ReplyStream::failed(super::model::failure(error.to_string())),
        };
        let mut chunks = Vec::new();
        if self.id.is_some() || self.model.is_some() {
            chunks.push(Chunk::Identity { id: self.id.clone(), model: self.model.clone() });
        }
        chunks.extend(match self.pieces {
            ChunkSplit::Streamed => {
                seed.map_or_else(|| Chunk::of(message), |seed| Chunk::streamed(message, seed))
            }
            ChunkSplit::Whole => Chunk::of(message),
            ChunkSplit::OfAtMost(characters) => {
                Chunk::of(message).into_iter().flat_map(|chunk| split(chunk, characters)).collect()
            }
        });
        chunks.extend(self.usage.map(Chunk::Usage));
        let reason = self.finish_reason.unwrap_or_else(|| natural_end(message));
        let mut results: Vec<Result<Chunk, ModelError>> = chunks.into_iter().map(Ok).collect();
        match self.end {
            ScriptedEnd::Finished => results.push(Ok(Chunk::Finished(reason))),
            ScriptedEnd::Truncated => {}
            ScriptedEnd::Failed(error) => results.push(Err(error)),
            ScriptedEnd::Hangs => return ReplyStream::new(stream::iter(results).chain(stream::pending())),
        }
        ReplyStream::from_results(results)
    }

    /// Whether the message counts as an answer that the conversation continues.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.end, ScriptedEnd::Finished)
    }
}

/// Returns the finish reason that a model would give.
fn natural_end(message: &Message) -> FinishReason {
    if message.has_tool_calls() { FinishReason::ToolCalls } else { FinishReason::Stop }
}

/// Splits text into chunks of at most `piece` characters.
fn split(chunk: Chunk, piece: usize) -> Vec<Chunk> {
    match chunk {
        Chunk::Text(text) => pieces(&text, piece).map(Chunk::Text).collect(),
        Chunk::Reasoning(text) => pieces(&text, piece).map(Chunk::Reasoning).collect(),
        other => vec![other],
    }
}

fn pieces(text: &str, piece: usize) -> impl Iterator<Item = String> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = rest.char_indices().nth(piece).map_or(rest.len(), |(at, _)| at);
        let (first, more) = rest.split_at(end);
        rest = more;
        (!first.is_empty()).then(|| first.to_owned())
    })
}

impl From<Message> for ScriptedReply {
    fn from(message: Message) -> Self {
        of(Ok(message))
    }
}

/// A complete reply with this message.
const fn of(message: Result<Message, NotationError>) -> ScriptedReply {
    ScriptedReply {
        message,
        finish_reason: None,
        usage: None,
        id: None,
        model: None,
        end: ScriptedEnd::Finished,
        pieces: ChunkSplit::Streamed,
        may_call_unknown_tools: false,
    }
}

impl From<&str> for ScriptedReply {
    /// Reads an assistant message in the [notation](stepfold_state_core::chat::notation). An invalid
    /// text fails the request that it would have answered.
    fn from(text: &str) -> Self {
        of(parse(text))
    }
}

impl From<String> for ScriptedReply {
    fn from(text: String) -> Self {
        ScriptedReply::from(text.as_str())
    }
}

/// The prefix that makes the text of a reply a conversation in notation.
const HEADER: &str = "assistant: ";

/// Parses the body of an assistant message. Plain text is taken literally.
fn parse(text: &str) -> Result<Message, NotationError> {
    let body = text.trim_start().strip_prefix("assistant:").unwrap_or(text).trim();
    let lines: Vec<&str> = body.lines().map(str::trim).collect();
    let whole = format!("{HEADER}{}", lines.join("\n  "));
    let transcript: Transcript = whole.parse().map_err(|mut error: NotationError| {
        let shift = if error.line == 1 { HEADER.len() } else { 2 };
        error.column = error.column.saturating_sub(shift).max(1);
        error
    })?;
    let message = transcript.first().map(|message| Message::clone(message));
    let message = message.unwrap_or_else(|| Message::new(Role::Assistant));
    let is_plain = message.text() == lines.join("\n").trim_end() || lines.contains(&"");
    match message.parts() {
        [only] if is_plain && matches!(only.content, Content::Text(_)) && !body.starts_with('"') => {
            Ok(Message::assistant(text.trim_start().strip_prefix(HEADER).unwrap_or(text)))
        }
        _ => Ok(message),
    }
}

impl From<Reply> for ScriptedReply {
    fn from(reply: Reply) -> Self {
        let mut scripted = of(Ok(reply.message));
        scripted.finish_reason = Some(reply.finish_reason);
        scripted.usage = Some(reply.usage);
        scripted.id = reply.id;
        scripted.model = reply.model;
        scripted
    }
}

impl From<ModelError> for ScriptedReply {
    fn from(error: ModelError) -> Self {
        ScriptedReply::from(Message::new(Role::Assistant)).failing(error)
    }
}

impl From<ModelErrorKind> for ScriptedReply {
    fn from(kind: ModelErrorKind) -> Self {
        ModelError::new(kind, "as the script says").with_provider("scripted").into()
    }
}
