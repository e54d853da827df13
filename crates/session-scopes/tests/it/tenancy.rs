//! No sequence of calls with one tenant's keys reads or changes what is another's.
//!
//! The same calls are made twice: mixed with those of all other tenants in one store, and alone in a store
//! of their own. Each tenant must see the same.

use proptest::prelude::*;
use serde_json::json;
use stepfold_session_scopes::{
    Author, CreateSession, DeleteSession, EventId, EventRange, Expected, ForkSession, GetSession,
    InvocationId, ListSessions, MemoryStore, PruneBound, PruneSession, RewindSession, ScopeKey, SessionError,
    SessionId, SessionKey, SessionStore, SqliteStore, WriteScope,
};

use crate::scenario::{at, schema, writing};

const TENANTS: [(&str, &str); 4] = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "a/x")];

/// A call, with small numbers for everything, so that they often mean the same.
#[derive(Clone, Debug)]
struct Call {
    tenant: usize,
    what: u8,
    session: u8,
    other: u8,
    number: u64,
}

fn call() -> impl Strategy<Value = Call> {
    (0..TENANTS.len(), 0..10u8, 0..3u8, 0..3u8, 0..4u64)
        .prop_map(|(tenant, what, session, other, number)| Call { tenant, what, session, other, number })
}

impl Call {
    fn key(&self) -> SessionKey {
        let (app, user) = TENANTS[self.tenant];
        SessionKey::new(app, user, format!("s{}", self.session)).unwrap()
    }

    /// Makes the call; all that the caller sees, as text.
    async fn make(&self, store: &impl SessionStore) -> String {
        match self.answer(store).await {
            Ok(seen) => seen,
            Err(error) => format!("{error:?}"),
        }
    }

    async fn answer(&self, store: &impl SessionStore) -> Result<String, SessionError> {
        let (key, schema, id) = (self.key(), schema(), format!("e{}-{}", self.other, self.number));
        let shared = ScopeKey::User(key.app.clone(), key.user.clone());
        Ok(match self.what {
            0 | 1 => {
                let values = json!({"list": [self.number], "user:name": key.to_string()});
                let session =
                    store.create(CreateSession::with_key(key, &schema, at(0)).values(values)?).await?;
                session.to_json().to_string()
            }
            2 | 3 => {
                let event =
                    writing(id, &[("list", json!([self.number])), ("user:list", json!([self.number]))]);
                let expected = if self.other == 0 { Expected::Version(self.number) } else { Expected::Any };
                let append = stepfold_session_scopes::AppendEvent::new(key, expected, event, &schema);
                format!("{:?}", store.append(append).await?)
            }
            4 => {
                let session = store.get(GetSession::new(key)).await?;
                format!("{} {:?} {:?}", session.to_json(), session.events, session.parent)
            }
            5 => {
                let list = ListSessions::new(key.app.as_str(), key.user.as_str())?
                    .with_state()
                    .events(EventRange::All);
                let mut seen: Vec<String> = store
                    .list(list)
                    .await?
                    .sessions
                    .iter()
                    .map(|session| format!("{} {} {:?}", session.key, session.to_json(), session.events))
                    .collect();
                seen.sort();
                seen.join("; ")
            }
            6 => {
                let mut delete = DeleteSession::new(key);
                delete.user_state = self.number == 0;
                let mut deleted = store.delete(delete).await?;
                deleted.session_keys.sort();
                deleted.user_keys.sort();
                format!("{deleted:?}")
            }
            7 => {
                let fork = ForkSession::new(key, at(0)).at_version(self.number);
                let fork = fork.with_id(SessionId::new(format!("s{}", self.other))?);
                let key = store.fork(fork).await?.key;
                store.get(GetSession::new(key)).await?.to_json().to_string()
            }
            8 => {
                let rewind = RewindSession::new(
                    key,
                    Expected::Any,
                    self.number,
                    EventId::new(id)?,
                    InvocationId::new("i")?,
                    Author::new("user")?,
                    at(0),
                );
                format!("{:?}", store.rewind(rewind).await?)
            }
            _ if self.other == 0 => {
                let before = PruneBound::Version(self.number);
                format!("{:?}", store.prune(PruneSession::new(key, before)).await?)
            }
            _ if self.other == 1 => {
                let delta = [schema.schema().write("user:list", json!([self.number])).unwrap()];
                let values =
                    store.write_scope(WriteScope::new(shared, delta.into_iter().collect(), &schema)).await?;
                format!("{:?}", values.iter().collect::<Vec<_>>())
            }
            _ => format!("{:?}", store.read_scope(shared).await?.iter().collect::<Vec<_>>()),
        })
    }
}

/// What each tenant sees, calls of all of them mixed.
async fn mixed(store: &impl SessionStore, calls: &[Call]) -> Vec<Vec<String>> {
    let mut seen = vec![Vec::new(); TENANTS.len()];
    for call in calls {
        seen[call.tenant].push(call.make(store).await);
    }
    seen
}

/// What each tenant sees who is alone.
async fn alone(calls: &[Call]) -> Vec<Vec<String>> {
    let mut seen = Vec::new();
    for tenant in 0..TENANTS.len() {
        let own: Vec<Call> = calls.iter().filter(|call| call.tenant == tenant).cloned().collect();
        seen.push(mixed(&MemoryStore::new(), &own).await.swap_remove(tenant));
    }
    seen
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

proptest! {
    #[test]
    fn tenants_do_not_see_each_other_in_memory(calls in proptest::collection::vec(call(), 1..80)) {
        let (together, apart) = block_on(async { (mixed(&MemoryStore::new(), &calls).await, alone(&calls).await) });
        prop_assert_eq!(together, apart);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The stores are compared with the one in memory, too: each answers as it does.
    #[test]
    fn tenants_do_not_see_each_other_over_sqlite(calls in proptest::collection::vec(call(), 1..80)) {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("sessions.db")).unwrap();
        let (together, apart) = block_on(async { (mixed(&store, &calls).await, alone(&calls).await) });
        prop_assert_eq!(together, apart);
    }

    #[test]
    fn tenants_do_not_see_each_other_over_postgres(calls in proptest::collection::vec(call(), 1..80)) {
        let Some(server) = crate::server::server() else { return Ok(()) };
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let name = format!("tenancy_{}", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let (together, apart) = block_on(async {
            let options = stepfold_session_scopes::PostgresOptions::new(server.database(&name).await);
            let store = options.connections(1).open().await.unwrap();
            (mixed(&store, &calls).await, alone(&calls).await)
        });
        prop_assert_eq!(together, apart);
    }
}
