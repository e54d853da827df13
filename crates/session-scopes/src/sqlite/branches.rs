//! The forks of sessions, and labels on their versions.

use rusqlite::{Connection, OptionalExtension, params};

use super::error::failed;
use super::history::SessionRow;
use super::threads::Desk;
use super::write::run;
use crate::error::SessionError;
use crate::ids::{Label, SessionId};
use crate::rows::{from_db, to_db};
use crate::store::{ForkInfo, LabelVersion, ListForks, ReadLabels};
use crate::time::Timestamp;

pub(super) fn forks(desk: &mut Desk, request: &ListForks) -> Result<Vec<ForkInfo>, SessionError> {
    let row = SessionRow::get(&desk.connection, &request.key)?;
    let failed = failed("list forks");
    let mut query = desk
        .connection
        .prepare_cached(
            "SELECT s.id, s.parent_version, s.created FROM stepfold_forks f \
             JOIN stepfold_sessions s ON s.number = f.number WHERE f.parent = ?1 ORDER BY f.number",
        )
        .map_err(failed)?;
    let rows = query.query_map([row.number], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let rows: Vec<(String, i64, i64)> = rows.and_then(Iterator::collect).map_err(failed)?;
    let fork = |(id, version, created): (String, i64, i64)| {
        let (version, created) = (from_db(version), Timestamp::from_micros(created));
        Ok(ForkInfo { id: SessionId::new(id)?, version, created })
    };
    rows.into_iter().map(fork).collect()
}

/// Remembers a fork, for as long as it and what it was forked from are there.
pub(super) fn add_fork(desk: &Desk, parent: i64, number: i64) -> Result<(), SessionError> {
    run(desk, "INSERT INTO stepfold_forks (parent, number) VALUES (?1, ?2)", &[&parent, &number]).map(drop)
}

/// Forgets a session that is deleted: its labels, its forks, and that it is one.
pub(super) fn forget(desk: &Desk, number: i64) -> Result<(), SessionError> {
    let parent: Option<i64> = desk
        .connection
        .prepare_cached(
            "SELECT p.number FROM stepfold_sessions s JOIN stepfold_sessions p \
             ON p.app = s.app AND p.user = s.user AND p.id = s.parent_id WHERE s.number = ?1",
        )
        .and_then(|mut query| query.query_row([number], |row| row.get(0)).optional())
        .map_err(failed("find a session"))?;
    run(desk, "DELETE FROM stepfold_forks WHERE parent = ?1 AND number = ?2", &[&parent, &number])?;
    run(desk, "DELETE FROM stepfold_forks WHERE parent = ?1", &[&number])?;
    run(desk, "DELETE FROM stepfold_labels WHERE number = ?1", &[&number]).map(drop)
}

/// Forgets the labels of versions before this one.
pub(super) fn prune_labels(desk: &Desk, number: i64, oldest: u64) -> Result<(), SessionError> {
    let oldest = to_db(oldest);
    run(desk, "DELETE FROM stepfold_labels WHERE number = ?1 AND version < ?2", &[&number, &oldest]).map(drop)
}

pub(super) fn set_label(desk: &mut Desk, request: &LabelVersion) -> Result<Option<u64>, SessionError> {
    let row = SessionRow::get(&desk.connection, &request.key)?;
    request.check_version(row.oldest, row.version)?;
    let (before, count) = find_label(&desk.connection, row.number, &request.label)?;
    request.check_count(before.is_none(), count)?;
    let (number, label) = (row.number, request.label.as_str());
    match request.version.map(to_db) {
        Some(version) => run(
            desk,
            "INSERT INTO stepfold_labels (number, label, version) VALUES (?1, ?2, ?3) \
             ON CONFLICT (number, label) DO UPDATE SET version = ?3",
            &[&number, &label, &version],
        )?,
        None => {
            run(desk, "DELETE FROM stepfold_labels WHERE number = ?1 AND label = ?2", &[&number, &label])?
        }
    };
    Ok(before)
}

/// The version that a label names, and how many labels there are.
fn find_label(
    connection: &Connection,
    number: i64,
    label: &Label,
) -> Result<(Option<u64>, usize), SessionError> {
    let query = connection.prepare_cached(
        "SELECT (SELECT version FROM stepfold_labels WHERE number = ?1 AND label = ?2), \
         (SELECT COUNT(*) FROM stepfold_labels WHERE number = ?1)",
    );
    let found = query.and_then(|mut query| {
        query.query_row(params![number, label.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
    });
    let (version, count): (Option<i64>, i64) = found.map_err(failed("find a label"))?;
    Ok((version.map(from_db), usize::try_from(count).unwrap_or(usize::MAX)))
}

pub(super) fn labels(desk: &mut Desk, request: &ReadLabels) -> Result<Vec<(Label, u64)>, SessionError> {
    let row = SessionRow::get(&desk.connection, &request.key)?;
    let failed = failed("read labels");
    let mut query = desk
        .connection
        .prepare_cached(
            "SELECT label, version FROM stepfold_labels WHERE number = ?1 ORDER BY version, label",
        )
        .map_err(failed)?;
    let rows = query.query_map([row.number], |row| Ok((row.get(0)?, row.get(1)?)));
    let rows: Vec<(String, i64)> = rows.and_then(Iterator::collect).map_err(failed)?;
    rows.into_iter().map(|(label, version)| Ok((Label::new(label)?, from_db(version)))).collect()
}
