//! Agents over HTTP.

mod a2a;
mod adk;
mod adversary;
mod api;
mod approvals;
mod branches;
mod clients;
mod files;
mod hostile_imports;
mod invalid;
mod laws;
mod limits;
mod live;
mod live_many;
mod mcp;
mod model;
mod openapi;
mod origins;
mod outside;
mod protocols;
mod reference;
mod security;
pub(crate) mod site;
mod steps;
mod transfer;
mod two_servers;
