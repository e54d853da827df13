//! Stores, and one that is watched while it appends.

use stepfold_runner::session_scopes::{
    AnyStore, AppendEvent, Claim, ClaimSession, CreateSession, DeleteSession, Deleted, DequeueInput,
    EnqueueInput, Enqueued, FindEvent, FindTagged, ForkSession, GetSession, InboxEntry, ListSessions,
    ListUnattended, ListUsers, PruneSession, Pruned, ReadInbox, Receipt, ReleaseClaim, RenewClaim,
    RenewClaims, Renewed, RewindSession, ScopeKey, ScopeValues, Session, SessionError, SessionPage,
    SessionStore, Unattended, UserId, WriteScope,
};
use stepfold_session_scopes::{PostgresStore, SqliteStore};

use super::points::Points;
use crate::world::hand_on;

/// Opens a store by its address: one of PostgreSQL, or the path of a file.
pub(crate) async fn open(address: &str) -> AnyStore {
    if address.starts_with("postgres://") {
        AnyStore::new(PostgresStore::open(address).await.unwrap())
    } else {
        AnyStore::new(SqliteStore::open(address).unwrap())
    }
}

/// What happens around each append.
pub(crate) trait Watch: Send + Sync + 'static {
    fn before(&self, request: &AppendEvent) -> impl Future<Output = Result<(), SessionError>> + Send;

    fn after(&self, _: &AppendEvent, _: &Receipt) {}
}

/// A store whose appends are watched.
pub(crate) struct Watched<W> {
    pub(crate) store: AnyStore,
    pub(crate) watch: W,
}

/// There is a point before and after each append, and what was acknowledged is told to the parent.
impl Watch for Points {
    async fn before(&self, request: &AppendEvent) -> Result<(), SessionError> {
        self.pass(&format!("the append of {}, before it", request.event.kind));
        Ok(())
    }

    fn after(&self, request: &AppendEvent, receipt: &Receipt) {
        println!("acknowledged {} {}", receipt.version, receipt.event);
        self.pass(&format!("the append of {}, after it", request.event.kind));
    }
}

impl<W: Watch> SessionStore for Watched<W> {
    async fn append(&self, request: AppendEvent) -> Result<Receipt, SessionError> {
        self.watch.before(&request).await?;
        let receipt = self.store.append(request.clone()).await?;
        self.watch.after(&request, &receipt);
        Ok(receipt)
    }

    hand_on! { store =>
        create: CreateSession => Session;
        get: GetSession => Session;
        list: ListSessions => SessionPage;
        delete: DeleteSession => Deleted;
        fork: ForkSession => Session;
        rewind: RewindSession => Receipt;
        read_scope: ScopeKey => ScopeValues;
        write_scope: WriteScope => ScopeValues;
        prune: PruneSession => Pruned;
        claim: ClaimSession => Claim;
        renew: RenewClaim => Renewed;
        renew_all: RenewClaims => Vec<Result<Renewed, SessionError>>;
        find_event: FindEvent => Option<u64>;
        find_tagged: FindTagged => Vec<Option<u64>>;
        release: ReleaseClaim => ();
        enqueue: EnqueueInput => Enqueued;
        inbox: ReadInbox => Vec<InboxEntry>;
        dequeue: DequeueInput => Vec<u64>;
        users: ListUsers => Vec<UserId>;
        unattended: ListUnattended => Vec<Unattended>;
    }
}

/// A store that has neither claims nor inboxes, as those of others may be.
#[derive(Clone)]
pub(crate) struct Plain(pub(crate) AnyStore);

impl SessionStore for Plain {
    async fn append(&self, mut request: AppendEvent) -> Result<Receipt, SessionError> {
        request.claim = None;
        self.0.append(request).await
    }

    hand_on! { 0 =>
        create: CreateSession => Session;
        get: GetSession => Session;
        list: ListSessions => SessionPage;
        delete: DeleteSession => Deleted;
        fork: ForkSession => Session;
        rewind: RewindSession => Receipt;
        read_scope: ScopeKey => ScopeValues;
        write_scope: WriteScope => ScopeValues;
        prune: PruneSession => Pruned;
    }
}
