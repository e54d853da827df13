//! The access to one session in the store, with the cached data of this process: reads, look-ups, the inbox and the claim.
//!
//! Used by handles and by the worker. Nothing here runs an agent.

pub(crate) mod backoff;
pub(crate) mod claims;
pub(crate) mod decision_lookup;
pub(crate) mod key_lookup;
pub(crate) mod messages;
pub(crate) mod reads;
pub(crate) mod session_access;
pub(crate) mod unfinished_run;
