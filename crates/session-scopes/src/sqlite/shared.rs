//! The values that sessions share, which do not keep what they were.

use std::collections::BTreeSet;
use std::sync::Arc;

use rusqlite::{OptionalExtension, Row, params};
use serde_json::Value;
use stepfold_state_core::List;
use stepfold_state_core::state::{Cell, Write};

use super::changes::{ScopeRow, remember_removal};
use super::error::failed;
use super::seal;
use super::threads::Desk;
use crate::error::SessionError;
use crate::ids::{AppId, UserId};
use crate::rows::{Change, Extent, Found, Head, Plan, Planner, by_key, from_db, read_json, to_db};
use crate::session::{Held, Values};

/// The generation of a shared list that begins anew. What is stored has generation 0.
const ANEW: u64 = 1;

/// The row of a shared key.
pub(super) struct SharedRow {
    pub(super) key: String,
    version: i64,
    pub(super) schema: i64,
    value: Option<String>,
    list: Option<(i64, i64)>,
    pub(super) checksum: i64,
    is_whole: bool,
}

/// A query for rows of shared keys of the scope ?1, as [`SharedRow::read`] takes them, by a rule.
macro_rules! shared_by {
    ($rule:literal) => {
        concat!(
            "SELECT key, version, schema, checksum, value, start, length FROM stepfold_shared WHERE scope = ?1",
            $rule
        )
    };
}

impl SharedRow {
    fn new(key: &str, version: i64, schema: i64, value: Option<String>, list: Option<(i64, i64)>) -> Self {
        SharedRow { key: key.to_owned(), version, schema, value, list, checksum: 0, is_whole: true }
    }

    fn read(scope: i64, row: &Row<'_>) -> rusqlite::Result<Self> {
        let (start, length): (Option<i64>, Option<i64>) = (row.get(5)?, row.get(6)?);
        let key: String = row.get(0)?;
        let read = SharedRow::new(&key, row.get(1)?, row.get(2)?, row.get(4)?, start.zip(length));
        let (sum, checksum) = (read.sum(scope), row.get(3)?);
        Ok(SharedRow { checksum, is_whole: sum == checksum, ..read })
    }

    fn sum(&self, scope: i64) -> i64 {
        let SharedRow { key, version, schema, value, list, .. } = self;
        seal::of_shared(scope, key, *version, *schema, value.as_deref(), *list)
    }

    fn checked(self, scope: &ScopeRow) -> Result<Self, SessionError> {
        self.check(scope).map(|()| self)
    }

    /// Refuses a row that is not what was written.
    pub(super) fn check(&self, scope: &ScopeRow) -> Result<(), SessionError> {
        if self.is_whole {
            return Ok(());
        }
        Err(scope.damaged(&format!("the checksum of the row of key \"{}\" does not fit", self.key)))
    }

    fn find(desk: &Desk, scope: &ScopeRow, key: &str) -> Result<Option<Self>, SessionError> {
        let failed = failed("read a shared value");
        let mut query = desk.connection.prepare_cached(shared_by!(" AND key = ?2")).map_err(failed)?;
        let row = query.query_row(params![scope.scope, key], |row| SharedRow::read(scope.scope, row));
        row.optional().map_err(failed)?.map(|row| row.checked(scope)).transpose()
    }

    /// The rows of all keys of a scope: each of them, and no other.
    fn all(desk: &Desk, scope: &ScopeRow) -> Result<Vec<Self>, SessionError> {
        let rows = SharedRow::read_all(desk, scope)?;
        let rows: Vec<SharedRow> =
            rows.into_iter().map(|row| row.checked(scope)).collect::<Result<_, _>>()?;
        scope.check_cells(rows.iter().fold(0, |sum, row| sum ^ row.checksum))?;
        Ok(rows)
    }

    /// The rows of all keys of a scope as they are.
    pub(super) fn read_all(desk: &Desk, scope: &ScopeRow) -> Result<Vec<Self>, SessionError> {
        let failed = failed("read shared values");
        let mut query = desk.connection.prepare_cached(shared_by!("")).map_err(failed)?;
        let rows = query.query_map([scope.scope], |row| SharedRow::read(scope.scope, row));
        rows.and_then(Iterator::collect).map_err(failed)
    }

    pub(super) fn head(&self) -> Result<Head, SessionError> {
        match (&self.value, self.list) {
            (Some(text), _) => read_json("shared value", text).map(Head::Json),
            (None, list) => {
                let (start, length) = list.unwrap_or_default();
                Ok(Head::List(Extent { generation: 0, start: from_db(start), length: from_db(length) }))
            }
        }
    }

    fn held(&self, desk: &mut Desk, scope: &ScopeRow) -> Result<Held, SessionError> {
        let cell = match self.head()? {
            Head::Json(value) => Cell::from(value),
            Head::List(extent) => Cell::list(shared_items(desk, scope, &self.key, extent)?),
        };
        Ok(Held { cell, schema: desk.schemas.text(&desk.connection, self.schema)? })
    }
}

/// The values of a shared scope.
pub(super) fn shared_values(desk: &mut Desk, scope: &ScopeRow) -> Result<Values, SessionError> {
    let rows = SharedRow::all(desk, scope)?;
    let held = rows.into_iter().map(|row| Ok((Arc::from(row.key.as_str()), row.held(desk, scope)?)));
    held.collect::<Result<Vec<_>, SessionError>>().map(|values| values.into_iter().collect())
}

/// The values of these keys of a shared scope.
pub(super) fn shared_values_of(
    desk: &mut Desk,
    scope: &ScopeRow,
    keys: BTreeSet<Arc<str>>,
) -> Result<Values, SessionError> {
    let mut entries = Vec::with_capacity(keys.len());
    let mut is_whole = false;
    for key in keys {
        let row = SharedRow::find(desk, scope, &key)?;
        if row.is_none() && !is_whole {
            // It has no value, unless its row is lost.
            scope.check_keys(desk)?;
            is_whole = true;
        }
        let held = row.map(|row| row.held(desk, scope)).transpose()?;
        entries.push((key, held));
    }
    Ok(Values::of_keys(entries))
}

pub(super) fn shared_items(
    desk: &Desk,
    scope: &ScopeRow,
    key: &str,
    extent: Extent,
) -> Result<List<Arc<Value>>, SessionError> {
    let failed = failed("read the items of a list");
    let mut query = desk
        .connection
        .prepare_cached(
            "SELECT item, place, checksum FROM stepfold_shared_items \
             WHERE scope = ?1 AND key = ?2 AND place >= ?3 ORDER BY place",
        )
        .map_err(failed)?;
    let mut rows = query.query(params![scope.scope, key, to_db(extent.start)]).map_err(failed)?;
    let mut items = List::new();
    let damaged = |place| scope.damaged(&format!("item {place} of the list \"{key}\" is missing or damaged"));
    while let Some(row) = rows.next().map_err(failed)? {
        let text = row.get_ref(0).map_err(failed)?;
        let text = text.as_str().map_err(|error| failed(error.into()))?;
        let (place, checksum): (i64, i64) =
            row.get(1).and_then(|place| Ok((place, row.get(2)?))).map_err(failed)?;
        let expected = to_db(extent.start) + to_db(items.len() as u64);
        if place != expected || seal::of_item(scope.scope, key, place, text) != checksum {
            return Err(damaged(items.len()));
        }
        items.push(Arc::new(read_json("item of a list", text)?));
    }
    if items.len() as u64 != extent.length {
        return Err(damaged(items.len()));
    }
    Ok(items)
}

/// Folds writes into a shared scope.
pub(super) fn write_shared(
    desk: &mut Desk,
    app: &AppId,
    user: Option<&UserId>,
    planner: &Planner<'_>,
    writes: &[&Write],
) -> Result<(), SessionError> {
    if writes.is_empty() {
        return Ok(());
    }
    let mut scope = ScopeRow::find_or_make(&desk.connection, app, user)?;
    scope.version += 1;
    let schema = desk.schemas.number(&desk.connection, planner.schema.text())?;
    let planner = Planner { generation: ANEW, ..*planner };
    for (key, writes) in by_key(writes) {
        let row = SharedRow::find(desk, &scope, key)?;
        let found = match &row {
            Some(row) => {
                Some(Found { head: row.head()?, schema: desk.schemas.text(&desk.connection, row.schema)? })
            }
            None => None,
        };
        let plan = match planner.plan(found.as_ref(), None, &writes)? {
            Plan::NeedsItems => {
                let items = match &found {
                    Some(Found { head: Head::List(extent), .. }) => {
                        Some(shared_items(desk, &scope, key, *extent)?)
                    }
                    _ => None,
                };
                planner.plan(found.as_ref(), items, &writes)?
            }
            plan @ Plan::Change(_) => plan,
        };
        if let Plan::Change(change) = plan {
            apply_shared(desk, &mut scope, key, schema, row.as_ref(), change)?;
        }
    }
    scope.store(&desk.connection)
}

/// Writes a change of a shared key, and keeps the row of its scope what it has to be.
fn apply_shared(
    desk: &Desk,
    row: &mut ScopeRow,
    key: &str,
    schema: i64,
    stored: Option<&SharedRow>,
    change: Change,
) -> Result<(), SessionError> {
    if change == Change::Nothing {
        return Ok(());
    }
    let failed = failed("write a shared value");
    let run = |statement: &str, values: &[&dyn rusqlite::ToSql]| {
        let statement = desk.connection.prepare_cached(statement);
        statement.and_then(|mut statement| statement.execute(values)).map(drop).map_err(failed)
    };
    let (scope, version) = (row.scope, to_db(row.version));
    let was_list = stored.is_some_and(|stored| stored.value.is_none());
    row.cells ^= stored.map_or(0, |stored| stored.checksum);
    let kept = match &change {
        Change::List(extent, _) if extent.generation != ANEW => Some(extent.start),
        _ => None,
    };
    let before = kept.map_or(i64::MAX, to_db);
    if was_list && before > 0 {
        run(
            "DELETE FROM stepfold_shared_items WHERE scope = ?1 AND key = ?2 AND place < ?3",
            &[&scope, &key, &before],
        )?;
    }
    let (value, list) = match &change {
        Change::Nothing | Change::Remove => {
            run("DELETE FROM stepfold_shared WHERE scope = ?1 AND key = ?2", &[&scope, &key])?;
            return remember_removal(&desk.connection, row, key);
        }
        Change::Json(value) => (Some(value.to_string()), None),
        Change::List(extent, _) => (None, Some((to_db(extent.start), to_db(extent.length)))),
    };
    let (start, length) = (list.map(|(start, _)| start), list.map(|(_, length)| length));
    let new = SharedRow::new(key, version, schema, value, list);
    let checksum = new.sum(scope);
    run(
        "INSERT INTO stepfold_shared (scope, key, version, schema, value, start, length, checksum) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (scope, key) DO UPDATE SET \
         version = ?3, schema = ?4, value = ?5, start = ?6, length = ?7, checksum = ?8",
        &[&scope, &key, &version, &schema, &new.value, &start, &length, &checksum],
    )?;
    row.cells ^= checksum;
    let Change::List(extent, rows) = change else { return Ok(()) };
    for (place, items) in rows {
        for (place, item) in (place..).zip(items).filter(|(place, _)| *place >= extent.start) {
            let (place, item) = (to_db(place), item.to_string());
            run(
                "INSERT INTO stepfold_shared_items (scope, key, place, item, checksum) \
                 VALUES (?1, ?2, ?3, ?4, ?5) \
                 ON CONFLICT (scope, key, place) DO UPDATE SET item = ?4, checksum = ?5",
                &[&scope, &key, &place, &item, &seal::of_item(scope, key, place, &item)],
            )?;
        }
    }
    Ok(())
}
