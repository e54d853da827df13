//! The scan of a store that has none of its own.

use stepfold_session_scopes::{
    AppendEvent, CreateSession, DeleteSession, Deleted, ForkSession, GetSession, ListSessions, ListUsers,
    MemoryStore, PruneSession, Pruned, Receipt, RewindSession, ScanSessions, ScopeKey, ScopeValues, Session,
    SessionError, SessionPage, SessionStore, UserId, WriteScope,
};

use crate::scenario::{append, create, event, key};

/// A store in which a session is deleted as soon as it is listed.
struct DeletingStore(MemoryStore);

impl SessionStore for DeletingStore {
    hand_on! {
        create: CreateSession => Session;
        get: GetSession => Session;
        users: ListUsers => Vec<UserId>;
        delete: DeleteSession => Deleted;
        append: AppendEvent => Receipt;
        fork: ForkSession => Session;
        rewind: RewindSession => Receipt;
        read_scope: ScopeKey => ScopeValues;
        write_scope: WriteScope => ScopeValues;
        prune: PruneSession => Pruned;
    }

    async fn list(&self, request: ListSessions) -> Result<SessionPage, SessionError> {
        let listed = self.0.list(request).await;
        self.0.delete(DeleteSession::new(key("s2"))).await?;
        listed
    }
}

#[tokio::test]
async fn a_session_that_is_deleted_during_a_scan_is_left_out() {
    let store = DeletingStore(MemoryStore::new());
    for id in ["s1", "s2", "s3"] {
        create(&store, &key(id)).await;
        append(&store, &key(id), 0, event("e1")).await.unwrap();
    }
    let mut request = ScanSessions::new("app").unwrap();
    request.with_first_event = true;
    let page = store.scan(request).await.unwrap();
    let mut ids: Vec<&str> = page.sessions.iter().map(|session| session.key.id.as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["s1", "s3"]);
    assert!(page.sessions.iter().all(|session| session.first_event.is_some()));
}
