//! Builds a graph from its form. Names are resolved here, where their lines are known.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use stepfold::graph::progress::tracking_keys;
use stepfold::graph::{END, GraphBuilder, Node, NodeContext, NodeError, RouteChoice, START};
use stepfold::prelude::*;
use stepfold::state_core::state::{Issue, ValueRef};

use super::{BuiltGraph, EnclosingGraphs, agent, node};
use crate::form::agent::NamedValues;
use crate::form::graph::{EdgeForm, GraphForm, NodeForm, NodeNames, RouteForm};
use crate::form::{FaultCollector, nearest, unknown_key};
use crate::model::ModelSource;

/// The characters of a value in the reason of a route.
const REASON: usize = 60;

/// The file of a graph, and the models of its agents.
#[derive(Clone, Copy)]
pub(super) struct GraphSource<'a> {
    pub(super) folder: &'a Path,
    pub(super) name: &'a str,
    pub(super) path: &'a Path,
    pub(super) models: &'a ModelSource<'a>,
}

/// Builds the graph; none if it has faults.
pub(super) fn build(
    form: &GraphForm,
    faults: &mut FaultCollector,
    place: &GraphSource<'_>,
    enclosing: &EnclosingGraphs,
) -> anyhow::Result<Option<BuiltGraph>> {
    let schema = agent::state_schema(&form.state, form.open_state, faults, keys_of_progress(form));
    check_whole(form, faults, place, &schema);
    let enclosing = enclosing_agents(form, place, enclosing);
    let mut builder = with_limits(Graph::builder(place.name).schema(schema.clone()), form);
    let mut resolver = LinkResolver { form, links: Vec::new(), is_sound: true };
    let mut speakers = BTreeSet::new();
    for (name, node_form) in form.nodes.iter() {
        let node_builder = node::NodeBuilder {
            name,
            form: node_form,
            schema: &schema,
            declared: &form.state,
            place,
            per_run: form.per_run,
            enclosing: &enclosing,
        };
        let node = faults.within(&["nodes", name], |faults| {
            let work = node_builder.work(faults)?;
            if work.as_ref().is_some_and(|work| work.speaks) {
                speakers.insert(name.to_owned());
            }
            // NOTE: A node whose work has faults gets an empty one, so that the edges to it are checked as well.
            let work = work.map_or_else(|| Node::new(empty_node), |work| work.node);
            anyhow::Ok(resolver.node(name, work, node_form, faults))
        })?;
        builder = builder.node(name, node);
    }
    resolver.edges(faults, &schema);
    resolver.routes(faults, &schema);
    let is_sound = resolver.is_sound;
    match resolver.connect(builder).build() {
        Ok(graph) => return Ok(is_sound.then_some(BuiltGraph { graph, speakers })),
        Err(error) => {
            for fault in &error.faults {
                let text = format!("{}: {}", words(&fault.path), words(&fault.message));
                faults.add(&path_of_fault(fault, form), text);
            }
        }
    }
    Ok(None)
}

/// Checks the settings of the whole graph.
fn check_whole(form: &GraphForm, faults: &mut FaultCollector, place: &GraphSource<'_>, schema: &Schema) {
    if let Some(message) = form.model.as_ref().and_then(|name| place.models.fault(name, place.folder)) {
        faults.add(&["model"], message);
    }
    if form.limits.steps == Some(0) {
        faults.add(&["limits", "steps"], "limits.steps: must be positive: no node could run");
    }
    let followed = ["model_id", "params", "auto"];
    if form.per_run && !followed.iter().any(|key| schema.key(key).is_some()) {
        let words = "missing state keys: agents follow `model_id`, `params` and `auto`; declare at least one";
        faults.add(&["per_run"], words);
    }
}

/// The context of the graph's agents.
fn enclosing_agents(
    form: &GraphForm,
    place: &GraphSource<'_>,
    enclosing: &EnclosingGraphs,
) -> EnclosingGraphs {
    let mut enclosing = enclosing.clone();
    enclosing.files.extend(place.models.files.full(place.path));
    if let Some(model) = &form.model {
        enclosing.model = Some((model.clone(), place.folder.to_owned()));
    }
    enclosing
}

async fn empty_node(_: NodeContext) -> Result<(), NodeError> {
    Ok(())
}

/// The keys that tracking needs, in their stored form; none if no node is tracked.
fn keys_of_progress(form: &GraphForm) -> Map<String, Value> {
    if !form.nodes.iter().any(|(_, node)| node.tracked) {
        return Map::new();
    }
    let schema = tracking_keys(Schema::builder()).build().ok();
    match schema.and_then(|schema| serde_json::to_value(schema).ok()?.get("keys").cloned()) {
        Some(Value::Object(keys)) => keys,
        _ => Map::new(),
    }
}

fn with_limits(mut builder: GraphBuilder, form: &GraphForm) -> GraphBuilder {
    let mut limits = RunLimits::default();
    // NOTE: Zero steps have their own fault, at their line.
    limits.steps = form.limits.steps.filter(|steps| *steps > 0).unwrap_or(limits.steps);
    limits.tokens = form.limits.tokens;
    limits.time = form.limits.time.map(|time| time.0);
    builder = builder.limits(limits);
    if let Some(branches) = form.limits.branches {
        builder = builder.max_branches(branches);
    }
    if let Some(parallel) = form.limits.parallel {
        builder = builder.max_parallel(parallel);
    }
    if form.ask_when_uncertain {
        builder = builder.ask_when_uncertain();
    }
    builder
}

/// The library's name of a target.
pub(super) fn library_name(name: &str) -> String {
    if name == "END" { END.to_owned() } else { name.to_owned() }
}

/// A connection between nodes.
enum GraphLink {
    Edge(String, String),
    Each { from: String, to: String, key: String },
    Join(Vec<String>, String),
    Route { from: String, key: String, cases: Arc<[(String, String)]>, otherwise: String },
}

impl GraphLink {
    fn connect(self, builder: GraphBuilder) -> GraphBuilder {
        match self {
            GraphLink::Edge(from, to) => builder.edge(from, to),
            GraphLink::Each { from, to, key } => builder.fan_out(from, to, key),
            GraphLink::Join(from, to) => builder.join(from, to),
            GraphLink::Route { from, key, cases, otherwise } => {
                let mut targets: Vec<String> = Vec::new();
                for target in cases.iter().map(|(_, target)| target).chain([&otherwise]) {
                    if !targets.contains(target) {
                        targets.push(target.clone());
                    }
                }
                builder.route(from, targets, move |state| choose(state, &key, &cases, &otherwise))
            }
        }
    }
}

/// Resolves the names of nodes in edges and routes, and collects the connections.
struct LinkResolver<'a> {
    form: &'a GraphForm,
    links: Vec<GraphLink>,
    is_sound: bool,
}

impl LinkResolver<'_> {
    /// Adds limits and targets to a node.
    fn node(&mut self, name: &str, work: Node, form: &NodeForm, faults: &mut FaultCollector) -> Node {
        if name == "START" || name == "END" {
            self.fault(
                faults,
                &[],
                format!("invalid node name {name}: it is reserved for the beginning and end of the graph"),
            );
        }
        let mut node = node::with_rules(work, form);
        if let Some(target) = form.at_limit.as_ref().and_then(|name| self.target(faults, &["at_limit"], name))
        {
            node = node.at_limit(target);
        }
        if let Some(target) = form.on_error.as_ref().and_then(|name| self.target(faults, &["on_error"], name))
        {
            node = node.on_error(target);
        }
        for (at, name) in form.goes_to.iter().enumerate() {
            if let Some(target) = self.target(faults, &["goes_to", &at.to_string()], name) {
                node = node.goes_to([target]);
            }
        }
        node
    }

    /// Adds all connections to the builder.
    fn connect(self, builder: GraphBuilder) -> GraphBuilder {
        // NOTE: With a faulty edge left out, the builder would report its target as unreachable: so every node is then
        // reachable, and only further faults are reported.
        match self.is_sound {
            true => self.links.into_iter().fold(builder, |builder, way| way.connect(builder)),
            false => self.form.nodes.names().fold(builder, |builder, node| builder.edge(START, node)),
        }
    }

    fn edges(&mut self, faults: &mut FaultCollector, schema: &Schema) {
        for (at, edge) in self.form.edges.iter().enumerate() {
            faults.within(&["edges", &at.to_string()], |faults| self.edge(edge, faults, schema));
        }
    }

    fn edge(&mut self, edge: &EdgeForm, faults: &mut FaultCollector, schema: &Schema) {
        self.require(&[("from", edge.from.is_some()), ("to", edge.to.is_some())], faults);
        // NOTE: A list of one node is a plain edge.
        let is_join = matches!(&edge.from, Some(NodeNames::Many(names)) if names.len() != 1);
        let from =
            self.names(faults, "from", edge.from.as_ref(), |resolver, faults, path, name| match name {
                "START" if is_join => {
                    resolver.fault(faults, path, "invalid join: it waits for nodes, and START is not a node");
                    None
                }
                "START" => Some(START.to_owned()),
                name => resolver.known(faults, path, name),
            });
        let to = self.names(faults, "to", edge.to.as_ref(), LinkResolver::target);
        if let Some(words) = edge.each.as_ref().and_then(|key| unknown_key(key, schema)) {
            self.fault(faults, &["each"], words);
        }
        if is_join && edge.each.is_some() {
            let words = "invalid join: it has one target; put a node between it and the branches";
            self.fault(faults, &["each"], words);
        }
        for to in to {
            match (&edge.each, is_join) {
                (None, false) => {
                    self.links.extend(from.iter().map(|from| GraphLink::Edge(from.clone(), to.clone())));
                }
                (None, true) if to == END => {
                    self.fault(faults, &["to"], "invalid join: its target must be a node, not END");
                }
                (None, true) => self.links.push(GraphLink::Join(from.clone(), to)),
                (Some(_), _) if to == END => {
                    self.fault(
                        faults,
                        &["to"],
                        "invalid target: a branch for each item leads to a node, not to END",
                    );
                }
                (Some(key), _) => self.links.extend(from.iter().map(|from| GraphLink::Each {
                    from: from.clone(),
                    to: to.clone(),
                    key: key.clone(),
                })),
            }
        }
    }

    fn routes(&mut self, faults: &mut FaultCollector, schema: &Schema) {
        for (at, route) in self.form.routes.iter().enumerate() {
            faults.within(&["routes", &at.to_string()], |faults| self.route(route, faults, schema));
        }
    }

    fn route(&mut self, route: &RouteForm, faults: &mut FaultCollector, schema: &Schema) {
        let from = match route.from.as_deref() {
            Some("START") => Some(START.to_owned()),
            name => name.and_then(|name| self.known(faults, &["from"], name)),
        };
        if let Some(words) = route.key.as_ref().and_then(|key| unknown_key(key, schema)) {
            self.fault(faults, &["key"], words);
        }
        let fields = [
            ("from", route.from.is_some()),
            ("key", route.key.is_some()),
            ("cases", route.cases.is_some()),
            ("otherwise", route.otherwise.is_some()),
        ];
        self.require(&fields, faults);
        let mut cases = Vec::new();
        for (value, name) in route.cases.iter().flat_map(NamedValues::iter) {
            let target = self.target(faults, &["cases", value], name);
            cases.extend(target.map(|target| (value.to_owned(), target)));
        }
        let otherwise = route.otherwise.as_ref();
        let otherwise = otherwise.and_then(|name| self.target(faults, &["otherwise"], name));
        if let (Some(from), Some(key), Some(otherwise)) = (from, route.key.clone(), otherwise) {
            self.links.push(GraphLink::Route { from, key, cases: cases.into(), otherwise });
        }
    }

    /// Resolves several names, each with its own line.
    fn names(
        &mut self,
        faults: &mut FaultCollector,
        field: &str,
        names: Option<&NodeNames>,
        look_up: impl Fn(&mut Self, &mut FaultCollector, &[&str], &str) -> Option<String>,
    ) -> Vec<String> {
        if matches!(names, Some(NodeNames::Many(names)) if names.is_empty()) {
            self.fault(faults, &[field], "missing node");
        }
        let found = names.into_iter().flat_map(NodeNames::iter).filter_map(|(at, name)| {
            match at.map(|at| at.to_string()) {
                Some(at) => look_up(self, faults, &[field, &at], name),
                None => look_up(self, faults, &[field], name),
            }
        });
        found.collect()
    }

    /// Resolves the name of a target.
    fn target(&mut self, faults: &mut FaultCollector, path: &[&str], name: &str) -> Option<String> {
        match name {
            "END" => Some(END.to_owned()),
            "START" => {
                self.fault(faults, path, "invalid target START: the graph begins there");
                None
            }
            name => self.known(faults, path, name),
        }
    }

    fn known(&mut self, faults: &mut FaultCollector, path: &[&str], name: &str) -> Option<String> {
        let words = match name {
            name if name != "END" && self.form.nodes.has(name) => return Some(name.to_owned()),
            "END" => "invalid source END: the graph ends there".to_owned(),
            name => {
                format!("unknown node `{name}`{}", nearest(name, self.form.nodes.names()))
            }
        };
        self.fault(faults, path, words);
        None
    }

    /// Requires fields. A field that was left out because it does not fit has its fault already.
    fn require(&mut self, fields: &[(&str, bool)], faults: &mut FaultCollector) {
        for (field, _) in fields.iter().filter(|(_, is_there)| !is_there) {
            self.is_sound = false;
            if !faults.has_left_out(field) {
                faults.add(&[""; 0], format!("missing `{field}`"));
            }
        }
    }

    fn fault(&mut self, faults: &mut FaultCollector, path: &[&str], words: impl Into<String>) {
        self.is_sound = false;
        faults.add(path, words);
    }
}

/// Chooses the target for the value of a key.
fn choose(state: &State, key: &str, cases: &[(String, String)], otherwise: &str) -> RouteChoice {
    let value = state.get(key).map(ValueRef::to_json).filter(|value| !value.is_null());
    // NOTE: Values choose, not expressions, which would need types and a manual; models pad words with spaces
    // (`docs/decisions/command.md`).
    let text = value.as_ref().map(|value| match value {
        Value::String(text) => text.trim().to_owned(),
        value => value.to_string(),
    });
    let case = text.as_ref().and_then(|text| cases.iter().find(|(value, _)| value == text));
    let target = case.map_or(otherwise, |(_, target)| target);
    let reason = match &text {
        None => format!("{key} is not set"),
        Some(text) if text.chars().count() > REASON => {
            format!("{key} is {} ...", text.chars().take(REASON).collect::<String>())
        }
        Some(text) => format!("{key} is {text}"),
    };
    RouteChoice::of(target).because(reason)
}

/// The path in the file of a fault from the graph's builder.
fn path_of_fault(fault: &Issue, form: &GraphForm) -> Vec<String> {
    let path = |steps: &[&str]| steps.iter().map(|step| (*step).to_owned()).collect();
    let quoted = |before: &str| fault.path.strip_prefix(before)?.strip_suffix('\'');
    if let Some(node) = quoted("node '") {
        return path(&["nodes", node]);
    }
    if let Some(node) = quoted("join at '") {
        let is_it = |edge: &EdgeForm| {
            matches!(edge.from, Some(NodeNames::Many(_)))
                && edge.to.iter().flat_map(NodeNames::iter).any(|(_, to)| to == node)
        };
        return match form.edges.iter().position(is_it) {
            Some(at) => path(&["edges", &at.to_string(), "from"]),
            None => path(&["edges"]),
        };
    }
    if let Some(key) = fault.path.strip_prefix("state key \"").and_then(|key| key.strip_suffix('"')) {
        return path(&["state", key]);
    }
    match fault.path.as_str() {
        "START" => path(&["edges"]),
        "max_branches" => path(&["limits", "branches"]),
        "max_parallel" => path(&["limits", "parallel"]),
        limit => path(&["limits", limit.strip_prefix("limits.").unwrap_or(limit)]),
    }
}

/// The text of a fault, with the names of the file.
fn words(text: &str) -> String {
    match text {
        "max_branches" => "limits.branches".to_owned(),
        "max_parallel" => "limits.parallel".to_owned(),
        text => text.replace('\'', "`"),
    }
}
