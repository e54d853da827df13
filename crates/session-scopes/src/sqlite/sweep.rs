//! Deletes rows that no session's history contains any more, and no others.

use std::collections::{BTreeSet, HashMap};

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::error::failed;
use super::history::segments_of;
use super::tags;
use super::threads::SqliteConnection;
use super::undo_log::{self, ItemsRow, ListHead, ReplacedRow, StoredItems, UndoLog};
use super::write::execute;
use crate::error::SessionError;
use crate::rows::leftovers::{
    MAX_SEARCHED_EVENTS, MAX_SEARCHED_SHARERS, MissingItems, StreamSharer, StreamUsage,
};
use crate::rows::lineage::{HistorySegment, from_db, to_db};
use crate::rows::seal::{row_number, version_of};

/// The sessions whose histories have rows of a stream.
fn sharers(sqlite: &SqliteConnection, stream: i64) -> Result<Vec<StreamSharer>, SessionError> {
    let failed = failed("find forks");
    let mut query = sqlite
        .connection
        .prepare_cached(
            "SELECT s.number, l.after, l.upto, s.oldest FROM stepfold_lineage l \
             JOIN stepfold_sessions s ON s.number = l.number WHERE l.stream = ?1",
        )
        .map_err(failed)?;
    let sharers = query.query_map([stream], |row| {
        let (after, upto, oldest) = (from_db(row.get(1)?), from_db(row.get(2)?), from_db(row.get(3)?));
        Ok(StreamSharer { number: row.get(0)?, after, upto, oldest })
    });
    sharers.and_then(Iterator::collect).map_err(failed)
}

/// Deletes the rows of a stream that no session's history has any more.
pub(super) fn sweep(sqlite: &SqliteConnection, stream: i64) -> Result<(), SessionError> {
    let (first, last) = (row_number(stream, 0), row_number(stream, u64::MAX));
    let sharers = sharers(sqlite, stream)?;
    let Some(usage) = StreamUsage::of(&sharers) else {
        execute(sqlite, "DELETE FROM stepfold_events WHERE number BETWEEN ?1 AND ?2", &[&first, &last])?;
        tags::delete(sqlite, stream, 0, u64::MAX)?;
        return execute(sqlite, "DELETE FROM stepfold_rewinds WHERE stream = ?1", &[&stream]).map(drop);
    };
    let upto = to_db(usage.upto);
    execute(sqlite, "DELETE FROM stepfold_rewinds WHERE stream = ?1 AND version > ?2", &[&stream, &upto])?;
    execute(
        sqlite,
        "DELETE FROM stepfold_events WHERE number > ?1 AND number <= ?2",
        &[&row_number(stream, usage.upto), &last],
    )?;
    tags::delete(sqlite, stream, usage.upto.saturating_add(1), u64::MAX)?;
    let mut needed = None;
    let mut is_searched = sharers.len() <= MAX_SEARCHED_SHARERS;
    for (from, to) in usage.gaps {
        tags::delete(sqlite, stream, from, to)?;
        let (from, to) = (row_number(stream, from), row_number(stream, to));
        execute(
            sqlite,
            "DELETE FROM stepfold_events WHERE number BETWEEN ?1 AND ?2 AND trail IS NULL",
            &[&from, &to],
        )?;
        for_trails(sqlite, (from, to), |number, mut trail: UndoLog| {
            // NOTE: items of a list outlive the events that added them, until no list has them.
            if is_searched && needed.is_none() && !trail.items.is_empty() {
                needed = NeededRows::read(sqlite, &sharers, MAX_SEARCHED_EVENTS)?;
                // NOTE: too many to read: all items stay, until a retention or deletion among fewer.
                is_searched = needed.is_some();
            }
            trail.replaced.clear();
            match &needed {
                Some(needed) => needed.reduce(number, &mut trail.items),
                None if is_searched => trail.items.clear(),
                None => {}
            }
            take_event(sqlite, number, &trail)
        })?;
    }
    Ok(())
}

/// Deletes an event whose undo log was reduced to what other rows need.
fn take_event(sqlite: &SqliteConnection, number: i64, trail: &UndoLog) -> Result<(), SessionError> {
    match trail.to_text(number)? {
        None => execute(sqlite, "DELETE FROM stepfold_events WHERE number = ?1", &[&number]),
        Some(text) => execute(
            sqlite,
            "UPDATE stepfold_events SET id = NULL, trail = ?2, body = NULL, seal = NULL WHERE number = ?1",
            &[&number, &text],
        ),
    }
    .map(drop)
}

/// A row with items of a list: its number, the list's key and generation.
type ItemRowKey = (i64, String, i64);

/// The rows that lead to the items of the lists that sessions have, or had at a version that they can go back to: each with
/// the places whose items are in it or in rows before.
struct NeededRows(HashMap<ItemRowKey, MissingItems>);

/// The items of a row, without their content.
struct ItemRow {
    place: u64,
    length: u64,
    before: Option<i64>,
}

/// Items that an event added to a list, as the undo log has them: the list's key and generation, the place, the row before, and
/// the items, whose content is left out.
type ItemsOutline = (String, i64, u64, Option<i64>, StoredItems<IgnoredAny>);

/// An undo log without the content of items.
#[derive(Default, Deserialize)]
struct UndoOutline {
    #[serde(default)]
    replaced: Vec<ReplacedRow>,
    #[serde(default)]
    items: Vec<ItemsOutline>,
}

impl NeededRows {
    /// `None` if more than `most` events lead to them.
    fn read(
        sqlite: &SqliteConnection,
        sharers: &[StreamSharer],
        most: u64,
    ) -> Result<Option<Self>, SessionError> {
        let (mut heads, mut segments) = (Vec::new(), Vec::new());
        for sharer in sharers {
            heads.extend(current_lists(sqlite, sharer.number)?);
            let lineage = segments_of(&sqlite.connection, sharer.number)?;
            segments.extend(lineage.into_iter().map(|segment| (segment, sharer.oldest)));
        }
        let mut rows = HashMap::new();
        let streams: BTreeSet<i64> = segments.iter().map(|(segment, _)| segment.stream).collect();
        let mut events: u64 = 0;
        for stream in &streams {
            events = events.saturating_add(count_rows(sqlite, *stream, most.saturating_add(1))?);
            if events > most {
                return Ok(None);
            }
        }
        for stream in streams {
            let is_left = |version: u64| {
                let has = |(segment, oldest): &(HistorySegment, u64)| {
                    segment.stream == stream && segment.contains(version) && version > *oldest
                };
                segments.iter().any(has)
            };
            let all = (row_number(stream, 0), row_number(stream, u64::MAX));
            for_trails(sqlite, all, |number, trail: UndoOutline| {
                if is_left(version_of(number)) {
                    let of_list = |replaced: ReplacedRow| Some((replaced.row.key, replaced.row.list?));
                    heads.extend(trail.replaced.into_iter().filter_map(of_list));
                }
                for (key, generation, place, before, items) in trail.items {
                    let row = ItemRow { place, length: items.len() as u64, before };
                    rows.entry((number, key, generation)).or_insert_with(Vec::new).push(row);
                }
                Ok(())
            })?;
        }
        Ok(Some(NeededRows(reached(&heads, &rows))))
    }

    /// Reduces the items of a row to the needed ones. Others in the same row become null, so that each keeps its place.
    fn reduce(&self, number: i64, items: &mut Vec<ItemsRow>) {
        items.retain_mut(|row| {
            let Some(needed) = self.0.get(&(number, row.key.clone(), row.generation)) else { return false };
            row.items.retain(row.place, |place| needed.contains(place));
            true
        });
    }
}

/// The number of rows of a stream that are left, at most `limit`. Their versions may be far higher.
fn count_rows(sqlite: &SqliteConnection, stream: i64, limit: u64) -> Result<u64, SessionError> {
    let failed = failed("count remaining events");
    let mut query = sqlite
        .connection
        .prepare_cached(
            "SELECT COUNT(*) FROM (SELECT 1 FROM stepfold_events WHERE number BETWEEN ?1 AND ?2 LIMIT ?3)",
        )
        .map_err(failed)?;
    let range = [row_number(stream, 0), row_number(stream, u64::MAX), to_db(limit)];
    query.query_row(range, |row| row.get(0)).map(from_db).map_err(failed)
}

/// The rows that lead from the heads of lists to all of their items, as [`undo_log::items`] follows them.
fn reached(
    heads: &[(String, ListHead)],
    rows: &HashMap<ItemRowKey, Vec<ItemRow>>,
) -> HashMap<ItemRowKey, MissingItems> {
    let mut reached: HashMap<ItemRowKey, MissingItems> = HashMap::new();
    for (key, head) in heads {
        let mut missing = MissingItems::of(head.extent());
        let mut next = head.last;
        while let Some(number) = next.filter(|_| !missing.is_empty()) {
            let of_row = (number, key.clone(), head.generation);
            let before = reached.entry(of_row.clone()).or_default();
            // NOTE: another list has come here with no fewer missing items, and has gone at least as far.
            if !before.add(&missing) {
                break;
            }
            next = None;
            for row in rows.get(&of_row).into_iter().flatten().rev() {
                next = row.before;
                missing.remove(row.place, row.length);
            }
        }
    }
    reached
}

/// The lists that are a session's values, by key.
fn current_lists(sqlite: &SqliteConnection, stream: i64) -> Result<Vec<(String, ListHead)>, SessionError> {
    let failed = failed("read the lists of a session");
    let mut query = sqlite
        .connection
        .prepare_cached(
            "SELECT key, generation, start, length, last FROM stepfold_cells \
             WHERE stream = ?1 AND generation IS NOT NULL AND last IS NOT NULL",
        )
        .map_err(failed)?;
    let lists = query.query_map([stream], |row| {
        let (generation, start, length) = (row.get(1)?, row.get(2)?, row.get(3)?);
        Ok((row.get(0)?, ListHead { generation, start, length, last: row.get(4)? }))
    });
    lists.and_then(Iterator::collect).map_err(failed)
}

/// Calls `each` with the undo log of every row from `first` to `last` that has one. It may change the row.
fn for_trails<T: DeserializeOwned>(
    sqlite: &SqliteConnection,
    (first, last): (i64, i64),
    mut each: impl FnMut(i64, T) -> Result<(), SessionError>,
) -> Result<(), SessionError> {
    let failed = failed("read remaining events");
    let mut query = sqlite
        .connection
        .prepare_cached(
            "SELECT number, trail FROM stepfold_events WHERE number > ?1 AND number <= ?2 \
             AND trail IS NOT NULL ORDER BY number LIMIT 256",
        )
        .map_err(failed)?;
    let mut after = first - 1;
    loop {
        let rows = query.query_map([after, last], |row| Ok((row.get(0)?, row.get(1)?)));
        let rows: Vec<(i64, String)> = rows.and_then(Iterator::collect).map_err(failed)?;
        let Some((number, _)) = rows.last() else { return Ok(()) };
        // NOTE: in pages, since `each` changes rows that an open query would still be reading.
        after = *number;
        for (number, text) in rows {
            each(number, undo_log::parse(number, &text)?)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rusqlite::{Connection, params};

    use super::*;
    use crate::sqlite::SqliteStore;

    /// The undo logs of sessions with more events are not read. Their versions do not count: retention leaves few events of
    /// many.
    #[test]
    fn a_search_for_needed_rows_is_bounded_by_events() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sessions.db");
        drop(SqliteStore::open(&path).unwrap());
        let connection = Connection::open(&path).unwrap();
        for stream in [1, 2] {
            connection
                .execute(
                    "INSERT INTO stepfold_lineage (number, stream, after, upto) VALUES (?1, ?1, 0, 300000)",
                    [stream],
                )
                .unwrap();
            connection
                .execute(
                    "INSERT INTO stepfold_events (number, at, id) VALUES (?1, 0, 'e')",
                    params![row_number(stream, 2 * MAX_SEARCHED_EVENTS)],
                )
                .unwrap();
        }
        let sqlite = SqliteConnection::new(connection, Duration::from_secs(1));
        let sharers = [1, 2].map(|number| StreamSharer { number, after: 0, upto: 300_000, oldest: 0 });
        let is_read = |most| NeededRows::read(&sqlite, &sharers, most).unwrap().is_some();
        assert_eq!([is_read(MAX_SEARCHED_EVENTS), is_read(2), is_read(1)], [true, true, false]);
    }
}
