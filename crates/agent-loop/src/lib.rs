//! The run of an agent as a machine that can be stopped, stored, resumed and replayed.
//!
//! This layer is filled by a later part of the plan; see `docs/status.md`. It never stores.
