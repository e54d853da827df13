//! The parts of a plan, and the outcomes of its branches, as they are recorded.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepfold_state_core::chat::{Arguments, Message, ToolCall};
use stepfold_state_core::state::{Delta, State};
use stepfold_tools::{Resources, Retry};

use crate::approval::{ApprovalRequest, AskReason, Decision, RequestSubject};
use crate::exit::Exit;
use crate::stored_form::{is_once, once};

/// The begin of every graph.
pub const START: &str = "__start__";
/// The end of a graph. It also ends when no branch is left.
pub const END: &str = "__end__";

/// A branch of a superstep: a node, with an item if it is one of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PlannedBranch {
    /// The node.
    pub node: String,
    /// The item of this branch, if it is one of a fan-out. Null is an item as well.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub item: Option<Value>,
}

/// Whatever is there is an item, also a null.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl PlannedBranch {
    /// A branch of this node, with an item if it is one of several.
    pub const fn new(node: String, item: Option<Value>) -> Self {
        PlannedBranch { node, item }
    }

    /// The name of the branch within its superstep.
    pub(crate) fn label(&self, place: usize) -> String {
        match self.item {
            Some(_) => format!("{}#{place}", self.node),
            None => self.node.clone(),
        }
    }
}

/// A router's choice, as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RecordedRoute {
    /// The node before the router.
    pub from: String,
    /// The chosen nodes.
    pub to: Vec<String>,
    /// Why, if it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl RecordedRoute {
    /// A choice of nodes after a node.
    pub const fn new(from: String, to: Vec<String>, reason: Option<String>) -> Self {
        RecordedRoute { from, to, reason }
    }
}

impl fmt::Display for RecordedRoute {
    /// The choice, such as `review -> END: nothing is left`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to: Vec<&str> = self.to.iter().map(|to| shown_name(to)).collect();
        write!(f, "{} -> {}", shown_name(&self.from), to.join(", "))?;
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, ": {reason}"))
    }
}

/// The name of a node, as a graph file writes it.
fn shown_name(name: &str) -> &str {
    match name {
        START => "START",
        END => "END",
        name => name,
    }
}

/// The nodes that have arrived at a join which is not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JoinArrivals {
    /// The node that waits.
    pub at: String,
    /// The index of the join, in the order of declaration, from 0: a node may have several.
    #[serde(default)]
    pub join: usize,
    /// The nodes that have finished.
    pub from: Vec<String>,
}

impl JoinArrivals {
    /// A join of a node that has not been reached from everywhere.
    pub const fn new(at: String, join: usize, from: Vec<String>) -> Self {
        JoinArrivals { at, join, from }
    }
}

/// The outcome of a branch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeOutcome {
    /// The status: success, or the kind of failure.
    #[serde(default, skip_serializing_if = "NodeStatus::is_success")]
    pub status: NodeStatus,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The writes; merged at the end of the superstep.
    #[serde(default, skip_serializing_if = "Delta::is_empty")]
    pub delta: Delta,
    /// The messages that are appended to the conversation at the end of the superstep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Arc<Message>>,
    /// The items that are appended to `outputs`: objects with a `node`, a `content`, and perhaps a `kind`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Value>,
    /// The branches that it chose as the next ones, in place of the edges of its node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub goto: Vec<PlannedBranch>,
    /// The number of attempts.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub tries: u32,
}

/// The end of a branch: success, or the kind of failure.
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
    /// Its writes could not be merged; none of them was applied.
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

impl NodeOutcome {
    /// The outcome of a branch that succeeded at its first attempt, and wrote nothing.
    pub fn succeeded() -> Self {
        NodeOutcome { tries: 1, ..NodeOutcome::default() }
    }

    /// The outcome of a branch that failed: it writes nothing.
    pub fn failed(status: NodeStatus, error: impl Into<String>, tries: u32) -> Self {
        NodeOutcome { status, error: Some(error.into()), tries, ..NodeOutcome::default() }
    }
}

/// A branch that is to run, with everything that its function needs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenBranch {
    /// Its place in the superstep, from 0.
    pub place: usize,
    /// The node, and the item.
    pub planned: PlannedBranch,
    /// The number of this superstep, among those in which the node has branches, from 1.
    pub execution: u64,
    /// Its idempotency key: the same when the branch runs again after a crash, different in a fork.
    pub key: String,
    /// The state on which the superstep began.
    pub state: State,
    /// The application's resources for its tools and nodes.
    pub resources: Resources,
    /// The decisions about its requests, by their ids within the branch.
    pub decisions: Vec<(String, Decision)>,
    /// The recorded id of the run.
    pub(crate) run: Arc<str>,
    pub(crate) step: u64,
    /// The number of times that its requests were asked again.
    pub(crate) round: u32,
}

impl OpenBranch {
    /// Its name among the branches of its superstep: the node, with the place if it has an item.
    pub fn label(&self) -> String {
        self.planned.label(self.place)
    }

    /// The decision about a question of the branch.
    ///
    /// # Errors
    /// The request for approval, if nothing is decided: the branch [asks](crate::plan::BranchEnd::Asks) it.
    pub fn decision(
        &self,
        label: &str,
        about: Value,
        parameters: Option<Value>,
    ) -> Result<Decision, Box<ApprovalRequest>> {
        let node = &*self.planned.node;
        let (run, step, place) = (&*self.run, self.step, self.place);
        let subject = |round| RequestSubject::of_node(run, step, (place, node), round);
        // What was decided before a question was asked again is decided.
        let ids = (0..=self.round).rev().map(|round| subject(round).id_about(label, &about));
        for id in ids {
            if let Some((_, decision)) = self.decisions.iter().find(|(decided, _)| *decided == id) {
                return Ok(decision.clone());
            }
        }
        let id = subject(self.round).id_about(label, &about);
        let call = ToolCall::new(label, node, Arguments::from(about));
        let request = ApprovalRequest::new(id, call, AskReason::Node);
        Err(Box::new(ApprovalRequest { parameters, ..request }))
    }
}

/// A branch of the last superstep that has ended, as far as the next superstep depends on it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EndedBranch<'a> {
    /// The node.
    pub node: &'a str,
    /// The item, if it had one.
    pub item: Option<&'a Value>,
    /// Why it failed, if it did.
    pub error: Option<&'a str>,
    /// The branches that it chose as the next ones.
    pub goto: &'a [PlannedBranch],
}

/// The position of a plan between two supersteps.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PlanPosition<'a> {
    /// Whether there was a superstep before.
    pub has_begun: bool,
    /// The branches that are deferred until nothing else is left to run.
    pub deferred: &'a [PlannedBranch],
    /// The joins that are not complete.
    pub arrived: &'a [JoinArrivals],
    /// The number of supersteps in which each node had branches.
    pub executions: &'a BTreeMap<String, u64>,
}

/// The next superstep, or the end.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct NextSuperstep {
    /// The branches, in the order in which their outcomes are merged. Branches of one node stand together.
    pub branches: Vec<PlannedBranch>,
    /// Branches to defer until nothing else is left to run.
    pub deferred: Vec<PlannedBranch>,
    /// The joins that are not complete.
    pub arrived: Vec<JoinArrivals>,
    /// The choices of routers, for the record.
    pub routes: Vec<RecordedRoute>,
    /// The exit, if the plan ends here.
    pub exit: Option<Exit>,
}

impl NextSuperstep {
    /// A superstep of these branches.
    pub fn of(branches: impl IntoIterator<Item = PlannedBranch>) -> Self {
        NextSuperstep { branches: branches.into_iter().collect(), ..NextSuperstep::default() }
    }

    /// The end of the plan, with this exit.
    pub fn exit(exit: Exit) -> Self {
        NextSuperstep { exit: Some(exit), ..NextSuperstep::default() }
    }
}

/// Why a plan cannot read the state, or its writes do not fit.
pub type PlanError = Box<dyn Error + Send + Sync>;

/// The limits of attempts of a branch: their number and their time.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct AttemptPolicy {
    /// The timeout of one attempt.
    pub timeout: Option<Duration>,
    /// Further attempts after a failure.
    pub retry: Option<Retry>,
}

impl AttemptPolicy {
    /// Attempts with this timeout each, and this rule for further ones.
    pub const fn new(timeout: Option<Duration>, retry: Option<Retry>) -> Self {
        AttemptPolicy { timeout, retry }
    }
}

impl AttemptPolicy {
    /// The pauses before each further attempt.
    pub fn pauses(&self) -> impl Iterator<Item = Duration> + use<> {
        self.retry.into_iter().flat_map(|retry| retry.pauses())
    }

    /// The error of an attempt that ran into its timeout.
    pub fn too_long(&self) -> String {
        format!("it took longer than {:?}", self.timeout.unwrap_or_default())
    }
}
