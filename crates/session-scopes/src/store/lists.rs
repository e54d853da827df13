//! Lists across the users of an app: the users themselves, and the sessions in which work is left.

use std::sync::Arc;

use super::requests::SessionCursor;
use crate::error::SessionError;
use crate::ids::{AppId, SessionKey, UserId, WorkerId};
use crate::time::Timestamp;

/// Users to be listed: those who have sessions, in the order of their ids.
///
/// # Examples
/// ```
/// # futures_util::FutureExt::now_or_never(async {
/// use stepfold_session_scopes::{CreateSession, ListUsers, MemoryStore, SessionSchema, SessionStore, Timestamp};
///
/// let store = MemoryStore::new();
/// for user in ["bob", "ada"] {
///     let schema = SessionSchema::new(Default::default());
///     store.create(CreateSession::new("my_app", user, &schema, Timestamp::from_micros(0))?).await?;
/// }
/// let users = store.users(ListUsers::new("my_app")?).await?;
/// assert_eq!(users.iter().map(|user| user.as_str()).collect::<Vec<_>>(), ["ada", "bob"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap().unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListUsers {
    /// The application.
    pub app: AppId,
    /// Only users after this one.
    pub after: Option<UserId>,
    /// The maximum number.
    pub limit: usize,
}

impl ListUsers {
    /// The first 1,000 users of an app.
    ///
    /// # Errors
    /// [`SessionError::InvalidId`].
    pub fn new(app: impl Into<Arc<str>>) -> Result<Self, SessionError> {
        Ok(ListUsers::of(AppId::new(app)?))
    }

    /// The first 1,000 users of an app.
    pub const fn of(app: AppId) -> Self {
        ListUsers { app, after: None, limit: 1_000 }
    }
}

/// Sessions of an app to be listed in which work is left and no worker is: the claim has expired, the time has come that
/// its [release](crate::ReleaseClaim::due) named, or entries wait in the inbox and there is no claim. The longest waiting
/// comes first.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListUnattended {
    /// The application.
    pub app: AppId,
    /// The time by which a claim has expired, or a session is due. For claims, stores with their own clock use that one.
    pub now: Timestamp,
    /// The maximum number.
    pub limit: usize,
    /// The cursor of the last session before.
    pub after: Option<SessionCursor>,
    /// Whether sessions are listed as well whose claim has not expired.
    pub with_claimed: bool,
}

/// A session in which work is left and no worker is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unattended {
    /// The session.
    pub key: SessionKey,
    /// Since when: the expiry of the claim, the time at which it was due, or the last known write.
    pub since: Timestamp,
    /// Whether there is a claim, which has expired unless [others](ListUnattended::with_claimed) are listed. If not, no
    /// worker has claimed the session since entries were added to its inbox.
    pub is_claimed: bool,
    /// The worker of the claim, if there is one.
    pub owner: Option<WorkerId>,
    /// Whether its time has come: a worker released it until then.
    pub is_due: bool,
    /// The position of the newest waiting entry in its inbox; 0 if there is none.
    pub inbox: u64,
    /// Its place in the list.
    pub cursor: SessionCursor,
}

impl Unattended {
    pub(crate) fn new(
        key: SessionKey,
        since: Timestamp,
        (is_claimed, is_due): (bool, bool),
        inbox: u64,
        number: i64,
    ) -> Self {
        let cursor = SessionCursor::after(since, number);
        Unattended { key, since, is_claimed, owner: None, is_due, inbox, cursor }
    }

    /// With the worker of its claim. A damaged name hides neither the session nor others.
    pub(crate) fn with_owner(mut self, owner: Option<impl Into<Arc<str>>>) -> Self {
        self.owner = owner.and_then(|owner| WorkerId::new(owner).ok());
        self
    }
}

impl ListUnattended {
    /// The first 100 sessions of an app, by this time.
    pub const fn new(app: AppId, now: Timestamp) -> Self {
        ListUnattended { app, now, limit: 100, after: None, with_claimed: false }
    }

    /// Lists sessions whose claim has not expired too: for callers that know which workers are dead.
    #[must_use]
    pub const fn with_claimed(mut self) -> Self {
        self.with_claimed = true;
        self
    }

    /// The bounds of the page: the place after which it begins.
    pub(crate) fn begins_after(&self) -> Result<(Timestamp, i64), SessionError> {
        let first = || (Timestamp::from_micros(i64::MIN), i64::MIN);
        Ok(self.after.as_ref().map(SessionCursor::position).transpose()?.unwrap_or_else(first))
    }
}
