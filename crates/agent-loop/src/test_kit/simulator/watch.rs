//! The observer of a simulated run: it stores what is committed, notes what goes on, and fails when it is to.

use std::collections::{BTreeMap, BTreeSet};

use super::RUN_ID;
use super::account::Account;
use crate::observe::{Observer, ObserverError, RunEvent};
use crate::run::{Breakpoint, Event, EventKind};

/// When the observer fails.
#[derive(Clone, Debug, Default)]
pub(super) enum Stop {
    #[default]
    Never,
    /// At the first word after this many events.
    After(usize),
    /// When it is told of this event, which it does not store.
    Before(usize),
    /// When it is told of this event, which it has stored.
    Stored(usize),
    /// Once, at this word that is no event.
    Told(usize),
    /// Never; breakpoints stop the run.
    At(Vec<Breakpoint>),
}

/// Stores events, until it fails.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) stop: Stop,
    pub(super) account: Account,
    pub(super) stored: Vec<Event>,
    /// How many words there were that are no events.
    pub(super) words: usize,
    /// What the model was asked, by run and step.
    pub(super) asked: BTreeMap<(String, u64), String>,
    /// The keys of what has started and has no outcome.
    pub(super) under_way: BTreeSet<String>,
}

impl Observer for Watch {
    async fn observe(&mut self, told: &RunEvent) -> Result<(), ObserverError> {
        let is_event = told.committed().is_some();
        let number = self.stored.len() + 1;
        self.words += usize::from(!is_event);
        match self.stop {
            Stop::Told(word) if !is_event && self.words == word => return Err("failed".into()),
            Stop::After(event) if number > event => return Err("stopped".into()),
            Stop::Before(event) if is_event && number == event => return Err("died".into()),
            _ => {}
        }
        self.note(RUN_ID, told);
        match self.stop {
            Stop::Stored(event) if is_event && number == event => Err("died".into()),
            _ => Ok(()),
        }
    }
}

impl Watch {
    pub(super) fn new(stop: Stop, account: Account) -> Self {
        let (stored, asked, under_way) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        Watch { stop, account, stored, words: 0, asked, under_way }
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
            RunEvent::Inner { branch, event, .. } => {
                let inner = self.account.key(run, *branch);
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

    /// What is not under way any more.
    fn ended(&mut self, run: &str, event: &Event) {
        match &event.kind {
            EventKind::Answered { outcome, .. } => {
                self.under_way.remove(&self.account.call_key(run, outcome.call_id()));
            }
            EventKind::NodeAnswered { branch, .. } | EventKind::NodeAsked { branch, .. } => {
                self.under_way.remove(&self.account.key(run, *branch));
            }
            EventKind::Inner { branch, event } => {
                let inner = self.account.key(run, *branch);
                self.ended(&inner, event);
            }
            _ => {}
        }
    }
}
