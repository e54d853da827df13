//! The write operations, each inside the writer's transaction.

use std::sync::Arc;

use rusqlite::{OptionalExtension, params};
use stepfold_state_core::state::{Delta, Write};

use super::branches;
use super::budgets;
use super::claims;
use super::error::failed;
use super::history::{OpenedSession, SqliteHistory, SqliteSessionRow, not_newest};
use super::inbox;
use super::list_entry::update_entry;
use super::past_values::row_at;
use super::read;
use super::seal::{self, EventSeal, SealedState};
use super::search;
use super::shared::write_shared;
use super::sweep::sweep;
use super::tables::MetaRow;
use super::tags;
use super::threads::SqliteConnection;
use super::undo_log::{IS_VALUE, ValueRow, check_version_fits};
use super::values::{SessionValueWriter, WriteEffects, stored_all, stored_since};
use crate::apply::made_id;
use crate::digest::{ContentForm, ContentSalt, genesis};
use crate::error::SessionError;
use crate::event::{Event, searched_of};
use crate::ids::{AppId, LifeId, SessionId, SessionKey, UserId};
use crate::keys::sealer::{Place, is_sealed, stored_body};
use crate::rows::lineage::{HistorySegment, forked, to_db};
use crate::rows::rewinds::RewindRow;
use crate::rows::seal::{SessionRecord, row_number, version_of};
use crate::rows::shared::{ScopeRow, ScopeWriteMode};
use crate::rows::values::{ChangePlanner, check_size};
use crate::rows::work::WorkState;
use crate::schema::SessionSchema;
use crate::scope::{ByScope, by_scope};
use crate::session::{RewindMark, ScopeValues, Session};
use crate::store::{
    AppendEvent, CreateSession, DeleteSession, Deleted, EventRange, Expected, ForkSession, GetSession,
    LabelVersion, PruneSession, Pruned, REMEMBERED_KEYS, Receipt, RetentionBound, RewindSession, WriteOrigin,
    WriteScope,
};
use crate::time::Timestamp;

/// An event and its stored form, serialized before the writer runs.
pub(super) struct PreparedEvent {
    pub(super) event: Event,
    pub(super) body: String,
    pub(super) salt: ContentSalt,
}

pub(super) fn execute(
    sqlite: &SqliteConnection,
    statement: &str,
    values: &[&dyn rusqlite::ToSql],
) -> Result<usize, SessionError> {
    let statement = sqlite.connection.prepare_cached(statement);
    statement.and_then(|mut statement| statement.execute(values)).map_err(failed("write"))
}

/// The number of the next session.
fn next_number(sqlite: &SqliteConnection) -> Result<i64, SessionError> {
    Ok(MetaRow::read(&sqlite.connection)?.newest + 1)
}

/// Adds the row of a new session, its place in the list, and its lineage, newest segment first.
fn insert_session(
    sqlite: &SqliteConnection,
    key: &SessionKey,
    row: &SessionRecord,
    lineage: &[HistorySegment],
) -> Result<(), SessionError> {
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let (parent, parent_version) = row.parent();
    let (version, oldest) = (to_db(row.version), to_db(row.oldest));
    let at = row.created.as_micros();
    let inserted = execute(
        sqlite,
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
            &WorkState::new(row.number).checksum(row.number),
        ],
    )?;
    if inserted == 0 {
        return Err(SessionError::already_exists(key));
    }
    MetaRow::read(&sqlite.connection)?.set_newest(&sqlite.connection, row.number)?;
    execute(
        sqlite,
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
        execute(
            sqlite,
            "INSERT INTO stepfold_lineage (number, stream, after, upto) VALUES (?1, ?2, ?3, ?4)",
            &[&row.number, &segment.stream, &to_db(segment.after), &to_db(segment.upto)],
        )?;
    }
    // NOTE: both scopes get a row now, even if nothing writes to them: so a row that is missing later is known to be lost.
    ScopeRow::find_or_make(&sqlite.connection, &key.app, None)?;
    ScopeRow::find_or_make(&sqlite.connection, &key.app, Some(&key.user)).map(drop)
}

/// The requested id, or a free one.
fn chosen_id(
    sqlite: &SqliteConnection,
    app: &AppId,
    user: &UserId,
    id: Option<SessionId>,
    at: Timestamp,
) -> Result<SessionKey, SessionError> {
    let key = |id| SessionKey { app: app.clone(), user: user.clone(), id };
    if let Some(id) = id {
        return Ok(key(id));
    }
    let mut number = next_number(sqlite)?;
    loop {
        let key = key(made_id(at, number)?);
        if SqliteSessionRow::find(&sqlite.connection, &key)?.is_none() {
            return Ok(key);
        }
        number += 1;
    }
}

pub(super) fn create(
    sqlite: &mut SqliteConnection,
    request: CreateSession,
    initial: &Delta,
    events: &[Arc<Event>],
) -> Result<Session, SessionError> {
    let CreateSession { app, user, id, life, at, schema, labels, .. } = request;
    let split = by_scope(initial);
    let key = chosen_id(sqlite, &app, &user, id, at)?;
    if SqliteSessionRow::find(&sqlite.connection, &key)?.is_some() {
        return Err(SessionError::already_exists(&key));
    }
    let number = next_number(sqlite)?;
    let planner = ChangePlanner { schema: &schema, what: WriteOrigin::NewSession, generation: 0 };
    let WriteEffects { trail, cells } =
        SessionValueWriter::new(sqlite, number, 0).write(&planner, &split.session)?;
    let lineage = [HistorySegment { stream: number, after: 0, upto: HistorySegment::OPEN }];
    let life = life.unwrap_or_else(LifeId::random);
    let genesis = genesis(&key, at);
    let state = SealedState { head: genesis, cells, rewound: 0 };
    let record = SessionRecord::new(number, (0, 0), at, None, &life, (state, genesis), &lineage);
    insert_session(sqlite, &key, &record, &lineage)?;
    let row = row_number(number, 0);
    if let Some(trail) = trail.to_text(row)? {
        execute(
            sqlite,
            "INSERT INTO stepfold_events (number, at, trail) VALUES (?1, ?2, ?3)",
            &[&row, &at.as_micros(), &trail],
        )?;
    }
    write_both(sqlite, &key, &planner, &split)?;
    for event in events {
        commit_first(sqlite, &key, &schema, event)?;
    }
    for (label, version) in labels {
        branches::set_label(sqlite, &LabelVersion::new(key.clone(), label, version))?;
    }
    read::get(sqlite, &GetSession::new(key).events(EventRange::None))
}

/// Commits an event that comes with its session. Its writes to shared scopes are not repeated.
fn commit_first(
    sqlite: &mut SqliteConnection,
    key: &SessionKey,
    schema: &SessionSchema,
    event: &Arc<Event>,
) -> Result<(), SessionError> {
    let body = check_size(event.to_body()?, &event.id)?;
    let Some(to) = event.actions.rewound_to else {
        let request = AppendEvent::new(key.clone(), Expected::Any, Arc::clone(event), schema);
        return append_within(sqlite, &request, &body, ScopeWriteMode::Nothing).map(drop);
    };
    let Event { id, invocation, author, at, .. } = &**event;
    let (id, invocation, author) = (id.clone(), invocation.clone(), author.clone());
    let request = RewindSession::new(key.clone(), Expected::Any, to, id, invocation, author, *at);
    let prepared = PreparedEvent { event: (**event).clone(), body, salt: ContentSalt::random() };
    rewind(sqlite, &request, &prepared).map(drop)
}

/// Writes to the shared scopes of the session, always to the app's first.
fn write_both(
    sqlite: &mut SqliteConnection,
    key: &SessionKey,
    planner: &ChangePlanner<'_>,
    split: &ByScope<Vec<&Write>>,
) -> Result<(), SessionError> {
    write_shared(sqlite, &key.app, None, planner, &split.app)?;
    write_shared(sqlite, &key.app, Some(&key.user), planner, &split.user)
}

pub(super) fn append(
    sqlite: &mut SqliteConnection,
    request: &AppendEvent,
    body: &str,
) -> Result<Receipt, SessionError> {
    append_within(sqlite, request, body, ScopeWriteMode::All)
}

fn append_within(
    sqlite: &mut SqliteConnection,
    request: &AppendEvent,
    body: &str,
    shares: ScopeWriteMode,
) -> Result<Receipt, SessionError> {
    let AppendEvent { key, expected, event, schema, .. } = request;
    let opened = OpenedSession::read(&sqlite.connection, key, Some(&event.id))?;
    if let Some(receipt) = repeated(sqlite, &opened, key, event, body)? {
        return Ok(claims::repeated(&opened.row, request.into(), receipt));
    }
    let OpenedSession { row, scopes, .. } = opened;
    let fence = claims::check(sqlite, &row, request.into())?;
    expected.check(key, row.version)?;
    let split = by_scope(&event.actions.delta);
    let version = row.version + 1;
    let planner = ChangePlanner { schema, what: WriteOrigin::Event(&event.id), generation: version };
    let written = SessionValueWriter::new(sqlite, row.number, version).write(&planner, &split.session)?;
    if shares == ScopeWriteMode::All {
        write_both(sqlite, key, &planner, &split)?;
    }
    let receipt = commit(sqlite, key, &row, (event, body, request.content_salt()), &written)?;
    let receipt = receipt.with_scopes(scopes.versions().after(&split));
    let receipt = claims::commit(sqlite, &row, request.into(), fence, receipt)?;
    budgets::with_append(sqlite, request, receipt)
}

/// The first receipt, if the event was committed already.
fn repeated(
    sqlite: &SqliteConnection,
    session: &OpenedSession,
    key: &SessionKey,
    event: &Event,
    body: &str,
) -> Result<Option<Receipt>, SessionError> {
    let Some(number) = session.event else { return Ok(None) };
    // NOTE: compared in the database: the stored body need not be read, and a repeated append serializes to the same text.
    let query = sqlite.connection.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM stepfold_events WHERE number = ?1 AND body = ?2 AND at = ?3)",
    );
    let given = params![number, body, event.at.as_micros()];
    let is_same = query.and_then(|mut query| query.query_row(given, |row| row.get(0)));
    let receipt =
        || Receipt::new(event.id.clone(), version_of(number)).with_scopes(session.scopes.versions());
    if is_same.map_err(failed("find an event"))? {
        return Ok(Some(receipt()));
    }
    let query =
        sqlite.connection.prepare_cached("SELECT seal, at, body FROM stepfold_events WHERE number = ?1");
    let (seal, at, stored): (Option<EventSeal>, i64, Option<String>) = query
        .and_then(|mut query| query.query_row([number], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))))
        .map_err(failed("find an event"))?;
    if seal.is_some_and(|seal| matches!(seal.form, ContentForm::Erased { .. })) {
        return Err(SessionError::erased(key, version_of(number)));
    }
    // NOTE: a sealed body is compared once it is opened: it depends on the version, and the key may have changed.
    let sealed = stored.filter(|stored| is_sealed(stored) && at == event.at.as_micros());
    let opened = sealed.as_deref().map(|stored| sqlite.key().open(Place::event(event.id.as_str()), stored));
    if opened.transpose()?.is_some_and(|opened| opened == body) {
        return Ok(Some(receipt()));
    }
    Err(SessionError::event_reused(key, &event.id))
}

/// Adds an event with its undo data, as the next one of the session. The receipt lacks the versions of the scopes.
fn commit(
    sqlite: &SqliteConnection,
    key: &SessionKey,
    row: &SqliteSessionRow,
    (event, body, salt): (&Event, &str, ContentSalt),
    written: &WriteEffects,
) -> Result<Receipt, SessionError> {
    let (version, at) = (row.version + 1, event.at.as_micros());
    check_version_fits(version)?;
    let number = row_number(row.number, version);
    let content = sqlite.key();
    let body = stored_body(content, event, &[row.number, to_db(version)], body)?;
    let searched = content.listed(event);
    execute(
        sqlite,
        "INSERT INTO stepfold_events (number, at, id, trail, body, seal) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        &[
            &number,
            &at,
            &event.id.as_str(),
            &written.trail.to_text(number)?,
            &body,
            &row.seal_after(event, &body, salt, written.cells),
        ],
    )?;
    tags::add(&sqlite.connection, row.number, version, event)?;
    let (app, user, was) = (key.app.as_str(), key.user.as_str(), row.updated.as_micros());
    let (before, now) = (to_db(row.version), to_db(version));
    // NOTE: the row is updated only at the expected version: a missing or outdated list entry fails the append, instead of
    // being repaired unnoticed.
    let moved = execute(
        sqlite,
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
            &searched,
        ],
    )?;
    if moved == 0 {
        return Err(not_newest(key, row.version));
    }
    Ok(Receipt::new(event.id.clone(), version))
}

/// Copies the rows of keys that the origin of a fork had at a version, current or earlier ones. A row that has not changed
/// since is copied with its ladder. Returns the combined checksums of the rows.
fn fork_values(
    sqlite: &SqliteConnection,
    from: &SqliteSessionRow,
    history: &SqliteHistory,
    fork: i64,
    version: u64,
) -> Result<i64, SessionError> {
    let all = stored_all(&sqlite.connection, from.number, from.state.cells)?;
    execute(
        sqlite,
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
        } else if let Some(row) = row_at(&sqlite.connection, history, &stored.row, version)? {
            cells ^= row.insert(&sqlite.connection, fork)?;
        }
    }
    Ok(cells)
}

pub(super) fn fork(sqlite: &mut SqliteConnection, request: ForkSession) -> Result<Session, SessionError> {
    let ForkSession { from, id, life, version, at, event } = request;
    let row = SqliteSessionRow::get(&sqlite.connection, &from)?;
    row.check_newest(&sqlite.connection, &from)?;
    let version = version.unwrap_or(row.version);
    row.check_version(&from, version)?;
    let history = SqliteHistory::read(&sqlite.connection, &row)?;
    let key = chosen_id(sqlite, &from.app, &from.user, id, at)?;
    if SqliteSessionRow::find(&sqlite.connection, &key)?.is_some() {
        return Err(SessionError::already_exists(&key));
    }
    let number = next_number(sqlite)?;
    let lineage = forked(&history.lineage, number, version);
    let state = SealedState {
        head: history.digest(&sqlite.connection, &row, version)?,
        cells: fork_values(sqlite, &row, &history, number, version)?,
        rewound: history.rewound(&sqlite.connection, &row, version)?,
    };
    let life = life.unwrap_or_else(LifeId::random);
    let parent = Some((from.id.to_string(), version));
    let new =
        SessionRecord::new(number, (version, row.oldest), at, parent, &life, (state, row.anchor), &lineage);
    insert_session(sqlite, &key, &new, &lineage)?;
    branches::add_fork(sqlite, &from, row.record, (&new, &key.id))?;
    update_entry(sqlite, &key)?;
    if let Some(event) = event {
        let request = event.append(key.clone(), version).prepare()?;
        let body = check_size(request.event.to_body()?, &request.event.id)?;
        append(sqlite, &request, &body)?;
    }
    read::get(sqlite, &GetSession::new(key).events(EventRange::None).without_state())
}

pub(super) fn rewind(
    sqlite: &mut SqliteConnection,
    request: &RewindSession,
    prepared: &PreparedEvent,
) -> Result<Receipt, SessionError> {
    let PreparedEvent { event, body, salt } = prepared;
    let opened = OpenedSession::read(&sqlite.connection, &request.key, Some(&event.id))?;
    if let Some(receipt) = repeated(sqlite, &opened, &request.key, event, body)? {
        return Ok(claims::repeated(&opened.row, request.into(), receipt));
    }
    let OpenedSession { row, scopes, .. } = opened;
    let fence = claims::check(sqlite, &row, request.into())?;
    request.expected.check(&request.key, row.version)?;
    row.check_version(&request.key, request.to)?;
    let history = SqliteHistory::read(&sqlite.connection, &row)?;
    let rewound = RewindMark { version: row.version + 1, to: request.to };
    let (version, to) = (to_db(rewound.version), to_db(rewound.to));
    let mut written = WriteEffects::default();
    for stored in stored_since(&sqlite.connection, row.number, request.to)? {
        let was = row_at(&sqlite.connection, &history, &stored.row, request.to)?;
        let new = ValueRow::again(was, stored.row.key.clone(), version);
        let (replaced, cells) = stored.replace(&sqlite.connection, &new)?;
        written.trail.replaced.push(replaced);
        written.cells ^= cells;
    }
    let visible = history.rewound(&sqlite.connection, &row, rewound.to)?;
    let rewind = RewindRow::new(row.number, rewound, row.state.rewound, visible);
    execute(
        sqlite,
        "INSERT INTO stepfold_rewinds (stream, version, target, previous, visible, checksum) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        &[&row.number, &version, &to, &to_db(rewind.previous), &to_db(rewind.visible), &rewind.checksum],
    )?;
    let receipt = commit(sqlite, &request.key, &row, (event, body, *salt), &written)?;
    update_entry(sqlite, &request.key)?;
    budgets::settle_open(sqlite, &request.key)?;
    let receipt = receipt.with_scopes(scopes.versions());
    claims::commit(sqlite, &row, request.into(), fence, receipt)
}

pub(super) fn write_scope(
    sqlite: &mut SqliteConnection,
    request: &WriteScope,
    body: &str,
) -> Result<ScopeValues, SessionError> {
    let (app, user) = request.scope.parts();
    let scope = ScopeRow::find_or_make(&sqlite.connection, app, user)?.scope;
    if let Some(key) = &request.idempotency_key {
        // NOTE: a repeated request returns the current values, which other writes may have changed since.
        // NOTE: of content of a user only a code is kept: an operation is compared, and never read.
        let code = sqlite.key().operation_code(body)?;
        let kept = code.as_deref().unwrap_or(body);
        if is_repeated(sqlite, scope, key.as_str(), [body, kept])? {
            return read::read_scope(sqlite, &request.scope);
        }
        let inserted = execute(
            sqlite,
            "INSERT INTO stepfold_operations (scope, number, operation, body) \
             SELECT ?1, COALESCE(MAX(number), 0) + 1, ?2, ?3 FROM stepfold_operations WHERE scope = ?1 \
             ON CONFLICT DO NOTHING",
            &[&scope, &key.as_str(), &kept],
        )?;
        if inserted == 0 {
            let (scope, idempotency_key) = (request.scope.to_string(), key.clone());
            return Err(SessionError::IdempotencyKeyReused { scope, idempotency_key });
        }
        let remembered = to_db(REMEMBERED_KEYS as u64);
        execute(
            sqlite,
            "DELETE FROM stepfold_operations WHERE scope = ?1 AND number <= \
             (SELECT number FROM stepfold_operations WHERE scope = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)",
            &[&scope, &remembered],
        )?;
    }
    let planner =
        ChangePlanner { schema: &request.schema, what: WriteOrigin::Scope(&request.scope), generation: 0 };
    let writes: Vec<&Write> = request.delta.iter().collect();
    write_shared(sqlite, app, user, &planner, &writes)?;
    read::read_scope(sqlite, &request.scope)
}

/// Whether an operation was done before, with one of these bodies: as it is, or its code.
fn is_repeated(
    sqlite: &SqliteConnection,
    scope: i64,
    key: &str,
    [body, code]: [&str; 2],
) -> Result<bool, SessionError> {
    let failed = failed("find an idempotency key");
    let query = sqlite.connection.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM stepfold_operations WHERE scope = ?1 AND operation = ?2 AND body IN (?3, ?4))",
    );
    let given = params![scope, key, body, code];
    query.and_then(|mut query| query.query_row(given, |row| row.get(0))).map_err(failed)
}

pub(super) fn delete(
    sqlite: &mut SqliteConnection,
    request: &DeleteSession,
) -> Result<Deleted, SessionError> {
    let key = &request.key;
    let row = SqliteSessionRow::get(&sqlite.connection, key)?;
    row.work.fence.check_free(key, request.take_over, request.at)?;
    let labels = || branches::labels_of(&sqlite.connection, &row, key).map(|labels| labels.len());
    request.check_unused(row.version, row.work.inbox, labels)?;
    let history = SqliteHistory::read(&sqlite.connection, &row)?;
    let session_keys = keys(
        sqlite,
        &format!("SELECT key FROM stepfold_cells WHERE stream = ?1 AND {IS_VALUE}"),
        row.number,
    )?;
    execute(sqlite, "DELETE FROM stepfold_cells WHERE stream = ?1", &[&row.number])?;
    branches::forget(sqlite, key, &row)?;
    execute(sqlite, "DELETE FROM stepfold_sessions WHERE number = ?1", &[&row.number])?;
    inbox::delete(sqlite, row.number)?;
    execute(
        sqlite,
        "DELETE FROM stepfold_recent WHERE app = ?1 AND user = ?2 AND updated = ?3 AND number = ?4",
        &[&key.app.as_str(), &key.user.as_str(), &row.updated.as_micros(), &row.number],
    )?;
    execute(sqlite, "DELETE FROM stepfold_lineage WHERE number = ?1", &[&row.number])?;
    for segment in &history.lineage {
        sweep(sqlite, segment.stream)?;
    }
    search::end(sqlite, row.number)?;
    budgets::settle_open(sqlite, key)?;
    let user_keys = if request.user_state { delete_user(sqlite, &key.app, &key.user)? } else { Vec::new() };
    Ok(Deleted { events: row.version - row.oldest, session_keys, user_keys })
}

/// The keys of a user's own values.
pub(super) fn user_keys(
    sqlite: &SqliteConnection,
    app: &AppId,
    user: &UserId,
) -> Result<Vec<String>, SessionError> {
    match ScopeRow::find(&sqlite.connection, app, Some(user))? {
        Some(row) => keys(sqlite, "SELECT key FROM stepfold_shared WHERE scope = ?1", row.scope),
        None => Ok(Vec::new()),
    }
}

/// Deletes a user's own values; returns their keys.
pub(super) fn delete_user(
    sqlite: &SqliteConnection,
    app: &AppId,
    user: &UserId,
) -> Result<Vec<String>, SessionError> {
    let connection = &sqlite.connection;
    let Some(mut row) = ScopeRow::find(connection, app, Some(user))? else { return Ok(Vec::new()) };
    let scope = row.scope;
    let user_keys = user_keys(sqlite, app, user)?;
    for statement in [
        "DELETE FROM stepfold_shared WHERE scope = ?1",
        "DELETE FROM stepfold_removed WHERE scope = ?1",
        "DELETE FROM stepfold_shared_items WHERE scope = ?1",
        "DELETE FROM stepfold_operations WHERE scope = ?1",
    ] {
        execute(sqlite, statement, &[&scope])?;
    }
    // NOTE: other sessions' readers have cached the erased values under this version. A higher one makes them read again,
    // so that they do not take later values for changes of the erased ones.
    row.erase(row.version_when_erased());
    row.store(connection)?;
    execute(
        sqlite,
        "DELETE FROM stepfold_scopes WHERE scope = ?1 AND NOT EXISTS (SELECT 1 FROM stepfold_sessions s \
         WHERE s.app = stepfold_scopes.app AND s.user = stepfold_scopes.user)",
        &[&scope],
    )?;
    Ok(user_keys)
}

fn keys(sqlite: &SqliteConnection, query: &str, of: i64) -> Result<Vec<String>, SessionError> {
    let failed = failed("read the keys of a scope");
    let mut query = sqlite.connection.prepare_cached(query).map_err(failed)?;
    let keys = query.query_map([of], |row| row.get(0));
    let mut keys: Vec<String> = keys.and_then(Iterator::collect).map_err(failed)?;
    keys.sort_unstable();
    Ok(keys)
}

pub(super) fn prune(sqlite: &mut SqliteConnection, request: &PruneSession) -> Result<Pruned, SessionError> {
    let key = &request.key;
    let row = SqliteSessionRow::get(&sqlite.connection, key)?;
    let history = SqliteHistory::read(&sqlite.connection, &row)?;
    request.check_claim(&row.work.fence, request.at)?;
    let oldest = match request.kept(row.oldest, row.version)? {
        RetentionBound::From(version) => version,
        RetentionBound::Since { after, time } => {
            let first = first_since(sqlite, &history, after, time)?;
            first.map_or(row.version, |first| first - 1)
        }
    };
    let labelled = match request.keeps_labels() {
        true => branches::labels_of(&sqlite.connection, &row, key)?,
        false => Vec::new(),
    };
    let oldest = PruneSession::bounded(oldest, row.oldest, labelled.into_iter().map(|(_, version)| version));
    if let Some(pruned) = request.unchanged(oldest, row.oldest) {
        return Ok(pruned);
    }
    // NOTE: retention moves the session's row to this version, so a lost newest event must be found before.
    row.check_newest(&sqlite.connection, key)?;
    // NOTE: no rewind can reach a version before these removals any more, so their rows are not needed.
    let mut cells = row.state.cells;
    for stored in stored_all(&sqlite.connection, row.number, cells)? {
        if stored.row.version <= to_db(oldest) && stored.row.is_removed() {
            cells ^= stored.checksum;
            let (stream, name) = (&row.number, &stored.row.key);
            execute(sqlite, "DELETE FROM stepfold_cells WHERE stream = ?1 AND key = ?2", &[stream, name])?;
        }
    }
    let anchor = history.digest(&sqlite.connection, &row, oldest)?;
    let before = row.oldest;
    let state = SealedState { cells, ..row.state };
    let labels = branches::prune_labels(sqlite, row.number, oldest)?;
    let row = SessionRecord { state, ..row.record.pruned(oldest, anchor) }.with_labels(labels);
    // NOTE: the session's row gets version and time here: the newest event, from which they are read otherwise, may be
    // among the deleted ones.
    execute(
        sqlite,
        "UPDATE stepfold_sessions SET oldest = ?2, version = ?3, updated = ?4, seal = ?5 WHERE number = ?1",
        &[&row.number, &to_db(oldest), &to_db(row.version), &row.updated.as_micros(), &row.seal(key)],
    )?;
    for segment in &history.lineage {
        sweep(sqlite, segment.stream)?;
    }
    search::forget(sqlite, row.number)?;
    update_entry(sqlite, key)?;
    Ok(Pruned { events: oldest - before, oldest })
}

/// The version of the first event that is as new as `time`.
fn first_since(
    sqlite: &SqliteConnection,
    history: &SqliteHistory,
    oldest: u64,
    time: Timestamp,
) -> Result<Option<u64>, SessionError> {
    let failed = failed("find events by their time");
    let mut query = sqlite
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
