//! What the tests of graphs are made of: nodes that note that they ran, and the text of a run.

use std::fmt::Write as _;

use serde_json::{Value, json};
use stepfold_agent_loop::state_core::state::{Key, Schema};
use stepfold_agent_loop::{EventKind, Input, Run, RunBuilder, RunEvent, WorkOutcome};
use stepfold_graph::{Graph, GraphBuilder, NodeContext, NodeError, PlannedBranch, Update};

use crate::loop_kit::{Ended, go_on, outcome_of, shown};

/// What ran, in the order in which it was merged.
pub(crate) const LOG: Key<Vec<String>> = Key::new("log");
pub(crate) const ITEMS: Key<Vec<Value>> = Key::new("items");
pub(crate) const NEXT: Key<String> = Key::new("next");

/// A graph over `log`, `items` and `next`.
pub(crate) fn graph() -> GraphBuilder {
    Graph::builder("tested").schema(Schema::builder().key(LOG).key(ITEMS).key(NEXT).build().unwrap())
}

/// A node that notes that it ran, and on which item.
pub(crate) async fn note(node: NodeContext) -> Result<Update, NodeError> {
    Ok(noted(&node))
}

pub(crate) fn noted(node: &NodeContext) -> Update {
    let line = match node.item() {
        Some(item) => format!("{}({item})", node.node()),
        None => node.node().to_owned(),
    };
    Update::new().set(LOG, vec![line])
}

/// A node that always fails with these words.
pub(crate) fn failing(
    words: &'static str,
) -> impl Fn(NodeContext) -> std::future::Ready<Result<(), NodeError>> + Clone {
    move |_| std::future::ready(Err(NodeError::new(words)))
}

/// An input without words, with these values.
pub(crate) fn values(values: Value) -> Input {
    Input::new().with_values(values)
}

pub(crate) fn items(items: Value) -> Input {
    values(json!({"items": items}))
}

/// The result of a run and its events.
pub(crate) struct Walked {
    pub(crate) ended: Ended,
    pub(crate) seen: Vec<RunEvent>,
}

/// Runs a graph, and checks on the way what holds of every run.
pub(crate) async fn walk(graph: &Graph, input: impl Into<Input>) -> Walked {
    walk_on(Run::new(graph.agent(), input, "run").unwrap(), |run| run).await
}

/// Continues with a run, and checks on the way what holds of every run.
pub(crate) async fn walk_on(run: Run, say: impl for<'a> FnOnce(RunBuilder<'a>) -> RunBuilder<'a>) -> Walked {
    let mut seen = Vec::new();
    let ended = go_on(run, |run| say(run).observe(&mut seen)).await;
    Walked { ended, seen }
}

impl Walked {
    /// The supersteps and their failures, then the complete result of the run.
    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.steps(), shown(&self.ended))
    }

    /// The supersteps, and what failed in them.
    pub(crate) fn steps(&self) -> String {
        let mut text = String::new();
        for event in self.seen.iter().filter_map(RunEvent::committed) {
            match &event.kind {
                EventKind::Planned { branches, deferred, arrived, routes, exit } => {
                    for route in routes {
                        let reason = route.reason.as_ref().map(|why| format!(", {why}")).unwrap_or_default();
                        let to = if route.to.is_empty() { "nowhere".to_owned() } else { route.to.join(", ") };
                        writeln!(text, "   {} -> {to}{reason}", route.from).unwrap();
                    }
                    if exit.is_none() {
                        writeln!(text, "{}: {}", event.step, names(branches)).unwrap();
                    }
                    if !deferred.is_empty() {
                        writeln!(text, "   deferred: {}", names(deferred)).unwrap();
                    }
                    for waiting in arrived {
                        writeln!(text, "   {} waits, has {}", waiting.at, waiting.from.join(", ")).unwrap();
                    }
                }
                EventKind::Answered(_) => {
                    for item in event.outcomes() {
                        let place = item.place;
                        let WorkOutcome::Node(outcome) = item.outcome else { continue };
                        if let Some(error) = &outcome.error {
                            let tries = outcome.tries;
                            writeln!(text, "   {place} {:?} ({tries}): {error}", outcome.status).unwrap();
                        }
                    }
                }
                EventKind::Asks { place, requests } => {
                    let ids: Vec<&str> = requests.iter().map(|request| request.id.as_str()).collect();
                    writeln!(text, "   {place} asks: {}", ids.join(", ")).unwrap();
                }
                EventKind::Interrupted { places, .. } => {
                    writeln!(text, "   interrupted: {places:?}").unwrap();
                }
                EventKind::Started { places } => writeln!(text, "   started: {places:?}").unwrap(),
                EventKind::Cancelled | EventKind::TimedOut => writeln!(text, "   {}", event.name()).unwrap(),
                _ => {}
            }
            for error in event.step_end.iter().flat_map(|end| &end.merge_errors) {
                writeln!(text, "   {error}").unwrap();
            }
        }
        text.push_str("--\n");
        text
    }

    /// What is noted under `log`.
    pub(crate) fn log(&self) -> Vec<String> {
        outcome_of(&self.ended).state().get(LOG).unwrap().unwrap_or_default()
    }
}

fn names(branches: &[PlannedBranch]) -> String {
    let name = |planned: &PlannedBranch| match &planned.item {
        Some(item) => format!("{}({item})", planned.node),
        None => planned.node.clone(),
    };
    match branches.len() {
        0..=12 => branches.iter().map(name).collect::<Vec<_>>().join(", "),
        many => format!("{many} branches"),
    }
}

/// JSON as text with the fields of objects in one order, whatever serde_json's features.
pub(crate) fn sorted_text(mut value: Value) -> String {
    value.sort_all_objects();
    value.to_string()
}
