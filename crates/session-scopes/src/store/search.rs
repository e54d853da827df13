//! Requests of searches in the messages of sessions, and their results.

use std::collections::BTreeSet;
use std::sync::Arc;

use stepfold_state_core::chat::Message;

use crate::ids::{AppId, SessionId, SessionKey, UserId};
use crate::time::Timestamp;

/// The most messages that one search finds.
pub const MAX_FOUND_MESSAGES: usize = 100;

/// The most sessions that one search looks into: those that were written last.
pub const MAX_SEARCHED_SESSIONS: usize = 1_000;

/// A search by words in the messages of a session, or of all sessions of a user.
#[doc(alias("full_text_search", "recall"))]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SearchSessions {
    /// The application.
    pub app: AppId,
    /// The user.
    pub user: UserId,
    /// The session; all of the user if `None`.
    pub session: Option<SessionId>,
    /// A session that is left out.
    pub except: Option<SessionId>,
    /// The text whose words are sought. It has no syntax.
    pub query: Arc<str>,
    /// The maximum number of messages, at most [`MAX_FOUND_MESSAGES`].
    pub limit: usize,
    /// The names of tools whose results are not found.
    pub ignored_tools: BTreeSet<Arc<str>>,
}

impl SearchSessions {
    /// The ten best messages of a session.
    pub fn in_session(key: SessionKey, query: impl Into<Arc<str>>) -> Self {
        let SessionKey { app, user, id } = key;
        SearchSessions { session: Some(id), ..SearchSessions::of_user(app, user, query) }
    }

    /// The ten best messages of all sessions of a user; of the [`MAX_SEARCHED_SESSIONS`] that were written last, if there
    /// are more.
    pub fn of_user(app: AppId, user: UserId, query: impl Into<Arc<str>>) -> Self {
        SearchSessions {
            app,
            user,
            session: None,
            except: None,
            query: query.into(),
            limit: 10,
            ignored_tools: BTreeSet::new(),
        }
    }

    /// Sets the maximum number of messages.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Leaves a session out.
    #[must_use]
    pub fn except(mut self, session: SessionId) -> Self {
        self.except = Some(session);
        self
    }

    /// Leaves the results of some tools out, such as those of a search.
    #[must_use]
    pub fn without_results_of<N: Into<Arc<str>>>(mut self, tools: impl IntoIterator<Item = N>) -> Self {
        self.ignored_tools.extend(tools.into_iter().map(Into::into));
        self
    }

    /// The key of one of the sessions.
    pub(crate) fn key(&self, id: &SessionId) -> SessionKey {
        SessionKey { app: self.app.clone(), user: self.user.clone(), id: id.clone() }
    }
}

/// A message that a search has found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FoundMessage {
    /// The session in whose history it is.
    pub session: SessionId,
    /// The version of its event.
    pub version: u64,
    /// Its place among the messages of the event.
    pub place: usize,
    /// The time of the event.
    pub at: Timestamp,
    /// The score (BM25). Scores of one search can be compared with each other, and with no others.
    pub score: f64,
    /// The message.
    pub message: Arc<Message>,
}
