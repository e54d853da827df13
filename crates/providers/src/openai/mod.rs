//! Models that speak OpenAI's chat completions: OpenAI itself, and nearly everybody else.
//!
//! In the order one meets them: a [`Preset`] says, as data, where a server is and what it does differently;
//! an [`OpenAiBuilder`] adds a key and a model; an [`OpenAi`] is the [`ChatModel`](stepfold_state_core::chat::ChatModel).
//!
//! Requests and answers are ours: `message` and `request` write the one, `chunk` and `decode` read the
//! other, all pure functions. `transport` is the fence around the library that sends them.

mod chunk;
mod decode;
mod message;
mod model;
mod preset;
mod request;
mod transport;

pub use self::model::{OpenAi, OpenAiBuilder};
#[cfg(feature = "anthropic")]
pub(crate) use self::model::{body_writer, read};
pub use self::preset::{Auth, PRESETS, Preset};
