//! Erased events: what stays of an event when its content is gone.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Map;
use stepfold_state_core::chat::{Content, Message, Part, Role, ToolCall, ToolContent, ToolResult};
use stepfold_state_core::state::Delta;

use super::types::{Event, Metadata};
use crate::error::SessionError;
use crate::ids::{Author, ErasureId};
use crate::time::Timestamp;

/// The note in place of an event's erased content: when, by whom and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Erasure {
    /// The id of the erasure.
    pub id: ErasureId,
    /// The time.
    pub at: Timestamp,
    /// The person or program that erased.
    pub by: Author,
    /// The reason.
    pub reason: Arc<str>,
}

impl Erasure {
    pub(crate) fn new(id: ErasureId, at: Timestamp, by: Author, reason: &str) -> Self {
        Erasure { id, at, by, reason: reason.into() }
    }
}

impl Event {
    /// The text in place of each erased one.
    pub const ERASED: &'static str = "[erased]";

    /// The note of its erasure; `None` while it has its content.
    pub fn erasure(&self) -> Option<&Erasure> {
        self.erasure.as_deref()
    }

    /// Drops the content that an event has beside a note of its erasure: a file that comes from elsewhere may have both. An
    /// event without a note stays as it is.
    ///
    /// # Errors
    /// [`SessionError::Stored`] if the removals of its keys cannot be made.
    pub fn without_erased_content(self) -> Result<Self, SessionError> {
        match self.erasure().cloned() {
            Some(note) => self.erased(note),
            None => Ok(self),
        }
    }

    /// The part that stays when its content is erased. An event that was erased before stays as it is, with its note.
    ///
    /// The conversation keeps its form: each message its role, each call and each result its id and its tool, so that no
    /// reader finds a call without a result. A write becomes the removal of its key, so that readers still know which keys
    /// the event changed.
    pub(crate) fn erased(&self, note: Erasure) -> Result<Self, SessionError> {
        // NOTE: also with a note: a file that is imported may have both a note and content.
        let mut left = self.clone();
        let tags = self.effective_tags().into_owned();
        left.tags = (!tags.is_empty()).then(|| tags.into());
        left.messages = self.messages.iter().map(|message| Arc::new(erased_message(message))).collect();
        left.actions.delta = removals(&self.actions.delta)?;
        left.record = None;
        left.metadata = Metadata::new();
        left.erasure.get_or_insert_with(|| Arc::new(note));
        Ok(left)
    }
}

/// The note of a stored event, if its content was erased and what is left can be read.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn erasure_of(id: &str, at: Timestamp, body: &str) -> Option<Erasure> {
    // NOTE: a search of the text is much cheaper than parsing, and few events are erased.
    if !body.contains(r#""erased":{"#) {
        return None;
    }
    let event = crate::ids::EventId::new(id).and_then(|id| Event::from_body(id, at, body)).ok()?;
    event.erasure().cloned()
}

fn removals(delta: &Delta) -> Result<Delta, SessionError> {
    let removals =
        delta.iter().map(|write| serde_json::json!({"key": write.key(), "remove": true})).collect();
    serde_json::from_value(serde_json::Value::Array(removals))
        .map_err(|source| SessionError::Stored { what: "writes of an erased event".to_owned(), source })
}

fn erased_message(message: &Message) -> Message {
    let mut parts: Vec<Part> = message.parts().iter().filter_map(erased_part).collect();
    if parts.is_empty() && message.role() != Role::Tool {
        parts.push(Part::text(Event::ERASED));
    }
    Message::from_parts(message.role(), parts)
}

fn erased_part(part: &Part) -> Option<Part> {
    match &part.content {
        Content::ToolCall(call) => Some(ToolCall::new(&call.id, &call.name, Map::new()).into()),
        Content::ToolResult(result) => {
            let content = if result.is_error() {
                ToolContent::Error(Event::ERASED.to_owned())
            } else {
                ToolContent::Value(Event::ERASED.into())
            };
            Some(ToolResult::new(result.call_id(), result.name(), content).into())
        }
        // NOTE: providers reject reasoning without the signature that they gave it.
        Content::Reasoning(_) => None,
        _ => Some(Part::text(Event::ERASED)),
    }
}
