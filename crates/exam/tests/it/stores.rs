//! Our own stores take the exam.

use stepfold_exam::{StoreExam, StoreExamReport};
use stepfold_session_scopes::{
    Durability, MemoryStore, PostgresStore, SessionStore, SqliteOptions, SqliteStore, WatchStore,
};

use crate::pgbouncer::Pooler;
use crate::server::server;

fn check(report: StoreExamReport) {
    let passed = report.passed().unwrap_or_else(|report| panic!("{report}"));
    assert!(passed.len() > 50, "only {} cases ran", passed.len());
}

#[tokio::test]
async fn memory() {
    check(StoreExam::new("memory", async || Ok(MemoryStore::new())).run().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("sessions.db")).unwrap();
    check(StoreExam::new("sqlite", async || Ok(store.clone())).run().await);
}

/// A task that finds the writer idle writes without the writer's thread.
#[tokio::test(flavor = "multi_thread")]
async fn sqlite_that_does_not_flush() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("sessions.db")).durability(Durability::Process);
    let store = options.open().unwrap();
    check(StoreExam::new("sqlite", async || Ok(store.clone())).run().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    let Some(server) = server() else { return };
    let url = server.database("contract").await;
    let store = PostgresStore::open(url).await.unwrap();
    check(StoreExam::new("postgres", async || Ok(store.clone())).run().await);
}

/// All laws of a store, over a pooler with few connections and with one.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_through_a_pooler_is_one() {
    let Some(server) = server() else { return };
    for connections in [1, 5] {
        let url = server.database(&format!("pooled_{connections}")).await;
        let Some(pooler) = Pooler::start(&url, "transaction", connections) else { return };
        let store = PostgresStore::open(pooler.url(&url)).await.unwrap();
        let report = StoreExam::new("pooled", async || Ok(store.clone())).run().await;
        let passed = report.passed().unwrap_or_else(|report| panic!("{connections}: {report}"));
        assert!(passed.len() > 50, "only {} cases ran", passed.len());
        // It says that nothing can be heard, so that who would listen looks.
        assert!(store.notices(WatchStore::new()).await.is_err());
    }
}
