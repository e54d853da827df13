//! What bounds the wait for a PostgreSQL server, and what is told of it.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use serde_json::json;
use stepfold_session_scopes::{
    AppendClaim, AppendEvent, Claim, ClaimSession, CreateSession, ErrorKind, PostgresOptions, PostgresStore,
    PruneBound, PruneSession, RenewClaims, SessionError, SessionSchema, SessionStore, TakeOver,
    VerifySessions, WorkerId,
};
use stepfold_state_core::state::{Handler, Schema};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;
use tokio_postgres::NoTls;

use crate::scenario::{append, at, create, event, get, key, schema, writing};
use crate::server::{check_missing, server};

/// A second connection holds the row of the session, or of the app, and does nothing.
#[tokio::test]
async fn a_writer_after_a_frozen_transaction_gets_a_transient_error() {
    let Some(server) = server() else { return };
    let url = server.database("frozen").await;
    let store = PostgresOptions::new(&url).lock_timeout(Duration::from_millis(200)).open().await.unwrap();
    create(&store, &key("s")).await;
    append(&store, &key("s"), 0, writing("e1", &[("app:n", json!(1))])).await.unwrap();
    let (holder, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    let driver = tokio::spawn(connection);
    for table in ["stepfold_sessions", "stepfold_scopes"] {
        holder.batch_execute(&format!("BEGIN; SELECT * FROM {table} FOR UPDATE")).await.unwrap();
        let shared = writing("e2", &[("app:n", json!(1))]);
        let error = append(&store, &key("s"), 1, shared).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient, "{table}: {error:?}");
        if table == "stepfold_sessions" {
            let error = append(&store, &key("s"), 1, event("e3")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Transient, "{error:?}");
        }
        // Reading does not wait.
        assert_eq!(get(&store, &key("s")).await.version, 1);
        holder.batch_execute("ROLLBACK").await.unwrap();
    }
    append(&store, &key("s"), 1, writing("e2", &[("app:n", json!(1))])).await.unwrap();
    drop(holder);
    driver.await.unwrap().unwrap();
}

/// A worker that stops in the middle of an append, here in a merge handler, loses its transaction, and the others continue.
/// It has a thread and a runtime of its own, as another process would: nothing in there continues.
#[tokio::test]
async fn a_worker_that_is_stopped_inside_an_append_holds_up_others_for_a_bounded_time() {
    stopped_inside_an_append("stopped", false).await;
}

#[tokio::test]
async fn a_worker_that_is_stopped_inside_an_append_under_its_claim_holds_up_nobody_beyond_that() {
    stopped_inside_an_append("stopped_with_claim", true).await;
}

async fn stopped_inside_an_append(name: &str, is_claimed: bool) {
    let Some(server) = server() else { return };
    let url = server.database(name).await;
    let other = PostgresStore::open(&url).await.unwrap();
    let gate = Arc::new((Barrier::new(2), Barrier::new(2)));
    let inside = Arc::clone(&gate);
    let handler = Handler::custom("slow", move |_, new| {
        if new == "stop" {
            inside.0.wait();
            inside.1.wait();
        }
        Ok(new)
    });
    let schema =
        SessionSchema::new(Schema::builder().key::<String>("app:slow").handler(handler).build().unwrap());
    for id in ["a", "b"] {
        other.create(CreateSession::with_key(key(id), &schema, at(0))).await.unwrap();
    }
    let write = |id: &str, value: &str| {
        let write = schema.schema().write("app:slow", value).unwrap();
        let event = event(value).with_delta([write].into_iter().collect());
        AppendEvent::new(key(id), 0, event, &schema)
    };
    // The limit of its own, or what its claim demands.
    let (owner, duration) = (WorkerId::new("stopped").unwrap(), Duration::from_millis(900));
    let take = AppendClaim::Take { owner, duration, take_over: TakeOver::Never };
    let (limit, request) = match is_claimed {
        true => (Duration::from_secs(3_600), write("a", "stop").with_claim(take)),
        false => (Duration::from_millis(300), write("a", "stop")),
    };
    let stopped = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let options = PostgresOptions::new(url).idle_in_transaction_timeout(limit);
        runtime.block_on(async { options.open().await.unwrap().append(request).await })
    });
    let reached = Arc::clone(&gate);
    spawn_blocking(move || reached.0.wait()).await.unwrap();
    // The first is inside now, and has locked the row of the app.
    assert_eq!(other.append(write("b", "go")).await.unwrap().version, 1);
    spawn_blocking(move || gate.1.wait()).await.unwrap();
    let error = spawn_blocking(|| stopped.join()).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error:?}");
    // It was not made, and is when it is repeated.
    assert_eq!(get(&other, &key("a")).await.version, 0);
    assert_eq!(other.append(write("a", "again")).await.unwrap().version, 1);
}

/// Stands between a store and its server, and can keep the server's answers from it: then the store is as a process that is
/// frozen while it waits for one, at the same place each time.
struct Wire {
    port: u16,
    is_cut: Arc<AtomicBool>,
}

impl Wire {
    fn to(url: &str) -> Self {
        Wire::cut_after(url, "no request has this in it")
    }

    /// One that is cut once the store has sent these words.
    fn cut_after(url: &str, words: &'static str) -> Self {
        let server: u16 = url.rsplit(':').next().unwrap().split('/').next().unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_cut = Arc::new(AtomicBool::new(false));
        let cut = Arc::clone(&is_cut);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (mut asks, mut hears) =
                    (client.unwrap(), TcpStream::connect(("127.0.0.1", server)).unwrap());
                let (mut told, mut answers) = (hears.try_clone().unwrap(), asks.try_clone().unwrap());
                let (cut, cuts) = (Arc::clone(&cut), Arc::clone(&cut));
                thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(length @ 1..) = asks.read(&mut bytes) {
                        if String::from_utf8_lossy(&bytes[..length]).contains(words) {
                            cuts.store(true, Ordering::SeqCst);
                        }
                        if told.write_all(&bytes[..length]).is_err() {
                            break;
                        }
                    }
                });
                thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(length @ 1..) = hears.read(&mut bytes) {
                        if !cut.load(Ordering::SeqCst) && answers.write_all(&bytes[..length]).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Wire { port, is_cut }
    }

    fn url(&self, url: &str) -> String {
        let (_, database) = url.rsplit_once('/').unwrap();
        format!("postgres://stepfold@127.0.0.1:{}/{database}", self.port)
    }
}

/// A worker with a claim of this duration is frozen in its heartbeat, when the server has locked the row and the answer is
/// on its way. Gives what the others hear who then ask for the claim, for as long as they only hear that it is held.
async fn claimed_after_frozen_heartbeat(name: &str, duration: Duration) -> Result<Claim, SessionError> {
    let url = server().unwrap().database(name).await;
    let wire = Wire::to(&url);
    let worker = |name: &str| WorkerId::new(name.to_owned()).unwrap();
    let hour = Duration::from_secs(3_600);
    let frozen = PostgresOptions::new(wire.url(&url)).idle_in_transaction_timeout(hour).open().await.unwrap();
    create(&frozen, &key("s")).await;
    let claim = frozen.claim(ClaimSession::new(key("s"), worker("frozen"), duration, at(0))).await.unwrap();
    let renew = RenewClaims::new([(key("s"), claim.token)], duration, at(0));
    // Its connection is there already, and has prepared what a heartbeat sends.
    for _ in 0..2 {
        frozen.renew_all(renew.clone()).await.unwrap();
    }
    wire.is_cut.store(true, Ordering::SeqCst);
    let heartbeat = tokio::spawn(async move { frozen.renew_all(renew).await });
    let other = PostgresOptions::new(&url).lock_timeout(Duration::from_secs(5)).open().await.unwrap();
    let claimed = loop {
        let claim = ClaimSession::new(key("s"), worker("other"), hour, at(0));
        match other.claim(claim).await {
            Err(SessionError::Claimed { .. }) => tokio::task::yield_now().await,
            claimed => break claimed,
        }
    };
    heartbeat.abort();
    claimed
}

/// The server ends the transaction of the frozen worker before its claim expires: who takes over does not wait for the row.
#[tokio::test]
async fn a_worker_that_is_frozen_in_its_heartbeat_does_not_hold_up_who_takes_over() {
    if server().is_none() {
        return;
    }
    let claimed = claimed_after_frozen_heartbeat("frozen_heartbeat", Duration::from_secs(2)).await;
    assert_eq!(claimed.unwrap().owner.as_str(), "other");
    // What the claim demands is what frees the row: under a claim of an hour, it stays locked.
    let hour = Duration::from_secs(3_600);
    let error = claimed_after_frozen_heartbeat("frozen_for_an_hour", hour).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error:?}");
}

/// A worker that is frozen while it sets up the tables has the lock of that. The server takes it back, so that the next
/// start does it; tables that are there already are not waited for.
#[tokio::test]
async fn a_worker_that_is_frozen_in_its_start_does_not_hold_up_others() {
    let Some(server) = server() else { return };
    let url = server.database("frozen_start").await;
    // The first words that it sends once it has the lock.
    let wire = Wire::cut_after(&url, "CREATE TABLE");
    let short = Duration::from_secs(1);
    let frozen = PostgresOptions::new(wire.url(&url)).idle_in_transaction_timeout(short);
    let frozen = tokio::spawn(frozen.open());
    while !wire.is_cut.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    let store = tokio::time::timeout(Duration::from_secs(20), PostgresStore::open(&url)).await;
    create(&store.expect("another start comes through").unwrap(), &key("s")).await;
    frozen.abort();

    let (holder, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    let driver = tokio::spawn(connection);
    holder.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(8319385945089469540)").await.unwrap();
    let store = tokio::time::timeout(Duration::from_secs(20), PostgresStore::open(&url)).await;
    assert_eq!(get(&store.expect("nothing is to be set up").unwrap(), &key("s")).await.version, 0);
    drop(holder);
    driver.await.unwrap().unwrap();
}

/// A process that is frozen until this is dropped.
struct Frozen(String);

impl Frozen {
    fn new(pid: i32) -> Self {
        let frozen = Frozen(pid.to_string());
        frozen.signal("-STOP");
        frozen
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0]).status().unwrap().success());
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.signal("-CONT");
    }
}

/// The server's own process for the connection of a store: not the one that is frozen.
async fn backend(url: &str, frozen: Option<&Frozen>) -> i32 {
    let (looker, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    let driver = tokio::spawn(connection);
    let pid = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() \
        AND application_name = 'stepfold' AND pid <> $1 ORDER BY backend_start DESC LIMIT 1";
    let frozen: i32 = frozen.map_or(0, |frozen| frozen.0.parse().unwrap());
    let pid = looker.query_one(pid, &[&frozen]).await.unwrap().get(0);
    drop(looker);
    driver.await.unwrap().unwrap();
    pid
}

/// What is frozen keeps none of its own timeouts: the worker has one, and continues over another connection.
#[tokio::test]
async fn a_server_that_is_frozen_is_waited_for_a_bounded_time() {
    let Some(server) = server() else { return };
    let url = server.database("frozen_server").await;
    let short = Duration::from_millis(500);
    let options = PostgresOptions::new(&url).connections(1).statement_timeout(short).timeout(2 * short);
    let store = options.open().await.unwrap();
    create(&store, &key("s")).await;
    // It prepares what was used: a connection that does not answer then is replaced before anything is asked.
    store.check().await.unwrap();
    let frozen = Frozen::new(backend(&url, None).await);
    let error = append(&store, &key("s"), 0, event("e1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error:?}");
    assert!(error.to_string().contains("has not answered"), "{error}");
    // The abandoned connection makes room for another one, over which the same event is sent again.
    assert_eq!(append(&store, &key("s"), 0, event("e1")).await.unwrap().version, 1);
    store.check().await.unwrap();
    let frozen_too = Frozen::new(backend(&url, Some(&frozen)).await);
    let error = store.verify(VerifySessions::all()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error:?}");
    drop((frozen, frozen_too));
    // What was sent to it makes no second event.
    assert_eq!(append(&store, &key("s"), 1, event("e2")).await.unwrap().version, 2);
    assert_eq!(get(&store, &key("s")).await.events.len(), 2);
}

/// A server that accepts the connection, and never answers.
#[tokio::test]
async fn a_server_that_says_nothing_is_waited_for_a_bounded_time() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://worker@{}/agents?sslmode=disable", silent.local_addr().unwrap());
    let options = PostgresOptions::new(url).timeout(Duration::from_millis(200));
    assert_eq!(options.open().await.unwrap_err().kind(), ErrorKind::Transient);
}

#[tokio::test]
async fn each_connection_has_the_timeouts_and_the_isolation_that_we_set() {
    let Some(server) = server() else { return };
    let url = server.database("settings").await;
    server
        .run("settings", "ALTER DATABASE settings SET default_transaction_isolation = 'serializable'")
        .await;
    server.run("settings", "ALTER DATABASE settings SET statement_timeout = '3h'").await;
    let options = PostgresOptions::new(&url).connections(1).statement_timeout(Duration::from_secs(3));
    let store = options.open().await.unwrap();
    create(&store, &key("s")).await;
    // Many writers of one value: under `serializable` some of them would fail.
    let appends = (0..8).map(|number| {
        let (store, key) = (store.clone(), key(format!("s{number}")));
        tokio::spawn(async move {
            create(&store, &key).await;
            append(&store, &key, 0, writing("e", &[("app:n", json!(1))])).await.map(drop)
        })
    });
    for result in futures_util::future::join_all(appends).await {
        result.unwrap().unwrap();
    }
    let (looker, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    let driver = tokio::spawn(connection);
    // A statement that runs for longer than its timeout says which one it was.
    let lock = "BEGIN; LOCK TABLE stepfold_sessions IN ACCESS EXCLUSIVE MODE";
    looker.batch_execute(lock).await.unwrap();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { append(&store, &key("s"), 0, event("e")).await }
    });
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error:?}");
    let told = error.to_string();
    assert!(told.contains("statement timeout"), "{told}");
    looker.batch_execute("ROLLBACK").await.unwrap();
    drop(looker);
    driver.await.unwrap().unwrap();
}

const SECRETS: [&str; 6] = [
    "postgres://worker:hunter2@127.0.0.1:1/agents",
    "postgres://worker:hunter2@[broken/agents",
    "postgres://worker:x?hunter2@127.0.0.1:1/agents",
    "postgres://worker:hunter2@127.0.0.1:hunter2/agents",
    "host=127.0.0.1 port=1 user=worker password=hunter2",
    "host=127.0.0.1 port=1 hunter2=x",
];

#[tokio::test]
async fn the_password_of_an_address_is_shown_nowhere() {
    for url in SECRETS {
        let options = PostgresOptions::new(url).timeout(Duration::from_secs(1));
        let shown = format!("{options:?} {options:#?}");
        assert!(!shown.contains("hunter2") && shown.contains("connections"), "{shown}");
        let error = options.open().await.unwrap_err();
        assert!(error.source().is_none(), "the text shows all causes");
        let told = format!("{error} {error:?} {error:#?}");
        assert!(!told.contains("hunter2"), "{told}");
    }
    let Some(server) = server() else { return };
    let url = server.database("secret").await.replace("stepfold@", "stepfold:hunter2@");
    let store = PostgresStore::open(url).await.unwrap();
    assert!(!format!("{store:?} {store:#?}").contains("hunter2"));
}

#[test]
#[should_panic(expected = "and CI needs it")]
fn a_test_that_needs_postgres_fails_on_ci_without_it() {
    check_missing(true);
}

#[test]
fn a_test_that_needs_postgres_is_skipped_elsewhere() {
    check_missing(false);
}

/// Items of a list that was removed go with its events, unless the rewinds of its sessions are too many to read.
#[tokio::test]
async fn a_deletion_reads_a_bounded_number_of_rewinds() {
    let Some(server) = server() else { return };
    let url = server.database("rewinds").await;
    let store = PostgresStore::open(&url).await.unwrap();
    create(&store, &key("s")).await;
    for version in 0..3 {
        append(&store, &key("s"), version, writing(version, &[("list", json!(["item"]))])).await.unwrap();
    }
    let removal = [schema().schema().removal("list").unwrap()].into_iter().collect();
    append(&store, &key("s"), 3, event("removed").with_delta(removal)).await.unwrap();
    append(&store, &key("s"), 4, event("last")).await.unwrap();
    let rows = "INSERT INTO stepfold_rewinds SELECT s.number, it, 0, 0, 0, 0 \
                FROM stepfold_sessions s, generate_series(10, 100010) AS it";
    server.run("rewinds", rows).await;
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    let driver = tokio::spawn(connection);
    for (bound, left) in [(4, 3), (5, 0)] {
        store.prune(PruneSession::new(key("s"), PruneBound::Version(bound))).await.unwrap();
        let items = client.query_one("SELECT COUNT(*) FROM stepfold_items", &[]).await.unwrap();
        assert_eq!(items.get::<_, i64>(0), left, "{bound}");
        server.run("rewinds", "DELETE FROM stepfold_rewinds").await;
    }
    drop(client);
    driver.await.unwrap().unwrap();
}
