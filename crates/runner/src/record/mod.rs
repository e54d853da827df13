//! The record of a session as data: from the loop's events to events of the store, and back to a history.
//!
//! Nothing here waits or reads the store: functions take a session that was read.

pub(crate) mod cached_values;
pub(crate) mod conversation_start;
pub(crate) mod events;
pub(crate) mod history;
pub(crate) mod report;
pub(crate) mod run_failure;
