//! The cache of a session: its history, and the last run of this process.

use std::sync::Arc;

use stepfold_agent_loop::{Agent, Outcome, Run};
use stepfold_session_scopes::{CommittedEvent, LifeId, SeenVersions, SessionKey};

use crate::record::cached_values::CachedValues;
use crate::record::history::SessionHistory;

/// The cached data of a session, so that a turn reads only new data.
#[derive(Default)]
pub(crate) struct SessionCache {
    /// `None` before the first read, and after anything that may invalidate it.
    pub(crate) history: Option<Arc<SessionHistory>>,
    /// The last run when it stopped in this process: its values are newer than those of the history, and
    /// include `temp:`.
    pub(crate) stopped: Option<StoppedRun>,
    /// Whether the session is kept in memory for the `temp:` values of its run.
    pub(crate) is_kept: bool,
}

impl SessionCache {
    /// Folds in the events that this process has written. After a failure the session is read again.
    pub(crate) fn follow(&mut self, key: &SessionKey, written: &[CommittedEvent]) {
        let Some(history) = &mut self.history else { return };
        if Arc::make_mut(history).follow(key, written).is_err() {
            self.history = None;
        }
    }

    /// The values after the last run of this process.
    pub(crate) fn run_values(&self) -> Option<CachedValues> {
        let stopped = self.stopped.as_ref()?;
        CachedValues::from_run(stopped.run().state(), stopped.seen?)
    }
}

/// A run that stopped in this process, and the session after it.
pub(crate) struct StoppedRun {
    outcome: Arc<Outcome>,
    version: u64,
    life: Option<LifeId>,
    /// The versions of the run's values, if known.
    pub(crate) seen: Option<SeenVersions>,
}

impl StoppedRun {
    pub(crate) fn new(
        outcome: Arc<Outcome>,
        version: u64,
        life: Option<LifeId>,
        seen: Option<SeenVersions>,
    ) -> Self {
        StoppedRun { outcome, version, life, seen }
    }

    pub(crate) fn run(&self) -> &Run {
        self.outcome.run()
    }

    /// Whether the run is that of this agent, which may have changed since it was recorded.
    pub(crate) fn is_of(&self, agent: &Agent) -> bool {
        self.run().agent().is_same_as(agent)
    }

    /// Whether the session is unchanged since the run.
    pub(crate) fn is_current(&self, history: &SessionHistory) -> bool {
        self.version == history.version && self.life == history.life
    }
}
