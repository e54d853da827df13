//! Sessions at a glance, many by one request: for lists that show how each is and how it began.

use super::{EventRange, EventSizes, GetSession, ListForks, SessionStore};
use crate::error::{ErrorKind, SessionError};
use crate::event::CommittedEvent;
use crate::ids::{AppId, SessionId, SessionKey, UserId};
use crate::session::Session;
use crate::time::Timestamp;

/// Sessions of a user, to be read [at a glance](SessionStore::outlines).
///
/// # Examples
/// ```
/// # futures_util::FutureExt::now_or_never(async {
/// use stepfold_session_scopes::{
///     CreateSession, MemoryStore, OutlineSessions, SessionId, SessionSchema, SessionStore, Timestamp,
/// };
///
/// let (store, schema) = (MemoryStore::new(), SessionSchema::new(Default::default()));
/// let key = store.create(CreateSession::new("my_app", "ada", &schema, Timestamp::from_micros(0))?).await?.key;
/// let ids = [key.id.clone(), SessionId::new("unknown")?];
/// let outlines = store.outlines(OutlineSessions::new(key.app, key.user, ids)).await?;
/// assert_eq!(outlines[0].as_ref().map(|outline| outline.session.version), Some(0));
/// assert!(outlines[1].is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap().unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OutlineSessions {
    /// The application.
    pub app: AppId,
    /// The user.
    pub user: UserId,
    /// The sessions. Outlines come in this order.
    pub ids: Vec<SessionId>,
    /// The number of events from the beginning of each; none by default.
    pub first: usize,
    /// The number of newest events of each; one by default.
    pub newest: usize,
    /// The bytes of memory of the events of all sessions together, about; unlimited by default.
    pub max_bytes: u64,
    /// The time by which a claim has expired, as [`GetSession::now`].
    pub now: Option<Timestamp>,
}

impl OutlineSessions {
    /// The newest event of each of these sessions.
    pub fn new(app: AppId, user: UserId, ids: impl IntoIterator<Item = SessionId>) -> Self {
        let ids = ids.into_iter().collect();
        OutlineSessions { app, user, ids, first: 0, newest: 1, max_bytes: u64::MAX, now: None }
    }

    /// Also so many events from the beginning of each.
    #[must_use]
    pub const fn first(mut self, events: usize) -> Self {
        self.first = events;
        self
    }

    /// So many newest events of each.
    #[must_use]
    pub const fn newest(mut self, events: usize) -> Self {
        self.newest = events;
        self
    }

    /// Limits the memory of all events together, about: a session whose events do not fit has no outline.
    #[must_use]
    pub const fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets the time by which a claim has expired.
    #[must_use]
    pub const fn now(mut self, now: Timestamp) -> Self {
        self.now = Some(now);
        self
    }
}

/// A session at a glance.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionOutline {
    /// The session with its newest events, without values. Events that a rewind hides are included.
    pub session: Session,
    /// The events from its beginning. They may be among the newest as well.
    pub first: Vec<CommittedEvent>,
    /// The number of its forks that exist; `None` if the store does not list them.
    pub forks: Option<usize>,
}

impl SessionOutline {
    /// A session with its newest events, those from its beginning, and the number of its forks.
    pub const fn new(session: Session, first: Vec<CommittedEvent>, forks: Option<usize>) -> Self {
        SessionOutline { session, first, forks }
    }
}

/// As [`SessionStore::outlines`]: each session is read by itself.
pub(super) async fn outlines(
    store: &(impl SessionStore + ?Sized),
    request: OutlineSessions,
) -> Result<Vec<Option<SessionOutline>>, SessionError> {
    let mut left = request.max_bytes;
    let mut outlines = Vec::with_capacity(request.ids.len());
    for id in &request.ids {
        let key = SessionKey { app: request.app.clone(), user: request.user.clone(), id: id.clone() };
        let outline = match outline(store, &key, &request, &mut left).await {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            outline => outline?,
        };
        outlines.push(outline);
    }
    Ok(outlines)
}

async fn outline(
    store: &(impl SessionStore + ?Sized),
    key: &SessionKey,
    request: &OutlineSessions,
    left: &mut u64,
) -> Result<Option<SessionOutline>, SessionError> {
    if !fits(store, key, request, left).await? {
        return Ok(None);
    }
    let get = |events| GetSession {
        now: request.now,
        ..GetSession::new(key.clone()).events(events).without_state()
    };
    let session = store.get(get(EventRange::Last(request.newest))).await?;
    let first = match request.first {
        0 => Vec::new(),
        _ if session.events.first().map_or(session.version, |event| event.version - 1) == session.oldest => {
            session.events.iter().take(request.first).cloned().collect()
        }
        limit => store.get(get(EventRange::Page { after: 0, limit })).await?.events,
    };
    let forks = match store.forks(ListForks::new(key.clone())).await {
        Ok(forks) => Some(forks.len()),
        Err(error) if error.kind() == ErrorKind::Unsupported => None,
        Err(error) => return Err(error),
    };
    Ok(Some(SessionOutline { session, first, forks }))
}

/// Whether the events of a session fit into the bytes that are left, which then are fewer.
async fn fits(
    store: &(impl SessionStore + ?Sized),
    key: &SessionKey,
    request: &OutlineSessions,
    left: &mut u64,
) -> Result<bool, SessionError> {
    if request.max_bytes == u64::MAX {
        return Ok(true);
    }
    let get = GetSession::new(key.clone()).events(EventRange::None).without_state();
    let version = store.get(get).await?.version;
    let mut bytes = 0_u64;
    for (after, limit) in
        [(0, request.first), (version.saturating_sub(request.newest as u64), request.newest)]
    {
        if limit == 0 {
            continue;
        }
        match store.event_sizes(EventSizes::new(key.clone(), after, limit).in_memory()).await {
            Ok(sizes) => bytes = sizes.iter().fold(bytes, |sum, (_, size)| sum.saturating_add(*size)),
            // NOTE: its sizes are unknown, so each session counts as one that has to be read by itself.
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    let fits = bytes <= *left;
    *left = left.saturating_sub(if fits { bytes } else { 0 });
    Ok(fits)
}
