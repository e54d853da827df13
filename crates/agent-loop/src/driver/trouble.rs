//! Faults while calls or branches are running: past events are committed, and running calls complete, unless
//! a commit was refused.

use crate::approval::nested_path;
use crate::observe::ObserverError;
use crate::run::{Event, EventKind, Run};
use crate::run_error::RunFault;

/// The first fault of those that came while calls or branches were under way; a refusal comes before all others.
#[derive(Default)]
pub(super) struct Trouble(Option<RunFault>);

impl Trouble {
    /// What a step gave; its fault is kept.
    pub(super) fn note<T>(&mut self, result: Result<T, RunFault>) -> Option<T> {
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

    /// Whether nothing more is to be started.
    pub(super) const fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a commit was refused: everything stops at once.
    pub(super) const fn is_refusal(&self) -> bool {
        matches!(self.0, Some(RunFault::Commit { .. }))
    }

    /// After a refusal: the outcomes of these calls or branches are lost as well.
    pub(super) fn also_lost(&mut self, ids: impl IntoIterator<Item = String>) {
        let Some(RunFault::Commit { unrecorded, .. }) = &mut self.0 else { return };
        for id in ids {
            if !unrecorded.contains(&id) {
                unrecorded.push(id);
            }
        }
    }

    /// The fault, if there was one.
    pub(super) fn end(self) -> Result<(), RunFault> {
        self.0.map_or(Ok(()), Err)
    }
}

/// The fault of an observer that refused to record an event.
pub(super) fn refused(run: &Run, event: &Event, source: ObserverError) -> RunFault {
    RunFault::Commit { unrecorded: outcome_in(run, event).into_iter().collect(), source }
}

/// The id of the call or branch that came to an end, if that is what the event says; it is the next event of the run.
pub(super) fn outcome_in(run: &Run, event: &Event) -> Option<String> {
    match &event.kind {
        EventKind::Answered { place, .. } => Some(run.task(*place)?.label()),
        EventKind::Inner { place, event } => {
            let inner = outcome_in(run.item(*place)?.child()?, event)?;
            Some(nested_path(&run.task(*place)?.label(), &inner))
        }
        _ => None,
    }
}
