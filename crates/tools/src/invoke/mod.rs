//! Invokes the calls of one reply: validated, ordered by dependencies, otherwise concurrent.
//!
//! In order: [`Invocation`] runs the calls and reports events; each call has one [`CallOutcome`]; [`settle`]
//! folds the writes of all outcomes into the state, in call order. Scheduling is decided by pure functions
//! (`schedule`, `prepare`, `deliver`); only `invocation`, `running`, `attempt` and `threads` wait.

mod attempt;
mod call_futures;
mod deliver;
mod invocation;
mod outcome;
mod prepare;
mod redact;
mod running;
mod schedule;
mod settle;
mod threads;

pub use self::invocation::{CallEvent, Invocation};
pub use self::outcome::{CallFailure, CallOutcome, CallOutcomes, CallStatus, FatalError};
pub use self::settle::settle;
pub use self::threads::{MAX_BLOCKING_THREADS, panic_message};
