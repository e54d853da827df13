//! Search of session lists: whether a run is unfinished, and how the session began.

use stepfold_state_core::chat::Role;

use super::types::{CommittedEvent, Event};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::error::SessionError;
use crate::ids::SessionId;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::ids::SessionKey;

/// The number of first events that are searched for the first message.
pub(crate) const FIRST: usize = 16;

/// As many bytes of the first message are searched, but for the last character.
const SEARCHED: usize = 256;

impl Event {
    /// The metadata with which the last event of a run reports how the run ended.
    pub const EXIT: &'static str = "exit";

    /// The kind of an event without a record that reports that a run failed, and the metadata with the reason.
    pub const FAILED: &'static str = "failed";

    /// Whether a run is unfinished in a session whose newest event this is: the event has a record and does not
    /// [end](Event::EXIT) the run, or reports that the run [failed](Event::FAILED).
    ///
    /// # Examples
    /// ```
    /// use stepfold_session_scopes::{Author, Event, EventId, InvocationId, RunRecord, Timestamp};
    ///
    /// let event = Event::new(EventId::new("e1")?, InvocationId::new("i1")?, Author::new("user")?, Timestamp::from_micros(0));
    /// assert!(!event.is_unfinished());
    /// let step = event.with_record(RunRecord::new("my.run", 1, &"a step")?);
    /// assert!(step.is_unfinished());
    /// assert!(!step.with_metadata(Event::EXIT, "final").is_unfinished());
    /// # Ok::<(), stepfold_session_scopes::SessionError>(())
    /// ```
    pub fn is_unfinished(&self) -> bool {
        match &self.record {
            Some(_) => !self.metadata.contains(Event::EXIT),
            None => self.failure().is_some(),
        }
    }

    /// The reason, if the event reports that a run [failed](Event::FAILED). It does not end the run, which can be resumed.
    ///
    /// # Examples
    /// ```
    /// use stepfold_session_scopes::{Author, Event, EventId, EventKind, InvocationId, Timestamp};
    ///
    /// let event = Event::new(EventId::new("e1")?, InvocationId::new("i1")?, Author::new("user")?, Timestamp::from_micros(0));
    /// let failed = event.with_kind(EventKind::new(Event::FAILED)).with_metadata(Event::FAILED, "no model");
    /// assert_eq!(failed.failure().as_deref(), Some("no model"));
    /// # Ok::<(), stepfold_session_scopes::SessionError>(())
    /// ```
    pub fn failure(&self) -> Option<String> {
        let is_failure = self.kind.as_str() == Event::FAILED && self.record.is_none();
        if is_failure { self.metadata.read(Event::FAILED) } else { None }
    }

    /// The beginning of its first message of a user, in lower case; empty without one. It does not end with white space.
    pub(crate) fn searched(&self) -> String {
        let mut messages = self.messages.iter().filter(|message| message.role() == Role::User);
        messages
            .find_map(|message| Some(folded(&message.text())).filter(|text| !text.is_empty()))
            .unwrap_or_default()
    }
}

/// The beginning of a text, in lower case and without control characters.
fn folded(text: &str) -> String {
    let begin = text.char_indices().take_while(|(at, _)| *at < SEARCHED).map(|(_, character)| character);
    // NOTE: the stored text has one line for the id and one for the message, so a line break in the message would end it
    // early.
    let shown = begin.map(|character| if character.is_control() { ' ' } else { character });
    lower(shown).trim().to_owned()
}

/// In lower case, each character by itself: what one text contains, it contains in lower case.
pub(crate) fn lower(text: impl Iterator<Item = char>) -> String {
    text.flat_map(char::to_lowercase).collect()
}

/// The searched text of a session: its id and the beginning of its first message of a user, in lower case, a line each.
/// The second line is empty if no such message is among its first events.
pub(crate) fn searched_of(id: &SessionId, first: &[CommittedEvent]) -> String {
    let mut searched = first.iter().map(|committed| committed.event.searched());
    let begin = searched.find(|text| !text.is_empty()).unwrap_or_default();
    format!("{}\n{begin}", lower(id.as_str().chars()))
}

/// A session's entry in the list of a store.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListEntry {
    /// Whether a run is unfinished.
    pub(crate) is_unfinished: bool,
    /// The searched text, by [`searched_of`].
    pub(crate) searched: String,
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl ListEntry {
    /// A session by its first events, without those that a rewind has hidden, and by whether its newest one leaves a run
    /// unfinished.
    pub(crate) fn of(key: &SessionKey, first: &[CommittedEvent], is_unfinished: bool) -> Self {
        ListEntry { is_unfinished, searched: searched_of(&key.id, first) }
    }

    /// Whether the searched text has a message.
    pub(crate) fn has_message(&self) -> bool {
        !self.searched.ends_with('\n')
    }

    /// The entry of a session whose events cannot be read: it is listed as unfinished, so that a reader opens it.
    pub(crate) fn unknown(key: &SessionKey) -> Self {
        ListEntry { is_unfinished: true, searched: searched_of(&key.id, &[]) }
    }

    /// Checks the stored entry against the events. A first message that retention has deleted may still be in the stored
    /// text.
    pub(crate) fn check(&self, stored: &ListEntry, key: &SessionKey) -> Result<(), SessionError> {
        let is_searched = stored.searched == self.searched
            || !self.has_message() && stored.searched.starts_with(&self.searched);
        if stored.is_unfinished == self.is_unfinished && is_searched {
            return Ok(());
        }
        let what = format!("list entry of session {key}");
        Err(SessionError::damaged(what, "it tells something else than the events"))
    }
}
