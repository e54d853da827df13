//! Builds graphs. All detectable faults are reported together.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stepfold_agent_loop::{Agent, AgentBuilder, AgentError, HookContext, HookPoint, HookResult, RunLimits};
use stepfold_state_core::state::{Schema, State, ValueRef};
use stepfold_tools::Resources;

use super::check;
use super::definition::{DefinedEdge, DefinedJoin, GraphDefinition, RouteChoice, RouterFunction};
use super::graph::{Graph, NoModel};
use super::node::IntoNode;

/// The branches of one superstep, by default.
const MAX_BRANCHES: usize = 4096;
/// The branches that run at the same time, by default.
const MAX_PARALLEL: usize = 64;

/// Builds a [`Graph`]; nothing is checked before [`build`](GraphBuilder::build).
#[must_use = "a builder does nothing until it is built"]
pub struct GraphBuilder {
    agent: AgentBuilder,
    name: String,
    schema: Schema,
    shape: GraphDefinition,
    /// With their sources, in order of declaration.
    edges: Vec<(String, DefinedEdge)>,
}

impl Graph {
    /// Starts a graph of this name, without nodes.
    pub fn builder(name: impl Into<String>) -> GraphBuilder {
        GraphBuilder::new(name.into())
    }
}

impl GraphBuilder {
    pub(super) fn new(name: String) -> Self {
        GraphBuilder {
            agent: Agent::builder(NoModel).name(name.clone()),
            name,
            schema: Schema::default(),
            shape: GraphDefinition {
                max_branches: MAX_BRANCHES,
                max_parallel: MAX_PARALLEL,
                ..GraphDefinition::default()
            },
            edges: Vec::new(),
        }
    }

    /// The keys of the state, with their types and merge handlers.
    pub fn schema(mut self, schema: Schema) -> Self {
        self.schema = schema.clone();
        self.agent = self.agent.schema(schema);
        self
    }

    /// Adds a node. Nodes are merged in the order in which they are added.
    #[doc(alias("add_node"))]
    pub fn node<Kind>(mut self, name: impl Into<String>, node: impl IntoNode<Kind>) -> Self {
        let name = name.into();
        // Of two nodes of one name, which is a fault, the first.
        self.shape.places.entry(name.clone()).or_insert(self.shape.nodes.len());
        self.shape.names.push(name);
        self.shape.nodes.push(node.into_node());
        self
    }

    /// Adds an edge from one node to another, or from [`START`](super::START), or to [`END`](super::END). Several edges
    /// from one node lead to branches side by side.
    #[doc(alias("add_edge"))]
    pub fn edge(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.edges.push((from.into(), DefinedEdge::To(to.into())));
        self
    }

    /// Adds an edge from each of these to the next.
    pub fn chain<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        for pair in names.windows(2) {
            self = self.edge(pair[0].clone(), pair[1].clone());
        }
        self
    }

    /// Routes from a node to the one of `targets` that a function of the state chooses. The function must give the same
    /// for the same state.
    #[doc(alias("conditional_edge", "add_conditional_edges"))]
    pub fn route<N, C>(
        self,
        from: impl Into<String>,
        targets: impl IntoIterator<Item = N>,
        choose: impl Fn(&State) -> C + Send + Sync + 'static,
    ) -> Self
    where
        N: Into<String>,
        C: Into<RouteChoice>,
    {
        self.router(from.into(), targets, Box::new(move |state| choose(state).into()), true)
    }

    /// As [`route`](GraphBuilder::route), to any number of nodes: [`RouteChoice::all`].
    pub fn route_to_many<N: Into<String>>(
        self,
        from: impl Into<String>,
        targets: impl IntoIterator<Item = N>,
        choose: impl Fn(&State) -> RouteChoice + Send + Sync + 'static,
    ) -> Self {
        self.router(from.into(), targets, Box::new(choose), false)
    }

    fn router<N: Into<String>>(
        mut self,
        from: String,
        targets: impl IntoIterator<Item = N>,
        choose: Box<RouterFunction>,
        is_single: bool,
    ) -> Self {
        let targets = targets.into_iter().map(Into::into).collect();
        self.edges.push((from, DefinedEdge::Route { targets, choose, is_single }));
        self
    }

    /// Fans out from a node to `to`: one branch for each item of the list under `key`, concurrently. When all have
    /// finished, the graph continues after `to`, once; with an empty list, immediately. A key whose type is not a list
    /// is refused by [`build`](GraphBuilder::build); a value that is not a list is an error of the run.
    #[doc(alias("Send", "map_reduce"))]
    pub fn fan_out(mut self, from: impl Into<String>, to: impl Into<String>, key: impl Into<String>) -> Self {
        let key: String = key.into();
        let listed = key.clone();
        let items = move |state: &State| match state.get(listed.as_str()).map(ValueRef::to_json) {
            Some(Value::Array(items)) => Ok(items),
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(value) => Err(format!("its fan-out over \"{listed}\": expected a list, found {value}")),
        };
        self.edges.push((
            from.into(),
            DefinedEdge::Each { node: to.into(), items: Box::new(items), key: Some(key) },
        ));
        self
    }

    /// As [`fan_out`](GraphBuilder::fan_out), with the items that a function of the state returns; it must be
    /// deterministic.
    pub fn fan_out_with(
        mut self,
        from: impl Into<String>,
        to: impl Into<String>,
        items: impl Fn(&State) -> Vec<Value> + Send + Sync + 'static,
    ) -> Self {
        let items = move |state: &State| Ok(items(state));
        self.edges
            .push((from.into(), DefinedEdge::Each { node: to.into(), items: Box::new(items), key: None }));
        self
    }

    /// Joins branches: runs `to` when all of these have finished, possibly in different supersteps, since it last ran.
    pub fn join<N: Into<String>>(mut self, from: impl IntoIterator<Item = N>, to: impl Into<String>) -> Self {
        self.shape
            .joins
            .push(DefinedJoin { from: from.into_iter().map(Into::into).collect(), to: to.into() });
        self
    }

    /// Sets the application's resources for its nodes.
    pub fn resources(mut self, resources: Resources) -> Self {
        self.agent = self.agent.resources(resources);
        self
    }

    /// Sets all limits of a run. Its steps are supersteps.
    pub fn limits(mut self, limits: RunLimits) -> Self {
        self.agent = self.agent.limits(limits);
        self
    }

    /// Limits the supersteps of a run; 100 by default; the other limits stay.
    pub fn max_steps(mut self, steps: u64) -> Self {
        self.agent = self.agent.max_steps(steps);
        self
    }

    /// Limits the time of a run; the other limits stay.
    pub fn max_time(mut self, time: Duration) -> Self {
        self.agent = self.agent.max_time(time);
        self
    }

    /// Limits the branches of one superstep; 4,096 by default. More are an error.
    pub fn max_branches(mut self, branches: usize) -> Self {
        self.shape.max_branches = branches;
        self
    }

    /// Limits the branches that run at the same time; 64 by default. The others wait.
    pub fn max_parallel(mut self, branches: usize) -> Self {
        self.shape.max_parallel = branches;
        self
    }

    /// Requests a decision about nodes that must not run twice and had started before a crash. By default
    /// they have failed: their outcome is unknown.
    pub fn ask_when_uncertain(mut self) -> Self {
        self.agent = self.agent.ask_when_uncertain();
        self
    }

    /// Adds a hook, as for an agent, before the first superstep.
    pub fn before_run<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HookResult> + Send + 'static,
    {
        self.agent = self.agent.hook(HookPoint::BeforeRun, hook);
        self
    }

    /// Adds a hook, as for an agent, at the end.
    pub fn after_run<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HookResult> + Send + 'static,
    {
        self.agent = self.agent.hook(HookPoint::AfterRun, hook);
        self
    }

    /// Checks all that can be checked, and builds the graph.
    ///
    /// # Errors
    /// [`AgentError`] with all faults: two nodes of one name, an edge to or from a node that is not there, a node that
    /// cannot be reached, a join that cannot complete, limits of zero, a key that the schema does not have or whose type
    /// does not fit, an agent that cannot be built on the graph's keys.
    pub fn build(self) -> Result<Graph, AgentError> {
        let GraphBuilder { agent, name, schema, mut shape, edges } = self;
        let mut faults = check::names(&shape);
        faults.extend(check::agents(&mut shape, &schema));
        faults.extend(check::links(&shape, &edges, &schema));
        for (from, edge) in edges {
            shape.edges.entry(from).or_default().push(edge);
        }
        if faults.is_empty() {
            faults = check::shape(&shape, &schema);
        }
        if !faults.is_empty() {
            return Err(AgentError::new(name, faults));
        }
        let shape = Arc::new(shape);
        let agent = agent.planner(Arc::clone(&shape)).build()?;
        Ok(Graph { agent, shape })
    }
}

impl std::fmt::Debug for GraphBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GraphBuilder")
            .field("name", &self.name)
            .field("nodes", &self.shape.names)
            .finish_non_exhaustive()
    }
}
