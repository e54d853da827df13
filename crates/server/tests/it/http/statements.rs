//! The statements that a server sends to its PostgreSQL: counted, so that a read that is made session by session is found
//! here and not by its users.

use serde_json::json;
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::{
    AppendEvent, Author, CreateSession, Event, EventId, InvocationId, PostgresStore, SessionKey,
    SessionSchema, SessionStore as _, Timestamp,
};
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::Schema;

use super::site::{Site, agent};
use crate::counting::CountingProxy;
use crate::postgres::server;

/// A server over a PostgreSQL whose statements are counted.
struct CountedSite {
    proxy: CountingProxy,
    store: PostgresStore,
    site: Site,
    schema: SessionSchema,
}

impl CountedSite {
    /// `None` without PostgreSQL.
    async fn new(database: &str) -> Option<Self> {
        let proxy = CountingProxy::start(&server()?.database(database).await).await;
        let store = PostgresStore::open(proxy.address.clone()).await.unwrap();
        let script = "assistant: One.\nassistant: Two.\nassistant: > c1 pay()\n";
        let runner = Runner::builder(agent(script, Vec::new()), store.clone()).build();
        let site = Site::over(runner, Limits::default()).await;
        let schema = SessionSchema::new(Schema::builder().open().build().unwrap());
        Some(CountedSite { proxy, store, site, schema })
    }

    async fn create(&self, key: &SessionKey, number: u64) {
        let request = CreateSession::with_key(key.clone(), &self.schema, event(number).at);
        self.store.create(request).await.unwrap();
    }

    /// Sessions with a commit each.
    async fn fill(&self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            let key = SessionKey::new("clerk", "ada", format!("n{number}")).unwrap();
            self.create(&key, number).await;
            let append = AppendEvent::new(key, 0, event(number), &self.schema);
            self.store.append(append).await.unwrap();
        }
        self.proxy.settled("sessions").await;
    }
}

fn event(number: u64) -> Event {
    let at = Timestamp::from_micros(1_700_000_000_000_000 + i64::try_from(number).unwrap());
    let (id, invocation) = (EventId::new(format!("e{number}")).unwrap(), InvocationId::new("i1").unwrap());
    Event::new(id, invocation, Author::new("agent").unwrap(), at).with_message(Message::user("hello"))
}

/// The number of statements does not depend on the number of sessions, also of those that wait for decisions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_takes_as_many_statements_whatever_its_length() {
    let Some(counted) = CountedSite::new("statements_of_lists").await else { return };
    let site = &counted.site;
    let session = site.runner.session("ada", "waiting").await.unwrap();
    for _ in 0..3 {
        session.send("pay the bill").await.unwrap().await.unwrap();
    }
    counted.proxy.settled("turns").await;
    let mut filled = 0;
    for count in [100, 1_000] {
        counted.fill(filled..count).await;
        filled = count;
        let reply = site.get("ada", &format!("/sessions?limit={count}")).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(reply.json()["sessions"].as_array().unwrap().len() as u64, count);
        counted.proxy.check(&format!("a list of {count}"), 6).await;
        let waiting = site.get("ada", "/sessions?status=waiting").await.json();
        assert_eq!(waiting["sessions"][0]["id"], "waiting");
        assert_eq!(waiting["sessions"].as_array().unwrap().len(), 1);
        counted.proxy.check("those that wait", 6).await;
        let mut live = site.live_from("ada", "/live", None).await;
        live.until("session").await;
        counted.proxy.check(&format!("a live list of {count}"), 6).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_and_a_turn_take_few_statements() {
    let Some(counted) = CountedSite::new("statements_of_turns").await else { return };
    let site = &counted.site;
    assert_eq!(site.post("ada", "/sessions", json!({"id": "s"})).await.status, 201);
    counted.proxy.settled("a new session").await;
    for _ in 0..2 {
        assert_eq!(site.post("ada", "/sessions/s/messages", json!({"text": "hello"})).await.status, 202);
        counted.proxy.check("a turn", 20).await;
        assert_eq!(site.get("ada", "/sessions/s").await.json()["status"], "idle");
        counted.proxy.check("a session", 4).await;
    }
    assert_eq!(site.post("ada", "/sessions/s/messages", json!({"text": "pay the bill"})).await.status, 202);
    counted.proxy.check("a turn that waits", 20).await;
    assert_eq!(site.get("ada", "/sessions/s").await.json()["status"], "waiting");
    counted.proxy.check("a session that waits", 4).await;
}
