//! Rows of calls, of the requests that wait for decisions, and of decisions that clients send.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepfold_agent_loop::{ApprovalRequest, Decision};
use stepfold_session_scopes::Timestamp;
use stepfold_state_core::chat::ToolCall;

use super::convert::json;

/// A request that waits for a decision.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct RequestRow {
    /// The id that a decision names. It has a digest of what is asked, so that it is used for nothing else.
    pub(in crate::http) id: String,
    /// The call.
    pub(in crate::http) call: CallRow,
    /// The request as text for a person: all of the arguments, what the state adds, and warnings. Nothing in it is
    /// invisible.
    pub(in crate::http) text: String,
    /// Why it is asked: `rule`, `may_have_happened`, `node`, `input`, or `later` (for no person: an outcome comes).
    pub(in crate::http) reason: Value,
    /// The question of a tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) message: Option<String>,
    /// The values that the state adds to the arguments, by parameter.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(in crate::http) inputs_from_state: Value,
    /// The number of equal calls of the reply that it is about, if more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) times: Option<usize>,
    /// Warnings for the approver: field names that look like other names, characters that hide or reorder text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) warnings: Option<Vec<String>>,
    /// The difference of the tool from the one that was approved before, line by line, where its server lists it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) changed: Option<String>,
    /// Whether the call was asked about before, under another id: with other arguments or values, or as another tool.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(in crate::http) asked_again: bool,
    /// The JSON Schema that modified arguments must fit, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) schema: Option<Value>,
    /// Whether it can be approved with other arguments.
    pub(in crate::http) can_modify: bool,
    /// The token with which an outcome is delivered that comes later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) token: Option<String>,
    /// When it is decided by time (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) deadline: Option<String>,
}

/// A call of a tool.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct CallRow {
    pub(in crate::http) id: String,
    /// The tool.
    pub(in crate::http) name: String,
    /// The arguments: an object, or text if the model sent no valid one.
    pub(in crate::http) arguments: Value,
}

impl CallRow {
    pub(in crate::http) fn of(call: &ToolCall) -> Self {
        let text = call.arguments.to_text();
        let arguments = serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.into_owned()));
        CallRow { id: call.id.clone(), name: call.name.clone(), arguments }
    }
}

impl RequestRow {
    pub(in crate::http) fn of(request: &ApprovalRequest) -> Self {
        let inputs = match request.inputs_from_state.as_slice() {
            [] => Value::Null,
            inputs => json(&inputs),
        };
        RequestRow {
            id: request.id.clone(),
            call: CallRow::of(&request.call),
            text: request.to_text(),
            reason: json(&request.reason),
            message: request.message.clone(),
            inputs_from_state: inputs,
            times: (request.times > 1).then_some(request.times),
            warnings: Some(request.warnings()).filter(|warnings| !warnings.is_empty()),
            changed: request.change.clone(),
            asked_again: request.is_asked_again,
            schema: request.schema().cloned(),
            can_modify: request.can_modify(),
            token: request.token.clone(),
            deadline: request.deadline.map(|at| Timestamp::from(at).to_string()),
        }
    }
}

/// A decision about a request.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(in crate::http) enum DecisionRow {
    /// The call runs.
    Approve,
    /// The call does not run; the model reads why.
    Reject(Rejection),
    /// The call runs with other arguments.
    Modify(Modification),
}

/// Why a call does not run.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Rejection {
    /// The reason, for the model.
    #[serde(default)]
    reason: String,
}

/// With what a call runs.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Modification {
    /// The arguments, or the answer to the question of a tool.
    arguments: Value,
}

impl From<DecisionRow> for Decision {
    fn from(row: DecisionRow) -> Self {
        match row {
            DecisionRow::Approve => Decision::Approve,
            DecisionRow::Reject(Rejection { reason }) => Decision::reject(reason),
            DecisionRow::Modify(Modification { arguments }) => Decision::modify(arguments),
        }
    }
}
