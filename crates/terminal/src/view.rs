//! A run as it happens: an event in, lines out. Nothing here writes, waits or reads a clock.

use std::time::Duration;

use stepfold_agent_loop::{Event, EventKind, Exit, Run, RunEvent};
use stepfold_state_core::chat::{Role, Usage};
use stepfold_state_core::escape_all_invisible;
use stepfold_state_core::state::State;
use stepfold_tools::CallStatus;

use crate::brief::{brief, brief_text};
use crate::{Calls, Look, Text, changes, counted, seconds};

/// What the wheel of the live line looks like, turn by turn.
const WHEEL: [&str; 8] = ["⠁", "⠉", "⠙", "⠚", "⠒", "⠂", "⠂", "⠒"];

/// What is waited for is cut here: a live line has to fit in a line.
const WAITED: usize = 40;

/// Columns of what does not have to fit a screen.
const LOG_WIDTH: usize = 200;

/// The form of what is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Lines of a log, in a pipe or a file: not wrapped, without times, the same for the same run.
    Log,
    /// Lines of a terminal of so many columns.
    Terminal {
        /// The columns.
        width: usize,
    },
}

impl Form {
    /// The columns of a line.
    pub const fn width(self) -> usize {
        match self {
            Form::Log => LOG_WIDTH,
            Form::Terminal { width } => width,
        }
    }

    /// Whether a person reads it as it comes.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Form::Terminal { .. })
    }
}

/// Something to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// More of the answer, in Markdown.
    Reply(String),
    /// The end of the answer.
    ReplyEnd,
    /// A line, wrapped already.
    Line(Text),
}

/// Decides what a run looks like.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use stepfold_agent_loop::RunEvent;
/// use stepfold_terminal::{Form, Shown, View};
///
/// let mut view = View::new(Form::Terminal { width: 80 });
/// let event = RunEvent::Asking { step: 1, model: "m".to_owned(), request: Box::default() };
/// assert!(view.see(&event, Duration::ZERO).is_empty());
/// assert_eq!(view.live(Duration::from_millis(2_500)).unwrap().to_plain(), "⠒ m 2s");
/// assert_eq!(view.see(&RunEvent::Text("hi".to_owned()), Duration::ZERO), [Shown::Reply("hi".to_owned())]);
/// assert!(view.live(Duration::ZERO).is_none());
/// ```
#[derive(Clone, Debug)]
pub struct View {
    form: Form,
    /// The state as far as it is known, to say what changes.
    state: Option<State>,
    calls: Calls,
    /// The ids of the calls of the last reply.
    last_calls: Vec<String>,
    waits: Option<(String, Duration)>,
    is_in_reply: bool,
    figures: Figures,
}

/// What a turn costs.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    began: Option<Duration>,
    steps: u64,
    calls: u64,
    usage: Usage,
}

impl View {
    /// A view in this form.
    pub fn new(form: Form) -> Self {
        View {
            form,
            state: None,
            calls: Calls::new(form),
            last_calls: Vec::new(),
            waits: None,
            is_in_reply: false,
            figures: Figures::default(),
        }
    }

    /// With calls and results in full.
    #[must_use]
    pub fn verbose(mut self, is_verbose: bool) -> Self {
        self.calls = self.calls.verbose(is_verbose);
        self
    }

    /// The state on which the run goes on, so that its changes are shown.
    pub fn set_state(&mut self, state: Option<State>) {
        self.state = state;
    }

    /// The form of what is shown.
    pub fn form(&self) -> Form {
        self.form
    }

    /// What there is to show of an event. `now` is the time since any fixed moment.
    pub fn see(&mut self, event: &RunEvent, now: Duration) -> Vec<Shown> {
        self.figures.began.get_or_insert(now);
        match event {
            RunEvent::Asking { model, .. } => {
                self.wait(model, now);
                Vec::new()
            }
            RunEvent::Text(text) => {
                self.waits = None;
                self.is_in_reply = true;
                vec![Shown::Reply(text.clone())]
            }
            RunEvent::Reasoning(_) => Vec::new(),
            event => {
                let lines = self.lines(event, now);
                self.waits = self.waits.take().filter(|_| lines.is_empty());
                if let Some(tools) = self.calls.at_work().filter(|_| self.waits.is_none()) {
                    self.wait(&tools, now);
                }
                let ended =
                    (!lines.is_empty() && std::mem::take(&mut self.is_in_reply)).then_some(Shown::ReplyEnd);
                ended.into_iter().chain(lines.into_iter().map(Shown::Line)).collect()
            }
        }
    }

    /// The tools that are at work.
    pub fn at_work(&self) -> Option<String> {
        self.calls.at_work()
    }

    /// The live line: what is waited for, and since when.
    pub fn live(&self, now: Duration) -> Option<Text> {
        let (what, since) = self.waits.as_ref()?;
        let waited = now.saturating_sub(*since);
        let turn = usize::try_from(waited.as_millis() / 120).unwrap_or_default() % WHEEL.len();
        let line = Text::new(Look::GOOD, WHEEL[turn]).with(Look::DIM, format!(" {what} "));
        Some(line.with(Look::DIM, format!("{}s", waited.as_secs())))
    }

    fn wait(&mut self, what: &str, now: Duration) {
        self.waits = Some((escape_all_invisible(what).chars().take(WAITED).collect(), now));
    }

    fn lines(&mut self, event: &RunEvent, now: Duration) -> Vec<Text> {
        match event {
            RunEvent::ToolStarted { call_id, tool, arguments } => {
                self.figures.calls += 1;
                self.waits = None;
                self.calls.started(call_id, tool, arguments, now)
            }
            RunEvent::ToolProgress { call_id, report } => {
                let report = brief(report, self.form.width().saturating_sub(16));
                vec![self.aside(&format!("  … {call_id}: {report}"))]
            }
            RunEvent::ToolFinished { call_id, tool, status, text } => {
                self.calls.finished(call_id, tool, *status, text, now)
            }
            RunEvent::Trimmed(words) => vec![self.aside(&format!("  ⋯ the model is shown less: {words}"))],
            RunEvent::Committed(event) => self.committed(event),
            RunEvent::Inner { name, event, .. } => self.inner(name, event),
            RunEvent::NodeStarted { node, .. } => vec![self.aside(&format!("  ▸ {node}"))],
            RunEvent::NodeFinished { node, error: Some(error), .. } => {
                vec![Text::new(Look::BAD, format!("  ✗ {node}: ")).and(brief_text(error, LOG_WIDTH))]
            }
            RunEvent::Output { node, value, .. } => {
                let room = self.form.width().saturating_sub(node.len() + 6);
                let text = value.as_str().map_or_else(|| brief(value, room), |text| brief_text(text, room));
                vec![Text::new(Look::DIM, format!("  {node}: ")).and(&text)]
            }
            RunEvent::Ended(exit) => self.ended(exit, now),
            _ => Vec::new(),
        }
    }

    /// What an agent does that is a tool.
    fn inner(&self, name: &str, event: &RunEvent) -> Vec<Text> {
        let RunEvent::ToolFinished { tool, status, text, .. } = event else { return Vec::new() };
        let mark = if *status == CallStatus::Succeeded { "✓" } else { "✗" };
        let room = self.form.width().saturating_sub(name.len() + tool.len() + 10);
        vec![self.aside(&format!("    {name} | {mark} {tool} → {}", brief_text(text, room)))]
    }

    fn committed(&mut self, event: &Event) -> Vec<Text> {
        self.figures.add(event);
        match &event.kind {
            EventKind::Replied { .. } => {
                let calls = event.messages.first().into_iter().flat_map(|reply| reply.tool_calls());
                self.last_calls = calls.map(|call| call.id.clone()).collect();
            }
            EventKind::Started { places } => {
                let ids = places.iter().filter_map(|place| self.last_calls.get(*place));
                ids.for_each(|id| self.calls.at_most_once(id));
            }
            _ => {}
        }
        let Some(state) = &mut self.state else { return Vec::new() };
        let before = state.clone();
        // What cannot be followed is not shown; the store has it.
        if event.fold(state).is_err() {
            self.state = None;
            return Vec::new();
        }
        if event.delta.is_empty() { Vec::new() } else { changes(state, &before, self.form.width()) }
    }

    fn ended(&mut self, exit: &Exit, now: Duration) -> Vec<Text> {
        self.waits = None;
        // A turn that pauses has not ended.
        if matches!(exit, Exit::Paused(_)) {
            return Vec::new();
        }
        let figures = std::mem::take(&mut self.figures);
        let is_shown = self.form.is_terminal() && figures.steps > 0;
        if is_shown { vec![figures.line(now)] } else { Vec::new() }
    }

    fn aside(&self, text: &str) -> Text {
        let text = Text::new(Look::DIM, text);
        match self.form {
            Form::Log => text,
            Form::Terminal { width } => text.wrapped(width, 0, 4),
        }
    }
}

impl Figures {
    /// Counts replies, of agents inside too.
    fn add(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Replied { usage, .. } => {
                self.steps += 1;
                self.usage += *usage;
            }
            EventKind::Inner { event, .. } => self.add(event),
            _ => {}
        }
    }

    fn line(&self, now: Duration) -> Text {
        let mut parts = vec![counted(self.steps, "step")];
        if self.calls > 0 {
            parts.push(counted(self.calls, "call"));
        }
        let Usage { input_tokens, output_tokens, .. } = self.usage;
        if input_tokens + output_tokens > 0 {
            parts.push(format!("{} tokens in, {} out", grouped(input_tokens), grouped(output_tokens)));
        }
        parts.push(seconds(now.saturating_sub(self.began.unwrap_or(now))));
        Text::new(Look::DIM, format!("  {}", parts.join(" · ")))
    }
}

/// A number with a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// What was going on in a run that was interrupted: the question, the step, the open calls.
pub fn restart(run: &Run) -> String {
    let said: Vec<_> = run.transcript().iter().collect();
    let question = said.iter().rev().find(|message| message.role() == Role::User);
    let question = question.map(|question| brief_text(&question.text(), 60)).unwrap_or_default();
    let open: Vec<String> = run.open_calls().into_iter().map(|(_, call)| call.name).collect();
    // Of a step whose calls are open the reply is there already.
    let (step, what) = match open.is_empty() {
        true => (run.steps() + 1, "before the model had answered".to_owned()),
        false => (run.steps(), format!("while {} ran", open.join(", "))),
    };
    format!("goes on with \"{question}\", interrupted in step {step} {what}")
}
