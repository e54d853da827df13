//! Builds graphs. All detectable faults are reported together.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stepfold_agent_loop::{Agent, AgentBuilder, AgentError, HookContext, HookPoint, HookResult, RunLimits};
use stepfold_state_core::state::{Issue, Schema};
use stepfold_tools::Resources;

use super::check;
use super::node::{IntoNode, Node};
use super::shape::{Choice, Choose, END, Edge, Items, Join, START, Shape, Target, shown};
use super::{Graph, NoModel};

/// The branches of one superstep, by default.
const MAX_BRANCHES: usize = 4096;
/// The branches that run at the same time, by default.
const MAX_PARALLEL: usize = 64;

/// Puts a [`Graph`] together; nothing is checked before [`build`](GraphBuilder::build).
#[must_use = "a builder does nothing until it is built"]
pub struct GraphBuilder {
    agent: AgentBuilder,
    name: String,
    schema: Schema,
    nodes: Vec<(String, Node)>,
    edges: Vec<(String, Wanted)>,
    joins: Vec<(Vec<String>, String)>,
    max_branches: usize,
    max_parallel: usize,
}

/// An edge whose names were not looked up yet.
enum Wanted {
    To(String),
    Route { targets: Vec<String>, choose: Arc<Choose>, is_single: bool },
    Each { node: String, items: Arc<Items>, of: String, key: Option<String> },
}

impl GraphBuilder {
    pub(super) fn new(name: String) -> Self {
        GraphBuilder {
            agent: Agent::builder(NoModel).name(name.clone()),
            name,
            schema: Schema::default(),
            nodes: Vec::new(),
            edges: Vec::new(),
            joins: Vec::new(),
            max_branches: MAX_BRANCHES,
            max_parallel: MAX_PARALLEL,
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
        self.nodes.push((name.into(), node.into_node()));
        self
    }

    /// Goes from one node to another, or from [`START`], or to [`END`]. Several edges from one node lead to branches
    /// side by side.
    #[doc(alias("add_edge"))]
    pub fn edge(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.edges.push((from.into(), Wanted::To(to.into())));
        self
    }

    /// Goes from each of these to the next.
    pub fn chain<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        for pair in names.windows(2) {
            self = self.edge(pair[0].clone(), pair[1].clone());
        }
        self
    }

    /// Goes from a node to the one of `targets` that a function of the state chooses. The function must give the same
    /// for the same state.
    #[doc(alias("conditional_edge", "add_conditional_edges"))]
    pub fn route<N, C>(
        self,
        from: impl Into<String>,
        targets: impl IntoIterator<Item = N>,
        choose: impl Fn(&stepfold_state_core::state::State) -> C + Send + Sync + 'static,
    ) -> Self
    where
        N: Into<String>,
        C: Into<Choice>,
    {
        self.router(from.into(), targets, Arc::new(move |state| choose(state).into()), true)
    }

    /// As [`route`](GraphBuilder::route), to any number of nodes: [`Choice::all`].
    pub fn route_to_many<N: Into<String>>(
        self,
        from: impl Into<String>,
        targets: impl IntoIterator<Item = N>,
        choose: impl Fn(&stepfold_state_core::state::State) -> Choice + Send + Sync + 'static,
    ) -> Self {
        self.router(from.into(), targets, Arc::new(choose), false)
    }

    fn router<N: Into<String>>(
        mut self,
        from: String,
        targets: impl IntoIterator<Item = N>,
        choose: Arc<Choose>,
        is_single: bool,
    ) -> Self {
        let targets = targets.into_iter().map(Into::into).collect();
        self.edges.push((from, Wanted::Route { targets, choose, is_single }));
        self
    }

    /// Goes from a node to `to`, in one branch for each item of the list under `key`, concurrently. When all
    /// have finished, the graph continues after `to`, once; with an empty list, immediately. A key whose type is not a list
    /// is refused by [`build`](GraphBuilder::build); a value that is not a list is an error of the run.
    #[doc(alias("Send", "map_reduce"))]
    pub fn fan_out(mut self, from: impl Into<String>, to: impl Into<String>, key: impl Into<String>) -> Self {
        let key: String = key.into();
        let of = key.clone();
        let listed = key.clone();
        let items = move |state: &stepfold_state_core::state::State| match state.get(listed.as_str()) {
            Some(value) => match value.to_json() {
                Value::Array(items) => Ok(items),
                Value::Null => Ok(Vec::new()),
                value => Err(format!("its fan-out over \"{listed}\": expected a list, found {value}")),
            },
            None => Ok(Vec::new()),
        };
        let wanted = Wanted::Each { node: to.into(), items: Arc::new(items), of, key: Some(key) };
        self.edges.push((from.into(), wanted));
        self
    }

    /// As [`fan_out`](GraphBuilder::fan_out), with the items that a function of the state returns; it must be
    /// deterministic.
    pub fn fan_out_with(
        mut self,
        from: impl Into<String>,
        to: impl Into<String>,
        items: impl Fn(&stepfold_state_core::state::State) -> Vec<Value> + Send + Sync + 'static,
    ) -> Self {
        let items = move |state: &stepfold_state_core::state::State| Ok(items(state));
        let wanted =
            Wanted::Each { node: to.into(), items: Arc::new(items), of: "items".to_owned(), key: None };
        self.edges.push((from.into(), wanted));
        self
    }

    /// Goes to `to` when all of these have finished, be it in different supersteps, since it last did.
    pub fn join<N: Into<String>>(mut self, from: impl IntoIterator<Item = N>, to: impl Into<String>) -> Self {
        self.joins.push((from.into_iter().map(Into::into).collect(), to.into()));
        self
    }

    /// Sets the application's resources for its nodes.
    pub fn resources(mut self, resources: Resources) -> Self {
        self.agent = self.agent.resources(resources);
        self
    }

    /// How much a run may take. Its steps are supersteps.
    pub fn limits(mut self, limits: RunLimits) -> Self {
        self.agent = self.agent.limits(limits);
        self
    }

    /// Limits the supersteps of a run; 100 by default; the other limits stay.
    pub fn max_steps(mut self, steps: u64) -> Self {
        self.agent = self.agent.max_steps(steps);
        self
    }

    /// How long a run may take; the other limits stay.
    pub fn max_time(mut self, time: Duration) -> Self {
        self.agent = self.agent.max_time(time);
        self
    }

    /// Limits the branches of one superstep; 4,096 by default. More are an error.
    pub fn max_branches(mut self, branches: usize) -> Self {
        self.max_branches = branches;
        self
    }

    /// Limits the branches that run at the same time; 64 by default. The others wait.
    pub fn max_parallel(mut self, branches: usize) -> Self {
        self.max_parallel = branches;
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
        let GraphBuilder { agent, name, schema, mut nodes, edges, joins, max_branches, max_parallel } = self;
        let mut faults = check::names(&nodes);
        faults.extend(check::agents(&mut nodes, &schema));
        let mut places = HashMap::new();
        for (place, (node, _)) in nodes.iter().enumerate() {
            places.entry(node.clone()).or_insert(place);
        }
        let mut links = Links { places: &places, faults: Vec::new() };
        let (mut start, mut outgoing) = (Vec::new(), vec![Vec::new(); nodes.len()]);
        for (from, wanted) in edges {
            faults.extend(check::items(wanted.listed(), &schema));
            let edge = links.edge(&from, wanted);
            if from == START {
                start.extend(edge);
            } else if let Some(place) = links.node(&from, "an edge comes from") {
                outgoing[place].extend(edge);
            }
        }
        let joins: Vec<Join> = joins.iter().filter_map(|(from, to)| links.join(from, to)).collect();
        for (from, node) in &nodes {
            for name in node.named() {
                links.target(name, &format!("node '{from}' goes to"));
            }
        }
        faults.extend(links.faults);
        let (names, nodes) = nodes.into_iter().unzip();
        let shape = Shape { names, places, nodes, start, edges: outgoing, joins, max_branches, max_parallel };
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

impl Wanted {
    /// The key whose items it is for.
    fn listed(&self) -> Option<&str> {
        match self {
            Wanted::Each { key, .. } => key.as_deref(),
            _ => None,
        }
    }
}

/// Looks names up.
struct Links<'a> {
    places: &'a HashMap<String, usize>,
    faults: Vec<Issue>,
}

impl Links<'_> {
    fn node(&mut self, name: &str, what: &str) -> Option<usize> {
        if let Some(place) = self.places.get(name) {
            return Some(*place);
        }
        self.faults.push(match name {
            START => Issue::new("START", format!("not a node, but {what} it; use a node")),
            END => Issue::new("END", format!("not a node, but {what} it; use a node")),
            name => Issue::new(format!("node '{name}'"), format!("missing, but {what} it; add it")),
        });
        None
    }

    fn target(&mut self, name: &str, what: &str) -> Option<Target> {
        match name {
            END => Some(Target::End),
            START => {
                self.faults.push(Issue::new("START", "not a target: the graph begins there"));
                None
            }
            name => self.node(name, what).map(Target::Node),
        }
    }

    fn edge(&mut self, from: &str, wanted: Wanted) -> Option<Edge> {
        let what = format!("an edge from {} leads to", shown(from));
        Some(match wanted {
            Wanted::To(to) => Edge::To(self.target(&to, &what)?),
            Wanted::Route { targets, choose, is_single } => {
                if targets.is_empty() {
                    self.faults.push(Issue::new(
                        format!("route from {}", shown(from)),
                        "missing targets: name at least one",
                    ));
                }
                let targets = targets.iter().filter_map(|name| self.target(name, &what)).collect();
                Edge::Route { targets, choose, is_single }
            }
            Wanted::Each { node, items, of, .. } => Edge::Each { node: self.node(&node, &what)?, items, of },
        })
    }

    fn join(&mut self, from: &[String], to: &str) -> Option<Join> {
        if from.is_empty() {
            self.faults
                .push(Issue::new(format!("join at '{to}'"), "missing nodes to wait for: name at least one"));
        }
        let what = format!("the join at '{to}' waits for");
        let from: Vec<usize> = from.iter().filter_map(|name| self.node(name, &what)).collect();
        let to = self.node(to, "a join leads to")?;
        Some(Join { from, to })
    }
}

impl std::fmt::Debug for GraphBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes: Vec<&str> = self.nodes.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("GraphBuilder")
            .field("name", &self.name)
            .field("nodes", &nodes)
            .finish_non_exhaustive()
    }
}
