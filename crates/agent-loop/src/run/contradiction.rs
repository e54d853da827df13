//! Contradictions between an agent and a record: calls that it would run, mark or refuse otherwise than recorded.

use stepfold_state_core::chat::ToolCall;
use stepfold_tools::{CallFailure, CallOutcome, CallStatus};

use super::event::{CallDisposition, Event, EventKind};
use super::machine::Run;
use super::step::WorkOutcome;
use crate::approval::ApprovalQuestion;
use crate::planned::{NodeOutcome, NodeStatus};
use crate::state_input::{StateInput, are_recorded_alike, canonical_inputs};

/// Something that the agent would do with a call, or with a node, in another way.
#[derive(Debug, PartialEq)]
pub(crate) struct CallContradiction {
    /// The id of the call, or the node.
    pub(crate) call: String,
    pub(crate) recorded: String,
    pub(crate) replayed: String,
}

impl Run {
    /// The first call that the run would treat otherwise than an event says. The event is the next one.
    ///
    /// Tools that are asked for at each step are not known here, so that nothing is said about their calls.
    pub(crate) fn contradiction(&self, event: &Event) -> Option<CallContradiction> {
        // NOTE: A replay takes the outcome of a call from the record, so equal events alone do not show that this agent
        // would have run, marked or refused the call in the same way.
        self.open_step()?;
        match &event.kind {
            EventKind::Asked { fates, .. } => {
                fates.iter().find_map(|(place, fate)| self.request_contradiction(*place, fate))
            }
            EventKind::Started { places } => {
                places.iter().find_map(|place| self.run_contradiction(*place, true))
            }
            EventKind::Answered(_) => event
                .outcomes()
                .iter()
                .find_map(|answered| self.outcome_contradiction(answered.place, &answered.outcome)),
            _ => None,
        }
    }

    /// An item that has this outcome.
    fn outcome_contradiction(&self, place: usize, outcome: &WorkOutcome) -> Option<CallContradiction> {
        let item = self.item(place)?;
        match outcome {
            // Its second answer: what ran then is a hook.
            _ if item.hook_pending().is_some() => None,
            WorkOutcome::Call(outcome) if outcome.tries == 0 => self.refusal_contradiction(place, outcome),
            WorkOutcome::Node(outcome) if !has_run(outcome) => None,
            _ => self.run_contradiction(place, item.is_started()),
        }
    }

    /// An item that ran, with a marker in the record before it or without one.
    fn run_contradiction(&self, place: usize, is_marked: bool) -> Option<CallContradiction> {
        let task = self.task(place)?;
        let call = task.call();
        let is_redacted = self.open_step().is_some_and(|step| step.is_redacted(place));
        if task.planned().is_none()
            && !is_redacted
            && let Some(refusal) = self.tools()?.refusal(&call)
        {
            let (recorded, replayed) = ("that it ran".to_owned(), refusal.result.text().into_owned());
            return Some(CallContradiction { call: call.id, recorded, replayed });
        }
        if let Some(contradiction) = self.approval_contradiction(place, &call) {
            return Some(contradiction);
        }
        let must_mark = self.must_mark(place);
        let name = if task.planned().is_some() { call.name } else { call.id };
        (must_mark != is_marked).then(|| marker_contradiction(name, must_mark))
    }

    /// A call that was approved with other values from the state than it would run with.
    fn approval_contradiction(&self, place: usize, call: &ToolCall) -> Option<CallContradiction> {
        let (item, inputs) = (self.item(place)?, self.inputs_of_approved(place, || self.seen_by()(place))?);
        (!are_recorded_alike(&item.inputs, &inputs)).then(|| CallContradiction {
            call: call.id.clone(),
            recorded: "that it ran".to_owned(),
            replayed: asked_with(&inputs),
        })
    }

    /// An approved call: recorded with a new request for other values from the state, replayed with the approved ones.
    fn request_contradiction(&self, place: usize, fate: &CallDisposition) -> Option<CallContradiction> {
        let CallDisposition::Ask(ApprovalQuestion { inputs_from_state, .. }) = fate else { return None };
        let (item, inputs) = (self.item(place)?, self.inputs_of_approved(place, || self.seen_by()(place))?);
        let is_other = !are_recorded_alike(&item.inputs, inputs_from_state);
        (is_other && are_recorded_alike(&item.inputs, &inputs)).then(|| CallContradiction {
            call: self.shown(place).id,
            recorded: asked_with(inputs_from_state),
            replayed: "that it runs".to_owned(),
        })
    }

    /// A call that did not run.
    fn refusal_contradiction(&self, place: usize, outcome: &CallOutcome) -> Option<CallContradiction> {
        let is_refused = matches!(
            outcome.status,
            CallStatus::Failed(
                CallFailure::UnknownTool | CallFailure::MalformedArguments | CallFailure::InvalidArguments
            )
        );
        let is_redacted = self.open_step().is_some_and(|step| step.is_redacted(place));
        let tools = self.tools().filter(|_| is_refused && !is_redacted)?;
        let call = self.task(place)?.call();
        let refusal = tools.refusal(&call);
        (refusal.as_ref() != Some(outcome)).then(|| CallContradiction {
            call: call.id,
            recorded: outcome.result.text().into_owned(),
            replayed: refusal
                .map_or_else(|| "that it runs".to_owned(), |refusal| refusal.result.text().into_owned()),
        })
    }
}

fn asked_with(inputs: &[StateInput]) -> String {
    match inputs {
        [] => "that it is asked about without values from the state".to_owned(),
        inputs => format!("that it is asked about with {}", canonical_inputs(inputs)),
    }
}

/// Whether the work of a node was begun.
fn has_run(outcome: &NodeOutcome) -> bool {
    let is_end_of_work =
        matches!(outcome.status, NodeStatus::Succeeded | NodeStatus::Failed | NodeStatus::TimedOut);
    is_end_of_work && outcome.tries > 0
}

fn marker_contradiction(call: String, must_mark: bool) -> CallContradiction {
    let (with, without) = ("that it is marked before it runs".to_owned(), "that it runs unmarked".to_owned());
    let (recorded, replayed) = if must_mark { (without, with) } else { (with, without) };
    CallContradiction { call, recorded, replayed }
}
