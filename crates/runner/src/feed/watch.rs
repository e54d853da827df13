//! Watches which sessions change: all, those of a user, or one.

use futures_util::Stream;
use stepfold_session_scopes::{SessionKey, UserId};

use crate::core::runner_core::Runner;
use crate::core::watchers::SessionChange;

impl Runner {
    /// Watches the sessions that this runner and its clones work in: their creation and deletion, each stored event, and
    /// each end of an invocation. Any number of watchers is supported; none slows a run down.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use futures_util::StreamExt;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::{Runner, SessionChange};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// let mut changes = runner.watch();
    /// session.run("which area has most stalls?").await?;
    /// let Some(SessionChange::Changed { key, version: 1, is_running: true, .. }) = changes.next().await else {
    ///     panic!("the message is stored first")
    /// };
    /// assert_eq!(&key, session.key());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn watch(&self) -> impl Stream<Item = SessionChange> + Send + Unpin + use<> {
        self.0.changes.watch()
    }

    /// Watches the sessions of one user, as [`watch`](Runner::watch) does: changes of other users are not reported.
    /// Other processes may have changed some when [`SessionChange::Missed`] says so: when the store
    /// [notifies](stepfold_session_scopes::SessionStore::notices) of it, and every 15 seconds; each second, if it does not
    /// notify.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use futures_util::StreamExt;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::{Runner, SessionChange};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3\nassistant: area 4")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let (ada, bob) = (runner.session("ada", "s1").await?, runner.session("bob", "s1").await?);
    /// let mut changes = runner.watch_user(&bob.key().user).await;
    /// ada.run("which area has most stalls?").await?;
    /// bob.run("which area has fewest?").await?;
    /// assert!(matches!(changes.next().await, Some(SessionChange::Changed { key, .. }) if key == *bob.key()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn watch_user(
        &self,
        user: &UserId,
    ) -> impl Stream<Item = SessionChange> + Send + Unpin + use<> {
        let changes = self.0.changes.watch_user(user);
        self.listen_to_notices().await;
        futures_util::stream::select(changes, Box::pin(self.poll_ticks()))
    }

    /// Watches one session: the newest change, if this runner made one since the one before. Changes of other sessions
    /// are not reported.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use futures_util::StreamExt;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::{Runner, SessionChange};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// let mut changes = runner.watch_session(session.key());
    /// session.run("which area has most stalls?").await?;
    /// assert!(matches!(changes.next().await, Some(SessionChange::Changed { version: 2, is_running: false, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn watch_session(
        &self,
        key: &SessionKey,
    ) -> impl Stream<Item = SessionChange> + Send + Unpin + use<> {
        self.0.changes.watch_session(key).into_changes()
    }
}
