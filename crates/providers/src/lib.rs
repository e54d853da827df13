//! Chat models behind the `ChatModel` port: real servers, scripted replies, recorded cassettes.
//!
//! This layer is filled by a later part of the plan; see `docs/status.md`. It never sees a `State`.
