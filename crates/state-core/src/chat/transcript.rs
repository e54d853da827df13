//! A conversation: an append-only list of shared messages. Clone and push are O(1), whatever the length and
//! the number of clones.

use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Message;
use crate::{List, list};

/// An append-only list of messages.
///
/// Iterating yields `&Arc<Message>`, which serves as a `&Message` and can also be shared with
/// `Arc::clone`. [`Display`](fmt::Display) and [`FromStr`](std::str::FromStr) are the
/// [notation](super::notation); JSON is an array of messages.
///
/// # Examples
/// ```
/// use stepfold_state_core::chat::{Message, Transcript};
///
/// let mut transcript: Transcript = "\
/// user:      which area has most stalls?
/// assistant: > c1 search(q=\"stalls\")
/// tool c1:   [3, 4]
/// ".parse()?;
/// let snapshot = transcript.clone();
/// transcript.push(Message::assistant("area 3"));
///
/// assert_eq!(transcript.check(), Ok(()));
/// assert_eq!((snapshot.len(), transcript.len()), (3, 4));
/// assert_eq!(transcript.turns().count(), 1);
/// assert_eq!(transcript[3].text(), "area 3");
/// # Ok::<(), stepfold_state_core::chat::NotationError>(())
/// ```
#[doc(alias("history", "messages", "conversation"))]
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
// NOTE: Shared messages: a copied chunk copies pointers only, and a provider may cache the wire form of a message.
pub struct Transcript(List<Arc<Message>>);

/// Borrows the messages of a [`Transcript`] in order; see [`Transcript::iter`].
pub type MessageIter<'a> = list::ListIter<'a, Arc<Message>>;

impl Transcript {
    /// An empty conversation.
    pub fn new() -> Self {
        Transcript::default()
    }

    /// Appends a message. O(1).
    pub fn push(&mut self, message: impl Into<Arc<Message>>) {
        self.0.push(message.into());
    }

    /// Appends a message.
    #[must_use]
    pub fn with(mut self, message: impl Into<Arc<Message>>) -> Self {
        self.push(message);
        self
    }

    /// Replaces the message at an index; returns whether there is one. O(1).
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::{Message, Transcript};
    ///
    /// let mut transcript: Transcript = "user: one\nassistant: 1".parse()?;
    /// assert!(transcript.replace(1, Message::assistant("one")));
    /// assert!(!transcript.replace(2, Message::assistant("two")));
    /// assert_eq!(transcript.to_string(), "user:      one\nassistant: one\n");
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    pub fn replace(&mut self, index: usize, message: impl Into<Arc<Message>>) -> bool {
        self.0.set(index, message.into())
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The message at `index`; `None` at or after the end.
    pub fn get(&self, index: usize) -> Option<&Arc<Message>> {
        self.0.get(index)
    }

    /// The first message.
    pub fn first(&self) -> Option<&Arc<Message>> {
        self.0.first()
    }

    /// The last message.
    pub fn last(&self) -> Option<&Arc<Message>> {
        self.0.last()
    }

    /// All messages, from either end.
    pub fn iter(&self) -> MessageIter<'_> {
        self.0.iter()
    }

    /// The messages from `index` on; empty at or after the end. Skipping costs nothing.
    pub fn iter_from(&self, index: usize) -> MessageIter<'_> {
        self.0.iter_from(index)
    }

    /// Whether both are the same version of the same conversation, by pointer. `false` is inconclusive: they
    /// may still be equal.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// Whether this conversation begins with all of `earlier`. O(1) if it grew from it; otherwise the
    /// messages are compared.
    pub fn starts_with(&self, earlier: &Self) -> bool {
        self.0.grew_from(&earlier.0)
            || self.len() >= earlier.len() && self.common_prefix(earlier) == earlier.len()
    }

    /// The number of messages, from the first on, that both have in common. Shared messages are equal without being
    /// compared.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let one: Transcript = "user: one\nassistant: 1\nuser: two".parse()?;
    /// let other: Transcript = "user: one\nassistant: 1\nuser: three\nassistant: 3".parse()?;
    /// assert_eq!(one.common_prefix(&other), 2);
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    pub fn common_prefix(&self, other: &Self) -> usize {
        let are_same =
            |(ours, theirs): &(&Arc<Message>, &Arc<Message>)| Arc::ptr_eq(ours, theirs) || ours == theirs;
        self.iter().zip(other).take_while(are_same).count()
    }

    /// The messages as a list.
    pub const fn as_list(&self) -> &List<Arc<Message>> {
        &self.0
    }

    /// The role of the message at `index`.
    pub(super) fn role(&self, index: usize) -> Option<super::Role> {
        self.get(index).map(|message| message.role())
    }
}

impl Index<usize> for Transcript {
    type Output = Message;

    /// # Panics
    /// If `index` is at or after the end, as a slice does; [`get`](Transcript::get) returns `None` there.
    fn index(&self, index: usize) -> &Message {
        &self.0[index]
    }
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transcript(\n{self})")
    }
}

impl From<List<Arc<Message>>> for Transcript {
    fn from(messages: List<Arc<Message>>) -> Self {
        Transcript(messages)
    }
}

impl From<Transcript> for List<Arc<Message>> {
    fn from(transcript: Transcript) -> Self {
        transcript.0
    }
}

impl<M: Into<Arc<Message>>> Extend<M> for Transcript {
    fn extend<I: IntoIterator<Item = M>>(&mut self, messages: I) {
        self.0.extend(messages.into_iter().map(Into::into));
    }
}

impl<M: Into<Arc<Message>>> FromIterator<M> for Transcript {
    fn from_iter<I: IntoIterator<Item = M>>(messages: I) -> Self {
        Transcript(messages.into_iter().map(Into::into).collect())
    }
}

impl<'a> IntoIterator for &'a Transcript {
    type Item = &'a Arc<Message>;
    type IntoIter = MessageIter<'a>;

    fn into_iter(self) -> MessageIter<'a> {
        self.iter()
    }
}
