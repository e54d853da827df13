//! The parts of a run that know of replaced content: marked items of the open step, and the originals of this process.

use std::sync::Arc;

use stepfold_state_core::chat::{ChatRequest, Message};
use stepfold_state_core::state::Delta;
use stepfold_tools::{CallFailure, CallOutcome, CallStatus};

use super::event::{Event, EventKind};
use super::machine::{Run, RunBeginning, RunPhase};
use super::step::{ItemOutcome, OpenStep, StepItem};
use crate::approval::Decision;
use crate::redact::KeptOriginals;

/// The messages and the writes that a run begins with.
type Beginning = (Vec<Arc<Message>>, Vec<Arc<Message>>, Delta);

impl Run {
    /// The messages that the run begins with, twice, and its writes. None of a run that has begun.
    pub(crate) fn beginning(&self) -> Option<Beginning> {
        let RunPhase::Fresh(fresh) = &self.phase else { return None };
        Some((fresh.messages.clone(), fresh.messages.clone(), fresh.delta.clone()))
    }

    /// The same run, which begins with these.
    pub(crate) fn with_beginning(&self, messages: Vec<Arc<Message>>, delta: Delta) -> Run {
        let is_recorded = matches!(&self.phase, RunPhase::Fresh(fresh) if fresh.is_recorded);
        let phase = RunPhase::Fresh(Box::new(RunBeginning { messages, delta, is_recorded }));
        Run { phase, ..self.clone() }
    }

    /// The decisions of an event, each with its place and the id within the item there. The event is the next one.
    pub(crate) fn decided_places(&self, event: &EventKind) -> Vec<(usize, Option<String>, String)> {
        let EventKind::Decided { decisions, .. } = event else { return Vec::new() };
        let places = self.item_decisions(event).into_iter().filter_map(|decided| {
            // NOTE: by address, since two requests may have equal decisions.
            let is_same = |decision: &Decision| std::ptr::eq(decision, decided.decision);
            let id = decisions.iter().find(|(_, decision)| is_same(decision)).map(|(id, _)| id.clone());
            id.map(|id| (decided.place, decided.inside.clone(), id))
        });
        places.collect()
    }

    /// The place of a call of the open step.
    pub(crate) fn place_of_call(&self, id: &str) -> Option<usize> {
        self.open_calls_with_items().find(|(_, _, call)| call.id == id).map(|(place, ..)| place)
    }

    /// Marks the calls of which an event has less than they need.
    pub(super) fn mark_redacted(&mut self, event: &Event) {
        let (Some(note), RunPhase::Working(step)) = (&event.redacted, &mut self.phase) else { return };
        for place in &note.calls {
            step.items.change(*place, |item| item.is_redacted = true);
        }
    }

    /// Keeps the originals of content that was committed without its sensitive parts.
    pub(crate) fn keep_originals(&mut self, mut kept: KeptOriginals) {
        if let RunPhase::Working(step) = &mut self.phase {
            for (place, call) in std::mem::take(&mut kept.calls) {
                step.items.change(place, |item| item.keep(call));
            }
        }
        if !kept.messages.is_empty() || !kept.results.is_empty() {
            Arc::make_mut(self.originals.get_or_insert_default()).extend(kept);
        }
    }

    /// Drops all originals, when the run has ended.
    pub(crate) fn drop_originals(&mut self) {
        self.originals = None;
    }

    /// Whether the run, or one inside of it, has originals of replaced content, which only this process can use.
    pub fn has_originals(&self) -> bool {
        let items = self.open_step().map(|step| &*step.items).unwrap_or_default();
        let has_kept = |item: &StepItem| item.kept.is_some() || item.child().is_some_and(Run::has_originals);
        self.originals.is_some() || items.iter().any(has_kept)
    }

    /// A request of this run with the originals that its model is shown.
    pub(crate) fn with_originals(&self, mut request: ChatRequest) -> ChatRequest {
        if let Some(originals) = &self.originals {
            request.messages = originals.of(&request.messages);
        }
        request
    }

    /// Whether a call of the open step, or of a run inside, has less in a record than it needs.
    pub(super) fn lacks_parts(&self) -> bool {
        let items = self.open_step().map(|step| &*step.items).unwrap_or_default();
        let lacks = |item: &StepItem| item.is_redacted || item.child().is_some_and(Run::lacks_parts);
        items.iter().any(lacks)
    }

    /// The outcomes of the calls that cannot run: something that they need was replaced before it was stored, and this process does not
    /// have it.
    pub(crate) fn lost_calls(&self) -> Vec<ItemOutcome> {
        if self.open_step().is_none_or(|step| step.walk().is_some()) {
            return Vec::new();
        }
        let lost = self.open_tasks().filter(|task| self.item(task.place).is_some_and(StepItem::is_lost));
        lost.map(|task| ItemOutcome::new(task.place, lost_outcome(self, task.place))).collect()
    }
}

impl StepItem {
    pub(super) fn is_lost(&self) -> bool {
        // A run inside that has begun has taken what it needs.
        let has_begun = self.child.is_some() && self.decisions.is_empty();
        self.is_redacted && self.kept.is_none() && !has_begun
    }
}

fn lost_outcome(run: &Run, place: usize) -> CallOutcome {
    let call = run.shown(place);
    // A call of a repeatable tool has no mark when it starts.
    let so = if run.must_mark(place) { "; nothing has happened" } else { "" };
    let text = format!(
        "tool '{}' not run: sensitive parts of its input were replaced before they were stored, and the process that had them is \
         gone{so}",
        call.name,
    );
    let mut outcome = CallOutcome::without_result(&call, CallStatus::Failed(CallFailure::NotRun), text);
    outcome.tries = 0;
    outcome
}

impl OpenStep {
    /// The item at a place is asked about with replaced parts.
    pub(super) fn is_redacted(&self, place: usize) -> bool {
        self.items.get(place).is_some_and(|item| item.is_redacted)
    }
}
