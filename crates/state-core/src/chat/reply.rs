//! What a model answers: chunks, and the pure fold that makes a reply of them.
//!
//! A reply is complete only if its stream said so. What came of one that was cut is a [`PartialReply`],
//! another type, so that nobody takes it for an answer by mistake.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::fragments::{ArgumentsBuilder, CallPlaces};
use super::{Arguments, Content, Extras, Message, ModelError, ModelErrorKind, Part, Role, ToolCall};

/// A piece of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Chunk {
    /// More text. It joins the text right before it.
    Text(String),
    /// More reasoning. It joins the reasoning right before it.
    Reasoning(String),
    /// A tool call, or more of one.
    ToolCall(ToolCallChunk),
    /// A whole part of another kind.
    Part(Part),
    /// Extras of the part that came last. They close it: text that follows is another part.
    PartExtras(Extras),
    /// Extras of the message.
    MessageExtras(Extras),
    /// Fields of the reply that nothing reads, for [`Reply::raw`].
    Raw(Extras),
    /// The tokens used until now, in all: it takes the place of what was said before.
    Usage(Usage),
    /// What the provider calls this reply, and which model it was.
    Identity {
        /// The provider's id of the reply.
        id: Option<String>,
        /// The model that answers.
        model: Option<String>,
    },
    /// The reply is complete. Usage may still follow.
    Finished(FinishReason),
}

impl Chunk {
    /// The chunks of a message that is all there, for models that do not stream. Folded, they give the
    /// same parts and extras again. A [`Chunk::Finished`] is not among them.
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
                // Text right behind text would join it, and empty text would vanish.
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
    /// The size of its content in bytes.
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
            Chunk::Usage(_) | Chunk::Finished(_) => 0,
        }
    }
}

/// The length of compact JSON, without making it.
fn json_bytes(value: &impl Serialize) -> usize {
    struct Counter(usize);

    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut counter = Counter(0);
    match serde_json::to_writer(&mut counter, value) {
        Ok(()) => counter.0,
        Err(_) => usize::MAX,
    }
}

/// A tool call, or more of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCallChunk {
    /// Which of the reply's calls it belongs to. Another id at the same index begins another call.
    pub index: usize,
    /// The id of the call, once it is known.
    pub id: Option<String>,
    /// The name of the tool, once it is known.
    pub name: Option<String>,
    /// More of the text of the arguments.
    pub arguments: String,
}

/// Why a reply ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// The reply is complete.
    Stop,
    /// It waits for the results of its calls.
    ToolCalls,
    /// The limit of tokens was reached.
    Length,
    /// Stopped by the provider's content filter.
    ContentFilter,
    /// The model refused to answer.
    Refusal,
    /// What this version does not know. It is made by [`From<&str>`], which knows the others.
    Other(String),
}

impl FinishReason {
    /// The name of the reason, as it is stored.
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

/// Tokens used. Sums saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// Of the tokens read, those that the provider had in its cache.
    pub cached_input_tokens: u64,
    /// Of the tokens written, those that were reasoning.
    pub reasoning_tokens: u64,
    /// Of the tokens of the input, those that were written to the provider's cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// What the provider says that it cost; zero if it does not say.
    #[serde(rename = "cost_nanodollars", skip_serializing_if = "Cost::is_zero")]
    pub cost: Cost,
}

/// An amount of money, in billionths of a US dollar: whole numbers add up without a rest.
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

    /// An amount in dollars, rounded. One that is negative or no number is zero.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float is saturated when it is made a whole number, and none is negative here"
    )]
    pub fn from_dollars(dollars: f64) -> Self {
        Cost((dollars.max(0.0) * 1e9).round() as u64)
    }

    /// The amount in billionths of a dollar.
    pub const fn nanodollars(self) -> u64 {
        self.0
    }

    /// Whether nothing is known to have been paid.
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
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
    /// Tokens read and written.
    pub const fn total_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

impl Add for Usage {
    type Output = Usage;

    fn add(self, other: Usage) -> Usage {
        Usage {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cached_input_tokens: (self.cached_input_tokens).saturating_add(other.cached_input_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_add(other.reasoning_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_add(other.cache_write_tokens),
            cost: Cost(self.cost.0.saturating_add(other.cost.0)),
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
    /// What the model said, an assistant message.
    pub message: Message,
    /// Why it ended there.
    pub finish_reason: FinishReason,
    /// The tokens used; all zero if the provider did not say.
    #[serde(default)]
    pub usage: Usage,
    /// The provider's id of the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The model that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Fields of the provider's reply that nothing here reads, if its model was told to keep them. They are not stored
    /// with the reply.
    #[serde(skip)]
    pub raw: Extras,
}

/// What had come of a reply when it failed. Its last tool call may lack the end of its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartialReply {
    /// What the model had said.
    pub message: Message,
    /// The tokens used, as far as they are known.
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
/// assert_eq!(error.kind(), &ModelErrorKind::CutOff);
///
/// reply.push(Chunk::Finished(FinishReason::Stop));
/// assert_eq!(reply.finish()?.message.parts().len(), 1);
/// # Ok::<(), stepfold_state_core::chat::ModelError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ReplyBuilder {
    /// What has come, as [`bytes`](ReplyBuilder::bytes) counts.
    bytes: usize,
    parts: Vec<Draft>,
    calls: CallPlaces,
    /// The part that the last chunk was about.
    current: Option<usize>,
    /// The kind of a part that was begun with empty text, and so is not there yet.
    announced: Option<Prose>,
    extras: Extras,
    raw: Extras,
    usage: Usage,
    id: Option<String>,
    model: Option<String>,
    finish_reason: Option<FinishReason>,
}

/// The overhead of a part, in bytes, beside its content.
const PART_BYTES: usize = 64;

/// A part that is being written.
#[derive(Clone, Debug)]
struct Draft {
    content: DraftContent,
    extras: Extras,
}

#[derive(Clone, Debug)]
enum DraftContent {
    Prose(Prose, String),
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
enum Prose {
    Text,
    Reasoning,
}

impl ReplyBuilder {
    /// A reply of which nothing has come.
    pub fn new() -> Self {
        ReplyBuilder::default()
    }

    /// Adds a chunk. Empty text adds nothing.
    pub fn push(&mut self, chunk: Chunk) {
        self.bytes = self.bytes.saturating_add(chunk.bytes());
        match chunk {
            Chunk::Text(text) => self.prose(Prose::Text, text),
            Chunk::Reasoning(text) => self.prose(Prose::Reasoning, text),
            Chunk::ToolCall(chunk) => self.call(chunk),
            Chunk::Part(Part { content, extras }) => {
                self.draft(DraftContent::Whole(content), extras);
            }
            Chunk::PartExtras(extras) => self.part_extras(&extras),
            Chunk::MessageExtras(extras) => extend(&mut self.extras, &extras),
            Chunk::Raw(raw) => extend(&mut self.raw, &raw),
            Chunk::Usage(usage) => self.usage = usage,
            Chunk::Identity { id, model } => {
                self.id = id.or(self.id.take());
                self.model = model.or(self.model.take());
            }
            Chunk::Finished(reason) => self.finish_reason = Some(reason),
        }
    }

    /// What has come so far.
    pub fn partial(&self) -> PartialReply {
        self.clone().into_partial()
    }

    /// The bytes that have come: those of all text, arguments and extras, and 64 for each part, since many empty
    /// parts take room as well. Whoever collects a stream bounds it by this: see
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

    /// Whether the stream has said that the reply is complete.
    pub const fn is_finished(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// The reply, once its stream has ended.
    ///
    /// # Errors
    /// [`ModelErrorKind::CutOff`] if there was no [`Chunk::Finished`]; it carries what had come.
    pub fn finish(mut self) -> Result<Reply, ModelError> {
        let Some(finish_reason) = self.finish_reason.take() else {
            let error = ModelError::new(ModelErrorKind::CutOff, "the stream ended without a finish reason");
            return Err(self.fail(error));
        };
        let raw = std::mem::take(&mut self.raw);
        let PartialReply { message, usage, id, model } = self.into_partial();
        Ok(Reply { message, finish_reason, usage, id, model, raw })
    }

    /// The error that ended the stream, and with it what had come, if it does not carry that already.
    #[must_use]
    pub fn fail(self, error: ModelError) -> ModelError {
        if error.partial().is_some() { error } else { error.with_partial(self.into_partial()) }
    }

    /// Adds to the last part if it is of this kind and was not closed by extras, else begins a part.
    fn prose(&mut self, kind: Prose, more: String) {
        self.announced = None;
        match self.parts.last_mut() {
            // Nothing yet; but extras that come next are about a part of this kind.
            last if more.is_empty() => {
                let goes_on = last
                    .is_some_and(|last| matches!(last.content, DraftContent::Prose(last, _) if last == kind));
                self.announced = (!goes_on).then_some(kind);
            }
            Some(Draft { content: DraftContent::Prose(last_kind, text), extras })
                if *last_kind == kind && extras.is_empty() =>
            {
                text.push_str(&more);
                self.current = self.parts.len().checked_sub(1);
            }
            _ => self.draft(DraftContent::Prose(kind, more), Extras::new()),
        }
    }

    fn call(&mut self, chunk: ToolCallChunk) {
        let ToolCallChunk { index, id, name, arguments } = chunk;
        let (id, name) = (known(id), known(name));
        self.announced = None;
        let position = self.calls.find(index, id.as_deref());
        let call = position.and_then(|position| match &mut self.parts[position].content {
            DraftContent::Call(call) => (!is_another(call, id.as_deref(), name.as_deref())).then_some(call),
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
        self.draft(DraftContent::Call(call), Extras::new());
    }

    fn part_extras(&mut self, more: &Extras) {
        let announced = self.announced.or(self.current.is_none().then_some(Prose::Text));
        if let Some(kind) = announced {
            // A provider may sign a part that has no text.
            self.draft(DraftContent::Prose(kind, String::new()), Extras::new());
        }
        if let Some(draft) = self.current.and_then(|current| self.parts.get_mut(current)) {
            extend(&mut draft.extras, more);
        }
    }

    fn draft(&mut self, content: DraftContent, extras: Extras) {
        self.announced = None;
        self.bytes = self.bytes.saturating_add(PART_BYTES);
        self.current = Some(self.parts.len());
        self.parts.push(Draft { content, extras });
    }

    fn into_partial(self) -> PartialReply {
        let parts = self.parts.into_iter().map(Draft::into_part).collect();
        PartialReply {
            message: Message::from_parts(Role::Assistant, parts).with_extras(self.extras),
            usage: self.usage,
            id: self.id,
            model: self.model,
        }
    }
}

impl Draft {
    fn into_part(self) -> Part {
        let content = match self.content {
            DraftContent::Prose(Prose::Text, text) => Content::Text(text),
            DraftContent::Prose(Prose::Reasoning, text) => Content::Reasoning(text),
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

/// Whether a chunk begins another call at an index in use. Without ids, a different name does, or the same name after
/// complete arguments.
fn is_another(call: &mut CallDraft, id: Option<&str>, name: Option<&str>) -> bool {
    let has_same_id = id.is_some() && call.id.as_deref() == id;
    match (&call.name, name) {
        (Some(ours), Some(theirs)) if !has_same_id => ours != theirs || call.arguments.is_complete(),
        _ => false,
    }
}

/// Drops empty texts, which some servers send.
fn known(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn extend(extras: &mut Extras, more: &Extras) {
    extras.extend(more.iter().map(|(name, value)| (name, value.clone())));
}
