//! A runtime for stateful LLM agents: an agent run is a fold over committed steps.
//!
//! # The tour
//!
//! An [`Agent`](prelude::Agent) is a model, tools, instructions and the [schema](prelude::Schema) of a state. A
//! [`Runner`](prelude::Runner) runs it in sessions: each step is stored before the next one begins, so
//! that a process may die at any moment and another one continues the run.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use stepfold::prelude::*;
//! use stepfold::providers::Scripted;
//! use stepfold::session_scopes::MemoryStore;
//!
//! /// Counts the stalls of an area.
//! #[tool(effect(Effect::Pure))]
//! async fn count(area: u64) -> Result<u64, ToolError> {
//!     Ok(area * 4)
//! }
//!
//! // Any model works; this one returns scripted replies.
//! let model = Scripted::conversation("\
//! assistant: > c1 count(area=3)
//! assistant: Area 3 has 12 stalls.
//! ")?;
//! let agent = Agent::builder(model)
//!     .instructions("You help {user:name?} with statistics.")
//!     .schema(Schema::builder().key::<String>("user:name").build()?)
//!     .tool(count_tool())
//!     .build()?;
//!
//! // Every step is stored before the next one begins: any process that opens the session later continues from there.
//! let runner = Runner::builder(agent, MemoryStore::new()).build();
//! let session = runner.session("ada", "monday").await?;
//! let outcome = session.run("how many stalls has area 3?").await?;
//! assert_eq!(outcome.text(), "Area 3 has 12 stalls.");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # Ten types
//!
//! These types are listed in the order in which a program uses them; all are in the [`prelude`].
//!
//! | type | what it is |
//! |---|---|
//! | [`Agent`](prelude::Agent) | a model, tools, instructions, limits and the schema of a state |
//! | [`Tool`](prelude::Tool) | a function that a model may call; `#[tool]` makes a tool from a function |
//! | [`Schema`](prelude::Schema) | the keys of the state, with their types and [merge handlers](prelude::Handler) (reducers) |
//! | [`StateWriter`](prelude::StateWriter) | the writes of a tool |
//! | [`Runner`](prelude::Runner) | an agent on a store of sessions (a checkpointer) |
//! | [`SessionHandle`](prelude::SessionHandle) | one session (a thread): `run`, `send`, `resume`, `pending`, `fork`, `rewind` |
//! | [`Outcome`](prelude::Outcome) | the result of a run: the answer, the state, the transcript |
//! | [`Exit`](prelude::Exit) | why a run ended or paused |
//! | [`Decision`](prelude::Decision) | the answer to an [approval request](prelude::ApprovalRequest) (an interrupt) |
//! | [`Graph`](prelude::Graph) | a workflow of functions, agents and graphs |
//!
//! # Layers
//!
//! Each layer is re-exported under its own name; the [`guide`] shows their use:
//!
//! | layer | what it is |
//! |---|---|
//! | [`state_core`] | messages, transcripts, state with a schema, the port of models |
//! | [`tools`] | typed tools for models, bound to state |
//! | [`trim`] | trimming of long conversations |
//! | [`session_scopes`] | sessions, scopes, events, the stores |
//! | [`providers`] | models: real servers, scripted replies, cassettes, layers |
//! | [`agent_loop`] | the run of an agent, as a state machine that can be stopped and resumed |
//! | [`graph`] | workflows of functions, agents and graphs over one state |
//! | [`runner`] | an agent in a session |
//! | `mcp` | tools of servers that speak the Model Context Protocol (feature `mcp`) |
//! | `server` | agents over HTTP, and as servers of the Model Context Protocol (feature `server`) |
//! | `restate` | sessions as virtual objects of Restate (feature `restate`) |
//! | `otel` | spans to an OpenTelemetry collector (feature `otel`) |
//! | `terminal` | runs shown at a terminal (feature `terminal`) |
//! | `eval` | agents evaluated by stored sessions (feature `eval`) |
//! | `exam` | for tests: exams of stores and hosts (feature `contract`), and the simulator of runs (feature `test-kit`) |
//!
//! # Features
//!
//! The default features need neither a network nor a server.
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `macros` | yes | the attribute `#[tool]` |
//! | `preserve_order` | yes | objects keep the order of their properties, which reaches the model |
//! | `providers` | yes | scripted models, cassettes, layers around any model |
//! | `search` | yes | a toolset that offers a search over hundreds of tools |
//! | `sqlite` | yes | sessions in a SQLite file |
//! | `validation` | yes | values and arguments are checked against their whole JSON Schema |
//! | `openai` | | models that speak OpenAI's chat completions, at any address |
//! | `anthropic` | | Anthropic's models |
//! | `gemini` | | Google's Gemini models |
//! | `genai-prices` | | prices of models by pydantic's table, for budgets in dollars |
//! | `postgres` | | sessions in PostgreSQL |
//! | `mcp` | | tools of servers that speak the Model Context Protocol |
//! | `oauth` | | MCP servers at a URL are authorized by OAuth: a user signs in once |
//! | `server` | | agents over HTTP, and as servers of the Model Context Protocol |
//! | `restate` | | sessions as virtual objects of Restate, for many machines |
//! | `otel` | | spans go to a collector of OpenTelemetry, by OTLP over HTTP |
//! | `terminal` | | runs are shown at a terminal: answers, calls, state changes, approvals |
//! | `eval` | | agents are evaluated by stored sessions, without the world |
//! | `contract` | | the exams of session stores and of hosts, for tests |
//! | `test-kit` | | a scripted model and the simulator of runs, for tests |
//!
//! # What is absent
//!
//! The facade has no logic. Spans go to the program's `tracing` subscriber, unless the program installs the exporter of
//! the feature `otel`.
#![doc = include_str!("../docs/limits.md")]

#[doc(inline)]
pub use stepfold_agent_loop as agent_loop;
#[cfg(feature = "eval")]
#[doc(inline)]
pub use stepfold_eval as eval;
#[cfg(any(feature = "contract", feature = "test-kit"))]
#[doc(inline)]
pub use stepfold_exam as exam;
#[doc(inline)]
pub use stepfold_graph as graph;
#[cfg(feature = "mcp")]
#[doc(inline)]
pub use stepfold_mcp as mcp;
#[cfg(feature = "otel")]
#[doc(inline)]
pub use stepfold_otel as otel;
#[cfg(feature = "providers")]
#[doc(inline)]
pub use stepfold_providers as providers;
#[cfg(feature = "restate")]
#[doc(inline)]
pub use stepfold_restate as restate;
#[doc(inline)]
pub use stepfold_runner as runner;
#[cfg(feature = "server")]
#[doc(inline)]
pub use stepfold_server as server;
#[doc(inline)]
pub use stepfold_session_scopes as session_scopes;
#[doc(inline)]
pub use stepfold_state_core as state_core;
#[cfg(feature = "terminal")]
#[doc(inline)]
pub use stepfold_terminal as terminal;
#[doc(inline)]
pub use stepfold_tools as tools;
#[doc(inline)]
pub use stepfold_trim as trim;

/// Names that most programs use.
pub mod prelude {
    pub use stepfold_agent_loop::{
        Agent, ApprovalRequest, Decision, Decisions, Exit, HookAction, HookContext, Input, Outcome, Output,
        Pause, Run, RunEvent, RunLimits,
    };
    pub use stepfold_graph::Graph;
    pub use stepfold_runner::{Runner, SessionHandle, WhenBusy};
    pub use stepfold_state_core::chat::{ChatModel, Message, Transcript};
    pub use stepfold_state_core::state::{Handler, Key, Schema, State};
    #[cfg(feature = "macros")]
    pub use stepfold_tools::tool;
    pub use stepfold_tools::{
        Approval, Args, Effect, FromState, Resource, ResultSource, StateWriter, Tool, ToolContext, ToolError,
        Toolset, state_key,
    };
}

/// A page for each task.
///
/// Tests compile and run all code in these pages.
#[cfg(all(any(doc, doctest), feature = "macros", feature = "providers", feature = "sqlite"))]
pub mod guide {
    #[doc = include_str!("../guide/state.md")]
    pub mod state {}
    #[doc = include_str!("../guide/tools.md")]
    pub mod tools {}
    #[doc = include_str!("../guide/loop.md")]
    pub mod the_loop {}
    #[doc = include_str!("../guide/streaming.md")]
    pub mod streaming {}
    #[doc = include_str!("../guide/structured_output.md")]
    pub mod structured_output {}
    #[doc = include_str!("../guide/graphs.md")]
    pub mod graphs {}
    #[doc = include_str!("../guide/sessions.md")]
    pub mod sessions {}
    #[doc = include_str!("../guide/providers.md")]
    pub mod providers {}
    #[doc = include_str!("../guide/trimming.md")]
    pub mod trimming {}

    #[doc = include_str!("../guide/upgrades.md")]
    pub mod upgrades {}
    #[doc = include_str!("../guide/approval.md")]
    pub mod approval {}
    #[doc = include_str!("../guide/errors.md")]
    pub mod errors {}
    #[doc = include_str!("../guide/testing.md")]
    pub mod testing {}
    #[cfg(feature = "eval")]
    #[doc = include_str!("../guide/evaluation.md")]
    pub mod evaluation {}
    #[doc = include_str!("../guide/durability.md")]
    pub mod durability {}
    #[doc = include_str!("../guide/claims.md")]
    pub mod claims {}
    #[doc = include_str!("../guide/budgets.md")]
    pub mod budgets {}

    #[doc = include_str!("../guide/personal_data.md")]
    pub mod personal_data {}
    #[doc = include_str!("../guide/deploying.md")]
    pub mod deploying {}
    #[doc = include_str!("../guide/many_machines.md")]
    pub mod many_machines {}
    #[cfg(feature = "server")]
    #[doc = include_str!("../guide/server.md")]
    pub mod server {}
    #[cfg(feature = "server")]
    #[doc = include_str!("../guide/clients_python.md")]
    pub mod clients_python {}
    #[cfg(feature = "server")]
    #[doc = include_str!("../guide/clients_typescript.md")]
    pub mod clients_typescript {}
    #[cfg(feature = "server")]
    #[doc = include_str!("../guide/studio.md")]
    pub mod studio {}
    #[cfg(feature = "mcp")]
    #[doc = include_str!("../guide/mcp.md")]
    pub mod mcp {}
    #[cfg(feature = "otel")]
    #[doc = include_str!("../guide/traces.md")]
    pub mod traces {}
    #[doc = include_str!("../guide/writing_a_store.md")]
    pub mod writing_a_store {}
    #[doc = include_str!("../guide/writing_a_provider.md")]
    pub mod writing_a_provider {}
    #[doc = include_str!("../guide/coming_from_langgraph.md")]
    pub mod coming_from_langgraph {}
    #[doc = include_str!("../guide/coming_from_pydantic_ai.md")]
    pub mod coming_from_pydantic_ai {}
}

/// The code of the repository's own pages.
#[cfg(all(doctest, feature = "macros", feature = "providers", feature = "sqlite"))]
mod pages {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[doc = include_str!("../../../CONTRIBUTING.md")]
    mod contributing {}
}
