//! Invoking the calls of one reply: checked, ordered where they must be, together where they can be.
//!
//! In the order one meets them: [`with_unique_call_ids`] makes sure that the calls of a reply can be told
//! apart; [`Invocation`] runs them and tells what happens; each call has one [`Outcome`]; [`settle`] folds
//! the writes of all outcomes into the state, in call order. What runs when is decided by pure functions
//! (`schedule`, `prepare`, `deliver`); only `invocation`, `running`, `attempt` and `threads` wait.

mod attempt;
mod deliver;
mod ids;
mod invocation;
mod outcome;
mod prepare;
mod redact;
mod running;
mod schedule;
mod settle;
mod threads;

pub use self::deliver::{Offload, Overflow};
pub use self::ids::with_unique_call_ids;
pub use self::invocation::{CallEvent, Invocation, InvokeOptions, Limits, key_of_call};
pub use self::outcome::{Failure, FatalError, Outcome, Outcomes, Status};
pub(crate) use self::prepare::{checked, refusal};
pub use self::settle::settle;
pub use self::threads::MAX_BLOCKING_THREADS;
