//! Requests for a decision. They are shown complete, since the approver approves everything in them.

use serde_json::{Map, Value};
use stepfold_agent_loop::{ApprovalRequest, AskReason, StateInput};
use stepfold_state_core::escape_all_invisible;

use crate::form::DisplayForm;
use crate::text::{StyledText, TextStyle};

/// The characters of arguments that fit in the line of the question.
const IN_LINE: usize = 80;

/// The characters from which a text is folded at a prompt, and those of its beginning, which is shown.
const LONG_TEXT: usize = 400;
const BEGINNING: usize = 160;

/// The items from which a list is folded at a prompt, and the number of the first ones, which are shown.
const LONG_LIST: usize = 60;
const FIRST_ITEMS: usize = 20;

/// A request for a decision: the tool, its arguments as they will be run, complete and as JSON, and the values that the
/// state adds to them. A question of a tool is shown with the schema of its answer. Invisible characters are escaped. The
/// text is not wrapped: a wrap drops the spaces around it.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use serde_json::json;
/// use stepfold_agent_loop::Agent;
/// use stepfold_providers::Scripted;
/// use stepfold_terminal::{DisplayForm, approval};
/// use stepfold_tools::{Approval, Args, Tool, ToolError};
///
/// # #[derive(serde::Deserialize, schemars::JsonSchema)]
/// # struct Bill { euro: u64 }
/// let pay = async |Args(bill): Args<Bill>| Ok::<_, ToolError>(bill.euro);
/// let pay = Tool::new("pay", "Pays a bill.", pay).approval(Approval::Always).build()?;
/// let model = Scripted::conversation("assistant: > c1 pay(euro=5)")?;
/// let paused = Agent::builder(model).tools([pay]).build()?.run("pay").await?;
/// let question = approval(&paused.pending()[0], DisplayForm::Terminal { width: 80 }).to_plain();
/// assert!(question.starts_with("? decide about c1#") && question.ends_with(": pay {\"euro\":5}"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub fn approval(request: &ApprovalRequest, form: DisplayForm) -> StyledText {
    layout_request(request, form, &mut JsonLayout::default())
}

/// A request for an approver at a terminal: long texts and lists are folded, so that all fields are in sight. Also returns
/// the number of folded parts: if there are any, show the complete [`approval`] before the call is approved.
pub fn folded_approval(request: &ApprovalRequest, form: DisplayForm) -> (StyledText, usize) {
    let mut layout = JsonLayout { is_folded: true, ..JsonLayout::default() };
    let text = layout_request(request, form, &mut layout);
    (text, layout.folds)
}

fn layout_request(request: &ApprovalRequest, form: DisplayForm, layout: &mut JsonLayout) -> StyledText {
    let mut why = Vec::new();
    if matches!(request.reason, AskReason::MayHaveHappened) {
        let started = if request.is_start_uncertain { "may have started" } else { "had started" };
        why.push(format!("it {started} before a crash, and may have had its effect"));
    }
    if request.times > 1 {
        why.push(format!("the reply makes this call {} times", request.times));
    }
    let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join("; ")) };
    let arguments = layout.arguments(request);
    // NOTE: An invisible character could hide a part of the request from its approver.
    let (id, tool) = (escape_all_invisible(&request.id), escape_all_invisible(&request.call.name));
    // An outcome that comes later is delivered by a program, without a decision.
    let wants = if request.is_later() { "waits for the outcome of " } else { "decide about " };
    let question = match form {
        DisplayForm::Log => StyledText::from(format!("{wants}{id}: ")),
        DisplayForm::Terminal { .. } => {
            StyledText::new(TextStyle::ASK, "? ").and(wants).with(TextStyle::DIM, &id).and(": ")
        }
    };
    let warned = |text: StyledText| {
        let text = changed(text, request);
        request
            .warnings()
            .iter()
            .fold(text, |text, warning| text.and("\n  ").with(TextStyle::BAD, format!("warning: {warning}")))
    };
    if let Some(message) = &request.message {
        let asks = if request.is_later() { "" } else { " asks" };
        let asked = format!("{asks}: {}", escape_all_invisible(message));
        let details = if arguments == " {}" { String::new() } else { arguments };
        let schema = request
            .schema()
            .map(|schema| format!("\n  answer: {}", escape_all_invisible(&schema.to_string())));
        let question = question.with(TextStyle::STRONG, &tool).and(&asked).and(&details);
        return warned(question.and(schema.as_deref().unwrap_or_default()));
    }
    let inputs: String = request.inputs_from_state.iter().map(input).collect();
    warned(question.with(TextStyle::STRONG, &tool).and(&arguments).and(inputs).and(&why))
}

/// The text with the changes of the tool since its definition was approved, line by line; or that the call was asked about
/// before.
fn changed(text: StyledText, request: &ApprovalRequest) -> StyledText {
    match &request.change {
        Some(change) => {
            let lines = change.lines().map(|line| format!("\n  {}", escape_all_invisible(line)));
            text.and(format!("\nthis tool is not as it was approved:{}", lines.collect::<String>()))
        }
        None if request.is_asked_again => {
            text.and("\n  asked again: with other arguments or values, or as another tool")
        }
        None => text,
    }
}

/// The line of a parameter whose value comes from the state.
fn input(input: &StateInput) -> String {
    let (parameter, key) = (escape_all_invisible(&input.parameter), escape_all_invisible(&input.key));
    let value = input.value.to_string();
    format!("\n  {parameter} = {}, from the state key {key}", escape_all_invisible(&value))
}

/// Lays out JSON, a field per line, with invisible characters escaped.
#[derive(Default)]
struct JsonLayout {
    text: String,
    is_folded: bool,
    folds: usize,
}

impl JsonLayout {
    fn arguments(&mut self, request: &ApprovalRequest) -> String {
        let text = request.call.arguments.to_text();
        match request.call.arguments.as_object() {
            Some(fields) if text.chars().count() > IN_LINE => {
                "\n  ".clone_into(&mut self.text);
                self.fields(fields, "\n    ");
                std::mem::take(&mut self.text)
            }
            _ => format!(" {}", escape_all_invisible(&text)),
        }
    }

    fn value(&mut self, value: &Value, line: &str) {
        match value {
            Value::String(text) if self.is_folded && text.chars().count() > LONG_TEXT => {
                let begins: String = text.chars().take(BEGINNING).collect();
                let begins = Value::from(begins).to_string();
                self.text += &escape_all_invisible(begins.trim_end_matches('"'));
                self.fold(&format!("...\" ({} characters)", text.chars().count()));
            }
            Value::Array(items) if !items.is_empty() => self.items(items, &format!("{line}  ")),
            Value::Object(fields) if !fields.is_empty() => self.fields(fields, &format!("{line}  ")),
            value => self.text += &escape_all_invisible(&value.to_string()),
        }
    }

    fn fields(&mut self, fields: &Map<String, Value>, line: &str) {
        self.text.push('{');
        for (place, (key, field)) in fields.iter().enumerate() {
            self.text += if place == 0 { "" } else { "," };
            self.text += line;
            self.text += &escape_all_invisible(&Value::from(key.as_str()).to_string());
            self.text += ": ";
            self.value(field, line);
        }
        self.text += &line[..line.len() - 2];
        self.text.push('}');
    }

    fn items(&mut self, items: &[Value], line: &str) {
        let shown = if self.is_folded && items.len() > LONG_LIST { FIRST_ITEMS } else { items.len() };
        self.text.push('[');
        for (place, item) in items[..shown].iter().enumerate() {
            self.text += if place == 0 { "" } else { "," };
            self.text += line;
            self.value(item, line);
        }
        if shown < items.len() {
            self.text += line;
            // NOTE: The size tells an approver how much is folded away.
            let characters: usize = items[shown..].iter().map(|item| item.to_string().chars().count()).sum();
            self.fold(&format!("... {} more items ({characters} characters)", items.len() - shown));
        }
        self.text += &line[..line.len() - 2];
        self.text.push(']');
    }

    fn fold(&mut self, words: &str) {
        self.folds += 1;
        self.text += words;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_values_are_folded_and_no_field_is() {
        let value = json!({"a": "x".repeat(4_000), "euro": 999_999, "inner": {"list": (0..100).collect::<Vec<_>>(), "z\u{202e}": [], "y": 1}});
        let mut layout = JsonLayout { is_folded: true, ..JsonLayout::default() };
        layout.value(&value, "\n");
        assert_eq!(layout.folds, 2);
        assert!(
            layout.text.contains("\n  \"euro\": 999999,\n")
                && layout.text.contains("xxx...\" (4000 characters),\n")
        );
        assert!(
            layout.text.contains("\n      19\n      ... 80 more items (160 characters)\n    ],\n"),
            "{}",
            layout.text
        );
        assert!(layout.text.contains("\n    \"z\\u202e\": []"), "{}", layout.text);
        let mut layout = JsonLayout::default();
        layout.value(&value, "\n");
        let read: Value = serde_json::from_str(&layout.text).unwrap();
        assert_eq!((layout.folds, read), (0, value));
    }
}
