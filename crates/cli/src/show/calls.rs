//! Calls that need attention: calls that wait for a decision, and calls with an unknown outcome.

use serde::Serialize;
use serde_json::{Value, json};
use stepfold::agent_loop::ApprovalRequest;
use stepfold::prelude::*;
use stepfold::state_core::chat::ToolCall;
use stepfold::state_core::escape_all_invisible;
use stepfold::terminal::stderr_form;

use super::StyledText;

/// A request for a decision, for standard error.
pub(crate) fn approval(request: &ApprovalRequest) -> StyledText {
    stepfold::terminal::approval(request, stderr_form())
}

/// A request for an approver at a prompt, with long parts folded, and the number of them.
pub(crate) fn folded_approval(request: &ApprovalRequest) -> (StyledText, usize) {
    stepfold::terminal::folded_approval(request, stderr_form())
}

/// A request for programs.
pub(crate) fn request_json(request: &ApprovalRequest) -> Value {
    let mut object = json!({
        "arguments": arguments(&request.call),
        "call": request.call.to_string(),
        "id": request.id,
        "reason": request.reason,
        "times": request.times,
        "tool": request.call.name,
    });
    if !request.inputs_from_state.is_empty() {
        object["inputs_from_state"] = json!(request.inputs_from_state);
    }
    if let Some(message) = &request.message {
        object["message"] = json!(message);
    }
    if let Some(token) = &request.token {
        object["token"] = json!(token);
    }
    if let Some(change) = &request.change {
        object["changed"] = json!(change);
    }
    if request.is_asked_again {
        object["asked_again"] = json!(true);
    }
    if let Some(schema) = request.schema() {
        object["schema"] = schema.clone();
    }
    object
}

/// The arguments of a call as JSON; as text if they are not an object.
fn arguments(call: &ToolCall) -> Value {
    match call.arguments.as_object() {
        Some(fields) => Value::Object(fields.clone()),
        None => Value::String(call.arguments.to_text().into_owned()),
    }
}

/// A call that had started, or may have, when the process was interrupted, and was not run again.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct UnknownCallNote {
    arguments: Value,
    id: String,
    tool: String,
    #[serde(skip)]
    call: ToolCall,
    #[serde(skip)]
    is_start_uncertain: bool,
}

impl UnknownCallNote {
    /// The text for a person, who has to check whether the call had its effect.
    pub(crate) fn words(&self) -> String {
        let call = self.call.to_string();
        // A node has no call id: its name is shown once.
        let call = if self.id == self.tool { escape_all_invisible(&self.id).into() } else { call };
        let call = call.trim_start_matches("> ");
        let started = if self.is_start_uncertain { "may have started" } else { "had started" };
        format!(
            "{call} {started} when the process was interrupted, and was not run again; look whether it happened"
        )
    }
}

/// The calls of a run whose outcome is unknown.
pub(crate) fn unknown_calls(outcome: &Outcome) -> Vec<UnknownCallNote> {
    let calls = outcome.unknown_calls().into_iter().map(|unknown| {
        let call = ToolCall::new(unknown.id.clone(), unknown.tool.clone(), unknown.arguments.clone());
        UnknownCallNote {
            arguments: arguments(&call),
            id: call.id.clone(),
            tool: call.name.clone(),
            call,
            is_start_uncertain: unknown.is_start_uncertain,
        }
    });
    calls.collect()
}
