//! Agents over HTTP.

mod a2a;
mod adk;
mod api;
mod clients;
mod limits;
mod live;
mod live_many;
mod mcp;
mod openapi;
mod protocols;
mod security;
pub(crate) mod site;
mod steps;
mod two_servers;
