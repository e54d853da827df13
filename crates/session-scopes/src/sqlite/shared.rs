//! The values that sessions share, which do not keep what they were.

use std::collections::BTreeSet;
use std::sync::Arc;

use rusqlite::{OptionalExtension, Row, params};
use serde_json::Value;
use stepfold_state_core::List;
use stepfold_state_core::state::{StoredValue, Write};

use super::changes::{ScopeRow, remember_removal};
use super::error::failed;
use super::seal;
use super::threads::Desk;
use crate::error::SessionError;
use crate::ids::{AppId, UserId};
use crate::rows::{
    Change, Extent, Found, Head, ItemRow, NewestItems, Plan, Planner, by_key, from_db, read_json, to_db,
};
use crate::scope::Scope;
use crate::session::{Appended, Held, Values};
use crate::store::GetSession;

/// The generation of a shared list that begins anew. What is stored has generation 0.
const ANEW: u64 = 1;

/// The row of a shared key.
pub(super) struct SharedRow {
    pub(super) key: String,
    version: i64,
    /// The version of the last change that was not one at the ends of a list.
    changed: i64,
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
            "SELECT key, version, changed, schema, checksum, value, start, length FROM stepfold_shared \
             WHERE scope = ?1",
            $rule
        )
    };
}

impl SharedRow {
    fn read(scope: i64, row: &Row<'_>) -> rusqlite::Result<Self> {
        let (start, length): (Option<i64>, Option<i64>) = (row.get(6)?, row.get(7)?);
        let (key, version, changed, schema) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        let (value, list, is_whole) = (row.get(5)?, start.zip(length), true);
        let read = SharedRow { key, version, changed, schema, value, list, checksum: row.get(4)?, is_whole };
        Ok(SharedRow { is_whole: read.sum(scope) == read.checksum, ..read })
    }

    fn sum(&self, scope: i64) -> i64 {
        let SharedRow { key, version, changed, schema, value, list, .. } = self;
        seal::of_shared(scope, key, (*version, *changed), *schema, value.as_deref(), *list)
    }

    fn checked(self, scope: &ScopeRow) -> Result<Self, SessionError> {
        self.check(scope).map(|()| self)
    }

    /// Refuses a row that is not what was written.
    pub(super) fn check(&self, scope: &ScopeRow) -> Result<(), SessionError> {
        if self.is_whole {
            return Ok(());
        }
        Err(scope.damaged(&format!("checksum mismatch of the row of key \"{}\"", self.key)))
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
        match (&self.value, self.extent()) {
            (Some(text), _) => read_json("shared value", text).map(Head::Json),
            (None, extent) => Ok(Head::List(extent.unwrap_or(Extent { generation: 0, start: 0, length: 0 }))),
        }
    }

    fn extent(&self) -> Option<Extent> {
        let (start, length) = self.list?;
        Some(Extent { generation: 0, start: from_db(start), length: from_db(length) })
    }

    /// If only new items of a list are read: which list it is, and after which version of the scope.
    fn items_after(
        &self,
        desk: &mut Desk,
        request: &GetSession,
        scope: Scope,
    ) -> Result<Option<(Extent, u64)>, SessionError> {
        let Some(extent) = self.extent() else { return Ok(None) };
        let stored = desk.schemas.text(&desk.connection, self.schema)?;
        let after = request.items_after(scope, &self.key, (from_db(self.changed), &stored));
        Ok(after.map(|after| (extent, after)))
    }

    fn held(&self, desk: &mut Desk, scope: &ScopeRow) -> Result<Held, SessionError> {
        let cell = match self.head()? {
            Head::Json(value) => StoredValue::from(value),
            Head::List(extent) => StoredValue::list(shared_items(desk, scope, &self.key, extent)?),
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

/// The values of these keys of a shared scope; where these are the keys that have changed since a request's version, new
/// items only of lists that it reads incrementally.
pub(super) fn shared_values_of(
    desk: &mut Desk,
    (row, scope): (&ScopeRow, Scope),
    keys: BTreeSet<Arc<str>>,
    changed_since: Option<&GetSession>,
) -> Result<Values, SessionError> {
    let (mut entries, mut appended) = (Vec::with_capacity(keys.len()), Vec::new());
    let mut is_whole = false;
    for key in keys {
        let found = SharedRow::find(desk, row, &key)?;
        if found.is_none() && !is_whole {
            // It has no value, unless its row is lost.
            row.check_keys(desk)?;
            is_whole = true;
        }
        let after = match (&found, changed_since) {
            (Some(found), Some(request)) => found.items_after(desk, request, scope)?,
            _ => None,
        };
        match (found, after) {
            (Some(found), Some((extent, after))) => {
                let items = items_after(desk, row, (&found.key, extent), after)?;
                let length = usize::try_from(extent.length).unwrap_or(usize::MAX);
                appended.push((key, Appended { length, items }));
            }
            (found, _) => {
                let held = found.map(|found| found.held(desk, row)).transpose()?;
                entries.push((key, held));
            }
        }
    }
    let values = Values::of_keys(entries);
    Ok(appended.into_iter().fold(values, |values, (key, appended)| values.with_appended(key, appended)))
}

/// All items of a shared list.
pub(super) fn shared_items(
    desk: &Desk,
    scope: &ScopeRow,
    key: &str,
    extent: Extent,
) -> Result<List<Arc<Value>>, SessionError> {
    items_after(desk, scope, (key, extent), 0).map(|items| items.into_iter().collect())
}

/// The items of a shared list that were added after a version of the scope.
fn items_after(
    desk: &Desk,
    scope: &ScopeRow,
    (key, extent): (&str, Extent),
    version: u64,
) -> Result<Vec<Arc<Value>>, SessionError> {
    let failed = failed("read the items of a list");
    let mut query = desk
        .connection
        .prepare_cached(
            "SELECT place, version, checksum, item FROM stepfold_shared_items \
             WHERE scope = ?1 AND key = ?2 AND place >= ?3 ORDER BY place DESC",
        )
        .map_err(failed)?;
    let mut rows = query.query(params![scope.scope, key, to_db(extent.start)]).map_err(failed)?;
    let mut items = NewestItems::after(version, scope.scope, key, extent);
    while let Some(row) = rows.next().map_err(failed)? {
        let read = || Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get_ref(3)?.as_str()?));
        let (place, version, checksum, item) = read().map_err(failed)?;
        if !items.add(&ItemRow { place, version, checksum, item })? {
            break;
        }
    }
    items.finish()
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
    let before = stored.and_then(|stored| Some((stored.extent()?, stored.changed)));
    let appended_to = before.filter(|(before, _)| change.only_appends(*before));
    let changed = appended_to.map_or(version, |(_, changed)| changed);
    row.cells ^= stored.map_or(0, |stored| stored.checksum);
    let kept = match &change {
        Change::List(extent, _) if extent.generation != ANEW => Some(extent.start),
        _ => None,
    };
    let first = kept.map_or(i64::MAX, to_db);
    if before.is_some() && first > 0 {
        run(
            "DELETE FROM stepfold_shared_items WHERE scope = ?1 AND key = ?2 AND place < ?3",
            &[&scope, &key, &first],
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
    let checksum = seal::of_shared(scope, key, (version, changed), schema, value.as_deref(), list);
    run(
        "INSERT INTO stepfold_shared (scope, key, version, changed, schema, value, start, length, checksum) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (scope, key) DO UPDATE SET \
         version = ?3, changed = ?4, schema = ?5, value = ?6, start = ?7, length = ?8, checksum = ?9",
        &[&scope, &key, &version, &changed, &schema, &value, &start, &length, &checksum],
    )?;
    row.cells ^= checksum;
    let Change::List(extent, rows) = change else { return Ok(()) };
    for (place, items) in rows {
        for (place, item) in (place..).zip(items).filter(|(place, _)| *place >= extent.start) {
            let (place, item) = (to_db(place), item.to_string());
            run(
                "INSERT INTO stepfold_shared_items (scope, key, place, version, item, checksum) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
                 ON CONFLICT (scope, key, place) DO UPDATE SET version = ?4, item = ?5, checksum = ?6",
                &[&scope, &key, &place, &version, &item, &seal::of_item(scope, key, (place, version), &item)],
            )?;
        }
    }
    Ok(())
}
