//! Deletes rows that no session's history contains any more, and no others.

use std::collections::HashSet;

use super::error::failed;
use super::tags;
use super::threads::SqliteConnection;
use super::undo_log::{ReplacedRow, UndoLog};
use super::write::execute;
use crate::error::SessionError;
use crate::rows::lineage::{from_db, to_db};
use crate::rows::seal::row_number;

/// The rows of a stream that the histories of sessions contain.
struct StreamUsage {
    /// The highest version that one of them has.
    upto: u64,
    /// The oldest version that one of them can go back to.
    oldest: u64,
    /// Whether the stream's own session is the only one.
    is_sole: bool,
}

impl StreamUsage {
    fn read(sqlite: &SqliteConnection, stream: i64) -> Result<Option<Self>, SessionError> {
        let failed = failed("find forks");
        let query = sqlite.connection.prepare_cached(
            "SELECT MAX(l.upto), MIN(s.oldest), COUNT(*) = 1 AND MAX(s.number) = ?1 FROM stepfold_lineage l \
             JOIN stepfold_sessions s ON s.number = l.number WHERE l.stream = ?1",
        );
        let read = |row: &rusqlite::Row<'_>| {
            let (upto, oldest): (Option<i64>, Option<i64>) = (row.get(0)?, row.get(1)?);
            let bounds = upto.zip(oldest).map(|(upto, oldest)| (from_db(upto), from_db(oldest)));
            let is_sole: Option<bool> = row.get(2)?;
            Ok(bounds.map(|(upto, oldest)| StreamUsage { upto, oldest, is_sole: is_sole.unwrap_or(false) }))
        };
        query.and_then(|mut query| query.query_row([stream], read)).map_err(failed)
    }
}

/// Deletes the rows of a stream that no session's history has any more.
pub(super) fn sweep(sqlite: &SqliteConnection, stream: i64) -> Result<(), SessionError> {
    let (first, last) = (row_number(stream, 0), row_number(stream, u64::MAX));
    let Some(shared) = StreamUsage::read(sqlite, stream)? else {
        execute(sqlite, "DELETE FROM stepfold_events WHERE number BETWEEN ?1 AND ?2", &[&first, &last])?;
        tags::sweep(sqlite, stream, -1, i64::MAX)?;
        return execute(sqlite, "DELETE FROM stepfold_rewinds WHERE stream = ?1", &[&stream]).map(drop);
    };
    let upto = to_db(shared.upto);
    tags::sweep(sqlite, stream, upto, to_db(shared.oldest))?;
    execute(sqlite, "DELETE FROM stepfold_rewinds WHERE stream = ?1 AND version > ?2", &[&stream, &upto])?;
    execute(
        sqlite,
        "DELETE FROM stepfold_events WHERE number > ?1 AND number <= ?2",
        &[&row_number(stream, shared.upto), &last],
    )?;
    // NOTE: with forks any list may still be needed, and finding out which would read the histories of all of them.
    let lists = if shared.is_sole { Some(lists_of(sqlite, stream, shared.oldest)?) } else { None };
    // NOTE: items of a list outlive the events that added them, until no head of the list is left; with forks, all stay.
    take_events(sqlite, first - 1, row_number(stream, shared.oldest), |trail| {
        trail.replaced.clear();
        if let Some(lists) = &lists {
            trail.items.retain(|row| lists.contains(&(row.key.clone(), row.generation)));
        }
    })
}

/// The lists that a stream's values are, or were at a version from `oldest` on.
fn lists_of(
    sqlite: &SqliteConnection,
    stream: i64,
    oldest: u64,
) -> Result<HashSet<(String, i64)>, SessionError> {
    let failed = failed("read the lists of a session");
    let mut query = sqlite
        .connection
        .prepare_cached(
            "SELECT key, generation FROM stepfold_cells WHERE stream = ?1 AND generation IS NOT NULL",
        )
        .map_err(failed)?;
    let lists = query.query_map([stream], |row| Ok((row.get(0)?, row.get(1)?)));
    let mut lists: HashSet<(String, i64)> = lists.and_then(Iterator::collect).map_err(failed)?;
    for_trails(sqlite, row_number(stream, oldest), row_number(stream, u64::MAX), |_, trail| {
        let replaced = trail.replaced.into_iter();
        lists.extend(replaced.filter_map(|ReplacedRow { row, .. }| Some((row.key, row.list?.generation))));
        Ok(())
    })?;
    Ok(lists)
}

/// Deletes the events of the rows above `after` up to `last`, and reduces each undo log by `keep`.
fn take_events(
    sqlite: &SqliteConnection,
    after: i64,
    last: i64,
    keep: impl Fn(&mut UndoLog),
) -> Result<(), SessionError> {
    execute(
        sqlite,
        "DELETE FROM stepfold_events WHERE number > ?1 AND number <= ?2 AND trail IS NULL",
        &[&after, &last],
    )?;
    for_trails(sqlite, after, last, |number, mut trail| {
        keep(&mut trail);
        match trail.to_text(number)? {
            None => execute(sqlite, "DELETE FROM stepfold_events WHERE number = ?1", &[&number]),
            Some(text) => execute(
                sqlite,
                "UPDATE stepfold_events SET id = NULL, trail = ?2, body = NULL, seal = NULL WHERE number = ?1",
                &[&number, &text],
            ),
        }
        .map(drop)
    })
}

/// Calls `each` with the undo log of every row above `after` up to `last` that has one. It may change the row.
fn for_trails(
    sqlite: &SqliteConnection,
    mut after: i64,
    last: i64,
    mut each: impl FnMut(i64, UndoLog) -> Result<(), SessionError>,
) -> Result<(), SessionError> {
    let failed = failed("read remaining events");
    let mut query = sqlite
        .connection
        .prepare_cached(
            "SELECT number, trail FROM stepfold_events WHERE number > ?1 AND number <= ?2 \
             AND trail IS NOT NULL ORDER BY number LIMIT 256",
        )
        .map_err(failed)?;
    loop {
        let rows = query.query_map([after, last], |row| Ok((row.get(0)?, row.get(1)?)));
        let rows: Vec<(i64, String)> = rows.and_then(Iterator::collect).map_err(failed)?;
        let Some((number, _)) = rows.last() else { return Ok(()) };
        // NOTE: in pages, since `each` changes rows that an open query would still be reading.
        after = *number;
        for (number, text) in rows {
            each(number, UndoLog::parse(number, &text)?)?;
        }
    }
}
