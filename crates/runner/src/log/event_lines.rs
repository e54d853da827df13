//! The lines of an event: its version, its kind, its messages in notation, and its other contents as text.

use std::sync::Arc;

use stepfold_agent_loop::{Event, EventKind, ItemOutcome, JoinArrivals, PlannedBranch, WorkOutcome};
use stepfold_session_scopes::CommittedEvent;
use stepfold_state_core::chat::{Content, Message, ToolContent, ToolResult, Transcript};
use stepfold_trim::Summary;

use super::active_branches::{ActiveBranches, item};
use crate::record::events::{failure, read_record};

/// The maximum number of characters of a text in one line.
const LINE: usize = 200;

/// The maximum number of listed branches of a superstep.
const LISTED: usize = 20;

/// The lines of an event of a session: its version and kind, and its contents. `active`: the branches before it, which a
/// commit changes. Events that a rewind has hidden are marked with `-`.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::Agent;
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_runner::Runner;
/// use stepfold_runner::log::{ActiveBranches, event_lines};
/// use stepfold_session_scopes::{EventRange, MemoryStore};
///
/// # let model = Script::parse("assistant: area 3")?;
/// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
/// let session = runner.session("ada", "s1").await?;
/// session.run("which area has most stalls?").await?;
///
/// let read = session.read(EventRange::Last(1)).await?;
/// let lines = event_lines(&read.events[0], true, &mut ActiveBranches::default());
/// assert_eq!(lines, ["    2  replied   assistant: area 3"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub fn event_lines(committed: &CommittedEvent, is_visible: bool, active: &mut ActiveBranches) -> Vec<String> {
    let event = &committed.event;
    let mark = if is_visible { ' ' } else { '-' };
    let lines = match (&*event.actions.started, event.actions.rewound_to()) {
        ([], None) => match read_record(event) {
            Some(commit) => {
                let lines = commit_lines(&commit, active);
                active.commit(&commit);
                lines
            }
            None => match failure(event) {
                Some(cause) => vec![one_line(&cause)],
                None => message_lines(&event.messages),
            },
        },
        ([], Some(to)) => vec![format!("back to version {to}")],
        (started, _) => vec![format!("starts {}", started.join(", "))],
    };
    let mut lines = lines.iter();
    let first = lines.next().map(String::as_str).unwrap_or_default();
    let head = format!("{mark}{:>4}  {:<9} {first}", committed.version, event.kind.as_str());
    let rest = lines.map(|line| format!("{mark}{:>16}{line}", ""));
    std::iter::once(head.trim_end().to_owned()).chain(rest).collect()
}

/// Messages in a readable form: a result of several texts becomes one text, since the notation of parts is JSON, which
/// people do not read well.
///
/// # Examples
/// ```
/// use stepfold_runner::log::readable_messages;
/// use stepfold_state_core::chat::{Message, ToolContent, ToolResult};
///
/// let parts = ToolContent::Parts(vec!["stall 7".into(), "stall 9".into()]);
/// let message = Message::tool(ToolResult::new("c1", "find", parts));
/// assert_eq!(readable_messages([&message]).to_string(), "tool c1 find: stall 7stall 9\n");
/// ```
pub fn readable_messages<'a>(messages: impl IntoIterator<Item = &'a Message>) -> Transcript {
    messages.into_iter().map(readable_message).collect()
}

/// A text in one line, cut after 200 characters.
///
/// # Examples
/// ```
/// use stepfold_runner::log::one_line;
///
/// assert_eq!(one_line("which area\n  has most stalls?"), "which area has most stalls?");
/// assert!(one_line(&"area ".repeat(100)).ends_with(" ..."));
/// ```
pub fn one_line(text: &str) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(LINE) {
        line.truncate(end);
        line.push_str(" ...");
    }
    line
}

/// The lines of a commit, given the active branches before it.
fn commit_lines(event: &Event, active: &ActiveBranches) -> Vec<String> {
    let messages = message_lines(&event.messages);
    let mut lines = match &event.kind {
        EventKind::Answered(_) => {
            let outcomes = event.outcomes();
            outcomes.iter().filter_map(|item| answered(item, active, !messages.is_empty())).collect()
        }
        EventKind::Replied { .. } => {
            let used = event.messages.iter().flat_map(|message| message.server_tool_uses());
            used.map(|used| format!("(run by the provider: {})", one_line(&used.to_string()))).collect()
        }
        EventKind::Decided { decisions, .. } if messages.is_empty() => {
            let words = decisions.iter().map(|(id, decided)| format!("{id} {decided}"));
            vec![words.collect::<Vec<_>>().join(", ")]
        }
        EventKind::Edited { results, arguments, by, .. } => {
            let who = by.as_ref().map(|by| format!("by {by}"));
            let results =
                results.iter().flat_map(|result| message_lines(&[Message::tool(result.clone()).into()]));
            let arguments = arguments
                .iter()
                .map(|(id, given)| format!("arguments of {id}: {}", one_line(&given.to_string())));
            who.into_iter().chain(results).chain(arguments).collect()
        }
        EventKind::Summarized { summary, error, .. } => {
            let text = summary.as_ref().map(Summary::text).or(error.as_deref());
            text.map(one_line).into_iter().collect()
        }
        EventKind::Narrowed { .. } => event.kind.narrowing().into_iter().collect(),
        EventKind::Upgraded { .. } => event.kind.upgrade().into_iter().collect(),
        EventKind::Started { places } if !active.is_empty() => {
            vec![format!("starts {}", labels(active, places))]
        }
        EventKind::Interrupted { places, asks, .. } if !active.is_empty() => {
            let became = if *asks { "an approver is asked" } else { "its outcome is unknown" };
            vec![format!("{}: {became}", labels(active, places))]
        }
        EventKind::Planned { branches, deferred, arrived, routes, exit } => {
            let mut lines: Vec<String> = routes.iter().map(|route| one_line(&route.to_string())).collect();
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
            requests.iter().map(|request| format!("{label} asks: {}", request.call)).collect()
        }
        _ => Vec::new(),
    };
    lines.extend(messages);
    lines.extend(event.kind.left_out().map(|parts| format!("({parts})")));
    let merging = event.step_end.iter().flat_map(|end| end.unmerged.iter().zip(&end.merge_errors));
    lines.extend(merging.map(|(place, error)| format!("{}: {}", active.label(*place), one_line(error))));
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
                Some(error) => format!("{label} failed: {}", one_line(error)),
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
            Some(value) => lines.push(format!("{label} with {}", item(value))),
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

/// Messages in notation.
fn message_lines(messages: &[Arc<Message>]) -> Vec<String> {
    let text = readable_messages(messages.iter().map(|message| &**message)).to_string();
    text.lines().map(str::to_owned).collect()
}

fn readable_message(message: &Message) -> Message {
    let is_text = |result: &&ToolResult| match result.content() {
        ToolContent::Parts(parts) => parts.iter().all(|part| matches!(part.content, Content::Text(_))),
        _ => false,
    };
    let in_pieces = message.tool_result().filter(is_text);
    in_pieces.map_or_else(
        || message.clone(),
        |result| {
            Message::tool(ToolResult::value(result.call_id(), result.name(), result.text().into_owned()))
        },
    )
}
