//! The observer of a simulated run: it stores what is committed, notes what continues, and fails when it is to.

use std::collections::{BTreeMap, BTreeSet};

use stepfold_agent_loop::{Breakpoint, Event, EventKind, Observer, ObserverError, RunEvent};

use super::RUN_ID;
use super::effect_ledger::EffectLedger;

/// When the observer fails.
#[derive(Clone, Debug, Default)]
pub(super) enum ObserverStop {
    #[default]
    Never,
    /// At the first notice after this many events.
    After(usize),
    /// When it is notified of this event, which it does not store.
    Before(usize),
    /// When it is notified of this event, which it has stored.
    Stored(usize),
    /// Once, at this notice about work under way.
    Told(usize),
    /// Never; breakpoints stop the run.
    At(Vec<Breakpoint>),
}

/// Stores events, until it fails.
#[derive(Debug)]
pub(super) struct FailingObserver {
    pub(super) stop: ObserverStop,
    pub(super) account: EffectLedger,
    pub(super) stored: Vec<Event>,
    /// The number of notices about work under way.
    pub(super) words: usize,
    /// The requests to the model, by run and step.
    pub(super) asked: BTreeMap<(String, u64), String>,
    /// The keys of what has started and has no outcome.
    pub(super) under_way: BTreeSet<String>,
}

impl Observer for FailingObserver {
    async fn observe(&mut self, told: &RunEvent) -> Result<(), ObserverError> {
        let is_event = told.committed().is_some();
        let number = self.stored.len() + 1;
        let is_notice = is_notice(told);
        self.words += usize::from(is_notice);
        match self.stop {
            ObserverStop::Told(word) if is_notice && self.words == word => return Err("failed".into()),
            ObserverStop::After(event) if number > event => return Err("stopped".into()),
            ObserverStop::Before(event) if is_event && number == event => return Err("died".into()),
            _ => {}
        }
        self.note(RUN_ID, told);
        match self.stop {
            ObserverStop::Stored(event) if is_event && number == event => Err("died".into()),
            _ => Ok(()),
        }
    }
}

impl FailingObserver {
    pub(super) fn new(stop: ObserverStop, account: EffectLedger) -> Self {
        let (stored, asked, under_way) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        FailingObserver { stop, account, stored, words: 0, asked, under_way }
    }

    /// Takes note of what happens in a run, which may be that of a node's agent.
    fn note(&mut self, run: &str, told: &RunEvent) {
        match told {
            RunEvent::Asking { step, request, .. } => {
                self.asked.insert((run.to_owned(), *step), request.messages.to_string());
            }
            RunEvent::ToolStarted { call_id, .. } => {
                self.under_way.insert(self.account.call_key(run, call_id));
            }
            RunEvent::NodeStarted { branch, .. } => {
                self.under_way.insert(self.account.key(run, *branch));
            }
            RunEvent::Inner { place, event, .. } => {
                let inner = self.account.inner(run, *place);
                self.note(&inner, event);
            }
            RunEvent::Committed(event) => {
                self.account.note(run, event);
                self.ended(run, event);
                self.stored.push((**event).clone());
            }
            _ => {}
        }
    }

    /// Removes the work that an event ends from the work under way.
    fn ended(&mut self, run: &str, event: &Event) {
        match &event.kind {
            EventKind::Answered(items) => {
                for item in items {
                    self.under_way.remove(&self.account.key(run, item.place));
                }
            }
            EventKind::Asks { place, .. } => {
                self.under_way.remove(&self.account.key(run, *place));
            }
            EventKind::Inner { place, event } => {
                let inner = self.account.inner(run, *place);
                self.ended(&inner, event);
            }
            _ => {}
        }
    }
}

/// Whether an event is about calls and branches, or about an inner run beside others. When nothing is under way, a
/// failure is the same as one before the next event.
const fn is_notice(told: &RunEvent) -> bool {
    !matches!(
        told,
        RunEvent::Committed(_)
            | RunEvent::Asking { .. }
            | RunEvent::Text(_)
            | RunEvent::Reasoning(_)
            | RunEvent::ToolCallDelta { .. }
            | RunEvent::Ended(_)
    )
}
