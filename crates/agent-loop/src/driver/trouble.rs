//! What goes wrong while calls or branches are under way: the first fault is that of the run, and what has happened is
//! committed all the same.

use super::Host;
use crate::error::RunFault;
use crate::run::{Answer, Event, EventKind, Run};

/// The first fault of those that came while calls or branches were under way.
#[derive(Default)]
pub(super) struct Trouble(Option<RunFault>);

impl Trouble {
    /// Keeps the fault, if it is the first.
    pub(super) fn note<T>(&mut self, result: Result<T, RunFault>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(fault) => {
                self.0.get_or_insert(fault);
                None
            }
        }
    }

    pub(super) const fn is_there(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn into_first(self) -> Option<RunFault> {
        self.0
    }
}

impl Host<'_> {
    /// Offers the observer once more the outcomes that it refused, now that nothing is under way: it may have failed for a
    /// moment only. Where it refuses again, nothing more can be recorded.
    pub(super) async fn record_refused(&mut self, run: &mut Run) {
        for event in std::mem::take(&mut self.refused) {
            let Some((answer, name)) = outcome_of(event, run) else { continue };
            let is_recorded = self.unrecorded.is_empty() && self.commit(run, answer).await.is_ok();
            if !is_recorded {
                self.unrecorded.push(name);
            }
        }
        self.refused.clear();
    }
}

/// What has happened to a call or branch and is lost if it is not recorded, and what that is called.
fn outcome_of(event: Event, run: &Run) -> Option<(Answer, String)> {
    let call = |place: usize| run.calls().nth(place).map(|call| call.id.clone()).unwrap_or_default();
    let branch = |place: usize| run.branch(place).map(|branch| branch.label(place)).unwrap_or_default();
    Some(match event.kind {
        EventKind::Answered { call: place, outcome, usage, stop } => {
            (Answer::Outcome { call: place, outcome, usage, stop }, call(place))
        }
        EventKind::Suspended { call: place, child, requests } => {
            (Answer::Suspended { call: place, child, requests }, call(place))
        }
        EventKind::NodeAnswered { branch: place, outcome, usage } => {
            (Answer::Node { branch: place, outcome, usage }, branch(place))
        }
        EventKind::NodeAsked { branch: place, requests } => {
            (Answer::NodeAsks { branch: place, requests }, branch(place))
        }
        _ => return None,
    })
}
