//! An agent in a session: load, run, commit each event, resume.

mod error;
mod handle;
mod history;
mod hub;
mod invocation;
mod journal;
mod ports;
mod record;
mod replay;
mod runner;
mod slot;
mod turn;

pub use stepfold_agent_loop as agent_loop;
pub use stepfold_session_scopes as session_scopes;

pub use crate::error::RunnerError;
pub use crate::handle::{Resume, SessionHandle};
pub use crate::hub::Seen;
pub use crate::invocation::{Ended, Invocation};
pub use crate::ports::{SystemClock, WallClock};
pub use crate::record::RECORD_FORMAT;
pub use crate::runner::{Busy, Runner, RunnerBuilder};
