//! The lines of a commit: its messages in notation, and its other contents as text.

use std::sync::Arc;

use stepfold::agent_loop::{Event, EventKind, ItemOutcome, WorkOutcome};
use stepfold::graph::{JoinArrivals, PlannedBranch};
use stepfold::prelude::*;

use super::{ActiveBranches, call, decision, route, short};

/// The maximum number of listed branches of a superstep.
const LISTED: usize = 20;

/// Messages in notation.
pub(crate) fn message_lines(messages: &[Arc<Message>]) -> Vec<String> {
    let text = super::readable_messages(messages.iter().map(|message| &**message)).to_string();
    text.lines().map(str::to_owned).collect()
}

/// The lines of a commit, given the active branches before it.
pub(crate) fn commit_lines(event: &Event, active: &ActiveBranches) -> Vec<String> {
    let messages = message_lines(&event.messages);
    let mut lines = match &event.kind {
        EventKind::Answered(_) => {
            let outcomes = event.outcomes();
            outcomes.iter().filter_map(|item| answered(item, active, !messages.is_empty())).collect()
        }
        EventKind::Replied { .. } => {
            let used = event.messages.iter().flat_map(|message| message.server_tool_uses());
            used.map(|used| format!("(run by the provider: {})", short(&used.to_string()))).collect()
        }
        EventKind::Decided { decisions, .. } if messages.is_empty() => {
            let words = decisions.iter().map(|(id, decided)| decision(id, decided));
            vec![words.collect::<Vec<_>>().join(", ")]
        }
        EventKind::Edited { results, arguments, by, .. } => {
            let who = by.as_ref().map(|by| format!("by {by}"));
            let results =
                results.iter().flat_map(|result| message_lines(&[Message::tool(result.clone()).into()]));
            let arguments = arguments
                .iter()
                .map(|(id, given)| format!("arguments of {id}: {}", short(&given.to_string())));
            who.into_iter().chain(results).chain(arguments).collect()
        }
        EventKind::Started { places } if !active.is_empty() => {
            vec![format!("starts {}", labels(active, places))]
        }
        EventKind::Interrupted { places, asks, .. } if !active.is_empty() => {
            let became = if *asks { "an approver is asked" } else { "its outcome is unknown" };
            vec![format!("{}: {became}", labels(active, places))]
        }
        EventKind::Planned { branches, deferred, arrived, routes, exit } => {
            let mut lines: Vec<String> = routes.iter().map(route).collect();
            lines.extend(exit.as_ref().map(ToString::to_string));
            lines.extend(planned(branches));
            lines.extend(arrived.iter().map(waiting));
            lines.extend(deferred.iter().map(|planned| format!("{} is put off", planned.node)));
            lines
        }
        EventKind::Inner { place, event } => {
            let label = active.label(*place);
            let inner = commit_lines(event, active.inner(*place).unwrap_or(&ActiveBranches::default()));
            let heads = std::iter::once(event.name()).chain(std::iter::repeat(""));
            let lines = heads.zip(if inner.is_empty() { vec![String::new()] } else { inner });
            lines.map(|(head, line)| format!("{label} | {head:<9} {line}").trim_end().to_owned()).collect()
        }
        EventKind::Asks { place, requests } => {
            let label = active.label(*place);
            requests.iter().map(|request| format!("{label} asks: {}", call(&request.call))).collect()
        }
        _ => Vec::new(),
    };
    lines.extend(messages);
    let merging = event.step_end.iter().flat_map(|end| end.unmerged.iter().zip(&end.merge_errors));
    lines.extend(merging.map(|(place, error)| format!("{}: {}", active.label(*place), short(error))));
    lines
}

/// The outcome of a branch, or of a call without its result message.
fn answered(item: &ItemOutcome, active: &ActiveBranches, has_message: bool) -> Option<String> {
    match &item.outcome {
        WorkOutcome::Call(_) if has_message => None,
        WorkOutcome::Call(outcome) => {
            let mark = if outcome.succeeded() { "" } else { ", failed" };
            let hook = if item.pending_hook.is_some() { ", a hook has still to see it" } else { "" };
            Some(format!("({} {}{mark}{hook})", outcome.call_id(), outcome.tool()))
        }
        WorkOutcome::Node(outcome) => {
            let label = active.label(item.place);
            let goes = outcome.goto.iter().map(|planned| planned.node.as_str()).collect::<Vec<_>>();
            let goes = if goes.is_empty() { String::new() } else { format!(", goes to {}", goes.join(", ")) };
            Some(match &outcome.error {
                None => format!("{label} is done{goes}"),
                Some(error) => format!("{label} failed: {}", short(error)),
            })
        }
        _ => None,
    }
}

fn labels(active: &ActiveBranches, places: &[usize]) -> String {
    places.iter().map(|place| active.label(*place)).collect::<Vec<_>>().join(", ")
}

/// The branches of a superstep; those with an item have a line each.
fn planned(branches: &[PlannedBranch]) -> Vec<String> {
    let active = ActiveBranches::of(branches.to_vec());
    let mut alone = Vec::new();
    let mut lines = Vec::new();
    for (label, planned) in active.branches() {
        match &planned.item {
            None => alone.push(label),
            Some(item) => lines.push(format!("{label} with {}", super::active_branches::item(item))),
        }
    }
    if !alone.is_empty() {
        lines.insert(0, alone.join(", "));
    }
    if lines.len() > LISTED {
        let more = lines.len() - LISTED;
        lines.truncate(LISTED);
        lines.push(format!("and {more} more"));
    }
    lines
}

fn waiting(arrived: &JoinArrivals) -> String {
    format!("{} has waited for {}", arrived.at, arrived.from.join(", "))
}
