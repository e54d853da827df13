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

pub(crate) use self::decode::usage;
pub use self::dialect::{ChatCompletions, OpenAi, OpenAiBuilder};
pub use self::preset::{Api, Auth, PRESETS, Preset, ReasoningBack};
pub use self::responses::{OpenAiResponses, OpenAiResponsesBuilder, Responses};
