//! The tasks, outputs, counts and errors of a workflow, kept in its state, for display while it runs.
//!
#![doc = include_str!("progress.md")]

mod count_map;
mod counts;
mod error;
pub mod keys;
mod node_run;
mod outputs;
mod research;
mod tasks;
mod track;
mod view;
pub mod writes;

pub use self::counts::{
    DEFAULT_MAX_EXECUTIONS, can_execute, executions, increment_execution_count, max_executions,
};
pub use self::error::ProgressError;
pub use self::keys::tracking_keys;
pub use self::node_run::NodeRun;
pub use self::outputs::node_output;
pub use self::research::{
    Mode, NodeErrorRecord, NodeOutput, OutputFormat, ResearchDepth, ResearchState, RouterDecision, Task,
    TaskStatus,
};
pub use self::tasks::{progress, update_task};
pub use self::track::{TrackError, TrackTarget, track};
pub use self::view::{Progress, TaskProgress};
