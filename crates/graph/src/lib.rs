//! Workflows of nodes over one state: functions, agents and graphs, in sequence, conditionally, and in parallel.
//!
//! In the facade: `stepfold::graph`. A program that depends on `stepfold` writes this path where the examples here have
//! `stepfold_graph`.
//!
//! # The tour
//!
//! A [`Graph`] has nodes and edges. It runs in **supersteps**: the scheduled nodes run concurrently, each on
//! the same snapshot of the state; when all have an outcome, their writes are merged by the handlers of the
//! keys, in declaration order of the nodes; then the edges determine the next nodes.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use serde_json::json;
//! use stepfold_graph::{END, Graph, NodeContext, NodeError, START, Update};
//! use stepfold_agent_loop::{Exit, Input};
//! use stepfold_state_core::state::{Key, Schema};
//!
//! const AREAS: Key<Vec<u64>> = Key::new("areas");
//! const STALLS: Key<Vec<u64>> = Key::new("stalls");
//!
//! async fn plan(_: NodeContext) -> Result<Update, NodeError> {
//!     Ok(Update::new().set(AREAS, vec![3, 7]))
//! }
//!
//! async fn count(node: NodeContext) -> Result<Update, NodeError> {
//!     let area: u64 = node.item_as()?;
//!     Ok(Update::new().set(STALLS, vec![area * 4]))
//! }
//!
//! async fn report(node: NodeContext) -> Result<Update, NodeError> {
//!     let stalls = node.get(STALLS)?.unwrap_or_default();
//!     Ok(Update::new().say(format!("{} stalls", stalls.iter().sum::<u64>())))
//! }
//!
//! let graph = Graph::builder("stalls")
//!     .schema(Schema::builder().key(AREAS).key(STALLS).build()?)
//!     .node("plan", plan)
//!     .node("count", count)
//!     .node("report", report)
//!     .edge(START, "plan")
//!     .fan_out("plan", "count", "areas")    // a branch for each area, side by side
//!     .edge("count", "report")
//!     .edge("report", END)
//!     .build()?;
//!
//! let outcome = graph.run(Input::new()).await?;
//! assert_eq!(outcome.exit(), &Exit::End);
//! assert_eq!(outcome.text(), "40 stalls");
//! assert_eq!(outcome.state().get("stalls").unwrap(), json!([12, 28]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! Routing: [`edge`](GraphBuilder::edge), [`route`](GraphBuilder::route) by a function of the state,
//! [`fan_out`](GraphBuilder::fan_out) over a list, [`join`](GraphBuilder::join) of branches of different length, and
//! [`goto`](Update::goto) by the node itself. A [`Node`] has limits, retries, timeouts, a fallback node, and may be
//! deferred until all others have finished. An [`AgentNode`] works on the same state, or in a separate conversation.
//! [`NodeContext::ask`] requests an approval. [`progress`] is a state for research with tasks, counts and outputs.
//!
//! # A graph is an agent
//!
//! A graph runs as the same [`Run`](stepfold_agent_loop::Run): it needs nodes where an agent needs its model
//! and calls. So all guarantees of runs apply: events are committed one by one, a run can be stopped, stored,
//! loaded, resumed and replayed anywhere, breakpoints stop before a node, observers and streams see
//! everything. A graph can be a tool of an agent, a node of a graph, and the agent of a runner: wherever an
//! [`Agent`](stepfold_agent_loop::Agent) is accepted.
//!
//! # Guarantees
//!
//! - The order in which branches finish does not matter: the same superstep gives the same state.
//! - Branches never lose each other's writes to keys whose handler merges.
//! - After a crash only branches without an outcome run again, with the same
//!   [key](NodeContext::idempotency_key); of an agent only the uncommitted part of its run.
//! - A failed node does not affect the others: their outcomes are kept, and the run can be resumed, unless
//!   the node must not run twice or its agent has ended unfinished: then the graph ends.
//! - Everything is limited: supersteps, executions of a node, branches, attempts, time.
//!
//! # What is absent
//!
//! Nothing polls, and there are no timers: external work is done in nodes. Branches share nothing while they
//! run. Nodes run in the task of the run: use [`spawn_blocking`] for blocking
//! work.
//!
//! [`spawn_blocking`]: https://docs.rs/tokio/latest/tokio/task/fn.spawn_blocking.html
//!
//! # Prior art
//!
//! Nodes over one state, supersteps and edges are those of LangGraph 1.x; limits of executions and
//! [`progress`] are those of a deep-research graph for LangGraph. `docs/compare.md` lists the differences.
#![doc = include_str!("../docs/limits.md")]

mod agent_node;
mod builder;
mod check;
mod context;
mod definition;
mod drawing;
mod graph;
mod graph_shape;
mod node;
mod per_run;
mod planner;
pub mod progress;
mod schema_types;
mod update;

pub use self::agent_node::AgentNode;
pub use self::builder::GraphBuilder;
pub use self::context::{NodeContext, NodeError};
pub use self::definition::RouteChoice;
pub use self::graph::Graph;
pub use self::graph_shape::{EdgeKind, GraphEdge, GraphNode, GraphShape};
pub use self::node::{AsFunction, AsNode, IntoNode, Node};
pub use self::per_run::per_run;
pub use self::update::Update;
pub use stepfold_agent_loop::plan::{END, START};

pub use stepfold_agent_loop::{JoinArrivals, PlannedBranch, RecordedRoute};
