//! The run itself: a machine that decides and performs nothing.
//!
//! In the order one meets them: a [`Run`] begins with an [`Input`]; [`Run::decide`] says what it
//! [needs](Need); a host does that and feeds the [`Answer`], which [`Run::feed`] turns into an [`Event`];
//! [`Run::commit`] folds the event. That is all: to pause is not to answer yet, to store is to serialise, to
//! replay is to commit the events of a record.

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
mod requests;
mod run_file;
mod shared_values;
mod step;
mod step_end;
mod step_task;
mod stored_run;
mod taken_ids;
mod unknown_calls;

pub use self::event::{Event, EventKind, FORMAT_VERSION, Fate, OutputFate, StepEnd};
pub use self::feed::{Answer, HookReport};
pub use self::input::Input;
pub use self::load_error::LoadError;
pub use self::machine::{Need, PendingHook, Run};
pub use self::recorded_outcomes::{AnsweredItem, RecordedCall, RecordedOutcome};
pub use self::shared_values::SharedValue;
pub use self::step::{ItemOutcome, WorkOutcome};
pub use self::unknown_calls::UnknownCall;

pub(crate) use self::contradiction::CallContradiction;
pub(crate) use self::step::StepItem;
pub(crate) use self::step_end::is_note;
pub(crate) use self::stored_run::check_version;
