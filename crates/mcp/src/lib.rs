//! Tools of servers that speak the Model Context Protocol, as a toolset.
//!
//! In the facade: `stepfold::mcp` (feature `mcp`). A program that depends on `stepfold` writes this path where the examples here have
//! `stepfold_mcp`.
//!
//! # The tour
//!
//! A [`Server`] is described once: a program, or a URL. Its [`toolset`](Server::toolset) goes to an agent like any other.
//! Nothing is started before the first step asks for the tools; then all runs share the one server.
//!
//! ```
//! use std::time::Duration;
//! use stepfold_mcp::Server;
//! use stepfold_tools::{Approval, Effect};
//!
//! let files = Server::command("files", ["npx", "-y", "@modelcontextprotocol/server-filesystem", "/srv/data"])
//!     .allow(["read_*", "list_*", "write_file"])
//!     .effect_of("read_*", Effect::Pure)
//!     .effect_of("list_*", Effect::Pure)
//!     .approval_of("write_file", Approval::Always)
//!     .call_timeout(Duration::from_secs(20))
//!     .build()?;
//! let search = Server::http("search", "https://mcp.example.com/mcp").bearer_token("secret").build()?;
//!
//! let tools = stepfold_tools::Toolset::merged("tools", [files.toolset(), search.toolset()]);
//! // The agent has `files_read_file`, `files_write_file`, ... and what the other server offers as `search_...`.
//! assert!(!tools.is_static());
//! # Ok::<(), stepfold_mcp::McpError>(())
//! ```
//!
//! # What holds
//!
//! - A call whose effect is not declared runs at most once. `readOnlyHint` and `idempotentHint` are claims of the server and
//!   count only where the user [trusts them](ServerBuilder::trust_hints).
//! - A call that a server did not answer, because it died or its connection did, is
//!   [told as unknown](stepfold_tools::ToolError::unknown) and never repeated in silence.
//! - A tool whose description, schema or annotations are not as they were approved is asked about before each call, whatever
//!   the rules say; [`Server::changes`] shows the difference. One that changes between its offer and its call is not called.
//! - The name of a tool depends on the server's own name of it alone, is one that providers accept, and is no other tool's.
//! - A [question](Question) of a server is answered by the program while the call waits, or becomes one of the run: stored,
//!   answered in any process, and the call goes on with it once. (Servers before 2026-07-28 push their questions: these
//!   are declined unless the program answers.)
//! - Everything is bounded: the bytes of a message, what is sent unasked, the number of tools, the time of a start and of a
//!   call. A server that breaks a bound is ended. A program is ended with its whole process group.
//! - A call that is cancelled, or whose time is out, is cancelled at the server as well. Progress is reported to the run.
//!
//! # What is absent
//!
//! Servers get no model to sample from and no folders ("roots"), and their logs are not read.
//!
//! # Features
//!
//! - `oauth`: servers at a URL are authorized by OAuth 2.1: a user signs in once, tokens are kept and refreshed.
//! - `validation`: checks arguments and structured results against their whole JSON Schema.

mod connection;
mod content;
mod definition;
mod error;
mod http;
mod listing;
mod name;
#[cfg_attr(not(feature = "oauth"), path = "no_oauth.rs")]
mod oauth;
mod offer;
mod process;
mod question;
mod server;

pub use crate::definition::{Approved, Change, Definition};
pub use crate::error::McpError;
pub use crate::listing::{Prompt, Resource};
#[cfg(feature = "oauth")]
pub use crate::oauth::{CredentialFile, CredentialStore, Credentials, OAuth, SignIn};
pub use crate::offer::Refused;
pub use crate::question::{Answer, Question, Wants};
pub use crate::server::{Server, ServerBuilder, ServerLimits};
