//! Tools of servers that speak the Model Context Protocol, as a toolset.
//!
//! In the facade: `stepfold::mcp` (feature `mcp`). A program that depends on `stepfold` writes this path where the
//! examples here have `stepfold_mcp`.
//!
//! # The tour
//!
//! A [`McpServer`] is described once, by a command or a URL. Its [`toolset`](McpServer::toolset) is added to an agent like
//! any other. The server is started when the first step lists the tools; then all runs share it.
//!
//! ```
//! use std::time::Duration;
//! use stepfold_mcp::McpServer;
//! use stepfold_tools::{Approval, Effect};
//!
//! let files = McpServer::command("files", ["npx", "-y", "@modelcontextprotocol/server-filesystem", "/srv/data"])
//!     .allow(["read_*", "list_*", "write_file"])
//!     .effect_of("read_*", Effect::Pure)
//!     .effect_of("list_*", Effect::Pure)
//!     .approval_of("write_file", Approval::Always)
//!     .call_timeout(Duration::from_secs(20))
//!     .build()?;
//! let search = McpServer::http("search", "https://mcp.example.com/mcp").bearer_token("secret").build()?;
//!
//! let tools = stepfold_tools::Toolset::merged("tools", [files.toolset(), search.toolset()]);
//! // The agent has `files_read_file`, `files_write_file`, ... and what the other server offers as `search_...`.
//! assert!(!tools.is_static());
//! # Ok::<(), stepfold_mcp::McpError>(())
//! ```
//!
//! # Guarantees
//!
//! - A call whose effect is not declared runs at most once. `readOnlyHint` and `idempotentHint` are claims of the
//!   server and count only if they are [trusted](McpServerBuilder::trust_hints).
//! - A call that a server did not answer, because the server or its connection died, is
//!   [reported as unknown](stepfold_tools::ToolError::unknown) and never repeated silently.
//! - A tool whose description, schema or annotations differ from the approved ones requires approval before each
//!   call, whatever the rules say; [`McpServer::changes`] shows the difference. A tool that changes between its offer
//!   and its call is not called.
//! - The name of a tool depends only on its name at the server, is accepted by providers, and is unique.
//! - A [question](Elicitation) of a server is answered by the program while the call waits, or becomes a question of
//!   the run: stored, answered in any process, and the call continues with the answer once. (Servers before 2026-07-28
//!   push their questions: these are declined unless the program answers.)
//! - Everything is bounded: the bytes of a message, unsolicited messages, the number of tools, the time of a start and
//!   of a call. A server that exceeds a bound is terminated. A process is terminated with its whole process group.
//! - A call that is cancelled or times out is cancelled at the server as well. Progress is reported to the run.
//!
//! # What is absent
//!
//! Sampling and roots are not offered to servers, and their logs are not read.
//!
//! # Features
//!
//! - `oauth`: servers at a URL are authorized by OAuth 2.1: a user signs in once, tokens are kept and refreshed.
//! - `validation`: checks arguments and structured results against their whole JSON Schema.
#![doc = include_str!("../docs/limits.md")]

mod connection;
mod content;
mod definition;
mod error;
mod http;
mod listing;
mod meter;
mod name;
#[cfg_attr(not(feature = "oauth"), path = "no_oauth.rs")]
mod oauth;
mod offer;
mod process;
mod question;
mod remote;
mod repair;
mod schema;
mod server;

pub use crate::definition::{ApprovedTools, RefusedDefinition, ServerToolDefinition, ToolChange};
pub use crate::error::McpError;
pub use crate::listing::{ServerPrompt, ServerResource};
#[cfg(feature = "oauth")]
pub use crate::oauth::{CredentialFile, CredentialStore, OAuth, OAuthCredentials, SignIn};
pub use crate::question::{Elicitation, ElicitationAnswer, ElicitationRequest};
pub use crate::server::{McpServer, McpServerBuilder, ServerLimits};
