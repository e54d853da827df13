//! The read operations. Each reads a snapshot, in one round trip.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures_util::future::try_join_all;
use tokio::try_join;
use tokio_postgres::Row;

use super::at_once;
use super::at_version::past_rows;
use super::branches;
use super::connection::Object;
use super::inbox;
use super::parts::{Columns, Part, rows_of};
use super::rows::{
    HeadRow, PostgresHistory, PostgresSchemas, PostgresSessionRow, RowOwner, StatesByVersion, StoreCache,
    appended, cells_at, digest_at, events as events_of, heads, rewind_row, scope_row, scopes as scopes_of,
    session_items, shared_items, states, values,
};
use super::statements::{
    CELL_SUMS, CHANGED_CELLS, CHANGED_SHARED, EVENT_BODIES, EVENT_SIZES, EVENTS, FIND_CELLS, FIND_EVENT,
    FIND_ITEMS, FIND_SCOPE, FIND_SHARED, FIND_SHARED_ITEMS, HAS_SEALED_EVENTS, LAST_BEFORE, LIST_AT_ONCE,
    LIST_SESSIONS, READ_CELLS, READ_ITEMS, READ_LINEAGE, READ_REWINDS, READ_SCOPES, READ_SESSION,
    READ_SHARED, READ_SHARED_ITEMS, SEALS, SHARED_ITEMS_AFTER, SHARED_SUMS,
};
use super::sums;
use super::transaction::{PooledTransaction, SqlParameters, begin_reading, commit, query};
use crate::error::SessionError;
use crate::ids::{Label, SessionId, SessionKey};
use crate::keys::sealer::Place;
use crate::memory_size;
use crate::rows::chain::pieces;
use crate::rows::lineage::{from_db, to_db};
use crate::rows::rewinds::{RewindChain, RewindRow};
use crate::rows::seal::SessionRecord;
use crate::rows::shared::{ScopeRow, SharedScopes};
use crate::scope::{ByScope, Scope, ScopeVersions};
use crate::session::{ScopeValues, Session, VisibleVersions};
use crate::store::{
    EventRange, EventSizes, FindEvent, ForkInfo, GetSession, InboxEntry, ListSessions, ReadInbox, ScopeKey,
    SessionCursor, SessionPage, page_of,
};
use crate::time::Timestamp;

pub(super) async fn get(
    connection: Object,
    cache: &StoreCache,
    request: &GetSession,
) -> Result<Session, SessionError> {
    if let Some(session) = at_once::session(&connection, cache, request).await? {
        return Ok(session);
    }
    let transaction = PooledTransaction::new(connection);
    let connection = transaction.connection()?;
    let ((), session) = try_join!(biased; begin_reading(connection), session(connection, cache, request))?;
    commit(connection).await?;
    transaction.end();
    Ok(session)
}

pub(super) async fn find_event(connection: Object, request: &FindEvent) -> Result<Option<u64>, SessionError> {
    let FindEvent { key, id } = request;
    let given: SqlParameters<'_> = &[&key.app.as_str(), &key.user.as_str(), &key.id.as_str(), &id.as_str()];
    let rows = query(&connection, FIND_EVENT, given).await?;
    let row = rows.first().ok_or_else(|| SessionError::not_found(key))?;
    Ok(row.get::<_, Option<i64>>(1).map(from_db))
}

/// Whether a stream of a session's history has a sealed event. It is asked once for each user who has no key.
pub(super) async fn has_sealed_events(connection: &Object, key: &SessionKey) -> Result<bool, SessionError> {
    let given: SqlParameters<'_> = &[&key.app.as_str(), &key.user.as_str(), &key.id.as_str()];
    let rows = query(connection, HAS_SEALED_EVENTS, given).await?;
    rows.first().map(|row| row.get(0)).ok_or_else(|| SessionError::not_found(key))
}

/// A session with the requested parts, inside a transaction.
pub(super) async fn session(
    connection: &Object,
    cache: &StoreCache,
    request: &GetSession,
) -> Result<Session, SessionError> {
    let key = &request.key;
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let ask = |sql| async move { query(connection, sql, &[&app, &user, &id]).await };
    let plain = request.since.is_none() && request.keys.is_none() && request.version.is_none();
    let is_whole = request.state && plain;
    let upto = request.version.map_or(i64::MAX, to_db);
    let (row, lineage, rewinds, scopes, whole, changed) = try_join!(biased;
        ask(READ_SESSION),
        ask(READ_LINEAGE),
        async { query(connection, READ_REWINDS, &[&app, &user, &id, &upto]).await },
        async { query(connection, READ_SCOPES, &[&app, &user]).await },
        async { if is_whole { AllValueRows::read(connection, key).await.map(Some) } else { Ok(None) } },
        ChangedRows::read(connection, request),
    )?;
    let row = PostgresSessionRow::of(&row, key)?;
    let scopes = scopes_of(&scopes, &key.app, &key.user)?;
    // NOTE: a later append without writes then needs one round trip, since it computes its digest from this record.
    cache.records.set(key, row.record.clone(), row.work.clone());
    let version = request.version_in(row.oldest, row.version)?;
    let history = PostgresHistory::read(&lineage, &rewinds, &row, Some(version))?;
    let ranges = request.event_ranges(&history.visible, version);
    let pieces = event_pieces(connection, &row, &ranges, request.events).await?;
    let edges = pieces.iter().flat_map(|(after, last)| [*after, *last]).chain([version]);
    let (states, events) = try_join!(biased;
        states_of(connection, &row, &history, edges),
        read_pieces(connection, &row, &pieces),
    )?;
    history.check_rewound(&states, version)?;
    let events = events_of(&events, &pieces, &row, &states, connection.key())?;
    let head = digest_at(&row, &states, version)?;
    let of = ReadContext { key, record: &row, history: &history, scopes: &scopes };
    let values = match (request.state, whole) {
        (false, _) => None,
        (true, Some(whole)) => {
            Some(whole.values(connection, &cache.schemas, of, Some(row.state.cells)).await?)
        }
        (true, None) => {
            let selection =
                changed.selected((connection, &cache.schemas), request, (&row, &history, &scopes)).await?;
            let past = request.version.map(|version| (version, cells_at(&row, &states, version)));
            Some(some_values(connection, &cache.schemas, of, past, selection).await?)
        }
    };
    let session = row.session(key.clone(), history.visible, scopes.versions())?;
    Ok(Session { version, head: Some(head), values, events, ..session })
}

/// The states after events of a session whose versions are requested and in no other row.
pub(super) async fn states_of(
    connection: &Object,
    record: &SessionRecord,
    history: &PostgresHistory,
    versions: impl IntoIterator<Item = u64>,
) -> Result<StatesByVersion, SessionError> {
    // NOTE: the session's own row has the states of these two versions, so most reads need no further query.
    let in_row = [record.oldest, record.version];
    let versions: BTreeSet<u64> = versions.into_iter().filter(|version| !in_row.contains(version)).collect();
    if versions.is_empty() {
        return Ok(StatesByVersion::new());
    }
    let (streams, versions): (Vec<i64>, Vec<i64>) = versions
        .into_iter()
        .filter_map(|version| Some((history.stream_with(version)?, to_db(version))))
        .unzip();
    states(&query(connection, SEALS, &[&streams, &versions]).await?)
}

/// The rows of a scope's values, and of the items of its lists.
pub(super) struct ValueRows<R = Row> {
    pub(super) cells: Vec<R>,
    pub(super) items: Vec<R>,
}

/// The rows of all values of a session.
pub(super) struct AllValueRows<R = Row>(pub(super) ByScope<ValueRows<R>>);

impl AllValueRows {
    async fn read(connection: &Object, key: &SessionKey) -> Result<Self, SessionError> {
        let (own, app, user) = try_join!(biased;
            ValueRows::own(connection, key, None),
            ValueRows::shared(connection, (key.app.as_str(), ""), None),
            ValueRows::shared(connection, (key.app.as_str(), key.user.as_str()), None),
        )?;
        Ok(AllValueRows(ByScope { app, user, session: own }))
    }
}

impl<R: Columns> AllValueRows<R> {
    /// The values; `cells` are the combined checksums that all of a session's have, if its rows are all of them.
    pub(super) async fn values(
        self,
        connection: &Object,
        schemas: &PostgresSchemas,
        of: ReadContext<'_>,
        cells: Option<i64>,
    ) -> Result<ByScope<ScopeValues>, SessionError> {
        let AllValueRows(ByScope { app, user, session }) = self;
        let own = heads(&session.cells, RowOwner::Session, connection.key())?;
        if let Some(cells) = cells {
            sums::compare_cells(sum(&own, RowOwner::Session), cells)?;
        }
        let items = session_items(&own, &session.items, of.history, connection.key())?;
        Ok(ByScope {
            app: app.shared_values(connection, schemas, &of.scopes.app, &ValueSelection::default()).await?,
            user: user
                .shared_values(connection, schemas, &of.scopes.user, &ValueSelection::default())
                .await?,
            session: values(connection, schemas, own, items).await?,
        })
    }
}

/// The combined checksums of rows.
pub(super) fn sum(heads: &[HeadRow], of: RowOwner) -> i64 {
    heads.iter().fold(0, |sum, head| sum ^ head.sum(of))
}

impl ValueRows {
    /// The rows of a session's own values: all, or those of these keys.
    pub(super) async fn own(
        connection: &Object,
        key: &SessionKey,
        keys: Option<&[String]>,
    ) -> Result<Self, SessionError> {
        let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
        let ask = |all, some| async move {
            match keys {
                None => query(connection, all, &[&app, &user, &id]).await,
                Some([]) => Ok(Vec::new()),
                Some(keys) => query(connection, some, &[&app, &user, &id, &keys]).await,
            }
        };
        let (cells, items) = try_join!(biased; ask(READ_CELLS, FIND_CELLS), ask(READ_ITEMS, FIND_ITEMS))?;
        Ok(ValueRows { cells, items })
    }

    /// The rows of a shared scope's values: all, or those of these keys.
    pub(super) async fn shared(
        connection: &Object,
        (app, owner): (&str, &str),
        keys: Option<&[String]>,
    ) -> Result<Self, SessionError> {
        let ask = |all, some| async move {
            match keys {
                None => query(connection, all, &[&app, &owner]).await,
                Some([]) => Ok(Vec::new()),
                Some(keys) => query(connection, some, &[&app, &owner, &keys]).await,
            }
        };
        let (cells, items) =
            try_join!(biased; ask(READ_SHARED, FIND_SHARED), ask(READ_SHARED_ITEMS, FIND_SHARED_ITEMS))?;
        Ok(ValueRows { cells, items })
    }

    /// The requested rows of a shared scope's values; of lists that are read incrementally, the rows of new items only.
    async fn selected(
        connection: &Object,
        (app, owner): (&str, &str),
        selection: &ValueSelection,
    ) -> Result<Self, SessionError> {
        let keys = match &selection.keys {
            None => return ValueRows::shared(connection, (app, owner), None).await,
            Some(keys) if keys.is_empty() => return Ok(ValueRows { cells: Vec::new(), items: Vec::new() }),
            Some(keys) => keys,
        };
        let (appended, whole): (Vec<&str>, Vec<&str>) =
            keys.iter().map(|key| &**key).partition(|key| selection.appended.contains(*key));
        let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
        let (whole, appended, after) = (&whole, &appended, to_db(selection.after));
        let (cells, mut items, appended) = try_join!(biased;
            async { query(connection, FIND_SHARED, &[&app, &owner, &keys]).await },
            async {
                match whole.is_empty() {
                    true => Ok(Vec::new()),
                    false => query(connection, FIND_SHARED_ITEMS, &[&app, &owner, whole]).await,
                }
            },
            async {
                match appended.is_empty() {
                    true => Ok(Vec::new()),
                    false => query(connection, SHARED_ITEMS_AFTER, &[&app, &owner, appended, &after]).await,
                }
            },
        )?;
        items.extend(appended);
        Ok(ValueRows { cells, items })
    }
}

impl<R: Columns> ValueRows<R> {
    /// The requested values of a shared scope.
    async fn shared_values(
        self,
        connection: &Object,
        schemas: &PostgresSchemas,
        scope: &ScopeRow,
        selection: &ValueSelection,
    ) -> Result<ScopeValues, SessionError> {
        let of = RowOwner::Shared(scope.scope);
        let content = connection.key();
        let heads = heads(&self.cells, of, content)?;
        if selection.keys.is_none() {
            scope.check_cells(sum(&heads, of))?;
        }
        let (lists, heads): (Vec<HeadRow>, Vec<HeadRow>) =
            heads.into_iter().partition(|head| selection.appended.contains(&*head.key));
        let items = shared_items(&heads, &self.items, (scope.scope, content))?;
        let values = values(connection, schemas, heads, items).await?;
        let lists = appended(&lists, &self.items, (scope.scope, content), selection.after)?;
        Ok(lists.into_iter().fold(values, |values, (key, appended)| values.with_appended(key, appended)))
    }
}

/// The values of a scope that are read.
#[derive(Default)]
struct ValueSelection {
    /// The keys whose values are read; `None` for all.
    keys: Option<BTreeSet<Arc<str>>>,
    /// The lists of which only items newer than a version are read.
    appended: BTreeSet<Arc<str>>,
    after: u64,
}

/// The session whose values are read, with its rows.
#[derive(Clone, Copy)]
pub(super) struct ReadContext<'a> {
    pub(super) key: &'a SessionKey,
    pub(super) record: &'a SessionRecord,
    pub(super) history: &'a PostgresHistory,
    pub(super) scopes: &'a SharedScopes,
}

impl ReadContext<'_> {
    /// Checks that keys without a row never had one, or lost it to a write.
    async fn check_missing(
        &self,
        connection: &Object,
        selection: &ByScope<ValueSelection>,
        found: &ByScope<ValueRows>,
        is_past: bool,
    ) -> Result<(), SessionError> {
        // NOTE: a missing row is either a key that never had a value or a lost one; only the sum of all rows tells, and it
        // is read only then.
        let misses = |selection: &ValueSelection, found: &ValueRows| {
            selection.keys.as_ref().is_some_and(|keys| keys.len() > found.cells.len())
        };
        if !is_past && misses(&selection.session, &found.session) {
            let rows = query(connection, CELL_SUMS, &[&self.record.number]).await?;
            sums::compare_cells(sums::combined(&rows), self.record.state.cells)?;
        }
        for (selection, found, scope) in [
            (&selection.app, &found.app, &self.scopes.app),
            (&selection.user, &found.user, &self.scopes.user),
        ] {
            if misses(selection, found) {
                let rows = query(connection, SHARED_SUMS, &[&scope.scope]).await?;
                scope.check_cells(sums::combined_shared(&rows))?;
            }
        }
        Ok(())
    }
}

/// The values of some keys; of a session's own, as they were at a version, with the combined checksums that they had
/// there if these are known.
async fn some_values(
    connection: &Object,
    schemas: &PostgresSchemas,
    of: ReadContext<'_>,
    past: Option<(u64, Option<i64>)>,
    selection: ByScope<ValueSelection>,
) -> Result<ByScope<ScopeValues>, SessionError> {
    let (key, number) = (of.key, of.record.number);
    let own: Option<Vec<String>> =
        selection.session.keys.as_ref().map(|keys| keys.iter().map(ToString::to_string).collect());
    let (session, app, user) = try_join!(biased;
        async {
            match past {
                None => ValueRows::own(connection, key, own.as_deref()).await,
                Some((version, _)) => past_rows(connection, number, of.history, version, own.as_deref()).await,
            }
        },
        ValueRows::selected(connection, (key.app.as_str(), ""), &selection.app),
        ValueRows::selected(connection, (key.app.as_str(), key.user.as_str()), &selection.user),
    )?;
    let found = ByScope { app, user, session };
    of.check_missing(connection, &selection, &found, past.is_some()).await?;
    let ByScope { app, user, session } = found;
    let cells = match past {
        _ if selection.session.keys.is_some() => None,
        None => Some(of.record.state.cells),
        Some((_, cells)) => cells,
    };
    let heads = heads(&session.cells, RowOwner::Session, connection.key())?;
    if let Some(cells) = cells {
        sums::compare_cells(sum(&heads, RowOwner::Session), cells)?;
    }
    let items = session_items(&heads, &session.items, of.history, connection.key())?;
    let restricted = |values: ScopeValues, keys: Option<BTreeSet<Arc<str>>>| match keys {
        Some(keys) => values.restricted_to(keys),
        None => values,
    };
    let (of_app, of_user) = (&of.scopes.app, &of.scopes.user);
    let app = app.shared_values(connection, schemas, of_app, &selection.app).await?;
    let user = user.shared_values(connection, schemas, of_user, &selection.user).await?;
    let own = values(connection, schemas, heads, items).await?;
    Ok(ByScope {
        app: restricted(app, selection.app.keys),
        user: restricted(user, selection.user.keys),
        session: restricted(own, selection.session.keys),
    })
}

/// The keys that were written since a version, as far as the rows alone show it.
struct ChangedRows(ByScope<Vec<Row>>);

impl ChangedRows {
    async fn read(connection: &Object, request: &GetSession) -> Result<Self, SessionError> {
        let Some(seen) = request.since.filter(|_| request.state) else {
            return Ok(ChangedRows(ByScope::default()));
        };
        let key = &request.key;
        let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
        let [own, of_app, of_user] = [seen.version, seen.scopes.app, seen.scopes.user].map(to_db);
        let (session, app, user) = try_join!(biased;
            async { query(connection, CHANGED_CELLS, &[&app, &user, &id, &own]).await },
            async { query(connection, CHANGED_SHARED, &[&app, &"", &of_app]).await },
            async { query(connection, CHANGED_SHARED, &[&app, &user, &of_user]).await },
        )?;
        Ok(ChangedRows(ByScope { app, user, session }))
    }

    async fn selected(
        &self,
        (connection, schemas): (&Object, &PostgresSchemas),
        request: &GetSession,
        of: (&PostgresSessionRow, &PostgresHistory, &SharedScopes),
    ) -> Result<ByScope<ValueSelection>, SessionError> {
        let (row, history, scopes) = of;
        let since = request.since;
        let own = since.filter(|seen| request.version.is_none() && is_known(seen.version, row, history));
        let own = own.map(|_| keys_of(&self.0.session));
        let mut shared = ByScope::<ValueSelection>::default();
        for (selection, scope, seen, now, rows) in [
            (&mut shared.app, Scope::App, since.map(|seen| seen.scopes.app), &scopes.app, &self.0.app),
            (&mut shared.user, Scope::User, since.map(|seen| seen.scopes.user), &scopes.user, &self.0.user),
        ] {
            match seen.filter(|version| (now.known..=now.version).contains(version)) {
                Some(after) => {
                    let appended = appended_keys((connection, schemas), request, scope, rows).await?;
                    let keys = request.requested_keys(scope, Some(keys_of(rows)));
                    *selection = ValueSelection { keys, appended, after };
                }
                None => selection.keys = request.requested_keys(scope, None),
            }
        }
        let own =
            ValueSelection { keys: request.requested_keys(Scope::Session, own), ..ValueSelection::default() };
        Ok(ByScope { session: own, ..shared })
    }
}

/// The keys of rows.
fn keys_of(rows: &[Row]) -> BTreeSet<Arc<str>> {
    rows.iter().map(|row| Arc::from(row.get::<_, &str>(0))).collect()
}

/// The lists of which a request needs the new items only, from rows of `key, changed, schema` of changed keys.
async fn appended_keys(
    (connection, schemas): (&Object, &PostgresSchemas),
    request: &GetSession,
    scope: Scope,
    rows: &[Row],
) -> Result<BTreeSet<Arc<str>>, SessionError> {
    let mut keys = BTreeSet::new();
    for row in rows {
        let (key, changed): (&str, Option<i64>) = (row.get(0), row.get(1));
        let Some(changed) = changed.filter(|_| request.incremental.is_some()) else { continue };
        let stored = schemas.text(connection, row.get(2)).await?;
        if request.items_after(scope, key, (from_db(changed), &stored)).is_some() {
            keys.insert(key.into());
        }
    }
    Ok(keys)
}

/// Whether the rows show all changes of a session since this version.
pub(super) fn is_known(version: u64, row: &PostgresSessionRow, history: &PostgresHistory) -> bool {
    let first = history.lineage.first().map_or(0, |own| own.after);
    (first.max(row.oldest)..=row.version).contains(&version)
}

/// The pieces of the history with the requested events, newest first.
async fn event_pieces(
    connection: &Object,
    record: &SessionRecord,
    ranges: &[(u64, u64)],
    range: EventRange,
) -> Result<Vec<(u64, u64)>, SessionError> {
    let EventRange::Since(time) = range else { return Ok(pieces_of(record.oldest, ranges, range)) };
    let (firsts, lasts) = columns(ranges.iter().copied());
    let given: SqlParameters<'_> =
        &[&record.number, &to_db(record.oldest), &firsts, &lasts, &time.as_micros()];
    let found = query(connection, LAST_BEFORE, given).await?;
    let after = found.first().map_or(record.oldest, |row| from_db(row.get(0)));
    Ok(pieces(ranges, after, u64::MAX))
}

/// The same for a range of versions; of a range of times all.
pub(super) fn pieces_of(oldest: u64, ranges: &[(u64, u64)], range: EventRange) -> Vec<(u64, u64)> {
    match range {
        EventRange::None => Vec::new(),
        EventRange::All | EventRange::Since(_) => pieces(ranges, oldest, u64::MAX),
        EventRange::Last(count) => pieces(ranges, oldest, count as u64),
        EventRange::AfterVersion(version) => pieces(ranges, version.max(oldest), u64::MAX),
        EventRange::Page { after, limit } => {
            pieces(&page_of(ranges, after.max(oldest), limit), oldest, u64::MAX)
        }
    }
}

fn columns(ranges: impl Iterator<Item = (u64, u64)>) -> (Vec<i64>, Vec<i64>) {
    ranges.map(|(first, last)| (to_db(first), to_db(last))).unzip()
}

/// The rows of the events of pieces of the history, newest first.
pub(super) async fn read_pieces(
    connection: &Object,
    record: &SessionRecord,
    pieces: &[(u64, u64)],
) -> Result<Vec<Row>, SessionError> {
    if pieces.is_empty() {
        return Ok(Vec::new());
    }
    let (firsts, lasts) = columns(pieces.iter().map(|(after, last)| (after + 1, *last)));
    query(connection, EVENTS, &[&record.number, &0_i64, &firsts, &lasts, &i64::MAX]).await
}

/// Runs `$read` in a transaction that sees one moment.
macro_rules! reading {
    ($connection:expr, |$inside:ident| $read:expr) => {{
        let transaction = PooledTransaction::new($connection);
        let $inside = transaction.connection()?;
        let ((), read) = try_join!(biased; begin_reading($inside), $read)?;
        commit($inside).await?;
        transaction.end();
        Ok(read)
    }};
}

pub(super) async fn event_sizes(
    connection: Object,
    request: &EventSizes,
) -> Result<Vec<(u64, u64)>, SessionError> {
    reading!(connection, |inside| sizes(inside, request))
}

/// The bytes of bodies that are read at once for their sizes in memory.
const AT_ONCE: u64 = 1 << 20;

/// The sizes of events, inside a transaction.
async fn sizes(connection: &Object, request: &EventSizes) -> Result<Vec<(u64, u64)>, SessionError> {
    let key = &request.key;
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let row = query(connection, READ_SESSION, &[&app, &user, &id]).await?;
    let record = PostgresSessionRow::of(&row, key)?;
    let after = to_db(request.after.max(record.oldest));
    let (firsts, lasts) = columns(std::iter::once((1, record.version)));
    let limit = to_db(request.limit as u64);
    let rows = query(connection, EVENT_SIZES, &[&record.number, &after, &firsts, &lasts, &limit]).await?;
    let content = connection.key();
    let size = |row: &Row| (from_db(row.get(0)), row.get::<_, i32>(1).unsigned_abs().into());
    let mut sizes: Vec<(u64, u64)> = rows.iter().map(size).collect();
    if !request.in_memory {
        for (_, size) in &mut sizes {
            *size = content.opened_bytes(*size);
        }
        return Ok(sizes);
    }
    // NOTE: the sizes on disk bound each query, so that bodies of large events are not all in memory at once.
    let (mut read, mut after) = (0, after);
    while read < sizes.len() {
        let rest = &sizes[read..];
        let sums = rest.iter().scan(0, |sum, (_, size)| {
            *sum += size;
            Some(*sum)
        });
        let limit = to_db(sums.take_while(|sum| *sum <= AT_ONCE).count().max(1) as u64);
        let bodies =
            query(connection, EVENT_BODIES, &[&record.number, &after, &firsts, &lasts, &limit]).await?;
        for (row, (version, size)) in bodies.iter().zip(&mut sizes[read..]) {
            let body = content.open(Place::event(row.get(2)), row.get(1))?;
            (*version, *size) = (from_db(row.get(0)), memory_size::of_body(&body));
            after = row.get(0);
        }
        if bodies.is_empty() {
            break;
        }
        read += bodies.len();
    }
    Ok(sizes)
}

pub(super) async fn forks(connection: Object, key: &SessionKey) -> Result<Vec<ForkInfo>, SessionError> {
    reading!(connection, |inside| branches::forks(inside, key))
}

pub(super) async fn labels(connection: Object, key: &SessionKey) -> Result<Vec<(Label, u64)>, SessionError> {
    reading!(connection, |inside| branches::labels(inside, key))
}

pub(super) async fn inbox(connection: Object, request: &ReadInbox) -> Result<Vec<InboxEntry>, SessionError> {
    inbox::read(&connection, request).await
}

pub(super) async fn read_scope(
    connection: Object,
    schemas: &PostgresSchemas,
    scope: &ScopeKey,
) -> Result<ScopeValues, SessionError> {
    let transaction = PooledTransaction::new(connection);
    let connection = transaction.connection()?;
    let ((), values) =
        try_join!(biased; begin_reading(connection), scope_values(connection, schemas, scope))?;
    commit(connection).await?;
    transaction.end();
    Ok(values)
}

/// The values of a shared scope, inside a transaction.
pub(super) async fn scope_values(
    connection: &Object,
    schemas: &PostgresSchemas,
    scope: &ScopeKey,
) -> Result<ScopeValues, SessionError> {
    let (app, user) = scope.parts();
    let (app_name, owner) = (app.as_str(), user.map_or("", |user| user.as_str()));
    let ask = |sql| async move { query(connection, sql, &[&app_name, &owner]).await };
    let (row, cells, items) = try_join!(biased; ask(FIND_SCOPE), ask(READ_SHARED), ask(READ_SHARED_ITEMS))?;
    let row = match row.first() {
        Some(row) => scope_row(row, app, user)?,
        None => ScopeRow::new(0, app, user),
    };
    ValueRows { cells, items }.shared_values(connection, schemas, &row, &ValueSelection::default()).await
}

pub(super) async fn list(
    connection: Object,
    cache: &StoreCache,
    request: &ListSessions,
) -> Result<SessionPage, SessionError> {
    let after = request.after.as_ref().map(SessionCursor::position).transpose()?;
    let (updated, number) = after.unwrap_or((Timestamp::from_micros(i64::MAX), i64::MAX));
    let limit = i64::try_from(request.limit).unwrap_or(i64::MAX).saturating_add(1);
    let (app, user, updated) = (request.app.as_str(), request.user.as_str(), updated.as_micros());
    let text = request.text.as_deref().unwrap_or_default();
    let given: SqlParameters<'_> = &[&app, &user, &updated, &number, &limit, &request.unfinished, &text];
    if request.state || request.events != EventRange::None {
        return with_contents(connection, cache, request, given).await;
    }
    let rows = query(&connection, LIST_AT_ONCE, given).await?;
    let (found, next) = listed(&rows_of(&rows, Part::Session), request)?;
    let scopes = scopes_of(&rows_of(&rows, Part::Scopes), &request.app, &request.user)?;
    let sessions = metadata(found, &rows_of(&rows, Part::Rewinds), scopes.versions())?;
    Ok(SessionPage { sessions, next })
}

/// The sessions of a page with their values or events: each is read by itself.
async fn with_contents(
    connection: Object,
    cache: &StoreCache,
    request: &ListSessions,
    given: SqlParameters<'_>,
) -> Result<SessionPage, SessionError> {
    let transaction = PooledTransaction::new(connection);
    let connection = transaction.connection()?;
    let ((), rows) = try_join!(biased; begin_reading(connection), query(connection, LIST_SESSIONS, given))?;
    let (found, next) = listed(&rows, request)?;
    let gets: Vec<GetSession> = found.into_iter().map(|(key, _)| request.get(key)).collect();
    let sessions = try_join_all(gets.iter().map(|get| within(connection, cache, get))).await?;
    commit(connection).await?;
    transaction.end();
    Ok(SessionPage { sessions, next })
}

/// A session inside a transaction, by one statement if that suffices.
async fn within(
    connection: &Object,
    cache: &StoreCache,
    request: &GetSession,
) -> Result<Session, SessionError> {
    match at_once::session(connection, cache, request).await? {
        Some(found) => Ok(found),
        None => Box::pin(session(connection, cache, request)).await,
    }
}

/// Sessions with their rows, and the cursor of the next page.
type ListedRows = (Vec<(SessionKey, PostgresSessionRow)>, Option<SessionCursor>);

/// The sessions of a page, from one row more than it has.
fn listed(rows: &[impl Columns], request: &ListSessions) -> Result<ListedRows, SessionError> {
    let mut found = Vec::new();
    for row in rows.iter().take(request.limit) {
        let id = SessionId::new(row.get::<String>(7))?;
        let key = SessionKey { app: request.app.clone(), user: request.user.clone(), id };
        let row = PostgresSessionRow::read(row, &key)?;
        found.push((key, row));
    }
    let last = found.last().map(|(_, row)| SessionCursor::after(row.updated, row.number));
    Ok((found, last.filter(|_| rows.len() > request.limit)))
}

/// Sessions without values and events.
fn metadata(
    found: Vec<(SessionKey, PostgresSessionRow)>,
    rewinds: &[impl Columns],
    scopes: ScopeVersions,
) -> Result<Vec<Session>, SessionError> {
    let mut of_sessions: HashMap<i64, Vec<RewindRow>> = HashMap::new();
    for row in rewinds {
        of_sessions.entry(row.get(6)).or_default().push(rewind_row(row));
    }
    let sessions = found.into_iter().map(|(key, row)| {
        let rewinds: RewindChain = of_sessions.remove(&row.number).into_iter().flatten().collect();
        let visible = VisibleVersions::at(row.version, &rewinds.counting(row.state.rewound)?);
        row.session(key, visible, scopes)
    });
    sessions.collect()
}
