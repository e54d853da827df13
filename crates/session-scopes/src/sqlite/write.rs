//! The operations that change something, each inside the writer's transaction.

use std::sync::Arc;

use rusqlite::{OptionalExtension, params};
use stepfold_state_core::state::{Delta, Write};

use super::branches;
use super::cells::{SessionCells, Written, stored_all, stored_since};
use super::claims;
use super::error::failed;
use super::history::{History, Opened, SessionRow, not_newest};
use super::inbox;
use super::listed::list_again;
use super::past::row_at;
use super::read;
use super::seal::{self, State};
use super::shared::write_shared;
use super::sweep::sweep;
use super::tables::Meta;
use super::tags;
use super::threads::Desk;
use super::trail::{CellRow, IS_VALUE, check_version_fits};
use crate::apply::{WritesOf, made_id};
use crate::digest::genesis;
use crate::error::SessionError;
use crate::event::{Event, searched_of};
use crate::ids::{AppId, LifeId, SessionId, SessionKey, UserId};
use crate::rewinds::RewindRow;
use crate::rows::{Planner, Segment, check_size, forked, to_db};
use crate::schema::SessionSchema;
use crate::scope::{ByScope, by_scope};
use crate::seal::{SessionRecord, row_number, version_of};
use crate::session::{Rewound, Session, Values};
use crate::shared::ScopeRow;
use crate::store::{
    AppendEvent, CreateSession, DeleteSession, Deleted, EventRange, Expected, ForkSession, GetSession, Kept,
    LabelVersion, PruneSession, Pruned, REMEMBERED_KEYS, Receipt, RewindSession, WriteScope,
};
use crate::time::Timestamp;
use crate::work::Work;

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

/// The number of the next session.
fn next_number(desk: &Desk) -> Result<i64, SessionError> {
    Ok(Meta::read(&desk.connection)?.newest + 1)
}

/// Adds the row of a new session, its place in the list, and its lineage, newest segment first.
fn insert_session(
    desk: &Desk,
    key: &SessionKey,
    row: &SessionRecord,
    lineage: &[Segment],
) -> Result<(), SessionError> {
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let (parent, parent_version) = row.parent();
    let (version, oldest) = (to_db(row.version), to_db(row.oldest));
    let at = row.created.as_micros();
    let inserted = run(
        desk,
        "INSERT INTO stepfold_sessions \
         (number, app, user, id, version, oldest, created, updated, parent_id, parent_version, life, seal, work) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT (app, user, id) DO NOTHING",
        &[
            &row.number,
            &app,
            &user,
            &id,
            &version,
            &oldest,
            &at,
            &parent,
            &parent_version,
            &row.life,
            &row.seal(key),
            &Work::new(row.number).checksum(row.number),
        ],
    )?;
    if inserted == 0 {
        return Err(SessionError::already_exists(key));
    }
    Meta::read(&desk.connection)?.set_newest(&desk.connection, row.number)?;
    run(
        desk,
        "INSERT INTO stepfold_recent (app, user, updated, number, version, checksum, searched) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        &[
            &app,
            &user,
            &at,
            &row.number,
            &version,
            &seal::of_recent(app, user, at, row.number, version),
            &searched_of(&key.id, &[]),
        ],
    )?;
    for segment in lineage {
        run(
            desk,
            "INSERT INTO stepfold_lineage (number, stream, after, upto) VALUES (?1, ?2, ?3, ?4)",
            &[&row.number, &segment.stream, &to_db(segment.after), &to_db(segment.upto)],
        )?;
    }
    // They are there from now on, so that one that cannot be found is known to be lost.
    ScopeRow::find_or_make(&desk.connection, &key.app, None)?;
    ScopeRow::find_or_make(&desk.connection, &key.app, Some(&key.user)).map(drop)
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
    let mut number = next_number(desk)?;
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
    events: &[Arc<Event>],
) -> Result<Session, SessionError> {
    let CreateSession { app, user, id, life, at, schema, labels, .. } = request;
    let split = by_scope(initial);
    let key = chosen_id(desk, &app, &user, id, at)?;
    if SessionRow::find(&desk.connection, &key)?.is_some() {
        return Err(SessionError::already_exists(&key));
    }
    let number = next_number(desk)?;
    let planner = Planner { schema: &schema, what: WritesOf::NewSession, generation: 0 };
    let Written { trail, cells } = SessionCells::new(desk, number, 0).write(&planner, &split.session)?;
    let lineage = [Segment { stream: number, after: 0, upto: Segment::OPEN }];
    let life = life.unwrap_or_else(LifeId::random);
    let genesis = genesis(&key, at);
    let state = State { head: genesis, cells, rewound: 0 };
    let record = SessionRecord::new(number, (0, 0), at, None, &life, (state, genesis), &lineage);
    insert_session(desk, &key, &record, &lineage)?;
    let row = row_number(number, 0);
    if let Some(trail) = trail.to_text(row)? {
        run(
            desk,
            "INSERT INTO stepfold_events (number, at, trail) VALUES (?1, ?2, ?3)",
            &[&row, &at.as_micros(), &trail],
        )?;
    }
    write_both(desk, &key, &planner, &split)?;
    for event in events {
        commit_first(desk, &key, &schema, event)?;
    }
    for (label, version) in labels {
        branches::set_label(desk, &LabelVersion::new(key.clone(), label, version))?;
    }
    read::get(desk, &GetSession::new(key).events(EventRange::None))
}

/// Commits an event that comes with its session. What it wrote to shared scopes is not written again.
fn commit_first(
    desk: &mut Desk,
    key: &SessionKey,
    schema: &SessionSchema,
    event: &Arc<Event>,
) -> Result<(), SessionError> {
    let body = check_size(event.to_body()?, &event.id)?;
    let Some(to) = event.actions.rewound_to else {
        let request = AppendEvent::new(key.clone(), Expected::Any, Arc::clone(event), schema);
        return append_within(desk, &request, &body, Shares::Nothing).map(drop);
    };
    let Event { id, invocation, author, at, .. } = &**event;
    let (id, invocation, author) = (id.clone(), invocation.clone(), author.clone());
    let request = RewindSession::new(key.clone(), Expected::Any, to, id, invocation, author, *at);
    let prepared = Prepared { event: (**event).clone(), body };
    rewind(desk, &request, &prepared).map(drop)
}

/// Whether writes to the scopes that a session shares are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shares {
    All,
    Nothing,
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
    append_within(desk, request, body, Shares::All)
}

fn append_within(
    desk: &mut Desk,
    request: &AppendEvent,
    body: &str,
    shares: Shares,
) -> Result<Receipt, SessionError> {
    let AppendEvent { key, expected, event, schema, .. } = request;
    let opened = Opened::read(&desk.connection, key, Some(&event.id))?;
    if let Some(receipt) = repeated(desk, &opened, key, event, body)? {
        return Ok(claims::repeated(&opened.row, request.into(), receipt));
    }
    let Opened { row, scopes, .. } = opened;
    let fence = claims::check(desk, &row, request.into())?;
    expected.check(key, row.version)?;
    let split = by_scope(&event.actions.delta);
    let version = row.version + 1;
    let planner = Planner { schema, what: WritesOf::Event(&event.id), generation: version };
    let written = SessionCells::new(desk, row.number, version).write(&planner, &split.session)?;
    if shares == Shares::All {
        write_both(desk, key, &planner, &split)?;
    }
    let receipt = commit(desk, key, &row, (event, body), &written)?;
    let receipt = receipt.with_scopes(scopes.versions().after(&split));
    claims::commit(desk, &row, request.into(), fence, receipt)
}

/// The first receipt, if the event was committed already.
fn repeated(
    desk: &Desk,
    opened: &Opened,
    key: &SessionKey,
    event: &Event,
    body: &str,
) -> Result<Option<Receipt>, SessionError> {
    let Some(number) = opened.event else { return Ok(None) };
    let query = desk.connection.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM stepfold_events WHERE number = ?1 AND body = ?2 AND at = ?3)",
    );
    let given = params![number, body, event.at.as_micros()];
    let is_same = query.and_then(|mut query| query.query_row(given, |row| row.get(0)));
    if is_same.map_err(failed("find an event"))? {
        let receipt = Receipt::new(event.id.clone(), version_of(number));
        return Ok(Some(receipt.with_scopes(opened.scopes.versions())));
    }
    Err(SessionError::event_reused(key, &event.id))
}

/// Adds an event with what it leaves, as the next one of the session. The receipt lacks the versions of the scopes.
fn commit(
    desk: &Desk,
    key: &SessionKey,
    row: &SessionRow,
    (event, body): (&Event, &str),
    written: &Written,
) -> Result<Receipt, SessionError> {
    let (version, at) = (row.version + 1, event.at.as_micros());
    check_version_fits(version)?;
    let number = row_number(row.number, version);
    run(
        desk,
        "INSERT INTO stepfold_events (number, at, id, trail, body, seal) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        &[
            &number,
            &at,
            &event.id.as_str(),
            &written.trail.to_text(number)?,
            &body,
            &row.seal_after(event, body, written.cells),
        ],
    )?;
    tags::add(&desk.connection, row.number, version, event)?;
    let (app, user, was) = (key.app.as_str(), key.user.as_str(), row.updated.as_micros());
    let (before, now) = (to_db(row.version), to_db(version));
    let moved = run(
        desk,
        "UPDATE stepfold_recent SET updated = ?5, version = ?6, checksum = ?7, unfinished = ?9, \
         searched = CASE WHEN searched LIKE '%' || char(10) THEN searched || ?10 ELSE searched END \
         WHERE app = ?1 AND user = ?2 AND updated = ?3 AND number = ?4 AND version = ?8",
        &[
            &app,
            &user,
            &was,
            &row.number,
            &at,
            &now,
            &seal::of_recent(app, user, at, row.number, now),
            &before,
            &event.is_unfinished(),
            &event.searched(),
        ],
    )?;
    if moved == 0 {
        return Err(not_newest(key, row.version));
    }
    Ok(Receipt::new(event.id.clone(), version))
}

/// Gives a new session the rows of keys that the session it was forked from had at a version: as they are, or as
/// they were. What has not changed since brings its ladder along. The combined checksums of the rows.
fn fork_cells(
    desk: &Desk,
    from: &SessionRow,
    history: &History,
    fork: i64,
    version: u64,
) -> Result<i64, SessionError> {
    let all = stored_all(&desk.connection, from.number, from.state.cells)?;
    run(
        desk,
        "INSERT INTO stepfold_cells \
         (stream, key, version, schema, value, generation, start, length, last, ladder, checksum) \
         SELECT ?2, key, version, schema, value, generation, start, length, last, ladder, checksum \
         FROM stepfold_cells WHERE stream = ?1 AND version <= ?3",
        &[&from.number, &fork, &to_db(version)],
    )?;
    let mut cells = 0;
    for stored in all {
        if stored.row.version <= to_db(version) {
            cells ^= stored.checksum;
        } else if let Some(row) = row_at(&desk.connection, history, &stored.row, version)? {
            cells ^= row.insert(&desk.connection, fork)?;
        }
    }
    Ok(cells)
}

pub(super) fn fork(desk: &mut Desk, request: ForkSession) -> Result<Session, SessionError> {
    let ForkSession { from, id, life, version, at, event } = request;
    let row = SessionRow::get(&desk.connection, &from)?;
    row.check_newest(&desk.connection, &from)?;
    let version = version.unwrap_or(row.version);
    row.check_version(&from, version)?;
    let history = History::read(&desk.connection, &row)?;
    let key = chosen_id(desk, &from.app, &from.user, id, at)?;
    if SessionRow::find(&desk.connection, &key)?.is_some() {
        return Err(SessionError::already_exists(&key));
    }
    let number = next_number(desk)?;
    let lineage = forked(&history.lineage, number, version);
    let state = State {
        head: history.digest(&desk.connection, &row, version)?,
        cells: fork_cells(desk, &row, &history, number, version)?,
        rewound: history.rewound(&desk.connection, &row, version)?,
    };
    let life = life.unwrap_or_else(LifeId::random);
    let parent = Some((from.id.to_string(), version));
    let new =
        SessionRecord::new(number, (version, row.oldest), at, parent, &life, (state, row.anchor), &lineage);
    insert_session(desk, &key, &new, &lineage)?;
    branches::add_fork(desk, &from, row.record, (&new, &key.id))?;
    list_again(&desk.connection, &key)?;
    if let Some(event) = event {
        let request = event.append(key.clone(), version).prepare()?;
        let body = check_size(request.event.to_body()?, &request.event.id)?;
        append(desk, &request, &body)?;
    }
    read::get(desk, &GetSession::new(key).events(EventRange::None).without_state())
}

pub(super) fn rewind(
    desk: &mut Desk,
    request: &RewindSession,
    prepared: &Prepared,
) -> Result<Receipt, SessionError> {
    let Prepared { event, body } = prepared;
    let opened = Opened::read(&desk.connection, &request.key, Some(&event.id))?;
    if let Some(receipt) = repeated(desk, &opened, &request.key, event, body)? {
        return Ok(claims::repeated(&opened.row, request.into(), receipt));
    }
    let Opened { row, scopes, .. } = opened;
    let fence = claims::check(desk, &row, request.into())?;
    request.expected.check(&request.key, row.version)?;
    row.check_version(&request.key, request.to)?;
    let history = History::read(&desk.connection, &row)?;
    let rewound = Rewound { version: row.version + 1, to: request.to };
    let (version, to) = (to_db(rewound.version), to_db(rewound.to));
    let mut written = Written::default();
    for stored in stored_since(&desk.connection, row.number, request.to)? {
        let was = row_at(&desk.connection, &history, &stored.row, request.to)?;
        let new = CellRow::again(was, stored.row.key.clone(), version);
        let (replaced, cells) = stored.replace(&desk.connection, &new)?;
        written.trail.replaced.push(replaced);
        written.cells ^= cells;
    }
    let visible = history.rewound(&desk.connection, &row, rewound.to)?;
    let rewind = RewindRow::new(row.number, rewound, row.state.rewound, visible);
    run(
        desk,
        "INSERT INTO stepfold_rewinds (stream, version, target, previous, visible, checksum) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        &[&row.number, &version, &to, &to_db(rewind.previous), &to_db(rewind.visible), &rewind.checksum],
    )?;
    let receipt = commit(desk, &request.key, &row, (event, body), &written)?;
    list_again(&desk.connection, &request.key)?;
    let receipt = receipt.with_scopes(scopes.versions());
    claims::commit(desk, &row, request.into(), fence, receipt)
}

pub(super) fn write_scope(desk: &mut Desk, request: &WriteScope, body: &str) -> Result<Values, SessionError> {
    let (app, user) = request.scope.parts();
    let scope = ScopeRow::find_or_make(&desk.connection, app, user)?.scope;
    if let Some(key) = &request.idempotency_key {
        if is_repeated(desk, scope, key.as_str(), body)? {
            return read::read_scope(desk, &request.scope);
        }
        let inserted = run(
            desk,
            "INSERT INTO stepfold_operations (scope, number, operation, body) \
             SELECT ?1, COALESCE(MAX(number), 0) + 1, ?2, ?3 FROM stepfold_operations WHERE scope = ?1 \
             ON CONFLICT DO NOTHING",
            &[&scope, &key.as_str(), &body],
        )?;
        if inserted == 0 {
            let (scope, idempotency_key) = (request.scope.to_string(), key.clone());
            return Err(SessionError::IdempotencyKeyReused { scope, idempotency_key });
        }
        let kept = to_db(REMEMBERED_KEYS as u64);
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
    read::read_scope(desk, &request.scope)
}

fn is_repeated(desk: &Desk, scope: i64, key: &str, body: &str) -> Result<bool, SessionError> {
    let failed = failed("find an idempotency key");
    let query = desk.connection.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM stepfold_operations WHERE scope = ?1 AND operation = ?2 AND body = ?3)",
    );
    query.and_then(|mut query| query.query_row(params![scope, key, body], |row| row.get(0))).map_err(failed)
}

pub(super) fn delete(desk: &mut Desk, request: &DeleteSession) -> Result<Deleted, SessionError> {
    let key = &request.key;
    let row = SessionRow::get(&desk.connection, key)?;
    row.work.fence.check_free(key, request.take_over, request.at)?;
    let history = History::read(&desk.connection, &row)?;
    let session_keys =
        keys(desk, &format!("SELECT key FROM stepfold_cells WHERE stream = ?1 AND {IS_VALUE}"), row.number)?;
    run(desk, "DELETE FROM stepfold_cells WHERE stream = ?1", &[&row.number])?;
    branches::forget(desk, key, &row)?;
    run(desk, "DELETE FROM stepfold_sessions WHERE number = ?1", &[&row.number])?;
    inbox::delete(desk, row.number)?;
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
    let connection = &desk.connection;
    let Some(mut row) = ScopeRow::find(connection, &key.app, Some(&key.user))? else { return Ok(Vec::new()) };
    let scope = row.scope;
    let user_keys = keys(desk, "SELECT key FROM stepfold_shared WHERE scope = ?1", scope)?;
    for statement in [
        "DELETE FROM stepfold_shared WHERE scope = ?1",
        "DELETE FROM stepfold_removed WHERE scope = ?1",
        "DELETE FROM stepfold_shared_items WHERE scope = ?1",
        "DELETE FROM stepfold_operations WHERE scope = ?1",
    ] {
        run(desk, statement, &[&scope])?;
    }
    // The readers of other sessions have seen what is gone, and must not take what comes for it.
    row.erase(row.version + 1);
    row.store(connection)?;
    run(
        desk,
        "DELETE FROM stepfold_scopes WHERE scope = ?1 AND NOT EXISTS (SELECT 1 FROM stepfold_sessions s \
         WHERE s.app = stepfold_scopes.app AND s.user = stepfold_scopes.user)",
        &[&scope],
    )?;
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
    let history = History::read(&desk.connection, &row)?;
    let oldest = match request.kept(row.oldest, row.version)? {
        Kept::From(version) => version,
        Kept::Since(time) => {
            let first = first_since(desk, &history, row.oldest, time)?;
            first.map_or(row.version, |first| first - 1)
        }
    };
    row.check_newest(&desk.connection, key)?;
    // Nothing goes back behind the removal of a key any more.
    let mut cells = row.state.cells;
    for stored in stored_all(&desk.connection, row.number, cells)? {
        if stored.row.version <= to_db(oldest) && stored.row.is_removed() {
            cells ^= stored.checksum;
            let (stream, name) = (&row.number, &stored.row.key);
            run(desk, "DELETE FROM stepfold_cells WHERE stream = ?1 AND key = ?2", &[stream, name])?;
        }
    }
    let anchor = history.digest(&desk.connection, &row, oldest)?;
    let before = row.oldest;
    let state = State { cells, ..row.state };
    let labels = branches::prune_labels(desk, row.number, oldest)?;
    let row = SessionRecord { state, ..row.record.pruned(oldest, anchor) }.with_labels(labels);
    // The newest event, which had told version and time, may be among those that go.
    run(
        desk,
        "UPDATE stepfold_sessions SET oldest = ?2, version = ?3, updated = ?4, seal = ?5 WHERE number = ?1",
        &[&row.number, &to_db(oldest), &to_db(row.version), &row.updated.as_micros(), &row.seal(key)],
    )?;
    for segment in &history.lineage {
        sweep(desk, segment.stream)?;
    }
    list_again(&desk.connection, key)?;
    Ok(Pruned { events: oldest - before, oldest })
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
