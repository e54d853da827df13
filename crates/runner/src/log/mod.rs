//! Stored sessions as text, as `stepfold inspect` and `stepfold compare` show them.
//!
//! [`SessionHandle::log`](crate::SessionHandle::log) reads the log of a session; a [`Comparison`](crate::Comparison) and a
//! [`Diff`](stepfold_state_core::state::Diff) of two states display themselves. [`event_lines`] and [`ActiveBranches`] are
//! for interfaces of your own. Texts of models and tools are not escaped: print them by a library that does, such as
//! `stepfold_terminal`.

mod active_branches;
pub(crate) mod compare;
mod event_lines;
mod session_log;

pub use self::active_branches::ActiveBranches;
pub use self::event_lines::{event_lines, one_line, readable_messages};
pub use self::session_log::SessionLog;
pub(crate) use self::session_log::own_values;
