//! The operations that change something, each inside the writer's transaction.

use rusqlite::{OptionalExtension, params};
use stepfold_state_core::state::{Delta, Write};

use super::cells::{
    NewCell, SessionCells, find_scope, scope_number, shared_values, stored_since, write_shared,
};
use super::changes::Scopes;
use super::error::failed;
use super::history::{History, SessionRow};
use super::past::row_at;
use super::read;
use super::sweep::sweep;
use super::threads::Desk;
use super::trail::{IS_VALUE, Trail, check_version_fits, row_number, version_of};
use crate::apply::{WritesOf, made_id};
use crate::error::SessionError;
use crate::event::Event;
use crate::ids::{AppId, LifeId, SessionId, SessionKey, UserId};
use crate::rows::{Planner, Segment, to_db};
use crate::scope::{ByScope, by_scope};
use crate::session::{Session, Values};
use crate::store::{
    AppendEvent, Before, CreateSession, DeleteSession, Deleted, EventRange, ForkSession, GetSession,
    PruneSession, Pruned, REMEMBERED_OPERATIONS, Receipt, RewindSession, WriteScope,
};
use crate::time::Timestamp;

/// An event and its stored form, made before the writer is asked.
pub(super) struct Prepared {
    pub(super) event: Event,
    pub(super) body: String,
}

pub(super) fn run(
    desk: &Desk,
    statement: &str,
    values: &[&dyn rusqlite::ToSql],
) -> Result<usize, SessionError> {
    let statement = desk.connection.prepare_cached(statement);
    statement.and_then(|mut statement| statement.execute(values)).map_err(failed("write"))
}

/// What a row of a session is made of.
struct NewSession<'a> {
    key: SessionKey,
    version: u64,
    oldest: u64,
    at: Timestamp,
    parent: Option<(&'a SessionId, u64)>,
    life: Option<LifeId>,
}

impl NewSession<'_> {
    fn insert(&self, desk: &Desk) -> Result<i64, SessionError> {
        let (app, user, id) = (self.key.app.as_str(), self.key.user.as_str(), self.key.id.as_str());
        let parent = self.parent.map(|(id, _)| id.as_str());
        let parent_version = self.parent.map(|(_, version)| to_db(version));
        let (version, oldest, at) = (to_db(self.version), to_db(self.oldest), self.at.as_micros());
        let life = self.life.clone().unwrap_or_else(LifeId::random);
        let inserted = run(
            desk,
            "INSERT INTO stepfold_sessions \
             (number, app, user, id, version, oldest, created, updated, parent_id, parent_version, life) \
             VALUES ((SELECT newest + 1 FROM stepfold_meta), ?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7, ?8, ?9) \
             ON CONFLICT DO NOTHING",
            &[&app, &user, &id, &version, &oldest, &at, &parent, &parent_version, &life.as_str()],
        )?;
        if inserted == 0 {
            return Err(SessionError::already_exists(&self.key));
        }
        let number = desk.connection.last_insert_rowid();
        run(desk, "UPDATE stepfold_meta SET newest = ?1", &[&number])?;
        run(
            desk,
            "INSERT INTO stepfold_recent (app, user, updated, number, version) VALUES (?1, ?2, ?3, ?4, ?5)",
            &[&app, &user, &at, &number, &version],
        )?;
        Ok(number)
    }
}

/// The id that was asked for, or a free one.
fn chosen_id(
    desk: &Desk,
    app: &AppId,
    user: &UserId,
    id: Option<SessionId>,
    at: Timestamp,
) -> Result<SessionKey, SessionError> {
    let key = |id| SessionKey { app: app.clone(), user: user.clone(), id };
    if let Some(id) = id {
        return Ok(key(id));
    }
    let newest = desk.connection.prepare_cached("SELECT newest FROM stepfold_meta");
    let newest: i64 =
        newest.and_then(|mut query| query.query_row([], |row| row.get(0))).map_err(failed("make an id"))?;
    let mut number = newest + 1;
    loop {
        let key = key(made_id(at, number)?);
        if SessionRow::find(&desk.connection, &key)?.is_none() {
            return Ok(key);
        }
        number += 1;
    }
}

pub(super) fn create(
    desk: &mut Desk,
    request: CreateSession,
    initial: &Delta,
) -> Result<Session, SessionError> {
    let CreateSession { app, user, id, life, at, schema, .. } = request;
    let split = by_scope(initial);
    let key = chosen_id(desk, &app, &user, id, at)?;
    let new = NewSession { key: key.clone(), version: 0, oldest: 0, at, parent: None, life };
    let number = new.insert(desk)?;
    run(
        desk,
        "INSERT INTO stepfold_lineage (number, stream, after, upto) VALUES (?1, ?1, 0, ?2)",
        &[&number, &to_db(Segment::OPEN)],
    )?;
    let planner = Planner { schema: &schema, what: WritesOf::NewSession, generation: 0 };
    let trail = SessionCells::new(desk, number, 0).write(&planner, &split.session)?.to_text()?;
    if trail.is_some() {
        let (row, at) = (row_number(number, 0), at.as_micros());
        run(
            desk,
            "INSERT INTO stepfold_events (number, at, trail) VALUES (?1, ?2, ?3)",
            &[&row, &at, &trail],
        )?;
    }
    write_both(desk, &key, &planner, &split)?;
    read::get(desk, &GetSession::new(key).events(EventRange::None))
}

/// Writes to what the session shares. The app comes first, always.
fn write_both(
    desk: &mut Desk,
    key: &SessionKey,
    planner: &Planner<'_>,
    split: &ByScope<Vec<&Write>>,
) -> Result<(), SessionError> {
    write_shared(desk, &key.app, None, planner, &split.app)?;
    write_shared(desk, &key.app, Some(&key.user), planner, &split.user)
}

pub(super) fn append(desk: &mut Desk, request: &AppendEvent, body: &str) -> Result<Receipt, SessionError> {
    let AppendEvent { key, expected, event, schema, .. } = request;
    let row = SessionRow::get(&desk.connection, key)?;
    if let Some(receipt) = repeated(desk, &row, key, event, body)? {
        return Ok(receipt);
    }
    expected.check(key, row.version)?;
    let split = by_scope(&event.actions.delta);
    let version = row.version + 1;
    let planner = Planner { schema, what: WritesOf::Event(&event.id), generation: version };
    let trail = SessionCells::new(desk, row.number, version).write(&planner, &split.session)?;
    write_both(desk, key, &planner, &split)?;
    commit(desk, key, &row, event, body, &trail)
}

/// The first receipt, if the event was committed already.
fn repeated(
    desk: &Desk,
    row: &SessionRow,
    key: &SessionKey,
    event: &Event,
    body: &str,
) -> Result<Option<Receipt>, SessionError> {
    let failed = failed("look for an event");
    let mut query = desk
        .connection
        .prepare_cached(
            "SELECT number, body = ?3 AND at = ?4 FROM stepfold_events WHERE number >> 32 = ?1 AND id = ?2",
        )
        .map_err(failed)?;
    let id = &event.id;
    let found: Option<(i64, bool)> = query
        .query_row(params![row.number, id.as_str(), body, event.at.as_micros()], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()
        .map_err(failed)?;
    match found {
        None => Ok(None),
        Some((number, true)) => {
            let scopes = Scopes::read(&desk.connection, key)?.versions();
            Ok(Some(Receipt::new(id.clone(), version_of(number)).with_scopes(scopes)))
        }
        Some((_, false)) => Err(SessionError::event_reused(key, id)),
    }
}

/// Adds an event with what it leaves, as the next one of the session.
fn commit(
    desk: &Desk,
    key: &SessionKey,
    row: &SessionRow,
    event: &Event,
    body: &str,
    trail: &Trail,
) -> Result<Receipt, SessionError> {
    let (version, at) = (row.version + 1, event.at.as_micros());
    check_version_fits(version)?;
    run(
        desk,
        "INSERT INTO stepfold_events (number, at, id, trail, body) VALUES (?1, ?2, ?3, ?4, ?5)",
        &[&row_number(row.number, version), &at, &event.id.as_str(), &trail.to_text()?, &body],
    )?;
    run(
        desk,
        "UPDATE stepfold_recent SET updated = ?5, version = ?6 \
         WHERE app = ?1 AND user = ?2 AND updated = ?3 AND number = ?4",
        &[&key.app.as_str(), &key.user.as_str(), &row.updated.as_micros(), &row.number, &at, &to_db(version)],
    )?;
    let scopes = Scopes::read(&desk.connection, key)?.versions();
    Ok(Receipt::new(event.id.clone(), version).with_scopes(scopes))
}

/// Gives a new session the rows of keys that the session it was forked from had at a version: as they are, or as
/// they were. What has not changed since brings its ladder along.
fn fork_cells(
    desk: &Desk,
    from: i64,
    history: &History,
    fork: i64,
    version: u64,
) -> Result<(), SessionError> {
    run(
        desk,
        "INSERT INTO stepfold_cells (stream, key, version, schema, value, generation, start, length, last, ladder) \
         SELECT ?2, key, version, schema, value, generation, start, length, last, ladder \
         FROM stepfold_cells WHERE stream = ?1 AND version <= ?3",
        &[&from, &fork, &to_db(version)],
    )?;
    for stored in stored_since(&desk.connection, from, version)? {
        if let Some(row) = row_at(&desk.connection, history, &stored.row, version)? {
            row.insert(&desk.connection, fork)?;
        }
    }
    Ok(())
}

pub(super) fn fork(desk: &mut Desk, request: ForkSession) -> Result<Session, SessionError> {
    let ForkSession { from, id, life, version, at } = request;
    let row = SessionRow::get(&desk.connection, &from)?;
    let version = version.unwrap_or(row.version);
    check_version(&from, &row, version)?;
    let history = History::read(&desk.connection, row.number)?;
    let key = chosen_id(desk, &from.app, &from.user, id, at)?;
    let parent = Some((&from.id, version));
    let new = NewSession { key: key.clone(), version, oldest: row.oldest, at, parent, life };
    let number = new.insert(desk)?;
    let oldest = history.lineage.last().map(|segment| segment.stream);
    for segment in &history.lineage {
        // The oldest one has the initial state, even if none of its events.
        if segment.after < version || Some(segment.stream) == oldest {
            run(
                desk,
                "INSERT INTO stepfold_lineage (number, stream, after, upto) VALUES (?1, ?2, ?3, ?4)",
                &[&number, &segment.stream, &to_db(segment.after), &to_db(segment.upto.min(version))],
            )?;
        }
    }
    run(
        desk,
        "INSERT INTO stepfold_lineage (number, stream, after, upto) VALUES (?1, ?1, ?2, ?3)",
        &[&number, &to_db(version), &to_db(Segment::OPEN)],
    )?;
    fork_cells(desk, row.number, &history, number, version)?;
    read::get(desk, &GetSession::new(key).events(EventRange::None).without_state())
}

fn check_version(key: &SessionKey, row: &SessionRow, version: u64) -> Result<(), SessionError> {
    if (row.oldest..=row.version).contains(&version) {
        return Ok(());
    }
    Err(SessionError::no_such_version(key, version, row.oldest, row.version))
}

pub(super) fn rewind(
    desk: &mut Desk,
    request: &RewindSession,
    prepared: &Prepared,
) -> Result<Receipt, SessionError> {
    let Prepared { event, body } = prepared;
    let row = SessionRow::get(&desk.connection, &request.key)?;
    if let Some(receipt) = repeated(desk, &row, &request.key, event, body)? {
        return Ok(receipt);
    }
    request.expected.check(&request.key, row.version)?;
    check_version(&request.key, &row, request.to)?;
    let history = History::read(&desk.connection, row.number)?;
    let (version, to) = (row.version + 1, to_db(request.to));
    let mut trail = Trail::default();
    for stored in stored_since(&desk.connection, row.number, request.to)? {
        let was = row_at(&desk.connection, &history, &stored.row, request.to)?;
        trail.replaced.push(stored.replace(&desk.connection, version, &NewCell::again(was))?);
    }
    run(
        desk,
        "INSERT INTO stepfold_rewinds (stream, version, target) VALUES (?1, ?2, ?3)",
        &[&row.number, &to_db(version), &to],
    )?;
    commit(desk, &request.key, &row, event, body, &trail)
}

pub(super) fn write_scope(desk: &mut Desk, request: &WriteScope, body: &str) -> Result<Values, SessionError> {
    let (app, user) = request.scope.parts();
    let scope = scope_number(desk, app, user)?;
    if let Some(operation) = &request.operation {
        if is_repeated(desk, scope, operation.as_str(), body)? {
            return shared_values(desk, scope);
        }
        let inserted = run(
            desk,
            "INSERT INTO stepfold_operations (scope, number, operation, body) \
             SELECT ?1, COALESCE(MAX(number), 0) + 1, ?2, ?3 FROM stepfold_operations WHERE scope = ?1 \
             ON CONFLICT DO NOTHING",
            &[&scope, &operation.as_str(), &body],
        )?;
        if inserted == 0 {
            let (scope, operation) = (request.scope.to_string(), operation.clone());
            return Err(SessionError::OperationReused { scope, operation });
        }
        let kept = to_db(REMEMBERED_OPERATIONS as u64);
        run(
            desk,
            "DELETE FROM stepfold_operations WHERE scope = ?1 AND number <= \
             (SELECT number FROM stepfold_operations WHERE scope = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)",
            &[&scope, &kept],
        )?;
    }
    let planner = Planner { schema: &request.schema, what: WritesOf::Scope(&request.scope), generation: 0 };
    let writes: Vec<&Write> = request.delta.iter().collect();
    write_shared(desk, app, user, &planner, &writes)?;
    shared_values(desk, scope)
}

fn is_repeated(desk: &Desk, scope: i64, operation: &str, body: &str) -> Result<bool, SessionError> {
    let failed = failed("look for an operation");
    let query = desk.connection.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM stepfold_operations WHERE scope = ?1 AND operation = ?2 AND body = ?3)",
    );
    query
        .and_then(|mut query| query.query_row(params![scope, operation, body], |row| row.get(0)))
        .map_err(failed)
}

pub(super) fn delete(desk: &mut Desk, request: &DeleteSession) -> Result<Deleted, SessionError> {
    let key = &request.key;
    let row = SessionRow::get(&desk.connection, key)?;
    let history = History::read(&desk.connection, row.number)?;
    let session_keys =
        keys(desk, &format!("SELECT key FROM stepfold_cells WHERE stream = ?1 AND {IS_VALUE}"), row.number)?;
    run(desk, "DELETE FROM stepfold_cells WHERE stream = ?1", &[&row.number])?;
    run(desk, "DELETE FROM stepfold_sessions WHERE number = ?1", &[&row.number])?;
    run(
        desk,
        "DELETE FROM stepfold_recent WHERE app = ?1 AND user = ?2 AND updated = ?3 AND number = ?4",
        &[&key.app.as_str(), &key.user.as_str(), &row.updated.as_micros(), &row.number],
    )?;
    run(desk, "DELETE FROM stepfold_lineage WHERE number = ?1", &[&row.number])?;
    for segment in &history.lineage {
        sweep(desk, segment.stream)?;
    }
    let user_keys = if request.user_state { delete_user(desk, key)? } else { Vec::new() };
    Ok(Deleted { events: row.version - row.oldest, session_keys, user_keys })
}

fn delete_user(desk: &Desk, key: &SessionKey) -> Result<Vec<String>, SessionError> {
    let Some(scope) = find_scope(desk, &key.app, Some(&key.user))? else { return Ok(Vec::new()) };
    let user_keys = keys(desk, "SELECT key FROM stepfold_shared WHERE scope = ?1", scope)?;
    for statement in [
        "DELETE FROM stepfold_shared WHERE scope = ?1",
        "DELETE FROM stepfold_removed WHERE scope = ?1",
        "DELETE FROM stepfold_shared_items WHERE scope = ?1",
        "DELETE FROM stepfold_operations WHERE scope = ?1",
        // The readers of other sessions have seen what is gone, and must not take what comes for it.
        "UPDATE stepfold_scopes SET version = version + 1, known = version + 1 WHERE scope = ?1",
        "DELETE FROM stepfold_scopes WHERE scope = ?1 AND NOT EXISTS (SELECT 1 FROM stepfold_sessions s \
         WHERE s.app = stepfold_scopes.app AND s.user = stepfold_scopes.user)",
    ] {
        run(desk, statement, &[&scope])?;
    }
    Ok(user_keys)
}

fn keys(desk: &Desk, query: &str, of: i64) -> Result<Vec<String>, SessionError> {
    let failed = failed("read the keys of a scope");
    let mut query = desk.connection.prepare_cached(query).map_err(failed)?;
    let keys = query.query_map([of], |row| row.get(0));
    keys.and_then(Iterator::collect).map_err(failed)
}

pub(super) fn prune(desk: &mut Desk, request: &PruneSession) -> Result<Pruned, SessionError> {
    let key = &request.key;
    let row = SessionRow::get(&desk.connection, key)?;
    let history = History::read(&desk.connection, row.number)?;
    let oldest = match request.before {
        Before::Version(version) if version > row.version => {
            return Err(SessionError::no_such_version(key, version, row.oldest, row.version));
        }
        Before::Version(version) => version.max(row.oldest),
        Before::Time(time) => {
            let first = first_since(desk, &history, row.oldest, time)?;
            first.map_or(row.version, |first| first - 1)
        }
    };
    // The newest event, which had told version and time, may be among those that go.
    run(
        desk,
        "UPDATE stepfold_sessions SET oldest = ?2, version = ?3, updated = ?4 WHERE number = ?1",
        &[&row.number, &to_db(oldest), &to_db(row.version), &row.updated.as_micros()],
    )?;
    // Nothing goes back behind the removal of a key any more.
    run(
        desk,
        &format!("DELETE FROM stepfold_cells WHERE stream = ?1 AND version <= ?2 AND NOT {IS_VALUE}"),
        &[&row.number, &to_db(oldest)],
    )?;
    for segment in &history.lineage {
        sweep(desk, segment.stream)?;
    }
    Ok(Pruned { events: oldest - row.oldest, oldest })
}

/// The version of the first event that is as new as `time`.
fn first_since(
    desk: &Desk,
    history: &History,
    oldest: u64,
    time: Timestamp,
) -> Result<Option<u64>, SessionError> {
    let failed = failed("find events by their time");
    let mut query = desk
        .connection
        .prepare_cached(
            "SELECT number FROM stepfold_events WHERE number > ?1 AND number <= ?2 AND at >= ?3 \
             ORDER BY number LIMIT 1",
        )
        .map_err(failed)?;
    for segment in history.lineage.iter().rev() {
        let (from, to) = segment.rows_after(oldest);
        let bounds = params![from, to, time.as_micros()];
        let found: Option<i64> = query.query_row(bounds, |row| row.get(0)).optional().map_err(failed)?;
        if let Some(number) = found {
            return Ok(Some(version_of(number)));
        }
    }
    Ok(None)
}
