//! Starting: many at once, foreign tables, newer tables, connections that went away.

use futures_util::future::join_all;
use stepfold_session_scopes::{
    ErrorKind, ListRaises, PostgresOptions, PostgresStore, SearchSessions, SessionError, SessionStore as _,
    SqliteOptions, SqliteStore,
};

use crate::keys::memory_ring;
use crate::scenario::{append, create, event, get, key};
use crate::server::server;

#[test]
fn many_instances_set_a_file_up_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let threads: Vec<_> = (0..16)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || SqliteStore::open(path).map(drop))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_instances_set_a_database_up_at_once() {
    let Some(server) = server() else { return };
    let url = server.database("at_once").await;
    for store in join_all((0..16).map(|_| PostgresStore::open(url.clone()))).await {
        store.unwrap().check().await.unwrap();
    }
}

/// A transaction that writes to one table after the other does not wait for a set-up that waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_ring_and_a_long_transaction_do_not_wait_for_each_other() {
    let Some(server) = server() else { return };
    let url = server.database("ring_lock").await;
    let store = PostgresStore::open(url.clone()).await.unwrap();
    create(&store, &key("s")).await;
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    let driver = tokio::spawn(connection);
    client.batch_execute("BEGIN; LOCK TABLE stepfold_inbox IN ROW EXCLUSIVE MODE").await.unwrap();
    let options = PostgresOptions::new(&url).key_ring(memory_ring());
    let opened = tokio::spawn(async move { options.open().await });
    let waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'stepfold_inbox'::regclass";
    while client.query(waits, &[]).await.unwrap().is_empty() {}
    // The set-up has the lock of this table.
    client.batch_execute("LOCK TABLE stepfold_events IN ROW EXCLUSIVE MODE; COMMIT").await.unwrap();
    opened.await.unwrap().unwrap();
    let error = append(&store, &key("s"), 0, event("e1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Sealed, "{error:?}");
    drop(client);
    driver.await.unwrap().unwrap();
}

#[test]
fn a_foreign_table_is_an_error_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    for (number, sql) in FOREIGN.into_iter().enumerate() {
        let path = folder.path().join(number.to_string());
        rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        check_foreign(SqliteStore::open(&path).map(drop));
    }
    let path = folder.path().join("other");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE sessions (id TEXT)").unwrap();
    SqliteStore::open(&path).unwrap();
}

const FOREIGN: [&str; 3] = [
    "CREATE TABLE stepfold_events (something TEXT)",
    "CREATE TABLE stepfold_meta (something TEXT)",
    "CREATE TABLE stepfold_meta (made_by TEXT, format INTEGER)",
];

fn check_foreign(opened: Result<(), SessionError>) {
    let error = opened.unwrap_err();
    assert!(matches!(error, SessionError::ForeignTable { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("not created by stepfold"), "{error}");
}

#[tokio::test]
async fn a_foreign_table_of_a_database_is_an_error_that_says_so() {
    let Some(server) = server() else { return };
    for (number, sql) in FOREIGN.into_iter().enumerate() {
        let name = format!("foreign_{number}");
        let url = server.database(&name).await;
        server.run(&name, sql).await;
        check_foreign(PostgresStore::open(url).await.map(drop));
    }
}

#[tokio::test]
async fn newer_tables_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    SqliteStore::open(&path).unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch("UPDATE stepfold_meta SET format = 99").unwrap();
    let error = SqliteStore::open(&path).unwrap_err();
    assert!(matches!(error, SessionError::NewerFormat { found: 99, supported: 9, .. }), "{error:?}");
    let Some(server) = server() else { return };
    let url = server.database("newer").await;
    PostgresStore::open(url.clone()).await.unwrap();
    server.run("newer", "UPDATE stepfold_meta SET format = 99").await;
    let error = PostgresStore::open(url).await.unwrap_err();
    assert!(matches!(error, SessionError::NewerFormat { found: 99, supported: 9, .. }), "{error:?}");
}

/// Reading makes and upgrades nothing, and writes nothing.
#[tokio::test]
async fn a_database_that_is_read_only_stays_as_it_is() {
    let Some(server) = server() else { return };
    let url = server.database("only_read").await;
    for options in [PostgresOptions::new(&url).read_only(), PostgresOptions::new(&url).must_exist()] {
        let error = options.open().await.unwrap_err();
        assert!(matches!(&error, SessionError::NoStore { .. }), "{error:?}");
        assert!(error.to_string().contains("only_read") && !error.to_string().contains("://"), "{error}");
    }
    let store = PostgresStore::open(url.clone()).await.unwrap();
    create(&store, &key("s")).await;
    append(&store, &key("s"), 0, event("e1")).await.unwrap();
    let reader = PostgresOptions::new(&url).read_only().open().await.unwrap();
    assert_eq!(get(&reader, &key("s")).await.version, 1);
    let error = append(&reader, &key("s"), 1, event("e2")).await.unwrap_err();
    assert!(matches!(error, SessionError::ReadOnly), "{error:?}");
    let found = reader.search(SearchSessions::in_session(key("s"), "word")).await;
    assert!(found.is_ok(), "{found:?}");
    assert_eq!(get(&store, &key("s")).await.version, 1);

    // Tables of an earlier version are read where that is possible, and stay.
    let seventh = "DROP TABLE stepfold_raises; ALTER TABLE stepfold_meta DROP COLUMN ring; UPDATE stepfold_meta SET format = 7";
    server.run("only_read", seventh).await;
    let reader = PostgresOptions::new(&url).read_only().open().await.unwrap();
    assert_eq!(get(&reader, &key("s")).await.version, 1);
    let error = reader.raises(ListRaises::new()).await.unwrap_err();
    assert!(matches!(error, SessionError::OlderFormat { found: 7, .. }), "{error:?}");
    server.run("only_read", "UPDATE stepfold_meta SET format = 2").await;
    let error = PostgresOptions::new(&url).read_only().open().await.unwrap_err();
    assert!(matches!(error, SessionError::OlderFormat { found: 2, .. }), "{error:?}");
    server.run("only_read", "UPDATE stepfold_meta SET format = 7").await;
    PostgresOptions::new(&url).must_exist().open().await.unwrap();
    let newest = PostgresOptions::new(&url).read_only().open().await;
    assert!(newest.is_ok(), "{newest:?}");
}

/// A file of an earlier version is read as it is; what that version did not have is not there, and not a damage.
#[tokio::test]
async fn a_read_of_an_earlier_file_says_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let store = SqliteStore::open(&path).unwrap();
    create(&store, &key("s")).await;
    drop(store);
    let earlier = "DROP TABLE stepfold_raises; UPDATE stepfold_meta SET format = 7";
    rusqlite::Connection::open(&path).unwrap().execute_batch(earlier).unwrap();
    let reader = SqliteOptions::new(&path).read_only().open().unwrap();
    assert_eq!(get(&reader, &key("s")).await.version, 0);
    let error = reader.raises(ListRaises::new()).await.unwrap_err();
    assert!(matches!(error, SessionError::OlderFormat { found: 7, .. }), "{error:?}");
}

/// A database that accepts no connections for now is not broken.
#[tokio::test]
async fn a_database_that_accepts_no_connections_may_do_so_later() {
    let Some(server) = server() else { return };
    let url = server.database("closed_for_now").await;
    server.run("postgres", "ALTER DATABASE closed_for_now WITH ALLOW_CONNECTIONS false").await;
    let error = PostgresStore::open(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error:?}");
}

/// A file of another line of development has the number of our version as well.
#[test]
fn tables_of_another_layout_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (number, (sql, missing)) in [
        ("ALTER TABLE stepfold_cells DROP COLUMN ladder", "stepfold_cells.ladder"),
        ("DROP TABLE stepfold_recent", "stepfold_recent.app"),
        ("DROP INDEX stepfold_events_by_id", "stepfold_events_by_id"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = folder.path().join(number.to_string());
        SqliteStore::open(&path).unwrap();
        SqliteStore::open(&path).unwrap();
        rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let error = SqliteStore::open(&path).unwrap_err();
        assert!(matches!(&error, SessionError::OtherLayout { format: 9, .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert!(error.to_string().contains(missing), "{error}");
    }
}

#[test]
fn no_database_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    std::fs::write(&path, "this is no database, and long enough to be looked at: ".repeat(50)).unwrap();
    let error = SqliteStore::open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Broken, "{error:?}");
}

/// Waiting for a busy file ends after the configured timeout, and may be retried.
#[tokio::test]
async fn a_busy_file_is_waited_for_and_not_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let options = stepfold_session_scopes::SqliteOptions::new(&path);
    let store = options.busy_timeout(std::time::Duration::from_millis(50)).open().unwrap();
    create(&store, &key("s")).await;
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = append(&store, &key("s"), 0, event("e")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error:?}");
    // Reading is not held up at all.
    assert_eq!(get(&store, &key("s")).await.version, 0);
    other.execute_batch("COMMIT").unwrap();
    assert_eq!(append(&store, &key("s"), 0, event("e")).await.unwrap().version, 1);
}

#[tokio::test]
async fn connections_that_the_server_closed_are_replaced() {
    let Some(server) = server() else { return };
    let store = PostgresStore::open(server.database("closed").await).await.unwrap();
    create(&store, &key("s")).await;
    for version in 0..3 {
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                    WHERE datname = 'closed' AND pid <> pg_backend_pid()";
        server.run("closed", kill).await;
        // The first may find out the hard way, which is an error of the kind that is tried again.
        let receipt = loop {
            match append(&store, &key("s"), version, event(version)).await {
                Ok(receipt) => break receipt,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Transient, "{error:?}"),
            }
        };
        assert_eq!(receipt.version, version + 1);
    }
}

/// A future that is dropped in the middle leaves a store that works, and an operation made or not.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_futures_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    dropped(SqliteStore::open(folder.path().join("sessions.db")).unwrap()).await;
    let Some(server) = server() else { return };
    dropped(PostgresStore::open(server.database("dropped").await).await.unwrap()).await;
}

async fn dropped(store: impl stepfold_session_scopes::SessionStore) {
    use futures_util::FutureExt;

    create(&store, &key("s")).await;
    let mut version = 0;
    for attempt in 0..60u64 {
        let writes = [("n", serde_json::json!(1)), ("app:n", serde_json::json!(1))];
        let event = crate::scenario::writing(attempt, &writes);
        let key = key("s");
        let mut future = Box::pin(append(&store, &key, version, event.clone()));
        for _ in 0..attempt % 6 {
            if future.as_mut().now_or_never().is_none() {
                tokio::task::yield_now().await;
            } else {
                break;
            }
        }
        drop(future);
        // Whether it was made or not: asked for again, it is there once.
        version = append(&store, &key, version, event).await.unwrap().version;
    }
    let session = get(&store, &key("s")).await;
    assert_eq!((session.version, session.events.len()), (60, 60));
    assert_eq!(session.get("n").unwrap(), serde_json::json!(60));
    assert_eq!(session.get("app:n").unwrap(), serde_json::json!(60));
}
