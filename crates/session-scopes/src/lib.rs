//! State that outlives the process: scoped keys, sessions, events and the stores that keep them.
//!
//! In the facade: `stepfold::session_scopes`. A program that depends on `stepfold` writes this path where the examples
//! here have `stepfold_session_scopes`.
//!
//! # The tour
//!
//! A [`Scope`] is determined by the prefix of a key: `app:` for all users, `user:` for all sessions of one,
//! `temp:` for one invocation and never stored, no prefix for the session. A [`SessionKey`] addresses a
//! session completely: app, user, id. An [`Event`] is one atomic commit: messages, a delta, a runner's
//! record. A [`SessionStore`] stores everything: [`MemoryStore`], `SqliteStore`, `PostgresStore`, or a custom
//! one; an [`AnyStore`] is any of them. Reading returns a [`Session`], and [`Session::state`] converts it to
//! a typed state, with a [`SessionSchema`].
//!
//! ```
//! # futures_util::FutureExt::now_or_never(async {
//! use serde_json::json;
//! use stepfold_session_scopes::{
//!     AppendEvent, Author, CreateSession, Event, EventId, EventRange, ForkSession, GetSession, InvocationId,
//!     ListForks, MemoryStore, SessionSchema, SessionStore, Timestamp,
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
//! let now = Timestamp::from_micros(1_700_000_000_000_000);    // the caller's clock: this crate has none
//! let store = MemoryStore::new();
//!
//! let request = CreateSession::new("my_app", "alice", &schema, now)?.values(json!({"user:name": "Ada"}))?;
//! let session = store.create(request).await?;
//!
//! // One commit: messages, and writes in every scope. Handlers run on the stored values.
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
//! // Look back: the session at any version.
//! let before = store.get(GetSession::new(session.key.clone()).at_version(0)).await?;
//! assert!(before.get("documents").is_none() && before.events.is_empty());
//!
//! // Try something else from the beginning, on a history that is shared.
//! let fork = store.fork(ForkSession::new(session.key.clone(), now).at_version(0)).await?;
//! assert_eq!(store.forks(ListForks::new(session.key)).await?[0].id, fork.key.id);
//! assert_eq!(store.get(GetSession::new(fork.key)).await?.events.len(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap().unwrap();
//! ```
//!
//! # Claims and inboxes
//!
//! A [`Claim`] keeps a session (thread) for one worker at a time. It has an owner, an expiry and a *fencing
//! token*; an append with an outdated token is rejected, in the transaction of the append, so a worker that
//! was suspended for too long commits nothing. A worker takes its claim with the first event of a turn, holds
//! it with each event in between and releases it with the last: [`AppendClaim`]. [`SessionStore::renew`] is
//! the heartbeat of a worker without commits. Appends without a claim are possible too: then only the
//! expected version is checked.
//!
//! The inbox of a session is an ordered, stored list of inputs for its worker: messages, steering,
//! cancellation requests. Any process can enqueue; the holder of the claim takes entries in the same
//! transaction as the event with their content. So an accepted input is neither lost nor taken twice.
//!
//! ```
//! # futures_util::FutureExt::now_or_never(async {
//! use std::time::Duration;
//! use serde_json::json;
//! use stepfold_session_scopes::{
//!     AppendClaim, AppendEvent, Author, ClaimSession, CreateSession, EnqueueInput, Event, EventId, InboxKind,
//!     InvocationId, MemoryStore, IdempotencyKey, ReadInbox, SessionError, SessionSchema, SessionStore, TakeOver,
//!     Timestamp, WorkerId,
//! };
//! use stepfold_state_core::chat::Message;
//!
//! let (store, schema) = (MemoryStore::new(), SessionSchema::new(Default::default()));
//! let now = Timestamp::from_micros(1_700_000_000_000_000);
//! let key = store.create(CreateSession::new("my_app", "alice", &schema, now)?).await?.key;
//!
//! // A web server accepts a message. A repeated request gets the same position.
//! let id = IdempotencyKey::new("request-1")?;
//! let body = json!("which area has most stalls?");
//! let input = EnqueueInput::new(key.clone(), InboxKind::Message, id, body, now);
//! let accepted = store.enqueue(input.clone()).await?;
//! assert!(store.enqueue(input).await?.is_repeat);
//! assert_eq!(accepted.claim, None); // no worker holds a claim
//!
//! // A worker takes the session and the message, in one commit.
//! let (owner, duration) = (WorkerId::new("worker-1")?, Duration::from_secs(30));
//! let entry = store.inbox(ReadInbox::new(key.clone())).await?.remove(0);
//! let event = |id: &str| Ok::<_, SessionError>(Event::new(EventId::new(id)?, InvocationId::new("i1")?, Author::new("user")?, now));
//! let message = event("e1")?.with_message(Message::user(entry.body.as_str().unwrap_or_default()));
//! let append = AppendEvent::new(key.clone(), 0, message, &schema)
//!     .with_claim(AppendClaim::Take { owner, duration, take_over: TakeOver::Never })
//!     .taking([entry.position]);
//! let receipt = store.append(append).await?;
//! let claim = receipt.claim.unwrap();
//! assert_eq!(receipt.inbox, 0); // nothing waits
//!
//! // It is suspended for a minute. Another worker takes over; the first one commits nothing any more.
//! let later = now.after(Duration::from_secs(60));
//! store.claim(ClaimSession::new(key.clone(), WorkerId::new("worker-2")?, duration, later)).await?;
//! let stale = AppendEvent::new(key, 1, event("e2")?, &schema)
//!     .with_claim(AppendClaim::Hold { token: claim.token, duration });
//! assert!(matches!(store.append(stale).await, Err(SessionError::ClaimLost { .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap().unwrap();
//! ```
//!
//! A store without claims returns [`SessionError::Unsupported`], the default of these methods.
//!
//! # Guarantees
//!
//! | | memory | SQLite | PostgreSQL |
//! |---|---|---|---|
//! | an append is atomic: event, writes in three scopes, version | yes | yes | yes |
//! | acknowledged appends survive the end of the process (SIGKILL) | no | yes | yes |
//! | and a loss of power | no | yes, unless `Durability::Process` was chosen | as the server is configured |
//! | parallel `sum`, `union`, `upsert_by`, ... to `app:` and `user:` lose nothing | within the process | from any number of processes | from any number of hosts |
//! | a stale writer gets a `Conflict`; a repeated event is made once | yes | yes | yes |
//! | state and events of one `get` are of one version | yes | yes | yes |
//! | one worker holds a claim; one that lost it commits nothing | within the process | from any number of processes | from any number of hosts |
//! | claims expire by | the time of each request | the time of each request | the server's clock |
//! | an accepted input is stored until it is taken, and taken once | within the process | yes | yes |
//!
//! After an error of the kind [`Transient`](ErrorKind::Transient) an append may have been made or not. Repeat
//! it with the same event: the event's id makes it happen once.
//!
//! # Schema changes
//!
//! Every value keeps the schema that it was written with. If the type of its key has changed, the value
//! either matches the new type, or a migration registered with [`SessionSchema::migration`] converts it, or reading
//! fails with a [`SchemaMismatch`](SessionError::SchemaMismatch) that has the key and both types. The value of an
//! undeclared key stays in the store, invisible.
//!
//! # Costs
//!
//! The cost of an append depends on the size of its writes, not on the number of events, sessions and keys. Lists
//! grow by the added items; `union`, `upsert_by` and custom handlers read the whole list. Reading the last n
//! events costs n. A fork copies the heads of the session's values and no events; a rewind examines every key
//! and writes those that have changed since. In SQLite both operations, and reads of an
//! [earlier version](GetSession::at_version), search a key's past values: the cost is logarithmic in their number. Events hidden
//! by a rewind cost nothing if [only visible events](GetSession::visible) are read.
//!
//! Holding a claim costs an append nothing until half of its duration has passed. Taking, renewing and
//! releasing one writes the session's row. In PostgreSQL an append without writes is one round trip, even if
//! it holds or releases a claim; one that takes or renews a claim, takes entries of the inbox, or has writes
//! is three. An inbox has at most [`MAX_INBOX`] entries; the idempotency keys of the last
//! [`REMEMBERED_INPUTS`] taken ones are kept.
//!
//! # What is absent
//!
//! This crate calls no model and runs nothing: that is the runner's task. It has no clock and no source of
//! random ids: times come from the caller, ids from the caller or from the store's own numbers. There is one
//! exception each: claims in PostgreSQL expire by the database's clock, and a session's life is random unless
//! the caller sets it. Content is encrypted at rest with a [`KeyRing`] only, over SQLite and PostgreSQL.
//!
//! # Features
//!
//! - `sqlite`: sessions in a SQLite file, bundled.
//! - `postgres`: sessions in PostgreSQL, without TLS so far.
#![doc = include_str!("../docs/limits.md")]

mod apply;
mod changes;
mod digest;
mod error;
mod event;
mod ids;
mod keys;
mod memory;
mod memory_size;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod rows;
mod schema;
mod scope;
mod search;
mod session;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod time;

pub use stepfold_state_core as state_core;

pub use crate::changes::SeenVersions;
pub use crate::digest::{ContentSalt, Digest};
pub use crate::error::{ErrorKind, SessionError};
pub use crate::event::{Actions, CommittedEvent, Erasure, Event, EventKind, Metadata, RunRecord};
pub use crate::ids::{
    AppId, Author, BudgetId, ErasureId, EventId, IdempotencyKey, InvocationId, Label, LifeId, MAX_ID_BYTES,
    ReservationId, SessionId, SessionKey, UserId, WorkerId, bounded_id,
};
pub use crate::keys::{DataKey, KeyOwner, KeyRing, KeyRingError, KeyRingFuture, MemoryKeyRing, RandomBytes};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use crate::keys::{KeyFile, WrappingKey};
pub use crate::memory::MemoryStore;
#[cfg(feature = "postgres")]
pub use crate::postgres::{PostgresOptions, PostgresStore};
pub use crate::schema::{Adopted, SessionSchema};
pub use crate::scope::{
    ByScope, KEY_PREFIX_APP, KEY_PREFIX_TEMP, KEY_PREFIX_USER, Scope, ScopeVersions, merged, split,
};
pub use crate::session::{
    AppendedItems, ForkOrigin, RewindMark, ScopeValues, Session, TypedValue, VisibleVersions,
};
#[cfg(feature = "sqlite")]
pub use crate::sqlite::{Durability, SqliteOptions, SqliteStore};
pub use crate::store::{
    AnyStore, AppendClaim, AppendEvent, AppendReservation, BudgetAmount, BudgetBalance, BudgetRaise, Claim,
    ClaimSession, CreateSession, DeleteSession, Deleted, DequeueInput, ERASED_USER, EnqueueInput, Enqueued,
    EraseData, EraseKind, EraseTarget, ErasedData, ErasedEvent, ErasureRecord, EventRange, EventSizes,
    Expected, FaultPlace, FindEvent, FindTagged, ForkInfo, ForkSession, ForkedEvent, FoundMessage,
    GetSession, InboxEntry, InboxKind, LabelVersion, ListErasures, ListForks, ListRaises, ListSessions,
    ListSpend, ListUnattended, ListUsers, MAX_BUDGET_AMOUNT, MAX_ERASURE_REASON, MAX_FAULTS,
    MAX_FOUND_MESSAGES, MAX_INBOX, MAX_INPUT_BYTES, MAX_LABELS, MAX_SEARCHED_SESSIONS, MAX_WINDOW_PARTS,
    NoticeSource, OutlineSessions, PruneBound, PruneSession, Pruned, REMEMBERED_INPUTS, REMEMBERED_KEYS,
    REMEMBERED_REMOVALS, RaiseBudgets, ReadBudgets, ReadInbox, ReadLabels, Receipt, ReleaseClaim, RenewClaim,
    RenewClaims, Renewed, ReservationEnd, ReserveSpend, RewindSession, ScanSessions, ScannedPage,
    ScannedSession, ScopeKey, SearchSessions, SessionCursor, SessionOutline, SessionPage, SessionStore,
    SettleOpen, SettleSpend, SpendAmounts, SpendRecord, SpendState, StateSize, StoreConnections, StoreFault,
    StoreFaultKind, StoreNotice, StoreNotices, TakeOver, Unattended, VacuumStore, Verified, VerifySessions,
    WatchStore, WriteScope,
};
pub use crate::time::Timestamp;
