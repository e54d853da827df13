//! The heartbeat of a worker: each claim stands alone, whatever is with the rows of others.

use std::time::Duration;

use stepfold_session_scopes::{
    AppId, Claim, ClaimSession, DeleteSession, ErrorKind, ForkSession, GetSession, ListUnattended,
    PostgresOptions, PostgresStore, RenewClaim, RenewClaims, Renewed, SessionError, SessionId, SessionStore,
    SqliteStore, Timestamp, WorkerId,
};
use tokio_postgres::NoTls;

use crate::scenario::{append, at, create, event, key};
use crate::server::server;

const HOUR: Duration = Duration::from_secs(3_600);

/// Any column of a session, and what it is damaged to.
const COLUMNS: [&str; 18] = [
    "app",
    "user",
    "id",
    "version",
    "oldest",
    "created",
    "updated",
    "parent_id",
    "parent_version",
    "life",
    "claims",
    "claim_owner",
    "claim_expires",
    "inbox",
    "inbox_last",
    "waiting",
    "work",
    "seal",
];

fn worker(name: &str) -> WorkerId {
    WorkerId::new(name.to_owned()).unwrap()
}

async fn claimed(store: &impl SessionStore, ids: &[&str], duration: Duration) -> Vec<Claim> {
    let mut claims = Vec::new();
    for id in ids {
        create(store, &key(id)).await;
        let claim = ClaimSession::new(key(id), worker("first"), duration, at(0));
        claims.push(store.claim(claim).await.unwrap());
    }
    claims
}

async fn renew(
    store: &impl SessionStore,
    ids: &[&str],
    claims: &[Claim],
    now: Timestamp,
) -> Vec<Result<Renewed, SessionError>> {
    let claims = ids.iter().zip(claims).map(|(id, claim)| (key(id), claim.token));
    store.renew_all(RenewClaims::new(claims, HOUR, now)).await.unwrap()
}

/// The claims of a worker after one row has this damage.
async fn check_damage(store: &impl SessionStore, claims: &[Claim], what: &str, now: Timestamp) -> bool {
    let renewed = renew(store, &["a", "b", "c"], claims, now).await;
    for healthy in [0, 2] {
        let expires =
            renewed[healthy].as_ref().unwrap_or_else(|error| panic!("{what}: {error}")).claim.expires;
        assert!(expires > claims[healthy].expires, "{what}: {expires}");
    }
    // What is left is found in spite of it.
    let mut unattended = ListUnattended::new(AppId::new("app").unwrap(), now.after(HOUR * 2));
    unattended.limit = 1;
    for page in 0.. {
        assert!(page < 4, "{what}: the list has no end");
        let listed =
            store.unattended(unattended.clone()).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let Some(last) = listed.last() else { break };
        unattended.after = Some(last.cursor.clone());
    }
    renewed[1].is_err()
}

#[tokio::test]
async fn a_damaged_row_of_a_file_costs_no_other_claim() {
    let mut refused = 0;
    for column in COLUMNS {
        for value in ["NULL", "'x'", "x'00ff'", "1.5", "-1", "4611686018427387904"] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("sessions.db");
            let store = SqliteStore::open(&path).unwrap();
            let claims = claimed(&store, &["a", "b", "c"], HOUR).await;
            let connection = rusqlite::Connection::open(&path).unwrap();
            let sql = format!("UPDATE stepfold_sessions SET {column} = {value} WHERE id = 'b'");
            // Some columns take no NULL.
            if connection.execute_batch(&sql).is_ok() {
                refused += usize::from(check_damage(&store, &claims, &sql, at(10)).await);
            }
        }
    }
    assert!(refused > 80, "{refused}");
}

#[tokio::test]
async fn a_damaged_row_of_a_database_costs_no_other_claim() {
    let Some(server) = server() else { return };
    let url = server.database("damaged_claims").await;
    let store = PostgresStore::open(&url).await.unwrap();
    let mut refused = 0;
    for column in COLUMNS.map(|column| if column == "user" { "owner" } else { column }) {
        for value in ["NULL", "'x'", "'-1'", "'4611686018427387904'"] {
            server.run("damaged_claims", "DELETE FROM stepfold_sessions").await;
            let claims = claimed(&store, &["a", "b", "c"], HOUR).await;
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
            let driver = tokio::spawn(connection);
            let sql = format!("UPDATE stepfold_sessions SET {column} = {value} WHERE id = 'b'");
            if client.batch_execute(&sql).await.is_ok() {
                refused += usize::from(check_damage(&store, &claims, &sql, at(10)).await);
            }
            drop(client);
            driver.await.unwrap().unwrap();
        }
    }
    assert!(refused > 30, "{refused}");
}

/// A transaction of another program has locked the row of one session: the heartbeat says so at once, and renews the
/// others, also if all connections of the pool wait for such rows. A renewal of that claim alone is the first in the line.
#[tokio::test]
async fn a_locked_row_delays_no_other_claim() {
    let Some(server) = server() else { return };
    let url = server.database("locked_claims").await;
    let store = PostgresOptions::new(&url).connections(2).open().await.unwrap();
    let claims = claimed(&store, &["a", "b", "c"], Duration::from_secs(1)).await;
    let (holder, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    let driver = tokio::spawn(connection);
    holder.batch_execute("BEGIN; SELECT * FROM stepfold_sessions WHERE id = 'b' FOR UPDATE").await.unwrap();
    let alone = |owner: &'static str| {
        let (store, token) = (store.clone(), claims[1].token);
        async move {
            match owner {
                "first" => store.renew(RenewClaim::new(key("b"), token, HOUR, at(0))).await.map(drop),
                _ => store.claim(ClaimSession::new(key("b"), worker(owner), HOUR, at(0))).await.map(drop),
            }
        }
    };
    let waiting = async |number: i64| {
        let sql = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        // The server shows a transaction what it showed it before, unless it is told otherwise.
        let forget = "SELECT pg_stat_clear_snapshot()";
        while holder.execute(forget, &[]).await.is_ok()
            && holder.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) < number
        {
            tokio::task::yield_now().await;
        }
    };
    let renewed_alone = tokio::spawn(alone("first"));
    waiting(1).await;
    let thief = tokio::spawn(alone("thief"));
    waiting(2).await;
    // All connections wait for the row, and this for a connection: operators see it.
    let reader = store.clone();
    let read = tokio::spawn(async move { reader.get(GetSession::new(key("a"))).await });
    while store.connections().waiting == 0 {
        tokio::task::yield_now().await;
    }
    let seen = store.connections();
    assert_eq!((seen.limit, seen.open, seen.used, seen.waiting), (2, 2, 2, 1));
    let renewed = tokio::time::timeout(
        Duration::from_secs(5),
        renew(&store, &["a", "b", "c", "none"], &[claims.clone(), vec![claims[0].clone()]].concat(), at(0)),
    )
    .await
    .unwrap();
    assert!(renewed[0].is_ok() && renewed[2].is_ok(), "{renewed:?}");
    assert_eq!(renewed[1].as_ref().unwrap_err().kind(), ErrorKind::Transient, "{renewed:?}");
    assert_eq!(renewed[3].as_ref().unwrap_err().kind(), ErrorKind::NotFound, "{renewed:?}");
    // Longer than the claim.
    holder.batch_execute("SELECT pg_sleep(1.2); COMMIT").await.unwrap();
    renewed_alone.await.unwrap().unwrap();
    assert_eq!(thief.await.unwrap().unwrap_err().kind(), ErrorKind::Claimed);
    read.await.unwrap().unwrap();
    drop(holder);
    driver.await.unwrap().unwrap();
}

/// A fork is deleted, which locks it and then its parent, while a worker renews its claims on both: neither ends in a
/// deadlock, nor waits for the other.
#[tokio::test]
async fn heartbeats_and_deletions_make_no_deadlock() {
    let Some(server) = server() else { return };
    let store = PostgresStore::open(server.database("renewed_and_deleted").await).await.unwrap();
    let mut parent = claimed(&store, &["p"], HOUR).await;
    append(&store, &key("p"), 0, event("e1")).await.unwrap();
    for _ in 0..100 {
        let fork = ForkSession::new(key("p"), at(1)).with_id(SessionId::new("f").unwrap());
        store.fork(fork).await.unwrap();
        let claim = ClaimSession::new(key("f"), worker("first"), HOUR, at(0));
        let claims = [parent.remove(0), store.claim(claim).await.unwrap()];
        let beats = async {
            for _ in 0..6 {
                renew(&store, &["p", "f"], &claims, at(0)).await;
            }
        };
        let delete = store.delete(DeleteSession::new(key("f")).take_over());
        let ((), deleted) = tokio::join!(beats, delete);
        deleted.unwrap();
        parent.extend(claims.into_iter().take(1));
    }
}
