//! Agents in sessions as servers: over HTTP, and as tools of the Model Context Protocol.
//!
//! Each is a feature and a module: [`http`] serves agents to browsers and programs, with a live stream of each session;
//! [`mcp`] offers an agent as a tool of the Model Context Protocol.
//!
//! # What is absent
//!
//! This crate adds no rules for runs and sessions: the [runner](stepfold_runner) has them all.
#![doc = include_str!("../docs/limits.md")]

#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "mcp")]
pub mod mcp;
#[cfg(any(feature = "http", feature = "mcp"))]
mod question;
