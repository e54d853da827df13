//! A stored session goes through another agent: where would it have gone another way?

use std::sync::Arc;

use stepfold_agent_loop::trim::Summary;
use stepfold_agent_loop::{Agent, Event, EventKind, Input, Run};
use stepfold_session_scopes::{
    CommittedEvent, DeleteSession, EventRange, ForkSession, GetSession, InvocationId, Scope, SessionError,
    SessionId, SessionStore,
};
use stepfold_state_core::state::State;

use crate::error::RunnerError;
use crate::record::{begins, is_of_run, is_stored, loop_event, rewrite, summary};
use crate::turn::Turn;

pub(crate) async fn replay(turn: &Turn, agent: &Agent) -> Result<usize, RunnerError> {
    let (_, session) = turn.read().await?;
    // What other sessions had written to `app:` and `user:` keys when this one began is not recorded. Either it
    // was nothing, or it is taken to be what is there today.
    let today = first_state(turn).await?;
    let mut states = vec![without_shared(&today), today];
    let (mut runs, mut condensed) = (0, None);
    for events in invocations(session.visible_events().cloned().collect()) {
        let invocation = events[0].event.invocation.clone();
        if !is_of_run(&events[0].event) {
            for state in &mut states {
                said_by_others(turn, state, &events)?;
            }
            continue;
        }
        let recorded = (events.iter())
            .filter_map(|committed| loop_event(&turn.slot.key, committed).transpose())
            .collect::<Result<Vec<Event>, _>>()?;
        if begins(&events[0].event) {
            let replayed = |state: &State| {
                replay_one(turn, agent, state.clone(), condensed.clone(), &invocation, &recorded)
            };
            replayed(&states[0]).or_else(|diverged| replayed(&states[1]).map_err(|_| diverged))?;
            runs += 1;
        }
        for committed in &events {
            condensed = match rewrite(&committed.event) {
                Some(_) => None,
                None => summary(&committed.event).or(condensed),
            };
        }
        for (event, state) in recorded.iter().flat_map(|event| [(event, 0), (event, 1)]) {
            event.fold(&mut states[state]).map_err(|error| {
                let what = format!("what invocation {invocation} wrote");
                RunnerError::store(&turn.slot.key, SessionError::State { what, source: error })
            })?;
        }
    }
    Ok(runs)
}

/// The state without what it shares with other sessions.
fn without_shared(state: &State) -> State {
    let mut own = state.clone();
    let is_shared = |key: &str| matches!(Scope::of(key), Scope::App | Scope::User);
    let shared: Vec<String> =
        state.iter().map(|(key, _)| key.to_owned()).filter(|key| is_shared(key)).collect();
    for key in shared {
        // A key that has a value is one that the schema knows.
        let _ = own.remove(&key);
    }
    own
}

/// What other programs have written to the session is there for the runs behind it.
fn said_by_others(turn: &Turn, state: &mut State, events: &[CommittedEvent]) -> Result<(), RunnerError> {
    for committed in events {
        let event = &committed.event;
        state.apply(&event.actions.delta).map_err(|source| {
            let what = format!("what event {} wrote", event.id);
            RunnerError::store(&turn.slot.key, SessionError::State { what, source })
        })?;
        for message in &event.messages {
            state.push_message(Arc::clone(message));
        }
    }
    Ok(())
}

fn replay_one(
    turn: &Turn,
    agent: &Agent,
    state: State,
    condensed: Option<Summary>,
    invocation: &InvocationId,
    recorded: &[Event],
) -> Result<(), RunnerError> {
    let key = &turn.slot.key;
    let Some(began) = recorded.first() else { return Ok(()) };
    // What the user said and the inputs are in the first event.
    let input = Input::recorded(state, began).with_summary(condensed);
    // A fork has runs of the session that it was forked from, under the ids that they had there.
    let EventKind::Began { id, .. } = &began.kind else { return Ok(()) };
    let run = Run::new(agent, input, id.as_str())
        .map_err(|error| RunnerError::Input { key: Box::new(key.clone()), source: Arc::new(error) })?;
    run.replay(recorded, is_stored).map(drop).map_err(|divergence| RunnerError::Diverged {
        key: Box::new(key.clone()),
        invocation: invocation.to_string(),
        source: Arc::new(divergence),
    })
}

/// The state that the session began with. Stores tell it of forks, so a fork at the beginning is made, looked
/// at and deleted.
async fn first_state(turn: &Turn) -> Result<State, RunnerError> {
    let failed = |error: SessionError| RunnerError::store(&turn.slot.key, error);
    let id = SessionId::new(format!("replay-{}", turn.runner.ids.next())).map_err(failed)?;
    let request = ForkSession::new(turn.slot.key.clone(), turn.runner.clock.now()).at_version(0).with_id(id);
    let fork = turn.runner.store.fork(request).await.map_err(failed)?;
    // What a fork returns has no values yet.
    let get = GetSession::new(fork.key.clone()).events(EventRange::None);
    let read = turn.runner.store.get(get).await;
    let state = read.and_then(|session| session.state(&turn.runner.schema)).map_err(failed);
    turn.runner.store.delete(DeleteSession::new(fork.key.clone())).await.map_err(failed)?;
    state
}

/// The events by invocation, in order; those of runs apart from others.
fn invocations(events: Vec<CommittedEvent>) -> Vec<Vec<CommittedEvent>> {
    let mut invocations: Vec<Vec<CommittedEvent>> = Vec::new();
    for committed in events {
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
