//! Scans: all sessions of an app, of all users, with what retention needs to know of each.

use std::sync::Arc;

use super::requests::{EventRange, GetSession, ListSessions, SessionCursor};
use super::{ListUsers, SessionStore};
use crate::error::SessionError;
use crate::ids::{AppId, SessionKey, UserId};
use crate::session::Session;
use crate::time::Timestamp;

/// A page of the sessions of an app, of all users: see [`SessionStore::scan`].
///
/// # Examples
/// ```
/// # futures_util::FutureExt::now_or_never(async {
/// use stepfold_session_scopes::{CreateSession, MemoryStore, ScanSessions, SessionSchema, SessionStore, Timestamp};
///
/// let (store, schema) = (MemoryStore::new(), SessionSchema::new(Default::default()));
/// for (user, at) in [("bob", 10), ("ada", 20)] {
///     store.create(CreateSession::new("my_app", user, &schema, Timestamp::from_micros(at))?).await?;
/// }
/// let mut request = ScanSessions::new("my_app")?;
/// request.limit = 1;
/// let mut users = Vec::new();
/// loop {
///     let page = store.scan(request.clone()).await?;
///     users.extend(page.sessions.iter().map(|session| session.key.user.to_string()));
///     request.after = page.next;
///     if request.after.is_none() {
///         break;
///     }
/// }
/// assert_eq!(users, ["ada", "bob"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap().unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScanSessions {
    /// The application.
    pub app: AppId,
    /// The maximum number.
    pub limit: usize,
    /// The cursor at the end of the previous page.
    pub after: Option<SessionCursor>,
    /// Whether the time of the oldest event of each session is requested, which costs a look at that event.
    pub with_first_event: bool,
}

impl ScanSessions {
    /// The first 1,000 sessions of an app.
    ///
    /// # Errors
    /// [`SessionError::InvalidId`].
    pub fn new(app: impl Into<Arc<str>>) -> Result<Self, SessionError> {
        Ok(ScanSessions::of(AppId::new(app)?))
    }

    /// The first 1,000 sessions of an app.
    pub const fn of(app: AppId) -> Self {
        ScanSessions { app, limit: 1_000, after: None, with_first_event: false }
    }

    /// The user, the time and the number after which the page begins.
    pub(crate) fn begins_after(&self) -> Result<(String, Timestamp, i64), SessionError> {
        let Some(cursor) = &self.after else {
            return Ok((String::new(), Timestamp::from_micros(i64::MIN), i64::MIN));
        };
        let (place, user) = cursor.as_str().split_once(' ').ok_or(SessionError::InvalidCursor)?;
        let (updated, number) = SessionCursor::new(place).position()?;
        Ok((user.to_owned(), updated, number))
    }
}

/// A session of a [scan](SessionStore::scan).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScannedSession {
    /// The session.
    pub key: SessionKey,
    /// Its version.
    pub version: u64,
    /// The oldest version that it can go back to: it has the events after it.
    pub oldest: u64,
    /// The time of its creation.
    pub created: Timestamp,
    /// The time of its newest event, or of its creation.
    pub updated: Timestamp,
    /// The time of the oldest event that it still has, if requested; `None` without events.
    pub first_event: Option<Timestamp>,
    /// Whether its newest visible event [is of an unfinished run](crate::Event::is_unfinished).
    pub is_unfinished: bool,
    /// The position of the newest waiting entry in its inbox; 0 if there is none.
    pub inbox: u64,
}

impl ScannedSession {
    /// A session that was read with its newest event; without the time of the oldest one.
    pub fn of(session: &Session) -> Self {
        let newest = session.visible_events().next_back();
        ScannedSession {
            key: session.key.clone(),
            version: session.version,
            oldest: session.oldest,
            created: session.created,
            updated: session.updated,
            first_event: None,
            is_unfinished: newest.is_some_and(|newest| newest.event.is_unfinished()),
            inbox: session.inbox,
        }
    }
}

/// Some sessions of an app.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScannedPage {
    /// The sessions.
    pub sessions: Vec<ScannedSession>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<SessionCursor>,
}

impl ScannedPage {
    /// A page, with the cursor of the next one.
    pub const fn new(sessions: Vec<ScannedSession>, next: Option<SessionCursor>) -> Self {
        ScannedPage { sessions, next }
    }

    /// A page from one session more than it has, each with its number.
    pub(crate) fn cut(mut found: Vec<(ScannedSession, i64)>, limit: usize) -> Self {
        let is_last = found.len() <= limit;
        found.truncate(limit);
        let next = found.last().filter(|_| !is_last).map(|(session, number)| {
            let place = SessionCursor::after(session.updated, *number);
            SessionCursor::new(format!("{} {}", place.as_str(), session.key.user))
        });
        ScannedPage { sessions: found.into_iter().map(|(session, _)| session).collect(), next }
    }
}

/// A page of a store that cannot scan: of the next user who has sessions.
pub(super) async fn scan(
    store: &(impl SessionStore + ?Sized),
    request: ScanSessions,
) -> Result<ScannedPage, SessionError> {
    let (mut place, mut user) = (None, None);
    if let Some(cursor) = &request.after {
        // NOTE: an id of a user has no line breaks.
        let (name, text) = cursor.as_str().split_once('\n').ok_or(SessionError::InvalidCursor)?;
        user = Some(UserId::new(name)?);
        place = Some(text).filter(|text| !text.is_empty()).map(SessionCursor::new);
    }
    if place.is_none() {
        let next = ListUsers { after: user, limit: 1, ..ListUsers::of(request.app.clone()) };
        user = store.users(next).await?.into_iter().next();
    }
    let Some(user) = user else { return Ok(ScannedPage::new(Vec::new(), None)) };
    let list = ListSessions::new(request.app.as_str(), user.as_str())?;
    let page = store.list(list.limit(request.limit).after(place).events(EventRange::Last(1))).await?;
    let text = page.next.as_ref().map_or("", SessionCursor::as_str);
    let next = SessionCursor::new(format!("{user}\n{text}"));
    let mut sessions = Vec::with_capacity(page.sessions.len());
    for mut session in page.sessions.iter().map(ScannedSession::of) {
        if request.with_first_event {
            let first = EventRange::Page { after: session.oldest, limit: 1 };
            let get = GetSession::new(session.key.clone()).events(first).without_state();
            session.first_event = match store.get(get).await {
                Ok(read) => read.events.first().map(|first| first.event.at),
                // NOTE: deleted since it was listed.
                Err(SessionError::NotFound { .. }) => continue,
                Err(error) => return Err(error),
            };
        }
        sessions.push(session);
    }
    Ok(ScannedPage::new(sessions, Some(next)))
}
