//! Follows the nodes of a graph: each event is a line after the label of its branch, so that concurrent branches stay
//! readable; with routes, and the progress of tasks.
//!
//! Messages in the conversation of the graph are its reply, and go to standard output, as the reply of an agent does. They
//! are streamed if only one branch is active, otherwise printed when the step has ended.

use std::collections::{BTreeMap, BTreeSet};

use stepfold::agent_loop::{Event, EventKind, NodeStatus};
use stepfold::graph::PlannedBranch;
use stepfold::graph::progress::{Progress, TaskProgress, TaskStatus};
use stepfold::prelude::*;
use stepfold::state_core::chat::Role;
use stepfold::tools::CallStatus;

use super::{ActiveBranches, call_of, server_tool, short};

/// The keys that a graph writes about its nodes.
const OF_NODES: [&str; 3] = ["current_node", "execution_counts", "router_decision"];

/// The keys that a graph writes about tasks, if it has tasks.
const OF_TASKS: [&str; 3] = ["current_task_id", "overall_progress", "tasks"];

/// Follows the nodes of a graph, and decides what is shown of their events.
pub(super) struct NodeFollower {
    /// The nodes that continue the graph's conversation.
    speakers: BTreeSet<String>,
    active: ActiveBranches,
    /// Text that is not a whole line yet, by its branch.
    texts: BTreeMap<Vec<usize>, String>,
    /// The branches of this step whose agents have streamed text: their answers were shown as that text.
    streamed: BTreeSet<Vec<usize>>,
    /// The branches that were started and have not ended.
    at_work: BTreeSet<usize>,
    progress: Option<Progress>,
    /// Tasks whose branches have ended before the step: in the state they are still running.
    ended: BTreeMap<i64, TaskStatus>,
}

/// An item of the display.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DisplayItem {
    /// More of the reply.
    Text(String),
    /// All of a reply.
    Reply(String),
    Note(String),
    Aside(String),
    /// The subject of the spinner.
    Wait(String),
    /// The progress of the tasks.
    Progress(Progress),
}

impl NodeFollower {
    pub(super) fn new(
        speakers: BTreeSet<String>,
        at_work: Vec<PlannedBranch>,
        state: Option<&State>,
    ) -> Self {
        NodeFollower {
            speakers,
            active: ActiveBranches::of(at_work),
            texts: BTreeMap::new(),
            streamed: BTreeSet::new(),
            at_work: BTreeSet::new(),
            progress: state.and_then(|state| Progress::of(state).ok()),
            ended: BTreeMap::new(),
        }
    }

    /// The labels of the active branches, if there are any.
    pub(super) fn at_work(&self) -> Option<String> {
        let labels: Vec<String> = self.at_work.iter().map(|place| self.active.label(*place)).collect();
        (!labels.is_empty()).then(|| labels.join(", "))
    }

    /// The percentage of all tasks, if there are any.
    pub(super) fn percentage(&self) -> Option<u8> {
        self.progress
            .as_ref()
            .filter(|progress| !progress.tasks.is_empty())
            .map(|progress| progress.percentage)
    }

    /// Decides what is shown of an event that is not a commit.
    pub(super) fn see(&mut self, event: &RunEvent) -> Vec<DisplayItem> {
        match event {
            RunEvent::NodeStarted { branch, .. } => drop(self.at_work.insert(*branch)),
            RunEvent::NodeFinished { branch, .. } => drop(self.at_work.remove(branch)),
            RunEvent::Ended(_) => {
                self.at_work.clear();
                // A stopped branch may leave an unfinished line.
                let stopped: Vec<Vec<usize>> = self.texts.keys().cloned().collect();
                return stopped.iter().flat_map(|path| self.flush_text(path)).collect();
            }
            _ => {}
        }
        self.observe_in(&mut Vec::new(), event)
    }

    fn observe_in(&mut self, path: &mut Vec<usize>, event: &RunEvent) -> Vec<DisplayItem> {
        match event {
            RunEvent::Inner { place, event, .. } => {
                path.push(*place);
                let shown = self.observe_in(path, event);
                path.pop();
                shown
            }
            RunEvent::NodeStarted { branch, .. } => {
                let path = [&**path, &[*branch]].concat();
                let item = self.active.item_of(&path).map(|item| format!(" with {item}"));
                vec![
                    self.aside(&path, &format!("starts{}", item.unwrap_or_default())),
                    DisplayItem::Wait(self.active.label_of(&path)),
                ]
            }
            RunEvent::Output { branch, kind, value, .. } => {
                let path = [&**path, &[*branch]].concat();
                let mut shown = self.flush_text(&path);
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                if kind.is_some() || !self.streamed.contains(&path) {
                    let kind = kind.as_deref().unwrap_or("result");
                    shown.push(self.note(&path, &format!("{kind}: {}", short(&text))));
                }
                shown
            }
            RunEvent::NodeFinished { branch, status, error, .. } => {
                let path = [&**path, &[*branch]].concat();
                let mut shown = self.flush_text(&path);
                let words = match error {
                    None => "done".to_owned(),
                    Some(error) => format!("failed: {}", short(error)),
                };
                shown.push(if error.is_none() {
                    self.aside(&path, &words)
                } else {
                    self.note(&path, &words)
                });
                shown.extend(self.task_ended(&path, *status));
                shown
            }
            event if path.is_empty() => {
                debug_assert!(!matches!(event, RunEvent::Committed(_)), "commits are shown by `committed`");
                Vec::new()
            }
            event => self.observe_agent(path, event),
        }
    }

    /// Decides what is shown of an event of a branch's agent.
    fn observe_agent(&mut self, path: &[usize], event: &RunEvent) -> Vec<DisplayItem> {
        if let RunEvent::Text(text) = event {
            self.streamed.insert(path.to_vec());
            return if self.speaks_alone(path) {
                vec![DisplayItem::Text(text.clone())]
            } else {
                self.text(path, text)
            };
        }
        let mut shown = self.flush_text(path);
        match event {
            RunEvent::Asking { model, .. } => {
                shown.push(DisplayItem::Wait(format!("{}: {model}", self.active.label_of(path))));
            }
            RunEvent::ToolStarted { call_id, tool, arguments } => {
                shown.push(self.note(path, &call_of(call_id, tool, arguments)));
                shown.push(DisplayItem::Wait(format!("{}: {tool}", self.active.label_of(path))));
            }
            RunEvent::ToolProgress { call_id, report } => {
                shown.push(self.aside(path, &format!("  {call_id} ... {}", short(&report.to_string()))));
            }
            RunEvent::ToolFinished { call_id, status, text, .. } => {
                let mark = if *status == CallStatus::Succeeded { "" } else { "!" };
                shown.push(self.note(path, &format!("  {call_id}{mark}: {}", short(text))));
            }
            RunEvent::ServerToolUsed { tool, arguments, .. } => {
                shown.push(self.aside(path, &server_tool(tool, arguments)));
            }
            RunEvent::Trimmed(words) => shown.push(self.aside(path, &format!("  trimmed: {words}"))),
            _ => {}
        }
        shown
    }

    /// Whether this branch continues the graph's conversation, and is the only active one.
    fn speaks_alone(&self, path: &[usize]) -> bool {
        let mut branches = self.active.branches();
        match (path, branches.next(), branches.next()) {
            ([_], Some((_, planned)), None) => {
                planned.item.is_none() && self.speakers.contains(&planned.node)
            }
            _ => false,
        }
    }

    /// Whether this branch continues the graph's conversation, so that its text is shown when the step ends.
    fn speaks(&self, path: &[usize]) -> bool {
        let planned = path.first().and_then(|place| self.active.branches().nth(*place));
        path.len() == 1
            && planned
                .is_some_and(|(_, planned)| planned.item.is_none() && self.speakers.contains(&planned.node))
    }

    /// The complete lines of a branch's text.
    fn text(&mut self, path: &[usize], text: &str) -> Vec<DisplayItem> {
        if self.speaks(path) {
            return Vec::new();
        }
        let pending = self.texts.entry(path.to_vec()).or_default();
        pending.push_str(text);
        let Some(end) = pending.rfind('\n') else { return Vec::new() };
        let rest = pending.split_off(end + 1);
        let whole = std::mem::replace(pending, rest);
        whole.lines().map(|line| self.note(path, line)).collect()
    }

    fn flush_text(&mut self, path: &[usize]) -> Vec<DisplayItem> {
        let rest = self.texts.remove(path).filter(|rest| !rest.is_empty());
        rest.iter().map(|rest| self.note(path, rest)).collect()
    }

    /// Decides what is shown of a commit, given the state after it.
    pub(super) fn committed(&mut self, event: &Event, state: Option<&State>) -> Vec<DisplayItem> {
        let mut shown = Vec::new();
        // NOTE: Asked before the commit, which may replace the branches.
        let speaks_alone = self.speaks_alone(&[0]);
        self.active.commit(event);
        shown.extend(self.routes(event, &mut Vec::new()).into_iter().map(DisplayItem::Aside));
        if let EventKind::Interrupted { places, asks: false, .. } = &event.kind {
            let words = "failed: it had started when the process was interrupted, and is not run again";
            shown.extend(places.iter().map(|place| self.note(&[*place], words)));
        }
        let is_graphs = !matches!(event.kind, EventKind::Began { .. });
        if is_graphs && !speaks_alone {
            let replies = event.messages.iter().filter(|message| message.role() == Role::Assistant);
            let texts = replies.map(|reply| reply.text().into_owned()).filter(|text| !text.trim().is_empty());
            shown.extend(texts.map(DisplayItem::Reply));
        }
        if event.step_end.is_some() {
            self.ended.clear();
            self.streamed.clear();
        }
        if let Some(progress) = state.and_then(|state| Progress::of(state).ok()) {
            shown.extend(self.progress(progress));
        }
        shown
    }

    /// The choices of routers.
    fn routes(&self, event: &Event, path: &mut Vec<usize>) -> Vec<String> {
        match &event.kind {
            EventKind::Planned { routes, .. } => {
                let label = self.active.label_of(path);
                let before = if path.is_empty() { String::new() } else { format!("{label} | ") };
                routes.iter().map(|routed| format!("{before}{}", short(&routed.to_string()))).collect()
            }
            EventKind::Inner { place, event } => {
                path.push(*place);
                let routes = self.routes(event, path);
                path.pop();
                routes
            }
            _ => Vec::new(),
        }
    }

    /// Marks the task of an ended branch: the state changes only at the end of the step, which may take a while.
    fn task_ended(&mut self, path: &[usize], status: NodeStatus) -> Vec<DisplayItem> {
        let branch = path.first().filter(|_| path.len() == 1);
        let planned = branch.and_then(|place| self.active.branches().nth(*place));
        let id = planned.and_then(|(_, planned)| planned.item.as_ref()?.get("id")?.as_i64());
        let (Some(id), Some(progress)) = (id, self.progress.clone()) else { return Vec::new() };
        let is_it = |task: &TaskProgress| task.id == id && task.status == TaskStatus::Running;
        if !progress.tasks.iter().any(is_it) {
            return Vec::new();
        }
        let status = if status.is_success() { TaskStatus::Completed } else { TaskStatus::Failed };
        self.ended.insert(id, status);
        self.progress(progress)
    }

    /// The tasks that are new or have another status, and the percentage if it is another.
    fn progress(&mut self, mut now: Progress) -> Vec<DisplayItem> {
        for task in &mut now.tasks {
            task.status = *self.ended.get(&task.id).unwrap_or(&task.status);
        }
        // NOTE: Computed again: ended tasks count here before the state counts them.
        let done = now.tasks.iter().filter(|task| task.status == TaskStatus::Completed).count();
        now.completed = done;
        now.percentage = u8::try_from(100 * done / now.tasks.len().max(1)).unwrap_or(100);
        let before = self.progress.replace(now.clone());
        let lines = progress_lines(before.as_ref(), &now);
        let mut shown: Vec<DisplayItem> =
            lines.into_iter().map(|line| DisplayItem::Aside(format!("  {line}"))).collect();
        if !shown.is_empty() {
            shown.push(DisplayItem::Progress(now));
        }
        shown
    }

    fn note(&self, path: &[usize], words: &str) -> DisplayItem {
        DisplayItem::Note(self.line(path, words))
    }

    fn aside(&self, path: &[usize], words: &str) -> DisplayItem {
        DisplayItem::Aside(self.line(path, words))
    }

    fn line(&self, path: &[usize], words: &str) -> String {
        let (label, width) = (self.active.label_of(path), self.active.width());
        format!("{label:width$} | {words}").trim_end().to_owned()
    }
}

/// Whether a line of changes is about a key that the graph itself writes: the lines about nodes and tasks show the same.
pub(crate) fn is_own(change: &str, has_tasks: bool) -> bool {
    let tasks = OF_TASKS.iter().filter(|_| has_tasks);
    let mut own = OF_NODES.iter().chain(tasks);
    own.any(|key| change.strip_prefix(key).is_some_and(|rest| rest.starts_with(':')))
}

/// Whether the lines of running nodes have shown this change already.
pub(super) fn is_shown(change: &str, has_tasks: bool) -> bool {
    is_own(change, has_tasks)
        || (has_tasks && (change.starts_with("outputs:") || change.starts_with("errors:")))
}

/// The tasks that are new or have another status, and the percentage if it is another.
pub(crate) fn progress_lines(before: Option<&Progress>, now: &Progress) -> Vec<String> {
    let known = |id: i64| before.into_iter().flat_map(|before| &before.tasks).find(|task| task.id == id);
    let is_changed = |task: &&TaskProgress| known(task.id).is_none_or(|known| known.status != task.status);
    let title = |task: &TaskProgress| task.title.as_ref().map(|title| format!(": {}", short(title)));
    let tasks = now.tasks.iter().filter(is_changed);
    let tasks =
        tasks.map(|task| format!("task {} {}{}", task.id, task.status, title(task).unwrap_or_default()));
    let mut lines: Vec<String> = tasks.collect();
    let figures = |progress: &Progress| (progress.percentage, progress.completed, progress.tasks.len());
    if before.map(figures) != Some(figures(now)) && !now.tasks.is_empty() {
        let (percentage, completed, all) = figures(now);
        lines.push(format!("{percentage} % ({completed} of {all})"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use stepfold::graph::progress::keys;

    use super::*;

    #[test]
    fn the_keys_of_graphs_are_those_of_the_library() {
        let counts = keys::EXECUTION_COUNTS;
        assert_eq!(OF_NODES, [keys::CURRENT_NODE.name(), counts.name(), keys::ROUTER_DECISION.name()]);
        let percentage = keys::OVERALL_PROGRESS;
        assert_eq!(OF_TASKS, [keys::CURRENT_TASK_ID.name(), percentage.name(), keys::TASKS.name()]);
    }

    #[test]
    fn what_others_write_is_shown() {
        assert!(is_own("tasks: unset -> []", true) && is_own("current_node: unset -> \"a\"", false));
        assert!(!is_own("tasks: unset -> []", false) && !is_own("tasks_of_mine: unset -> []", true));
    }
}
