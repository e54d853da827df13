//! A node of a graph: a function over a snapshot of the state, or an agent, with its settings.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};
use stepfold_agent_loop::plan::AttemptPolicy;
use stepfold_agent_loop::state_core::canonical_json;
use stepfold_tools::{Effect, Retry};

use super::agent_node::AgentNode;
use super::context::{NodeContext, NodeError};
use super::progress::DEFAULT_MAX_EXECUTIONS;
use super::update::Update;

/// A node of a [`Graph`](super::Graph), with its settings.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use stepfold_graph::{Node, NodeContext, NodeError, Update};
/// use stepfold_tools::Retry;
///
/// async fn fetch(node: NodeContext) -> Result<Update, NodeError> {
///     Ok(Update::new().set("page", "..."))
/// }
///
/// let node = Node::new(fetch)
///     .timeout(Duration::from_secs(20))
///     .retry(Retry::times(2))
///     .max_executions(10)
///     .on_error("give_up");
/// ```
#[doc(alias("component", "step"))]
#[must_use = "a node does nothing until it is in a graph"]
#[derive(Clone)]
pub struct Node {
    pub(crate) work: NodeWork,
    pub(crate) max_executions: u64,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry: Option<Retry>,
    pub(crate) effect: Effect,
    pub(crate) on_error: OnError,
    pub(crate) at_limit: Option<String>,
    pub(crate) is_deferred: bool,
    pub(crate) is_tracked: bool,
    pub(crate) goes_to: Vec<String>,
    pub(crate) version: Option<String>,
}

/// The work of a node.
#[derive(Clone)]
pub(crate) enum NodeWork {
    Function(Arc<NodeFunction>),
    Agent(Box<AgentNode>),
}

pub(crate) type NodeFunction =
    dyn Fn(NodeContext) -> BoxFuture<'static, Result<Update, NodeError>> + Send + Sync;

/// The continuation of a graph after a node's failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnError {
    /// The run fails, and can be resumed.
    #[default]
    Fail,
    /// The failure is recorded, and the graph continues along the node's edges.
    GoOn,
    /// The graph continues at this node.
    Goto(String),
}

impl OnError {
    fn words(&self) -> String {
        match self {
            OnError::Fail => "fail".to_owned(),
            OnError::GoOn => "go on".to_owned(),
            OnError::Goto(node) => format!("go to {node}"),
        }
    }
}

impl Node {
    /// A node of an async function over a [`NodeContext`] that returns an [`Update`], or nothing.
    pub fn new<F, Fut, U>(function: F) -> Self
    where
        F: Fn(NodeContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<U, NodeError>> + Send + 'static,
        U: Into<Update>,
    {
        let function = move |context: NodeContext| {
            // A function may panic before it gives its future.
            let made = std::panic::catch_unwind(AssertUnwindSafe(|| function(context)));
            async move {
                let future = made.map_err(|panic| NodeError::panicked(&*panic))?;
                // NOTE: A panic is the failure of this node: branches beside it keep their outcomes.
                match AssertUnwindSafe(future).catch_unwind().await {
                    Ok(result) => result.map(Into::into),
                    Err(panic) => Err(NodeError::panicked(&*panic)),
                }
            }
            .boxed()
        };
        // The effect of a function is known to its author alone: it may run again under the same key.
        Node::of(NodeWork::Function(Arc::new(function)), Effect::Idempotent)
    }

    /// A node of an agent.
    pub fn agent(agent: impl Into<AgentNode>) -> Self {
        Node::of(NodeWork::Agent(Box::new(agent.into())), Effect::Idempotent)
    }

    pub(super) const fn attempts(&self) -> AttemptPolicy {
        AttemptPolicy::new(self.timeout, self.retry)
    }

    fn of(work: NodeWork, effect: Effect) -> Self {
        Node {
            work,
            max_executions: DEFAULT_MAX_EXECUTIONS,
            timeout: None,
            retry: None,
            effect,
            on_error: OnError::Fail,
            at_limit: None,
            is_deferred: false,
            is_tracked: false,
            goes_to: Vec::new(),
            version: None,
        }
    }

    /// Limits the supersteps of a run in which the node has branches; 3 by default. A value of the state's
    /// `max_executions` for the node comes first.
    pub fn max_executions(mut self, executions: u64) -> Self {
        self.max_executions = executions;
        self
    }

    /// The fallback when the node has reached its limit. By default the run ends, with
    /// [`Exit::NodeLimit`](stepfold_agent_loop::Exit::NodeLimit).
    pub fn at_limit(mut self, node: impl Into<String>) -> Self {
        self.at_limit = Some(node.into());
        self
    }

    /// Sets the timeout of one attempt.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Retries after an error that is not [permanent](NodeError::permanent), a timeout or a panic. An agent continues
    /// where it stopped; one that ended unfinished is not retried.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// The effect of a run of the function. Idempotent by default: after a crash it runs again
    /// under the same [key](NodeContext::idempotency_key). One that must not run twice then fails, with an unknown outcome.
    /// For an agent, the effects of its tools apply, call by call.
    pub fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// The fallback when the node has failed, after all attempts. Its [item](NodeContext::item) has the failed node, the
    /// error and the failed node's item. By default the run fails and can
    /// be resumed; of a node that must not run twice, or of an agent that ended unfinished, the run ends with
    /// [`Exit::NodeFailed`](stepfold_agent_loop::Exit::NodeFailed).
    pub fn on_error(mut self, node: impl Into<String>) -> Self {
        self.on_error = OnError::Goto(node.into());
        self
    }

    /// Continues along the node's edges also when it has failed: the failure is in the record, and under `errors`
    /// if the node is [tracked](Node::tracked).
    pub fn continue_after_error(mut self) -> Self {
        self.on_error = OnError::GoOn;
        self
    }

    /// Names the version of the function: a node with another one is a changed node, for which an open branch waits as for a
    /// changed tool. A function cannot be compared otherwise.
    ///
    /// # Examples
    /// ```
    /// use stepfold_graph::{Graph, Node, NodeContext, NodeError, START};
    ///
    /// async fn work(_: NodeContext) -> Result<(), NodeError> {
    ///     Ok(())
    /// }
    /// let graph = |version: &str| {
    ///     let node = Node::new(work).version(version);
    ///     Graph::builder("small").node("work", node).edge(START, "work").build()
    /// };
    /// let changes = graph("2")?.agent().changes_since(graph("1")?.agent().fingerprint());
    /// assert_eq!(changes[0].to_string(), "node work: settings changed");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Runs the node only when nothing else is left to run, so that it sees all results.
    pub fn deferred(mut self) -> Self {
        self.is_deferred = true;
        self
    }

    /// Tracks the task of the node: the `id` of its item, or `current_task_id`. The task is set running, then
    /// completed with its output appended to `outputs`, or failed with its error appended to `errors`, and
    /// `overall_progress` is updated, whatever happens inside. A failure then does not end the run. The
    /// schema must have these keys: see [`progress`](super::progress).
    pub fn tracked(mut self) -> Self {
        self.is_tracked = true;
        if self.on_error == OnError::Fail {
            self.on_error = OnError::GoOn;
        }
        self
    }

    /// The parts that a stored run depends on, of the node at this place.
    pub(super) fn parts(&self, place: usize) -> Value {
        // NOTE: Part of the fingerprint: a new setting has to be left out while it has its default, or stored runs look
        // changed.
        let rules =
            (place, self.max_executions, self.is_deferred, self.is_tracked, &self.goes_to, &self.at_limit);
        let rules = canonical_json(&json!([rules, self.effect, self.on_error.words()]));
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let pauses = self.retry.map(|retry| retry.pauses().map(millis).collect::<Vec<_>>());
        let attempts = canonical_json(&json!([self.timeout.map(millis), pauses]));
        let settings = match &self.work {
            NodeWork::Function(_) => json!(self.version),
            NodeWork::Agent(node) => json!([self.version, node.settings()]),
        };
        let mut parts = json!({"rules": rules, "attempts": attempts, "settings": canonical_json(&settings)});
        if let NodeWork::Agent(node) = &self.work {
            parts["agent"] = json!(node.agent().fingerprint());
        }
        parts
    }

    /// The effect that these [parts](Self::parts) say.
    pub(super) fn effect_of_parts(parts: &Value) -> Option<Effect> {
        let rules: Value = serde_json::from_str(parts.get("rules")?.as_str()?).ok()?;
        Effect::deserialize(rules.get(1)?).ok()
    }

    /// The same in the first form of fingerprints.
    pub(super) fn first_parts(&self, place: usize) -> Value {
        let agent = match &self.work {
            NodeWork::Function(_) => None,
            NodeWork::Agent(node) => Some(node.agent().first_fingerprint()),
        };
        let rules = (self.max_executions, self.is_deferred, self.is_tracked, &self.goes_to, &self.at_limit);
        json!([place, [agent, rules, self.effect, self.on_error.words()]])
    }

    /// Sets the nodes, or [`END`](super::END), that the function may choose with [`Update::goto`]; for
    /// validation and for drawings. Other choices are rejected.
    pub fn goes_to<N: Into<String>>(mut self, nodes: impl IntoIterator<Item = N>) -> Self {
        self.goes_to.extend(nodes.into_iter().map(Into::into));
        self
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work = match &self.work {
            NodeWork::Function(_) => "function",
            NodeWork::Agent(_) => "agent",
        };
        f.debug_struct("Node")
            .field("work", &work)
            .field("max_executions", &self.max_executions)
            .finish_non_exhaustive()
    }
}

/// A type that can be a node: an async function over a [`NodeContext`], an
/// [`Agent`](stepfold_agent_loop::Agent) or its [builder](stepfold_agent_loop::AgentBuilder), a
/// [`Graph`](super::Graph), an [`AgentNode`], a [`Node`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a node of a graph",
    note = "a node is `async fn(NodeContext) -> Result<Update, NodeError>`, an `Agent` or its builder, a `Graph`, an `AgentNode` or a `Node`"
)]
pub trait IntoNode<Kind> {
    /// The node.
    fn into_node(self) -> Node;
}

/// Marks a type that is a node itself.
#[derive(Debug)]
pub enum AsNode {}

/// Marks a type that is a node because it is a function.
#[derive(Debug)]
pub struct AsFunction<Fut, U>(Fut, U);

impl IntoNode<AsNode> for Node {
    fn into_node(self) -> Node {
        self
    }
}

impl<A: Into<AgentNode>> IntoNode<AsNode> for A {
    fn into_node(self) -> Node {
        Node::agent(self)
    }
}

impl<F, Fut, U> IntoNode<AsFunction<Fut, U>> for F
where
    F: Fn(NodeContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<U, NodeError>> + Send + 'static,
    U: Into<Update>,
{
    fn into_node(self) -> Node {
        Node::new(self)
    }
}

/// The item of an error node.
pub(crate) fn failure_item(node: &str, error: &str, item: Option<&Value>) -> Value {
    let mut failure = serde_json::Map::new();
    failure.insert("error".to_owned(), error.into());
    if let Some(item) = item {
        failure.insert("item".to_owned(), item.clone());
    }
    failure.insert("node".to_owned(), node.into());
    Value::Object(failure)
}
