//! An agent in a session: load, run, commit each event, resume.
//!
//! This layer is filled by a later part of the plan; see `docs/status.md`. It is the only place where the
//! loop and sessions meet.
