//! A graph: its definition, and the agent that runs it.

use std::fmt;
use std::sync::Arc;

use stepfold_agent_loop::{Agent, Input, RunBuilder};
use stepfold_state_core::chat::{ChatModel, ChatRequest, ModelError, ModelErrorKind, ReplyStream};
use stepfold_state_core::state::Schema;

use super::agent_node::AgentNode;
use super::definition::GraphDefinition;
use super::drawing;
use super::graph_shape::GraphShape;

/// Nodes over one state, and the ways between them. Immutable, cheap to clone, and an [`Agent`] wherever one is
/// taken. The [crate] has the tour.
#[doc(alias("workflow", "StateGraph", "pipeline"))]
#[derive(Clone)]
pub struct Graph {
    pub(super) agent: Agent,
    pub(super) shape: Arc<GraphDefinition>,
}

impl Graph {
    /// Prepares a run; awaiting it runs the graph.
    pub fn run(&self, input: impl Into<Input>) -> RunBuilder<'_> {
        self.agent.run(input)
    }

    /// The graph's name.
    pub fn name(&self) -> &str {
        self.agent.name()
    }

    /// The schema of the state.
    pub fn schema(&self) -> &Schema {
        self.agent.schema()
    }

    /// The graph as an agent: for runners, stored runs and replays.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// The names of the nodes, in the order in which they were declared.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.shape.names.iter().map(String::as_str)
    }

    /// The nodes and edges, as data.
    pub fn shape(&self) -> GraphShape {
        GraphShape::of(self.name(), &self.shape)
    }

    /// The graph in the language of [Mermaid](https://mermaid.js.org). Conditional edges are dashed.
    ///
    /// # Examples
    /// ```
    /// use stepfold_graph::{END, Graph, NodeContext, NodeError, START};
    ///
    /// async fn work(_: NodeContext) -> Result<(), NodeError> {
    ///     Ok(())
    /// }
    /// let graph = Graph::builder("small").node("work", work).chain([START, "work", END]).build()?;
    /// assert_eq!(graph.to_mermaid(), "\
    /// flowchart TD
    ///     start([START])
    ///     n0[\"work\"]
    ///     end_([END])
    ///     start --> n0
    ///     n0 --> end_
    /// ");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_mermaid(&self) -> String {
        drawing::mermaid(&self.shape())
    }

    /// The graph in the language of [Graphviz](https://graphviz.org).
    pub fn to_dot(&self) -> String {
        drawing::dot(&self.shape())
    }
}

impl From<Graph> for Agent {
    fn from(graph: Graph) -> Self {
        graph.agent
    }
}

impl From<&Graph> for Agent {
    fn from(graph: &Graph) -> Self {
        graph.agent.clone()
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("name", &self.name())
            .field("nodes", &self.nodes().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// The model of a graph, which is never called.
pub(super) struct NoModel;

impl ChatModel for NoModel {
    fn id(&self) -> &'static str {
        "graph"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        // NOTE: A graph is an agent, and an agent has a model; the machine asks the planner instead.
        ReplyStream::failed(ModelError::new(ModelErrorKind::Unsupported, "a graph has no model"))
    }
}

impl From<Graph> for AgentNode {
    fn from(graph: Graph) -> Self {
        Agent::from(graph).into()
    }
}
