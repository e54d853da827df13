//! The form of a graph file. As for agent files, the documentation of these fields is that of the file.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::agent::{
    AgentFileForm, ChangedForm, EffectForm, NamedValues, PriceForm, ProgramForm, StateKeyForm, TimeSpan,
};
use super::budget::BudgetForm;
use super::by_type::by_type;
use super::rate_limit::RateLimitForm;
use super::redact::RedactForm;
use super::retention::RetentionForm;

by_type!(AgentForm, "string or object", text => AgentForm::File, table => AgentForm::Inline);
by_type!(AnswersForm, "string or object", text => AnswersForm::Key, table => AnswersForm::Fields);
by_type!(NodeNames, "string or list", text => NodeNames::One, list => NodeNames::Many);

/// A graph for `stepfold run` and `stepfold chat`: agents and programs over one state.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(title = "A stepfold graph")]
pub(crate) struct GraphForm {
    /// The graph's name, in records and as the first part of its sessions' keys; the file's name without its
    /// extension by default.
    pub(crate) name: Option<String>,
    /// The model of agents without their own: `PROVIDER:MODEL`, `URL#MODEL`, or `script:FILE`. `--model`
    /// overrides it and those of the agents.
    pub(crate) model: Option<String>,
    /// The keys of the state. Agents in separate files share the keys that both declare equally. If a node is
    /// tracked, the keys of progress (`tasks`, `outputs`, `errors` and so on) are declared automatically.
    pub(crate) state: NamedValues<StateKeyForm>,
    /// Whether undeclared keys are accepted.
    pub(crate) open_state: bool,
    /// Whether agents are configured by the state: `model_id` names their model, `params` are its parameters, and if `auto`
    /// is false every call of a tool needs an approval. A writer of `model_id` decides which provider reads the
    /// conversation.
    pub(crate) per_run: bool,
    /// The nodes, by name. Concurrent writes are merged in the order of the nodes here.
    pub(crate) nodes: NamedValues<NodeForm>,
    /// Unconditional edges.
    pub(crate) edges: Vec<EdgeForm>,
    /// Edges that are chosen by a value of the state.
    pub(crate) routes: Vec<RouteForm>,
    /// Limits of a run.
    pub(crate) limits: GraphLimitsForm,
    /// Ask a human about programs that must not run twice and had started before a crash; else they have failed.
    pub(crate) ask_when_uncertain: bool,
    /// The prices of models, by name, also of its agents: the server computes the costs of steps from them, and budgets in
    /// dollars need them.
    pub(crate) prices: NamedValues<PriceForm>,
    /// Limits on what runs spend on models, its agents included, over all sessions and processes. A request counts in each
    /// of them. Those in the files of its agents do not count here.
    pub(crate) budgets: Vec<BudgetForm>,
    /// Limits on requests and tokens per minute, that all processes on the store share.
    pub(crate) rate_limits: Vec<RateLimitForm>,
    /// Replaces sensitive parts of messages, arguments, results and values before they are stored.
    pub(crate) redact: Option<RedactForm>,
    /// Removes sessions, events and waiting messages by their age.
    pub(crate) retention: Option<RetentionForm>,
    /// The handling of unfinished runs of this file after a change of it.
    pub(crate) when_changed: ChangedForm,
    /// For `when_changed = "pinned"`: programs and addresses that stored versions of this file may still use though this one
    /// does not, as in `["./pay.sh", "https://bank.example"]`.
    pub(crate) former_programs: Vec<String>,
}

/// A node: one of `agent`, `command` and `says`, and its settings.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NodeForm {
    /// The file of an agent or a graph, relative to the folder of this file; or an agent as a table, which has the
    /// graph's state.
    pub(crate) agent: Option<AgentForm>,
    /// A program, as in `["./save.sh", "--all"]`, or a table as for command tools. Its standard input is an
    /// object of the node, its `item` and the `state`; its output is a value for `answers`, or an object with
    /// any of `writes`, `say`, `outputs` and `goto`.
    pub(crate) command: Option<ProgramForm>,
    /// Says this in the conversation: a template over the state.
    pub(crate) says: Option<String>,
    /// The agent's request, in a separate conversation: a template over the state, in which `{item}` is the
    /// item of the branch. Without it the agent continues the graph's conversation.
    pub(crate) asks: Option<String>,
    /// The key that the answer is written to; or, as in `{ tasks = "list" }`, keys with fields of the answer.
    pub(crate) answers: Option<AnswersForm>,
    /// The keys that an agent shares with the graph; by default all that both declare equally.
    pub(crate) shares: Option<Vec<String>>,
    /// The keys that a program receives; all keys under `state` by default.
    pub(crate) reads: Option<Vec<String>>,
    /// The nodes that a program may choose by `goto`, or `END`.
    pub(crate) goes_to: Vec<String>,
    /// The approval rule of a program: never, or always.
    pub(crate) approval: NodeApprovalForm,
    /// The effect of a program outside the process, which determines how an interrupted one is resumed;
    /// `idempotent` by default.
    pub(crate) effect: Option<EffectForm>,
    /// The maximum number of steps of a run in which the node may be executed; 3 by default.
    pub(crate) max_executions: Option<u64>,
    /// The next node if this one has reached its limit; the run ends there by default.
    pub(crate) at_limit: Option<String>,
    /// The next node after a failure; by default the run fails, and can be resumed.
    pub(crate) on_error: Option<String>,
    /// Continue along the edges also when the node has failed.
    pub(crate) go_on_after_error: bool,
    /// The number of retries after a failure.
    pub(crate) retries: usize,
    /// The time that one attempt may take, as in `30s`.
    pub(crate) timeout: Option<TimeSpan>,
    /// Run the node only when nothing else is left to run.
    pub(crate) deferred: bool,
    /// Track the node's task, which the `id` of its item names: its status, its output, the percentage.
    pub(crate) tracked: bool,
}

/// An agent of a node.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum AgentForm {
    /// The file that describes it.
    File(String),
    /// The agent itself.
    Inline(Box<AgentFileForm>),
}

/// The destination of an answer.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum AnswersForm {
    /// To this key.
    Key(String),
    /// Fields of it to keys: key, then field.
    Fields(BTreeMap<String, String>),
}

/// The approval rule of programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NodeApprovalForm {
    /// No approval.
    #[default]
    Never,
    /// A human, each time.
    Always,
}

/// An unconditional edge.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EdgeForm {
    /// The node, or `START`. A list is a join: the edge is taken when all of them have finished.
    #[schemars(required)]
    // NOTE: Required fields are options here: a missing one is a fault at its line, and the rest is checked.
    pub(crate) from: Option<NodeNames>,
    /// The node, or `END`. A list is several edges, taken concurrently.
    #[schemars(required)]
    pub(crate) to: Option<NodeNames>,
    /// A key with a list: one branch for each item, concurrently.
    pub(crate) each: Option<String>,
}

/// An edge that is chosen by a value of the state.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RouteForm {
    /// The node, or `START`.
    #[schemars(required)]
    pub(crate) from: Option<String>,
    /// The key of the value that chooses.
    #[schemars(required)]
    pub(crate) key: Option<String>,
    /// The target for each value. Text is compared without surrounding spaces; other values are JSON.
    #[schemars(required)]
    pub(crate) cases: Option<NamedValues<String>>,
    /// The target for other values, and for an unset key.
    #[schemars(required)]
    pub(crate) otherwise: Option<String>,
}

/// A name, or several.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum NodeNames {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl NodeNames {
    /// Each, with its place if there may be several.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Option<usize>, &str)> {
        let (one, many) = match self {
            NodeNames::One(name) => (Some((None, name.as_str())), &[][..]),
            NodeNames::Many(names) => (None, names.as_slice()),
        };
        one.into_iter().chain(many.iter().enumerate().map(|(place, name)| (Some(place), name.as_str())))
    }
}

/// Limits of a run of a graph.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GraphLimitsForm {
    /// Steps, in each of which nodes run concurrently; 100 by default.
    pub(crate) steps: Option<u64>,
    /// Tokens read and written.
    pub(crate) tokens: Option<u64>,
    /// Time, pauses left out, as in `10m`.
    pub(crate) time: Option<TimeSpan>,
    /// Branches of one step; 4096 by default. More are an error.
    pub(crate) branches: Option<usize>,
    /// Branches that run at the same time; 64 by default. The others wait.
    pub(crate) parallel: Option<usize>,
}
