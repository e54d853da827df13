//! The first values of the runs inside of calls, read off the events.

use std::collections::BTreeMap;

use stepfold_agent_loop::{Event, EventKind, Run};
use stepfold_state_core::state::MESSAGES;

/// The beginning of a run inside of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct InnerRunStart {
    /// The run that the call is part of, and its step.
    pub(super) outer: (String, u64),
    /// The values of its state: those of the keys that it shares. None if its agent is not known from the events alone.
    pub(super) values: Option<BTreeMap<String, String>>,
}

/// The beginnings of all runs inside of calls, by the ids of the runs. They are folded from the record, whatever the
/// processes that made it had in memory.
pub(super) fn beginnings(start: &Run, events: &[Event]) -> Result<BTreeMap<String, InnerRunStart>, String> {
    let (mut run, mut all) = (start.clone(), BTreeMap::new());
    for event in events {
        run.follow(event).map_err(|error| error.to_string())?;
        note(&run, event, &mut all);
    }
    Ok(all)
}

/// Takes note of an event that a run has folded.
fn note(run: &Run, event: &Event, all: &mut BTreeMap<String, InnerRunStart>) {
    let EventKind::Inner { place, event: inner } = &event.kind else { return };
    let child = run.inside_of(*place);
    match (&inner.kind, child) {
        (EventKind::Began { id, .. }, child) if run.agent().planner().is_none() => {
            let outer = (run.id().to_owned(), event.step);
            all.insert(id.clone(), InnerRunStart { outer, values: child.map(values) });
        }
        (_, Some(child)) => note(child, inner, all),
        _ => {}
    }
}

/// The values of a run, its conversation left out.
fn values(run: &Run) -> BTreeMap<String, String> {
    let values = run.state().iter().filter(|(key, _)| *key != MESSAGES);
    values.map(|(key, value)| (key.to_owned(), value.to_json().to_string())).collect()
}
