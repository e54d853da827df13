//! Parses the server's rows.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use stepfold_state_core::List;
use stepfold_state_core::state::StoredValue;

use super::connection::Object;
use super::parts::Columns;
use super::statements::{ADD_SCHEMA, FIND_SCHEMA, READ_SCHEMA};
use super::sums;
use super::transaction::{IdleTimeout, execute, query};
use crate::digest::{ContentDigest, Digest};
use crate::error::SessionError;
use crate::event::{CommittedEvent, Event, RecentTexts};
use crate::ids::{AppId, EventId, SessionKey, UserId};
use crate::keys::sealer::{ContentKey, Place, StoredBody};
use crate::rows::chain::{EventChain, missing_event};
use crate::rows::lineage::{HistorySegment, from_db, in_lineage, to_db};
use crate::rows::rewinds::{RewindChain, RewindRow};
use crate::rows::seal::{self, EventSeal, ScopeSeal, SealedState, SessionRecord, SessionSeal, row_number};
use crate::rows::shared::{ScopeRow, SharedHead, SharedScopes};
use crate::rows::values::{ListAssembly, ListExtent, NewestItems, SharedItemRow, ValueHead, read_json};
use crate::rows::work::WorkState;
use crate::scope::ScopeVersions;
use crate::session::{AppendedItems, RewindMark, ScopeValues, Session, TypedValue, VisibleVersions};
use crate::store::ClaimFence;
use crate::time::Timestamp;

/// The checksum of the row of a schema. It is made before the server gives that a number.
pub(super) fn schema_sum(text: &str) -> i64 {
    seal::of_schema(0, text)
}

/// Schemas by number: a row refers to its schema, whose text is stored once.
#[derive(Default)]
pub(super) struct PostgresSchemas(Mutex<KnownSchemas>);

#[derive(Default)]
struct KnownSchemas {
    numbers: HashMap<Arc<str>, i64>,
    texts: HashMap<i64, Arc<str>>,
}

impl PostgresSchemas {
    fn known<T>(&self, look: impl FnOnce(&mut KnownSchemas) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of a schema, which is stored if it is new. Not for use inside a transaction, which might
    /// take it back.
    pub(super) async fn number(&self, connection: &Object, text: &Arc<str>) -> Result<i64, SessionError> {
        if let Some(number) = self.known(|known| known.numbers.get(text).copied()) {
            return Ok(number);
        }
        let checksum = schema_sum(text);
        // NOTE: two workers may both add a schema. Both rows stay, and all use the one with the lowest number.
        execute(connection, ADD_SCHEMA, &[&&**text, &checksum]).await?;
        let found = query(connection, FIND_SCHEMA, &[&&**text]).await?;
        let number: Option<i64> = found.first().and_then(|row| row.get(0));
        let number = number.ok_or_else(|| SessionError::Store {
            what: "store a schema",
            source: "missing after it was stored".into(),
        })?;
        self.known(|known| {
            known.numbers.insert(Arc::clone(text), number);
            known.texts.insert(number, Arc::clone(text));
        });
        Ok(number)
    }

    /// The schema of a number.
    pub(super) async fn text(&self, connection: &Object, number: i64) -> Result<Arc<str>, SessionError> {
        if let Some(text) = self.known(|known| known.texts.get(&number).cloned()) {
            return Ok(text);
        }
        let rows = query(connection, READ_SCHEMA, &[&number]).await?;
        let damaged = |why| SessionError::damaged(format!("schema {number}"), why);
        let row = rows.first().ok_or_else(|| damaged("missing row"))?;
        let text: Arc<str> = row.get::<_, &str>(0).into();
        if schema_sum(&text) != row.get::<_, i64>(1) {
            return Err(damaged("checksum mismatch of its row"));
        }
        self.known(|known| known.texts.insert(number, Arc::clone(&text)));
        Ok(text)
    }
}

/// The recently read or written sessions: an event can be added in one statement if no other worker has
/// written since.
#[derive(Default)]
pub(super) struct RecordCache(Mutex<CacheGenerations>);

/// The last known data of a session.
#[derive(Clone)]
pub(super) struct CachedRecord {
    pub(super) record: SessionRecord,
    pub(super) work: WorkState,
    /// The rows of some keys; `None` for a key without one.
    heads: KnownHeads,
}

/// The rows of keys of a session that this process has written.
type KnownHeads = Arc<BTreeMap<String, Option<HeadRow>>>;

/// The most keys of a session whose rows are cached.
const MAX_CACHED_KEYS: usize = 16;

/// The longest text that is cached with its row, in bytes.
const MAX_CACHED_TEXT: usize = 256;

impl CachedRecord {
    /// The rows of these keys, those that have one; `None` if one is unknown.
    pub(super) fn heads(&self, keys: &[String]) -> Option<Vec<HeadRow>> {
        let mut heads = Vec::with_capacity(keys.len());
        for key in keys {
            heads.extend(self.heads.get(key)?.clone());
        }
        Some(heads)
    }
}

/// Two generations of entries: the older one is dropped when the newer one is full.
#[derive(Default)]
struct CacheGenerations {
    newer: HashMap<SessionKey, CachedRecord>,
    older: HashMap<SessionKey, CachedRecord>,
}

/// The maximum number of sessions of a generation.
const GENERATION: usize = 4_096;

impl RecordCache {
    fn locked(&self) -> MutexGuard<'_, CacheGenerations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last known data of a session.
    pub(super) fn last(&self, key: &SessionKey) -> Option<CachedRecord> {
        let known = self.locked();
        known.newer.get(key).or_else(|| known.older.get(key)).cloned()
    }

    /// Sets the last known data of a session, unless it is outdated. Wrong data does no harm: the seal
    /// detects it.
    pub(super) fn set(&self, key: &SessionKey, record: SessionRecord, work: WorkState) {
        let mut known = self.locked();
        let is_newer = |known: &CachedRecord| {
            known.record.number == record.number && known.record.version > record.version
        };
        if known.newer.get(key).is_some_and(is_newer) {
            return;
        }
        let heads = known.heads_of(key, &record);
        known.insert(key, CachedRecord { record, work, heads });
    }

    /// Sets the data of a session after an event that this process has added to it, with the rows of the written keys.
    pub(super) fn advance(
        &self,
        key: &SessionKey,
        before: &SessionRecord,
        (record, work): (SessionRecord, WorkState),
        written: Vec<(String, Option<HeadRow>)>,
    ) {
        let mut known = self.locked();
        let mut heads = known.heads_of(key, before);
        if !written.is_empty() {
            let heads = Arc::make_mut(&mut heads);
            for (key, head) in written {
                // NOTE: a key that is not cached any more must not keep its earlier row.
                heads.remove(&key);
                if heads.len() < MAX_CACHED_KEYS && head.as_ref().is_none_or(HeadRow::is_small) {
                    heads.insert(key, head);
                }
            }
        }
        known.insert(key, CachedRecord { record, work, heads });
    }
}

impl CacheGenerations {
    /// The cached rows of a session, if it is as it was when they were.
    fn heads_of(&self, key: &SessionKey, record: &SessionRecord) -> KnownHeads {
        let is_same = |known: &&CachedRecord| {
            let CachedRecord { record: known, .. } = known;
            known.number == record.number && known.version == record.version && known.state == record.state
        };
        let known = self.newer.get(key).or_else(|| self.older.get(key)).filter(is_same);
        known.map(|known| Arc::clone(&known.heads)).unwrap_or_default()
    }

    fn insert(&mut self, key: &SessionKey, record: CachedRecord) {
        // NOTE: two generations bound the cache without a list of uses: a session that is in use is copied into the newer
        // one.
        if self.newer.len() >= GENERATION && !self.newer.contains_key(key) {
            self.older = mem::take(&mut self.newer);
        }
        self.newer.insert(key.clone(), record);
    }
}

/// Cached data of a database: schemas and sessions.
pub(super) struct StoreCache {
    pub(super) schemas: PostgresSchemas,
    pub(super) records: RecordCache,
    pub(super) idle: IdleTimeout,
}

impl StoreCache {
    pub(super) fn new(idle: IdleTimeout) -> Self {
        StoreCache { schemas: PostgresSchemas::default(), records: RecordCache::default(), idle }
    }
}

/// The row of a session.
pub(super) struct PostgresSessionRow {
    pub(super) record: SessionRecord,
    pub(super) work: WorkState,
    /// When the row was read, by the server's clock.
    pub(super) now: Timestamp,
}

impl Deref for PostgresSessionRow {
    type Target = SessionRecord;

    fn deref(&self) -> &SessionRecord {
        &self.record
    }
}

impl PostgresSessionRow {
    /// Reads a row, and checks that it is the one of the key.
    pub(super) fn read(row: &impl Columns, key: &SessionKey) -> Result<Self, SessionError> {
        let (parent, parent_version): (Option<String>, Option<i64>) = (row.get(5), row.get(6));
        let seal = SessionSeal::from_bytes(row.get(14))
            .ok_or_else(|| SessionError::damaged(format!("session {key}"), "missing seal of its row"))?;
        let record = SessionRecord {
            number: row.get(0),
            version: from_db(row.get(1)),
            oldest: from_db(row.get(2)),
            created: Timestamp::from_micros(row.get(3)),
            updated: Timestamp::from_micros(row.get(4)),
            parent: parent.zip(parent_version.map(from_db)),
            life: row.get(8),
            state: seal.state,
            anchor: seal.anchor,
            lineage: seal.lineage,
            branches: seal.branches,
        };
        let record = record.opened(seal, key)?;
        let (fence, inbox) = (fence_of(record.number, row, 9)?, from_db(row.get(12)));
        let work = WorkState { fence, inbox, last: from_db(row.get(15)), waiting: row.get(16) };
        work.check(record.number, row.get(17), key)?;
        Ok(PostgresSessionRow { record, work, now: Timestamp::from_micros(row.get(13)) })
    }

    /// The row of an existing session.
    pub(super) fn of(rows: &[impl Columns], key: &SessionKey) -> Result<Self, SessionError> {
        let row = rows.first().ok_or_else(|| SessionError::not_found(key))?;
        PostgresSessionRow::read(row, key)
    }

    pub(super) fn session(
        self,
        key: SessionKey,
        visible: VisibleVersions,
        scopes: ScopeVersions,
    ) -> Result<Session, SessionError> {
        self.record.session(key, visible, (self.work.fence.unexpired(self.now), self.work.inbox), scopes)
    }
}

/// The claim of a session, from its columns `number, claims, claim_owner, claim_expires` that begin here.
pub(super) fn fence(row: &impl Columns, number: usize) -> Result<ClaimFence, SessionError> {
    fence_of(row.get(number), row, number + 1)
}

/// The claim of a session, from its number and its columns `claims, claim_owner, claim_expires` that begin here.
fn fence_of(number: i64, row: &impl Columns, claims: usize) -> Result<ClaimFence, SessionError> {
    ClaimFence::stored(number, row.get(claims), row.get::<Option<&str>>(claims + 1), row.get(claims + 2))
}

/// The history of a session.
pub(super) struct PostgresHistory {
    /// Newest first.
    pub(super) lineage: Vec<HistorySegment>,
    /// The visible versions at the requested version.
    pub(super) visible: VisibleVersions,
    /// The newest rewind up to that version.
    pub(super) rewound: u64,
}

impl PostgresHistory {
    /// The history of a session, checked against its row, with the rewinds of a version: of the session's own, or of an
    /// earlier one.
    pub(super) fn read(
        lineage: &[impl Columns],
        rewinds: &[impl Columns],
        record: &SessionRecord,
        version: Option<u64>,
    ) -> Result<Self, SessionError> {
        let lineage: Vec<HistorySegment> = lineage
            .iter()
            .map(|row| HistorySegment {
                stream: row.get(0),
                after: from_db(row.get(1)),
                upto: from_db(row.get(2)),
            })
            .collect();
        seal::compare(seal::of_lineage(&lineage), record.lineage, || "history of a session".to_owned())?;
        let rewinds: RewindChain = rewinds.iter().map(rewind_row).collect();
        let version = version.unwrap_or(record.version);
        // NOTE: the newest rewind up to an earlier version is certain only once the seal of that version's event is read:
        // `check_rewound` compares it.
        let rewound = if version == record.version { record.state.rewound } else { rewinds.newest() };
        let visible = VisibleVersions::at(version, &rewinds.counting(rewound)?);
        Ok(PostgresHistory { lineage, visible, rewound })
    }

    /// Checks the newest rewind up to an earlier version against the states after the requested events.
    pub(super) fn check_rewound(&self, states: &StatesByVersion, version: u64) -> Result<(), SessionError> {
        match states.get(&version) {
            Some(state) if state.rewound != self.rewound => {
                Err(SessionError::damaged("history of a session", "missing rewind"))
            }
            _ => Ok(()),
        }
    }

    /// The stream in which the state of a version is stored.
    pub(super) fn stream_of(&self, version: u64) -> Option<i64> {
        self.lineage.iter().find(|segment| segment.after <= version).map(|segment| segment.stream)
    }

    /// The stream of the event of a version.
    pub(super) fn stream_with(&self, version: u64) -> Option<i64> {
        self.lineage.iter().find(|segment| segment.contains(version)).map(|segment| segment.stream)
    }
}

/// Reads `stream, version, target, previous, visible, checksum`.
pub(super) fn rewind_row(row: &impl Columns) -> RewindRow {
    RewindRow {
        stream: row.get(0),
        rewound: RewindMark { version: from_db(row.get(1)), to: from_db(row.get(2)) },
        previous: from_db(row.get(3)),
        visible: from_db(row.get(4)),
        checksum: row.get(5),
    }
}

/// The states after some events, by their versions.
pub(super) type StatesByVersion = HashMap<u64, SealedState>;

/// The states after events, from rows of `stream, version, at, seal`.
pub(super) fn states<C: Columns>(rows: &[C]) -> Result<StatesByVersion, SessionError> {
    let read = |row: &C| {
        let version = from_db(row.get(1));
        let state = read_state(row.get(0), version, row.get(2), row.get(3))?;
        Ok((version, state))
    };
    rows.iter().map(read).collect()
}

/// The state after an event, by its seal.
pub(super) fn read_state(
    stream: i64,
    version: u64,
    at: i64,
    seal: &[u8],
) -> Result<SealedState, SessionError> {
    event_seal(version, seal)?.open(row_number(stream, version), at)
}

/// The seal of an event's row, as its column has it.
pub(super) fn event_seal(version: u64, seal: &[u8]) -> Result<EventSeal, SessionError> {
    EventSeal::from_bytes(seal).ok_or_else(|| {
        SessionError::damaged(format!("event of version {version}"), "missing seal of its row")
    })
}

/// The digest of a session's history up to a version, given the states after the requested events.
pub(super) fn digest_at(
    record: &SessionRecord,
    states: &StatesByVersion,
    version: u64,
) -> Result<Digest, SessionError> {
    match version {
        _ if version == record.oldest => Ok(record.anchor),
        _ if version == record.version => Ok(record.state.head),
        _ => states.get(&version).map(|state| state.head).ok_or_else(|| missing_event(version)),
    }
}

/// The combined checksums of a session's values at a version, given the states after the requested events; `None` if no
/// row has them.
pub(super) fn cells_at(record: &SessionRecord, states: &StatesByVersion, version: u64) -> Option<i64> {
    match version == record.version {
        true => Some(record.state.cells),
        false => states.get(&version).map(|state| state.cells),
    }
}

/// Events of pieces of the history, both newest first: each checked, none left out. They come in order.
pub(super) fn events(
    rows: &[impl Columns],
    pieces: &[(u64, u64)],
    record: &SessionRecord,
    states: &StatesByVersion,
    content: ContentKey<'_>,
) -> Result<Vec<CommittedEvent>, SessionError> {
    let mut events = Vec::with_capacity(rows.len());
    let (mut rows, mut recent) = (rows.iter().peekable(), RecentTexts::default());
    for (after, last) in pieces {
        let mut chain = EventChain::ending(*last, digest_at(record, states, *last)?);
        while let Some(row) = rows.next_if(|row| from_db(row.get(0)) > *after) {
            let (version, at) = (from_db(row.get(0)), Timestamp::from_micros(row.get(2)));
            let id: &str = row.get(1);
            let (body, seal): (&str, _) = (row.get(3), event_seal(version, row.get(4))?);
            let body = StoredBody::parse(body);
            chain.add(version, ContentDigest::of((version, id, at), &body, seal.form), seal.state.head)?;
            let body = content.open_body(id, body)?;
            let event = Event::from_body_sharing(&mut recent, EventId::new(id)?, at, &body)?;
            events.push(CommittedEvent { version, event: event.into() });
        }
        chain.end(*after, digest_at(record, states, *after)?)?;
    }
    events.reverse();
    Ok(events)
}

/// The row of a value: `key, schema, value, generation, start, length, items, version, checksum`, and if it is a shared
/// one `changed`.
#[derive(Clone)]
pub(super) struct HeadRow {
    pub(super) key: String,
    pub(super) schema: i64,
    pub(super) head: ValueHead,
    /// The combined checksums of the rows of a list's items.
    pub(super) items: i64,
    pub(super) version: i64,
    /// The version of the last change of a shared value that was not one at the ends of a list.
    pub(super) changed: i64,
    pub(super) checksum: i64,
    /// The checksum that its content has.
    found: i64,
}

/// The owner of rows of values: a session, or the scope of this number.
#[derive(Clone, Copy)]
pub(super) enum RowOwner {
    Session,
    Shared(i64),
}

impl HeadRow {
    /// The row of a session's value as it was written, at a version and with a checksum.
    pub(super) fn written(
        key: &str,
        schema: i64,
        head: ValueHead,
        items: i64,
        (version, checksum): (i64, i64),
    ) -> Self {
        HeadRow { key: key.to_owned(), schema, head, items, version, changed: 0, checksum, found: checksum }
    }

    /// Whether it is small enough to be cached.
    fn is_small(&self) -> bool {
        match &self.head {
            ValueHead::List(_) => true,
            ValueHead::Json(value) => match value {
                Value::Null | Value::Bool(_) | Value::Number(_) => true,
                Value::String(text) => text.len() <= MAX_CACHED_TEXT,
                Value::Array(items) => items.is_empty(),
                Value::Object(fields) => fields.is_empty(),
            },
        }
    }

    pub(super) fn read(
        row: &impl Columns,
        of: RowOwner,
        content: ContentKey<'_>,
    ) -> Result<Self, SessionError> {
        let (key, schema, version): (&str, i64, i64) = (row.get(0), row.get(1), row.get(7));
        let value: Option<&str> = row.get(2);
        let count = |column| row.get::<Option<i64>>(column).unwrap_or_default();
        let (extent, items) = (
            ListExtent { generation: from_db(count(3)), start: from_db(count(4)), length: from_db(count(5)) },
            count(6),
        );
        let is_list = value.is_none();
        let (found, changed) = match of {
            RowOwner::Session => {
                (sums::of_content(key, schema, value, is_list.then_some((extent, items))), 0)
            }
            RowOwner::Shared(scope) => {
                let list = is_list.then_some((to_db(extent.start), to_db(extent.length)));
                let changed = row.get(9);
                (seal::of_shared(scope, key, (version, changed), schema, value, list), changed)
            }
        };
        let head = match value {
            Some(text) => ValueHead::Json(read_json("value", &content.open(Place::value(key), text)?)?),
            None => ValueHead::List(extent),
        };
        let (key, checksum) = (key.to_owned(), row.get(8));
        Ok(HeadRow { key, schema, head, items, version, changed, checksum, found })
    }

    /// The extent of the items, if it is a list.
    pub(super) fn extent(&self) -> Option<ListExtent> {
        match self.head {
            ValueHead::List(extent) => Some(extent),
            ValueHead::Json(_) => None,
        }
    }

    /// The fields of a shared key's row on which its next change depends.
    pub(super) fn before(&self) -> SharedHead {
        SharedHead { extent: self.extent(), changed: self.changed, checksum: self.checksum }
    }

    /// Rejects a row that differs from the one that was written.
    pub(super) fn check(&self) -> Result<(), SessionError> {
        seal::compare(self.found, self.checksum, || format!("value of key \"{}\"", self.key))
    }

    /// The part of the row in the combined checksums of all.
    pub(super) fn sum(&self, of: RowOwner) -> i64 {
        match of {
            RowOwner::Session => sums::of_cell(&self.key, self.version, self.checksum),
            RowOwner::Shared(_) => self.checksum,
        }
    }
}

/// The rows of values, each checked.
pub(super) fn heads(
    rows: &[impl Columns],
    of: RowOwner,
    content: ContentKey<'_>,
) -> Result<Vec<HeadRow>, SessionError> {
    let read = |row| {
        let head = HeadRow::read(row, of, content)?;
        head.check().map(|()| head)
    };
    rows.iter().map(read).collect()
}

/// Items of lists by key.
pub(super) type ListItems = HashMap<String, List<Arc<Value>>>;

/// A list in assembly.
struct GatheredList {
    list: Result<ListAssembly, SessionError>,
    sum: i64,
    /// Whether rows of items stay sealed: then their number is unknown, and only their checksums are compared.
    is_sealed: bool,
}

impl GatheredList {
    fn add(&mut self, row: &impl Columns, content: ContentKey<'_>) {
        let (key, stream, generation, version): (&str, i64, i64, i64) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let (place, items, checksum): (i64, &str, i64) = (row.get(4), row.get(5), row.get(6));
        self.sum ^= checksum;
        let Ok(list) = &mut self.list else { return };
        let added = if sums::of_items((stream, version), key, (generation, place), items) == checksum {
            self.is_sealed |= content.leaves_sealed(items);
            match self.is_sealed {
                true => Ok(()),
                false => {
                    content.open(Place::item(key), items).and_then(|items| list.add(from_db(place), &items))
                }
            }
        } else {
            Err(damaged_list(key))
        };
        if let Err(error) = added {
            self.list = Err(error);
        }
    }

    fn finish(self, head: &HeadRow) -> Result<List<Arc<Value>>, SessionError> {
        let list = self.list?;
        match self.sum == head.items {
            true if self.is_sealed => Ok(List::default()),
            true => list.finish(&head.key),
            false => Err(damaged_list(&head.key)),
        }
    }
}

fn damaged_list(key: &str) -> SessionError {
    SessionError::damaged(format!("list \"{key}\""), "missing or damaged items")
}

/// The row of a list, and its items.
type ListResult<'h> = (&'h HeadRow, Result<List<Arc<Value>>, SessionError>);

/// The lists of a session by key, from rows in the order of their versions.
pub(super) fn session_lists<'h>(
    heads: &'h [HeadRow],
    rows: &[impl Columns],
    history: &PostgresHistory,
    content: ContentKey<'_>,
) -> Vec<ListResult<'h>> {
    let is_list = |row: &&HeadRow| matches!(row.head, ValueHead::List(_));
    let gathered = |row: &'h HeadRow| match row.head {
        ValueHead::List(extent) => {
            GatheredList { list: Ok(ListAssembly::new(extent)), sum: 0, is_sealed: false }
        }
        ValueHead::Json(_) => GatheredList { list: Err(damaged_list(&row.key)), sum: 0, is_sealed: false },
    };
    let mut lists: HashMap<&str, GatheredList> =
        heads.iter().filter(is_list).map(|row| (row.key.as_str(), gathered(row))).collect();
    for row in rows {
        let (stream, version) = (row.get(1), from_db(row.get(3)));
        if let Some(list) = lists.get_mut(row.get::<&str>(0))
            && history.visible.contains(version)
            && in_lineage(&history.lineage, stream, version)
        {
            list.add(row, content);
        }
    }
    let finished = |head: &'h HeadRow| Some((head, lists.remove(head.key.as_str())?.finish(head)));
    heads.iter().filter_map(finished).collect()
}

/// The items of a session's lists, from rows in the order of their versions.
pub(super) fn session_items(
    heads: &[HeadRow],
    rows: &[impl Columns],
    history: &PostgresHistory,
    content: ContentKey<'_>,
) -> Result<ListItems, SessionError> {
    let lists = session_lists(heads, rows, history, content);
    lists.into_iter().map(|(head, list)| Ok((head.key.clone(), list?))).collect()
}

/// Rows of items of shared lists by key.
fn by_key<C: Columns>(rows: &[C]) -> HashMap<&str, Vec<&C>> {
    let mut of_keys: HashMap<&str, Vec<&C>> = HashMap::new();
    for row in rows {
        of_keys.entry(row.get(0)).or_default().push(row);
    }
    of_keys
}

/// The items of a shared list that were added after a version of its scope, from rows of
/// `key, place, version, checksum, item`, newest first.
fn items_after(
    (key, extent): (&str, ListExtent),
    rows: &[&impl Columns],
    (scope, content): (i64, ContentKey<'_>),
    version: u64,
) -> Result<Vec<Arc<Value>>, SessionError> {
    let mut items = NewestItems::after(version, scope, (key, content), extent);
    for row in rows {
        let (place, version, checksum, item) = (row.get(1), row.get(2), row.get(3), row.get(4));
        items.add(&SharedItemRow { place, version, checksum, item })?;
    }
    items.finish()
}

/// The lists of a shared scope by key, from the rows of all their items; of the scope of a number, with the key of its content.
pub(super) fn shared_lists<'h>(
    heads: &'h [HeadRow],
    rows: &[impl Columns],
    of: (i64, ContentKey<'_>),
) -> Vec<ListResult<'h>> {
    let of_keys = by_key(rows);
    let list = |head: &'h HeadRow| {
        let rows = of_keys.get(head.key.as_str()).map(Vec::as_slice).unwrap_or_default();
        let items = items_after((&head.key, head.extent()?), rows, of, 0);
        Some((head, items.map(|items| items.into_iter().collect())))
    };
    heads.iter().filter_map(list).collect()
}

/// The items of shared lists, from the rows of all of them.
pub(super) fn shared_items(
    heads: &[HeadRow],
    rows: &[impl Columns],
    of: (i64, ContentKey<'_>),
) -> Result<ListItems, SessionError> {
    let lists = shared_lists(heads, rows, of);
    lists.into_iter().map(|(head, list)| Ok((head.key.clone(), list?))).collect()
}

/// The items that were appended to shared lists after a version of their scope, by key.
pub(super) fn appended(
    heads: &[HeadRow],
    rows: &[impl Columns],
    of: (i64, ContentKey<'_>),
    version: u64,
) -> Result<Vec<(Arc<str>, AppendedItems)>, SessionError> {
    let of_keys = by_key(rows);
    let lists = heads.iter().filter_map(|head| Some((head.key.as_str(), head.extent()?)));
    let appended = |(key, extent): (&str, ListExtent)| {
        let rows = of_keys.get(key).map(Vec::as_slice).unwrap_or_default();
        let items = items_after((key, extent), rows, of, version)?;
        let length = usize::try_from(extent.length).unwrap_or(usize::MAX);
        Ok((key.into(), AppendedItems { length, items }))
    };
    lists.map(appended).collect()
}

/// Values from their rows and items.
pub(super) async fn values(
    connection: &Object,
    schemas: &PostgresSchemas,
    heads: Vec<HeadRow>,
    mut items: ListItems,
) -> Result<ScopeValues, SessionError> {
    let mut values = Vec::with_capacity(heads.len());
    for HeadRow { key, schema, head, .. } in heads {
        let cell = match head {
            ValueHead::Json(value) => StoredValue::from(value),
            ValueHead::List(_) => StoredValue::list(items.remove(&key).unwrap_or_default()),
        };
        let schema = schemas.text(connection, schema).await?;
        values.push((Arc::from(key), TypedValue { cell, schema }));
    }
    Ok(values.into_iter().collect())
}

/// Reads `owner, scope, version, known, seal` of a scope, and checks that they are those of it.
pub(super) fn scope_row(
    row: &impl Columns,
    app: &AppId,
    user: Option<&UserId>,
) -> Result<ScopeRow, SessionError> {
    let found = ScopeRow::new(row.get(1), app, user);
    let seal = match row.get::<Option<&[u8]>>(4) {
        Some(bytes) => {
            let seal = ScopeSeal::from_bytes(bytes);
            Some(seal.ok_or_else(|| found.damaged("missing seal of its row"))?)
        }
        None => None,
    };
    found.opened((from_db(row.get(2)), from_db(row.get(3))), seal)
}

/// The scopes of the sessions of a user, from rows of `owner, scope, version, known, seal`.
pub(super) fn scopes(
    rows: &[impl Columns],
    app: &AppId,
    user: &UserId,
) -> Result<SharedScopes, SessionError> {
    let mut scopes =
        SharedScopes { app: ScopeRow::new(0, app, None), user: ScopeRow::new(0, app, Some(user)) };
    for row in rows {
        match row.get::<&str>(0).is_empty() {
            true => scopes.app = scope_row(row, app, None)?,
            false => scopes.user = scope_row(row, app, Some(user))?,
        }
    }
    Ok(scopes)
}
