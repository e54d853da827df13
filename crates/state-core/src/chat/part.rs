//! The parts of a message. Unknown kinds, written by newer versions, are kept as [`Content::Unknown`], so
//! that an older program can read the record and write it back unchanged.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Extras, ToolCall, ToolResult};
use crate::{MAX_DEPTH, depth};

/// A part of a message, with its provider's extra data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part {
    /// The content.
    pub content: Content,
    /// The provider's extra data of the part, such as a signature.
    pub extras: Extras,
}

impl Part {
    /// A text part.
    pub fn text(text: impl Into<String>) -> Self {
        Content::Text(text.into()).into()
    }

    /// A reasoning part.
    pub fn reasoning(text: impl Into<String>) -> Self {
        Content::Reasoning(text.into()).into()
    }

    /// Adds an extra; replaces one of the same name.
    #[must_use]
    pub fn with_extra(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extras.insert(name, value);
        self
    }

    /// Sets all extras.
    #[must_use]
    pub fn with_extras(mut self, extras: Extras) -> Self {
        self.extras = extras;
        self
    }
}

/// The content of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Content {
    /// Text.
    Text(String),
    /// The model's reasoning.
    Reasoning(String),
    /// An image.
    Image(Media),
    /// A file that is not an image, such as a document or audio.
    File(Media),
    /// A tool call.
    ToolCall(ToolCall),
    /// The result of a tool call.
    ToolResult(ToolResult),
    /// A kind of part that this version does not know.
    Unknown(UnknownPart),
}

impl Content {
    /// The name of the kind, as in JSON; for an unknown part, the name of its first field.
    pub fn kind(&self) -> &str {
        match self {
            Content::Text(_) => "text",
            Content::Reasoning(_) => "reasoning",
            Content::Image(_) => "image",
            Content::File(_) => "file",
            Content::ToolCall(_) => "tool_call",
            Content::ToolResult(_) => "tool_result",
            // NOTE: A provider's own part has one field, named after its dialect.
            Content::Unknown(part) => part.0.keys().next().map_or("unknown", String::as_str),
        }
    }
}

/// The field names of the known kinds in a part's JSON object.
pub(super) const KNOWN_FIELDS: [&str; 7] =
    ["text", "reasoning", "image", "file", "tool_call", "tool_result", "extras"];

/// A part of an unknown kind, as the JSON object it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPart(Map<String, Value>);

impl UnknownPart {
    /// Keeps `fields` if they are distinguishable from a known part and readable again: not empty, no field
    /// named like a known kind or `extras`, and nested no deeper than [`MAX_DEPTH`].
    pub fn new(fields: Map<String, Value>) -> Option<Self> {
        let is_unknown = !fields.is_empty() && !KNOWN_FIELDS.iter().any(|name| fields.contains_key(*name));
        // NOTE: Deeper values could be written and not read again.
        let is_storable = !fields.values().any(|value| depth::exceeds(value, MAX_DEPTH));
        (is_unknown && is_storable).then_some(UnknownPart(fields))
    }

    /// The fields as they were read.
    pub const fn fields(&self) -> &Map<String, Value> {
        &self.0
    }
}

/// An image or a file: its location, or its content.
///
/// A provider that cannot send one of its fields refuses the request with an error of kind
/// [`Unsupported`](super::ModelErrorKind::Unsupported).
///
/// # Examples
/// ```
/// use stepfold_state_core::chat::{Content, ImageDetail, Media, Message, Part, Role};
///
/// let map = Media::url("https://x.test/map.png").with_detail(ImageDetail::Low);
/// let register = Media::text("area 3: 12 stalls", "text/plain").named("register.txt").with_citations();
/// let parts = vec![Part::text("which?"), Content::Image(map).into(), Content::File(register).into()];
/// let message = Message::from_parts(Role::User, parts);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Media {
    /// The location of the data.
    pub source: MediaSource,
    /// Its media type, such as `image/png`, if known.
    pub media_type: Option<String>,
    /// Its file name, if it has one.
    pub name: Option<String>,
    /// The detail of the image; by default, the provider decides.
    pub detail: Option<ImageDetail>,
    /// Whether the reply is to cite it: see [`Message::citations`](super::Message::citations).
    pub has_citations: bool,
}

impl Media {
    /// Media at a URL.
    pub fn url(url: impl Into<String>) -> Self {
        Media::from(MediaSource::Url(url.into()))
    }

    /// A file that was uploaded to the provider, by its id there; for Gemini, its URI.
    pub fn file_id(id: impl Into<String>) -> Self {
        Media::from(MediaSource::FileId(id.into()))
    }

    /// A text document, and its media type.
    pub fn text(text: impl Into<String>, media_type: impl Into<String>) -> Self {
        Media { media_type: Some(media_type.into()), ..Media::from(MediaSource::Text(text.into())) }
    }

    /// Base64 data and its media type.
    pub fn base64(data: impl Into<String>, media_type: impl Into<String>) -> Self {
        Media { media_type: Some(media_type.into()), ..Media::from(MediaSource::Base64(data.into())) }
    }

    /// Sets the file name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the detail of the image.
    #[must_use]
    pub const fn with_detail(mut self, detail: ImageDetail) -> Self {
        self.detail = Some(detail);
        self
    }

    /// Asks the model to cite it in the reply.
    #[must_use]
    pub const fn with_citations(mut self) -> Self {
        self.has_citations = true;
        self
    }
}

impl From<MediaSource> for Media {
    fn from(source: MediaSource) -> Self {
        Media { source, media_type: None, name: None, detail: None, has_citations: false }
    }
}

/// The detail of an image for the model: more detail costs more tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ImageDetail {
    /// Few tokens.
    Low,
    /// Between both.
    Medium,
    /// Many tokens.
    High,
    /// The image as it is, not scaled down.
    Original,
}

impl ImageDetail {
    /// The stored name of the detail.
    pub const fn as_str(self) -> &'static str {
        match self {
            ImageDetail::Low => "low",
            ImageDetail::Medium => "medium",
            ImageDetail::High => "high",
            ImageDetail::Original => "original",
        }
    }
}

/// The location of an image's or a file's data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MediaSource {
    /// A URL.
    Url(String),
    /// Inline base64 data.
    Base64(String),
    /// Inline text.
    Text(String),
    /// The provider's id of an uploaded file.
    FileId(String),
}

impl MediaSource {
    /// The length in bytes of the content, the URL or the id.
    pub const fn len(&self) -> usize {
        match self {
            MediaSource::Url(text)
            | MediaSource::Base64(text)
            | MediaSource::Text(text)
            | MediaSource::FileId(text) => text.len(),
        }
    }

    /// Whether the length is zero.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Content> for Part {
    fn from(content: Content) -> Self {
        Part { content, extras: Extras::new() }
    }
}

impl From<&str> for Part {
    fn from(text: &str) -> Self {
        Part::text(text)
    }
}

impl From<String> for Part {
    fn from(text: String) -> Self {
        Part::text(text)
    }
}

impl From<ToolCall> for Part {
    fn from(call: ToolCall) -> Self {
        Content::ToolCall(call).into()
    }
}

impl From<ToolResult> for Part {
    fn from(result: ToolResult) -> Self {
        Content::ToolResult(result).into()
    }
}
