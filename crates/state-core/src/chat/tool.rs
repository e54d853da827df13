//! Tool calls and their results. Malformed arguments are kept verbatim, for the model and for readers of the
//! record.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::extras::storable;
use super::message::join_text;
use super::{Content, Part};
use crate::json_schema::ValueKinds;
use crate::{MAX_DEPTH, depth};

/// A tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolCall {
    /// The id that its result refers to; unique among the calls of one message.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments.
    pub arguments: Arguments,
}

impl ToolCall {
    /// A call; the arguments may be a JSON value, a map or the result of [`Arguments::parse`].
    pub fn new(id: impl Into<String>, name: impl Into<String>, arguments: impl Into<Arguments>) -> Self {
        ToolCall { id: id.into(), name: name.into(), arguments: arguments.into() }
    }
}

/// The arguments of a tool call: a JSON object, or malformed text.
///
/// # Examples
/// ```
/// use stepfold_state_core::chat::Arguments;
///
/// let arguments = Arguments::parse(r#"{"q": "stalls"}"#);
/// assert_eq!(arguments.as_object().unwrap()["q"], "stalls");
/// assert!(Arguments::parse("").as_object().unwrap().is_empty());
///
/// let (text, error) = Arguments::parse(r#"{"q": stalls}"#).malformed().map(|(text, error)| {
///     (text.to_owned(), error.to_owned())
/// }).unwrap();
/// assert_eq!(text, r#"{"q": stalls}"#);
/// assert_eq!(error, "expected value at line 1 column 7");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments(ArgumentsRepr);

// NOTE: Malformed text is rare and boxed, so that arguments are as small as a map.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ArgumentsRepr {
    Object(Map<String, Value>),
    Malformed(Box<MalformedText>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MalformedText {
    text: String,
    error: String,
}

impl Arguments {
    /// Parses a model's arguments. Never fails and keeps every byte.
    ///
    /// Empty text and `null` are empty arguments. Text that is not JSON, not an object, or nested deeper than
    /// [`MAX_DEPTH`] is malformed.
    pub fn parse(text: impl Into<String>) -> Self {
        let text = text.into();
        // NOTE: Some servers send this for a tool without parameters.
        if matches!(text.trim(), "" | "null") {
            return Arguments::default();
        }
        let error = match serde_json::from_str::<Value>(&text) {
            Ok(Value::Object(map)) => match Arguments::from_map(map) {
                Ok(arguments) => return arguments,
                Err(_) => format!("nested deeper than {MAX_DEPTH} levels"),
            },
            Ok(other) => format!("expected a JSON object, found {}", ValueKinds::of_value(&other)),
            Err(error) => error.to_string(),
        };
        Arguments(ArgumentsRepr::Malformed(Box::new(MalformedText { text, error })))
    }

    /// The arguments; `None` if malformed.
    pub const fn as_object(&self) -> Option<&Map<String, Value>> {
        match &self.0 {
            ArgumentsRepr::Object(map) => Some(map),
            ArgumentsRepr::Malformed(_) => None,
        }
    }

    /// The malformed text, and the error with its position.
    pub fn malformed(&self) -> Option<(&str, &str)> {
        match &self.0 {
            ArgumentsRepr::Object(_) => None,
            ArgumentsRepr::Malformed(malformed) => Some((&malformed.text, &malformed.error)),
        }
    }

    /// The arguments as text: verbatim if malformed, else compact JSON.
    pub fn to_text(&self) -> Cow<'_, str> {
        match &self.0 {
            ArgumentsRepr::Object(map) if map.is_empty() => Cow::Borrowed("{}"),
            ArgumentsRepr::Object(map) => Cow::Owned(compact(map)),
            ArgumentsRepr::Malformed(malformed) => Cow::Borrowed(&malformed.text),
        }
    }

    /// The map as arguments, or the map itself if it is nested too deeply.
    fn from_map(map: Map<String, Value>) -> Result<Self, Map<String, Value>> {
        // NOTE: The map itself is one level.
        let is_too_deep = map.values().any(|value| depth::exceeds(value, MAX_DEPTH - 1));
        if is_too_deep { Err(map) } else { Ok(Arguments(ArgumentsRepr::Object(map))) }
    }
}

impl Default for Arguments {
    /// Empty arguments: `{}`.
    fn default() -> Self {
        Arguments(ArgumentsRepr::Object(Map::new()))
    }
}

impl From<Map<String, Value>> for Arguments {
    fn from(map: Map<String, Value>) -> Self {
        Arguments::from_map(map).unwrap_or_else(|map| Arguments::parse(Value::Object(map).to_string()))
    }
}

impl From<Value> for Arguments {
    /// Equivalent to writing the value as text and [parsing](Arguments::parse) it.
    fn from(value: Value) -> Self {
        match value {
            Value::Object(map) => map.into(),
            other => Arguments::parse(other.to_string()),
        }
    }
}

/// The result of a tool call. A clone is O(1).
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::chat::ToolResult;
///
/// let result = ToolResult::value("c1", "search", json!({"hits": 2}));
/// assert_eq!(result.text(), r#"{"hits":2}"#);
/// assert!(ToolResult::error("c2", "fetch", "timed out").is_error());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ToolResult(Arc<AddressedContent>);

/// A result's content with the call that it answers. Shared by the outcome of the call, its event and the message.
#[derive(Debug, PartialEq, Eq)]
struct AddressedContent {
    call_id: String,
    name: String,
    content: ToolContent,
}

/// The result of a tool call: a value, an error, or parts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolContent {
    /// The tool's return value.
    Value(Value),
    /// An error: the tool failed, was rejected, or was interrupted.
    Error(String),
    /// A result that is not JSON: texts, images, files.
    Parts(Vec<Part>),
}

impl ToolResult {
    /// The result of the call `call_id` of the tool `name`.
    ///
    /// Content that could be written but not read again is kept as its JSON text: a value nested deeper than
    /// [`MAX_DEPTH`], and a tool call or a tool result among the parts.
    pub fn new(call_id: impl Into<String>, name: impl Into<String>, content: ToolContent) -> Self {
        let content = match content {
            ToolContent::Value(value) => ToolContent::Value(storable(value)),
            ToolContent::Error(text) => ToolContent::Error(text),
            ToolContent::Parts(parts) => ToolContent::Parts(parts.into_iter().map(flattened).collect()),
        };
        ToolResult(Arc::new(AddressedContent { call_id: call_id.into(), name: name.into(), content }))
    }

    /// The result of a tool that returned `value`.
    pub fn value(call_id: impl Into<String>, name: impl Into<String>, value: impl Into<Value>) -> Self {
        ToolResult::new(call_id, name, ToolContent::Value(value.into()))
    }

    /// The result of a failed tool; the model reads `text`.
    pub fn error(call_id: impl Into<String>, name: impl Into<String>, text: impl Into<String>) -> Self {
        ToolResult::new(call_id, name, ToolContent::Error(text.into()))
    }

    /// The id of the call.
    pub fn call_id(&self) -> &str {
        &self.0.call_id
    }

    /// The tool's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The value, the error or the parts.
    pub fn content(&self) -> &ToolContent {
        &self.0.content
    }

    /// Whether the call failed.
    pub fn is_error(&self) -> bool {
        matches!(self.0.content, ToolContent::Error(_))
    }

    /// The result as text for the model: a string unchanged, another value as compact JSON, the text of an
    /// error, or the text of the parts.
    pub fn text(&self) -> Cow<'_, str> {
        match self.content() {
            ToolContent::Value(Value::String(text)) | ToolContent::Error(text) => Cow::Borrowed(text),
            ToolContent::Value(value) => Cow::Owned(value.to_string()),
            ToolContent::Parts(parts) => join_text(parts),
        }
    }

    /// The same result for another call id and name.
    #[must_use]
    pub(super) fn readdressed(&self, call_id: &str, name: &str) -> Self {
        let content = self.content().clone();
        ToolResult(Arc::new(AddressedContent { call_id: call_id.to_owned(), name: name.to_owned(), content }))
    }
}

impl fmt::Debug for ToolResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AddressedContent { call_id, name, content } = &*self.0;
        f.debug_struct("ToolResult")
            .field("call_id", call_id)
            .field("name", name)
            .field("content", content)
            .finish()
    }
}

/// A part allowed inside a tool result: calls and results, which would nest, become text.
fn flattened(part: Part) -> Part {
    match part.content {
        Content::ToolCall(_) | Content::ToolResult(_) => {
            Part::text(serde_json::to_string(&part).unwrap_or_default())
        }
        _ => part,
    }
}

fn compact(map: &Map<String, Value>) -> String {
    serde_json::to_string(map).unwrap_or_default()
}
