//! Rows of apps, their agents, tools and prices, and of the caller.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stepfold_agent_loop::{Agent, OutputMode};

/// An app: an agent with its sessions.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct AppRow {
    /// The name, as in paths.
    pub(in crate::http) app: String,
    /// The name of the agent.
    pub(in crate::http) agent: String,
    /// Its purpose.
    pub(in crate::http) description: Option<String>,
    /// The model.
    pub(in crate::http) model: String,
    /// The keys of its state: their JSON Schemas, merge handlers (reducers) and descriptions.
    pub(in crate::http) schema: Value,
    /// Whether `/graph` has the shape of its graph.
    pub(in crate::http) has_graph: bool,
}

/// An app, with what its agent is made of.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct AppDetail {
    #[serde(flatten)]
    pub(in crate::http) app: AppRow,
    #[serde(flatten)]
    pub(in crate::http) made_of: AgentRow,
    /// The models, each once: those of the agent, of its summaries, and of the agents inside.
    pub(in crate::http) models: Vec<ModelOfRow>,
    /// The agents inside, at all depths.
    pub(in crate::http) agents: Vec<InsideRow>,
    /// The prices of the models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) prices: Option<PricesRow>,
    /// The nodes and edges, if it is a graph: as `/graph`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) graph: Option<Value>,
}

/// The parts of an agent.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct AgentRow {
    /// The template of its instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) instructions: Option<String>,
    /// The tools that it offers at every step.
    pub(in crate::http) tools: Vec<ToolRow>,
    /// Whether its tools are listed at each step: then `tools` has none.
    pub(in crate::http) lists_tools: bool,
    /// The tools that the last list left out, such as those of an MCP server that no model can be offered. None before it.
    pub(in crate::http) refused_tools: Vec<RefusedToolRow>,
    /// The output that its runs end with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) output: Option<OutputRow>,
}

/// An agent inside of another one.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct InsideRow {
    pub(in crate::http) name: String,
    pub(in crate::http) model: String,
    /// The tools and nodes inside of which it is, the outermost first.
    pub(in crate::http) inside_of: Vec<String>,
    #[serde(flatten)]
    pub(in crate::http) made_of: AgentRow,
}

/// A model, and the agents that have it.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct ModelOfRow {
    pub(in crate::http) model: String,
    pub(in crate::http) agents: Vec<String>,
}

/// A tool.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct ToolRow {
    pub(in crate::http) name: String,
    pub(in crate::http) description: String,
    /// The JSON Schema of the arguments that a model sends.
    pub(in crate::http) parameters: Value,
    /// `pure`, `idempotent` or `at_most_once`.
    pub(in crate::http) effect: Value,
    /// `never`, `always`, `once` (for the same arguments), or `when` (depends on the arguments).
    pub(in crate::http) approval: &'static str,
    /// The agent that answers, if one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) agent: Option<String>,
    /// The SHA-256 of its definition, as it is sent to a model.
    pub(in crate::http) digest: String,
}

/// A tool that is not offered.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct RefusedToolRow {
    /// The toolset, such as the name of the MCP server.
    pub(in crate::http) toolset: String,
    /// The name of the tool there.
    pub(in crate::http) tool: String,
    /// Why it is not offered.
    pub(in crate::http) reason: String,
}

/// A requested output.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct OutputRow {
    /// The way it is requested: `schema` (by the response format), `tool`, or `prompt`.
    pub(in crate::http) mode: &'static str,
    /// Its JSON Schema.
    pub(in crate::http) schema: Value,
}

impl OutputRow {
    pub(in crate::http) fn of(agent: &Agent) -> Option<Self> {
        let mode = match agent.output_mode()? {
            OutputMode::Tool => "tool",
            OutputMode::Prompt => "prompt",
            _ => "schema",
        };
        Some(OutputRow { mode, schema: agent.output_schema().cloned().unwrap_or_default() })
    }
}

/// The prices of models.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct PricesRow {
    /// Always `USD`.
    pub(in crate::http) currency: &'static str,
    /// By model: `input`, `output`, and perhaps `cached_input` and `cache_write`, each for a million tokens.
    pub(in crate::http) models: Value,
}

/// The apps of a server.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct Apps {
    pub(in crate::http) apps: Vec<AppRow>,
}

/// The caller.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct MeRow {
    pub(in crate::http) user: String,
    /// The name that decisions are recorded with.
    pub(in crate::http) name: String,
    /// `read`, `act` or `administer`.
    pub(in crate::http) role: &'static str,
}
