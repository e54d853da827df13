//! Follows the commits of a session, from whatever process they come.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use stepfold_session_scopes::{
    CommittedEvent, EventRange, GetSession, SessionKey, SessionStore, StoreNotices, WatchStore,
};

use crate::error::RunnerError;
use crate::runner::Runner;
use crate::watch::SessionChange;

/// The number of events that are read at once.
const PAGE: usize = 256;

/// How often the store is asked, at first and at last: commits of this process are told at once.
const POLLS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

impl Runner {
    /// Follows a session: each commit after a version, in order and once, whichever process makes it; those that a
    /// rewind hid as well, and the rewind. It waits for more until it is dropped, and ends after an error, for example when
    /// the session is deleted. Commits of this runner are told at once, and those of others when the store
    /// [notifies](SessionStore::notices), within some 50 milliseconds; without notices within a second.
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
        key: SessionKey,
        after_version: u64,
    ) -> impl Stream<Item = Result<CommittedEvent, RunnerError>> + Send + Unpin + use<> {
        let changes = Box::pin(self.watch());
        let (runner, read) = (self.clone(), VecDeque::new());
        let follower =
            Follower { runner, key, after: after_version, read, changes, notices: None, pause: POLLS.0 };
        Box::pin(futures_util::stream::unfold(Some((follower, false)), |follower| async move {
            let (mut follower, is_listening) = follower?;
            if !is_listening {
                follower.notices = follower.runner.0.store.notices(WatchStore::new()).await.ok();
            }
            match follower.next().await {
                Ok(commit) => Some((Ok(commit), Some((follower, true)))),
                Err(error) => Some((Err(error), None)),
            }
        }))
    }
}

struct Follower<C> {
    runner: Runner,
    key: SessionKey,
    /// The version of the last commit that was told.
    after: u64,
    read: VecDeque<CommittedEvent>,
    changes: C,
    /// Notices of commits of other processes, if the store gives any.
    notices: Option<StoreNotices>,
    pause: Duration,
}

impl<C: Stream<Item = SessionChange> + Unpin> Follower<C> {
    async fn next(&mut self) -> Result<CommittedEvent, RunnerError> {
        loop {
            if let Some(commit) = self.read.pop_front() {
                self.after = commit.version;
                return Ok(commit);
            }
            let page = EventRange::Page { after: self.after, limit: PAGE };
            let get = GetSession::new(self.key.clone()).events(page).without_state();
            let session = self.runner.0.store.get(get).await;
            let session = session.map_err(|error| RunnerError::store(&self.key, error))?;
            self.read.extend(session.events);
            match self.read.is_empty() {
                true => self.wait().await,
                false => self.pause = POLLS.0,
            }
        }
    }

    /// Waits for a commit of this process, a notice of another one's, or for a while.
    async fn wait(&mut self) {
        let is_new = |change: &SessionChange| match change {
            SessionChange::Changed { key, version, .. } => *key == self.key && *version > self.after,
            SessionChange::Missed { .. } => true,
        };
        let changes = &mut self.changes;
        let told = async {
            while let Some(change) = changes.next().await {
                if is_new(&change) {
                    return;
                }
            }
            std::future::pending::<()>().await;
        };
        let (key, notices) = (&self.key, &mut self.notices);
        let hinted = async {
            while let Some(listening) = &mut *notices {
                match listening.next().await {
                    Some(notice) if notice.may_concern(key) => return,
                    Some(_) => {}
                    None => *notices = None,
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = told => self.pause = POLLS.0,
            () = hinted => self.pause = POLLS.0,
            () = self.runner.0.clock.sleep(self.pause) => self.pause = (self.pause * 2).min(POLLS.1),
        }
    }
}
