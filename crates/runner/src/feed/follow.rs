//! Follows the commits of a session, from whatever process they come.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::stream::BoxStream;
use stepfold_session_scopes::{
    CommittedEvent, EventRange, GetSession, LifeId, Session, SessionError, SessionKey, SessionStore,
};

use crate::core::runner_core::Runner;
use crate::core::watchers::{NewestChange, SessionWatch};
use crate::error::RunnerError;
use crate::feed::notices::{POLL_PAUSES, SLOW_POLL};

/// The session that [`Runner::follow`] reads: the one that it finds, or only that with a given life.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowedSession {
    /// Its key.
    pub key: SessionKey,
    /// Its life. If the session was deleted and created again since, no commit of the other one is reported, and the stream
    /// ends with an error of the kind [`NotFound`](stepfold_session_scopes::ErrorKind::NotFound).
    pub life: Option<LifeId>,
}

impl From<SessionKey> for FollowedSession {
    fn from(key: SessionKey) -> Self {
        FollowedSession { key, life: None }
    }
}

impl From<(SessionKey, LifeId)> for FollowedSession {
    fn from((key, life): (SessionKey, LifeId)) -> Self {
        FollowedSession { key, life: Some(life) }
    }
}

/// The number of events that are read at once.
const PAGE: usize = 256;

impl Runner {
    /// Follows a session: each commit after a version, in order and once, whichever process makes it; those that a
    /// rewind hid as well, and the rewind. It waits for more until it is dropped, and ends after an error: for example
    /// when the session is deleted, also if it is created again. Without a life, the session of the first read counts. Commits of this runner are reported at once, and those of
    /// others when the store [notifies](SessionStore::notices), within some 50 milliseconds (over SQLite within a
    /// second, while this runner commits itself); without notices within a second. It is woken by what happens in this
    /// session only.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use futures_util::{StreamExt, TryStreamExt};
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.run("which area has most stalls?").await?;
    /// let commits: Vec<_> = runner.follow(session.key().clone(), 0).take(2).try_collect().await?;
    /// assert_eq!(commits.iter().map(|commit| commit.event.kind.as_str()).collect::<Vec<_>>(), ["began", "replied"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn follow(
        &self,
        session: impl Into<FollowedSession>,
        after_version: u64,
    ) -> BoxStream<'static, Result<CommittedEvent, RunnerError>> {
        let FollowedSession { key, life } = session.into();
        let (runner, watch) = (self.clone(), self.0.changes.watch_session(&key));
        let read = VecDeque::new();
        let follower = SessionFollower { runner, key, life, after: after_version, read, watch, pause: None };
        Box::pin(futures_util::stream::unfold(Some(follower), |follower| async move {
            let mut follower = follower?;
            match follower.next().await {
                Ok(commit) => Some((Ok(commit), Some(follower))),
                Err(error) => Some((Err(error), None)),
            }
        }))
    }
}

struct SessionFollower {
    runner: Runner,
    key: SessionKey,
    /// The life of the session; that of its first read, if none was given.
    life: Option<LifeId>,
    /// The version of the last reported commit.
    after: u64,
    read: VecDeque<CommittedEvent>,
    watch: SessionWatch,
    /// The next pause between polls; none before the first.
    pause: Option<Duration>,
}

impl SessionFollower {
    async fn next(&mut self) -> Result<CommittedEvent, RunnerError> {
        loop {
            if let Some(commit) = self.read.pop_front() {
                self.after = commit.version;
                return Ok(commit);
            }
            // NOTE: the number of wake-ups is taken before the read, so that a change during the read is not missed.
            let polls = self.watch.newest.borrow_and_update().polls;
            let page = EventRange::Page { after: self.after, limit: PAGE };
            let get = GetSession::new(self.key.clone()).events(page).without_state();
            let session = self.runner.0.store.get(get).await.and_then(|session| self.of_same_life(session));
            self.read.extend(session.map_err(|error| RunnerError::store(&self.key, error))?.events);
            match self.read.is_empty() {
                true => self.wait(polls).await,
                false => self.pause = None,
            }
        }
    }

    /// A session that was deleted and created again is not the one that is followed, whatever versions it has.
    fn of_same_life(&mut self, session: Session) -> Result<Session, SessionError> {
        let life = self.life.get_or_insert_with(|| session.life.clone());
        match *life == session.life {
            true => Ok(session),
            false => Err(SessionError::NotFound { key: Box::new(self.key.clone()) }),
        }
    }

    /// Waits for a commit of this process, a notice of another one's, or for a while.
    async fn wait(&mut self, polls: u64) {
        // Another one may have stopped with its runtime.
        let longest = if self.runner.listen_to_notices().await { SLOW_POLL } else { POLL_PAUSES.1 };
        let pause = self.pause.unwrap_or(POLL_PAUSES.0);
        let after = self.after;
        let is_new = |newest: &NewestChange| newest.version > after || newest.polls != polls;
        tokio::select! {
            _ = self.watch.newest.wait_for(is_new) => self.pause = None,
            () = self.runner.0.clock.sleep(pause) => self.pause = Some((pause * 2).min(longest)),
        }
    }
}
