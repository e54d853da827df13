//! Shows a research: progress bars of the tasks, the text of the models, calls, outputs, errors. The lines are those of
//! `stepfold::terminal`.
//!
//! At a terminal the bars stand below everything else; elsewhere there is a line for each change. With `--json` there
//! are the events and nothing else.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use stepfold::agent_loop::{Event, EventKind};
use stepfold::graph::progress::{Progress, Task, TaskStatus, keys};
use stepfold::prelude::*;
use stepfold::runner::{Invocation, InvocationEvent};
use stepfold::state_core::escape_all_invisible;
use stepfold::terminal::{CallLines, Printer, StyledText, TextStyle, stdout_form};
use stepfold_examples::{Failure, cut, say};

use crate::graph::{QUESTION, RESEARCH};

/// Shows a research, also when it is interrupted by questions.
pub(crate) struct Screen {
    is_json: bool,
    tasks: Vec<Task>,
    /// The task of each branch of the superstep.
    at_work: BTreeMap<usize, i64>,
    bars: Option<Bars>,
    printer: Printer,
    calls: CallLines,
    began: Instant,
}

impl Screen {
    /// A screen for a research that is where `run` is, if it has begun.
    #[expect(clippy::disallowed_methods, reason = "a screen shows how long a person has waited")]
    pub(crate) fn new(is_json: bool, run: Option<&Run>) -> Self {
        let bars = (!is_json && io::stdout().is_terminal() && io::stderr().is_terminal()).then(Bars::new);
        let form = stdout_form();
        let mut screen = Screen {
            is_json,
            tasks: Vec::new(),
            at_work: BTreeMap::new(),
            bars,
            printer: Printer::in_form(form),
            calls: CallLines::new(form),
            began: Instant::now(),
        };
        if let Some(run) = run {
            screen.go_on(run);
        }
        screen
    }

    /// Of a superstep that was interrupted, some branches may have ended already.
    fn go_on(&mut self, run: &Run) {
        self.tasks = run.state().get(keys::TASKS).ok().flatten().unwrap_or_default();
        for branch in run.open_branches() {
            if let Some(id) = task_of(&branch.planned.node, branch.planned.item.as_ref()) {
                self.at_work.insert(branch.place, id);
            }
        }
        let open: Vec<i64> = self.at_work.values().copied().collect();
        let is_research = run.state().get(keys::CURRENT_NODE).ok().flatten().as_deref() == Some(RESEARCH);
        for task in &mut self.tasks {
            let has_ended = task.status == Some(TaskStatus::Running) && !open.contains(&task.id);
            if is_research && has_ended && !open.is_empty() {
                task.status = Some(TaskStatus::Completed);
            }
        }
    }

    /// Shows an invocation to its end.
    pub(crate) async fn follow(&mut self, invocation: &Invocation) -> Result<(), Failure> {
        let mut events = invocation.subscribe(0);
        while let Some(seen) = events.next().await {
            match seen {
                InvocationEvent::Event { number, event, .. } if self.is_json => {
                    say(json!({"event": event, "number": number}).to_string());
                }
                InvocationEvent::Event { event, .. } => self.event(&event),
                InvocationEvent::Missed { events } => {
                    self.aside(format!("  ({events} events went by unseen)"));
                }
                _ => {}
            }
        }
        self.stop();
        Ok(())
    }

    /// A line above the bars.
    pub(crate) fn line(&mut self, text: impl Into<StyledText>) {
        let printer = &mut self.printer;
        match &mut self.bars {
            _ if self.is_json => {}
            Some(bars) => bars.above(|| printer.line(text)),
            None => printer.line(text),
        }
    }

    /// A line in the background.
    pub(crate) fn aside(&mut self, text: impl AsRef<str>) {
        self.line(StyledText::new(TextStyle::DIM, text));
    }

    /// Shows the question.
    pub(crate) fn user(&mut self, question: &str) {
        if !self.is_json {
            self.printer.user(question);
        }
    }

    /// Takes the bars away, for a question or the end.
    pub(crate) fn stop(&mut self) {
        self.printer.end_reply();
        if let Some(bars) = &mut self.bars {
            bars.clear();
        }
    }

    fn event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::NodeStarted { node, branch } => match self.at_work.get(branch) {
                Some(id) => self.task_started(*id),
                None => self.aside(format!("  ▸ {node}")),
            },
            RunEvent::NodeFinished { node, branch, error, .. } => {
                match self.at_work.remove(branch) {
                    Some(id) => self.task_ended(id, error.is_none()),
                    None => self.update(),
                }
                if let Some(error) = error {
                    self.line(
                        StyledText::from("  ").with(TextStyle::BAD, format!("✗ {node}: ")).and(cut(error)),
                    );
                }
            }
            // What was asked is known.
            RunEvent::Output { kind: Some(kind), .. } if kind == QUESTION => {}
            RunEvent::Output { node, branch, kind, value } => {
                let whose = self.whose(node, *branch);
                let kind = kind.as_deref().unwrap_or("output");
                self.line(
                    StyledText::new(TextStyle::DIM, format!("  * {kind} of {whose}: ")).and(words_of(value)),
                );
            }
            RunEvent::Inner { name, place, event, .. } => self.inner(name, *place, event),
            RunEvent::Committed(event) => self.committed(event),
            RunEvent::Ended(exit) if *exit != Exit::End => self.aside(format!("  ({exit})")),
            _ => {}
        }
    }

    /// Shows an event of a node's agent.
    fn inner(&mut self, node: &str, branch: usize, event: &RunEvent) {
        let whose = self.whose(node, branch);
        match event {
            // Of those who work side by side the words would be mixed up; theirs come as outputs.
            RunEvent::Text(text) if matches!(node, "write" | "answer") => self.speak(text),
            RunEvent::ToolStarted { call_id, tool, arguments } => {
                self.calls.started(&format!("{branch} {call_id}"), tool, arguments, self.began.elapsed());
                if let (Some(bars), Some(id)) = (&mut self.bars, self.at_work.get(&branch)) {
                    bars.note(*id, tool);
                }
            }
            RunEvent::ToolFinished { call_id, tool, status, text } => {
                let (id, now) = (format!("{branch} {call_id}"), self.began.elapsed());
                let line = self.calls.finished_in(&whose, &id, (tool, *status, text), now);
                self.line(line);
            }
            _ => {}
        }
    }

    fn committed(&mut self, event: &Event) {
        if let EventKind::Planned { branches, .. } = &event.kind {
            let at_work = branches.iter().enumerate();
            self.at_work = at_work
                .filter_map(|(place, planned)| Some((place, task_of(&planned.node, planned.item.as_ref())?)))
                .collect();
            for planned in branches {
                let Some(task) =
                    planned.item.as_ref().and_then(|item| serde_json::from_value(item.clone()).ok())
                else {
                    continue;
                };
                self.add(task);
            }
        }
    }

    /// A task that is new, or starts over.
    fn add(&mut self, task: Task) {
        if task.id == 1 {
            self.tasks.clear();
        }
        match self.tasks.iter_mut().find(|known| known.id == task.id) {
            Some(known) => *known = task,
            None => self.tasks.push(task),
        }
    }

    fn task_started(&mut self, id: i64) {
        self.set(id, TaskStatus::Running);
        let title = self.title(id);
        if let Some(bars) = &mut self.bars {
            bars.begin(id, &title);
        }
        self.line(self.progress(id).and(format!(" is running: {title}")));
        self.update();
    }

    fn task_ended(&mut self, id: i64, is_success: bool) {
        let status = if is_success { TaskStatus::Completed } else { TaskStatus::Failed };
        self.set(id, status);
        if let Some(bars) = &mut self.bars {
            bars.end(id);
        }
        let title = self.title(id);
        let look = if is_success { TextStyle::GOOD } else { TextStyle::BAD };
        self.line(self.progress(id).with(look, format!(" {status}")).and(format!(": {title}")));
        self.update();
    }

    fn set(&mut self, id: i64, status: TaskStatus) {
        for task in self.tasks.iter_mut().filter(|task| task.id == id) {
            task.status = Some(status);
        }
    }

    fn title(&self, id: i64) -> String {
        let task = self.tasks.iter().find(|task| task.id == id);
        task.and_then(|task| task.title.clone()).unwrap_or_default()
    }

    fn whose(&self, node: &str, branch: usize) -> String {
        match self.at_work.get(&branch) {
            Some(id) => format!("task {id}"),
            None => node.to_owned(),
        }
    }

    /// The percentage of all tasks, and which one a line is about.
    fn progress(&self, id: i64) -> StyledText {
        let percentage = Progress::of_tasks(&self.tasks).percentage;
        StyledText::new(TextStyle::KEY, format!("{percentage:>3} %"))
            .with(TextStyle::STRONG, format!(" task {id}"))
    }

    fn update(&mut self) {
        self.printer.end_reply();
        if let (Some(bars), false) = (&mut self.bars, self.tasks.is_empty()) {
            bars.overall(&Progress::of_tasks(&self.tasks));
        }
    }

    /// Words as they come. The bars would write over them.
    fn speak(&mut self, text: &str) {
        if let Some(bars) = &mut self.bars {
            bars.clear();
        }
        self.printer.reply(text);
    }
}

/// The task of a branch: the id of its item.
fn task_of(node: &str, item: Option<&Value>) -> Option<i64> {
    item.filter(|_| node == RESEARCH)?.get("id")?.as_i64()
}

/// The bars at a terminal: one for all tasks, and one for each running task.
struct Bars {
    all: MultiProgress,
    overall: Option<ProgressBar>,
    tasks: BTreeMap<i64, (ProgressBar, String)>,
}

impl Bars {
    fn new() -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        Bars { all, overall: None, tasks: BTreeMap::new() }
    }

    fn above(&self, show: impl FnOnce()) {
        self.all.suspend(show);
    }

    fn overall(&mut self, progress: &Progress) {
        let bar = self.overall.get_or_insert_with(|| {
            let bar = self.all.add(ProgressBar::new(100));
            bar.set_style(style("{pos:>3} % [{bar:40}] {msg}"));
            bar
        });
        bar.set_message(format!("{} of {} tasks", progress.completed, progress.tasks.len()));
        bar.set_position(u64::from(progress.percentage));
    }

    fn begin(&mut self, id: i64, title: &str) {
        let bar = match &self.overall {
            Some(overall) => self.all.insert_before(overall, ProgressBar::new_spinner()),
            None => self.all.add(ProgressBar::new_spinner()),
        };
        bar.set_style(style("  {spinner} {msg} {elapsed}"));
        bar.set_message(format!("task {id}: {}", escape_all_invisible(title)));
        bar.enable_steady_tick(Duration::from_millis(120));
        self.tasks.insert(id, (bar, title.to_owned()));
    }

    fn note(&mut self, id: i64, tool: &str) {
        if let Some((bar, title)) = self.tasks.get(&id) {
            bar.set_message(format!("task {id}: {} ({tool})", escape_all_invisible(title)));
        }
    }

    fn end(&mut self, id: i64) {
        if let Some((bar, _)) = self.tasks.remove(&id) {
            bar.finish_and_clear();
        }
    }

    fn clear(&mut self) {
        for (bar, _) in std::mem::take(&mut self.tasks)
            .into_values()
            .chain(self.overall.take().map(|bar| (bar, String::new())))
        {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// A value for people: text as it is, lists of tasks by their titles.
fn words_of(value: &Value) -> String {
    let titles = |tasks: &Value| {
        let titles: Vec<&str> = tasks.as_array()?.iter().filter_map(|task| task["title"].as_str()).collect();
        (!titles.is_empty()).then(|| titles.join("; "))
    };
    let words = match value {
        Value::String(text) => text.clone(),
        value => match (titles(&value["tasks"]), value["is_enough"].as_bool(), value["reason"].as_str()) {
            (Some(titles), ..) => titles,
            (None, Some(is_enough), Some(reason)) => {
                format!("{}: {reason}", if is_enough { "enough" } else { "not enough" })
            }
            _ => value.to_string(),
        },
    };
    cut(&words)
}
