//! A call in a line: its name, its arguments, how long it took and what it gave.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use stepfold_state_core::chat::{Arguments, Message, Role, ToolCall, Transcript};
use stepfold_tools::CallStatus;

use crate::brief::{brief_arguments, brief_result, brief_text};
use crate::{Form, Look, Text, seconds};

/// The columns of a result in a pipe.
const SHORT: usize = 200;

/// The calls that have started and not ended.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use stepfold_terminal::{Calls, Form};
/// use stepfold_tools::CallStatus;
///
/// let mut calls = Calls::new(Form::Terminal { width: 60 });
/// assert!(calls.started("c1", "count", r#"{"area": 3}"#, Duration::ZERO).is_empty());
/// assert_eq!(calls.at_work().as_deref(), Some("count"));
/// let lines = calls.finished("c1", "count", CallStatus::Succeeded, "12", Duration::from_millis(40));
/// assert_eq!(lines[0].to_plain(), "  ✓ count(area=3) → 12 · 40 ms");
///
/// // In a pipe, where lines are all there is, a call that begins is told at once.
/// let mut calls = Calls::new(Form::Log);
/// assert_eq!(calls.started("c1", "count", r#"{"area": 3}"#, Duration::ZERO)[0].to_plain(), "> c1 count(area=3)");
/// ```
#[derive(Clone, Debug)]
pub struct Calls {
    form: Form,
    is_verbose: bool,
    open: BTreeMap<String, Open>,
    /// The calls that must not run twice.
    once: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Open {
    tool: String,
    arguments: String,
    since: Duration,
}

impl Calls {
    /// No calls yet.
    pub fn new(form: Form) -> Self {
        Calls { form, is_verbose: false, open: BTreeMap::new(), once: BTreeSet::new() }
    }

    /// With all arguments and results in full.
    #[must_use]
    pub fn verbose(mut self, is_verbose: bool) -> Self {
        self.is_verbose = is_verbose;
        self
    }

    /// Takes note of a call that must not run twice.
    pub fn at_most_once(&mut self, id: &str) {
        self.once.insert(id.to_owned());
    }

    /// The tools that are at work, in the order of their calls.
    pub fn at_work(&self) -> Option<String> {
        let mut open: Vec<&Open> = self.open.values().collect();
        open.sort_by_key(|open| open.since);
        let tools: Vec<&str> = open.iter().map(|open| open.tool.as_str()).collect();
        (!tools.is_empty()).then(|| tools.join(", "))
    }

    /// A call starts.
    pub fn started(&mut self, id: &str, tool: &str, arguments: &str, now: Duration) -> Vec<Text> {
        let open = Open { tool: tool.to_owned(), arguments: arguments.to_owned(), since: now };
        self.open.insert(id.to_owned(), open);
        match self.form {
            Form::Log => {
                let call = ToolCall::new(id, tool, Arguments::parse(arguments));
                let message = Message::new(Role::Assistant).with_part(call);
                let notation = Transcript::new().with(message).to_string();
                vec![Text::from(notation.trim_start_matches("assistant:").trim())]
            }
            Form::Terminal { .. } => Vec::new(),
        }
    }

    /// A call has its outcome.
    pub fn finished(
        &mut self,
        id: &str,
        tool: &str,
        status: CallStatus,
        text: &str,
        now: Duration,
    ) -> Vec<Text> {
        let open = self.open.remove(id);
        let is_once = self.once.remove(id);
        let width = match self.form {
            Form::Terminal { width } => width,
            Form::Log => {
                let mark = if status == CallStatus::Succeeded { "" } else { "!" };
                return vec![Text::from(format!("  {id}{mark}: {}", brief_text(text, SHORT)))];
            }
        };
        let mut about: Vec<String> =
            open.iter().map(|open| seconds(now.saturating_sub(open.since))).collect();
        if is_once {
            about.push("at most once".to_owned());
        }
        let call = Call { tool, arguments: open.as_ref().map_or("{}", |open| &open.arguments), status, text };
        match self.is_verbose {
            true => call.in_full(&about, width),
            false => vec![call.in_a_line(&about, width)],
        }
    }
}

/// A call that has ended.
struct Call<'a> {
    tool: &'a str,
    arguments: &'a str,
    status: CallStatus,
    text: &'a str,
}

impl Call<'_> {
    fn mark(&self) -> (Look, &'static str) {
        match self.status {
            CallStatus::Succeeded => (Look::GOOD, "✓"),
            CallStatus::Cancelled | CallStatus::NotStarted => (Look::DIM, "-"),
            CallStatus::Unknown => (Look::BAD, "?"),
            CallStatus::Failed(_) => (Look::BAD, "✗"),
            _ => (Look::BAD, "!"),
        }
    }

    /// The arguments and the result share what the rest leaves of the line, and neither takes what the other needs.
    fn in_a_line(&self, about: &[String], width: usize) -> Text {
        let about = about.iter().fold(String::new(), |about, part| about + " · " + part);
        let taken = Text::from(format!("  ✓ {}() → {about}", self.tool)).width();
        let room = width.saturating_sub(taken).max(16);
        let (arguments, result) = (self.arguments, self.text);
        let needs = |text: String| Text::from(text).width();
        let (for_arguments, for_result) =
            (needs(brief_arguments(arguments, usize::MAX)), needs(brief_result(result, usize::MAX)));
        let half = room / 2;
        let for_arguments = for_arguments.min(half.max(room.saturating_sub(for_result)));
        let shown = brief_arguments(arguments, for_arguments);
        let for_result = room.saturating_sub(Text::from(&shown).width());
        let (look, mark) = self.mark();
        let of_result = if self.status == CallStatus::Succeeded { Look::PLAIN } else { Look::BAD };
        Text::from("  ")
            .with(look, mark)
            .with(Look::STRONG, format!(" {}", self.tool))
            .with(Look::DIM, format!("({shown})"))
            .with(Look::DIM, " → ")
            .with(of_result, brief_result(result, for_result))
            .with(Look::DIM, &about)
            .wrapped(width, 0, 6)
    }

    /// Everything, in lines of its own.
    fn in_full(&self, about: &[String], width: usize) -> Vec<Text> {
        let (look, mark) = self.mark();
        let about = about.iter().fold(String::new(), |about, part| about + " · " + part);
        let head = Text::from("  ").with(look, mark).with(Look::STRONG, format!(" {}", self.tool));
        let mut lines = vec![head.with(Look::DIM, &about)];
        let arguments = match serde_json::from_str(self.arguments) {
            Ok(Value::Object(fields)) => fields
                .iter()
                .map(|(key, value)| Text::new(Look::DIM, format!("    {key} = ")).and(value.to_string()))
                .collect(),
            _ => vec![Text::from(format!("    {}", self.arguments))],
        };
        lines.extend(arguments.iter().map(|line| line.wrapped(width, 0, 6)));
        for line in self.text.lines() {
            lines.push(Text::new(Look::DIM, "    → ").and(line).wrapped(width, 0, 6));
        }
        lines
    }
}
