//! The indexes of searches in a SQLite file: runs the statements of [`rows::search`](crate::rows::search).

use std::future::{Future, ready};

use super::SqliteStore;
use super::error::failed;
use super::history::segments_of;
use super::sql::{at_once, changed, rows};
use super::threads::SqliteConnection;
use crate::error::SessionError;
use crate::ids::{LifeId, SessionKey};
use crate::rows::seal::version_of;
use crate::rows::search::{self, SQLITE};
use crate::rows::sql::{RunSql, SharedSql, SqlRow, SqlValue};
use crate::search::block::Block;
use crate::search::{IndexHead, IndexPart, NewBlock, PAGE, SearchIndex, add_body};

struct SearchRows<'a>(&'a SqliteConnection);

impl RunSql for SearchRows<'_> {
    fn rows(
        &mut self,
        sql: SharedSql,
        values: &[SqlValue<'_>],
    ) -> impl Future<Output = Result<Vec<SqlRow>, SessionError>> + Send {
        ready(rows(&self.0.connection, sql, values).map_err(failed("read or write a search index")))
    }

    fn changed(
        &mut self,
        sql: SharedSql,
        values: &[SqlValue<'_>],
    ) -> impl Future<Output = Result<u64, SessionError>> + Send {
        ready(changed(&self.0.connection, sql, values).map_err(failed("read or write a search index")))
    }
}

impl SearchIndex for SqliteStore {
    async fn head(
        &self,
        key: &SessionKey,
        life: &LifeId,
        shards: &[usize],
    ) -> Result<IndexHead, SessionError> {
        let (key, life, shards) = (key.clone(), life.clone(), shards.to_vec());
        let read = move |sqlite: &mut SqliteConnection| {
            at_once(search::head(&mut SearchRows(sqlite), &SQLITE, &key, &life, &shards))
        };
        let head = self.0.readers.run(read).await;
        // NOTE: a file that is only read may have the tables of an earlier version, without indexes.
        if self.0.writer.is_none() { Ok(head.unwrap_or_default()) } else { head }
    }

    async fn begin(&self, number: i64) -> Result<Option<i64>, SessionError> {
        let begin = move |sqlite: &mut SqliteConnection| {
            at_once(search::begin(&mut SearchRows(sqlite), &SQLITE, number))
        };
        self.writer()?.run(begin).await
    }

    async fn block(&self, number: i64, after: u64) -> Result<Vec<IndexPart>, SessionError> {
        let read = move |sqlite: &mut SqliteConnection| {
            at_once(search::block(&mut SearchRows(sqlite), number, after))
        };
        self.0.readers.run(read).await
    }

    async fn put(&self, block: NewBlock) -> Result<bool, SessionError> {
        let put = move |sqlite: &mut SqliteConnection| {
            at_once(search::put(&mut SearchRows(sqlite), &SQLITE, &block))
        };
        self.writer()?.run(put).await
    }

    async fn add_events(&self, number: i64, block: Block, last: u64) -> Result<Block, SessionError> {
        self.0.readers.run(move |sqlite| add_events(sqlite, number, block, last)).await
    }

    async fn forget(&self, number: i64) -> Result<(), SessionError> {
        let Some(writer) = &self.0.writer else { return Ok(()) };
        writer.run(move |sqlite| forget(sqlite, number)).await
    }
}

/// As [`SearchIndex::add_events`].
fn add_events(
    sqlite: &SqliteConnection,
    number: i64,
    mut block: Block,
    last: u64,
) -> Result<Block, SessionError> {
    let failed = failed("read events for a search index");
    let connection = &sqlite.connection;
    let mut query = connection
        .prepare_cached(
            "SELECT number, body FROM stepfold_events WHERE number > ?1 AND number <= ?2 ORDER BY number",
        )
        .map_err(failed)?;
    let end = last.min(block.last.saturating_add(PAGE as u64));
    for segment in segments_of(connection, number)?.iter().rev() {
        let (from, to) = segment.rows_between(block.last, end);
        if from >= to {
            continue;
        }
        let mut rows = query.query([from, to]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let (number, body) = (row.get(0).map_err(failed)?, row.get_ref(1).map_err(failed)?);
            // NOTE: one that cannot be read is left to the checked read, which says why.
            let is_added = body.as_str().is_ok_and(|body| add_body(&mut block, version_of(number), body));
            if !is_added || block.is_full() {
                return Ok(block);
            }
        }
    }
    Ok(block)
}

/// Deletes the blocks of a session.
pub(super) fn forget(sqlite: &SqliteConnection, number: i64) -> Result<(), SessionError> {
    at_once(search::forget(&mut SearchRows(sqlite), number))
}

/// Deletes the index of a session that is deleted.
pub(super) fn end(sqlite: &SqliteConnection, number: i64) -> Result<(), SessionError> {
    at_once(search::end(&mut SearchRows(sqlite), number))
}
