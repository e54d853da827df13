//! The values that a session had at a version, read without writing.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::error::failed;
use super::history::SqliteHistory;
use super::past_values::row_at;
use super::threads::SqliteConnection;
use super::undo_log::{self, ValueRow};
use super::values::{StoredValueRow, find_cell, held, stored_all};
use crate::error::SessionError;
use crate::keys::sealer::Place;
use crate::memory_size::{self, SizeCounter};
use crate::rows::lineage::{from_db, to_db};
use crate::session::{ScopeValues, TypedValue};

/// A session at one of the versions that it can go back to.
#[derive(Clone, Copy)]
pub(super) struct PastSession<'a> {
    /// Its number.
    pub(super) stream: i64,
    /// The combined checksums of its rows of values.
    pub(super) cells: i64,
    pub(super) history: &'a SqliteHistory,
    pub(super) version: u64,
}

impl PastSession<'_> {
    /// Its values: all of them, or those of these keys.
    pub(super) fn values(
        self,
        sqlite: &mut SqliteConnection,
        keys: Option<BTreeSet<Arc<str>>>,
    ) -> Result<ScopeValues, SessionError> {
        if let Some(keys) = keys {
            let entry = |key: Arc<str>| {
                let row = find_cell(&sqlite.connection, self.stream, &key)?.map(|stored| stored.row);
                let held = row.map(|row| self.held(sqlite, &row)).transpose()?.flatten();
                Ok::<_, SessionError>((key, held))
            };
            return Ok(ScopeValues::of_keys(keys.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?));
        }
        let mut values = Vec::new();
        for StoredValueRow { row, .. } in stored_all(&sqlite.connection, self.stream, self.cells)? {
            if let Some(held) = self.held(sqlite, &row)? {
                values.push((Arc::from(row.key), held));
            }
        }
        Ok(values.into_iter().collect())
    }

    /// Adds the memory of its values, one after the other.
    pub(super) fn add_size(
        self,
        sqlite: &SqliteConnection,
        size: &mut SizeCounter,
    ) -> Result<(), SessionError> {
        let failed = failed("read sizes of values");
        let connection = &sqlite.connection;
        let stored = connection.prepare_cached(
            "SELECT COALESCE(SUM(octet_length(value)), 0) FROM stepfold_cells WHERE stream = ?1 AND version <= ?2",
        );
        let stored =
            stored.and_then(|mut sum| sum.query_row([self.stream, to_db(self.version)], |row| row.get(0)));
        // NOTE: the stored bytes alone may exceed the limit; then no value is read to count what it holds.
        if size.is_exceeded_with(from_db(stored.map_err(failed)?)) {
            return Ok(());
        }
        let mut keys =
            connection.prepare_cached("SELECT key FROM stepfold_cells WHERE stream = ?1").map_err(failed)?;
        let mut rows = keys.query([self.stream]).map_err(failed)?;
        let mut weighed = BTreeSet::new();
        while let Some(row) = rows.next().map_err(failed)?.filter(|_| !size.is_exceeded()) {
            let key: String = row.get(0).map_err(failed)?;
            let Some(StoredValueRow { row, .. }) = find_cell(connection, self.stream, &key)? else {
                continue;
            };
            let row = match from_db(row.version) <= self.version {
                true => Some(row),
                false => row_at(connection, self.history, &row, self.version)?,
            };
            let Some(row) = row else { continue };
            if let Some(text) = &row.value {
                size.add(memory_size::of_json(&sqlite.key().open(Place::value(&key), text)?));
            }
            if let Some(list) = &row.list {
                undo_log::add_size(connection, &key, list, (&mut weighed, size))?;
            }
        }
        Ok(())
    }

    /// The value that a key had, given its current row.
    fn held(self, sqlite: &mut SqliteConnection, row: &ValueRow) -> Result<Option<TypedValue>, SessionError> {
        if from_db(row.version) <= self.version {
            return held(sqlite, row);
        }
        match row_at(&sqlite.connection, self.history, row, self.version)? {
            Some(row) => held(sqlite, &row),
            None => Ok(None),
        }
    }
}
