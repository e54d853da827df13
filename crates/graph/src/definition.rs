//! The shape of a graph and its next superstep: pure functions of the finished branches and of the state.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::panic::AssertUnwindSafe;

use serde_json::Value;
use stepfold_agent_loop::plan::{END, EndedBranch, NextSuperstep, PlanPosition, START};
use stepfold_agent_loop::{Exit, FeedError, JoinArrivals, PlannedBranch, RecordedRoute};
use stepfold_state_core::state::State;
use stepfold_tools::panic_message;

use super::node::{Node, OnError, failure_item};
use super::progress::keys;

/// The display name of a node, [`START`] or [`END`].
pub(crate) fn display_name(name: &str) -> String {
    match name {
        START => "START".to_owned(),
        END => "END".to_owned(),
        name => format!("node '{name}'"),
    }
}

/// Names for people, one after the other.
pub(crate) fn name_list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names = names.into_iter().map(|name| if name == END { "END" } else { name });
    names.collect::<Vec<_>>().join(", ")
}

/// The shape of a graph. A node has a place, in order of declaration.
#[derive(Default)]
pub(crate) struct GraphDefinition {
    pub(crate) names: Vec<String>,
    pub(crate) places: HashMap<String, usize>,
    pub(crate) nodes: Vec<Node>,
    /// By their source, a node or [`START`].
    pub(crate) edges: HashMap<String, Vec<DefinedEdge>>,
    pub(crate) joins: Vec<DefinedJoin>,
    pub(crate) max_branches: usize,
    pub(crate) max_parallel: usize,
}

/// A route from a node, to nodes or [`END`].
pub(crate) enum DefinedEdge {
    /// An edge that is always followed.
    To(String),
    /// A router: the edge to the choice of a function of the state.
    Route { targets: Vec<String>, choose: Box<RouterFunction>, is_single: bool },
    /// A fan-out: an edge for each item of a key, or of a function.
    Each { node: String, items: Box<ItemsFunction>, key: Option<String> },
}

impl DefinedEdge {
    pub(crate) fn targets(&self) -> &[String] {
        match self {
            DefinedEdge::To(target) | DefinedEdge::Each { node: target, .. } => std::slice::from_ref(target),
            DefinedEdge::Route { targets, .. } => targets,
        }
    }
}

/// The description of a list of items.
pub(crate) fn items_label(key: Option<&str>) -> &str {
    key.unwrap_or("items")
}

/// A join: its node runs when all the others have finished since it last ran.
pub(crate) struct DefinedJoin {
    pub(crate) from: Vec<String>,
    pub(crate) to: String,
}

pub(crate) type RouterFunction = dyn Fn(&State) -> RouteChoice + Send + Sync;
pub(crate) type ItemsFunction = dyn Fn(&State) -> Result<Vec<Value>, String> + Send + Sync;

/// The choice of a router: the nodes, or [`END`], and the reason.
///
/// # Examples
/// ```
/// use stepfold_graph::RouteChoice;
///
/// let choice = RouteChoice::of("report").because("enough was found");
/// assert_eq!(choice, RouteChoice::all(["report"]).because("enough was found"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteChoice {
    pub(crate) nodes: Vec<String>,
    pub(crate) reason: Option<String>,
}

impl RouteChoice {
    /// This node.
    pub fn of(node: impl Into<String>) -> Self {
        RouteChoice { nodes: vec![node.into()], reason: None }
    }

    /// These nodes, side by side. Only for [`route_to_many`](super::GraphBuilder::route_to_many).
    pub fn all<N: Into<String>>(nodes: impl IntoIterator<Item = N>) -> Self {
        RouteChoice { nodes: nodes.into_iter().map(Into::into).collect(), reason: None }
    }

    /// For this reason, which is recorded.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }
}

impl From<&str> for RouteChoice {
    fn from(node: &str) -> Self {
        RouteChoice::of(node)
    }
}

impl From<String> for RouteChoice {
    fn from(node: String) -> Self {
        RouteChoice::of(node)
    }
}

impl GraphDefinition {
    pub(crate) fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    pub(crate) fn node(&self, name: &str) -> Option<&Node> {
        self.place(name).map(|place| &self.nodes[place])
    }

    pub(crate) fn edges_from(&self, name: &str) -> &[DefinedEdge] {
        self.edges.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// The edges with their sources: those of [`START`], then those of the nodes in their order.
    pub(crate) fn edges(&self) -> impl Iterator<Item = (&str, &DefinedEdge)> {
        let sources = std::iter::once(START).chain(self.names.iter().map(String::as_str));
        sources.flat_map(|from| self.edges_from(from).iter().map(move |edge| (from, edge)))
    }

    pub(crate) fn named_nodes(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.names.iter().map(String::as_str).zip(&self.nodes)
    }

    /// The next superstep after these branches, from the graph's position and the resulting state.
    ///
    /// # Errors
    /// If a router panics or chooses an invalid target, and if there are too many branches.
    pub(crate) fn next(
        &self,
        position: PlanPosition<'_>,
        ended: &[EndedBranch<'_>],
        state: &State,
    ) -> Result<NextSuperstep, FeedError> {
        let mut walk = SuperstepBuilder::new(self, position, state);
        if !position.has_begun {
            walk.follow(START)?;
        }
        for ended in ended {
            match (ended.error, &self.on_error(ended.node)) {
                (Some(error), OnError::Fail) => {
                    // NOTE: A failure comes here only if it is committed: of a node that must not run twice, or of an
                    // agent that ended unfinished. To continue would give the same. Any other failure is the error of
                    // the run, which can be resumed.
                    let (node, error) = (ended.node.to_owned(), error.to_owned());
                    return Ok(NextSuperstep::exit(Exit::NodeFailed { node, error }));
                }
                (Some(error), OnError::Goto(target)) => {
                    let item = failure_item(ended.node, error, ended.item);
                    walk.add_branch(target, Some(item));
                }
                (Some(_), OnError::GoOn) => walk.leave_node(ended.node)?,
                (None, _) if ended.goto.is_empty() => walk.leave_node(ended.node)?,
                (None, _) => {
                    for PlannedBranch { node, item, .. } in ended.goto {
                        walk.add_branch(node, item.clone());
                    }
                }
            }
        }
        walk.finish()
    }

    /// The parts of the graph that a stored run depends on.
    pub(crate) fn parts(&self, parts_of: fn(&Node, usize) -> Value) -> Vec<(String, Value)> {
        let arrow = |(from, edge): (&str, &DefinedEdge)| match edge {
            DefinedEdge::To(target) => format!("{from} -> {target}"),
            DefinedEdge::Each { node, key, .. } => {
                format!("{from} -> {node} for each of {}", items_label(key.as_deref()))
            }
            DefinedEdge::Route { targets, .. } => format!("{from} -> one of {}", targets.join(", ")),
        };
        let joins = self.joins.iter().map(|join| format!("{} -> {}", join.from.join(" and "), join.to));
        let edges: Vec<String> = self.edges().map(arrow).chain(joins).collect();
        let mut parts = vec![("edges".to_owned(), edges.into())];
        for (place, (name, node)) in self.named_nodes().enumerate() {
            parts.push((format!("node {name}"), parts_of(node, place)));
        }
        parts
    }

    fn on_error(&self, node: &str) -> OnError {
        self.node(node).map(|node| node.on_error.clone()).unwrap_or_default()
    }

    /// Whether the node may run once more: by the limit in the state, else by the node's own.
    fn may_run(&self, place: usize, position: PlanPosition<'_>, state: &State) -> bool {
        let name = &self.names[place];
        // NOTE: Supersteps are counted, not branches: a fan-out over fifty tasks is one round of work.
        let ran = position.executions.get(name).copied().unwrap_or(0);
        ran < limit_in_state(state, name).unwrap_or(self.nodes[place].max_executions)
    }
}

/// The limit of a node in the state.
fn limit_in_state(state: &State, node: &str) -> Option<u64> {
    state.get(keys::MAX_EXECUTIONS.name())?.as_json()?.get(node)?.as_u64()
}

/// The next superstep while it is built.
struct SuperstepBuilder<'a> {
    shape: &'a GraphDefinition,
    position: PlanPosition<'a>,
    state: &'a State,
    /// By node, so that they come in the order in which these were declared.
    branches: BTreeMap<usize, Vec<Option<Value>>>,
    /// By the place of the join.
    arrived: Vec<BTreeSet<usize>>,
    routes: Vec<RecordedRoute>,
    /// Nodes whose edges were followed already.
    left: BTreeSet<usize>,
}

impl<'a> SuperstepBuilder<'a> {
    fn new(shape: &'a GraphDefinition, position: PlanPosition<'a>, state: &'a State) -> Self {
        let mut arrived = vec![BTreeSet::new(); shape.joins.len()];
        for known in position.arrived {
            // A changed graph may have other joins: what does not fit any more is forgotten.
            if let Some(join) = shape.joins.get(known.join).filter(|join| join.to == known.at) {
                let from = known.from.iter().filter(|name| join.from.contains(name));
                arrived[known.join].extend(from.filter_map(|name| shape.place(name)));
            }
        }
        let (branches, routes, left) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        let mut steps = SuperstepBuilder { shape, position, state, branches, arrived, routes, left };
        // Deferred branches were planned before the new ones.
        for planned in position.deferred {
            steps.add_branch(&planned.node, planned.item.clone());
        }
        steps
    }

    /// The route after a node; its branches take it once together.
    fn leave_node(&mut self, name: &str) -> Result<(), FeedError> {
        let Some(place) = self.shape.place(name) else { return Ok(()) };
        if !self.left.insert(place) {
            return Ok(());
        }
        for (join, arrived) in self.shape.joins.iter().zip(&mut self.arrived) {
            if join.from.iter().any(|from| from == name) {
                arrived.insert(place);
            }
        }
        self.follow(name)
    }

    fn follow(&mut self, from: &str) -> Result<(), FeedError> {
        for edge in self.shape.edges_from(from) {
            match edge {
                DefinedEdge::To(target) => self.add_branch(target, None),
                DefinedEdge::Route { targets, choose, is_single } => {
                    for target in self.choice(from, targets, &**choose, *is_single)? {
                        self.add_branch(&target, None);
                    }
                }
                DefinedEdge::Each { node, items, .. } => {
                    let items = self.items(from, &**items)?;
                    // With nothing to do for it, the node has done all.
                    if items.is_empty() && node != from {
                        self.leave_node(node)?;
                    }
                    for item in items {
                        self.add_branch(node, Some(item));
                    }
                }
            }
        }
        Ok(())
    }

    fn choice(
        &mut self,
        from: &str,
        targets: &[String],
        choose: &RouterFunction,
        is_single: bool,
    ) -> Result<Vec<String>, FeedError> {
        let fault = |words: String| FeedError::Route { node: display_name(from), words };
        // NOTE: A router is the application's: its panic is an error of the run, which keeps its outcomes and can be
        // resumed.
        let chosen = std::panic::catch_unwind(AssertUnwindSafe(|| choose(self.state)))
            .map_err(|panic| fault(format!("its router panicked: {}", panic_message(&*panic))))?;
        if is_single && chosen.nodes.len() != 1 {
            let count = chosen.nodes.len();
            return Err(fault(format!(
                "expected one target, found {count}; use `route_to_many` for several"
            )));
        }
        if let Some(unknown) = chosen.nodes.iter().find(|name| !targets.contains(name)) {
            let known = name_list(targets.iter().map(String::as_str));
            return Err(fault(format!("unknown target \"{unknown}\"; declared: {known}")));
        }
        // NOTE: Recorded before a node starts, so that a resumed run follows the same route without asking the router
        // again.
        self.routes.push(RecordedRoute::new(from.to_owned(), chosen.nodes.clone(), chosen.reason));
        Ok(chosen.nodes)
    }

    fn items(&self, from: &str, items: &ItemsFunction) -> Result<Vec<Value>, FeedError> {
        let found = std::panic::catch_unwind(AssertUnwindSafe(|| items(self.state)));
        found
            .unwrap_or_else(|panic| Err(format!("its items panicked: {}", panic_message(&*panic))))
            .map_err(|words| FeedError::Route { node: display_name(from), words })
    }

    /// Adds a branch. Each branch with an item counts; without one, a node runs once however many edges lead to it.
    /// [`END`] is not a node.
    fn add_branch(&mut self, name: &str, item: Option<Value>) {
        let Some(place) = self.shape.place(name) else { return };
        let branches = self.branches.entry(place).or_default();
        if item.is_some() || !branches.contains(&None) {
            branches.push(item);
        }
    }

    fn finish(mut self) -> Result<NextSuperstep, FeedError> {
        self.complete_joins();
        let deferred = self.hold_back_deferred();
        let exit = self.apply_limits();
        let branches = std::mem::take(&mut self.branches);
        let branches = self.planned(branches);
        // NOTE: An error and not a longer queue: the number comes from data, and a list that is too long is most often
        // a fault there.
        if branches.len() > self.shape.max_branches {
            return Err(FeedError::TooManyBranches {
                branches: branches.len(),
                max: self.shape.max_branches,
            });
        }
        let exit = exit.or_else(|| branches.is_empty().then_some(Exit::End));
        if let Some(exit) = exit {
            let mut next = NextSuperstep::exit(exit);
            next.routes = self.routes;
            return Ok(next);
        }
        let mut next = NextSuperstep::default();
        (next.deferred, next.arrived) = (self.planned(deferred), self.incomplete_joins());
        (next.branches, next.routes) = (branches, self.routes);
        Ok(next)
    }

    fn complete_joins(&mut self) {
        for (place, join) in self.shape.joins.iter().enumerate() {
            let has_arrived = |from: &String| {
                self.shape.place(from).is_some_and(|from| self.arrived[place].contains(&from))
            };
            if join.from.iter().all(has_arrived) {
                self.arrived[place].clear();
                self.add_branch(&join.to, None);
            }
        }
    }

    /// Holds back the nodes that run only when nothing else is left, if something else is.
    fn hold_back_deferred(&mut self) -> BTreeMap<usize, Vec<Option<Value>>> {
        let is_deferred = |place: &usize| self.shape.nodes[*place].is_deferred;
        if self.branches.keys().all(is_deferred) {
            return BTreeMap::new();
        }
        let (deferred, others) =
            std::mem::take(&mut self.branches).into_iter().partition(|(place, _)| is_deferred(place));
        self.branches = others;
        deferred
    }

    /// Replaces nodes at their limit by their fallback; the exit if one has none.
    fn apply_limits(&mut self) -> Option<Exit> {
        let mut replaced = BTreeSet::new();
        loop {
            let may_run = |place: &&usize| self.shape.may_run(**place, self.position, self.state);
            let place = *self.branches.keys().find(|place| !may_run(place))?;
            // Two nodes that stand in for each other have no third to stand in for them.
            let instead = self.shape.nodes[place].at_limit.as_deref().filter(|_| replaced.insert(place));
            let Some(instead) = instead else {
                return Some(Exit::NodeLimit(self.shape.names[place].clone()));
            };
            self.branches.remove(&place);
            self.add_branch(instead, None);
        }
    }

    fn planned(&self, branches: BTreeMap<usize, Vec<Option<Value>>>) -> Vec<PlannedBranch> {
        let planned = branches.into_iter().flat_map(|(place, items)| {
            let node = &self.shape.names[place];
            items.into_iter().map(move |item| PlannedBranch::new(node.clone(), item))
        });
        planned.collect()
    }

    fn incomplete_joins(&self) -> Vec<JoinArrivals> {
        let joins = self.shape.joins.iter().zip(&self.arrived).enumerate();
        let waiting = joins.filter(|(_, (_, arrived))| !arrived.is_empty());
        let arrived = waiting.map(|(place, (join, arrived))| {
            let from = arrived.iter().map(|place| self.shape.names[*place].clone()).collect();
            JoinArrivals::new(join.to.clone(), place, from)
        });
        arrived.collect()
    }
}

impl fmt::Debug for GraphDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shape").field("nodes", &self.names).finish_non_exhaustive()
    }
}
