//! What can go wrong with an agent and its runs, by who can act on it.
//!
//! The author of the agent can: [`AgentError`], before anything runs. The caller can: [`StartError`] and
//! [`RunError`](crate::RunError), with the run as far as it came. The host can: [`FeedError`], when it answers what was not
//! asked. What the model can act on is no error here but a message.

use std::error::Error;

use stepfold_state_core::ErrorChain;
use stepfold_state_core::state::{Fault, Faults, StateError};
use thiserror::Error as ThisError;

use crate::decisions::DecisionError;

/// Why an agent could not be built. All faults are listed.
#[derive(Debug, ThisError)]
#[error("agent '{agent}' has faults: {faults}")]
#[non_exhaustive]
pub struct AgentError {
    /// The agent.
    pub agent: String,
    /// Each fault, with what it is about as its path.
    pub faults: Faults,
}

impl AgentError {
    /// An error with these faults. For what builds agents of its own, as graphs do.
    pub fn new(agent: impl Into<String>, faults: impl IntoIterator<Item = Fault>) -> Self {
        AgentError { agent: agent.into(), faults: faults.into_iter().collect() }
    }
}

/// Why a run could not begin.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum StartError {
    /// The input does not fit the schema.
    #[error("the input of the run does not fit the state: {0}")]
    Input(StateError),
    /// The values are not an object by key.
    #[error("the values of the input are not a JSON object; give one value by key")]
    ValuesAreNoObject,
    /// There is no message to send to the model: none of the input, none of the state, no instructions, and no hook has
    /// added one. Found out when the model is to be asked.
    #[error("the conversation is empty, and the agent has no instructions; give the input a message")]
    NoMessages,
    /// A message of the input has no parts.
    #[error("message {index} of the input has no parts; give it a text, or leave it out")]
    NoParts {
        /// The place of the message in the input, from 0.
        index: usize,
    },
    /// The state has another schema than the agent.
    #[error("the state has another schema than the agent; make it with the agent's `schema()`")]
    OtherSchema,
}

impl From<StateError> for StartError {
    fn from(error: StateError) -> Self {
        StartError::Input(error)
    }
}

/// Why an answer or an event does not fit where a run is. Nothing was changed.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum FeedError {
    /// The run does not need this answer.
    #[error("the run does not need {answer} now; it needs: {need}")]
    NotNeeded {
        /// What was answered.
        answer: &'static str,
        /// What the run needs.
        need: String,
    },
    /// The event cannot happen where the run is.
    #[error("the event \"{event}\" cannot happen here; the run needs: {need}")]
    Misplaced {
        /// The event.
        event: &'static str,
        /// What the run needs.
        need: String,
    },
    /// There is no open call or branch at this place of the step.
    #[error("there is no open call or branch at place {place} of the step")]
    NoSuchItem {
        /// The place.
        place: usize,
    },
    /// A model replies as the assistant.
    #[error("the reply has the role {role}; a model replies as the assistant")]
    NoReply {
        /// The role of the message.
        role: &'static str,
    },
    /// Decisions were refused.
    #[error(transparent)]
    Decision(#[from] DecisionError),
    /// The route after a node failed: it names no node, or its function failed.
    #[error("the route after {node} failed: {words}")]
    Route {
        /// The node in quotes, or `START`.
        node: String,
        /// Why not.
        words: String,
    },
    /// A superstep of a graph would have too many branches.
    #[error(
        "the next superstep would have {branches} branches, and the graph allows {max}; see `max_branches`"
    )]
    TooManyBranches {
        /// How many it would have.
        branches: usize,
        /// How many it may have.
        max: usize,
    },
    /// The agent that is a tool or a node cannot be made on the state.
    #[error("the agent of '{name}' cannot be made: {words}")]
    Inside {
        /// The tool or the node.
        name: String,
        /// Why not.
        words: String,
    },
    /// What a graph writes by itself, such as tracked tasks, does not fit the state.
    #[error("the tasks of the graph cannot be tracked: {}", ErrorChain(&**.0))]
    Plan(Box<dyn Error + Send + Sync>),
    /// Hooks around tools can write only with the writes of a call, and cannot touch the conversation.
    #[error("a hook before or after a tool cannot append or rewrite messages, because the step is open")]
    StepIsOpen,
    /// The state does not take what the event writes, or the instructions cannot be rendered on it.
    #[error(transparent)]
    State(#[from] StateError),
}
