//! Erasure in a SQLite file: the rows that [`rows::erasure`](crate::rows::erasure) reads and writes, and the vacuum.

use std::future::{Future, ready};

use rusqlite::{OptionalExtension, params};

use super::error::failed;
use super::history::{SqliteHistory, SqliteSessionRow};
use super::inbox;
use super::list_entry::update_entry;
use super::seal::EventSeal;
use super::sql::{at_once, changed, rows};
use super::threads::SqliteConnection;
use super::write;
use crate::error::SessionError;
use crate::ids::{AppId, SessionKey, UserId};
use crate::keys::sealer::ContentKey;
use crate::rows::erasure::{self, EraseRows, EventRow, with_forks};
use crate::rows::seal::{SessionRecord, row_number, stream_of};
use crate::rows::sql::{RunSql, SharedSql, SqlRow, SqlValue};
use crate::store::{DeleteSession, EraseData, ErasedData, ErasureRecord, ListErasures, TakeOver};
use crate::time::Timestamp;

struct SqliteErasure<'a>(&'a mut SqliteConnection);

impl RunSql for SqliteErasure<'_> {
    fn rows(
        &mut self,
        sql: SharedSql,
        values: &[SqlValue<'_>],
    ) -> impl Future<Output = Result<Vec<SqlRow>, SessionError>> + Send {
        ready(rows(&self.0.connection, sql, values).map_err(failed("erase or read an erasure")))
    }

    fn changed(
        &mut self,
        sql: SharedSql,
        values: &[SqlValue<'_>],
    ) -> impl Future<Output = Result<u64, SessionError>> + Send {
        ready(changed(&self.0.connection, sql, values).map_err(failed("erase or read an erasure")))
    }
}

impl EraseRows for SqliteErasure<'_> {
    fn key(&self) -> ContentKey<'_> {
        self.0.key()
    }

    /// The writer is alone.
    fn lock(&mut self, _: &AppId, _: &UserId) -> impl Future<Output = Result<(), SessionError>> + Send {
        ready(Ok(()))
    }

    fn session(
        &mut self,
        key: &SessionKey,
        at_rest: Option<Timestamp>,
    ) -> impl Future<Output = Result<SessionRecord, SessionError>> + Send {
        ready(session(self.0, key, at_rest))
    }

    fn sharing(&mut self, stream: i64) -> impl Future<Output = Result<Vec<SessionKey>, SessionError>> + Send {
        let query = "SELECT DISTINCT s.app, s.user, s.id, s.number FROM stepfold_lineage l \
             JOIN stepfold_sessions s ON s.number = l.number WHERE l.stream = ?1 ORDER BY s.number";
        ready(keys(self.0, query, &[&stream]))
    }

    fn with_forks(
        &mut self,
        number: i64,
    ) -> impl Future<Output = Result<Vec<SessionKey>, SessionError>> + Send {
        let query = concat!(
            with_forks!(),
            "SELECT app, user, id FROM stepfold_sessions WHERE number IN (SELECT number FROM d) ORDER BY number"
        );
        ready(keys(self.0, query, &[&number]))
    }

    fn of_user(
        &mut self,
        app: &AppId,
        user: &UserId,
    ) -> impl Future<Output = Result<Vec<SessionKey>, SessionError>> + Send {
        let query =
            "SELECT app, user, id FROM stepfold_sessions WHERE app = ?1 AND user = ?2 ORDER BY number";
        ready(keys(self.0, query, &[&app.as_str(), &user.as_str()]))
    }

    fn event(
        &mut self,
        record: &SessionRecord,
        version: u64,
    ) -> impl Future<Output = Result<Option<EventRow>, SessionError>> + Send {
        ready(event(self.0, record, version))
    }

    fn put_event(&mut self, row: &EventRow) -> impl Future<Output = Result<(), SessionError>> + Send {
        let number = row_number(row.stream, row.version);
        let update = "UPDATE stepfold_events SET body = ?2, seal = ?3 WHERE number = ?1";
        ready(write::execute(self.0, update, &[&number, &row.body, &row.seal]).map(drop))
    }

    fn forget_inputs(&mut self, number: i64) -> impl Future<Output = Result<(), SessionError>> + Send {
        ready(inbox::forget_digests(self.0, number))
    }

    fn update_entry(&mut self, key: &SessionKey) -> impl Future<Output = Result<(), SessionError>> + Send {
        ready(update_entry(self.0, key))
    }

    fn delete(&mut self, key: &SessionKey) -> impl Future<Output = Result<(), SessionError>> + Send {
        ready(write::delete(self.0, &DeleteSession::new(key.clone()).take_over()).map(drop))
    }

    fn user_keys(
        &mut self,
        app: &AppId,
        user: &UserId,
        is_dry_run: bool,
    ) -> impl Future<Output = Result<Vec<String>, SessionError>> + Send {
        ready(match is_dry_run {
            true => write::user_keys(self.0, app, user),
            false => write::delete_user(self.0, app, user),
        })
    }
}

fn session(
    sqlite: &SqliteConnection,
    key: &SessionKey,
    at_rest: Option<Timestamp>,
) -> Result<SessionRecord, SessionError> {
    let row = SqliteSessionRow::get(&sqlite.connection, key)?;
    if at_rest.is_some() {
        row.work.fence.check_free(key, TakeOver::Never, at_rest)?;
    }
    Ok(row.record)
}

fn keys(
    sqlite: &SqliteConnection,
    query: &str,
    given: &[&dyn rusqlite::ToSql],
) -> Result<Vec<SessionKey>, SessionError> {
    let failed = failed("find sessions");
    let mut query = sqlite.connection.prepare_cached(query).map_err(failed)?;
    let read = query.query_map(given, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let read: Vec<(String, String, String)> = read.and_then(Iterator::collect).map_err(failed)?;
    read.into_iter().map(|(app, user, id)| SessionKey::new(app, user, id)).collect()
}

fn event(
    sqlite: &SqliteConnection,
    record: &SessionRecord,
    version: u64,
) -> Result<Option<EventRow>, SessionError> {
    let history = SqliteHistory::of(&sqlite.connection, record)?;
    let Some(number) = history.row_of(version) else { return Ok(None) };
    let read = |row: &rusqlite::Row<'_>| {
        let seal: EventSeal = row.get(3)?;
        let (id, at, body) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(EventRow { stream: stream_of(number), version, id, at, body, seal })
    };
    let row = sqlite
        .connection
        .prepare_cached("SELECT id, at, body, seal FROM stepfold_events WHERE number = ?1")
        .and_then(|mut query| query.query_row(params![number], read).optional())
        .map_err(failed("read an event"))?;
    if let Some(row) = &row {
        row.seal.open(number, row.at)?;
    }
    Ok(row)
}

pub(super) fn erase(sqlite: &mut SqliteConnection, request: &EraseData) -> Result<ErasedData, SessionError> {
    securely(sqlite, |rows| at_once(erasure::erase(rows, request)))
}

/// Takes the id of an erasure: see [`erasure::begin`].
pub(super) fn begin_erasure(
    sqlite: &mut SqliteConnection,
    request: &EraseData,
) -> Result<Option<ErasedData>, SessionError> {
    securely(sqlite, |rows| at_once(erasure::begin(rows, request)))
}

/// Finishes an erasure that was begun.
pub(super) fn finish(sqlite: &mut SqliteConnection, request: &EraseData) -> Result<ErasedData, SessionError> {
    securely(sqlite, |rows| at_once(erasure::finish(rows, request)))
}

/// Runs an operation that overwrites what it deletes with zeros, in the pages that it changes. What earlier ones left goes with a
/// vacuum.
fn securely<T>(
    sqlite: &mut SqliteConnection,
    erase: impl FnOnce(&mut SqliteErasure<'_>) -> Result<T, SessionError>,
) -> Result<T, SessionError> {
    set_secure_delete(sqlite, true)?;
    let erased = erase(&mut SqliteErasure(sqlite));
    set_secure_delete(sqlite, false)?;
    erased
}

fn set_secure_delete(sqlite: &SqliteConnection, is_on: bool) -> Result<(), SessionError> {
    let set = sqlite.connection.pragma_update_and_check(None, "secure_delete", is_on, |_| Ok(()));
    set.map_err(failed("erase"))
}

pub(super) fn list(
    sqlite: &mut SqliteConnection,
    request: &ListErasures,
) -> Result<Vec<ErasureRecord>, SessionError> {
    at_once(erasure::list(&mut SqliteErasure(sqlite), request))
}
