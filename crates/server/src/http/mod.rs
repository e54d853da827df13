//! Agents over HTTP: an API of their sessions, with a live stream of each.
//!
//! A [`Server`] has one [`App`] for each runner, and authenticates all requests. Everything that the API does is stored
//! before it is answered, or answered from what is stored: a client that is gone cancels nothing, and any other process
//! over the same store serves the same sessions.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use stepfold_agent_loop::Agent;
//! use stepfold_agent_loop::test_kit::Script;
//! use stepfold_runner::Runner;
//! use stepfold_server::http::{Principal, Role, Server, Token, Tokens};
//! use stepfold_session_scopes::MemoryStore;
//!
//! # let model = Script::parse("assistant: area 3")?;
//! let agent = Agent::builder(model).name("stalls").build()?;
//! let runner = Runner::builder(agent, MemoryStore::new()).build();
//! let token = Token::random()?;
//! let tokens = Tokens::new().with(&token, Principal::new("ada", Role::Act)?);
//! let server = Server::builder().app(runner).auth(tokens).build()?;
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! println!("http://{}/#token={}", listener.local_addr()?, token.secret());
//! let serving = tokio::spawn(server.serve(listener));
//! // curl -H "Authorization: Bearer TOKEN" http://127.0.0.1:PORT/api/v1/apps
//! # serving.abort();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! With the feature `mcp`, clients of the Model Context Protocol find the apps at `/mcp/{app}` (see [`mcp`](crate::mcp)).
//!
//! [`Server::router`] embeds it into a program of one's own. [`Server::openapi`] is the document of the API.
//!
//! # Guarantees
//!
//! - A request cannot see other users' sessions, whatever it says: users come from the [`Principal`], never from a
//!   path or a body.
//! - A live stream that is resumed with `Last-Event-ID` has each commit once, in order: after a restart, from another
//!   process, and after a gap that was too long to be kept in memory. Unfinished text is not stored; where some is lost,
//!   the event `reset` says so.
//! - Memory is bounded for each reader, however slow it is, and for each session: see [`Limits`].
//!
//! # What is absent
//!
//! There is no TLS: a reverse proxy has it. Files of messages are in the request, and are not uploaded apart from it.

mod app;
#[cfg(feature = "eval")]
mod experiments;
mod guard;
mod loading;
#[cfg(feature = "mcp")]
mod mcp_services;
mod metrics;
mod operation;
mod pages;
mod phase;
mod protocol;
mod routes;
mod rows;
mod server;
mod state;
mod streams;

pub use self::app::App;
#[cfg(feature = "eval")]
pub use self::experiments::{
    CandidateChange, Candidates, ErasedCase, ErasedCopies, ErasureError, ExperimentFolder,
};
pub use self::guard::access::Access;
pub use self::guard::auth::{
    AuthError, Authenticate, Credentials, Principal, Role, Token, Tokens, TokensError,
};
pub use self::guard::limits::Limits;
pub use self::metrics::{Metrics, RunMetrics};
pub use self::pages::adk_web::BundleError;
pub use self::server::{Server, ServerBuilder, ServerError};
