//! The run of a graph, where the run of an agent has its model and its calls: branches of a superstep, until
//! all of them have their outcome, and then the way on.
//!
//! What would surprise a reader: the run of an agent that is a node is part of this one. Its events are events
//! here ([`EventKind::Inner`]), so that it goes on where it was after a crash; what it writes reaches the state of
//! the graph at the end of the superstep, as that of every branch does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepfold_state_core::chat::{Arguments, Message, ToolCall, Usage};
use stepfold_state_core::state::{Delta, State, Write};
use stepfold_tools::Effect;

use super::event::{Event, EventKind, StepEnd};
use super::exit::Exit;
use super::input::Input;
use super::machine::{Need, Phase, Run, nested_id};
use super::stored::LoadError;
use crate::approval::{ApprovalRequest, AskReason, Decision};
use crate::error::FeedError;
use crate::graph::progress::{self, NodeOutput, NodeRun, ProgressError, RouterDecision, keys, writes};
use crate::graph::{AgentNode, Arrived, Ended, Next, NodeWork, OnError, Planned, Position, Shape};

/// Where the run of a graph is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Walk {
    #[serde(default)]
    pub(crate) has_begun: bool,
    /// The branches of the superstep, in the order in which they are merged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) branches: Vec<Branch>,
    /// How many of them have no outcome.
    #[serde(default)]
    pub(crate) open: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) deferred: Vec<Planned>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) arrived: Vec<Arrived>,
    /// In how many supersteps each node had branches.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) executions: BTreeMap<String, u64>,
}

/// One node at work in a superstep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Branch {
    #[serde(flatten)]
    pub(crate) planned: Planned,
    pub(crate) state: BranchState,
    /// What its function asked when it ran last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) asked: Vec<ApprovalRequest>,
    /// What was decided, under the ids within the branch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) decisions: Vec<(String, Decision)>,
    /// The run of its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) child: Option<Child>,
    /// What that run has written to shared keys.
    #[serde(default, skip_serializing_if = "Delta::is_empty")]
    pub(crate) writes: Delta,
}

/// How far a branch is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BranchState {
    /// It may run.
    Ready,
    /// It must not run twice, and was started.
    Started,
    /// The same, and somebody is asked whether it runs again.
    Uncertain,
    /// It has its outcome.
    Done(Arc<NodeOutcome>),
}

/// The run of an agent that is a node.
#[derive(Clone, Debug)]
pub(crate) enum Child {
    Run(Box<Run>),
    /// As it was loaded, until its agent is known.
    Stored(Value),
}

/// What came of a branch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeOutcome {
    /// How it ended.
    #[serde(default, skip_serializing_if = "NodeStatus::is_success")]
    pub status: NodeStatus,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What it wrote; merged at the end of the superstep.
    #[serde(default, skip_serializing_if = "Delta::is_empty")]
    pub delta: Delta,
    /// What it appends to the conversation at the end of the superstep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Arc<Message>>,
    /// What it appends to `outputs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<NodeOutput>,
    /// Where it chose to go, in place of the edges of its node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub goto: Vec<Planned>,
    /// How often it was tried.
    #[serde(default, skip_serializing_if = "is_once")]
    pub tries: u32,
}

/// How a branch ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NodeStatus {
    /// It gave its result.
    #[default]
    Succeeded,
    /// It failed, after all tries.
    Failed,
    /// Its time was out, at every try.
    TimedOut,
    /// What it wrote could not be merged. None of it was.
    Unmerged,
    /// The run ended before it had its outcome.
    Cancelled,
    /// It must not run twice, and had started when the process died.
    Unknown,
}

impl NodeStatus {
    /// Whether it gave its result.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
    pub const fn is_success(&self) -> bool {
        matches!(self, NodeStatus::Succeeded)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
const fn is_once(tries: &u32) -> bool {
    *tries == 1
}

impl NodeOutcome {
    pub(crate) fn failed(status: NodeStatus, error: impl Into<String>, tries: u32) -> Self {
        NodeOutcome { status, error: Some(error.into()), tries, ..NodeOutcome::default() }
    }
}

/// A branch that is to run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct OpenBranch {
    /// Its place in the superstep, from 0.
    pub place: usize,
    /// The node, and the item.
    pub planned: Planned,
    /// In which superstep this is that the node has branches, from 1.
    pub execution: u64,
}

impl Branch {
    fn new(planned: Planned) -> Self {
        Branch {
            planned,
            state: BranchState::Ready,
            asked: Vec::new(),
            decisions: Vec::new(),
            child: None,
            writes: Delta::new(),
        }
    }

    pub(crate) fn outcome(&self) -> Option<&Arc<NodeOutcome>> {
        match &self.state {
            BranchState::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    fn is_done(&self) -> bool {
        matches!(self.state, BranchState::Done(_))
    }

    pub(crate) fn child(&self) -> Option<&Run> {
        match &self.child {
            Some(Child::Run(run)) => Some(run),
            _ => None,
        }
    }

    /// What is asked and not decided, under the ids within the branch.
    fn open_requests(&self) -> Vec<ApprovalRequest> {
        let is_open = |request: &ApprovalRequest| self.decisions.iter().all(|(id, _)| *id != request.id);
        let asked = match self.child() {
            Some(child) => child.pending(),
            None => self.asked.clone(),
        };
        asked.into_iter().filter(is_open).collect()
    }

    fn waits(&self) -> bool {
        let may_ask = self.child.is_some() || !self.asked.is_empty();
        self.state == BranchState::Uncertain || (may_ask && !self.open_requests().is_empty())
    }

    fn may_run(&self) -> bool {
        self.state == BranchState::Ready && !self.waits()
    }

    /// What it is called among the branches of its superstep.
    pub(crate) fn label(&self, place: usize) -> String {
        label(&self.planned, place)
    }

    fn ended(&self) -> Option<Ended<'_>> {
        let outcome = self.outcome()?;
        Some(Ended {
            node: &self.planned.node,
            item: self.planned.item.as_ref(),
            error: outcome.error.as_deref(),
            goto: &outcome.goto,
        })
    }
}

fn label(planned: &Planned, place: usize) -> String {
    match planned.item {
        Some(_) => format!("{}#{place}", planned.node),
        None => planned.node.clone(),
    }
}

/// What the machine needs while it walks.
pub(super) fn need(walk: &Walk) -> Need {
    if walk.open == 0 {
        Need::Superstep
    } else if walk.branches.iter().any(|branch| branch.state == BranchState::Started) {
        Need::Interrupted
    } else if walk.branches.iter().any(Branch::may_run) {
        Need::Nodes
    } else {
        Need::Approval
    }
}

/// What somebody has to decide.
pub(super) fn pending(walk: &Walk) -> Vec<ApprovalRequest> {
    let mut pending = Vec::new();
    for (place, branch) in walk.branches.iter().enumerate().filter(|(_, branch)| !branch.is_done()) {
        let label = branch.label(place);
        if branch.state == BranchState::Uncertain {
            let about = match &branch.planned.item {
                Some(Value::Object(item)) => item.clone(),
                Some(item) => Map::from_iter([("item".to_owned(), item.clone())]),
                None => Map::new(),
            };
            let call = ToolCall::new(&*label, &*branch.planned.node, Arguments::from(Value::Object(about)));
            pending.push(ApprovalRequest { id: label, call, reason: AskReason::MayHaveHappened });
        } else {
            pending.extend(branch.open_requests().into_iter().map(|request| {
                let id = nested_id(&label, &request.id);
                ApprovalRequest { id, ..request }
            }));
        }
    }
    pending
}

/// For hosts.
impl Run {
    /// The branches of the superstep that are to run. Empty unless the run [needs](Need::Nodes) them.
    pub fn open_branches(&self) -> Vec<OpenBranch> {
        let Phase::Walking(walk) = &self.phase else { return Vec::new() };
        let open = walk.branches.iter().enumerate().filter(|(_, branch)| branch.may_run());
        open.map(|(place, branch)| OpenBranch {
            place,
            planned: branch.planned.clone(),
            execution: walk.executions.get(&branch.planned.node).copied().unwrap_or(0),
        })
        .collect()
    }

    pub(crate) fn shape(&self) -> Option<&Arc<Shape>> {
        self.agent.config().graph.as_ref()
    }

    pub(crate) fn walk(&self) -> Option<&Walk> {
        match &self.phase {
            Phase::Walking(walk) => Some(walk),
            _ => None,
        }
    }

    pub(crate) fn branch(&self, place: usize) -> Option<&Branch> {
        self.walk()?.branches.get(place)
    }

    /// What the idempotency keys of a branch begin with, and the id of its agent's run.
    pub(crate) fn branch_key(&self, place: usize) -> String {
        format!("{}/{}/{place}", self.id, self.tally.steps)
    }

    fn agent_node(&self, planned: &Planned) -> Option<&AgentNode> {
        match &self.shape()?.node(&planned.node)?.work {
            NodeWork::Agent(agent) => Some(agent),
            NodeWork::Function(_) => None,
        }
    }

    /// Whether a branch that starts must be marked: its node says that it must not run twice.
    pub(crate) fn must_mark_node(&self, node: &str) -> bool {
        let node = self.shape().and_then(|shape| shape.node(node));
        node.is_some_and(|node| {
            matches!(node.work, NodeWork::Function(_)) && node.effect == Effect::AtMostOnce
        })
    }

    /// What a branch has come to whose agent has ended.
    pub(crate) fn outcome_of_agent(&self, place: usize) -> Option<(NodeOutcome, Usage)> {
        let branch = self.branch(place)?;
        let (child, node) = (branch.child()?, self.agent_node(&branch.planned)?);
        let item = branch.planned.item.as_ref();
        let outcome = match node.result(child, &self.state, &branch.writes, item) {
            Err(error) => NodeOutcome::failed(NodeStatus::Failed, error, 1),
            Ok(result) => NodeOutcome {
                outputs: result.answer.map(|answer| self.track(branch).output(answer)).into_iter().collect(),
                delta: result.delta,
                messages: result.messages,
                tries: 1,
                ..NodeOutcome::default()
            },
        };
        let is_tracked = self.is_tracked(&branch.planned.node);
        let outputs = if is_tracked { outcome.outputs } else { Vec::new() };
        Some((NodeOutcome { outputs, ..outcome }, child.usage()))
    }

    pub(crate) fn is_tracked(&self, node: &str) -> bool {
        self.shape().and_then(|shape| shape.node(node)).is_some_and(|node| node.is_tracked)
    }

    /// The run of the branch's node, for those that are tracked.
    fn track(&self, branch: &Branch) -> NodeRun {
        track(&self.state, &branch.planned)
    }
}

/// Which task a branch works at: the id of its item, or the current one.
pub(crate) fn track(state: &State, planned: &Planned) -> NodeRun {
    let own = planned.item.as_ref().and_then(|item| item.get("id")?.as_i64());
    let is_branch = planned.item.is_some();
    let current = || state.get(keys::CURRENT_TASK_ID).ok().flatten();
    let task = if is_branch { own } else { own.or_else(current) };
    let run = NodeRun::new(&planned.node);
    match task {
        Some(task) => run.task(task),
        None => run,
    }
}

/// From answers to events.
impl Run {
    /// The next superstep.
    pub(super) fn planned(&self, walk: &Walk, elapsed: Duration) -> Result<Event, FeedError> {
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
            let mut counts = walk.executions.clone();
            count(&mut counts, &next.branches);
            delta.push(schema.write(keys::EXECUTION_COUNTS, counts)?);
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
        for planned in &next.branches {
            if self.is_tracked(&planned.node) {
                delta.extend(track(&self.state, planned).started(&self.state)?);
            }
        }
        Ok(delta)
    }

    /// A commit of an agent that is a node.
    pub(super) fn inner(
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

    pub(super) fn node_answered(
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

    pub(super) fn node_asks(
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
    pub(super) fn may_start_nodes(&self, walk: &Walk, places: &[usize]) -> bool {
        places.iter().all(|place| walk.branches.get(*place).is_some_and(Branch::may_run))
    }

    pub(super) fn nodes_decided(
        &self,
        walk: &Walk,
        decisions: &[(String, Decision)],
        elapsed: Duration,
    ) -> Result<Event, FeedError> {
        self.check_decisions(decisions)?;
        let kind = EventKind::Decided { decisions: decisions.to_vec() };
        let mut event = Event::new(self.tally.steps, elapsed, kind);
        let rejected = |place: usize, branch: &Branch| {
            (branch.state == BranchState::Uncertain && is_rejected(&branch.label(place), decisions))
                .then(|| unknown(&branch.planned))
        };
        let open = walk.branches.iter().enumerate().filter(|(_, branch)| !branch.is_done());
        if open.clone().all(|(place, branch)| rejected(place, branch).is_some()) {
            self.close_superstep(&mut event, walk, rejected)?;
        }
        Ok(event)
    }

    pub(super) fn nodes_interrupted(&self, walk: &Walk, elapsed: Duration) -> Result<Event, FeedError> {
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
    pub(super) fn nodes_broken_off(&self, walk: &Walk, event: &mut Event) -> Result<(), FeedError> {
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
        // What an agent has said and written until now is complete in itself.
        match (branch.child(), self.agent_node(&branch.planned)) {
            (Some(child), Some(node)) if child.exit().is_some() => {
                let messages = node.messages(child, &self.state, branch.planned.item.as_ref());
                NodeOutcome { messages, delta: branch.writes.clone(), ..outcome }
            }
            _ => outcome,
        }
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
                    event.messages.extend(outcome.messages.iter().cloned());
                }
                Err(error) => {
                    let error = format!("what it wrote cannot be merged: {error}");
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

fn is_rejected(id: &str, decisions: &[(String, Decision)]) -> bool {
    let decision = decisions.iter().find(|(decided, _)| decided == id);
    matches!(decision, Some((_, Decision::Reject { .. })))
}

fn unknown(planned: &Planned) -> NodeOutcome {
    let error = format!(
        "node '{}' had started when the process was interrupted: its outcome is unknown, and it was not run again",
        planned.node,
    );
    NodeOutcome::failed(NodeStatus::Unknown, error, 1)
}

/// One more superstep of each of these nodes.
fn count(executions: &mut BTreeMap<String, u64>, branches: &[Planned]) {
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

/// The fold.
impl Run {
    /// Whether the event can happen where the walk is.
    pub(super) fn fits_walk(walk: &Walk, event: &Event) -> bool {
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
    pub(super) fn after_walk(&mut self, event: &Event, mut walk: Box<Walk>) -> Phase {
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
            EventKind::Decided { decisions } => walk.decided(decisions),
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
    /// branch. All or nothing.
    pub(super) fn commit_inner(&mut self, event: &Event) -> Result<(), FeedError> {
        let EventKind::Inner { branch: place, event: inner } = &event.kind else { return Ok(()) };
        let mut child = match self.take_child(*place) {
            Some(child) => child,
            None => Box::new(self.new_child(*place, inner)?),
        };
        let committed = child.commit((**inner).clone());
        let Phase::Walking(walk) = &mut self.phase else { return Ok(()) };
        let (graph, agent) = (self.state.schema(), &self.agent);
        let Some(branch) = walk.branches.get_mut(*place) else { return Ok(()) };
        if let Err(error) = committed {
            branch.child = (child.events() > 0).then_some(Child::Run(child));
            return Err(error);
        }
        let node = agent.config().graph.as_ref().and_then(|shape| shape.node(&branch.planned.node));
        if let Some(NodeWork::Agent(node)) = node.map(|node| &node.work) {
            let is_shared = |write: &&Write| node.shares_write(graph, write);
            branch.writes.extend(inner.delta.iter().filter(is_shared).cloned());
        }
        let pending = child.pending();
        branch.decisions.retain(|(id, _)| pending.iter().any(|request| request.id == *id));
        branch.child = Some(Child::Run(child));
        Ok(())
    }

    fn take_child(&mut self, place: usize) -> Option<Box<Run>> {
        let Phase::Walking(walk) = &mut self.phase else { return None };
        match walk.branches.get_mut(place)?.child.take()? {
            Child::Run(run) => Some(run),
            Child::Stored(_) => None,
        }
    }

    /// The run of the branch's agent, before its first event.
    fn new_child(&self, place: usize, event: &Event) -> Result<Run, FeedError> {
        let none = FeedError::NoSuchBranch { branch: place };
        let EventKind::Began { id, .. } = &event.kind else { return Err(none) };
        let Some(branch) = self.branch(place) else { return Err(none) };
        let Some(node) = self.agent_node(&branch.planned) else { return Err(none) };
        let fault = |words: String| FeedError::Node { node: branch.planned.node.clone(), words };
        let agent = node.agent_on(&self.state).map_err(|error| fault(error.to_string()))?;
        let state = node.state_on(&self.state, branch.planned.item.as_ref())?;
        let input = Input::recorded(state, event);
        Run::new(&agent, input, id.as_str()).map_err(|error| fault(error.to_string()))
    }

    /// Puts the agents of its nodes to the runs of a walk that was loaded.
    pub(super) fn revive(&mut self) -> Result<Vec<String>, LoadError> {
        let Phase::Walking(walk) = &self.phase else { return Ok(Vec::new()) };
        let mut walk = walk.clone();
        let mut changes = Vec::new();
        for branch in &mut walk.branches {
            let Some(Child::Stored(stored)) = &branch.child else { continue };
            let node = self.agent_node(&branch.planned);
            let agent = node.and_then(|node| node.agent_on(&self.state).ok());
            let Some(agent) = agent else {
                changes.push(format!("node '{}' has no agent any more", branch.planned.node));
                branch.child = None;
                continue;
            };
            let (run, changed) = Run::load_changed(&agent, &stored.to_string())?;
            changes.extend(changed.into_iter().map(|what| format!("node '{}': {what}", branch.planned.node)));
            branch.child = Some(Child::Run(Box::new(run)));
        }
        self.phase = Phase::Walking(walk);
        Ok(changes)
    }
}

impl Walk {
    fn finish(&mut self, place: usize, outcome: NodeOutcome) {
        let branch = &mut self.branches[place];
        branch.state = BranchState::Done(Arc::new(outcome));
        branch.child = None;
        branch.writes = Delta::new();
        branch.asked = Vec::new();
        branch.decisions = Vec::new();
        self.open -= 1;
    }

    fn decided(&mut self, decisions: &[(String, Decision)]) {
        for place in 0..self.branches.len() {
            let branch = &mut self.branches[place];
            if branch.is_done() {
                continue;
            }
            let label = branch.label(place);
            if branch.state == BranchState::Uncertain {
                if is_rejected(&label, decisions) {
                    let outcome = unknown(&branch.planned);
                    self.finish(place, outcome);
                } else if decisions.iter().any(|(id, _)| *id == label) {
                    branch.state = BranchState::Ready;
                }
                continue;
            }
            for request in branch.open_requests() {
                let id = nested_id(&label, &request.id);
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

/// Whether a failure of this node is an outcome; else it is the error of the run.
pub(crate) fn takes_failures(shape: &Shape, node: &str) -> bool {
    shape.node(node).is_some_and(|node| node.on_error != OnError::Fail || node.effect == Effect::AtMostOnce)
}

impl Serialize for Child {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Child::Run(run) => run.serialize(serializer),
            Child::Stored(stored) => stored.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Child {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Child::Stored)
    }
}

impl PartialEq for Child {
    fn eq(&self, other: &Self) -> bool {
        let json = |child: &Child| serde_json::to_value(child).ok();
        json(self) == json(other)
    }
}

const _: () = assert!(progress::DEFAULT_MAX_EXECUTIONS > 0, "a node of which nobody says more may run");
