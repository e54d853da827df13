//! The values of sessions, which keep what they were.

use std::collections::BTreeSet;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;
use stepfold_state_core::List;
use stepfold_state_core::state::{StoredValue, Write};

use super::error::failed;
use super::past::Ladder;
use super::seal;
use super::threads::Desk;
use super::trail::{self, CellRow, ItemsRow, ListHead, Replaced, Trail};
use crate::error::SessionError;
use crate::rows::{Change, Found, Planner, by_key, read_json, to_db};
use crate::seal::row_number;
use crate::session::{Held, Values};

/// The values of one session, while an event writes to them.
pub(super) struct SessionCells<'a> {
    desk: &'a mut Desk,
    /// The session's number.
    stream: i64,
    /// The version that the event makes.
    version: u64,
    written: Written,
}

/// What writes to values leave for the event's row.
#[derive(Default)]
pub(super) struct Written {
    pub(super) trail: Trail,
    /// What the combined checksums of the session's values change by.
    pub(super) cells: i64,
}

/// What the table has of a key.
pub(super) struct Stored {
    rowid: i64,
    pub(super) row: CellRow,
    ladder: Ladder,
    pub(super) checksum: i64,
    is_whole: bool,
}

/// A query for rows of values of the stream ?1, as [`Stored::read`] takes them, by a rule.
macro_rules! stored_by {
    ($rule:literal) => {
        concat!(
            "SELECT key, version, schema, value, generation, start, length, last, rowid, ladder, checksum ",
            "FROM stepfold_cells WHERE stream = ?1",
            $rule
        )
    };
}

impl Stored {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let (rowid, ladder) = (row.get(8)?, row.get_ref(9)?.as_blob_or_null()?);
        let checksum = row.get(10)?;
        let row = CellRow::read(row)?;
        let is_whole = seal::of_cell(&row, ladder) == checksum;
        let ladder = match ladder {
            Some(bytes) => Ladder::from_bytes(bytes)?,
            None => Ladder::at(ladder_version(row.version)),
        };
        Ok(Stored { rowid, row, ladder, checksum, is_whole })
    }

    fn checked(self) -> Result<Self, SessionError> {
        self.check().map(|()| self)
    }

    /// Refuses a row that is not what was written.
    pub(super) fn check(&self) -> Result<(), SessionError> {
        if self.is_whole {
            return Ok(());
        }
        let what = format!("value of key \"{}\"", self.row.key);
        Err(SessionError::damaged(what, "checksum mismatch of its row"))
    }

    /// Puts what is new in the place of what is stored; what the event has to remember of that, and what the
    /// combined checksums change by.
    pub(super) fn replace(
        self,
        connection: &Connection,
        new: &CellRow,
    ) -> Result<(Replaced, i64), SessionError> {
        let Stored { rowid, row, mut ladder, checksum, .. } = self;
        let far = ladder.push(ladder_version(new.version));
        let ladder = ladder.to_bytes();
        let new_checksum = seal::of_cell(new, Some(&ladder));
        let CellRow { version, schema, value, list, .. } = new;
        run(
            connection,
            "UPDATE stepfold_cells SET version = ?2, schema = ?3, value = ?4, generation = ?5, start = ?6, \
             length = ?7, last = ?8, ladder = ?9, checksum = ?10 WHERE rowid = ?1",
            params![
                rowid,
                version,
                schema,
                value,
                list.map(|list| list.generation),
                list.map(|list| list.start),
                list.map(|list| list.length),
                list.and_then(|list| list.last),
                ladder,
                new_checksum
            ],
        )?;
        Ok((Replaced { row, far }, checksum ^ new_checksum))
    }
}

/// The version of an event, which [fits](super::trail::check_version_fits) a row's number.
fn ladder_version(version: i64) -> u32 {
    u32::try_from(version).unwrap_or(u32::MAX)
}

/// The rows of the keys that were written after a version, those of removed ones included.
pub(super) fn stored_since(
    connection: &Connection,
    stream: i64,
    version: u64,
) -> Result<Vec<Stored>, SessionError> {
    let failed = failed("read values");
    let mut query = connection.prepare_cached(stored_by!(" AND version > ?2")).map_err(failed)?;
    let rows = query.query_map([stream, to_db(version)], Stored::read);
    let rows: Vec<Stored> = rows.and_then(Iterator::collect).map_err(failed)?;
    rows.into_iter().map(Stored::checked).collect()
}

/// The rows of all keys, those of removed ones included: each of them, and no other.
pub(super) fn stored_all(
    connection: &Connection,
    stream: i64,
    cells: i64,
) -> Result<Vec<Stored>, SessionError> {
    let rows = stored(connection, stream)?;
    let rows: Vec<Stored> = rows.into_iter().map(Stored::checked).collect::<Result<_, _>>()?;
    compare_cells(rows.iter().fold(0, |sum, stored| sum ^ stored.checksum), cells)?;
    Ok(rows)
}

/// The rows of all keys as they are.
pub(super) fn stored(connection: &Connection, stream: i64) -> Result<Vec<Stored>, SessionError> {
    let failed = failed("read values");
    let mut query = connection.prepare_cached(stored_by!("")).map_err(failed)?;
    let rows = query.query_map([stream], Stored::read);
    rows.and_then(Iterator::collect).map_err(failed)
}

/// What the table has of a key of a session.
pub(super) fn find_cell(
    connection: &Connection,
    stream: i64,
    key: &str,
) -> Result<Option<Stored>, SessionError> {
    let failed = failed("read a value");
    let mut query = connection.prepare_cached(stored_by!(" AND key = ?2")).map_err(failed)?;
    let stored = query.query_row(params![stream, key], Stored::read).optional().map_err(failed)?;
    stored.map(Stored::checked).transpose()
}

fn run(
    connection: &Connection,
    statement: &str,
    values: &[&dyn rusqlite::ToSql],
) -> Result<(), SessionError> {
    let statement = connection.prepare_cached(statement);
    statement.and_then(|mut statement| statement.execute(values)).map(drop).map_err(failed("write a value"))
}

impl<'a> SessionCells<'a> {
    pub(super) fn new(desk: &'a mut Desk, stream: i64, version: u64) -> Self {
        SessionCells { desk, stream, version, written: Written::default() }
    }

    /// Folds writes into the values; what the event has to remember of that.
    pub(super) fn write(mut self, planner: &Planner<'_>, writes: &[&Write]) -> Result<Written, SessionError> {
        if writes.is_empty() {
            return Ok(self.written);
        }
        let schema = self.desk.schemas.number(&self.desk.connection, planner.schema.text())?;
        for (key, writes) in by_key(writes) {
            let stored = find_cell(&self.desk.connection, self.stream, key)?;
            let found = self.found(stored.as_ref())?;
            let list = stored.as_ref().and_then(|stored| stored.row.list);
            let connection = &self.desk.connection;
            let items = |_| list.map_or_else(|| Ok(List::new()), |list| trail::items(connection, key, &list));
            let change = planner.change_of(found.as_ref(), &writes, items)?;
            self.apply(key, schema, stored, change)?;
        }
        Ok(self.written)
    }

    /// What a row tells of its key's value, if that has one.
    fn found(&mut self, stored: Option<&Stored>) -> Result<Option<Found>, SessionError> {
        let Some(Stored { row, .. }) = stored else { return Ok(None) };
        let Some(head) = row.head()? else { return Ok(None) };
        let schema = self.desk.schemas.text(&self.desk.connection, row.schema)?;
        Ok(Some(Found { head, schema }))
    }

    fn apply(
        &mut self,
        key: &str,
        schema: i64,
        stored: Option<Stored>,
        change: Change,
    ) -> Result<(), SessionError> {
        if change == Change::Nothing {
            return Ok(());
        }
        let was = stored.as_ref().and_then(|stored| stored.row.list);
        let (value, list) = self.new_value(key, was, change);
        let new = CellRow { key: key.to_owned(), version: to_db(self.version), schema, value, list };
        let connection = &self.desk.connection;
        match stored {
            Some(stored) => {
                let (replaced, cells) = stored.replace(connection, &new)?;
                self.written.trail.replaced.push(replaced);
                self.written.cells ^= cells;
            }
            None => self.written.cells ^= new.insert(connection, self.stream)?,
        }
        Ok(())
    }

    /// The new value or list of a key. The trail gets the items added to the list.
    fn new_value(
        &mut self,
        key: &str,
        was: Option<ListHead>,
        change: Change,
    ) -> (Option<String>, Option<ListHead>) {
        let (extent, rows) = match change {
            Change::Nothing | Change::Remove => return (None, None),
            Change::Json(value) => return (Some(value.to_string()), None),
            Change::List(extent, rows) => (extent, rows),
        };
        let generation = to_db(extent.generation);
        let before = was.filter(|list| list.generation == generation).and_then(|list| list.last);
        let mut last = before;
        for (place, items) in rows {
            last = Some(row_number(self.stream, self.version));
            self.written.trail.items.push(ItemsRow { key: key.to_owned(), generation, place, before, items });
        }
        let (start, length) = (to_db(extent.start), to_db(extent.length));
        (None, Some(ListHead { generation, start, length, last }))
    }
}

/// All values of a session, whose combined checksums are `cells`.
pub(super) fn session_values(desk: &mut Desk, stream: i64, cells: i64) -> Result<Values, SessionError> {
    let mut values = Vec::new();
    for Stored { row, .. } in stored_all(&desk.connection, stream, cells)? {
        if let Some(held) = held(desk, &row)? {
            values.push((Arc::from(row.key), held));
        }
    }
    Ok(values.into_iter().collect())
}

/// The values of these keys of a session, whose combined checksums are `cells`.
pub(super) fn session_values_of(
    desk: &mut Desk,
    stream: i64,
    cells: i64,
    keys: BTreeSet<Arc<str>>,
) -> Result<Values, SessionError> {
    let mut entries = Vec::with_capacity(keys.len());
    let mut is_whole = false;
    for key in keys {
        let stored = find_cell(&desk.connection, stream, &key)?;
        if stored.is_none() && !is_whole {
            // It never had a value, unless its row is lost.
            check_cells(&desk.connection, stream, cells)?;
            is_whole = true;
        }
        let held = stored.map(|stored| held(desk, &stored.row)).transpose()?.flatten();
        entries.push((key, held));
    }
    Ok(Values::of_keys(entries))
}

/// Checks that all rows of keys are there, without reading what they hold.
fn check_cells(connection: &Connection, stream: i64, cells: i64) -> Result<(), SessionError> {
    let sums = connection.prepare_cached("SELECT checksum FROM stepfold_cells WHERE stream = ?1");
    let sum = sums.and_then(|mut sums| {
        let mut sums = sums.query_map([stream], |row| row.get::<_, i64>(0))?;
        sums.try_fold(0, |sum, next| Ok(sum ^ next?))
    });
    compare_cells(sum.map_err(failed("read values"))?, cells)
}

fn compare_cells(found: i64, cells: i64) -> Result<(), SessionError> {
    if found == cells {
        return Ok(());
    }
    Err(SessionError::damaged("values of a session", "a key is missing or has another version"))
}

/// What a row holds; none if its key was removed.
pub(super) fn held(desk: &mut Desk, row: &CellRow) -> Result<Option<Held>, SessionError> {
    let cell = match (&row.value, &row.list) {
        (Some(text), _) => StoredValue::from(read_json::<Value>("value", text)?),
        (None, Some(list)) => StoredValue::list(trail::items(&desk.connection, &row.key, list)?),
        (None, None) => return Ok(None),
    };
    Ok(Some(Held { cell, schema: desk.schemas.text(&desk.connection, row.schema)? }))
}
