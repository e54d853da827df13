//! Stores, and one that is watched while it appends.

use stepfold_runner::session_scopes::{
    AnyStore, AppendEvent, Claim, ClaimSession, CreateSession, DeleteSession, Deleted, DequeueInput,
    EnqueueInput, Enqueued, ForkSession, GetSession, InboxEntry, ListSessions, PruneSession, Pruned,
    ReadInbox, Receipt, ReleaseClaim, RenewClaim, Renewed, RewindSession, ScopeKey, Session, SessionError,
    SessionPage, SessionStore, Values, WriteScope,
};
use stepfold_session_scopes::{PostgresStore, SqliteStore};

use super::points::Points;

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

    async fn create(&self, request: CreateSession) -> Result<Session, SessionError> {
        self.store.create(request).await
    }

    async fn get(&self, request: GetSession) -> Result<Session, SessionError> {
        self.store.get(request).await
    }

    async fn list(&self, request: ListSessions) -> Result<SessionPage, SessionError> {
        self.store.list(request).await
    }

    async fn delete(&self, request: DeleteSession) -> Result<Deleted, SessionError> {
        self.store.delete(request).await
    }

    async fn fork(&self, request: ForkSession) -> Result<Session, SessionError> {
        self.store.fork(request).await
    }

    async fn rewind(&self, request: RewindSession) -> Result<Receipt, SessionError> {
        self.store.rewind(request).await
    }

    async fn read_scope(&self, scope: ScopeKey) -> Result<Values, SessionError> {
        self.store.read_scope(scope).await
    }

    async fn write_scope(&self, request: WriteScope) -> Result<Values, SessionError> {
        self.store.write_scope(request).await
    }

    async fn prune(&self, request: PruneSession) -> Result<Pruned, SessionError> {
        self.store.prune(request).await
    }

    async fn claim(&self, request: ClaimSession) -> Result<Claim, SessionError> {
        self.store.claim(request).await
    }

    async fn renew(&self, request: RenewClaim) -> Result<Renewed, SessionError> {
        self.store.renew(request).await
    }

    async fn release(&self, request: ReleaseClaim) -> Result<(), SessionError> {
        self.store.release(request).await
    }

    async fn enqueue(&self, request: EnqueueInput) -> Result<Enqueued, SessionError> {
        self.store.enqueue(request).await
    }

    async fn inbox(&self, request: ReadInbox) -> Result<Vec<InboxEntry>, SessionError> {
        self.store.inbox(request).await
    }

    async fn dequeue(&self, request: DequeueInput) -> Result<Vec<u64>, SessionError> {
        self.store.dequeue(request).await
    }
}
