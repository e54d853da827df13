//! Anthropic's models, by their own Messages API.
//!
//! In order: an [`AnthropicBuilder`] is given a key and a model; an [`Anthropic`] is the
//! [`ChatModel`](stepfold_state_core::chat::ChatModel). Their dialect, [`MessagesApi`], is pure functions.
//!
//! Data that the provider needs back unchanged is stored in extras of parts: `signature` and
//! `redacted_thinking` of reasoning, `cache_control` of cacheable parts. Blocks of unknown kinds (server-side
//! searches, for example) are kept as unknown parts, and sent back unchanged.

mod decode;
mod dialect;
mod message;

pub(crate) use self::dialect::KEYS;
pub use self::dialect::{Anthropic, AnthropicBuilder, MessagesApi};

/// Converts the parameters of a tool to the form that Anthropic's strict mode accepts. A tool whose parameters have no
/// such form is sent unchanged, without `strict`; the error says why. The schema is closed and without references, as a
/// tool's `parameters` are.
///
/// # Errors
/// Everything that the strict form cannot express.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_providers::anthropic::strict_schema;
///
/// let open = json!({"type": "object", "properties": {"q": {"type": "string"}}});
/// assert_eq!(strict_schema(&open).unwrap_err().to_string(), "any property is allowed here at $");
/// ```
pub fn strict_schema(
    schema: &serde_json::Value,
) -> Result<serde_json::Value, stepfold_state_core::state::Issues> {
    crate::strict::strict(&crate::strict::ANTHROPIC, schema)
}
