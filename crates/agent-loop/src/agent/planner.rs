//! The port for plans: a planner, which plans the steps of a run in place of a model's replies, and the agents inside
//! of its branches.
//!
//! It stands beside the agent, because a plan is a part of an agent as its model is, and has agents inside. The machine
//! knows nothing of graphs: it asks a planner for the next branches ([`Planner::next`]) and for the writes of each when
//! the step is closed ([`Planner::merged`]), and has the items, their states, requests, marks and inner runs, as it has
//! those of a reply's calls.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value;
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::{Delta, Issue, Schema, State, StateError, Write};
use stepfold_tools::{CancellationToken, Effect};

use super::Agent;
use crate::approval::ApprovalRequest;
use crate::error::FeedError;
use crate::exit::Exit;
use crate::planned::{
    AttemptPolicy, EndedBranch, NextSuperstep, NodeOutcome, NodeStatus, OpenBranch, PlanError, PlanPosition,
    PlannedBranch,
};

/// Plans the supersteps of a run, in place of a model's replies. Implemented by the shape of a graph; see the
/// [module](crate::plan) for an example.
///
/// Called by the machine: [`next`](Planner::next) and [`writes`](Planner::writes) where a superstep begins,
/// [`merged`](Planner::merged) for each branch and then [`closed`](Planner::closed) where it ends. Everything that the
/// machine calls is a pure function of its arguments, so that a record replays; [`call`](Planner::call) is for the host.
pub trait Planner: fmt::Debug + Send + Sync {
    /// The names of the nodes.
    fn names(&self) -> &[String];

    /// The parts that a stored run depends on, for the [fingerprint](crate::Fingerprint) of the agent.
    fn parts(&self) -> Vec<(String, Value)>;

    /// The parts as stored runs have them whose fingerprint is of the first form.
    fn first_parts(&self) -> Vec<(String, Value)> {
        self.parts()
    }

    /// The faults of a schema of the state, for which the agent is not built.
    fn faults(&self, _: &Schema) -> Vec<Issue> {
        Vec::new()
    }

    /// The branches after those that have ended.
    ///
    /// # Errors
    /// When the plan cannot continue, such as [`FeedError::Route`]. The run fails, and can be resumed.
    fn next(
        &self,
        position: PlanPosition<'_>,
        ended: &[EndedBranch<'_>],
        state: &State,
    ) -> Result<NextSuperstep, FeedError>;

    /// The writes of the plan itself where these branches begin.
    ///
    /// # Errors
    /// When a write does not fit the state.
    fn writes(&self, _: PlanPosition<'_>, _: &NextSuperstep, _: &State) -> Result<Delta, PlanError> {
        Ok(Delta::new())
    }

    /// Whether a write of [`writes`](Planner::writes) is about this plan alone, so that no run around it has it as well.
    fn is_own(&self, _: &Write) -> bool {
        false
    }

    /// Whether the plan keeps the values of a key by itself, so that an [edit](crate::Edit) of them is refused.
    fn keeps(&self, _key: &str) -> bool {
        false
    }

    /// The writes of a branch, merged into the state that those before it have left; none of them, if one cannot be
    /// merged. `before` is the state on which the superstep began.
    ///
    /// # Errors
    /// When a write cannot be merged. The branch has failed then.
    fn merged(
        &self,
        _before: &State,
        state: &mut State,
        _planned: &PlannedBranch,
        outcome: &NodeOutcome,
    ) -> Result<Delta, PlanError> {
        state.apply(&outcome.delta)?;
        Ok(outcome.delta.clone())
    }

    /// The writes at the end of a superstep of these branches, beside their own.
    ///
    /// # Errors
    /// When a write does not fit the state.
    fn closed(&self, _: &State, _: &[&PlannedBranch]) -> Result<Delta, PlanError> {
        Ok(Delta::new())
    }

    /// The effect of the function of a node; `None` where an agent is inside, or there is no such node.
    fn effect(&self, node: &str) -> Option<Effect>;

    /// The effect of a node that its [part](Planner::parts) of an earlier agent says; `None` if it says none.
    fn recorded_effect(&self, _part: &Value) -> Option<Effect> {
        None
    }

    /// The agent inside of a node, if it has one.
    fn agent(&self, _node: &str) -> Option<&dyn BranchAgent> {
        None
    }

    /// The limits of attempts of a node: their number and their time.
    fn attempts(&self, _node: &str) -> AttemptPolicy {
        AttemptPolicy::default()
    }

    /// The outcome of a branch whose agent has ended: by default what it wrote and said. `before` is the state on which
    /// the superstep began.
    fn outcome(&self, _before: &State, _planned: &PlannedBranch, ended: &EndedAgent<'_>) -> NodeOutcome {
        match &ended.answer {
            Err(error) => NodeOutcome::failed(NodeStatus::Failed, error, 1),
            Ok(_) => NodeOutcome {
                delta: ended.writes.clone(),
                messages: ended.said.to_vec(),
                ..NodeOutcome::succeeded()
            },
        }
    }

    /// Whether a failure of this node is an outcome, after which [`next`](Planner::next) decides; else it is the error of
    /// the run.
    fn takes_failures(&self, _node: &str) -> bool {
        false
    }

    /// The number of branches that run side by side.
    fn max_parallel(&self) -> usize {
        64
    }

    /// Calls the function of a branch, once: the host [attempts](Planner::attempts) it, and drops the future where it
    /// stops it.
    // NOTE: One attempt only: timeouts and retries are the driver's, as they are for an agent inside.
    fn call(
        self: Arc<Self>,
        branch: OpenBranch,
        stop: CancellationToken,
        emitter: Emitter,
    ) -> BoxFuture<'static, BranchEnd>;
}

/// The end of a branch's function.
#[derive(Debug)]
#[non_exhaustive]
pub enum BranchEnd {
    /// With an outcome.
    Outcome(NodeOutcome),
    /// With a failure after which it may be [attempted](Planner::attempts) again.
    Failed(String),
    /// With a request for approval: see [`OpenBranch::decision`].
    Asks(Box<ApprovalRequest>),
}

/// Emits outputs of a branch while its function runs, as [`RunEvent::Output`](crate::RunEvent::Output).
#[derive(Clone)]
pub struct Emitter(Arc<EmitFunction>);

type EmitFunction = dyn Fn(String, Value) -> BoxFuture<'static, ()> + Send + Sync;

impl Emitter {
    /// An emitter that passes each output, with its kind, to a function of the host. It cannot fail: the receiver may
    /// already be dropped when a run is stopped.
    pub fn new(emit: impl Fn(String, Value) -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Self {
        Emitter(Arc::new(emit))
    }

    /// Emits an output; ready when the host has taken it.
    pub async fn emit(&self, kind: String, value: Value) {
        (self.0)(kind, value).await;
    }
}

impl fmt::Debug for Emitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emitter").finish_non_exhaustive()
    }
}

/// The agent inside of a node, or a graph, with what it shares with the run around it. Its events are events of that run.
/// An agent that is a tool is one as well: a call is a branch of the tool's name, whose item is its arguments.
pub trait BranchAgent: Send + Sync {
    /// The agent, whatever the state is.
    fn agent(&self) -> &Agent;

    /// The agent for a branch on this state.
    ///
    /// # Errors
    /// The failure of the branch, in words.
    fn agent_on(&self, _: &State) -> Result<Agent, String> {
        Ok(self.agent().clone())
    }

    /// The state on which its run begins.
    ///
    /// # Errors
    /// When the values do not fit its schema. The branch has failed then.
    fn state_on(&self, branch: &OpenBranch) -> Result<State, StateError>;

    /// The prompt of its run; `None` if it continues a conversation.
    ///
    /// # Errors
    /// When its run cannot begin.
    fn prompt(&self, branch: &OpenBranch) -> Result<Option<String>, NotBegun>;

    /// Whether a write of its run is one to the state of the run around it as well, which has this schema.
    fn shares_write(&self, outer: &Schema, write: &Write) -> bool;

    /// Whether its messages are messages of the run around it as well.
    fn shares_messages(&self, planned: &PlannedBranch) -> bool;
}

/// Why the run inside of a branch cannot begin.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotBegun {
    /// It failed, for this reason.
    Failed(String),
    /// Approval is needed first.
    Asks(Box<ApprovalRequest>),
}

/// The result of an agent that has ended inside of a branch or a call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndedAgent<'a> {
    /// The answer: the output if there is one, else the [last words](Exit::last_words), if any. The error says why the
    /// agent did not finish.
    pub answer: Result<Option<Value>, String>,
    /// The writes to shared keys.
    pub writes: &'a Delta,
    /// All messages of the run, also those that hooks have removed from its conversation.
    pub said: &'a [Arc<Message>],
}

impl EndedAgent<'_> {
    /// The text of the last reply, if it has any.
    pub fn last_words(&self) -> Option<String> {
        Exit::Failed.last_words(self.said)
    }
}
