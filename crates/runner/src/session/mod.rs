//! One session in this process: its queue, the cached part of its inbox, its claim, and its cached data.
//!
//! Data that handles and the worker of a session share. Nothing here uses the store.

pub(crate) mod acceptance;
pub(crate) mod busy;
pub(crate) mod cache;
pub(crate) mod claim;
pub(crate) mod command;
pub(crate) mod decision_reply;
pub(crate) mod event_hub;
pub(crate) mod inbox;
pub(crate) mod invocation;
pub(crate) mod local_session;
pub(crate) mod queue;
pub(crate) mod table;
