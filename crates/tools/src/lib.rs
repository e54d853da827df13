//! What a model may do: typed tools, bound to shared state, run safely in parallel.
//!
//! This layer is filled by a later part of the plan; see `docs/status.md`. It never sees a session.
