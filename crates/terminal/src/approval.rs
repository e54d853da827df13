//! Requests for a decision: what is approved is what is shown, whole.

use serde_json::Value;
use stepfold_agent_loop::{ApprovalRequest, AskReason, StateInput, StateValue};
use stepfold_state_core::escape_all_invisible;

use crate::{Form, Look, Text};

/// Arguments of up to so many characters stand in the line of the question.
const IN_LINE: usize = 80;

/// A request for a decision: the tool, its arguments as they will be run, whole and as JSON, and what the state adds to them.
/// A question of a tool is shown with the schema of its answer. Nothing in it is invisible. It is not wrapped: a wrap drops the spaces around it.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use serde_json::json;
/// use stepfold_agent_loop::Agent;
/// use stepfold_providers::Scripted;
/// use stepfold_terminal::{Form, approval};
/// use stepfold_tools::{Approval, Args, Tool, ToolError};
///
/// # #[derive(serde::Deserialize, schemars::JsonSchema)]
/// # struct Bill { euro: u64 }
/// let pay = async |Args(bill): Args<Bill>| Ok::<_, ToolError>(bill.euro);
/// let pay = Tool::new("pay", "Pays a bill.", pay).approval(Approval::Always).build()?;
/// let model = Scripted::conversation("assistant: > c1 pay(euro=5)")?;
/// let paused = Agent::builder(model).tools([pay]).build()?.run("pay").await?;
/// let question = approval(&paused.pending()[0], Form::Terminal { width: 80 }).to_plain();
/// assert!(question.starts_with("? decide about c1#") && question.ends_with(": pay {\"euro\":5}"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub fn approval(request: &ApprovalRequest, form: Form) -> Text {
    let mut why = Vec::new();
    if matches!(request.reason, AskReason::MayHaveHappened) {
        why.push("it had started before a crash, and may have had its effect".to_owned());
    }
    if request.times > 1 {
        why.push(format!("the reply makes this call {} times", request.times));
    }
    let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join("; ")) };
    let arguments = request.call.arguments.to_text();
    let is_short = arguments.chars().count() <= IN_LINE;
    let arguments = match request.call.arguments.as_object() {
        Some(fields) if !is_short => {
            let lines = serde_json::to_string_pretty(&Value::Object(fields.clone())).unwrap_or_default();
            lines.lines().fold(String::new(), |shown, line| shown + "\n  " + &escape_all_invisible(line))
        }
        _ => format!(" {}", escape_all_invisible(&arguments)),
    };
    let (id, tool) = (escape_all_invisible(&request.id), escape_all_invisible(&request.call.name));
    let question = match form {
        Form::Log => Text::from(format!("decide about {id}: ")),
        Form::Terminal { .. } => {
            Text::new(Look::ASK, "? ").and("decide about ").with(Look::DIM, &id).and(": ")
        }
    };
    let inputs: String = request.inputs_from_state.iter().map(input).collect();
    if let Some(message) = &request.message {
        let asked = format!(" asks: {}", escape_all_invisible(message));
        let details = if arguments == " {}" { String::new() } else { arguments };
        let schema = request
            .schema()
            .map(|schema| format!("\n  answer: {}", escape_all_invisible(&schema.to_string())));
        return question
            .with(Look::STRONG, &tool)
            .and(&asked)
            .and(&details)
            .and(schema.as_deref().unwrap_or_default());
    }
    question.with(Look::STRONG, &tool).and(&arguments).and(inputs).and(&why)
}

/// A parameter that the state fills, on a line of its own.
fn input(input: &StateInput) -> String {
    let value = match &input.value {
        StateValue::Value(value) => value.to_string(),
        StateValue::Truncated { begins, bytes, sha256 } => {
            format!("{begins}... ({bytes} bytes, SHA-256 {sha256})")
        }
        StateValue::Hidden { sha256 } => format!("hidden (SHA-256 {sha256})"),
        _ => "unknown".to_owned(),
    };
    let (parameter, key) = (escape_all_invisible(&input.parameter), escape_all_invisible(&input.key));
    format!("\n  {parameter} = {}, from the state key {key}", escape_all_invisible(&value))
}
