//! Edits from outside: from an edit to its event, and what the event changes beside values and messages.
//!
//! Calls whose arguments are changed are asked about and hooked as if the model had made them so.
//!
//! Writes of calls of the open step are merged at the end of the step, over the edited values. Runs inside that
//! have begun get the values that they share with this one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stepfold_state_core::chat::{ToolCall, ToolContent, ToolResult};
use stepfold_state_core::state::{Delta, Write};
use stepfold_tools::{CallFailure, CallOutcome, CallStatus};
use stepfold_trim::View;

use super::event::{Event, EventKind, FoldMode, place_of_result};
use super::machine::{Run, RunPhase};
use super::prompt::first_messages;
use super::step::{InnerRun, InnerRunState, ItemState, OpenStep, StepItem, StepPlan, WorkOutcome};
use crate::edit::{Edit, EditError, replaces};
use crate::error::FeedError;

impl Run {
    /// Whether an edit is taken where the run is: after its beginning, and before its end.
    pub(super) const fn takes_edits(&self) -> bool {
        !matches!(&self.phase, RunPhase::Fresh(_) | RunPhase::Closing(_) | RunPhase::Done(_))
    }

    /// The event of an edit.
    pub(super) fn edited(&self, edit: &Edit, elapsed: Duration) -> Result<Event, FeedError> {
        if !self.takes_edits() {
            return Err(self.not_needed("edited"));
        }
        if edit.is_empty() {
            return Err(EditError::Empty.into());
        }
        let delta = self.edited_values(edit)?;
        let results = self.edited_results(&edit.results)?;
        self.check_arguments(&edit.arguments)?;
        let drops_summary = results.iter().any(|result| self.is_summarized(result.call_id()));
        // NOTE: An edit is an event of the run, not a write beside it: the next steps depend on it, and a replay has to
        // make it at the same place. It has results and not the conversation, which grows with the session.
        let (by, idempotency_key) = (edit.by.clone(), edit.idempotency_key.clone());
        let arguments = edit.arguments.clone();
        let kind = EventKind::Edited { results, drops_summary, arguments, by, idempotency_key };
        Ok(Event { delta, ..Event::new(self.tally.steps, elapsed, kind) })
    }

    fn edited_values(&self, edit: &Edit) -> Result<Delta, EditError> {
        let delta = edit.delta(self.state.schema())?;
        let is_kept = |write: &&Write| self.planner().is_some_and(|planner| planner.keeps(write.key()));
        if let Some(write) = delta.iter().find(is_kept) {
            return Err(EditError::Reserved { key: write.key().to_owned() });
        }
        if !delta.is_empty() {
            self.state.clone().apply(&delta)?;
        }
        Ok(delta)
    }

    fn edited_results(&self, results: &[(String, ToolContent)]) -> Result<Vec<ToolResult>, EditError> {
        let mut edited: Vec<ToolResult> = Vec::with_capacity(results.len());
        for (id, content) in results {
            if edited.iter().any(|earlier| earlier.call_id() == id) {
                return Err(EditError::Duplicate { id: id.clone() });
            }
            edited.push(ToolResult::new(id, self.tool_answered(id)?, content.clone()));
        }
        Ok(edited)
    }

    /// The tool of a call that has a result.
    fn tool_answered(&self, id: &str) -> Result<&str, EditError> {
        let log = self.transcript();
        let result = place_of_result(log, id).and_then(|index| log.get(index)?.tool_result());
        if let Some(result) = result {
            return Ok(result.name());
        }
        let open = self.open_calls_with_items().find(|(_, _, call)| call.id == id);
        let Some((_, item, call)) = open else {
            return Err(EditError::UnknownCall { id: id.to_owned(), known: self.answered_ids().collect() });
        };
        match why_unanswered(item) {
            None => Ok(&call.name),
            Some(why) => Err(EditError::NotAnswered { id: id.to_owned(), why }),
        }
    }

    /// Checks new arguments: of calls of the open step that have not begun, and that the tools accept. Of tools that are
    /// listed at each step, the call checks them when it runs.
    fn check_arguments(&self, arguments: &[(String, Value)]) -> Result<(), EditError> {
        for (index, (id, arguments_of_call)) in arguments.iter().enumerate() {
            if arguments[..index].iter().any(|(earlier, _)| earlier == id) {
                return Err(EditError::Duplicate { id: id.clone() });
            }
            let call = self.call_not_begun(id)?;
            let invalid = |faults| EditError::InvalidArguments { id: id.clone(), faults };
            let Value::Object(arguments_of_call) = arguments_of_call else {
                return Err(invalid("expected a JSON object".to_owned()));
            };
            if let Some(tool) = self.tool(&call.name) {
                tool.check_given(arguments_of_call).map_err(|faults| invalid(faults.to_string()))?;
            }
        }
        Ok(())
    }

    /// The call of the open step with an id, if it has not begun.
    pub(super) fn call_not_begun(&self, id: &str) -> Result<&ToolCall, EditError> {
        let Some((_, item, call)) = self.open_calls_with_items().find(|(_, _, call)| call.id == id) else {
            let is_ahead = |(_, item, _): &(usize, &StepItem, &ToolCall)| why_begun(item).is_none();
            let known = self.open_calls_with_items().filter(is_ahead).map(|(_, _, call)| call.id.as_str());
            return Err(EditError::NoOpenCall { id: id.to_owned(), known: known.collect() });
        };
        // NOTE: A call that has begun had its effect with the arguments of then; a result for other ones would be
        // false.
        match why_begun(item) {
            None => Ok(call),
            Some(why) => Err(EditError::Begun { id: id.to_owned(), why }),
        }
    }

    /// The ids of the calls of this run that have a result.
    fn answered_ids(&self) -> impl Iterator<Item = &str> {
        let closed = self.transcript().iter_from(self.tally.turn_start);
        let closed = closed.filter_map(|message| Some(message.tool_result()?.call_id()));
        let open = self.open_calls_with_items().filter(|(_, item, _)| item.is_done());
        closed.chain(open.map(|(_, _, call)| call.id.as_str()))
    }

    /// Whether the model is shown a summary in place of the result of a call.
    fn is_summarized(&self, id: &str) -> bool {
        let (Some(summary), Some(index)) = (&self.summary, place_of_result(self.transcript(), id)) else {
            return false;
        };
        !summary.view(self.transcript()).kept().contains(index)
    }

    /// Whether each of these results is of a call that has one. A pruned conversation may have lost some.
    pub(super) fn has_results(&self, results: &[ToolResult]) -> bool {
        let has = |result: &ToolResult| self.tool_answered(result.call_id()).is_ok();
        results.iter().all(|result| self.is_pruned() || has(result))
    }

    /// Applies the changes of an edit beside the state; its event is folded into that already.
    pub(super) fn note_edit(&mut self, event: &Event, folding: FoldMode) {
        let EventKind::Edited { results, drops_summary, .. } = &event.kind else { return };
        let is_of_result = |id: &str| results.iter().any(|result| result.call_id() == id);
        self.unknown.retain(|call| !is_of_result(&call.id));
        if self.tally.stopped_at == Some(self.tally.events - 1) {
            // It has stopped here, and an edit does not bring it on.
            self.tally.stopped_at = Some(self.tally.events);
        }
        let log = self.state.messages();
        if results.iter().any(|result| place_of_result(log, result.call_id()).is_some()) {
            // The step before had other results.
            self.tally.repeats = self.tally.repeats.min(1);
            self.show_edited(*drops_summary);
        }
        self.edit_inside(event, folding);
    }

    /// Shows the same messages of the log as before, as they are now.
    fn show_edited(&mut self, drops_summary: bool) {
        let (log, before) = (self.state.messages(), self.prompt.view());
        let seen = first_messages(log, before.kept().len() + before.dropped());
        let view = if drops_summary {
            self.summary = None;
            self.agent.config().trim.view(&seen)
        } else {
            let (kept, summary) = (before.kept().clone(), before.summary().cloned());
            let view = View::assemble(&seen, kept, summary, before.reasons().to_vec());
            view.with_cleared(&seen, before.cleared())
        };
        let instructions = self.prompt.instructions().map(str::to_owned);
        self.set_prompt(instructions, view, &seen);
    }

    /// Applies an edit of shared values to the runs inside.
    fn edit_inside(&mut self, event: &Event, folding: FoldMode) {
        if event.delta.is_empty() {
            return;
        }
        for place in self.places_of_children() {
            let Some(mut child) = self.take_child(place) else { continue };
            self.edit_child(place, &mut child, event, folding);
            self.put_child(place, child);
        }
    }

    /// Applies an edit to a run inside: as far as it shares the keys, and as an event of its own that is not recorded,
    /// since it follows from that of the run around it. Its earlier writes to a key that is set are no longer merged.
    pub(super) fn edit_child(&self, place: usize, child: &mut InnerRun, event: &Event, folding: FoldMode) {
        let inside = self.task(place).and_then(|task| self.inside(task));
        let (Some(inside), InnerRunState::Run(run)) = (inside, &mut child.run) else {
            // Its agent is not known yet.
            child.events.push(event.clone());
            return;
        };
        // NOTE: A process that catches up restores inner runs on the values of now, so the edit has to reach them at
        // its place in every process.
        let is_shared = |write: &&Write| {
            let schema = run.state.schema();
            inside.shares_write(self.state.schema(), write) && schema.key(write.key()).is_some()
        };
        // Values that are there by now have what was merged.
        let is_new = |write: &&Write| folding == FoldMode::Live || is_set(write);
        let delta: Delta = event.delta.iter().filter(is_shared).filter(is_new).cloned().collect();
        if delta.is_empty() || !run.takes_edits() {
            return;
        }
        let is_overwritten =
            |write: &Write| delta.iter().any(|edited| is_set(edited) && edited.key() == write.key());
        // NOTE: Otherwise the end of the inner run would undo the edit.
        let writes = std::mem::take(&mut child.writes);
        child.writes = writes.into_iter().filter(|write| !is_overwritten(write)).collect();
        let kind = EventKind::Edited {
            results: Vec::new(),
            drops_summary: false,
            arguments: Vec::new(),
            by: None,
            idempotency_key: None,
        };
        let edited = Event { delta, ..Event::new(run.tally.steps, run.tally.elapsed, kind) };
        let (is_taken_up, is_lost) = (run.is_taken_up, run.is_lost);
        // One that does not fit its schema stays with the run around it.
        let _ = run.commit(edited);
        (run.is_taken_up, run.is_lost) = (is_taken_up, is_lost);
    }
}

/// The phase after an edit, unless a step is open. Hooks before the model are asked again.
pub(super) fn after_edit(drops_summary: bool, phase: RunPhase) -> RunPhase {
    match phase {
        RunPhase::Asking { last: None, .. } if drops_summary => RunPhase::condensing(),
        RunPhase::Asking { last, .. } => RunPhase::Asking { is_hooked: false, last },
        phase => phase,
    }
}

/// Whether a write leaves nothing of the value that was there.
fn is_set(write: &Write) -> bool {
    write.handler().is_none_or(replaces)
}

/// Why the result of a call cannot be edited, if it cannot.
fn why_unanswered(item: &StepItem) -> Option<&'static str> {
    Some(match &item.state {
        ItemState::Done(_) => return None,
        ItemState::Started => "it was started, and has no result yet; wait for its outcome",
        ItemState::HookPending(_) => "a hook has not seen its result yet; resume the run first",
        _ if item.waits() => "it waits for a decision; decide about it",
        _ => "it has not run yet; reject it, or let it run",
    })
}

/// Why the arguments of a call cannot be edited, if they cannot. What was approved was approved with its arguments.
fn why_begun(item: &StepItem) -> Option<&'static str> {
    match &item.state {
        ItemState::Done(_) => {
            Some("it has a result; edit the result, or fork the session at the version before it")
        }
        ItemState::Started | ItemState::HookPending(_) => {
            Some("it was started; fork the session at a version before")
        }
        _ if item.is_asked() => Some("it waits for a decision; approve it with other arguments"),
        _ if !item.is_unasked() || item.waits() || !item.answered().is_empty() => {
            Some("it was decided about, or has asked; fork the session at a version before")
        }
        _ => None,
    }
}

impl OpenStep {
    /// The open step with these results and arguments, as far as they are of its calls. Hooks before tools look again at
    /// what they have seen.
    pub(super) fn apply_edit(&mut self, results: &[ToolResult], arguments: &[(String, Value)]) {
        let was_hooked = self.was_hooked();
        for result in results {
            if let Some(place) = self.place_of(result.call_id()) {
                self.items.change(place, |item| item.answer_with(result));
            }
        }
        for (id, arguments) in arguments {
            if let Some(place) = self.place_of(id) {
                self.items.change(place, |item| item.modify(arguments, was_hooked));
            }
        }
        let StepPlan::Calls(plan) = &mut self.plan else { return };
        if plan.is_hooked {
            self.items.change_all(|items| items.iter_mut().for_each(StepItem::require_hooks));
            plan.is_hooked = self.items.iter().all(|item| !item.is_unhooked);
        }
    }

    fn place_of(&self, call: &str) -> Option<usize> {
        self.with_calls().find(|(_, _, made)| made.id == call).map(|(place, ..)| place)
    }
}

impl StepItem {
    /// Another result of a call that has one. What it has written stays: that has happened.
    fn answer_with(&mut self, result: &ToolResult) {
        let ItemState::Done(outcome) = &mut self.state else { return };
        let WorkOutcome::Call(outcome) = Arc::make_mut(outcome) else { return };
        outcome.status = edited_status(outcome, result);
        outcome.result = result.clone();
    }

    /// Has hooks before tools see the call again, if it has not begun.
    fn require_hooks(&mut self) {
        let is_ahead =
            !matches!(self.state, ItemState::Started | ItemState::HookPending(_) | ItemState::Done(_));
        if is_ahead && self.child.is_none() {
            self.is_unhooked = true;
            self.writes = Delta::new();
        }
    }
}

fn edited_status(outcome: &CallOutcome, result: &ToolResult) -> CallStatus {
    match (result.is_error(), outcome.status) {
        (false, _) => CallStatus::Succeeded,
        (true, CallStatus::Succeeded) => CallStatus::Failed(CallFailure::Error),
        (true, status) => status,
    }
}

impl Edit {
    /// The edit that an event records; none of other events.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, RunAnswer, Edit, Run};
    /// use stepfold_state_core::state::Schema;
    ///
    /// let schema = Schema::builder().key::<u64>("count").build()?;
    /// let agent = Agent::builder(Script::parse("assistant: 12")?).schema(schema).build()?;
    /// let mut run = Run::new(&agent, "how many?", "run-1")?;
    /// run.commit(run.feed(RunAnswer::Begin, Duration::ZERO)?)?;
    ///
    /// let edit = Edit::new().set("count", 12).by("ada");
    /// let edited = run.feed(RunAnswer::Edit(edit.clone()), Duration::ZERO)?;
    /// assert_eq!(Edit::of(&edited), Some(edit));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(event: &Event) -> Option<Self> {
        let EventKind::Edited { results, arguments, by, idempotency_key, .. } = &event.kind else {
            return None;
        };
        let contents = results.iter().map(|result| (result.call_id().to_owned(), result.content().clone()));
        let (results, by, idempotency_key) = (contents.collect(), by.clone(), idempotency_key.clone());
        let arguments = arguments.clone();
        Some(Edit { results, arguments, by, idempotency_key, ..Edit::of_writes(&event.delta) })
    }
}
