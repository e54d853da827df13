//! Requests to a store and their responses. A request contains everything that an operation depends on,
//! including the time and the schema.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use stepfold_state_core::decode;
use stepfold_state_core::state::{Delta, StateError};

use super::budgets::{AppendReservation, ReserveSpend, SettleSpend};
use super::claims::{AppendClaim, ClaimFence, TakeOver};
use super::origin::WriteOrigin;
use crate::changes::SeenVersions;
use crate::digest::ContentSalt;
use crate::error::SessionError;
use crate::event::{Event, EventKind, lower};
use crate::ids::{
    AppId, Author, EventId, IdempotencyKey, InvocationId, Label, LifeId, SessionId, SessionKey, UserId,
};
use crate::schema::SessionSchema;
use crate::scope::{Scope, ScopeVersions, check_keys, drop_temp, has_temp};
use crate::session::{Claim, Session, is_known};
use crate::time::Timestamp;

/// A session to be made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CreateSession {
    /// The application.
    pub app: AppId,
    /// The user.
    pub user: UserId,
    /// The id; the store generates one if `None`.
    pub id: Option<SessionId>,
    /// Its incarnation; random if `None`. A caller that sets it must never reuse it.
    pub life: Option<LifeId>,
    /// The time.
    pub at: Timestamp,
    /// The schema for validating its values.
    pub schema: SessionSchema,
    /// The values to begin with, by key; of any scope.
    pub values: Map<String, Value>,
    /// The events to begin with, such as those of another store: committed in order, with the session, or not at all. Their
    /// writes to shared scopes stay in the events, and are not repeated. Events of rewinds rewind.
    pub events: Vec<Arc<Event>>,
    /// The labels to begin with, each with its version: set with the session, or not at all. Of a repeated label the last
    /// one counts.
    pub labels: Vec<(Label, u64)>,
}

impl CreateSession {
    /// A session with an id that the store makes, and no values.
    ///
    /// # Errors
    /// [`SessionError::InvalidId`].
    pub fn new(
        app: impl Into<Arc<str>>,
        user: impl Into<Arc<str>>,
        schema: &SessionSchema,
        at: Timestamp,
    ) -> Result<Self, SessionError> {
        let (app, user) = (AppId::new(app)?, UserId::new(user)?);
        Ok(CreateSession {
            app,
            user,
            id: None,
            life: None,
            at,
            schema: schema.clone(),
            values: Map::new(),
            events: Vec::new(),
            labels: Vec::new(),
        })
    }

    /// A session with this key and no values.
    pub fn with_key(key: SessionKey, schema: &SessionSchema, at: Timestamp) -> Self {
        let SessionKey { app, user, id } = key;
        CreateSession {
            app,
            user,
            id: Some(id),
            life: None,
            at,
            schema: schema.clone(),
            values: Map::new(),
            events: Vec::new(),
            labels: Vec::new(),
        }
    }

    /// Sets the incarnation.
    #[must_use]
    pub fn with_life(mut self, life: LifeId) -> Self {
        self.life = Some(life);
        self
    }

    /// The values to begin with: an object by key.
    ///
    /// # Errors
    /// [`SessionError::State`] when it is not an object.
    pub fn values(mut self, values: Value) -> Result<Self, SessionError> {
        self.values = match values {
            Value::Object(values) => values,
            other => decode(&other)
                .map_err(|source| StateError::Json { what: "initial values", source })
                .map_err(SessionError::state(WriteOrigin::NewSession))?,
        };
        Ok(self)
    }
}

impl CreateSession {
    /// Sets the events to begin with: see [`events`](CreateSession::events).
    #[must_use]
    pub fn with_events(mut self, events: impl IntoIterator<Item = Arc<Event>>) -> Self {
        self.events.extend(events);
        self
    }

    /// Sets labels on its versions: see [`labels`](CreateSession::labels).
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use stepfold_session_scopes::{
    ///     CreateSession, Label, MemoryStore, ReadLabels, SessionError, SessionSchema, SessionStore, Timestamp,
    /// };
    ///
    /// let (store, schema) = (MemoryStore::new(), SessionSchema::new(Default::default()));
    /// let request = || CreateSession::new("my_app", "alice", &schema, Timestamp::from_micros(0));
    /// let label = Label::new("start")?;
    /// let key = store.create(request()?.with_labels([(label.clone(), 0)])).await?.key;
    /// assert_eq!(store.labels(ReadLabels::new(key)).await?, [(label.clone(), 0)]);
    ///
    /// // A session without events has no version 1: it is not made.
    /// let refused = store.create(request()?.with_labels([(label, 1)])).await;
    /// assert!(matches!(refused, Err(SessionError::NoSuchVersion { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    #[must_use]
    pub fn with_labels(mut self, labels: impl IntoIterator<Item = (Label, u64)>) -> Self {
        self.labels.extend(labels);
        self
    }
}

/// Events that are committed with their session: validated, and without writes to `temp:`.
pub(crate) fn first_events(events: Vec<Arc<Event>>) -> Result<Vec<Arc<Event>>, SessionError> {
    let prepared = events.into_iter().map(|mut event| {
        event.check()?;
        let Event { id, actions, .. } = &*event;
        check_keys(&actions.delta).map_err(SessionError::state(WriteOrigin::Event(id)))?;
        if has_temp(&actions.delta) {
            drop_temp(&mut Arc::make_mut(&mut event).actions.delta);
        }
        Ok(event)
    });
    prepared.collect()
}

/// A session to be read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GetSession {
    /// The session.
    pub key: SessionKey,
    /// The requested events.
    pub events: EventRange,
    /// Whether its values are requested.
    pub state: bool,
    /// The time for expiring claims; an expired one is not returned. Without it, a claim is returned until it
    /// is released, except by stores with their own clock.
    pub now: Option<Timestamp>,
    /// The keys whose values are read, if values are requested; `None` for all.
    pub keys: Option<BTreeSet<Arc<str>>>,
    /// Restricts requested values to those that have changed since these versions.
    pub since: Option<SeenVersions>,
    /// The schema of the state that requested changes update: see [`incremental`](GetSession::incremental).
    pub incremental: Option<SessionSchema>,
    /// The requested version; the newest if `None`.
    pub version: Option<u64>,
    /// Whether events that a rewind has hidden are included.
    pub hidden: bool,
}

impl GetSession {
    /// The values and all events.
    pub fn new(key: SessionKey) -> Self {
        GetSession {
            key,
            events: EventRange::All,
            state: true,
            now: None,
            keys: None,
            since: None,
            incremental: None,
            version: None,
            hidden: true,
        }
    }

    /// Sets the requested events.
    #[must_use]
    pub fn events(mut self, events: EventRange) -> Self {
        self.events = events;
        self
    }

    /// Omits the values.
    #[must_use]
    pub fn without_state(mut self) -> Self {
        self.state = false;
        self
    }

    /// Omits a claim that has expired by this time.
    #[must_use]
    pub fn now(mut self, now: Timestamp) -> Self {
        self.now = Some(now);
        self
    }

    /// Requests the values of these keys only, of any scope. Values of other keys are not read.
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use serde_json::json;
    /// use stepfold_session_scopes::{CreateSession, GetSession, MemoryStore, SessionSchema, SessionStore, Timestamp};
    /// use stepfold_state_core::state::Schema;
    ///
    /// let schema: SessionSchema = Schema::builder().open().build()?.into();
    /// let request = CreateSession::new("my_app", "alice", &schema, Timestamp::from_micros(0))?
    ///     .values(json!({"topic": "engines", "pdf": "...", "user:name": "Ada"}))?;
    /// let store = MemoryStore::new();
    /// let key = store.create(request).await?.key;
    /// let session = store.get(GetSession::new(key).keys(["topic", "user:name"])).await?;
    /// assert_eq!(session.to_json(), json!({"topic": "engines", "user:name": "Ada"}));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    #[must_use]
    pub fn keys<K: Into<Arc<str>>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.keys = Some(keys.into_iter().map(Into::into).collect());
        self
    }

    /// Restricts the values to those that have changed since these versions: of keys that were written since, or
    /// [removed](crate::ScopeValues::removed). [`Session::update`] updates an earlier state with them. A shared key whose
    /// value all writes have left as it was (`union` with what is there, for example) has not changed; of the session's own
    /// keys a store may return such a one.
    ///
    /// A store that cannot determine the changes of a scope returns all its values, as
    /// [`ScopeValues::is_whole`](crate::ScopeValues::is_whole) shows: when the seen version was pruned, when the
    /// session was rewound since, or when more keys were removed than a scope remembers
    /// ([`REMEMBERED_REMOVALS`]). Changes since a read of an earlier, deleted session with this key cannot be
    /// determined.
    #[must_use]
    pub fn changed_since(mut self, seen: SeenVersions) -> Self {
        self.since = Some(seen);
        self
    }

    /// Restricts the changes to those that [`Session::update`] needs for a state under this schema: of a list under `app:`
    /// or `user:` that was only appended to since, the [new items](crate::ScopeValues::appended); of keys that the schema does
    /// not declare, nothing. Has no effect without [`changed_since`](GetSession::changed_since).
    ///
    /// A list whose items were changed since, whose stored type is another one, or which is the session's own, is read
    /// whole; so are all lists of a store for which that costs nothing, such as [`MemoryStore`](crate::MemoryStore).
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use serde_json::json;
    /// use stepfold_session_scopes::{
    ///     CreateSession, GetSession, MemoryStore, ScopeKey, SessionSchema, SessionStore, Timestamp, WriteScope,
    /// };
    /// use stepfold_state_core::state::Schema;
    ///
    /// let schema: SessionSchema = Schema::builder().key::<Vec<String>>("user:seen").build()?.into();
    /// let request = CreateSession::new("my_app", "alice", &schema, Timestamp::from_micros(0))?
    ///     .values(json!({"user:seen": ["map.pdf"]}))?;
    /// let store = MemoryStore::new();
    /// let session = store.create(request).await?;
    /// let state = session.state(&schema)?;
    ///
    /// // Another session of the user appends. With a database, this reads only the new item.
    /// let delta = [schema.schema().write("user:seen", json!(["plan.pdf"]))?].into_iter().collect();
    /// store.write_scope(WriteScope::new(ScopeKey::user("my_app", "alice")?, delta, &schema)).await?;
    /// let get = GetSession::new(session.key.clone()).changed_since(session.seen()).incremental(&schema);
    /// let state = store.get(get).await?.update(state, &schema)?;
    /// assert_eq!(state.get("user:seen").unwrap(), json!(["map.pdf", "plan.pdf"]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    #[must_use]
    pub fn incremental(mut self, schema: &SessionSchema) -> Self {
        self.incremental = Some(schema.clone());
        self
    }
}

impl GetSession {
    /// The keys of a scope whose values are read, given the changed ones if requested and known; `None`: all
    /// values.
    pub(crate) fn requested_keys(
        &self,
        scope: Scope,
        changed: Option<BTreeSet<Arc<str>>>,
    ) -> Option<BTreeSet<Arc<str>>> {
        let changed = changed.map(|mut keys| {
            keys.retain(|key| self.incremental.as_ref().is_none_or(|schema| is_known(schema, key)));
            keys
        });
        let Some(asked) = &self.keys else { return changed };
        let of_scope = asked.iter().filter(|key| Scope::of(key) == scope);
        Some(
            of_scope.filter(|key| changed.as_ref().is_none_or(|keys| keys.contains(*key))).cloned().collect(),
        )
    }

    /// The version of a shared scope from which items of a list are read, given its last change other than
    /// appending and its schema; `None` if the list is read completely. Only called when the changes are
    /// known.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn items_after(&self, scope: Scope, key: &str, (changed, stored): (u64, &str)) -> Option<u64> {
        let (seen, schema) = (self.since?.scopes, self.incremental.as_ref()?);
        let seen = if scope == Scope::App { seen.app } else { seen.user };
        (changed <= seen && schema.has_type_of(key, stored)).then_some(seen)
    }
}

/// The number of removed keys that a shared scope remembers, for reading changes.
pub const REMEMBERED_REMOVALS: usize = 1_000;

/// An event to be found by its id.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FindEvent {
    /// The session.
    pub key: SessionKey,
    /// The id.
    pub id: EventId,
}

impl FindEvent {
    /// The event with this id.
    pub const fn new(key: SessionKey, id: EventId) -> Self {
        FindEvent { key, id }
    }
}

/// Events to be found by their tags.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FindTagged {
    /// The session.
    pub key: SessionKey,
    /// The tags.
    pub tags: Vec<String>,
}

impl FindTagged {
    /// The newest event with each of these tags.
    pub fn new<T: Into<String>>(key: SessionKey, tags: impl IntoIterator<Item = T>) -> Self {
        FindTagged { key, tags: tags.into_iter().map(Into::into).collect() }
    }
}

/// The sizes of events to be read, before the events are.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EventSizes {
    /// The session.
    pub key: SessionKey,
    /// The version before the first.
    pub after: u64,
    /// The maximum number.
    pub limit: usize,
    /// Whether the sizes are those in memory.
    pub in_memory: bool,
}

impl EventSizes {
    /// The sizes of the oldest events after a version, up to a number: those that [`EventRange::Page`] reads, of the newest
    /// version of the session.
    pub const fn new(key: SessionKey, after: u64, limit: usize) -> Self {
        EventSizes { key, after, limit, in_memory: false }
    }

    /// Requests the approximate sizes in memory after reading: many small values take many times the memory of their text.
    /// The events are read for it, one after the other.
    #[must_use]
    pub const fn in_memory(mut self) -> Self {
        self.in_memory = true;
        self
    }
}

/// The size of the values of a session, before they are read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StateSize {
    /// The session.
    pub key: SessionKey,
    /// The version; the newest if `None`.
    pub version: Option<u64>,
    /// The size beyond which the rest is not counted.
    pub most: u64,
}

impl StateSize {
    /// The size at a version, the newest one if `None`. For a state above the limit, any size above the limit is valid.
    pub const fn new(key: SessionKey, version: Option<u64>, most: u64) -> Self {
        StateSize { key, version, most }
    }
}

/// The events of a session that are read. Other events cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventRange {
    /// None.
    None,
    /// All events that retention has kept.
    All,
    /// This number of newest events.
    Last(usize),
    /// Events after a version.
    AfterVersion(u64),
    /// A page: the oldest events after a version, up to a number. The next page begins after the last of these.
    Page {
        /// The version before the first.
        after: u64,
        /// The maximum number.
        limit: usize,
    },
    /// Events after the newest one that is older than this.
    Since(Timestamp),
}

/// The first versions after one in some ranges, up to a number, as ranges.
pub(crate) fn page_of(ranges: &[(u64, u64)], after: u64, limit: usize) -> Vec<(u64, u64)> {
    let mut left = limit as u64;
    let mut page = Vec::new();
    for (first, last) in ranges {
        let first = (*first).max(after.saturating_add(1));
        let last = (*last).min(first.saturating_add(left).saturating_sub(1));
        if left > 0 && first <= last {
            left -= last - first + 1;
            page.push((first, last));
        }
    }
    page
}

/// Sessions to be listed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListSessions {
    /// The application.
    pub app: AppId,
    /// The user.
    pub user: UserId,
    /// The maximum number.
    pub limit: usize,
    /// The cursor at the end of the previous page.
    pub after: Option<SessionCursor>,
    /// Whether the values of each session are requested.
    pub state: bool,
    /// The requested events of each session.
    pub events: EventRange,
    /// The time by which a claim has expired, as for [`GetSession::now`].
    pub now: Option<Timestamp>,
    /// Whether only sessions with an [unfinished](ListSessions::unfinished) run are listed.
    pub unfinished: bool,
    /// The text that ids or first messages must [contain](ListSessions::containing), in lower case.
    pub text: Option<Arc<str>>,
}

impl ListSessions {
    /// The first 50 sessions of a user, without values and events.
    ///
    /// # Errors
    /// [`SessionError::InvalidId`].
    pub fn new(app: impl Into<Arc<str>>, user: impl Into<Arc<str>>) -> Result<Self, SessionError> {
        Ok(ListSessions {
            app: AppId::new(app)?,
            user: UserId::new(user)?,
            limit: 50,
            after: None,
            state: false,
            events: EventRange::None,
            now: None,
            unfinished: false,
            text: None,
        })
    }

    /// Restricts the list to sessions with an unfinished run: those whose newest visible event [is of
    /// one](Event::is_unfinished). The run may be active. A store may list other sessions too, so check each.
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use stepfold_session_scopes::{
    ///     AppendEvent, Author, CreateSession, Event, EventId, InvocationId, ListSessions, MemoryStore, RunRecord, SessionSchema,
    ///     SessionKey, SessionStore, Timestamp,
    /// };
    ///
    /// let (store, schema, at) = (MemoryStore::new(), SessionSchema::new(Default::default()), Timestamp::from_micros(0));
    /// let key = SessionKey::new("my_app", "alice", "s1")?;
    /// store.create(CreateSession::with_key(key.clone(), &schema, at)).await?;
    /// store.create(CreateSession::with_key(SessionKey::new("my_app", "alice", "s2")?, &schema, at)).await?;
    /// let event = Event::new(EventId::new("e1")?, InvocationId::new("i1")?, Author::new("user")?, at);
    /// let step = event.with_record(RunRecord::new("my.run", 1, &"a step")?);
    /// store.append(AppendEvent::new(key, 0, step, &schema)).await?;
    /// let page = store.list(ListSessions::new("my_app", "alice")?.unfinished()).await?;
    /// assert_eq!(page.sessions.iter().map(|session| session.key.id.as_str()).collect::<Vec<_>>(), ["s1"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    #[must_use]
    pub fn unfinished(mut self) -> Self {
        self.unfinished = true;
        self
    }

    /// Restricts the list to sessions with this text, in upper or lower case, in their id or in the first 256 bytes of
    /// their first user message, if that is among the first 16 events. A store may list other sessions too, so check each.
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use stepfold_session_scopes::{CreateSession, ListSessions, MemoryStore, SessionKey, SessionSchema, SessionStore, Timestamp};
    ///
    /// let (store, schema, at) = (MemoryStore::new(), SessionSchema::new(Default::default()), Timestamp::from_micros(0));
    /// let key = SessionKey::new("my_app", "alice", "Stalls-2026")?;
    /// store.create(CreateSession::with_key(key, &schema, at)).await?;
    /// let page = store.list(ListSessions::new("my_app", "alice")?.containing("stalls")).await?;
    /// assert_eq!(page.sessions.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    #[must_use]
    pub fn containing(mut self, text: &str) -> Self {
        self.text = Some(lower(text.chars()).into());
        self
    }

    /// The maximum number.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Continues after the previous page.
    #[must_use]
    pub fn after(mut self, cursor: Option<SessionCursor>) -> Self {
        self.after = cursor;
        self
    }

    /// Requests the values of each session.
    #[must_use]
    pub fn with_state(mut self) -> Self {
        self.state = true;
        self
    }

    /// Requests these events of each session.
    #[must_use]
    pub fn events(mut self, events: EventRange) -> Self {
        self.events = events;
        self
    }

    /// Omits claims that have expired by this time.
    #[must_use]
    pub fn now(mut self, now: Timestamp) -> Self {
        self.now = Some(now);
        self
    }

    /// The request that reads one of the sessions.
    pub(crate) fn get(&self, key: SessionKey) -> GetSession {
        GetSession { state: self.state, now: self.now, ..GetSession::new(key).events(self.events) }
    }
}

/// The end of a page. The text is specific to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionCursor(String);

impl SessionCursor {
    /// A cursor with this text, as a store returned it.
    pub fn new(text: impl Into<String>) -> Self {
        SessionCursor(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The cursor after the session that was written at this time and has this number.
    pub(crate) fn after(updated: Timestamp, number: i64) -> Self {
        SessionCursor(format!("{}.{number}", updated.as_micros()))
    }

    pub(crate) fn position(&self) -> Result<(Timestamp, i64), SessionError> {
        let read = |text: &str| text.parse::<i64>().ok();
        let (updated, number) = self.0.split_once('.').ok_or(SessionError::InvalidCursor)?;
        let position = read(updated).map(Timestamp::from_micros).zip(read(number));
        position.ok_or(SessionError::InvalidCursor)
    }
}

/// Some sessions, the one that was written last first.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionPage {
    /// The sessions.
    pub sessions: Vec<Session>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<SessionCursor>,
}

impl SessionPage {
    /// A page, with the cursor of the next one.
    pub const fn new(sessions: Vec<Session>, next: Option<SessionCursor>) -> Self {
        SessionPage { sessions, next }
    }
}

/// A session to be deleted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeleteSession {
    /// The session.
    pub key: SessionKey,
    /// Whether the values under `user:` are deleted too. They are shared with the user's other sessions.
    pub user_state: bool,
    /// The time: an expired claim does not keep the session. Without it, a claim counts until it is released.
    /// Stores with their own clock (PostgreSQL) use that one.
    pub at: Option<Timestamp>,
    /// Whether the session is deleted despite a worker's claim.
    pub take_over: TakeOver,
    /// The version at which the session must be [unused](DeleteSession::if_unused_at).
    pub unused_at: Option<u64>,
}

impl DeleteSession {
    /// Deletes the session only, and only while no worker holds its claim.
    pub fn new(key: SessionKey) -> Self {
        DeleteSession { key, user_state: false, at: None, take_over: TakeOver::Never, unused_at: None }
    }

    /// Sets the time, so that an expired claim does not count.
    #[must_use]
    pub fn now(mut self, at: Timestamp) -> Self {
        self.at = Some(at);
        self
    }

    /// Deletes it despite a worker's claim.
    #[must_use]
    pub fn take_over(mut self) -> Self {
        self.take_over = TakeOver::Always;
        self
    }

    /// Deletes the values of its user too.
    #[must_use]
    pub fn with_user_state(mut self) -> Self {
        self.user_state = true;
        self
    }

    /// Deletes it only if nothing was done in it since it was read at this version ([`SessionError::Conflict`]), no entry
    /// waits in its inbox, and no version has a label ([`SessionError::InUse`]): for retention, which decides by what it has
    /// read. All of it holds at the moment of the deletion.
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use stepfold_session_scopes::{
    ///     CreateSession, DeleteSession, Label, LabelVersion, MemoryStore, SessionError, SessionSchema, SessionStore, Timestamp,
    /// };
    ///
    /// let (store, schema) = (MemoryStore::new(), SessionSchema::new(Default::default()));
    /// let key = store.create(CreateSession::new("my_app", "ada", &schema, Timestamp::from_micros(0))?).await?.key;
    /// store.set_label(LabelVersion::new(key.clone(), Label::new("keep")?, 0)).await?;
    /// let delete = DeleteSession::new(key.clone()).if_unused_at(0);
    /// assert!(matches!(store.delete(delete.clone()).await, Err(SessionError::InUse { .. })));
    /// store.set_label(LabelVersion::removal(key, Label::new("keep")?)).await?;
    /// store.delete(delete).await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    #[must_use]
    pub fn if_unused_at(mut self, version: u64) -> Self {
        self.unused_at = Some(version);
        self
    }

    /// Refuses a session that is in use, given its version, the newest entry of its inbox, and a function that counts its
    /// labels.
    pub(crate) fn check_unused(
        &self,
        version: u64,
        inbox: u64,
        labels: impl FnOnce() -> Result<usize, SessionError>,
    ) -> Result<(), SessionError> {
        check_version(&self.key, self.unused_at, version)?;
        let in_use = |why| Err(SessionError::InUse { key: Box::new(self.key.clone()), why });
        match self.unused_at {
            Some(_) if inbox > 0 => in_use("entries wait in its inbox"),
            Some(_) if labels()? > 0 => in_use("versions of it have labels"),
            _ => Ok(()),
        }
    }
}

/// Compares the version of a session with that at which it was read.
fn check_version(key: &SessionKey, read_at: Option<u64>, version: u64) -> Result<(), SessionError> {
    match read_at {
        Some(expected) if expected != version => Err(SessionError::conflict(key, expected, version)),
        _ => Ok(()),
    }
}

/// The result of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deleted {
    /// The number of the session's events.
    pub events: u64,
    /// The session's own keys, in order.
    pub session_keys: Vec<String>,
    /// The user's keys, if they were deleted too, in order.
    pub user_keys: Vec<String>,
}

impl Deleted {
    /// The response of a store: the number of the session's events, and its own keys.
    pub const fn new(events: u64, session_keys: Vec<String>) -> Self {
        Deleted { events, session_keys, user_keys: Vec::new() }
    }
}

/// The version that a writer expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// This version: later writers get a conflict.
    Version(u64),
    /// Any version, for writers that do not depend on the earlier history.
    Any,
}

impl Expected {
    pub(crate) fn check(self, key: &SessionKey, actual: u64) -> Result<(), SessionError> {
        match self {
            Expected::Version(expected) if expected != actual => {
                Err(SessionError::conflict(key, expected, actual))
            }
            _ => Ok(()),
        }
    }
}

impl From<u64> for Expected {
    fn from(version: u64) -> Self {
        Expected::Version(version)
    }
}

/// An event to be committed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AppendEvent {
    /// The session.
    pub key: SessionKey,
    /// The expected version.
    pub expected: Expected,
    /// The event. A retry copies only a pointer; a memory store keeps it.
    pub event: Arc<Event>,
    /// The schema for validating and merging its writes.
    pub schema: SessionSchema,
    /// Its action on the session's claim. Without it, the claim is not checked: only the expected version is.
    pub claim: Option<AppendClaim>,
    /// The positions of inbox entries that it takes: they are removed with the commit of the event.
    pub taken: Vec<u64>,
    /// The reservations in budgets that it ends: they are settled with the commit of the event.
    pub settled: Vec<SettleSpend>,
    /// The reservation in budgets that it makes, for a request to a model that follows it.
    pub reserved: Option<Box<ReserveSpend>>,
    /// The salt of its content's digest, random if `None`.
    pub salt: Option<ContentSalt>,
}

impl AppendEvent {
    /// An event for a session at a version (or at [`Expected::Any`]).
    pub fn new(
        key: SessionKey,
        expected: impl Into<Expected>,
        event: impl Into<Arc<Event>>,
        schema: &SessionSchema,
    ) -> Self {
        let (expected, event, schema) = (expected.into(), event.into(), schema.clone());
        AppendEvent {
            key,
            expected,
            event,
            schema,
            claim: None,
            taken: Vec::new(),
            settled: Vec::new(),
            reserved: None,
            salt: None,
        }
    }

    /// Sets its action on the session's claim.
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use std::time::Duration;
    /// use stepfold_session_scopes::{
    ///     AppendClaim, AppendEvent, Author, CreateSession, Event, EventId, InvocationId, MemoryStore,
    ///     SessionError, SessionSchema, SessionStore, TakeOver, Timestamp, WorkerId,
    /// };
    ///
    /// let (store, schema) = (MemoryStore::new(), SessionSchema::new(Default::default()));
    /// let now = Timestamp::from_micros(1_700_000_000_000_000);
    /// let key = store.create(CreateSession::new("my_app", "alice", &schema, now)?).await?.key;
    /// let event = |id: &str| Ok::<_, SessionError>(Event::new(EventId::new(id)?, InvocationId::new("i1")?, Author::new("agent")?, now));
    /// let (first, other) = (WorkerId::new("worker-1")?, WorkerId::new("worker-2")?);
    /// let duration = Duration::from_secs(30);
    ///
    /// // The first event of a turn claims the session, in its own transaction.
    /// let take = |owner| AppendClaim::Take { owner, duration, take_over: TakeOver::Never };
    /// let append = AppendEvent::new(key.clone(), 0, event("e1")?, &schema).with_claim(take(first));
    /// let claim = store.append(append).await?.claim.unwrap();
    ///
    /// // Another worker is rejected meanwhile.
    /// let append = AppendEvent::new(key.clone(), 1, event("x1")?, &schema).with_claim(take(other));
    /// assert!(matches!(store.append(append).await, Err(SessionError::Claimed { .. })));
    ///
    /// // The last event releases it.
    /// let release = AppendClaim::Release { token: claim.token };
    /// let append = AppendEvent::new(key, 1, event("e2")?, &schema).with_claim(release);
    /// assert_eq!(store.append(append).await?.claim, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    #[must_use]
    pub fn with_claim(mut self, claim: AppendClaim) -> Self {
        self.claim = Some(claim);
        self
    }

    /// Takes these entries from the inbox with the commit.
    #[must_use]
    pub fn taking(mut self, positions: impl IntoIterator<Item = u64>) -> Self {
        self.taken.extend(positions);
        self
    }

    /// Ends these reservations in budgets with the commit: the reply and its cost are stored together, or neither is. One
    /// that has ended before stays as it is. A store without budgets ignores them.
    #[must_use]
    pub fn settling(mut self, reservations: impl IntoIterator<Item = SettleSpend>) -> Self {
        self.settled.extend(reservations);
        self
    }

    /// Reserves amounts in budgets with the commit, after the [ended](AppendEvent::settling) reservations have given theirs back:
    /// in all of the budgets or in none. The event is committed also if the amounts do not fit; the
    /// [receipt](Receipt::reservation) has the result. The reservation is made under the claim that the append leaves. Only a
    /// store that [can do so](crate::SessionStore::reserves_with_appends) reserves; any other ignores it.
    #[must_use]
    pub fn reserving(mut self, reservation: impl Into<Option<ReserveSpend>>) -> Self {
        self.reserved = reservation.into().map(Box::new);
        self
    }

    /// Sets the salt of its content's digest, as from a port of ids. A store without digests ignores it.
    #[must_use]
    pub fn with_salt(mut self, salt: ContentSalt) -> Self {
        self.salt = Some(salt);
        self
    }

    /// Whether it ends reservations or makes one.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn changes_budgets(&self) -> bool {
        !self.settled.is_empty() || self.reserved.is_some()
    }

    /// Its reservation, with the token of the claim that it leaves.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn reserved_under(&self, claim: Option<&Claim>) -> Option<(&ReserveSpend, Option<u64>)> {
        let reserved = self.reserved.as_deref()?;
        Some((reserved, claim.map(|claim| claim.token).or(reserved.token)))
    }

    /// The given salt, or a random one.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn content_salt(&self) -> ContentSalt {
        self.salt.unwrap_or_else(ContentSalt::random)
    }

    /// The event to be stored: validated, and without writes to `temp:`.
    ///
    /// # Errors
    /// [`SessionError::State`] for an invalid key, [`SessionError::TooDeep`].
    pub fn prepare(mut self) -> Result<Self, SessionError> {
        self.event.check()?;
        let Event { id, actions, .. } = &*self.event;
        check_keys(&actions.delta).map_err(SessionError::state(WriteOrigin::Event(id)))?;
        if actions.rewound_to.is_some() || has_temp(&actions.delta) {
            let actions = &mut Arc::make_mut(&mut self.event).actions;
            drop_temp(&mut actions.delta);
            // NOTE: only a rewind sets this field.
            actions.rewound_to = None;
        }
        Ok(self)
    }
}

/// The acknowledgement of a committed event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The event.
    pub event: EventId,
    /// The version that it gave the session.
    pub version: u64,
    /// The claim of the worker that requested one or wrote with one. `None` if it was released, if none was
    /// requested, and from a store without claims. A repeated append returns the current claim.
    pub claim: Option<Claim>,
    /// The position of the newest waiting entry in the inbox; 0 if there is none. A repeated append returns
    /// the current one.
    pub inbox: u64,
    /// The versions of the shared scopes after it; the current ones, if it was committed before.
    pub scopes: ScopeVersions,
    /// The result of the [reservation](AppendEvent::reserving) with it. `None` if none was requested, from a store that makes
    /// none, and of a repeated append, which does not know it: the caller [ends](crate::SessionStore::settle) the reservation
    /// then, whether or not it exists.
    pub reservation: Option<AppendReservation>,
}

impl Receipt {
    /// The receipt of a store without claims, inboxes and versions of scopes.
    pub fn new(event: EventId, version: u64) -> Self {
        let (scopes, reservation) = (ScopeVersions::default(), None);
        Receipt { event, version, claim: None, inbox: 0, scopes, reservation }
    }

    /// Sets the versions of the shared scopes.
    #[must_use]
    pub fn with_scopes(mut self, scopes: ScopeVersions) -> Self {
        self.scopes = scopes;
        self
    }
}

/// A session to be made from another one's history.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ForkSession {
    /// The origin.
    pub from: SessionKey,
    /// The id of the fork; the store generates one if `None`.
    pub id: Option<SessionId>,
    /// Its incarnation; random if `None`. A caller that sets it must never reuse it.
    pub life: Option<LifeId>,
    /// The version to fork at; the newest if `None`.
    pub version: Option<u64>,
    /// The time.
    pub at: Timestamp,
    /// The first event of the fork, if any.
    pub event: Option<ForkedEvent>,
}

/// The first event of a fork, committed with it: both, or neither.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ForkedEvent {
    /// The event.
    pub event: Arc<Event>,
    /// The schema for validating and merging its writes.
    pub schema: SessionSchema,
    /// Its action on the claim of the fork.
    pub claim: Option<AppendClaim>,
}

impl ForkedEvent {
    /// The append of this event to the fork at its first version.
    pub(crate) fn append(self, key: SessionKey, version: u64) -> AppendEvent {
        let ForkedEvent { event, schema, claim } = self;
        AppendEvent {
            key,
            expected: version.into(),
            event,
            schema,
            claim,
            taken: Vec::new(),
            settled: Vec::new(),
            reserved: None,
            salt: None,
        }
    }
}

impl ForkSession {
    /// A fork at the newest version, with an id that the store makes.
    pub fn new(from: SessionKey, at: Timestamp) -> Self {
        ForkSession { from, id: None, life: None, version: None, at, event: None }
    }

    /// Forks at this version.
    #[must_use]
    pub fn at_version(mut self, version: u64) -> Self {
        self.version = Some(version);
        self
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(mut self, id: SessionId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets the incarnation.
    #[must_use]
    pub fn with_life(mut self, life: LifeId) -> Self {
        self.life = Some(life);
        self
    }
}

impl ForkSession {
    /// Sets a first event of its own. The fork is then at the version after it.
    #[must_use]
    pub fn with_event(
        mut self,
        event: impl Into<Arc<Event>>,
        schema: &SessionSchema,
        claim: Option<AppendClaim>,
    ) -> Self {
        self.event = Some(ForkedEvent { event: event.into(), schema: schema.clone(), claim });
        self
    }
}

/// A session to be rewound.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RewindSession {
    /// The session.
    pub key: SessionKey,
    /// The expected version.
    pub expected: Expected,
    /// The version to go back to.
    pub to: u64,
    /// The id of the event that records it.
    pub event: EventId,
    /// The invocation that it belongs to.
    pub invocation: InvocationId,
    /// The author of the rewind.
    pub author: Author,
    /// The time.
    pub at: Timestamp,
    /// Its action on the session's claim, as for an append.
    pub claim: Option<AppendClaim>,
    /// The positions of entries that it takes from the inbox.
    pub taken: Vec<u64>,
    /// The salt of its event's digest, random if `None`.
    pub salt: Option<ContentSalt>,
}

impl RewindSession {
    /// Rewinds a session to an earlier version. The rest describes the event that records it.
    pub fn new(
        key: SessionKey,
        expected: impl Into<Expected>,
        to: u64,
        event: EventId,
        invocation: InvocationId,
        author: Author,
        at: Timestamp,
    ) -> Self {
        let expected = expected.into();
        let (claim, taken, salt) = (None, Vec::new(), None);
        RewindSession { key, expected, to, event, invocation, author, at, claim, taken, salt }
    }

    /// Sets its action on the session's claim.
    #[must_use]
    pub fn with_claim(mut self, claim: AppendClaim) -> Self {
        self.claim = Some(claim);
        self
    }

    /// Sets the salt of its event's digest, as from a port of ids. A store without digests ignores it.
    #[must_use]
    pub fn with_salt(mut self, salt: ContentSalt) -> Self {
        self.salt = Some(salt);
        self
    }

    /// The event that records the rewind.
    pub fn to_event(&self) -> Event {
        let (id, invocation, author) = (self.event.clone(), self.invocation.clone(), self.author.clone());
        let mut event = Event::new(id, invocation, author, self.at).with_kind(EventKind::REWIND);
        event.actions.rewound_to = Some(self.to);
        event
    }
}

/// A scope that outlives sessions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScopeKey {
    /// Shared by all users of an app.
    App(AppId),
    /// Shared by all sessions of a user.
    User(AppId, UserId),
}

impl ScopeKey {
    /// The scope of an app.
    ///
    /// # Errors
    /// [`SessionError::InvalidId`].
    pub fn app(app: impl Into<Arc<str>>) -> Result<Self, SessionError> {
        Ok(ScopeKey::App(AppId::new(app)?))
    }

    /// The scope of a user.
    ///
    /// # Errors
    /// [`SessionError::InvalidId`].
    pub fn user(app: impl Into<Arc<str>>, user: impl Into<Arc<str>>) -> Result<Self, SessionError> {
        Ok(ScopeKey::User(AppId::new(app)?, UserId::new(user)?))
    }

    /// The owner of its keys.
    pub fn scope(&self) -> Scope {
        match self {
            ScopeKey::App(_) => Scope::App,
            ScopeKey::User(..) => Scope::User,
        }
    }

    /// The app, and the user if it is a user's.
    pub fn parts(&self) -> (&AppId, Option<&UserId>) {
        match self {
            ScopeKey::App(app) => (app, None),
            ScopeKey::User(app, user) => (app, Some(user)),
        }
    }
}

impl fmt::Display for ScopeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScopeKey::App(app) => write!(f, "app {app}"),
            ScopeKey::User(app, user) => write!(f, "user {app}/{user}"),
        }
    }
}

/// Writes to a scope, outside of any session.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WriteScope {
    /// The scope.
    pub scope: ScopeKey,
    /// The writes.
    pub delta: Delta,
    /// The schema for validating and merging the writes.
    pub schema: SessionSchema,
    /// Makes a repeated write harmless. A scope remembers the last 1,000 of them.
    pub idempotency_key: Option<IdempotencyKey>,
}

/// The number of idempotency keys that a scope remembers.
pub const REMEMBERED_KEYS: usize = 1_000;

impl WriteScope {
    /// Writes that are applied with each request.
    pub fn new(scope: ScopeKey, delta: Delta, schema: &SessionSchema) -> Self {
        WriteScope { scope, delta, schema: schema.clone(), idempotency_key: None }
    }

    /// Writes that are applied once, however often they are requested with this key.
    #[must_use]
    pub fn once(mut self, idempotency_key: IdempotencyKey) -> Self {
        self.idempotency_key = Some(idempotency_key);
        self
    }

    /// Checks that every key is valid and of the scope.
    ///
    /// # Errors
    /// [`SessionError::State`], [`SessionError::WrongScope`].
    pub fn check(&self) -> Result<(), SessionError> {
        let scope = self.scope.scope();
        check_keys(&self.delta).map_err(SessionError::state(WriteOrigin::Scope(&self.scope)))?;
        match self.delta.iter().find(|write| Scope::of(write.key()) != scope) {
            None => Ok(()),
            Some(write) => {
                Err(SessionError::WrongScope { key: write.key().to_owned(), scope: scope.prefix() })
            }
        }
    }
}

/// Deletes old events. Claims are not checked, unless the session must be [unchanged](PruneSession::if_unchanged_at): a run
/// needs no old events, and its next append succeeds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PruneSession {
    /// The session.
    pub key: SessionKey,
    /// The bound of the deleted events.
    pub before: PruneBound,
    /// The version at which the session must be [unchanged](PruneSession::if_unchanged_at).
    pub unchanged_at: Option<u64>,
    /// The time: an expired claim does not keep the events of a session that must be unchanged. Without it, a claim counts until
    /// it is released. Stores with their own clock (PostgreSQL) use that one.
    pub at: Option<Timestamp>,
    /// Whether the result is only computed, and nothing is deleted.
    pub is_dry_run: bool,
}

impl PruneSession {
    /// Deletes old events of this session.
    pub fn new(key: SessionKey, before: PruneBound) -> Self {
        PruneSession { key, before, unchanged_at: None, at: None, is_dry_run: false }
    }

    /// Sets the time, so that an expired claim does not count.
    #[must_use]
    pub fn now(mut self, at: Timestamp) -> Self {
        self.at = Some(at);
        self
    }

    /// Deletes only if nothing was done in the session since it was read at this version ([`SessionError::Conflict`]) and no
    /// worker holds its claim ([`SessionError::Claimed`]), and keeps each version that has a label: for retention, which decides
    /// by what it has read.
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use stepfold_session_scopes::{
    ///     AppendEvent, Author, CreateSession, Event, EventId, InvocationId, Label, LabelVersion, MemoryStore, PruneBound,
    ///     PruneSession, SessionError, SessionSchema, SessionStore, Timestamp,
    /// };
    ///
    /// let (store, schema, at) = (MemoryStore::new(), SessionSchema::new(Default::default()), Timestamp::from_micros(0));
    /// let key = store.create(CreateSession::new("my_app", "ada", &schema, at)?).await?.key;
    /// for version in 0..4 {
    ///     let event = Event::new(EventId::new(format!("e{version}"))?, InvocationId::new("i1")?, Author::new("user")?, at);
    ///     store.append(AppendEvent::new(key.clone(), version, event, &schema)).await?;
    /// }
    /// store.set_label(LabelVersion::new(key.clone(), Label::new("keep")?, 2)).await?;
    /// let prune = PruneSession::new(key, PruneBound::Version(3));
    /// assert_eq!(store.prune(prune.clone().if_unchanged_at(4).dry_run()).await?.oldest, 2);
    /// assert!(matches!(store.prune(prune.clone().if_unchanged_at(3)).await, Err(SessionError::Conflict { .. })));
    /// assert_eq!(store.prune(prune).await?.oldest, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    #[must_use]
    pub fn if_unchanged_at(mut self, version: u64) -> Self {
        self.unchanged_at = Some(version);
        self
    }

    /// Computes the result, and deletes nothing.
    #[must_use]
    pub fn dry_run(mut self) -> Self {
        self.is_dry_run = true;
        self
    }

    /// Refuses a session that must be unchanged and that a worker has claimed.
    pub(crate) fn check_claim(&self, fence: &ClaimFence, now: Option<Timestamp>) -> Result<(), SessionError> {
        match self.unchanged_at {
            Some(_) => fence.check_free(&self.key, TakeOver::Never, now),
            None => Ok(()),
        }
    }

    /// Whether labels keep versions.
    pub(crate) fn keeps_labels(&self) -> bool {
        self.unchanged_at.is_some()
    }

    /// The oldest version that is left, given that of the bound, that of before, and the labelled versions that stay.
    pub(crate) fn bounded(bound: u64, before: u64, labelled: impl IntoIterator<Item = u64>) -> u64 {
        labelled.into_iter().fold(bound, u64::min).max(before)
    }

    /// The result, if nothing has to be deleted for it.
    pub(crate) fn unchanged(&self, oldest: u64, before: u64) -> Option<Pruned> {
        let is_done = self.is_dry_run || self.unchanged_at.is_some() && oldest == before;
        is_done.then_some(Pruned { events: oldest - before, oldest })
    }

    /// The bound of retention for a session with these versions.
    pub(crate) fn kept(&self, oldest: u64, newest: u64) -> Result<RetentionBound, SessionError> {
        check_version(&self.key, self.unchanged_at, newest)?;
        match self.before {
            PruneBound::Version(version) | PruneBound::Both { version, .. } if version > newest => {
                Err(SessionError::no_such_version(&self.key, version, oldest, newest))
            }
            PruneBound::Version(version) => Ok(RetentionBound::From(version.max(oldest))),
            PruneBound::Time(time) => Ok(RetentionBound::Since { after: oldest, time }),
            PruneBound::Both { version, time } => {
                Ok(RetentionBound::Since { after: version.max(oldest), time })
            }
        }
    }
}

/// The bound of the history that retention keeps.
pub(crate) enum RetentionBound {
    /// The session can go back to this version, and no further.
    From(u64),
    /// Of the events after this version, the first one at or after this time, which the store has to find, and all later ones
    /// are kept.
    Since { after: u64, time: Timestamp },
}

/// The bound of the events that are deleted. The state is kept in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PruneBound {
    /// Events up to this version, itself included. The session can still go back to it.
    Version(u64),
    /// All events before the first one at or after this time.
    Time(Timestamp),
    /// Events up to this version, and of those after it all before the first one at or after this time.
    Both {
        /// The version.
        version: u64,
        /// The time.
        time: Timestamp,
    },
}

/// The result of retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// The number of events that the session no longer shows.
    pub events: u64,
    /// The oldest version that the session can go back to now.
    pub oldest: u64,
}

impl Pruned {
    /// The response of a store: the number of deleted events, and the oldest version that is left.
    pub const fn new(events: u64, oldest: u64) -> Self {
        Pruned { events, oldest }
    }
}
