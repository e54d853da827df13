//! What the events of a session add up to: the conversation, and the run that was cut off, if one was.

use std::sync::Arc;

use stepfold_agent_loop::{Agent, Input, Run};
use stepfold_session_scopes::{CommittedEvent, InvocationId, LifeId, Session, SessionKey, SessionSchema};
use stepfold_state_core::chat::Transcript;
use stepfold_state_core::state::State;
use stepfold_trim::Summary;

use crate::error::RunnerError;
use crate::kept::Kept;
use crate::record::{
    Opening, agent_of, begins, ends, failure, is_of_run, loop_event, rewrite, summary, takes,
};

/// The events of a session, folded as far as they were read.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) version: u64,
    /// The oldest version that the session had when it was read.
    oldest: u64,
    /// The life of the session, to know it from one that took its place.
    pub(crate) life: Option<LifeId>,
    pub(crate) transcript: Transcript,
    /// What stands for the beginning of the conversation.
    pub(crate) summary: Option<Summary>,
    /// The last invocation, whole: it may not have ended.
    pub(crate) last: Option<Invoked>,
    /// The values of the session; none where they are in the session as it was read.
    pub(crate) kept: Option<Kept>,
}

/// The events of one invocation.
#[derive(Clone, Debug)]
pub(crate) struct Invoked {
    pub(crate) invocation: InvocationId,
    /// The conversation before it.
    pub(crate) before: Transcript,
    /// What stood for the beginning of it.
    pub(crate) summary: Option<Summary>,
    pub(crate) events: Vec<CommittedEvent>,
    /// How it failed after the last of them, if it did.
    pub(crate) failed: Option<Failed>,
}

/// That a run failed, as often as it did in the same way without any progress between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) cause: String,
    pub(crate) times: u32,
}

impl Failed {
    /// One more failure.
    pub(crate) fn again(before: Option<&Self>, cause: &str) -> Self {
        let before = before.filter(|before| before.cause == cause);
        Failed { cause: cause.to_owned(), times: before.map_or(0, |before| before.times) + 1 }
    }
}

impl History {
    /// Folds in what was read of a session. Rewinds are taken into account by whoever reads: after one, the
    /// session is read from its beginning.
    pub(crate) fn extend(&mut self, session: &Session) -> Result<(), RunnerError> {
        let mut opening = Opening::of(session, !self.transcript.is_empty());
        for committed in session.visible_events() {
            self.push(&session.key, committed, opening.skipped(&committed.event))?;
        }
        self.version = session.version;
        self.oldest = session.oldest;
        self.life = Some(session.life.clone());
        Ok(())
    }

    /// Whether a session is the one that was folded, at a later version of it. What retention has pruned since is gone for
    /// this process as for others: they go on from the same conversation.
    pub(crate) fn is_of(&self, session: &Session) -> bool {
        let is_same = self.life.as_ref() == Some(&session.life) && self.oldest == session.oldest;
        is_same && self.version <= session.version
    }

    /// The session as it was when the run that took a message ended, or as it is if that has not; none if no run took
    /// it.
    pub(crate) fn up_to_taker(session: &Session, id: &InvocationId) -> Result<Option<Self>, RunnerError> {
        let mut history =
            History { version: session.version, life: Some(session.life.clone()), ..History::default() };
        let mut opening = Opening::of(session, false);
        for committed in session.visible_events() {
            history.push(&session.key, committed, opening.skipped(&committed.event))?;
            if history.has_ended() && history.last_takes(id) {
                break;
            }
        }
        Ok(history.last_takes(id).then_some(history))
    }

    /// Whether the last run took the message with this id.
    pub(crate) fn last_takes(&self, id: &InvocationId) -> bool {
        let last = self.last.as_ref();
        last.is_some_and(|last| last.events.iter().any(|committed| takes(&committed.event, id)))
    }

    /// Whether the last run has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let last = self.last.as_ref().and_then(|last| last.events.last());
        last.is_some_and(|committed| ends(&committed.event))
    }

    /// `skipped`: how many of its messages are of a turn whose beginning was pruned.
    fn push(
        &mut self,
        key: &SessionKey,
        committed: &CommittedEvent,
        skipped: usize,
    ) -> Result<(), RunnerError> {
        let event = &committed.event;
        if begins(event) {
            self.last = Some(Invoked {
                invocation: event.invocation.clone(),
                before: self.transcript.clone(),
                summary: self.summary.clone(),
                events: Vec::new(),
                failed: None,
            });
        }
        match &mut self.last {
            Some(last) if is_of_run(event) && last.invocation == event.invocation => {
                last.events.push(committed.clone());
                last.failed = None;
            }
            Some(last) if last.invocation == event.invocation && failure(event).is_some() => {
                last.failed = failure(event).map(|cause| Failed::again(last.failed.as_ref(), cause));
            }
            // Somebody else has said something, or its beginning is gone: what was cut off stays cut off.
            last => *last = None,
        }
        if let Some(transcript) = rewrite(event) {
            let read = serde_json::from_value(transcript.clone());
            self.summary = None;
            self.transcript = read.map_err(|source| RunnerError::Record {
                key: Box::new(key.clone()),
                version: committed.version,
                source: Arc::new(source),
            })?;
        }
        self.transcript.extend(event.messages.iter().skip(skipped).cloned());
        // What it stands for may have been pruned since.
        let summary = summary(event).map(|summary| summary.of_end(self.transcript.len()));
        self.summary = summary.or_else(|| self.summary.take());
        Ok(())
    }

    /// The state that a new invocation begins with.
    pub(crate) fn state(&self, session: &Session, schema: &SessionSchema) -> Result<State, RunnerError> {
        let mut state = match &self.kept {
            Some(kept) => kept.state(),
            None => session.state(schema).map_err(|error| RunnerError::store(&session.key, error))?,
        };
        state.replace_messages(self.transcript.clone());
        Ok(state)
    }

    /// The last run, put together again on the values as they are now; none if there was none.
    pub(crate) fn last_run(
        &self,
        agent: &Agent,
        state: State,
        key: &SessionKey,
    ) -> Result<Option<Run>, RunnerError> {
        let Some(last) = &self.last else { return Ok(None) };
        let mut state = state;
        state.replace_messages(last.before.clone());
        // The record says what the run is called. Its keys are those of this session, and begin with what it is
        // called until then.
        let id = run_prefix(key, self.life.as_ref(), &last.invocation);
        let mut run = Run::new(agent, Input::on(state).with_summary(last.summary.clone()), id)
            .map_err(|error| RunnerError::Input { key: Box::new(key.clone()), source: Arc::new(error) })?;
        for committed in &last.events {
            let Some(event) = loop_event(key, committed)? else { continue };
            run.catch_up(event).map_err(|error| RunnerError::Recover {
                key: Box::new(key.clone()),
                version: committed.version,
                source: Arc::new(error),
            })?;
        }
        Ok(Some(run))
    }

    /// What of the agent has changed since the last invocation began.
    pub(crate) fn changes(&self, agent: &Agent) -> Vec<String> {
        let began = self.last.as_ref().and_then(|last| last.events.first());
        let before = began.and_then(|committed| agent_of(&committed.event));
        before.map(|before| before.changes(agent.fingerprint())).unwrap_or_default()
    }
}

/// What the idempotency keys of an invocation begin with: another for each life of each session, so that a fork shares no
/// effect with what it was forked from, nor with a session that had its id before. It is the id of the runs that begin
/// there, too.
pub(crate) fn run_prefix(key: &SessionKey, life: Option<&LifeId>, invocation: &InvocationId) -> String {
    let life = life.map(LifeId::as_str).unwrap_or_default();
    let session = format!("{}@{life}", key.id);
    let parts = [key.app.as_str(), key.user.as_str(), &session, invocation.as_str()];
    parts.map(|part| part.replace('%', "%25").replace('/', "%2F")).join("/")
}
