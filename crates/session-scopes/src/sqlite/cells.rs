//! Values in tables: those of sessions, which keep what they were, and shared ones, which do not.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;
use stepfold_state_core::List;
use stepfold_state_core::state::{Cell, Write};

use super::error::failed;
use super::past::Ladder;
use super::seal::{self, ScopeSeal};
use super::threads::Desk;
use super::trail::{self, CellRow, ItemsRow, ListHead, Replaced, Trail, row_number};
use crate::error::SessionError;
use crate::ids::{AppId, UserId};
use crate::rows::{Change, Extent, Found, Head, Plan, Planner, by_key, from_db, read_json, to_db};
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
        Err(SessionError::damaged(what, "the checksum of its row does not fit"))
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
    if rows.iter().fold(0, |sum, stored| sum ^ stored.checksum) != cells {
        return Err(SessionError::damaged(
            "values of a session",
            "a key is missing, or is not of this version",
        ));
    }
    Ok(rows)
}

/// The rows of all keys as they are.
pub(super) fn stored(connection: &Connection, stream: i64) -> Result<Vec<Stored>, SessionError> {
    let failed = failed("read values");
    let mut query = connection.prepare_cached(stored_by!("")).map_err(failed)?;
    let rows = query.query_map([stream], Stored::read);
    rows.and_then(Iterator::collect).map_err(failed)
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
            let stored = self.find(key)?;
            let found = self.found(stored.as_ref())?;
            let plan = match planner.plan(found.as_ref(), None, &writes)? {
                Plan::NeedsItems => {
                    let list = stored.as_ref().and_then(|stored| stored.row.list.as_ref());
                    let items =
                        list.map(|list| trail::items(&self.desk.connection, key, list)).transpose()?;
                    planner.plan(found.as_ref(), items, &writes)?
                }
                plan @ Plan::Change(_) => plan,
            };
            if let Plan::Change(change) = plan {
                self.apply(key, schema, stored, change)?;
            }
        }
        Ok(self.written)
    }

    fn find(&self, key: &str) -> Result<Option<Stored>, SessionError> {
        let failed = failed("read a value");
        let connection = &self.desk.connection;
        let mut query = connection.prepare_cached(stored_by!(" AND key = ?2")).map_err(failed)?;
        let stored = query.query_row(params![self.stream, key], Stored::read).optional().map_err(failed)?;
        stored.map(Stored::checked).transpose()
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

    /// The value or the list that a key comes to have. The trail gets what is added to the list.
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
        let cell = match (&row.value, &row.list) {
            (Some(text), _) => Cell::from(read_json::<Value>("value", text)?),
            (None, Some(list)) => Cell::list(trail::items(&desk.connection, &row.key, list)?),
            (None, None) => continue,
        };
        let schema = desk.schemas.text(&desk.connection, row.schema)?;
        values.push((Arc::from(row.key), Held { cell, schema }));
    }
    Ok(values.into_iter().collect())
}

/// The generation of a shared list that begins anew. What is stored has generation 0.
const ANEW: u64 = 1;

/// The row of a shared scope.
#[derive(Clone, Debug)]
pub(super) struct ScopeRow {
    pub(super) number: i64,
    app: AppId,
    user: Option<UserId>,
    /// The combined checksums of its keys' rows.
    cells: i64,
}

impl ScopeRow {
    /// The scope, if it was ever made.
    pub(super) fn find(
        desk: &Desk,
        app: &AppId,
        user: Option<&UserId>,
    ) -> Result<Option<Self>, SessionError> {
        let failed = failed("find a scope");
        let name = user.map_or("", UserId::as_str);
        let mut query = desk
            .connection
            .prepare_cached("SELECT scope, seal FROM stepfold_scopes WHERE app = ?1 AND user = ?2")
            .map_err(failed)?;
        let found: Option<(i64, ScopeSeal)> = query
            .query_row([app.as_str(), name], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
            .map_err(failed)?;
        let Some((number, seal)) = found else { return Ok(None) };
        let cells = seal.open(number, app.as_str(), name)?;
        Ok(Some(ScopeRow { number, app: app.clone(), user: user.cloned(), cells }))
    }

    /// The scope, which is made if it is not there.
    pub(super) fn find_or_make(
        desk: &Desk,
        app: &AppId,
        user: Option<&UserId>,
    ) -> Result<Self, SessionError> {
        if let Some(scope) = ScopeRow::find(desk, app, user)? {
            return Ok(scope);
        }
        let failed = failed("make a scope");
        let connection = &desk.connection;
        let number: i64 = connection
            .prepare_cached("SELECT COALESCE(MAX(scope), 0) + 1 FROM stepfold_scopes")
            .and_then(|mut query| query.query_row([], |row| row.get(0)))
            .map_err(failed)?;
        let scope = ScopeRow { number, app: app.clone(), user: user.cloned(), cells: 0 };
        connection
            .prepare_cached("INSERT INTO stepfold_scopes (scope, app, user, seal) VALUES (?1, ?2, ?3, ?4)")
            .and_then(|mut insert| insert.execute(params![number, app.as_str(), scope.user(), scope.seal()]))
            .map_err(failed)?;
        Ok(scope)
    }

    fn user(&self) -> &str {
        self.user.as_ref().map_or("", UserId::as_str)
    }

    fn seal(&self) -> ScopeSeal {
        ScopeSeal::new(self.number, self.app.as_str(), self.user(), self.cells)
    }

    /// Stores what the combined checksums have come to be.
    pub(super) fn set_cells(mut self, desk: &Desk, cells: i64) -> Result<(), SessionError> {
        if cells == self.cells {
            return Ok(());
        }
        self.cells = cells;
        let update = desk.connection.prepare_cached("UPDATE stepfold_scopes SET seal = ?2 WHERE scope = ?1");
        let updated = update.and_then(|mut update| update.execute(params![self.number, self.seal()]));
        updated.map(drop).map_err(failed("write a shared value"))
    }

    /// Refuses rows that are not all, or not the newest.
    pub(super) fn check_cells(&self, rows: &[SharedRow]) -> Result<(), SessionError> {
        if rows.iter().fold(0, |sum, row| sum ^ row.checksum) == self.cells {
            return Ok(());
        }
        Err(self.damaged("a key is missing, or is an older one"))
    }

    fn damaged(&self, why: &str) -> SessionError {
        SessionError::damaged(seal::shared(self.app.as_str(), self.user()), why)
    }
}

/// The row of a shared key.
pub(super) struct SharedRow {
    pub(super) key: String,
    pub(super) schema: i64,
    value: Option<String>,
    list: Option<(i64, i64)>,
    checksum: i64,
    is_whole: bool,
}

/// A query for rows of shared keys of the scope ?1, as [`SharedRow::read`] takes them, by a rule.
macro_rules! shared_by {
    ($rule:literal) => {
        concat!(
            "SELECT key, schema, value, start, length, checksum FROM stepfold_shared WHERE scope = ?1",
            $rule
        )
    };
}

impl SharedRow {
    fn read(scope: i64, row: &Row<'_>) -> rusqlite::Result<Self> {
        let (key, schema, value): (String, i64, Option<String>) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let (start, length): (Option<i64>, Option<i64>) = (row.get(3)?, row.get(4)?);
        let (list, checksum) = (start.zip(length), row.get(5)?);
        let is_whole = seal::of_shared(scope, &key, schema, value.as_deref(), list) == checksum;
        Ok(SharedRow { key, schema, value, list, checksum, is_whole })
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
        let row = query.query_row(params![scope.number, key], |row| SharedRow::read(scope.number, row));
        row.optional().map_err(failed)?.map(|row| row.checked(scope)).transpose()
    }

    /// The rows of all keys of a scope: each of them, and no other.
    fn all(desk: &Desk, scope: &ScopeRow) -> Result<Vec<Self>, SessionError> {
        let rows = SharedRow::read_all(desk, scope)?;
        let rows: Vec<SharedRow> =
            rows.into_iter().map(|row| row.checked(scope)).collect::<Result<_, _>>()?;
        scope.check_cells(&rows)?;
        Ok(rows)
    }

    /// The rows of all keys of a scope as they are.
    pub(super) fn read_all(desk: &Desk, scope: &ScopeRow) -> Result<Vec<Self>, SessionError> {
        let failed = failed("read shared values");
        let mut query = desk.connection.prepare_cached(shared_by!("")).map_err(failed)?;
        let rows = query.query_map([scope.number], |row| SharedRow::read(scope.number, row));
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
}

/// The values of a shared scope.
pub(super) fn shared_values(desk: &mut Desk, scope: &ScopeRow) -> Result<Values, SessionError> {
    let mut values = Vec::new();
    for row in SharedRow::all(desk, scope)? {
        let cell = match row.head()? {
            Head::Json(value) => Cell::from(value),
            Head::List(extent) => Cell::list(shared_items(desk, scope, &row.key, extent)?),
        };
        let schema = desk.schemas.text(&desk.connection, row.schema)?;
        values.push((Arc::from(row.key), Held { cell, schema }));
    }
    Ok(values.into_iter().collect())
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
    let mut rows = query.query(params![scope.number, key, to_db(extent.start)]).map_err(failed)?;
    let mut items = List::new();
    let damaged = |place| scope.damaged(&format!("item {place} of the list \"{key}\" is missing or damaged"));
    while let Some(row) = rows.next().map_err(failed)? {
        let text = row.get_ref(0).map_err(failed)?;
        let text = text.as_str().map_err(|error| failed(error.into()))?;
        let (place, checksum): (i64, i64) =
            row.get(1).and_then(|place| Ok((place, row.get(2)?))).map_err(failed)?;
        let expected = to_db(extent.start) + to_db(items.len() as u64);
        if place != expected || seal::of_item(scope.number, key, place, text) != checksum {
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
    let scope = ScopeRow::find_or_make(desk, app, user)?;
    let schema = desk.schemas.number(&desk.connection, planner.schema.text())?;
    let planner = Planner { generation: ANEW, ..*planner };
    let mut cells = scope.cells;
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
            cells ^= apply_shared(desk, scope.number, key, schema, row.as_ref(), change)?;
        }
    }
    scope.set_cells(desk, cells)
}

/// Writes a change of a shared key; what the combined checksums change by.
fn apply_shared(
    desk: &Desk,
    scope: i64,
    key: &str,
    schema: i64,
    stored: Option<&SharedRow>,
    change: Change,
) -> Result<i64, SessionError> {
    if change == Change::Nothing {
        return Ok(0);
    }
    let failed = failed("write a shared value");
    let run = |statement: &str, values: &[&dyn rusqlite::ToSql]| {
        let statement = desk.connection.prepare_cached(statement);
        statement.and_then(|mut statement| statement.execute(values)).map(drop).map_err(failed)
    };
    let was_list = stored.is_some_and(|stored| stored.value.is_none());
    let was = stored.map_or(0, |stored| stored.checksum);
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
            return Ok(was);
        }
        Change::Json(value) => (Some(value.to_string()), None),
        Change::List(extent, _) => (None, Some((to_db(extent.start), to_db(extent.length)))),
    };
    let checksum = seal::of_shared(scope, key, schema, value.as_deref(), list);
    let (start, length) = (list.map(|(start, _)| start), list.map(|(_, length)| length));
    run(
        "INSERT INTO stepfold_shared (scope, key, schema, value, start, length, checksum) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (scope, key) \
         DO UPDATE SET schema = ?3, value = ?4, start = ?5, length = ?6, checksum = ?7",
        &[&scope, &key, &schema, &value, &start, &length, &checksum],
    )?;
    let Change::List(extent, rows) = change else { return Ok(was ^ checksum) };
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
    Ok(was ^ checksum)
}
