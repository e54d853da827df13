//! Model replies: streamed chunks, and the pure fold that assembles them.
//!
//! A reply is complete only if its stream marked it so. An interrupted reply is a [`PartialReply`], a separate
//! type, so that it cannot be mistaken for an answer.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::fragments::{ArgumentsBuilder, CallPositions};
use super::{Arguments, Content, Extras, Message, ModelError, ModelErrorKind, Part, Role, ToolCall};

/// A chunk of a streamed reply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Chunk {
    /// More text; appended to directly preceding text.
    Text(String),
    /// More reasoning; appended to directly preceding reasoning.
    Reasoning(String),
    /// A tool call, or a fragment of one.
    ToolCall(ToolCallChunk),
    /// A whole part of another kind.
    Part(Part),
    /// Extras of the last part. They close it: text after them is a new part.
    PartExtras(Extras),
    /// Extras of the message.
    MessageExtras(Extras),
    /// Unread fields of the reply, for [`Reply::raw`].
    Raw(Extras),
    /// The total tokens used so far; replaces the previous value.
    Usage(Usage),
    /// The provider's id of the reply, and the model.
    Identity {
        /// The provider's id of the reply.
        id: Option<String>,
        /// The model that answers.
        model: Option<String>,
    },
    /// The reply is complete. Usage may still follow.
    Finished(FinishReason),
    /// An attempt has failed, and the request is sent again once the next chunk is asked for. It adds nothing to the reply,
    /// and comes before its content.
    NextAttempt(NextAttempt),
}

/// Another attempt of a request: of the same model, or of another one.
///
/// Made by layers that repeat requests or fall back to other models. A caller that meters requests admits the attempt before
/// it asks for the next chunk; to drop the stream keeps the request from being sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NextAttempt {
    /// The id of the model that is asked next; `None` for the same as before.
    pub model: Option<String>,
    /// Whether the failed attempt cost nothing.
    pub failed_free: bool,
}

impl NextAttempt {
    /// Another attempt after this error.
    pub fn after(error: &ModelError) -> Self {
        NextAttempt { model: None, failed_free: error.is_free() }
    }

    /// Sets the model that is asked next.
    #[must_use]
    pub fn of_model(mut self, id: impl Into<String>) -> Self {
        self.model = Some(id.into());
        self
    }
}

impl Chunk {
    /// The chunks of an existing message, for models that do not stream. Folding them gives the same parts
    /// and extras. [`Chunk::Finished`] is not included.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::{Chunk, Message};
    ///
    /// assert_eq!(Chunk::of(&Message::assistant("hi")), [Chunk::Text("hi".to_owned())]);
    /// ```
    pub fn of(message: &Message) -> Vec<Chunk> {
        let mut chunks = Vec::with_capacity(message.parts().len() + 1);
        let mut indexes = 0..;
        for part in message.parts() {
            let chunk = match &part.content {
                // NOTE: As text chunks, adjacent texts would be joined and empty text would be lost.
                Content::Text(text) if !matches!(chunks.last(), Some(Chunk::Text(_))) && !text.is_empty() => {
                    Chunk::Text(text.clone())
                }
                Content::Reasoning(text)
                    if !matches!(chunks.last(), Some(Chunk::Reasoning(_))) && !text.is_empty() =>
                {
                    Chunk::Reasoning(text.clone())
                }
                Content::ToolCall(call) => Chunk::ToolCall(ToolCallChunk {
                    index: indexes.next().unwrap_or_default(),
                    id: Some(call.id.clone()),
                    name: Some(call.name.clone()),
                    arguments: call.arguments.to_text().into_owned(),
                }),
                content => Chunk::Part(content.clone().into()),
            };
            chunks.push(chunk);
            if !part.extras.is_empty() {
                chunks.push(Chunk::PartExtras(part.extras.clone()));
            }
        }
        if !message.extras().is_empty() {
            chunks.push(Chunk::MessageExtras(message.extras().clone()));
        }
        chunks
    }
}

impl Chunk {
    /// The size of the content in bytes.
    fn bytes(&self) -> usize {
        let known = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        match self {
            Chunk::Text(text) | Chunk::Reasoning(text) => text.len(),
            Chunk::ToolCall(call) => call.arguments.len() + known(&call.id) + known(&call.name),
            Chunk::Part(part) => json_bytes(part),
            Chunk::PartExtras(extras) | Chunk::MessageExtras(extras) | Chunk::Raw(extras) => {
                json_bytes(extras)
            }
            Chunk::Identity { id, model } => known(id) + known(model),
            // NOTE: Each replaces the one before it, so any number of them takes no more memory.
            Chunk::Usage(_) | Chunk::Finished(_) | Chunk::NextAttempt(_) => 0,
        }
    }
}

/// The length of the compact JSON, computed without building it.
fn json_bytes(value: &impl Serialize) -> usize {
    struct JsonLength(usize);

    impl std::io::Write for JsonLength {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut counter = JsonLength(0);
    match serde_json::to_writer(&mut counter, value) {
        Ok(()) => counter.0,
        // NOTE: A value that cannot be measured exceeds every limit.
        Err(_) => usize::MAX,
    }
}

/// A tool call, or a fragment of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolCallChunk {
    /// The index of the call in the reply. Another id at the same index begins another call.
    pub index: usize,
    /// The id of the call, if known.
    pub id: Option<String>,
    /// The name of the tool, if known.
    pub name: Option<String>,
    /// A fragment of the arguments' text.
    pub arguments: String,
}

impl ToolCallChunk {
    /// A fragment of the arguments of the call at this index.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::{Chunk, ToolCallChunk};
    ///
    /// let begin = ToolCallChunk::new(0, "{\"city\":").with_id("c1").with_name("weather");
    /// let chunks = [begin, ToolCallChunk::new(0, "\"Rome\"}")].map(Chunk::ToolCall);
    /// assert_eq!(chunks.len(), 2);
    /// ```
    pub fn new(index: usize, arguments: impl Into<String>) -> Self {
        ToolCallChunk { index, id: None, name: None, arguments: arguments.into() }
    }

    /// Sets the id of the call.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets the name of the tool.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }
}

/// The reason why a reply ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// The reply is complete.
    Stop,
    /// The model waits for the results of its calls.
    ToolCalls,
    /// The token limit was reached.
    Length,
    /// Stopped by the provider's content filter.
    ContentFilter,
    /// The model refused to answer.
    Refusal,
    /// An unknown reason. Use [`From<&str>`], which recognises the known ones.
    Other(String),
}

impl FinishReason {
    /// The stored name of the reason.
    pub fn as_str(&self) -> &str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::Length => "length",
            FinishReason::ContentFilter => "content_filter",
            FinishReason::Refusal => "refusal",
            FinishReason::Other(name) => name,
        }
    }
}

impl From<&str> for FinishReason {
    fn from(name: &str) -> Self {
        match name {
            "stop" => FinishReason::Stop,
            "tool_calls" => FinishReason::ToolCalls,
            "length" => FinishReason::Length,
            "content_filter" => FinishReason::ContentFilter,
            "refusal" => FinishReason::Refusal,
            other => FinishReason::Other(other.to_owned()),
        }
    }
}

impl std::fmt::Display for FinishReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for FinishReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for FinishReason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(String::deserialize(deserializer)?.as_str().into())
    }
}

/// Token usage. Sums saturate.
///
/// # Examples
/// ```
/// use stepfold_state_core::chat::Usage;
///
/// let usage = Usage::new(1_000, 500).with_cached_input_tokens(800);
/// assert_eq!((usage.total_tokens(), usage.reasoning_tokens), (1_500, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Usage {
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Input tokens read from the provider's cache.
    pub cached_input_tokens: u64,
    /// Output tokens spent on reasoning.
    pub reasoning_tokens: u64,
    /// Input tokens written to the provider's cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// The cost that the provider reports; zero if it reports none.
    #[serde(rename = "cost_nanodollars", skip_serializing_if = "Cost::is_zero")]
    pub cost: Cost,
}

/// An amount of money, in billionths of a US dollar: integers add up exactly.
///
/// # Examples
/// ```
/// use stepfold_state_core::chat::Cost;
///
/// let cost = Cost::from_dollars(0.00125);
/// assert_eq!(cost.nanodollars(), 1_250_000);
/// assert_eq!(cost.to_string(), "$0.001250");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cost(u64);

impl Cost {
    /// An amount in billionths of a dollar.
    pub const fn from_nanodollars(nanodollars: u64) -> Self {
        Cost(nanodollars)
    }

    /// An amount in dollars, rounded. A negative or non-finite amount is zero.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float saturates when it is cast to an integer, and it is not negative here"
    )]
    pub fn from_dollars(dollars: f64) -> Self {
        Cost((dollars.max(0.0) * 1e9).round() as u64)
    }

    /// The amount in billionths of a dollar.
    pub const fn nanodollars(self) -> u64 {
        self.0
    }

    /// Whether the cost is zero or unknown.
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
    }
}

impl std::ops::Add for Cost {
    type Output = Cost;

    /// The sum; the largest amount if it is larger.
    fn add(self, other: Cost) -> Cost {
        Cost(self.0.saturating_add(other.0))
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micro = self.0.saturating_add(500) / 1_000;
        write!(f, "${}.{:06}", micro / 1_000_000, micro % 1_000_000)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Usage {
    /// The usage of a request with this many input and output tokens.
    pub const fn new(input_tokens: u64, output_tokens: u64) -> Self {
        Usage {
            input_tokens,
            output_tokens,
            cached_input_tokens: 0,
            reasoning_tokens: 0,
            cache_write_tokens: 0,
            cost: Cost(0),
        }
    }

    /// Sets how many of the input tokens were read from the provider's cache.
    #[must_use]
    pub const fn with_cached_input_tokens(mut self, tokens: u64) -> Self {
        self.cached_input_tokens = tokens;
        self
    }

    /// Sets how many of the output tokens were spent on reasoning.
    #[must_use]
    pub const fn with_reasoning_tokens(mut self, tokens: u64) -> Self {
        self.reasoning_tokens = tokens;
        self
    }

    /// Sets how many of the input tokens were written to the provider's cache.
    #[must_use]
    pub const fn with_cache_write_tokens(mut self, tokens: u64) -> Self {
        self.cache_write_tokens = tokens;
        self
    }

    /// Sets the cost that the provider reports.
    #[must_use]
    pub const fn with_cost(mut self, cost: Cost) -> Self {
        self.cost = cost;
        self
    }

    /// Input and output tokens.
    pub const fn total_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

impl Add for Usage {
    type Output = Usage;

    // NOTE: The counts are those of a server, which may send any number: a sum must not overflow.
    fn add(self, other: Usage) -> Usage {
        Usage {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cached_input_tokens: (self.cached_input_tokens).saturating_add(other.cached_input_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_add(other.reasoning_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_add(other.cache_write_tokens),
            cost: self.cost + other.cost,
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        *self = *self + other;
    }
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Usage>>(all: I) -> Usage {
        all.fold(Usage::default(), Usage::add)
    }
}

/// A complete reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Reply {
    /// The assistant message.
    pub message: Message,
    /// The reason why the reply ended.
    pub finish_reason: FinishReason,
    /// The token usage; all zero if the provider did not report it.
    #[serde(default)]
    pub usage: Usage,
    /// The provider's id of the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The model that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Fields of the provider's reply that this version does not read, if the model keeps them. They are not stored with
    /// the reply.
    #[serde(skip)]
    pub raw: Extras,
}

/// The received part of a failed reply. The arguments of its last tool call may be incomplete.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartialReply {
    /// The received part of the message.
    pub message: Message,
    /// The token usage, as far as known.
    pub usage: Usage,
    /// The provider's id of the reply.
    pub id: Option<String>,
    /// The model that answered.
    pub model: Option<String>,
}

/// Folds chunks into a [`Reply`].
///
/// # Examples
/// ```
/// use stepfold_state_core::chat::{Chunk, FinishReason, ModelErrorKind, ReplyBuilder};
///
/// let mut reply = ReplyBuilder::new();
/// reply.push(Chunk::Text("Hel".to_owned()));
/// reply.push(Chunk::Text("lo".to_owned()));
/// assert_eq!(reply.partial().message.text(), "Hello");
///
/// let error = reply.clone().finish().unwrap_err();
/// assert_eq!(error.kind(), &ModelErrorKind::Truncated);
///
/// reply.push(Chunk::Finished(FinishReason::Stop));
/// assert_eq!(reply.finish()?.message.parts().len(), 1);
/// # Ok::<(), stepfold_state_core::chat::ModelError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ReplyBuilder {
    /// The received size, as [`bytes`](ReplyBuilder::bytes) counts.
    bytes: usize,
    parts: Vec<PartDraft>,
    calls: CallPositions,
    /// The part of the last chunk.
    current: Option<usize>,
    /// The kind of a part that began with empty text, and does not exist yet.
    announced: Option<ProseKind>,
    extras: Extras,
    raw: Extras,
    usage: Usage,
    id: Option<String>,
    model: Option<String>,
    finish_reason: Option<FinishReason>,
}

/// The overhead of a part in bytes, in addition to its content.
const PART_BYTES: usize = 64;

/// A part in progress.
#[derive(Clone, Debug)]
struct PartDraft {
    content: DraftContent,
    extras: Extras,
}

#[derive(Clone, Debug)]
enum DraftContent {
    Prose(ProseKind, String),
    Call(CallDraft),
    Whole(Content),
}

#[derive(Clone, Debug)]
struct CallDraft {
    id: Option<String>,
    name: Option<String>,
    arguments: ArgumentsBuilder,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ProseKind {
    Text,
    Reasoning,
}

impl ReplyBuilder {
    /// An empty reply.
    pub fn new() -> Self {
        ReplyBuilder::default()
    }

    /// Adds a chunk. Empty text adds nothing.
    pub fn push(&mut self, chunk: Chunk) {
        self.bytes = self.bytes.saturating_add(chunk.bytes());
        match chunk {
            Chunk::Text(text) => self.push_prose(ProseKind::Text, text),
            Chunk::Reasoning(text) => self.push_prose(ProseKind::Reasoning, text),
            Chunk::ToolCall(chunk) => self.push_call(chunk),
            Chunk::Part(Part { content, extras }) => {
                self.push_draft(DraftContent::Whole(content), extras);
            }
            Chunk::PartExtras(extras) => self.push_part_extras(&extras),
            Chunk::MessageExtras(extras) => extend(&mut self.extras, &extras),
            Chunk::Raw(raw) => extend(&mut self.raw, &raw),
            // NOTE: Providers send running totals; a sum would count tokens twice.
            Chunk::Usage(usage) => self.usage = usage,
            Chunk::Identity { id, model } => {
                // NOTE: A later chunk may name only one of the two.
                self.id = id.or(self.id.take());
                self.model = model.or(self.model.take());
            }
            Chunk::Finished(reason) => self.finish_reason = Some(reason),
            Chunk::NextAttempt(_) => {}
        }
    }

    /// The received part of the reply.
    pub fn partial(&self) -> PartialReply {
        self.clone().into_partial()
    }

    /// The bytes received: all text, arguments and extras, and 64 for each part, since many empty parts take
    /// memory as well. Collectors of a stream use it as a limit: see
    /// [`into_reply_within`](super::ReplyStream::into_reply_within).
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::{Chunk, ReplyBuilder};
    ///
    /// let mut reply = ReplyBuilder::new();
    /// reply.push(Chunk::Text("area 3".to_owned()));
    /// assert_eq!(reply.bytes(), 6 + 64);
    /// ```
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the stream has marked the reply as complete.
    pub const fn is_finished(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// Returns the reply, after the end of its stream.
    ///
    /// # Errors
    /// [`ModelErrorKind::Truncated`] without a [`Chunk::Finished`]; it carries the partial reply.
    pub fn finish(mut self) -> Result<Reply, ModelError> {
        // NOTE: A lost connection must not pass for a short answer.
        let Some(finish_reason) = self.finish_reason.take() else {
            let error =
                ModelError::new(ModelErrorKind::Truncated, "the stream ended without a finish reason");
            return Err(self.fail(error));
        };
        let raw = std::mem::take(&mut self.raw);
        let PartialReply { message, usage, id, model } = self.into_partial();
        Ok(Reply { message, finish_reason, usage, id, model, raw })
    }

    /// Adds the partial reply to the error that ended the stream, unless it already has one.
    #[must_use]
    pub fn fail(self, error: ModelError) -> ModelError {
        if error.partial().is_some() { error } else { error.with_partial(self.into_partial()) }
    }

    /// Appends to the last part if it is of this kind and not closed by extras; otherwise begins a part.
    fn push_prose(&mut self, kind: ProseKind, more: String) {
        self.announced = None;
        match self.parts.last_mut() {
            // NOTE: Empty text is not a part yet, but extras that follow belong to a part of this kind.
            last if more.is_empty() => {
                let continues = last.is_some_and(|last| {
                    last.extras.is_empty()
                        && matches!(last.content, DraftContent::Prose(last, _) if last == kind)
                });
                self.announced = (!continues).then_some(kind);
            }
            Some(PartDraft { content: DraftContent::Prose(last_kind, text), extras })
                // NOTE: Extras, such as a signature, cover the text before them, so text after them is a new
                // part.
                if *last_kind == kind && extras.is_empty() =>
            {
                text.push_str(&more);
                self.current = self.parts.len().checked_sub(1);
            }
            _ => self.push_draft(DraftContent::Prose(kind, more), Extras::new()),
        }
    }

    fn push_call(&mut self, chunk: ToolCallChunk) {
        let ToolCallChunk { index, id, name, arguments } = chunk;
        let (id, name) = (non_empty(id), non_empty(name));
        self.announced = None;
        let position = self.calls.find(index, id.as_deref());
        let call = position.and_then(|position| match &mut self.parts[position].content {
            DraftContent::Call(call) => {
                (!begins_new_call(call, id.as_deref(), name.as_deref())).then_some(call)
            }
            _ => None,
        });
        let Some(call) = call else {
            self.begin_call(index, CallDraft { id, name, arguments: ArgumentsBuilder::new() }, &arguments);
            return;
        };
        if let (None, Some(id)) = (&call.id, id) {
            self.calls.name_last(index, &id);
            call.id = Some(id);
        }
        call.name = call.name.take().or(name);
        call.arguments.push(&arguments);
        self.current = position;
    }

    fn begin_call(&mut self, index: usize, mut call: CallDraft, arguments: &str) {
        self.calls.begin(index, call.id.as_deref(), self.parts.len());
        call.arguments.push(arguments);
        self.push_draft(DraftContent::Call(call), Extras::new());
    }

    fn push_part_extras(&mut self, more: &Extras) {
        let announced = self.announced.or(self.current.is_none().then_some(ProseKind::Text));
        if let Some(kind) = announced {
            // NOTE: A provider may sign a part without text.
            self.push_draft(DraftContent::Prose(kind, String::new()), Extras::new());
        }
        if let Some(draft) = self.current.and_then(|current| self.parts.get_mut(current)) {
            extend(&mut draft.extras, more);
        }
    }

    fn push_draft(&mut self, content: DraftContent, extras: Extras) {
        self.announced = None;
        self.bytes = self.bytes.saturating_add(PART_BYTES);
        self.current = Some(self.parts.len());
        self.parts.push(PartDraft { content, extras });
    }

    fn into_partial(self) -> PartialReply {
        let parts = self.parts.into_iter().map(PartDraft::into_part).collect();
        PartialReply {
            message: Message::from_parts(Role::Assistant, parts).with_extras(self.extras),
            usage: self.usage,
            id: self.id,
            model: self.model,
        }
    }
}

impl PartDraft {
    fn into_part(self) -> Part {
        let content = match self.content {
            DraftContent::Prose(ProseKind::Text, text) => Content::Text(text),
            DraftContent::Prose(ProseKind::Reasoning, text) => Content::Reasoning(text),
            DraftContent::Call(call) => Content::ToolCall(ToolCall {
                id: call.id.unwrap_or_default(),
                name: call.name.unwrap_or_default(),
                arguments: Arguments::parse(call.arguments.into_text()),
            }),
            DraftContent::Whole(content) => content,
        };
        Part { content, extras: self.extras }
    }
}

/// Whether a chunk begins another call at an index in use. Without ids, a different name does, or the same
/// name after complete arguments.
fn begins_new_call(call: &mut CallDraft, id: Option<&str>, name: Option<&str>) -> bool {
    let has_same_id = id.is_some() && call.id.as_deref() == id;
    match (&call.name, name) {
        (Some(ours), Some(theirs)) if !has_same_id => ours != theirs || call.arguments.is_complete(),
        _ => false,
    }
}

/// Drops empty strings, which some servers send.
fn non_empty(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn extend(extras: &mut Extras, more: &Extras) {
    extras.extend(more.iter().map(|(name, value)| (name, value.clone())));
}
