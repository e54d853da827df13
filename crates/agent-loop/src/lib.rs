//! The run of an agent as a machine that can be stopped, stored, resumed and replayed.
//!
//! So far there is [`trim`]: which part of a conversation a model is shown. The loop itself is filled by
//! a later part of the plan; see `docs/status.md`. This layer never stores.

pub mod trim;
