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
