//! What an agent would do with a call of a record: run it, mark it, or answer that it cannot run.

use stepfold_tools::{Failure, Outcome, Status};

use super::batch::{Call, CallState};
use super::event::EventKind;
use super::machine::{Phase, Run};
use super::walk::{BranchState, NodeOutcome, NodeStatus, Walk};

/// Something that the agent would do with a call, or with a node, in another way.
#[derive(Debug, PartialEq)]
pub(crate) struct Contradiction {
    /// The id of the call, or the node.
    pub(crate) call: String,
    pub(crate) recorded: String,
    pub(crate) replayed: String,
}

impl Run {
    /// What the run would do in another way than an event says that happened to its calls. The event is the next one.
    ///
    /// Tools that are asked for at each step are not known here, so that nothing is said about their calls.
    pub(crate) fn contradiction(&self, event: &EventKind) -> Option<Contradiction> {
        match (event, &self.phase) {
            (EventKind::Started { calls }, Phase::Calling(_)) => {
                calls.iter().find_map(|place| self.would_run(*place, true))
            }
            (EventKind::Suspended { call, .. }, Phase::Calling(batch)) => {
                let is_marked = batch.calls.get(*call).is_some_and(|call| call.state == CallState::Started);
                self.would_run(*call, is_marked)
            }
            // Its second answer: what ran then is a hook.
            (EventKind::Answered { call, .. }, Phase::Calling(batch))
                if batch.calls.get(*call).is_some_and(Call::is_hook_pending) =>
            {
                None
            }
            (EventKind::Answered { call, outcome, .. }, Phase::Calling(batch)) => {
                let is_marked = batch.calls.get(*call).is_some_and(|call| call.state == CallState::Started);
                match outcome.tries {
                    0 => self.would_refuse(*call, outcome),
                    _ => self.would_run(*call, is_marked),
                }
            }
            (EventKind::Started { calls }, Phase::Walking(walk)) => {
                calls.iter().find_map(|place| self.would_run_node(walk, *place, true))
            }
            (EventKind::NodeAnswered { branch, outcome, .. }, Phase::Walking(walk)) if ran(outcome) => {
                let state = walk.branches.get(*branch).map(|branch| &branch.state);
                self.would_run_node(walk, *branch, state == Some(&BranchState::Started))
            }
            _ => None,
        }
    }

    /// A call that ran, with a marker in the record before it or without one.
    fn would_run(&self, place: usize, is_marked: bool) -> Option<Contradiction> {
        let tools = self.tools()?;
        let call = self.call_as_run(place)?;
        if let Some(refusal) = tools.refusal(&call) {
            let (recorded, replayed) = ("that it ran".to_owned(), refusal.result.text().into_owned());
            return Some(Contradiction { call: call.id, recorded, replayed });
        }
        let must_mark = self.must_mark(&call.name);
        (must_mark != is_marked).then(|| other_marker(call.id, must_mark))
    }

    /// A call that did not run.
    fn would_refuse(&self, place: usize, outcome: &Outcome) -> Option<Contradiction> {
        let is_refused = matches!(
            outcome.status,
            Status::Failed(Failure::UnknownTool | Failure::MalformedArguments | Failure::InvalidArguments)
        );
        let tools = self.tools().filter(|_| is_refused)?;
        let call = self.call_as_run(place)?;
        let refusal = tools.refusal(&call);
        (refusal.as_ref() != Some(outcome)).then(|| Contradiction {
            call: call.id,
            recorded: outcome.result.text().into_owned(),
            replayed: refusal
                .map_or_else(|| "that it runs".to_owned(), |refusal| refusal.result.text().into_owned()),
        })
    }

    fn would_run_node(&self, walk: &Walk, place: usize, is_marked: bool) -> Option<Contradiction> {
        let node = &walk.branches.get(place)?.planned.node;
        let must_mark = self.must_mark_node(node);
        (must_mark != is_marked).then(|| other_marker(node.clone(), must_mark))
    }

    fn call_as_run(&self, place: usize) -> Option<stepfold_state_core::chat::ToolCall> {
        let Phase::Calling(batch) = &self.phase else { return None };
        Some(batch.calls.get(place)?.as_run(self.calls().nth(place)?))
    }
}

/// Whether the work of a node was begun.
fn ran(outcome: &NodeOutcome) -> bool {
    let is_end_of_work =
        matches!(outcome.status, NodeStatus::Succeeded | NodeStatus::Failed | NodeStatus::TimedOut);
    is_end_of_work && outcome.tries > 0
}

fn other_marker(call: String, must_mark: bool) -> Contradiction {
    let (with, without) = ("that it is marked before it runs".to_owned(), "that it runs unmarked".to_owned());
    let (recorded, replayed) = if must_mark { (without, with) } else { (with, without) };
    Contradiction { call, recorded, replayed }
}
