//! The nodes and edges of a graph, as data.

use serde::{Deserialize, Serialize};

use super::node::{Node, NodeWork, OnError};
use super::shape::{Edge, START, Shape};

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
    pub(crate) fn of(name: &str, shape: &Shape) -> Self {
        let nodes =
            shape.names.iter().zip(&shape.nodes).map(|(name, node)| GraphNode::of(name, node)).collect();
        let mut edges: Vec<GraphEdge> =
            shape.start.iter().flat_map(|edge| of_edge(shape, START, edge)).collect();
        for ((name, node), outgoing) in shape.names.iter().zip(&shape.nodes).zip(&shape.edges) {
            edges.extend(outgoing.iter().flat_map(|edge| of_edge(shape, name, edge)));
            edges.extend(of_node(name, node));
        }
        for join in &shape.joins {
            let to = &shape.names[join.to];
            edges
                .extend(join.from.iter().map(|from| GraphEdge::new(&shape.names[*from], to, EdgeKind::Join)));
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

/// One declared edge; a router has several.
fn of_edge(shape: &Shape, from: &str, edge: &Edge) -> Vec<GraphEdge> {
    match edge {
        Edge::To(target) => vec![GraphEdge::new(from, shape.target_name(*target), EdgeKind::Always)],
        Edge::Route { targets, .. } => {
            let choice = |target: &_| GraphEdge::new(from, shape.target_name(*target), EdgeKind::Choice);
            targets.iter().map(choice).collect()
        }
        Edge::Each { node, of, .. } => {
            vec![GraphEdge::new(from, &shape.names[*node], EdgeKind::Each { of: of.clone() })]
        }
    }
}

/// What the settings of a node add.
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
