//! A store of any type, for runners.
//!
//! Authors implement [`SessionStore`] with `async fn`s; its private counterpart here boxes their futures, so
//! that users of a store need no type parameter.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::{
    AppendEvent, BudgetBalance, BudgetRaise, Claim, ClaimSession, CreateSession, DeleteSession, Deleted,
    DequeueInput, EnqueueInput, Enqueued, EraseData, ErasedData, ErasureRecord, EventSizes, FindEvent,
    FindTagged, ForkInfo, ForkSession, FoundMessage, GetSession, InboxEntry, LabelVersion, ListErasures,
    ListForks, ListRaises, ListSessions, ListSpend, ListUnattended, ListUsers, OutlineSessions, PruneSession,
    Pruned, RaiseBudgets, ReadBudgets, ReadInbox, ReadLabels, Receipt, ReleaseClaim, RenewClaim, RenewClaims,
    Renewed, ReserveSpend, RewindSession, ScanSessions, ScannedPage, ScopeKey, SearchSessions,
    SessionOutline, SessionPage, SessionStore, SettleOpen, SettleSpend, SpendRecord, StateSize,
    StoreConnections, StoreNotices, Unattended, VacuumStore, Verified, VerifySessions, WatchStore,
    WriteScope,
};
use crate::error::SessionError;
use crate::ids::{Label, SessionKey, UserId};
use crate::session::{ScopeValues, Session};

type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, SessionError>> + Send + 'a>>;

macro_rules! erase {
    ($($method:ident: $request:ty => $answer:ty;)*) => {
        trait ErasedStore: Send + Sync {
            $(fn $method(&self, request: $request) -> StoreFuture<'_, $answer>;)*

            fn connections(&self) -> StoreConnections;

            fn reserves_with_appends(&self) -> bool;
        }

        impl<S: SessionStore> ErasedStore for S {
            $(fn $method(&self, request: $request) -> StoreFuture<'_, $answer> {
                Box::pin(SessionStore::$method(self, request))
            })*

            fn connections(&self) -> StoreConnections {
                SessionStore::connections(self)
            }

            fn reserves_with_appends(&self) -> bool {
                SessionStore::reserves_with_appends(self)
            }
        }

        impl SessionStore for AnyStore {
            // NOTE: not `async fn`: their futures would hold the request too, which the boxed future already has.
            $(fn $method(&self, request: $request) -> impl Future<Output = Result<$answer, SessionError>> + Send {
                let session = request.session().cloned();
                let answer = self.0.$method(request);
                async move { answer.await.map_err(|error| error.of_session(session.as_ref())) }
            })*

            fn connections(&self) -> StoreConnections {
                self.0.connections()
            }

            fn reserves_with_appends(&self) -> bool {
                self.0.reserves_with_appends()
            }
        }

        impl<S: SessionStore> SessionStore for Arc<S> {
            $(async fn $method(&self, request: $request) -> Result<$answer, SessionError> {
                S::$method(self, request).await
            })*

            fn connections(&self) -> StoreConnections {
                S::connections(self)
            }

            fn reserves_with_appends(&self) -> bool {
                S::reserves_with_appends(self)
            }
        }
    };
}

/// A request about a session: an error names it.
trait SessionRequest {
    fn session(&self) -> Option<&SessionKey>;
}

macro_rules! about {
    ($($request:ty),*; $($other:ty),*) => {
        $(impl SessionRequest for $request {
            fn session(&self) -> Option<&SessionKey> {
                Some(&self.key)
            }
        })*
        $(impl SessionRequest for $other {
            fn session(&self) -> Option<&SessionKey> {
                None
            }
        })*
    };
}

about! {
    AppendEvent, ClaimSession, DeleteSession, DequeueInput, EnqueueInput, EventSizes, FindEvent, FindTagged, GetSession,
    LabelVersion, ListForks, PruneSession, ReadInbox, ReadLabels, ReleaseClaim, RenewClaim, RewindSession, StateSize;
    CreateSession, ForkSession, ListSessions, ListUnattended, ListUsers, OutlineSessions, RenewClaims, ScopeKey, VerifySessions, WatchStore,
    WriteScope, ReserveSpend, SettleSpend, SettleOpen, RaiseBudgets, ListRaises, ReadBudgets, ListSpend, EraseData, ListErasures, VacuumStore, SearchSessions, ScanSessions
}

erase! {
    create: CreateSession => Session;
    get: GetSession => Session;
    outlines: OutlineSessions => Vec<Option<SessionOutline>>;
    find_event: FindEvent => Option<u64>;
    find_tagged: FindTagged => Vec<Option<u64>>;
    search: SearchSessions => Vec<FoundMessage>;
    event_sizes: EventSizes => Vec<(u64, u64)>;
    state_size: StateSize => u64;
    list: ListSessions => SessionPage;
    scan: ScanSessions => ScannedPage;
    delete: DeleteSession => Deleted;
    append: AppendEvent => Receipt;
    fork: ForkSession => Session;
    rewind: RewindSession => Receipt;
    read_scope: ScopeKey => ScopeValues;
    write_scope: WriteScope => ScopeValues;
    prune: PruneSession => Pruned;
    verify: VerifySessions => Verified;
    forks: ListForks => Vec<ForkInfo>;
    set_label: LabelVersion => Option<u64>;
    labels: ReadLabels => Vec<(Label, u64)>;
    users: ListUsers => Vec<UserId>;
    unattended: ListUnattended => Vec<Unattended>;
    notices: WatchStore => StoreNotices;
    claim: ClaimSession => Claim;
    renew: RenewClaim => Renewed;
    renew_all: RenewClaims => Vec<Result<Renewed, SessionError>>;
    release: ReleaseClaim => ();
    enqueue: EnqueueInput => Enqueued;
    inbox: ReadInbox => Vec<InboxEntry>;
    dequeue: DequeueInput => Vec<u64>;
    reserve: ReserveSpend => Vec<BudgetBalance>;
    settle: SettleSpend => bool;
    settle_open: SettleOpen => u64;
    balances: ReadBudgets => Vec<BudgetBalance>;
    raise_budgets: RaiseBudgets => ();
    raises: ListRaises => Vec<BudgetRaise>;
    spend: ListSpend => Vec<SpendRecord>;
    erase: EraseData => ErasedData;
    erasures: ListErasures => Vec<ErasureRecord>;
    vacuum: VacuumStore => ();
}

/// A store of any kind, shared. Cloning is cheap.
///
/// # Examples
/// ```
/// use stepfold_session_scopes::{AnyStore, MemoryStore};
///
/// let store = AnyStore::new(MemoryStore::new());
/// let same = store.clone();
/// ```
#[derive(Clone)]
pub struct AnyStore(Arc<dyn ErasedStore>);

impl AnyStore {
    /// Erases the kind of a store. One that has none already stays as it is: its requests are not boxed twice.
    pub fn new(store: impl SessionStore) -> Self {
        // NOTE: an `AnyStore` implements `SessionStore` too, so it could be wrapped again, and each request boxed twice.
        match (&store as &dyn Any).downcast_ref::<AnyStore>() {
            Some(erased) => erased.clone(),
            None => AnyStore(Arc::new(store)),
        }
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyStore").finish_non_exhaustive()
    }
}
