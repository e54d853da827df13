//! Erasures in stores that seal content: the id is taken before the key of a user is destroyed, whatever is killed in between,
//! and nothing that is not erased loses its key.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use stepfold_session_scopes::{
    AnyStore, AppId, Author, CreateSession, DataKey, EraseData, EraseTarget, ErasedData, ErasureId,
    ErrorKind, GetSession, KeyOwner, KeyRing, KeyRingError, KeyRingFuture, ListErasures, MemoryKeyRing,
    PostgresOptions, SessionError, SessionKey, SessionStore, SqliteOptions, UserId, VacuumStore,
    VerifySessions,
};
use stepfold_state_core::chat::Message;
use tokio::sync::Notify;

use crate::keys::{memory_ring, owner};
use crate::scenario::{append, at, schema, writing};
use crate::sealed::Database;

/// The point at which an erasure is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    BeforeTheKeyIsDestroyed,
    AfterIt,
    /// The ring fails.
    InTheRing,
}

/// A ring that stops an erasure.
struct StoppingRing {
    ring: Arc<MemoryKeyRing>,
    stop: Stop,
    reached: Notify,
}

impl KeyRing for StoppingRing {
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
            match self.stop {
                Stop::InTheRing => return Err(KeyRingError::new("it fails")),
                Stop::AfterIt => drop(self.ring.destroy(owner).await?),
                Stop::BeforeTheKeyIsDestroyed => {}
            }
            self.reached.notify_one();
            std::future::pending().await
        })
    }
}

async fn session(store: &AnyStore, user: &str) -> SessionKey {
    let key = SessionKey::new("app", user, "s1").unwrap();
    let request = CreateSession::with_key(key.clone(), &schema(), at(0)).values(json!({"list": ["a"]}));
    store.create(request.unwrap()).await.unwrap();
    let step = writing("e1", &[("user:name", json!("Ada"))]).with_message(Message::user("hello"));
    append(store, &key, 0, step).await.unwrap();
    key
}

fn user(name: &str) -> EraseTarget {
    EraseTarget::User { app: AppId::new("app").unwrap(), user: UserId::new(name).unwrap() }
}

/// The targets of a user.
fn targets(key: &SessionKey) -> [EraseTarget; 3] {
    [
        user(key.user.as_str()),
        EraseTarget::Session { key: key.clone() },
        EraseTarget::Events { key: key.clone(), versions: [1].into() },
    ]
}

fn request(id: &str, target: EraseTarget) -> EraseData {
    EraseData::new(ErasureId::new(id).unwrap(), target, at(9), Author::new("admin").unwrap(), "by mail")
}

async fn recorded(store: &AnyStore) -> Vec<String> {
    let list = store.erasures(ListErasures::new(AppId::new("app").unwrap())).await.unwrap();
    list.into_iter().map(|record| record.id.to_string()).collect()
}

async fn has_key(ring: &MemoryKeyRing, user: &str) -> bool {
    ring.get(&owner("app", user)).await.unwrap().is_some()
}

fn is_reused(erased: &Result<ErasedData, SessionError>) -> bool {
    matches!(erased, Err(SessionError::ErasureReused { .. }))
}

/// Everything under the id is refused for another user, who keeps key and content.
async fn check_other_user(store: &AnyStore, ring: &MemoryKeyRing, id: &str, key: &SessionKey) {
    for target in targets(key) {
        for request in [request(id, target.clone()).dry_run(), request(id, target.clone())] {
            let erased = store.erase(request).await;
            assert!(is_reused(&erased), "{target:?}: {erased:?}");
        }
    }
    assert!(has_key(ring, key.user.as_str()).await);
    let found = store.get(GetSession::new(key.clone())).await.unwrap();
    assert_eq!(found.get("user:name").unwrap(), "Ada");
}

/// Stops an erasure, as a kill would.
async fn stopped(database: &Database, ring: &Arc<MemoryKeyRing>, stop: Stop, request: EraseData) {
    let stopping = Arc::new(StoppingRing { ring: Arc::clone(ring), stop, reached: Notify::new() });
    let store = database.try_open(Some(Arc::<StoppingRing>::clone(&stopping)), false).await.unwrap();
    tokio::select! {
        erased = store.erase(request) => {
            let error = erased.unwrap_err();
            assert!(stop == Stop::InTheRing && matches!(error, SessionError::KeyRing { .. }), "{error}");
        }
        () = stopping.reached.notified() => {}
    }
}

async fn check_stopped_erasure(database: &Database, ring: &Arc<MemoryKeyRing>, stop: Stop) {
    const OPEN: &str = "stepfold_erasures WHERE kind = 'open'";
    let store = database.sealed(ring).await;
    // NOTE: no digest in hexadecimal digits has this name.
    let (zoe, bob) = (format!("zoe {stop:?}"), format!("bob {stop:?}"));
    let (of_zoe, of_bob) = (session(&store, &zoe).await, session(&store, &bob).await);
    let id = format!("x {stop:?}");
    let before = recorded(&store).await;
    stopped(database, ring, stop, request(&id, user(&zoe))).await;
    assert_eq!(recorded(&store).await, before, "{stop:?}: it is not recorded yet");
    assert_eq!(has_key(ring, &zoe).await, stop != Stop::AfterIt);
    assert_eq!(database.count(OPEN).await, 1);
    let naming = format!("{OPEN} AND (reason LIKE '%zoe%' OR author <> '' OR id LIKE '%zoe%')");
    assert_eq!(database.count(&naming).await, 0, "{stop:?}: it names nobody");
    check_other_user(&store, ring, &id, &of_bob).await;
    // Another erasure of the same user under the id is another one too.
    let erased = store.erase(request(&id, EraseTarget::Session { key: of_zoe.clone() })).await;
    assert!(is_reused(&erased), "{erased:?}");
    // The same request is repeated, and finishes.
    let erased = store.erase(request(&id, user(&zoe))).await.unwrap();
    assert_eq!((erased.sessions.len(), erased.had_key), (1, stop != Stop::AfterIt));
    assert!(!has_key(ring, &zoe).await);
    assert_eq!(recorded(&store).await.len(), before.len() + 1);
    assert_eq!(database.count(OPEN).await, 0, "{stop:?}");
    assert_eq!(store.erase(request(&id, user(&zoe))).await.unwrap(), ErasedData::default());
    check_other_user(&store, ring, &id, &of_bob).await;
    assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
}

/// An erasure that is killed at each point is finished by the same request, and no other one gets its id meanwhile.
#[tokio::test]
async fn a_killed_erasure_of_a_user_is_finished_and_its_id_is_that_of_one() {
    for database in Database::all().await {
        let ring = memory_ring();
        for stop in [Stop::BeforeTheKeyIsDestroyed, Stop::AfterIt, Stop::InTheRing] {
            Box::pin(check_stopped_erasure(&database, &ring, stop)).await;
        }
    }
}

async fn check_forgotten(database: &Database) {
    let ring = memory_ring();
    let store = database.sealed(&ring).await;
    let (_, of_bob) = (session(&store, "ada").await, session(&store, "bob").await);
    stopped(database, &ring, Stop::AfterIt, request("x1", user("ada"))).await;
    stopped(database, &ring, Stop::BeforeTheKeyIsDestroyed, request("x2", user("bob"))).await;
    store.erase(request("x3", user("ada"))).await.unwrap();
    assert_eq!(database.count("stepfold_erasures WHERE kind = 'open'").await, 1, "that of bob");
    check_other_user(&store, &ring, "x3", &of_bob).await;
    assert_eq!(store.erase(request("x1", user("ada"))).await.unwrap(), ErasedData::default());
    store.erase(request("x2", user("bob"))).await.unwrap();
    assert_eq!(database.count("stepfold_erasures").await, 3);
}

/// A user who is erased under another id leaves nothing of a killed erasure.
#[tokio::test]
async fn a_killed_erasure_is_forgotten_with_its_user() {
    for database in Database::all().await {
        Box::pin(check_forgotten(&database)).await;
    }
}

/// Whether a file of a folder has these bytes.
fn is_in_files(folder: &Path, bytes: &[u8]) -> bool {
    let mut entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.any(|path| match path.is_dir() {
        true => is_in_files(&path, bytes),
        // A server removes files meanwhile.
        false => fs::read(path).is_ok_and(|read| memchr::memmem::find(&read, bytes).is_some()),
    })
}

async fn check_vacuumed(database: &Database) {
    let (ring, id) = (memory_ring(), format!("killed {}", std::process::id()));
    let (folder, open) = (database.files_of_tables(), format!("{id}\nopen").into_bytes());
    let store = database.sealed(&ring).await;
    session(&store, "ada").await;
    stopped(database, &ring, Stop::AfterIt, request(&id, user("ada"))).await;
    if let Database::Postgres(..) = database {
        database.run("CHECKPOINT").await;
    }
    assert!(is_in_files(&folder, &open), "the test finds nothing");
    store.erase(request(&id, user("ada"))).await.unwrap();
    store.vacuum(VacuumStore::new()).await.unwrap();
    assert!(!is_in_files(&folder, &open));
    assert!(is_in_files(&folder, id.as_bytes()), "the record is there");
}

/// The row that keeps the id of an erasure is in no file after a vacuum.
#[tokio::test]
async fn an_erasure_that_has_ended_leaves_no_byte_of_its_beginning() {
    for database in Database::all().await {
        Box::pin(check_vacuumed(&database)).await;
    }
}

/// Of erasures of several users under one id, at once and by several processes, one is done, and the others have lost nothing.
async fn check_race(database: &Database, rounds: usize) {
    let ring = memory_ring();
    let stores = [database.sealed(&ring).await, database.sealed(&ring).await, database.sealed(&ring).await];
    for round in 0..rounds {
        let names: Vec<String> = (0..stores.len()).map(|number| format!("u{round} {number}")).collect();
        let mut keys = Vec::new();
        for name in &names {
            keys.push(session(&stores[0], name).await);
        }
        let erasures =
            stores.iter().zip(&names).zip(&keys).enumerate().map(|(number, ((store, name), key))| {
                // One of them erases a session alone.
                let is_session = number == round % 4;
                let target = if is_session { EraseTarget::Session { key: key.clone() } } else { user(name) };
                let (store, erasure) = (store.clone(), request(&format!("x{round}"), target));
                tokio::spawn(async move { store.erase(erasure).await })
            });
        let mut erased = Vec::new();
        for erasure in erasures.collect::<Vec<_>>() {
            erased.push(erasure.await.unwrap());
        }
        assert_eq!(erased.iter().filter(|erased| erased.is_ok()).count(), 1, "{erased:?}");
        for ((name, key), erased) in names.iter().zip(&keys).zip(&erased) {
            if erased.is_err() {
                assert!(is_reused(erased), "{erased:?}");
                assert!(has_key(&ring, name).await, "{name} is not erased");
                assert!(stores[0].get(GetSession::new(key.clone())).await.is_ok());
            }
        }
    }
    assert_eq!(database.count("stepfold_erasures").await, i64::try_from(rounds).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_erasure_has_destroyed_no_key() {
    for database in Database::all().await {
        Box::pin(check_race(&database, 12)).await;
    }
}

/// The same request at once is one erasure, whose other answers are empty.
async fn check_equal_requests(database: &Database) {
    let ring = memory_ring();
    let stores = [database.sealed(&ring).await, database.sealed(&ring).await, database.sealed(&ring).await];
    for round in 0..6 {
        let name = format!("u{round}");
        session(&stores[0], &name).await;
        let erasures = stores.iter().map(|store| {
            let (store, erasure) = (store.clone(), request(&name, user(&name)));
            tokio::spawn(async move { store.erase(erasure).await })
        });
        let mut sessions = 0;
        for erasure in erasures.collect::<Vec<_>>() {
            sessions += erasure.await.unwrap().unwrap().sessions.len();
        }
        assert_eq!((sessions, has_key(&ring, &name).await), (1, false));
    }
    assert_eq!(database.count("stepfold_erasures").await, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_erasures_of_a_user_at_once_are_one() {
    for database in Database::all().await {
        Box::pin(check_equal_requests(&database)).await;
    }
}

async fn check_without_ring(database: &Database) {
    let ring = memory_ring();
    let store = database.sealed(&ring).await;
    let (ada, _) = (session(&store, "ada").await, session(&store, "bob").await);
    let bare = database.open().await;
    let [user_of_ada, of_session, of_events] = targets(&ada);
    for target in [user_of_ada, of_events, user("nobody")] {
        for request in [request("x1", target.clone()).dry_run(), request("x1", target.clone())] {
            let error = bare.erase(request).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Sealed, "{target:?}");
            assert!(error.to_string().contains("open it with the ring"), "{error}");
        }
    }
    assert!(has_key(&ring, "ada").await);
    assert_eq!(store.get(GetSession::new(ada)).await.unwrap().get("user:name").unwrap(), "Ada");
    assert_eq!(database.count("stepfold_erasures").await, 0);
    // Rows are deleted as they are: the key stays, for what else the user has.
    assert_eq!(bare.erase(request("x2", of_session)).await.unwrap().sessions.len(), 1);
    assert!(has_key(&ring, "ada").await && has_key(&ring, "bob").await);
    assert_eq!(bare.verify(VerifySessions::all()).await.unwrap().faults, []);
    // The key that is left goes with the user.
    assert!(store.erase(request("x3", user("ada"))).await.unwrap().had_key);
    assert!(!has_key(&ring, "ada").await);
}

/// Without the ring the key would stay, and with it the content of backups.
#[tokio::test]
async fn a_store_without_its_ring_erases_sessions_alone() {
    for database in Database::all().await {
        Box::pin(check_without_ring(&database)).await;
    }
}

async fn check_key_alone(database: &Database) {
    let ring = memory_ring();
    let store = database.sealed(&ring).await;
    ring.make(&owner("app", "ada")).await.unwrap();
    let dry = store.erase(request("x1", user("ada")).dry_run()).await.unwrap();
    assert!(dry.had_key && dry.sessions.is_empty() && has_key(&ring, "ada").await);
    let erased = store.erase(request("x1", user("ada"))).await.unwrap();
    assert!(erased.had_key && !has_key(&ring, "ada").await);
    assert_eq!(store.erase(request("x1", user("ada"))).await.unwrap(), ErasedData::default());
    // A key that was made since, or that of another user, is more than the erasure of this id.
    for name in ["ada", "bob"] {
        ring.make(&owner("app", name)).await.unwrap();
        let erased = store.erase(request("x1", user(name))).await;
        assert!(is_reused(&erased) && has_key(&ring, name).await, "{erased:?}");
    }
}

#[tokio::test]
async fn a_user_of_whom_only_the_key_is_left_is_erased() {
    for database in Database::all().await {
        Box::pin(check_key_alone(&database)).await;
    }
}

async fn stored_ring(address: &str) -> Option<String> {
    match address.starts_with("postgres://") {
        true => PostgresOptions::new(address).stored_ring().await.unwrap(),
        false => SqliteOptions::new(address).stored_ring().unwrap(),
    }
}

#[tokio::test]
async fn a_store_tells_the_name_of_its_ring_before_it_is_opened() {
    for database in Database::all().await {
        let address = database.address();
        assert_eq!(stored_ring(&address).await, None, "it has no tables");
        drop(database.open().await);
        assert_eq!(stored_ring(&address).await, None);
        drop(database.sealed(&memory_ring()).await);
        assert_eq!(stored_ring(&address).await.as_deref(), Some("memory"));
    }
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.db");
    assert_eq!(stored_ring(&missing.display().to_string()).await, None);
    assert!(!missing.exists());
}
