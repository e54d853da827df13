//! Agents in sessions as servers: over HTTP, and as tools of the Model Context Protocol.
//!
//! Each is a feature and a module: [`http`] serves apps to browsers and programs, with a live stream of each session;
//! [`mcp`] offers an agent as a tool of the Model Context Protocol.
//!
//! # What is absent
//!
//! Nothing is decided here that the [runner](stepfold_runner) decides.

#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "mcp")]
pub mod mcp;
#[cfg(any(feature = "http", feature = "mcp"))]
mod question;
