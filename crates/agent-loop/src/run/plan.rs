//! The port for plans: what plans the steps of a run in place of a model's replies, and what is inside of an item.
//!
//! The machine knows nothing of graphs. Whoever plans says what the next items are ([`Planner::next`]), what an item
//! writes when the step is closed ([`Planner::merged`]), and how to call its functions; the machine has the items, their
//! states, requests, marks and runs inside, as it has those of a reply's calls.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::{Delta, Fault, Schema, State, StateError, Write};
use stepfold_tools::{CancellationToken, Effect, Retry, ToolError};
use tokio::sync::mpsc;

use super::exit::Exit;
use super::machine::Run;
use super::task::Task;
use crate::agent::Agent;
use crate::approval::ApprovalRequest;
use crate::error::FeedError;

/// A branch of a superstep: a node, with an item if it is one of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Planned {
    /// The node.
    pub node: String,
    /// What this branch is about, if it is one of a fan-out. Null is an item as well.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub item: Option<Value>,
}

/// Whatever is there is an item, also a null.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl Planned {
    pub(crate) const fn new(node: String, item: Option<Value>) -> Self {
        Planned { node, item }
    }

    /// What it is called among the branches of its superstep.
    pub(crate) fn label(&self, place: usize) -> String {
        match self.item {
            Some(_) => format!("{}#{place}", self.node),
            None => self.node.clone(),
        }
    }
}

/// What a router chose, as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Routed {
    /// The node behind which the router stands.
    pub from: String,
    /// What it chose.
    pub to: Vec<String>,
    /// Why, if it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Routed {
    pub(crate) const fn new(from: String, to: Vec<String>, reason: Option<String>) -> Self {
        Routed { from, to, reason }
    }
}

/// The nodes that have arrived at a join which is not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Arrived {
    /// The node that waits.
    pub at: String,
    /// Which join it is, in the order in which they were declared, from 0: a node may have several.
    #[serde(default)]
    pub join: usize,
    /// The nodes that have finished.
    pub from: Vec<String>,
}

impl Arrived {
    pub(crate) const fn new(at: String, join: usize, from: Vec<String>) -> Self {
        Arrived { at, join, from }
    }
}

/// The outcome of a branch.
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
    /// What it appends to `outputs`: objects with a `node`, a `content`, and perhaps a `kind`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Value>,
    /// Where it chose to go, in place of the edges of its node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub goto: Vec<Planned>,
    /// The number of attempts.
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
    /// It failed, after all attempts.
    Failed,
    /// Its time was up, at every attempt.
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
    /// That of a branch that succeeded at its first attempt, and wrote nothing.
    pub(crate) fn succeeded() -> Self {
        NodeOutcome { tries: 1, ..NodeOutcome::default() }
    }

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

/// How a branch of the last superstep ended, as far as what comes next depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended<'a> {
    pub(crate) node: &'a str,
    pub(crate) item: Option<&'a Value>,
    /// Why it failed, if it did.
    pub(crate) error: Option<&'a str>,
    pub(crate) goto: &'a [Planned],
}

/// Where a plan is between two supersteps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position<'a> {
    pub(crate) has_begun: bool,
    pub(crate) deferred: &'a [Planned],
    pub(crate) arrived: &'a [Arrived],
    pub(crate) executions: &'a BTreeMap<String, u64>,
}

/// What comes next.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Next {
    /// In the order of their nodes.
    pub(crate) branches: Vec<Planned>,
    pub(crate) deferred: Vec<Planned>,
    pub(crate) arrived: Vec<Arrived>,
    pub(crate) routes: Vec<Routed>,
    /// Why nothing comes.
    pub(crate) exit: Option<Exit>,
}

impl Next {
    pub(crate) fn exit(exit: Exit) -> Self {
        Next { exit: Some(exit), ..Next::default() }
    }
}

/// Why a plan cannot read the state, or its writes do not fit.
pub(crate) type PlanError = Box<dyn Error + Send + Sync>;

/// Plans the supersteps of a run. Implemented by the shape of a graph; called by the machine ([`next`](Planner::next) and
/// [`writes`](Planner::writes) where a superstep begins, [`merged`](Planner::merged) for each branch and then
/// [`closed`](Planner::closed) where it ends) and by the driver ([`call`](Planner::call)). All but `call` are pure.
pub(crate) trait Planner: fmt::Debug + Send + Sync {
    /// The names of the nodes.
    fn names(&self) -> &[String];

    /// What a stored run depends on, part by part.
    fn parts(&self) -> Vec<(String, String)>;

    /// What is wrong with a schema of the state.
    fn faults(&self, schema: &Schema) -> Vec<Fault>;

    /// The number of branches that run side by side.
    fn max_parallel(&self) -> usize;

    /// The branches after these.
    fn next(&self, position: Position<'_>, ended: &[Ended<'_>], state: &State) -> Result<Next, FeedError>;

    /// What the plan itself writes where these branches begin.
    fn writes(&self, position: Position<'_>, next: &Next, state: &State) -> Result<Delta, PlanError>;

    /// Whether a write of a plan is about that plan alone, so that no run around it has it as well.
    fn is_own(&self, write: &Write) -> bool;

    /// What a branch writes, merged into the state that those before it have left; nothing, if something cannot be.
    /// `before` is the state on which the superstep began.
    fn merged(
        &self,
        before: &State,
        state: &mut State,
        planned: &Planned,
        outcome: &NodeOutcome,
    ) -> Result<Delta, PlanError>;

    /// What the end of a superstep of these branches writes beside them.
    fn closed(&self, state: &State, branches: &[&Planned]) -> Result<Delta, PlanError>;

    /// What the function of a node does to the world; none where an agent is inside, or no such node is.
    fn effect(&self, node: &str) -> Option<Effect>;

    /// What is inside of a node, if that is an agent.
    fn inside(&self, node: &str) -> Option<&dyn Inside>;

    /// How often and how long the agent inside of a node is run.
    fn attempts(&self, node: &str) -> Attempts;

    /// The outcome of a branch whose agent has ended. `before` is the state on which the superstep began.
    fn outcome_of(&self, before: &State, planned: &Planned, ended: &EndedInside<'_>) -> NodeOutcome;

    /// The outcome of a branch whose agent is broken off, with what was said and written until now.
    fn broken_off(&self, planned: &Planned, ended: EndedInside<'_>, outcome: NodeOutcome) -> NodeOutcome;

    /// Whether a failure of this node is an outcome; else it is the error of the run.
    fn takes_failures(&self, node: &str) -> bool;

    /// Calls the function of a branch, as often as it is to be attempted.
    fn call(
        self: Arc<Self>,
        task: Task<'_>,
        stop: CancellationToken,
        speaker: mpsc::Sender<Said>,
    ) -> BoxFuture<'static, Called>;
}

/// What a [hosted](stepfold_tools::Tool::hosted) tool has for the loop: what is inside of its calls.
pub(crate) struct Hosted(pub(crate) Arc<dyn InsideCall>);

/// What is inside of a call.
pub(crate) trait InsideCall: Inside {
    /// The result and the writes of a call whose agent has ended.
    fn result(&self, ended: &EndedInside<'_>) -> Result<(Value, Delta), ToolError>;

    /// The same, to the machine.
    fn as_inside(&self) -> &dyn Inside;
}

/// What is inside of an item: an agent or a graph, with what it has in common with the run around it. Implemented by
/// agents that are nodes and agents that are tools.
pub(crate) trait Inside: Send + Sync {
    /// The agent for an item of a run in this state. An error is the failure of the item.
    fn agent_on(&self, state: &State) -> Result<Agent, String>;

    /// The agent, whatever the state says.
    fn agent(&self) -> &Agent;

    /// The state that it begins on.
    fn state_on(&self, task: Task<'_>) -> Result<State, StateError>;

    /// What it is asked; none if it goes on with a conversation.
    fn prompt(&self, task: Task<'_>) -> Result<Option<String>, NotBegun>;

    /// Whether a write of it is one to the state of the run around it as well.
    fn shares_write(&self, outer: &Schema, write: &Write) -> bool;
}

/// Why what is inside of an item cannot begin.
#[derive(Debug)]
pub(crate) enum NotBegun {
    Failed(String),
    /// Somebody is asked first.
    Asks(Box<ApprovalRequest>),
}

/// What an agent inside has come to.
#[derive(Clone, Copy)]
pub(crate) struct EndedInside<'a> {
    pub(crate) run: &'a Run,
    /// What it has written to shared keys.
    pub(crate) writes: &'a Delta,
    /// What it has said: all of it, whatever its hooks make of its conversation.
    pub(crate) said: &'a [Arc<Message>],
}

/// How often and how long something is attempted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempts {
    pub(crate) time_out: Option<Duration>,
    pub(crate) retry: Option<Retry>,
}

impl Attempts {
    /// The pauses before each further attempt.
    pub(crate) fn pauses(&self) -> impl Iterator<Item = Duration> + use<> {
        self.retry.into_iter().flat_map(|retry| retry.pauses())
    }

    /// Why an attempt failed whose time was up.
    pub(crate) fn too_long(&self) -> String {
        format!("it took longer than {:?}", self.time_out.unwrap_or_default())
    }
}

/// What a node says while it works.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) place: usize,
    pub(crate) kind: String,
    pub(crate) value: Value,
}

/// What the function of a branch came to.
#[derive(Debug)]
pub(crate) enum Called {
    Outcome(NodeOutcome),
    /// It asks somebody to decide.
    Asks(Box<ApprovalRequest>),
    Stopped,
}
