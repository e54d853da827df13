//! The JSON that events are stored as, with its version number.
//!
//! An event has two forms. Its *body* is for a store that keeps the id and the time in separate, searchable
//! columns; so the body omits them. The *whole* form is self-contained, for a file of events. Format 1 is an
//! object of these fields, in this order:
//!
//! | field | content | omitted |
//! |---|---|---|
//! | `v` | the number of the format | never |
//! | `id` | the id | in a body |
//! | `invocation` | the invocation | if it is the id up to its first full stop |
//! | `author` | the author | never |
//! | `at` | the time: microseconds since 1970 | in a body |
//! | `kind` | the kind | if it is `message` |
//! | `messages` | a list of messages | if empty |
//! | `delta` | the writes: a list of `key`, `handler`, `value` | if empty |
//! | `started` | the ids of calls that are about to start | if empty |
//! | `rewound_to` | the version that the session was rewound to | without a rewind |
//! | `record` | the runner's record: a list of its format, the version of that, and the data | if missing |
//! | `metadata` | the application's metadata | if empty |
//! | `tags` | the names that the event is found by | if empty |
//! | `erased` | the note in place of erased content: `id`, `at`, `by`, `reason` | unless it is erased |
//!
//! A field that this version does not know is ignored; a newer version number is an error. The files under
//! `tests/golden` hold samples of every version that was ever written.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use stepfold_state_core::chat::Message;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use stepfold_state_core::chat::StoredText;
use stepfold_state_core::state::Delta;

use super::erasure::Erasure;
use super::recent::{RecentTexts, common};
use super::types::{Actions, Event, EventKind, Metadata, RunRecord};
use crate::error::SessionError;
use crate::ids::{Author, EventId, InvocationId};
use crate::time::Timestamp;

/// The format that this version writes.
const EVENT_FORMAT: u64 = 1;

// NOTE: the order of the fields is that of the stored text, which digests cover and repeated appends are compared by. It
// never changes within a format.
#[derive(Serialize)]
struct EventOut<'a> {
    v: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a EventId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    invocation: Option<&'a InvocationId>,
    author: &'a Author,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Timestamp>,
    #[serde(skip_serializing_if = "is_message")]
    kind: &'a EventKind,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    messages: &'a [Arc<Message>],
    #[serde(skip_serializing_if = "Delta::is_empty")]
    delta: &'a Delta,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    started: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    rewound_to: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<(&'a str, u64, &'a RawValue)>,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: &'a Metadata,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tags: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    erased: Option<&'a Erasure>,
}

fn is_message(kind: &EventKind) -> bool {
    *kind == EventKind::MESSAGE
}

/// Format 1. Short texts are borrowed, since most events have those of [others](RecentTexts).
#[derive(Deserialize)]
struct EventIn<'a> {
    v: u64,
    id: Option<EventId>,
    #[serde(borrow)]
    invocation: Option<TextIn<'a>>,
    #[serde(borrow)]
    author: TextIn<'a>,
    at: Option<Timestamp>,
    #[serde(borrow, default = "TextIn::message")]
    kind: TextIn<'a>,
    #[serde(default, deserialize_with = "messages")]
    messages: Vec<Arc<Message>>,
    #[serde(default)]
    delta: Delta,
    #[serde(default)]
    started: Vec<String>,
    #[serde(default)]
    rewound_to: Option<u64>,
    #[serde(borrow, default)]
    record: Option<(TextIn<'a>, u64, &'a RawValue)>,
    #[serde(borrow, default)]
    metadata: MetadataIn<'a>,
    tags: Option<Box<[String]>>,
    erased: Option<Box<Erasure>>,
}

/// A string, borrowed unless it has escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct TextIn<'a>(#[serde(borrow)] Cow<'a, str>);

impl TextIn<'_> {
    const fn message() -> Self {
        TextIn(Cow::Borrowed("message"))
    }
}

/// The entries of an object, in their order.
#[derive(Default)]
struct MetadataIn<'a>(Vec<(TextIn<'a>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for MetadataIn<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MetadataVisitor;

        impl<'de> Visitor<'de> for MetadataVisitor {
            type Value = MetadataIn<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::with_capacity(1);
                while let Some(entry) = object.next_entry()? {
                    entries.push(entry);
                }
                Ok(MetadataIn(entries))
            }
        }

        deserializer.deserialize_map(MetadataVisitor)
    }
}

/// Deserializes each message into its final place. A shared pointer that serde reads is allocated as a box first.
fn messages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Arc<Message>>, D::Error> {
    struct MessagesVisitor;

    impl<'de> Visitor<'de> for MessagesVisitor {
        type Value = Vec<Arc<Message>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a sequence")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            // NOTE: most events have one message; a larger capacity would stay allocated with each.
            let mut messages = Vec::with_capacity(1);
            while let Some(message) = items.next_element::<Message>()? {
                messages.push(Arc::new(message));
            }
            Ok(messages)
        }
    }

    deserializer.deserialize_seq(MessagesVisitor)
}

/// The invocation of an event that does not name one. Runners build event ids from an invocation's id and an
/// index.
fn implied_invocation(id: &EventId) -> &str {
    let id = id.as_str();
    id.split_once('.').map_or(id, |(invocation, _)| invocation)
}

impl Event {
    /// The whole event as JSON, of the newest format. The output is deterministic.
    ///
    /// # Errors
    /// [`SessionError::Stored`] if a part has no JSON form; none of the built-in types is like that.
    ///
    /// # Examples
    /// ```
    /// use stepfold_session_scopes::{Author, Event, EventId, InvocationId, Timestamp};
    ///
    /// let (id, invocation) = (EventId::new("i1.0")?, InvocationId::new("i1")?);
    /// let event = Event::new(id, invocation, Author::new("user")?, Timestamp::from_micros(7));
    /// assert_eq!(event.to_stored()?, r#"{"v":1,"id":"i1.0","author":"user","at":7}"#);
    /// assert_eq!(Event::from_stored(&event.to_stored()?)?, event);
    /// # Ok::<(), stepfold_session_scopes::SessionError>(())
    /// ```
    pub fn to_stored(&self) -> Result<String, SessionError> {
        self.to_json(&EventOut { id: Some(&self.id), at: Some(self.at), ..self.out() })
    }

    /// Reads a whole event back, of any format that was ever written.
    ///
    /// # Errors
    /// [`SessionError::NewerFormat`], or [`SessionError::Stored`] when the text is not an event.
    pub fn from_stored(text: &str) -> Result<Self, SessionError> {
        let mut stored = read(text)?;
        let missing = |field| stored_fault(serde::de::Error::missing_field(field));
        let id = stored.id.take().ok_or_else(|| missing("id"))?;
        let at = stored.at.ok_or_else(|| missing("at"))?;
        stored.event(id, at, &mut RecentTexts::default())
    }

    /// The JSON to store next to the event's id and its time, of the newest format. The output is
    /// deterministic; events with the same body may still differ in the other columns.
    ///
    /// # Errors
    /// As [`to_stored`](Event::to_stored).
    ///
    /// # Examples
    /// ```
    /// use stepfold_session_scopes::{Author, Event, EventId, InvocationId, Timestamp};
    ///
    /// let (id, at) = (EventId::new("i1.0")?, Timestamp::from_micros(7));
    /// let event = Event::new(id.clone(), InvocationId::new("i1")?, Author::new("user")?, at);
    /// assert_eq!(event.to_body()?, r#"{"v":1,"author":"user"}"#);
    /// assert_eq!(Event::from_body(id, at, &event.to_body()?)?, event);
    /// # Ok::<(), stepfold_session_scopes::SessionError>(())
    /// ```
    pub fn to_body(&self) -> Result<String, SessionError> {
        self.to_json(&self.out())
    }

    /// Builds an event from its id, its time and its body, of any format that was ever written.
    ///
    /// # Errors
    /// As [`from_stored`](Event::from_stored).
    pub fn from_body(id: EventId, at: Timestamp, body: &str) -> Result<Self, SessionError> {
        Event::from_body_sharing(&mut RecentTexts::default(), id, at, body)
    }

    /// As [`from_body`](Event::from_body), for one of many events: shares texts with earlier ones.
    pub(crate) fn from_body_sharing(
        recent: &mut RecentTexts,
        id: EventId,
        at: Timestamp,
        body: &str,
    ) -> Result<Self, SessionError> {
        read(body)?.event(id, at, recent)
    }

    fn out(&self) -> EventOut<'_> {
        // NOTE: runners build event ids from the invocation's id, so that most events need not store it.
        let is_implied = self.invocation.as_str() == implied_invocation(&self.id);
        EventOut {
            v: EVENT_FORMAT,
            id: None,
            invocation: (!is_implied).then_some(&self.invocation),
            author: &self.author,
            at: None,
            kind: &self.kind,
            messages: &self.messages,
            delta: &self.actions.delta,
            started: &self.actions.started,
            rewound_to: self.actions.rewound_to,
            record: self.record.as_ref().map(RunRecord::stored),
            metadata: &self.metadata,
            tags: self.tags(),
            erased: self.erasure(),
        }
    }

    fn to_json(&self, out: &EventOut<'_>) -> Result<String, SessionError> {
        serde_json::to_string(out)
            .map_err(|source| SessionError::Stored { what: format!("event {}", self.id), source })
    }
}

fn read(text: &str) -> Result<EventIn<'_>, SessionError> {
    match serde_json::from_str::<EventIn<'_>>(text) {
        // NOTE: the format is read with the event and not before it: parsing twice would double the cost of each event, and
        // a newer format is rare.
        Ok(stored) if stored.v <= EVENT_FORMAT => Ok(stored),
        other => Err(fault_of(text, other.err())),
    }
}

/// The texts of the messages of a body, read without the rest of it; `None` if it is no body of a known format.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn texts_of_body(body: &str) -> Option<Vec<StoredText<'_>>> {
    #[derive(Deserialize)]
    struct TextsIn<'a> {
        v: u64,
        #[serde(borrow, default)]
        messages: Vec<StoredText<'a>>,
    }

    let texts = serde_json::from_str::<TextsIn<'_>>(body).ok()?;
    (texts.v <= EVENT_FORMAT).then_some(texts.messages)
}

impl EventIn<'_> {
    fn event(self, id: EventId, at: Timestamp, recent: &mut RecentTexts) -> Result<Event, SessionError> {
        let fault = |error: SessionError| stored_fault(serde::de::Error::custom(error));
        let invocation = self.invocation.as_ref().map_or_else(|| implied_invocation(&id), |text| &text.0);
        let invocation = recent.invocation(invocation).map_err(fault)?;
        let author = recent.author(&self.author.0).map_err(fault)?;
        let EventIn { kind, messages, delta, started, rewound_to, record, metadata, tags, erased, .. } = self;
        let entry = |(name, value): (TextIn<'_>, &RawValue)| (common(name.0), recent.metadata(value));
        Ok(Event {
            id,
            invocation,
            author,
            at,
            kind: EventKind::new(common(kind.0)),
            messages,
            actions: Actions { delta, started, rewound_to },
            record: record
                .map(|(format, version, data)| RunRecord::of_stored(common(format.0), version, data)),
            metadata: Metadata::of_stored(metadata.0.into_iter().map(entry).collect()),
            tags: tags.filter(|tags| !tags.is_empty()),
            erasure: erased.map(|note| Arc::new(*note)),
        })
    }
}

/// The error of an invalid text: a newer format, or invalid JSON.
fn fault_of(text: &str, error: Option<serde_json::Error>) -> SessionError {
    #[derive(Deserialize)]
    struct StoredFormat {
        v: u64,
    }

    let version = serde_json::from_str::<StoredFormat>(text);
    match (version, error) {
        (Ok(StoredFormat { v: found }), _) if found > EVENT_FORMAT => {
            SessionError::NewerFormat { what: "event", found, supported: EVENT_FORMAT }
        }
        (_, Some(source)) | (Err(source), None) => stored_fault(source),
        (Ok(_), None) => stored_fault(serde::de::Error::custom("unknown format")),
    }
}

fn stored_fault(source: serde_json::Error) -> SessionError {
    SessionError::Stored { what: "event".to_owned(), source }
}
