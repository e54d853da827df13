//! The index of the tags of events.

use std::collections::BTreeSet;

use rusqlite::{Connection, params};

use super::error::failed;
use super::history::{SqliteSessionRow, visible_at};
use super::threads::SqliteConnection;
use super::write::execute;
use crate::error::SessionError;
use crate::event::{Event, MARKS, TagDigest, tag_digest, tags_of_body};
use crate::rows::lineage::{HistorySegment, from_db, to_db};
use crate::rows::seal::{stream_of, version_of};
use crate::store::FindTagged;
use crate::time::Timestamp;

/// Adds the tags of an event.
pub(super) fn add(
    connection: &Connection,
    stream: i64,
    version: u64,
    event: &Event,
) -> Result<(), SessionError> {
    event.tag_digests().iter().try_for_each(|tag| insert(connection, stream, version, tag))
}

fn insert(connection: &Connection, stream: i64, version: u64, tag: &TagDigest) -> Result<(), SessionError> {
    connection
        .prepare_cached("INSERT INTO stepfold_tags (stream, tag, version) VALUES (?1, ?2, ?3)")
        .and_then(|mut insert| insert.execute(params![stream, &tag[..], to_db(version)]))
        .map(drop)
        .map_err(failed("write"))
}

/// Adds the tags of all events, which were stored before there was an index.
pub(super) fn add_all(connection: &Connection) -> Result<(), SessionError> {
    let failed = failed("read events");
    let marks = MARKS.map(|mark| format!("body LIKE '%{mark}%'")).join(" OR ");
    let mut query = connection
        .prepare(&format!("SELECT number, id, at, body FROM stepfold_events WHERE {marks}"))
        .map_err(&failed)?;
    let mut rows = query.query([]).map_err(&failed)?;
    while let Some(row) = rows.next().map_err(&failed)? {
        let read = || Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        let (number, id, at, body): (i64, String, i64, String) = read().map_err(&failed)?;
        for tag in tags_of_body(&id, Timestamp::from_micros(at), &body) {
            insert(connection, stream_of(number), version_of(number), &tag)?;
        }
    }
    Ok(())
}

/// Deletes the tags of the events of a stream from one version to another.
pub(super) fn delete(sqlite: &SqliteConnection, stream: i64, from: u64, to: u64) -> Result<(), SessionError> {
    let delete = "DELETE FROM stepfold_tags WHERE stream = ?1 AND version BETWEEN ?2 AND ?3";
    execute(sqlite, delete, &[&stream, &to_db(from), &to_db(to)]).map(drop)
}

/// The version of the newest event with each of the tags.
pub(super) fn find(
    sqlite: &mut SqliteConnection,
    request: &FindTagged,
) -> Result<Vec<Option<u64>>, SessionError> {
    let failed = failed("find events by their tags");
    let row = SqliteSessionRow::get(&sqlite.connection, &request.key)?;
    row.check_newest(&sqlite.connection, &request.key)?;
    let visible = visible_at(&sqlite.connection, row.number, row.version, row.state.rewound)?;
    let mut query = sqlite
        .connection
        .prepare_cached(
            "SELECT t.version FROM stepfold_lineage l CROSS JOIN stepfold_tags t ON t.stream = l.stream \
             AND t.tag = ?2 AND t.version > MAX(l.after, ?3) AND t.version <= l.upto \
             WHERE l.number = ?1 ORDER BY t.version DESC",
        )
        .map_err(failed)?;
    // NOTE: newest first, until a visible one: hidden events keep their tags, since a later fork may show them.
    let mut newest = |tag: &String| {
        let given = params![row.number, &tag_digest(tag)[..], to_db(row.oldest)];
        let mut rows = query.query(given).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let version = from_db(row.get(0).map_err(failed)?);
            if visible.contains(version) {
                return Ok(Some(version));
            }
        }
        Ok(None)
    };
    request.tags.iter().map(&mut newest).collect()
}

/// The tags of the events of a segment, with their versions.
pub(super) fn of_segment(
    connection: &Connection,
    segment: &HistorySegment,
    (oldest, newest): (u64, u64),
) -> Result<BTreeSet<(u64, TagDigest)>, SessionError> {
    let failed = failed("read the tags of events");
    let mut query = connection
        .prepare_cached(
            "SELECT version, tag FROM stepfold_tags WHERE stream = ?1 AND version > ?2 AND version <= ?3",
        )
        .map_err(failed)?;
    let (after, upto) = (segment.after.max(oldest), segment.upto.min(newest));
    let read = |row: &rusqlite::Row<'_>| Ok((from_db(row.get(0)?), row.get(1)?));
    let rows = query.query_map(params![segment.stream, to_db(after), to_db(upto)], read);
    rows.and_then(Iterator::collect).map_err(failed)
}
