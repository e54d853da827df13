//! Anthropic's models, by their own Messages API.
//!
//! In the order one meets them: an [`AnthropicBuilder`] is given a key and a model; an [`Anthropic`] is the
//! [`ChatModel`](stepfold_state_core::chat::ChatModel). Their dialect, [`Messages`], is pure functions.
//!
//! What the provider wants back untouched travels as extras of parts: `signature` and `redacted_thinking` of
//! what the model thought, `cache_control` of whatever should be cached. Blocks of kinds that we do not know
//! (searches that the server ran, say) are kept as unknown parts, and go back as they came.

mod decode;
mod dialect;
mod message;

pub use self::dialect::{Anthropic, AnthropicBuilder, Messages};

/// The form of a tool's parameters that Anthropic's strict mode takes. A tool whose parameters have none is sent as it is, without
/// `strict`; this says why. The schema is a plain one, closed and without references, as a tool's `parameters` are.
///
/// # Errors
/// Everything that the strict form cannot say.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_providers::anthropic::strict_schema;
///
/// let open = json!({"type": "object", "properties": {"q": {"type": "string"}}});
/// assert_eq!(strict_schema(&open).unwrap_err().to_string(), "$ the object may have any property");
/// ```
pub fn strict_schema(
    schema: &serde_json::Value,
) -> Result<serde_json::Value, stepfold_state_core::state::Faults> {
    crate::strict::strict(&crate::strict::ANTHROPIC, schema)
}
