//! The inbox of a session: accepted inputs that were not taken yet, in order.
//!
//! Enqueueing needs no claim; only the holder of the session's claim takes entries, with the event that
//! contains them ([`AppendEvent::taken`](crate::AppendEvent)), so that no entry is taken twice or lost. The
//! idempotency key of an entry is kept after it was taken.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;
use stepfold_state_core::MAX_DEPTH;
use xxhash_rust::xxh3::xxh3_128;

use crate::error::SessionError;
use crate::event::exceeds;
use crate::ids::{IdempotencyKey, SessionKey};
use crate::session::Claim;
use crate::time::Timestamp;

/// The maximum number of waiting entries in an inbox.
pub const MAX_INBOX: usize = 1_024;

/// The number of taken entries of an inbox whose idempotency keys are remembered.
pub const REMEMBERED_INPUTS: usize = 1_000;

/// The largest body of an entry, in bytes of its JSON.
pub const MAX_INPUT_BYTES: usize = 16 * 1024 * 1024;

/// The kind of an inbox entry. Stores do not interpret it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InboxKind {
    /// A message that begins a turn.
    Message,
    /// A message for the current turn.
    Steer,
    /// A request to cancel the current turn.
    Cancel,
}

impl InboxKind {
    /// The word that is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            InboxKind::Message => "message",
            InboxKind::Steer => "steer",
            InboxKind::Cancel => "cancel",
        }
    }
}

impl fmt::Display for InboxKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for InboxKind {
    type Err = SessionError;

    fn from_str(word: &str) -> Result<Self, SessionError> {
        let kinds = [InboxKind::Message, InboxKind::Steer, InboxKind::Cancel];
        kinds.into_iter().find(|kind| kind.as_str() == word).ok_or_else(|| SessionError::Stored {
            what: "inbox entry".to_owned(),
            source: serde::de::Error::custom(format_args!("unknown kind `{word}`")),
        })
    }
}

/// An entry for the inbox of a session.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EnqueueInput {
    /// The session.
    pub key: SessionKey,
    /// Its kind.
    pub kind: InboxKind,
    /// Makes a repeated request harmless: it gets the position of the first.
    pub idempotency_key: IdempotencyKey,
    /// The content.
    pub body: Value,
    /// The time.
    pub at: Timestamp,
}

impl EnqueueInput {
    /// Enqueues an entry of this kind. A repeated request with the same idempotency key gets the position of the first.
    pub fn new(
        key: SessionKey,
        kind: InboxKind,
        idempotency_key: IdempotencyKey,
        body: impl Into<Value>,
        at: Timestamp,
    ) -> Self {
        EnqueueInput { key, kind, idempotency_key, body: body.into(), at }
    }
}

/// The digest of an entry's content, independent of key order; compared for equal idempotency keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InputDigest(u128);

impl InputDigest {
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

/// An entry that was checked, with its stored form.
#[derive(Clone, Debug)]
pub(crate) struct PreparedInput {
    pub(crate) input: EnqueueInput,
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) body: String,
    pub(crate) digest: InputDigest,
    /// The bytes of the body, as JSON.
    pub(crate) bytes: usize,
}

impl EnqueueInput {
    /// Checks that the entry can be stored and read again.
    pub(crate) fn prepare(self) -> Result<PreparedInput, SessionError> {
        let what = || format!("inbox entry {}", self.idempotency_key);
        if exceeds(&self.body, MAX_DEPTH) {
            return Err(SessionError::TooDeep { what: what() });
        }
        let mut sorted = self.body.clone();
        // NOTE: a client that repeats a request may serialize its objects in another order; that is the same content.
        sorted.sort_all_objects();
        let text = format!("{} {sorted}", self.kind);
        let (bytes, limit) = (text.len(), MAX_INPUT_BYTES);
        if bytes > limit {
            return Err(SessionError::TooLarge { what: what(), bytes, limit });
        }
        let digest = InputDigest(xxh3_128(text.as_bytes()));
        let bytes = bytes - self.kind.as_str().len() - 1;
        #[cfg(any(feature = "postgres", feature = "sqlite"))]
        let body = self.body.to_string();
        Ok(PreparedInput {
            input: self,
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            body,
            digest,
            bytes,
        })
    }
}

/// The acknowledgement of an accepted entry: it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enqueued {
    /// Its position: entries are taken in the order of their positions, which is that of acceptance.
    pub position: u64,
    /// Whether it had been accepted before, by a request with the same idempotency key and content. It may have been
    /// taken since.
    pub is_repeat: bool,
    /// The claim on the session, if unexpired: its holder will take the entry. Without one, a worker has to
    /// claim the session.
    pub claim: Option<Claim>,
    /// The version of the session.
    pub version: u64,
}

impl Enqueued {
    /// The response of a store to an entry that it accepts for the first time.
    pub const fn new(position: u64, claim: Option<Claim>, version: u64) -> Self {
        Enqueued { position, claim, version, is_repeat: false }
    }
}

/// An inbox to be read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReadInbox {
    /// The session.
    pub key: SessionKey,
    /// Restricts the entries to those after this position.
    pub after: u64,
    /// Restricts the entries to these positions; `None` for all.
    pub only: Option<Vec<u64>>,
    /// Bodies of more bytes of JSON are left out; `None` for none.
    pub largest: Option<usize>,
}

impl ReadInbox {
    /// The whole inbox.
    pub fn new(key: SessionKey) -> Self {
        ReadInbox { key, after: 0, only: None, largest: None }
    }

    /// Restricts the entries to those after this position.
    #[must_use]
    pub fn after(mut self, position: u64) -> Self {
        self.after = position;
        self
    }

    /// Restricts the entries to these positions, as far as they wait. A store may return others too.
    #[must_use]
    pub fn only(mut self, positions: impl IntoIterator<Item = u64>) -> Self {
        self.only = Some(positions.into_iter().collect());
        self
    }

    /// Omits the bodies of entries that have more bytes of JSON: a list of waiting entries needs no bodies, and an inbox
    /// may have [`MAX_INBOX`] of [`MAX_INPUT_BYTES`]. A store may return them nevertheless.
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use stepfold_session_scopes::{
    ///     CreateSession, EnqueueInput, IdempotencyKey, InboxKind, MemoryStore, ReadInbox, SessionSchema, SessionStore,
    ///     Timestamp,
    /// };
    ///
    /// let (store, schema, at) = (MemoryStore::new(), SessionSchema::new(Default::default()), Timestamp::from_micros(0));
    /// let key = store.create(CreateSession::new("my_app", "alice", &schema, at)?).await?.key;
    /// let text = "a long message ".repeat(1_000);
    /// let id = IdempotencyKey::new("m1")?;
    /// store.enqueue(EnqueueInput::new(key.clone(), InboxKind::Message, id, text.as_str(), at)).await?;
    ///
    /// let waiting = store.inbox(ReadInbox::new(key.clone()).without_bodies_over(4_096)).await?;
    /// assert!(waiting[0].idempotency_key.as_str() == "m1" && !waiting[0].has_body);
    /// let taken = store.inbox(ReadInbox::new(key).only([waiting[0].position])).await?;
    /// assert_eq!(taken[0].body, text);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).expect("a memory store never waits").unwrap();
    /// ```
    #[must_use]
    pub fn without_bodies_over(mut self, bytes: usize) -> Self {
        self.largest = Some(bytes);
        self
    }

    /// Whether the entry at a position is requested.
    pub(crate) fn wants(&self, position: u64) -> bool {
        position > self.after && self.only.as_ref().is_none_or(|only| only.contains(&position))
    }

    /// The maximum bytes of a requested body.
    pub(crate) fn max_body_bytes(&self) -> usize {
        self.largest.unwrap_or(usize::MAX)
    }
}

/// An entry that waits in an inbox.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct InboxEntry {
    /// Its position. Positions grow over the life of the session.
    pub position: u64,
    /// Its kind.
    pub kind: InboxKind,
    /// The idempotency key that it was accepted with.
    pub idempotency_key: IdempotencyKey,
    /// The content; null if it was left out.
    pub body: Value,
    /// Whether the content is here: it was not left out ([`ReadInbox::without_bodies_over`]).
    pub has_body: bool,
    /// When it was accepted.
    pub at: Timestamp,
}

impl InboxEntry {
    /// An entry at this position.
    pub const fn new(
        position: u64,
        kind: InboxKind,
        idempotency_key: IdempotencyKey,
        body: Value,
        at: Timestamp,
    ) -> Self {
        InboxEntry { position, kind, idempotency_key, body, has_body: true, at }
    }

    /// An entry whose body is left out.
    pub const fn without_body(
        position: u64,
        kind: InboxKind,
        idempotency_key: IdempotencyKey,
        at: Timestamp,
    ) -> Self {
        InboxEntry { position, kind, idempotency_key, body: Value::Null, has_body: false, at }
    }
}

/// Entries to be removed from an inbox without an event: withdrawn inputs, or applied cancellations.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DequeueInput {
    /// The session.
    pub key: SessionKey,
    /// The positions of the entries.
    pub positions: Vec<u64>,
    /// The token of the claim, if a worker removes them.
    pub token: Option<u64>,
}

impl DequeueInput {
    /// Removes the entries at these positions.
    pub fn new(key: SessionKey, positions: impl IntoIterator<Item = u64>) -> Self {
        DequeueInput { key, positions: positions.into_iter().collect(), token: None }
    }

    /// Sets the token of the claim.
    #[must_use]
    pub fn with_token(mut self, token: u64) -> Self {
        self.token = Some(token);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn digest(kind: InboxKind, body: &str) -> InputDigest {
        let body = serde_json::from_str(body).unwrap();
        let (key, at) = (SessionKey::new("app", "alice", "s").unwrap(), Timestamp::from_micros(0));
        let input = EnqueueInput { key, kind, idempotency_key: IdempotencyKey::new("k").unwrap(), body, at };
        input.prepare().unwrap().digest
    }

    #[test]
    fn content_is_compared_as_json() {
        let message = digest(InboxKind::Message, r#"{"a": 1, "b": [1, 2]}"#);
        assert_eq!(message, digest(InboxKind::Message, r#"{"b":[1,2],"a":1}"#));
        assert_ne!(message, digest(InboxKind::Message, r#"{"b":[2,1],"a":1}"#));
        assert_ne!(message, digest(InboxKind::Message, r#"{"b":[1,2],"a":1.0}"#));
        assert_ne!(message, digest(InboxKind::Steer, r#"{"b":[1,2],"a":1}"#));
    }

    #[test]
    fn kinds_survive_being_words() {
        for kind in [InboxKind::Message, InboxKind::Steer, InboxKind::Cancel] {
            assert_eq!(kind.to_string().parse::<InboxKind>().unwrap(), kind);
        }
        assert!("other".parse::<InboxKind>().is_err());
    }

    #[test]
    fn what_cannot_be_stored_is_refused() {
        let mut deep = json!(1);
        for _ in 0..=MAX_DEPTH {
            deep = json!([deep]);
        }
        let key = SessionKey::new("app", "alice", "s").unwrap();
        let (idempotency_key, at) = (IdempotencyKey::new("k").unwrap(), Timestamp::from_micros(0));
        let input = EnqueueInput { key, kind: InboxKind::Message, idempotency_key, body: deep, at };
        assert!(matches!(input.clone().prepare(), Err(SessionError::TooDeep { .. })));
        let large = EnqueueInput { body: json!("x".repeat(MAX_INPUT_BYTES)), ..input };
        assert!(matches!(large.prepare(), Err(SessionError::TooLarge { .. })));
    }
}
