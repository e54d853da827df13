//! What the API says about sessions: its own shapes, apart from what is stored.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepfold_agent_loop::{Agent, ApprovalRequest, Decision, Exit, OutputMode};
use stepfold_runner::{Report, RunStatus, failure};
use stepfold_session_scopes::{CommittedEvent, Session, Timestamp};
use stepfold_state_core::chat::ToolCall;

use super::changes::Status;
use super::imported::ImportedRow;
use super::steps::short;

/// An app: an agent with its sessions.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AppRow {
    /// The name, as in paths.
    pub(super) app: String,
    /// The name of the agent.
    pub(super) agent: String,
    /// What it is for.
    pub(super) description: Option<String>,
    /// The model.
    pub(super) model: String,
    /// The keys of its state: their JSON Schemas, merge handlers (reducers) and descriptions.
    pub(super) schema: Value,
    /// Whether `/graph` has the shape of its graph.
    pub(super) has_graph: bool,
}

/// An app, with what its agent is made of.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AppDetail {
    #[serde(flatten)]
    pub(super) app: AppRow,
    #[serde(flatten)]
    pub(super) made_of: AgentRow,
    /// The models, each once: those of the agent, of its summaries, and of the agents inside.
    pub(super) models: Vec<ModelOfRow>,
    /// The agents inside, at all depths.
    pub(super) agents: Vec<InsideRow>,
    /// The prices of the models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prices: Option<PricesRow>,
    /// The nodes and edges, if it is a graph: as `/graph`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) graph: Option<Value>,
}

/// What an agent is made of.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AgentRow {
    /// The template of its instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) instructions: Option<String>,
    /// The tools that it offers at every step.
    pub(super) tools: Vec<ToolRow>,
    /// Whether its tools are listed at each step: then `tools` has none.
    pub(super) lists_tools: bool,
    /// The tools that the last list left out, such as those of an MCP server that no model can be offered. None before it.
    pub(super) refused_tools: Vec<RefusedToolRow>,
    /// The output that its runs end with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output: Option<OutputRow>,
}

/// An agent inside of another one.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct InsideRow {
    pub(super) name: String,
    pub(super) model: String,
    /// The tools and nodes inside of which it is, the outermost first.
    pub(super) inside_of: Vec<String>,
    #[serde(flatten)]
    pub(super) made_of: AgentRow,
}

/// A model, and the agents that have it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ModelOfRow {
    pub(super) model: String,
    pub(super) agents: Vec<String>,
}

/// A tool.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ToolRow {
    pub(super) name: String,
    pub(super) description: String,
    /// The JSON Schema of the arguments that a model sends.
    pub(super) parameters: Value,
    /// `pure`, `idempotent` or `at_most_once`.
    pub(super) effect: Value,
    /// `never`, `always`, `once` (for the same arguments), or `when` (depends on the arguments).
    pub(super) approval: &'static str,
    /// The agent that answers, if one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agent: Option<String>,
    /// The SHA-256 of its definition, as it is sent to a model.
    pub(super) digest: String,
}

/// A tool that is not offered.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RefusedToolRow {
    /// The toolset, such as the name of the MCP server.
    pub(super) toolset: String,
    /// The name of the tool there.
    pub(super) tool: String,
    /// Why it is not offered.
    pub(super) reason: String,
}

/// A requested output.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct OutputRow {
    /// How it is requested: `schema` (by the response format), `tool`, or `prompt`.
    pub(super) mode: &'static str,
    /// Its JSON Schema.
    pub(super) schema: Value,
}

impl OutputRow {
    pub(super) fn of(agent: &Agent) -> Option<Self> {
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
pub(super) struct PricesRow {
    /// Always `USD`.
    pub(super) currency: &'static str,
    /// By model: `input`, `output`, and perhaps `cached_input` and `cache_write`, each for a million tokens.
    pub(super) models: Value,
}

/// The apps of a server.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Apps {
    pub(super) apps: Vec<AppRow>,
}

/// A session in a list.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SessionRow {
    /// The id.
    pub(super) id: String,
    /// The number of its commits.
    pub(super) version: u64,
    /// The oldest version that it can go back to.
    pub(super) oldest: u64,
    /// When it was created (RFC 3339).
    pub(super) created: String,
    /// When it was written last (RFC 3339).
    pub(super) updated: String,
    /// Whether a worker has it, in any process.
    pub(super) claimed: bool,
    /// The session that it was forked from.
    pub(super) parent: Option<ParentRow>,
    /// What it does: absent in answers about changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<Status>,
    /// The beginning of its first message, in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) title: Option<String>,
    /// The number of sessions that were forked from it, and are there: absent in answers about changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) forks: Option<usize>,
    /// Who imported it, or the session that it was forked from: absent for other sessions, and in answers about changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) imported: Option<ImportedRow>,
}

/// The origin of a fork.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct ParentRow {
    pub(super) id: String,
    pub(super) version: u64,
}

/// A page of sessions.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SessionRows {
    /// The sessions, the one that was written last first.
    pub(super) sessions: Vec<SessionRow>,
    /// The cursor of the next page, as `after`; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// A session, and what it waits for.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SessionDetail {
    #[serde(flatten)]
    pub(super) session: SessionRow,
    /// The invocation that runs in this process.
    pub(super) running: Option<String>,
    /// Whether its last run has not ended: it runs, waits for decisions, was interrupted or failed.
    pub(super) unfinished: bool,
    /// The requests that wait for decisions.
    pub(super) pending: Vec<RequestRow>,
    /// Why its last run cannot be restored, with the status `invalid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) invalid: Option<String>,
    /// The messages that were accepted and not taken.
    pub(super) inbox: Vec<WaitingRow>,
}

/// A message in the inbox of a session.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WaitingRow {
    /// The id of its invocation.
    pub(super) invocation: String,
    /// When it was accepted (RFC 3339).
    pub(super) at: String,
    /// Its text.
    pub(super) text: String,
    /// Whether it joins the current run, before the next request to the model.
    pub(super) joins: bool,
}

impl SessionRow {
    pub(super) fn of(session: &Session) -> Self {
        let parent = session.parent.as_ref();
        SessionRow {
            id: session.key.id.to_string(),
            version: session.version,
            oldest: session.oldest,
            created: session.created.to_string(),
            updated: session.updated.to_string(),
            claimed: session.claim.is_some(),
            parent: parent.map(|parent| ParentRow { id: parent.id.to_string(), version: parent.version }),
            status: None,
            title: None,
            forks: None,
            imported: None,
        }
    }
}

/// A request that waits for a decision.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RequestRow {
    /// The id that a decision names. It has a digest of what is asked, so that it is used for nothing else.
    pub(super) id: String,
    /// The call.
    pub(super) call: CallRow,
    /// What is asked, as text for a person: all of the arguments, what the state adds, and warnings. Nothing in it is invisible.
    pub(super) text: String,
    /// Why it is asked: `rule`, `may_have_happened`, `node`, `input`, or `later` (for no person: an outcome comes).
    pub(super) reason: Value,
    /// The question of a tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    /// The values that the state adds to the arguments, by parameter.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(super) inputs_from_state: Value,
    /// How many equal calls of the reply it is about, if more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) times: Option<usize>,
    /// What an approver should know: field names that look like other names, characters that hide or reorder text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) warnings: Option<Vec<String>>,
    /// The JSON Schema that modified arguments must fit, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) schema: Option<Value>,
    /// Whether it can be approved with other arguments.
    pub(super) can_modify: bool,
    /// The token with which an outcome is delivered that comes later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
    /// When it is decided by time (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deadline: Option<String>,
}

/// A call of a tool.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CallRow {
    pub(super) id: String,
    /// The tool.
    pub(super) name: String,
    /// The arguments: an object, or text if the model sent no valid one.
    pub(super) arguments: Value,
}

impl CallRow {
    pub(super) fn of(call: &ToolCall) -> Self {
        let text = call.arguments.to_text();
        let arguments = serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.into_owned()));
        CallRow { id: call.id.clone(), name: call.name.clone(), arguments }
    }
}

impl RequestRow {
    pub(super) fn of(request: &ApprovalRequest) -> Self {
        let inputs = match request.inputs_from_state.as_slice() {
            [] => Value::Null,
            inputs => json(&inputs),
        };
        RequestRow {
            id: request.id.clone(),
            call: CallRow::of(&request.call),
            text: request.to_text(),
            reason: json(&request.reason),
            message: request.message.clone(),
            inputs_from_state: inputs,
            times: (request.times > 1).then_some(request.times),
            warnings: Some(request.warnings()).filter(|warnings| !warnings.is_empty()),
            schema: request.schema().cloned(),
            can_modify: request.can_modify(),
            token: request.token.clone(),
            deadline: request.deadline.map(|at| Timestamp::from(at).to_string()),
        }
    }
}

/// A commit of a session.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EventRow {
    /// The version of the session after it.
    pub(super) version: u64,
    /// Its kind: `began`, `replied`, `answered`, `decided`, `rewind`, and others.
    pub(super) kind: String,
    /// The invocation that it belongs to.
    pub(super) invocation: String,
    pub(super) author: String,
    /// When it was stored (RFC 3339).
    pub(super) at: String,
    /// The step of the run, from 1; absent for an event of no run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) step: Option<u64>,
    /// Microseconds of the run until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) elapsed_us: Option<u64>,
    /// Tokens of the model's reply, or of a summary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<UsageRow>,
    /// Their cost in US dollars, exactly, in decimal: absent without a price of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cost: Option<String>,
    /// The messages that it added to the conversation.
    pub(super) messages: Vec<Value>,
    /// The writes to the state, in order, as they are merged by their handlers.
    pub(super) writes: Vec<WriteRow>,
    /// The exit reason of the run, at its last event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit: Option<Value>,
    /// The author of decisions, or of an edit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) decided_by: Option<String>,
    /// The items inside of which it happened, outermost first: an agent that is a tool or a node. `kind`, `calls`,
    /// `outcomes` and `messages` are then those of the run inside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) path: Vec<ItemRow>,
    /// The calls of a reply.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) calls: Vec<CallRow>,
    /// The branches of a superstep of a graph.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) planned: Vec<ItemRow>,
    /// The calls about which a decision is requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) asked: Vec<QuestionRow>,
    /// The decisions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) decisions: Vec<DecidedRow>,
    /// The calls or branches that are marked as started, since they must not run twice; of `interrupted`, those whose
    /// outcome is unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) started: Vec<ItemRow>,
    /// The outcomes of calls or branches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) outcomes: Vec<OutcomeRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) edited: Option<EditedRow>,
    /// A summary of the conversation, or why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) summary: Option<String>,
    /// The model that replied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<String>,
    /// Why the run failed, of a commit that says so: the run can be resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<String>,
    /// What the hooks of a point did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hook: Option<HookRow>,
    /// Microseconds since the commit before it in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) latency_us: Option<u64>,
    /// Whether it counts: events that were rewound do not.
    pub(super) visible: bool,
}

/// A call or a branch.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct ItemRow {
    /// The id of the call; of a branch the node, with `#` and its place if it is one of several.
    pub(super) call_id: String,
    /// The tool or the node.
    pub(super) name: String,
    pub(super) kind: ItemKind,
    /// The place among those of its step, from 0.
    pub(super) place: usize,
}

/// The call or branch that wrote a value; absent if none did.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct WriterRow {
    /// As in [`ItemRow`].
    pub(super) call_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
}

impl From<ItemRow> for WriterRow {
    fn from(ItemRow { call_id, name, kind, .. }: ItemRow) -> Self {
        let (tool, node) = match kind {
            ItemKind::Tool => (Some(name), None),
            ItemKind::Node => (None, Some(name)),
        };
        WriterRow { call_id, tool, node }
    }
}

/// What an edit has changed beside values, which are its writes.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct EditedRow {
    /// The new results, by call.
    pub(super) results: BTreeMap<String, Value>,
    /// The new arguments of calls that had not begun, by call.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) arguments: BTreeMap<String, Value>,
}

/// What the hooks of a point did: the messages and the writes are those of the commit.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct HookRow {
    /// The point, as in `before tool`.
    pub(super) point: String,
    /// `proceed`, `stop` with its reason, or `go_on`: the run continues instead of ending.
    pub(super) verdict: Value,
    /// Calls that do not run, and what the model is told instead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) answers: Vec<HookAnswerRow>,
    /// The keys of writes that are merged with those of a call, before them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) wrote: Vec<String>,
}

/// A call that a hook has answered.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct HookAnswerRow {
    #[serde(flatten)]
    pub(super) item: ItemRow,
    /// What the model is told.
    pub(super) result: String,
}

/// The kind of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ItemKind {
    #[default]
    Tool,
    Node,
}

/// A call about which a decision is requested. What waits now is in the session's `pending`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct QuestionRow {
    pub(super) call: CallRow,
    /// The question of a tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
}

/// A decision.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DecidedRow {
    /// The id of the request.
    pub(super) request: String,
    /// `approve`, `reject` with its reason, `modify` with the arguments, and others.
    pub(super) decision: Value,
}

/// The outcome of a call or a branch.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct OutcomeRow {
    /// As in [`ItemRow`].
    pub(super) call_id: String,
    pub(super) name: String,
    pub(super) kind: ItemKind,
    pub(super) status: OutcomeStatus,
    /// The result for the model; null for a branch, an error, or one that stands in a later message.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(super) result: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// The number of attempts; 0 if it was not started.
    pub(super) attempts: u32,
    /// The keys that it wrote.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) wrote: Vec<String>,
}

/// How a call or a branch ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum OutcomeStatus {
    Done,
    Failed,
    Rejected,
    /// The run was cancelled before or while it ran.
    Cancelled,
    /// Whether it happened is unknown.
    #[default]
    Unknown,
}

/// A write to the state.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WriteRow {
    pub(super) key: String,
    /// The merge handler (reducer); absent for a removal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) handler: Option<String>,
    /// What is merged into the value; absent for a removal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<Value>,
    #[serde(flatten)]
    pub(super) by: Option<WriterRow>,
}

/// Token counts.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[expect(clippy::struct_field_names, reason = "the names of the field")]
pub(super) struct UsageRow {
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) cached_input_tokens: u64,
    pub(super) reasoning_tokens: u64,
}

impl From<stepfold_state_core::chat::Usage> for UsageRow {
    fn from(usage: stepfold_state_core::chat::Usage) -> Self {
        UsageRow {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cached_input_tokens: usage.cached_input_tokens,
            reasoning_tokens: usage.reasoning_tokens,
        }
    }
}

impl EventRow {
    /// Leaves out what may be long: messages, arguments, results, and values of writes.
    pub(super) fn into_brief(mut self) -> Self {
        self.messages.clear();
        self.summary = None;
        self.failure = self.failure.take().map(|why| short(&why));
        let answers = self.hook.iter_mut().flat_map(|hook| &mut hook.answers);
        answers.for_each(|answer| answer.result = short(&answer.result));
        if let Some(edited) = &mut self.edited {
            let changed = edited.results.values_mut().chain(edited.arguments.values_mut());
            changed.for_each(|value| *value = Value::Null);
        }
        self.asked.iter_mut().for_each(|question| question.message = None);
        let questions = self.asked.iter_mut().map(|question| &mut question.call);
        self.calls.iter_mut().chain(questions).for_each(|call| call.arguments = Value::Null);
        for outcome in &mut self.outcomes {
            outcome.result = Value::Null;
            outcome.error = outcome.error.take().map(|error| short(&error));
        }
        self.writes.iter_mut().for_each(|write| write.value = None);
        self.decisions.iter_mut().for_each(|decided| {
            if let Value::Object(decision) = &mut decided.decision {
                decision.values_mut().for_each(|said| *said = Value::Null);
            }
        });
        self
    }

    /// What a commit says without those before it: see [`RowBuilder`](super::steps::RowBuilder).
    pub(super) fn of(committed: &CommittedEvent, visible: bool) -> Self {
        let event = &*committed.event;
        let writes = event.actions.delta.iter().map(|write| WriteRow {
            key: write.key().to_owned(),
            handler: write.handler().map(stepfold_state_core::state::Handler::name),
            value: write.value().cloned(),
            by: None,
        });
        EventRow {
            version: committed.version,
            kind: event.kind.as_str().to_owned(),
            invocation: event.invocation.to_string(),
            author: event.author.to_string(),
            at: event.at.to_string(),
            step: None,
            elapsed_us: None,
            usage: None,
            cost: None,
            messages: event.messages.iter().map(|message| json(&**message)).collect(),
            writes: writes.collect(),
            exit: event.metadata.get("exit"),
            decided_by: None,
            path: Vec::new(),
            calls: Vec::new(),
            planned: Vec::new(),
            asked: Vec::new(),
            decisions: Vec::new(),
            started: Vec::new(),
            outcomes: Vec::new(),
            edited: None,
            summary: None,
            model: None,
            failure: failure(event),
            hook: None,
            latency_us: None,
            visible,
        }
    }
}

/// A page of commits.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EventRows {
    /// The commits, in order.
    pub(super) events: Vec<EventRow>,
    /// The version to read on from, as `after`; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<u64>,
    /// The version of the session.
    pub(super) version: u64,
    /// The oldest version that is kept.
    pub(super) oldest: u64,
}

/// The state of a session at a version.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StateRow {
    pub(super) version: u64,
    /// The values of the session, and those of scopes that it shares (`user:`, `app:`), which are always the current ones.
    pub(super) values: BTreeMap<String, Value>,
    /// The last write of each key that the session itself has written, in the versions that are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) origin: Option<BTreeMap<String, OriginRow>>,
}

/// Where a value comes from.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct OriginRow {
    /// The version of the last write.
    pub(super) version: u64,
    /// The merge handler (reducer) of that write.
    pub(super) handler: Option<String>,
    /// The number of writes.
    pub(super) writes: u64,
    #[serde(flatten)]
    pub(super) by: Option<WriterRow>,
    /// The kind of the commit with the last write.
    pub(super) kind: String,
}

/// The newest writes of a key, oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct BlameRow {
    pub(super) key: String,
    /// Those that count, in the versions that are kept, up to the version that was asked for.
    pub(super) writes: Vec<BlamedWrite>,
    /// The number of all that do.
    pub(super) count: usize,
    /// The version to read the earlier ones with, as `before`; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) earlier: Option<u64>,
}

/// A write of a key.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct BlamedWrite {
    pub(super) version: u64,
    /// The kind of the commit.
    pub(super) kind: String,
    /// When it was stored (RFC 3339).
    pub(super) at: String,
    #[serde(flatten)]
    pub(super) write: WriteRow,
    /// The value before it; absent if it was unset, or unknown, as of keys that other sessions write too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Value>,
    /// The value after it; absent if it is unset, or unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after: Option<Value>,
}

/// Who asks.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MeRow {
    pub(super) user: String,
    /// The name that decisions are recorded with.
    pub(super) name: String,
    /// `read`, `act` or `administer`.
    pub(super) role: &'static str,
}

/// The changes between two versions.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DiffRow {
    pub(super) from: u64,
    pub(super) to: u64,
    /// The changed values.
    pub(super) changed: Vec<ChangeRow>,
    /// The messages that the second has and the first has not.
    pub(super) messages: Vec<Value>,
}

/// A changed value.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ChangeRow {
    pub(super) key: String,
    /// Absent if it was unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Value>,
    /// Absent if it is unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after: Option<Value>,
}

/// An accepted request.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Accepted {
    /// The invocation. With an idempotency key, the same for each repetition.
    pub(super) invocation: String,
}

/// Stored decisions.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Decided {
    /// The invocation that continues the run.
    pub(super) invocation: String,
    /// The version of the session with the decisions.
    pub(super) version: u64,
    /// The requests.
    pub(super) requests: Vec<String>,
    /// The author that is recorded; of a repetition, the first one.
    pub(super) by: Option<String>,
}

/// The result of a run.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RunRow {
    /// The invocation: the idempotency key, if there was one.
    pub(super) invocation: String,
    pub(super) status: StatusRow,
    /// The text of the last reply.
    pub(super) text: String,
    /// The requested output, if the agent has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output: Option<Value>,
    /// The exit reason, if it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit: Option<Value>,
    /// The requests that it waits for.
    pub(super) pending: Vec<RequestRow>,
    /// The version of the session after it.
    pub(super) version: u64,
    pub(super) usage: UsageRow,
}

/// The status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum StatusRow {
    /// It has ended.
    Finished,
    /// It waits for decisions.
    Waiting,
    /// It was suspended; send the same request again.
    Suspended,
}

impl RunRow {
    pub(super) fn of(report: Report) -> Self {
        let (status, ended, pending) = match &report.status {
            RunStatus::Finished(reason) => (StatusRow::Finished, Some(exit(reason)), Vec::new()),
            RunStatus::Waiting(requests) => {
                (StatusRow::Waiting, None, requests.iter().map(RequestRow::of).collect())
            }
            _ => (StatusRow::Suspended, None, Vec::new()),
        };
        RunRow {
            invocation: report.idempotency_key.to_string(),
            status,
            text: report.text,
            output: report.output,
            exit: ended,
            pending,
            version: report.version,
            usage: report.usage.into(),
        }
    }
}

/// A decision about a request.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum DecisionRow {
    /// The call runs.
    Approve,
    /// The call does not run; the model reads why.
    Reject(Rejection),
    /// The call runs with other arguments.
    Modify(Modification),
}

/// Why a call does not run.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rejection {
    /// The reason, for the model.
    #[serde(default)]
    reason: String,
}

/// With what a call runs.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Modification {
    /// The arguments, or the answer to the question of a tool.
    arguments: Value,
}

impl From<DecisionRow> for Decision {
    fn from(row: DecisionRow) -> Self {
        match row {
            DecisionRow::Approve => Decision::Approve,
            DecisionRow::Reject(Rejection { reason }) => Decision::reject(reason),
            DecisionRow::Modify(Modification { arguments }) => Decision::modify(arguments),
        }
    }
}

/// An exit reason, as it is stored.
pub(super) fn exit(exit: &Exit) -> Value {
    json(exit)
}

/// What serialises without errors: maps have text keys.
pub(super) fn json<T: Serialize + ?Sized>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}
