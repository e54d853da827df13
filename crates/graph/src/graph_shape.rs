//! The nodes and edges of a graph, as data.

use serde::{Deserialize, Serialize};
use stepfold_agent_loop::plan::START;

use super::definition::{DefinedEdge, GraphDefinition, items_label};
use super::node::{Node, NodeWork, OnError};

/// The nodes and edges of a graph, as data: for pages and programs that draw a graph, or show where a run is.
///
/// Names are those of the graph, [`START`] and [`END`](super::END) included. Nodes and edges are in the order in which
/// they were declared.
///
/// # Examples
/// ```
/// use stepfold_graph::{END, EdgeKind, Graph, NodeContext, NodeError, START};
///
/// async fn work(_: NodeContext) -> Result<(), NodeError> {
///     Ok(())
/// }
/// let graph = Graph::builder("small").node("work", work).chain([START, "work", END]).build()?;
/// let shape = graph.shape();
/// assert_eq!(shape.nodes[0].name, "work");
/// assert_eq!((&*shape.edges[1].from, &*shape.edges[1].to), ("work", END));
/// assert_eq!(shape.edges[1].kind, EdgeKind::Always);
/// assert_eq!(
///     serde_json::to_string(&shape.edges)?,
///     r#"[{"from":"__start__","to":"work","kind":"always"},{"from":"work","to":"__end__","kind":"always"}]"#
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GraphShape {
    /// The name of the graph.
    pub name: String,
    /// The nodes.
    pub nodes: Vec<GraphNode>,
    /// The edges.
    pub edges: Vec<GraphEdge>,
}

/// A node of a [`GraphShape`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GraphNode {
    /// The name.
    pub name: String,
    /// The name of its agent or graph; `None` for a function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The limit of supersteps of a run in which it has branches.
    pub max_executions: u64,
    /// Whether it runs only when nothing else is left to run.
    pub is_deferred: bool,
    /// Whether the progress of its tasks is tracked.
    pub is_tracked: bool,
}

/// An edge of a [`GraphShape`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GraphEdge {
    /// The name of the source: a node or [`START`].
    pub from: String,
    /// The name of the target: a node or [`END`](super::END).
    pub to: String,
    /// The condition of the edge.
    #[serde(flatten)]
    pub kind: EdgeKind,
}

/// The condition of a [`GraphEdge`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EdgeKind {
    /// It is always taken.
    Always,
    /// A router, or the source itself, may choose it.
    Choice,
    /// It is taken once for each item of a list.
    Each {
        /// The description of the list, such as the key of the state that has it.
        of: String,
    },
    /// It is taken when all sources of joins to the target have finished.
    Join,
    /// It is taken after a failure of the source.
    OnError,
    /// It is taken when the source has reached its limit of executions.
    AtLimit,
}

impl GraphShape {
    pub(crate) fn of(name: &str, shape: &GraphDefinition) -> Self {
        let nodes = shape.named_nodes().map(|(name, node)| GraphNode::of(name, node)).collect();
        let mut edges = edges_from(shape, START);
        for (name, node) in shape.named_nodes() {
            edges.extend(edges_from(shape, name));
            edges.extend(of_node(name, node));
        }
        for join in &shape.joins {
            edges.extend(join.from.iter().map(|from| GraphEdge::new(from, &join.to, EdgeKind::Join)));
        }
        GraphShape { name: name.to_owned(), nodes, edges }
    }
}

impl GraphNode {
    fn of(name: &str, node: &Node) -> Self {
        let agent = match &node.work {
            NodeWork::Function(_) => None,
            NodeWork::Agent(node) => Some(node.agent().name().to_owned()),
        };
        let (max_executions, is_deferred, is_tracked) =
            (node.max_executions, node.is_deferred, node.is_tracked);
        GraphNode { name: name.to_owned(), agent, max_executions, is_deferred, is_tracked }
    }
}

impl GraphEdge {
    fn new(from: &str, to: &str, kind: EdgeKind) -> Self {
        GraphEdge { from: from.to_owned(), to: to.to_owned(), kind }
    }
}

/// The declared edges; a router has several.
fn edges_from(shape: &GraphDefinition, from: &str) -> Vec<GraphEdge> {
    let all = shape.edges_from(from).iter().flat_map(|edge| {
        let kind = match edge {
            DefinedEdge::To(_) => EdgeKind::Always,
            DefinedEdge::Route { .. } => EdgeKind::Choice,
            DefinedEdge::Each { key, .. } => EdgeKind::Each { of: items_label(key.as_deref()).to_owned() },
        };
        edge.targets().iter().map(move |to| GraphEdge::new(from, to, kind.clone()))
    });
    all.collect()
}

/// The edges that the settings of a node add.
fn of_node(name: &str, node: &Node) -> Vec<GraphEdge> {
    let mut edges: Vec<_> =
        node.goes_to.iter().map(|to| GraphEdge::new(name, to, EdgeKind::Choice)).collect();
    if let OnError::Goto(to) = &node.on_error {
        edges.push(GraphEdge::new(name, to, EdgeKind::OnError));
    }
    if let Some(to) = &node.at_limit {
        edges.push(GraphEdge::new(name, to, EdgeKind::AtLimit));
    }
    edges
}
