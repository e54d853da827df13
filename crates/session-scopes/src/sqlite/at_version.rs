//! The values that a session had at a version, without a word written.

use std::collections::BTreeSet;
use std::sync::Arc;

use rusqlite::Connection;

use super::cells::{find_cell, held};
use super::error::failed;
use super::history::History;
use super::past::row_at;
use super::threads::Desk;
use super::trail::{CELL_COLUMNS, CellRow};
use crate::error::SessionError;
use crate::rows::from_db;
use crate::session::{Held, Values};

/// A session at one of the versions that it can go back to.
#[derive(Clone, Copy)]
pub(super) struct Past<'a> {
    /// Its number.
    pub(super) stream: i64,
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
        for row in rows(&desk.connection, self.stream)? {
            if let Some(held) = self.held(desk, &row)? {
                values.push((Arc::from(row.key), held));
            }
        }
        Ok(values.into_iter().collect())
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

/// The rows of all keys, those of removed ones included.
fn rows(connection: &Connection, stream: i64) -> Result<Vec<CellRow>, SessionError> {
    let failed = failed("read values");
    let mut query = connection
        .prepare_cached(&format!("SELECT {CELL_COLUMNS} FROM stepfold_cells WHERE stream = ?1"))
        .map_err(failed)?;
    let rows = query.query_map([stream], CellRow::read);
    rows.and_then(Iterator::collect).map_err(failed)
}
