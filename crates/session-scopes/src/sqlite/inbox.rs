//! The inboxes of sessions: a row for each waiting entry, and for each entry that was taken last, with its idempotency
//! key.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::claims::put_work;
use super::error::failed;
use super::history::SqliteSessionRow;
use super::threads::SqliteConnection;
use super::write::execute;
use crate::error::SessionError;
use crate::rows::lineage::{from_db, to_db};
use crate::rows::work::{InputRow, TakenRow, WorkState, repeated, stored_bytes};
use crate::store::{
    DequeueInput, Enqueued, InboxEntry, MAX_INBOX, PreparedInput, REMEMBERED_INPUTS, ReadInbox, WorkRequest,
};

/// Checks that all entries that an append takes wait, each given once.
pub(super) fn check(
    sqlite: &SqliteConnection,
    number: i64,
    request: WorkRequest<'_>,
) -> Result<(), SessionError> {
    let mut seen = BTreeSet::new();
    for position in request.taken {
        let query = "SELECT COUNT(*) FROM stepfold_inbox WHERE number = ?1 AND position = ?2";
        if !seen.insert(position) || query_number(sqlite, query, &[&number, &to_db(*position)])? == 0 {
            return Err(SessionError::not_waiting(request.key, *position));
        }
    }
    Ok(())
}

const COLUMNS: &str = "position, checksum, key, digest, kind, body, at";

fn read_row(row: &Row<'_>) -> rusqlite::Result<InputRow> {
    Ok(InputRow {
        position: row.get(0)?,
        checksum: row.get(1)?,
        key: row.get(2)?,
        digest: row.get(3)?,
        kind: row.get(4)?,
        body: row.get(5)?,
        at: row.get(6)?,
    })
}

/// The row of a position, checked, if it waits.
fn find(connection: &Connection, number: i64, position: i64) -> Result<Option<InputRow>, SessionError> {
    let query = format!("SELECT {COLUMNS} FROM stepfold_inbox WHERE number = ?1 AND position = ?2");
    let found = connection
        .prepare_cached(&query)
        .and_then(|mut query| query.query_row([number, position], read_row).optional())
        .map_err(failed("read an inbox"))?;
    found.map(|row| row.check(number).map(|()| row)).transpose()
}

/// Takes the entries at these positions that wait.
pub(super) fn take(
    sqlite: &SqliteConnection,
    number: i64,
    positions: &[u64],
    work: &mut WorkState,
) -> Result<Vec<u64>, SessionError> {
    let mut taken = Vec::new();
    for position in positions {
        // NOTE: read before it is deleted: its checksum leaves the sum of waiting entries, and its key stays known.
        let Some(row) = find(&sqlite.connection, number, to_db(*position))? else { continue };
        remember(sqlite, number, &row)?;
        let place: [&dyn rusqlite::ToSql; 2] = [&number, &row.position];
        execute(sqlite, "DELETE FROM stepfold_inbox WHERE number = ?1 AND position = ?2", &place)?;
        work.waiting ^= row.checksum;
        taken.push(*position);
    }
    if !taken.is_empty() {
        execute(
            sqlite,
            "DELETE FROM stepfold_taken WHERE number = ?1 AND place <= \
             (SELECT MAX(place) FROM stepfold_taken WHERE number = ?1) - ?2",
            &[&number, &to_db(REMEMBERED_INPUTS as u64)],
        )?;
        let query = "SELECT COALESCE(MAX(position), 0) FROM stepfold_inbox WHERE number = ?1";
        work.inbox = from_db(query_number(sqlite, query, &[&number])?);
    }
    Ok(taken)
}

/// Stores the idempotency key of an entry that is removed.
fn remember(sqlite: &SqliteConnection, number: i64, row: &InputRow) -> Result<(), SessionError> {
    let TakenRow { position, checksum, key, digest } = row.taken(number);
    execute(
        sqlite,
        "INSERT INTO stepfold_taken (number, place, key, position, digest, checksum) VALUES (?1, \
         (SELECT COALESCE(MAX(place), 0) + 1 FROM stepfold_taken WHERE number = ?1), ?2, ?3, ?4, ?5)",
        &[&number, &key, &position, &digest, &checksum],
    )
    .map(drop)
}

/// Replaces the digests of taken entries by none: their keys stay known, and a repeat of one counts as such whatever its
/// content is.
pub(super) fn forget_digests(sqlite: &SqliteConnection, number: i64) -> Result<(), SessionError> {
    let failed = failed("read an inbox");
    let mut query = sqlite
        .connection
        .prepare_cached("SELECT key, position FROM stepfold_taken WHERE number = ?1")
        .map_err(failed)?;
    let taken = query.query_map([number], |row| Ok((row.get(0)?, row.get(1)?)));
    let taken: Vec<(String, i64)> = taken.and_then(Iterator::collect).map_err(failed)?;
    for (key, position) in &taken {
        let TakenRow { digest, checksum, .. } = TakenRow::without_digest(number, key, *position);
        let update = "UPDATE stepfold_taken SET digest = ?3, checksum = ?4 WHERE number = ?1 AND key = ?2";
        execute(sqlite, update, &[&number, key, &digest, &checksum])?;
    }
    Ok(())
}

/// Deletes the inbox of a deleted session.
pub(super) fn delete(sqlite: &SqliteConnection, number: i64) -> Result<(), SessionError> {
    execute(sqlite, "DELETE FROM stepfold_inbox WHERE number = ?1", &[&number])?;
    execute(sqlite, "DELETE FROM stepfold_taken WHERE number = ?1", &[&number]).map(drop)
}

pub(super) fn enqueue(
    sqlite: &mut SqliteConnection,
    prepared: &PreparedInput,
) -> Result<Enqueued, SessionError> {
    let input = &prepared.input;
    let row = SqliteSessionRow::get(&sqlite.connection, &input.key)?;
    let (position, is_repeat) = match accepted_position(sqlite, row.number, prepared)? {
        Some(position) => (position, true),
        None => (insert(sqlite, &row, prepared)?, false),
    };
    Ok(Enqueued { position, is_repeat, claim: row.work.fence.unexpired(input.at), version: row.version })
}

/// The position of an entry that was accepted before.
fn accepted_position(
    sqlite: &SqliteConnection,
    number: i64,
    prepared: &PreparedInput,
) -> Result<Option<u64>, SessionError> {
    let failed = failed("find an inbox entry");
    let named = &prepared.input.idempotency_key;
    let parts = params![number, named.as_str()];
    let waiting: Option<i64> = sqlite
        .connection
        .prepare_cached("SELECT position FROM stepfold_inbox WHERE number = ?1 AND key = ?2")
        .and_then(|mut query| query.query_row(parts, |row| row.get(0)).optional())
        .map_err(&failed)?;
    if let Some(row) =
        waiting.map(|position| find(&sqlite.connection, number, position)).transpose()?.flatten()
    {
        return repeated(prepared, sqlite.key(), &row.digest, row.position).map(Some);
    }
    let taken: Option<(i64, Vec<u8>, i64)> = sqlite
        .connection
        .prepare_cached(
            "SELECT position, digest, checksum FROM stepfold_taken WHERE number = ?1 AND key = ?2",
        )
        .and_then(|mut query| {
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            query.query_row(parts, read).optional()
        })
        .map_err(&failed)?;
    let Some((position, digest, checksum)) = taken else { return Ok(None) };
    TakenRow { position, checksum, key: named.as_str(), digest: &digest }.check(number)?;
    repeated(prepared, sqlite.key(), &digest, position).map(Some)
}

/// Adds an entry; returns its position.
fn insert(
    sqlite: &SqliteConnection,
    session: &SqliteSessionRow,
    prepared: &PreparedInput,
) -> Result<u64, SessionError> {
    let (input, number) = (&prepared.input, session.number);
    let waiting = query_number(sqlite, "SELECT COUNT(*) FROM stepfold_inbox WHERE number = ?1", &[&number])?;
    if from_db(waiting) >= MAX_INBOX as u64 {
        return Err(SessionError::inbox_full(&input.key, MAX_INBOX));
    }
    let position = session.work.last + 1;
    let row = InputRow::new(number, position, prepared, sqlite.key())?;
    let InputRow { position: place, checksum, key, digest, kind, body, at } = &row;
    execute(
        sqlite,
        "INSERT INTO stepfold_inbox (number, position, checksum, key, digest, kind, body, at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        &[&number, place, checksum, key, digest, kind, body, at],
    )?;
    let waiting = session.work.waiting ^ row.checksum;
    let work = WorkState { inbox: position, last: position, waiting, ..session.work.clone() };
    put_work(sqlite, session, &work)?;
    Ok(position)
}

pub(super) fn read(
    sqlite: &mut SqliteConnection,
    request: &ReadInbox,
) -> Result<Vec<InboxEntry>, SessionError> {
    let (connection, content) = (&sqlite.connection, sqlite.key());
    let session = SqliteSessionRow::get(connection, &request.key)?;
    let largest = request.max_body_bytes();
    let most = to_db(stored_bytes(content, largest) as u64);
    let rows = match &request.only {
        None => waiting(connection, &session, to_db(request.after), most)?,
        Some(positions) => {
            // NOTE: detects missing entries without reading any body.
            waiting(connection, &session, i64::MAX, 0)?;
            let wanted: BTreeSet<_> = positions.iter().filter(|position| request.wants(**position)).collect();
            let found = wanted.into_iter().map(|position| find(connection, session.number, to_db(*position)));
            found.filter_map(Result::transpose).collect::<Result<_, _>>()?
        }
    };
    rows.iter().map(|row| row.entry(session.number, content, largest)).collect()
}

/// The entries that wait after a position, checked, with bodies of at most `most` bytes. Detects missing entries.
fn waiting(
    connection: &Connection,
    session: &SqliteSessionRow,
    after: i64,
    most: i64,
) -> Result<Vec<InputRow>, SessionError> {
    let failed = failed("read an inbox");
    let mut query = connection
        .prepare_cached(
            "SELECT position, checksum, key, digest, kind, \
             CASE WHEN position > ?2 AND octet_length(body) <= ?3 THEN body END, at \
             FROM stepfold_inbox WHERE number = ?1 ORDER BY position",
        )
        .map_err(&failed)?;
    let mut rows = query.query([session.number, after, most]).map_err(&failed)?;
    let (mut found, mut sum) = (Vec::new(), 0);
    while let Some(row) = rows.next().map_err(&failed)? {
        sum ^= row.get::<_, i64>(1).map_err(&failed)?;
        if row.get::<_, i64>(0).map_err(&failed)? > after {
            let row = read_row(row).map_err(&failed)?;
            row.check(session.number)?;
            found.push(row);
        }
    }
    session.work.check_waiting(sum)?;
    Ok(found)
}

/// Checks the waiting entries and the taken ones.
pub(super) fn verify(connection: &Connection, session: &SqliteSessionRow) -> Result<(), SessionError> {
    let failed = failed("read an inbox");
    waiting(connection, session, 0, i64::MAX)?;
    let mut query = connection
        .prepare_cached("SELECT key, position, digest, checksum FROM stepfold_taken WHERE number = ?1")
        .map_err(&failed)?;
    let mut rows = query.query([session.number]).map_err(&failed)?;
    while let Some(row) = rows.next().map_err(&failed)? {
        let read = || -> rusqlite::Result<(String, i64, Vec<u8>, i64)> {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        };
        let (key, position, digest, checksum) = read().map_err(&failed)?;
        TakenRow { position, checksum, key: &key, digest: &digest }.check(session.number)?;
    }
    Ok(())
}

pub(super) fn dequeue(
    sqlite: &mut SqliteConnection,
    request: &DequeueInput,
) -> Result<Vec<u64>, SessionError> {
    let row = SqliteSessionRow::get(&sqlite.connection, &request.key)?;
    if let Some(token) = request.token {
        row.work.fence.check(&request.key, token)?;
    }
    let mut work = row.work.clone();
    let taken = take(sqlite, row.number, &request.positions, &mut work)?;
    put_work(sqlite, &row, &work)?;
    Ok(taken)
}

/// Runs a statement for its one number.
fn query_number(
    sqlite: &SqliteConnection,
    statement: &str,
    values: &[&dyn rusqlite::ToSql],
) -> Result<i64, SessionError> {
    let statement = sqlite.connection.prepare_cached(statement);
    statement
        .and_then(|mut statement| statement.query_row(values, |row| row.get(0)))
        .map_err(failed("inspect an inbox"))
}
