//! The changes of a session since an earlier read, so that a turn reads only new data.

use stepfold_state_core::state::{State, StoredValue};

use crate::error::SessionError;
use crate::schema::SessionSchema;
use crate::scope::{Scope, ScopeVersions};
use crate::session::{Session, is_known};

/// The versions known to a reader: of the session, and of its shared scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct SeenVersions {
    /// The session's own version.
    pub version: u64,
    /// The versions of `app:` and `user:`.
    pub scopes: ScopeVersions,
}

impl SeenVersions {
    /// These versions.
    pub const fn new(version: u64, scopes: ScopeVersions) -> Self {
        SeenVersions { version, scopes }
    }
}

impl Session {
    /// The versions of this read, for [`GetSession::changed_since`](crate::GetSession::changed_since).
    pub fn seen(&self) -> SeenVersions {
        SeenVersions { version: self.version, scopes: self.scopes }
    }

    /// Updates an earlier state of this session with the values of this read. For sessions that were read
    /// with [`GetSession::changed_since`](crate::GetSession::changed_since) or
    /// [`GetSession::keys`](crate::GetSession::keys), and for complete ones: other values are unchanged.
    ///
    /// The state must be that of the [`seen`](Session::seen) versions, with the same schema and without later
    /// writes. Its conversation is unchanged: new messages are in the events. While [`Session::visible`]
    /// contains the seen version, all earlier messages are still valid, and the newer messages of
    /// [`Session::transcript`] have to be appended.
    ///
    /// # Errors
    /// As [`Session::state`].
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use serde_json::json;
    /// use stepfold_session_scopes::{
    ///     CreateSession, EventRange, GetSession, MemoryStore, ScopeKey, SessionSchema, SessionStore, Timestamp,
    ///     WriteScope,
    /// };
    /// use stepfold_state_core::state::Schema;
    ///
    /// let schema: SessionSchema =
    ///     Schema::builder().key::<String>("user:name").key::<String>("topic").build()?.into();
    /// let request = CreateSession::new("my_app", "alice", &schema, Timestamp::from_micros(0))?
    ///     .values(json!({"topic": "engines", "user:name": "Ada"}))?;
    /// let store = MemoryStore::new();
    /// let session = store.create(request).await?;
    /// let state = session.state(&schema)?;
    ///
    /// // Another session of the user writes. This read returns its writes.
    /// let delta = [schema.schema().write("user:name", "Ada L.")?].into_iter().collect();
    /// store.write_scope(WriteScope::new(ScopeKey::user("my_app", "alice")?, delta, &schema)).await?;
    /// let get = GetSession::new(session.key.clone()).changed_since(session.seen()).events(EventRange::None);
    /// let session = store.get(get).await?;
    /// assert_eq!(session.to_json(), json!({"user:name": "Ada L."}));
    ///
    /// let state = session.update(state, &schema)?;
    /// assert_eq!(state.get("user:name").unwrap(), "Ada L.");
    /// assert_eq!(state.get("topic").unwrap(), "engines");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn update(&self, mut state: State, schema: &SessionSchema) -> Result<State, SessionError> {
        let Some(values) = &self.values else { return Ok(state) };
        let scopes =
            [(Scope::App, &values.app), (Scope::User, &values.user), (Scope::Session, &values.session)];
        let mut cells: Vec<(Box<str>, Option<StoredValue>)> = Vec::new();
        for (scope, values) in scopes {
            // NOTE: a complete read names no removed keys: those that the earlier state has and the read lacks are gone.
            if values.is_whole() {
                let before = state.iter().map(|(key, _)| key).filter(|key| *key != "messages");
                let gone = before.filter(|key| Scope::of(key) == scope && values.get(key).is_none());
                cells.extend(gone.map(|key| (key.into(), None)));
            } else {
                let gone = values.removed().filter(|key| is_known(schema, key));
                cells.extend(gone.map(|key| (key.into(), None)));
            }
            let appended = values.appended_to(&state, schema)?;
            cells.extend(appended.into_iter().map(|(key, cell)| (key, Some(cell))));
            let adopted = values.clone().adopted(schema)?;
            cells.extend(adopted.into_iter().map(|(key, cell)| ((*key).into(), Some(cell))));
        }
        let what = format_args!("changes of session {}", self.key);
        state.replace_cells(cells).map_err(SessionError::state(what))?;
        Ok(state)
    }
}
