//! The worker of a session: takes jobs from the queue, decides the next action, drives runs and stores their commits.
//!
//! One worker at most works in a session of this process. It holds the session's claim in the store while it runs.

pub(crate) mod answers;
pub(crate) mod claim_guard;
pub(crate) mod deadlines;
pub(crate) mod driver;
pub(crate) mod heartbeat;
pub(crate) mod journal;
pub(crate) mod next_action;
pub(crate) mod publisher;
pub(crate) mod run;
pub(crate) mod session_worker;
pub(crate) mod turns;
