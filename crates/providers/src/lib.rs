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
//! # What is absent
//!
//! There is no loop and no tool here, and no model ever sees a `State`.

#[cfg(feature = "anthropic")]
pub mod anthropic;
#[cfg(all(feature = "anthropic", feature = "openai"))]
#[doc(hidden)]
pub mod bench;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod by_name;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod calls;
pub mod cassette;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod http;
mod kind;
pub mod layer;
#[cfg(feature = "openai")]
pub mod openai;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod reading;
pub mod scripted;
mod secret;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod wire;

#[cfg(any(feature = "anthropic", feature = "openai"))]
pub use crate::by_name::{
    KEY_VARIABLE, MODEL_VARIABLE, NameError, model, model_from, model_from_env, model_with,
};
#[doc(inline)]
pub use crate::cassette::Cassette;
#[cfg(any(feature = "anthropic", feature = "openai"))]
pub use crate::http::{RealRequests, forbid_real_requests};
#[doc(inline)]
pub use crate::scripted::{Scripted, ScriptedReply};
pub use crate::secret::Secret;
