//! The run itself: a machine that decides and performs nothing.
//!
//! In the order one meets them: a [`Run`] begins with an [`Input`]; [`Run::decide`] says what it
//! [needs](Need); a host does that and feeds the [`Answer`], which [`Run::feed`] turns into an [`Event`];
//! [`Run::commit`] folds the event. That is all: to pause is not to answer yet, to store is to serialise, to
//! replay is to commit the events of a record.

mod asking;
mod by_name;
mod call_ids;
mod children;
mod close;
mod commit;
mod edited;
mod event;
mod feed;
mod file;
mod given;
mod input;
mod machine;
mod prompt;
mod recorded;
mod requests;
mod shared;
mod stored;
mod taken_ids;
mod task;
mod unknown;
mod work;
mod would;

pub use self::event::{Event, EventKind, FORMAT_VERSION, Fate, OutputFate, StepEnd};
pub use self::feed::{Answer, HookReport};
pub use self::input::Input;
pub use self::machine::{Need, PendingHook, Run};
pub use self::recorded::{AnsweredItem, RecordedCall, RecordedOutcome};
pub use self::shared::SharedValue;
pub use self::stored::LoadError;
pub use self::unknown::UnknownCall;
pub use self::work::{ItemOutcome, WorkOutcome};

pub(crate) use self::close::is_note;
pub(crate) use self::stored::check_version;
pub(crate) use self::work::Item;
pub(crate) use self::would::Contradiction;
