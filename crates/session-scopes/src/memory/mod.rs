//! Sessions in memory: for tests, and for what need not outlive the process.
//!
//! Values and events are persistent maps and lists, so every version of a session keeps a snapshot of its
//! state, and a fork shares all of it. One lock guards the whole store; no operation holds it for longer
//! than its own writes take.

mod tenant;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::tenant::{Entry, Shared, Tenant};
use crate::apply::{INITIAL, delta_of, initial, made_id};
use crate::error::SessionError;
use crate::ids::{AppId, SessionId, SessionKey, UserId};
use crate::scope::split;
use crate::session::{Session, Values};
use crate::store::{
    AppendEvent, CreateSession, Cursor, DeleteSession, Deleted, EventRange, ForkSession, GetSession,
    ListSessions, PruneSession, Pruned, Receipt, RewindSession, ScopeKey, SessionPage, SessionStore,
    WriteScope,
};
use crate::time::Timestamp;

/// Sessions that live as long as the process. Clone an `Arc` of it, or an
/// [`AnyStore`](crate::AnyStore), to share it.
///
/// # Examples
/// ```
/// # futures_util::FutureExt::now_or_never(async {
/// use stepfold_session_scopes::{
///     AppendEvent, Author, CreateSession, Event, EventId, GetSession, InvocationId, MemoryStore,
///     SessionSchema, SessionStore, Timestamp,
/// };
/// use stepfold_state_core::state::{Handler, Schema};
///
/// let schema = Schema::builder().key::<u64>("app:visits").handler(Handler::sum()).build()?;
/// let schema = SessionSchema::new(schema);
/// let now = Timestamp::from_micros(1_700_000_000_000_000);
/// let store = MemoryStore::new();
///
/// let session = store.create(CreateSession::new("my_app", "alice", &schema, now)?).await?;
/// let event = Event::new(EventId::new("e1")?, InvocationId::new("i1")?, Author::new("user")?, now)
///     .with_delta([schema.schema().write("app:visits", 1)?].into_iter().collect());
/// let append = AppendEvent::new(session.key.clone(), session.version, event, &schema);
/// let receipt = store.append(append.clone()).await?;
///
/// // Was it committed? Ask again: it is made once.
/// assert_eq!(store.append(append).await?, receipt);
/// let session = store.get(GetSession::new(session.key)).await?;
/// assert_eq!(session.get("app:visits").unwrap(), serde_json::json!(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap().unwrap();
/// ```
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    apps: HashMap<AppId, Shared>,
    tenants: HashMap<(AppId, UserId), Tenant>,
    /// The number of the newest session.
    newest: i64,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        MemoryStore::default()
    }

    /// Nothing is changed before all that can fail has succeeded, so a poisoned lock guards whole data.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionStore for MemoryStore {
    async fn create(&self, request: CreateSession) -> Result<Session, SessionError> {
        self.lock().create(request)
    }

    async fn get(&self, request: GetSession) -> Result<Session, SessionError> {
        self.lock().get(&request)
    }

    async fn list(&self, request: ListSessions) -> Result<SessionPage, SessionError> {
        self.lock().list(&request)
    }

    async fn delete(&self, request: DeleteSession) -> Result<Deleted, SessionError> {
        self.lock().delete(&request)
    }

    async fn append(&self, request: AppendEvent) -> Result<Receipt, SessionError> {
        let request = request.prepare()?;
        self.lock().append(request)
    }

    async fn fork(&self, request: ForkSession) -> Result<Session, SessionError> {
        self.lock().fork(request)
    }

    async fn rewind(&self, request: RewindSession) -> Result<Receipt, SessionError> {
        self.lock().rewind(&request)
    }

    async fn read_scope(&self, scope: ScopeKey) -> Result<Values, SessionError> {
        Ok(self.lock().shared(&scope).map(Shared::values).unwrap_or_default())
    }

    async fn write_scope(&self, request: WriteScope) -> Result<Values, SessionError> {
        request.check()?;
        self.lock().write_scope(&request)
    }

    async fn prune(&self, request: PruneSession) -> Result<Pruned, SessionError> {
        self.lock().entry_mut(&request.key)?.1.prune(&request)
    }
}

impl Inner {
    fn create(&mut self, request: CreateSession) -> Result<Session, SessionError> {
        let CreateSession { app, user, id, at, schema, values } = request;
        let delta = initial(&schema, &values)?.into_iter().collect();
        let split = split(&delta).map_err(SessionError::state(INITIAL))?;
        let number = self.newest + 1;
        let key = SessionKey { id: self.free_id(&app, &user, id, at)?, app, user };
        let entry = Entry::new(number, at, &split.session, &schema)?;
        self.write_shared(&key, &split, &schema, INITIAL)?;
        self.insert(&key, entry);
        self.get(&GetSession::new(key).events(EventRange::None))
    }

    /// The id that was asked for, if it is free, or a new one.
    fn free_id(
        &self,
        app: &AppId,
        user: &UserId,
        id: Option<SessionId>,
        at: Timestamp,
    ) -> Result<SessionId, SessionError> {
        let tenant = self.tenants.get(&(app.clone(), user.clone()));
        let is_free = |id: &SessionId| tenant.is_none_or(|tenant| !tenant.sessions.contains_key(id));
        match id {
            Some(id) if is_free(&id) => Ok(id),
            Some(id) => {
                let key = SessionKey { app: app.clone(), user: user.clone(), id };
                Err(SessionError::already_exists(&key))
            }
            None => {
                let mut number = self.newest + 1;
                loop {
                    let id = made_id(at, number)?;
                    if is_free(&id) {
                        return Ok(id);
                    }
                    number += 1;
                }
            }
        }
    }

    fn insert(&mut self, key: &SessionKey, entry: Entry) {
        self.newest = self.newest.max(entry.number);
        self.tenants.entry((key.app.clone(), key.user.clone())).or_default().insert(key.id.clone(), entry);
    }

    fn get(&self, request: &GetSession) -> Result<Session, SessionError> {
        let (tenant, entry) = self.entry(&request.key)?;
        let app = self.apps.get(&request.key.app);
        Ok(entry.session(&request.key, request.events, request.state.then_some((app, &tenant.user))))
    }

    fn list(&self, request: &ListSessions) -> Result<SessionPage, SessionError> {
        let after = request.after.as_ref().map(Cursor::position).transpose()?;
        let Some(tenant) = self.tenants.get(&(request.app.clone(), request.user.clone())) else {
            return Ok(SessionPage { sessions: Vec::new(), next: None });
        };
        let mut ids = tenant.newest_first(after);
        let mut sessions = Vec::new();
        let mut last = None;
        for (updated, number, id) in ids.by_ref().take(request.limit) {
            let key = SessionKey { app: request.app.clone(), user: request.user.clone(), id: id.clone() };
            let get = GetSession { key, events: request.events, state: request.state };
            sessions.push(self.get(&get)?);
            last = Some(Cursor::behind(updated, number));
        }
        let next = last.filter(|_| ids.next().is_some());
        Ok(SessionPage { sessions, next })
    }

    fn delete(&mut self, request: &DeleteSession) -> Result<Deleted, SessionError> {
        let key = &request.key;
        let tenant = self.tenant_mut(key)?;
        let entry = tenant.remove(&key.id).ok_or_else(|| SessionError::not_found(key))?;
        let user_keys = if request.user_state { std::mem::take(&mut tenant.user).keys() } else { Vec::new() };
        if tenant.is_empty() {
            self.tenants.remove(&(key.app.clone(), key.user.clone()));
        }
        Ok(Deleted { events: entry.events(), session_keys: entry.keys(), user_keys })
    }

    fn append(&mut self, request: AppendEvent) -> Result<Receipt, SessionError> {
        let AppendEvent { key, expected, event, schema } = request;
        let (_, entry) = self.entry(&key)?;
        if let Some(receipt) = entry.repeated(&key, &event)? {
            return Ok(receipt);
        }
        expected.check(&key, entry.version())?;
        let what = delta_of(&event.id);
        let split = split(&event.actions.delta).map_err(SessionError::state(what.as_str()))?;
        let cells = entry.merged(&split.session, &schema, &what)?;
        self.write_shared(&key, &split, &schema, &what)?;
        let (id, at) = (event.id.clone(), event.at);
        let version = self.commit(&key, at, |entry| entry.commit(event, cells))?;
        Ok(Receipt { event: id, version })
    }

    /// Writes to both shared scopes, or to none.
    fn write_shared(
        &mut self,
        key: &SessionKey,
        split: &crate::ByScope<Vec<&stepfold_state_core::state::Write>>,
        schema: &crate::SessionSchema,
        what: &str,
    ) -> Result<(), SessionError> {
        if split.app.is_empty() && split.user.is_empty() {
            return Ok(());
        }
        let tenant = (key.app.clone(), key.user.clone());
        let app = Shared::merged(self.apps.get(&key.app), &split.app, schema, what)?;
        let user = self.tenants.get(&tenant).map(|tenant| &tenant.user);
        let user = Shared::merged(user, &split.user, schema, what)?;
        self.apps.entry(tenant.0.clone()).or_default().cells = app;
        self.tenants.entry(tenant).or_default().user.cells = user;
        Ok(())
    }

    fn commit(
        &mut self,
        key: &SessionKey,
        at: Timestamp,
        commit: impl FnOnce(&mut Entry) -> u64,
    ) -> Result<u64, SessionError> {
        let (order, entry) = self.entry_mut(key)?;
        if entry.updated != at {
            order.remove(&(entry.updated, entry.number));
            order.insert((at, entry.number), key.id.clone());
        }
        Ok(commit(entry))
    }

    fn fork(&mut self, request: ForkSession) -> Result<Session, SessionError> {
        let ForkSession { from, id, version, at } = request;
        let (_, entry) = self.entry(&from)?;
        let version = version.unwrap_or_else(|| entry.version());
        let fork = entry.fork(&from, version, self.newest + 1, at)?;
        let id = self.free_id(&from.app, &from.user, id, at)?;
        let key = from.with_id(id);
        self.insert(&key, fork);
        self.get(&GetSession::new(key).events(EventRange::None).without_state())
    }

    fn rewind(&mut self, request: &RewindSession) -> Result<Receipt, SessionError> {
        let key = &request.key;
        let (_, entry) = self.entry(key)?;
        let event = request.to_event();
        if let Some(receipt) = entry.repeated(key, &event)? {
            return Ok(receipt);
        }
        request.expected.check(key, entry.version())?;
        let cells = entry.cells_at(key, request.to)?;
        let version = self.commit(key, request.at, |entry| entry.commit(event, cells))?;
        Ok(Receipt { event: request.event.clone(), version })
    }

    fn write_scope(&mut self, request: &WriteScope) -> Result<Values, SessionError> {
        let shared = match &request.scope {
            ScopeKey::App(app) => self.apps.entry(app.clone()).or_default(),
            ScopeKey::User(app, user) => {
                &mut self.tenants.entry((app.clone(), user.clone())).or_default().user
            }
        };
        shared.write(request)
    }

    fn shared(&self, scope: &ScopeKey) -> Option<&Shared> {
        match scope {
            ScopeKey::App(app) => self.apps.get(app),
            ScopeKey::User(app, user) => {
                self.tenants.get(&(app.clone(), user.clone())).map(|tenant| &tenant.user)
            }
        }
    }

    fn entry(&self, key: &SessionKey) -> Result<(&Tenant, &Entry), SessionError> {
        let tenant = self.tenants.get(&(key.app.clone(), key.user.clone()));
        let entry = tenant.and_then(|tenant| Some((tenant, tenant.sessions.get(&key.id)?)));
        entry.ok_or_else(|| SessionError::not_found(key))
    }

    fn entry_mut(&mut self, key: &SessionKey) -> Result<(&mut tenant::Order, &mut Entry), SessionError> {
        let Tenant { sessions, order, .. } = self.tenant_mut(key)?;
        let entry = sessions.get_mut(&key.id).ok_or_else(|| SessionError::not_found(key))?;
        Ok((order, entry))
    }

    fn tenant_mut(&mut self, key: &SessionKey) -> Result<&mut Tenant, SessionError> {
        let tenant = self.tenants.get_mut(&(key.app.clone(), key.user.clone()));
        tenant.ok_or_else(|| SessionError::not_found(key))
    }
}
