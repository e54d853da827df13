//! Reads by one statement: the session, its events and its values in one snapshot, and many sessions at a glance.
//!
//! The statement chooses events before the rewinds are known that may hide some. Where that, or values of some keys,
//! makes it the wrong choice, a read takes several statements in a transaction, in `read`.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use tokio_postgres::Row;

use super::branches::forks_of;
use super::connection::Object;
use super::parts::{Columns, Part, PartRow, rows_of};
use super::read::{AllValueRows, ReadContext, ValueRows, pieces_of};
use super::rows::{
    PostgresHistory, PostgresSessionRow, StatesByVersion, StoreCache, events as events_of, read_state,
    scopes as scopes_of,
};
use super::statements::{GET_CHANGES, GET_SESSION, GET_WHOLE, OUTLINES};
use super::transaction::{SqlParameters, query};
use crate::changes::SeenVersions;
use crate::error::SessionError;
use crate::event::CommittedEvent;
use crate::ids::{SessionId, SessionKey};
use crate::keys::sealer::{ContentKey, Place};
use crate::memory_size;
use crate::rows::lineage::{from_db, to_db};
use crate::rows::seal::SessionRecord;
use crate::rows::shared::SharedScopes;
use crate::scope::ByScope;
use crate::session::{ScopeValues, Session};
use crate::store::{EventRange, GetSession, OutlineSessions, SessionOutline};

/// A number that is greater than each version, and whose multiples are numbers.
const MANY: i64 = i64::MAX / 4;

/// The events that a statement reads: after a version, among the last and the first of these.
fn bounds(range: EventRange) -> Option<[i64; 3]> {
    let number = |count: usize| to_db(count as u64).min(MANY);
    let version = |version: u64| to_db(version).min(MANY);
    match range {
        EventRange::None => Some([MANY, MANY, 0]),
        EventRange::All => Some([0, MANY, MANY]),
        EventRange::Last(count) => Some([0, number(count), MANY]),
        EventRange::AfterVersion(after) => Some([version(after), MANY, MANY]),
        EventRange::Page { after, limit } => Some([version(after), MANY, number(limit)]),
        EventRange::Since(_) => None,
    }
}

/// A session with the requested parts; `None` if one statement cannot read them.
pub(super) async fn session(
    connection: &Object,
    cache: &StoreCache,
    request: &GetSession,
) -> Result<Option<Session>, SessionError> {
    let Some([after, last, first]) = bounds(request.events) else { return Ok(None) };
    if request.version.is_some() || request.keys.is_some() {
        return Ok(None);
    }
    let key = &request.key;
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let given: [&(dyn tokio_postgres::types::ToSql + Sync); 6] = [&app, &user, &id, &after, &last, &first];
    let rows = match request.since.filter(|_| request.state) {
        _ if !request.state => query(connection, GET_SESSION, &given).await?,
        None => query(connection, GET_WHOLE, &given).await?,
        Some(seen) => {
            let [own, of_app, of_user] = [seen.version, seen.scopes.app, seen.scopes.user].map(to_db);
            let seen: SqlParameters<'_> = &[&own, &of_app, &of_user];
            query(connection, GET_CHANGES, &[&given[..], seen].concat()).await?
        }
    };
    let parts = SessionParts::read(&rows, key)?;
    cache.records.set(key, parts.row.record.clone(), parts.row.work.clone());
    let Some(events) = parts.events(request, connection.key())? else { return Ok(None) };
    let values = match request.since.filter(|_| request.state) {
        _ if !request.state => None,
        None => Some(parts.values(connection, cache, key, &rows).await?),
        Some(seen) if parts.is_unchanged(seen, &rows) => Some(unchanged()),
        Some(_) => return Ok(None),
    };
    let SessionParts { row, history, scopes, .. } = parts;
    let (version, head) = (row.version, Some(row.state.head));
    let session = row.session(key.clone(), history.visible, scopes.versions())?;
    Ok(Some(Session { version, head, values, events, ..session }))
}

/// The values of scopes in which nothing has changed.
fn unchanged() -> ByScope<ScopeValues> {
    let none = || ScopeValues::default().restricted_to(BTreeSet::new());
    ByScope { app: none(), user: none(), session: none() }
}

/// The parts of a session in the rows of a statement.
struct SessionParts<'r> {
    row: PostgresSessionRow,
    history: PostgresHistory,
    scopes: SharedScopes,
    events: EventRows<'r>,
}

impl<'r> SessionParts<'r> {
    fn read(rows: &'r [Row], key: &SessionKey) -> Result<Self, SessionError> {
        let row = PostgresSessionRow::of(&rows_of(rows, Part::Session), key)?;
        let scopes = scopes_of(&rows_of(rows, Part::Scopes), &key.app, &key.user)?;
        let (lineage, rewinds) = (rows_of(rows, Part::Lineage), rows_of(rows, Part::Rewinds));
        let history = PostgresHistory::read(&lineage, &rewinds, &row, None)?;
        Ok(SessionParts { row, history, scopes, events: EventRows::new(rows_of(rows, Part::Events)) })
    }

    /// The requested events; `None` if others than the statement has chosen are needed.
    fn events(
        &self,
        request: &GetSession,
        content: ContentKey<'_>,
    ) -> Result<Option<Vec<CommittedEvent>>, SessionError> {
        // NOTE: versions that a rewind hides count for the statement and not for the request.
        if !request.hidden && self.history.rewound > 0 {
            return Ok(None);
        }
        let ranges = request.event_ranges(&self.history.visible, self.row.version);
        self.events.read(&self.row, &pieces_of(self.row.oldest, &ranges, request.events), content).map(Some)
    }

    /// All values.
    async fn values(
        &self,
        connection: &Object,
        cache: &StoreCache,
        key: &SessionKey,
        rows: &[Row],
    ) -> Result<ByScope<ScopeValues>, SessionError> {
        let owned = |part, owner_column: usize| {
            let is_app = |row: &PartRow<'_>| row.get::<&str>(owner_column).is_empty();
            rows_of(rows, part).into_iter().partition::<Vec<PartRow<'_>>, _>(is_app)
        };
        let ((app, user), (app_items, user_items)) = (owned(Part::Shared, 10), owned(Part::SharedItems, 5));
        let session = ValueRows { cells: rows_of(rows, Part::Cells), items: rows_of(rows, Part::Items) };
        let all = AllValueRows(ByScope {
            app: ValueRows { cells: app, items: app_items },
            user: ValueRows { cells: user, items: user_items },
            session,
        });
        let of = ReadContext { key, record: &self.row, history: &self.history, scopes: &self.scopes };
        all.values(connection, &cache.schemas, of, Some(self.row.state.cells)).await
    }

    /// Whether no value has changed since these versions, as far as these are known.
    fn is_unchanged(&self, seen: SeenVersions, rows: &[Row]) -> bool {
        let SharedScopes { app, user } = &self.scopes;
        let is_known = [(app, seen.scopes.app), (user, seen.scopes.user)]
            .into_iter()
            .all(|(scope, version)| scope.version == version && scope.known <= version);
        let is_of_session = super::read::is_known(seen.version, &self.row, &self.history);
        let changed = [Part::ChangedCells, Part::ChangedShared].map(|part| rows_of(rows, part));
        is_known && is_of_session && changed.iter().all(Vec::is_empty)
    }
}

/// The rows of a session's events, newest first, of which some may have no body.
struct EventRows<'r>(Vec<PartRow<'r>>);

impl<'r> EventRows<'r> {
    fn new(mut rows: Vec<PartRow<'r>>) -> Self {
        // NOTE: those of a fork come from several streams, in any order.
        rows.sort_by_key(|row| Reverse(row.get::<i64>(0)));
        EventRows(rows)
    }

    /// The events of pieces of the history, both newest first.
    fn read(
        &self,
        record: &SessionRecord,
        pieces: &[(u64, u64)],
        content: ContentKey<'_>,
    ) -> Result<Vec<CommittedEvent>, SessionError> {
        let mut states = StatesByVersion::new();
        for edge in pieces.iter().flat_map(|(after, last)| [*after, *last]) {
            if let Some(row) = self.0.iter().find(|row| from_db(row.get(0)) == edge) {
                states.insert(edge, read_state(row.get(5), edge, row.get(2), row.get(4))?);
            }
        }
        let is_in = |row: &&PartRow<'_>| {
            let version = from_db(row.get(0));
            pieces.iter().any(|(after, last)| (*after + 1..=*last).contains(&version))
        };
        let rows: Vec<PartRow<'_>> = self.0.iter().filter(is_in).copied().collect();
        events_of(&rows, pieces, record, &states, content)
    }

    /// The memory of the events once they are read, about.
    fn bytes(&self, content: ContentKey<'_>) -> Result<u64, SessionError> {
        let bodies = self.0.iter().filter_map(|row| Some((row.get(1), row.get::<Option<&str>>(3)?)));
        let bytes = |(id, body)| Ok(memory_size::of_body(&content.open(Place::event(id), body)?));
        bodies.map(bytes).sum()
    }

    /// Whether all bodies of these pieces were read.
    fn has_bodies(&self, pieces: &[(u64, u64)]) -> bool {
        let is_without = |row: &PartRow<'_>| {
            let version = from_db(row.get(0));
            pieces.iter().any(|(after, last)| (*after + 1..=*last).contains(&version))
                && row.get::<Option<&str>>(3).is_none()
        };
        !self.0.iter().any(is_without)
    }
}

/// Rows by the session that a column names.
fn by_number(rows: Vec<PartRow<'_>>, column: usize) -> HashMap<i64, Vec<PartRow<'_>>> {
    let mut by_number: HashMap<i64, Vec<PartRow<'_>>> = HashMap::new();
    for row in rows {
        by_number.entry(row.get(column)).or_default().push(row);
    }
    by_number
}

pub(super) async fn outlines(
    connection: Object,
    cache: &StoreCache,
    request: &OutlineSessions,
) -> Result<Vec<Option<SessionOutline>>, SessionError> {
    let (app, user) = (request.app.as_str(), request.user.as_str());
    let mut ids: Vec<&str> = request.ids.iter().map(SessionId::as_str).collect();
    // NOTE: each once: the statement has the rows of a session as often as its id.
    let mut once = HashSet::new();
    ids.retain(|id| once.insert(*id));
    let [first, newest, bytes] =
        [request.first as u64, request.newest as u64, request.max_bytes].map(|count| to_db(count).min(MANY));
    let given: SqlParameters<'_> = &[&app, &user, &ids, &first, &newest, &bytes];
    let rows = query(&connection, OUTLINES, given).await?;
    let mut parts = OutlineParts::of(&rows, request.max_bytes);
    let mut found: HashMap<Arc<str>, Option<SessionOutline>> = HashMap::new();
    for row in rows_of(&rows, Part::Session) {
        let id = SessionId::new(row.get::<&str>(7))?;
        let key = SessionKey { app: request.app.clone(), user: request.user.clone(), id };
        let outline = parts.outline(&row, (&key, connection.key()), request, cache)?;
        found.insert(key.id.as_str().into(), outline);
    }
    Ok(request.ids.iter().map(|id| found.get(id.as_str()).cloned().flatten()).collect())
}

/// The rows of many sessions.
struct OutlineParts<'r> {
    lineage: HashMap<i64, Vec<PartRow<'r>>>,
    rewinds: HashMap<i64, Vec<PartRow<'r>>>,
    events: HashMap<i64, Vec<PartRow<'r>>>,
    forks: HashMap<i64, Vec<PartRow<'r>>>,
    scopes: Vec<PartRow<'r>>,
    /// The bytes of memory that events may take yet.
    left: u64,
}

impl<'r> OutlineParts<'r> {
    fn of(rows: &'r [Row], left: u64) -> Self {
        OutlineParts {
            left,
            lineage: by_number(rows_of(rows, Part::Lineage), 3),
            rewinds: by_number(rows_of(rows, Part::Rewinds), 6),
            events: by_number(rows_of(rows, Part::Events), 6),
            forks: by_number(rows_of(rows, Part::Forks), 5),
            scopes: rows_of(rows, Part::Scopes),
        }
    }

    fn outline(
        &mut self,
        row: &PartRow<'_>,
        (key, content): (&SessionKey, ContentKey<'_>),
        request: &OutlineSessions,
        cache: &StoreCache,
    ) -> Result<Option<SessionOutline>, SessionError> {
        let row = PostgresSessionRow::read(row, key)?;
        let of = |rows: &mut HashMap<i64, Vec<PartRow<'r>>>| rows.remove(&row.number).unwrap_or_default();
        let (lineage, rewinds) = (of(&mut self.lineage), of(&mut self.rewinds));
        let (events, forks) = (EventRows::new(of(&mut self.events)), of(&mut self.forks));
        let history = PostgresHistory::read(&lineage, &rewinds, &row, None)?;
        let scopes = scopes_of(&self.scopes, &key.app, &key.user)?.versions();
        cache.records.set(key, row.record.clone(), row.work.clone());
        let all = [(0, row.version)];
        let newest = pieces_of(row.oldest, &all, EventRange::Last(request.newest));
        let first = pieces_of(row.oldest, &all, EventRange::Page { after: 0, limit: request.first });
        if !events.has_bodies(&newest) || !events.has_bodies(&first) {
            return Ok(None);
        }
        let bytes = events.bytes(content)?;
        if bytes > self.left {
            return Ok(None);
        }
        self.left -= bytes;
        let forks = forks_of(&forks, &row, key)?.len();
        let (newest, first) = (events.read(&row, &newest, content)?, events.read(&row, &first, content)?);
        let (version, head) = (row.version, Some(row.state.head));
        let session = row.session(key.clone(), history.visible, scopes)?;
        let session = Session { version, head, events: newest, ..session };
        Ok(Some(SessionOutline { session, first, forks: Some(forks) }))
    }
}
