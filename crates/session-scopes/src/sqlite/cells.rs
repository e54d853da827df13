//! Values in tables: those of sessions, which keep what they were, and shared ones, which do not.

use std::sync::Arc;

use rusqlite::{OptionalExtension, Row, params};
use serde_json::Value;
use stepfold_state_core::List;
use stepfold_state_core::state::{Cell, Write};

use super::error::failed;
use super::history::History;
use super::threads::Desk;
use crate::error::SessionError;
use crate::ids::{AppId, UserId};
use crate::rows::{Assembly, Change, Extent, Found, Head, Plan, Planner, by_key, from_db, read_json, to_db};
use crate::session::{Held, Values, Visible};

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

/// The values of one session.
pub(super) struct SessionCells<'a> {
    pub(super) desk: &'a mut Desk,
    /// The session's number.
    pub(super) stream: i64,
    /// What shows which items count. Read when it is needed.
    history: Option<(History, Visible)>,
    /// The version that the session has.
    pub(super) now: u64,
}

impl<'a> SessionCells<'a> {
    pub(super) fn new(desk: &'a mut Desk, stream: i64, now: u64) -> Self {
        SessionCells { desk, stream, history: None, now }
    }

    /// Folds writes into the values, which then are those of `version`.
    pub(super) fn write(
        &mut self,
        version: u64,
        planner: &Planner<'_>,
        writes: &[&Write],
    ) -> Result<(), SessionError> {
        if writes.is_empty() {
            return Ok(());
        }
        let schema = self.desk.schemas.number(&self.desk.connection, planner.schema.text())?;
        for (key, writes) in by_key(writes) {
            let found = self.find(key)?;
            let plan = match planner.plan(found.as_ref(), None, &writes)? {
                Plan::NeedsItems => {
                    let items = match &found {
                        Some(Found { head: Head::List(extent), .. }) => Some(self.items(key, *extent)?),
                        _ => None,
                    };
                    planner.plan(found.as_ref(), items, &writes)?
                }
                plan @ Plan::Change(_) => plan,
            };
            if let Plan::Change(change) = plan {
                self.apply(key, version, schema, found.is_some(), change)?;
            }
        }
        Ok(())
    }

    fn find(&mut self, key: &str) -> Result<Option<Found>, SessionError> {
        let failed = failed("read a value");
        let found = {
            let mut query = self
                .desk
                .connection
                .prepare_cached(
                    "SELECT schema, value, generation, start, length FROM stepfold_cells WHERE stream = ?1 AND key = ?2",
                )
                .map_err(failed)?;
            query.query_row(params![self.stream, key], |row| read_head(row, 0)).optional().map_err(failed)?
        };
        let Some((schema, head)) = found else { return Ok(None) };
        Ok(Some(Found { head: head?, schema: self.desk.schemas.text(&self.desk.connection, schema)? }))
    }

    fn apply(
        &mut self,
        key: &str,
        version: u64,
        schema: i64,
        was_there: bool,
        change: Change,
    ) -> Result<(), SessionError> {
        if change == Change::Nothing {
            return Ok(());
        }
        let failed = failed("write a value");
        let connection = &self.desk.connection;
        let run = |statement: &str, values: &[&dyn rusqlite::ToSql]| {
            connection
                .prepare_cached(statement)
                .and_then(|mut statement| statement.execute(values))
                .map_err(failed)
        };
        let version = to_db(version);
        if was_there {
            run(
                "INSERT INTO stepfold_past (stream, until, key, version, schema, value, generation, start, length) \
                 SELECT stream, ?3, key, version, schema, value, generation, start, length FROM stepfold_cells \
                 WHERE stream = ?1 AND key = ?2",
                &[&self.stream, &key, &version],
            )?;
        }
        let Some((value, generation, start, length)) = columns(&change) else {
            return run("DELETE FROM stepfold_cells WHERE stream = ?1 AND key = ?2", &[&self.stream, &key])
                .map(drop);
        };
        run(
            "INSERT INTO stepfold_cells (stream, key, version, schema, value, generation, start, length) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (stream, key) DO UPDATE SET version = ?3, \
             schema = ?4, value = ?5, generation = ?6, start = ?7, length = ?8",
            &[&self.stream, &key, &version, &schema, &value, &generation, &start, &length],
        )?;
        if let Change::List(_, rows) = change {
            for (place, items) in rows {
                run(
                    "INSERT INTO stepfold_items (stream, key, generation, version, place, items) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    &[
                        &self.stream,
                        &key,
                        &generation,
                        &version,
                        &to_db(place),
                        &Value::Array(items).to_string(),
                    ],
                )?;
            }
        }
        Ok(())
    }

    /// The items of a list.
    fn items(&mut self, key: &str, extent: Extent) -> Result<List<Arc<Value>>, SessionError> {
        if self.history.is_none() {
            let history = History::read(&self.desk.connection, self.stream)?;
            let visible = Visible::at(self.now, &history.rewinds);
            self.history = Some((history, visible));
        }
        let Some((history, visible)) = &self.history else { return Ok(List::new()) };
        items(&self.desk.connection, history, visible, key, extent)
    }
}

/// The items of a session's list: the rows that count, later ones over earlier ones.
fn items(
    connection: &rusqlite::Connection,
    history: &History,
    visible: &Visible,
    key: &str,
    extent: Extent,
) -> Result<List<Arc<Value>>, SessionError> {
    let failed = failed("read the items of a list");
    let mut query = connection
        .prepare_cached(
            "SELECT version, place, items FROM stepfold_items \
             WHERE stream = ?1 AND key = ?2 AND generation = ?3 ORDER BY version, place",
        )
        .map_err(failed)?;
    let mut assembly = Assembly::new(extent);
    for segment in history.lineage.iter().rev() {
        let list = params![segment.stream, key, to_db(extent.generation)];
        let mut rows = query.query(list).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let version = from_db(row.get(0).map_err(failed)?);
            if history.shows(visible, segment.stream, version) {
                let text = row.get_ref(2).map_err(failed)?;
                let text = text.as_str().map_err(|error| failed(error.into()))?;
                assembly.add(from_db(row.get(1).map_err(failed)?), text)?;
            }
        }
    }
    assembly.finish(key)
}

/// All values of a session.
pub(super) fn session_values(
    desk: &mut Desk,
    stream: i64,
    history: &History,
    visible: &Visible,
) -> Result<Values, SessionError> {
    let rows = heads(
        desk,
        "SELECT key, schema, value, generation, start, length FROM stepfold_cells WHERE stream = ?1",
        stream,
    )?;
    collect(desk, rows, |desk, key, extent| items(&desk.connection, history, visible, key, extent))
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
    let insert = desk.connection.prepare_cached("INSERT INTO stepfold_scopes (app, user) VALUES (?1, ?2)");
    insert.and_then(|mut insert| insert.insert([app.as_str(), user])).map_err(failed("make a scope"))
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
            apply_shared(desk, scope, key, schema, found.as_ref(), change)?;
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

fn apply_shared(
    desk: &Desk,
    scope: i64,
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
        return run("DELETE FROM stepfold_shared WHERE scope = ?1 AND key = ?2", &[&scope, &key]);
    };
    run(
        "INSERT INTO stepfold_shared (scope, key, schema, value, start, length) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
         ON CONFLICT (scope, key) DO UPDATE SET schema = ?3, value = ?4, start = ?5, length = ?6",
        &[&scope, &key, &schema, &value, &start, &length],
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
