//! From answers to events, where a graph is walked through. Nothing changes here.

use std::collections::BTreeMap;
use std::time::Duration;

use stepfold_state_core::chat::Usage;
use stepfold_state_core::state::{Delta, Handler, State, StateError, Write};

use super::ids::TakenIds;
use super::{Branch, BranchState, NodeOutcome, NodeStatus, Walk, track};
use crate::approval::{ApprovalRequest, Decision};
use crate::decisions::Decisions;
use crate::error::FeedError;
use crate::graph::progress::{ProgressError, RouterDecision, keys, writes};
use crate::graph::{Ended, Next, NodeError, Planned, Position};
use crate::run::event::{Event, EventKind, StepEnd};
use crate::run::feed::{Answer, well_formed};
use crate::run::machine::Run;

impl Run {
    /// The next superstep.
    pub(in crate::run) fn planned(&self, walk: &Walk, elapsed: Duration) -> Result<Event, FeedError> {
        let shape = self.shape().ok_or_else(|| self.not_needed("a superstep"))?;
        if walk.open > 0 {
            return Err(self.not_needed("a superstep"));
        }
        let position = Position {
            has_begun: walk.has_begun,
            deferred: &walk.deferred,
            arrived: &walk.arrived,
            executions: &walk.executions,
        };
        let ended: Vec<Ended<'_>> = walk.branches.iter().filter_map(Branch::ended).collect();
        let mut next = shape.next(position, &ended, &self.state)?;
        if next.exit.is_none()
            && let Some(limit) = self.limit()
        {
            next = Next { routes: next.routes, ..Next::exit(limit) };
        }
        let step = self.tally.steps + u64::from(next.exit.is_none());
        let delta = self.writes_of_plan(walk, &next)?;
        let Next { branches, deferred, arrived, routes, exit } = next;
        let kind = EventKind::Planned { branches, deferred, arrived, routes, exit };
        Ok(Event { delta, ..Event::new(step, elapsed, kind) })
    }

    /// What the graph itself writes when a superstep begins, to those of the keys that there are.
    fn writes_of_plan(&self, walk: &Walk, next: &Next) -> Result<Delta, FeedError> {
        let schema = self.state.schema();
        let has = |key: &str| schema.key(key).is_some();
        let mut delta = Delta::new();
        if has(keys::EXECUTION_COUNTS.name()) && !next.branches.is_empty() {
            delta.push(self.write_of_counts(walk, &next.branches)?);
        }
        if has(keys::CURRENT_NODE.name())
            && let Some(last) = next.branches.last()
        {
            delta.push(schema.write(keys::CURRENT_NODE, &last.node)?);
        }
        if has(keys::ROUTER_DECISION.name())
            && let Some(route) = next.routes.last()
        {
            let mut decision = RouterDecision::new(&route.from, route.to.clone());
            decision.reason.clone_from(&route.reason);
            delta.push(schema.write(keys::ROUTER_DECISION, decision)?);
        }
        let tracked = next.branches.iter().filter(|planned| self.is_tracked(&planned.node));
        let mut is_tracked = false;
        for planned in tracked {
            is_tracked = true;
            delta.extend(track(&self.state, planned).started(&self.state)?);
        }
        if is_tracked {
            let mut state = self.state.clone();
            state.apply(&delta)?;
            delta.extend(writes::overall_progress(&state)?);
        }
        Ok(delta)
    }

    /// The counts of the nodes of a superstep. Those of the others stay, so that the write is no larger in a large
    /// graph; only the first superstep replaces what an earlier run has left.
    fn write_of_counts(&self, walk: &Walk, branches: &[Planned]) -> Result<Write, StateError> {
        let mut counts = BTreeMap::new();
        for planned in branches {
            let ran = walk.executions.get(&planned.node).copied().unwrap_or(0);
            counts.entry(planned.node.as_str()).or_insert(ran + 1);
        }
        let handler = if walk.has_begun { Handler::merge_maps() } else { Handler::replace_values() };
        let key = keys::EXECUTION_COUNTS;
        let counts = serde_json::to_value(counts)
            .map_err(|source| StateError::Encode { key: key.name().to_owned(), source })?;
        self.state.schema().write_with(key.name(), counts, &handler)
    }

    /// A commit of an agent that is a node.
    pub(in crate::run) fn inner(
        &self,
        walk: &Walk,
        branch: usize,
        event: Event,
        elapsed: Duration,
    ) -> Result<Event, FeedError> {
        let open = walk.branches.get(branch).filter(|open| open.state == BranchState::Ready);
        match open.and_then(|open| self.agent_node(&open.planned)) {
            Some(_) => {
                let kind = EventKind::Inner { branch, event: Box::new(event) };
                Ok(Event::new(self.tally.steps, elapsed, kind))
            }
            None => Err(FeedError::NoSuchBranch { branch }),
        }
    }

    pub(in crate::run) fn node_answered(
        &self,
        walk: &Walk,
        branch: usize,
        outcome: NodeOutcome,
        usage: Usage,
        elapsed: Duration,
    ) -> Result<Event, FeedError> {
        if walk.branches.get(branch).is_none_or(|branch| branch.is_done() || branch.waits()) {
            return Err(FeedError::NoSuchBranch { branch });
        }
        let mut answer = Some(outcome.clone());
        let kind = EventKind::NodeAnswered { branch, outcome, usage };
        let mut event = Event::new(self.tally.steps, elapsed, kind);
        if walk.open == 1 {
            self.close_superstep(&mut event, walk, |place, _| answer.take_if(|_| place == branch))?;
        }
        Ok(event)
    }

    pub(in crate::run) fn node_asks(
        &self,
        walk: &Walk,
        branch: usize,
        requests: Vec<ApprovalRequest>,
        elapsed: Duration,
    ) -> Result<Event, FeedError> {
        match walk.branches.get(branch) {
            Some(open) if !open.is_done() => {
                let kind = EventKind::NodeAsked { branch, requests };
                Ok(Event::new(self.tally.steps, elapsed, kind))
            }
            _ => Err(FeedError::NoSuchBranch { branch }),
        }
    }

    /// Whether these branches may start and be marked.
    pub(in crate::run) fn may_start_nodes(walk: &Walk, places: &[usize]) -> bool {
        places.iter().all(|place| walk.branches.get(*place).is_some_and(Branch::may_run))
    }

    pub(in crate::run) fn nodes_decided(
        &self,
        walk: &Walk,
        decisions: Decisions,
        elapsed: Duration,
    ) -> Result<Event, FeedError> {
        self.check_not_repeated(&decisions)?;
        let (asker, given) = (self.asker(), decisions.decisions.clone());
        let mut event = self.decided_event(decisions, elapsed);
        let rejected = |place: usize, branch: &Branch| {
            (branch.state == BranchState::Uncertain
                && is_rejected(&branch.uncertainty(place, &asker).id, &given))
            .then(|| unknown(&branch.planned))
        };
        let open = walk.branches.iter().enumerate().filter(|(_, branch)| !branch.is_done());
        if open.clone().all(|(place, branch)| rejected(place, branch).is_some()) {
            self.close_superstep(&mut event, walk, rejected)?;
        }
        Ok(event)
    }

    pub(in crate::run) fn nodes_interrupted(
        &self,
        walk: &Walk,
        elapsed: Duration,
    ) -> Result<Event, FeedError> {
        let is_started = |branch: &Branch| branch.state == BranchState::Started;
        let started = walk.branches.iter().enumerate().filter(|(_, branch)| is_started(branch));
        let calls: Vec<usize> = started.map(|(place, _)| place).collect();
        if calls.is_empty() {
            return Err(self.not_needed("interrupted branches"));
        }
        let asks = self.agent.config().ask_when_uncertain;
        let kind = EventKind::Interrupted { calls: calls.clone(), asks };
        let mut event = Event::new(self.tally.steps, elapsed, kind);
        if !asks && walk.open == calls.len() {
            self.close_superstep(&mut event, walk, |place, branch| {
                calls.contains(&place).then(|| unknown(&branch.planned))
            })?;
        }
        Ok(event)
    }

    /// What is open has no outcome any more. What the others did is kept.
    pub(in crate::run) fn nodes_broken_off(&self, walk: &Walk, event: &mut Event) -> Result<(), FeedError> {
        if walk.open == 0 {
            return Ok(());
        }
        let is_cancelled = event.kind == EventKind::Cancelled;
        self.close_superstep(event, walk, |_, branch| Some(self.broken_off_node(branch, is_cancelled)))
    }

    fn broken_off_node(&self, branch: &Branch, is_cancelled: bool) -> NodeOutcome {
        let why = if is_cancelled { "the run was cancelled" } else { "the time of the run was up" };
        if branch.state == BranchState::Started {
            return unknown(&branch.planned);
        }
        let outcome = NodeOutcome::failed(NodeStatus::Cancelled, why, 1);
        let (Some(child), Some(node)) = (branch.child(), self.agent_node(&branch.planned)) else {
            return outcome;
        };
        // What an agent has said and written until now is kept, with its open calls answered.
        let (mut messages, mut delta) = (node.messages(branch), branch.writes.clone());
        if let Ok(last) = child.feed(Answer::Cancelled, child.elapsed()) {
            let is_shared = |write: &&Write| node.shares_write(self.state.schema(), write);
            delta.extend(last.delta.iter().filter(is_shared).cloned());
            if node.is_in_conversation(branch.planned.item.as_ref()) {
                messages.extend(last.messages);
            }
        }
        NodeOutcome { delta, messages, ..outcome }
    }

    /// The end of the superstep: the writes of all branches as one delta, in their order. `new` gives the outcomes
    /// that this event brings.
    fn close_superstep(
        &self,
        event: &mut Event,
        walk: &Walk,
        mut new: impl FnMut(usize, &Branch) -> Option<NodeOutcome>,
    ) -> Result<(), FeedError> {
        let mut state = self.state.clone();
        let mut end = StepEnd::default();
        let mut is_tracked = false;
        let mut ids = TakenIds::new(&self.call_ids);
        for (place, branch) in walk.branches.iter().enumerate() {
            let brought;
            let outcome = match branch.outcome() {
                Some(outcome) => &**outcome,
                None => match new(place, branch) {
                    Some(outcome) => {
                        brought = outcome;
                        &brought
                    }
                    None => return Ok(()),
                },
            };
            is_tracked |= self.is_tracked(&branch.planned.node);
            match self.merged(&mut state, branch, outcome) {
                Ok(delta) => {
                    event.delta.extend(delta);
                    // A function may say what it likes.
                    event.messages.extend(ids.unique(&well_formed(outcome.messages.clone())));
                }
                Err(error) => {
                    let error = format!("what it wrote cannot be merged: {}", NodeError::from(error));
                    let failed = NodeOutcome::failed(NodeStatus::Unmerged, &error, outcome.tries);
                    event.delta.extend(self.merged(&mut state, branch, &failed)?);
                    end.unmerged.push(place);
                    end.merge_errors.push(error);
                }
            }
        }
        if is_tracked {
            event.delta.extend(writes::overall_progress(&state)?);
        }
        event.step_end = Some(end);
        Ok(())
    }

    /// What a branch writes, merged into the state that the others have left; nothing is, if something cannot be.
    fn merged(
        &self,
        state: &mut State,
        branch: &Branch,
        outcome: &NodeOutcome,
    ) -> Result<Delta, ProgressError> {
        let mut delta = outcome.delta.clone();
        let run = || track(&self.state, &branch.planned);
        match (&outcome.error, self.is_tracked(&branch.planned.node)) {
            (None, true) => delta.extend(run().completed(state, outcome.outputs.iter().cloned())?),
            (Some(error), true) => delta.extend(run().failed(state, run().error(error))?),
            (None, false) if !outcome.outputs.is_empty() => {
                delta.push(state.schema().write(keys::OUTPUTS, outcome.outputs.clone())?);
            }
            _ => {}
        }
        if !delta.is_empty() {
            state.apply(&delta)?;
        }
        Ok(delta)
    }
}

pub(in crate::run) fn is_rejected(id: &str, decisions: &[(String, Decision)]) -> bool {
    let decision = decisions.iter().find(|(decided, _)| decided == id);
    matches!(decision, Some((_, Decision::Reject { .. })))
}

pub(super) fn unknown(planned: &Planned) -> NodeOutcome {
    let error = format!(
        "node '{}' had started when the process was interrupted: its outcome is unknown, and it was not run again",
        planned.node,
    );
    NodeOutcome::failed(NodeStatus::Unknown, error, 1)
}

/// One more superstep of each of these nodes.
pub(super) fn count(executions: &mut BTreeMap<String, u64>, branches: &[Planned]) {
    let mut last: Option<&str> = None;
    for planned in branches {
        // Branches of one node stand together.
        if last != Some(&planned.node) {
            match executions.get_mut(&planned.node) {
                Some(executions) => *executions += 1,
                None => drop(executions.insert(planned.node.clone(), 1)),
            }
        }
        last = Some(&planned.node);
    }
}
