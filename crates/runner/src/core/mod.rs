//! The data that all sessions of a runner share: the agent, the store, the sessions in use, watchers, heartbeats, figures.

pub(crate) mod heartbeat_registry;
pub(crate) mod load;
pub(crate) mod observers;
pub(crate) mod process;
pub(crate) mod programs;
pub(crate) mod redaction;
pub(crate) mod runner_core;
pub(crate) mod shutdown;
pub(crate) mod watchers;
