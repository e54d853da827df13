//! The statements that a store sends to PostgreSQL, counted.

use serde_json::json;
use stepfold_session_scopes::PostgresStore;

use crate::counting::CountingProxy;
use crate::scenario::{append, create, key, writing};
use crate::server::server;

/// A commit with two writes, and its notice. Before, it took 12: `BEGIN`, four reads, five writes, `COMMIT`, and the notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_with_two_writes_takes_few_statements() {
    let Some(server) = server() else { return };
    let proxy = CountingProxy::start(&server.database("statements").await).await;
    let store = PostgresStore::open(proxy.address.clone()).await.unwrap();
    create(&store, &key("s")).await;
    proxy.settled("a new session").await;
    for version in 0..4 {
        let event = writing(version, &[("n", json!(1)), ("list", json!(["one more"]))]);
        append(&store, &key("s"), version, event).await.unwrap();
        proxy.check("a commit", 14).await;
    }
}
