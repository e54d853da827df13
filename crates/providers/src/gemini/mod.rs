//! Google's Gemini models, by their own generateContent API.
//!
//! In order: a [`GeminiBuilder`] is given a key and a model; a [`Gemini`] is the
//! [`ChatModel`](stepfold_state_core::chat::ChatModel). Their dialect, [`GenerateContent`], is pure functions.
//!
//! Data that the provider needs back unchanged is stored in extras of parts: `thought_signature`, and
//! `function_call_id` of calls with a server's id. Parts of unknown kinds (server-side code, for example) are
//! kept as unknown parts, and sent back unchanged.

mod content;
mod decode;
mod dialect;

pub(crate) use self::dialect::KEYS;
pub use self::dialect::{Gemini, GeminiBuilder, GenerateContent};
