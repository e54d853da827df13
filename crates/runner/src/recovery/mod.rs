//! Recovery: finds sessions that no worker has, and continues them.

pub(crate) mod blocked_log;
pub(crate) mod raised;
pub(crate) mod recover;
pub(crate) mod unattended;
