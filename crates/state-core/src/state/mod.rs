//! State with a schema: typed keys, merge handlers, deltas, snapshots, templates.
//!
//! In order: a [`Schema`] declares the keys; a [`Key`] is a typed key name; a [`Handler`] merges writes; a
//! [`State`] holds the values, and its clone is a snapshot; a [`Delta`] is a list of writes as data; a
//! [`Diff`] lists changes; a [`Template`] inserts values into a text.
//!
#![doc = include_str!("../../docs/deep_research.md")]

mod delta;
mod diff;
mod error;
mod handler;
mod key;
mod merge;
mod schema;
#[expect(clippy::module_inception, reason = "the main type of the module has the module's name")]
mod state;
mod stored;
mod template;
mod value;

pub use self::delta::{Delta, Write};
pub use self::diff::{Diff, KeyChange, ValueChange};
pub use self::error::{HandlerError, StateError};
pub use self::handler::{Handler, Handlers};
pub use self::key::{Key, MAX_KEY_BYTES, ReadKey, SCOPE_PREFIXES, WriteKey, check_key, is_ignorable};
pub use self::schema::{KeySchema, ListAppend, MESSAGES, RESERVED_KEYS, Schema, SchemaBuilder};
pub use self::state::State;
pub use self::template::Template;
pub use self::value::{StoredValue, ValueRef};
pub use crate::faults::{Issue, Issues, NameList};
