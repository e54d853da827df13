//! The last run of a session, if it has not ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use stepfold_agent_loop::{AgentUpgrade, Run};
use stepfold_session_scopes::{InvocationId, SeenVersions, Session};

use crate::access::session_access::{ReadSession, SessionAccess};
use crate::core::programs::{AgentProgram, PinnedAgent};
use crate::error::{RunnerError, RunnerErrorKind};
use crate::record::cached_values::CachedValues;
use crate::record::events::{begins, is_unfinished, temp_keys_of};
use crate::record::history::SessionHistory;
use crate::session::cache::{SessionCache, StoppedRun};
use crate::upgrade::WhenChanged;

/// The last run of a session, as its newest events have it: see
/// [`unfinished_in`](crate::SessionHandle::unfinished_in).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RunInEvents {
    /// There is none, or it has ended.
    Ended,
    /// It has not ended.
    Unfinished(Box<Run>),
    /// It has begun before these events: the store has to be read.
    BeganBefore,
}

/// A run that has not ended, its invocation, and the number of its stored events.
pub(crate) struct UnfinishedRun {
    pub(crate) run: Run,
    /// The agent of the run: that of today, or the one that it is pinned to.
    pub(crate) program: Arc<AgentProgram>,
    pub(crate) invocation: InvocationId,
    pub(crate) place: u64,
    /// The versions of the run's values, if known.
    pub(crate) seen: Option<SeenVersions>,
    /// The `temp:` keys that it has written and whose values are lost.
    pub(crate) missing_temp: BTreeSet<String>,
}

/// The changes of an agent beside an unfinished run.
#[derive(Default)]
pub(crate) struct CheckedUpgrade {
    /// The version of the session.
    pub(crate) version: u64,
    pub(crate) upgrade: AgentUpgrade,
    /// Whether the run continues with the agent that it began with.
    pub(crate) is_pinned: bool,
    /// Whether a recovery leaves the run to another version of the agent.
    pub(crate) is_left: bool,
    /// The digest of the agent of the end of the run.
    pub(crate) agent: Option<String>,
    pub(crate) error: Option<RunnerError>,
}

impl SessionAccess {
    /// The last run, if it has not ended.
    pub(crate) fn unfinished_run(
        &self,
        cache: &SessionCache,
        (history, session): &ReadSession,
    ) -> Result<Option<Box<UnfinishedRun>>, RunnerError> {
        let Some(last) = history.last.as_ref().filter(|_| !history.has_ended()) else { return Ok(None) };
        self.refuse_changed(history)?;
        let program = self.program(history);
        // It stays cached: a refused caller must not cost the next one its `temp:` values.
        let of_program = |left: &&StoppedRun| left.is_of(&program.agent);
        let (run, seen, missing_temp) = if let Some(left) = cache.stopped.as_ref().filter(of_program) {
            // Other sessions may have written to shared scopes since.
            let seen =
                left.seen.filter(|seen| history.values.as_ref().map(CachedValues::seen) == Some(*seen));
            let mut run = left.run().clone();
            if let Some(recorded) = history.recorded_agent() {
                run.upgrade_from(&recorded);
            }
            (Some(run), seen, BTreeSet::new())
        } else {
            let state = match self.leaves_out_misfits {
                true => self.fitting_state(history, session)?,
                false => history.state(session, &program.schema)?,
            };
            let run = history.last_run(&program.agent, state, &self.local.key)?;
            (run, None, temp_keys_of(&last.events))
        };
        let Some(run) = run.filter(|run| run.exit().is_none()) else { return Ok(None) };
        if self.when_changed != WhenChanged::Always {
            self.check_touched(history, session, &run)?;
        }
        let (invocation, place) = (last.invocation.clone(), last.events.len() as u64);
        let program = Arc::clone(program);
        Ok(Some(Box::new(UnfinishedRun { run, program, invocation, place, seen, missing_temp })))
    }

    /// Refuses any change of the agent, if the runner is to. One that a run is pinned to may
    /// have another model, by an option of its process.
    fn refuse_changed(&self, history: &SessionHistory) -> Result<(), RunnerError> {
        let refuses = match self.when_changed {
            WhenChanged::Refuse => true,
            WhenChanged::Pinned => history.pinned.known().is_none(),
            WhenChanged::Compatible | WhenChanged::Always => false,
        };
        if !refuses {
            return Ok(());
        }
        if let Some(broken) = self.broken(history) {
            return Err(broken);
        }
        let changes = history.changes(&self.program(history).agent);
        match changes.is_empty() {
            true => Ok(()),
            false => Err(RunnerError::new(&self.local.key, RunnerErrorKind::AgentChanged { changes })),
        }
    }

    /// Why a recovery leaves the last run to another version of the agent, which has taken it over from this one: both would take it
    /// from each other for ever. A caller may still continue it, and so may a runner that continues runs
    /// [always](WhenChanged::Always).
    pub(crate) fn left_to_other(&self, history: &SessionHistory) -> Option<RunnerError> {
        let agent = &self.program(history).agent;
        if self.when_changed != WhenChanged::Compatible || !history.was_taken_from(agent) {
            return None;
        }
        let changes = history.changes(agent).join("; ");
        let changes = vec![format!("another version of the agent has taken the run over ({changes})")];
        Some(RunnerError::new(&self.local.key, RunnerErrorKind::AgentChanged { changes }))
    }

    /// Why the agent that the last run is pinned to cannot be loaded, if it cannot.
    fn broken(&self, history: &SessionHistory) -> Option<RunnerError> {
        let PinnedAgent::Broken { digest, source } = &history.pinned else { return None };
        let (digest, source) = (digest.clone(), Arc::clone(source));
        Some(RunnerError::new(&self.local.key, RunnerErrorKind::PinnedAgent { digest, source }))
    }

    /// Refuses changes of the agent that touch open work of the run.
    fn check_touched(
        &self,
        history: &SessionHistory,
        session: &Session,
        run: &Run,
    ) -> Result<(), RunnerError> {
        let upgrade = self.upgrade_of(history, session, run);
        if upgrade.is_ahead_only() {
            return Ok(());
        }
        let changes = upgrade.touches.iter().map(ToString::to_string).collect();
        Err(RunnerError::new(&self.local.key, RunnerErrorKind::AgentChanged { changes }))
    }

    /// The changes of the agent since the end of the last run, and the work that they touch.
    pub(crate) fn upgrade_of(&self, history: &SessionHistory, session: &Session, run: &Run) -> AgentUpgrade {
        let Some(recorded) = history.recorded_agent() else { return AgentUpgrade::default() };
        // A value that is converted is read as the agent of today has it.
        let is_read_as_stored = |key: &str| {
            let has_value = session.get(key).is_some() || run.state().get(key).is_some();
            has_value && !self.program(history).schema.has_migration(key)
        };
        run.check_upgrade(&recorded, is_read_as_stored)
    }

    /// The changes of the agent of today since the end of the last run, and whether that is pinned to an agent that is known;
    /// `None` if it has ended.
    pub(crate) async fn checked_upgrade(&self) -> Result<Option<CheckedUpgrade>, RunnerError> {
        // It caches nothing: what a worker continues with may be another agent.
        let today = self.clone().with_changed_agent(true);
        let (history, session) = today.read_since(None, None).await?;
        if history.has_ended() || history.last.is_none() {
            return Ok(None);
        }
        let mut pinned = SessionHistory::clone(&history);
        self.pin(&mut pinned).await;
        // Its values were read for the agent of today.
        pinned.values = None;
        let is_known = pinned.pinned.known().is_some();
        let unreadable = if is_known { self.readable_run(&pinned, &session).err() } else { None };
        let mut checked = CheckedUpgrade {
            version: session.version,
            is_pinned: is_known && unreadable.is_none(),
            agent: history.recorded_agent().map(|agent| agent.digest()),
            error: unreadable.or_else(|| self.broken(&pinned)),
            ..CheckedUpgrade::default()
        };
        match today.readable_run(&history, &session) {
            Ok(run) => {
                let Some(run) = run.filter(|run| run.exit().is_none()) else { return Ok(None) };
                checked.upgrade = today.upgrade_of(&history, &session, &run);
                // What waits for a decision continues with the version that gets it.
                checked.is_left = run.pending().is_empty() && self.left_to_other(&history).is_some();
            }
            // It need not be read by the agent of today.
            Err(_) if checked.is_pinned => {}
            Err(error) => checked.error = checked.error.or(Some(error)),
        }
        Ok(Some(checked))
    }

    /// Why the last run, which has not ended, cannot be continued by this agent, if it cannot. The session may have been read
    /// without its values: of a changed agent they are read as well.
    pub(crate) async fn stopped_by_agent(&self, history: Arc<SessionHistory>) -> Option<RunnerError> {
        if history.changes(&self.program(&history).agent).is_empty() {
            return self.refuse_changed(&history).err();
        }
        if let Some(left) = self.left_to_other(&history) {
            return Some(left);
        }
        let (history, session) = match self.read_since(None, None).await {
            Ok(read) => read,
            Err(error) => return Some(error),
        };
        if history.has_ended() {
            return None;
        }
        self.refuse_changed(&history).err().or_else(|| match self.readable_run(&history, &session) {
            Ok(Some(run)) if self.when_changed != WhenChanged::Always => {
                self.check_touched(&history, &session, &run).err()
            }
            Ok(_) => None,
            Err(error) => Some(error),
        })
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

    /// The last run, if it has not ended, from the newest events of the session.
    pub(crate) fn unfinished_in(&self, session: &Session) -> Result<RunInEvents, RunnerError> {
        if session.visible_events().next_back().is_some_and(|newest| !is_unfinished(&newest.event)) {
            return Ok(RunInEvents::Ended);
        }
        let has_begun = session.visible_events().any(|committed| begins(&committed.event));
        let is_whole = match session.events.first() {
            Some(oldest) => oldest.version == session.oldest + 1,
            None => session.version == session.oldest,
        };
        if !has_begun && !is_whole {
            return Ok(RunInEvents::BeganBefore);
        }
        let mut history = SessionHistory::default();
        history.extend(session)?;
        if !history.is_unfinished() {
            return Ok(RunInEvents::Ended);
        }
        // The agent that it is pinned to may have to be loaded.
        if self.when_changed == WhenChanged::Pinned && !history.changes(&self.runner.program.agent).is_empty()
        {
            return Ok(RunInEvents::BeganBefore);
        }
        match self.restored_run(&history, session) {
            // The events before it are needed.
            Err(RunnerError {
                kind: RunnerErrorKind::Recover { .. } | RunnerErrorKind::Input { .. },
                ..
            }) => Ok(RunInEvents::BeganBefore),
            run => Ok(match run?.filter(|run| run.exit().is_none()) {
                Some(run) => RunInEvents::Unfinished(Box::new(run)),
                None => RunInEvents::Ended,
            }),
        }
    }

    /// The last run, restored from the record; it may have ended.
    pub(crate) async fn last_run(&self) -> Result<Option<Run>, RunnerError> {
        let (history, session) = self.read().await?;
        self.restored_run(&history, &session)
    }

    /// The same with values that fit the schema of the agent, as a worker needs them.
    fn readable_run(&self, history: &SessionHistory, session: &Session) -> Result<Option<Run>, RunnerError> {
        history.state(session, &self.program(history).schema)?;
        self.restored_run(history, session)
    }

    /// The last run. One that this agent does not continue is as it is recorded: its requests are those that its own agent
    /// takes decisions about.
    fn restored_run(&self, history: &SessionHistory, session: &Session) -> Result<Option<Run>, RunnerError> {
        let program = self.program(history);
        let state = self.fitting_state(history, session)?;
        let Some(run) = history.last_run(&program.agent, state, &self.local.key)? else { return Ok(None) };
        let is_refused = match self.when_changed {
            WhenChanged::Always => false,
            _ => self.refuse_changed(history).is_err() || self.check_touched(history, session, &run).is_err(),
        };
        Ok(Some(if is_refused { run.without_upgrade() } else { run }))
    }
}
