//! The last run of a session, if it has not ended.

use std::collections::BTreeSet;

use stepfold_agent_loop::Run;
use stepfold_session_scopes::{InvocationId, SeenVersions, Session};

use crate::access::session_access::{ReadSession, SessionAccess};
use crate::error::{RunnerError, RunnerErrorKind};
use crate::record::cached_values::CachedValues;
use crate::record::events::temp_keys_of;
use crate::record::history::SessionHistory;
use crate::session::cache::SessionCache;

/// A run that has not ended, its invocation, and the number of its stored events.
pub(crate) struct UnfinishedRun {
    pub(crate) run: Run,
    pub(crate) invocation: InvocationId,
    pub(crate) place: u64,
    /// The versions of the run's values, if known.
    pub(crate) seen: Option<SeenVersions>,
    /// The `temp:` keys that it has written and whose values are lost.
    pub(crate) missing_temp: BTreeSet<String>,
}

impl SessionAccess {
    /// The last run, if it has not ended.
    pub(crate) fn unfinished_run(
        &self,
        cache: &SessionCache,
        (history, session): &ReadSession,
        with_changed_agent: bool,
    ) -> Result<Option<Box<UnfinishedRun>>, RunnerError> {
        let Some(last) = history.last.as_ref().filter(|_| !history.has_ended()) else { return Ok(None) };
        if !with_changed_agent {
            history.check_agent(&self.local.key, &self.runner.agent)?;
        }
        // It stays cached: a refused caller must not cost the next one its `temp:` values.
        let (run, seen, missing_temp) = if let Some(left) = &cache.stopped {
            // Other sessions may have written to shared scopes since.
            let seen =
                left.seen.filter(|seen| history.values.as_ref().map(CachedValues::seen) == Some(*seen));
            (Some(left.run().clone()), seen, BTreeSet::new())
        } else {
            let (agent, key) = (&self.runner.agent, &self.local.key);
            let state = history.state(session, &self.runner.schema)?;
            (history.last_run(agent, state, key)?, None, temp_keys_of(&last.events))
        };
        let run = run.filter(|run| run.exit().is_none());
        let (invocation, place) = (last.invocation.clone(), last.events.len() as u64);
        Ok(run.map(|run| Box::new(UnfinishedRun { run, invocation, place, seen, missing_temp })))
    }

    /// The last run as the record has it, if it has not ended. In a process that has not cached the session, it reads only
    /// the events of that run, without values.
    pub(crate) async fn unfinished(&self) -> Result<Option<Run>, RunnerError> {
        let is_known = self.local.cache.try_lock().is_ok_and(|cache| cache.history.is_some());
        if !is_known && self.has_ended().await? {
            return Ok(None);
        }
        let (history, session) = if is_known { self.read().await? } else { self.read_end().await? };
        if !history.is_unfinished() {
            return Ok(None);
        }
        let run = match self.restored_run(&history, &session) {
            // The events before it are needed.
            Err(RunnerError {
                kind: RunnerErrorKind::Recover { .. } | RunnerErrorKind::Input { .. },
                ..
            }) if !is_known => self.last_run().await?,
            run => run?,
        };
        Ok(run.filter(|run| run.exit().is_none()))
    }

    /// The last run, restored from the record; it may have ended.
    pub(crate) async fn last_run(&self) -> Result<Option<Run>, RunnerError> {
        let (history, session) = self.read().await?;
        self.restored_run(&history, &session)
    }

    fn restored_run(&self, history: &SessionHistory, session: &Session) -> Result<Option<Run>, RunnerError> {
        let state = history.state(session, &self.runner.schema)?;
        history.last_run(&self.runner.agent, state, &self.local.key)
    }
}
