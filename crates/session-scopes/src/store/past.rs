//! Reads earlier versions of a session.

use super::requests::GetSession;
use crate::error::SessionError;
use crate::session::VisibleVersions;

impl GetSession {
    /// Reads the session at an earlier version: with its values at that time, and the events up to it.
    /// [`Session::version`](crate::Session), [`visible`](crate::Session::visible) and everything derived from
    /// them belong to that version too; the rest is current.
    ///
    /// The rest includes the values of `app:` and `user:`, which have no history: other sessions have written to
    /// them since. And [`newest`](crate::Session::newest), which distinguishes a session read at an earlier
    /// version from a current one.
    ///
    /// Every version that a session can be rewound to is available, including hidden ones; any other is
    /// [`SessionError::NoSuchVersion`]. Together with [`changed_since`](GetSession::changed_since), all of
    /// the session's own values are returned, and the changed ones of shared scopes.
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use serde_json::json;
    /// use stepfold_session_scopes::{
    ///     AppendEvent, Author, CreateSession, Event, EventId, GetSession, InvocationId, MemoryStore, SessionError,
    ///     SessionSchema, SessionStore, Timestamp,
    /// };
    /// use stepfold_state_core::state::Schema;
    ///
    /// let schema: SessionSchema = Schema::builder().open().build()?.into();
    /// let (store, now) = (MemoryStore::new(), Timestamp::from_micros(0));
    /// let request = CreateSession::new("my_app", "alice", &schema, now)?.values(json!({"topic": "engines"}))?;
    /// let key = store.create(request).await?.key;
    /// let event = Event::new(EventId::new("e1")?, InvocationId::new("i1")?, Author::new("user")?, now)
    ///     .with_delta([schema.schema().write("topic", "sails")?].into_iter().collect());
    /// store.append(AppendEvent::new(key.clone(), 0, event, &schema)).await?;
    ///
    /// let session = store.get(GetSession::new(key.clone()).at_version(0)).await?;
    /// assert_eq!(session.to_json(), json!({"topic": "engines"}));
    /// assert_eq!((session.version, session.newest, session.events.len()), (0, 1, 0));
    ///
    /// let beyond = store.get(GetSession::new(key).at_version(2)).await;
    /// assert!(matches!(beyond, Err(SessionError::NoSuchVersion { oldest: 0, newest: 1, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    #[must_use]
    pub fn at_version(mut self, version: u64) -> Self {
        self.version = Some(version);
        self
    }

    /// Omits events that a rewind has hidden. They are not read either: a session of many events that was rewound to its
    /// beginning is read as fast as a new one. [`EventRange::Last`](crate::EventRange::Last) counts visible events then.
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use stepfold_session_scopes::{
    ///     AppendEvent, Author, CreateSession, Event, EventId, Expected, GetSession, InvocationId, MemoryStore,
    ///     RewindSession, SessionSchema, SessionStore, Timestamp,
    /// };
    ///
    /// let (store, schema) = (MemoryStore::new(), SessionSchema::new(Default::default()));
    /// let now = Timestamp::from_micros(0);
    /// let key = store.create(CreateSession::new("my_app", "alice", &schema, now)?).await?.key;
    /// let (invocation, author) = (InvocationId::new("i1")?, Author::new("user")?);
    /// let event = Event::new(EventId::new("e1")?, invocation.clone(), author.clone(), now);
    /// store.append(AppendEvent::new(key.clone(), 0, event, &schema)).await?;
    /// let back = EventId::new("back")?;
    /// store.rewind(RewindSession::new(key.clone(), Expected::Any, 0, back, invocation, author, now)).await?;
    ///
    /// assert_eq!(store.get(GetSession::new(key.clone())).await?.events.len(), 2);
    /// let session = store.get(GetSession::new(key).visible()).await?;
    /// assert_eq!(session.events.iter().map(|event| event.version).collect::<Vec<_>>(), [2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    #[must_use]
    pub fn visible(mut self) -> Self {
        self.hidden = false;
        self
    }

    /// The ranges of versions whose events are read, if those up to a version are.
    pub(crate) fn event_ranges(&self, visible: &VisibleVersions, version: u64) -> Vec<(u64, u64)> {
        if self.hidden { vec![(0, version)] } else { visible.ranges().collect() }
    }

    /// The version that is read, of a session that has these.
    pub(crate) fn version_in(&self, oldest: u64, newest: u64) -> Result<u64, SessionError> {
        match self.version {
            None => Ok(newest),
            Some(version) if (oldest..=newest).contains(&version) => Ok(version),
            Some(version) => Err(SessionError::no_such_version(&self.key, version, oldest, newest)),
        }
    }
}
