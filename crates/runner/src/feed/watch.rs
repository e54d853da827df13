//! Watches which sessions change: all, those of a user, or one.

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use stepfold_session_scopes::{SessionKey, UserId};

use crate::core::runner_core::Runner;
use crate::core::watchers::SessionChange;

/// The sessions that [`Runner::watch`] reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchScope {
    /// The sessions that the runner and its clones work in, and no changes of other processes.
    All,
    /// The sessions of one user. Other processes may have changed some when [`SessionChange::Missed`] says so: when the store
    /// [notifies](stepfold_session_scopes::SessionStore::notices) of it, and every 15 seconds; each second, if it does
    /// not notify.
    User(UserId),
    /// One session: its newest change, if the runner or a clone made one since the one before. Changes of other processes are not
    /// reported: [`Runner::follow`] reports their commits, and ends when the session is deleted.
    Session(SessionKey),
}

impl From<&UserId> for WatchScope {
    fn from(user: &UserId) -> Self {
        WatchScope::User(user.clone())
    }
}

impl From<&SessionKey> for WatchScope {
    fn from(key: &SessionKey) -> Self {
        WatchScope::Session(key.clone())
    }
}

impl Runner {
    /// Watches sessions: their creation and deletion, each stored event, and each end of an invocation. Changes from this call
    /// on are reported. Any number of watchers is supported; none slows a run down. [`follow`](Runner::follow) reports the
    /// commits themselves, and [`Invocation::subscribe`](crate::Invocation::subscribe) one invocation with its text.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use futures_util::StreamExt;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::{Runner, SessionChange, WatchScope};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3\nassistant: area 4")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let (ada, bob) = (runner.session("ada", "s1").await?, runner.session("bob", "s1").await?);
    /// let mut all = runner.watch(WatchScope::All).await;
    /// let mut of_bob = runner.watch(&bob.key().user).await;
    /// let mut session = runner.watch(bob.key()).await;
    /// ada.run("which area has most stalls?").await?;
    /// bob.run("which area has fewest?").await?;
    /// let Some(SessionChange::Changed { key, version: 1, is_running: true, .. }) = all.next().await else {
    ///     panic!("the message is stored first")
    /// };
    /// assert_eq!(&key, ada.key());
    /// assert!(matches!(of_bob.next().await, Some(SessionChange::Changed { key, .. }) if key == *bob.key()));
    /// assert!(matches!(session.next().await, Some(SessionChange::Changed { version: 2, is_running: false, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn watch(&self, sessions: impl Into<WatchScope>) -> BoxStream<'static, SessionChange> {
        let changes = &self.0.changes;
        match sessions.into() {
            WatchScope::All => changes.watch(),
            WatchScope::User(user) => {
                let changes = changes.watch_user(&user);
                self.listen_to_notices().await;
                futures_util::stream::select(changes, Box::pin(self.poll_ticks())).boxed()
            }
            WatchScope::Session(key) => changes.watch_session(&key).into_changes(),
        }
    }
}
