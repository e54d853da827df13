//! Values in tables: those of sessions, which keep what they were, and shared ones, which do not.

use std::collections::BTreeSet;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;
use stepfold_state_core::List;
use stepfold_state_core::state::{Cell, Write};

use super::changes;
use super::error::failed;
use super::past::Ladder;
use super::threads::Desk;
use super::trail::{self, CELL_COLUMNS, CellRow, IS_VALUE, ItemsRow, Replaced, Trail, row_number};
use crate::error::SessionError;
use crate::ids::{AppId, UserId};
use crate::rows::{Change, Extent, Found, Head, Plan, Planner, by_key, from_db, read_json, to_db};
use crate::session::{Held, Values};

/// The columns of a value: `schema, value, generation, start, length`, from `first` on.
fn read_head(row: &Row<'_>, first: usize) -> rusqlite::Result<(i64, Result<Head, SessionError>)> {
    let schema = row.get(first)?;
    let value = row.get_ref(first + 1)?.as_str_or_null()?;
    let head = match value {
        Some(text) => read_json("value", text).map(Head::Json),
        None => Ok(Head::List(Extent {
            generation: from_db(row.get(first + 2)?),
            start: from_db(row.get(first + 3)?),
            length: from_db(row.get(first + 4)?),
        })),
    };
    Ok((schema, head))
}

/// The columns that a head fills: value, generation, start, length.
type HeadColumns = (Option<String>, Option<i64>, Option<i64>, Option<i64>);

fn columns(change: &Change) -> Option<HeadColumns> {
    match change {
        Change::Nothing | Change::Remove => None,
        Change::Json(value) => Some((Some(value.to_string()), None, None, None)),
        Change::List(extent, _) => {
            let Extent { generation, start, length } = *extent;
            Some((None, Some(to_db(generation)), Some(to_db(start)), Some(to_db(length))))
        }
    }
}

/// The values of one session, while an event writes to them.
pub(super) struct SessionCells<'a> {
    desk: &'a mut Desk,
    /// The session's number.
    stream: i64,
    /// The version that the event makes.
    version: u64,
    trail: Trail,
}

/// What the table has of a key.
pub(super) struct Stored {
    rowid: i64,
    pub(super) row: CellRow,
    ladder: Ladder,
}

/// A query for rows of values of the stream ?1, as [`Stored::read`] takes them, by a rule.
macro_rules! stored_by {
    ($rule:literal) => {
        concat!(
            "SELECT key, version, schema, value, generation, start, length, last, rowid, ladder ",
            "FROM stepfold_cells WHERE stream = ?1 AND ",
            $rule
        )
    };
}

impl Stored {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let (rowid, ladder) = (row.get(8)?, row.get::<_, Option<Ladder>>(9)?);
        let row = CellRow::read(row)?;
        let ladder = ladder.unwrap_or_else(|| Ladder::at(ladder_version(row.version)));
        Ok(Stored { rowid, row, ladder })
    }

    /// Puts what is new in the place of what is stored, as of a version; what the event has to remember of that.
    pub(super) fn replace(
        self,
        connection: &Connection,
        version: u64,
        new: &NewCell,
    ) -> Result<Replaced, SessionError> {
        let Stored { rowid, row, mut ladder } = self;
        let far = ladder.push(ladder_version(to_db(version)));
        let NewCell { schema, value, generation, start, length, last } = new;
        run(
            connection,
            "UPDATE stepfold_cells SET version = ?2, schema = ?3, value = ?4, generation = ?5, start = ?6, \
             length = ?7, last = ?8, ladder = ?9 WHERE rowid = ?1",
            params![rowid, to_db(version), schema, value, generation, start, length, last, ladder],
        )?;
        Ok(Replaced { row, far })
    }
}

/// The version of an event, which [fits](super::trail::check_version_fits) a row's number.
fn ladder_version(version: i64) -> u32 {
    u32::try_from(version).unwrap_or(u32::MAX)
}

/// What a row of a key comes to hold; without a value and a generation, that the key was removed.
#[derive(Default)]
pub(super) struct NewCell {
    schema: i64,
    value: Option<String>,
    generation: Option<i64>,
    start: Option<i64>,
    length: Option<i64>,
    last: Option<i64>,
}

impl NewCell {
    /// That the key has what another row has, or nothing.
    pub(super) fn again(row: Option<CellRow>) -> Self {
        let Some(CellRow { schema, value, list, .. }) = row else { return NewCell::default() };
        NewCell {
            schema,
            value,
            generation: list.map(|list| list.generation),
            start: list.map(|list| list.start),
            length: list.map(|list| list.length),
            last: list.and_then(|list| list.last),
        }
    }
}

/// The rows of the keys that were written after a version, those of removed ones included.
pub(super) fn stored_since(
    connection: &Connection,
    stream: i64,
    version: u64,
) -> Result<Vec<Stored>, SessionError> {
    let failed = failed("read values");
    let mut query = connection.prepare_cached(stored_by!("version > ?2")).map_err(failed)?;
    let rows = query.query_map([stream, to_db(version)], Stored::read);
    rows.and_then(Iterator::collect).map_err(failed)
}

/// What the table has of a key of a session.
fn find_cell(connection: &Connection, stream: i64, key: &str) -> Result<Option<Stored>, SessionError> {
    let failed = failed("read a value");
    let mut query = connection.prepare_cached(stored_by!("key = ?2")).map_err(failed)?;
    query.query_row(params![stream, key], Stored::read).optional().map_err(failed)
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
        SessionCells { desk, stream, version, trail: Trail::default() }
    }

    /// Folds writes into the values; what the event has to remember of that.
    pub(super) fn write(mut self, planner: &Planner<'_>, writes: &[&Write]) -> Result<Trail, SessionError> {
        if writes.is_empty() {
            return Ok(self.trail);
        }
        let schema = self.desk.schemas.number(&self.desk.connection, planner.schema.text())?;
        for (key, writes) in by_key(writes) {
            let stored = find_cell(&self.desk.connection, self.stream, key)?;
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
        Ok(self.trail)
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
        let (value, generation, start, length) = columns(&change).unwrap_or_default();
        let was = stored.as_ref().and_then(|stored| stored.row.list);
        let before = was.filter(|list| Some(list.generation) == generation).and_then(|list| list.last);
        let mut last = before;
        if let (Change::List(_, rows), Some(generation)) = (change, generation) {
            for (place, items) in rows {
                last = Some(row_number(self.stream, self.version));
                self.trail.items.push(ItemsRow { key: key.to_owned(), generation, place, before, items });
            }
        }
        let new = NewCell { schema, value, generation, start, length, last };
        match stored {
            Some(stored) => {
                let replaced = stored.replace(&self.desk.connection, self.version, &new)?;
                self.trail.replaced.push(replaced);
                Ok(())
            }
            None => self.insert(key, &new),
        }
    }

    fn insert(&self, key: &str, new: &NewCell) -> Result<(), SessionError> {
        let NewCell { schema, value, generation, start, length, last } = new;
        run(
            &self.desk.connection,
            "INSERT INTO stepfold_cells (stream, key, version, schema, value, generation, start, length, last) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            params![self.stream, key, to_db(self.version), schema, value, generation, start, length, last],
        )
    }
}

/// All values of a session.
pub(super) fn session_values(desk: &mut Desk, stream: i64) -> Result<Values, SessionError> {
    let failed = failed("read values");
    let rows: Vec<CellRow> = {
        let mut query = desk
            .connection
            .prepare_cached(&format!(
                "SELECT {CELL_COLUMNS} FROM stepfold_cells WHERE stream = ?1 AND {IS_VALUE}"
            ))
            .map_err(failed)?;
        let rows = query.query_map([stream], CellRow::read);
        rows.and_then(Iterator::collect).map_err(failed)?
    };
    let mut values = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(held) = held(desk, &row)? {
            values.push((Arc::from(row.key), held));
        }
    }
    Ok(values.into_iter().collect())
}

/// The values of these keys of a session.
pub(super) fn session_values_of(
    desk: &mut Desk,
    stream: i64,
    keys: BTreeSet<Arc<str>>,
) -> Result<Values, SessionError> {
    let mut entries = Vec::with_capacity(keys.len());
    for key in keys {
        let row = find_cell(&desk.connection, stream, &key)?;
        let held = row.map(|stored| held(desk, &stored.row)).transpose()?.flatten();
        entries.push((key, held));
    }
    Ok(Values::of_keys(entries))
}

/// What a row holds; none if its key was removed.
fn held(desk: &mut Desk, row: &CellRow) -> Result<Option<Held>, SessionError> {
    let cell = match (&row.value, &row.list) {
        (Some(text), _) => Cell::from(read_json::<Value>("value", text)?),
        (None, Some(list)) => Cell::list(trail::items(&desk.connection, &row.key, list)?),
        (None, None) => return Ok(None),
    };
    Ok(Some(Held { cell, schema: desk.schemas.text(&desk.connection, row.schema)? }))
}

type HeadRow = (String, i64, Head);

fn heads(desk: &Desk, query: &str, of: i64) -> Result<Vec<HeadRow>, SessionError> {
    let failed = failed("read values");
    let mut query = desk.connection.prepare_cached(query).map_err(failed)?;
    let rows = query.query_map([of], |row| Ok((row.get::<_, String>(0)?, read_head(row, 1)?)));
    let rows: Vec<_> = rows.and_then(Iterator::collect).map_err(failed)?;
    rows.into_iter().map(|(key, (schema, head))| Ok((key, schema, head?))).collect()
}

fn collect(
    desk: &mut Desk,
    rows: Vec<HeadRow>,
    items: impl Fn(&Desk, &str, Extent) -> Result<List<Arc<Value>>, SessionError>,
) -> Result<Values, SessionError> {
    let mut values = Vec::with_capacity(rows.len());
    for (key, schema, head) in rows {
        let cell = match head {
            Head::Json(value) => Cell::from(value),
            Head::List(extent) => Cell::list(items(desk, &key, extent)?),
        };
        let schema = desk.schemas.text(&desk.connection, schema)?;
        values.push((Arc::from(key), Held { cell, schema }));
    }
    Ok(values.into_iter().collect())
}

/// The generation of a shared list that begins anew. What is stored has generation 0.
const ANEW: u64 = 1;

/// The number of a scope, if anybody wrote to it.
pub(super) fn find_scope(
    desk: &Desk,
    app: &AppId,
    user: Option<&UserId>,
) -> Result<Option<i64>, SessionError> {
    let failed = failed("find a scope");
    let user = user.map_or("", UserId::as_str);
    let mut query = desk
        .connection
        .prepare_cached("SELECT scope FROM stepfold_scopes WHERE app = ?1 AND user = ?2")
        .map_err(failed)?;
    query.query_row([app.as_str(), user], |row| row.get(0)).optional().map_err(failed)
}

/// The number of a scope, which is made if it is not there.
pub(super) fn scope_number(desk: &Desk, app: &AppId, user: Option<&UserId>) -> Result<i64, SessionError> {
    if let Some(number) = find_scope(desk, app, user)? {
        return Ok(number);
    }
    let user = user.map_or("", UserId::as_str);
    let insert = desk
        .connection
        .prepare_cached("INSERT INTO stepfold_scopes (app, user, version, known) VALUES (?1, ?2, 0, 0)");
    insert.and_then(|mut insert| insert.insert([app.as_str(), user])).map_err(failed("make a scope"))
}

/// Counts a write to a scope: its version from now on.
fn next_version(desk: &Desk, scope: i64) -> Result<i64, SessionError> {
    let update = desk.connection.prepare_cached(
        "UPDATE stepfold_scopes SET version = version + 1 WHERE scope = ?1 RETURNING version",
    );
    let version = update.and_then(|mut update| update.query_row([scope], |row| row.get(0)));
    version.map_err(failed("write to a scope"))
}

/// The values of these keys of a shared scope.
pub(super) fn shared_values_of(
    desk: &mut Desk,
    scope: i64,
    keys: BTreeSet<Arc<str>>,
) -> Result<Values, SessionError> {
    let mut entries = Vec::with_capacity(keys.len());
    for key in keys {
        let held = match find_shared(desk, scope, &key)? {
            Some(Found { head: Head::Json(value), schema }) => Some(Held { cell: Cell::from(value), schema }),
            Some(Found { head: Head::List(extent), schema }) => {
                Some(Held { cell: Cell::list(shared_items(desk, scope, &key, extent)?), schema })
            }
            None => None,
        };
        entries.push((key, held));
    }
    Ok(Values::of_keys(entries))
}

/// The values of a shared scope.
pub(super) fn shared_values(desk: &mut Desk, scope: i64) -> Result<Values, SessionError> {
    let rows = heads(
        desk,
        "SELECT key, schema, value, 0, start, length FROM stepfold_shared WHERE scope = ?1",
        scope,
    )?;
    collect(desk, rows, |desk, key, extent| shared_items(desk, scope, key, extent))
}

fn shared_items(
    desk: &Desk,
    scope: i64,
    key: &str,
    extent: Extent,
) -> Result<List<Arc<Value>>, SessionError> {
    let failed = failed("read the items of a list");
    let mut query = desk
        .connection
        .prepare_cached("SELECT item FROM stepfold_shared_items WHERE scope = ?1 AND key = ?2 AND place >= ?3 ORDER BY place")
        .map_err(failed)?;
    let mut rows = query.query(params![scope, key, to_db(extent.start)]).map_err(failed)?;
    let mut items = List::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let text = row.get_ref(0).map_err(failed)?;
        let text = text.as_str().map_err(|error| failed(error.into()))?;
        items.push(Arc::new(read_json("item of a list", text)?));
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
    let scope = scope_number(desk, app, user)?;
    let target = Target { scope, version: next_version(desk, scope)? };
    let schema = desk.schemas.number(&desk.connection, planner.schema.text())?;
    let planner = Planner { generation: ANEW, ..*planner };
    for (key, writes) in by_key(writes) {
        let found = find_shared(desk, scope, key)?;
        let plan = match planner.plan(found.as_ref(), None, &writes)? {
            Plan::NeedsItems => {
                let items = match &found {
                    Some(Found { head: Head::List(extent), .. }) => {
                        Some(shared_items(desk, scope, key, *extent)?)
                    }
                    _ => None,
                };
                planner.plan(found.as_ref(), items, &writes)?
            }
            plan @ Plan::Change(_) => plan,
        };
        if let Plan::Change(change) = plan {
            apply_shared(desk, target, key, schema, found.as_ref(), change)?;
        }
    }
    Ok(())
}

fn find_shared(desk: &mut Desk, scope: i64, key: &str) -> Result<Option<Found>, SessionError> {
    let failed = failed("read a shared value");
    let found = {
        let mut query = desk
            .connection
            .prepare_cached(
                "SELECT schema, value, 0, start, length FROM stepfold_shared WHERE scope = ?1 AND key = ?2",
            )
            .map_err(failed)?;
        query.query_row(params![scope, key], |row| read_head(row, 0)).optional().map_err(failed)?
    };
    let Some((schema, head)) = found else { return Ok(None) };
    Ok(Some(Found { head: head?, schema: desk.schemas.text(&desk.connection, schema)? }))
}

/// A shared scope, and the version that a write gives it.
#[derive(Clone, Copy)]
struct Target {
    scope: i64,
    version: i64,
}

fn apply_shared(
    desk: &Desk,
    Target { scope, version }: Target,
    key: &str,
    schema: i64,
    found: Option<&Found>,
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
    let was_list = matches!(found, Some(Found { head: Head::List(_), .. }));
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
    let Some((value, _, start, length)) = columns(&change) else {
        run("DELETE FROM stepfold_shared WHERE scope = ?1 AND key = ?2", &[&scope, &key])?;
        return changes::remember_removal(&desk.connection, scope, key, version);
    };
    run(
        "INSERT INTO stepfold_shared (scope, key, version, schema, value, start, length) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (scope, key) DO UPDATE SET \
         version = ?3, schema = ?4, value = ?5, start = ?6, length = ?7",
        &[&scope, &key, &version, &schema, &value, &start, &length],
    )?;
    let Change::List(extent, rows) = change else { return Ok(()) };
    for (place, items) in rows {
        for (place, item) in (place..).zip(items).filter(|(place, _)| *place >= extent.start) {
            run(
                "INSERT INTO stepfold_shared_items (scope, key, place, item) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT (scope, key, place) DO UPDATE SET item = ?4",
                &[&scope, &key, &to_db(place), &item.to_string()],
            )?;
        }
    }
    Ok(())
}
