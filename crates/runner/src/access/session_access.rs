//! The access of this process to one session in the store.

use std::sync::Arc;

use stepfold_agent_loop::Fingerprint;
use stepfold_session_scopes::Session;
use stepfold_state_core::state::State;

use crate::core::programs::{AgentProgram, PinnedAgent};
use crate::core::runner_core::RunnerCore;
use crate::error::RunnerError;
use crate::record::history::SessionHistory;
use crate::session::local_session::LocalSession;
use crate::upgrade::WhenChanged;

/// Accesses one session in the store, with the data of this process about it.
#[derive(Clone)]
pub(crate) struct SessionAccess {
    pub(crate) runner: Arc<RunnerCore>,
    pub(crate) local: Arc<LocalSession>,
    /// The handling of a changed agent, which a caller may set for one run.
    pub(crate) when_changed: WhenChanged,
    /// Whether values that do not fit the schema of the agent are left out: the run is only answered or ended.
    pub(crate) leaves_out_misfits: bool,
}

impl SessionAccess {
    pub(crate) fn new(runner: Arc<RunnerCore>, local: Arc<LocalSession>) -> Self {
        let when_changed = runner.when_changed;
        SessionAccess { runner, local, when_changed, leaves_out_misfits: false }
    }

    /// The same with a run of a changed agent, if the caller says so.
    pub(crate) fn with_changed_agent(mut self, is_forced: bool) -> Self {
        if is_forced {
            self.when_changed = WhenChanged::Always;
        }
        self
    }

    /// The same for a caller that only answers or ends a run, whatever its values are.
    pub(crate) fn leaving_out_misfits(mut self) -> Self {
        self.leaves_out_misfits = true;
        self
    }

    /// The state of a session for the agent of its last run, to show or to answer it: values that do not fit the schema
    /// are unset.
    pub(crate) fn fitting_state(
        &self,
        history: &SessionHistory,
        session: &Session,
    ) -> Result<State, RunnerError> {
        let schema = &self.program(history).schema;
        match history.state(session, schema) {
            Err(error) if error.is_incompatible_value() => history.state(session, &schema.hiding_misfits()),
            state => state,
        }
    }

    /// The agent for the last run of a session: that of today, or the one that it is pinned to.
    pub(crate) fn program<'a>(&'a self, history: &'a SessionHistory) -> &'a Arc<AgentProgram> {
        history.pinned.known().unwrap_or(&self.runner.program)
    }

    /// Finds the agent that the last run is pinned to, and tells whether that is another one than before.
    pub(crate) async fn pin(&self, history: &mut SessionHistory) -> bool {
        let pinned = match self.when_changed == WhenChanged::Pinned && history.is_unfinished() {
            true => self.pinned_agent(history).await,
            false => PinnedAgent::None,
        };
        let before = std::mem::replace(&mut history.pinned, pinned);
        let is_same = match (before.known(), history.pinned.known()) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            (before, after) => before.is_none() && after.is_none(),
        };
        !is_same
    }

    async fn pinned_agent(&self, history: &SessionHistory) -> PinnedAgent {
        let today = &self.runner.program.agent;
        let is_other = |recorded: &Fingerprint| !today.changes_since(recorded).is_empty();
        let Some(recorded) = history.recorded_agent().filter(is_other) else { return PinnedAgent::None };
        match self.runner.older.find(&recorded).await {
            Ok(found) => found.map_or(PinnedAgent::None, PinnedAgent::Known),
            Err(source) => PinnedAgent::Broken { digest: recorded.digest(), source: Arc::new(source) },
        }
    }
}

/// The folded events of a session, and the session with its values.
pub(crate) type ReadSession = (Arc<SessionHistory>, Session);
