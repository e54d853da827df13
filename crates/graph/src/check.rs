//! Checks of a graph when it is built.

use std::collections::BTreeSet;

use serde_json::json;
use stepfold_state_core::state::{Issue, KeySchema, Schema};
use stepfold_tools::Effect;

use super::node::{Node, NodeWork, OnError};
use super::progress::{NodeRun, keys};
use super::shape::{END, Edge, START, Shape, Target, shown};
use super::types;

impl Node {
    /// The nodes that it names itself.
    pub(super) fn named(&self) -> impl Iterator<Item = &str> {
        let on_error = match &self.on_error {
            OnError::Goto(name) => Some(name),
            _ => None,
        };
        self.goes_to.iter().chain(&self.at_limit).chain(on_error).map(String::as_str)
    }
}

/// Duplicate and invalid names.
pub(super) fn names(nodes: &[(String, Node)]) -> Vec<Issue> {
    let mut seen = BTreeSet::new();
    let mut faults = Vec::new();
    for (name, _) in nodes {
        let why = if name == START || name == END {
            "invalid name: reserved by graphs"
        } else if name.trim().is_empty() || name.contains(['#', '>']) || name.chars().any(char::is_control) {
            "invalid name: must not be empty, nor contain '#', '>' or control characters"
        } else if !seen.insert(name) {
            "duplicate name: use a unique name for each node"
        } else {
            continue;
        };
        faults.push(Issue::new(format!("node '{}'", name.escape_debug()), why));
    }
    faults
}

/// A key whose items a fan-out is over.
pub(super) fn items(key: Option<&str>, schema: &Schema) -> Option<Issue> {
    let key = key?;
    let is_known = schema.declares(key) || schema.is_open();
    let why = match schema.key(key).map(KeySchema::json_schema) {
        _ if !is_known => "not declared by the schema".to_owned(),
        Some(declared) if types::excludes(declared, "array") => {
            format!("expected a list, found {}", types::shown(declared))
        }
        _ => return None,
    };
    Some(Issue::new(format!("fan-out over \"{key}\""), why))
}

/// Builds the agents of nodes that are builders; returns their faults.
pub(super) fn agents(nodes: &mut [(String, Node)], schema: &Schema) -> Vec<Issue> {
    let mut faults = Vec::new();
    for (name, node) in nodes {
        let NodeWork::Agent(agent) = &mut node.work else { continue };
        if let Err(error) = agent.build(schema) {
            let words = |fault: &Issue| format!("invalid agent: {}: {}", fault.path, fault.message);
            faults
                .extend(error.faults.iter().map(|fault| Issue::new(format!("node '{name}'"), words(fault))));
        }
    }
    faults
}

/// The faults of a graph with valid names.
pub(super) fn shape(shape: &Shape, schema: &Schema) -> Vec<Issue> {
    let mut faults = limits(shape);
    if shape.start.is_empty() {
        faults.push(Issue::new("START", "missing edge: add one from it"));
        return faults;
    }
    let reached = Reach::of(shape).nodes;
    for (place, name) in shape.names.iter().enumerate() {
        if !reached.contains(&place) {
            faults.push(Issue::new(
                format!("node '{name}'"),
                "not reachable from START: add a route to it, or remove it",
            ));
        }
    }
    // Where a node is unreachable, a join after it cannot complete; one fault is enough.
    if faults.is_empty() {
        faults.extend(joins(shape));
    }
    for (name, node) in shape.names.iter().zip(&shape.nodes) {
        faults.extend(keys_of(name, node, schema));
    }
    faults
}

fn limits(shape: &Shape) -> Vec<Issue> {
    let mut faults = Vec::new();
    for (name, is_zero) in
        [("max_branches", shape.max_branches == 0), ("max_parallel", shape.max_parallel == 0)]
    {
        if is_zero {
            faults.push(Issue::new(name, "must be positive: nothing could run"));
        }
    }
    for (name, node) in shape.names.iter().zip(&shape.nodes) {
        if node.max_executions == 0 {
            faults.push(Issue::new(
                format!("node '{name}'"),
                "must be allowed to run: raise its limit, or remove it",
            ));
        }
        if node.timeout.is_some_and(|timeout| timeout.is_zero()) {
            faults.push(Issue::new(
                format!("node '{name}'"),
                "invalid timeout of zero: no attempt could complete",
            ));
        }
        if node.retry.is_some() && node.effect == Effect::AtMostOnce {
            faults.push(Issue::new(
                format!("node '{name}'"),
                "invalid retries: it must not run twice; declare it idempotent",
            ));
        }
        if node.at_limit.as_deref() == Some(name) {
            faults.push(Issue::new(
                format!("node '{name}'"),
                "invalid fallback: it cannot replace itself at its limit",
            ));
        }
    }
    faults
}

/// Keys that a node needs.
fn keys_of(name: &str, node: &Node, schema: &Schema) -> Vec<Issue> {
    let path = || format!("node '{name}'");
    let mut faults = Vec::new();
    if node.is_tracked
        && let Err(error) = NodeRun::new(name).task(0).check(schema)
    {
        faults.push(Issue::new(path(), format!("cannot be tracked: {error}")));
    }
    if let NodeWork::Agent(agent) = &node.work {
        for key in agent.unshared(schema) {
            faults.push(Issue::new(
                path(),
                format!("invalid shared key \"{key}\": both schemas must declare it equally"),
            ));
        }
        if agent.kind.is_some()
            && let Err(error) = schema.check_write_to(keys::OUTPUTS.name(), None)
        {
            faults.push(Issue::new(path(), format!("invalid output: {error}")));
        }
        for key in agent.unknown_in_request(schema) {
            let words = format!(
                "unknown state key \"{key}\" in the request: declare it in the graph's schema, or double the braces \
                 if it is text"
            );
            faults.push(Issue::new(path(), words));
        }
        for to in &agent.answers {
            if let Err(error) = schema.check_write_to(&to.key, None) {
                faults.push(Issue::new(path(), format!("invalid key of the answer: {error}")));
            } else if let Some(words) = agent.misfit(to, schema) {
                faults.push(Issue::new(path(), words));
            }
        }
    }
    faults
}

/// The keys that the graph itself writes must accept its writes, if they exist.
pub(crate) fn own_keys(schema: &Schema) -> Vec<Issue> {
    let samples = [
        (keys::EXECUTION_COUNTS.name().to_owned(), json!({"node": 1})),
        (keys::CURRENT_NODE.name().to_owned(), json!("node")),
        (keys::ROUTER_DECISION.name().to_owned(), json!({"node": "node", "targets": ["node"]})),
    ];
    let faults =
        samples.into_iter().filter(|(key, _)| schema.key(key).is_some()).filter_map(|(key, sample)| {
            let error = schema.write(key.as_str(), sample).err()?;
            Some(Issue::new(format!("state key \"{key}\""), format!("not writable by the graph: {error}")))
        });
    faults.collect()
}

/// Joins that can never complete.
fn joins(shape: &Shape) -> Vec<Issue> {
    let mut faults = Vec::new();
    for join in &shape.joins {
        let at = || format!("join at '{}'", shape.names[join.to]);
        // Nodes that are reachable only after the join cannot finish before it.
        let before = Reach::without(shape, join.to).nodes;
        for from in &join.from {
            if !before.contains(from) {
                let name = &shape.names[*from];
                faults.push(Issue::new(
                    at(),
                    format!("cannot complete: node '{name}' is only reachable after it"),
                ));
            }
        }
        let starts = std::iter::once((None, &shape.start));
        let mut routers =
            starts.chain(shape.edges.iter().enumerate().map(|(node, edges)| (Some(node), edges)));
        let router = routers.find_map(|(node, edges)| {
            edges.iter().any(|edge| is_exclusive(shape, node, edge, &join.from)).then_some(node)
        });
        if let Some(router) = router {
            let name = shown(router.map_or(START, |node| &shape.names[node]));
            let words = format!("cannot complete: {name} chooses between the nodes that it waits for");
            faults.push(Issue::new(at(), words));
        }
    }
    faults
}

/// Whether a router runs once and leads, whatever it chooses, past one of these nodes.
fn is_exclusive(shape: &Shape, node: Option<usize>, edge: &Edge, wanted: &[usize]) -> bool {
    let Edge::Route { targets, is_single: true, .. } = edge else { return false };
    let comes_again = node.is_some_and(|node| Reach::from(shape, targets).nodes.contains(&node));
    !comes_again
        && targets.iter().all(|target| {
            let reached = Reach::choosing(shape, edge, *target).nodes;
            wanted.iter().any(|node| !reached.contains(node))
        })
}

/// The nodes that can be reached.
struct Reach<'a> {
    shape: &'a Shape,
    nodes: BTreeSet<usize>,
    /// A node that is not gone through.
    closed: Option<usize>,
    /// A router that leads only to this target.
    chosen: Option<(&'a Edge, Target)>,
}

impl<'a> Reach<'a> {
    fn new(shape: &'a Shape) -> Self {
        Reach { shape, nodes: BTreeSet::new(), closed: None, chosen: None }
    }

    fn of(shape: &'a Shape) -> Self {
        Reach::new(shape).visiting_start()
    }

    fn without(shape: &'a Shape, node: usize) -> Self {
        Reach { closed: Some(node), ..Reach::new(shape) }.visiting_start()
    }

    fn choosing(shape: &'a Shape, edge: &'a Edge, target: Target) -> Self {
        Reach { chosen: Some((edge, target)), ..Reach::new(shape) }.visiting_start()
    }

    fn from(shape: &'a Shape, targets: &[Target]) -> Self {
        Reach::new(shape).visiting(targets.to_vec())
    }

    fn visiting_start(self) -> Self {
        let first = self.targets(&self.shape.start);
        self.visiting(first)
    }

    /// Each node is gone into once.
    fn visiting(mut self, mut next: Vec<Target>) -> Self {
        while let Some(target) = next.pop() {
            let Target::Node(place) = target else { continue };
            if self.closed != Some(place) && self.nodes.insert(place) {
                next.extend(self.behind(place));
            }
        }
        self
    }

    /// Where a node leads, by its edges, by what it names itself, and by the joins that it is one of.
    fn behind(&self, place: usize) -> Vec<Target> {
        let mut targets = self.targets(&self.shape.edges[place]);
        let named = self.shape.nodes[place].named().filter_map(|name| self.shape.place(name));
        targets.extend(named.map(Target::Node));
        let joins = self.shape.joins.iter().filter(|join| join.from.contains(&place));
        targets.extend(joins.map(|join| Target::Node(join.to)));
        targets
    }

    fn targets(&self, edges: &[Edge]) -> Vec<Target> {
        let mut targets = Vec::new();
        for edge in edges {
            match edge {
                Edge::To(target) => targets.push(*target),
                Edge::Each { node, .. } => targets.push(Target::Node(*node)),
                Edge::Route { targets: all, .. } => match self.chosen {
                    Some((chosen, target)) if std::ptr::eq(chosen, edge) => targets.push(target),
                    _ => targets.extend(all),
                },
            }
        }
        targets
    }
}
