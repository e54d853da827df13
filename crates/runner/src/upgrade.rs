//! Changes of an agent under unfinished runs: what a runner does with them, and what they touch.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use stepfold_agent_loop::AgentUpgrade;
use stepfold_session_scopes::{
    EventRange, ListSessions, ListUsers, Session, SessionCursor, SessionKey, SessionStore as _, UserId,
};

use crate::access::session_access::SessionAccess;
use crate::access::unfinished_run::CheckedUpgrade;
use crate::core::runner_core::Runner;
use crate::error::{RunnerError, RunnerErrorKind};
use crate::handle::session_handle::SessionHandle;

/// The handling of an unfinished run whose agent has changed since.
///
/// Runs wait for days, for approvals and webhooks, and a deployment changes a prompt meanwhile. A run that continues with
/// a changed agent records it, as an event [`upgraded`](stepfold_agent_loop::EventKind::Upgraded) before its first event
/// under the new one. An open approval of a tool that has changed is asked again under each of these, with another id, so
/// that a decision approves what was shown.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::sync::Arc;
///
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, Decision};
/// use stepfold_runner::Runner;
/// use stepfold_session_scopes::MemoryStore;
/// use stepfold_tools::{Approval, Tool, ToolError};
///
/// # let model = || Script::parse("assistant: > c1 pay()\nassistant: done");
/// # async fn transfer() -> Result<&'static str, ToolError> { Ok("paid") }
/// let pay = Tool::new("pay", "Pays a bill.", transfer).approval(Approval::Always).build()?;
/// let agent = Agent::builder(model()?).name("clerk").tools([pay]).build()?;
/// let store = Arc::new(MemoryStore::new());
/// let before = Runner::builder(agent.clone(), Arc::clone(&store)).build();
/// let waiting = before.session("ada", "s1").await?.run("pay the bill").await?;
///
/// // A deployment, with other instructions. The run waits under the same id, and continues.
/// let agent = agent.to_builder().instructions("Be brief.").build()?;
/// let session = Runner::builder(agent, store).build().session("ada", "s1").await?;
/// let outcome = session.resume().decide(&*waiting.pending()[0].id, Decision::Approve).await?;
/// assert_eq!(outcome.text(), "done");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenChanged {
    /// Refuses every change with [`AgentChanged`](crate::RunnerErrorKind::AgentChanged).
    Refuse,
    /// Continues a run if the changes are ahead of it: nothing that is open in it depends on them, as
    /// [`Run::check_upgrade`](stepfold_agent_loop::Run::check_upgrade) says. Otherwise refuses it, and says which change touches
    /// which call, branch or key.
    #[default]
    Compatible,
    /// Continues with the new agent, whatever has changed.
    Always,
    /// Continues a run with the agent that it began with, beside the new one in this process; new runs are those of the new
    /// one. The older agents are those that are [registered](crate::RunnerBuilder::also) or
    /// [archived](crate::RunnerBuilder::archive). A run of an unknown one is refused, as by `Refuse`.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::sync::Arc;
    ///
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Decision};
    /// use stepfold_runner::{Runner, WhenChanged};
    /// use stepfold_session_scopes::MemoryStore;
    /// use stepfold_tools::{Approval, Tool, ToolError};
    ///
    /// # let model = || Script::parse("assistant: > c1 pay()\nassistant: done");
    /// # async fn transfer() -> Result<&'static str, ToolError> { Ok("paid") }
    /// let pay = Tool::new("pay", "Pays a bill.", transfer).approval(Approval::Always).build()?;
    /// let old = Agent::builder(model()?).name("clerk").tools([pay]).build()?;
    /// let store = Arc::new(MemoryStore::new());
    /// let before = Runner::builder(old.clone(), Arc::clone(&store)).build();
    /// let waiting = before.session("ada", "s1").await?.run("pay the bill").await?;
    ///
    /// // The new version cannot pay. The run that waits still can.
    /// let new = Agent::builder(Script::parse("assistant: hello")?).name("clerk").build()?;
    /// let runner = Runner::builder(new, store).when_changed(WhenChanged::Pinned).also(old).build();
    /// let session = runner.session("ada", "s1").await?;
    /// let outcome = session.resume().decide(&*waiting.pending()[0].id, Decision::Approve).await?;
    /// assert_eq!(outcome.text(), "done");
    /// assert_eq!(runner.session("ada", "s2").await?.run("hi").await?.text(), "hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    Pinned,
}

impl WhenChanged {
    /// The name in agent files.
    pub const fn as_str(self) -> &'static str {
        match self {
            WhenChanged::Refuse => "refuse",
            WhenChanged::Compatible => "compatible",
            WhenChanged::Always => "always",
            WhenChanged::Pinned => "pinned",
        }
    }
}

impl fmt::Display for WhenChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for WhenChanged {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let all = [WhenChanged::Refuse, WhenChanged::Compatible, WhenChanged::Always, WhenChanged::Pinned];
        let found = all.into_iter().find(|when| when.as_str() == name);
        found.ok_or_else(|| format!("expected `refuse`, `compatible`, `always` or `pinned`; found `{name}`"))
    }
}

/// The status of an unfinished run beside the agent of today: see [`CheckedRun::status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UpgradeStatus {
    /// The agent is the same.
    Unchanged,
    /// The changes are ahead of the run.
    Compatible,
    /// The run continues with the agent that it began with.
    Pinned,
    /// A change touches open work: only [`Always`](WhenChanged::Always) continues it.
    Touched,
    /// The agent of today cannot read the record.
    Unreadable,
}

impl UpgradeStatus {
    /// The status in words, as `stepfold check --runs` and the server have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            UpgradeStatus::Unchanged => "unchanged",
            UpgradeStatus::Compatible => "compatible",
            UpgradeStatus::Pinned => "pinned",
            UpgradeStatus::Touched => "touched",
            UpgradeStatus::Unreadable => "cannot be read",
        }
    }
}

impl fmt::Display for UpgradeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An unfinished run beside the agent of today: see [`Runner::check_upgrade`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CheckedRun {
    /// The session.
    pub key: SessionKey,
    /// The version of the session.
    pub version: u64,
    /// The [digest](stepfold_agent_loop::Fingerprint::digest) of the agent that the run is of; `None` if the record cannot be
    /// read.
    pub agent: Option<String>,
    /// The changes of the agent since the run was recorded, and the open work that they touch.
    pub upgrade: AgentUpgrade,
    /// Whether the run continues with the agent that it began with, which is known here, under
    /// [`Pinned`](WhenChanged::Pinned).
    pub is_pinned: bool,
    /// Whether [`recover`](Runner::recover) leaves the run to another version of the agent, which has taken it over since. A caller
    /// continues it with this one.
    pub is_left: bool,
    /// The policy of the runner.
    pub policy: WhenChanged,
    /// Why this agent cannot read the record: a value that does not fit the schema, for example. Or why the agent that the
    /// run is pinned to cannot be loaded.
    pub error: Option<RunnerError>,
}

impl CheckedRun {
    /// The status of the run beside the agent of today.
    pub const fn status(&self) -> UpgradeStatus {
        match &self.error {
            _ if self.is_pinned => UpgradeStatus::Pinned,
            Some(RunnerError { kind: RunnerErrorKind::PinnedAgent { .. }, .. }) | None => {
                match (self.upgrade.is_unchanged(), self.upgrade.is_ahead_only()) {
                    // An agent that cannot be loaded is another one than that of today, which could not read the run.
                    (true, _) if self.error.is_some() => UpgradeStatus::Unreadable,
                    (true, _) => UpgradeStatus::Unchanged,
                    (false, true) => UpgradeStatus::Compatible,
                    (false, false) => UpgradeStatus::Touched,
                }
            }
            Some(_) => UpgradeStatus::Unreadable,
        }
    }

    /// Whether the runner continues the run, under its [policy](crate::RunnerBuilder::when_changed); one that
    /// [is left](CheckedRun::is_left) only for a caller.
    pub const fn continues(&self) -> bool {
        match self.status() {
            UpgradeStatus::Unchanged | UpgradeStatus::Pinned => true,
            UpgradeStatus::Compatible => matches!(self.policy, WhenChanged::Compatible | WhenChanged::Always),
            UpgradeStatus::Touched => matches!(self.policy, WhenChanged::Always),
            UpgradeStatus::Unreadable => false,
        }
    }

    /// The reasons of the status, each in words: the changes, the open work that they touch, or the error.
    pub fn reasons(&self) -> Vec<String> {
        let words: Vec<String> = match self.status() {
            UpgradeStatus::Touched => self.upgrade.touches.iter().map(ToString::to_string).collect(),
            _ => self.upgrade.changes.iter().map(ToString::to_string).collect(),
        };
        let error = self.error.iter().map(|error| match &error.kind {
            RunnerErrorKind::PinnedAgent { source, .. } => {
                format!("its own agent cannot be loaded: {source}")
            }
            // The status says it.
            RunnerErrorKind::Store { source, .. } => source.to_string(),
            kind => kind.to_string(),
        });
        let left = "another version of the agent has taken the run over: a recovery leaves it to that one, a resume continues it here";
        let left = self.is_left.then(|| left.to_owned());
        words.into_iter().chain(error).chain(left).collect()
    }
}

/// The numbers of checked runs, each counted once.
///
/// # Examples
/// ```
/// use stepfold_runner::UpgradeCounts;
///
/// assert_eq!(UpgradeCounts::default().total(), 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpgradeCounts {
    /// Runs whose agent is the same.
    pub unchanged: u64,
    /// Runs that continue with the agent of today, though it has changed: nothing that is open in them depends on it.
    pub compatible: u64,
    /// Runs that continue with the agent of today though a change touches open work, under [`Always`](WhenChanged::Always).
    pub forced: u64,
    /// Runs that continue with the agent that they began with.
    pub pinned: u64,
    /// Runs that a recovery leaves to another version of the agent, and that only a caller continues.
    pub left: u64,
    /// Runs that are not continued.
    pub refused: u64,
}

impl UpgradeCounts {
    /// Counts a run.
    pub const fn add(&mut self, run: &CheckedRun) {
        let count = match run.status() {
            _ if !run.continues() => &mut self.refused,
            _ if run.is_left => &mut self.left,
            UpgradeStatus::Unchanged => &mut self.unchanged,
            UpgradeStatus::Pinned => &mut self.pinned,
            UpgradeStatus::Compatible => &mut self.compatible,
            UpgradeStatus::Touched | UpgradeStatus::Unreadable => &mut self.forced,
        };
        *count += 1;
    }

    /// The number of all runs.
    pub const fn total(&self) -> u64 {
        self.unchanged + self.compatible + self.forced + self.pinned + self.left + self.refused
    }
}

/// A pass over the unfinished runs of an application: see [`Runner::check_upgrade`].
#[derive(Debug)]
#[must_use = "a check does nothing until its runs are taken"]
pub struct UpgradeCheck {
    runner: Runner,
    /// Users that are still to be listed, and the last one that was.
    users: VecDeque<UserId>,
    last_user: Option<UserId>,
    /// Sessions that are still to be read, and where the list of their user continues.
    sessions: VecDeque<Session>,
    next_page: Option<(UserId, SessionCursor)>,
    is_last_user: bool,
    /// The number of lists that it may read.
    lists: u64,
    has_more: bool,
}

/// The number of users and of sessions that are listed at a time.
const PAGE: usize = 100;

impl Runner {
    /// Compares the agent with each unfinished run of the application, those of all users in the order of their ids. It reads
    /// only: no model, no tool, no event.
    ///
    /// For a deployment: `stepfold check AGENT.toml --runs` does it from the shell. The cost is one read of each unfinished
    /// session, and one list for each user; one page of these is in memory.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::sync::Arc;
    ///
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    /// use stepfold_tools::{Approval, Tool, ToolError};
    ///
    /// # let model = || Script::parse("assistant: > c1 pay()\nassistant: done");
    /// # async fn transfer() -> Result<&'static str, ToolError> { Ok("paid") }
    /// let pay = Tool::new("pay", "Pays a bill.", transfer).approval(Approval::Always).build()?;
    /// let agent = Agent::builder(model()?).name("clerk").tools([pay]).build()?;
    /// let store = Arc::new(MemoryStore::new());
    /// let before = Runner::builder(agent, Arc::clone(&store)).build();
    /// before.session("ada", "s1").await?.run("pay the bill").await?;
    ///
    /// let without_pay = Agent::builder(model()?).name("clerk").build()?;
    /// let runner = Runner::builder(without_pay, store).build();
    /// let mut check = runner.check_upgrade();
    /// let mut touched = Vec::new();
    /// while let Some(run) = check.next().await? {
    ///     touched.extend(run.upgrade.touches.iter().map(ToString::to_string));
    /// }
    /// assert_eq!(touched, ["tool pay is gone, and call `c1` is open"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn check_upgrade(&self) -> UpgradeCheck {
        UpgradeCheck {
            runner: self.clone(),
            users: VecDeque::new(),
            last_user: None,
            sessions: VecDeque::new(),
            next_page: None,
            is_last_user: false,
            lists: u64::MAX,
            has_more: false,
        }
    }
}

impl UpgradeCheck {
    /// Only the runs of this user.
    pub fn of_user(mut self, user: UserId) -> Self {
        (self.users, self.is_last_user) = ([user].into(), true);
        self
    }

    /// Reads at most so many lists of users and of their sessions, for a caller that may not wait for all of them.
    pub fn at_most(mut self, lists: u64) -> Self {
        self.lists = lists;
        self
    }

    /// Whether it ended since it had read the [most](UpgradeCheck::at_most) lists.
    pub const fn has_more(&self) -> bool {
        self.has_more
    }

    /// The next unfinished run; `None` at the end. A run whose record cannot be read is one, with its error.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Store`](crate::RunnerErrorKind::Store) when the store fails, or does not list users.
    pub async fn next(&mut self) -> Result<Option<CheckedRun>, RunnerError> {
        loop {
            while let Some(session) = self.sessions.pop_front() {
                if let Some(checked) = self.check(session).await {
                    return Ok(Some(checked));
                }
            }
            if !self.list_more().await? {
                return Ok(None);
            }
        }
    }

    /// Lists more sessions, of this user or the next one; false if there are no more users.
    async fn list_more(&mut self) -> Result<bool, RunnerError> {
        self.has_more = self.lists == 0;
        let Some(left) = self.lists.checked_sub(1) else { return Ok(false) };
        self.lists = left;
        let store = &self.runner.0.store;
        let failed = |error| self.runner.failed(error);
        let (user, after) = if let Some((user, after)) = self.next_page.take() {
            (user, Some(after))
        } else {
            if self.users.is_empty() && !self.is_last_user {
                let mut request = ListUsers::of(self.runner.0.app.clone());
                (request.after, request.limit) = (self.last_user.clone(), PAGE);
                let users = store.users(request).await.map_err(failed)?;
                self.is_last_user = users.len() < PAGE;
                self.users.extend(users);
            }
            let Some(user) = self.users.pop_front() else { return Ok(false) };
            self.last_user = Some(user.clone());
            (user, None)
        };
        let listed = ListSessions::new(self.runner.0.app.as_str(), user.as_str());
        let mut request = listed.map_err(failed)?.unfinished();
        (request.limit, request.after) = (PAGE, after);
        let page = store.list(request).await.map_err(failed)?;
        self.next_page = page.next.map(|next| (user, next));
        self.sessions.extend(page.sessions);
        Ok(true)
    }

    /// The last run of a session, if it has not ended.
    async fn check(&self, session: Session) -> Option<CheckedRun> {
        let core = &self.runner.0;
        let access = SessionAccess::new(Arc::clone(core), core.sessions().get(session.key.clone()));
        let checked = match access.checked_upgrade().await {
            Ok(checked) => checked?,
            // It was deleted since it was listed.
            Err(error) if error.is_session_not_found() => return None,
            Err(error) => CheckedUpgrade::unreadable(session.version, error),
        };
        Some(checked.of(session.key, core.when_changed))
    }
}

impl CheckedUpgrade {
    /// A run whose record cannot be read.
    fn unreadable(version: u64, error: RunnerError) -> Self {
        CheckedUpgrade { version, error: Some(error), ..CheckedUpgrade::default() }
    }

    fn of(self, key: SessionKey, policy: WhenChanged) -> CheckedRun {
        let CheckedUpgrade { version, upgrade, is_pinned, is_left, agent, error } = self;
        CheckedRun { key, version, agent, upgrade, is_pinned, is_left, policy, error }
    }
}

impl SessionHandle {
    /// Compares the agent with the last run of the session, if that has not ended, as [`Runner::check_upgrade`] does with all. It
    /// reads only.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Store`](crate::RunnerErrorKind::Store) when the store fails. A record that cannot be read is the
    /// [error](CheckedRun::error) of the run.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::sync::Arc;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_runner::{Runner, UpgradeStatus};
    /// use stepfold_session_scopes::MemoryStore;
    /// use stepfold_tools::{Approval, Tool, ToolError};
    /// # async fn transfer() -> Result<&'static str, ToolError> { Ok("paid") }
    /// # let pay = Tool::new("pay", "Pays a bill.", transfer).approval(Approval::Always).build()?;
    /// # let model = || Script::parse("assistant: > c1 pay()\nassistant: done");
    /// let agent = Agent::builder(model()?).name("clerk").tools([pay]).build()?;
    /// let store = Arc::new(MemoryStore::new());
    /// let session = Runner::builder(agent, Arc::clone(&store)).build().session("ada", "s1").await?;
    /// session.run("pay the bill").await?;
    /// assert_eq!(session.check_upgrade().await?.unwrap().status(), UpgradeStatus::Unchanged);
    ///
    /// let without_pay = Agent::builder(model()?).name("clerk").build()?;
    /// let session = Runner::builder(without_pay, store).build().session("ada", "s1").await?;
    /// let checked = session.check_upgrade().await?.unwrap();
    /// assert_eq!((checked.continues(), checked.reasons()), (false, vec!["tool pay is gone, and call `c1` is open".to_owned()]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn check_upgrade(&self) -> Result<Option<CheckedRun>, RunnerError> {
        let checked = match self.access().checked_upgrade().await {
            Ok(checked) => checked,
            Err(error) => {
                let version = self.read_events(EventRange::None).await?.version;
                Some(CheckedUpgrade::unreadable(version, error))
            }
        };
        let policy = self.runner().0.when_changed;
        Ok(checked.map(|checked| checked.of(self.key().clone(), policy)))
    }
}
