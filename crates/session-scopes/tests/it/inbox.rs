//! What reading an inbox costs: bodies that are not asked for stay where they are.

use stepfold_session_scopes::{
    CreateSession, EnqueueInput, IdempotencyKey, InboxKind, MemoryStore, ReadInbox, SessionKey,
    SessionSchema, SessionStore, Timestamp,
};

const AT: Timestamp = Timestamp::from_micros(1);

async fn filled(store: &impl SessionStore, bodies: &[String]) -> (SessionKey, Vec<u64>) {
    let schema = SessionSchema::new(stepfold_state_core::state::Schema::default());
    let key = store.create(CreateSession::new("app", "alice", &schema, AT).unwrap()).await.unwrap().key;
    let mut positions = Vec::new();
    for (number, body) in bodies.iter().enumerate() {
        let id = IdempotencyKey::new(format!("m{number}")).unwrap();
        let input = EnqueueInput::new(key.clone(), InboxKind::Message, id, body.as_str(), AT);
        positions.push(store.enqueue(input).await.unwrap().position);
    }
    (key, positions)
}

async fn check(store: impl SessionStore) {
    let bodies = ["short".to_owned(), "long ".repeat(20_000), "longer ".repeat(20_000)];
    let (key, positions) = filled(&store, &bodies).await;
    let heads = store.inbox(ReadInbox::new(key.clone()).without_bodies_over(4_096)).await.unwrap();
    let found: Vec<_> = heads.iter().map(|entry| (entry.idempotency_key.as_str(), entry.has_body)).collect();
    assert_eq!(found, [("m0", true), ("m1", false), ("m2", false)]);
    let taken = store.inbox(ReadInbox::new(key).only([positions[2]])).await.unwrap();
    assert_eq!(taken.len(), 1);
    assert_eq!((taken[0].position, taken[0].body.as_str()), (positions[2], Some(&*bodies[2])));
}

#[tokio::test]
async fn memory() {
    check(MemoryStore::new()).await;
}

#[tokio::test]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    check(stepfold_session_scopes::SqliteStore::open(folder.path().join("sessions.db")).unwrap()).await;
}

#[tokio::test]
async fn postgres() {
    let Some(server) = crate::server::server() else { return };
    let url = server.database("inbox").await;
    check(stepfold_session_scopes::PostgresStore::open(url).await.unwrap()).await;
}

/// A body that was left out is verified when it is read, and a missing entry is found without any body.
#[tokio::test]
async fn what_was_left_out_is_verified_before_it_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let store = stepfold_session_scopes::SqliteStore::open(&path).unwrap();
    let (key, positions) = filled(&store, &["long ".repeat(2_000), "other ".repeat(2_000)]).await;
    let change = |statement: &str| rusqlite::Connection::open(&path).unwrap().execute(statement, []).unwrap();
    assert_eq!(change("UPDATE stepfold_inbox SET body = replace(body, 'long', 'lone')"), 2);
    let heads = || store.inbox(ReadInbox::new(key.clone()).without_bodies_over(100));
    let only = |place: usize| store.inbox(ReadInbox::new(key.clone()).only([positions[place]]));
    assert_eq!(heads().await.unwrap().len(), 2);
    assert!(only(0).await.unwrap_err().to_string().contains("inbox entry 1"));
    assert!(only(1).await.is_ok());
    assert_eq!(change("DELETE FROM stepfold_inbox WHERE position = 1"), 1);
    assert!(heads().await.is_err() && only(1).await.is_err());
}
