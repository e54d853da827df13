//! Our own stores take the exam.

use stepfold_session_scopes::MemoryStore;
use stepfold_session_scopes::contract::{StoreExam, StoreExamReport};

fn check(report: StoreExamReport) {
    let passed = report.passed().unwrap_or_else(|report| panic!("{report}"));
    assert!(passed.len() > 50, "only {} cases ran", passed.len());
}

#[tokio::test]
async fn memory() {
    check(StoreExam::new("memory", async || Ok(MemoryStore::new())).run().await);
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = stepfold_session_scopes::SqliteStore::open(folder.path().join("sessions.db")).unwrap();
    check(StoreExam::new("sqlite", async || Ok(store.clone())).run().await);
}

/// A task that finds the writer idle writes without the writer's thread.
#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn sqlite_that_does_not_flush() {
    use stepfold_session_scopes::{Durability, SqliteOptions};

    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("sessions.db")).durability(Durability::Process);
    let store = options.open().unwrap();
    check(StoreExam::new("sqlite", async || Ok(store.clone())).run().await);
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    let Some(server) = crate::server::server() else { return };
    let url = server.database("contract").await;
    let store = stepfold_session_scopes::PostgresStore::open(url).await.unwrap();
    check(StoreExam::new("postgres", async || Ok(store.clone())).run().await);
}
