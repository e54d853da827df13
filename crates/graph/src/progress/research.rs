//! The typed state of a deep-research agent: the template that such agents use on LangGraph, field by field.
//!
//! A field that is `None` is left out when the struct is written as JSON, since a null would be a value.
//!
//! The template says of outputs, errors, tasks and the router's decision no more than that they are objects, so any
//! object is taken. The structs here are a view of them: a known field of the right type is a field of the struct,
//! everything else is among its further fields, as it came. So reading and writing back loses nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::{Schema, State, StateError};

type FieldMap = Map<String, Value>;

/// The state of a deep-research agent, all of it.
///
/// A plain struct: make one, write it into a [`State`] with [`to_state`](ResearchState::to_state), and read it back
/// with [`State::decode`]. In between, [`keys`](super::keys) read and write single fields.
///
/// # Examples
/// ```
/// use stepfold_graph::progress::{OutputFormat, ResearchState, Task, keys};
///
/// let research = ResearchState {
///     query: Some("Which area has most stalls?".to_owned()),
///     tasks: Some(vec![Task::new(1).title("search")]),
///     output_format: Some(OutputFormat::Markdown),
///     ..ResearchState::new("market_research")
/// };
/// let mut state = research.to_state()?;
/// state.set(keys::AUTO, true)?;
///
/// let back: ResearchState = state.decode()?;
/// assert_eq!(back, ResearchState { auto: Some(true), ..research });
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResearchState {
    // ========== The basics ==========
    /// The name of the agent.
    pub graph_type: String,
    /// The user's question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// The session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// The window of the conversation, compressed for this turn.
    #[serde(default)]
    pub messages: Vec<Message>,
    /// The whole conversation over all turns.
    #[serde(default)]
    pub history: Vec<Message>,

    // ========== The model ==========
    /// The model to use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    /// Parameters for the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<FieldMap>,

    // ========== Outputs ==========
    /// The outputs of the nodes, in order.
    #[serde(default)]
    pub outputs: Vec<NodeOutput>,

    // ========== Tasks ==========
    /// The tasks, merged by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-handler" = "upsert_by(id)"))]
    pub tasks: Option<Vec<Task>>,
    /// The task that was started last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_task_id: Option<i64>,
    /// The completed part of all tasks in percent, from 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100))]
    pub overall_progress: Option<u8>,

    // ========== The flow ==========
    /// The deep graph or the plain loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Whether tools run without approval (copilot), or each call needs one (interactive).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto: Option<bool>,
    /// The node that was started last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_node: Option<String>,
    /// The errors of the nodes, in order.
    #[serde(default)]
    pub errors: Vec<NodeErrorRecord>,

    // ========== Limits ==========
    /// The number of executions of each node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_counts: Option<BTreeMap<String, u64>>,
    /// The maximum number of executions of each node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_executions: Option<BTreeMap<String, u64>>,

    // ========== Routing ==========
    /// The last decision of a router, with its reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_decision: Option<RouterDecision>,

    // ========== The user's choices ==========
    /// The user's preferences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_preferences: Option<FieldMap>,
    /// The form of the report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_format: Option<OutputFormat>,
    /// The thoroughness of the research.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub research_depth: Option<ResearchDepth>,

    // ========== Extensions ==========
    /// Whatever an application adds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom_data: Option<FieldMap>,
    /// Figures about the run: windows, compression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stats: Option<FieldMap>,
}

impl ResearchState {
    /// A state of the agent of this name, in which nothing has happened.
    pub fn new(graph_type: impl Into<String>) -> Self {
        ResearchState { graph_type: graph_type.into(), ..ResearchState::default() }
    }

    /// The schema: one key a field. For more keys, `Schema::builder().fields::<ResearchState>()`.
    ///
    /// It is built once in a process.
    ///
    /// # Errors
    /// No known ones: a test builds the schema.
    pub fn schema() -> Result<Schema, StateError> {
        static SCHEMA: OnceLock<Schema> = OnceLock::new();
        if let Some(schema) = SCHEMA.get() {
            return Ok(schema.clone());
        }
        let schema = Schema::of::<ResearchState>()?;
        Ok(SCHEMA.get_or_init(|| schema).clone())
    }

    /// A [`State`] with these values. `None` is unset there.
    ///
    /// # Errors
    /// When a value does not fit its key: a percentage above 100, an object that nests too deeply.
    pub fn to_state(&self) -> Result<State, StateError> {
        let values = serde_json::to_value(self)
            .map_err(|source| StateError::Encode { key: "(the research state)".to_owned(), source })?;
        State::with_values(&ResearchState::schema()?, values)
    }
}

/// A task of the plan: an object with an integer `id`. Further fields are kept, and so is a known field that holds
/// something else than it says here: a status of another word, say, which then is `None` here.
///
/// Tracking sets `status` only. What a node gave for the task is in `outputs`, what went wrong in `errors`;
/// `output` and `error` are for nodes that want it here as well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "StoredTask")]
pub struct Task {
    /// Tells it from the others.
    pub id: i64,
    /// The title, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// How far it is. One without a status is not completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<TaskStatus>,
    /// The result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// The error, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Further fields.
    #[serde(flatten)]
    pub extras: FieldMap,
}

impl Task {
    /// A task of which nothing is known but its id.
    pub fn new(id: i64) -> Self {
        Task { id, ..Task::default() }
    }

    /// With a title.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// With a status.
    #[must_use]
    pub fn status(mut self, status: TaskStatus) -> Self {
        self.status = Some(status);
        self
    }
}

/// How far a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TaskStatus {
    /// Not begun.
    Pending,
    /// A node works on it.
    Running,
    /// It is done.
    Completed,
    /// The node that worked on it failed.
    Failed,
}

impl TaskStatus {
    /// The word that is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            TaskStatus::Pending => "pending",
            TaskStatus::Running => "running",
            TaskStatus::Completed => "completed",
            TaskStatus::Failed => "failed",
        }
    }
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// An output of a node. Any object is valid; fields that are unknown or of another type are kept as further fields.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_graph::progress::NodeOutput;
///
/// let output: NodeOutput = serde_json::from_value(json!({"text": "without a node"}))?;
/// assert_eq!((output.node.as_str(), &output.extras["text"]), ("", &json!("without a node")));
/// assert_eq!(serde_json::to_value(&output)?, json!({"text": "without a node"}));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "FieldMap")]
pub struct NodeOutput {
    /// The node; empty if the object names none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The kind, defined by the application: `plan`, `finding`, `report`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The task that the node worked on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<i64>,
    /// The thing itself: text or any other value.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub content: Value,
    /// Further fields.
    #[serde(flatten)]
    pub extras: FieldMap,
}

impl NodeOutput {
    /// The value: text or any other.
    pub fn new(node: impl Into<String>, content: impl Into<Value>) -> Self {
        NodeOutput { node: node.into(), content: content.into(), ..NodeOutput::default() }
    }

    /// With a kind.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }
}

/// An error of a node. Any object is valid; fields that are unknown or of another type are kept as further fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "FieldMap")]
#[schemars(rename = "NodeError")]
pub struct NodeErrorRecord {
    /// The node; empty if the object names none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The message, for people; empty if missing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The task that the node worked on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<i64>,
    /// Further fields.
    #[serde(flatten)]
    pub extras: FieldMap,
}

impl NodeErrorRecord {
    /// The error of a node.
    pub fn new(node: impl Into<String>, message: impl Into<String>) -> Self {
        NodeErrorRecord { node: node.into(), message: message.into(), ..NodeErrorRecord::default() }
    }
}

/// A decision of a router. Any object is valid; fields that are unknown or of another type are kept as further fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "FieldMap")]
pub struct RouterDecision {
    /// The node that decided; empty if the object names none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The nodes that come next; none at the end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// The reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Further fields.
    #[serde(flatten)]
    pub extras: FieldMap,
}

impl RouterDecision {
    /// The node sends the work to these nodes.
    pub fn new<T: Into<String>>(node: impl Into<String>, targets: impl IntoIterator<Item = T>) -> Self {
        let targets = targets.into_iter().map(Into::into).collect();
        RouterDecision { node: node.into(), targets, ..RouterDecision::default() }
    }

    /// With a reason.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }
}

/// Which machinery answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The graph: plan, search, judge, write.
    Deep,
    /// The plain loop of a model and its tools.
    React,
}

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutputFormat {
    /// Markdown.
    Markdown,
    /// PDF.
    Pdf,
    /// HTML.
    Html,
}

/// How thorough to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResearchDepth {
    /// A quick look.
    Shallow,
    /// Something between.
    Medium,
    /// As far as it goes.
    Deep,
}

/// The fields of every task.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Task")]
struct StoredTask {
    /// Tells it from the others.
    id: i64,
    #[serde(flatten)]
    rest: FieldMap,
}

impl From<StoredTask> for Task {
    fn from(StoredTask { id, rest: mut object }: StoredTask) -> Self {
        Task {
            id,
            title: take(&mut object, "title"),
            status: take(&mut object, "status"),
            output: take(&mut object, "output"),
            error: take(&mut object, "error"),
            extras: object,
        }
    }
}

impl From<FieldMap> for NodeOutput {
    fn from(mut object: FieldMap) -> Self {
        NodeOutput {
            node: take_filled(&mut object, "node"),
            kind: take(&mut object, "kind"),
            task_id: take(&mut object, "task_id"),
            content: take(&mut object, "content").unwrap_or_default(),
            extras: object,
        }
    }
}

impl From<FieldMap> for NodeErrorRecord {
    fn from(mut object: FieldMap) -> Self {
        NodeErrorRecord {
            node: take_filled(&mut object, "node"),
            message: take_filled(&mut object, "message"),
            task_id: take(&mut object, "task_id"),
            extras: object,
        }
    }
}

impl From<FieldMap> for RouterDecision {
    fn from(mut object: FieldMap) -> Self {
        RouterDecision {
            node: take_filled(&mut object, "node"),
            targets: take_filled(&mut object, "targets"),
            reason: take(&mut object, "reason"),
            extras: object,
        }
    }
}

/// Takes a field out of the object, if it is of this type. A null stays where it is: it would not be written back.
fn take<T: DeserializeOwned>(object: &mut FieldMap, field: &str) -> Option<T> {
    let value = object.get(field).filter(|value| !value.is_null())?;
    let taken = T::deserialize(value).ok()?;
    object.remove(field);
    Some(taken)
}

/// The same for a field that is left out when it is empty: an empty one stays where it is too.
fn take_filled<T: DeserializeOwned + Default + PartialEq>(object: &mut FieldMap, field: &str) -> T {
    match object.get(field).map(T::deserialize) {
        Some(Ok(value)) if value != T::default() => {
            object.remove(field);
            value
        }
        _ => T::default(),
    }
}
