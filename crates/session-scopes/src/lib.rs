//! State that outlives the process: scoped keys, sessions, events and the stores that keep them.
//!
//! This layer is filled by a later part of the plan; see `docs/status.md`. It never calls a model.
