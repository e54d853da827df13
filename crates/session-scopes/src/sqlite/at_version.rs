//! The values that a session had at a version, without a word written.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::cells::{Stored, find_cell, held, stored_all};
use super::error::failed;
use super::history::History;
use super::past::row_at;
use super::threads::Desk;
use super::trail::{self, CellRow};
use crate::error::SessionError;
use crate::rows::{from_db, to_db};
use crate::session::{Held, Values};
use crate::weight::{self, Weighing};

/// A session at one of the versions that it can go back to.
#[derive(Clone, Copy)]
pub(super) struct Past<'a> {
    /// Its number.
    pub(super) stream: i64,
    /// The combined checksums of its rows of values.
    pub(super) cells: i64,
    pub(super) history: &'a History,
    pub(super) version: u64,
}

impl Past<'_> {
    /// Its values: all of them, or those of these keys.
    pub(super) fn values(
        self,
        desk: &mut Desk,
        keys: Option<BTreeSet<Arc<str>>>,
    ) -> Result<Values, SessionError> {
        if let Some(keys) = keys {
            let entry = |key: Arc<str>| {
                let row = find_cell(&desk.connection, self.stream, &key)?.map(|stored| stored.row);
                let held = row.map(|row| self.held(desk, &row)).transpose()?.flatten();
                Ok::<_, SessionError>((key, held))
            };
            return Ok(Values::of_keys(keys.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?));
        }
        let mut values = Vec::new();
        for Stored { row, .. } in stored_all(&desk.connection, self.stream, self.cells)? {
            if let Some(held) = self.held(desk, &row)? {
                values.push((Arc::from(row.key), held));
            }
        }
        Ok(values.into_iter().collect())
    }

    /// Adds what its values take in memory, one after the other.
    pub(super) fn weigh(self, desk: &Desk, size: &mut Weighing) -> Result<(), SessionError> {
        let failed = failed("read sizes of values");
        let connection = &desk.connection;
        let stored = connection.prepare_cached(
            "SELECT COALESCE(SUM(octet_length(value)), 0) FROM stepfold_cells WHERE stream = ?1 AND version <= ?2",
        );
        let stored =
            stored.and_then(|mut sum| sum.query_row([self.stream, to_db(self.version)], |row| row.get(0)));
        if size.is_enough_with(from_db(stored.map_err(failed)?)) {
            return Ok(());
        }
        let mut keys =
            connection.prepare_cached("SELECT key FROM stepfold_cells WHERE stream = ?1").map_err(failed)?;
        let mut rows = keys.query([self.stream]).map_err(failed)?;
        let mut weighed = BTreeSet::new();
        while let Some(row) = rows.next().map_err(failed)?.filter(|_| !size.is_enough()) {
            let key: String = row.get(0).map_err(failed)?;
            let Some(Stored { row, .. }) = find_cell(connection, self.stream, &key)? else { continue };
            let row = match from_db(row.version) <= self.version {
                true => Some(row),
                false => row_at(connection, self.history, &row, self.version)?,
            };
            let Some(row) = row else { continue };
            size.add(row.value.as_deref().map_or(0, weight::of_json));
            if let Some(list) = &row.list {
                trail::weigh(connection, &key, list, (&mut weighed, size))?;
            }
        }
        Ok(())
    }

    /// What a key had, given its row of today.
    fn held(self, desk: &mut Desk, row: &CellRow) -> Result<Option<Held>, SessionError> {
        if from_db(row.version) <= self.version {
            return held(desk, row);
        }
        match row_at(&desk.connection, self.history, row, self.version)? {
            Some(row) => held(desk, &row),
            None => Ok(None),
        }
    }
}
