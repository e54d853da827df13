//! Look-ups of events: by an index as without one, and damage to an index, which no read of an event notices.

use proptest::prelude::*;
use stepfold_session_scopes::{
    AnyStore, AppendEvent, Author, CreateSession, DeleteSession, Deleted, Durability, EventId, FaultPlace,
    FindEvent, FindTagged, ForkSession, GetSession, InvocationId, ListSessions, MemoryStore, PostgresStore,
    PruneBound, PruneSession, Pruned, Receipt, RewindSession, ScopeKey, ScopeValues, Session, SessionError,
    SessionId, SessionKey, SessionPage, SessionStore, SqliteOptions, SqliteStore, StoreFaultKind,
    VerifySessions, WriteScope,
};

use crate::scenario::{append, at, create, event, key};
use crate::server::server;

/// A session with three events, each with a tag.
async fn written(store: &impl SessionStore) {
    create(store, &key("s")).await;
    for version in 0..3 {
        let event = event(format!("e{version}")).with_tag(format!("tag {version}"));
        append(store, &key("s"), version, event).await.unwrap();
    }
    let tags = FindTagged::new(key("s"), ["tag 0", "tag 2", "tag 3"]);
    assert_eq!(store.find_tagged(tags).await.unwrap(), [Some(1), Some(3), None]);
    assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
}

/// One row is gone, one is that of another version.
const DAMAGE: &str =
    "DELETE FROM stepfold_tags WHERE version = 1; UPDATE stepfold_tags SET version = 2 WHERE version = 3;";

async fn checked(store: &impl SessionStore) {
    let faults = store.verify(VerifySessions::session(key("s"))).await.unwrap().faults;
    let found: Vec<_> = faults.iter().map(|fault| (fault.place.clone(), fault.kind)).collect();
    let at = |version| FaultPlace::Versions(key("s"), version..=version);
    let expected = [
        (at(1), StoreFaultKind::Missing),
        (at(2), StoreFaultKind::Damaged),
        (at(3), StoreFaultKind::Missing),
    ];
    assert_eq!(found, expected, "{faults:?}");
}

#[tokio::test]
async fn verify_compares_the_index_of_a_file_with_the_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let store = SqliteStore::open(&path).unwrap();
    written(&store).await;
    rusqlite::Connection::open(&path).unwrap().execute_batch(DAMAGE).unwrap();
    checked(&store).await;
}

#[tokio::test]
async fn verify_compares_the_index_of_a_database_with_the_events() {
    let Some(server) = server() else { return };
    let store = PostgresStore::open(server.database("tags").await).await.unwrap();
    written(&store).await;
    server.run("tags", DAMAGE).await;
    checked(&store).await;
}

/// A store that has no index of its own.
struct WithoutIndex(AnyStore);

impl SessionStore for WithoutIndex {
    hand_on! {
        create: CreateSession => Session;
        get: GetSession => Session;
        list: ListSessions => SessionPage;
        delete: DeleteSession => Deleted;
        append: AppendEvent => Receipt;
        fork: ForkSession => Session;
        rewind: RewindSession => Receipt;
        read_scope: ScopeKey => ScopeValues;
        write_scope: WriteScope => ScopeValues;
        prune: PruneSession => Pruned;
    }
}

/// A change of one of the sessions.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// So many events, the last of which has these two tags.
    Append {
        events: u64,
        tags: (u8, u8),
    },
    Rewind {
        percent: u64,
    },
    Fork {
        percent: u64,
    },
    Prune {
        percent: u64,
    },
}

fn deed() -> impl Strategy<Value = Deed> {
    // More events than the first read has.
    let append = (prop_oneof![6 => 1..4_u64, 1 => 60..70_u64], (0..4_u8, 0..4_u8));
    prop_oneof![
        5 => append.prop_map(|(events, tags)| Deed::Append { events, tags }),
        2 => (0..=100_u64).prop_map(|percent| Deed::Rewind { percent }),
        2 => (0..=100_u64).prop_map(|percent| Deed::Fork { percent }),
        1 => (0..=100_u64).prop_map(|percent| Deed::Prune { percent }),
    ]
}

/// Does it, and returns a session that it made.
async fn make(store: &AnyStore, number: usize, of: &SessionKey, deed: Deed) -> Option<SessionKey> {
    let session = store.get(GetSession::new(of.clone())).await.unwrap();
    let place = |percent: u64| session.oldest + (session.version - session.oldest) * percent / 100;
    match deed {
        Deed::Append { events, tags: (one, other) } => {
            for place in 0..events {
                let event = event(format!("e{number}.{place}"));
                let event = match place + 1 == events {
                    true => event.with_tag(format!("tag {one}")).with_tag(format!("tag {other}")),
                    false => event,
                };
                append(store, of, session.version + place, event).await.unwrap();
            }
        }
        Deed::Rewind { percent } => {
            let (to, author) = (place(percent), Author::new("user").unwrap());
            let id = EventId::new(format!("e{number}.0")).unwrap();
            let run = InvocationId::new("i").unwrap();
            let rewind = RewindSession::new(of.clone(), session.version, to, id, run, author, at(1));
            store.rewind(rewind).await.unwrap();
        }
        Deed::Fork { percent } => {
            let fork = ForkSession::new(of.clone(), at(2)).at_version(place(percent));
            let fork = fork.with_id(SessionId::new(format!("fork {number}")).unwrap());
            return Some(store.fork(fork).await.unwrap().key);
        }
        Deed::Prune { percent } => {
            let prune = PruneSession::new(of.clone(), PruneBound::Version(place(percent)));
            store.prune(prune).await.unwrap();
        }
    }
    None
}

/// Whatever was done: an index finds what a search of the events finds.
async fn finds_the_same(store: AnyStore, deeds: Vec<(usize, Deed)>) {
    let without = WithoutIndex(store.clone());
    let mut keys = vec![key("s")];
    create(&store, &keys[0]).await;
    for (number, (of, deed)) in deeds.iter().enumerate() {
        let of = keys[of % keys.len()].clone();
        keys.extend(make(&store, number, &of, *deed).await);
        for key in &keys {
            let tags = FindTagged::new(key.clone(), (0..5).map(|tag| format!("tag {tag}")));
            let found = store.find_tagged(tags.clone()).await.unwrap();
            assert_eq!(without.find_tagged(tags).await.unwrap(), found, "{key} after {deed:?}");
            for number in 0..=number {
                let id = EventId::new(format!("e{number}.0")).unwrap();
                let find = FindEvent::new(key.clone(), id);
                let found = store.find_event(find.clone()).await.unwrap();
                assert_eq!(without.find_event(find).await.unwrap(), found, "{key} after {deed:?}");
            }
        }
    }
    let nothing = without.find_tagged(FindTagged::new(key("nothing"), ["tag 0"])).await;
    assert!(matches!(nothing, Err(SessionError::NotFound { .. })));
}

proptest! {
    // Each case is dozens of searches in two stores.
    #![proptest_config(ProptestConfig { cases: (ProptestConfig::default().cases / 4).max(1), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_are_found_without_an_index_as_with_one(
        deeds in prop::collection::vec((0..8_usize, deed()), 1..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(finds_the_same(AnyStore::new(MemoryStore::new()), deeds.clone()));
        let folder = tempfile::tempdir().unwrap();
        let file = SqliteOptions::new(folder.path().join("sessions.db")).durability(Durability::Process);
        runtime.block_on(finds_the_same(AnyStore::new(file.open().unwrap()), deeds));
    }
}
