//! The result of a message, by the record alone: nothing is run.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use stepfold_agent_loop::{DecisionError, Decisions, Input, Outcome};
use stepfold_session_scopes::{
    CommittedEvent, EventRange, FindEvent, IdempotencyKey, InvocationId, Scope, Session, SessionError,
    SessionStore,
};
use stepfold_state_core::chat::{Message, Transcript};
use stepfold_state_core::state::NameList;

use crate::access::session_access::{ReadSession, SessionAccess};
use crate::error::{RunnerError, RunnerErrorKind};
use crate::record::events::{ends, event_id, message_tag, rewrite, takes};
use crate::record::history::{RunSelector, SessionHistory};
use crate::record::report::RunReport;
use crate::session::invocation::StoredOutcome;

/// The number of events that are read first of a run that was found, and the most that are read at once.
const PAGES: (usize, usize) = (16, 256);

/// The fate of a message that is in no visible run, or was in none when the session was read.
pub(crate) enum MessageFate {
    /// No run has taken it.
    Unknown,
    /// Its run was taken back before it had ended.
    Unfinished,
    /// Its run has begun, and has not ended: it is not hidden.
    Begun,
    Ended(Box<RunReport>),
}

/// Whether an event took this input as the message with this id.
fn is_input_of(event: &CommittedEvent, id: &InvocationId, input: &Input) -> bool {
    let event = &event.event;
    let messages: Vec<&Message> = input.messages().collect();
    let is_there = match rewrite(event) {
        // Earlier versions stored them at the end of the repaired conversation.
        Some(rewrite) if event.messages.is_empty() => serde_json::from_str::<Transcript>(rewrite.get())
            .is_ok_and(|log| {
                let from = log.len().saturating_sub(messages.len());
                log.iter_from(from).map(|message| &**message).eq(messages.iter().copied())
            }),
        _ if event.invocation == *id => {
            event.messages.iter().map(|message| &**message).eq(messages.iter().copied())
        }
        // With those of others.
        _ => event
            .messages
            .windows(messages.len().max(1))
            .any(|window| window.iter().map(|message| &**message).eq(messages.iter().copied())),
    };
    let stored = event.actions.delta.iter().filter_map(|write| Some((write.key(), write.value()?)));
    let stored: BTreeMap<&str, &Value> = stored.collect();
    let values = input.values().and_then(Value::as_object).into_iter().flatten();
    let lasting = values.filter(|(key, _)| Scope::of(key) != Scope::Temp);
    is_there && lasting.map(|(key, value)| (key.as_str(), value)).collect::<BTreeMap<_, _>>() == stored
}

/// Whether a fork has inherited events that are hidden: its inbox does not know the keys of these.
pub(crate) fn has_hidden_inherited(session: &Session) -> bool {
    session.parent.as_ref().is_some_and(|parent| {
        (session.oldest + 1..=parent.version).any(|version| !session.visible.contains(version))
    })
}

impl SessionAccess {
    /// The session, and the report of the run that took a message, if it has ended or waits for decisions.
    pub(crate) async fn read_with_report(
        &self,
        id: &InvocationId,
    ) -> Result<(ReadSession, Option<RunReport>), RunnerError> {
        let read = self.read().await?;
        let report = match read.0.taker(id) {
            None => None,
            Some(_) if read.0.last_is(RunSelector::Message(id)) => self.report_of_last(id, &read)?,
            // A later run has begun since.
            Some(_) => self.report_in(id, self.get_all(None).await?)?,
        };
        Ok((read, report))
    }

    /// The report of the run that began with a message, if it has ended: it is found by the id of its first event, and
    /// only its own events are read. `None` if it has not ended, or has to be looked for in the whole record: a message
    /// that joined another run, or the record that a fork inherited.
    pub(crate) async fn find_ended_report(
        &self,
        id: &InvocationId,
    ) -> Result<Option<RunReport>, RunnerError> {
        // What this process knows of the session may tell that it is new, or the last one.
        let is_cheap = |history: &SessionHistory| {
            history.taker(id).is_none() || history.last_is(RunSelector::Message(id))
        };
        if self.local.cache.try_lock().is_ok_and(|cache| cache.history.as_deref().is_some_and(is_cheap)) {
            return Ok(None);
        }
        let failed = |error| RunnerError::store(&self.local.key, error);
        // NOTE: a key is not kept in a table: it is the id of the invocation, and stores have an index of event ids.
        let first = event_id(id, 0).map_err(failed)?;
        let found = self.runner.store.find_event(FindEvent::new(self.local.key.clone(), first)).await;
        let Some(first) = found.map_err(failed)? else { return Ok(None) };
        let (mut read, mut limit, mut events) = (first - 1, PAGES.0, Vec::new());
        let session = loop {
            let page = EventRange::Page { after: read, limit };
            limit = (limit * 4).min(PAGES.1);
            let mut session = self.read_events(page).await?;
            let Some(last) = session.events.last() else { return Ok(None) };
            read = last.version;
            let end = session.events.iter().position(|it| it.event.invocation == *id && ends(&it.event));
            let is_end = end.is_some();
            session.events.truncate(end.map_or(usize::MAX, |end| end + 1));
            events.append(&mut session.events);
            if is_end {
                break session;
            }
        };
        // What a rewind hid, or another run interrupted, is for the whole record to tell.
        let is_whole =
            events.iter().all(|it| session.visible.contains(it.version) && it.event.invocation == *id);
        if !is_whole {
            return Ok(None);
        }
        let mut session = session;
        session.events = events;
        let mut history = SessionHistory::default();
        history.extend(&session)?;
        match self.report_of_last(id, &(history.into(), session)) {
            // The values before it are needed.
            Err(RunnerError {
                kind: RunnerErrorKind::Recover { .. } | RunnerErrorKind::Input { .. },
                ..
            }) => Ok(None),
            report => report,
        }
    }

    /// Rejects an input under a key that was used with another one, as far as the record has that.
    pub(crate) async fn check_input(
        &self,
        id: &InvocationId,
        input: Option<&Input>,
    ) -> Result<(), RunnerError> {
        let Some(input) = input else { return Ok(()) };
        let Some(event) = self.event_with(id).await? else { return Ok(()) };
        if is_input_of(&event, id, input) {
            return Ok(());
        }
        if event.event.erasure().is_some() {
            let kind = RunnerErrorKind::Erased { version: event.version };
            return Err(RunnerError::new(&self.local.key, kind));
        }
        let failed = |error| RunnerError::store(&self.local.key, error);
        let scope = format!("session {}", self.local.key);
        let idempotency_key = IdempotencyKey::new(id.as_str()).map_err(failed)?;
        Err(failed(SessionError::IdempotencyKeyReused { scope, idempotency_key }))
    }

    /// The error about a message that is in no run and waits in no inbox: its event was erased, or it is withdrawn.
    pub(crate) async fn missing_message(&self, id: &InvocationId) -> RunnerError {
        let taken = self.find_taking_event(id).await.ok().flatten();
        let erased = taken.filter(|taken| taken.event.erasure().is_some());
        let kind = match erased {
            Some(erased) => RunnerErrorKind::Erased { version: erased.version },
            None => RunnerErrorKind::Withdrawn,
        };
        RunnerError::new(&self.local.key, kind)
    }

    /// The event that took a message: the first of its own run, or one of another run. It is found by an index, unless a
    /// fork inherited it, or a version without such tags stored it.
    async fn event_with(&self, id: &InvocationId) -> Result<Option<CommittedEvent>, RunnerError> {
        if let Some(event) = self.find_taking_event(id).await? {
            return Ok(Some(event));
        }
        let session = self.get_all(None).await?;
        Ok(session.events.into_iter().find(|it| takes(&it.event, id)))
    }

    /// The same, as far as an index finds it: the cost does not depend on the length of the record.
    pub(crate) async fn find_taking_event(
        &self,
        id: &InvocationId,
    ) -> Result<Option<CommittedEvent>, RunnerError> {
        let failed = |error| RunnerError::store(&self.local.key, error);
        let find = FindEvent::new(self.local.key.clone(), event_id(id, 0).map_err(failed)?);
        match self.runner.store.find_event(find).await.map_err(failed)? {
            Some(version) => self.event_at(version).await,
            None => Ok(self.tagged([message_tag(id.as_str())]).await?.into_iter().next()),
        }
    }

    /// The outcome of a run as the record has it, and the version of its last event; `None` if it is not there, or has
    /// neither ended nor waits for decisions.
    pub(crate) async fn recorded(
        &self,
        read: &ReadSession,
        run: RunSelector<'_>,
    ) -> Result<Option<StoredOutcome>, RunnerError> {
        if read.0.last_is(run) {
            return self.recorded_last(read);
        }
        // A later run has begun since.
        let session = self.get_all(None).await?;
        let Some(history) = SessionHistory::up_to(&session, run)? else { return Ok(None) };
        // With the values of its end.
        let end = history.last_event().map(|last| last.version);
        let then = self.get_at(end, EventRange::None).await?;
        self.recorded_last(&(history.into(), then))
    }

    /// The outcome of the run that took a message, if that has ended: however often it is asked for, nothing is run.
    pub(crate) async fn answer_of_ended_run(
        &self,
        id: &InvocationId,
    ) -> Result<Option<StoredOutcome>, RunnerError> {
        let read = self.read().await?;
        match read.0.taker(id) {
            Some((_, true)) => self.recorded(&read, RunSelector::Message(id)).await,
            Some((_, false)) | None => Ok(None),
        }
    }

    /// The same of the last run.
    pub(crate) fn recorded_last(
        &self,
        (history, session): &ReadSession,
    ) -> Result<Option<StoredOutcome>, RunnerError> {
        let version = history.last_event().map_or(history.version, |last| last.version);
        let program = self.program(history);
        let state = self.fitting_state(history, session)?;
        let run = history.last_run(&program.agent, state, &self.local.key)?;
        let run = run.filter(|run| run.exit().is_some() || !run.pending().is_empty());
        Ok(run.map(|run| StoredOutcome { outcome: Arc::new(Outcome::recorded(run)), version }))
    }

    /// The fate of a message by the whole record, also the part that rewinds have hidden.
    pub(crate) async fn message_fate(&self, id: &InvocationId) -> Result<MessageFate, RunnerError> {
        let session = self.get_all(None).await?;
        let (mut taker, mut end, mut is_hidden) = (None, None, true);
        for committed in &session.events {
            let event = &committed.event;
            if takes(event, id) {
                taker = Some(event.invocation.clone());
                is_hidden &= !session.visible.contains(committed.version);
            }
            if taker.as_ref() == Some(&event.invocation) && ends(event) {
                end = Some(committed.version);
            }
        }
        match (taker, end) {
            (None, _) => Ok(MessageFate::Unknown),
            (Some(_), None) if is_hidden => Ok(MessageFate::Unfinished),
            (Some(_), None) => Ok(MessageFate::Begun),
            (Some(_), Some(version)) => {
                let report = self.report_in(id, self.get_all(Some(version)).await?)?;
                Ok(report.map_or(MessageFate::Unfinished, |report| MessageFate::Ended(Box::new(report))))
            }
        }
    }

    /// Validates decisions about a run that does not wait: they must be a repeat.
    pub(crate) async fn check_decided(&self, decisions: &Decisions) -> Result<(), RunnerError> {
        let Some((id, _)) = decisions.decisions.first() else { return Ok(()) };
        if let Some(met) = self.find_decisions(decisions).await? {
            return met.map(drop);
        }
        let pending = NameList::default();
        let not_pending = DecisionError::NotPending { id: id.clone(), pending };
        Err(RunnerError::decision(&self.local.key, not_pending))
    }

    async fn get_all(&self, version: Option<u64>) -> Result<Session, RunnerError> {
        self.get_at(version, EventRange::All).await
    }

    /// The session at a version, or as it is.
    pub(crate) async fn get_at(
        &self,
        version: Option<u64>,
        events: EventRange,
    ) -> Result<Session, RunnerError> {
        let mut get = self.request().events(events);
        get.version = version;
        self.get(get).await
    }

    /// The report of the run that took a message, in a session with all its events.
    fn report_in(&self, id: &InvocationId, session: Session) -> Result<Option<RunReport>, RunnerError> {
        match SessionHistory::up_to(&session, RunSelector::Message(id))? {
            None => Ok(None),
            Some(history) => self.report_of_last(id, &(history.into(), session)),
        }
    }

    /// The report of the last run, if it has ended. The exit is that in the record, whatever the agent is today.
    fn report_of_last(
        &self,
        id: &InvocationId,
        (history, session): &ReadSession,
    ) -> Result<Option<RunReport>, RunnerError> {
        let Some((exit, version)) = history.end() else { return Ok(None) };
        let program = self.program(history);
        let state = self.fitting_state(history, session)?;
        let run = history.last_run(&program.agent, state, &self.local.key)?;
        Ok(run.map(|run| RunReport::of_run(id, &run, &exit, version)))
    }
}
