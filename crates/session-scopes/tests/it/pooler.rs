//! PostgreSQL through PgBouncer in transaction mode: each transaction may get another connection of the server.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use stepfold_session_scopes::{PostgresOptions, PostgresStore, SessionStore, WatchStore};
use tokio_postgres::NoTls;

use crate::pgbouncer::Pooler;
use crate::scenario::{append, create, event, get, key, writing};
use crate::server::server;

/// What a worker sets holds in its transactions, and is in no connection that others use.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_keeps_none_of_our_settings() {
    let Some(server) = server() else { return };
    let url = server.database("pooler_settings").await;
    let Some(pooler) = Pooler::start(&url, "transaction", 3) else { return };
    let options = PostgresOptions::new(pooler.url(&url)).lock_timeout(Duration::from_millis(321));
    let store = options.open().await.unwrap();
    create(&store, &key("s")).await;
    for version in 0..20 {
        append(&store, &key("s"), version, writing(version, &[("n", json!(1))])).await.unwrap();
    }
    let (other, connection) = tokio_postgres::connect(&pooler.url(&url), NoTls).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut seen = BTreeSet::new();
    for _ in 0..10 {
        let rows = other.simple_query("SHOW lock_timeout").await.unwrap();
        seen.extend(rows.iter().filter_map(|row| match row {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        }));
    }
    assert_eq!(seen, BTreeSet::from(["0".to_owned()]));
    drop(other);
    let _ = driver.await;

    // A row that is locked is waited for as long as we say.
    let (holder, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    let driver = tokio::spawn(connection);
    holder.batch_execute("BEGIN; SELECT * FROM stepfold_sessions FOR UPDATE").await.unwrap();
    let session = key("s");
    let late = append(&store, &session, 20, writing("late", &[("n", json!(1))]));
    let waited = tokio::time::timeout(Duration::from_secs(10), late);
    waited.await.expect("the lock is waited for a bounded time").unwrap_err();
    drop(holder);
    let _ = driver.await;
}

/// One connection of the server for each of ours is no pooler that matters, nor is a server itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_of_sessions_is_as_the_server_itself() {
    let Some(server) = server() else { return };
    let url = server.database("pooled_sessions").await;
    let Some(pooler) = Pooler::start(&url, "session", 40) else { return };
    for url in [pooler.url(&url), url] {
        let store = PostgresStore::open(url).await.unwrap();
        assert!(store.notices(WatchStore::new().named()).await.is_ok());
    }
}

/// Many workers over few connections.
#[tokio::test(flavor = "multi_thread")]
async fn workers_share_the_connections_of_a_pooler() {
    let Some(server) = server() else { return };
    let url = server.database("pooled_workers").await;
    let Some(pooler) = Pooler::start(&url, "transaction", 3) else { return };
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let url = pooler.url(&url);
            tokio::spawn(async move {
                let store = PostgresStore::open(url).await.unwrap();
                let key = key(worker);
                create(&store, &key).await;
                for version in 0..30 {
                    let writes = [("n", json!(1)), ("app:n", json!(1))];
                    let written = if version % 2 == 0 { event(version) } else { writing(version, &writes) };
                    append(&store, &key, version, written).await.unwrap();
                }
                get(&store, &key).await.version
            })
        })
        .collect();
    for worker in workers {
        assert_eq!(worker.await.unwrap(), 30);
    }
}
