//! Chat models that implement the `ChatModel` port: HTTP servers, scripted replies, recorded cassettes.
//!
//! In the facade: `stepfold::providers`. A program that depends on `stepfold` writes this path where the examples here
//! have `stepfold_providers`.
//!
//! # The tour
//!
//! [`Scripted`] is a model with scripted replies that checks its requests: for tests and examples, without a
//! key or a network.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use stepfold_providers::Scripted;
//! use stepfold_state_core::chat::{ChatModel, ChatRequest, Message, Transcript};
//!
//! let model = Scripted::new(["area 3"]);
//! let request = ChatRequest::new(Transcript::new().with(Message::user("which area has most stalls?")));
//! let reply = model.respond(request).into_reply().await?;
//! assert_eq!(reply.message.text(), "area 3");
//! # Ok::<(), stepfold_state_core::chat::ModelError>(())
//! # }).unwrap();
//! ```
//!
//! A [`Cassette`] wraps a model, records requests and replies in a file that a person can review, and replays
//! it without a network.
//!
//! [Layers](layer) wrap any model and are models themselves: retry, fallback, rate and concurrency limits,
//! timeouts, traces.
//!
//! With the feature `openai`, `openai::OpenAi` is a model of any server with chat completions, and
//! `openai::OpenAiResponses` one of the Responses API; with `anthropic`, `anthropic::Anthropic` is one of
//! that provider, and with `gemini`, `gemini::Gemini`. `model("openai:gpt-4.1")` and
//! `model("http://127.0.0.1:8080/v1#name")` find a model by name. Keys are [`Secret`]s, which do not print.
//!
//! # Guarantees
//!
//! - A stream that ends without a finish reason is an error with the partial reply, so an interrupted answer
//!   is never mistaken for a complete one.
//! - Every error has a [kind](stepfold_state_core::chat::ModelErrorKind) to branch on, and names the
//!   provider, the model and the request.
//! - No model retries on its own, and no layer repeats a request after part of its reply was passed on.
//! - Each message is serialised once: the next step costs the new messages and a copy, and its body begins
//!   with the bytes of the previous one, for the caches of providers.
//! - No key is in an error, a trace, a cassette or a `Debug` output.
//!
//! # What is absent
//!
//! Loops and tools are in other crates, and no model ever sees a `State`. Bedrock, which requires signed requests, is not
//! supported.
//!
//! # Features
//!
//! None is on by default: scripts, cassettes and layers need no network.
//!
//! - `openai`: models that speak OpenAI's chat completions or Responses.
//! - `anthropic`: Anthropic's models, by their own API.
//! - `gemini`: Google's Gemini models, by their own API.
#![doc = include_str!("../docs/limits.md")]

#[cfg(feature = "anthropic")]
pub mod anthropic;
#[cfg(feature = "http")]
mod body;
#[cfg(feature = "http")]
mod by_name;
pub mod cassette;
#[cfg(feature = "check")]
pub mod check;
#[cfg(feature = "http")]
mod conform;
#[cfg(feature = "http")]
mod dialect;
#[cfg(feature = "gemini")]
pub mod gemini;
#[cfg(feature = "genai-prices")]
mod genai_prices;
#[cfg(feature = "http")]
mod http;
pub mod layer;
#[cfg(feature = "http")]
mod model;
#[cfg(feature = "openai")]
pub mod openai;
#[cfg(all(feature = "anthropic", feature = "gemini", feature = "openai"))]
#[doc(hidden)]
pub mod probe;
#[cfg(feature = "http")]
mod reply;
#[cfg(feature = "http")]
pub mod rules;
pub mod scripted;
mod secret;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod strict;
#[cfg(feature = "http")]
mod tools;
#[cfg(feature = "http")]
mod wire;

#[cfg(feature = "http")]
pub use crate::by_name::{
    KEY_VARIABLE, MODEL_VARIABLE, NameError, model, model_from, model_from_env, model_with,
};
#[doc(inline)]
pub use crate::cassette::Cassette;
#[cfg(feature = "genai-prices")]
pub use crate::genai_prices::GenaiPrices;
#[cfg(feature = "http")]
pub use crate::http::{OfflineGuard, forbid_real_requests};
#[doc(inline)]
#[cfg(feature = "http")]
pub use crate::model::{HttpModel, HttpModelBuilder};
#[doc(inline)]
#[cfg(feature = "http")]
pub use crate::reply::RawFields;
#[cfg(feature = "http")]
pub use crate::rules::{names::NameRules, schemas::SchemaRules};
#[doc(inline)]
pub use crate::scripted::{Scripted, ScriptedReply};
pub use crate::secret::Secret;
