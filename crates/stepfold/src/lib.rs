//! A runtime for stateful LLM agents: an agent run is a fold over committed steps.
//!
//! Each layer is re-exported under its own name; the facade itself has no logic.

#[doc(inline)]
pub use stepfold_agent_loop as agent_loop;
#[cfg(feature = "providers")]
#[doc(inline)]
pub use stepfold_providers as providers;
#[doc(inline)]
pub use stepfold_runner as runner;
#[doc(inline)]
pub use stepfold_session_scopes as session_scopes;
#[doc(inline)]
pub use stepfold_state_core as state_core;
#[doc(inline)]
pub use stepfold_tools as tools;
