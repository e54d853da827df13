//! Models of OpenAI's chat completions (OpenAI itself, and most other servers) or its Responses API.
//!
//! In order: a [`Preset`] defines, as data, a server's address and deviations; an [`OpenAiBuilder`] adds a
//! key and a model; an [`OpenAi`] is the [`ChatModel`](stepfold_state_core::chat::ChatModel). Their dialect,
//! [`ChatCompletions`], consists of pure functions: `dialect` and `message` write requests in the shapes of
//! async-openai's types, `chunk` and `decode` read replies, which servers send in more shapes than those.

mod chunk;
mod decode;
mod dialect;
mod message;
mod preset;
mod responses;

pub use self::dialect::{ChatCompletions, OpenAi, OpenAiBuilder};
pub use self::preset::{KeyHeader, OpenAiApi, PRESETS, Preset, ReasoningBack};
pub use self::responses::{OpenAiResponses, OpenAiResponsesBuilder, ResponsesApi};

/// Converts the parameters of a tool to the form that OpenAI's strict mode accepts. A tool whose parameters have no such
/// form is sent unchanged, without `strict`; the error says why. The schema is closed and without references, as a tool's
/// `parameters` are.
///
/// # Errors
/// Everything that the strict form cannot express.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_providers::openai::strict_schema;
///
/// let open = json!({"type": "object", "properties": {"q": {"type": "string"}}});
/// assert_eq!(strict_schema(&open).unwrap_err().to_string(), "any property is allowed here at $");
/// ```
pub fn strict_schema(
    schema: &serde_json::Value,
) -> Result<serde_json::Value, stepfold_state_core::state::Issues> {
    crate::strict::strict(&crate::strict::OPENAI, schema)
}
