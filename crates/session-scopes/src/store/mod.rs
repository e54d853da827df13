//! The port of session stores: requests, responses, and the type-erased form.

mod branches;
mod budgets;
mod claims;
mod erased;
mod erasure;
mod find;
mod inbox;
mod lists;
mod notices;
mod origin;
mod outlines;
mod past;
mod requests;
mod scan;
mod search;
mod verify;

use std::future::Future;

pub use self::branches::{ForkInfo, LabelVersion, ListForks, MAX_LABELS, ReadLabels};
pub use self::budgets::{
    AppendReservation, BudgetAmount, BudgetBalance, BudgetRaise, ListRaises, ListSpend, MAX_BUDGET_AMOUNT,
    MAX_WINDOW_PARTS, RaiseBudgets, ReadBudgets, ReservationEnd, ReserveSpend, SettleOpen, SettleSpend,
    SpendAmounts, SpendRecord, SpendState,
};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::claims::WorkRequest;
pub use self::claims::{AppendClaim, ClaimSession, ReleaseClaim, RenewClaim, RenewClaims, Renewed, TakeOver};
pub(crate) use self::claims::{ClaimFence, free_since};
pub use self::erased::AnyStore;
pub(crate) use self::erasure::check_user;
pub use self::erasure::{
    ERASED_USER, EraseData, EraseKind, EraseTarget, ErasedData, ErasureRecord, ListErasures,
    MAX_ERASURE_REASON, VacuumStore,
};
pub use self::inbox::{
    DequeueInput, EnqueueInput, Enqueued, InboxEntry, InboxKind, MAX_INBOX, MAX_INPUT_BYTES,
    REMEMBERED_INPUTS, ReadInbox,
};
pub(crate) use self::inbox::{InputDigest, PreparedInput};
pub use self::lists::{ListUnattended, ListUsers, Unattended};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::notices::NoticeSubscribers;
pub use self::notices::{NoticeSource, StoreNotice, StoreNotices, WatchStore};
pub(crate) use self::origin::WriteOrigin;
pub use self::outlines::{OutlineSessions, SessionOutline};
pub use self::requests::{
    AppendEvent, CreateSession, DeleteSession, Deleted, EventRange, EventSizes, Expected, FindEvent,
    FindTagged, ForkSession, ForkedEvent, GetSession, ListSessions, PruneBound, PruneSession, Pruned,
    REMEMBERED_KEYS, REMEMBERED_REMOVALS, Receipt, RewindSession, ScopeKey, SessionCursor, SessionPage,
    StateSize, WriteScope,
};
pub(crate) use self::requests::{RetentionBound, first_events, page_of};
pub use self::scan::{ScanSessions, ScannedPage, ScannedSession};
pub use self::search::{FoundMessage, MAX_FOUND_MESSAGES, MAX_SEARCHED_SESSIONS, SearchSessions};
pub use self::verify::{
    ErasedEvent, FaultPlace, MAX_FAULTS, StoreFault, StoreFaultKind, Verified, VerifySessions,
};
use crate::error::SessionError;
use crate::ids::{Label, UserId};
pub use crate::session::Claim;
use crate::session::{ScopeValues, Session};

/// The connections of a store to its database: see [`SessionStore::connections`]. A store begins with the default, all
/// zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreConnections {
    /// The most that may be open.
    pub limit: usize,
    /// The open connections, idle ones included.
    pub open: usize,
    /// The connections in use by operations.
    pub used: usize,
    /// Operations that wait for one.
    pub waiting: usize,
}

/// Stores sessions.
///
/// Implemented by stores: [`MemoryStore`](crate::MemoryStore) and those for databases here, others elsewhere;
/// `stepfold-exam` has the test suite that each of them passes. Called by the runner, and by applications that
/// show, fork or delete sessions. A method can be written as an `async fn`. Use [`AnyStore`] to hold stores
/// of several types.
///
/// Guarantees of every store:
///
/// - An operation is made whole or not at all, and is durable when it returns (as durable as the store is).
/// - Merge handlers run inside the transaction, on the current values. So `sum`, `union`, `upsert_by` and all
///   others lose no update, however many writers there are.
/// - A session is reached by its whole key only.
/// - The future of an operation may be dropped: the operation is made whole or not at all also then.
#[doc(alias("checkpointer", "saver", "memory", "persistence"))]
pub trait SessionStore: Send + Sync + 'static {
    /// Creates a session and returns it with its merged values. The given values go to their scopes; those of
    /// `app:` and `user:` through their handlers.
    ///
    /// # Errors
    /// [`SessionError::InvalidId`] for the user [`ERASED_USER`]; [`SessionError::AlreadyExists`], and nothing was changed; [`SessionError::State`] when a value does
    /// not fit; the errors of [`append`](SessionStore::append) and [`rewind`](SessionStore::rewind) for its events.
    fn create(&self, request: CreateSession) -> impl Future<Output = Result<Session, SessionError>> + Send;

    /// Reads a session: the requested state and events, of one version.
    ///
    /// Values of `app:` and `user:` are always the current ones.
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::NoSuchVersion`] if the requested version does not exist.
    fn get(&self, request: GetSession) -> impl Future<Output = Result<Session, SessionError>> + Send;

    /// Sessions of a user at a glance, in the requested order: each with its newest events, those from its beginning, and the
    /// number of its forks. `None` for one that does not exist, or whose events do not fit into the
    /// [limit](OutlineSessions::max_bytes): it can be read by itself. A database answers in one request, however many
    /// sessions these are; by default each is read by itself.
    ///
    /// # Errors
    /// When the store fails, and when a session is damaged.
    fn outlines(
        &self,
        request: OutlineSessions,
    ) -> impl Future<Output = Result<Vec<Option<SessionOutline>>, SessionError>> + Send {
        outlines::outlines(self, request)
    }

    /// The version of a session's own event with this id, whether or not a rewind has hidden it; `None` if there is none.
    /// Events that a fork inherited are not found. The cost does not depend on the number of events (or as that of an
    /// index does). By default the events are read, the newest first.
    ///
    /// # Errors
    /// [`SessionError::NotFound`].
    fn find_event(
        &self,
        request: FindEvent,
    ) -> impl Future<Output = Result<Option<u64>, SessionError>> + Send {
        find::find_event(self, request)
    }

    /// Of each of the tags, the version of the newest event of the session's history that has it and that no rewind has
    /// hidden: events that a fork inherited are found as its own are. The cost does not depend on the number of events
    /// without these tags (or as that of an index does). By default the events are read, the newest first.
    ///
    /// # Errors
    /// [`SessionError::NotFound`].
    fn find_tagged(
        &self,
        request: FindTagged,
    ) -> impl Future<Output = Result<Vec<Option<u64>>, SessionError>> + Send {
        find::find_tagged(self, request)
    }

    /// The messages that have words of a query, best first: users' messages, replies and results, in one session or in all
    /// of a user. Of an event that is part of the session's history and visible: what a rewind has hidden, retention or an
    /// erasure has deleted, or the origin of a fork has got since, is not found.
    ///
    /// A query is words and has no syntax; a message with any of them is found, those with rare ones first (BM25).
    /// [`search_words`](stepfold_state_core::search_words) defines the words, so that all stores find the same. A store may
    /// keep an index, which it builds when a session is searched: then the cost of further searches depends neither on
    /// other sessions nor, much, on the length of this one. By default all events are read. Of the sessions of a user, those
    /// that are damaged are left out, with a warning.
    ///
    /// # Errors
    /// [`SessionError::NotFound`] for a session that does not exist, and when the named one is damaged.
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use stepfold_session_scopes::{
    ///     AppendEvent, Author, CreateSession, Event, EventId, InvocationId, MemoryStore, SearchSessions, SessionSchema,
    ///     SessionStore, Timestamp,
    /// };
    /// use stepfold_state_core::chat::Message;
    ///
    /// let (store, schema, at) = (MemoryStore::new(), SessionSchema::new(Default::default()), Timestamp::from_micros(0));
    /// let key = store.create(CreateSession::new("my_app", "alice", &schema, at)?).await?.key;
    /// let event = Event::new(EventId::new("e1")?, InvocationId::new("i1")?, Author::new("user")?, at)
    ///     .with_message(Message::user("The fee of the bakery is 5 euro."));
    /// store.append(AppendEvent::new(key.clone(), 0, event, &schema)).await?;
    ///
    /// let found = store.search(SearchSessions::in_session(key, "what are the fees of bakeries?")).await?;
    /// assert_eq!((found[0].version, found[0].place), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    fn search(
        &self,
        request: SearchSessions,
    ) -> impl Future<Output = Result<Vec<FoundMessage>, SessionError>> + Send {
        crate::search::scan_all(self, request)
    }

    /// The sizes of events in bytes as they are stored, each with its version, in order: for readers that bound what they
    /// load at once. Events hidden by a rewind are included. A store that compresses them returns their uncompressed sizes.
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::Unsupported`] by a store that does not know them.
    fn event_sizes(
        &self,
        request: EventSizes,
    ) -> impl Future<Output = Result<Vec<(u64, u64)>, SessionError>> + Send {
        let _ = request;
        async { Err(unsupported("sizes of events")) }
    }

    /// The size in memory of the values of a session once they are read, about, its shared ones included: for readers that
    /// bound what they load at once.
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::Unsupported`] by a store that does not know it.
    fn state_size(&self, request: StateSize) -> impl Future<Output = Result<u64, SessionError>> + Send {
        let _ = request;
        async { Err(unsupported("sizes of values")) }
    }

    /// Lists sessions of a user, the one that was written last first.
    ///
    /// # Errors
    /// [`SessionError::InvalidCursor`].
    fn list(&self, request: ListSessions) -> impl Future<Output = Result<SessionPage, SessionError>> + Send;

    /// Scans the sessions of an app, of all users: for retention and for operators. Each session that exists from the first
    /// page to the last is in one of them, and in two if it was written in between. The order is that of the ids of users.
    /// The cost does not depend on the number of events. By default, the sessions of each [user](SessionStore::users) are
    /// [listed](SessionStore::list), so a page may have fewer sessions than requested.
    ///
    /// # Errors
    /// [`SessionError::InvalidCursor`]; [`SessionError::Unsupported`] by a store that does not list users.
    fn scan(&self, request: ScanSessions) -> impl Future<Output = Result<ScannedPage, SessionError>> + Send {
        scan::scan(self, request)
    }

    /// Deletes a session, and the values of its user if requested. Forks are unaffected.
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::Claimed`] while a worker holds its claim, unless taken
    /// over; [`SessionError::Conflict`] and [`SessionError::InUse`] for one that is deleted [if
    /// unused](DeleteSession::if_unused_at).
    fn delete(&self, request: DeleteSession) -> impl Future<Output = Result<Deleted, SessionError>> + Send;

    /// Commits an event: the event, its writes in all scopes and the version, all of it or nothing.
    ///
    /// An event that exists is not committed again: the first receipt is returned. This is checked first,
    /// then the claim, then the version.
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::Claimed`] and [`SessionError::ClaimLost`], depending on
    /// the claim in the request; [`SessionError::Conflict`] when the session is not at the expected version;
    /// [`SessionError::NotWaiting`] when an inbox entry to be taken does not exist;
    /// [`SessionError::EventReused`]; [`SessionError::State`] when a write fails;
    /// [`SessionError::SchemaMismatch`] when the session was stored with an incompatible schema.
    fn append(&self, request: AppendEvent) -> impl Future<Output = Result<Receipt, SessionError>> + Send;

    /// Makes a session that begins with the history of another up to a version, and returns it without
    /// values and events. The history is shared, not copied. A first event of its own is committed with it, or there is
    /// no fork.
    ///
    /// # Errors
    /// [`SessionError::NotFound`], [`SessionError::AlreadyExists`], [`SessionError::NoSuchVersion`].
    fn fork(&self, request: ForkSession) -> impl Future<Output = Result<Session, SessionError>> + Send;

    /// Rewinds the session's own state to a version, by an appended event. Nothing is deleted; `app:` and
    /// `user:` are unchanged.
    ///
    /// # Errors
    /// As [`append`](SessionStore::append), and [`SessionError::NoSuchVersion`].
    fn rewind(&self, request: RewindSession) -> impl Future<Output = Result<Receipt, SessionError>> + Send;

    /// The values of a shared scope. A scope without writes is empty.
    ///
    /// # Errors
    /// When the store fails.
    fn read_scope(&self, scope: ScopeKey) -> impl Future<Output = Result<ScopeValues, SessionError>> + Send;

    /// Writes to a scope without a session, and returns its values.
    ///
    /// # Errors
    /// [`SessionError::WrongScope`] for a key of another scope; [`SessionError::State`];
    /// [`SessionError::SchemaMismatch`]; [`SessionError::IdempotencyKeyReused`].
    fn write_scope(
        &self,
        request: WriteScope,
    ) -> impl Future<Output = Result<ScopeValues, SessionError>> + Send;

    /// Deletes old events of a session and keeps its state.
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::NoSuchVersion`] for a version that is not there yet;
    /// [`SessionError::Conflict`] for a session that has [changed](PruneSession::if_unchanged_at), and
    /// [`SessionError::Claimed`] for one that a worker has claimed since.
    fn prune(&self, request: PruneSession) -> impl Future<Output = Result<Pruned, SessionError>> + Send;

    /// Verifies the stored data: every digest, every checksum, and completeness. Reads verify what they read;
    /// this verifies everything, and lists each fault.
    ///
    /// # Errors
    /// [`SessionError::Unsupported`] where the store keeps no digests; [`SessionError::NotFound`] for one session that
    /// is not there; when the store cannot be read at all.
    fn verify(&self, request: VerifySessions) -> impl Future<Output = Result<Verified, SessionError>> + Send {
        drop(request);
        async { Err(SessionError::Unsupported { what: "verification of sessions" }) }
    }

    /// The existing forks of a session, in the order of their creation; without the forks of these.
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::Unsupported`] by a store that does not list them.
    fn forks(&self, request: ListForks) -> impl Future<Output = Result<Vec<ForkInfo>, SessionError>> + Send {
        let _ = request;
        async { Err(unsupported("lists of forks")) }
    }

    /// Sets or removes a label of a session's version; returns the version that it labelled before. A label
    /// belongs to the session and not to its history: a fork begins without labels, a rewind keeps all, and
    /// retention deletes those of deleted versions.
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::NoSuchVersion`]; [`SessionError::TooManyLabels`] beyond
    /// [`MAX_LABELS`]; [`SessionError::Unsupported`] by a store without labels.
    fn set_label(
        &self,
        request: LabelVersion,
    ) -> impl Future<Output = Result<Option<u64>, SessionError>> + Send {
        let _ = request;
        async { Err(unsupported(LABELS)) }
    }

    /// The labels of a session with the versions that they name, in the order of these.
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::Unsupported`] by a store without labels.
    fn labels(
        &self,
        request: ReadLabels,
    ) -> impl Future<Output = Result<Vec<(Label, u64)>, SessionError>> + Send {
        let _ = request;
        async { Err(unsupported(LABELS)) }
    }

    /// Lists the users of an app that have sessions, in the order of their ids.
    ///
    /// # Errors
    /// [`SessionError::Unsupported`] by a store that does not list them.
    fn users(&self, request: ListUsers) -> impl Future<Output = Result<Vec<UserId>, SessionError>> + Send {
        let _ = request;
        async { Err(unsupported("lists of users")) }
    }

    /// Lists the sessions of an app in which work is left and no worker is, the longest waiting first. The cost does
    /// not depend on the other sessions.
    ///
    /// # Errors
    /// [`SessionError::InvalidCursor`]; [`SessionError::Unsupported`] by a store without claims.
    fn unattended(
        &self,
        request: ListUnattended,
    ) -> impl Future<Output = Result<Vec<Unattended>, SessionError>> + Send {
        let _ = request;
        async { Err(unsupported(CLAIMS)) }
    }

    /// Notices of commits, and of sessions that were created or deleted, whichever process makes them: hints to look, for
    /// those who follow sessions or recover runs. A
    /// store may notify late, in vain, or not at all; a listener also polls, slowly.
    ///
    /// # Errors
    /// [`SessionError::Unsupported`] by a store that does not notify.
    fn notices(
        &self,
        request: WatchStore,
    ) -> impl Future<Output = Result<StoreNotices, SessionError>> + Send {
        let _ = request;
        async { Err(unsupported("notices of commits")) }
    }

    /// Claims a session for a worker. A worker that already holds the claim gets a new one, with another
    /// token.
    ///
    /// A store without claims keeps the default of this method and the next six. Its receipts have no claim;
    /// a runner then works without takeover, and its inbox does not outlive it.
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::Claimed`] while another worker holds an unexpired claim,
    /// unless taken over; [`SessionError::Unsupported`].
    fn claim(&self, request: ClaimSession) -> impl Future<Output = Result<Claim, SessionError>> + Send {
        let _ = request;
        async { Err(unsupported(CLAIMS)) }
    }

    /// Renews a claim. It may have expired, unless another worker has taken over.
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::ClaimLost`]; [`SessionError::Unsupported`].
    fn renew(&self, request: RenewClaim) -> impl Future<Output = Result<Renewed, SessionError>> + Send {
        let _ = request;
        async { Err(unsupported(CLAIMS)) }
    }

    /// Renews claims of a worker at once, and returns the result of each, in order. Each claim stands alone: one that is
    /// lost, whose stored row is damaged, or whose row another transaction has locked, neither fails nor delays the others;
    /// the last gets an error of the kind [`Transient`](crate::ErrorKind::Transient) immediately, and its worker
    /// [renews](SessionStore::renew) it separately. A store with transactions needs one for all; by default each is renewed
    /// by itself.
    ///
    /// # Errors
    /// When the store fails, and nothing is known of any claim; [`SessionError::Unsupported`].
    fn renew_all(
        &self,
        request: RenewClaims,
    ) -> impl Future<Output = Result<Vec<Result<Renewed, SessionError>>, SessionError>> + Send {
        async move {
            let mut renewed = Vec::new();
            for request in request.each() {
                match self.renew(request).await {
                    Err(error @ SessionError::Unsupported { .. }) => return Err(error),
                    result => renewed.push(result),
                }
            }
            Ok(renewed)
        }
    }

    /// Releases a claim. A lost claim or a deleted session is not an error.
    ///
    /// # Errors
    /// [`SessionError::Unsupported`], and when the store fails.
    fn release(&self, request: ReleaseClaim) -> impl Future<Output = Result<(), SessionError>> + Send {
        let _ = request;
        async { Err(unsupported(CLAIMS)) }
    }

    /// Accepts an entry for the inbox of a session: after the return, the entry is stored until it is taken,
    /// by an append or a [`dequeue`](SessionStore::dequeue). Entries enqueued later come after it.
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::IdempotencyKeyReused`] for an idempotency key that was used
    /// with other content; [`SessionError::InboxFull`]; [`SessionError::TooLarge`],
    /// [`SessionError::TooDeep`]; [`SessionError::Unsupported`].
    fn enqueue(&self, request: EnqueueInput) -> impl Future<Output = Result<Enqueued, SessionError>> + Send {
        let _ = request;
        async { Err(unsupported(INBOXES)) }
    }

    /// The entries that wait in the inbox of a session, in order. Positions and bodies that are not requested may be
    /// omitted.
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::Unsupported`].
    fn inbox(
        &self,
        request: ReadInbox,
    ) -> impl Future<Output = Result<Vec<InboxEntry>, SessionError>> + Send {
        let _ = request;
        async { Err(unsupported(INBOXES)) }
    }

    /// Removes entries from the inbox of a session without an event, and returns the positions of those that
    /// waited.
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::ClaimLost`] if a token is given that is not current;
    /// [`SessionError::Unsupported`].
    fn dequeue(&self, request: DequeueInput) -> impl Future<Output = Result<Vec<u64>, SessionError>> + Send {
        let _ = request;
        async { Err(unsupported(INBOXES)) }
    }

    /// Reserves amounts in budgets for a request to a model: in all of them, or in none. A budget takes an amount only while
    /// `settled + reserved + amount <= limit`, decided in the statement that adds it, so that any number of workers together
    /// never reserve more. Returns the sums of the budgets. A request with a known id reserves nothing.
    ///
    /// A store without budgets keeps the default of this method and the next five; a runner with budgets refuses it.
    ///
    /// # Errors
    /// [`SessionError::BudgetExhausted`], and nothing was changed; [`SessionError::NotFound`] without the session, so that an
    /// erased user does not come back in the list of spend; [`SessionError::ClaimLost`] if the token is not that of the session's
    /// claim, since no other worker would settle the reservation; [`SessionError::Unsupported`].
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use stepfold_session_scopes::{
    ///     BudgetAmount, BudgetId, CreateSession, MemoryStore, ReservationEnd, ReservationId, ReserveSpend, SessionError,
    ///     SessionSchema, SessionStore, SettleSpend, SpendAmounts, Timestamp,
    /// };
    ///
    /// let (store, schema, at) = (MemoryStore::new(), SessionSchema::new(Default::default()), Timestamp::from_micros(0));
    /// let key = store.create(CreateSession::new("my_app", "ada", &schema, at)?).await?.key;
    /// let budget = BudgetId::new("tokens of ada")?;
    /// let reserve = |id: &str| {
    ///     let estimate = SpendAmounts::new(500, 100, None);
    ///     let request = ReserveSpend::new(ReservationId::new(id)?, key.clone(), "gpt-5.4", estimate, at);
    ///     Ok::<_, SessionError>(request.with([BudgetAmount::new(budget.clone(), 600, 1_000)]))
    /// };
    /// assert_eq!(store.reserve(reserve("r1")?).await?[0].reserved, 600);
    /// // A second request at the same time does not fit, although nothing is settled.
    /// let refused = store.reserve(reserve("r2")?).await;
    /// assert!(matches!(refused, Err(SessionError::BudgetExhausted { settled: 0, reserved: 600, .. })));
    ///
    /// let actual = SpendAmounts::new(300, 80, None);
    /// let end = ReservationEnd::Actual { amounts: vec![(budget.clone(), 380)], model: None, actual };
    /// assert!(store.settle(SettleSpend::new(ReservationId::new("r1")?, end)).await?);
    /// assert_eq!(store.reserve(reserve("r2")?).await?[0].settled, 380);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    fn reserve(
        &self,
        request: ReserveSpend,
    ) -> impl Future<Output = Result<Vec<BudgetBalance>, SessionError>> + Send {
        drop(request);
        async { Err(unsupported(BUDGETS)) }
    }

    /// Whether an append also makes [its reservation](AppendEvent::reserving). By default it does not, and the runner reserves by
    /// itself before each request. A store that wraps another one and passes its appends on returns what that one does.
    fn reserves_with_appends(&self) -> bool {
        false
    }

    /// Ends a reservation, and returns whether it was open. One that has ended before stays as it is, so a repeated request
    /// counts once. A reply is settled [in its own append](AppendEvent::settling) instead.
    ///
    /// # Errors
    /// [`SessionError::Unsupported`].
    fn settle(&self, request: SettleSpend) -> impl Future<Output = Result<bool, SessionError>> + Send {
        drop(request);
        async { Err(unsupported(BUDGETS)) }
    }

    /// Settles the open reservations of a session at their estimates, and returns their number.
    ///
    /// # Errors
    /// [`SessionError::Unsupported`].
    fn settle_open(&self, request: SettleOpen) -> impl Future<Output = Result<u64, SessionError>> + Send {
        drop(request);
        async { Err(unsupported(BUDGETS)) }
    }

    /// The sums of budgets, in the order of the request; zeros for one without reservations.
    ///
    /// # Errors
    /// [`SessionError::Unsupported`].
    fn balances(
        &self,
        request: ReadBudgets,
    ) -> impl Future<Output = Result<Vec<BudgetBalance>, SessionError>> + Send {
        drop(request);
        async { Err(unsupported(BUDGETS)) }
    }

    /// Raises the limits of budgets: from now on, reservations with a lower limit fit up to this one. A limit that is not higher
    /// than that of an earlier raise changes nothing, so a repeated request has no effect. The raise ends with the sums of its
    /// budget: with its window, or when it is erased.
    ///
    /// # Errors
    /// [`SessionError::Unsupported`].
    fn raise_budgets(&self, request: RaiseBudgets) -> impl Future<Output = Result<(), SessionError>> + Send {
        drop(request);
        async { Err(unsupported(BUDGETS)) }
    }

    /// The raises of budgets, newest first: each that changed a limit.
    ///
    /// # Errors
    /// [`SessionError::Unsupported`].
    fn raises(
        &self,
        request: ListRaises,
    ) -> impl Future<Output = Result<Vec<BudgetRaise>, SessionError>> + Send {
        drop(request);
        async { Err(unsupported(BUDGETS)) }
    }

    /// The requests of an app whose amounts were reserved, in the order of their times, those of deleted sessions included.
    ///
    /// # Errors
    /// [`SessionError::Unsupported`].
    fn spend(
        &self,
        request: ListSpend,
    ) -> impl Future<Output = Result<Vec<SpendRecord>, SessionError>> + Send {
        drop(request);
        async { Err(unsupported(BUDGETS)) }
    }

    /// Erases content for good, as one operation. [`verify`](SessionStore::verify) tells what was erased from what is damaged:
    /// the digests of histories stay, and so does the [head](Session::head) of each.
    ///
    /// A session, or a user with all sessions, goes whatever worker has claimed it: that worker's later writes are rejected
    /// with [`SessionError::NotFound`], and those to a new session of the same id by its claim. Events are erased while no
    /// worker has claimed the session, since a worker may have their content in memory.
    ///
    /// Database files keep deleted bytes until [`vacuum`](SessionStore::vacuum).
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::NoSuchVersion`] for an event that does not exist;
    /// [`SessionError::Claimed`] for events of a session at work; [`SessionError::ErasureReused`] for the id of an earlier erasure
    /// where content is left; [`SessionError::Sealed`] for a user or events of a store that was opened without its key ring;
    /// [`SessionError::TooLarge`] for the reason; [`SessionError::Unsupported`].
    fn erase(&self, request: EraseData) -> impl Future<Output = Result<ErasedData, SessionError>> + Send {
        drop(request);
        async { Err(unsupported(ERASURE)) }
    }

    /// The records of erasures of an app, oldest first.
    ///
    /// # Errors
    /// [`SessionError::Unsupported`].
    fn erasures(
        &self,
        request: ListErasures,
    ) -> impl Future<Output = Result<Vec<ErasureRecord>, SessionError>> + Send {
        drop(request);
        async { Err(unsupported(ERASURE)) }
    }

    /// Removes what was deleted, replaced or erased from the store's files: free pages, log, remnants of rows. It takes time
    /// and room for a copy of the data, and other writers wait for it. Backups, and archives of a server's log, are not
    /// changed.
    ///
    /// # Errors
    /// [`SessionError::Unavailable`] while other processes use the store; [`SessionError::Unsupported`].
    fn vacuum(&self, request: VacuumStore) -> impl Future<Output = Result<(), SessionError>> + Send {
        let _ = request;
        async { Err(unsupported(ERASURE)) }
    }

    /// The store's connections to its database at this moment, for operators; all zero by a store without any.
    fn connections(&self) -> StoreConnections {
        StoreConnections::default()
    }
}

const LABELS: &str = "labels on versions";
const CLAIMS: &str = "claims on sessions";
const ERASURE: &str = "erasure";
const BUDGETS: &str = "budgets";
const INBOXES: &str = "inboxes of sessions";

fn unsupported(what: &'static str) -> SessionError {
    SessionError::Unsupported { what }
}
