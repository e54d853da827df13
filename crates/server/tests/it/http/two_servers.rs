//! Two servers over one PostgreSQL: send here, follow there, decide there.

use serde_json::json;
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::PostgresStore;

use super::site::{Site, agent, versions};
use crate::postgres::server;

const SCRIPT: &str = "assistant: > c1 pay()\nassistant: It is paid.\n";

/// A server with a store, and connections, of its own.
async fn site(address: &str) -> Site {
    let store = PostgresStore::open(address).await.unwrap();
    let runner = Runner::builder(agent(SCRIPT, Vec::new()), store).build();
    Site::over(runner, Limits::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_here_is_followed_and_decided_there() {
    let Some(server) = server() else { return };
    let address = server.database("two_servers").await;
    let (here, there) = (site(&address).await, site(&address).await);
    assert_eq!(here.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
    let mut live = there.live("ada", "s1", None).await;
    let mut all = there.live_from("ada", "/live", None).await;
    assert_eq!(here.post("ada", "/sessions/s1/messages", json!({"text": "pay the bill"})).await.status, 202);
    let told = live.until("waiting").await;
    assert_eq!(versions(&told), [1, 2]);
    let request = told.last().unwrap().data["requests"][0]["id"].as_str().unwrap().to_owned();
    while all.until("session").await.last().unwrap().data["status"] != "waiting" {}

    let decided =
        there.post("ada", "/sessions/s1/decisions", json!({"decisions": {request: "approve"}})).await;
    assert_eq!(decided.status, 202, "{}", decided.text);
    let told = live.until("ended").await;
    // A reader of the first server has the same.
    let mut first = here.live_from("ada", "/sessions/s1/live?after=2", None).await;
    assert_eq!(versions(&first.until("ended").await), versions(&told));
    assert_eq!(here.get("ada", "/sessions/s1/state").await.json()["values"]["spent"], 5);
    // One of them stops, and the other one continues.
    assert!(here.stop().await);
    assert_eq!(there.get("ada", "/sessions/s1").await.json()["unfinished"], false);
}
