//! Google's Gemini models, by their own generateContent API.
//!
//! In the order one meets them: a [`GeminiBuilder`] is given a key and a model; a [`Gemini`] is the
//! [`ChatModel`](stepfold_state_core::chat::ChatModel). Their dialect, [`GenerateContent`], is pure functions.
//!
//! What the provider wants back untouched travels as extras of parts: `thought_signature`, and `function_call_id` of calls
//! to which the server gave an id. Parts of kinds that we do not know (code that the server ran, say) are kept as unknown
//! parts, and go back as they came.

mod content;
mod decode;
mod dialect;

pub(crate) use self::dialect::KEYS;
pub use self::dialect::{Gemini, GeminiBuilder, GenerateContent};
