//! A request as text: what runs if it is approved, whole, and with nothing hidden in it.
//!
//! One text for every client that is asked by words: of MCP, A2A, AG-UI, ADK and the AI SDK. The command and the studio
//! lay out the same parts.

use std::fmt::Write as _;

use serde_json::Value;
use stepfold_state_core::{escape_all_invisible, warnings};

use crate::approval::{ApprovalRequest, AskReason};
use crate::state_input::StateValue;

/// The maximum length of arguments that stand in one line, in characters.
const IN_LINE: usize = 200;

/// The warning about a request of which the approver sees less than the call runs with.
const REDACTED: &str = "sensitive parts are replaced in what is shown; the call runs with the original input, or, after a restart, not at all";

/// The note of a request that is not the first about its call.
const ASKED_AGAIN: &str = "It was asked about before, with other arguments or values, or as another tool";

impl ApprovalRequest {
    /// The request as text for an approver: the tool, all of its arguments, what the state adds to them, how often it runs,
    /// and the [warnings](Self::warnings). Nothing is left out; invisible characters are escaped, as JSON does.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use serde_json::json;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_tools::{Approval, RawArgs, Tool, ToolContext, ToolError};
    ///
    /// let pay = async |_: RawArgs, _: ToolContext| Ok::<_, ToolError>("paid");
    /// let pay = Tool::new("pay", "Pays a bill.", pay)
    ///     .parameters(json!({"type": "object", "properties": {"euro": {"type": "integer"}}}))
    ///     .approval(Approval::Always);
    /// let script = Script::parse("assistant: > c1 pay(euro=5)")?;
    /// let paused = Agent::builder(script).tools([pay.build()?]).build()?.run("pay").await?;
    /// assert_eq!(paused.pending()[0].to_text(), r#"Run pay with {"euro":5}?"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn to_text(&self) -> String {
        let (tool, arguments) = (escape_all_invisible(&self.call.name), self.arguments_text());
        let mut text = match (&self.message, self.reason) {
            (Some(message), _) => format!("{tool} asks: {} {arguments}", lines(message)),
            (None, AskReason::MayHaveHappened) => {
                let started = if self.is_start_uncertain { "may have started" } else { "had started" };
                format!(
                    "Run {tool} with {arguments} again? It {started} before, and may have had its effect."
                )
            }
            (None, _) => format!("Run {tool} with {arguments}?"),
        };
        if self.times > 1 {
            // Writing to a string cannot fail.
            let _ = write!(text, "\nThe reply makes this call {} times.", self.times);
        }
        for input in &self.inputs_from_state {
            let (parameter, key) = (escape_all_invisible(&input.parameter), escape_all_invisible(&input.key));
            let value = input.value.to_string();
            let _ =
                write!(text, "\n{parameter} = {}, from the state key {key}.", escape_all_invisible(&value));
        }
        if let Some(change) = &self.change {
            let _ = write!(text, "\nThis tool is not as it was approved:\n{}", lines(change));
        } else if self.is_asked_again {
            let _ = write!(text, "\n{ASKED_AGAIN}.");
        }
        for warning in self.warnings() {
            let _ = write!(text, "\nWarning: {warning}.");
        }
        text
    }

    /// The warnings about the arguments for an approver: see [`warnings`](stepfold_state_core::warnings). One of them says that
    /// sensitive parts [were replaced](ApprovalRequest::is_redacted).
    pub fn warnings(&self) -> Vec<String> {
        let arguments = match self.call.arguments.as_object() {
            Some(fields) => Value::Object(fields.clone()),
            None => Value::from(&*self.call.arguments.to_text()),
        };
        let inputs = self.inputs_from_state.iter().map(|input| Value::from(input.value.to_string()));
        let message = self.message.as_deref().map(Value::from);
        let mut warnings = warnings(&std::iter::once(arguments).chain(message).chain(inputs).collect());
        if self.is_redacted {
            warnings.push(REDACTED.to_owned());
        }
        warnings
    }

    fn arguments_text(&self) -> String {
        let text = self.call.arguments.to_text();
        match self.call.arguments.as_object() {
            Some(fields) if text.chars().count() > IN_LINE => {
                lines(&serde_json::to_string_pretty(fields).unwrap_or_else(|_| text.into_owned()))
            }
            _ => escape_all_invisible(&text).into_owned(),
        }
    }
}

impl std::fmt::Display for StateValue {
    /// As shown to an approver: JSON, or why it is not all there.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StateValue::Value(value) => write!(f, "{value}"),
            StateValue::Truncated { begins, bytes, sha256 } => {
                write!(f, "{begins}... ({bytes} bytes, SHA-256 {sha256})")
            }
            StateValue::Hidden { sha256 } => write!(f, "hidden (SHA-256 {sha256})"),
        }
    }
}

/// Text of several lines, in which nothing else is invisible.
fn lines(text: &str) -> String {
    text.lines().map(escape_all_invisible).collect::<Vec<_>>().join("\n")
}
