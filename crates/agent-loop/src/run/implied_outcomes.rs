//! The outcomes that follow from an event: of calls that a hook or an approver does not let run, and of items that were
//! interrupted or stopped. The end of a step is made with them, the fold gives them to the items, and calls whose
//! effect is unknown then are kept.

use stepfold_state_core::chat::{ToolCall, ToolResult};
use stepfold_tools::{CallFailure, CallOutcome, CallStatus, Effect};

use super::event::EventKind;
use super::feed::RunAnswer;
use super::machine::Run;
use super::requests::ItemDecision;
use super::step::{ItemOutcome, ItemState, OpenStep, StepItem, WorkOutcome};
use super::step_end::not_run;
use crate::agent::{HookPoint, HookVerdict};
use crate::approval::{AskReason, Decision, rejection_text};
use crate::planned::{NodeOutcome, NodeStatus};

impl Run {
    /// The outcomes that an event gives to items of the open step without having them, in the order of the items. The
    /// event is the next one; `decided` is what its decisions are about.
    pub(super) fn implied_outcomes(
        &self,
        kind: &EventKind,
        decided: &[ItemDecision<'_>],
    ) -> Vec<ItemOutcome> {
        let Some(step) = self.open_step() else { return Vec::new() };
        let open = step.items.iter().enumerate().filter(|(_, item)| !item.is_done());
        let all = |outcome: &dyn Fn(usize, &StepItem) -> Option<WorkOutcome>| {
            open.filter_map(|(place, item)| Some(ItemOutcome::new(place, outcome(place, item)?))).collect()
        };
        match kind {
            EventKind::Hooked { verdict, answers, .. } => {
                all(&|place, _| Some(hooked_outcome(step, place, verdict, answers)?.into()))
            }
            EventKind::Decided { .. } => {
                let own = decided.iter().filter(|decided| decided.inside.is_none());
                let rejected = own.filter_map(|ItemDecision { place, decision, .. }| {
                    Some(ItemOutcome::new(*place, rejected_outcome(step, *place, decision)?))
                });
                rejected.collect()
            }
            EventKind::Interrupted { places, asks: false, .. } => {
                places.iter().map(|place| ItemOutcome::new(*place, step.unknown_outcome(*place))).collect()
            }
            EventKind::Cancelled => all(&|place, item| Some(self.outcome_at_end(step, place, item, true))),
            EventKind::TimedOut => all(&|place, item| Some(self.outcome_at_end(step, place, item, false))),
            _ => Vec::new(),
        }
    }

    /// The outcome of an item that has none when the run ends. What it has done until now is kept.
    fn outcome_at_end(
        &self,
        step: &OpenStep,
        place: usize,
        item: &StepItem,
        is_cancelled: bool,
    ) -> WorkOutcome {
        let why = if is_cancelled { "the run was cancelled" } else { "the time of the run was up" };
        let call = step.shown(place);
        match &item.state {
            ItemState::Started => step.unknown_outcome(place),
            ItemState::HookPending(pending) => withheld(&call, &pending.outcome).into(),
            _ if item.planned.is_some() => self.branch_outcome_at_end(place, why).into(),
            _ if item.child.is_none() && item.may_have_happened => step.unknown_outcome(place),
            _ if self.may_have_started(step, place, Effect::Idempotent) => step.unknown_outcome(place),
            _ if self.may_have_started(step, place, Effect::Pure) => {
                let text = format!("tool '{}' may have started, and has no result: {why}", call.name);
                CallOutcome::without_result(&call, CallStatus::Cancelled, text).into()
            }
            _ if item.child.is_some() || !item.asked.is_empty() => {
                let text = format!("tool '{}' was stopped while it waited: {why}", call.name);
                CallOutcome::without_result(&call, CallStatus::Cancelled, text).into()
            }
            _ => {
                let text = format!("tool '{}' not started: {why}", call.name);
                CallOutcome::without_result(&call, CallStatus::NotStarted, text).into()
            }
        }
    }

    /// Whether, by the record, a call may have started whose tool has this effect: it could run, and nothing marks its start.
    // NOTE: The process that stops a run may know more; a fold of the record does not.
    fn may_have_started(&self, step: &OpenStep, place: usize, effect: Effect) -> bool {
        let (Some(item), Some(call)) = (step.items.get(place), step.call(place)) else { return false };
        let tool = self.agent().static_tool(&call.name);
        let has_effect = match item.listed_effect {
            Some(listed) => listed == effect,
            None => tool.is_some_and(|tool| !tool.is_hosted() && tool.effect() == effect),
        };
        let is_hooked = step.calls().is_some_and(|calls| {
            calls.is_hooked || calls.is_upgraded || !self.has_hook(HookPoint::BeforeTool)
        });
        // One with arguments that do not fit never starts. These are not known if a part of them was replaced.
        let fits = item.is_redacted
            || tool.is_none_or(|tool| {
                let call = item.as_run(call);
                call.arguments.as_object().is_some_and(|given| tool.check_arguments(given).is_ok())
            });
        has_effect && is_hooked && fits && item.child.is_none() && item.may_run() && step.was_runnable()
    }

    fn branch_outcome_at_end(&self, place: usize, why: &str) -> NodeOutcome {
        let outcome = NodeOutcome::failed(NodeStatus::Cancelled, why, 1);
        let Some(task) = self.task(place) else { return outcome };
        let (Some(child), Some(planned)) = (&task.item.child, task.planned()) else { return outcome };
        let Some((run, inside)) = child.run().zip(self.inside(task)) else { return outcome };
        // What an agent has said and written until now is kept, with its open calls answered.
        let (mut messages, mut delta) = (child.messages.clone(), child.writes.clone());
        // NOTE: Its messages become messages of the graph, where every call needs a result.
        if let Ok(last) = run.feed(RunAnswer::Cancelled, run.elapsed()) {
            let schema = self.state.schema();
            delta.extend(last.delta.iter().filter(|write| inside.shares_write(schema, write)).cloned());
            messages.extend(last.messages);
        }
        if !inside.shares_messages(planned) {
            messages.clear();
        }
        NodeOutcome { delta, messages, ..outcome }
    }
}

/// The outcome that hooks before tools give a call at once: if it does not run.
fn hooked_outcome(
    step: &OpenStep,
    place: usize,
    verdict: &HookVerdict,
    answers: &[(usize, String)],
) -> Option<CallOutcome> {
    if let Some((_, text)) = answers.iter().find(|(answered, _)| *answered == place) {
        let status = CallStatus::Failed(CallFailure::NotRun);
        return Some(CallOutcome::without_result(&step.shown(place), status, text));
    }
    match verdict {
        HookVerdict::Stop(reason) => {
            Some(not_run(&step.shown(place), &format!("a hook ended the run: {reason}")))
        }
        _ => None,
    }
}

/// The outcome that a decision gives an item at once: if it was rejected.
fn rejected_outcome(step: &OpenStep, place: usize, decision: &Decision) -> Option<WorkOutcome> {
    let Decision::Reject { reason } = decision else { return None };
    match step.items.get(place)?.asks()? {
        AskReason::Rule => {
            let call = step.shown(place);
            let status = CallStatus::Failed(CallFailure::Rejected);
            Some(CallOutcome::without_result(&call, status, rejection_text(&call.name, reason)).into())
        }
        _ => Some(step.unknown_outcome(place)),
    }
}

/// An outcome that the model must not be shown, because a hook that has to see it first has not. What the call wrote
/// stays: it has happened.
fn withheld(call: &ToolCall, outcome: &CallOutcome) -> CallOutcome {
    let text = format!(
        "tool '{}' ran, and its result is withheld: the run ended before a hook had seen it",
        call.name
    );
    let mut withheld = outcome.clone();
    withheld.result = ToolResult::error(&*call.id, &*call.name, text);
    withheld
}
