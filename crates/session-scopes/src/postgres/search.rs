//! The indexes of searches in PostgreSQL: runs the statements of [`rows::search`](crate::rows::search).

use tokio::try_join;

use super::PostgresStore;
use super::connection::Object;
use super::sql::PostgresRows;
use super::transaction::{PooledTransaction, begin, commit, in_transaction};
use crate::error::SessionError;
use crate::ids::{LifeId, SessionKey};
use crate::rows::search::{self, POSTGRES};
use crate::search::block::Block;
use crate::search::{IndexHead, IndexPart, NewBlock, SearchIndex};

impl SearchIndex for PostgresStore {
    async fn head(
        &self,
        key: &SessionKey,
        life: &LifeId,
        shards: &[usize],
    ) -> Result<IndexHead, SessionError> {
        let connection = self.connection().await?;
        let mut rows = PostgresRows(&connection);
        self.with_timeout(Box::pin(search::head(&mut rows, &POSTGRES, key, life, shards))).await
    }

    async fn begin(&self, number: i64) -> Result<Option<i64>, SessionError> {
        let (connection, idle) = (self.writer().await?, &self.0.cache.idle);
        let begin = async {
            in_transaction!(connection, idle.usual(), |inside| {
                search::begin(&mut PostgresRows(inside), &POSTGRES, number).await
            })
        };
        self.with_timeout(Box::pin(begin)).await
    }

    async fn block(&self, number: i64, after: u64) -> Result<Vec<IndexPart>, SessionError> {
        let connection = self.connection().await?;
        let mut rows = PostgresRows(&connection);
        self.with_timeout(Box::pin(search::block(&mut rows, number, after))).await
    }

    async fn put(&self, block: NewBlock) -> Result<bool, SessionError> {
        let (connection, idle) = (self.writer().await?, &self.0.cache.idle);
        let put = async {
            in_transaction!(connection, idle.usual(), |inside| {
                search::put(&mut PostgresRows(inside), &POSTGRES, &block).await
            })
        };
        self.with_timeout(Box::pin(put)).await
    }

    async fn add_events(&self, number: i64, block: Block, last: u64) -> Result<Block, SessionError> {
        let connection = self.connection().await?;
        let mut rows = PostgresRows(&connection);
        self.with_timeout(Box::pin(search::add_events(&mut rows, number, block, last))).await
    }

    async fn forget(&self, number: i64) -> Result<(), SessionError> {
        let (connection, idle) = (self.writer().await?, &self.0.cache.idle);
        let forget =
            async { in_transaction!(connection, idle.usual(), |inside| forget(inside, number).await) };
        self.with_timeout(Box::pin(forget)).await
    }
}

/// Deletes the blocks of a session, inside of a transaction that has locked its row.
pub(super) async fn forget(connection: &Object, number: i64) -> Result<(), SessionError> {
    search::forget(&mut PostgresRows(connection), number).await
}

/// Deletes the index of a session that is deleted, inside of that transaction.
pub(super) async fn end(connection: &Object, number: i64) -> Result<(), SessionError> {
    search::end(&mut PostgresRows(connection), number).await
}
