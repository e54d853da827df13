//! State that outlives the process: scoped keys, sessions, events and the stores that keep them.
//!
//! # The tour
//!
//! A [`Scope`] is told by the prefix of a key: `app:` for all users, `user:` for all sessions of one, `temp:`
//! for one invocation and never stored, none for the session. A [`SessionKey`] addresses a session, always
//! whole: app, user, id. An [`Event`] is what is committed at once: messages, a delta, what a runner records.
//! A [`SessionStore`] keeps it all: [`MemoryStore`], `SqliteStore`, `PostgresStore`, or one of your own; an
//! [`AnyStore`] is any of them. A [`Session`] is what reading gives, and [`Session::state`] makes a typed
//! state of it, under a [`SessionSchema`].
//!
//! ```
//! # futures_util::FutureExt::now_or_never(async {
//! use serde_json::json;
//! use stepfold_session_scopes::{
//!     AppendEvent, Author, CreateSession, Event, EventId, EventRange, ForkSession, GetSession, InvocationId,
//!     MemoryStore, SessionSchema, SessionStore, Timestamp,
//! };
//! use stepfold_state_core::chat::Message;
//! use stepfold_state_core::state::{Handler, Schema, Template};
//!
//! let schema = Schema::builder()
//!     .key::<u64>("app:questions").handler(Handler::sum())     // all users
//!     .key::<String>("user:name")                              // all sessions of a user
//!     .key::<Vec<String>>("documents")                         // this session
//!     .key::<String>("temp:step")                              // this invocation
//!     .build()?;
//! let schema = SessionSchema::new(schema);
//! let now = Timestamp::from_micros(1_700_000_000_000_000);    // the caller's clock: there is none here
//! let store = MemoryStore::new();
//!
//! let request = CreateSession::new("my_app", "alice", &schema, now)?.values(json!({"user:name": "Ada"}))?;
//! let session = store.create(request).await?;
//!
//! // One commit: what was said, and the writes in every scope. Handlers run on what is stored then.
//! let write = |key, value| schema.schema().write(key, value);
//! let event = Event::new(EventId::new("e1")?, InvocationId::new("i1")?, Author::new("user")?, now)
//!     .with_message(Message::user("which area has most stalls?"))
//!     .with_delta([write("app:questions", json!(1))?, write("documents", json!("map"))?].into_iter().collect());
//! store.append(AppendEvent::new(session.key.clone(), session.version, event, &schema)).await?;
//!
//! // Read it as a typed state; templates see all scopes.
//! let session = store.get(GetSession::new(session.key).events(EventRange::All)).await?;
//! let state = session.state(&schema)?;
//! let prompt = Template::parse("You help {user:name}. Found: {documents}. Question {app:questions}.");
//! assert_eq!(prompt.render(&state)?, r#"You help Ada. Found: ["map"]. Question 1."#);
//! assert_eq!(state.messages().len(), 1);
//!
//! // Try something else from the beginning, on a history that is shared.
//! let fork = store.fork(ForkSession::new(session.key, now).at_version(0)).await?;
//! assert_eq!(store.get(GetSession::new(fork.key)).await?.events.len(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap().unwrap();
//! ```
//!
//! # What holds
//!
//! | | memory | SQLite | PostgreSQL |
//! |---|---|---|---|
//! | an append is whole or not made: event, writes in three scopes, version | yes | yes | yes |
//! | acknowledged appends survive the end of the process (SIGKILL) | no | yes | yes |
//! | and a loss of power | no | yes, unless `Durability::Process` was chosen | as the server is configured |
//! | parallel `sum`, `union`, `upsert_by`, ... to `app:` and `user:` lose nothing | within the process | from any number of processes | from any number of hosts |
//! | a stale writer gets a `Conflict`; a repeated event is made once | yes | yes | yes |
//! | state and events of one `get` are of one version | yes | yes | yes |
//!
//! After an error of the kind [`Transient`](ErrorKind::Transient) an append may have been made or not. Repeat
//! it with the same event: the event's id makes it happen once.
//!
//! # Stored under one schema, opened under another
//!
//! Every value remembers the schema that it was written under. Opened under another one, a value whose type
//! has changed is looked at: it fits, or a migration registered with [`SessionSchema::migration`] converts it,
//! or it is a [`SchemaMismatch`](SessionError::SchemaMismatch) with the key and both types. A key that is no
//! longer declared stays in the store, out of sight.
//!
//! # What it costs
//!
//! An append costs what is written, whatever the number of events, sessions and keys. Lists grow by the items
//! that are added; `union`, `upsert_by` and custom handlers read the list that they look through. Reading the
//! last n events costs n. A fork copies the heads of the session's values and no event; a rewind looks at
//! every key and writes those that have changed since. Over SQLite, both read the events behind the version
//! that they go back to.
//!
//! # What is absent
//!
//! No model is called here and nothing is run: that is the runner's. There is no clock and no source of
//! random ids: times come from the caller, ids from the caller or from the store's own numbers. The one exception of each:
//! claims in PostgreSQL expire by the database's clock, and a session's life is random unless the caller gives
//! one. Nothing is encrypted at rest.
//!
//! # Features
//!
//! - `sqlite`: sessions in a SQLite file, bundled.
//! - `postgres`: sessions in PostgreSQL, without TLS so far.
//! - `contract`: the exam of any store, for tests.

mod apply;
mod changes;
#[cfg(feature = "contract")]
pub mod contract;
mod digest;
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

pub use crate::changes::{ScopeVersions, Seen};
pub use crate::digest::Digest;
pub use crate::error::{ErrorKind, SessionError};
pub use crate::event::{Actions, CommittedEvent, Event, EventKind, Record};
pub use crate::ids::{
    AppId, Author, EventId, InvocationId, LifeId, MAX_ID_BYTES, OperationId, SessionId, SessionKey, UserId,
    WorkerId,
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
    AnyStore, AppendClaim, AppendEvent, Before, Claim, ClaimSession, CreateSession, Cursor, DeleteSession,
    Deleted, DequeueInput, EnqueueInput, Enqueued, EventRange, Expected, Fault, FaultKind, FaultPlace,
    ForkSession, GetSession, InboxEntry, InboxKind, ListSessions, MAX_FAULTS, MAX_INBOX, MAX_INPUT_BYTES,
    PruneSession, Pruned, REMEMBERED_INPUTS, REMEMBERED_OPERATIONS, REMEMBERED_REMOVALS, ReadInbox, Receipt,
    ReleaseClaim, RenewClaim, Renewed, RewindSession, ScopeKey, SessionPage, SessionStore, Verified,
    VerifySessions, WriteScope,
};
pub use crate::time::Timestamp;
