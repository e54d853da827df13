//! The values that a session had at a version.

use tokio::try_join;

use super::connection::Object;
use super::read::ValueRows;
use super::rows::PostgresHistory;
use super::statements::{PAST_CELLS, PAST_ITEMS};
use super::transaction::query;
use crate::error::SessionError;
use crate::rows::lineage::to_db;

/// The rows of a session's own values at a version: all, or those of these keys.
pub(super) async fn past_rows(
    connection: &Object,
    number: i64,
    history: &PostgresHistory,
    version: u64,
    keys: Option<&[String]>,
) -> Result<ValueRows, SessionError> {
    // NOTE: a fork begins with copies of its values, so the values at a version before that are in the stream of its
    // origin.
    let (stream, version) = (history.stream_of(version), to_db(version));
    let (cells, items) = try_join!(biased;
        async { query(connection, PAST_CELLS, &[&stream, &version, &keys]).await },
        async { query(connection, PAST_ITEMS, &[&stream, &version, &keys, &number]).await },
    )?;
    Ok(ValueRows { cells, items })
}
