//! The folded events of a session: the conversation, and the interrupted run, if there is one.

use std::collections::HashMap;
use std::sync::Arc;

use stepfold_agent_loop::{Agent, AgentChange, ChangeKind, ExhaustedBudget, Exit, Fingerprint, Input, Run};
use stepfold_session_scopes::{CommittedEvent, InvocationId, LifeId, Session, SessionKey, SessionSchema};
use stepfold_state_core::chat::{Message, Transcript};
use stepfold_state_core::state::State;
use stepfold_tools::{decode_key_part, encode_key_part};
use stepfold_trim::Summary;

use crate::core::programs::PinnedAgent;
use crate::error::{RunnerError, RunnerErrorKind};
use crate::record::cached_values::CachedValues;
use crate::record::conversation_start::ConversationStart;
use crate::record::events::{
    agent_of, begins, ends, exhausted_budget, exit_of, failure, is_left_to_person, is_of_run, loop_event,
    rewrite, summary, taken_by, takes,
};
use crate::record::run_failure::RunFailure;

/// The events of a session, folded as far as they were read.
#[derive(Clone, Default)]
pub(crate) struct SessionHistory {
    pub(crate) version: u64,
    /// The oldest version of the session when it was read.
    oldest: u64,
    /// The session's life, to detect a new session with the same id.
    pub(crate) life: Option<LifeId>,
    pub(crate) transcript: Transcript,
    /// The beginning of the conversation.
    start: Option<ConversationStart>,
    /// The summary of the beginning of the conversation.
    pub(crate) summary: Option<Summary>,
    /// All events of the last invocation, which may not have ended.
    pub(crate) last: Option<InvocationRecord>,
    /// The version of the newest erased event.
    newest_erased: Option<u64>,
    /// The version of the erased event that ended the last run.
    pub(crate) erased: Option<u64>,
    /// Whether another run has followed the last one here, which had not ended.
    is_superseded: bool,
    /// The invocations that took messages, by the ids of these.
    takers: Arc<HashMap<InvocationId, InvocationId>>,
    /// The values of the session; `None` if they are in the session that was read.
    pub(crate) values: Option<CachedValues>,
    /// The agent that the last run is pinned to, if it is not that of today. The values are read with its schema.
    pub(crate) pinned: PinnedAgent,
}

/// The run that a request is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RunSelector<'a> {
    /// The one that took the message with this id.
    Message(&'a InvocationId),
    /// The one with the event at this version: decisions, for example.
    Version(u64),
}

/// The events of one invocation.
#[derive(Clone, Debug)]
pub(crate) struct InvocationRecord {
    pub(crate) invocation: InvocationId,
    /// The conversation before it.
    pub(crate) before: Transcript,
    /// The summary of its beginning.
    pub(crate) summary: Option<Summary>,
    pub(crate) events: Vec<CommittedEvent>,
    /// The failure after the last event, if any.
    pub(crate) failed: Option<RunFailure>,
    /// The budget for which it waits since the last event, if any.
    pub(crate) budget: Option<ExhaustedBudget>,
}

impl SessionHistory {
    /// Folds in newly read events. The caller handles rewinds: after one, the session is read from its
    /// beginning.
    pub(crate) fn extend(&mut self, session: &Session) -> Result<(), RunnerError> {
        let mut start = self.start.take().unwrap_or_else(|| ConversationStart::of(session));
        for committed in session.visible_events() {
            self.push(&session.key, committed, &start.messages(&committed.event))?;
        }
        self.start = Some(start);
        self.version = session.version;
        self.oldest = session.oldest;
        self.life = Some(session.life.clone());
        Ok(())
    }

    /// Folds in the next events, which this process has written.
    pub(crate) fn follow(&mut self, key: &SessionKey, written: &[CommittedEvent]) -> Result<(), RunnerError> {
        let Some(mut start) = self.start.take() else { return Ok(()) };
        for committed in written {
            self.push(key, committed, &start.messages(&committed.event))?;
            self.version = committed.version;
        }
        self.start = Some(start);
        Ok(())
    }

    /// Whether a session is a later version of the folded one. Events that retention has pruned since are
    /// gone for every process: all continue from the same conversation.
    pub(crate) fn is_of(&self, session: &Session) -> bool {
        let is_same = self.life.as_ref() == Some(&session.life) && self.oldest == session.oldest;
        is_same && self.version <= session.version
    }

    /// The session at the end of a run, or as it is if that has not ended; `None` if there is no such run.
    pub(crate) fn up_to(session: &Session, run: RunSelector<'_>) -> Result<Option<Self>, RunnerError> {
        let mut history = SessionHistory {
            version: session.version,
            life: Some(session.life.clone()),
            ..SessionHistory::default()
        };
        let mut start = ConversationStart::of(session);
        for committed in session.visible_events() {
            if begins(&committed.event) && !history.has_ended() && history.last_is(run) {
                history.is_superseded = true;
                break;
            }
            history.push(&session.key, committed, &start.messages(&committed.event))?;
            if history.has_ended() && history.last_is(run) {
                break;
            }
        }
        Ok(history.last_is(run).then_some(history))
    }

    /// Whether this is the last run.
    pub(crate) fn last_is(&self, run: RunSelector<'_>) -> bool {
        let is_it = |committed: &CommittedEvent| match run {
            RunSelector::Message(id) => takes(&committed.event, id),
            RunSelector::Version(version) => committed.version == version,
        };
        self.last.as_ref().is_some_and(|last| last.events.iter().any(is_it))
    }

    /// The invocation that took a message, and whether its run is over: it has ended, or is not the last one.
    pub(crate) fn taker(&self, id: &InvocationId) -> Option<(InvocationId, bool)> {
        let taker = self.takers.get(id)?;
        let is_last = self.last.as_ref().is_some_and(|last| last.invocation == *taker);
        Some((taker.clone(), !is_last || self.has_ended()))
    }

    /// The messages that runs have taken.
    pub(crate) fn taken(&self) -> Arc<HashMap<InvocationId, InvocationId>> {
        Arc::clone(&self.takers)
    }

    /// The exit of the last run and its version, if it has ended. One that another run followed before its end was
    /// abandoned.
    pub(crate) fn end(&self) -> Option<(Exit, u64)> {
        let last = self.last_event()?;
        let abandoned = self.is_superseded.then_some(Exit::Cancelled);
        Some((exit_of(&last.event).or(abandoned)?, last.version))
    }

    /// The last event of the last run.
    pub(crate) fn last_event(&self) -> Option<&CommittedEvent> {
        self.last.as_ref()?.events.last()
    }

    /// Whether a run has begun that has not ended.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.last.is_some() && !self.has_ended()
    }

    /// Whether the last run has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.last_event().is_some_and(|committed| ends(&committed.event))
    }

    /// `messages`: those of its messages that count.
    fn push(
        &mut self,
        key: &SessionKey,
        committed: &CommittedEvent,
        messages: &[Arc<Message>],
    ) -> Result<(), RunnerError> {
        let event = &committed.event;
        if event.erasure().is_some() {
            self.newest_erased = Some(committed.version);
            self.erased = self.newest_erased;
        } else if event.actions.rewound_to() == Some(committed.version - 1) {
            // NOTE: a rewind that hides nothing follows an erasure: whatever waited had the erased content in its conversation.
            self.erased = self.newest_erased.filter(|_| self.is_unfinished()).or(self.erased);
        } else if begins(event) || ends(event) {
            self.erased = None;
        }
        for taken in taken_by(event) {
            Arc::make_mut(&mut self.takers).insert(taken, event.invocation.clone());
        }
        if begins(event) {
            self.last = Some(InvocationRecord {
                invocation: event.invocation.clone(),
                before: self.transcript.clone(),
                summary: self.summary.clone(),
                events: Vec::new(),
                failed: None,
                budget: None,
            });
        }
        match &mut self.last {
            Some(last) if is_of_run(event) && last.invocation == event.invocation => {
                last.events.push(committed.clone());
                (last.failed, last.budget) = (None, None);
            }
            // To wait is no failure: it does not count for those after which a run is abandoned.
            Some(last) if last.invocation == event.invocation && exhausted_budget(event).is_some() => {
                last.budget = exhausted_budget(event);
            }
            Some(last) if last.invocation == event.invocation && failure(event).is_some() => {
                let again = |cause: String| {
                    RunFailure::repeated(last.failed.as_ref(), &cause, is_left_to_person(event))
                };
                last.failed = failure(event).map(again);
            }
            // Messages were added since, or its beginning is gone: the interrupted run stays interrupted.
            last => *last = None,
        }
        if let Some(transcript) = rewrite(event) {
            let read = serde_json::from_str(transcript.get());
            self.summary = None;
            self.transcript = read.map_err(|source| {
                RunnerError::new(
                    key,
                    RunnerErrorKind::Record { version: committed.version, source: Arc::new(source) },
                )
            })?;
        }
        if event.kind.as_str() == "edited"
            && let Some(edited) = loop_event(key, committed)?
        {
            edited.replace_results(&mut self.transcript);
            self.summary.take_if(|_| edited.drops_summary());
        }
        self.transcript.extend(messages.iter().cloned());
        // Summarised messages may have been pruned since.
        let summary = summary(event).map(|summary| summary.of_end(self.transcript.len()));
        self.summary = summary.or_else(|| self.summary.take());
        Ok(())
    }

    /// The initial state of a new invocation.
    pub(crate) fn state(&self, session: &Session, schema: &SessionSchema) -> Result<State, RunnerError> {
        let messages = self.transcript.clone();
        let Some(values) = &self.values else {
            let state = session.state_with(schema, messages);
            return state.map_err(|error| RunnerError::store(&session.key, error));
        };
        let mut state = values.state();
        state.replace_messages(messages);
        Ok(state)
    }

    /// The last run, restored with the current values; `None` if there was none. One that has ended is as its record has
    /// it, whatever the agent is today.
    pub(crate) fn last_run(
        &self,
        agent: &Agent,
        state: State,
        key: &SessionKey,
    ) -> Result<Option<Run>, RunnerError> {
        let Some(last) = &self.last else { return Ok(None) };
        let mut state = state;
        state.replace_messages(last.before.clone());
        // The record has the id of the run. Until it is read, the keys are those of this session, with the
        // run's prefix.
        let id = run_prefix(key, self.life.as_ref(), &last.invocation);
        let mut run = Run::new(agent, Input::on(state).with_summary(last.summary.clone()), id)
            .map_err(|error| RunnerError::new(key, RunnerErrorKind::Input { source: Arc::new(error) }))?;
        if let Some((exit, _)) = self.end() {
            let events = last.events.iter().filter_map(|committed| loop_event(key, committed).transpose());
            return Ok(Some(run.ended_as(events.collect::<Result<Vec<_>, _>>()?, exit)));
        }
        // Where this agent would have decided otherwise, the record counts.
        if self.first_agent().is_some_and(|first| !agent.changes_since(&first).is_empty()) {
            run.follow_other_agent();
        }
        for committed in &last.events {
            let Some(event) = loop_event(key, committed)? else { continue };
            run.catch_up(event).map_err(|error| {
                RunnerError::new(
                    key,
                    RunnerErrorKind::Recover { version: committed.version, source: Arc::new(error) },
                )
            })?;
        }
        run.continue_unended();
        if let Some(recorded) = self.recorded_agent() {
            run.upgrade_from(&recorded);
        }
        Ok(Some(run))
    }

    /// The agent that the last run began with.
    fn first_agent(&self) -> Option<Fingerprint> {
        agent_of(&self.last.as_ref()?.events.first()?.event)
    }

    /// The agent of the end of the last run: the one that it began with, or that it was upgraded to.
    pub(crate) fn recorded_agent(&self) -> Option<Fingerprint> {
        let events = self.last.as_ref()?.events.iter();
        events.rev().find_map(|committed| agent_of(&committed.event))
    }

    /// Whether another version has continued the last run since this agent did.
    pub(crate) fn was_taken_from(&self, agent: &Agent) -> bool {
        let events = self.last.iter().flat_map(|last| &last.events);
        let recorded = events.filter_map(|committed| agent_of(&committed.event));
        let is_own = |recorded: Fingerprint| agent.changes_since(&recorded).is_empty();
        let is_own: Vec<bool> = recorded.map(is_own).collect();
        is_own.last() == Some(&false) && is_own.contains(&true)
    }

    /// Whether the agent of an unfinished run had keys of the state that this one does not have.
    pub(crate) fn lacks_keys_of(&self, agent: &Agent) -> bool {
        let is_gone = |change: &AgentChange| {
            change.kind == ChangeKind::Removed
                && change.inside.is_empty()
                && change.part.starts_with("state ")
        };
        if !self.is_unfinished() {
            return false;
        }
        let recorded = self.recorded_agent();
        recorded.is_some_and(|recorded| agent.changes_since(&recorded).iter().any(is_gone))
    }

    /// The changes of the agent since the end of the last run.
    pub(crate) fn changes(&self, agent: &Agent) -> Vec<String> {
        let recorded = self.recorded_agent();
        let changes = recorded.map(|recorded| agent.changes_since(&recorded)).unwrap_or_default();
        changes.iter().map(ToString::to_string).collect()
    }
}

/// The prefix of an invocation's idempotency keys: different for each life of each session, so that a fork
/// shares no effect with its origin, nor with an earlier session of the same id. It is also the id of the
/// runs that begin there.
pub(crate) fn run_prefix(key: &SessionKey, life: Option<&LifeId>, invocation: &InvocationId) -> String {
    let life = life.map(LifeId::as_str).unwrap_or_default();
    let session = format!("{}@{life}", key.id);
    [key.app.as_str(), key.user.as_str(), &session, invocation.as_str()].map(encode_key_part).join("/")
}

/// The session that a key under such a prefix belongs to.
pub(crate) fn session_of(key: &str) -> Option<SessionKey> {
    let parts: Vec<&str> = key.split('/').collect();
    let [app, user, session, _invocation, _step, ..] = parts[..] else { return None };
    let session = decode_key_part(session);
    let (id, _life) = session.rsplit_once('@')?;
    SessionKey::new(decode_key_part(app), decode_key_part(user), id.to_owned()).ok()
}

/// Whether a run is that of this invocation, in whatever session it began.
pub(crate) fn is_run_of(run: &Run, invocation: &InvocationId) -> bool {
    run.id().rsplit('/').next() == Some(&encode_key_part(invocation.as_str()))
}
