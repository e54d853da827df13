//! Agents over HTTP.

mod a2a;
mod adk;
mod adversary;
mod api;
mod approvals;
mod bounds;
mod branches;
mod client_code;
mod clients;
pub(crate) mod contract;
mod files;
mod hostile_imports;
mod invalid;
mod laws;
mod limits;
mod live;
mod live_many;
mod mcp;
#[cfg(target_os = "linux")]
mod memory;
mod model;
mod openapi;
mod origins;
mod outside;
mod protocols;
mod reference;
mod replies;
mod search;
mod security;
mod shared_origins;
pub(crate) mod site;
mod spend;
mod statements;
mod steps;
mod transfer;
mod two_servers;
mod upgrade;
