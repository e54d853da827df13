//! The tables of a PostgreSQL database, and how any number of instances set them up together.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Config, Transaction};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::failed;
use super::tags;
use super::transaction::within;
use crate::error::SessionError;
use crate::rows::from_db;

/// The version of the tables that this crate makes.
const FORMAT: u64 = 2;

/// The migrations of the tables, from one version to the next. A released version never changes.
const MIGRATIONS: &[&str] = &[include_str!("v1.sql"), include_str!("v2.sql")];

const META: &str = "stepfold_meta";

/// Any constant number.
const LOCK: i64 = 0x7374_6570_666f_6c64;

/// How long an instance waits for another one that is at it, in seconds.
const WAIT_FOR_OTHERS: u64 = 60;

/// Creates or upgrades the tables, on a separate connection. One instance does it, the others wait. The time
/// limit applies to the connection and to each of the server's answers, in addition to waiting for others.
pub(super) async fn set_up(
    config: &Config,
    tls: MakeRustlsConnect,
    (connecting, patience): (Duration, Duration),
) -> Result<(), SessionError> {
    let connect = async { config.connect(tls).await.map_err(failed("connect")) };
    let (mut client, connection) = within(connecting, connect).await?;
    let driver = tokio::spawn(connection);
    let patience = patience.saturating_add(Duration::from_secs(WAIT_FOR_OTHERS));
    let result = migrate(&mut client, patience).await;
    drop(client);
    if result.is_err() {
        // It would wait for what was not answered.
        driver.abort();
    }
    // Ends with the client; what it says about the end is of no use.
    let _ = driver.await;
    result
}

async fn migrate(client: &mut tokio_postgres::Client, patience: Duration) -> Result<(), SessionError> {
    let (transaction, found) = within(patience, make_tables(client)).await?;
    if found == 1 {
        tags::add_all(&transaction, patience).await?;
    }
    let failed = failed("set up its tables");
    within(patience, async {
        if found < FORMAT {
            let format = crate::rows::to_db(FORMAT);
            transaction.execute("UPDATE stepfold_meta SET format = $1", &[&format]).await.map_err(failed)?;
        }
        transaction.commit().await.map_err(failed)
    })
    .await
}

/// Makes the tables that are not there; gives the transaction, and the version of those that were.
async fn make_tables(client: &mut tokio_postgres::Client) -> Result<(Transaction<'_>, u64), SessionError> {
    let failed = failed("set up its tables");
    let transaction = client.transaction().await.map_err(failed)?;
    let wait = format!("SET LOCAL lock_timeout = '{WAIT_FOR_OTHERS}s'");
    transaction.batch_execute(&wait).await.map_err(failed)?;
    transaction.query("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await.map_err(failed)?;
    let found = format_of(&transaction).await?;
    if found > FORMAT {
        return Err(SessionError::NewerFormat { what: "session tables", found, supported: FORMAT });
    }
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(usize::MAX)) {
        transaction.batch_execute(migration).await.map_err(failed)?;
    }
    Ok((transaction, found))
}

/// The version of the existing tables; 0 without tables.
async fn format_of(transaction: &Transaction<'_>) -> Result<u64, SessionError> {
    let failed = failed("inspect its tables");
    let names = transaction
        .query(
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
    let format = transaction
        .query_opt("SELECT format::bigint FROM stepfold_meta WHERE made_by = 'stepfold-session-scopes'", &[])
        .await;
    match format {
        Ok(Some(row)) => Ok(from_db(row.get(0))),
        Ok(None) => Err(foreign()),
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_COLUMN) => Err(foreign()),
        Err(error) => Err(failed(error)),
    }
}
