//! The data of an app and its users in memory: values, sessions, and their order in a list.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use rpds::RedBlackTreeMapSync;
use stepfold_state_core::List;
use stepfold_state_core::state::{Delta, ValueRef, Write};

use super::branches::BranchIndex;
use super::change_index::ChangeIndex;
use super::claims::MemoryWork;
use super::event_versions::{EventVersions, KnownEvent};
use super::tag_index::TagIndex;
use crate::apply::merge_write;
use crate::error::SessionError;
use crate::event::{CommittedEvent, Event, FIRST, searched_of};
use crate::ids::{EventId, IdempotencyKey, LifeId, SessionId, SessionKey, UserId};
use crate::schema::SessionSchema;
use crate::scope::{ByScope, Scope, ScopeVersions, writes_of};
use crate::session::{ForkOrigin, RewindMark, ScopeValues, Session, TypedValue, VisibleVersions};
use crate::store::{
    EventRange, GetSession, ListSessions, PruneSession, Pruned, REMEMBERED_KEYS, Receipt, RetentionBound,
    WriteOrigin, WriteScope, page_of,
};
use crate::time::Timestamp;

pub(super) type PersistentValues = RedBlackTreeMapSync<Arc<str>, TypedValue>;

/// An app with its users.
#[derive(Debug, Default)]
pub(super) struct AppData {
    pub(super) shared: SharedScope,
    pub(super) users: HashMap<UserId, UserData>,
}

impl AppData {
    pub(super) fn place(&mut self, user: &UserId, id: &SessionId) -> Option<SessionSlot<'_>> {
        let UserData { user, sessions, moved, .. } = self.users.get_mut(user)?;
        Some(SessionSlot { app: &mut self.shared, user, moved, entry: sessions.get_mut(id)? })
    }

    /// All sessions.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&UserId, &SessionId, &SessionEntry)> {
        self.users
            .iter()
            .flat_map(|(user, data)| data.sessions.iter().map(move |(id, entry)| (user, id, &**entry)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty() && self.shared.is_empty()
    }
}

/// A session with all that its events may change: found once, since finding it costs more than most of the operations
/// on it.
pub(super) struct SessionSlot<'a> {
    pub(super) app: &'a mut SharedScope,
    pub(super) user: &'a mut SharedScope,
    moved: &'a mut Vec<SessionId>,
    pub(super) entry: &'a mut SessionEntry,
}

impl<'a> SessionSlot<'a> {
    /// The receipt, if the event was committed already.
    pub(super) fn repeated(
        &self,
        known: KnownEvent,
        key: &SessionKey,
        event: &Event,
    ) -> Result<Option<Receipt>, SessionError> {
        let version = self.entry.repeated(known, key, event)?;
        Ok(version.map(|version| Receipt::new(event.id.clone(), version).with_scopes(self.scopes())))
    }

    fn scopes(&self) -> ScopeVersions {
        ScopeVersions { app: self.app.version(), user: self.user.version() }
    }

    /// Adds an event, and the values that it leaves the session.
    pub(super) fn commit(
        self,
        id: &SessionId,
        known: KnownEvent,
        event: Arc<Event>,
        cells: PersistentValues,
    ) -> (Receipt, &'a mut MemoryWork) {
        let scopes = self.scopes();
        let SessionSlot { moved, entry, .. } = self;
        // NOTE: the order is repaired at the next list and not at each write: most sessions are written many times between
        // two lists.
        if entry.updated != event.at && entry.moved_from.is_none() {
            entry.moved_from = Some(entry.updated);
            moved.push(id.clone());
        }
        (entry.commit(known, event, cells, scopes), &mut entry.work)
    }
}

/// A user of an app.
#[derive(Debug, Default)]
pub(super) struct UserData {
    pub(super) user: SharedScope,
    /// On the heap: a table has room for twice as many.
    pub(super) sessions: HashMap<SessionId, Box<SessionEntry>>,
    /// Sessions by the time of their last write and their number, but for those that moved.
    order: BTreeMap<(Timestamp, i64), SessionId>,
    /// Sessions that were written since they were put in order, each once: most are written many times
    /// between two lists.
    moved: Vec<SessionId>,
}

impl UserData {
    pub(super) fn insert(&mut self, id: SessionId, entry: SessionEntry) {
        self.order.insert((entry.updated, entry.number), id.clone());
        self.sessions.insert(id, Box::new(entry));
    }

    pub(super) fn remove(&mut self, id: &SessionId) -> Option<Box<SessionEntry>> {
        self.put_in_order();
        let entry = self.sessions.remove(id)?;
        self.order.remove(&(entry.updated, entry.number));
        self.forget_fork(&entry);
        Some(entry)
    }

    fn put_in_order(&mut self) {
        for id in self.moved.drain(..) {
            if let Some(entry) = self.sessions.get_mut(&id)
                && let Some(listed) = entry.moved_from.take()
            {
                self.order.remove(&(listed, entry.number));
                self.order.insert((entry.updated, entry.number), id);
            }
        }
    }

    /// Removes the values of the user; returns their keys.
    pub(super) fn erase(&mut self) -> Vec<String> {
        let erased = std::mem::take(&mut self.user);
        if !self.sessions.is_empty() && erased.version() > 0 {
            // NOTE: other sessions' readers have cached the erased values under this version. A higher one makes them read
            // again, so that they do not take later values for changes of the erased ones.
            self.user.changed = ChangeIndex::after(&erased.changed);
        }
        erased.keys()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.user.is_empty()
    }

    /// Itself, with all sessions listed under the time of their last write.
    pub(super) fn in_order(&mut self) -> &Self {
        self.put_in_order();
        self
    }

    /// The sessions after a place of the list, in the order that [`in_order`](UserData::in_order) has made.
    pub(super) fn newest_first(
        &self,
        after: Option<(Timestamp, i64)>,
    ) -> impl Iterator<Item = (&SessionId, &SessionEntry)> {
        let end = after.unwrap_or((Timestamp::from_micros(i64::MAX), i64::MAX));
        let found = self.order.range(..end).rev().filter_map(|(_, id)| self.sessions.get_key_value(id));
        found.map(|(id, entry)| (id, &**entry))
    }
}

/// A scope that outlives sessions.
#[derive(Debug, Default)]
pub(super) struct SharedScope {
    pub(super) cells: PersistentValues,
    /// Which of them were written when.
    changed: ChangeIndex,
    /// The newest idempotency keys, oldest first, each with its write.
    keys: VecDeque<(IdempotencyKey, Delta)>,
}

impl SharedScope {
    pub(super) fn values(&self) -> ScopeValues {
        values(&self.cells)
    }

    pub(super) fn version(&self) -> u64 {
        self.changed.version()
    }

    /// The requested values.
    fn asked(&self, request: &GetSession, scope: Scope, seen: Option<u64>) -> ScopeValues {
        let changed = seen.and_then(|version| self.changed.since(version));
        match request.requested_keys(scope, changed) {
            Some(keys) => values_of(&self.cells, keys),
            None => self.values(),
        }
    }

    /// Stores the values after a write.
    fn put<'a>(&mut self, cells: PersistentValues, writes: impl Iterator<Item = &'a Write>) {
        let before = std::mem::replace(&mut self.cells, cells);
        let mut is_first = true;
        for write in writes {
            if std::mem::take(&mut is_first) {
                self.changed.begin();
            }
            if is_unchanged(&before, &self.cells, write.key()) {
                continue;
            }
            let stored = self.cells.get_key_value(write.key());
            match stored {
                Some((key, _)) => self.changed.note(key, true),
                None => self.changed.note(&write.key().into(), false),
            }
        }
    }

    /// The keys, in order.
    pub(super) fn keys(&self) -> Vec<String> {
        sorted(&self.cells)
    }

    fn is_empty(&self) -> bool {
        self.cells.is_empty() && self.keys.is_empty() && self.version() == 0
    }

    pub(super) fn write(&mut self, request: &WriteScope) -> Result<ScopeValues, SessionError> {
        if let Some(key) = &request.idempotency_key {
            match self.keys.iter().find(|(known, _)| known == key) {
                Some((_, delta)) if *delta == request.delta => return Ok(self.values()),
                Some(_) => {
                    let (scope, idempotency_key) = (request.scope.to_string(), key.clone());
                    return Err(SessionError::IdempotencyKeyReused { scope, idempotency_key });
                }
                None => {}
            }
        }
        let what = WriteOrigin::Scope(&request.scope);
        let cells = merged(self.cells.clone(), request.delta.iter(), &request.schema, what)?;
        self.put(cells, request.delta.iter());
        if let Some(key) = &request.idempotency_key {
            self.keys.push_back((key.clone(), request.delta.clone()));
            if self.keys.len() > REMEMBERED_KEYS {
                self.keys.pop_front();
            }
        }
        Ok(self.values())
    }
}

/// Writes to both shared scopes, or to none.
pub(super) fn write_shared(
    (app, user): (&mut SharedScope, &mut SharedScope),
    delta: &Delta,
    schema: &SessionSchema,
    what: WriteOrigin<'_>,
) -> Result<(), SessionError> {
    let is_shared = |write: &Write| matches!(Scope::of(write.key()), Scope::App | Scope::User);
    if !delta.iter().any(is_shared) {
        return Ok(());
    }
    // NOTE: the maps are persistent: a clone is a pointer, and both results exist before either scope is changed.
    let app_cells = merged(app.cells.clone(), writes_of(delta, Scope::App), schema, what)?;
    let user_cells = merged(user.cells.clone(), writes_of(delta, Scope::User), schema, what)?;
    user.put(user_cells, writes_of(delta, Scope::User));
    app.put(app_cells, writes_of(delta, Scope::App));
    Ok(())
}

/// Whether writes have left the value of a key as it was: no key, or the same list or JSON.
fn is_unchanged(before: &PersistentValues, after: &PersistentValues, key: &str) -> bool {
    // NOTE: compared by pointer, as databases do: a handler that keeps a value keeps its pointer, and comparing large values
    // would cost their size.
    match [before, after].map(|cells| cells.get(key).map(|held| held.cell.view())) {
        [None, None] => true,
        [Some(ValueRef::List(before)), Some(ValueRef::List(after))] => before.ptr_eq(after),
        [Some(ValueRef::Json(before)), Some(ValueRef::Json(after))] => std::ptr::eq(before, after),
        _ => false,
    }
}

fn sorted(cells: &PersistentValues) -> Vec<String> {
    let mut keys: Vec<String> = cells.keys().map(ToString::to_string).collect();
    keys.sort_unstable();
    keys
}

fn values(cells: &PersistentValues) -> ScopeValues {
    cells.iter().map(|(key, held)| (Arc::clone(key), held.clone())).collect()
}

fn values_of(cells: &PersistentValues, keys: BTreeSet<Arc<str>>) -> ScopeValues {
    let value = |key: Arc<str>| {
        let value = cells.get(&key).cloned();
        (key, value)
    };
    ScopeValues::of_keys(keys.into_iter().map(value))
}

fn merged<'a>(
    mut cells: PersistentValues,
    writes: impl Iterator<Item = &'a Write>,
    schema: &SessionSchema,
    what: WriteOrigin<'_>,
) -> Result<PersistentValues, SessionError> {
    for write in writes {
        match merge_write(schema, cells.get(write.key()), write, what)? {
            Some(cell) => {
                let held = TypedValue { cell, schema: Arc::clone(schema.text()) };
                match cells.get_mut(write.key()) {
                    Some(place) => *place = held,
                    None => cells.insert_mut(write.key().into(), held),
                }
            }
            None => {
                cells.remove_mut(write.key());
            }
        }
    }
    Ok(cells)
}

/// A session.
#[derive(Debug)]
pub(super) struct SessionEntry {
    pub(super) number: i64,
    pub(super) updated: Timestamp,
    /// The time under which it is still listed, if it was written since.
    moved_from: Option<Timestamp>,
    pub(super) created: Timestamp,
    pub(super) parent: Option<ForkOrigin>,
    /// The sessions of which it shares events, deleted ones included: their numbers, each with the version before its own
    /// first event.
    pub(super) origins: Vec<(i64, u64)>,
    /// Events up to this version were deleted.
    pub(super) oldest: u64,
    /// The events after `oldest`.
    log: List<CommittedEvent>,
    /// The values at each version from `oldest` on.
    cells: List<PersistentValues>,
    rewinds: Vec<RewindMark>,
    versions: EventVersions,
    tags: TagIndex,
    pub(super) branches: BranchIndex,
    pub(super) work: MemoryWork,
}

impl SessionEntry {
    pub(super) fn new(
        number: i64,
        at: Timestamp,
        delta: &Delta,
        schema: &SessionSchema,
        life: Option<LifeId>,
    ) -> Result<Self, SessionError> {
        let cells = merged(
            PersistentValues::default(),
            writes_of(delta, Scope::Session),
            schema,
            WriteOrigin::NewSession,
        )?;
        Ok(SessionEntry {
            number,
            updated: at,
            moved_from: None,
            created: at,
            parent: None,
            origins: Vec::new(),
            oldest: 0,
            log: List::new(),
            cells: [cells].into_iter().collect(),
            rewinds: Vec::new(),
            versions: EventVersions::default(),
            tags: TagIndex::default(),
            branches: BranchIndex::default(),
            work: MemoryWork::new(life, number),
        })
    }

    /// With the events that it begins with. What they wrote to shared scopes is not written again.
    pub(super) fn with_events(
        mut self,
        key: &SessionKey,
        events: Vec<Arc<Event>>,
        schema: &SessionSchema,
    ) -> Result<Self, SessionError> {
        for event in events {
            let known = self.known(&event.id);
            if self.repeated(known, key, &event)?.is_some() {
                continue;
            }
            let cells = match event.actions.rewound_to {
                Some(to) => self.cells_at(key, to)?,
                None => self.merged(&event.actions.delta, schema, WriteOrigin::Event(&event.id))?,
            };
            self.commit(known, event, cells, ScopeVersions::default());
        }
        Ok(self)
    }

    pub(super) fn version(&self) -> u64 {
        self.oldest + self.events()
    }

    /// The number of events that are left.
    pub(super) fn events(&self) -> u64 {
        self.log.len() as u64
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.now().map(sorted).unwrap_or_default()
    }

    fn now(&self) -> Option<&PersistentValues> {
        self.cells.last()
    }

    /// Looks an event's id up.
    pub(super) fn known(&self, id: &EventId) -> KnownEvent {
        self.versions.find(id, |version| self.committed(version).is_some_and(|event| event.id == *id))
    }

    /// The version of the newest visible event with each of the tags.
    pub(super) fn find_tagged(&self, tags: &[String]) -> Vec<Option<u64>> {
        let visible = VisibleVersions::at(self.version(), &self.rewinds);
        let newest = |tag: &String| self.tags.newest_first(tag).find(|version| visible.contains(*version));
        tags.iter().map(newest).collect()
    }

    fn committed(&self, version: u64) -> Option<&Event> {
        self.committed_event(version).map(|event| &**event)
    }

    /// The event of a version, as the sessions that share it hold it.
    pub(super) fn committed_event(&self, version: u64) -> Option<&Arc<Event>> {
        let offset = version.checked_sub(self.oldest + 1)?;
        self.log.get(index(offset)).map(|committed| &committed.event)
    }

    /// Replaces an event by what its erasure has left.
    pub(super) fn set_event(&mut self, committed: CommittedEvent) {
        if let Some(offset) = committed.version.checked_sub(self.oldest + 1) {
            self.log.set(index(offset), committed);
        }
    }

    /// The version that the event gave the session, if it was committed already.
    fn repeated(
        &self,
        known: KnownEvent,
        key: &SessionKey,
        event: &Event,
    ) -> Result<Option<u64>, SessionError> {
        let Some(version) = known.version else { return Ok(None) };
        if self.committed(version).is_some_and(|committed| *committed == *event) {
            return Ok(Some(version));
        }
        if self.committed(version).is_some_and(|committed| committed.erasure().is_some()) {
            return Err(SessionError::erased(key, version));
        }
        Err(SessionError::event_reused(key, &event.id))
    }

    /// The values after these writes.
    pub(super) fn merged(
        &self,
        delta: &Delta,
        schema: &SessionSchema,
        what: WriteOrigin<'_>,
    ) -> Result<PersistentValues, SessionError> {
        merged(self.now().cloned().unwrap_or_default(), writes_of(delta, Scope::Session), schema, what)
    }

    fn commit(
        &mut self,
        known: KnownEvent,
        event: Arc<Event>,
        cells: PersistentValues,
        scopes: ScopeVersions,
    ) -> Receipt {
        let version = self.version() + 1;
        let receipt = Receipt::new(event.id.clone(), version).with_scopes(scopes);
        self.updated = event.at;
        self.versions.insert(known, version);
        self.tags.insert(&event, version);
        self.rewinds.extend(event.actions.rewound_to().map(|to| RewindMark { version, to }));
        self.log.push(CommittedEvent { version, event });
        self.cells.push(cells);
        receipt
    }

    pub(super) fn cells_at(&self, key: &SessionKey, version: u64) -> Result<PersistentValues, SessionError> {
        let cells = version.checked_sub(self.oldest).and_then(|offset| self.cells.get(index(offset)));
        cells.cloned().ok_or_else(|| SessionError::no_such_version(key, version, self.oldest, self.version()))
    }

    pub(super) fn fork(
        &self,
        key: &SessionKey,
        version: u64,
        number: i64,
        at: Timestamp,
        life: Option<LifeId>,
    ) -> Result<Self, SessionError> {
        self.cells_at(key, version)?;
        let length = index(version - self.oldest);
        let mut tags = self.tags.clone();
        // NOTE: a fork shares events and values, but its index of tags must not find events after the fork.
        tags.retain(|tagged| tagged <= version);
        Ok(SessionEntry {
            number,
            updated: at,
            moved_from: None,
            created: at,
            parent: Some(ForkOrigin { id: key.id.clone(), version }),
            origins: self.origins_at(version),
            oldest: self.oldest,
            log: first(&self.log, length),
            cells: first(&self.cells, length + 1),
            rewinds: self.rewinds.iter().copied().filter(|rewound| rewound.version <= version).collect(),
            versions: EventVersions::default(),
            tags,
            branches: BranchIndex::default(),
            work: MemoryWork::new(life, number),
        })
    }

    /// The sessions of which a fork at a version shares events.
    fn origins_at(&self, version: u64) -> Vec<(i64, u64)> {
        let own = (self.number, self.parent.as_ref().map_or(0, |parent| parent.version));
        let all = self.origins.iter().copied().chain([own]);
        // NOTE: the first one stays even if none of its events is shared: its initial values are.
        all.enumerate()
            .filter(|(place, (_, after))| *place == 0 || *after < version)
            .map(|(_, origin)| origin)
            .collect()
    }

    pub(super) fn prune(&mut self, request: &PruneSession) -> Result<Pruned, SessionError> {
        let newest = self.version();
        request.check_claim(&self.work.fence, request.at)?;
        let oldest = match request.kept(self.oldest, newest)? {
            RetentionBound::From(version) => version,
            RetentionBound::Since { after, time } => {
                let mut events = self.log.iter().filter(|committed| committed.version > after);
                let first = events.find(|committed| committed.event.at >= time);
                first.map_or(newest, |first| first.version - 1)
            }
        };
        let labelled = self.labels().into_iter().filter(|_| request.keeps_labels());
        let oldest = PruneSession::bounded(oldest, self.oldest, labelled.map(|(_, version)| version));
        if let Some(pruned) = request.unchanged(oldest, self.oldest) {
            return Ok(pruned);
        }
        let events = oldest - self.oldest;
        for committed in self.log.iter().take(index(events)) {
            self.versions.remove(&committed.event.id, committed.version);
        }
        self.log.keep_last(index(newest - oldest));
        self.cells.keep_last(index(newest - oldest + 1));
        self.oldest = oldest;
        self.tags.retain(|version| version > oldest);
        self.branches.prune(oldest);
        Ok(Pruned { events, oldest })
    }

    /// The requested parts of the session. `key` is its own: a list reads many sessions with one request.
    pub(super) fn session(
        &self,
        key: SessionKey,
        request: &GetSession,
        app: &SharedScope,
        user: &SharedScope,
    ) -> Result<Session, SessionError> {
        let version = request.version_in(self.oldest, self.version())?;
        let cells = request.state.then(|| self.cells_at(&key, version)).transpose()?;
        let visible = VisibleVersions::at(version, &self.rewinds);
        let scopes = request.since.map(|seen| seen.scopes);
        let events = match request.events {
            EventRange::None => Vec::new(),
            events => self.range(events, &request.event_ranges(&visible, version)),
        };
        Ok(Session {
            key,
            life: self.work.life.clone(),
            version,
            newest: self.version(),
            created: self.created,
            updated: self.updated,
            claim: self.work.fence.as_of(request.now),
            inbox: self.work.inbox.newest(),
            parent: self.parent.clone(),
            oldest: self.oldest,
            head: None,
            scopes: ScopeVersions { app: app.version(), user: user.version() },
            values: cells.map(|cells| ByScope {
                app: app.asked(request, Scope::App, scopes.map(|scopes| scopes.app)),
                user: user.asked(request, Scope::User, scopes.map(|scopes| scopes.user)),
                session: self.asked(request, &cells),
            }),
            events,
            visible,
        })
    }

    /// The requested ones of its own values, given all of them.
    fn asked(&self, request: &GetSession, cells: &PersistentValues) -> ScopeValues {
        let seen = request.since.filter(|_| request.version.is_none());
        let changed = seen.and_then(|seen| self.changed_since(seen.version));
        match request.requested_keys(Scope::Session, changed) {
            Some(keys) => values_of(cells, keys),
            None => values(cells),
        }
    }

    /// The keys that were written after a version; `None` if they are unknown.
    fn changed_since(&self, version: u64) -> Option<BTreeSet<Arc<str>>> {
        let is_rewound = self.rewinds.last().is_some_and(|rewound| rewound.version > version);
        if is_rewound || version > self.version() {
            return None;
        }
        let events = self.log.iter_from(index(version.checked_sub(self.oldest)?));
        let writes = events.flat_map(|committed| writes_of(&committed.event.actions.delta, Scope::Session));
        Some(writes.map(|write| write.key().into()).collect())
    }

    /// Whether the session is one of those that a list wants.
    pub(super) fn is_wanted(&self, id: &SessionId, request: &ListSessions) -> bool {
        if !request.unfinished && request.text.is_none() {
            return true;
        }
        let first = || self.range(EventRange::Page { after: 0, limit: FIRST }, &self.visible_ranges());
        (!request.unfinished || self.is_unfinished())
            && request.text.as_ref().is_none_or(|text| searched_of(id, &first()).contains(&**text))
    }

    /// Whether the newest visible event is of an unfinished run.
    pub(super) fn is_unfinished(&self) -> bool {
        let ranges = self.visible_ranges();
        let mut newest_first = ranges.iter().rev().flat_map(|range| self.newest_first(*range));
        newest_first.next().is_some_and(|newest| newest.event.is_unfinished())
    }

    fn visible_ranges(&self) -> Vec<(u64, u64)> {
        VisibleVersions::at(self.version(), &self.rewinds).ranges().collect()
    }

    /// The oldest events after a version, those that a rewind has hidden as well.
    pub(super) fn page(&self, after: u64, limit: usize) -> Vec<CommittedEvent> {
        self.range(EventRange::Page { after, limit }, &[(1, self.version())])
    }

    /// Events of some ranges of versions, in order.
    fn range(&self, events: EventRange, ranges: &[(u64, u64)]) -> Vec<CommittedEvent> {
        let (after, limit) = match events {
            EventRange::None => return Vec::new(),
            EventRange::All => (0, usize::MAX),
            EventRange::Last(count) => (0, count),
            EventRange::AfterVersion(version) => (version, usize::MAX),
            EventRange::Page { after, limit } => {
                let page = page_of(ranges, after.max(self.oldest), limit);
                return self.range(EventRange::All, &page);
            }
            EventRange::Since(time) => {
                // NOTE: events have the caller's times, which need not grow; the newest older event decides, so that later
                // ones are complete.
                let is_older = |committed: &&CommittedEvent| committed.event.at < time;
                let older = ranges.iter().rev().find_map(|range| self.newest_first(*range).find(is_older));
                (older.map_or(0, |committed| committed.version), usize::MAX)
            }
        };
        let newest_first = ranges
            .iter()
            .rev()
            .flat_map(|(first, last)| self.newest_first(((*first).max(after.saturating_add(1)), *last)));
        let mut events: Vec<CommittedEvent> = newest_first.take(limit).cloned().collect();
        events.reverse();
        events
    }

    /// The events of a range of versions, as far as they are kept.
    fn newest_first(&self, (first, last): (u64, u64)) -> impl Iterator<Item = &CommittedEvent> {
        let first = first.max(self.oldest + 1);
        (first..=last).rev().filter_map(|version| self.log.get(index(version - self.oldest - 1)))
    }
}

fn first<T: Clone>(list: &List<T>, length: usize) -> List<T> {
    let mut first = list.clone();
    first.truncate(length);
    first
}

/// An index in memory. Counts of items in memory fit `usize`.
fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Author, InvocationId};
    use stepfold_state_core::state::Schema;

    const USER: &str = "alice";

    fn insert(app: &mut AppData, id: &str, at: i64) {
        let schema = SessionSchema::new(Schema::default());
        let (number, at) = (at, Timestamp::from_micros(at));
        let entry = SessionEntry::new(number, at, &Delta::new(), &schema, None).unwrap();
        app.user().insert(SessionId::new(id).unwrap(), entry);
    }

    fn write(app: &mut AppData, id: &str, at: i64) {
        let (user, id) = (UserId::new(USER).unwrap(), SessionId::new(id).unwrap());
        let place = app.place(&user, &id).unwrap();
        let event = EventId::new(place.entry.version().to_string()).unwrap();
        let known = place.entry.known(&event);
        let (invocation, author) = (InvocationId::new("i").unwrap(), Author::new("agent").unwrap());
        let event = Event::new(event, invocation, author, Timestamp::from_micros(at));
        place.commit(&id, known, Arc::new(event), PersistentValues::default());
    }

    impl AppData {
        fn user(&mut self) -> &mut UserData {
            self.users.entry(UserId::new(USER).unwrap()).or_default()
        }

        fn listed(&mut self) -> String {
            let tenant = self.user().in_order();
            assert_eq!(tenant.order.len(), tenant.sessions.len());
            tenant.newest_first(None).map(|(id, _)| id.as_str()).collect::<Vec<_>>().join(" ")
        }
    }

    #[test]
    fn a_session_moves_once_however_often_it_was_written() {
        let mut app = AppData::default();
        insert(&mut app, "a", 1);
        insert(&mut app, "b", 2);
        assert_eq!(app.listed(), "b a");
        // The clock may go back, also to the time under which the session is listed.
        for at in [3, 1, 4, 1, 5] {
            write(&mut app, "a", at);
        }
        assert_eq!(app.user().moved.len(), 1);
        assert_eq!(app.listed(), "a b");
        write(&mut app, "a", 1);
        assert_eq!(app.listed(), "b a");
    }

    #[test]
    fn a_deleted_session_leaves_no_trace_in_the_order() {
        let mut app = AppData::default();
        insert(&mut app, "a", 1);
        insert(&mut app, "b", 2);
        write(&mut app, "a", 3);
        app.user().remove(&SessionId::new("a").unwrap()).unwrap();
        assert!(app.user().moved.is_empty());
        insert(&mut app, "a", 1);
        assert_eq!(app.listed(), "b a");
    }
}
