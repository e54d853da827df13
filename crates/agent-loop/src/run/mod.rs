//! The run itself: a machine that decides and performs nothing.
//!
//! In the order one meets them: a [`Run`] begins with an [`Input`]; [`Run::decide`] names its [need](Need); a host does
//! that and feeds the [`Answer`], which [`Run::feed`] turns into an [`Event`]; [`Run::commit`] folds the event. That is
//! all: to pause is to delay an answer, to store is to serialise, to replay is to commit the events of a record.
//!
//! # Transitions
//!
//! A run is in one phase. Each row is an answer that is taken there, with the phases that its event may lead to. A phase
//! without work, such as hooks of an agent without hooks, is passed at once.
//!
//! | phase | needs | answer | next phase |
//! |---|---|---|---|
//! | `Fresh` | `Begin` | `Begin` | `Opening` |
//! | `Opening` | `Hook` | `Hooked` | `Condensing`, `Asking`, `Working`, `Closing` |
//! | `Opening` | `Upgrade` | `Upgrade` | `Opening` |
//! | `Opening` |  | `Edit` | `Opening` |
//! | `Opening` |  | `Cancelled` | `Closing` |
//! | `Opening` |  | `TimedOut` | `Leaving` |
//! | `Condensing` | `Summary` | `Summary` | `Asking` |
//! | `Condensing` | `Upgrade` | `Upgrade` | `Condensing` |
//! | `Condensing` |  | `Edit` | `Condensing`, `Asking` |
//! | `Condensing` |  | `Cancelled` | `Closing` |
//! | `Condensing` |  | `TimedOut` | `Leaving` |
//! | `Asking` | `Hook`, `Model` | `Hooked` | `Asking`, `Closing` |
//! | `Asking` | `Upgrade` | `Upgrade` | `Asking`, `Leaving` |
//! | `Asking` |  | `Steer` | `Asking` |
//! | `Asking` |  | `TooLong` | `Condensing`, `Asking` |
//! | `Asking` |  | `Reply` | `Asking`, `Working`, `Leaving` |
//! | `Asking` |  | `Edit` | `Condensing`, `Asking` |
//! | `Asking` |  | `Cancelled` | `Closing` |
//! | `Asking` |  | `TimedOut` | `Leaving` |
//! | `Working` | `Calls`, `Nodes`, `Superstep`, `Approval`, `Interrupted`, `Hook` | `Hooked` | `Asking`, `Working`, `Leaving`, `Closing` |
//! | `Working` | `Upgrade` | `Upgrade` | `Working` |
//! | `Working` |  | `Plan` | `Working`, `Leaving` |
//! | `Working` |  | `Ask` | `Working` |
//! | `Working` |  | `Decisions` | `Asking`, `Working`, `Leaving`, `Closing` |
//! | `Working` |  | `Started` | `Working` |
//! | `Working` |  | `Inner` | `Working` |
//! | `Working` |  | `Asks` | `Working` |
//! | `Working` |  | `Outcomes` | `Asking`, `Working`, `Leaving`, `Closing` |
//! | `Working` |  | `Interrupted` | `Asking`, `Working`, `Leaving`, `Closing` |
//! | `Working` |  | `Edit` | `Working` |
//! | `Working` |  | `Cancelled` | `Closing` |
//! | `Working` |  | `TimedOut` | `Leaving`, `Closing` |
//! | `Leaving` | `Hook` | `Hooked` | `Asking`, `Closing` |
//! | `Leaving` | `Upgrade` | `Upgrade` | `Leaving` |
//! | `Leaving` |  | `Edit` | `Leaving` |
//! | `Leaving` |  | `Cancelled` | `Closing` |
//! | `Leaving` |  | `TimedOut` | `Closing` |
//! | `Closing` | `Upgrade` | `Upgrade` | `Closing` |
//! | `Closing` | `Hook` | `Hooked` | `Done` |
//! | `Done` | `Nothing` | | |
//!
//! The files of this folder are parts of one type, [`Run`], and import each other: `machine` has the type, its phases and
//! its needs, `feed` makes events of answers, `commit` folds them, and each of the others adds the methods of one subject.

mod approval_rules;
mod call_ids;
mod commit;
mod contradiction;
mod edits;
mod event;
mod feed;
mod implied_outcomes;
mod inner_runs;
mod input;
mod load_error;
mod machine;
mod name_map;
mod prompt;
mod recorded_outcomes;
mod redacted;
mod requests;
mod rescue;
mod run_file;
mod shared_values;
mod step;
mod step_end;
mod step_task;
mod stored_run;
mod taken_ids;
#[cfg(all(test, feature = "test-kit"))]
mod tests;
mod unknown_calls;
mod upgrade;

pub use self::event::{
    CallDisposition, Event, EventKind, FORMAT_VERSION, ListedTool, NEWEST_FORMAT_VERSION, OutputDisposition,
    ShownTool, StepEnd,
};
pub use self::feed::{HookReport, RunAnswer};
pub use self::input::Input;
pub use self::load_error::LoadError;
pub use self::machine::{PendingHook, Run, RunNeed};
pub use self::recorded_outcomes::{AnsweredItem, RecordedCall, RecordedOutcome};
pub use self::shared_values::SharedValue;
pub use self::step::{ItemOutcome, WorkOutcome};
pub use self::unknown_calls::UnknownCall;
pub use self::upgrade::{AgentUpgrade, TouchedWork};

pub(crate) use self::contradiction::CallContradiction;
pub(crate) use self::rescue::heaviest_parts;
pub(crate) use self::step::StepItem;
pub(crate) use self::step_end::is_note;
pub(crate) use self::stored_run::check_version;
