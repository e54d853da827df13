//! A stored session goes through another agent: where would it have gone another way?

use std::sync::Arc;

use stepfold_agent_loop::{Agent, Event, EventKind, Input, Run};
use stepfold_session_scopes::{
    CommittedEvent, DeleteSession, Event as SessionEvent, ForkSession, InvocationId, SessionError, SessionId,
    SessionStore,
};
use stepfold_state_core::state::State;

use crate::error::RunnerError;
use crate::history::run_id;
use crate::record::{begins, is_of_run, is_stored, loop_event};
use crate::turn::Turn;

pub(crate) async fn replay(turn: &Turn, agent: &Agent) -> Result<usize, RunnerError> {
    let (_, session) = turn.read().await?;
    let mut state = first_state(turn).await?;
    let mut runs = 0;
    for events in invocations(session.visible_events().cloned().collect()) {
        // What somebody wrote between the runs is what the next one began with.
        if !is_of_run(&events[0].event) {
            for committed in &events {
                fold_other(turn, &committed.event, &mut state)?;
            }
            continue;
        }
        let invocation = events[0].event.invocation.clone();
        let recorded = (events.iter())
            .filter_map(|committed| loop_event(&turn.slot.key, committed).transpose())
            .collect::<Result<Vec<Event>, _>>()?;
        if begins(&events[0].event) {
            replay_one(turn, agent, state.clone(), &invocation, &recorded)?;
            runs += 1;
        }
        for event in &recorded {
            event.fold(&mut state).map_err(|error| {
                let what = format!("what invocation {invocation} wrote");
                RunnerError::store(&turn.slot.key, SessionError::State { what, source: error })
            })?;
        }
    }
    Ok(runs)
}

fn replay_one(
    turn: &Turn,
    agent: &Agent,
    state: State,
    invocation: &InvocationId,
    recorded: &[Event],
) -> Result<(), RunnerError> {
    let key = &turn.slot.key;
    let Some(began) = recorded.first() else { return Ok(()) };
    // What the user said and the inputs are in the first event.
    let input = Input::recorded(state, began);
    // A fork has runs of the session that it was forked from, under the names that they had there.
    let id = match &began.kind {
        EventKind::Began { id, .. } => id.clone(),
        _ => run_id(key, invocation),
    };
    let run = Run::new(agent, input, id)
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
    let state = fork.state(&turn.runner.schema).map_err(failed);
    turn.runner.store.delete(DeleteSession::new(fork.key.clone())).await.map_err(failed)?;
    state
}

/// What an event that is not of a run says and writes.
fn fold_other(turn: &Turn, event: &SessionEvent, state: &mut State) -> Result<(), RunnerError> {
    state.apply(&event.actions.delta).map_err(|source| {
        let what = format!("what event {} wrote", event.id);
        RunnerError::store(&turn.slot.key, SessionError::State { what, source })
    })?;
    event.messages.iter().for_each(|message| state.push_message(Arc::clone(message)));
    Ok(())
}

/// The events by invocation, in order.
fn invocations(events: Vec<CommittedEvent>) -> Vec<Vec<CommittedEvent>> {
    let mut invocations: Vec<Vec<CommittedEvent>> = Vec::new();
    for committed in events {
        match invocations.last_mut() {
            Some(last) if last[0].event.invocation == committed.event.invocation => last.push(committed),
            _ => invocations.push(vec![committed]),
        }
    }
    invocations
}
