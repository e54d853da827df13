//! The input of a node, and its errors.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stepfold_agent_loop::plan::{Emitter, OpenBranch};
use stepfold_agent_loop::{ApprovalRequest, Decision};
use stepfold_state_core::decode;
use stepfold_state_core::state::{ReadKey, State};
use stepfold_tools::{CancellationToken, ToolError, panic_message};

/// The input of a node's function: a snapshot of the state, the item of its branch, and an emitter. Cheap to
/// clone.
///
/// # Examples
/// ```
/// use stepfold_graph::{NodeContext, NodeError, Update};
/// use stepfold_state_core::state::Key;
///
/// const QUERY: Key<String> = Key::new("query");
///
/// async fn search(node: NodeContext) -> Result<Update, NodeError> {
///     let query = node.get(QUERY)?.ok_or_else(|| NodeError::permanent("there is no query"))?;
///     node.emit("status", format!("searching for {query}")).await;
///     Ok(Update::new().set("found", vec![query]))
/// }
/// ```
#[derive(Clone)]
pub struct NodeContext(Arc<ContextParts>);

struct ContextParts {
    branch: OpenBranch,
    cancellation: CancellationToken,
    emitter: Option<Emitter>,
}

impl NodeContext {
    /// The context of a branch.
    pub(crate) fn of(branch: OpenBranch, cancellation: CancellationToken, emitter: Option<Emitter>) -> Self {
        NodeContext(Arc::new(ContextParts { branch, cancellation, emitter }))
    }

    /// The name of the node.
    pub fn node(&self) -> &str {
        &self.0.branch.planned.node
    }

    /// The number of this superstep, among those of the run in which the node has branches, from 1.
    pub fn execution(&self) -> u64 {
        self.0.branch.execution
    }

    /// The state at the beginning of the superstep. A snapshot: it does not include concurrent branches.
    pub fn state(&self) -> &State {
        &self.0.branch.state
    }

    /// Reads a key of [`state`](NodeContext::state).
    ///
    /// # Errors
    /// With a typed key, when the value is not of its type.
    pub fn get<K: ReadKey>(&self, key: K) -> K::Output<'_> {
        self.0.branch.state.get(key)
    }

    /// The item of this branch: one of the fanned-out list, or the item passed to [`Update::goto_with`].
    ///
    /// [`Update::goto_with`]: super::Update::goto_with
    pub fn item(&self) -> Option<&Value> {
        self.0.branch.planned.item.as_ref()
    }

    /// The item of this branch as a `T`.
    ///
    /// # Errors
    /// A permanent error if the branch has no item, or the item is not a `T`.
    pub fn item_as<T: DeserializeOwned>(&self) -> Result<T, NodeError> {
        let item = self.item().ok_or_else(|| {
            NodeError::permanent(format!(
                "missing item of node '{}': it is not a fan-out branch",
                self.node()
            ))
        })?;
        decode(item)
            .map_err(|error| NodeError::permanent(format!("invalid item of node '{}': {error}", self.node())))
    }

    /// A key for the effect of this branch that stays the same when it runs again, and differs for every other.
    /// Hand it to services that know idempotency keys.
    pub fn idempotency_key(&self) -> &str {
        &self.0.branch.key
    }

    /// The key of one of several effects.
    pub fn key_for(&self, label: &str) -> String {
        format!("{}/{label}", self.0.branch.key)
    }

    /// Cancelled with the run, and at the timeout. The function is then dropped; work that it has delegated
    /// should check the token.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.0.cancellation
    }

    /// A resource of the application.
    pub fn resource<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.branch.resources.get()
    }

    /// Emits an output to observers, as [`RunEvent::Output`](stepfold_agent_loop::RunEvent::Output). It is not recorded:
    /// durable values belong in the [`Update`](super::Update).
    pub async fn emit(&self, kind: impl Into<String>, value: impl Into<Value>) {
        if let Some(emitter) = &self.0.emitter {
            emitter.emit(kind.into(), value.into()).await;
        }
    }

    /// Asks for a decision about something. The first time this is an error, which the function returns with `?`: the
    /// run pauses with the question among its [pending](stepfold_agent_loop::Outcome::pending) requests, in which the
    /// call has the arguments `about`. After the decision the function runs again, and gets the decision here. So ask
    /// before anything that costs.
    ///
    /// A decision applies to the shown subject. If the function runs again and asks with the same label about
    /// another subject, that is a new request: `about` should contain everything that the function acts on,
    /// including values of the state, which other sessions may change before the decision. `label`
    /// distinguishes the requests of one run of the function. Modified arguments are in [`Decision::Modify`],
    /// as any object; with a schema, [`ask_fitting`](NodeContext::ask_fitting) rejects invalid ones.
    ///
    /// # Errors
    /// One that makes the run pause, until there is a decision.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_agent_loop::Decision;
    /// use stepfold_graph::{NodeContext, NodeError, Update};
    ///
    /// async fn publish(node: NodeContext) -> Result<Update, NodeError> {
    ///     match node.ask("publish", json!({"title": "Stalls"}))? {
    ///         Decision::Approve => Ok(Update::new().set("published", true)),
    ///         _ => Ok(Update::new().set("published", false)),
    ///     }
    /// }
    /// ```
    pub fn ask(&self, label: &str, about: impl Serialize) -> Result<Decision, NodeError> {
        self.decision(label, about, None)
    }

    /// Asks like [`ask`](NodeContext::ask), with a JSON Schema for modified arguments. A decision with invalid
    /// arguments is refused, as for a tool, and the request stays pending. With the schema `false` the request can only be
    /// approved or rejected.
    ///
    /// # Errors
    /// As [`ask`](NodeContext::ask).
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_agent_loop::Decision;
    /// use stepfold_graph::{NodeContext, NodeError, Update};
    ///
    /// async fn pay(node: NodeContext) -> Result<Update, NodeError> {
    ///     let schema = json!({"type": "object", "properties": {"euro": {"type": "integer"}}, "required": ["euro"]});
    ///     Ok(match node.ask_fitting("pay", json!({"euro": 5}), schema)? {
    ///         Decision::Approve => Update::new().set("paid", 5),
    ///         Decision::Modify { arguments } => Update::new().set("paid", arguments["euro"].clone()),
    ///         _ => Update::new(),
    ///     })
    /// }
    /// ```
    pub fn ask_fitting(
        &self,
        label: &str,
        about: impl Serialize,
        parameters: impl Into<Value>,
    ) -> Result<Decision, NodeError> {
        self.decision(label, about, Some(parameters.into()))
    }

    fn decision(
        &self,
        label: &str,
        about: impl Serialize,
        parameters: Option<Value>,
    ) -> Result<Decision, NodeError> {
        // NOTE: The request covers its subject, so a function that asks again about something else gets no old
        // decision.
        let about = serde_json::to_value(&about)?;
        let decision = self.0.branch.decision(label, about, parameters);
        decision.map_err(|request| NodeError(NodeErrorKind::Asks(request)))
    }
}

impl fmt::Debug for NodeContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeContext").field("branch", &self.0.branch.label()).finish_non_exhaustive()
    }
}

/// An error of a node.
///
/// `?` turns any error into one. Like `anyhow::Error`, and for the same reason, this type is not an
/// [`Error`](std::error::Error) itself.
///
/// # Examples
/// ```
/// use stepfold_graph::NodeError;
///
/// fn parse(text: &str) -> Result<u64, NodeError> {
///     if text.is_empty() {
///         return Err(NodeError::permanent("the number is empty"));
///     }
///     Ok(text.parse()?)
/// }
/// assert_eq!(parse("x").unwrap_err().to_string(), "invalid digit found in string");
/// ```
pub struct NodeError(pub(crate) NodeErrorKind);

#[derive(Debug)]
pub(crate) enum NodeErrorKind {
    Failed { message: String, is_permanent: bool },
    Asks(Box<ApprovalRequest>),
}

impl NodeError {
    /// An error after which another try may help, if the node has [retries](super::Node::retry).
    pub fn new(message: impl Into<String>) -> Self {
        NodeError(NodeErrorKind::Failed { message: message.into(), is_permanent: false })
    }

    /// An error after which trying again would give the same.
    pub fn permanent(message: impl Into<String>) -> Self {
        NodeError(NodeErrorKind::Failed { message: message.into(), is_permanent: true })
    }

    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Self {
        NodeError::new(format!("node panicked: {}", panic_message(panic)))
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            NodeErrorKind::Failed { message, .. } => f.write_str(message),
            NodeErrorKind::Asks(request) => write!(f, "approval `{}` is pending", request.id),
        }
    }
}

/// The text: it is what a failed `unwrap` and a `main` that returns the error print.
impl fmt::Debug for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for NodeError {
    fn from(error: E) -> Self {
        // With its causes, in one line.
        NodeError::new(ToolError::from(error).to_string())
    }
}
