//! Agents in sessions as servers of protocols that others speak.
//!
//! Each protocol is a feature and a module: [`mcp`] offers an agent as a tool of the Model Context Protocol.
//!
//! # What is absent
//!
//! Nothing is decided here that the [runner](stepfold_runner) decides. There is no HTTP server yet.

#[cfg(feature = "mcp")]
pub mod mcp;
