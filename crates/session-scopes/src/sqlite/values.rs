//! The values of sessions, whose earlier values are kept.

use std::collections::BTreeSet;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;
use stepfold_state_core::List;
use stepfold_state_core::state::{StoredValue, Write};

use super::error::failed;
use super::past_values::VersionLadder;
use super::seal;
use super::threads::SqliteConnection;
use super::undo_log::{self, ItemsRow, ListHead, ReplacedRow, StoredItems, UndoLog, ValueRow};
use crate::error::SessionError;
use crate::keys::sealer::Place;
use crate::rows::lineage::to_db;
use crate::rows::seal::row_number;
use crate::rows::values::{ChangePlanner, RowChange, StoredHead, by_key, read_json};
use crate::session::{ScopeValues, TypedValue};

/// The values of one session, while an event writes to them.
pub(super) struct SessionValueWriter<'a> {
    sqlite: &'a mut SqliteConnection,
    /// The session's number.
    stream: i64,
    /// The version that the event makes.
    version: u64,
    written: WriteEffects,
}

/// The effects of writes to values that belong into the event's row.
#[derive(Default)]
pub(super) struct WriteEffects {
    pub(super) trail: UndoLog,
    /// The change of the combined checksums of the session's values.
    pub(super) cells: i64,
}

/// The stored row of a key.
pub(super) struct StoredValueRow {
    rowid: i64,
    pub(super) row: ValueRow,
    ladder: VersionLadder,
    pub(super) checksum: i64,
    is_whole: bool,
}

/// A query for rows of values of the stream ?1, as [`StoredValueRow::read`] takes them, by a rule.
macro_rules! stored_by {
    ($rule:literal) => {
        concat!(
            "SELECT key, version, schema, value, generation, start, length, last, rowid, ladder, checksum ",
            "FROM stepfold_cells WHERE stream = ?1",
            $rule
        )
    };
}

impl StoredValueRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let (rowid, ladder) = (row.get(8)?, row.get_ref(9)?.as_blob_or_null()?);
        let checksum = row.get(10)?;
        let row = ValueRow::read(row)?;
        // NOTE: computed here, where the ladder's bytes are borrowed, and reported by `check`: verification reads damaged
        // rows too.
        let is_whole = seal::of_cell(&row, ladder) == checksum;
        let ladder = match ladder {
            Some(bytes) => VersionLadder::from_bytes(bytes)?,
            None => VersionLadder::at(ladder_version(row.version)),
        };
        Ok(StoredValueRow { rowid, row, ladder, checksum, is_whole })
    }

    fn checked(self) -> Result<Self, SessionError> {
        self.check().map(|()| self)
    }

    /// Rejects a row that differs from the one that was written.
    pub(super) fn check(&self) -> Result<(), SessionError> {
        if self.is_whole {
            return Ok(());
        }
        let what = format!("value of key \"{}\"", self.row.key);
        Err(SessionError::damaged(what, "checksum mismatch of its row"))
    }

    /// Replaces a stored row by a new one; returns the undo data of the event, and the change of the combined checksums.
    pub(super) fn replace(
        self,
        connection: &Connection,
        new: &ValueRow,
    ) -> Result<(ReplacedRow, i64), SessionError> {
        let StoredValueRow { rowid, row, mut ladder, checksum, .. } = self;
        let far = ladder.push(ladder_version(new.version));
        let ladder = ladder.to_bytes();
        let new_checksum = seal::of_cell(new, Some(&ladder));
        let ValueRow { version, schema, value, list, .. } = new;
        execute(
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
        Ok((ReplacedRow { row, far }, checksum ^ new_checksum))
    }
}

/// The version of an event, which [fits](super::undo_log::check_version_fits) a row's number.
fn ladder_version(version: i64) -> u32 {
    u32::try_from(version).unwrap_or(u32::MAX)
}

/// The rows of the keys that were written after a version, those of removed ones included.
pub(super) fn stored_since(
    connection: &Connection,
    stream: i64,
    version: u64,
) -> Result<Vec<StoredValueRow>, SessionError> {
    let failed = failed("read values");
    let mut query = connection.prepare_cached(stored_by!(" AND version > ?2")).map_err(failed)?;
    let rows = query.query_map([stream, to_db(version)], StoredValueRow::read);
    let rows: Vec<StoredValueRow> = rows.and_then(Iterator::collect).map_err(failed)?;
    rows.into_iter().map(StoredValueRow::checked).collect()
}

/// The rows of all keys, those of removed ones included: each of them, and no other.
pub(super) fn stored_all(
    connection: &Connection,
    stream: i64,
    cells: i64,
) -> Result<Vec<StoredValueRow>, SessionError> {
    let rows = stored(connection, stream)?;
    let rows: Vec<StoredValueRow> =
        rows.into_iter().map(StoredValueRow::checked).collect::<Result<_, _>>()?;
    compare_cells(rows.iter().fold(0, |sum, stored| sum ^ stored.checksum), cells)?;
    Ok(rows)
}

/// The rows of all keys as they are.
pub(super) fn stored(connection: &Connection, stream: i64) -> Result<Vec<StoredValueRow>, SessionError> {
    let failed = failed("read values");
    let mut query = connection.prepare_cached(stored_by!("")).map_err(failed)?;
    let rows = query.query_map([stream], StoredValueRow::read);
    rows.and_then(Iterator::collect).map_err(failed)
}

/// The stored row of a key of a session.
pub(super) fn find_cell(
    connection: &Connection,
    stream: i64,
    key: &str,
) -> Result<Option<StoredValueRow>, SessionError> {
    let failed = failed("read a value");
    let mut query = connection.prepare_cached(stored_by!(" AND key = ?2")).map_err(failed)?;
    let stored = query.query_row(params![stream, key], StoredValueRow::read).optional().map_err(failed)?;
    stored.map(StoredValueRow::checked).transpose()
}

fn execute(
    connection: &Connection,
    statement: &str,
    values: &[&dyn rusqlite::ToSql],
) -> Result<(), SessionError> {
    let statement = connection.prepare_cached(statement);
    statement.and_then(|mut statement| statement.execute(values)).map(drop).map_err(failed("write a value"))
}

impl<'a> SessionValueWriter<'a> {
    pub(super) fn new(sqlite: &'a mut SqliteConnection, stream: i64, version: u64) -> Self {
        SessionValueWriter { sqlite, stream, version, written: WriteEffects::default() }
    }

    /// Folds writes into the values; returns the undo data of the event.
    pub(super) fn write(
        mut self,
        planner: &ChangePlanner<'_>,
        writes: &[&Write],
    ) -> Result<WriteEffects, SessionError> {
        if writes.is_empty() {
            return Ok(self.written);
        }
        let schema = self.sqlite.schemas.number(&self.sqlite.connection, planner.schema.text())?;
        for (key, writes) in by_key(writes) {
            let stored = find_cell(&self.sqlite.connection, self.stream, key)?;
            let found = self.found(stored.as_ref())?;
            let list = stored.as_ref().and_then(|stored| stored.row.list);
            let (connection, content) = (&self.sqlite.connection, self.sqlite.key());
            let read = |list: ListHead| undo_log::items(connection, content, key, &list);
            let items = |_| list.map_or_else(|| Ok(List::new()), read);
            let change = planner.change_of(found.as_ref(), &writes, items)?;
            self.apply(key, schema, stored, change)?;
        }
        Ok(self.written)
    }

    /// The head of a key's value, if it has a value.
    fn found(&mut self, stored: Option<&StoredValueRow>) -> Result<Option<StoredHead>, SessionError> {
        let Some(StoredValueRow { row, .. }) = stored else { return Ok(None) };
        let Some(head) = row.head(self.sqlite.key())? else { return Ok(None) };
        let schema = self.sqlite.schemas.text(&self.sqlite.connection, row.schema)?;
        Ok(Some(StoredHead { head, schema }))
    }

    fn apply(
        &mut self,
        key: &str,
        schema: i64,
        stored: Option<StoredValueRow>,
        change: RowChange,
    ) -> Result<(), SessionError> {
        if change == RowChange::Nothing {
            return Ok(());
        }
        let was = stored.as_ref().and_then(|stored| stored.row.list);
        let (value, list) = self.new_value(key, was, change)?;
        let new = ValueRow { key: key.to_owned(), version: to_db(self.version), schema, value, list };
        let connection = &self.sqlite.connection;
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

    /// The new value or list of a key. Items added to the list go to the undo log.
    fn new_value(
        &mut self,
        key: &str,
        was: Option<ListHead>,
        change: RowChange,
    ) -> Result<(Option<String>, Option<ListHead>), SessionError> {
        let content = self.sqlite.key();
        let turn = [self.stream, to_db(self.version)];
        let (extent, rows) = match change {
            RowChange::Nothing | RowChange::Remove => return Ok((None, None)),
            RowChange::Json(value) => {
                return Ok((Some(content.seal(Place::value(key), &turn, value.to_string())?), None));
            }
            RowChange::List(extent, rows) => (extent, rows),
        };
        let generation = to_db(extent.generation);
        // NOTE: a list that was replaced has a new generation, whose first row must not refer to rows of the old one.
        let before = was.filter(|list| list.generation == generation).and_then(|list| list.last);
        let mut last = before;
        for (place, items) in rows {
            last = Some(row_number(self.stream, self.version));
            let items = StoredItems::seal(content, key, (turn, place), items)?;
            self.written.trail.items.push(ItemsRow { key: key.to_owned(), generation, place, before, items });
        }
        let (start, length) = (to_db(extent.start), to_db(extent.length));
        Ok((None, Some(ListHead { generation, start, length, last })))
    }
}

/// All values of a session, whose combined checksums are `cells`.
pub(super) fn session_values(
    sqlite: &mut SqliteConnection,
    stream: i64,
    cells: i64,
) -> Result<ScopeValues, SessionError> {
    let mut values = Vec::new();
    for StoredValueRow { row, .. } in stored_all(&sqlite.connection, stream, cells)? {
        if let Some(held) = held(sqlite, &row)? {
            values.push((Arc::from(row.key), held));
        }
    }
    Ok(values.into_iter().collect())
}

/// The values of these keys of a session, whose combined checksums are `cells`.
pub(super) fn session_values_of(
    sqlite: &mut SqliteConnection,
    stream: i64,
    cells: i64,
    keys: BTreeSet<Arc<str>>,
) -> Result<ScopeValues, SessionError> {
    let mut entries = Vec::with_capacity(keys.len());
    let mut is_whole = false;
    for key in keys {
        let stored = find_cell(&sqlite.connection, stream, &key)?;
        if stored.is_none() && !is_whole {
            // NOTE: a key without a row never had a value, or its row is lost: only the combined checksums of all rows
            // tell. They are compared once for all missing keys.
            check_cells(&sqlite.connection, stream, cells)?;
            is_whole = true;
        }
        let held = stored.map(|stored| held(sqlite, &stored.row)).transpose()?.flatten();
        entries.push((key, held));
    }
    Ok(ScopeValues::of_keys(entries))
}

/// Checks that all rows of keys exist, without reading their values.
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

/// The value of a row; `None` if its key was removed.
pub(super) fn held(
    sqlite: &mut SqliteConnection,
    row: &ValueRow,
) -> Result<Option<TypedValue>, SessionError> {
    let cell = match (&row.value, &row.list) {
        (Some(text), _) => {
            let text = sqlite.key().open(Place::value(&row.key), text)?;
            StoredValue::from(read_json::<Value>("value", &text)?)
        }
        (None, Some(list)) => {
            StoredValue::list(undo_log::items(&sqlite.connection, sqlite.key(), &row.key, list)?)
        }
        (None, None) => return Ok(None),
    };
    Ok(Some(TypedValue { cell, schema: sqlite.schemas.text(&sqlite.connection, row.schema)? }))
}
