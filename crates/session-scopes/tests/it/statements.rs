//! The statements that a store sends to PostgreSQL, counted.

use futures_util::future::join_all;
use serde_json::json;
use stepfold_session_scopes::{AnyStore, PostgresOptions, PostgresStore, SessionStore};

use crate::counting::CountingProxy;
use crate::scenario::{append, create, get, key, writing};
use crate::server::server;

/// The statements of the list in the source, more or less.
const ALL: usize = 150;

/// A commit with two writes, and its notice. Before, it took 12: `BEGIN`, four reads, five writes, `COMMIT`, and the notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_with_two_writes_takes_few_statements() {
    let Some(server) = server() else { return };
    let proxy = CountingProxy::start(&server.database("statements").await).await;
    let store = PostgresStore::open(proxy.address.clone()).await.unwrap();
    create(&store, &key("s")).await;
    proxy.settled("a new session").await;
    let event = |version| writing(version, &[("n", json!(1)), ("list", json!(["one more"]))]);
    append(&store, &key("s"), 0, event(0)).await.unwrap();
    // And the schema, which is stored once.
    proxy.check("the first commit", 4 + 1 + 2).await;
    for version in 1..4 {
        append(&store, &key("s"), version, event(version)).await.unwrap();
        proxy.check("a commit of a known session", 1 + 1).await;
    }
    // Of another process, which has to read.
    let other = PostgresStore::open(proxy.address.clone()).await.unwrap();
    append(&other, &key("s"), 4, event(4)).await.unwrap();
    proxy.settled("another process").await;
    append(&store, &key("s"), 5, event(5)).await.unwrap();
    proxy.check("a commit after that of another process", 1 + 4 + 1).await;
    let session = get(&other, &key("s")).await;
    assert_eq!(session.get("n").unwrap(), json!(6));
    assert_eq!(session.get("list").unwrap(), json!(vec!["one more"; 6]));
}

/// A connection prepares what it has used, and not all that there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_are_prepared_on_use() {
    let Some(server) = server() else { return };
    let proxy = CountingProxy::start(&server.database("prepared").await).await;
    let store = PostgresOptions::new(proxy.address.clone()).connections(1).open().await.unwrap();
    create(&store, &key("s")).await;
    for version in 0..3 {
        append(&store, &key("s"), version, writing(version, &[("n", json!(1))])).await.unwrap();
        get(&store, &key("s")).await;
    }
    let used = proxy.settled("some operations").await;
    assert!((1..ALL / 6).contains(&used.prepared), "{used:?}");
    append(&store, &key("s"), 3, writing(3, &[("n", json!(1))])).await.unwrap();
    get(&store, &key("s")).await;
    assert_eq!(proxy.settled("the same again").await.prepared, 0);
}

/// What waits for the lock of a row sees what was committed meanwhile, and not what it saw when it began to wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_that_wait_for_each_other_lose_nothing() {
    let Some(server) = server() else { return };
    let address = server.database("waiting_writers").await;
    let stores: Vec<AnyStore> = join_all(
        (0..4).map(|_| async { AnyStore::new(PostgresStore::open(address.clone()).await.unwrap()) }),
    )
    .await;
    create(&stores[0], &key("s")).await;
    let writers = stores.iter().enumerate().map(|(writer, store)| async move {
        for number in 0..25 {
            let event = writing(
                format!("{writer}-{number}"),
                &[("n", json!(1)), ("list", json!([[writer, number]])), ("app:n", json!(number % 2))],
            );
            let any = stepfold_session_scopes::AppendEvent::new(
                key("s"),
                stepfold_session_scopes::Expected::Any,
                event,
                &crate::scenario::schema(),
            );
            store.append(any).await.unwrap();
        }
    });
    join_all(writers).await;
    let session = get(&stores[0], &key("s")).await;
    assert_eq!(session.version, 100);
    assert_eq!(session.get("n").unwrap(), json!(100));
    assert_eq!(session.get("app:n").unwrap(), json!(48));
    let list = session.get("list").unwrap().to_json();
    for writer in 0..4 {
        let of_writer = list.as_array().unwrap().iter().filter(|item| item[0] == writer);
        let numbers: Vec<u64> = of_writer.map(|item| item[1].as_u64().unwrap()).collect();
        assert_eq!(numbers, (0..25).collect::<Vec<u64>>(), "each once, in order");
    }
    let verified = stores[0].verify(stepfold_session_scopes::VerifySessions::all()).await.unwrap();
    assert!(verified.faults.is_empty(), "{:?}", verified.faults);
}
