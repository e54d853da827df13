//! PostgreSQL through PgBouncer in transaction mode: each transaction may get another connection of the server.

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::json;
use stepfold_session_scopes::contract::StoreExam;
use stepfold_session_scopes::{PostgresOptions, PostgresStore, SessionStore, WatchStore};
use tokio_postgres::NoTls;

use crate::scenario::{append, create, event, get, key, writing};
use crate::server::{server, unprivileged};

/// A pooler that ends with the test: a shell waits for the pipe to this process to close.
struct Pooler {
    port: u16,
    _watch: Child,
    _folder: tempfile::TempDir,
}

const WATCH: &str = r#""$0" -q pooler.ini & cat >/dev/null; kill -INT $!; wait $!"#;

impl Pooler {
    /// One in front of a server, with this many connections to a database; none where PgBouncer is not installed.
    fn start(url: &str, mode: &str, connections: usize) -> Option<Self> {
        let program = ["/usr/sbin/pgbouncer", "/usr/local/bin/pgbouncer", "/usr/bin/pgbouncer"];
        let Some(program) = program.into_iter().find(|path| Path::new(path).exists()) else {
            eprintln!("SKIPPED: PgBouncer is not installed (Debian: `apt-get install pgbouncer`)");
            return None;
        };
        let folder = tempfile::Builder::new().prefix("stepfold-pooler-").tempdir().unwrap();
        let server: u16 = url.rsplit(':').next().unwrap().split('/').next().unwrap().parse().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={server} user=stepfold\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n\
             default_pool_size = {connections}\nmax_client_conn = 200\n"
        );
        fs::write(folder.path().join("pooler.ini"), settings).unwrap();
        let mut command = unprivileged(folder.path());
        command.args(["sh", "-c", WATCH, program]).current_dir(folder.path());
        let watch =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::yield_now();
        }
        Some(Pooler { port, _watch: watch, _folder: folder })
    }

    fn url(&self, url: &str) -> String {
        let (_, database) = url.rsplit_once('/').unwrap();
        format!("postgres://stepfold@127.0.0.1:{}/{database}", self.port)
    }
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
