//! Faults while calls or branches are running: past events are committed, and running calls complete, unless
//! a commit was refused.

use crate::approval::nested_path;
use crate::observe::ObserverError;
use crate::run::{Event, EventKind, Run};
use crate::run_error::RunFault;

/// The first fault of a step that is under way; a refused commit takes precedence over all others.
#[derive(Default)]
pub(super) struct StepFailure(Option<RunFault>);

impl StepFailure {
    /// Unwraps a result; keeps its fault.
    pub(super) fn record<T>(&mut self, result: Result<T, RunFault>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(fault) => {
                if self.0.is_none() || matches!(fault, RunFault::Commit { .. }) {
                    self.0 = Some(fault);
                }
                None
            }
        }
    }

    /// Whether something failed, so that nothing more is started.
    pub(super) const fn has_failed(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a commit was refused: everything stops at once.
    pub(super) const fn is_refusal(&self) -> bool {
        matches!(self.0, Some(RunFault::Commit { .. }))
    }

    /// After a refusal: the outcomes of these calls or branches are lost as well.
    pub(super) fn add_unrecorded(&mut self, ids: impl IntoIterator<Item = String>) {
        let Some(RunFault::Commit { unrecorded, .. }) = &mut self.0 else { return };
        for id in ids {
            if !unrecorded.contains(&id) {
                unrecorded.push(id);
            }
        }
    }

    /// The fault, if there was one.
    pub(super) fn into_result(self) -> Result<(), RunFault> {
        self.0.map_or(Ok(()), Err)
    }
}

/// The fault of an observer that refused to record an event.
pub(super) fn refusal(run: &Run, event: &Event, source: ObserverError) -> RunFault {
    RunFault::Commit { unrecorded: outcomes_in(run, event), source }
}

/// The ids of the calls or branches that an event finishes; it is the next event of the run.
fn outcomes_in(run: &Run, event: &Event) -> Vec<String> {
    match &event.kind {
        EventKind::Answered(items) => {
            items.iter().filter_map(|item| Some(run.task(item.place)?.label())).collect()
        }
        EventKind::Inner { place, event } => outcomes_inside(run, *place, event),
        _ => Vec::new(),
    }
}

/// The same of an event of the run inside of an item.
pub(super) fn outcomes_inside(run: &Run, place: usize, event: &Event) -> Vec<String> {
    let Some((task, child)) = run.task(place).zip(run.inside_of(place)) else { return Vec::new() };
    outcomes_in(child, event).iter().map(|inner| nested_path(&task.label(), inner)).collect()
}
