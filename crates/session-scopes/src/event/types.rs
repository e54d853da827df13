//! An event and its parts. The caller sets the id and the time: nothing here reads a clock.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use stepfold_state_core::MAX_DEPTH;
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::Delta;

use super::erasure::Erasure;
use crate::error::SessionError;
use crate::ids::{Author, EventId, InvocationId};
use crate::time::Timestamp;

/// The kind of an event, in one word. Stores keep it and do not interpret it.
///
/// # Examples
/// ```
/// use stepfold_session_scopes::EventKind;
///
/// assert_eq!(EventKind::STARTED.as_str(), "started");
/// assert_eq!(EventKind::new("approval").as_str(), "approval");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventKind(Cow<'static, str>);

impl EventKind {
    /// Messages: a user's message, a reply, the outcomes of calls. The default.
    pub const MESSAGE: EventKind = EventKind(Cow::Borrowed("message"));
    /// Calls are about to start that may run only once.
    pub const STARTED: EventKind = EventKind(Cow::Borrowed("started"));
    /// The session was rewound to an earlier version.
    pub const REWIND: EventKind = EventKind(Cow::Borrowed("rewind"));

    /// A kind of your own.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        EventKind(name.into())
    }

    /// The word.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for EventKind {
    fn default() -> Self {
        EventKind::MESSAGE
    }
}

impl fmt::Debug for EventKind {
    /// The word, as in `[(1, began), (2, replied)]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The actions of an event, in addition to its messages.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Actions {
    /// The writes, in order. Those to `temp:` are never stored.
    pub delta: Delta,
    /// The ids of calls that are about to start and may run only once.
    pub started: Vec<String>,
    /// The version that the session was rewound to; set only by a rewind.
    pub(crate) rewound_to: Option<u64>,
}

impl Actions {
    /// The version that the session was rewound to, if the event is a rewind.
    pub fn rewound_to(&self) -> Option<u64> {
        self.rewound_to
    }
}

/// A record that a runner stores with an event and a store never parses: JSON, which stays the stored text until it is
/// [read](RunRecord::read).
///
/// # Examples
/// ```
/// use stepfold_session_scopes::RunRecord;
///
/// let record = RunRecord::new("run", 1, &("tools", 7))?;
/// assert_eq!(record.text(), r#"["tools",7]"#);
/// assert_eq!(record.read::<(String, u64)>()?, ("tools".to_owned(), 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunRecord {
    /// The name of its format.
    pub format: Cow<'static, str>,
    /// The version of the format.
    pub version: u64,
    data: Box<RawValue>,
}

impl RunRecord {
    /// A record with this data.
    ///
    /// # Errors
    /// [`SessionError::Stored`] if the data has no JSON form.
    pub fn new<T: Serialize + ?Sized>(
        format: impl Into<Cow<'static, str>>,
        version: u64,
        data: &T,
    ) -> Result<Self, SessionError> {
        let format = format.into();
        match to_raw_value(data) {
            Ok(data) => Ok(RunRecord { format, version, data }),
            Err(source) => Err(SessionError::Stored { what: format!("record of format {format}"), source }),
        }
    }

    /// The data as JSON.
    pub fn text(&self) -> &str {
        self.data.get()
    }

    /// Reads the data.
    ///
    /// # Errors
    /// If it has another form.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> serde_json::Result<T> {
        serde_json::from_str(self.text())
    }

    pub(super) fn stored(&self) -> (&str, u64, &RawValue) {
        (&self.format, self.version, &self.data)
    }

    pub(super) fn of_stored(format: Cow<'static, str>, version: u64, data: &RawValue) -> Self {
        RunRecord { format, version, data: data.to_owned() }
    }
}

impl PartialEq for RunRecord {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version && self.format == other.format && self.text() == other.text()
    }
}

/// The metadata of an event: JSON by name. Each value stays the stored text until it is [read](Metadata::read), and may be
/// shared by many events.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_session_scopes::Metadata;
///
/// let metadata: Metadata = [("trace", json!({"id": 7}))].into_iter().collect();
/// assert_eq!(metadata.get("trace"), Some(json!({"id": 7})));
/// assert_eq!(metadata.text("trace"), Some(r#"{"id":7}"#));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Metadata(Vec<(Cow<'static, str>, Arc<RawValue>)>);

impl Metadata {
    /// None.
    pub const fn new() -> Self {
        Metadata(Vec::new())
    }

    /// Whether there are no entries.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is an entry of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// The value of this name.
    pub fn get(&self, name: &str) -> Option<Value> {
        self.read(name)
    }

    /// The value of this name, if it has the form of this type.
    pub fn read<'a, T: Deserialize<'a>>(&'a self, name: &str) -> Option<T> {
        serde_json::from_str(self.text(name)?).ok()
    }

    /// The value of this name as JSON.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.find(name).ok().map(|place| self.0[place].1.get())
    }

    /// The entries, by name, with their JSON.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, value.get()))
    }

    /// Adds an entry; replaces one of the same name.
    pub fn insert(&mut self, name: impl Into<Cow<'static, str>>, value: Arc<RawValue>) {
        let name = name.into();
        match self.find(&name) {
            Ok(place) => self.0[place].1 = value,
            Err(place) => self.0.insert(place, (name, value)),
        }
    }

    /// The entries of a stored object: of several with one name the last.
    pub(super) fn of_stored(mut entries: Vec<(Cow<'static, str>, Arc<RawValue>)>) -> Self {
        if !entries.is_sorted_by(|(name, _), (next, _)| name < next) {
            entries = BTreeMap::from_iter(entries).into_iter().collect();
        }
        Metadata(entries)
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| (**known).cmp(name))
    }
}

/// The text of a value.
fn text_of(value: &Value) -> Arc<RawValue> {
    // NOTE: a JSON value has string keys only, so its serialization does not fail.
    to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned()).into()
}

impl<N: Into<Cow<'static, str>>> FromIterator<(N, Value)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (N, Value)>>(entries: I) -> Self {
        let mut metadata = Metadata::new();
        entries.into_iter().for_each(|(name, value)| metadata.insert(name, text_of(&value)));
        metadata
    }
}

impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = BTreeMap::<String, Box<RawValue>>::deserialize(deserializer)?;
        Ok(Metadata(entries.into_iter().map(|(name, value)| (name.into(), value.into())).collect()))
    }
}

/// An atomic commit: messages, writes, and a runner's record.
///
/// The id belongs to the content: an append that is repeated with the same event returns the first
/// receipt, and the same id with other content is an error.
///
/// # Examples
/// ```
/// use stepfold_session_scopes::{Author, Event, EventId, InvocationId, Timestamp};
/// use stepfold_state_core::chat::Message;
/// use stepfold_state_core::state::Schema;
///
/// let schema = Schema::builder().key::<u64>("user:visits").build()?;
/// let event = Event::new(EventId::new("e1")?, InvocationId::new("i1")?, Author::new("user")?, Timestamp::from_micros(0))
///     .with_message(Message::user("hello"))
///     .with_delta([schema.write("user:visits", 1)?].into_iter().collect());
/// assert_eq!(event.messages.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("checkpoint"))]
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// Unique within the session.
    pub id: EventId,
    /// The invocation that the event is part of.
    pub invocation: InvocationId,
    /// The author.
    pub author: Author,
    /// The time, by the author's clock. Events are not ordered by it.
    pub at: Timestamp,
    /// Its kind.
    pub kind: EventKind,
    /// Its messages. Several messages are one commit, as the outcomes of a step's last calls are.
    pub messages: Vec<Arc<Message>>,
    /// Its other actions.
    pub actions: Actions,
    /// The runner's record.
    pub record: Option<RunRecord>,
    /// Metadata of the application.
    pub metadata: Metadata,
    /// Few events have any.
    pub(super) tags: Option<Box<[String]>>,
    /// The note in place of its content, if that is erased.
    pub(super) erasure: Option<Arc<Erasure>>,
}

impl Event {
    /// An empty event.
    pub fn new(id: EventId, invocation: InvocationId, author: Author, at: Timestamp) -> Self {
        Event {
            id,
            invocation,
            author,
            at,
            kind: EventKind::MESSAGE,
            messages: Vec::new(),
            actions: Actions::default(),
            record: None,
            metadata: Metadata::new(),
            tags: None,
            erasure: None,
        }
    }

    /// This event with one more tag: a name under which [`find_tagged`](crate::SessionStore::find_tagged) finds it.
    /// Several events may have the same.
    ///
    /// # Examples
    /// ```
    /// use stepfold_session_scopes::{Author, Event, EventId, InvocationId, Timestamp};
    ///
    /// let event = Event::new(EventId::new("e1")?, InvocationId::new("i1")?, Author::new("user")?, Timestamp::from_micros(0));
    /// assert_eq!(event.with_tag("order 7").tags(), ["order 7"]);
    /// # Ok::<(), stepfold_session_scopes::SessionError>(())
    /// ```
    #[must_use]
    pub fn with_tag(mut self, tag: impl Into<String>) -> Self {
        let tags = self.tags.take().unwrap_or_default().into_vec();
        self.tags = Some(tags.into_iter().chain([tag.into()]).collect());
        self
    }

    /// The tags.
    pub fn tags(&self) -> &[String] {
        self.tags.as_deref().unwrap_or_default()
    }

    /// This event, of another kind.
    #[must_use]
    pub fn with_kind(mut self, kind: EventKind) -> Self {
        self.kind = kind;
        self
    }

    /// This event with one more message.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<Arc<Message>>) -> Self {
        self.messages.push(message.into());
        self
    }

    /// Adds more writes after the existing ones.
    #[must_use]
    pub fn with_delta(mut self, delta: Delta) -> Self {
        self.actions.delta.extend(delta);
        self
    }

    /// This event as the marker of calls that are about to start.
    #[must_use]
    pub fn with_started<S: Into<String>>(mut self, calls: impl IntoIterator<Item = S>) -> Self {
        self.actions.started.extend(calls.into_iter().map(Into::into));
        self
    }

    /// This event with a runner's record.
    #[must_use]
    pub fn with_record(mut self, record: RunRecord) -> Self {
        self.record = Some(record);
        self
    }

    /// This event with one more entry of metadata.
    #[must_use]
    pub fn with_metadata(self, name: impl Into<Cow<'static, str>>, value: impl Into<Value>) -> Self {
        self.with_shared_metadata(name, text_of(&value.into()))
    }

    /// As [`with_metadata`](Event::with_metadata), with a value that many events share.
    #[must_use]
    pub fn with_shared_metadata(mut self, name: impl Into<Cow<'static, str>>, value: Arc<RawValue>) -> Self {
        self.metadata.insert(name, value);
        self
    }

    /// Checks that parts that are not checked elsewhere can be read again.
    pub(crate) fn check(&self) -> Result<(), SessionError> {
        let too_deep =
            |what: &str| Err(SessionError::TooDeep { what: format!("{what} of event {}", self.id) });
        // NOTE: a record wraps values, each of which may have the maximum depth.
        if self.record.as_ref().is_some_and(|record| text_exceeds(record.text(), MAX_DEPTH + 16)) {
            return too_deep("the record");
        }
        if self.metadata.iter().any(|(_, text)| text_exceeds(text, MAX_DEPTH)) {
            return too_deep("the metadata");
        }
        if self.actions.delta.iter().filter_map(|write| write.value()).any(|value| exceeds(value, MAX_DEPTH))
        {
            return too_deep("the delta");
        }
        Ok(())
    }
}

/// Whether a value nests more than `limit` levels. Visits at most that many.
pub(crate) fn exceeds(value: &Value, limit: usize) -> bool {
    match value {
        Value::Array(items) => limit == 0 || items.iter().any(|item| exceeds(item, limit - 1)),
        Value::Object(fields) => limit == 0 || fields.values().any(|field| exceeds(field, limit - 1)),
        _ => false,
    }
}

/// As [`exceeds`], for a JSON text.
fn text_exceeds(text: &str, limit: usize) -> bool {
    // NOTE: a short text has no room for so many brackets.
    if text.len() <= 2 * limit {
        return false;
    }
    // NOTE: most long texts have fewer brackets in all than the limit, and counting them is faster than matching them.
    if text.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count() <= limit {
        return false;
    }
    let (mut depth, mut bytes) = (0, text.bytes());
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            b'"' => skip_string(&mut bytes),
            _ => {}
        }
        if depth > limit {
            return true;
        }
    }
    false
}

/// Continues to after the end of a string.
fn skip_string(bytes: &mut impl Iterator<Item = u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => _ = bytes.next(),
            b'"' => return,
            _ => {}
        }
    }
}

/// An event with the version that committing it gave the session.
#[doc(alias("checkpoint"))]
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CommittedEvent {
    /// The version, from 1. Events are ordered by it.
    pub version: u64,
    /// The event.
    pub event: Arc<Event>,
}

impl CommittedEvent {
    /// An event, and the version that committing it gave the session.
    pub fn new(version: u64, event: impl Into<Arc<Event>>) -> Self {
        CommittedEvent { version, event: event.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_text_nests_as_its_value_does() {
        let nested = |levels: usize| (0..levels).fold(json!("]\"]"), |value, _| json!({"[\\": [value]}));
        for levels in 0..8 {
            let (value, text) = (nested(levels), nested(levels).to_string());
            for limit in 0..20 {
                assert_eq!(text_exceeds(&text, limit), exceeds(&value, limit), "{text} {limit}");
            }
        }
    }
}
