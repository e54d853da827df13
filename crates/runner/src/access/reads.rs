//! Reads a session: only new data, as far as it is cached.

use std::sync::Arc;

use stepfold_session_scopes::{CommittedEvent, EventRange, GetSession, Session, SessionStore};

use crate::access::session_access::{ReadSession, SessionAccess};
use crate::error::RunnerError;
use crate::record::cached_values::CachedValues;
use crate::record::events::{begins, has_deadline, is_unfinished};
use crate::record::history::SessionHistory;
use crate::session::cache::SessionCache;

impl SessionAccess {
    /// A request to read the session.
    pub(crate) fn request(&self) -> GetSession {
        GetSession::new(self.local.key.clone())
    }

    /// One read of the store.
    pub(crate) async fn get(&self, get: GetSession) -> Result<Session, RunnerError> {
        let session = self.runner.store.get(get).await;
        session.map_err(|error| RunnerError::store(&self.local.key, error))
    }

    /// Events, without values.
    pub(crate) async fn read_events(&self, events: EventRange) -> Result<Session, RunnerError> {
        self.get(self.request().events(events).without_state()).await
    }

    /// The event of a version; `None` if retention or a fork has none there.
    pub(crate) async fn event_at(&self, version: u64) -> Result<Option<CommittedEvent>, RunnerError> {
        let session = self.read_events(EventRange::Page { after: version - 1, limit: 1 }).await?;
        Ok(session.events.into_iter().find(|it| it.version == version))
    }

    /// Looks for something in the newest events: in so many first, then in eight times as many, until it is found or there
    /// are no more.
    pub(crate) async fn search_newest<T>(
        &self,
        first: usize,
        find: impl Fn(&Session) -> Option<T>,
    ) -> Result<Option<T>, RunnerError> {
        let mut events = first;
        loop {
            let session = self.read_events(EventRange::Last(events)).await?;
            let found = find(&session);
            if found.is_some() || session.events.len() < events {
                return Ok(found);
            }
            events = events.saturating_mul(8);
        }
    }

    /// Reads the session: only changes if it is cached and no worker runs in it; otherwise all of it.
    pub(crate) async fn read(&self) -> Result<ReadSession, RunnerError> {
        let Ok(mut cache) = self.local.cache.try_lock() else { return self.read_since(None, None).await };
        let (history, newer) = (cache.history.take(), cache.run_values());
        let read = self.read_since(history, newer).await?;
        cache.history = Some(Arc::clone(&read.0));
        Ok(read)
    }

    /// Reads the changes of the session for its worker.
    pub(crate) async fn read_cached(&self, cache: &mut SessionCache) -> Result<ReadSession, RunnerError> {
        let (history, newer) = (cache.history.take(), cache.run_values());
        let read = self.read_since(history, newer).await?;
        // Another worker has continued the session, or created it again.
        cache.stopped.take_if(|stopped| !stopped.is_current(&read.0));
        cache.history = Some(Arc::clone(&read.0));
        Ok(read)
    }

    /// The session with the changes since the cached history, and its new history. `newer` are values that are newer
    /// than those of the cached history.
    pub(crate) async fn read_since(
        &self,
        cached: Option<Arc<SessionHistory>>,
        newer: Option<CachedValues>,
    ) -> Result<ReadSession, RunnerError> {
        if let Some(history) = cached
            && let Some(read) = self.read_changes(history, newer).await?
        {
            return Ok(read);
        }
        let session = self.get_visible(self.request()).await?;
        let mut history = SessionHistory::default();
        history.extend(&session)?;
        self.pin(&mut history).await;
        // Code that uses the values reports those that do not match the schema.
        history.values = CachedValues::read(&session, &self.program(&history).schema).ok();
        Ok((Arc::new(history), session))
    }

    /// The session with the changes since the cached history; `None` if it has to be read from its beginning.
    async fn read_changes(
        &self,
        cached: Arc<SessionHistory>,
        newer: Option<CachedValues>,
    ) -> Result<Option<ReadSession>, RunnerError> {
        // No other owner, except a concurrent reader.
        let mut history = Arc::unwrap_or_clone(cached);
        let Some(values) = newer.or_else(|| history.values.take()) else { return Ok(None) };
        let program = Arc::clone(self.program(&history));
        let get = self
            .request()
            .events(EventRange::AfterVersion(history.version))
            .changed_since(values.seen())
            .incremental(&program.schema);
        let session = self.get_visible(get).await?;
        // A rewind hides events that were folded.
        let is_rewound = session.events.iter().any(|event| event.event.actions.rewound_to().is_some());
        if is_rewound || !history.is_of(&session) {
            return Ok(None);
        }
        let Ok(values) = values.updated(&session, &program.schema) else { return Ok(None) };
        history.extend(&session)?;
        // The values of a run with another agent have another schema.
        if self.pin(&mut history).await {
            return Ok(None);
        }
        // A key that the schema no longer has is not among the values that are kept.
        if history.lacks_keys_of(&self.program(&history).agent) {
            return Ok(None);
        }
        history.values = Some(values);
        Ok(Some((Arc::new(history), session)))
    }

    async fn get_visible(&self, get: GetSession) -> Result<Session, RunnerError> {
        self.get(get.visible().now(self.runner.clock.now())).await
    }

    /// Whether the newest event belongs to no unfinished run: then no run is unfinished, whatever precedes it.
    pub(crate) async fn has_ended(&self) -> Result<bool, RunnerError> {
        let session = self.read_events(EventRange::Last(1)).await?;
        Ok(session.visible_events().next_back().is_some_and(|newest| !is_unfinished(&newest.event)))
    }

    /// Whether a request with a deadline may be pending. It reads no more than the last step, and of a run that has
    /// ended one event.
    pub(crate) async fn may_have_deadline(&self) -> Result<bool, RunnerError> {
        let find = |session: &Session| {
            session.visible_events().rev().find_map(|committed| has_deadline(&committed.event))
        };
        Ok(self.search_newest(1, find).await?.unwrap_or(false))
    }

    /// The end of the session, from the beginning of its last run, or earlier. Earlier messages and all
    /// values are missing.
    pub(crate) async fn read_end(&self) -> Result<ReadSession, RunnerError> {
        let mut events = 16;
        let session = loop {
            let session = self.read_events(EventRange::Last(events)).await?;
            let has_begun = session.visible_events().any(|committed| begins(&committed.event));
            if has_begun || session.events.len() < events {
                break session;
            }
            events *= 4;
        };
        let mut history = SessionHistory::default();
        history.extend(&session)?;
        self.pin(&mut history).await;
        Ok((Arc::new(history), session))
    }
}
