//! Stores that seal content with a key ring, over both databases.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use stepfold_session_scopes::{
    AnyStore, AppId, AppendEvent, Author, ClaimSession, CreateSession, DataKey, DeleteSession, EnqueueInput,
    EraseData, EraseTarget, ErasureId, ErrorKind, EventRange, Expected, ForkSession, GetSession,
    IdempotencyKey, InboxKind, KeyOwner, KeyRing, KeyRingFuture, ListSessions, MemoryKeyRing,
    PostgresOptions, PruneBound, PruneSession, ReadInbox, ScopeKey, SearchSessions, SessionError, SessionKey,
    SessionSchema, SessionStore, SqliteOptions, UserId, VerifySessions, WorkerId, WriteScope,
};
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::{Handler, Schema};
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio_postgres::NoTls;

use crate::keys::{drawn, memory_ring, owner};
use crate::scenario::{append, at, event, schema, writing};
use crate::server::{Server, server};

/// The database of a test.
pub(crate) enum Database {
    Sqlite(TempDir),
    Postgres(&'static Server, String),
}

impl Database {
    /// A new one of each kind; of PostgreSQL where it is installed.
    pub(crate) async fn all() -> Vec<Database> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let mut all = vec![Database::Sqlite(tempfile::tempdir().unwrap())];
        if let Some(server) = server() {
            let name = format!("sealed_{}_{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
            server.database(&name).await;
            all.push(Database::Postgres(server, name));
        }
        all
    }

    /// The path or the URL.
    pub(crate) fn address(&self) -> String {
        match self {
            Database::Sqlite(folder) => folder.path().join("sessions.db").display().to_string(),
            Database::Postgres(server, name) => server.url_of(name),
        }
    }

    pub(crate) async fn try_open(
        &self,
        ring: Option<Arc<dyn KeyRing>>,
        is_read_only: bool,
    ) -> Result<AnyStore, SessionError> {
        open_at(&self.address(), ring, is_read_only).await
    }

    /// The store with a ring.
    pub(crate) async fn sealed(&self, ring: &Arc<MemoryKeyRing>) -> AnyStore {
        self.try_open(Some(Arc::<MemoryKeyRing>::clone(ring)), false).await.unwrap()
    }

    /// The store without a ring.
    pub(crate) async fn open(&self) -> AnyStore {
        self.try_open(None, false).await.unwrap()
    }

    /// The folder with all files that it writes.
    pub(crate) fn folder(&self) -> PathBuf {
        match self {
            Database::Sqlite(folder) => folder.path().to_owned(),
            Database::Postgres(server, _) => server.all_files(),
        }
    }

    /// The folder with the files of its tables.
    pub(crate) fn files_of_tables(&self) -> PathBuf {
        match self {
            Database::Sqlite(folder) => folder.path().to_owned(),
            Database::Postgres(server, _) => server.files_of_tables(),
        }
    }

    /// Copies it as it is, with a file in a folder; the path or the URL of the copy.
    pub(crate) async fn backup(&self, folder: &Path) -> String {
        static MADE: AtomicU64 = AtomicU64::new(0);
        match self {
            Database::Sqlite(of) => {
                for name in ["sessions.db", "sessions.db-wal"] {
                    fs::copy(of.path().join(name), folder.join(name)).unwrap();
                }
                folder.join("sessions.db").display().to_string()
            }
            Database::Postgres(server, name) => {
                let copy = format!("{name}_{}", MADE.fetch_add(1, Ordering::Relaxed));
                let dump = folder.join("dump.sql");
                server.dump(name, &dump);
                server.restore(&copy, &dump).await;
                server.url_of(&copy)
            }
        }
    }

    /// Deletes a copy that is a database of the same server.
    pub(crate) async fn forget(&self, copy: &str) {
        if let Database::Postgres(server, _) = self {
            let (_, name) = copy.rsplit_once('/').unwrap();
            server.run("postgres", &format!("DROP DATABASE {name} WITH (FORCE)")).await;
        }
    }

    /// The number of rows of a table.
    pub(crate) async fn count(&self, table: &str) -> i64 {
        let count = format!("SELECT COUNT(*) FROM {table}");
        match self {
            Database::Sqlite(_) => {
                let connection = rusqlite::Connection::open(self.address()).unwrap();
                connection.query_row(&count, [], |row| row.get(0)).unwrap()
            }
            Database::Postgres(..) => {
                let (client, connection) = tokio_postgres::connect(&self.address(), NoTls).await.unwrap();
                let driver = tokio::spawn(connection);
                let rows = client.query_one(&count, &[]).await.unwrap().get(0);
                drop(client);
                driver.await.unwrap().unwrap();
                rows
            }
        }
    }

    /// Runs a statement by hand.
    pub(crate) async fn run(&self, statement: &str) {
        match self {
            Database::Sqlite(_) => {
                rusqlite::Connection::open(self.address()).unwrap().execute_batch(statement).unwrap();
            }
            Database::Postgres(server, name) => server.run(name, statement).await,
        }
    }
}

/// Opens the store at a path or a URL.
pub(crate) async fn open_at(
    address: &str,
    ring: Option<Arc<dyn KeyRing>>,
    is_read_only: bool,
) -> Result<AnyStore, SessionError> {
    if !address.starts_with("postgres://") {
        let mut options = SqliteOptions::new(address);
        options = ring.map_or(options.clone(), |ring| options.key_ring(ring));
        let options = if is_read_only { options.read_only() } else { options };
        return options.open().map(AnyStore::new);
    }
    let mut options = PostgresOptions::new(address).connections(4);
    options = ring.map_or(options.clone(), |ring| options.key_ring(ring));
    let options = if is_read_only { options.read_only() } else { options };
    options.open().await.map(AnyStore::new)
}

async fn session(store: &AnyStore, user: &str, id: &str) -> SessionKey {
    let key = SessionKey::new("app", user, id).unwrap();
    let request = CreateSession::with_key(key.clone(), &schema(), at(0)).values(json!({"list": ["a"]}));
    store.create(request.unwrap()).await.unwrap();
    let step = writing("e1", &[("list", json!(["b"])), ("user:name", json!("Ada"))]);
    append(store, &key, 0, step.with_message(Message::user("where is the bakery?"))).await.unwrap();
    key
}

async fn whole(store: &AnyStore, key: &SessionKey) -> Result<String, SessionError> {
    let session = store.get(GetSession::new(key.clone()).events(EventRange::All)).await?;
    Ok(session.to_json().to_string())
}

fn enqueue(key: &SessionKey, id: &str, text: &str) -> EnqueueInput {
    let id = IdempotencyKey::new(id).unwrap();
    EnqueueInput::new(key.clone(), InboxKind::Message, id, json!(text), at(2))
}

fn scope_write(text: &str) -> WriteScope {
    let delta = [schema().schema().write("user:name", json!(text)).unwrap()].into_iter().collect();
    let request = WriteScope::new(ScopeKey::user("app", "ada").unwrap(), delta, &schema());
    request.once(IdempotencyKey::new("w1").unwrap())
}

/// An operation that needs content is an error of its own, and nothing else fails.
async fn check_without_ring(store: &AnyStore, key: &SessionKey) {
    let kind = |error: SessionError| error.kind();
    assert_eq!(whole(store, key).await.map_err(kind), Err(ErrorKind::Sealed));
    assert_eq!(store.inbox(ReadInbox::new(key.clone())).await.map_err(kind).err(), Some(ErrorKind::Sealed));
    let appended = store.append(AppendEvent::new(key.clone(), Expected::Any, event("e9"), &schema())).await;
    assert_eq!(appended.map_err(kind).err(), Some(ErrorKind::Sealed));
    let enqueued = store.enqueue(enqueue(key, "i2", "x"));
    assert_eq!(enqueued.await.map_err(kind).err(), Some(ErrorKind::Sealed));
    assert_eq!(store.write_scope(scope_write("x")).await.map_err(kind).err(), Some(ErrorKind::Sealed));
    let created = store.create(CreateSession::new("app", "bob", &schema(), at(0)).unwrap()).await;
    assert_eq!(created.map_err(kind).err(), None, "it has no content");
    let request = CreateSession::new("app", "bob", &schema(), at(0)).unwrap().values(json!({"list": ["a"]}));
    let created = store.create(request.unwrap()).await;
    assert_eq!(created.map_err(kind).err(), Some(ErrorKind::Sealed));
    assert_eq!(
        store.fork(ForkSession::new(key.clone(), at(3))).await.map_err(kind).err(),
        Some(ErrorKind::Sealed)
    );

    assert_eq!(store.list(ListSessions::new("app", "ada").unwrap()).await.unwrap().sessions.len(), 1);
    assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
    let worker = WorkerId::new("w").unwrap();
    let claim = ClaimSession::new(key.clone(), worker, std::time::Duration::from_secs(1), at(3));
    store.claim(claim).await.unwrap();
    let request = PruneSession::new(key.clone(), PruneBound::Version(1));
    assert_eq!(store.prune(request).await.unwrap().events, 1);
    assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
}

async fn check_store_without_ring(database: &Database) {
    let ring = memory_ring();
    let store = database.sealed(&ring).await;
    let key = session(&store, "ada", "s1").await;
    append(&store, &key, 1, writing("e2", &[("list", json!(["c"]))])).await.unwrap();
    store.enqueue(enqueue(&key, "i1", "hello")).await.unwrap();
    drop(store);
    check_without_ring(&database.open().await, &key).await;
    // With the ring all is there.
    let store = database.sealed(&ring).await;
    let session = store.get(GetSession::new(key.clone())).await.unwrap();
    assert_eq!(session.get("list").unwrap(), json!(["a", "b", "c"]));
    assert_eq!(session.get("user:name").unwrap(), "Ada");
    assert_eq!(store.inbox(ReadInbox::new(key.clone())).await.unwrap()[0].body, json!("hello"));
    store.delete(DeleteSession::new(key).take_over()).await.unwrap();
    assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
}

#[tokio::test]
async fn a_sealed_store_without_its_ring_lists_verifies_and_prunes() {
    for database in Database::all().await {
        Box::pin(check_store_without_ring(&database)).await;
    }
}

async fn check_process_of_before(database: &Database) {
    let ring = memory_ring();
    let before = database.open().await;
    let key = session(&before, "ada", "s1").await;
    before.enqueue(enqueue(&key, "i1", "hello")).await.unwrap();
    let store = database.sealed(&ring).await;
    append(&store, &key, 1, writing("e2", &[("list", json!(["c"]))])).await.unwrap();
    let waiting = enqueue(&key, "i3", "sealed");
    store.enqueue(waiting).await.unwrap();
    check_without_ring(&before, &key).await;
}

#[tokio::test]
async fn a_process_that_was_there_before_the_ring_adds_no_content() {
    for database in Database::all().await {
        Box::pin(check_process_of_before(&database)).await;
    }
}

/// The key of an operation is content too: one that changes nothing writes no other row.
async fn check_operation_of_before(database: &Database) {
    let builder = Schema::builder().key::<Vec<Value>>("user:union").handler(Handler::union());
    let schema = SessionSchema::new(builder.open().build().unwrap());
    let write = || {
        let delta = [schema.schema().write("user:union", json!(["secret"])).unwrap()].into_iter().collect();
        WriteScope::new(ScopeKey::user("app", "ada").unwrap(), delta, &schema)
    };
    let before = database.open().await;
    before.write_scope(write()).await.unwrap();
    drop(database.sealed(&memory_ring()).await);
    before.write_scope(write()).await.unwrap();
    let written = before.write_scope(write().once(IdempotencyKey::new("w1").unwrap())).await;
    assert_eq!(written.map_err(|error| error.kind()).err(), Some(ErrorKind::Sealed));
    assert_eq!(database.count("stepfold_operations").await, 0);
}

#[tokio::test]
async fn a_process_without_the_ring_keeps_no_operation() {
    for database in Database::all().await {
        Box::pin(check_operation_of_before(&database)).await;
    }
}

async fn check_content_of_before(database: &Database) {
    let ring = memory_ring();
    let store = database.open().await;
    let key = session(&store, "ada", "s1").await;
    store.enqueue(enqueue(&key, "i1", "hello")).await.unwrap();
    store.write_scope(scope_write("Ada L.")).await.unwrap();
    let before = whole(&store, &key).await.unwrap();
    drop(store);
    let store = database.sealed(&ring).await;
    assert_eq!(whole(&store, &key).await.unwrap(), before);
    let step = |id: &str| writing(id, &[("list", json!(["b"])), ("user:name", json!("Ada"))]);
    let first = step("e1").with_message(Message::user("where is the bakery?"));
    for repeat in 0..2 {
        // The first one is stored as it is, the second sealed.
        let receipt = append(&store, &key, 0, first.clone()).await.unwrap();
        assert_eq!(receipt.version, 1);
        assert_eq!(append(&store, &key, 1, step("e2")).await.unwrap().version, 2);
        let other = append(&store, &key, 2, step("e2").with_message(Message::user("x"))).await;
        assert!(matches!(other, Err(SessionError::EventReused { .. })), "{other:?}");
        assert!(store.enqueue(enqueue(&key, "i1", "hello")).await.unwrap().is_repeat);
        let input = |text| enqueue(&key, "i2", text);
        assert_eq!(store.enqueue(input("sealed")).await.unwrap().is_repeat, repeat == 1);
        let other = store.enqueue(input("another")).await;
        assert!(matches!(other, Err(SessionError::IdempotencyKeyReused { .. })), "{other:?}");
        store.write_scope(scope_write("Ada L.")).await.unwrap();
        let other = store.write_scope(scope_write("another")).await;
        assert!(matches!(other, Err(SessionError::IdempotencyKeyReused { .. })), "{other:?}");
    }
    let found = SearchSessions::in_session(key, "bakery");
    assert_eq!(store.search(found).await.unwrap().len(), 1);
}

#[tokio::test]
async fn content_of_before_the_ring_stays_readable_and_repeats_are_known() {
    for database in Database::all().await {
        Box::pin(check_content_of_before(&database)).await;
    }
}

async fn check_other_ring(database: &Database) {
    let ring = memory_ring();
    drop(database.sealed(&ring).await);
    let other = Arc::new(MemoryKeyRing::new("other", drawn()));
    for is_read_only in [false, true] {
        let opened = database.try_open(Some(Arc::<MemoryKeyRing>::clone(&other)), is_read_only).await;
        let Err(error) = opened else { panic!("another ring was accepted") };
        assert!(matches!(&error, SessionError::OtherKeyRing { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_store_rejects_another_ring() {
    for database in Database::all().await {
        Box::pin(check_other_ring(&database)).await;
    }
}

fn erase_ada(id: &str) -> EraseData {
    let target = EraseTarget::User { app: AppId::new("app").unwrap(), user: UserId::new("ada").unwrap() };
    EraseData::new(ErasureId::new(id).unwrap(), target, at(9), Author::new("admin").unwrap(), "by mail")
}

async fn check_erased_user(database: &Database) {
    let ring = memory_ring();
    let (store, other) = (database.sealed(&ring).await, database.sealed(&ring).await);
    let key = session(&store, "ada", "s1").await;
    let ada = owner("app", "ada");
    let first = ring.get(&ada).await.unwrap().unwrap();
    store.erase(erase_ada("x1").dry_run()).await.unwrap();
    assert_eq!(ring.get(&ada).await.unwrap().as_ref(), Some(&first), "a dry run destroys nothing");
    store.erase(erase_ada("x1")).await.unwrap();
    assert_eq!(ring.get(&ada).await.unwrap(), None);
    let late = append(&other, &key, 1, event("e2")).await.unwrap_err();
    assert!(matches!(late, SessionError::NotFound { .. }), "{late:?}");
    assert!(matches!(other.enqueue(enqueue(&key, "i1", "x")).await, Err(SessionError::NotFound { .. })));
    assert_eq!(ring.get(&ada).await.unwrap(), None);
    // An erasure was killed: the key is gone, the rows are not.
    let key = session(&store, "ada", "s1").await;
    let second = ring.get(&ada).await.unwrap().unwrap();
    assert_ne!(first, second);
    ring.destroy(&ada).await.unwrap();
    assert_eq!(whole(&other, &key).await.unwrap_err().kind(), ErrorKind::Sealed);
    assert_eq!(other.verify(VerifySessions::all()).await.unwrap().faults, []);
    assert_eq!(other.erase(erase_ada("x2")).await.unwrap().sessions.len(), 1);
    assert!(matches!(whole(&other, &key).await, Err(SessionError::NotFound { .. })));
}

#[tokio::test]
async fn an_erased_user_comes_back_with_another_key_and_late_writes_make_none() {
    for database in Database::all().await {
        Box::pin(check_erased_user(&database)).await;
    }
}

/// A ring that waits once it has destroyed a key, as if the erasure was slow to delete the rows.
struct WaitingRing {
    ring: Arc<MemoryKeyRing>,
    destroyed: Notify,
    released: Notify,
}

impl KeyRing for WaitingRing {
    fn name(&self) -> &str {
        self.ring.name()
    }

    fn get<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, Option<DataKey>> {
        self.ring.get(owner)
    }

    fn make<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, DataKey> {
        self.ring.make(owner)
    }

    fn destroy<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, bool> {
        Box::pin(async move {
            let destroyed = self.ring.destroy(owner).await;
            self.destroyed.notify_one();
            self.released.notified().await;
            destroyed
        })
    }
}

/// All writes to a session are refused, and make no key.
async fn check_refused(store: &AnyStore, ring: &MemoryKeyRing, key: &SessionKey) {
    let owner = owner("app", key.user.as_str());
    assert_eq!(ring.get(&owner).await.unwrap(), None);
    let kind = |error: SessionError| error.kind();
    let appended = store.append(AppendEvent::new(key.clone(), Expected::Any, event("late"), &schema())).await;
    assert_eq!(appended.map_err(kind).err(), Some(ErrorKind::Sealed), "{key}");
    let enqueued = store.enqueue(enqueue(key, "late", "x")).await;
    assert_eq!(enqueued.map_err(kind).err(), Some(ErrorKind::Sealed), "{key}");
    let forked = store.fork(ForkSession::new(key.clone(), at(3))).await;
    assert_eq!(forked.map_err(kind).err(), Some(ErrorKind::Sealed), "{key}");
    assert_eq!(ring.get(&owner).await.unwrap(), None, "{key}");
}

/// So are writes of a user with sealed values to no session.
async fn check_refused_user(store: &AnyStore, ring: &MemoryKeyRing) {
    let kind = |error: SessionError| error.kind();
    assert_eq!(store.write_scope(scope_write("x")).await.map_err(kind).err(), Some(ErrorKind::Sealed));
    let created = store.create(CreateSession::new("app", "ada", &schema(), at(3)).unwrap()).await;
    assert_eq!(created.map_err(kind).err(), Some(ErrorKind::Sealed));
    assert_eq!(ring.get(&owner("app", "ada")).await.unwrap(), None);
}

async fn check_late_writes(database: &Database) {
    let ring = memory_ring();
    let (destroyed, released) = (Notify::new(), Notify::new());
    let waiting = Arc::new(WaitingRing { ring: Arc::clone(&ring), destroyed, released });
    let erasing = database.try_open(Some(Arc::<WaitingRing>::clone(&waiting)), false).await.unwrap();
    let other = database.sealed(&ring).await;
    // After the key is destroyed, and before the rows are deleted.
    let key = session(&other, "ada", "s1").await;
    let late = async {
        waiting.destroyed.notified().await;
        check_refused(&other, &ring, &key).await;
        check_refused_user(&other, &ring).await;
        waiting.released.notify_one();
    };
    let (erased, ()) = tokio::join!(erasing.erase(erase_ada("x1")), late);
    assert_eq!(erased.unwrap().sessions.len(), 1);
    assert_eq!(ring.get(&owner("app", "ada")).await.unwrap(), None);
    // After an erasure that was killed there.
    let key = session(&other, "ada", "s1").await;
    ring.destroy(&owner("app", "ada")).await.unwrap();
    check_refused(&other, &ring, &key).await;
    check_refused_user(&other, &ring).await;
    other.erase(erase_ada("x2")).await.unwrap();
    assert_eq!(ring.get(&owner("app", "ada")).await.unwrap(), None);
}

/// One kind of content is enough; a session without any gets a key.
async fn check_late_writes_by_content(database: &Database) {
    let ring = memory_ring();
    let store = database.sealed(&ring).await;
    for content in ["list", "value", "event", "inbox", "user", "none"] {
        let key = SessionKey::new("app", content, "s1").unwrap();
        let request = CreateSession::with_key(key.clone(), &schema(), at(0));
        let request = match content {
            "list" => request.values(json!({"list": ["a"]})).unwrap(),
            "value" => request.values(json!({"x": "a"})).unwrap(),
            _ => request,
        };
        store.create(request).await.unwrap();
        match content {
            "event" => drop(append(&store, &key, 0, event("e1")).await.unwrap()),
            "inbox" => drop(store.enqueue(enqueue(&key, "i1", "hello")).await.unwrap()),
            "user" => {
                drop(append(&store, &key, 0, writing("e1", &[("user:name", json!("Ada"))])).await.unwrap());
            }
            _ => {}
        }
        ring.destroy(&owner("app", content)).await.unwrap();
        if content == "none" {
            append(&store, &key, 0, event("e1")).await.unwrap();
        } else {
            check_refused(&store, &ring, &key).await;
        }
    }
}

#[tokio::test]
async fn a_late_write_to_sealed_content_makes_no_key() {
    for database in Database::all().await {
        Box::pin(check_late_writes(&database)).await;
        Box::pin(check_late_writes_by_content(&database)).await;
    }
}

async fn check_failed_erasure(database: &Database) {
    let ring = memory_ring();
    let store = database.sealed(&ring).await;
    session(&store, "ada", "s1").await;
    drop(store);
    database.run("UPDATE stepfold_sessions SET oldest = 1").await;
    let store = database.sealed(&ring).await;
    assert_eq!(store.erase(erase_ada("x1")).await.unwrap_err().kind(), ErrorKind::Broken);
    assert!(ring.get(&owner("app", "ada")).await.unwrap().is_some());
}

#[tokio::test]
async fn an_erasure_that_fails_has_destroyed_no_key() {
    for database in Database::all().await {
        Box::pin(check_failed_erasure(&database)).await;
    }
}

/// A session with many messages, which a store without a ring would index; whether searches find some of them.
async fn is_searched(store: &AnyStore, id: &str) -> bool {
    let key = SessionKey::new("app", "ada", id).unwrap();
    store.create(CreateSession::with_key(key.clone(), &schema(), at(0))).await.unwrap();
    for version in 0..100 {
        let message = Message::user(format!("the bakery sells loaf {version} of rye to guest {version}"));
        append(store, &key, version, event(format!("{id} {version}")).with_message(message)).await.unwrap();
    }
    let ada = owner("app", "ada");
    let all = store.search(SearchSessions::of_user(ada.app, ada.user, "rye")).await.unwrap();
    let found = store.search(SearchSessions::in_session(key.clone(), "bakery rye")).await.unwrap();
    !all.is_empty() && found.iter().any(|found| found.session == key.id)
}

/// A search over a store with a ring finds messages, and writes no index of their words.
async fn check_search(database: &Database) {
    const PARTS: &str = "stepfold_search_parts";
    let ring = memory_ring();
    // Without a ring, messages have an index, which stays.
    let bare = database.open().await;
    assert!(is_searched(&bare, "s1").await);
    let indexed = database.count(PARTS).await;
    assert!(indexed > 0, "the test counts nothing");
    // With the ring they and others are found by a scan.
    let store = database.sealed(&ring).await;
    assert!(is_searched(&store, "s2").await);
    let key = SessionKey::new("app", "ada", "s1").unwrap();
    assert!(!store.search(SearchSessions::in_session(key, "bakery")).await.unwrap().is_empty());
    assert_eq!(database.count(PARTS).await, indexed);
    // Without the ring nothing of sealed messages is found, nor indexed.
    let key = SessionKey::new("app", "ada", "s2").unwrap();
    let found = bare.search(SearchSessions::in_session(key, "bakery")).await;
    assert_eq!(found.map_err(|error| error.kind()).err(), Some(ErrorKind::Sealed));
    assert_eq!(database.count(PARTS).await, indexed);
}

#[tokio::test]
async fn a_search_in_a_sealed_store_writes_no_index() {
    for database in Database::all().await {
        Box::pin(check_search(&database)).await;
    }
}
