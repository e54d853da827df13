//! The run itself: a machine that decides and performs nothing.
//!
//! In the order one meets them: a [`Run`] begins with an [`Input`]; [`Run::decide`] says what it
//! [needs](Need); a host does that and feeds the [`Answer`], which [`Run::feed`] turns into an [`Event`];
//! [`Run::commit`] folds the event. That is all: to pause is not to answer yet, to store is to serialise, to
//! replay is to commit the events of a record.

mod batch;
mod call_ids;
mod commit;
mod decide;
mod event;
mod exit;
mod feed;
mod input;
mod machine;
mod prompt;
mod rest;
mod shared;
mod stored;
mod unknown;
mod walk;
mod would;

pub use self::event::{Event, EventKind, FORMAT_VERSION, Fate, HookVerdict, OutputFate, StepEnd};
pub use self::exit::{Breakpoint, Exit, Pause};
pub use self::feed::{Answer, HookReport};
pub use self::input::Input;
pub use self::machine::{Need, PendingHook, Run};
pub use self::shared::SharedValue;
pub use self::stored::LoadError;
pub use self::unknown::UnknownCall;
pub use self::walk::{NodeOutcome, NodeStatus, OpenBranch};

pub(crate) use self::decide::{Asker, Parameters};
pub(crate) use self::shared::shared_keys;
pub(crate) use self::stored::check_version;
pub(crate) use self::walk::{Branch, takes_failures, track};
pub(crate) use self::would::Contradiction;
