//! Decides what is shown of a run: an event in, lines out. It never writes, waits or reads a clock.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use stepfold_agent_loop::{Decision, Event, EventKind, Exit, Run, RunEvent, UnknownCall};
use stepfold_state_core::chat::{Role, Usage};
use stepfold_state_core::escape_all_invisible;
use stepfold_state_core::state::State;
use stepfold_tools::{CallFailure, CallStatus};

use crate::brief::{brief, brief_text};
use crate::calls::{CallLines, EndedCall};
use crate::changes::changes;
use crate::fields::fields;
use crate::form::{DisplayForm, LOG_WIDTH};
use crate::quantities::{counted, grouped, seconds};
use crate::steps::{OpenSteps, StepEntry};
use crate::text::{StyledText, TextStyle};

/// The frames of the spinner in the live line.
const SPINNER_FRAMES: [&str; 8] = ["⠁", "⠉", "⠙", "⠚", "⠒", "⠂", "⠂", "⠒"];

/// The characters of the live line's subject: it must fit in a line.
const WAIT_CHARACTERS: usize = 40;

/// An item to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewItem {
    /// More of the answer, in Markdown.
    Reply(String),
    /// The end of the answer.
    ReplyEnd,
    /// A line, wrapped already.
    Line(StyledText),
}

/// Decides what is shown of a run.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use stepfold_agent_loop::RunEvent;
/// use stepfold_terminal::{DisplayForm, ViewItem, RunView};
///
/// let mut view = RunView::new(DisplayForm::Terminal { width: 80 });
/// let event = RunEvent::Asking { step: 1, model: "m".to_owned(), request: Box::default() };
/// assert!(view.see(&event, Duration::ZERO).is_empty());
/// assert_eq!(view.live(Duration::from_millis(2_500)).unwrap().to_plain(), "⠒ m 2s");
/// assert_eq!(view.see(&RunEvent::Text("hi".to_owned()), Duration::ZERO), [ViewItem::Reply("hi".to_owned())]);
/// assert!(view.live(Duration::ZERO).is_none());
/// ```
#[derive(Clone, Debug)]
pub struct RunView {
    form: DisplayForm,
    /// The state before the next commit, if it is known; its changes are shown.
    state: Option<State>,
    calls: CallLines,
    /// The calls of inner runs, by their paths and ids.
    inner: CallLines,
    steps: OpenSteps,
    /// Places of calls with an unknown outcome that are shown when the end of the step names them.
    unnamed_places: Vec<usize>,
    /// The ids of the calls with an unknown outcome that were shown.
    unknown: BTreeSet<String>,
    waiting_for: Option<(String, Duration)>,
    reply: AnswerState,
    figures: TurnFigures,
}

/// The answer that is being streamed.
#[derive(Clone, Debug, Default)]
struct AnswerState {
    /// Whether its line is open.
    is_open: bool,
    /// Whether some of it was streamed as text.
    has_text: bool,
    /// The text of an object, which is shown field by field when it is complete.
    object: String,
}

/// The figures of a turn: steps, calls, tokens, time.
#[derive(Clone, Copy, Debug, Default)]
struct TurnFigures {
    began: Option<Duration>,
    steps: u64,
    calls: u64,
    usage: Usage,
}

impl RunView {
    /// Creates a view in this form.
    pub fn new(form: DisplayForm) -> Self {
        RunView {
            form,
            state: None,
            calls: CallLines::new(form),
            inner: CallLines::new(form),
            steps: OpenSteps::default(),
            unnamed_places: Vec::new(),
            unknown: BTreeSet::new(),
            waiting_for: None,
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
            self.steps.restore_open_calls(state.messages());
        }
        self.state = state;
    }

    /// The form of the output.
    pub fn form(&self) -> DisplayForm {
        self.form
    }

    /// Decides what is shown of an event. `now` is the time since any fixed moment.
    pub fn see(&mut self, event: &RunEvent, now: Duration) -> Vec<ViewItem> {
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
                // NOTE: A printed line ends the wait; the tools that still run become the subject of the live line.
                self.waiting_for = self.waiting_for.take().filter(|_| !has_news);
                if let Some(tools) = self.at_work().filter(|_| self.waiting_for.is_none()) {
                    self.wait(&tools, now);
                }
                let ended = if has_news || ends_reply(event) { self.end() } else { Vec::new() };
                let answers = answers.iter().flat_map(|answer| self.whole(answer));
                ended.into_iter().chain(answers).chain(lines.into_iter().map(ViewItem::Line)).collect()
            }
        }
    }

    /// Ends the answer, and returns its rest.
    pub fn end(&mut self) -> Vec<ViewItem> {
        let object = std::mem::take(&mut self.reply.object);
        match std::mem::take(&mut self.reply.is_open) {
            true => vec![ViewItem::ReplyEnd],
            false => self.whole(&object),
        }
    }

    /// The lines of calls with an unknown outcome that were not shown yet.
    pub fn unknown(&mut self, calls: &[&UnknownCall]) -> Vec<StyledText> {
        let new: Vec<_> = calls.iter().filter(|call| self.unknown.insert(call.id.clone())).collect();
        let line = |call: &&&UnknownCall| {
            let arguments = call.arguments.to_text();
            self.unknown_line("  ", &call.id, &call.tool, (arguments != "{}").then_some(&*arguments))
        };
        new.iter().map(line).collect()
    }

    /// Adds more of the answer.
    fn text(&mut self, text: &str) -> Vec<ViewItem> {
        // NOTE: Streamed text must not be shown again with the commit of the reply.
        self.reply.has_text = true;
        // NOTE: A structured answer is held back: half an object cannot be shown field by field.
        let is_object = self.form.is_terminal() && !self.reply.is_open;
        if is_object && (!self.reply.object.is_empty() || text.starts_with('{')) {
            self.reply.object.push_str(text);
            return Vec::new();
        }
        self.waiting_for = None;
        self.reply.is_open = true;
        vec![ViewItem::Reply(text.to_owned())]
    }

    /// Shows a complete answer: an object field by field, anything else as text.
    fn whole(&self, answer: &str) -> Vec<ViewItem> {
        match (serde_json::from_str(answer), self.form) {
            _ if answer.trim().is_empty() => Vec::new(),
            (Ok(Value::Object(object)), DisplayForm::Terminal { width }) if !object.is_empty() => {
                vec![ViewItem::Line(fields(&object, &StyledText::new(TextStyle::GOOD, "● "), width))]
            }
            _ => vec![ViewItem::Reply(answer.to_owned()), ViewItem::ReplyEnd],
        }
    }

    /// The answers that come in one piece: of a graph's nodes at the end of a superstep, or of a model that does not
    /// stream.
    fn answers(&self, event: &RunEvent) -> Vec<String> {
        let Some(event) = event.committed() else { return Vec::new() };
        let is_said = match &event.kind {
            EventKind::Replied { .. } => !self.reply.has_text,
            _ => event.step_end.is_some(),
        };
        let said = event.messages.iter().filter(|message| is_said && message.role() == Role::Assistant);
        // Text beside calls was shown with the calls.
        let is_reply = matches!(event.kind, EventKind::Replied { .. });
        let answers = said.filter(|message| is_reply || !message.has_tool_calls());
        answers.map(|message| message.text().into_owned()).filter(|text| !text.trim().is_empty()).collect()
    }

    /// The tools of running calls.
    pub fn at_work(&self) -> Option<String> {
        self.calls.at_work().or_else(|| self.inner.at_work())
    }

    /// The live line: its subject, and the time since it started. None while the line of an answer is open, which it would
    /// overwrite.
    pub fn live(&self, now: Duration) -> Option<StyledText> {
        let (what, since) = self.waiting_for.as_ref().filter(|_| !self.reply.is_open)?;
        let waited = now.saturating_sub(*since);
        let turn = usize::try_from(waited.as_millis() / 120).unwrap_or_default() % SPINNER_FRAMES.len();
        let line =
            StyledText::new(TextStyle::GOOD, SPINNER_FRAMES[turn]).with(TextStyle::DIM, format!(" {what} "));
        Some(line.with(TextStyle::DIM, format!("{}s", waited.as_secs())))
    }

    fn wait(&mut self, what: &str, now: Duration) {
        let room = WAIT_CHARACTERS.min(self.form.width().saturating_sub(12));
        self.waiting_for = Some((brief_text(&escape_all_invisible(what), room), now));
    }

    fn lines(&mut self, event: &RunEvent, now: Duration) -> Vec<StyledText> {
        match event {
            RunEvent::ToolStarted { call_id, tool, arguments } => {
                self.figures.calls += 1;
                self.waiting_for = None;
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
                vec![StyledText::new(TextStyle::DIM, format!("  {node}: ")).and(&text)]
            }
            RunEvent::Ended(exit) => self.ended(exit, now),
            _ => Vec::new(),
        }
    }

    fn label(&self, path: &[usize], place: usize, name: &str) -> String {
        self.steps.label(path, place).unwrap_or(name).to_owned()
    }

    /// The line of an ended branch. A branch that was alone needs none: the next one shows its end.
    fn node_finished(
        &self,
        node: &str,
        branch: usize,
        error: Option<&str>,
        now: Duration,
    ) -> Vec<StyledText> {
        let label = self.label(&[], branch, node);
        if let Some(error) = error {
            return vec![
                StyledText::new(TextStyle::BAD, format!("  ✗ {label}: ")).and(brief_text(error, LOG_WIDTH)),
            ];
        }
        let since = self.steps.since(&[], branch).filter(|_| self.form.is_terminal());
        let took =
            since.map(|since| format!(" · {}", seconds(now.saturating_sub(since)))).unwrap_or_default();
        let is_one_of_many = self.steps.count(&[]) > 1;
        is_one_of_many.then(|| self.aside(&format!("  ✓ {label}{took}"))).into_iter().collect()
    }

    /// The lines of an event in the inner run at this path: of an agent that is a tool or a node.
    fn inner(&mut self, path: &[usize], name: &str, event: &RunEvent, now: Duration) -> Vec<StyledText> {
        let Some((place, outer)) = path.split_last() else { return Vec::new() };
        let label = self.label(outer, *place, name);
        let key = |call_id: &str| format!("{path:?} {call_id}");
        match event {
            RunEvent::Asking { model, .. } => self.wait(&format!("{label}: {model}"), now),
            RunEvent::ToolStarted { call_id, tool, arguments } => {
                self.figures.calls += 1;
                self.waiting_for = None;
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

    fn committed(&mut self, event: &Event) -> Vec<StyledText> {
        self.figures.add(event);
        let mut lines = self.commit_lines(&[], event);
        let Some(state) = &mut self.state else { return lines };
        let before = state.clone();
        // NOTE: After a failed fold changes are not shown any more: the store has them.
        if event.fold(state).is_err() {
            self.state = None;
        } else if !event.delta.is_empty() {
            lines.extend(changes(state, &before, self.form.width()));
        }
        lines
    }

    /// The lines of a commit about calls and branches, in this run or an inner one.
    fn commit_lines(&mut self, path: &[usize], event: &Event) -> Vec<StyledText> {
        let mut lines = Vec::new();
        match &event.kind {
            EventKind::Replied { .. } => {
                let reply = event.messages.first().filter(|reply| reply.has_tool_calls());
                lines.extend(reply.and_then(|reply| self.inner_text(path, &reply.text())));
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
                lines.extend(places.iter().filter_map(|place| self.unknown_call(path, *place)));
            }
            EventKind::Inner { place, event } => {
                return self.commit_lines(&[path, &[*place]].concat(), event);
            }
            _ => {}
        }
        if path.is_empty() && event.step_end.is_some() {
            lines.extend(self.named_calls(event));
        }
        lines
    }

    /// The text of an inner agent beside its calls.
    fn inner_text(&self, path: &[usize], text: &str) -> Option<StyledText> {
        let (place, outer) = path.split_last()?;
        let before = format!("    {} | ", self.steps.label(outer, *place).unwrap_or_default());
        let room = self.form.width().saturating_sub(StyledText::from(&before).width());
        (!text.trim().is_empty()).then(|| StyledText::new(TextStyle::DIM, before).and(brief_text(text, room)))
    }

    fn at_most_once(&mut self, path: &[usize], place: usize) {
        let Some(call) = self.steps.call(path, place) else { return };
        match path {
            [] => self.calls.at_most_once(&call.id),
            path => self.inner.at_most_once(&format!("{path:?} {}", call.id)),
        }
    }

    /// The line of a decision, with its approver and reason.
    fn decided(&self, id: &str, decision: &Decision, by: Option<&str>) -> StyledText {
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
        let DisplayForm::Terminal { width } = self.form else {
            let mark = if is_rejected { "!" } else { "" };
            return StyledText::from(format!("  {id}{mark}: {}", brief_text(&text, LOG_WIDTH)));
        };
        let (tool, arguments) = item.map_or((id, None), StepEntry::name_and_arguments);
        let arguments = arguments.as_deref();
        let status =
            if is_rejected { CallStatus::Failed(CallFailure::Rejected) } else { CallStatus::Succeeded };
        EndedCall { tool, arguments, status, text: &text }.in_a_line("  ", &[], width)
    }

    /// The line of a call with an unknown outcome; none if the call is not known yet.
    fn unknown_call(&mut self, path: &[usize], place: usize) -> Option<StyledText> {
        let (Some(call), Some(id)) = (self.steps.call(path, place), self.steps.id(path, place)) else {
            // NOTE: The view may have started after the reply of this step: then the end of the step names the call.
            self.unnamed_places.extend(path.is_empty().then_some(place));
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

    /// The lines of calls with an unknown outcome that were unnamed until the end of the step.
    fn named_calls(&mut self, event: &Event) -> Vec<StyledText> {
        let unnamed_places = std::mem::take(&mut self.unnamed_places);
        let results: Vec<_> = event.messages.iter().filter_map(|message| message.tool_result()).collect();
        let mut lines = Vec::new();
        for result in unnamed_places.into_iter().filter_map(|place| results.get(place)) {
            self.unknown.insert(result.call_id().to_owned());
            lines.push(self.unknown_line("  ", result.call_id(), result.name(), None));
        }
        lines
    }

    fn unknown_line(&self, before: &str, id: &str, tool: &str, arguments: Option<&str>) -> StyledText {
        let text = "outcome unknown: it ran when the process ended, and does not run again";
        match self.form {
            DisplayForm::Log => StyledText::from(format!("  {id}?: {tool}: {text}")),
            DisplayForm::Terminal { width } => {
                EndedCall { tool, arguments, status: CallStatus::Unknown, text }.in_a_line(before, &[], width)
            }
        }
    }

    fn ended(&mut self, exit: &Exit, now: Duration) -> Vec<StyledText> {
        self.waiting_for = None;
        // NOTE: A paused turn has not ended: its figures continue when it is resumed.
        if matches!(exit, Exit::Paused(_)) {
            return Vec::new();
        }
        let figures = std::mem::take(&mut self.figures);
        let is_shown = self.form.is_terminal() && figures.steps > 0;
        if is_shown { vec![figures.line(now)] } else { Vec::new() }
    }

    fn aside(&self, text: &str) -> StyledText {
        let text = StyledText::new(TextStyle::DIM, text);
        match self.form {
            DisplayForm::Log => text,
            DisplayForm::Terminal { width } => text.wrapped(width, 0, 4),
        }
    }
}

/// Whether the event completes the model's reply.
fn ends_reply(event: &RunEvent) -> bool {
    match event {
        RunEvent::Committed(event) => matches!(event.kind, EventKind::Replied { .. }),
        RunEvent::ToolStarted { .. } | RunEvent::Ended(_) => true,
        _ => false,
    }
}

impl TurnFigures {
    /// Counts replies, those of inner agents included.
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

    fn line(&self, now: Duration) -> StyledText {
        let mut parts = vec![counted(self.steps, "step")];
        if self.calls > 0 {
            parts.push(counted(self.calls, "call"));
        }
        let Usage { input_tokens, output_tokens, .. } = self.usage;
        if input_tokens + output_tokens > 0 {
            parts.push(format!("{} tokens in, {} out", grouped(input_tokens), grouped(output_tokens)));
        }
        parts.push(seconds(now.saturating_sub(self.began.unwrap_or(now))));
        StyledText::new(TextStyle::DIM, format!("  {}", parts.join(" · ")))
    }
}

/// Describes an interrupted run: its question, its step, its open calls.
pub fn describe_unfinished(run: &Run) -> String {
    let said: Vec<_> = run.transcript().iter().collect();
    let question = said.iter().rev().find(|message| message.role() == Role::User);
    let question = question.map(|question| brief_text(&question.text(), 60)).unwrap_or_default();
    let open: Vec<String> = run.open_calls().into_iter().map(|(_, call)| call.name).collect();
    // NOTE: A step with open calls is counted already, since its reply is stored.
    let (step, what) = match open.is_empty() {
        true => (run.steps() + 1, "before the model had answered".to_owned()),
        false => (run.steps(), format!("with {} open", open.join(", "))),
    };
    format!("continues with \"{question}\", interrupted in step {step} {what}")
}
