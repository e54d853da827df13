//! The tables of a PostgreSQL database, and how any number of instances set them up together.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Config, GenericClient, Transaction};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::failed;
use super::list_entry::update_all_entries;
use super::tags;
use super::transaction::with_timeout;
use crate::error::SessionError;
use crate::rows::lineage::from_db;

/// The version of the tables that this crate makes.
const FORMAT: u64 = 7;

/// The migrations of the tables, from one version to the next. A released version never changes.
const MIGRATIONS: &[&str] = &[
    include_str!("v1.sql"),
    include_str!("v2.sql"),
    include_str!("v3.sql"),
    include_str!("../rows/v4.sql"),
    include_str!("../rows/v5.sql"),
    include_str!("../rows/v6.sql"),
    include_str!("../rows/v7.sql"),
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

/// Creates or upgrades the tables, on a separate connection. One instance does it, the others wait.
pub(super) async fn set_up(
    config: &Config,
    tls: MakeRustlsConnect,
    answer_timeout: SetUpTimeouts,
) -> Result<(), SessionError> {
    let connect = async { config.connect(tls).await.map_err(failed("connect")) };
    let (mut client, connection) = with_timeout(answer_timeout.connecting, connect).await?;
    let driver = tokio::spawn(connection);
    let result = migrate(&mut client, answer_timeout).await;
    drop(client);
    if result.is_err() {
        // NOTE: after an error the driver would still wait for unanswered statements.
        driver.abort();
    }
    // NOTE: the driver ends with the client, and its error repeats that of the set-up.
    let _ = driver.await;
    result
}

async fn migrate(client: &mut Client, answer_timeout: SetUpTimeouts) -> Result<(), SessionError> {
    // NOTE: checked before the lock, so that a start does not wait for another process that holds the lock.
    if with_timeout(answer_timeout.answer, format_of(client)).await? == FORMAT {
        return Ok(());
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
    with_timeout(answer_timeout.answer, async {
        if found < FORMAT {
            let update = format!("UPDATE stepfold_meta SET format = {FORMAT}");
            transaction.batch_execute(&update).await.map_err(failed)?;
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
