//! Questions of a call to a person while it runs (human in the loop, elicitation), and the answers.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

/// A question of a call to the user: see [`ToolContext::ask`](crate::ToolContext::ask).
///
/// The run stores it, and the answer may arrive in another process. It is answered once.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_tools::InputRequest;
///
/// let seat = InputRequest::new("seat", "Window or aisle?")
///     .details(json!({"flight": "LX 318"}))
///     .schema(json!({"type": "object", "properties": {"seat": {"enum": ["window", "aisle"]}}, "required": ["seat"]}))
///     .state(json!({"held": "12A"}));
/// assert_eq!(seat.label, "seat");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct InputRequest {
    /// The name of the question among those of the call.
    pub label: String,
    /// The question, for the user.
    pub message: String,
    /// Further information for the user, a JSON object.
    pub details: Value,
    /// The JSON Schema of the answer. Without one, the answer is any object; with the schema `false`, the user only
    /// accepts or declines.
    pub schema: Option<Value>,
    /// Data that the call needs when it continues. Stored with the question and never shown.
    pub state: Option<Value>,
    /// Present if the request is not for a person but for [an outcome that comes later](crate::ToolContext::later).
    pub later: Option<LaterRequest>,
}

impl InputRequest {
    /// Creates a question with a name among those of the call.
    pub fn new(label: impl Into<String>, message: impl Into<String>) -> Self {
        InputRequest {
            label: label.into(),
            message: message.into(),
            details: json!({}),
            schema: None,
            state: None,
            later: None,
        }
    }

    /// Sets further information for the user: a JSON object.
    #[must_use]
    pub fn details(mut self, details: impl Into<Value>) -> Self {
        self.details = details.into();
        self
    }

    /// Sets the JSON Schema of the answer. An answer that does not fit is refused, and the question stays open.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<Value>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Sets the data that the call needs when it continues.
    #[must_use]
    pub fn state(mut self, state: impl Into<Value>) -> Self {
        self.state = Some(state.into());
        self
    }

    /// Whether both ask the user the same, so that an answer to one answers the other.
    pub(crate) fn is_same(&self, other: &InputRequest) -> bool {
        let identity = |request: &InputRequest| {
            (request.label.clone(), request.message.clone(), request.details.clone(), request.schema.clone())
        };
        // NOTE: A later outcome is found by its label alone, in `Later::response`.
        identity(self) == identity(other) && self.later.is_none() && other.later.is_none()
    }
}

/// The token and the deadline of a request for an [outcome that comes later](crate::ToolContext::later), from outside
/// the run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaterRequest {
    /// The token under which the outcome is delivered: different for every call.
    pub token: String,
    /// The end of waiting for it; by default there is none.
    pub deadline: Option<Deadline>,
}

/// The end of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Deadline {
    /// A point in time.
    At(SystemTime),
    /// This long after the request is stored, by the clock of the run.
    Within(Duration),
}

impl LaterRequest {
    /// A request under a token.
    pub fn new(token: impl Into<String>, deadline: Option<Deadline>) -> Self {
        LaterRequest { token: token.into(), deadline }
    }
}

impl Deadline {
    /// The point in time, for a request made now. `None` if it is out of range.
    pub fn resolve(self, now: SystemTime) -> Option<SystemTime> {
        match self {
            Deadline::At(at) => Some(at),
            Deadline::Within(duration) => now.checked_add(duration),
        }
    }
}

/// The answer to an [`InputRequest`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum InputResponse {
    /// The user agrees, with an object that fits the schema.
    Accept(Value),
    /// The user does not want to answer.
    Decline {
        /// The reason. May be empty.
        reason: String,
    },
    /// The [outcome](crate::ToolContext::later) has come: any value.
    Completed(Value),
    /// The deadline has passed before an outcome came.
    Expired,
}

/// A question of a call that was answered.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AnsweredRequest {
    /// The question, with its [state](InputRequest::state).
    pub request: InputRequest,
    /// The answer.
    pub response: InputResponse,
}

impl AnsweredRequest {
    /// A question and its answer.
    pub const fn new(request: InputRequest, response: InputResponse) -> Self {
        AnsweredRequest { request, response }
    }
}
