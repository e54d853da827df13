//! Shows calls, a line each: the name, the arguments, the result and the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use stepfold_state_core::chat::{Arguments, Message, Role, ToolCall, Transcript};
use stepfold_tools::CallStatus;

use crate::brief::{brief_arguments, brief_result, brief_text};
use crate::form::DisplayForm;
use crate::quantities::seconds;
use crate::text::{StyledText, TextStyle};

/// The columns of a result in a log.
const RESULT_COLUMNS: usize = 200;

/// The calls that have started and not ended.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use stepfold_terminal::{CallLines, DisplayForm};
/// use stepfold_tools::CallStatus;
///
/// let mut calls = CallLines::new(DisplayForm::Terminal { width: 60 });
/// assert!(calls.started("c1", "count", r#"{"area": 3}"#, Duration::ZERO).is_empty());
/// assert_eq!(calls.at_work().as_deref(), Some("count"));
/// let lines = calls.finished("c1", "count", CallStatus::Succeeded, "12", Duration::from_millis(40));
/// assert_eq!(lines[0].to_plain(), "  ✓ count(area=3) → 12 · 40 ms");
///
/// // In a log the start of a call has a line, since there is no live line.
/// let mut calls = CallLines::new(DisplayForm::Log);
/// assert_eq!(calls.started("c1", "count", r#"{"area": 3}"#, Duration::ZERO)[0].to_plain(), "> c1 count(area=3)");
/// ```
#[derive(Clone, Debug)]
pub struct CallLines {
    form: DisplayForm,
    is_verbose: bool,
    open: BTreeMap<String, StartedCall>,
    /// The ids of calls that must not run twice.
    at_most_once_ids: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct StartedCall {
    tool: String,
    arguments: String,
    since: Duration,
}

impl CallLines {
    /// No calls yet.
    pub fn new(form: DisplayForm) -> Self {
        CallLines { form, is_verbose: false, open: BTreeMap::new(), at_most_once_ids: BTreeSet::new() }
    }

    /// With all arguments and results in full.
    #[must_use]
    pub fn verbose(mut self, is_verbose: bool) -> Self {
        self.is_verbose = is_verbose;
        self
    }

    /// Marks a call that must not run twice.
    pub fn at_most_once(&mut self, id: &str) {
        self.at_most_once_ids.insert(id.to_owned());
    }

    /// The tools of running calls, in the order in which they started.
    pub fn at_work(&self) -> Option<String> {
        let mut open: Vec<&StartedCall> = self.open.values().collect();
        open.sort_by_key(|open| open.since);
        let tools: Vec<&str> = open.iter().map(|open| open.tool.as_str()).collect();
        (!tools.is_empty()).then(|| tools.join(", "))
    }

    /// Records the start of a call. In a log, returns its line.
    pub fn started(&mut self, id: &str, tool: &str, arguments: &str, now: Duration) -> Vec<StyledText> {
        let open = StartedCall { tool: tool.to_owned(), arguments: arguments.to_owned(), since: now };
        self.open.insert(id.to_owned(), open);
        match self.form {
            // NOTE: Programs read logs later: the start of a call is a line, since there is no live line to show it.
            DisplayForm::Log => {
                let call = ToolCall::new(id, tool, Arguments::parse(arguments));
                let message = Message::new(Role::Assistant).with_part(call);
                let notation = Transcript::new().with(message).to_string();
                vec![StyledText::from(notation.trim_start_matches("assistant:").trim())]
            }
            DisplayForm::Terminal { .. } => Vec::new(),
        }
    }

    /// Records the outcome of a call, and returns its lines.
    pub fn finished(
        &mut self,
        id: &str,
        tool: &str,
        status: CallStatus,
        text: &str,
        now: Duration,
    ) -> Vec<StyledText> {
        let (arguments, about) = self.end(id, now);
        let width = match self.form {
            DisplayForm::Terminal { width } => width,
            // NOTE: Without the time: the same run gives the same log.
            DisplayForm::Log => {
                let mark = if status == CallStatus::Succeeded { "" } else { "!" };
                return vec![StyledText::from(format!("  {id}{mark}: {}", brief_text(text, RESULT_COLUMNS)))];
            }
        };
        let call = EndedCall { tool, arguments: Some(&arguments), status, text };
        match self.is_verbose {
            true => call.in_full(&about, width),
            false => vec![call.in_a_line("  ", &about, width)],
        }
    }

    /// Records the outcome of a call by an inner agent, and returns its line, after the name of the agent's node or tool.
    pub fn finished_in(
        &mut self,
        name: &str,
        id: &str,
        (tool, status, text): (&str, CallStatus, &str),
        now: Duration,
    ) -> StyledText {
        let (arguments, about) = self.end(id, now);
        // NOTE: Without the time in a log, as in `finished`.
        let about = if self.form.is_terminal() { about } else { Vec::new() };
        let call = EndedCall { tool, arguments: Some(&arguments), status, text };
        call.in_a_line(&format!("    {name} | "), &about, self.form.width())
    }

    /// Removes an ended call. Returns its arguments, and the remarks beside its result: the time, and the effect.
    fn end(&mut self, id: &str, now: Duration) -> (String, Vec<String>) {
        let open = self.open.remove(id);
        let took = open.as_ref().map(|open| seconds(now.saturating_sub(open.since)));
        let at_most_once_ids = self.at_most_once_ids.remove(id).then(|| "at most once".to_owned());
        (
            open.map_or_else(|| "{}".to_owned(), |open| open.arguments),
            took.into_iter().chain(at_most_once_ids).collect(),
        )
    }
}

/// An ended call; or an ended branch, which has no arguments.
pub(crate) struct EndedCall<'a> {
    pub(crate) tool: &'a str,
    pub(crate) arguments: Option<&'a str>,
    pub(crate) status: CallStatus,
    pub(crate) text: &'a str,
}

impl EndedCall<'_> {
    fn mark(&self) -> (TextStyle, &'static str) {
        match self.status {
            CallStatus::Succeeded => (TextStyle::GOOD, "✓"),
            CallStatus::Cancelled | CallStatus::NotStarted => (TextStyle::DIM, "-"),
            CallStatus::Unknown => (TextStyle::BAD, "?"),
            CallStatus::Failed(_) => (TextStyle::BAD, "✗"),
            _ => (TextStyle::BAD, "!"),
        }
    }

    /// The call in a line after `before`. The result takes up to a third of the line, an error two thirds, and the
    /// arguments share the rest with the remarks that fit.
    pub(crate) fn in_a_line(&self, before: &str, about: &[String], width: usize) -> StyledText {
        let columns = |text: &str| StyledText::from(text).width();
        let parens = if self.arguments.is_some() { "()" } else { "" };
        // NOTE: Never less than 16 columns: a narrow terminal wraps the line rather than losing the result.
        let room = width.saturating_sub(columns(&format!("{before}✓ {}{parens} → ", self.tool))).max(16);
        // NOTE: Readers look for errors; results are shown in full with `verbose`.
        let share = if matches!(self.status, CallStatus::Failed(_)) { room * 2 / 3 } else { room / 3 };
        let least = columns(&brief_result(self.text, usize::MAX)).min(share.max(8));
        let arguments = self.arguments.map(|arguments| brief_arguments(arguments, room - least));
        let left = room - arguments.as_deref().map_or(0, columns);
        let beside =
            |parts: &[String]| parts.iter().fold(String::new(), |beside, part| beside + " · " + part);
        let fits = |count: &usize| columns(&beside(&about[..*count])) + least <= left;
        let about = beside(&about[..(0..=about.len()).rev().find(fits).unwrap_or(0)]);
        let (look, mark) = self.mark();
        let of_result = if self.status == CallStatus::Succeeded { TextStyle::PLAIN } else { TextStyle::BAD };
        StyledText::new(TextStyle::DIM, before)
            .with(look, mark)
            .with(TextStyle::STRONG, format!(" {}", self.tool))
            .with(TextStyle::DIM, arguments.map(|arguments| format!("({arguments})")).unwrap_or_default())
            .with(TextStyle::DIM, " → ")
            .with(of_result, brief_result(self.text, left.saturating_sub(columns(&about))))
            .with(TextStyle::DIM, &about)
            .wrapped(width, 0, 6)
    }

    /// The complete call, in several lines.
    fn in_full(&self, about: &[String], width: usize) -> Vec<StyledText> {
        let (look, mark) = self.mark();
        let about = about.iter().fold(String::new(), |about, part| about + " · " + part);
        let head = StyledText::from("  ").with(look, mark).with(TextStyle::STRONG, format!(" {}", self.tool));
        let mut lines = vec![head.with(TextStyle::DIM, &about)];
        let arguments = self.arguments.unwrap_or("{}");
        let arguments = match serde_json::from_str(arguments) {
            Ok(Value::Object(fields)) => fields
                .iter()
                .map(|(key, value)| {
                    StyledText::new(TextStyle::DIM, format!("    {key} = ")).and(value.to_string())
                })
                .collect(),
            _ => vec![StyledText::from(format!("    {arguments}"))],
        };
        lines.extend(arguments.iter().map(|line| line.wrapped(width, 0, 6)));
        for line in self.text.lines() {
            lines.push(StyledText::new(TextStyle::DIM, "    → ").and(line).wrapped(width, 0, 6));
        }
        lines
    }
}
