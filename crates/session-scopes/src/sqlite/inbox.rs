//! The inboxes of sessions: what waits has a row each, and so has what was taken last, for its idempotency key.

use std::collections::BTreeSet;

use rusqlite::{OptionalExtension, Row, params};

use super::error::failed;
use super::history::SessionRow;
use super::threads::Desk;
use super::write::run;
use crate::error::SessionError;
use crate::rows::{from_db, inbox_entry, to_db};
use crate::store::{
    Asked, DequeueInput, Enqueued, InboxEntry, MAX_INBOX, PreparedInput, REMEMBERED_INPUTS, ReadInbox,
};
use crate::time::Timestamp;

/// Checks that all entries that an append takes wait, each given once.
pub(super) fn check(desk: &Desk, number: i64, asked: Asked<'_>) -> Result<(), SessionError> {
    let mut seen = BTreeSet::new();
    for position in asked.taken {
        let query = "SELECT COUNT(*) FROM stepfold_inbox WHERE number = ?1 AND position = ?2";
        if !seen.insert(position) || ask(desk, query, &[&number, &to_db(*position)])? == 0 {
            return Err(SessionError::not_waiting(asked.key, *position));
        }
    }
    Ok(())
}

/// Takes those of these that wait.
pub(super) fn take(desk: &Desk, number: i64, positions: &[u64]) -> Result<Vec<u64>, SessionError> {
    let mut taken = Vec::new();
    for position in positions {
        let remembered = run(
            desk,
            "INSERT INTO stepfold_taken (number, place, key, position, digest) SELECT number, \
             (SELECT COALESCE(MAX(place), 0) + 1 FROM stepfold_taken WHERE number = ?1), key, position, digest \
             FROM stepfold_inbox WHERE number = ?1 AND position = ?2",
            &[&number, &to_db(*position)],
        )?;
        if remembered > 0 {
            run(
                desk,
                "DELETE FROM stepfold_inbox WHERE number = ?1 AND position = ?2",
                &[&number, &to_db(*position)],
            )?;
            taken.push(*position);
        }
    }
    if !taken.is_empty() {
        run(
            desk,
            "DELETE FROM stepfold_taken WHERE number = ?1 AND place <= \
             (SELECT MAX(place) FROM stepfold_taken WHERE number = ?1) - ?2",
            &[&number, &to_db(REMEMBERED_INPUTS as u64)],
        )?;
    }
    Ok(taken)
}

/// Writes the position of the newest entry that waits to the session's row.
pub(super) fn put_newest(desk: &Desk, number: i64) -> Result<u64, SessionError> {
    let query = "SELECT COALESCE(MAX(position), 0) FROM stepfold_inbox WHERE number = ?1";
    let newest = ask(desk, query, &[&number])?;
    run(desk, "UPDATE stepfold_sessions SET inbox = ?2 WHERE number = ?1", &[&number, &newest])?;
    Ok(from_db(newest))
}

/// Deletes the inbox of a session that goes.
pub(super) fn delete(desk: &Desk, number: i64) -> Result<(), SessionError> {
    run(desk, "DELETE FROM stepfold_inbox WHERE number = ?1", &[&number])?;
    run(desk, "DELETE FROM stepfold_taken WHERE number = ?1", &[&number]).map(drop)
}

pub(super) fn enqueue(desk: &mut Desk, prepared: &PreparedInput) -> Result<Enqueued, SessionError> {
    let input = &prepared.input;
    let row = SessionRow::get(&desk.connection, &input.key)?;
    let (position, is_repeat) = match known(desk, row.number, prepared)? {
        Some(position) => (position, true),
        None => (insert(desk, row.number, prepared)?, false),
    };
    Ok(Enqueued { position, is_repeat, claim: row.fence.unexpired(input.at), version: row.version })
}

/// The position of an entry that was accepted before.
fn known(desk: &Desk, number: i64, prepared: &PreparedInput) -> Result<Option<u64>, SessionError> {
    let (key, operation) = (&prepared.input.key, &prepared.input.idempotency_key);
    let found: Option<(i64, bool)> = desk
        .connection
        .prepare_cached(
            "SELECT position, digest = ?3 FROM stepfold_inbox WHERE number = ?1 AND key = ?2 \
             UNION ALL SELECT position, digest = ?3 FROM stepfold_taken WHERE number = ?1 AND key = ?2",
        )
        .and_then(|mut query| {
            let parts = params![number, operation.as_str(), prepared.digest.to_bytes()];
            query.query_row(parts, |row| Ok((row.get(0)?, row.get(1)?))).optional()
        })
        .map_err(failed("look for an entry of an inbox"))?;
    match found {
        None => Ok(None),
        Some((position, true)) => Ok(Some(from_db(position))),
        Some((_, false)) => Err(SessionError::input_reused(key, operation)),
    }
}

/// Adds an entry; its position.
fn insert(desk: &Desk, number: i64, prepared: &PreparedInput) -> Result<u64, SessionError> {
    let input = &prepared.input;
    let waiting = ask(desk, "SELECT COUNT(*) FROM stepfold_inbox WHERE number = ?1", &[&number])?;
    if from_db(waiting) >= MAX_INBOX as u64 {
        return Err(SessionError::inbox_full(&input.key));
    }
    let position = ask(
        desk,
        "UPDATE stepfold_sessions SET inbox = inbox_last + 1, inbox_last = inbox_last + 1 WHERE number = ?1 \
         RETURNING inbox",
        &[&number],
    )?;
    run(
        desk,
        "INSERT INTO stepfold_inbox (number, position, key, digest, kind, body, at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        &[
            &number,
            &position,
            &input.idempotency_key.as_str(),
            &prepared.digest.to_bytes(),
            &input.kind.as_str(),
            &prepared.body,
            &input.at.as_micros(),
        ],
    )?;
    Ok(from_db(position))
}

pub(super) fn read(desk: &mut Desk, request: &ReadInbox) -> Result<Vec<InboxEntry>, SessionError> {
    let failed = failed("read an inbox");
    let number = SessionRow::get(&desk.connection, &request.key)?.number;
    let mut query = desk
        .connection
        .prepare_cached(
            "SELECT position, kind, key, body, at FROM stepfold_inbox WHERE number = ?1 AND position > ?2 \
             ORDER BY position",
        )
        .map_err(failed)?;
    let read = |row: &Row<'_>| {
        let at = Timestamp::from_micros(row.get(4)?);
        let (kind, key, body): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
        Ok(inbox_entry(row.get(0)?, &kind, &key, &body, at))
    };
    let entries = query.query_map(params![number, to_db(request.after)], read).map_err(failed)?;
    entries.map(|entry| entry.map_err(failed)?).collect()
}

pub(super) fn dequeue(desk: &mut Desk, request: &DequeueInput) -> Result<Vec<u64>, SessionError> {
    let row = SessionRow::get(&desk.connection, &request.key)?;
    if let Some(token) = request.token {
        row.fence.check(&request.key, token)?;
    }
    let taken = take(desk, row.number, &request.positions)?;
    if !taken.is_empty() {
        put_newest(desk, row.number)?;
    }
    Ok(taken)
}

/// Runs a statement for its one number.
fn ask(desk: &Desk, statement: &str, values: &[&dyn rusqlite::ToSql]) -> Result<i64, SessionError> {
    let statement = desk.connection.prepare_cached(statement);
    statement
        .and_then(|mut statement| statement.query_row(values, |row| row.get(0)))
        .map_err(failed("look at an inbox"))
}
