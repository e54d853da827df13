//! Errors of agents and their runs, by who can act on them.
//!
//! The author of the agent can: [`AgentError`], before anything runs. The caller can: [`StartError`] and
//! [`RunError`](crate::RunError), with the partial run. The host can: [`FeedError`], after an unexpected
//! answer. Errors that the model can act on are messages.

use std::error::Error;

use stepfold_state_core::ErrorChain;
use stepfold_state_core::state::{Issue, Issues, StateError};
use thiserror::Error as ThisError;

use crate::decisions::DecisionError;
use crate::edit::EditError;

/// An error of building an agent. All faults are listed.
#[derive(ThisError)]
#[error("invalid agent '{agent}': {faults}")]
#[non_exhaustive]
pub struct AgentError {
    /// The agent.
    pub agent: String,
    /// The faults, each with its subject as the path.
    pub faults: Issues,
}

stepfold_state_core::debug_as_text!(AgentError, StartError);

impl AgentError {
    /// Creates an error with these faults. For builders of other agents, such as graphs.
    pub fn new(agent: impl Into<String>, faults: impl IntoIterator<Item = Issue>) -> Self {
        AgentError { agent: agent.into(), faults: faults.into_iter().collect() }
    }
}

/// An error of beginning a run.
#[derive(ThisError)]
#[non_exhaustive]
pub enum StartError {
    /// The input does not fit the schema.
    #[error("invalid input of the run: {0}")]
    Input(StateError),
    /// The values are not an object by key.
    #[error("invalid values of the input: expected a JSON object with one value by key")]
    ValuesAreNoObject,
    /// There is no message for the model: not in the input, not in the state, no instructions, and no hook
    /// has added one. Detected before the first request.
    #[error(
        "missing message: the conversation is empty, and the agent has no instructions; add a message to the input"
    )]
    NoMessages,
    /// A message of the input has no parts.
    #[error("invalid message {index} of the input: it has no parts; add a text, or remove the message")]
    NoParts {
        /// The index of the message in the input.
        index: usize,
    },
    /// The state has another schema than the agent.
    #[error("invalid state: its schema differs from the agent's; create it with the agent's `schema()`")]
    OtherSchema,
}

impl From<StateError> for StartError {
    fn from(error: StateError) -> Self {
        StartError::Input(error)
    }
}

/// An error of an answer or an event that does not match the run. Nothing was changed.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum FeedError {
    /// The event, which an answer makes or a record has, cannot happen where the run is.
    #[error("unexpected event \"{event}\": the run needs {need}")]
    NotNeeded {
        /// The event.
        event: &'static str,
        /// The run's need.
        need: String,
    },
    /// The event lacks what it does not repeat: a message that has the result of a call, or its writes.
    #[error("invalid event \"{event}\": the result or the writes of a call are missing")]
    Incomplete {
        /// The event.
        event: &'static str,
    },
    /// The call or branch is not pending.
    #[error("call or branch {place} of the step is not pending")]
    NoSuchItem {
        /// The index in the step.
        place: usize,
    },
    /// A model replies as the assistant.
    #[error("invalid role {role} of the reply: expected assistant")]
    NoReply {
        /// The role of the message.
        role: &'static str,
    },
    /// Decisions were rejected.
    #[error(transparent)]
    Decision(#[from] DecisionError),
    /// An edit was rejected.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The route after a node failed: it names no node, or its function failed.
    #[error("route after {node} failed: {words}")]
    Route {
        /// The node in quotes, or `START`.
        node: String,
        /// The cause.
        words: String,
    },
    /// A superstep of a graph would have too many branches.
    #[error(
        "too many branches in the next superstep: expected at most {max}, found {branches}; see `max_branches`"
    )]
    TooManyBranches {
        /// The number that was planned.
        branches: usize,
        /// The maximum number.
        max: usize,
    },
    /// The agent that is a tool or a node cannot be made on the state.
    #[error("agent of '{name}' could not be created: {words}")]
    Inside {
        /// The tool or the node.
        name: String,
        /// The cause.
        words: String,
    },
    /// The graph's own writes, such as tracked tasks, do not match the state.
    #[error("tasks of the graph could not be tracked: {}", ErrorChain(&**.0))]
    Plan(Box<dyn Error + Send + Sync>),
    /// Hooks around tools can write only with the writes of a call, and cannot touch the conversation.
    #[error(
        "invalid hook action: a hook before or after a tool cannot append or rewrite messages, because the step is open"
    )]
    StepIsOpen,
    /// The event's writes are invalid, or the instructions cannot be rendered.
    #[error(transparent)]
    State(#[from] StateError),
}
