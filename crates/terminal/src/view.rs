//! A run as it happens: an event in, lines out. Nothing here writes, waits or reads a clock.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use stepfold_agent_loop::{Decision, Event, EventKind, Exit, Run, RunEvent, UnknownCall};
use stepfold_state_core::chat::{Role, Usage};
use stepfold_state_core::escape_all_invisible;
use stepfold_state_core::state::State;
use stepfold_tools::{CallFailure, CallStatus};

use crate::brief::{brief, brief_text};
use crate::calls::EndedCall;
use crate::fields::fields;
use crate::steps::{OpenSteps, StepEntry};
use crate::{Calls, Look, Text, changes, counted, seconds};

/// What the wheel of the live line looks like, turn by turn.
const WHEEL: [&str; 8] = ["⠁", "⠉", "⠙", "⠚", "⠒", "⠂", "⠂", "⠒"];

/// What is waited for is cut here: a live line has to fit in a line.
const WAITED: usize = 40;

/// Columns of what does not have to fit a screen.
const LOG_WIDTH: usize = 200;

/// The form of the output.
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

/// Decides what is shown of a run.
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
    /// The calls of runs within, by their ids and those of what they run in.
    inner: Calls,
    steps: OpenSteps,
    /// Calls of this run with an unknown outcome, by their places, that are told when the step says which they are.
    unnamed: Vec<usize>,
    /// The ids of the calls with an unknown outcome that were told.
    unknown: BTreeSet<String>,
    waits: Option<(String, Duration)>,
    reply: AnswerState,
    figures: TurnFigures,
}

/// The answer that the model writes.
#[derive(Clone, Debug, Default)]
struct AnswerState {
    /// Its line is open.
    is_open: bool,
    /// Some of it came as text.
    has_text: bool,
    /// An object, which is shown by its fields when it is complete.
    object: String,
}

/// What a turn costs.
#[derive(Clone, Copy, Debug, Default)]
struct TurnFigures {
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
            inner: Calls::new(form),
            steps: OpenSteps::default(),
            unnamed: Vec::new(),
            unknown: BTreeSet::new(),
            waits: None,
            reply: AnswerState::default(),
            figures: TurnFigures::default(),
        }
    }

    /// With calls and results in full.
    #[must_use]
    pub fn verbose(mut self, is_verbose: bool) -> Self {
        self.calls = self.calls.verbose(is_verbose);
        self
    }

    /// Sets the state that changes of the run are compared with.
    pub fn set_state(&mut self, state: Option<State>) {
        if let Some(state) = &state {
            self.steps.open_in(state.messages());
        }
        self.state = state;
    }

    /// The form of the output.
    pub fn form(&self) -> Form {
        self.form
    }

    /// What there is to show of an event. `now` is the time since any fixed moment.
    pub fn see(&mut self, event: &RunEvent, now: Duration) -> Vec<Shown> {
        self.figures.began.get_or_insert(now);
        match event {
            RunEvent::Asking { model, .. } => {
                self.wait(model, now);
                self.reply.has_text = false;
                self.end()
            }
            RunEvent::Text(text) => self.text(text),
            RunEvent::Reasoning(_) => Vec::new(),
            event => {
                let (answers, lines) = (self.answers(event), self.lines(event, now));
                let has_news = !lines.is_empty() || !answers.is_empty();
                self.waits = self.waits.take().filter(|_| !has_news);
                if let Some(tools) = self.at_work().filter(|_| self.waits.is_none()) {
                    self.wait(&tools, now);
                }
                let ended = if has_news || ends_reply(event) { self.end() } else { Vec::new() };
                let answers = answers.iter().flat_map(|answer| self.whole(answer));
                ended.into_iter().chain(answers).chain(lines.into_iter().map(Shown::Line)).collect()
            }
        }
    }

    /// Ends the answer: returns the rest of it.
    pub fn end(&mut self) -> Vec<Shown> {
        let object = std::mem::take(&mut self.reply.object);
        match std::mem::take(&mut self.reply.is_open) {
            true => vec![Shown::ReplyEnd],
            false => self.whole(&object),
        }
    }

    /// Calls with an unknown outcome, as far as they were not told.
    pub fn unknown(&mut self, calls: &[&UnknownCall]) -> Vec<Text> {
        let new: Vec<_> = calls.iter().filter(|call| self.unknown.insert(call.id.clone())).collect();
        let line = |call: &&&UnknownCall| {
            let arguments = call.arguments.to_text();
            self.unknown_line("  ", &call.id, &call.tool, (arguments != "{}").then_some(&*arguments))
        };
        new.iter().map(line).collect()
    }

    /// More of the answer.
    fn text(&mut self, text: &str) -> Vec<Shown> {
        self.reply.has_text = true;
        let is_object = self.form.is_terminal() && !self.reply.is_open;
        if is_object && (!self.reply.object.is_empty() || text.starts_with('{')) {
            self.reply.object.push_str(text);
            return Vec::new();
        }
        self.waits = None;
        self.reply.is_open = true;
        vec![Shown::Reply(text.to_owned())]
    }

    /// A whole answer: an object by its fields, anything else as text.
    fn whole(&self, answer: &str) -> Vec<Shown> {
        match (serde_json::from_str(answer), self.form) {
            _ if answer.trim().is_empty() => Vec::new(),
            (Ok(Value::Object(object)), Form::Terminal { width }) if !object.is_empty() => {
                vec![Shown::Line(fields(&object, &Text::new(Look::GOOD, "● "), width))]
            }
            _ => vec![Shown::Reply(answer.to_owned()), Shown::ReplyEnd],
        }
    }

    /// What is said in one piece: by the nodes of a graph at the end of a superstep, or by a model that does not stream.
    fn answers(&self, event: &RunEvent) -> Vec<String> {
        let Some(event) = event.committed() else { return Vec::new() };
        let is_said = match &event.kind {
            EventKind::Replied { .. } => !self.reply.has_text,
            _ => event.step_end.is_some(),
        };
        let said = event.messages.iter().filter(|message| is_said && message.role() == Role::Assistant);
        // What comes with calls was told with them.
        let is_reply = matches!(event.kind, EventKind::Replied { .. });
        let answers = said.filter(|message| is_reply || !message.has_tool_calls());
        answers.map(|message| message.text().into_owned()).filter(|text| !text.trim().is_empty()).collect()
    }

    /// The tools that are at work.
    pub fn at_work(&self) -> Option<String> {
        self.calls.at_work().or_else(|| self.inner.at_work())
    }

    /// The live line: what is waited for, and since when. None while the line of an answer is open, which it would overwrite.
    pub fn live(&self, now: Duration) -> Option<Text> {
        let (what, since) = self.waits.as_ref().filter(|_| !self.reply.is_open)?;
        let waited = now.saturating_sub(*since);
        let turn = usize::try_from(waited.as_millis() / 120).unwrap_or_default() % WHEEL.len();
        let line = Text::new(Look::GOOD, WHEEL[turn]).with(Look::DIM, format!(" {what} "));
        Some(line.with(Look::DIM, format!("{}s", waited.as_secs())))
    }

    fn wait(&mut self, what: &str, now: Duration) {
        let room = WAITED.min(self.form.width().saturating_sub(12));
        self.waits = Some((brief_text(&escape_all_invisible(what), room), now));
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
            RunEvent::Inner { name, place, event, .. } => self.inner(&[*place], name, event, now),
            RunEvent::NodeStarted { node, branch } => {
                let resumed = if self.steps.start(&[], *branch, now) { "" } else { ", resumed" };
                vec![self.aside(&format!("  ▸ {}{resumed}", self.label(&[], *branch, node)))]
            }
            RunEvent::NodeFinished { node, branch, error, .. } => {
                self.node_finished(node, *branch, error.as_deref(), now)
            }
            RunEvent::Output { node, branch, value, .. } => {
                let node = self.label(&[], *branch, node);
                let room = self.form.width().saturating_sub(node.len() + 6);
                let text = value.as_str().map_or_else(|| brief(value, room), |text| brief_text(text, room));
                vec![Text::new(Look::DIM, format!("  {node}: ")).and(&text)]
            }
            RunEvent::Ended(exit) => self.ended(exit, now),
            _ => Vec::new(),
        }
    }

    fn label(&self, path: &[usize], place: usize, name: &str) -> String {
        self.steps.label(path, place).unwrap_or(name).to_owned()
    }

    /// A branch has ended. Of one that was alone the next one says it.
    fn node_finished(&self, node: &str, branch: usize, error: Option<&str>, now: Duration) -> Vec<Text> {
        let label = self.label(&[], branch, node);
        if let Some(error) = error {
            return vec![Text::new(Look::BAD, format!("  ✗ {label}: ")).and(brief_text(error, LOG_WIDTH))];
        }
        let since = self.steps.since(&[], branch).filter(|_| self.form.is_terminal());
        let took =
            since.map(|since| format!(" · {}", seconds(now.saturating_sub(since)))).unwrap_or_default();
        let is_one_of_many = self.steps.count(&[]) > 1;
        is_one_of_many.then(|| self.aside(&format!("  ✓ {label}{took}"))).into_iter().collect()
    }

    /// What happens in a run within, at this place: in an agent that is a tool or a node.
    fn inner(&mut self, path: &[usize], name: &str, event: &RunEvent, now: Duration) -> Vec<Text> {
        let Some((place, outer)) = path.split_last() else { return Vec::new() };
        let label = self.label(outer, *place, name);
        let key = |call_id: &str| format!("{path:?} {call_id}");
        match event {
            RunEvent::Asking { model, .. } => self.wait(&format!("{label}: {model}"), now),
            RunEvent::ToolStarted { call_id, tool, arguments } => {
                self.figures.calls += 1;
                self.waits = None;
                self.inner.started(&key(call_id), tool, arguments, now);
            }
            RunEvent::ToolFinished { call_id, tool, status, text } => {
                let id = key(call_id);
                return vec![self.inner.finished_in(&label, &id, (tool, *status, text), now)];
            }
            RunEvent::Inner { name, place, event, .. } => {
                return self.inner(&[path, &[*place]].concat(), name, event, now);
            }
            _ => {}
        }
        Vec::new()
    }

    fn committed(&mut self, event: &Event) -> Vec<Text> {
        self.figures.add(event);
        let mut lines = self.happened(&[], event);
        let Some(state) = &mut self.state else { return lines };
        let before = state.clone();
        // What cannot be followed is not shown; the store has it.
        if event.fold(state).is_err() {
            self.state = None;
        } else if !event.delta.is_empty() {
            lines.extend(changes(state, &before, self.form.width()));
        }
        lines
    }

    /// What a commit tells of calls and branches, in this run or in one within.
    fn happened(&mut self, path: &[usize], event: &Event) -> Vec<Text> {
        let mut lines = Vec::new();
        match &event.kind {
            EventKind::Replied { .. } => {
                let reply = event.messages.first().filter(|reply| reply.has_tool_calls());
                lines.extend(reply.and_then(|reply| self.said_within(path, &reply.text())));
                if let Some(reply) = event.messages.first() {
                    self.steps.calls(path, reply);
                }
            }
            EventKind::Planned { branches, .. } => self.steps.branches(path, branches),
            EventKind::Started { places } => places.iter().for_each(|place| self.at_most_once(path, *place)),
            EventKind::Decided { decisions, by, .. } if path.is_empty() => {
                lines
                    .extend(decisions.iter().map(|(id, decision)| self.decided(id, decision, by.as_deref())));
            }
            EventKind::Interrupted { places, asks: false, .. } => {
                lines.extend(places.iter().filter_map(|place| self.interrupted(path, *place)));
            }
            EventKind::Inner { place, event } => return self.happened(&[path, &[*place]].concat(), event),
            _ => {}
        }
        if path.is_empty() && event.step_end.is_some() {
            lines.extend(self.named(event));
        }
        lines
    }

    /// What an agent within says before it makes calls.
    fn said_within(&self, path: &[usize], text: &str) -> Option<Text> {
        let (place, outer) = path.split_last()?;
        let before = format!("    {} | ", self.steps.label(outer, *place).unwrap_or_default());
        let room = self.form.width().saturating_sub(Text::from(&before).width());
        (!text.trim().is_empty()).then(|| Text::new(Look::DIM, before).and(brief_text(text, room)))
    }

    fn at_most_once(&mut self, path: &[usize], place: usize) {
        let Some(call) = self.steps.call(path, place) else { return };
        match path {
            [] => self.calls.at_most_once(&call.id),
            path => self.inner.at_most_once(&format!("{path:?} {}", call.id)),
        }
    }

    /// Who decided what, and why.
    fn decided(&self, id: &str, decision: &Decision, by: Option<&str>) -> Text {
        let (id, item) = self.steps.requested(id);
        let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
        let (is_rejected, text) = match decision {
            Decision::Approve => (false, format!("approved{by}")),
            Decision::Modify { arguments } => (false, format!("approved{by} as {arguments}")),
            Decision::Reject { reason } if reason.is_empty() => (true, format!("rejected{by}")),
            Decision::Reject { reason } => (true, format!("rejected{by}: {reason}")),
            Decision::Complete { outcome } => (false, format!("came{by}: {outcome}")),
            Decision::Expire => (true, "expired: its deadline has passed".to_owned()),
            _ => (false, format!("decided{by}")),
        };
        let Form::Terminal { width } = self.form else {
            let mark = if is_rejected { "!" } else { "" };
            return Text::from(format!("  {id}{mark}: {}", brief_text(&text, LOG_WIDTH)));
        };
        let (tool, arguments) = item.map_or((id, None), StepEntry::name_and_arguments);
        let arguments = arguments.as_deref();
        let status =
            if is_rejected { CallStatus::Failed(CallFailure::Rejected) } else { CallStatus::Succeeded };
        EndedCall { tool, arguments, status, text: &text }.in_a_line("  ", &[], width)
    }

    /// A call with an unknown outcome, if it is known by now.
    fn interrupted(&mut self, path: &[usize], place: usize) -> Option<Text> {
        let (Some(call), Some(id)) = (self.steps.call(path, place), self.steps.id(path, place)) else {
            self.unnamed.extend(path.is_empty().then_some(place));
            return None;
        };
        let before = match path.split_last() {
            Some((place, outer)) => format!("    {} | ", self.steps.label(outer, *place).unwrap_or_default()),
            None => "  ".to_owned(),
        };
        let line = self.unknown_line(&before, &id, &call.name, Some(&call.arguments.to_text()));
        self.unknown.insert(id);
        Some(line)
    }

    /// Calls with an unknown outcome that the end of the step names.
    fn named(&mut self, event: &Event) -> Vec<Text> {
        let unnamed = std::mem::take(&mut self.unnamed);
        let results: Vec<_> = event.messages.iter().filter_map(|message| message.tool_result()).collect();
        let mut lines = Vec::new();
        for result in unnamed.into_iter().filter_map(|place| results.get(place)) {
            self.unknown.insert(result.call_id().to_owned());
            lines.push(self.unknown_line("  ", result.call_id(), result.name(), None));
        }
        lines
    }

    fn unknown_line(&self, before: &str, id: &str, tool: &str, arguments: Option<&str>) -> Text {
        let text = "outcome unknown: it ran when the process ended, and does not run again";
        match self.form {
            Form::Log => Text::from(format!("  {id}?: {tool}: {text}")),
            Form::Terminal { width } => {
                EndedCall { tool, arguments, status: CallStatus::Unknown, text }.in_a_line(before, &[], width)
            }
        }
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

/// Whether the model's reply is complete, whatever comes of it.
fn ends_reply(event: &RunEvent) -> bool {
    match event {
        RunEvent::Committed(event) => matches!(event.kind, EventKind::Replied { .. }),
        RunEvent::ToolStarted { .. } | RunEvent::Ended(_) => true,
        _ => false,
    }
}

impl TurnFigures {
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
    format!("continues with \"{question}\", interrupted in step {step} {what}")
}
