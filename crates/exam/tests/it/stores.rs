//! Our own stores take the exam.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use stepfold_exam::{StoreExam, StoreExamReport};
use stepfold_session_scopes::{
    Durability, KeyFile, MemoryKeyRing, MemoryStore, PostgresOptions, PostgresStore, SessionStore,
    SqliteOptions, SqliteStore, WatchStore, WrappingKey,
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

/// A store with a key ring is a store: all laws hold for sealed content.
#[tokio::test(flavor = "multi_thread")]
async fn sqlite_with_a_key_ring() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("sessions.db")).key_ring(Arc::new(ring()));
    let store = options.open().unwrap();
    check(StoreExam::new("sealed", async || Ok(store.clone())).without_listed_messages().run().await);
}

/// A ring whose keys are numbers.
fn ring() -> MemoryKeyRing {
    let drawn = AtomicU8::new(0);
    MemoryKeyRing::new("exam", move |bytes: &mut [u8]| {
        bytes.fill(drawn.fetch_add(1, Ordering::Relaxed));
        Ok(())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    let Some(server) = server() else { return };
    let url = server.database("contract").await;
    let store = PostgresStore::open(url).await.unwrap();
    check(StoreExam::new("postgres", async || Ok(store.clone())).run().await);
}

/// A store with a ring in a file, over PostgreSQL and through a pooler of it, in which only transactions have settings.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_with_a_key_ring_in_a_file() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    let url = server.database("sealed_contract").await;
    let pooled = server.database("sealed_pooled").await;
    let pooler = Pooler::start(&pooled, "transaction", 5);
    let pooled = pooler.as_ref().map(|pooler| pooler.url(&pooled));
    for (number, url) in [Some(url), pooled].into_iter().flatten().enumerate() {
        let ring = key_file(&folder.path().join(format!("ring{number}.json")));
        let store = PostgresOptions::new(url).key_ring(Arc::new(ring)).open().await.unwrap();
        let exam = StoreExam::new("sealed", async || Ok(store.clone())).without_listed_messages();
        check(exam.run().await);
    }
}

fn key_file(path: &Path) -> KeyFile {
    let drawn = AtomicU8::new(0);
    let random = move |bytes: &mut [u8]| {
        bytes.fill(drawn.fetch_add(1, Ordering::Relaxed));
        Ok(())
    };
    KeyFile::open(path, vec![WrappingKey::new(&"k".repeat(32)).unwrap()], random).unwrap()
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
