//! Checks of a graph when it is built.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use stepfold_agent_loop::plan::{END, START};
use stepfold_state_core::state::{Issue, KeySchema, Schema};
use stepfold_tools::Effect;

use super::definition::{DefinedEdge, DefinedJoin, GraphDefinition, display_name};
use super::node::{Node, NodeWork, OnError};
use super::progress::{NodeRun, keys};
use super::schema_types;

impl Node {
    /// The nodes that it names itself.
    pub(super) fn named_targets(&self) -> impl Iterator<Item = &str> {
        let on_error = match &self.on_error {
            OnError::Goto(name) => Some(name),
            _ => None,
        };
        self.goes_to.iter().chain(&self.at_limit).chain(on_error).map(String::as_str)
    }
}

fn of_node(name: &str, words: impl Into<String>) -> Issue {
    Issue::new(format!("node '{name}'"), words)
}

/// Duplicate and invalid names.
pub(super) fn names(shape: &GraphDefinition) -> Vec<Issue> {
    let mut faults = Vec::new();
    for (place, name) in shape.names.iter().enumerate() {
        let why = if name == START || name == END {
            "invalid name: reserved by graphs"
        } else if name.trim().is_empty() || name.contains(['#', '>']) || name.chars().any(char::is_control) {
            "invalid name: must not be empty, nor contain '#', '>' or control characters"
        } else if shape.place(name) != Some(place) {
            "duplicate name: use a unique name for each node"
        } else {
            continue;
        };
        faults.push(of_node(&name.escape_debug().to_string(), why));
    }
    faults
}

/// Builds the agents of nodes that are builders; returns their faults.
pub(super) fn agents(shape: &mut GraphDefinition, schema: &Schema) -> Vec<Issue> {
    let mut faults = Vec::new();
    for (name, node) in shape.names.iter().zip(&mut shape.nodes) {
        let NodeWork::Agent(agent) = &mut node.work else { continue };
        if let Err(error) = agent.build(schema) {
            let words = |fault: &Issue| format!("invalid agent: {}: {}", fault.path, fault.message);
            faults.extend(error.faults.iter().map(|fault| of_node(name, words(fault))));
        }
    }
    faults
}

/// The names and keys that edges, joins and nodes lead to, wait for and are over.
pub(super) fn links(shape: &GraphDefinition, edges: &[(String, DefinedEdge)], schema: &Schema) -> Vec<Issue> {
    let mut faults: Vec<Issue> = edges.iter().filter_map(|(_, edge)| items(edge, schema)).collect();
    for (from, edge) in edges {
        let what = format!("an edge from {} leads to", display_name(from));
        let to = edge.targets().iter().filter_map(|target| match edge {
            DefinedEdge::Each { .. } => missing_node_fault(shape, target, &what),
            _ => target_fault(shape, target, &what),
        });
        faults.extend(to);
        if edge.targets().is_empty() {
            faults.push(Issue::new(
                format!("route from {}", display_name(from)),
                "missing targets: name at least one",
            ));
        }
        if from != START {
            faults.extend(missing_node_fault(shape, from, "an edge comes from"));
        }
    }
    for DefinedJoin { from, to } in &shape.joins {
        if from.is_empty() {
            faults
                .push(Issue::new(format!("join at '{to}'"), "missing nodes to wait for: name at least one"));
        }
        let what = format!("the join at '{to}' waits for");
        faults.extend(from.iter().filter_map(|from| missing_node_fault(shape, from, &what)));
        faults.extend(missing_node_fault(shape, to, "a join leads to"));
    }
    for (name, node) in shape.named_nodes() {
        let what = format!("node '{name}' goes to");
        faults.extend(node.named_targets().filter_map(|target| target_fault(shape, target, &what)));
    }
    faults
}

/// A key whose items a fan-out is over.
fn items(edge: &DefinedEdge, schema: &Schema) -> Option<Issue> {
    let DefinedEdge::Each { key: Some(key), .. } = edge else { return None };
    let is_known = schema.declares(key) || schema.is_open();
    let why = match schema.key(key).map(KeySchema::json_schema) {
        _ if !is_known => "not declared by the schema".to_owned(),
        Some(declared) if schema_types::excludes(declared, "array") => {
            format!("expected a list, found {}", schema_types::display_types(declared))
        }
        _ => return None,
    };
    Some(Issue::new(format!("fan-out over \"{key}\""), why))
}

fn missing_node_fault(shape: &GraphDefinition, name: &str, what: &str) -> Option<Issue> {
    let is_missing = shape.place(name).is_none();
    is_missing.then(|| match name {
        START | END => Issue::new(display_name(name), format!("not a node, but {what} it; use a node")),
        name => of_node(name, format!("missing, but {what} it; add it")),
    })
}

fn target_fault(shape: &GraphDefinition, name: &str, what: &str) -> Option<Issue> {
    match name {
        END => None,
        START => Some(Issue::new("START", "not a target: the graph begins there")),
        name => missing_node_fault(shape, name, what),
    }
}

/// The faults of a graph with valid names.
pub(super) fn shape(shape: &GraphDefinition, schema: &Schema) -> Vec<Issue> {
    let mut faults = limits(shape);
    if shape.edges_from(START).is_empty() {
        faults.push(Issue::new("START", "missing edge: add one from it"));
        return faults;
    }
    let reached = ReachabilitySearch::of(shape).from([START]);
    let unreached = shape.names.iter().filter(|name| !reached.contains(name.as_str()));
    faults.extend(
        unreached.map(|name| of_node(name, "not reachable from START: add a route to it, or remove it")),
    );
    // Where a node is unreachable, a join after it cannot complete; one fault is enough.
    if faults.is_empty() {
        faults.extend(joins(shape));
    }
    faults.extend(shape.named_nodes().flat_map(|(name, node)| keys_of(name, node, schema)));
    faults
}

fn limits(shape: &GraphDefinition) -> Vec<Issue> {
    let of_graph = [("max_branches", shape.max_branches), ("max_parallel", shape.max_parallel)];
    let zero = of_graph.into_iter().filter(|(_, limit)| *limit == 0);
    let mut faults: Vec<Issue> =
        zero.map(|(name, _)| Issue::new(name, "must be positive: nothing could run")).collect();
    for (name, node) in shape.named_nodes() {
        let rules = [
            (node.max_executions == 0, "must be allowed to run: raise its limit, or remove it"),
            (node.timeout == Some(Duration::ZERO), "invalid timeout of zero: no attempt could complete"),
            (
                node.retry.is_some() && node.effect == Effect::AtMostOnce,
                "invalid retries: it must not run twice; declare it idempotent",
            ),
            (
                node.at_limit.as_deref() == Some(name),
                "invalid fallback: it cannot replace itself at its limit",
            ),
        ];
        let broken = rules.into_iter().filter(|(is_broken, _)| *is_broken);
        faults.extend(broken.map(|(_, words)| of_node(name, words)));
    }
    faults
}

/// Keys that a node needs.
fn keys_of(name: &str, node: &Node, schema: &Schema) -> Vec<Issue> {
    let mut words = Vec::new();
    if node.is_tracked
        && let Err(error) = NodeRun::new(name).task(0).check(schema)
    {
        words.push(format!("cannot be tracked: {error}"));
    }
    if let NodeWork::Agent(agent) = &node.work {
        let unshared = agent.unshared(schema).into_iter();
        words.extend(
            unshared.map(|key| format!("invalid shared key \"{key}\": both schemas must declare it equally")),
        );
        if agent.kind.is_some()
            && let Err(error) = schema.check_write_to(keys::OUTPUTS.name(), None)
        {
            words.push(format!("invalid output: {error}"));
        }
        words.extend(agent.unknown_in_request(schema).map(|key| {
            format!(
                "unknown state key \"{key}\" in the request: declare it in the graph's schema, or double the braces \
                 if it is text"
            )
        }));
        for to in &agent.answers {
            match schema.check_write_to(&to.key, None) {
                Err(error) => words.push(format!("invalid key of the answer: {error}")),
                Ok(()) => words.extend(agent.answer_type_fault(to, schema)),
            }
        }
    }
    words.into_iter().map(|words| of_node(name, words)).collect()
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
            // NOTE: A sample is written, since the handler of a key decides what it accepts, and not its type alone.
            let error = schema.write(key.as_str(), sample).err()?;
            Some(Issue::new(format!("state key \"{key}\""), format!("not writable by the graph: {error}")))
        });
    faults.collect()
}

/// Joins that can never complete.
fn joins(shape: &GraphDefinition) -> Vec<Issue> {
    let mut faults = Vec::new();
    for DefinedJoin { from, to } in &shape.joins {
        let mut add = |words: String| {
            faults.push(Issue::new(format!("join at '{to}'"), format!("cannot complete: {words}")));
        };
        // Nodes that are reachable only after the join cannot finish before it.
        // NOTE: A join that can never complete would end the graph early without an error, so it is a fault of the
        // definition.
        let before = ReachabilitySearch { closed: Some(to), ..ReachabilitySearch::of(shape) }.from([START]);
        for from in from.iter().filter(|from| !before.contains(from.as_str())) {
            add(format!("node '{from}' is only reachable after it"));
        }
        if let Some((router, _)) = shape.edges().find(|(node, edge)| is_exclusive(shape, node, edge, from)) {
            add(format!("{} chooses between the nodes that it waits for", display_name(router)));
        }
    }
    faults
}

/// Whether a router runs once and leads, whatever it chooses, past one of these nodes.
fn is_exclusive(shape: &GraphDefinition, node: &str, edge: &DefinedEdge, wanted: &[String]) -> bool {
    let DefinedEdge::Route { targets, is_single: true, .. } = edge else { return false };
    let comes_again = ReachabilitySearch::of(shape).from(targets.iter().map(String::as_str)).contains(node);
    !comes_again
        && targets.iter().all(|target| {
            let reached =
                ReachabilitySearch { chosen: Some((edge, target)), ..ReachabilitySearch::of(shape) }
                    .from([START]);
            wanted.iter().any(|node| !reached.contains(node.as_str()))
        })
}

/// A search for the nodes that can be reached.
struct ReachabilitySearch<'a> {
    shape: &'a GraphDefinition,
    /// A node whose edges are not followed.
    closed: Option<&'a str>,
    /// A router that leads only to this target.
    chosen: Option<(&'a DefinedEdge, &'a str)>,
}

impl<'a> ReachabilitySearch<'a> {
    const fn of(shape: &'a GraphDefinition) -> Self {
        ReachabilitySearch { shape, closed: None, chosen: None }
    }

    /// The nodes that can be reached from these, with them. Each is followed once.
    fn from(&self, names: impl IntoIterator<Item = &'a str>) -> BTreeSet<&'a str> {
        let mut next: Vec<&str> = names.into_iter().collect();
        let mut reached = BTreeSet::new();
        while let Some(name) = next.pop() {
            if self.closed != Some(name) && reached.insert(name) {
                self.add_next(name, &mut next);
            }
        }
        reached
    }

    /// Adds the nodes after a node: by its edges, by its own targets, and by the joins that wait for it.
    fn add_next(&self, name: &str, next: &mut Vec<&'a str>) {
        for edge in self.shape.edges_from(name) {
            match self.chosen {
                Some((chosen, target)) if std::ptr::eq(chosen, edge) => next.push(target),
                _ => next.extend(edge.targets().iter().map(String::as_str)),
            }
        }
        next.extend(self.shape.node(name).into_iter().flat_map(Node::named_targets));
        let joins = self.shape.joins.iter().filter(|join| join.from.iter().any(|from| from == name));
        next.extend(joins.map(|join| join.to.as_str()));
    }
}
