//! The run of an agent as a machine that can be stopped, stored, resumed and replayed.

mod agent;
mod approval;
mod digest;
mod driver;
mod error;
mod file;
mod observe;
mod outcome;
mod ports;
mod replay;
mod run;
#[cfg(feature = "test-kit")]
pub mod test_kit;
pub mod trim;

pub use stepfold_state_core as state_core;
pub use stepfold_tools as tools;

pub use crate::agent::{
    Agent, AgentBuilder, Fingerprint, HookAction, HookContext, HookError, HookPoint, HookResult, OUTPUT_TOOL,
    Output, OutputMode, RepeatGuard, RunLimits,
};
pub use crate::approval::{ApprovalRequest, Approver, AskReason, Decision};
pub use crate::driver::{AgentTool, RunBuilder, RunStream};
pub use crate::error::{AgentError, FeedError, RunError, RunFault, StartError};
pub use crate::observe::{Observer, ObserverError, RunEvent, Traces};
pub use crate::outcome::{Outcome, OutputError};
pub use crate::ports::{Clock, Ids, RandomIds, TokioClock};
pub use crate::replay::{Difference, Divergence, Recording};
pub use crate::run::{
    Answer, Breakpoint, Event, EventKind, Exit, FORMAT_VERSION, Fate, HookReport, HookVerdict, Input,
    LoadError, Need, OutputFate, Pause, Run, StepEnd,
};
