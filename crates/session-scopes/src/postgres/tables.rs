//! The tables of a PostgreSQL database, and how any number of instances set them up together.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Config, GenericClient, Transaction};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::failed;
use super::list_entry::update_all_entries;
use super::ring;
use super::tags;
use super::transaction::with_timeout;
use crate::error::SessionError;
use crate::rows::StoreAccess;
use crate::rows::lineage::from_db;

/// The version of the tables that this crate makes.
const FORMAT: u64 = 9;

/// The oldest version whose sessions are read without an upgrade: later ones have added tables only.
const OLDEST_READ: u64 = 3;

/// The migrations of the tables, from one version to the next. A released version never changes.
const MIGRATIONS: &[&str] = &[
    include_str!("v1.sql"),
    include_str!("v2.sql"),
    include_str!("v3.sql"),
    include_str!("../rows/v4.sql"),
    include_str!("../rows/v5.sql"),
    include_str!("../rows/v6.sql"),
    include_str!("../rows/v7.sql"),
    include_str!("../rows/v8.sql"),
    include_str!("../rows/v9.sql"),
];

const META: &str = "stepfold_meta";

/// Any constant number.
const LOCK: i64 = 0x7374_6570_666f_6c64;

/// The time that an instance waits for another one that sets up the tables.
const WAIT_FOR_OTHERS: Duration = Duration::from_secs(60);

/// The limits of a set-up.
#[derive(Clone, Copy)]
pub(super) struct SetUpTimeouts {
    /// Of the connection.
    pub(super) connecting: Duration,
    /// Of each of the server's answers, in addition to waiting for others.
    pub(super) answer: Duration,
    /// The time that the server keeps the lock of a silent instance: a frozen one does not delay the others.
    pub(super) idle: Duration,
}

/// A connection for a set-up alone.
struct SetUpConnection {
    client: Client,
    driver: JoinHandle<Result<(), tokio_postgres::Error>>,
}

impl SetUpConnection {
    async fn open(
        config: &Config,
        tls: MakeRustlsConnect,
        timeouts: SetUpTimeouts,
    ) -> Result<Self, SessionError> {
        let connect = async { config.connect(tls).await.map_err(failed("connect")) };
        let (client, connection) = with_timeout(timeouts.connecting, connect).await?;
        Ok(SetUpConnection { client, driver: tokio::spawn(connection) })
    }

    async fn end<T>(self, result: Result<T, SessionError>) -> Result<T, SessionError> {
        drop(self.client);
        if result.is_err() {
            // NOTE: after an error the driver would still wait for unanswered statements.
            self.driver.abort();
        }
        // NOTE: the driver ends with the client, and its error repeats that of the set-up.
        let _ = self.driver.await;
        result
    }
}

/// Creates or upgrades the tables where that is allowed, and remembers the name of the key ring, on a separate connection. One instance does it, the others wait.
pub(super) async fn set_up(
    config: &Config,
    tls: MakeRustlsConnect,
    access: StoreAccess,
    answer_timeout: SetUpTimeouts,
    ring: Option<&str>,
) -> Result<(), SessionError> {
    let mut own = SetUpConnection::open(config, tls, answer_timeout).await?;
    let name = config.get_dbname().or(config.get_user()).unwrap_or_default();
    let result = migrate(&mut own.client, name, access, answer_timeout, ring).await;
    own.end(result).await
}

/// The name of the key ring that a database remembers.
pub(super) async fn stored_ring(
    config: &Config,
    tls: MakeRustlsConnect,
    timeouts: SetUpTimeouts,
) -> Result<Option<String>, SessionError> {
    let own = SetUpConnection::open(config, tls, timeouts).await?;
    let read = async {
        // NOTE: those of earlier versions have no ring.
        match format_of(&own.client).await? {
            FORMAT => ring::stored(&own.client).await,
            _ => Ok(None),
        }
    };
    let result = with_timeout(timeouts.answer, read).await;
    own.end(result).await
}

async fn migrate(
    client: &mut Client,
    database: &str,
    access: StoreAccess,
    answer_timeout: SetUpTimeouts,
    ring: Option<&str>,
) -> Result<(), SessionError> {
    // NOTE: checked before the lock, so that a start does not wait for another process that holds the lock.
    match (with_timeout(answer_timeout.answer, format_of(client)).await?, access) {
        (FORMAT, access) => {
            let is_new = with_timeout(answer_timeout.answer, ring::is_new(client, ring)).await?;
            if !is_new || access == StoreAccess::Read {
                return Ok(());
            }
        }
        (0, StoreAccess::Write | StoreAccess::Read) => {
            let path = format!("PostgreSQL database {database}");
            return Err(SessionError::NoStore { path, why: "the database has no stepfold tables" });
        }
        (OLDEST_READ.., StoreAccess::Read) => return Ok(()),
        (found, StoreAccess::Read) => {
            return Err(SessionError::OlderFormat { what: "session tables", found, current: FORMAT });
        }
        (_, StoreAccess::Create | StoreAccess::Write) => {}
    }
    let waits = answer_timeout.answer.saturating_add(WAIT_FOR_OTHERS);
    let transaction = with_timeout(waits, lock(client, answer_timeout.idle)).await?;
    let found = with_timeout(answer_timeout.answer, make_tables(&transaction)).await?;
    if found == 1 {
        tags::add_all(&transaction, answer_timeout.answer).await?;
    }
    if (1..3).contains(&found) {
        update_all_entries(&transaction, answer_timeout.answer).await?;
    }
    let failed = failed("set up its tables");
    // NOTE: read again with the lock: another instance may have set the ring meanwhile.
    let new_ring = match ring {
        Some(name) if with_timeout(answer_timeout.answer, ring::is_new(&transaction, ring)).await? => {
            Some(name)
        }
        _ => None,
    };
    if new_ring.is_some() {
        with_timeout(waits, ring::lock(&transaction, WAIT_FOR_OTHERS)).await?;
    }
    with_timeout(answer_timeout.answer, async {
        if found < FORMAT {
            let update = format!("UPDATE stepfold_meta SET format = {FORMAT}");
            transaction.batch_execute(&update).await.map_err(failed)?;
        }
        if let Some(name) = new_ring {
            ring::add(&transaction, name).await?;
        }
        transaction.commit().await.map_err(failed)
    })
    .await
}

/// Begins the transaction in which one instance sets up the tables. The server ends it if that instance stays silent.
async fn lock(client: &mut Client, idle: Duration) -> Result<Transaction<'_>, SessionError> {
    let failed = failed("set up its tables");
    let transaction = client.transaction().await.map_err(failed)?;
    let limits = format!(
        "SET LOCAL lock_timeout = {}; SET LOCAL idle_in_transaction_session_timeout = {}",
        WAIT_FOR_OTHERS.as_millis(),
        idle.as_millis().clamp(1, 2_147_483_647)
    );
    transaction.batch_execute(&limits).await.map_err(failed)?;
    // NOTE: an advisory lock: there is no table to lock before the first start.
    let locked = transaction.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await;
    locked.map_err(|error| match error.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE) => is_locked(),
        _ => failed(error),
    })?;
    Ok(transaction)
}

fn is_locked() -> SessionError {
    let source = format!(
        "another process has held the advisory lock {LOCK} for {WAIT_FOR_OTHERS:?}; find it in pg_locks, and end it"
    );
    SessionError::Unavailable { what: "set up its tables", source: source.into() }
}

/// Makes the tables that are not there; gives the version of those that were.
async fn make_tables(transaction: &Transaction<'_>) -> Result<u64, SessionError> {
    let found = format_of(transaction).await?;
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(usize::MAX)) {
        transaction.batch_execute(migration).await.map_err(failed("set up its tables"))?;
    }
    Ok(found)
}

/// The error of a read that needs tables which only later versions have, said as such.
pub(super) async fn of_older_format(client: &impl GenericClient, error: SessionError) -> SessionError {
    let SessionError::Store { source, .. } = &error else { return error };
    let state = source.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code);
    if state != Some(&SqlState::UNDEFINED_TABLE) {
        return error;
    }
    match format_of(client).await {
        Ok(found) if found < FORMAT => {
            SessionError::OlderFormat { what: "session tables", found, current: FORMAT }
        }
        _ => error,
    }
}

/// The version of the existing tables; 0 without tables.
async fn format_of(client: &impl GenericClient) -> Result<u64, SessionError> {
    let failed = failed("inspect its tables");
    let names = client
        .query_typed(
            "SELECT table_name::text FROM information_schema.tables WHERE table_schema = current_schema() \
             AND table_name LIKE 'stepfold\\_%' ORDER BY 1",
            &[],
        )
        .await
        .map_err(failed)?;
    let names: Vec<String> = names.iter().map(|row| row.get(0)).collect();
    let Some(first) = names.first() else { return Ok(0) };
    if !names.iter().any(|name| name == META) {
        return Err(SessionError::ForeignTable { table: first.clone() });
    }
    let foreign = || SessionError::ForeignTable { table: META.to_owned() };
    // NOTE: unnamed: through a pooler, a prepared statement may be in another connection of the server.
    let format = client
        .query_typed(
            "SELECT format::bigint FROM stepfold_meta WHERE made_by = 'stepfold-session-scopes'",
            &[],
        )
        .await;
    match format {
        Ok(rows) => match rows.first().map(|row| from_db(row.get(0))) {
            Some(found) if found > FORMAT => {
                Err(SessionError::NewerFormat { what: "session tables", found, supported: FORMAT })
            }
            found => found.ok_or_else(foreign),
        },
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_COLUMN) => Err(foreign()),
        Err(error) => Err(failed(error)),
    }
}
