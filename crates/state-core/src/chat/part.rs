//! The parts of a message. Unknown kinds, written by newer versions, are kept as [`Content::Unknown`], so
//! that an older program can read the record and write it back unchanged.

use serde_json::{Map, Value};

use super::{Extras, ToolCall, ToolResult};
use crate::{MAX_DEPTH, depth};

/// A part of a message, with its provider's extra data.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        let is_storable = !fields.values().any(|value| depth::exceeds(value, MAX_DEPTH));
        (is_unknown && is_storable).then_some(UnknownPart(fields))
    }

    /// The fields as they were read.
    pub const fn fields(&self) -> &Map<String, Value> {
        &self.0
    }
}

/// An image or a file: its URL or its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Media {
    /// The location of the data.
    pub source: MediaSource,
    /// Its media type, such as `image/png`, if known.
    pub media_type: Option<String>,
    /// Its file name, if it has one.
    pub name: Option<String>,
}

impl Media {
    /// Media at a URL.
    pub fn url(url: impl Into<String>) -> Self {
        Media { source: MediaSource::Url(url.into()), media_type: None, name: None }
    }

    /// Base64 data and its media type.
    pub fn base64(data: impl Into<String>, media_type: impl Into<String>) -> Self {
        Media { source: MediaSource::Base64(data.into()), media_type: Some(media_type.into()), name: None }
    }

    /// Sets the file name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }
}

/// The location of an image's or a file's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaSource {
    /// A URL.
    Url(String),
    /// Inline base64 data.
    Base64(String),
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
