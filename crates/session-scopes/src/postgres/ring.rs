//! The key ring of a database: its name, and the triggers by which processes without it add no content.
//!
//! A connection of a store with the ring has a setting that names it. The triggers are made when the database gets its
//! ring, so stores without one pay nothing.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{GenericClient, Transaction};

use super::error::failed;
use crate::error::SessionError;
use crate::keys::sealer::is_new_ring;

/// The tables whose new rows have content.
const CONTENT: [&str; 7] = ["events", "cells", "items", "shared", "shared_items", "inbox", "operations"];

/// The time for which the set-up waits for the locks of the tables at a time: less than the second after which a server
/// looks for a deadlock.
const LOCK_TIME: Duration = Duration::from_millis(500);

/// The pause after it, in which those that have waited for the set-up write.
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// The setting of connections that names the ring.
const SETTING: &str = "stepfold.ring";

/// The state of the triggers' error.
pub(super) const NO_RING: &str = "SF001";

/// The value of the setting: of letters and digits, whatever the ring's name is.
fn mark(ring: &str) -> String {
    blake3::hash(ring.as_bytes()).to_hex()[..32].to_owned()
}

/// The assignment that names the ring, for `SET` and `SET LOCAL`.
pub(super) fn setting(ring: &str) -> String {
    format!("{SETTING} = '{}'", mark(ring))
}

/// Whether a database of the current version gets this ring now; rejects another than it has.
pub(super) async fn is_new(client: &impl GenericClient, ring: Option<&str>) -> Result<bool, SessionError> {
    is_new_ring(stored(client).await?.as_deref(), ring)
}

/// The name of the ring of a database of the current version.
pub(super) async fn stored(client: &impl GenericClient) -> Result<Option<String>, SessionError> {
    let rows = client.query_typed("SELECT ring FROM stepfold_meta", &[]).await;
    let rows = rows.map_err(failed("inspect its tables"))?;
    Ok(rows.first().and_then(|row| row.get(0)))
}

/// Locks the tables that get triggers, once no transaction writes to them. The set-up holds no lock while it waits for long:
/// a transaction that has written to one table and goes to the next would wait for the set-up, and the set-up for it.
pub(super) async fn lock(transaction: &Transaction<'_>, most: Duration) -> Result<(), SessionError> {
    let failed = failed("set up its tables");
    let tables: Vec<String> = CONTENT.iter().map(|table| format!("stepfold_{table}")).collect();
    let (tables, limit) = (tables.join(", "), LOCK_TIME.as_millis());
    let begin = format!("SAVEPOINT free; SET LOCAL statement_timeout = {limit}");
    let lock = format!("LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE");
    for _ in 0..most.as_millis() / (LOCK_TIME + LOCK_PAUSE).as_millis() {
        transaction.batch_execute(&begin).await.map_err(failed)?;
        match transaction.batch_execute(&lock).await {
            Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => {
                transaction.batch_execute("ROLLBACK TO SAVEPOINT free").await.map_err(failed)?;
                tokio::time::sleep(LOCK_PAUSE).await;
            }
            Err(error) => return Err(failed(error)),
            Ok(()) => {
                let end = "SET LOCAL statement_timeout TO DEFAULT";
                return transaction.batch_execute(end).await.map_err(failed);
            }
        }
    }
    let source =
        format!("transactions have written to its tables for {most:?}; find them in pg_locks, and end them");
    Err(SessionError::Unavailable { what: "set up its tables", source: source.into() })
}

/// Remembers the ring of a database, and makes the triggers.
pub(super) async fn add(transaction: &Transaction<'_>, ring: &str) -> Result<(), SessionError> {
    let failed = failed("set up its tables");
    let function = format!(
        "CREATE OR REPLACE FUNCTION stepfold_refuse_unsealed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         RAISE EXCEPTION 'content is sealed, and this connection has no key ring' USING ERRCODE = '{NO_RING}'; END $$"
    );
    transaction.batch_execute(&function).await.map_err(failed)?;
    let mark = mark(ring);
    for table in CONTENT {
        let trigger = format!(
            "CREATE TRIGGER stepfold_{table}_sealed BEFORE INSERT ON stepfold_{table} FOR EACH ROW \
             WHEN (current_setting('{SETTING}', true) IS DISTINCT FROM '{mark}') \
             EXECUTE FUNCTION stepfold_refuse_unsealed()"
        );
        transaction.batch_execute(&trigger).await.map_err(failed)?;
    }
    let update = "UPDATE stepfold_meta SET ring = $1";
    let given: (&(dyn tokio_postgres::types::ToSql + Sync), _) = (&ring, tokio_postgres::types::Type::TEXT);
    transaction.execute_typed(update, &[given]).await.map(drop).map_err(failed)
}
