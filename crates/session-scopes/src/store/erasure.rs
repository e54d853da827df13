//! Erasure: content that is removed for good, while the rest stays and can be verified.

use std::collections::BTreeSet;
use std::fmt;

use crate::error::SessionError;
use crate::event::Erasure;
use crate::ids::{AppId, Author, ErasureId, SessionKey, UserId};
use crate::time::Timestamp;

/// The maximum length of the reason of an erasure, in bytes.
pub const MAX_ERASURE_REASON: usize = 1_000;

/// The user, and the session, that the list of spend names in place of erased ones. It is no user of any application: a session
/// of it cannot be created, and it cannot be erased.
pub const ERASED_USER: &str = "erased";

/// Rejects the [name](ERASED_USER) that stands for erased users.
pub(crate) fn check_user(user: &UserId) -> Result<(), SessionError> {
    if user.as_str() == ERASED_USER {
        let (what, reason) = ("user", "reserved: erased users have it in the list of spend");
        return Err(SessionError::InvalidId { what, id: ERASED_USER.to_owned(), reason });
    }
    Ok(())
}

/// The subject of an erasure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EraseTarget {
    /// The content of events of a session, of these versions: messages, the runner's record, the writes that they list, and
    /// metadata. Forks that share an event share its erasure. What stays: id, invocation, author, kind, time and tags; of a
    /// message its role, and of calls and results the ids and the tools' names. Values of the session stay too: they are
    /// replaced by writes, and their past goes with [`prune`](crate::SessionStore::prune).
    Events {
        /// The session.
        key: SessionKey,
        /// The versions of the events.
        versions: BTreeSet<u64>,
    },
    /// A session and its forks, with those of its forks, and all that share one of its own events or its first values, or did
    /// before retention: events, values, inbox, labels, idempotency keys. What it shares of its origin stays there.
    Session {
        /// The session.
        key: SessionKey,
    },
    /// A user with all sessions, the values under `user:`, and the name in the list of spend.
    User {
        /// The application.
        app: AppId,
        /// The user.
        user: UserId,
    },
}

impl EraseTarget {
    /// Its kind.
    pub fn kind(&self) -> EraseKind {
        match self {
            EraseTarget::Events { .. } => EraseKind::Events,
            EraseTarget::Session { .. } => EraseKind::Session,
            EraseTarget::User { .. } => EraseKind::User,
        }
    }

    /// The application.
    pub fn app(&self) -> &AppId {
        match self {
            EraseTarget::Events { key, .. } | EraseTarget::Session { key } => &key.app,
            EraseTarget::User { app, .. } => app,
        }
    }

    /// The user whose content is erased, and the application.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn owner(&self) -> (&AppId, &UserId) {
        match self {
            EraseTarget::Events { key, .. } | EraseTarget::Session { key } => (&key.app, &key.user),
            EraseTarget::User { app, user } => (app, user),
        }
    }
}

/// The kind of an erasure, as its record has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EraseKind {
    /// Events of a session.
    Events,
    /// A session with its forks.
    Session,
    /// A user.
    User,
}

impl EraseKind {
    /// The word that is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            EraseKind::Events => "events",
            EraseKind::Session => "session",
            EraseKind::User => "user",
        }
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn stored(word: &str) -> Result<Self, SessionError> {
        [EraseKind::Events, EraseKind::Session, EraseKind::User]
            .into_iter()
            .find(|kind| kind.as_str() == word)
            .ok_or_else(|| SessionError::damaged("record of an erasure", format!("unknown kind `{word}`")))
    }
}

impl fmt::Display for EraseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Content to be erased.
///
/// Repeating a request is harmless: what is erased already stays as it is, and an erasure is recorded once under its id. So a
/// request whose answer was lost is sent again. An id is that of one erasure: a request under the id of an earlier one that would
/// erase more, of another session for example, is an [error](SessionError::ErasureReused), and erases nothing.
///
/// # Examples
/// ```
/// # futures_util::FutureExt::now_or_never(async {
/// use stepfold_session_scopes::{
///     AppendEvent, Author, CreateSession, EraseData, EraseTarget, ErasureId, Event, EventId, GetSession,
///     InvocationId, MemoryStore, SessionSchema, SessionStore, Timestamp,
/// };
/// use stepfold_state_core::chat::Message;
///
/// let (store, schema) = (MemoryStore::new(), SessionSchema::new(Default::default()));
/// let now = Timestamp::from_micros(1_700_000_000_000_000);
/// let key = store.create(CreateSession::new("my_app", "alice", &schema, now)?).await?.key;
/// let event = Event::new(EventId::new("e1")?, InvocationId::new("i1")?, Author::new("user")?, now);
/// let event = event.with_message(Message::user("my number is 555-0199"));
/// store.append(AppendEvent::new(key.clone(), 0, event, &schema)).await?;
///
/// let target = EraseTarget::Events { key: key.clone(), versions: [1].into() };
/// let request = EraseData::new(ErasureId::new("request 17")?, target, now, Author::new("admin")?, "asked for by mail");
/// assert_eq!(store.erase(request).await?.events, 1);
///
/// let session = store.get(GetSession::new(key)).await?;
/// let event = &session.events[0].event;
/// assert_eq!(event.messages[0].text(), Event::ERASED);
/// assert_eq!(event.erasure().unwrap().reason, "asked for by mail".into());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap().unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EraseData {
    /// The id of the erasure, unique within the application.
    pub id: ErasureId,
    /// Its subject.
    pub target: EraseTarget,
    /// The time.
    pub at: Timestamp,
    /// The person or program that erases.
    pub by: Author,
    /// The reason; it must not contain what is erased.
    pub reason: String,
    /// Prefixes of the ids of budgets that are erased with a user.
    pub budgets: Vec<String>,
    /// Whether the result is only computed, and nothing is erased.
    pub is_dry_run: bool,
}

impl EraseData {
    /// Erases a target.
    pub fn new(
        id: ErasureId,
        target: EraseTarget,
        at: Timestamp,
        by: Author,
        reason: impl Into<String>,
    ) -> Self {
        EraseData { id, target, at, by, reason: reason.into(), budgets: Vec::new(), is_dry_run: false }
    }

    /// Erases the budgets whose ids begin with one of these too, with a user. One in which another app has open reservations
    /// stays: it goes after the end of its window, or when the erasure is repeated.
    #[must_use]
    pub fn with_budgets(mut self, prefixes: impl IntoIterator<Item = String>) -> Self {
        self.budgets.extend(prefixes);
        self
    }

    /// Computes the result, and erases nothing.
    #[must_use]
    pub fn dry_run(mut self) -> Self {
        self.is_dry_run = true;
        self
    }

    /// Rejects a reason that is too long to be stored with each event, and the name of erased users.
    pub(crate) fn check(&self) -> Result<(), SessionError> {
        if let EraseTarget::User { user, .. } = &self.target {
            check_user(user)?;
        }
        let (bytes, limit) = (self.reason.len(), MAX_ERASURE_REASON);
        if bytes > limit {
            return Err(SessionError::TooLarge { what: "reason of an erasure".to_owned(), bytes, limit });
        }
        Ok(())
    }

    /// The note that each erased event keeps.
    pub(crate) fn note(&self) -> Erasure {
        Erasure::new(self.id.clone(), self.at, self.by.clone(), self.reason.as_str())
    }
}

/// The result of an erasure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErasedData {
    /// The erased sessions, or the session whose events were erased.
    pub sessions: Vec<SessionKey>,
    /// The number of erased events. Those that forks share count once for each session that is erased, and those that were
    /// erased before do not count.
    pub events: u64,
    /// The erased keys of `user:`, in order.
    pub user_keys: Vec<String>,
    /// The records of spend that no longer name the user.
    pub spend: u64,
    /// The number of erased budgets. That of a dry run includes those in which another app has open reservations.
    pub budgets: u64,
    /// Whether the user had a key in the ring of the store, which is destroyed.
    pub had_key: bool,
}

impl ErasedData {
    /// The result of a request under the id of an earlier one, which has nothing more to erase. Budgets may be left, since some
    /// wait for other apps.
    pub(crate) fn of_repeated(self, request: &EraseData) -> Result<Self, SessionError> {
        let ErasedData { sessions, events, user_keys, spend, budgets: _, had_key } = &self;
        let has_sessions = request.target.kind() != EraseKind::Events && !sessions.is_empty();
        match *events == 0 && *spend == 0 && user_keys.is_empty() && !has_sessions && !had_key {
            true => Ok(self),
            false => Err(SessionError::ErasureReused { erasure: request.id.clone() }),
        }
    }
}

/// The records of erasures of an app to be listed, oldest first.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListErasures {
    /// The application.
    pub app: AppId,
    /// The time and id of the last record before the page.
    pub after: Option<(Timestamp, ErasureId)>,
    /// The maximum number.
    pub limit: usize,
}

impl ListErasures {
    /// The first 100.
    pub fn new(app: AppId) -> Self {
        ListErasures { app, after: None, limit: 100 }
    }

    /// Continues after a record.
    #[must_use]
    pub fn after(mut self, last: &ErasureRecord) -> Self {
        self.after = Some((last.at, last.id.clone()));
        self
    }

    /// Sets the maximum number.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

/// The record of an erasure: when, by whom, why, and of which kind; never of what.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErasureRecord {
    /// The id.
    pub id: ErasureId,
    /// The kind.
    pub kind: EraseKind,
    /// The time.
    pub at: Timestamp,
    /// The person or program that erased.
    pub by: Author,
    /// The reason.
    pub reason: String,
    /// The number of sessions that were erased, or of which events were.
    pub sessions: u64,
    /// The number of erased events.
    pub events: u64,
}

impl ErasureRecord {
    /// The record of a request with this result.
    pub(crate) fn of(request: &EraseData, erased: &ErasedData) -> Self {
        ErasureRecord {
            id: request.id.clone(),
            kind: request.target.kind(),
            at: request.at,
            by: request.by.clone(),
            reason: request.reason.clone(),
            sessions: erased.sessions.len() as u64,
            events: erased.events,
        }
    }
}

/// A request to remove from files what was deleted or erased: see [`SessionStore::vacuum`](crate::SessionStore::vacuum).
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct VacuumStore {}

impl VacuumStore {
    /// The whole store.
    pub fn new() -> Self {
        VacuumStore {}
    }
}
