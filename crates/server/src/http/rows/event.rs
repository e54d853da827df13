//! Rows of commits, and of their parts.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stepfold_runner::failure;
use stepfold_session_scopes::CommittedEvent;

use super::convert::{json, short};
use super::request::CallRow;

/// A commit of a session.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct EventRow {
    /// The version of the session after it.
    pub(in crate::http) version: u64,
    /// Its kind: `began`, `replied`, `answered`, `decided`, `rewind`, and others.
    pub(in crate::http) kind: String,
    /// The invocation that it belongs to.
    pub(in crate::http) invocation: String,
    pub(in crate::http) author: String,
    /// When it was stored (RFC 3339).
    pub(in crate::http) at: String,
    /// The step of the run, from 1; absent for an event of no run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) step: Option<u64>,
    /// Microseconds of the run until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) elapsed_us: Option<u64>,
    /// Tokens of the model's reply, or of a summary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) usage: Option<UsageRow>,
    /// Their cost in US dollars, exactly, in decimal: absent without a price of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) cost: Option<String>,
    /// The messages that it added to the conversation.
    pub(in crate::http) messages: Vec<Value>,
    /// The writes to the state, in order, as they are merged by their handlers.
    pub(in crate::http) writes: Vec<WriteRow>,
    /// The exit reason of the run, at its last event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) exit: Option<Value>,
    /// The author of decisions, or of an edit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) decided_by: Option<String>,
    /// The items inside of which it happened, outermost first: an agent that is a tool or a node. `kind`, `calls`,
    /// `outcomes` and `messages` are then those of the run inside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::http) path: Vec<ItemRow>,
    /// The calls of a reply.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::http) calls: Vec<CallRow>,
    /// The branches of a superstep of a graph.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::http) planned: Vec<ItemRow>,
    /// The calls about which a decision is requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::http) asked: Vec<QuestionRow>,
    /// The decisions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::http) decisions: Vec<DecidedRow>,
    /// The calls or branches that are marked as started, since they must not run twice; of `interrupted`, those whose
    /// outcome is unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::http) started: Vec<ItemRow>,
    /// The outcomes of calls or branches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::http) outcomes: Vec<OutcomeRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) edited: Option<EditedRow>,
    /// A summary of the conversation, or why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) summary: Option<String>,
    /// The model that replied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) model: Option<String>,
    /// Why the run failed, of a commit that says so: the run can be resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) failure: Option<String>,
    /// The effects of the hooks of a point.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) hook: Option<HookRow>,
    /// Microseconds since the commit before it in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) latency_us: Option<u64>,
    /// Whether it counts: events that were rewound do not.
    pub(in crate::http) visible: bool,
}

/// A call or a branch.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(in crate::http) struct ItemRow {
    /// The id of the call; of a branch the node, with `#` and its place if it is one of several.
    pub(in crate::http) call_id: String,
    /// The tool or the node.
    pub(in crate::http) name: String,
    pub(in crate::http) kind: ItemKind,
    /// The place among those of its step, from 0.
    pub(in crate::http) place: usize,
}

/// The call or branch that wrote a value; absent if none did.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(in crate::http) struct WriterRow {
    /// As in [`ItemRow`].
    pub(in crate::http) call_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) tool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) node: Option<String>,
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

/// The changes of an edit beside values, which are its writes.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in crate::http) struct EditedRow {
    /// The new results, by call.
    pub(in crate::http) results: BTreeMap<String, Value>,
    /// The new arguments of calls that had not begun, by call.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(in crate::http) arguments: BTreeMap<String, Value>,
}

/// The effects of the hooks of a point: the messages and the writes are those of the commit.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct HookRow {
    /// The point, as in `before tool`.
    pub(in crate::http) point: String,
    /// `proceed`, `stop` with its reason, or `go_on`: the run continues instead of ending.
    pub(in crate::http) verdict: Value,
    /// Calls that do not run, and what the model is told instead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::http) answers: Vec<HookAnswerRow>,
    /// The keys of writes that are merged with those of a call, before them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::http) wrote: Vec<String>,
}

/// A call that a hook has answered.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct HookAnswerRow {
    #[serde(flatten)]
    pub(in crate::http) item: ItemRow,
    /// The result for the model.
    pub(in crate::http) result: String,
}

/// The kind of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum ItemKind {
    #[default]
    Tool,
    Node,
}

/// A call about which a decision is requested. What waits now is in the session's `pending`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct QuestionRow {
    pub(in crate::http) call: CallRow,
    /// The question of a tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) message: Option<String>,
}

/// A decision.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct DecidedRow {
    /// The id of the request.
    pub(in crate::http) request: String,
    /// `approve`, `reject` with its reason, `modify` with the arguments, and others.
    pub(in crate::http) decision: Value,
}

/// The outcome of a call or a branch.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in crate::http) struct OutcomeRow {
    /// As in [`ItemRow`].
    pub(in crate::http) call_id: String,
    pub(in crate::http) name: String,
    pub(in crate::http) kind: ItemKind,
    pub(in crate::http) status: OutcomeStatus,
    /// The result for the model; null for a branch, an error, or one that stands in a later message.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(in crate::http) result: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) error: Option<String>,
    /// The number of attempts; 0 if it was not started.
    pub(in crate::http) attempts: u32,
    /// The keys that it wrote.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::http) wrote: Vec<String>,
}

/// The status of the outcome of a call or a branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum OutcomeStatus {
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
pub(in crate::http) struct WriteRow {
    pub(in crate::http) key: String,
    /// The merge handler (reducer); absent for a removal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) handler: Option<String>,
    /// The value that is merged; absent for a removal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) value: Option<Value>,
    #[serde(flatten)]
    pub(in crate::http) by: Option<WriterRow>,
}

/// Token counts.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[expect(clippy::struct_field_names, reason = "the names of the field")]
pub(in crate::http) struct UsageRow {
    pub(in crate::http) input_tokens: u64,
    pub(in crate::http) output_tokens: u64,
    pub(in crate::http) cached_input_tokens: u64,
    pub(in crate::http) reasoning_tokens: u64,
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
    pub(in crate::http) fn into_brief(mut self) -> Self {
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

    /// The row of a commit alone, without names from the commits before it: see
    /// [`RowBuilder`](super::row_builder::RowBuilder).
    pub(in crate::http) fn of(committed: &CommittedEvent, visible: bool) -> Self {
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
pub(in crate::http) struct EventRows {
    /// The commits, in order.
    pub(in crate::http) events: Vec<EventRow>,
    /// The version to read on from, as `after`; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) next: Option<u64>,
    /// The version of the session.
    pub(in crate::http) version: u64,
    /// The oldest version that is kept.
    pub(in crate::http) oldest: u64,
}
