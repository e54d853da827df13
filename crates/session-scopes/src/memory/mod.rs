//! Sessions in memory: for tests, and for data that need not outlive the process.
//!
//! Values and events are persistent maps and lists, so every version of a session keeps a snapshot of its
//! state, and a fork shares all of it. One lock guards the whole store; each operation holds it only for its
//! own writes.

mod app_data;
mod branches;
mod budgets;
mod change_index;
mod claims;
mod erasure;
mod event_versions;
mod inbox;
mod lists;
mod search;
mod sizes;
mod tag_index;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;

use self::app_data::{AppData, SessionEntry, SessionSlot, SharedScope, UserData, write_shared};
use self::budgets::MemoryBudgets;
use self::search::MemoryIndex;
use crate::apply::{initial, made_id};
use crate::error::SessionError;
use crate::event::Event;
use crate::ids::{AppId, Label, SessionId, SessionKey, UserId};
use crate::memory_size;
use crate::session::{ScopeValues, Session};
use crate::store::{
    AppendEvent, BudgetBalance, BudgetRaise, Claim, ClaimSession, CreateSession, DeleteSession, Deleted,
    DequeueInput, EnqueueInput, Enqueued, EraseData, ErasedData, ErasureRecord, EventRange, EventSizes,
    FindEvent, FindTagged, ForkInfo, ForkSession, FoundMessage, GetSession, InboxEntry, LabelVersion,
    ListErasures, ListForks, ListRaises, ListSessions, ListSpend, ListUnattended, ListUsers, PruneSession,
    Pruned, RaiseBudgets, ReadBudgets, ReadInbox, ReadLabels, Receipt, ReleaseClaim, RenewClaim, RenewClaims,
    Renewed, ReserveSpend, RewindSession, ScanSessions, ScannedPage, ScopeKey, SearchSessions, SessionCursor,
    SessionPage, SessionStore, SettleOpen, SettleSpend, SpendRecord, Unattended, VacuumStore, Verified,
    VerifySessions, WriteOrigin, WriteScope, check_user, first_events,
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
pub struct MemoryStore(Mutex<MemoryInner>);

#[derive(Debug, Default)]
struct MemoryInner {
    apps: HashMap<AppId, AppData>,
    budgets: MemoryBudgets,
    /// The indexes of searches, by the numbers of sessions.
    indexes: HashMap<i64, MemoryIndex>,
    /// The records of erasures, each with its app.
    erasures: Vec<(AppId, ErasureRecord)>,
    /// The number of the newest session.
    newest: i64,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        MemoryStore::default()
    }

    /// Nothing is changed before all that can fail has succeeded, so a poisoned lock guards whole data.
    fn lock(&self) -> MutexGuard<'_, MemoryInner> {
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

    async fn find_event(&self, request: FindEvent) -> Result<Option<u64>, SessionError> {
        let inner = self.lock();
        let (.., entry) = inner.entry(&request.key)?;
        Ok(entry.known(&request.id).version)
    }

    async fn find_tagged(&self, request: FindTagged) -> Result<Vec<Option<u64>>, SessionError> {
        let inner = self.lock();
        let (.., entry) = inner.entry(&request.key)?;
        Ok(entry.find_tagged(&request.tags))
    }

    async fn event_sizes(&self, request: EventSizes) -> Result<Vec<(u64, u64)>, SessionError> {
        let events = self.lock().entry(&request.key)?.2.page(request.after, request.limit);
        let size = |event: &Event| {
            let values = if request.in_memory { sizes::values_of(event) } else { 0 };
            memory_size::of_event(sizes::size_of(event) as u64, values)
        };
        Ok(events.iter().map(|committed| (committed.version, size(&committed.event))).collect())
    }

    async fn search(&self, request: SearchSessions) -> Result<Vec<FoundMessage>, SessionError> {
        crate::search::search(self, self, request).await
    }

    async fn list(&self, request: ListSessions) -> Result<SessionPage, SessionError> {
        self.lock().list(&request)
    }

    async fn scan(&self, request: ScanSessions) -> Result<ScannedPage, SessionError> {
        self.lock().scan(&request)
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

    async fn read_scope(&self, scope: ScopeKey) -> Result<ScopeValues, SessionError> {
        Ok(self.lock().shared(&scope).map(SharedScope::values).unwrap_or_default())
    }

    async fn write_scope(&self, request: WriteScope) -> Result<ScopeValues, SessionError> {
        request.check()?;
        self.lock().write_scope(&request)
    }

    async fn prune(&self, request: PruneSession) -> Result<Pruned, SessionError> {
        let mut inner = self.lock();
        let entry = inner.place(&request.key)?.entry;
        let (number, pruned) = (entry.number, entry.prune(&request)?);
        if !request.is_dry_run {
            inner.forget_index(number);
        }
        Ok(pruned)
    }

    /// Data in memory cannot be damaged.
    async fn verify(&self, request: VerifySessions) -> Result<Verified, SessionError> {
        self.lock().verify(&request)
    }

    async fn forks(&self, request: ListForks) -> Result<Vec<ForkInfo>, SessionError> {
        self.lock().forks(&request)
    }

    async fn users(&self, request: ListUsers) -> Result<Vec<UserId>, SessionError> {
        Ok(self.lock().users(&request))
    }

    async fn unattended(&self, request: ListUnattended) -> Result<Vec<Unattended>, SessionError> {
        self.lock().unattended(&request)
    }

    async fn set_label(&self, request: LabelVersion) -> Result<Option<u64>, SessionError> {
        self.lock().place(&request.key)?.entry.set_label(request)
    }

    async fn labels(&self, request: ReadLabels) -> Result<Vec<(Label, u64)>, SessionError> {
        Ok(self.lock().entry(&request.key)?.2.labels())
    }

    async fn claim(&self, request: ClaimSession) -> Result<Claim, SessionError> {
        self.lock().claim(&request)
    }

    async fn renew(&self, request: RenewClaim) -> Result<Renewed, SessionError> {
        self.lock().renew(&request)
    }

    async fn renew_all(
        &self,
        request: RenewClaims,
    ) -> Result<Vec<Result<Renewed, SessionError>>, SessionError> {
        Ok(self.lock().renew_all(&request))
    }

    async fn release(&self, request: ReleaseClaim) -> Result<(), SessionError> {
        self.lock().release(&request);
        Ok(())
    }

    async fn enqueue(&self, request: EnqueueInput) -> Result<Enqueued, SessionError> {
        let prepared = request.prepare()?;
        self.lock().enqueue(prepared)
    }

    async fn inbox(&self, request: ReadInbox) -> Result<Vec<InboxEntry>, SessionError> {
        self.lock().inbox(&request)
    }

    async fn dequeue(&self, request: DequeueInput) -> Result<Vec<u64>, SessionError> {
        self.lock().dequeue(&request)
    }

    async fn reserve(&self, request: ReserveSpend) -> Result<Vec<BudgetBalance>, SessionError> {
        let mut sessions = self.lock();
        // NOTE: an erased user would be in the list of spend again, and who has lost its claim leaves no reservation behind.
        let (.., entry) = sessions.entry(&request.key)?;
        if let Some(token) = request.token {
            entry.work.fence.check(&request.key, token)?;
        }
        sessions.budgets.reserve(request)
    }

    fn reserves_with_appends(&self) -> bool {
        true
    }

    async fn settle(&self, request: SettleSpend) -> Result<bool, SessionError> {
        Ok(self.lock().budgets.settle(&request))
    }

    async fn settle_open(&self, request: SettleOpen) -> Result<u64, SessionError> {
        Ok(self.lock().budgets.settle_open(&request))
    }

    async fn balances(&self, request: ReadBudgets) -> Result<Vec<BudgetBalance>, SessionError> {
        Ok(self.lock().budgets.balances(&request))
    }

    async fn raise_budgets(&self, request: RaiseBudgets) -> Result<(), SessionError> {
        self.lock().budgets.raise(&request);
        Ok(())
    }

    async fn raises(&self, request: ListRaises) -> Result<Vec<BudgetRaise>, SessionError> {
        Ok(self.lock().budgets.raises(&request))
    }

    async fn erase(&self, request: EraseData) -> Result<ErasedData, SessionError> {
        request.check()?;
        self.lock().erase(&request)
    }

    async fn erasures(&self, request: ListErasures) -> Result<Vec<ErasureRecord>, SessionError> {
        Ok(self.lock().erasures(&request))
    }

    /// Memory that is freed has no file.
    async fn vacuum(&self, _: VacuumStore) -> Result<(), SessionError> {
        Ok(())
    }

    async fn spend(&self, request: ListSpend) -> Result<Vec<SpendRecord>, SessionError> {
        Ok(self.lock().budgets.list(&request))
    }
}

impl MemoryInner {
    fn create(&mut self, request: CreateSession) -> Result<Session, SessionError> {
        check_user(&request.user)?;
        let CreateSession { app, user, id, life, at, schema, values, events, labels } = request;
        let delta = initial(&schema, &values)?.into_iter().collect();
        let events = first_events(events)?;
        let number = self.newest + 1;
        let key = SessionKey { id: self.free_id(&app, &user, id, at)?, app, user };
        let mut entry =
            SessionEntry::new(number, at, &delta, &schema, life)?.with_events(&key, events, &schema)?;
        for (label, version) in labels {
            entry.set_label(LabelVersion::new(key.clone(), label, version))?;
        }
        let (shared, tenant) = self.tenant_or_new(&key.app, &key.user);
        let both = (shared, &mut tenant.user);
        // NOTE: looking the user up has created it; without a session it must not stay, or it would be listed as a user.
        if let Err(error) = write_shared(both, &delta, &schema, WriteOrigin::NewSession) {
            self.forget_if_empty(&key.app, &key.user);
            return Err(error);
        }
        self.insert(&key, entry);
        self.get(&GetSession::new(key).events(EventRange::None))
    }

    /// The requested id, if it is free, or a new one.
    fn free_id(
        &self,
        app: &AppId,
        user: &UserId,
        id: Option<SessionId>,
        at: Timestamp,
    ) -> Result<SessionId, SessionError> {
        let tenant = self.tenant(app, user);
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

    fn insert(&mut self, key: &SessionKey, entry: SessionEntry) {
        self.newest = self.newest.max(entry.number);
        self.tenant_or_new(&key.app, &key.user).1.insert(key.id.clone(), entry);
    }

    fn get(&self, request: &GetSession) -> Result<Session, SessionError> {
        let (app, tenant, entry) = self.entry(&request.key)?;
        entry.session(request.key.clone(), request, &app.shared, &tenant.user)
    }

    fn list(&mut self, request: &ListSessions) -> Result<SessionPage, SessionError> {
        let after = request.after.as_ref().map(SessionCursor::position).transpose()?;
        let app = self.apps.get_mut(&request.app);
        let found = app.and_then(|app| Some((&app.shared, app.users.get_mut(&request.user)?.in_order())));
        let Some((app, tenant)) = found else {
            return Ok(SessionPage { sessions: Vec::new(), next: None });
        };
        let mut newest = tenant.newest_first(after).filter(|(id, entry)| entry.is_wanted(id, request));
        let mut sessions = Vec::with_capacity(request.limit.min(tenant.sessions.len()));
        let (mut get, mut last) = (None, None);
        for (id, entry) in newest.by_ref().take(request.limit) {
            let key = SessionKey { app: request.app.clone(), user: request.user.clone(), id: id.clone() };
            // NOTE: built once: a request holds a schema and keys, and a list may read thousands of sessions.
            let get = get.get_or_insert_with(|| request.get(key.clone()));
            sessions.push(entry.session(key, get, app, &tenant.user)?);
            last = Some((entry.updated, entry.number));
        }
        let last = last.map(|(updated, number)| SessionCursor::after(updated, number));
        let next = last.filter(|_| newest.next().is_some());
        Ok(SessionPage { sessions, next })
    }

    fn delete(&mut self, request: &DeleteSession) -> Result<Deleted, SessionError> {
        let key = &request.key;
        let (.., entry) = self.entry(key)?;
        entry.work.fence.check_free(key, request.take_over, request.at)?;
        request.check_unused(entry.version(), entry.work.inbox.newest(), || Ok(entry.labels().len()))?;
        let tenant = self.apps.get_mut(&key.app).and_then(|app| app.users.get_mut(&key.user));
        let removed = tenant.and_then(|tenant| Some((tenant.remove(&key.id)?, tenant)));
        let (entry, tenant) = removed.ok_or_else(|| SessionError::not_found(key))?;
        let user_keys = if request.user_state { tenant.erase() } else { Vec::new() };
        self.forget_if_empty(&key.app, &key.user);
        self.indexes.remove(&entry.number);
        self.budgets.settle_open(&SettleOpen::new(key.clone()));
        Ok(Deleted { events: entry.events(), session_keys: entry.keys(), user_keys })
    }

    fn append(&mut self, request: AppendEvent) -> Result<Receipt, SessionError> {
        let AppendEvent { key, expected, event, schema, claim, taken, settled, reserved, .. } = request;
        let place = self.place(&key)?;
        let known = place.entry.known(&event.id);
        if let Some(receipt) = place.repeated(known, &key, &event)? {
            return Ok(place.entry.work.repeated(receipt, claim.as_ref()));
        }
        let fence = place.entry.work.check(&key, claim.as_ref(), event.at, &taken)?;
        expected.check(&key, place.entry.version())?;
        let (delta, what) = (&event.actions.delta, WriteOrigin::Event(&event.id));
        // NOTE: merged before the shared scopes are written, and committed after: an error leaves all three unchanged.
        let cells = place.entry.merged(delta, &schema, what)?;
        write_shared((&mut *place.app, &mut *place.user), delta, &schema, what)?;
        let (receipt, work) = place.commit(&key.id, known, event, cells);
        let receipt = work.commit(fence, &taken, claim.as_ref(), receipt);
        for reservation in &settled {
            self.budgets.settle(reservation);
        }
        let token = receipt.claim.as_ref().map(|claim| claim.token);
        let reservation = reserved.map(|request| self.budgets.reserve_with_append(*request, token));
        Ok(Receipt { reservation, ..receipt })
    }

    fn fork(&mut self, request: ForkSession) -> Result<Session, SessionError> {
        let ForkSession { from, id, life, version, at, event } = request;
        let (.., entry) = self.entry(&from)?;
        let version = version.unwrap_or_else(|| entry.version());
        let fork = entry.fork(&from, version, self.newest + 1, at, life)?;
        let id = self.free_id(&from.app, &from.user, id, at)?;
        let key = from.with_id(id);
        self.place(&from)?.entry.add_fork(fork.number, &key.id);
        self.insert(&key, fork);
        if let Some(event) = event {
            let appended =
                event.append(key.clone(), version).prepare().and_then(|request| self.append(request));
            if let Err(error) = appended {
                let tenant = self.apps.get_mut(&key.app).and_then(|app| app.users.get_mut(&key.user));
                // NOTE: fork and first event are one operation, so a rejected event takes the fork back.
                tenant.and_then(|tenant| tenant.remove(&key.id));
                return Err(error);
            }
        }
        self.get(&GetSession::new(key).events(EventRange::None).without_state())
    }

    fn rewind(&mut self, request: &RewindSession) -> Result<Receipt, SessionError> {
        let key = &request.key;
        let place = self.place(key)?;
        let event = Arc::new(request.to_event());
        let known = place.entry.known(&event.id);
        if let Some(receipt) = place.repeated(known, key, &event)? {
            return Ok(place.entry.work.repeated(receipt, request.claim.as_ref()));
        }
        let fence = place.entry.work.check(key, request.claim.as_ref(), request.at, &request.taken)?;
        request.expected.check(key, place.entry.version())?;
        let cells = place.entry.cells_at(key, request.to)?;
        let (receipt, work) = place.commit(&key.id, known, event, cells);
        let receipt = work.commit(fence, &request.taken, request.claim.as_ref(), receipt);
        self.budgets.settle_open(&SettleOpen::new(key.clone()));
        Ok(receipt)
    }

    fn write_scope(&mut self, request: &WriteScope) -> Result<ScopeValues, SessionError> {
        let shared = match &request.scope {
            ScopeKey::App(app) => &mut self.apps.entry(app.clone()).or_default().shared,
            ScopeKey::User(app, user) => &mut self.tenant_or_new(app, user).1.user,
        };
        shared.write(request)
    }

    fn verify(&self, request: &VerifySessions) -> Result<Verified, SessionError> {
        let apps = self.apps.iter().filter(|(app, _)| match request {
            VerifySessions::App(wanted) => *app == wanted,
            _ => true,
        });
        let mut report = Verified::default();
        if let VerifySessions::Session(key) = request {
            report.sessions = 1;
            MemoryInner::add_erased(&mut report, key, self.entry(key)?.2);
            return Ok(report);
        }
        for (app, data) in apps {
            for (user, id, entry) in data.entries() {
                report.sessions += 1;
                let key = SessionKey { app: app.clone(), user: user.clone(), id: id.clone() };
                MemoryInner::add_erased(&mut report, &key, entry);
            }
        }
        Ok(report)
    }

    fn shared(&self, scope: &ScopeKey) -> Option<&SharedScope> {
        match scope {
            ScopeKey::App(app) => self.apps.get(app).map(|app| &app.shared),
            ScopeKey::User(app, user) => self.tenant(app, user).map(|tenant| &tenant.user),
        }
    }

    fn tenant(&self, app: &AppId, user: &UserId) -> Option<&UserData> {
        self.apps.get(app)?.users.get(user)
    }

    /// A user, and the shared values of its app.
    fn tenant_or_new(&mut self, app: &AppId, user: &UserId) -> (&mut SharedScope, &mut UserData) {
        let AppData { shared, users } = self.apps.entry(app.clone()).or_default();
        (shared, users.entry(user.clone()).or_default())
    }

    fn forget_if_empty(&mut self, app: &AppId, user: &UserId) {
        let Some(found) = self.apps.get_mut(app) else { return };
        if found.users.get(user).is_some_and(UserData::is_empty) {
            found.users.remove(user);
        }
        if found.is_empty() {
            self.apps.remove(app);
        }
    }

    fn entry(&self, key: &SessionKey) -> Result<(&AppData, &UserData, &SessionEntry), SessionError> {
        let found = self.apps.get(&key.app).and_then(|app| {
            let tenant = app.users.get(&key.user)?;
            Some((app, tenant, &**tenant.sessions.get(&key.id)?))
        });
        found.ok_or_else(|| SessionError::not_found(key))
    }

    fn place(&mut self, key: &SessionKey) -> Result<SessionSlot<'_>, SessionError> {
        let place = self.apps.get_mut(&key.app).and_then(|app| app.place(&key.user, &key.id));
        place.ok_or_else(|| SessionError::not_found(key))
    }
}
