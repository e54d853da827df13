//! Anthropic's models, by their own Messages API.
//!
//! In the order one meets them: an [`AnthropicBuilder`] is given a key and a model; an [`Anthropic`] is the
//! [`ChatModel`](stepfold_state_core::chat::ChatModel). Their dialect, [`Messages`], is pure functions.
//!
//! Data that the provider needs back unchanged is stored in extras of parts: `signature` and
//! `redacted_thinking` of reasoning, `cache_control` of cacheable parts. Blocks of unknown kinds (server-side
//! searches, for example) are kept as unknown parts, and sent back unchanged.

mod decode;
mod dialect;
mod message;

pub use self::dialect::{Anthropic, AnthropicBuilder, Messages};
