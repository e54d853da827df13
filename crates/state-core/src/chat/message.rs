//! A message: a role and its parts. It has no setters: the snapshots of a transcript share messages, and a
//! provider may cache a message's wire form.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Content, Extras, Part, ToolCall, ToolResult};

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// The instructions.
    System,
    /// The person, or a program on their behalf.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The name of the role in JSON and in the notation.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// The extra of a message that holds the name of its author.
// NOTE: An extra and not a field: messages without a name, nearly all, take no memory for it.
const NAME: &str = "name";

/// A message of a conversation; immutable.
///
/// Any role may hold any part, so that everything a provider sent or an older version stored can be kept.
/// [`Transcript::check`](super::Transcript::check) checks whole conversations.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::chat::{Message, ToolCall, ToolResult};
///
/// let reply = Message::assistant("I look it up.")
///     .with_part(ToolCall::new("c1", "search", json!({"q": "stalls"})));
/// assert_eq!(reply.text(), "I look it up.");
/// assert_eq!(reply.tool_calls().next().unwrap().name, "search");
///
/// let answer = Message::tool(ToolResult::value("c1", "search", json!([3, 4])));
/// assert_eq!(
///     serde_json::to_string(&answer)?,
///     r#"{"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"search","value":[3,4]}}]}"#,
/// );
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    role: Role,
    parts: Vec<Part>,
    extras: Extras,
}

impl Message {
    /// A message without parts; see [`with_part`](Message::with_part).
    pub const fn new(role: Role) -> Self {
        Message { role, parts: Vec::new(), extras: Extras::new() }
    }

    /// A system message with one text part.
    pub fn system(text: impl Into<String>) -> Self {
        Message::from_parts(Role::System, vec![Part::text(text)])
    }

    /// A user message with one text part.
    pub fn user(text: impl Into<String>) -> Self {
        Message::from_parts(Role::User, vec![Part::text(text)])
    }

    /// An assistant message with one text part.
    pub fn assistant(text: impl Into<String>) -> Self {
        Message::from_parts(Role::Assistant, vec![Part::text(text)])
    }

    /// The message that answers one tool call.
    pub fn tool(result: ToolResult) -> Self {
        Message::from_parts(Role::Tool, vec![result.into()])
    }

    /// A message with these parts.
    pub const fn from_parts(role: Role, parts: Vec<Part>) -> Self {
        Message { role, parts, extras: Extras::new() }
    }

    /// Appends a part.
    #[must_use]
    pub fn with_part(mut self, part: impl Into<Part>) -> Self {
        self.parts.push(part.into());
        self
    }

    /// Adds an extra; replaces one of the same name.
    #[must_use]
    pub fn with_extra(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extras.insert(name, value);
        self
    }

    /// Replaces the extras.
    #[must_use]
    pub fn with_extras(mut self, extras: Extras) -> Self {
        self.extras = extras;
        self
    }

    /// This message with the name of its author, one of several users or assistants. Providers without such names
    /// reject the request.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::Message;
    ///
    /// assert_eq!(Message::user("which area?").with_name("ada").name(), Some("ada"));
    /// ```
    #[must_use]
    pub fn with_name(self, name: impl Into<String>) -> Self {
        self.with_extra(NAME, name.into())
    }

    /// The name of the author, if any.
    pub fn name(&self) -> Option<&str> {
        self.extras.get(NAME)?.as_str()
    }

    /// The author of the message.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The content, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The provider's extra data.
    pub const fn extras(&self) -> &Extras {
        &self.extras
    }

    /// All text parts, joined without a separator. Borrowed unless there are several. Empty for a tool message: its text
    /// is that of its [`tool_result`](Message::tool_result).
    pub fn text(&self) -> Cow<'_, str> {
        join_text(&self.parts)
    }

    /// The tool calls, in order.
    pub fn tool_calls(&self) -> impl DoubleEndedIterator<Item = &ToolCall> + Clone {
        self.parts.iter().filter_map(|part| match &part.content {
            Content::ToolCall(call) => Some(call),
            _ => None,
        })
    }

    /// Whether there are tool calls.
    pub fn has_tool_calls(&self) -> bool {
        self.tool_calls().next().is_some()
    }

    /// The tool result; the first, if there are several.
    pub fn tool_result(&self) -> Option<&ToolResult> {
        self.parts.iter().find_map(|part| match &part.content {
            Content::ToolResult(result) => Some(result),
            _ => None,
        })
    }

    /// The parts.
    pub fn into_parts(self) -> Vec<Part> {
        self.parts
    }
}

/// The text of the parts, borrowed unless there are several.
pub(super) fn join_text(parts: &[Part]) -> Cow<'_, str> {
    let mut texts = parts.iter().filter_map(|part| match &part.content {
        Content::Text(text) => Some(text.as_str()),
        _ => None,
    });
    let Some(first) = texts.next() else {
        return Cow::Borrowed("");
    };
    // NOTE: Copies from the second text on; most messages have one.
    texts.fold(Cow::Borrowed(first), |joined, text| joined + text)
}
