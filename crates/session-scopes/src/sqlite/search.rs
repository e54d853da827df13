//! The indexes of searches in a SQLite file: runs the statements of [`rows::search`](crate::rows::search).

use std::future::{Future, ready};

use super::SqliteStore;
use super::error::failed;
use super::sql::{at_once, rows};
use super::threads::SqliteConnection;
use crate::error::SessionError;
use crate::ids::{LifeId, SessionKey};
use crate::rows::search::{self, SQLITE};
use crate::rows::sql::{RunSql, SharedSql, SqlRow, SqlValue};
use crate::search::{IndexHead, IndexPart, NewBlock, SearchIndex};

struct SearchRows<'a>(&'a SqliteConnection);

impl RunSql for SearchRows<'_> {
    fn rows(
        &mut self,
        sql: SharedSql,
        values: &[SqlValue<'_>],
    ) -> impl Future<Output = Result<Vec<SqlRow>, SessionError>> + Send {
        ready(rows(&self.0.connection, sql, values).map_err(failed("read or write a search index")))
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

    async fn forget(&self, number: i64) -> Result<(), SessionError> {
        let Some(writer) = &self.0.writer else { return Ok(()) };
        writer.run(move |sqlite| forget(sqlite, number)).await
    }
}

/// Deletes the blocks of a session.
pub(super) fn forget(sqlite: &SqliteConnection, number: i64) -> Result<(), SessionError> {
    at_once(search::forget(&mut SearchRows(sqlite), number))
}

/// Deletes the index of a session that is deleted.
pub(super) fn end(sqlite: &SqliteConnection, number: i64) -> Result<(), SessionError> {
    at_once(search::end(&mut SearchRows(sqlite), number))
}
