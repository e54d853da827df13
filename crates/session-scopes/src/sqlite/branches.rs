//! The forks of sessions, and labels on their versions.

use rusqlite::{Connection, OptionalExtension, Params, params};

use super::error::failed;
use super::history::SqliteSessionRow;
use super::threads::SqliteConnection;
use super::write::execute;
use crate::error::SessionError;
use crate::ids::{Label, SessionId, SessionKey};
use crate::rows::branches::{LabelChange, StoredFork, StoredLabel, fork_sum};
use crate::rows::lineage::to_db;
use crate::rows::seal::SessionRecord;
use crate::store::{ForkInfo, LabelVersion, ListForks, ReadLabels};

pub(super) fn forks(
    sqlite: &mut SqliteConnection,
    request: &ListForks,
) -> Result<Vec<ForkInfo>, SessionError> {
    let row = SqliteSessionRow::get(&sqlite.connection, &request.key)?;
    forks_of(&sqlite.connection, &row, &request.key)
}

/// The forks of a session, checked.
pub(super) fn forks_of(
    connection: &Connection,
    row: &SqliteSessionRow,
    key: &SessionKey,
) -> Result<Vec<ForkInfo>, SessionError> {
    let failed = failed("list forks");
    let mut query = connection
        .prepare_cached(
            "SELECT f.number, s.id, s.parent_version, s.created, f.checksum FROM stepfold_forks f \
             JOIN stepfold_sessions s ON s.number = f.number WHERE f.parent = ?1 ORDER BY f.number",
        )
        .map_err(failed)?;
    let rows = query.query_map([row.number], |row| {
        let (number, id, version) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(StoredFork { number, id, version, created: row.get(3)?, checksum: row.get(4)? })
    });
    let rows = rows.and_then(Iterator::collect).map_err(failed)?;
    crate::rows::branches::forks(rows, row, key)
}

/// Stores the row of a fork, which exists as long as the fork and its origin do.
pub(super) fn add_fork(
    sqlite: &SqliteConnection,
    from: &SessionKey,
    parent: SessionRecord,
    fork: (&SessionRecord, &SessionId),
) -> Result<(), SessionError> {
    let (fork, id) = fork;
    let sum = fork_sum(&parent, fork, id);
    let insert = "INSERT INTO stepfold_forks (parent, number, checksum) VALUES (?1, ?2, ?3)";
    execute(sqlite, insert, &[&parent.number, &fork.number, &sum])?;
    put_seal(sqlite, from, &parent.with_forks(sum))
}

/// Deletes the labels and forks of a deleted session, and its own fork row.
pub(super) fn forget(
    sqlite: &SqliteConnection,
    key: &SessionKey,
    row: &SqliteSessionRow,
) -> Result<(), SessionError> {
    if let Some((id, _)) = &row.parent {
        let parent = SessionKey { id: SessionId::new(id.clone())?, ..key.clone() };
        if let Some(found) = SqliteSessionRow::find(&sqlite.connection, &parent)? {
            let delete = "DELETE FROM stepfold_forks WHERE parent = ?1 AND number = ?2 RETURNING checksum";
            let gone = deleted(sqlite, delete, [found.number, row.number])?;
            // NOTE: the origin may have been deleted and its id given to another session, which has no row of this fork.
            if gone != 0 {
                put_seal(sqlite, &parent, &found.record.with_forks(gone))?;
            }
        }
    }
    // NOTE: forks of a deleted session stay; only the list of them goes with its row.
    execute(sqlite, "DELETE FROM stepfold_forks WHERE parent = ?1", &[&row.number])?;
    execute(sqlite, "DELETE FROM stepfold_labels WHERE number = ?1", &[&row.number]).map(drop)
}

/// Deletes the labels of versions before this one; returns their combined checksums.
pub(super) fn prune_labels(sqlite: &SqliteConnection, number: i64, oldest: u64) -> Result<i64, SessionError> {
    let delete = "DELETE FROM stepfold_labels WHERE number = ?1 AND version < ?2 RETURNING checksum";
    deleted(sqlite, delete, [number, to_db(oldest)])
}

/// The combined checksums of the rows that a statement deletes and returns.
fn deleted(sqlite: &SqliteConnection, delete: &str, of: impl Params) -> Result<i64, SessionError> {
    let failed = failed("write");
    let mut delete = sqlite.connection.prepare_cached(delete).map_err(failed)?;
    let gone = delete.query_map(of, |row| row.get::<_, i64>(0));
    let gone: Vec<i64> = gone.and_then(Iterator::collect).map_err(failed)?;
    Ok(gone.into_iter().fold(0, |sum, checksum| sum ^ checksum))
}

/// Stores the row of a session with its newest version and time, which its seal covers.
fn put_seal(sqlite: &SqliteConnection, key: &SessionKey, record: &SessionRecord) -> Result<(), SessionError> {
    let (version, updated) = (to_db(record.version), record.updated.as_micros());
    let update = "UPDATE stepfold_sessions SET version = ?2, updated = ?3, seal = ?4 WHERE number = ?1";
    execute(sqlite, update, &[&record.number, &version, &updated, &record.seal(key)]).map(drop)
}

pub(super) fn set_label(
    sqlite: &mut SqliteConnection,
    request: &LabelVersion,
) -> Result<Option<u64>, SessionError> {
    let row = SqliteSessionRow::get(&sqlite.connection, &request.key)?;
    request.check_version(row.oldest, row.version)?;
    row.check_newest(&sqlite.connection, &request.key)?;
    let (before, count) = find_label(&sqlite.connection, row.number, &request.label)?;
    let change = LabelChange::of(request, row.number, before.as_ref(), count)?;
    match &change.put {
        Some(StoredLabel { label, version, checksum }) => execute(
            sqlite,
            "INSERT INTO stepfold_labels (number, label, version, checksum) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (number, label) DO UPDATE SET version = ?3, checksum = ?4",
            &[&row.number, label, version, checksum],
        )?,
        None => execute(
            sqlite,
            "DELETE FROM stepfold_labels WHERE number = ?1 AND label = ?2",
            &[&row.number, &request.label.as_str()],
        )?,
    };
    if change.sums != 0 {
        put_seal(sqlite, &request.key, &row.record.with_labels(change.sums))?;
    }
    Ok(change.before)
}

/// The row of a label, and how many labels there are.
fn find_label(
    connection: &Connection,
    number: i64,
    label: &Label,
) -> Result<(Option<StoredLabel>, i64), SessionError> {
    let failed = failed("find a label");
    let mut query = connection
        .prepare_cached("SELECT version, checksum FROM stepfold_labels WHERE number = ?1 AND label = ?2")
        .map_err(failed)?;
    let read = |row: &rusqlite::Row<'_>| {
        Ok(StoredLabel { label: label.to_string(), version: row.get(0)?, checksum: row.get(1)? })
    };
    let found = query.query_row(params![number, label.as_str()], read).optional().map_err(failed)?;
    let count = connection
        .prepare_cached("SELECT COUNT(*) FROM stepfold_labels WHERE number = ?1")
        .and_then(|mut query| query.query_row([number], |row| row.get(0)))
        .map_err(failed)?;
    Ok((found, count))
}

pub(super) fn labels(
    sqlite: &mut SqliteConnection,
    request: &ReadLabels,
) -> Result<Vec<(Label, u64)>, SessionError> {
    let row = SqliteSessionRow::get(&sqlite.connection, &request.key)?;
    labels_of(&sqlite.connection, &row, &request.key)
}

/// The labels of a session, checked.
pub(super) fn labels_of(
    connection: &Connection,
    row: &SqliteSessionRow,
    key: &SessionKey,
) -> Result<Vec<(Label, u64)>, SessionError> {
    let failed = failed("read labels");
    let mut query = connection
        .prepare_cached(
            "SELECT label, version, checksum FROM stepfold_labels WHERE number = ?1 ORDER BY version, label",
        )
        .map_err(failed)?;
    let rows = query.query_map([row.number], |row| {
        Ok(StoredLabel { label: row.get(0)?, version: row.get(1)?, checksum: row.get(2)? })
    });
    let rows = rows.and_then(Iterator::collect).map_err(failed)?;
    crate::rows::branches::labels(rows, row, key)
}
