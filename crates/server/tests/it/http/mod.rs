//! Agents over HTTP.

mod api;
mod limits;
mod live;
mod openapi;
mod security;
mod site;
