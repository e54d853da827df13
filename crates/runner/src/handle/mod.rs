//! The operations of a session for applications: messages, decisions, edits, forks, and reads.
//!
//! Each operation reads by `access`, or gives the worker of the session a job.
//!
//! NOTE: `session_handle` and the files of its builders (`edits`, `resume`, `run_as`) use each other: a builder holds the
//! handle, and a method of the handle creates the builder.

pub(crate) mod cancel;
pub(crate) mod complete;
pub(crate) mod edits;
pub(crate) mod erase;
pub(crate) mod find_call;
pub(crate) mod model_step;
pub(crate) mod prompt_cache;
pub(crate) mod recorded_runs;
pub(crate) mod replay;
pub(crate) mod resume;
pub(crate) mod run_as;
pub(crate) mod session_handle;
pub(crate) mod state;
pub(crate) mod versions;
