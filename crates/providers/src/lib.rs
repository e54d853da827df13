//! Chat models behind the `ChatModel` port: real servers, scripted replies, recorded cassettes.
//!
//! # The tour
//!
//! [`Scripted`] is a model that says what it is told to, and checks everything that it is asked: for tests
//! and examples, without a key or a network.
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
//! A [`Cassette`] goes around a model, writes what is asked and answered into a file that a person can
//! review, and replays it without a network.
//!
//! [Layers](layer) go around any model and are models: retry, fallback, limits of rate and concurrency,
//! time-outs, traces.
//!
//! With the feature `openai`, `openai::OpenAi` is a model behind any server that speaks chat completions, and
//! `openai::OpenAiResponses` one behind the Responses API; with `anthropic`, `anthropic::Anthropic` is one of that
//! provider, and with `gemini`, `gemini::Gemini` of that one. `model("openai:gpt-4.1")` and
//! `model("http://127.0.0.1:8080/v1#name")` find either by name. Keys are [`Secret`]s, which do not print.
//!
//! # What holds
//!
//! - A stream that ends without a finish reason is an error, whatever else was said; what had come is in
//!   it. Nobody takes a short answer for a good one.
//! - Every error has a [kind](stepfold_state_core::chat::ModelErrorKind) to branch on, and names the
//!   provider, the model and the request.
//! - No model asks twice by itself, and no layer repeats a request of which something was handed on.
//! - What is asked is written once for each message: the next step costs what is new and a copy, and its body
//!   begins with the bytes of the last one, so that caches of providers hit.
//! - No key is in an error, a trace, a cassette or a `Debug` output.
//!
//! # What is absent
//!
//! There is no loop and no tool here, and no model ever sees a `State`. Bedrock, which wants each request signed, is not
//! spoken.
//!
//! # Features
//!
//! None is on by default: scripts, cassettes and layers need no network.
//!
//! - `openai`: models that speak OpenAI's chat completions or Responses.
//! - `anthropic`: Anthropic's models, by their own API.
//! - `gemini`: Google's Gemini models, by their own API.

#[cfg(feature = "anthropic")]
pub mod anthropic;
#[cfg(feature = "http")]
mod by_name;
#[cfg(feature = "http")]
mod calls;
pub mod cassette;
#[cfg(feature = "gemini")]
pub mod gemini;
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
mod raw;
#[cfg(feature = "http")]
mod reading;
pub mod scripted;
mod secret;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod strict;
#[cfg(feature = "http")]
mod wire;

#[cfg(feature = "http")]
pub use crate::by_name::{
    KEY_VARIABLE, MODEL_VARIABLE, NameError, model, model_from, model_from_env, model_with,
};
#[doc(inline)]
pub use crate::cassette::Cassette;
#[cfg(feature = "http")]
pub use crate::http::{RealRequests, forbid_real_requests};
#[doc(inline)]
#[cfg(feature = "http")]
pub use crate::model::{HttpModel, HttpModelBuilder};
#[doc(inline)]
#[cfg(feature = "http")]
pub use crate::raw::RawFields;
#[doc(inline)]
pub use crate::scripted::{Scripted, ScriptedReply};
pub use crate::secret::Secret;
