//! Requests and replies of the handlers.

use std::convert::Infallible;

use bytes::Bytes;
use restate_sdk::serde::{InputMetadata, PayloadMetadata};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepfold_agent_loop::{ApprovalRequest, Decisions, Input};

use crate::limits::MAX_REQUEST_BYTES;

/// The default name of the virtual object.
pub(crate) const OBJECT: &str = "Session";

/// Decisions about requests of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
// NOTE: the name stands in the errors of bodies that are no object.
#[serde(rename = "Decide")]
pub(crate) struct DecideRequest {
    /// The idempotency key of the run's input.
    pub(crate) run: String,
    #[serde(flatten)]
    pub(crate) decisions: Decisions,
}

/// The requests that a session waits for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PendingRequests {
    /// The idempotency key of the waiting run, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Its requests.
    pub requests: Vec<ApprovalRequest>,
}

/// A body that was received: what is wrong with it is for the handler to say, since an error here would be
/// retried for ever.
pub(crate) struct ReceivedBody<T>(pub(crate) Result<T, String>);

impl<T: DeserializeOwned> restate_sdk::serde::Deserialize for ReceivedBody<T> {
    type Error = Infallible;

    fn deserialize(bytes: &mut Bytes) -> Result<Self, Infallible> {
        Ok(ReceivedBody(match check_size(bytes.len()) {
            Ok(()) => serde_json::from_slice(bytes).map_err(|error| format!("invalid request: {error}")),
            Err(too_large) => Err(too_large),
        }))
    }
}

impl<T> PayloadMetadata for ReceivedBody<T> {
    /// `curl` without a header says that it sends a form.
    fn input_metadata() -> InputMetadata {
        InputMetadata { accept_content_type: "*/*", is_required: true }
    }
}

/// Refuses what is too large, with advice.
pub(crate) fn check_size(bytes: usize) -> Result<(), String> {
    if bytes <= MAX_REQUEST_BYTES {
        return Ok(());
    }
    Err(format!(
        "request too large: {bytes} bytes, expected at most {MAX_REQUEST_BYTES}; store large values, and send references to them"
    ))
}

/// The input of a turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TurnRequest<I = Input> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idempotency_key: Option<String>,
    pub(crate) input: I,
}

impl TurnRequest {
    /// Reads a request: an input alone, or with a key. An input is a text, or the JSON of an [`Input`].
    pub(crate) fn parse(body: Value) -> Result<Self, String> {
        let is_with_key = body.as_object().is_some_and(|body| body.contains_key("input"));
        let read = |error| format!("invalid request: {error}");
        let TurnRequest { idempotency_key, input } = match is_with_key {
            true => serde_json::from_value::<TurnRequest<Value>>(body).map_err(read)?,
            false => TurnRequest { idempotency_key: None, input: body },
        };
        let input = match input {
            Value::String(text) => Input::from(text),
            other => Input::from_json(other).map_err(|error| format!("invalid input: {error}"))?,
        };
        Ok(TurnRequest { idempotency_key, input })
    }
}
