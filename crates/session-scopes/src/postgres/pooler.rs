//! A pooler between a worker and its server that gives each transaction another connection of the server, such as
//! PgBouncer in transaction mode. Nothing may be left in a connection there: settings are those of a transaction,
//! statements have no name, and notices cannot be heard.

use std::time::Duration;

use bytes::BytesMut;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::failed;
use super::transaction::{SqlParameters, with_timeout};
use crate::error::SessionError;

/// The number of comparisons of two connections. A pooler mostly gives the connection that was used last, unless others use it at the
/// same time: then each look may find what a server would show.
const LOOKS: usize = 8;

/// The timeout for a connection that has nothing to wait for: a pooler with one connection for all gives none.
const SOON: Duration = Duration::from_secs(2);

/// Whether a pooler gives each transaction another connection of the server.
pub(super) async fn detect(
    config: &Config,
    tls: &MakeRustlsConnect,
    connecting: Duration,
) -> Result<bool, SessionError> {
    let connect =
        || with_timeout(connecting, async { config.connect(tls.clone()).await.map_err(failed("connect")) });
    let ((one, first), (other, second)) = (connect().await?, connect().await?);
    let drivers = [tokio::spawn(first), tokio::spawn(second)];
    let found = with_timeout(connecting, compare(&one, &other)).await;
    drop((one, other));
    for driver in drivers {
        driver.abort();
    }
    found
}

/// Whether two connections are served by the same process of the server, or one of them by several.
async fn compare(one: &Client, other: &Client) -> Result<bool, SessionError> {
    for _ in 0..LOOKS {
        let before = process(one, "").await?;
        // NOTE: an open transaction keeps its server connection, so a pooler has to give the other client another one.
        let held = process(other, "BEGIN; ").await?;
        // NOTE: two clients on one server process: only a pooler does that.
        if before == held {
            return Ok(true);
        }
        let Ok(after) = tokio::time::timeout(SOON, process(one, "")).await else { return Ok(true) };
        other.batch_execute("COMMIT").await.map_err(failed("commit"))?;
        if after? != before || process(other, "").await? != held {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The process of the server that serves the next transaction.
async fn process(client: &Client, before: &str) -> Result<Option<String>, SessionError> {
    let asked = client.simple_query(&format!("{before}SELECT pg_backend_pid()")).await;
    let rows = asked.map_err(failed("inspect its connection"))?;
    Ok(rows.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

/// Values with their types, which a statement without a name does not know.
pub(super) fn typed(given: SqlParameters<'_>) -> Result<Vec<(&(dyn ToSql + Sync), Type)>, SessionError> {
    given.iter().map(|value| type_of(*value).map(|kind| (*value, kind))).collect()
}

/// The type of a value, of those that our statements take.
fn type_of(value: &(dyn ToSql + Sync)) -> Result<Type, SessionError> {
    // NOTE: tried in this order: the driver checks types only, so the first that accepts a value is the one that all
    // statements use.
    let kinds = [
        Type::INT8,
        Type::TEXT,
        Type::BYTEA,
        Type::INT8_ARRAY,
        Type::TEXT_ARRAY,
        Type::BYTEA_ARRAY,
        Type::BOOL,
    ];
    let fits = |kind: &Type| value.to_sql_checked(kind, &mut BytesMut::new()).is_ok();
    let found = kinds.into_iter().find(fits);
    found.ok_or_else(|| SessionError::Store { what: "send a value", source: "it has another type".into() })
}
