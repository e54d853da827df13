//! State that outlives the process: scoped keys, sessions, events and the stores that keep them.

mod apply;
#[cfg(feature = "contract")]
pub mod contract;
mod error;
mod event;
mod ids;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod rows;
mod schema;
mod scope;
mod session;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod time;

pub use stepfold_state_core as state_core;

pub use crate::error::{ErrorKind, SessionError};
pub use crate::event::{Actions, CommittedEvent, Event, EventKind, Record};
pub use crate::ids::{
    AppId, Author, EventId, InvocationId, MAX_ID_BYTES, OperationId, SessionId, SessionKey, UserId,
};
pub use crate::memory::MemoryStore;
#[cfg(feature = "postgres")]
pub use crate::postgres::{PostgresOptions, PostgresStore};
pub use crate::schema::{Adopted, SessionSchema};
pub use crate::scope::{ByScope, KEY_PREFIX_APP, KEY_PREFIX_TEMP, KEY_PREFIX_USER, Scope, merged, split};
pub use crate::session::{Held, Parent, Rewound, Session, Values, Visible};
#[cfg(feature = "sqlite")]
pub use crate::sqlite::{Durability, SqliteOptions, SqliteStore};
pub use crate::store::{
    AnyStore, AppendEvent, Before, CreateSession, Cursor, DeleteSession, Deleted, EventRange, Expected,
    ForkSession, GetSession, ListSessions, PruneSession, Pruned, REMEMBERED_OPERATIONS, Receipt,
    RewindSession, ScopeKey, SessionPage, SessionStore, WriteScope,
};
pub use crate::time::Timestamp;
