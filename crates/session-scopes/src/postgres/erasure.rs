//! Erasure in PostgreSQL: the rows that [`rows::erasure`](crate::rows::erasure) reads and writes, and the vacuum.

use tokio::try_join;
use tokio_postgres::Row;

use super::connection::Object;
use super::error::failed;
use super::inbox;
use super::list_entry::update_entry;
use super::rows::{PostgresSessionRow, event_seal};
use super::sql::PostgresRows;
use super::statements::{
    DROP_EMPTY_SCOPE, ERASABLE_EVENT, FIND_SEAL, LOCK_SESSION, PUT_ERASED, SESSION_WITH_FORKS,
    SESSIONS_OF_USER, SESSIONS_SHARING, SqlStatement,
};
use super::transaction::{
    IdleTimeout, PooledTransaction, SqlParameters, begin, commit, execute, in_transaction, query,
};
use super::write;
use crate::digest::ContentForm;
use crate::error::SessionError;
use crate::ids::{AppId, EventId, SessionKey, UserId};
use crate::keys::sealer::ContentKey;
use crate::rows::erasure::{self, EraseRows, EventRow};
use crate::rows::lineage::{from_db, to_db};
use crate::rows::seal::{SessionRecord, row_number};
use crate::rows::sql::{RunSql, SharedSql, SqlRow, SqlValue};
use crate::store::{DeleteSession, EraseData, ErasedData, ErasureRecord, ListErasures, TakeOver};
use crate::time::Timestamp;

struct PostgresErasure<'a>(&'a Object);

impl RunSql for PostgresErasure<'_> {
    async fn rows(&mut self, sql: SharedSql, values: &[SqlValue<'_>]) -> Result<Vec<SqlRow>, SessionError> {
        PostgresRows(self.0).rows(sql, values).await
    }

    async fn changed(&mut self, sql: SharedSql, values: &[SqlValue<'_>]) -> Result<u64, SessionError> {
        PostgresRows(self.0).changed(sql, values).await
    }
}

impl EraseRows for PostgresErasure<'_> {
    fn key(&self) -> ContentKey<'_> {
        self.0.key()
    }

    async fn lock(&mut self, app: &AppId, user: &UserId) -> Result<(), SessionError> {
        write::lock_tenant(self.0, app, user).await
    }

    async fn session(
        &mut self,
        key: &SessionKey,
        at_rest: Option<Timestamp>,
    ) -> Result<SessionRecord, SessionError> {
        let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
        let row = PostgresSessionRow::of(&query(self.0, LOCK_SESSION, &[&app, &user, &id]).await?, key)?;
        if at_rest.is_some() {
            // NOTE: claims expire by the server's clock.
            row.work.fence.check_free(key, TakeOver::Never, Some(row.now))?;
        }
        Ok(row.record)
    }

    async fn sharing(&mut self, stream: i64) -> Result<Vec<SessionKey>, SessionError> {
        keys(self.0, SESSIONS_SHARING, &[&stream]).await
    }

    async fn with_forks(&mut self, number: i64) -> Result<Vec<SessionKey>, SessionError> {
        keys(self.0, SESSION_WITH_FORKS, &[&number]).await
    }

    async fn of_user(&mut self, app: &AppId, user: &UserId) -> Result<Vec<SessionKey>, SessionError> {
        keys(self.0, SESSIONS_OF_USER, &[&app.as_str(), &user.as_str()]).await
    }

    async fn event(
        &mut self,
        record: &SessionRecord,
        version: u64,
    ) -> Result<Option<EventRow>, SessionError> {
        let rows = query(self.0, ERASABLE_EVENT, &[&record.number, &to_db(version)]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (stream, at, seal) = (row.get(0), row.get(2), event_seal(version, row.get(4))?);
        seal.open(row_number(stream, version), at)?;
        Ok(Some(EventRow { stream, version, id: row.get(1), at, body: row.get(3), seal }))
    }

    async fn put_event(&mut self, row: &EventRow) -> Result<(), SessionError> {
        let EventRow { stream, version, body, seal, .. } = row;
        let given: SqlParameters<'_> = &[stream, &to_db(*version), body, &seal.to_bytes()];
        execute(self.0, PUT_ERASED, given).await.map(drop)
    }

    async fn forget_inputs(&mut self, number: i64) -> Result<(), SessionError> {
        inbox::forget_digests(self.0, number).await
    }

    async fn update_entry(&mut self, key: &SessionKey) -> Result<(), SessionError> {
        update_entry(self.0, key).await
    }

    async fn delete(&mut self, key: &SessionKey) -> Result<(), SessionError> {
        let request = DeleteSession::new(key.clone()).take_over();
        Box::pin(write::delete_inside(self.0, &request)).await.map(drop)
    }

    async fn user_keys(
        &mut self,
        app: &AppId,
        user: &UserId,
        is_dry_run: bool,
    ) -> Result<Vec<String>, SessionError> {
        if is_dry_run {
            return write::user_keys(self.0, app, user).await;
        }
        let keys = write::delete_user(self.0, app, user).await?;
        execute(self.0, DROP_EMPTY_SCOPE, &[&app.as_str(), &user.as_str()]).await?;
        Ok(keys)
    }
}

async fn keys(
    connection: &Object,
    sql: SqlStatement,
    given: SqlParameters<'_>,
) -> Result<Vec<SessionKey>, SessionError> {
    let rows = query(connection, sql, given).await?;
    let key =
        |row: &Row| SessionKey::new(row.get::<_, &str>(0), row.get::<_, &str>(1), row.get::<_, &str>(2));
    rows.iter().map(key).collect()
}

pub(super) async fn erase(
    connection: Object,
    idle: &IdleTimeout,
    request: &EraseData,
) -> Result<ErasedData, SessionError> {
    in_transaction!(connection, idle.usual(), |inside| {
        erasure::erase(&mut PostgresErasure(inside), request).await
    })
}

/// Takes the id of an erasure: see [`erasure::begin`].
pub(super) async fn begin_erasure(
    connection: Object,
    idle: &IdleTimeout,
    request: &EraseData,
) -> Result<Option<ErasedData>, SessionError> {
    in_transaction!(connection, idle.usual(), |inside| {
        erasure::begin(&mut PostgresErasure(inside), request).await
    })
}

/// Finishes an erasure that was begun.
pub(super) async fn finish(
    connection: Object,
    idle: &IdleTimeout,
    request: &EraseData,
) -> Result<ErasedData, SessionError> {
    in_transaction!(connection, idle.usual(), |inside| {
        erasure::finish(&mut PostgresErasure(inside), request).await
    })
}

pub(super) async fn list(
    connection: Object,
    request: &ListErasures,
) -> Result<Vec<ErasureRecord>, SessionError> {
    erasure::list(&mut PostgresErasure(&connection), request).await
}

/// The version of a session's own event with this id, if its content was erased.
pub(super) async fn erased_version(
    connection: Object,
    key: &SessionKey,
    event: &EventId,
) -> Result<Option<u64>, SessionError> {
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let rows = query(&connection, FIND_SEAL, &[&app, &user, &id, &event.as_str()]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let version = from_db(row.get(0));
    let is_erased = matches!(event_seal(version, row.get(1))?.form, ContentForm::Erased { .. });
    Ok(is_erased.then_some(version))
}

/// The tables whose rows were ever replaced or deleted.
const TABLES: [&str; 22] = [
    "sessions",
    "inbox",
    "taken",
    "forks",
    "labels",
    "lineage",
    "events",
    "rewinds",
    "cells",
    "past",
    "items",
    "scopes",
    "shared",
    "removed",
    "shared_items",
    "operations",
    "tags",
    "budgets",
    "spend",
    "search",
    "search_parts",
    "erasures",
];

/// Rewrites the tables, one after the other, and has the server write the rest of its memory to the files.
pub(super) async fn vacuum(connection: Object) -> Result<(), SessionError> {
    // NOTE: taken out of the pool, and closed at the end: no other operation is to run without these limits.
    let connection = Object::take(connection);
    let unlimited = "SET statement_timeout = 0; SET lock_timeout = 0";
    connection.batch_execute(unlimited).await.map_err(failed("vacuum its tables: lift its timeouts"))?;
    for table in TABLES {
        let statement = format!("VACUUM (FULL, ANALYZE) stepfold_{table}");
        connection.batch_execute(&statement).await.map_err(failed("vacuum its tables"))?;
    }
    // NOTE: the planner's statistics have samples of ids, labels and short texts. New ones were made of what is left, and the
    // old ones go here. The server skips the table with a warning if the user does not own the database.
    let statistics = "VACUUM FULL pg_catalog.pg_statistic";
    connection.batch_execute(statistics).await.map_err(failed("vacuum its tables: statistics"))?;
    // NOTE: the old files are removed at the next checkpoint.
    connection.batch_execute("CHECKPOINT").await.map_err(failed("vacuum its tables: checkpoint"))
}
