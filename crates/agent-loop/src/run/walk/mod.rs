//! The run of a graph, where the run of an agent has its model and its calls: branches of a superstep, until
//! all of them have their outcome, and then the way on.
//!
//! What would surprise a reader: the run of an agent that is a node is part of this one. Its events are events
//! here ([`EventKind::Inner`](crate::EventKind::Inner)), so that it goes on where it was after a crash; what it writes reaches the state of
//! the graph at the end of the superstep, as that of every branch does.

mod commit;
mod feed;
mod ids;

pub(super) use self::feed::is_rejected;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepfold_state_core::chat::{Arguments, Message, ToolCall};
use stepfold_state_core::state::{Delta, State};
use stepfold_tools::{CancellationToken, Effect};

use super::decide::{Asker, Parameters, inner_decisions};
use super::event::is_zero;
use super::exit::Exit;
use super::machine::{Need, Phase, Run};
use crate::approval::{ApprovalRequest, AskReason, Decision, nested_path};
use crate::decisions::DecisionError;
use crate::error::FeedError;
use crate::graph::progress::{NodeOutput, NodeRun, keys};
use crate::graph::{AgentNode, Arrived, Ended, NodeContext, NodeError, NodeWork, OnError, Planned, Shape};

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
    /// How often somebody was asked whether it runs again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) round: u32,
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
    /// What that run has said: all of it, whatever its hooks make of its conversation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) said: Vec<Arc<Message>>,
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
    #[serde(default = "once", skip_serializing_if = "is_once")]
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
    pub const fn is_success(&self) -> bool {
        matches!(self, NodeStatus::Succeeded)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
const fn is_once(tries: &u32) -> bool {
    *tries == 1
}

const fn once() -> u32 {
    1
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

impl Walk {
    /// The runs of agents, each with the place of its branch.
    pub(crate) fn children_mut(&mut self) -> impl Iterator<Item = (usize, &mut Run)> {
        let branches = self.branches.iter_mut().enumerate();
        branches.filter_map(|(place, branch)| match &mut branch.child {
            Some(Child::Run(run)) => Some((place, &mut **run)),
            _ => None,
        })
    }
}

impl Branch {
    fn new(planned: Planned) -> Self {
        Branch {
            planned,
            state: BranchState::Ready,
            round: 0,
            asked: Vec::new(),
            decisions: Vec::new(),
            child: None,
            writes: Delta::new(),
            said: Vec::new(),
        }
    }

    pub(crate) fn outcome(&self) -> Option<&Arc<NodeOutcome>> {
        match &self.state {
            BranchState::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, BranchState::Done(_))
    }

    pub(crate) fn child(&self) -> Option<&Run> {
        match &self.child {
            Some(Child::Run(run)) => Some(run),
            _ => None,
        }
    }

    /// What is asked and not decided, under the ids within the branch.
    fn open_requests(&self, parameters: Parameters) -> Vec<ApprovalRequest> {
        let is_open = |request: &ApprovalRequest| self.decisions.iter().all(|(id, _)| *id != request.id);
        let asked = match self.child() {
            Some(child) => child.requests(parameters),
            None => self.asked.clone(),
        };
        asked.into_iter().filter(is_open).collect()
    }

    fn waits(&self) -> bool {
        let may_ask = self.child.is_some() || !self.asked.is_empty();
        self.state == BranchState::Uncertain
            || (may_ask && !self.open_requests(Parameters::LeftOut).is_empty())
    }

    fn may_run(&self) -> bool {
        self.state == BranchState::Ready && !self.waits()
    }

    /// The question whether it runs again.
    pub(crate) fn uncertainty(&self, place: usize, asker: &Asker) -> ApprovalRequest {
        let about = match &self.planned.item {
            Some(Value::Object(item)) => item.clone(),
            Some(item) => Map::from_iter([("item".to_owned(), item.clone())]),
            None => Map::new(),
        };
        let (label, reason) = (self.label(place), AskReason::MayHaveHappened);
        let call = ToolCall::new(&*label, &*self.planned.node, Arguments::from(Value::Object(about)));
        let id = asker.subject(place, self.round, reason, &call.name).id(&label, &call.arguments);
        let id = asker.outer(id);
        ApprovalRequest::new(id, call, reason)
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
pub(super) fn pending(walk: &Walk, asker: &Asker, parameters: Parameters) -> Vec<ApprovalRequest> {
    let mut pending = Vec::new();
    for (place, branch) in walk.branches.iter().enumerate().filter(|(_, branch)| !branch.is_done()) {
        if branch.state == BranchState::Uncertain {
            pending.push(branch.uncertainty(place, asker));
            continue;
        }
        let label = branch.label(place);
        pending.extend(branch.open_requests(parameters).into_iter().map(|request| {
            let id = asker.outer(nested_path(&label, &request.id));
            ApprovalRequest { id, ..request }
        }));
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

    /// All branches of the superstep, in the order in which they are merged: a branch is known by its place. Empty
    /// unless the run is that of a graph, within a superstep.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use serde_json::json;
    /// use stepfold_agent_loop::graph::{Graph, NodeContext, NodeError, START};
    /// use stepfold_agent_loop::{Breakpoint, Input};
    /// use stepfold_state_core::state::Schema;
    ///
    /// async fn count(_: NodeContext) -> Result<(), NodeError> {
    ///     Ok(())
    /// }
    /// let graph = Graph::builder("stalls")
    ///     .schema(Schema::builder().key::<Vec<u64>>("areas").build()?)
    ///     .node("count", count)
    ///     .fan_out(START, "count", "areas")
    ///     .build()?;
    /// let input = Input::new().with_values(json!({"areas": [3, 7]}));
    /// let stopped = graph.run(input).break_at(Breakpoint::node("count")).await?;
    /// let items: Vec<_> = stopped.run().branches().filter_map(|branch| branch.item.clone()).collect();
    /// assert_eq!(items, [json!(3), json!(7)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn branches(&self) -> impl ExactSizeIterator<Item = &Planned> {
        let walk = self.walk().map(|walk| &*walk.branches).unwrap_or_default();
        walk.iter().map(|branch| &branch.planned)
    }

    pub(crate) fn shape(&self) -> Option<&Arc<Shape>> {
        self.agent.config().graph.as_ref()
    }

    /// Whether no branch of the superstep has an outcome, has asked, or has begun a run of its agent.
    pub(in crate::run) fn is_superstep_untouched(&self) -> bool {
        let is_untouched = |branch: &Branch| {
            branch.state == BranchState::Ready && branch.asked.is_empty() && branch.child.is_none()
        };
        self.walk().is_some_and(|walk| walk.branches.iter().all(is_untouched))
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

    /// What the idempotency keys of a branch, and of the run of its agent, begin with.
    pub(crate) fn branch_key(&self, place: usize) -> String {
        format!("{}/{place}", self.key_scope())
    }

    /// The run of a branch's agent, which has not begun. Its id is that of this run and its place, so that it is the same
    /// for all who go on with the record; its keys are those of whoever goes on.
    pub(crate) fn child_on(
        &self,
        agent: &AgentNode,
        place: usize,
        context: &NodeContext,
    ) -> Result<Run, NodeError> {
        let id = format!("{}/{}/{place}", self.id, self.tally.steps);
        let child = agent.run(&self.state, context, id)?;
        Ok(child.within_run(self.branch_key(place)))
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
    pub(crate) fn outcome_of_agent(&self, place: usize) -> Option<NodeOutcome> {
        let branch = self.branch(place)?;
        let (child, node) = (branch.child()?, self.agent_node(&branch.planned)?);
        let is_output = node.kind.is_some() || self.is_tracked(&branch.planned.node);
        let output = |answer| NodeOutput { kind: node.kind.clone(), ..self.track(branch).output(answer) };
        let outcome = match node.result(child, self.state.schema(), branch) {
            Err(error) => NodeOutcome::failed(NodeStatus::Failed, error, 1),
            Ok(result) => NodeOutcome {
                outputs: result.answer.filter(|_| is_output).map(output).into_iter().collect(),
                delta: result.delta,
                messages: result.messages,
                tries: 1,
                ..NodeOutcome::default()
            },
        };
        Some(outcome)
    }

    /// Whether an agent of an open branch has been cancelled: as part of this run, whose own end is not recorded.
    pub(crate) fn is_cancelled_inside(&self) -> bool {
        let branches = self.walk().map(|walk| walk.branches.as_slice()).unwrap_or_default();
        let mut children = branches.iter().filter_map(Branch::child);
        children.any(|child| child.exit() == Some(&Exit::Cancelled))
    }

    /// The run of a branch's agent as it is, or as it would begin.
    pub(crate) fn child_of(&self, place: usize) -> Result<Run, FeedError> {
        let branch = self.branch(place).ok_or(FeedError::NoSuchBranch { branch: place })?;
        if let Some(child) = branch.child() {
            return Ok(child.clone());
        }
        let node = self.agent_node(&branch.planned).ok_or(FeedError::NoSuchBranch { branch: place })?;
        let context = NodeContext::of(self, place, CancellationToken::new(), None);
        self.child_on(node, place, &context)
            .map_err(|error| FeedError::Node { node: branch.planned.node.clone(), words: error.to_string() })
    }

    pub(crate) fn is_tracked(&self, node: &str) -> bool {
        self.shape().and_then(|shape| shape.node(node)).is_some_and(|node| node.is_tracked)
    }

    /// Decisions about calls of agents that are nodes: whether these would take them.
    pub(super) fn check_decisions_of_nodes(
        &self,
        decisions: &[(String, Decision)],
    ) -> Result<(), DecisionError> {
        let Some(walk) = self.walk() else { return Ok(()) };
        let asker = self.asker();
        for (place, branch) in walk.branches.iter().enumerate() {
            let Some(child) = branch.child() else { continue };
            let label = branch.label(place);
            let outer = |id: &str| asker.outer(nested_path(&label, id));
            let inner = inner_decisions(&branch.open_requests(Parameters::LeftOut), decisions, outer);
            child.check_decisions(&inner.into()).map_err(|error| error.renamed(outer))?;
        }
        Ok(())
    }

    /// Whether a request is about a branch of the superstep itself, not about something inside of it.
    pub(super) fn is_own_branch(&self, id: &str) -> bool {
        let asker = self.asker();
        let branches = self.walk().map(|walk| walk.branches.as_slice()).unwrap_or_default();
        let mut uncertain =
            branches.iter().enumerate().filter(|(_, branch)| branch.state == BranchState::Uncertain);
        uncertain.any(|(place, branch)| branch.uncertainty(place, &asker).id == id)
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
