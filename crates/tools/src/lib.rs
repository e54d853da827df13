//! Typed tools for models, bound to shared state, run safely in parallel.
//!
//! In the facade: `stepfold::tools`. A program that depends on `stepfold` writes this path in place of
//! `stepfold_tools` in the examples.
//!
//! # The tour
//!
//! A [`Tool`] is a typed function with a name and a description. Its parameters are [extractors](Extract):
//! [`Args`] for the arguments (the JSON Schema is derived from their type), [`FromState`] for a typed read of
//! the state, [`StateWriter`] for writes, [`Resource`] for the application's resources, [`ToolContext`] for
//! the rest. Bindings connect a tool with the state instead: a parameter read from a key, a field of the
//! result written to a key.
//!
//! [`Tools`] are the tools that a model may use at one step; a [`Toolset`] supplies them. An [`Invocation`]
//! runs the calls of a reply; each has one [`CallOutcome`]; [`settle`] folds their writes into the state, in call
//! order.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//! use serde_json::{Value, json};
//! use stepfold_state_core::chat::ToolCall;
//! use stepfold_state_core::state::{Schema, State};
//! use stepfold_tools::{Args, Effect, Invocation, InvokeOptions, Resources, Tool, ToolError, Tools, settle};
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Search {
//!     /// The search query.
//!     query: String,
//!     user_context: Option<String>,
//! }
//!
//! async fn search(Args(search): Args<Search>) -> Result<Value, ToolError> {
//!     let user = search.user_context.unwrap_or_else(|| "nobody".to_owned());
//!     Ok(json!({"results": [format!("{} for {user}", search.query)]}))
//! }
//!
//! // The model sees `query`; `user_context` comes from the state only.
//! let tool = Tool::new("search", "Searches the documents.", search)
//!     .effect(Effect::Pure)
//!     .input_from_state("user_name", "user_context")
//!     .output_to_state("search_results", "results")
//!     .build()?;
//!
//! // A binding to an undeclared key is rejected here, not in production.
//! let schema = Schema::builder().key::<String>("user_name").key::<Vec<String>>("search_results").build()?;
//! tool.check(&schema, &Resources::new())?;
//!
//! let mut state = State::with_values(&schema, json!({"user_name": "Alice"}))?;
//! let calls = vec![ToolCall::new("c1", "search", json!({"query": "stalls"}))];
//! let tools = Tools::of([tool])?;
//! let options = InvokeOptions::scoped("session/invocation/step");
//! let mut done = Invocation::new(&tools, state.clone(), calls, options).finish().await;
//! settle(&mut state, &mut done.outcomes);
//!
//! assert_eq!(done.outcomes[0].result.text(), r#"{"results":["stalls for Alice"]}"#);
//! assert_eq!(state.get("search_results").unwrap(), json!(["stalls for Alice"]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # Guarantees
//!
//! - Every call has exactly one outcome, in call order, whatever the tool does: return, fail, panic, hang.
//! - The same outcomes give the same state, in whatever order the tools finished. The schema's handlers merge
//!   writes at the end of the step, so parallel tools lose no update.
//! - Arguments are validated before the function runs, and all faults are reported together. Error texts
//!   contain no values from the state.
//! - A call that reads a key that an earlier call of the reply writes runs after it; calls that replace one
//!   value keep their order; all others run concurrently, within [`CallLimits`].
//! - Calls are [announced](CallEvent::Starting) before they start, so that a record can be written first.
//!
//! # What is absent
//!
//! There is no loop and no model here, and a tool never sees a session. The loop requests approvals; this
//! crate only defines the [rule](Approval).
//!
//! # Features
//!
//! - `macros` (default): the attribute `#[tool]`.
//! - `validation`: checks arguments against their whole JSON Schema. Without it typed arguments are still
//!   checked by `serde`; those of a tool with an explicit schema are only known to be an object.
//! - `search`: a toolset with a search over hundreds of tools, and tools for recall of what is no longer shown.
#![doc = include_str!("../docs/limits.md")]

#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod __private;
mod binding;
mod context;
mod error;
mod extract;
mod function;
mod input;
mod invoke;
mod later;
mod options;
mod policy;
mod progress;
mod resources;
mod schema;
mod tool;
mod toolset;

pub use stepfold_state_core as state_core;
pub use tokio_util::sync::CancellationToken;

pub use crate::binding::{InputFromState, ResultSource, ResultText};
pub use crate::context::{
    StateWriter, ToolContext, WriteError, decode_key_part, encode_key_part, key_of_call,
};
pub use crate::error::{BuildError, ToolError, ToolsetError};
pub use crate::extract::{Args, Extract, FromState, RawArgs, Requirements, Resource, StateKey};
pub use crate::function::{IntoToolError, Parameters, ToolFunction, ToolReturn};
pub use crate::input::{AnsweredRequest, Deadline, InputRequest, InputResponse, LaterRequest};
pub use crate::invoke::{
    CallEvent, CallFailure, CallOutcome, CallOutcomes, CallStatus, FatalError, Invocation,
    MAX_BLOCKING_THREADS, panic_message, settle,
};
pub use crate::later::Later;
pub use crate::options::{CallLimits, InvokeOptions, Offload, Overflow};
pub use crate::policy::{Approval, ApprovalPredicate, Effect, Retry};
pub use crate::resources::Resources;
pub use crate::tool::{IntoTool, Tool, ToolBuilder, ToolListing};
pub use crate::toolset::recall_parts as recall;
#[cfg(feature = "search")]
pub use crate::toolset::{FOUND_TOOLS, RECALL_SEARCH, SearchableToolset, recall_tools};
pub use crate::toolset::{RECALL_READ, RefusedTool, ToolSource, Tools, Toolset};

#[cfg(feature = "macros")]
#[doc = include_str!("../docs/tool_macro.md")]
#[doc(inline)]
pub use stepfold_tools_macros::tool;
