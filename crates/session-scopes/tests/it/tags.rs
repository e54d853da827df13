//! Damage to the index of tags, which no read of an event notices.

use stepfold_session_scopes::{
    FaultPlace, FindTagged, PostgresStore, SessionStore, SqliteStore, StoreFaultKind, VerifySessions,
};

use crate::scenario::{append, create, event, key};
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
