//! A runtime for stateful LLM agents: an agent run is a fold over committed steps.
//!
//! Each layer is re-exported under its own name; the facade itself has no logic. In the order in which one meets
//! them: [`state_core`] has messages and typed state, [`tools`] what a model may do, [`agent_loop`] the agent
//! and its run, [`session_scopes`] where sessions are kept, [`runner`] an agent in a session, [`providers`] the
//! models. The [`prelude`] has the names that most programs use.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use stepfold::prelude::*;
//! use stepfold::providers::Scripted;
//! use stepfold::session_scopes::MemoryStore;
//!
//! /// Counts the stalls of an area.
//! #[tool(effect = "pure")]
//! async fn count(area: u64) -> Result<u64, ToolError> {
//!     Ok(area * 4)
//! }
//!
//! // Any model will do; this one says what it is told to.
//! let model = Scripted::conversation("\
//! assistant: > c1 count(area=3)
//! assistant: Area 3 has 12 stalls.
//! ")?;
//! let agent = Agent::builder(model)
//!     .instructions("You help {user:name?} with statistics.")
//!     .schema(Schema::builder().key::<String>("user:name").build()?)
//!     .tools([count_tool().build()?])
//!     .build()?;
//!
//! // Every step is stored before anything else happens: whoever opens the session later goes on from there.
//! let runner = Runner::builder(agent, MemoryStore::new()).build();
//! let session = runner.session("ada", "monday").await?;
//! let outcome = session.run("how many stalls has area 3?").await?;
//! assert_eq!(outcome.text(), "Area 3 has 12 stalls.");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```

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

/// The names that most programs use.
pub mod prelude {
    pub use stepfold_agent_loop::{
        Agent, Decision, Exit, HookAction, HookContext, Input, Outcome, Output, Pause, Run, RunEvent,
        RunLimits,
    };
    pub use stepfold_runner::{Busy, Runner, SessionHandle};
    pub use stepfold_state_core::chat::{ChatModel, Message, Transcript};
    pub use stepfold_state_core::state::{Handler, Key, Schema, State};
    #[cfg(feature = "macros")]
    pub use stepfold_tools::tool;
    pub use stepfold_tools::{
        Approval, Args, Effect, FromState, Resource, StateWriter, Tool, ToolContext, ToolError, Toolset,
        state_key,
    };
}
