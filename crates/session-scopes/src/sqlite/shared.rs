//! The values that sessions share, whose earlier values are not kept.

use std::collections::BTreeSet;
use std::sync::Arc;

use rusqlite::{OptionalExtension, Row, params};
use serde_json::Value;
use stepfold_state_core::List;
use stepfold_state_core::state::{StoredValue, Write};

use super::changes::remember_removal;
use super::error::failed;
use super::threads::SqliteConnection;
use crate::error::SessionError;
use crate::ids::{AppId, UserId};
use crate::keys::sealer::{ContentKey, Place};
use crate::memory_size::{self, SizeCounter};
use crate::rows::lineage::{from_db, to_db};
use crate::rows::shared::{RECREATED, ScopeOperation, ScopeRow, SharedHead, SharedRow};
use crate::rows::values::{
    ChangePlanner, ListExtent, NewestItems, SharedItemRow, StoredHead, ValueHead, by_key, read_json,
};
use crate::scope::Scope;
use crate::session::{AppendedItems, ScopeValues, TypedValue};
use crate::store::GetSession;

/// The stored row of a shared key.
pub(super) struct StoredSharedKey {
    pub(super) row: SharedRow,
    pub(super) checksum: i64,
}

/// A query for rows of shared keys of the scope ?1, as [`StoredSharedKey::read`] takes them, by a rule.
macro_rules! shared_by {
    ($rule:literal) => {
        concat!(
            "SELECT key, version, changed, schema, checksum, value, start, length FROM stepfold_shared \
             WHERE scope = ?1",
            $rule
        )
    };
}

impl StoredSharedKey {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let (start, length): (Option<i64>, Option<i64>) = (row.get(6)?, row.get(7)?);
        let extent =
            |(start, length)| ListExtent { generation: 0, start: from_db(start), length: from_db(length) };
        let (key, version, changed, schema) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        let (value, extent) = (row.get(5)?, start.zip(length).map(extent));
        let checksum = row.get(4)?;
        Ok(StoredSharedKey { row: SharedRow { key, version, changed, schema, value, extent }, checksum })
    }

    fn checked(self, scope: &ScopeRow) -> Result<Self, SessionError> {
        self.check(scope).map(|()| self)
    }

    /// Rejects a row that differs from the one that was written.
    pub(super) fn check(&self, scope: &ScopeRow) -> Result<(), SessionError> {
        if self.row.sum(scope.scope) == self.checksum {
            return Ok(());
        }
        Err(scope.damaged(&format!("checksum mismatch of the row of key \"{}\"", self.row.key)))
    }

    fn find(sqlite: &SqliteConnection, scope: &ScopeRow, key: &str) -> Result<Option<Self>, SessionError> {
        let failed = failed("read a shared value");
        let mut query = sqlite.connection.prepare_cached(shared_by!(" AND key = ?2")).map_err(failed)?;
        let row = query.query_row(params![scope.scope, key], StoredSharedKey::read);
        row.optional().map_err(failed)?.map(|row| row.checked(scope)).transpose()
    }

    /// The rows of all keys of a scope: each of them, and no other.
    fn all(sqlite: &SqliteConnection, scope: &ScopeRow) -> Result<Vec<Self>, SessionError> {
        let rows = StoredSharedKey::read_all(sqlite, scope)?;
        let rows: Vec<StoredSharedKey> =
            rows.into_iter().map(|row| row.checked(scope)).collect::<Result<_, _>>()?;
        scope.check_cells(rows.iter().fold(0, |sum, row| sum ^ row.checksum))?;
        Ok(rows)
    }

    /// The rows of all keys of a scope as they are.
    pub(super) fn read_all(sqlite: &SqliteConnection, scope: &ScopeRow) -> Result<Vec<Self>, SessionError> {
        let failed = failed("read shared values");
        let mut query = sqlite.connection.prepare_cached(shared_by!("")).map_err(failed)?;
        let rows = query.query_map([scope.scope], StoredSharedKey::read);
        rows.and_then(Iterator::collect).map_err(failed)
    }

    pub(super) fn head(&self, content: ContentKey<'_>) -> Result<ValueHead, SessionError> {
        match (&self.row.value, self.row.extent) {
            (Some(text), _) => {
                let text = content.open(Place::value(&self.row.key), text)?;
                read_json("shared value", &text).map(ValueHead::Json)
            }
            (None, extent) => {
                Ok(ValueHead::List(extent.unwrap_or(ListExtent { generation: 0, start: 0, length: 0 })))
            }
        }
    }

    /// The fields on which its next change depends.
    fn before(&self) -> SharedHead {
        let SharedRow { extent, changed, .. } = self.row;
        SharedHead { extent, changed, checksum: self.checksum }
    }

    /// If only new items of a list are read: which list it is, and after which version of the scope.
    fn items_after(
        &self,
        sqlite: &mut SqliteConnection,
        request: &GetSession,
        scope: Scope,
    ) -> Result<Option<(ListExtent, u64)>, SessionError> {
        let Some(extent) = self.row.extent else { return Ok(None) };
        let stored = sqlite.schemas.text(&sqlite.connection, self.row.schema)?;
        let after = request.items_after(scope, &self.row.key, (from_db(self.row.changed), &stored));
        Ok(after.map(|after| (extent, after)))
    }

    fn held(&self, sqlite: &mut SqliteConnection, scope: &ScopeRow) -> Result<TypedValue, SessionError> {
        let content = sqlite.key();
        let cell = match self.head(content)? {
            ValueHead::Json(value) => StoredValue::from(value),
            ValueHead::List(extent) => {
                StoredValue::list(shared_items((sqlite, content), scope, &self.row.key, extent)?)
            }
        };
        Ok(TypedValue { cell, schema: sqlite.schemas.text(&sqlite.connection, self.row.schema)? })
    }
}

/// The place of a key's texts.
type PlaceOf = fn(&str) -> Place<'_>;

/// Adds the memory of a shared scope's values, one after the other.
pub(super) fn add_size(
    sqlite: &SqliteConnection,
    scope: &ScopeRow,
    size: &mut SizeCounter,
) -> Result<(), SessionError> {
    let failed = failed("read sizes of values");
    let (value, item): (PlaceOf, PlaceOf) = (|key| Place::value(key), |key| Place::item(key));
    for (sum, texts, place) in [
        (
            "SELECT COALESCE(SUM(octet_length(value)), 0) FROM stepfold_shared WHERE scope = ?1",
            "SELECT value, key FROM stepfold_shared WHERE scope = ?1 AND value IS NOT NULL",
            value,
        ),
        (
            "SELECT COALESCE(SUM(octet_length(item)), 0) FROM stepfold_shared_items WHERE scope = ?1",
            "SELECT item, key FROM stepfold_shared_items WHERE scope = ?1",
            item,
        ),
    ] {
        let stored = sqlite.connection.prepare_cached(sum);
        let stored = stored.and_then(|mut sum| sum.query_row([scope.scope], |row| row.get(0)));
        if size.is_exceeded_with(from_db(stored.map_err(failed)?)) {
            return Ok(());
        }
        let mut texts = sqlite.connection.prepare_cached(texts).map_err(failed)?;
        let mut rows = texts.query([scope.scope]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)?.filter(|_| !size.is_exceeded()) {
            let key = row.get_ref(1).and_then(|key| Ok(key.as_str()?)).map_err(failed)?;
            let text = row.get_ref(0).and_then(|text| Ok(text.as_str()?)).map_err(failed)?;
            size.add(memory_size::of_json(&sqlite.key().open(place(key), text)?));
        }
    }
    Ok(())
}

/// The values of a shared scope.
pub(super) fn shared_values(
    sqlite: &mut SqliteConnection,
    scope: &ScopeRow,
) -> Result<ScopeValues, SessionError> {
    let rows = StoredSharedKey::all(sqlite, scope)?;
    let held = rows.into_iter().map(|row| Ok((Arc::from(row.row.key.as_str()), row.held(sqlite, scope)?)));
    held.collect::<Result<Vec<_>, SessionError>>().map(|values| values.into_iter().collect())
}

/// The values of these keys of a shared scope; where these are the keys that have changed since a request's version, new
/// items only of lists that it reads incrementally.
pub(super) fn shared_values_of(
    sqlite: &mut SqliteConnection,
    (row, scope): (&ScopeRow, Scope),
    keys: BTreeSet<Arc<str>>,
    changed_since: Option<&GetSession>,
) -> Result<ScopeValues, SessionError> {
    let (mut entries, mut appended) = (Vec::with_capacity(keys.len()), Vec::new());
    let mut is_whole = false;
    for key in keys {
        let found = StoredSharedKey::find(sqlite, row, &key)?;
        if found.is_none() && !is_whole {
            // NOTE: a key without a row has no value, or its row is lost: only the combined checksums of all rows tell.
            // They are compared once for all missing keys.
            row.check_keys(sqlite)?;
            is_whole = true;
        }
        let after = match (&found, changed_since) {
            (Some(found), Some(request)) => found.items_after(sqlite, request, scope)?,
            _ => None,
        };
        match (found, after) {
            (Some(found), Some((extent, after))) => {
                let of = (sqlite as &SqliteConnection, sqlite.key());
                let items = items_after(of, row, (&found.row.key, extent), after)?;
                let length = usize::try_from(extent.length).unwrap_or(usize::MAX);
                appended.push((key, AppendedItems { length, items }));
            }
            (found, _) => {
                let held = found.map(|found| found.held(sqlite, row)).transpose()?;
                entries.push((key, held));
            }
        }
    }
    let values = ScopeValues::of_keys(entries);
    Ok(appended.into_iter().fold(values, |values, (key, appended)| values.with_appended(key, appended)))
}

/// All items of a shared list.
pub(super) fn shared_items(
    of: (&SqliteConnection, ContentKey<'_>),
    scope: &ScopeRow,
    key: &str,
    extent: ListExtent,
) -> Result<List<Arc<Value>>, SessionError> {
    items_after(of, scope, (key, extent), 0).map(|items| items.into_iter().collect())
}

/// The items of a shared list that were added after a version of the scope.
fn items_after(
    (sqlite, content): (&SqliteConnection, ContentKey<'_>),
    scope: &ScopeRow,
    (key, extent): (&str, ListExtent),
    version: u64,
) -> Result<Vec<Arc<Value>>, SessionError> {
    let failed = failed("read the items of a list");
    let mut query = sqlite
        .connection
        .prepare_cached(
            "SELECT place, version, checksum, item FROM stepfold_shared_items \
             WHERE scope = ?1 AND key = ?2 AND place >= ?3 ORDER BY place DESC",
        )
        .map_err(failed)?;
    let mut rows = query.query(params![scope.scope, key, to_db(extent.start)]).map_err(failed)?;
    let mut items = NewestItems::after(version, scope.scope, (key, content), extent);
    while let Some(row) = rows.next().map_err(failed)? {
        let read = || Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get_ref(3)?.as_str()?));
        let (place, version, checksum, item) = read().map_err(failed)?;
        // NOTE: from the end back, until the first item that the reader has: its row proves that no newer one is missing.
        if !items.add(&SharedItemRow { place, version, checksum, item })? {
            break;
        }
    }
    items.finish()
}

/// Folds writes into a shared scope.
pub(super) fn write_shared(
    sqlite: &mut SqliteConnection,
    app: &AppId,
    user: Option<&UserId>,
    planner: &ChangePlanner<'_>,
    writes: &[&Write],
) -> Result<(), SessionError> {
    if writes.is_empty() {
        return Ok(());
    }
    let mut scope = ScopeRow::find_or_make(&sqlite.connection, app, user)?;
    scope.version += 1;
    let schema = sqlite.schemas.number(&sqlite.connection, planner.schema.text())?;
    // NOTE: stored shared lists have generation 0, so any other one marks a list that starts over.
    let planner = ChangePlanner { generation: RECREATED, ..*planner };
    for (key, writes) in by_key(writes) {
        let stored = StoredSharedKey::find(sqlite, &scope, key)?;
        let found = match &stored {
            Some(stored) => {
                let schema = sqlite.schemas.text(&sqlite.connection, stored.row.schema)?;
                Some(StoredHead { head: stored.head(sqlite.key())?, schema })
            }
            None => None,
        };
        let items = |extent| shared_items((sqlite, sqlite.key()), &scope, key, extent);
        let change = planner.change_of(found.as_ref(), &writes, items)?;
        let before = stored.as_ref().map(StoredSharedKey::before);
        for operation in scope.change(schema, key, before, change, sqlite.key())? {
            perform(sqlite, &mut scope, operation)?;
        }
    }
    scope.store(&sqlite.connection)
}

/// Performs an operation on the rows of a scope.
fn perform(
    sqlite: &SqliteConnection,
    scope: &mut ScopeRow,
    operation: ScopeOperation,
) -> Result<(), SessionError> {
    let run = |statement: &str, values: &[&dyn rusqlite::ToSql]| {
        let statement = sqlite.connection.prepare_cached(statement);
        let done = statement.and_then(|mut statement| statement.execute(values));
        done.map(drop).map_err(failed("write a shared value"))
    };
    let (number, version) = (scope.scope, to_db(scope.version));
    match operation {
        ScopeOperation::DropItems { key, before } => run(
            "DELETE FROM stepfold_shared_items WHERE scope = ?1 AND key = ?2 AND place < ?3",
            &[&number, &key, &before],
        ),
        ScopeOperation::Remove { key } => {
            run("DELETE FROM stepfold_shared WHERE scope = ?1 AND key = ?2", &[&number, &key])?;
            remember_removal(&sqlite.connection, scope, &key)
        }
        ScopeOperation::Put { row, checksum } => {
            let (start, length) = row.list().unzip();
            let SharedRow { key, changed, schema, value, .. } = &row;
            run(
                "INSERT INTO stepfold_shared (scope, key, version, changed, schema, value, start, length, checksum) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (scope, key) DO UPDATE SET \
                 version = ?3, changed = ?4, schema = ?5, value = ?6, start = ?7, length = ?8, checksum = ?9",
                &[&number, key, &version, changed, schema, value, &start, &length, &checksum],
            )
        }
        ScopeOperation::PutItem { key, place, checksum, item } => run(
            "INSERT INTO stepfold_shared_items (scope, key, place, version, item, checksum) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
             ON CONFLICT (scope, key, place) DO UPDATE SET version = ?4, item = ?5, checksum = ?6",
            &[&number, &key, &place, &version, &item, &checksum],
        ),
    }
}
