//! Shows a run as it happens: streamed text, calls, results, and changes of the state.

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::time::Duration;

use serde_json::json;
use stepfold::agent_loop::{Event, EventKind};
use stepfold::graph::PlannedBranch;
use stepfold::graph::progress::Progress;
use stepfold::prelude::*;
use stepfold::runner::InvocationEvent;
use stepfold::state_core::chat::Role;
use stepfold::state_core::escape_all_invisible;
use stepfold::state_core::state::MESSAGES;
use stepfold::terminal::{
    DisplayForm, Markdown, RunView, StyledText, TextStyle, change_line, stderr_form, stdout_form,
};
use stepfold::tools::CallStatus;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::FailedRequest;

use super::nodes::{DisplayItem, NodeFollower, is_shown};
use super::{aside, call_of, is_verbose, line, note, on_this_line, print, reply, server_tool, short};

/// The interval between two frames of the spinner.
const SPINNER_INTERVAL: Duration = Duration::from_millis(120);

/// The frames of the spinner.
const SPINNER_FRAMES: [&str; 8] = ["⠁", "⠉", "⠙", "⠚", "⠒", "⠂", "⠂", "⠒"];

/// The characters of the spinner's subject: the spinner must fit in a line.
const WAIT_CHARACTERS: usize = 40;

/// Shows the events of runs.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about what is shown")]
pub(crate) struct RunDisplay {
    json: bool,
    /// The state before the next commit, if it is known; its changes are shown.
    state: Option<State>,
    waiting: Option<SpinnerState>,
    is_in_text: bool,
    /// Whether the current events belong to a run before the requested one.
    is_earlier: bool,
    /// Whether none of its runs is the requested one.
    is_aside: bool,
    /// The reply of such an earlier run.
    earlier: String,
    has_spinner: bool,
    has_seen_run: bool,
    /// For a graph: its nodes.
    nodes: Option<NodeFollower>,
    /// At a terminal: the view of calls and figures.
    view: Option<RunView>,
    /// The reply, where standard output is a terminal.
    reply: Option<Markdown>,
    began: Instant,
}

/// The subject of the spinner, and the time since it started.
struct SpinnerState {
    what: String,
    since: Instant,
    frame: usize,
}

impl RunDisplay {
    /// Creates a display that starts with this state.
    pub(crate) fn new(json: bool, state: Option<State>) -> Self {
        let has_spinner = !json && std::io::stderr().is_terminal();
        RunDisplay {
            json,
            state,
            waiting: None,
            is_in_text: false,
            is_earlier: false,
            is_aside: false,
            earlier: String::new(),
            has_spinner,
            has_seen_run: false,
            nodes: None,
            view: has_spinner.then(|| RunView::new(stderr_form()).verbose(is_verbose())),
            reply: None,
            began: Instant::now(),
        }
    }

    /// Marks all runs as earlier ones than the requested run.
    pub(crate) fn aside_if(mut self, is_aside: bool) -> Self {
        (self.is_aside, self.is_earlier) = (is_aside, is_aside);
        self
    }

    /// Adds the nodes of a graph: the speakers continue its conversation, and these branches are active.
    pub(crate) fn with_nodes(mut self, speakers: BTreeSet<String>, at_work: Vec<PlannedBranch>) -> Self {
        self.nodes = Some(NodeFollower::new(speakers, at_work, self.state.as_ref()));
        self
    }

    /// The times for [`tick`](Self::tick).
    pub(crate) fn ticks() -> Interval {
        let mut ticks = interval_at(Instant::now() + SPINNER_INTERVAL, SPINNER_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    }

    /// Draws the next frame of the spinner, if there is one and standard error is a terminal.
    pub(crate) fn tick(&mut self) {
        let Some(waiting) = self.waiting.as_mut().filter(|_| self.has_spinner) else { return };
        let wheel = SPINNER_FRAMES[waiting.frame % SPINNER_FRAMES.len()];
        waiting.frame += 1;
        let (what, seconds) = (&waiting.what, waiting.since.elapsed().as_secs());
        let done = self.nodes.as_ref().and_then(NodeFollower::percentage);
        let done = done.map(|done| format!("{done} % ")).unwrap_or_default();
        on_this_line(&format!("{wheel} {done}{what} {seconds}s"));
    }

    pub(crate) fn observe(&mut self, seen: &InvocationEvent) {
        self.has_seen_run |= is_of_run(seen);
        match seen {
            InvocationEvent::Event { number, event, is_earlier, .. } if self.json => {
                let mut object = json!({"event": event, "number": number});
                let is_earlier = *is_earlier || self.is_aside;
                if is_earlier {
                    object["earlier"] = json!(true);
                }
                line(object.to_string());
                self.tell_progress(event, is_earlier);
            }
            InvocationEvent::Event { event, is_earlier, .. } => {
                let is_earlier = *is_earlier || self.is_aside;
                if is_earlier != self.is_earlier {
                    self.end();
                    self.is_earlier = is_earlier;
                }
                self.show(event);
            }
            InvocationEvent::Missed { events } => note(format!("{events} events were too fast to be shown")),
            _ => {}
        }
    }

    /// Shows that a request failed and is sent again after a pause.
    pub(crate) fn retry(&mut self, failure: &FailedRequest) {
        if self.json {
            return line(json!({"retry": failure}).to_string());
        }
        self.aside(&failure.to_string());
        self.wait(&failure.model);
    }

    /// Whether any event of the requested run was shown. If another process has run it, the only event here is its end.
    pub(crate) fn has_seen_run(&self) -> bool {
        self.has_seen_run
    }

    /// Ends the spinner and the reply.
    pub(crate) fn end(&mut self) {
        self.stop_waiting();
        self.end_text();
    }

    fn show(&mut self, event: &RunEvent) {
        let now = self.began.elapsed();
        let seen = match event {
            RunEvent::Asking { .. }
            | RunEvent::Text(_)
            | RunEvent::Reasoning(_)
            | RunEvent::Output { .. } => None,
            // The lines of nodes show these events after their labels.
            RunEvent::Inner { .. } | RunEvent::NodeStarted { .. } | RunEvent::NodeFinished { .. }
                if self.nodes.is_some() =>
            {
                None
            }
            event => self.view.as_mut().map(|view| view.see(event, now)),
        };
        match (event, seen) {
            // The view counts the costs of a turn; it is given no state.
            (RunEvent::Committed(event), _) => self.committed(event),
            (RunEvent::Ended(_), Some(shown)) => {
                self.show_nodes(event);
                self.end();
                show_lines(shown);
            }
            (RunEvent::ToolStarted { tool, .. }, Some(shown)) if shown.is_empty() => {
                let tools = self.view.as_ref().and_then(RunView::at_work);
                self.wait(&tools.unwrap_or_else(|| tool.clone()));
            }
            (
                RunEvent::ToolStarted { .. }
                | RunEvent::ToolFinished { .. }
                | RunEvent::ToolProgress { .. }
                | RunEvent::Trimmed(_)
                | RunEvent::Inner { .. },
                Some(shown),
            ) => {
                self.end();
                show_lines(shown);
                if let Some(tools) = self.view.as_ref().and_then(RunView::at_work) {
                    self.wait(&tools);
                }
            }
            (event, _) => self.show_plain(event),
        }
    }

    /// Shows an event as the lines of a log.
    fn show_plain(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Asking { model, .. } => self.wait(model),
            RunEvent::Text(text) => self.text(text),
            RunEvent::Reasoning(_) => {}
            RunEvent::ToolStarted { call_id, tool, arguments } => {
                self.end();
                note(call_of(call_id, tool, arguments));
                self.wait(tool);
            }
            RunEvent::ToolProgress { call_id, report } => {
                self.aside(&format!("  {call_id} ... {}", short(&report.to_string())));
            }
            RunEvent::ToolFinished { call_id, status, text, .. } => {
                self.end();
                let mark = if *status == CallStatus::Succeeded { "" } else { "!" };
                note(format!("  {call_id}{mark}: {}", short(text)));
            }
            RunEvent::ServerToolUsed { tool, arguments, .. } => self.aside(&server_tool(tool, arguments)),
            RunEvent::Trimmed(words) => self.aside(&format!("  trimmed: {words}")),
            RunEvent::Committed(event) => self.committed(event),
            // Events of an agent that is a tool.
            RunEvent::Inner { name, event, .. } if self.nodes.is_none() => match &**event {
                RunEvent::ToolStarted { call_id, tool, arguments } => {
                    self.aside(&format!("  {name} | {}", call_of(call_id, tool, arguments)));
                }
                RunEvent::ToolFinished { call_id, text, .. } => {
                    self.aside(&format!("  {name} |   {call_id}: {}", short(text)));
                }
                _ => {}
            },
            event => self.show_nodes(event),
        }
    }

    fn show_nodes(&mut self, event: &RunEvent) {
        match self.nodes.as_mut().map(|nodes| nodes.see(event)) {
            Some(shown) => self.show_all(shown),
            None => self.end(),
        }
    }

    fn show_all(&mut self, shown: Vec<DisplayItem>) {
        for shown in shown {
            match shown {
                DisplayItem::Text(text) => self.text(&text),
                DisplayItem::Reply(text) => {
                    self.end();
                    self.text(&format!("{text}\n"));
                }
                DisplayItem::Note(text) => {
                    self.end();
                    note(text);
                }
                DisplayItem::Aside(text) => self.aside(&text),
                DisplayItem::Wait(what) => self.wait(&what),
                DisplayItem::Progress(_) => {}
            }
        }
        // Other branches are still active while one of them is shown.
        let at_work = self.nodes.as_ref().and_then(NodeFollower::at_work);
        if let Some(what) = at_work.filter(|_| self.waiting.is_none() && !self.is_in_text) {
            self.wait(&what);
        }
    }

    /// Reports changed progress of tasks to programs.
    fn tell_progress(&mut self, event: &RunEvent, is_earlier: bool) {
        if let RunEvent::Committed(event) = event {
            self.fold(event);
        }
        let Some(nodes) = &mut self.nodes else { return };
        let shown = match event {
            RunEvent::Committed(event) => nodes.committed(event, self.state.as_ref()),
            event => nodes.see(event),
        };
        for shown in shown {
            if let DisplayItem::Progress(progress) = shown {
                let mut object = json!({"progress": progress});
                if is_earlier {
                    object["earlier"] = json!(true);
                }
                line(object.to_string());
            }
        }
    }

    /// Applies a commit to the state, and returns the state before it; none if the state is unknown.
    fn fold(&mut self, event: &Event) -> Option<State> {
        let mut state = self.state.take()?;
        let before = state.clone();
        // NOTE: After a failed fold changes are not shown any more: the store has them.
        event.fold(&mut state).ok()?;
        self.state = Some(state);
        Some(before)
    }

    /// Shows the changes of a commit to the state, and its events of nodes.
    fn committed(&mut self, event: &Event) {
        if self.is_earlier && matches!(event.kind, EventKind::Began { .. }) {
            self.earlier_begins(event);
        }
        let before = self.fold(event);
        let shown = self.nodes.as_mut().map(|nodes| nodes.committed(event, self.state.as_ref()));
        if let (Some(before), Some(state)) = (before, self.state.clone())
            && !event.delta.is_empty()
        {
            let (is_graph, has_tasks) = (self.nodes.is_some(), Progress::of(&state).is_ok());
            match stderr_form() {
                DisplayForm::Log => {
                    for change in &changes(&state, &before) {
                        if !(is_graph && is_shown(change, has_tasks)) {
                            self.aside(&format!("  ~ {change}"));
                        }
                    }
                }
                DisplayForm::Terminal { width } => {
                    for change in state.diff(&before).iter().filter(|change| change.key != MESSAGES) {
                        if !(is_graph && is_shown(&format!("{}:", change.key), has_tasks)) {
                            self.end();
                            note(change_line(change, width));
                        }
                    }
                }
            }
        }
        self.show_all(shown.unwrap_or_default());
    }

    /// Shows the beginning of an earlier message's turn.
    fn earlier_begins(&mut self, event: &Event) {
        let said = event.messages.iter().filter(|message| message.role() == Role::User);
        let said: Vec<_> = said.map(|message| short(&message.text())).collect();
        self.aside(&format!("answers a message that was stored before: \"{}\"", said.join("\", \"")));
    }

    fn aside(&mut self, text: &str) {
        self.end();
        aside(text);
    }

    /// Prints more of a reply. Standard output gets the requested reply, and no other.
    fn text(&mut self, text: &str) {
        self.stop_waiting();
        if self.is_earlier {
            self.earlier.push_str(text);
        } else {
            match stdout_form() {
                DisplayForm::Log => {
                    self.is_in_text = !text.ends_with('\n');
                    reply(text);
                }
                DisplayForm::Terminal { width } => {
                    let sign = || Markdown::new(width, StyledText::new(TextStyle::GOOD, "● "));
                    let shown = self.reply.get_or_insert_with(sign).push(text);
                    self.is_in_text = true;
                    print(shown);
                }
            }
        }
    }

    fn end_text(&mut self) {
        if std::mem::take(&mut self.is_in_text) {
            match self.reply.take() {
                Some(mut markdown) => print(markdown.end()),
                None => reply("\n"),
            }
        }
        let earlier = std::mem::take(&mut self.earlier);
        if !earlier.is_empty() {
            aside(&format!("earlier reply: {}", earlier.trim_end()));
        }
    }

    fn wait(&mut self, what: &str) {
        self.end();
        let what = escape_all_invisible(what).chars().take(WAIT_CHARACTERS).collect();
        self.waiting = Some(SpinnerState { what, since: Instant::now(), frame: 0 });
    }

    /// Clears the line of the spinner.
    fn stop_waiting(&mut self) {
        // NOTE: Cleared even if no frame was drawn: the terminal may have echoed a `^C` there.
        if self.waiting.take().is_some() && self.has_spinner {
            on_this_line("");
        }
    }
}

// NOTE: A command that fails must not leave the spinner on the screen.
impl Drop for RunDisplay {
    fn drop(&mut self) {
        self.stop_waiting();
    }
}

/// The changes from one state to another, a line each, without the conversation.
pub(crate) fn changes(now: &State, before: &State) -> Vec<String> {
    let mut now = now.clone();
    // The conversation is shown elsewhere: its change would add lines.
    now.replace_messages(before.messages().clone());
    debug_assert!(now.diff(before).iter().all(|change| change.key != MESSAGES));
    now.diff(before).to_string().lines().map(str::to_owned).collect()
}

/// Whether this is an event of the requested run.
fn is_of_run(seen: &InvocationEvent) -> bool {
    match seen {
        InvocationEvent::Event { event, is_earlier, .. } => {
            !is_earlier && !matches!(event, RunEvent::Ended(_))
        }
        _ => true,
    }
}

fn show_lines(shown: Vec<stepfold::terminal::ViewItem>) {
    for shown in shown {
        if let stepfold::terminal::ViewItem::Line(line) = shown {
            note(line);
        }
    }
}
