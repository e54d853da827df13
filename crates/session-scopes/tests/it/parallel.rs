//! Many writers at once: tasks, and whole processes.

use futures_util::future::join_all;
use serde_json::{Value, json};
use stepfold_session_scopes::{Durability, ScopeKey, SessionStore, SqliteOptions, VerifySessions};

use crate::children::start;
use crate::scenario::{address_in, append, create, get, key, open, writing};
use crate::server::server;

/// 16 processes add 1 to one value 100 times each, and grow lists beside it.
async fn sixteen_processes(address: &str) {
    let store = open(address).await;
    let children: Vec<_> = (0..16).map(|number| start("count", address, number)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let app = store.read_scope(ScopeKey::app("app").unwrap()).await.unwrap();
    assert_eq!(app.get("app:n").unwrap(), json!(1600));
    assert_eq!(app.get("app:list").unwrap().len(), Some(16 * 20));
    // Each adds its own name, and 0 and 5, which are the same for all.
    assert_eq!(app.get("app:union").unwrap().len(), Some(16 * 20 + 2));
    let tasks: Vec<Value> = app.get("app:tasks").unwrap().items().cloned().collect();
    assert_eq!(tasks.len(), 2);
    for task in &tasks {
        assert_eq!(task.as_object().unwrap().len(), 1 + 16, "an update of a task was lost: {task}");
    }
}

#[tokio::test]
async fn sixteen_processes_lose_nothing_over_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    sixteen_processes(&address_in(folder.path())).await;
}

#[tokio::test]
async fn sixteen_processes_lose_nothing_over_postgres() {
    let Some(server) = server() else { return };
    sixteen_processes(&server.database("processes").await).await;
}

/// 8 tasks append 1,000 events each to sessions of their own, without one error.
async fn eight_sessions_write_at_once(durability: Durability) {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("sessions.db")).durability(durability);
    let store = options.open().unwrap();
    let tasks = (0..8).map(|number| {
        let store = store.clone();
        tokio::spawn(async move {
            let key = key(number);
            create(&store, &key).await;
            for version in 0..1000 {
                append(&store, &key, version, writing(version, &[("n", json!(1))])).await.unwrap();
            }
            get(&store, &key).await
        })
    });
    for session in join_all(tasks).await {
        let session = session.unwrap();
        assert_eq!((session.version, session.events.len()), (1000, 1000));
        assert_eq!(session.get("n").unwrap(), json!(1000));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_sessions_write_at_once_and_nobody_is_told_to_wait() {
    eight_sessions_write_at_once(Durability::Full).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_sessions_write_at_once_without_flushes_and_nobody_is_told_to_wait() {
    eight_sessions_write_at_once(Durability::Process).await;
}

/// Two stores over one file, like two processes: a write on the caller's thread leaves the other store's work to its
/// writer.
#[tokio::test(flavor = "multi_thread")]
async fn two_stores_without_flushes_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let open = || SqliteOptions::new(&path).durability(Durability::Process).open().unwrap();
    let stores = [open(), open()];
    let tasks = (0..4).map(|number: usize| {
        let store = stores[number % 2].clone();
        tokio::spawn(async move {
            let key = key(number);
            create(&store, &key).await;
            for version in 0..500 {
                append(&store, &key, version, writing(version, &[("app:n", json!(1))])).await.unwrap();
            }
        })
    });
    for done in join_all(tasks).await {
        done.unwrap();
    }
    let app = stores[0].read_scope(ScopeKey::app("app").unwrap()).await.unwrap();
    assert_eq!(app.get("app:n").unwrap(), json!(2000));
    assert_eq!(stores[1].verify(VerifySessions::all()).await.unwrap().faults, []);
}
