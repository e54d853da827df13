//! The fold, where a graph is walked through.

use std::sync::Arc;

use stepfold_state_core::state::{Delta, Write};

use super::feed::{count, is_rejected, unknown};
use super::{Branch, BranchState, Child, NodeOutcome, NodeStatus, Walk};
use crate::approval::{Decision, nested_path};
use crate::error::FeedError;
use crate::graph::NodeWork;
use crate::graph::progress::keys::EXECUTION_COUNTS;
use crate::run::commit::Folding;
use crate::run::decide::{Asker, Parameters};
use crate::run::event::{Event, EventKind, StepEnd};
use crate::run::exit::Exit;
use crate::run::input::Input;
use crate::run::machine::{Phase, Run};
use crate::run::stored::LoadError;
use crate::run::unknown::{UnknownCall, within};

impl Run {
    /// Whether the event can happen where the walk is.
    pub(in crate::run) fn fits_walk(walk: &Walk, event: &Event) -> bool {
        let is_open = |place: usize| walk.branches.get(place).is_some_and(|branch| !branch.is_done());
        match &event.kind {
            EventKind::Planned { .. } => walk.open == 0,
            EventKind::Inner { branch, .. }
            | EventKind::NodeAnswered { branch, .. }
            | EventKind::NodeAsked { branch, .. } => is_open(*branch),
            EventKind::Started { calls } | EventKind::Interrupted { calls, .. } => {
                calls.iter().all(|place| is_open(*place))
            }
            EventKind::Decided { .. } | EventKind::Cancelled | EventKind::TimedOut => true,
            _ => false,
        }
    }

    /// Where an event leads that fits.
    pub(in crate::run) fn after_walk(&self, event: &Event, mut walk: Box<Walk>) -> Phase {
        match &event.kind {
            EventKind::Planned { exit: Some(exit), .. } => return Phase::Leaving(exit.clone()),
            EventKind::Planned { branches, deferred, arrived, .. } => {
                count(&mut walk.executions, branches);
                walk.has_begun = true;
                walk.open = branches.len();
                walk.branches = branches.iter().cloned().map(Branch::new).collect();
                walk.deferred.clone_from(deferred);
                walk.arrived.clone_from(arrived);
            }
            EventKind::NodeAnswered { branch, outcome, .. } => walk.finish(*branch, outcome.clone()),
            EventKind::NodeAsked { branch, requests } => {
                let branch = &mut walk.branches[*branch];
                branch.asked.clone_from(requests);
                // It asked before it did anything.
                branch.state = BranchState::Ready;
            }
            EventKind::Started { calls } => {
                for place in calls {
                    walk.branches[*place].state = BranchState::Started;
                }
            }
            EventKind::Interrupted { calls, asks } => {
                for place in calls {
                    match asks {
                        true => walk.branches[*place].state = BranchState::Uncertain,
                        false => walk.finish(*place, unknown(&walk.branches[*place].planned)),
                    }
                }
            }
            EventKind::Decided { decisions, key_prefix, .. } => {
                walk.decided(decisions, &self.asker_of(key_prefix.as_deref()));
            }
            EventKind::Cancelled => return Phase::Closing(Exit::Cancelled),
            EventKind::TimedOut => return Phase::Leaving(Exit::MaxTime),
            _ => {}
        }
        if let Some(end) = &event.step_end {
            walk.mark_unmerged(end);
        }
        Phase::Walking(walk)
    }

    /// Folds a commit of an agent that is a node into that agent's run, and what it writes to shared keys into the
    /// branch. All or nothing. Gives the calls that have an unknown outcome now.
    pub(in crate::run) fn commit_inner(
        &mut self,
        event: &Event,
        folding: Folding,
    ) -> Result<Vec<UnknownCall>, FeedError> {
        let EventKind::Inner { branch: place, event: inner } = &event.kind else { return Ok(Vec::new()) };
        let mut child = match self.take_child(*place) {
            Some(child) => child,
            None => Box::new(self.new_child(*place, inner, folding)?),
        };
        let known = child.unknown_calls().len();
        let committed = match child.commit((**inner).clone()) {
            // The values that it was made on have gone on; with what it wrote they may be too much.
            Err(FeedError::State(_)) if folding == Folding::CatchUp => child.catch_up((**inner).clone()),
            committed => committed,
        };
        child.is_taken_up = folding == Folding::CatchUp;
        let Phase::Walking(walk) = &mut self.phase else { return Ok(Vec::new()) };
        let (graph, agent) = (self.state.schema(), &self.agent);
        let Some(branch) = walk.branches.get_mut(*place) else { return Ok(Vec::new()) };
        if let Err(error) = committed {
            branch.child = (child.events() > 0).then_some(Child::Run(child));
            return Err(error);
        }
        let node = agent.config().graph.as_ref().and_then(|shape| shape.node(&branch.planned.node));
        if let Some(NodeWork::Agent(node)) = node.map(|node| &node.work) {
            // A graph inside counts its own nodes.
            let is_plan = matches!(inner.kind, EventKind::Planned { .. });
            let is_count = |write: &Write| is_plan && write.key() == EXECUTION_COUNTS.name();
            let is_shared = |write: &&Write| !is_count(write) && node.shares_write(graph, write);
            branch.writes.extend(inner.delta.iter().filter(is_shared).cloned());
        }
        // What a run begins with was said by others.
        if !matches!(inner.kind, EventKind::Began { .. }) {
            branch.said.extend(inner.messages.iter().cloned());
        }
        let pending = child.pending();
        branch.decisions.retain(|(id, _)| pending.iter().any(|request| request.id == *id));
        let unknown = child.unknown_calls()[known..].to_vec();
        branch.child = Some(Child::Run(child));
        Ok(within(&branch.label(*place), unknown).collect())
    }

    fn take_child(&mut self, place: usize) -> Option<Box<Run>> {
        let Phase::Walking(walk) = &mut self.phase else { return None };
        match walk.branches.get_mut(place)?.child.take()? {
            Child::Run(run) => Some(run),
            Child::Stored(_) => None,
        }
    }

    /// The run of the branch's agent, before its first event.
    pub(in crate::run) fn new_child(
        &self,
        place: usize,
        event: &Event,
        folding: Folding,
    ) -> Result<Run, FeedError> {
        let missing = || FeedError::NoSuchBranch { branch: place };
        let EventKind::Began { id, .. } = &event.kind else { return Err(missing()) };
        let Some(branch) = self.branch(place) else { return Err(missing()) };
        let Some(node) = self.agent_node(&branch.planned) else { return Err(missing()) };
        let fault = |words: String| FeedError::Node { node: branch.planned.node.clone(), words };
        let agent = match node.agent_on(&self.state) {
            Ok(agent) => agent,
            Err(_) if folding == Folding::CatchUp => node.agent().clone(),
            Err(error) => return Err(fault(error.to_string())),
        };
        let state = node.state_on(&self.state, branch.planned.item.as_ref())?;
        let input = Input::recorded(state, event);
        let child = Run::new(&agent, input, id.as_str()).map_err(|error| fault(error.to_string()))?;
        Ok(child.within_run(self.branch_key(place)))
    }

    /// Puts the agents of its nodes to the runs of a walk that was loaded.
    pub(in crate::run) fn revive(&mut self) -> Result<Vec<String>, LoadError> {
        let Phase::Walking(walk) = &self.phase else { return Ok(Vec::new()) };
        let mut walk = walk.clone();
        let mut differences = Vec::new();
        for branch in &mut walk.branches {
            let Some(Child::Stored(stored)) = &branch.child else { continue };
            let node = self.agent_node(&branch.planned);
            let agent = node.and_then(|node| node.agent_on(&self.state).ok());
            let Some(agent) = agent else {
                differences.push(format!("node '{}' has no agent any more", branch.planned.node));
                branch.child = None;
                continue;
            };
            let (run, changed) = Run::load_changed(&agent, &stored.to_string())?;
            differences
                .extend(changed.into_iter().map(|what| format!("node '{}': {what}", branch.planned.node)));
            branch.child = Some(Child::Run(Box::new(run)));
        }
        self.phase = Phase::Walking(walk);
        self.pass_on_keys();
        Ok(differences)
    }
}

impl Walk {
    fn finish(&mut self, place: usize, outcome: NodeOutcome) {
        let branch = &mut self.branches[place];
        branch.state = BranchState::Done(Arc::new(outcome));
        branch.child = None;
        branch.writes = Delta::new();
        branch.said = Vec::new();
        branch.asked = Vec::new();
        branch.decisions = Vec::new();
        self.open -= 1;
    }

    fn decided(&mut self, decisions: &[(String, Decision)], asker: &Asker) {
        for place in 0..self.branches.len() {
            let branch = &mut self.branches[place];
            if branch.is_done() {
                continue;
            }
            let label = branch.label(place);
            if branch.state == BranchState::Uncertain {
                let id = branch.uncertainty(place, asker).id;
                if is_rejected(&id, decisions) {
                    let outcome = unknown(&branch.planned);
                    self.finish(place, outcome);
                } else if decisions.iter().any(|(decided, _)| *decided == id) {
                    branch.state = BranchState::Ready;
                    branch.round += 1;
                }
                continue;
            }
            for request in branch.open_requests(Parameters::LeftOut) {
                let id = asker.outer(nested_path(&label, &request.id));
                if let Some((_, decision)) = decisions.iter().find(|(decided, _)| *decided == id) {
                    branch.decisions.push((request.id, decision.clone()));
                }
            }
        }
    }

    fn mark_unmerged(&mut self, end: &StepEnd) {
        for (place, error) in end.unmerged.iter().zip(&end.merge_errors) {
            if let Some(Branch { state: BranchState::Done(outcome), .. }) = self.branches.get_mut(*place) {
                let tries = outcome.tries;
                *outcome = Arc::new(NodeOutcome::failed(NodeStatus::Unmerged, error, tries));
            }
        }
    }
}
