//! An agent as a tool of another one.

use serde_json::{Value, json};
use stepfold_state_core::state::{Delta, Handler, Schema, State, StateError, Write};
use stepfold_tools::{BuildError, IntoTool, Tool, ToolError};

use super::{Agent, BranchAgent, EndedAgent, NotBegun};
use crate::planned::{OpenBranch, PlannedBranch};

/// An agent that another agent can call.
///
/// The model passes a task in words and reads the agent's answer. The inner agent has its own state;
/// [shared](AgentTool::share) keys begin with the outer state's values, and the inner run's writes to them
/// are written to the outer state, with the same handlers, at the end of the step. Calls of one reply that share
/// a key run one after the other, and each begins with the writes of those before it. An inner run that ends
/// without an answer writes nothing. Tokens and calls add up;
/// the outer run's limits apply to the inner one; when a decision about an inner call is required, the outer
/// run pauses.
///
/// Each commit of the inner run is one of the outer run: after a crash it continues, no call that must not
/// run twice is repeated, and its fingerprint is part of the outer agent's. The effects of its own tools
/// decide what may run twice. An inner call whose outcome is unknown then writes nothing, so that the calls
/// after it begin without its writes.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::Agent;
///
/// let counter = Agent::builder(Script::parse("assistant: 12 stalls")?).build()?;
/// let count = counter.as_tool("count", "Counts the stalls of an area.");
///
/// # let model = Script::parse("assistant: > c1 count(task=\"area 3\")\nassistant: Area 3 has 12 stalls.")?;
/// let agent = Agent::builder(model).tool(count).build()?;
/// let outcome = agent.run("how many stalls has area 3?").await?;
/// assert_eq!(outcome.transcript().to_string(), "\
/// user:      how many stalls has area 3?
/// assistant: > c1 count(task=\"area 3\")
/// tool c1:   12 stalls
/// assistant: Area 3 has 12 stalls.
/// ");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[must_use = "a builder does nothing until it is built"]
#[derive(Debug)]
pub struct AgentTool {
    agent: Agent,
    name: String,
    description: String,
    shared: Vec<String>,
}

impl Agent {
    /// The agent as a tool of another one, which the model calls by `name`.
    #[doc(alias("handoff", "delegation", "subagent", "supervisor"))]
    pub fn as_tool(&self, name: impl Into<String>, description: impl Into<String>) -> AgentTool {
        AgentTool {
            agent: self.clone(),
            name: name.into(),
            description: description.into(),
            shared: Vec::new(),
        }
    }
}

impl AgentTool {
    /// Shares these keys of the state; both schemas have to declare them alike.
    pub fn share<K: Into<String>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.shared.extend(keys.into_iter().map(Into::into));
        self
    }

    /// Builds the tool.
    ///
    /// # Errors
    /// [`BuildError`] as for any tool, and when the inner agent does not declare a shared key.
    pub fn build(self) -> Result<Tool, BuildError> {
        let AgentTool { agent, name, description, shared } = self;
        let unknown = shared.iter().filter(|key| !agent.schema().declares(key) && !agent.schema().is_open());
        let faults: Vec<_> = unknown
            .map(|key| {
                let words = format!("is shared, but agent '{}' does not declare it", agent.name());
                stepfold_state_core::state::Issue::new(format!("state key \"{key}\""), words)
            })
            .collect();
        if !faults.is_empty() {
            return Err(BuildError::InvalidTool { tool: name, faults: faults.into_iter().collect() });
        }
        // NOTE: No effect of its own: the tools of the inner agent declare theirs, call by call, since each commit of
        // its run is recorded.
        Tool::hosted(name, description, HostedAgent { agent, shared: shared.clone() })
            .parameters(json!({
                "type": "object",
                "properties": {
                    "task": {
                        "type": "string",
                        "description": "What is to be done, with everything that has to be known for it.",
                    },
                },
                "required": ["task"],
            }))
            .reads(shared.clone())
            .writes(shared)
            .build()
    }
}

impl IntoTool for AgentTool {
    fn into_tool(self) -> Result<Tool, BuildError> {
        self.build()
    }
}

/// The data of a [hosted](Tool::hosted) tool for the loop: the agent inside of its calls.
pub(crate) struct HostedAgent {
    pub(crate) agent: Agent,
    shared: Vec<String>,
}

/// A call is a branch whose item is its arguments.
impl BranchAgent for HostedAgent {
    fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Shared keys have the values that the call sees.
    fn state_on(&self, branch: &OpenBranch) -> Result<State, StateError> {
        let mut state = State::new(self.agent.schema());
        for key in &self.shared {
            if let Some(value) = branch.state.get(key.as_str()) {
                // NOTE: Set, not merged: the inner run begins with the value that its call sees, and merges its own
                // writes into that.
                state.set_with(key.as_str(), value.to_json(), &Handler::replace_values())?;
            }
        }
        Ok(state)
    }

    /// The task that the model gives.
    fn prompt(&self, branch: &OpenBranch) -> Result<Option<String>, NotBegun> {
        let task = branch.planned.item.as_ref().and_then(|arguments| arguments.get("task")?.as_str());
        Ok(Some(task.unwrap_or_default().to_owned()))
    }

    fn shares_write(&self, _: &Schema, write: &Write) -> bool {
        self.shared.iter().any(|key| key == write.key())
    }

    fn shares_messages(&self, _: &PlannedBranch) -> bool {
        false
    }
}

/// The result and the writes of a call whose agent has ended.
pub(crate) fn result_of_call(ended: &EndedAgent<'_>) -> Result<(Value, Delta), ToolError> {
    match &ended.answer {
        Ok(answer) => Ok((answer.clone().unwrap_or_else(|| "".into()), ended.writes.clone())),
        Err(error) => {
            let result = ended.said.last().and_then(|last| last.tool_result());
            Err(ToolError::permanent(match (ended.last_words(), result) {
                (Some(words), _) => format!("{error}. Its last words: {}", words.trim()),
                // It may report an effect.
                (None, Some(result)) => {
                    format!("{error}. Its last call was of '{}': {}", result.name(), result.text().trim())
                }
                (None, None) => error.clone(),
            }))
        }
    }
}
