//! The write operations. A session's row is locked first, then its app's scope, then its user's: always in
//! this order, to avoid deadlocks.

use std::borrow::Cow;
use std::sync::Arc;

use stepfold_state_core::state::{Delta, Write};
use tokio::try_join;
use tokio_postgres::Row;

use super::append::append_inside;
use super::branches;
use super::budgets;
use super::change_statements::{ItemSource, SessionWrite, keys, plan, scope_changes};
use super::claims;
use super::connection::Object;
use super::inbox::WaitingInputs;
use super::list_entry::update_entry;
use super::read;
use super::rows::{
    PostgresHistory, PostgresSchemas, PostgresSessionRow, StatesByVersion, StoreCache, cells_at, digest_at,
    rewind_row, scope_row, scopes as scopes_of,
};
use super::search;
use super::statements::{
    ADD_EVENT, ADD_KEY, ADD_LINEAGE, ADD_REWIND, ADD_SCOPE, ADD_SESSION, CELL_KEYS, CELL_SUMS,
    DELETE_ALL_SHARED, DELETE_ALL_SHARED_ITEMS, DELETE_CELLS_SINCE, DELETE_INBOX, DELETE_KEYS,
    DELETE_LINEAGE, DELETE_REMOVED, DELETE_SESSION, DELETE_TAKEN, FIND_KEY, FIND_SHARED, FIRST_SINCE,
    FORGET_KEYS, FORK_CELLS, HAS_SESSIONS, KEEP_PAST_SINCE, LOCK_SCOPE, LOCK_SESSION, LOCK_TENANT,
    MOVE_OLDEST, MOVE_SCOPE, MOVE_VERSION, NEXT_NUMBER, PAST_SUMS, PUT_SEALS, READ_LINEAGE, READ_REWINDS,
    READ_SCOPES, REPEATED, REWIND_CELLS, SHARED_KEYS,
};
use super::sums;
use super::sweep::sweep;
use super::transaction::{
    IdleTimeout, PooledTransaction, SentStatement, SqlParameters, begin, commit, execute, in_order,
    in_transaction, query,
};
use crate::apply::made_id;
use crate::digest::{ContentSalt, genesis};
use crate::error::SessionError;
use crate::event::{Event, searched_of};
use crate::ids::{AppId, EventId, LifeId, SessionId, SessionKey, UserId};
use crate::keys::sealer::{ContentKey, Place, stored_body};
use crate::rows::lineage::{HistorySegment, forked, from_db, to_db};
use crate::rows::rewinds::{RewindChain, RewindRow};
use crate::rows::seal::{EventSeal, SealedState, SessionRecord};
use crate::rows::shared::{RECREATED, ScopeRow, ScopeWriteMode};
use crate::rows::values::{ChangePlanner, check_size};
use crate::rows::work::WorkState;
use crate::schema::SessionSchema;
use crate::scope::{ByScope, ScopeVersions, by_scope};
use crate::session::{RewindMark, ScopeValues, Session};
use crate::store::{
    AppendClaim, AppendEvent, CreateSession, DeleteSession, Deleted, EventRange, Expected, ForkSession,
    GetSession, LabelVersion, PruneSession, Pruned, REMEMBERED_KEYS, Receipt, RetentionBound, RewindSession,
    WriteOrigin, WriteScope,
};
use crate::time::Timestamp;

/// The owner column of a scope's row; empty for an app's own scope.
fn owner(user: Option<&UserId>) -> &str {
    user.map_or("", UserId::as_str)
}

/// A scope that is locked, and the rows of the keys that are written.
pub(super) struct LockedScope {
    pub(super) row: ScopeRow,
    rows: Vec<Row>,
}

/// Locks a scope and reads the rows of these keys. Nothing, if no key is written.
pub(super) async fn lock_scope(
    connection: &Object,
    app: &AppId,
    user: Option<&UserId>,
    writes: &[&Write],
) -> Result<Option<LockedScope>, SessionError> {
    match writes {
        [] => Ok(None),
        _ => lock_keys(connection, app, user, writes).await.map(Some),
    }
}

/// Locks a scope and reads the rows of the keys that are written.
async fn lock_keys(
    connection: &Object,
    app: &AppId,
    user: Option<&UserId>,
    writes: &[&Write],
) -> Result<LockedScope, SessionError> {
    let (app_name, owner, keys) = (app.as_str(), owner(user), keys(writes));
    let (_, scope, rows) = try_join!(biased;
        async { execute(connection, ADD_SCOPE, &[&app_name, &owner]).await },
        async { query(connection, LOCK_SCOPE, &[&app_name, &owner]).await },
        async { query(connection, FIND_SHARED, &[&app_name, &owner, &keys]).await },
    )?;
    match scope.first() {
        Some(row) => Ok(LockedScope { row: scope_row(row, app, user)?, rows }),
        // NOTE: `READ COMMITTED` lets another transaction delete the row between the two statements.
        None => {
            Err(SessionError::Unavailable { what: "lock a scope", source: "it was deleted meanwhile".into() })
        }
    }
}

/// The statements that fold writes into a locked scope.
pub(super) async fn plan_scope<'a>(
    connection: &'a Object,
    schemas: &PostgresSchemas,
    planner: &ChangePlanner<'_>,
    locked: Option<LockedScope>,
    schema: i64,
    (app, user): (&AppId, Option<&UserId>),
    writes: &[&Write],
) -> Result<Vec<SentStatement<'a>>, SessionError> {
    let Some(locked) = locked else { return Ok(Vec::new()) };
    let planner = ChangePlanner { generation: RECREATED, ..*planner };
    let source = ItemSource::Shared(app, user, locked.row.scope);
    let changes = plan(connection, schemas, &planner, &locked.rows, writes, source).await?;
    scope_changes(connection, changes, locked.row, schema).await
}

/// The timeout settings of the transaction of a write, given the claim in its request.
pub(super) fn idle_of(cache: &StoreCache, claim: Option<&AppendClaim>) -> String {
    cache.idle.limit(match claim {
        Some(AppendClaim::Take { duration, .. } | AppendClaim::Hold { duration, .. }) => Some(*duration),
        Some(AppendClaim::Release { .. } | AppendClaim::Once { .. }) | None => None,
    })
}

/// A session after one event more, and the seal of the event's row.
pub(super) fn after_event(
    record: &SessionRecord,
    event: &Event,
    (body, salt): (&str, ContentSalt),
    cells: i64,
) -> (SessionRecord, EventSeal) {
    let seal = record.seal_after(event, body, salt, cells);
    let (version, state) = (record.version + 1, seal.state);
    (SessionRecord { version, updated: event.at, state, ..record.clone() }, seal)
}

/// The body of the next event of a session as it is stored: sealed, if the store has a ring.
pub(super) fn sealed_body<'t>(
    connection: &Object,
    record: &SessionRecord,
    event: &Event,
    body: &'t str,
) -> Result<Cow<'t, str>, SessionError> {
    stored_body(connection.key(), event, &[record.number, to_db(record.version + 1)], body)
}

/// Whether a sealed body is that of an event. It is compared once it is opened: it depends on the version.
pub(super) fn is_sealed_body(
    content: ContentKey<'_>,
    event: &EventId,
    stored: Option<&str>,
    body: &str,
) -> Result<bool, SessionError> {
    let opened = stored.map(|stored| content.open(Place::event(event.as_str()), stored)).transpose()?;
    Ok(opened.is_some_and(|opened| opened == body))
}

fn first_receipt(
    (rows, content): (&[Row], ContentKey<'_>),
    key: &SessionKey,
    (event, body): (&EventId, &str),
    scopes: ScopeVersions,
) -> Result<Option<Receipt>, SessionError> {
    let Some(row) = rows.first() else { return Ok(None) };
    if row.get(1) || is_sealed_body(content, event, row.get(2), body)? {
        return Ok(Some(Receipt::new(event.clone(), from_db(row.get(0))).with_scopes(scopes)));
    }
    Err(SessionError::event_reused(key, event))
}

/// The statements that store an event and update the session's row to `after`.
fn commit_event<'a>(
    connection: &'a Object,
    key: &SessionKey,
    after: &SessionRecord,
    seal: EventSeal,
    event: &'a Event,
    body: &'a str,
) -> [SentStatement<'a>; 2] {
    let (number, version, at) = (after.number, to_db(after.version), event.at.as_micros());
    let (seal, session_seal) = (seal.to_bytes(), after.seal(key).to_bytes());
    [
        Box::pin(async move {
            let given: SqlParameters<'_> = &[&number, &version, &event.id.as_str(), &at, &body, &seal];
            execute(connection, ADD_EVENT, given).await
        }),
        Box::pin(async move {
            let (is_unfinished, searched) = (event.is_unfinished(), connection.key().listed(event));
            let given: SqlParameters<'_> =
                &[&number, &version, &at, &session_seal, &is_unfinished, &searched];
            execute(connection, MOVE_VERSION, given).await
        }),
    ]
}

/// The statement that seals the row of a new session.
fn put_seals<'a>(connection: &'a Object, key: &SessionKey, record: &SessionRecord) -> SentStatement<'a> {
    let (number, seal) = (record.number, record.seal(key).to_bytes());
    let work = WorkState::new(number).checksum(number);
    Box::pin(async move { execute(connection, PUT_SEALS, &[&number, &seal, &work]).await })
}

/// The statements that add the lineage of a new session.
fn add_lineage<'a>(
    connection: &'a Object,
    number: i64,
    lineage: &[HistorySegment],
) -> impl Iterator<Item = SentStatement<'a>> {
    lineage.iter().map(move |segment| {
        let HistorySegment { stream, after, upto } = *segment;
        let sent: SentStatement<'a> = Box::pin(async move {
            execute(connection, ADD_LINEAGE, &[&number, &stream, &to_db(after), &to_db(upto)]).await
        });
        sent
    })
}

pub(super) async fn create(
    connection: Object,
    cache: &StoreCache,
    request: CreateSession,
    initial: &Delta,
    events: &[Arc<Event>],
) -> Result<SessionKey, SessionError> {
    let schema = cache.schemas.number(&connection, request.schema.text()).await?;
    in_transaction!(connection, cache.idle.usual(), |inside| {
        let (opened, labels) = (request.schema.clone(), request.labels.clone());
        let key = Box::pin(create_inside(inside, cache, schema, request, initial)).await?;
        for event in events {
            Box::pin(commit_first(inside, cache, (schema, &opened), &key, event)).await?;
        }
        for (label, version) in labels {
            branches::set_label(inside, &LabelVersion::new(key.clone(), label, version)).await?;
        }
        Ok(key)
    })
}

/// Commits an event that comes with its session. Its writes to shared scopes are not repeated.
async fn commit_first(
    connection: &Object,
    cache: &StoreCache,
    (schema, opened): (i64, &SessionSchema),
    key: &SessionKey,
    event: &Arc<Event>,
) -> Result<(), SessionError> {
    let body = check_size(event.to_body()?, &event.id)?;
    let Some(to) = event.actions.rewound_to else {
        let request = AppendEvent::new(key.clone(), Expected::Any, Arc::clone(event), opened);
        let append = append_inside(connection, cache, schema, &request, &body, ScopeWriteMode::Nothing);
        return Box::pin(append).await?.send(connection).await.map(drop);
    };
    let Event { id, invocation, author, at, .. } = &**event;
    let (id, invocation, author) = (id.clone(), invocation.clone(), author.clone());
    let request = RewindSession::new(key.clone(), Expected::Any, to, id, invocation, author, *at);
    rewind_inside(connection, cache, &request, event, &body).await.map(drop)
}

async fn create_inside(
    connection: &Object,
    cache: &StoreCache,
    schema: i64,
    request: CreateSession,
    initial: &Delta,
) -> Result<SessionKey, SessionError> {
    let CreateSession { app, user, id, life, at, schema: opened, .. } = request;
    let (schemas, split, life) = (&cache.schemas, by_scope(initial), life.unwrap_or_else(LifeId::random));
    let new = NewSessionRow { app: &app, user: &user, version: 0, oldest: 0, at, parent: None, life: &life };
    let (key, number) = new.insert(connection, id).await?;
    let lineage = [HistorySegment { stream: number, after: 0, upto: HistorySegment::OPEN }];
    let genesis = genesis(&key, at);
    let state = SealedState { head: genesis, cells: 0, rewound: 0 };
    let empty = SessionRecord::new(number, (0, 0), at, None, &life, (state, genesis), &lineage);
    let planner = ChangePlanner { schema: &opened, what: WriteOrigin::NewSession, generation: 0 };
    let source = ItemSource::Session(&key, &empty);
    let changes = plan(connection, schemas, &planner, &[] as &[Row], &split.session, source).await?;
    let write = SessionWrite::new(changes, (number, 0), schema, connection.key())?;
    let record = SessionRecord { state: SealedState { cells: write.sums, ..state }, ..empty };
    let mut sent = write.statements(connection);
    sent.extend(add_lineage(connection, number, &lineage));
    sent.push(put_seals(connection, &key, &record));
    let ByScope { app: app_writes, user: user_writes, .. } = split;
    for (owner, writes) in [(None, app_writes), (Some(&key.user), user_writes)] {
        let locked = lock_scope(connection, &key.app, owner, &writes).await?;
        let scope = (&key.app, owner);
        sent.extend(plan_scope(connection, schemas, &planner, locked, schema, scope, &writes).await?);
    }
    in_order(sent).await?;
    Ok(key)
}

/// The columns of a new session's row.
struct NewSessionRow<'a> {
    app: &'a AppId,
    user: &'a UserId,
    version: u64,
    oldest: u64,
    at: Timestamp,
    parent: Option<(&'a SessionId, u64)>,
    life: &'a LifeId,
}

impl NewSessionRow<'_> {
    /// Adds the row, under the requested id or a free one.
    async fn insert(
        &self,
        connection: &Object,
        id: Option<SessionId>,
    ) -> Result<(SessionKey, i64), SessionError> {
        if let Some(id) = id {
            let key = self.key(id);
            let number = self.try_insert(connection, &key).await?;
            return number
                .map(|number| (key.clone(), number))
                .ok_or_else(|| SessionError::already_exists(&key));
        }
        // NOTE: another worker may take the same number; the insert then finds the id used, and the next one is tried.
        let next = query(connection, NEXT_NUMBER, &[]).await?;
        let mut number: i64 = next.first().map_or(1, |row| row.get(0));
        loop {
            let key = self.key(made_id(self.at, number)?);
            if let Some(number) = self.try_insert(connection, &key).await? {
                return Ok((key, number));
            }
            number += 1;
        }
    }

    fn key(&self, id: SessionId) -> SessionKey {
        SessionKey { app: self.app.clone(), user: self.user.clone(), id }
    }

    async fn try_insert(&self, connection: &Object, key: &SessionKey) -> Result<Option<i64>, SessionError> {
        let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
        let (version, oldest, at) = (to_db(self.version), to_db(self.oldest), self.at.as_micros());
        let parent = self.parent.map(|(id, _)| id.as_str());
        let parent_version = self.parent.map(|(_, version)| to_db(version));
        let (life, searched) = (self.life.as_str(), searched_of(&key.id, &[]));
        let given: SqlParameters<'_> =
            &[&app, &user, &id, &version, &oldest, &at, &parent, &parent_version, &life, &searched];
        let rows = query(connection, ADD_SESSION, given).await?;
        Ok(rows.first().map(|row| row.get(0)))
    }
}

/// A session's row, locked if it is to be written, and its history.
async fn with_history(
    connection: &Object,
    key: &SessionKey,
) -> Result<(PostgresSessionRow, PostgresHistory), SessionError> {
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let ask = |sql| async move { query(connection, sql, &[&app, &user, &id]).await };
    let (row, lineage, rewinds) = try_join!(biased;
        ask(LOCK_SESSION),
        ask(READ_LINEAGE),
        async { query(connection, READ_REWINDS, &[&app, &user, &id, &i64::MAX]).await },
    )?;
    let row = PostgresSessionRow::of(&row, key)?;
    let history = PostgresHistory::read(&lineage, &rewinds, &row, None)?;
    Ok((row, history))
}

/// Serialises operations that change history shared by a user's sessions.
pub(super) async fn lock_tenant(connection: &Object, app: &AppId, user: &UserId) -> Result<(), SessionError> {
    // NOTE: an advisory lock, since no row stands for a user's sessions: forks and retention of shared history must not
    // interleave.
    query(connection, LOCK_TENANT, &[&app.as_str(), &user.as_str()]).await.map(drop)
}

pub(super) async fn fork(
    connection: Object,
    cache: &StoreCache,
    request: ForkSession,
) -> Result<Session, SessionError> {
    let schema = match &request.event {
        Some(event) => cache.schemas.number(&connection, event.schema.text()).await?,
        None => 0,
    };
    in_transaction!(connection, cache.idle.usual(), |inside| Box::pin(fork_inside(
        inside, cache, schema, request
    ))
    .await)
}

async fn fork_inside(
    connection: &Object,
    cache: &StoreCache,
    schema: i64,
    request: ForkSession,
) -> Result<Session, SessionError> {
    let ForkSession { from, id, life, version, at, event } = request;
    let ((), (row, history)) =
        try_join!(biased; lock_tenant(connection, &from.app, &from.user), with_history(connection, &from))?;
    let version = version.unwrap_or(row.version);
    row.check_version(&from, version)?;
    let life = life.unwrap_or_else(LifeId::random);
    let parent = Some((&from.id, version));
    let (app, user, oldest) = (&from.app, &from.user, row.oldest);
    let new = NewSessionRow { app, user, version, oldest, at, parent, life: &life };
    let (key, number) = new.insert(connection, id).await?;
    let lineage = forked(&history.lineage, number, version);
    let stream = history.stream_of(version);
    let (cells, states) = try_join!(biased;
        async { query(connection, FORK_CELLS, &[&stream, &to_db(version), &number]).await },
        read::states_of(connection, &row, &history, [version]),
    )?;
    let cells = sums::combined(&cells);
    check_cells_at(connection, &row, &states, version, cells).await?;
    let rewound = rewound_at(connection, &from, &row, &states, version).await?;
    let state = SealedState { head: digest_at(&row, &states, version)?, cells, rewound };
    let parent = Some((from.id.to_string(), version));
    let record =
        SessionRecord::new(number, (version, oldest), at, parent, &life, (state, row.anchor), &lineage);
    let mut sent: Vec<SentStatement<'_>> = add_lineage(connection, number, &lineage).collect();
    sent.push(put_seals(connection, &key, &record));
    in_order(sent).await?;
    branches::add_fork(connection, &from, row.record, (&record, &key.id)).await?;
    update_entry(connection, &key).await?;
    if let Some(event) = event {
        let request = event.append(key.clone(), version).prepare()?;
        let body = check_size(request.event.to_body()?, &request.event.id)?;
        let append = append_inside(connection, cache, schema, &request, &body, ScopeWriteMode::All);
        Box::pin(append).await?.send(connection).await?;
    }
    let get = GetSession::new(key).events(EventRange::None).without_state();
    Box::pin(read::session(connection, cache, &get)).await
}

/// The newest rewind up to a version, given the state after its event; 0 if there is none.
async fn rewound_at(
    connection: &Object,
    key: &SessionKey,
    record: &SessionRecord,
    states: &StatesByVersion,
    version: u64,
) -> Result<u64, SessionError> {
    if version == record.version {
        return Ok(record.state.rewound);
    }
    if let Some(state) = states.get(&version) {
        return Ok(state.rewound);
    }
    // NOTE: retention has deleted the event whose seal names the newest rewind, so its rows are searched.
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let rows = query(connection, READ_REWINDS, &[&app, &user, &id, &to_db(version)]).await?;
    Ok(rows.iter().map(rewind_row).collect::<RewindChain>().newest())
}

/// Rejects rows of values that are incomplete at a version: values built from them would be sealed as complete. Where no
/// row has their combined checksums, the session's current values must be complete.
async fn check_cells_at(
    connection: &Object,
    row: &PostgresSessionRow,
    states: &StatesByVersion,
    version: u64,
    found: i64,
) -> Result<(), SessionError> {
    if let Some(cells) = cells_at(row, states, version) {
        return sums::compare_cells(found, cells);
    }
    let now = query(connection, CELL_SUMS, &[&row.number]).await?;
    sums::compare_cells(sums::combined(&now), row.state.cells)
}

pub(super) async fn rewind(
    connection: Object,
    cache: &StoreCache,
    request: &RewindSession,
    event: &Event,
    body: &str,
) -> Result<Receipt, SessionError> {
    in_transaction!(connection, idle_of(cache, request.claim.as_ref()), |inside| Box::pin(rewind_inside(
        inside, cache, request, event, body
    ))
    .await)
}

async fn rewind_inside(
    connection: &Object,
    cache: &StoreCache,
    request: &RewindSession,
    event: &Event,
    body: &str,
) -> Result<Receipt, SessionError> {
    let key = &request.key;
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let at = event.at.as_micros();
    let ((row, history), waiting, repeated, scopes) = try_join!(biased;
        with_history(connection, key),
        WaitingInputs::find(connection, key, &request.taken),
        async { query(connection, REPEATED, &[&app, &user, &id, &event.id.as_str(), &body, &at]).await },
        async { query(connection, READ_SCOPES, &[&app, &user]).await },
    )?;
    let scopes = scopes_of(&scopes, &key.app, &key.user)?.versions();
    let repeated = (&repeated[..], connection.key());
    if let Some(receipt) = first_receipt(repeated, key, (&event.id, body), scopes)? {
        return Ok(claims::repeated(&row, request.into(), receipt));
    }
    let update = claims::check(&row, request.into(), waiting)?;
    request.expected.check(key, row.version)?;
    row.check_version(key, request.to)?;
    let (number, version, to) = (row.number, row.version + 1, to_db(request.to));
    let (stream, now) = (history.stream_of(request.to), to_db(version));
    let (was, states) = try_join!(biased;
        async { query(connection, PAST_SUMS, &[&stream, &to]).await },
        read::states_of(connection, &row, &history, [request.to]),
    )?;
    check_cells_at(connection, &row, &states, request.to, sums::combined(&was)).await?;
    let (_, gone, back) = try_join!(biased;
        async { execute(connection, KEEP_PAST_SINCE, &[&number, &to, &now]).await },
        async { query(connection, DELETE_CELLS_SINCE, &[&number, &to]).await },
        // NOTE: `ON CONFLICT DO NOTHING` skips rows that have not changed since the target: they were not deleted above.
        async { query(connection, REWIND_CELLS, &[&stream, &to, &number, &now]).await },
    )?;
    let cells = sums::combined(&gone) ^ sums::combined(&back);
    let visible = rewound_at(connection, key, &row, &states, request.to).await?;
    let rewound = RewindMark { version, to: request.to };
    let rewind = RewindRow::new(number, rewound, row.state.rewound, visible);
    let body = sealed_body(connection, &row, event, body)?;
    let mut sent: Vec<SentStatement<'_>> = vec![Box::pin(async move {
        let RewindRow { previous, visible, checksum, .. } = rewind;
        let given: SqlParameters<'_> = &[&number, &now, &to, &to_db(previous), &to_db(visible), &checksum];
        execute(connection, ADD_REWIND, given).await
    })];
    let salt = request.salt.unwrap_or_else(ContentSalt::random);
    let (after, seal) = after_event(&row, event, (&body, salt), cells);
    sent.extend(commit_event(connection, key, &after, seal, event, &body));
    sent.extend(update.statements(connection));
    in_order(sent).await?;
    update_entry(connection, key).await?;
    budgets::settle_left(connection, key).await?;
    cache.records.set(key, after, update.work.clone());
    Ok(update.receipt(Receipt::new(event.id.clone(), version).with_scopes(scopes)))
}

pub(super) async fn write_scope(
    connection: Object,
    cache: &StoreCache,
    request: &WriteScope,
    body: &str,
) -> Result<ScopeValues, SessionError> {
    let schemas = &cache.schemas;
    let schema = schemas.number(&connection, request.schema.text()).await?;
    in_transaction!(connection, cache.idle.usual(), |inside| write_scope_inside(
        inside, schemas, schema, request, body
    )
    .await)
}

async fn write_scope_inside(
    connection: &Object,
    schemas: &PostgresSchemas,
    schema: i64,
    request: &WriteScope,
    body: &str,
) -> Result<ScopeValues, SessionError> {
    let (app, user) = request.scope.parts();
    let writes: Vec<&Write> = request.delta.iter().collect();
    // NOTE: locked even without writes, since the idempotency key is stored anyway.
    let locked = lock_keys(connection, app, user, &writes).await?;
    if let Some(key) = &request.idempotency_key {
        let (app, owner, idempotency_key, scope) =
            (app.as_str(), owner(user), key.as_str(), locked.row.scope);
        // NOTE: of content of a user only a code is kept: an operation is compared, and never read.
        let code = user.map(|_| connection.key().operation_code(body)).transpose()?.flatten();
        let kept = code.as_deref().unwrap_or(body);
        let found = query(connection, FIND_KEY, &[&app, &owner, &idempotency_key, &body, &kept]).await?;
        match found.first().map(|row| row.get(0)) {
            Some(true) => return read::scope_values(connection, schemas, &request.scope).await,
            Some(false) => {
                let (scope, idempotency_key) = (request.scope.to_string(), key.clone());
                return Err(SessionError::IdempotencyKeyReused { scope, idempotency_key });
            }
            None => {
                let remembered = to_db(REMEMBERED_KEYS as u64);
                execute(connection, ADD_KEY, &[&scope, &idempotency_key, &kept]).await?;
                execute(connection, FORGET_KEYS, &[&scope, &remembered]).await?;
            }
        }
    }
    let planner = ChangePlanner {
        schema: &request.schema,
        what: WriteOrigin::Scope(&request.scope),
        generation: RECREATED,
    };
    let locked = Some(locked).filter(|_| !writes.is_empty());
    let sent = plan_scope(connection, schemas, &planner, locked, schema, (app, user), &writes).await?;
    in_order(sent).await?;
    read::scope_values(connection, schemas, &request.scope).await
}

pub(super) async fn delete(
    connection: Object,
    idle: &IdleTimeout,
    request: &DeleteSession,
) -> Result<Deleted, SessionError> {
    in_transaction!(connection, idle.usual(), |inside| {
        let deleted = delete_inside(inside, request).await?;
        budgets::settle_left(inside, &request.key).await?;
        Ok(deleted)
    })
}

/// Deletes a session. Its open reservations stay, and are settled after all other rows are locked.
pub(super) async fn delete_inside(
    connection: &Object,
    request: &DeleteSession,
) -> Result<Deleted, SessionError> {
    let key = &request.key;
    let ((), (row, history)) =
        try_join!(biased; lock_tenant(connection, &key.app, &key.user), with_history(connection, key))?;
    row.work.fence.check_free(key, request.take_over, Some(row.now))?;
    let labels = match request.unused_at {
        Some(_) => branches::labels(connection, key).await?.len(),
        None => 0,
    };
    request.check_unused(row.version, row.work.inbox, || Ok(labels))?;
    let session_keys = texts(&query(connection, CELL_KEYS, &[&row.number]).await?);
    branches::forget(connection, key, &row).await?;
    for sql in [DELETE_SESSION, DELETE_LINEAGE, DELETE_INBOX, DELETE_TAKEN] {
        execute(connection, sql, &[&row.number]).await?;
    }
    for segment in &history.lineage {
        sweep(connection, segment.stream).await?;
    }
    search::end(connection, row.number).await?;
    let user_keys =
        if request.user_state { delete_user(connection, &key.app, &key.user).await? } else { Vec::new() };
    Ok(Deleted { events: row.version - row.oldest, session_keys, user_keys })
}

/// The keys of a user's own values.
pub(super) async fn user_keys(
    connection: &Object,
    app: &AppId,
    user: &UserId,
) -> Result<Vec<String>, SessionError> {
    let found = query(connection, LOCK_SCOPE, &[&app.as_str(), &user.as_str()]).await?;
    let Some(row) = found.first() else { return Ok(Vec::new()) };
    let scope = scope_row(row, app, Some(user))?.scope;
    Ok(texts(&query(connection, SHARED_KEYS, &[&scope]).await?))
}

/// Empties the scope of a user. Its row stays: others may wait for it.
pub(super) async fn delete_user(
    connection: &Object,
    app: &AppId,
    user: &UserId,
) -> Result<Vec<String>, SessionError> {
    let (app_name, owner) = (app.as_str(), user.as_str());
    let (found, others) = try_join!(biased;
        async { query(connection, LOCK_SCOPE, &[&app_name, &owner]).await },
        async { query(connection, HAS_SESSIONS, &[&app_name, &owner]).await },
    )?;
    let Some(row) = found.first() else { return Ok(Vec::new()) };
    let mut row = scope_row(row, app, Some(user))?;
    let scope = row.scope;
    let keys = texts(&query(connection, SHARED_KEYS, &[&scope]).await?);
    for sql in [DELETE_REMOVED, DELETE_ALL_SHARED, DELETE_ALL_SHARED_ITEMS, DELETE_KEYS] {
        execute(connection, sql, &[&scope]).await?;
    }
    // NOTE: other sessions' readers have cached the erased values under this version. A higher one makes them read again,
    // so that they do not take later values for changes of the erased ones.
    let has_others = others.first().is_some_and(|row| row.get(0));
    row.erase(if has_others { row.version_when_erased() } else { 0 });
    let (version, seal) = (to_db(row.version), row.seal().to_bytes());
    execute(connection, MOVE_SCOPE, &[&scope, &version, &version, &seal]).await?;
    Ok(keys)
}

/// Keys, in order.
fn texts(rows: &[Row]) -> Vec<String> {
    let mut texts: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    texts.sort_unstable();
    texts
}

pub(super) async fn set_label(
    connection: Object,
    idle: &IdleTimeout,
    request: &LabelVersion,
) -> Result<Option<u64>, SessionError> {
    in_transaction!(connection, idle.usual(), |inside| branches::set_label(inside, request).await)
}

pub(super) async fn prune(
    connection: Object,
    idle: &IdleTimeout,
    request: &PruneSession,
) -> Result<Pruned, SessionError> {
    in_transaction!(connection, idle.usual(), |inside| prune_inside(inside, request).await)
}

async fn prune_inside(connection: &Object, request: &PruneSession) -> Result<Pruned, SessionError> {
    let key = &request.key;
    let ((), (row, history)) =
        try_join!(biased; lock_tenant(connection, &key.app, &key.user), with_history(connection, key))?;
    request.check_claim(&row.work.fence, Some(row.now))?;
    let oldest = match request.kept(row.oldest, row.version)? {
        RetentionBound::From(version) => version,
        RetentionBound::Since { after, time } => {
            let (firsts, lasts) = (vec![0_i64], vec![to_db(row.version)]);
            let given: SqlParameters<'_> = &[&row.number, &to_db(after), &firsts, &lasts, &time.as_micros()];
            let first = query(connection, FIRST_SINCE, given).await?;
            first.first().map_or(row.version, |first| from_db(first.get(0)) - 1)
        }
    };
    let labelled = match request.keeps_labels() {
        true => branches::labels(connection, key).await?,
        false => Vec::new(),
    };
    let oldest = PruneSession::bounded(oldest, row.oldest, labelled.into_iter().map(|(_, version)| version));
    if let Some(pruned) = request.unchanged(oldest, row.oldest) {
        return Ok(pruned);
    }
    let states = read::states_of(connection, &row, &history, [oldest]).await?;
    let (before, anchor) = (row.oldest, digest_at(&row, &states, oldest)?);
    let labels = branches::prune_labels(connection, row.number, oldest).await?;
    let row = row.record.pruned(oldest, anchor).with_labels(labels);
    execute(connection, MOVE_OLDEST, &[&row.number, &to_db(oldest), &row.seal(key).to_bytes()]).await?;
    for segment in &history.lineage {
        sweep(connection, segment.stream).await?;
    }
    search::forget(connection, row.number).await?;
    update_entry(connection, key).await?;
    Ok(Pruned { events: oldest - before, oldest })
}
