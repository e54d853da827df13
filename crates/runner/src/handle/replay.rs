//! Replays a stored session against another agent, and finds divergences.
//!
//! Current values are not used: the values that a run read from shared scopes are in its record, so that
//! later writes of others do not matter.

use std::sync::Arc;

use stepfold_agent_loop::{Agent, Divergence, Event, EventKind, Fingerprint, Input, Run};
use stepfold_session_scopes::{
    CommittedEvent, EventRange, InvocationId, Scope, Session, SessionError, SessionSchema, Timestamp,
};
use stepfold_state_core::state::State;
use stepfold_trim::Summary;

use crate::access::session_access::SessionAccess;
use crate::error::{RunnerError, RunnerErrorKind};
use crate::handle::prompt_cache::{CachedRequest, SeenRequests};
use crate::handle::recorded_runs::RecordedRun;
use crate::record::conversation_start::ConversationStart;
use crate::record::events::{agent_of, begins, failure, is_of_run, is_stored, loop_event, rewrite, summary};

/// Returns the number of replayed runs.
pub(crate) async fn replay(access: &SessionAccess, agent: &Agent) -> Result<usize, RunnerError> {
    Ok(replayed(access, agent, RunVisit::Replay).await?.runs)
}

/// The requests of all runs, of which none is replayed.
pub(crate) async fn prompt_cache(access: &SessionAccess) -> Result<Vec<CachedRequest>, RunnerError> {
    let agent = access.runner.program.agent.clone();
    Ok(replayed(access, &agent, RunVisit::ListRequests).await?.seen.requests)
}

/// The runs of a session, of which none is replayed.
pub(crate) async fn recorded_runs(access: &SessionAccess) -> Result<Vec<RecordedRun>, RunnerError> {
    let agent = access.runner.program.agent.clone();
    Ok(replayed(access, &agent, RunVisit::ListRuns).await?.listed)
}

async fn replayed<'a>(
    access: &'a SessionAccess,
    agent: &'a Agent,
    visit: RunVisit,
) -> Result<SessionReplay<'a>, RunnerError> {
    let session = access.read_events(EventRange::All).await?;
    if visit == RunVisit::Replay
        && let Some(erased) = session.visible_events().find(|committed| committed.event.erasure().is_some())
    {
        let kind = RunnerErrorKind::Erased { version: erased.version };
        return Err(RunnerError::new(&access.local.key, kind));
    }
    let invocations = invocations(session.visible_events().cloned().collect());
    // Values of another schema could not be read.
    if visit == RunVisit::Replay
        && let Some(began) = invocations.iter().find(|events| begins(&events[0].event))
    {
        check_schema(access, agent, began)?;
    }
    let state = own_values(first_state(access, agent, &session).await?);
    let start = ConversationStart::of(&session);
    let mut replayed = SessionReplay {
        access,
        agent,
        visit,
        seen: SeenRequests::default(),
        listed: Vec::new(),
        last_listed: None,
        state,
        start,
        summary: None,
        erased: session.visible_events().filter_map(ErasedEvent::of).collect(),
        runs: 0,
    };
    for events in invocations {
        replayed.extend_listed(&events);
        match is_of_run(&events[0].event) {
            true => replayed.run(&events).await?,
            false => replayed.written_by_others(&events)?,
        }
        // Nothing here waits. Other tasks of the thread get their turn, and a caller can drop a long replay.
        tokio::task::yield_now().await;
    }
    Ok(replayed)
}

/// An event whose content is erased.
struct ErasedEvent {
    version: u64,
    /// The time of the erasure.
    at: Timestamp,
    invocation: InvocationId,
}

impl ErasedEvent {
    fn of(committed: &CommittedEvent) -> Option<Self> {
        let CommittedEvent { version, event, .. } = committed;
        Some(ErasedEvent { version: *version, at: event.erasure()?.at, invocation: event.invocation.clone() })
    }
}

/// The purpose of a pass over the runs of a session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RunVisit {
    /// Each run is replayed, and compared with its record.
    Replay,
    /// The requests of the runs are listed.
    ListRequests,
    /// The runs are listed.
    ListRuns,
}

/// A session, replayed up to some event.
struct SessionReplay<'a> {
    access: &'a SessionAccess,
    agent: &'a Agent,
    visit: RunVisit,
    /// The requests, where they are listed.
    seen: SeenRequests,
    /// The runs, where they are listed.
    listed: Vec<RecordedRun>,
    /// The invocation of the last one.
    last_listed: Option<InvocationId>,
    /// The session's own values, and those of shared scopes in its record.
    state: State,
    start: ConversationStart,
    /// The summary of the beginning of the conversation.
    summary: Option<Summary>,
    /// The erased events.
    erased: Vec<ErasedEvent>,
    runs: usize,
}

impl SessionReplay<'_> {
    /// A run whose beginning was pruned cannot be replayed.
    async fn run(&mut self, events: &[CommittedEvent]) -> Result<(), RunnerError> {
        let mut recorded = events
            .iter()
            .filter_map(|committed| loop_event(&self.access.local.key, committed).transpose())
            .collect::<Result<Vec<Event>, _>>()?;
        if begins(&events[0].event) {
            if self.visit == RunVisit::Replay {
                check_schema(self.access, self.agent, events)?;
            }
            self.go_through(events, &recorded).await?;
            self.runs += 1;
        }
        let before = (self.state.clone(), self.summary.clone());
        let erased = self.erased_for(events);
        for (committed, event) in events.iter().zip(&mut recorded) {
            event.messages = self.start.messages(&committed.event).into_owned();
            event.restore_shared(&mut self.state);
            let invocation = &committed.event.invocation;
            let what = || format!("writes of invocation {invocation}");
            event.fold(&mut self.state).map_err(|source| self.unfolded(what(), source))?;
            let there = self.state.messages().len();
            let new = summary(&committed.event).map(|summary| summary.of_end(there));
            let is_dropped = rewrite(&committed.event).is_some() || event.drops_summary();
            self.summary = match is_dropped {
                true => new,
                false => new.or_else(|| self.summary.take()),
            };
        }
        if self.visit == RunVisit::ListRuns && begins(&events[0].event) {
            self.list(events, RecordedRun::of(events, recorded, before, erased));
        }
        Ok(())
    }

    /// The version of an erased event that a run needs: one of its own, or an earlier one. What was erased before its beginning, it
    /// never had.
    fn erased_for(&self, events: &[CommittedEvent]) -> Option<u64> {
        let began = events.first()?;
        let is_own = |erased: &&ErasedEvent| erased.invocation == began.event.invocation;
        let is_earlier =
            |erased: &&ErasedEvent| erased.version < began.version && erased.at >= began.event.at;
        let found = self.erased.iter().find(is_own).or_else(|| self.erased.iter().find(is_earlier));
        found.map(|erased| erased.version)
    }

    /// Lists a run whose first event is erased: its readers know of it that it was there.
    fn list_erased(&mut self, events: &[CommittedEvent]) {
        let is_beginning = |committed: &CommittedEvent| {
            committed.event.erasure().is_some() && committed.event.kind.as_str() == "began"
        };
        if self.visit == RunVisit::ListRuns && events.first().is_some_and(is_beginning) {
            let before = (self.state.clone(), self.summary.clone());
            let erased = self.erased_for(events);
            self.list(events, RecordedRun::of(events, Vec::new(), before, erased));
        }
    }

    fn list(&mut self, events: &[CommittedEvent], run: RecordedRun) {
        self.last_listed = events.first().map(|first| first.event.invocation.clone());
        self.listed.push(run);
    }

    /// The rest of a run in which an event is erased.
    fn extend_listed(&mut self, events: &[CommittedEvent]) {
        if let (Some(first), Some(last), Some(listed)) =
            (events.first(), events.last(), self.listed.last_mut())
            && listed.erased.is_some()
            && self.last_listed.as_ref() == Some(&first.event.invocation)
        {
            listed.last_version = last.version;
        }
    }

    async fn go_through(&mut self, events: &[CommittedEvent], recorded: &[Event]) -> Result<(), RunnerError> {
        if self.visit == RunVisit::ListRuns {
            return Ok(());
        }
        let key = &self.access.local.key;
        let Some(first) = recorded.first() else { return Ok(()) };
        // A fork contains runs of its origin, with their ids there.
        let EventKind::Began { id, .. } = &first.kind else { return Ok(()) };
        // The user's message and the inputs are in the first event.
        let input = Input::recorded(self.state.clone(), first).with_summary(self.summary.clone());
        let run = Run::new(self.agent, input, id.as_str())
            .map_err(|error| RunnerError::new(key, RunnerErrorKind::Input { source: Arc::new(error) }))?;
        if self.visit == RunVisit::ListRequests {
            return self.seen.of_run(key, run, events, recorded);
        }
        let replayed = run.replay_with_tools(recorded, is_stored).await.map(drop);
        replayed.map_err(|divergence| {
            let divergence = match last_agent(events) {
                Some(before) => divergence.explained(&before, self.agent.fingerprint()),
                None => divergence,
            };
            diverged(self.access, place_of(&divergence, events), divergence)
        })
    }

    /// Writes of other programs apply to later runs.
    fn written_by_others(&mut self, events: &[CommittedEvent]) -> Result<(), RunnerError> {
        self.list_erased(events);
        for committed in events {
            let event = &committed.event;
            let what = || format!("writes of event {}", event.id);
            let applied = self.state.apply(&event.actions.delta);
            applied.map_err(|source| self.unfolded(what(), source))?;
            for message in self.start.messages(event).iter() {
                self.state.push_message(Arc::clone(message));
            }
        }
        Ok(())
    }

    fn unfolded(&self, what: String, source: stepfold_state_core::state::StateError) -> RunnerError {
        RunnerError::store(&self.access.local.key, SessionError::State { what, source })
    }
}

/// Compares the schema of the agent with that of the one that the run of these events ended with.
fn check_schema(access: &SessionAccess, agent: &Agent, events: &[CommittedEvent]) -> Result<(), RunnerError> {
    let Some(before) = last_agent(events) else { return Ok(()) };
    Divergence::check_schema(&before, agent.fingerprint())
        .map_err(|divergence| diverged(access, &events[0], divergence))
}

/// The agent that a run ended with: the one that it began with, or that it was upgraded to.
fn last_agent(events: &[CommittedEvent]) -> Option<Fingerprint> {
    events.iter().rev().find_map(|committed| agent_of(&committed.event))
}

/// The commit of a run at which a replay diverges.
fn place_of<'a>(divergence: &Divergence, events: &'a [CommittedEvent]) -> &'a CommittedEvent {
    let place = match divergence {
        Divergence::At { event, .. } | Divergence::Toolset { event, .. } => *event,
        Divergence::End { .. } => events.len() - 1,
        _ => 0,
    };
    events.get(place).unwrap_or(&events[0])
}

fn diverged(access: &SessionAccess, at: &CommittedEvent, divergence: Divergence) -> RunnerError {
    RunnerError::new(
        &access.local.key,
        RunnerErrorKind::Diverged {
            invocation: at.event.invocation.to_string(),
            version: at.version,
            source: Arc::new(divergence),
        },
    )
}

/// The state without values shared with other sessions.
fn own_values(mut state: State) -> State {
    let is_shared = |key: &str| matches!(Scope::of(key), Scope::App | Scope::User);
    let shared: Vec<String> =
        state.iter().map(|(key, _)| key.to_owned()).filter(|key| is_shared(key)).collect();
    for key in shared {
        // A key with a value is known to the schema.
        let _ = state.remove(&key);
    }
    state
}

/// The schema of the agent, with the migrations of the runner if it is the runner's agent.
fn schema_of(access: &SessionAccess, agent: &Agent) -> SessionSchema {
    match agent.schema() == access.runner.program.agent.schema() {
        true => access.runner.program.schema.clone(),
        false => SessionSchema::new(agent.schema().clone()),
    }
}

/// The initial state of the session's record. The oldest kept version may be one that a rewind hid: then the
/// record begins with that rewind.
async fn first_state(access: &SessionAccess, agent: &Agent, session: &Session) -> Result<State, RunnerError> {
    let begins_at = session.visible_events().next().map_or(session.version, |first| {
        match first.event.actions.rewound_to() {
            Some(_) => first.version,
            None => first.version - 1,
        }
    });
    let read = access.get_at(Some(begins_at), EventRange::None).await?;
    read.state(&schema_of(access, agent)).map_err(|error| RunnerError::store(&access.local.key, error))
}

/// The events by invocation, in order; events of runs separate from others.
fn invocations(events: Vec<CommittedEvent>) -> Vec<Vec<CommittedEvent>> {
    let mut invocations: Vec<Vec<CommittedEvent>> = Vec::new();
    // The record of a failure is not a step of the run.
    for committed in events.into_iter().filter(|committed| failure(&committed.event).is_none()) {
        let is_same = |other: &CommittedEvent| {
            other.event.invocation == committed.event.invocation
                && is_of_run(&other.event) == is_of_run(&committed.event)
        };
        match invocations.last_mut() {
            Some(last) if is_same(&last[0]) => last.push(committed),
            _ => invocations.push(vec![committed]),
        }
    }
    invocations
}
