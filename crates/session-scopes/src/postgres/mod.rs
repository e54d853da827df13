//! Sessions in PostgreSQL: many workers, one truth.
//!
//! An operation takes a connection from a pool and two or three round trips; an event without writes takes one. Handlers
//! run here, on a worker thread of the runtime and while their values are locked: they must not block.

mod append;
mod at_once;
mod at_version;
mod branches;
mod budgets;
mod change_statements;
mod claims;
mod connection;
mod erasure;
mod error;
mod inbox;
mod list_entry;
mod lists;
mod notices;
mod parts;
mod pooler;
mod read;
mod ring;
mod rows;
mod search;
mod sql;
mod statements;
mod sums;
mod sweep;
mod tables;
mod tags;
mod tls;
mod transaction;
mod verify;
mod write;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::Timeouts;
use tokio_postgres::Config;
use tokio_postgres_rustls::MakeRustlsConnect;

use self::connection::{ConnectionManager, Object, Pool};
use self::error::{failed, no_connection};
use self::notices::PostgresNotifier;
use self::rows::StoreCache;
use self::transaction::{IdleTimeout, with_timeout};
use crate::apply::initial;
use crate::error::SessionError;
use crate::ids::{AppId, EventId, Label, SessionKey, UserId};
use crate::keys::KeyRing;
use crate::keys::sealer::{Sealer, UserKeys};
use crate::rows::StoreAccess;
use crate::rows::values::{check_size, delta_body};
use crate::session::{ScopeValues, Session};
use crate::store::{
    AppendEvent, BudgetBalance, BudgetRaise, Claim, ClaimSession, CreateSession, DeleteSession, Deleted,
    DequeueInput, EnqueueInput, Enqueued, EraseData, ErasedData, ErasureRecord, EventRange, EventSizes,
    FindEvent, FindTagged, ForkInfo, ForkSession, FoundMessage, GetSession, InboxEntry, LabelVersion,
    ListErasures, ListForks, ListRaises, ListSessions, ListSpend, ListUnattended, ListUsers, OutlineSessions,
    PruneSession, Pruned, RaiseBudgets, ReadBudgets, ReadInbox, ReadLabels, Receipt, ReleaseClaim,
    RenewClaim, RenewClaims, Renewed, ReserveSpend, RewindSession, ScanSessions, ScannedPage, ScopeKey,
    SearchSessions, SessionOutline, SessionPage, SessionStore, SettleOpen, SettleSpend, SpendRecord,
    StoreConnections, StoreNotices, Unattended, VacuumStore, Verified, VerifySessions, WatchStore,
    WriteScope, check_user, first_events,
};

/// The additional time that a worker waits for the end of a statement. An abandoned connection is not reused
/// before it has answered: so this is no less than [`TRUSTED_IDLE_TIME`](connection::TRUSTED_IDLE_TIME).
const GRACE: Duration = Duration::from_secs(5);

/// The time that a worker waits for the end of an erasure.
const ERASURE_TIMEOUT: Duration = Duration::from_secs(3_600);

/// The address of a PostgreSQL database, and the limits of its connections.
///
/// No operation waits forever: each connection has timeouts enforced by the server, so that a worker that
/// stops in the middle of a transaction delays others only for a bounded time. If the server itself is
/// stopped or unreachable, an operation waits five seconds longer than for a statement. A timeout is an error
/// of the kind `Transient`; whether a write was committed is then unknown, and the same event can be sent
/// again.
#[derive(Clone)]
#[must_use = "options do nothing until a store is opened with them"]
pub struct PostgresOptions {
    url: String,
    access: StoreAccess,
    connections: usize,
    timeout: Duration,
    limits: Limits,
    keys: UserKeys,
}

/// Timeouts that the server enforces.
#[derive(Clone, Copy, Debug)]
struct Limits {
    lock: Duration,
    statement: Duration,
    idle_in_transaction: Duration,
}

impl Limits {
    /// The statements of the settings, and of that of a key ring, each with this beginning and this end.
    fn joined(&self, ring: Option<&str>, begin: &str, end: &str) -> String {
        let settings: Vec<String> = self.settings().into_iter().chain(ring.map(ring::setting)).collect();
        let separator = format!("{end}{begin}");
        format!("{begin}{}{end}", settings.join(&separator))
    }

    /// The settings, each as `name = milliseconds`.
    fn settings(&self) -> [String; 3] {
        let Limits { lock, statement, idle_in_transaction } = self;
        let settings = [
            ("lock_timeout", lock),
            ("statement_timeout", statement),
            ("idle_in_transaction_session_timeout", idle_in_transaction),
        ];
        // NOTE: zero would disable the timeout in PostgreSQL, so it becomes the shortest one, and the longest is its
        // maximum.
        settings.map(|(name, time)| format!("{name} = {}", time.as_millis().clamp(1, 2_147_483_647)))
    }

    /// The statements that set them for a connection with the setting of a key ring, and the isolation level that all
    /// statements here require.
    fn statements(&self, access: StoreAccess, ring: Option<&str>) -> String {
        let set = self.joined(ring, "SET ", ";");
        let mode = if access == StoreAccess::Read { "READ ONLY" } else { "READ WRITE" };
        set + &format!("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, {mode}")
    }

    /// The same for a transaction, after its `BEGIN`.
    fn local(&self, ring: Option<&str>) -> String {
        self.joined(ring, "; SET LOCAL ", "")
    }
}

impl PostgresOptions {
    /// The database at `url`: `postgres://user:password@host:port/database`, or the key-value form.
    /// Tables are made in the first schema of the search path.
    ///
    /// Options after a `?` configure encryption (TLS by rustls):
    ///
    /// | `sslmode` | encrypted | certificate |
    /// |---|---|---|
    /// | `disable` | no | |
    /// | `prefer`, the default | if the server can | checked if there is `sslrootcert` |
    /// | `require` | always | checked if there is `sslrootcert` |
    /// | `verify-full` | always | always checked, with the name of the host |
    ///
    /// `sslrootcert` is a file with the trusted certificates (PEM), or `system`; `verify-full` without it
    /// uses the system's certificates. A verified certificate must match the host, unlike libpq's
    /// `verify-ca`. The key-value form supports `disable`, `prefer` and `require`.
    ///
    /// # Examples
    /// ```
    /// use stepfold_session_scopes::PostgresOptions;
    ///
    /// let url = "postgres://worker@db.example/agents?sslmode=verify-full&sslrootcert=/etc/ssl/db.pem";
    /// let options = PostgresOptions::new(url).connections(4);
    /// ```
    pub fn new(url: impl Into<String>) -> Self {
        PostgresOptions {
            url: url.into(),
            access: StoreAccess::Create,
            connections: 16,
            timeout: Duration::from_secs(30),
            limits: Limits {
                lock: Duration::from_secs(15),
                statement: Duration::from_secs(60),
                idle_in_transaction: Duration::from_secs(10),
            },
            keys: UserKeys::default(),
        }
    }

    /// Opens an existing store, and makes no tables where there are none: [`SessionError::NoStore`]. Those of an earlier
    /// version are upgraded.
    pub fn must_exist(mut self) -> Self {
        self.access = StoreAccess::Write;
        self
    }

    /// Opens an existing store for reading: nothing is made or upgraded, and operations that write return
    /// [`SessionError::ReadOnly`].
    pub fn read_only(mut self) -> Self {
        self.access = StoreAccess::Read;
        self
    }

    /// Sets the maximum number of connections for operations; 16 by default, at least one. A worker has one more for the
    /// heartbeat of its claims, and one for notices.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// Sets the timeout of waiting for a connection, and for a server's acknowledgement; 30 seconds by
    /// default. The error is of the kind `Transient`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Limits how long a statement waits for a row that another transaction has locked (`lock_timeout`); 15 seconds by
    /// default.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.limits.lock = timeout;
        self
    }

    /// Limits how long a statement runs (`statement_timeout`); 60 seconds by default.
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.limits.statement = timeout;
        self
    }

    /// Limits how long a transaction waits for its worker (`idle_in_transaction_session_timeout`); 10 seconds by default.
    /// Then the server rolls it back and gives its locks free. Custom merge handlers run while the transaction waits. Once
    /// this store has asked for a claim, its transactions wait no longer than a third of the shortest one: a worker that is
    /// frozen in a transaction does not hold up who takes over.
    pub fn idle_in_transaction_timeout(mut self, timeout: Duration) -> Self {
        self.limits.idle_in_transaction = timeout;
        self
    }

    /// Seals the content of each user under a key that this ring holds: events, values of sessions and of `user:` keys, and
    /// waiting inputs. The database remembers the name of the ring. Without it the store can be opened: its sessions can be
    /// listed, claimed, verified, pruned and deleted, and everything that needs content is
    /// [`SessionError::Sealed`]. What was stored before the database had a ring stays as it is.
    ///
    /// The first store with a ring makes a function and triggers in the schema of the tables.
    pub fn key_ring(mut self, ring: Arc<dyn KeyRing>) -> Self {
        self.keys.ring = Some(ring);
        self
    }

    /// Connects, and makes or upgrades the tables. Instances that start together wait for the one that does so, at most a
    /// minute; one that is frozen meanwhile holds them up no longer than a
    /// [transaction may wait](PostgresOptions::idle_in_transaction_timeout). With existing tables of this version nothing
    /// waits.
    ///
    /// The address may be that of a pooler which gives each transaction another connection of the server, such as PgBouncer
    /// in transaction mode. That is found here: statements are not prepared then, timeouts are set in each transaction, and
    /// there are no [notices](SessionStore::notices), so that followers and recovery poll.
    ///
    /// # Errors
    /// When the address is invalid, the server does not answer, or another instance does not finish;
    /// [`SessionError::NoStore`] and [`SessionError::OlderFormat`] where the tables may not be made or upgraded;
    /// [`SessionError::ForeignTable`]; [`SessionError::NewerFormat`]; [`SessionError::OtherKeyRing`].
    pub async fn open(self) -> Result<PostgresStore, SessionError> {
        let (config, tls) = self.config()?;
        let (limits, answer_timeout) = (self.set_up_timeouts(), self.answer_timeout());
        tables::set_up(&config, tls.clone(), self.access, limits, self.keys.ring_name()).await?;
        let is_pooled = pooler::detect(&config, &tls, self.timeout).await?;
        let pool = |connections| self.pool(config.clone(), tls.clone(), connections, is_pooled);
        // NOTE: a separate connection: operations that wait for locks may hold all others, and a heartbeat that waits for
        // them would lose its claims.
        let (pool, heartbeat) = (pool(self.connections)?, pool(1)?);
        let local = if is_pooled { self.limits.local(self.keys.ring_name()) } else { String::new() };
        let cache = StoreCache::new(IdleTimeout::new(self.limits.idle_in_transaction, local));
        let notifier = PostgresNotifier::new(pool.clone(), config, tls, is_pooled);
        let access = self.access;
        Ok(PostgresStore(Arc::new(PostgresInner {
            pool,
            heartbeat,
            answer_timeout,
            access,
            cache,
            notifier,
            keys: self.keys,
        })))
    }

    /// The name of the key ring that the database remembers; `None` for one without tables, or without a ring. Nothing is created or
    /// changed: for programs that make a ring only for a store that has none.
    ///
    /// # Errors
    /// When the address is invalid, the server does not answer, or a table is not one of stepfold.
    pub async fn stored_ring(&self) -> Result<Option<String>, SessionError> {
        let (config, tls) = self.config()?;
        tables::stored_ring(&config, tls, self.set_up_timeouts()).await
    }

    fn config(&self) -> Result<(Config, MakeRustlsConnect), SessionError> {
        let (mut config, tls) = tls::read_address(&self.url)?;
        // NOTE: keepalives find a dead host while a connection waits for notices and sends nothing.
        config.connect_timeout(self.timeout).keepalives_idle(Duration::from_secs(30));
        // NOTE: without it a write to a host that has vanished would wait for the system's retransmissions, a quarter of an
        // hour.
        config.tcp_user_timeout(self.timeout);
        if config.get_application_name().is_none() {
            config.application_name("stepfold");
        }
        Ok((config, tls))
    }

    fn answer_timeout(&self) -> Duration {
        self.limits.statement.saturating_add(GRACE)
    }

    fn set_up_timeouts(&self) -> tables::SetUpTimeouts {
        let idle = self.limits.idle_in_transaction;
        tables::SetUpTimeouts { connecting: self.timeout, answer: self.answer_timeout(), idle }
    }

    fn pool(
        &self,
        config: Config,
        tls: MakeRustlsConnect,
        connections: usize,
        is_pooled: bool,
    ) -> Result<Pool, SessionError> {
        let settings =
            (!is_pooled).then(|| self.limits.statements(self.access, self.keys.ring_name()).into());
        let manager = ConnectionManager::new(config, tls, settings);
        let timeouts =
            Timeouts { wait: Some(self.timeout), create: Some(self.timeout), recycle: Some(self.timeout) };
        Pool::builder(manager)
            .max_size(connections)
            .runtime(Runtime::Tokio1)
            .timeouts(timeouts)
            .build()
            .map_err(|error| SessionError::Store {
                what: "create a connection pool",
                source: Box::new(error),
            })
    }
}

/// Omits the address, which may hold a password.
impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PostgresOptions { url: _, access, connections, timeout, limits, keys } = self;
        let mut shown = f.debug_struct("PostgresOptions");
        shown
            .field("access", access)
            .field("connections", connections)
            .field("timeout", timeout)
            .field("limits", limits)
            .field("ring", &keys.ring_name());
        shown.finish_non_exhaustive()
    }
}

/// Sessions in a PostgreSQL database. Cloning is cheap and shares the connections.
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), stepfold_session_scopes::SessionError> {
/// use stepfold_session_scopes::PostgresStore;
///
/// let store = PostgresStore::open("postgres://worker@localhost/agents").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresStore(Arc<PostgresInner>);

struct PostgresInner {
    pool: Pool,
    /// The connection of heartbeats: operations that wait, for the lock of a row for example, may have all others.
    heartbeat: Pool,
    /// The time that an operation waits for the server.
    answer_timeout: Duration,
    access: StoreAccess,
    cache: StoreCache,
    notifier: PostgresNotifier,
    keys: UserKeys,
}

impl PostgresStore {
    /// Opens a database with the usual options; see [`PostgresOptions::open`].
    ///
    /// # Errors
    /// As [`PostgresOptions::open`].
    pub async fn open(url: impl Into<String>) -> Result<Self, SessionError> {
        PostgresOptions::new(url).open().await
    }

    /// Whether the database answers.
    ///
    /// # Errors
    /// When it does not.
    pub async fn check(&self) -> Result<(), SessionError> {
        let connection = self.connection().await?;
        let answer = async { connection.simple_query("").await.map(drop).map_err(failed("respond")) };
        self.with_timeout(answer).await
    }

    /// Limits an operation to the time that its server may take for a statement, and a little more.
    async fn with_timeout<T>(
        &self,
        operation: impl Future<Output = Result<T, SessionError>>,
    ) -> Result<T, SessionError> {
        with_timeout(self.0.answer_timeout, operation).await
    }

    async fn connection(&self) -> Result<Object, SessionError> {
        self.with_key(None).await
    }

    /// A connection for an operation that writes.
    async fn writer(&self) -> Result<Object, SessionError> {
        self.check_writable()?;
        self.connection().await
    }

    /// A connection for an operation that reads content of a user.
    async fn reader_of(&self, app: &AppId, user: &UserId) -> Result<Object, SessionError> {
        self.with_key(self.0.keys.find(app, user).await?).await
    }

    /// A connection for an operation that adds content to a session.
    async fn writer_of(&self, key: &SessionKey) -> Result<Object, SessionError> {
        self.check_writable()?;
        let is_sealed = async || {
            // NOTE: opens the values, and the inbox: what is sealed of them is an error.
            self.get(GetSession::new(key.clone()).events(EventRange::None)).await?;
            self.inbox(ReadInbox::new(key.clone())).await?;
            let connection = self.connection().await?;
            self.with_timeout(read::has_sealed_events(&connection, key)).await
        };
        let sealer = self.0.keys.find_or_make(key, is_sealed).await?;
        self.with_key(sealer).await
    }

    /// The key with which values or a session are added to those of a user.
    async fn new_key(&self, app: &AppId, user: &UserId) -> Result<Option<Arc<Sealer>>, SessionError> {
        let scope = || ScopeKey::User(app.clone(), user.clone());
        self.0.keys.make(app, user, async || self.read_scope(scope()).await.map(drop)).await
    }

    /// A connection for an operation on content.
    async fn with_key(&self, sealer: Option<Arc<Sealer>>) -> Result<Object, SessionError> {
        let connection = self.0.pool.get().await.map_err(no_connection)?;
        Ok(Object::new(connection, sealer))
    }

    fn check_writable(&self) -> Result<(), SessionError> {
        match self.0.access {
            StoreAccess::Read => Err(SessionError::ReadOnly),
            StoreAccess::Create | StoreAccess::Write => Ok(()),
        }
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("connections", &self.0.pool.status()).finish_non_exhaustive()
    }
}

/// The futures inside are large, because of all the pipelined statements; hence the boxes.
impl PostgresStore {
    /// Erases the rows. A user may have thousands of sessions, which are erased in one transaction.
    async fn erase_rows(&self, request: &EraseData) -> Result<ErasedData, SessionError> {
        let (app, user) = request.target.owner();
        let connection = self.reader_of(app, user).await?;
        let erase = Box::pin(erasure::erase(connection, &self.0.cache.idle, request));
        with_timeout(ERASURE_TIMEOUT, erase).await
    }

    /// Erases a user with the key, which is destroyed between two transactions.
    async fn erase_with_key(&self, request: &EraseData) -> Result<ErasedData, SessionError> {
        let (keys, idle) = (&self.0.keys, &self.0.cache.idle);
        let (app, user) = request.target.owner();
        let begin = Box::pin(erasure::begin_erasure(self.reader_of(app, user).await?, idle, request));
        if let Some(repeated) = with_timeout(ERASURE_TIMEOUT, begin).await? {
            return keys.check_repeated(request, repeated).await;
        }
        let had_key = keys.destroy(app, user).await?;
        let finish = Box::pin(erasure::finish(self.reader_of(app, user).await?, idle, request));
        Ok(ErasedData { had_key, ..with_timeout(ERASURE_TIMEOUT, finish).await? })
    }

    /// The receipt of an event; for one whose id is used, whether the other was erased.
    async fn or_erased(
        &self,
        key: &SessionKey,
        event: &EventId,
        receipt: Result<Receipt, SessionError>,
    ) -> Result<Receipt, SessionError> {
        let Err(SessionError::EventReused { .. }) = &receipt else { return receipt };
        let connection = self.connection().await?;
        match self.with_timeout(Box::pin(erasure::erased_version(connection, key, event))).await? {
            Some(version) => Err(SessionError::erased(key, version)),
            None => receipt,
        }
    }
}

impl SessionStore for PostgresStore {
    fn connections(&self) -> StoreConnections {
        let status = self.0.pool.status();
        StoreConnections {
            limit: status.max_size,
            open: status.size,
            used: status.size.saturating_sub(status.available),
            waiting: status.waiting,
        }
    }

    async fn create(&self, mut request: CreateSession) -> Result<Session, SessionError> {
        check_user(&request.user)?;
        let delta = initial(&request.schema, &request.values)?.into_iter().collect();
        let events = first_events(std::mem::take(&mut request.events))?;
        self.check_writable()?;
        let sealer = self.new_key(&request.app, &request.user).await?;
        let connection = self.with_key(sealer.clone()).await?;
        let create = write::create(connection, &self.0.cache, request, &delta, &events);
        let key = self.with_timeout(Box::pin(create)).await?;
        // NOTE: notified after the commit: inside the transaction, `NOTIFY` would make all commits of the database wait for
        // each other.
        self.0.notifier.notify(&key, false);
        // NOTE: a separate read after the commit: other sessions may write to shared scopes meanwhile, and a snapshot shows
        // one moment of all three.
        let connection = self.with_key(sealer).await?;
        let get = GetSession::new(key).events(EventRange::None);
        self.with_timeout(Box::pin(read::get(connection, &self.0.cache, &get))).await
    }

    async fn get(&self, request: GetSession) -> Result<Session, SessionError> {
        let connection = self.reader_of(&request.key.app, &request.key.user).await?;
        self.with_timeout(Box::pin(read::get(connection, &self.0.cache, &request))).await
    }

    async fn outlines(&self, request: OutlineSessions) -> Result<Vec<Option<SessionOutline>>, SessionError> {
        if request.ids.is_empty() {
            return Ok(Vec::new());
        }
        let connection = self.reader_of(&request.app, &request.user).await?;
        self.with_timeout(Box::pin(at_once::outlines(connection, &self.0.cache, &request))).await
    }

    async fn find_event(&self, request: FindEvent) -> Result<Option<u64>, SessionError> {
        let connection = self.connection().await?;
        self.with_timeout(Box::pin(read::find_event(connection, &request))).await
    }

    async fn find_tagged(&self, request: FindTagged) -> Result<Vec<Option<u64>>, SessionError> {
        let connection = self.connection().await?;
        self.with_timeout(Box::pin(tags::find(connection, &request))).await
    }

    async fn search(&self, request: SearchSessions) -> Result<Vec<FoundMessage>, SessionError> {
        match self.0.keys.ring {
            // NOTE: hashes of words can be tried, so sealed content has no index (docs/decisions/keys.md).
            Some(_) => Box::pin(crate::search::scan_all(self, request)).await,
            None => Box::pin(crate::search::search(self, self, request)).await,
        }
    }

    async fn list(&self, request: ListSessions) -> Result<SessionPage, SessionError> {
        let connection = self.reader_of(&request.app, &request.user).await?;
        self.with_timeout(Box::pin(read::list(connection, &self.0.cache, &request))).await
    }

    async fn delete(&self, request: DeleteSession) -> Result<Deleted, SessionError> {
        let connection = self.writer().await?;
        let deleted =
            self.with_timeout(Box::pin(write::delete(connection, &self.0.cache.idle, &request))).await?;
        self.0.notifier.notify(&request.key, false);
        Ok(deleted)
    }

    async fn append(&self, request: AppendEvent) -> Result<Receipt, SessionError> {
        let request = request.prepare()?;
        let body = check_size(request.event.to_body()?, &request.event.id)?;
        let connection = self.writer_of(&request.key).await?;
        let receipt =
            self.with_timeout(Box::pin(append::append(connection, &self.0.cache, &request, &body))).await;
        let receipt = self.or_erased(&request.key, &request.event.id, receipt).await?;
        self.0.notifier.notify(&request.key, false);
        Ok(receipt)
    }

    async fn fork(&self, request: ForkSession) -> Result<Session, SessionError> {
        let connection = self.writer_of(&request.from).await?;
        let fork = self.with_timeout(Box::pin(write::fork(connection, &self.0.cache, request))).await?;
        self.0.notifier.notify(&fork.key, false);
        Ok(fork)
    }

    async fn rewind(&self, request: RewindSession) -> Result<Receipt, SessionError> {
        let event = request.to_event();
        let body = event.to_body()?;
        let connection = self.writer_of(&request.key).await?;
        let receipt = self
            .with_timeout(Box::pin(write::rewind(connection, &self.0.cache, &request, &event, &body)))
            .await;
        let receipt = self.or_erased(&request.key, &event.id, receipt).await?;
        self.0.notifier.notify(&request.key, false);
        Ok(receipt)
    }

    async fn event_sizes(&self, request: EventSizes) -> Result<Vec<(u64, u64)>, SessionError> {
        let connection = self.reader_of(&request.key.app, &request.key.user).await?;
        self.with_timeout(Box::pin(read::event_sizes(connection, &request))).await
    }

    async fn forks(&self, request: ListForks) -> Result<Vec<ForkInfo>, SessionError> {
        let connection = self.connection().await?;
        self.with_timeout(Box::pin(read::forks(connection, &request.key))).await
    }

    async fn users(&self, request: ListUsers) -> Result<Vec<UserId>, SessionError> {
        let connection = self.connection().await?;
        self.with_timeout(Box::pin(lists::users(connection, &request))).await
    }

    async fn scan(&self, request: ScanSessions) -> Result<ScannedPage, SessionError> {
        let connection = self.connection().await?;
        self.with_timeout(Box::pin(lists::scan(connection, &request))).await
    }

    async fn unattended(&self, request: ListUnattended) -> Result<Vec<Unattended>, SessionError> {
        let connection = self.connection().await?;
        self.with_timeout(Box::pin(lists::unattended(connection, &request))).await
    }

    async fn set_label(&self, request: LabelVersion) -> Result<Option<u64>, SessionError> {
        let connection = self.writer().await?;
        self.with_timeout(Box::pin(write::set_label(connection, &self.0.cache.idle, &request))).await
    }

    async fn labels(&self, request: ReadLabels) -> Result<Vec<(Label, u64)>, SessionError> {
        let connection = self.connection().await?;
        self.with_timeout(Box::pin(read::labels(connection, &request.key))).await
    }

    async fn read_scope(&self, scope: ScopeKey) -> Result<ScopeValues, SessionError> {
        let connection = match scope.parts() {
            (app, Some(user)) => self.reader_of(app, user).await?,
            (_, None) => self.connection().await?,
        };
        self.with_timeout(Box::pin(read::read_scope(connection, &self.0.cache.schemas, &scope))).await
    }

    async fn write_scope(&self, request: WriteScope) -> Result<ScopeValues, SessionError> {
        request.check()?;
        let body = delta_body(&request.delta)?;
        self.check_writable()?;
        let connection = match request.scope.parts() {
            (app, Some(user)) => self.with_key(self.new_key(app, user).await?).await?,
            (_, None) => self.connection().await?,
        };
        self.with_timeout(Box::pin(write::write_scope(connection, &self.0.cache, &request, &body))).await
    }

    async fn prune(&self, request: PruneSession) -> Result<Pruned, SessionError> {
        self.check_writable()?;
        let connection = self.reader_of(&request.key.app, &request.key.user).await?;
        self.with_timeout(Box::pin(write::prune(connection, &self.0.cache.idle, &request))).await
    }

    async fn verify(&self, request: VerifySessions) -> Result<Verified, SessionError> {
        let connection = self.connection().await?;
        Box::pin(verify::verify(connection, &self.0.cache, self.0.answer_timeout, &request)).await
    }

    async fn claim(&self, request: ClaimSession) -> Result<Claim, SessionError> {
        let connection = self.writer().await?;
        self.with_timeout(Box::pin(claims::claim(connection, &self.0.cache.idle, &request))).await
    }

    async fn renew(&self, request: RenewClaim) -> Result<Renewed, SessionError> {
        let connection = self.writer().await?;
        self.with_timeout(Box::pin(claims::renew(connection, &self.0.cache.idle, &request))).await
    }

    async fn renew_all(
        &self,
        request: RenewClaims,
    ) -> Result<Vec<Result<Renewed, SessionError>>, SessionError> {
        if request.claims.is_empty() {
            return Ok(Vec::new());
        }
        self.check_writable()?;
        let connection = Object::new(self.0.heartbeat.get().await.map_err(no_connection)?, None);
        self.with_timeout(Box::pin(claims::renew_all(connection, &self.0.cache.idle, &request))).await
    }

    async fn release(&self, request: ReleaseClaim) -> Result<(), SessionError> {
        let connection = self.writer().await?;
        self.with_timeout(Box::pin(claims::release(connection, &self.0.cache.idle, &request))).await?;
        match request.unfinished {
            Some(_) => self.0.notifier.notify_now(&request.key, true).await,
            None => self.0.notifier.notify(&request.key, false),
        }
        Ok(())
    }

    async fn notices(&self, _: WatchStore) -> Result<StoreNotices, SessionError> {
        self.0.notifier.listen()
    }

    async fn enqueue(&self, request: EnqueueInput) -> Result<Enqueued, SessionError> {
        let prepared = request.prepare()?;
        let connection = self.writer_of(&prepared.input.key).await?;
        let enqueued =
            self.with_timeout(Box::pin(inbox::enqueue(connection, &self.0.cache.idle, &prepared))).await?;
        self.0.notifier.notify(&prepared.input.key, true);
        Ok(enqueued)
    }

    async fn inbox(&self, request: ReadInbox) -> Result<Vec<InboxEntry>, SessionError> {
        let connection = self.reader_of(&request.key.app, &request.key.user).await?;
        self.with_timeout(Box::pin(read::inbox(connection, &request))).await
    }

    async fn reserve(&self, request: ReserveSpend) -> Result<Vec<BudgetBalance>, SessionError> {
        let connection = self.writer().await?;
        self.with_timeout(Box::pin(budgets::reserve(connection, &self.0.cache.idle, &request))).await
    }

    fn reserves_with_appends(&self) -> bool {
        true
    }

    async fn settle(&self, request: SettleSpend) -> Result<bool, SessionError> {
        let connection = self.writer().await?;
        self.with_timeout(Box::pin(budgets::settle(connection, &self.0.cache.idle, &request))).await
    }

    async fn settle_open(&self, request: SettleOpen) -> Result<u64, SessionError> {
        let connection = self.writer().await?;
        self.with_timeout(Box::pin(budgets::settle_open(connection, &self.0.cache.idle, &request))).await
    }

    async fn balances(&self, request: ReadBudgets) -> Result<Vec<BudgetBalance>, SessionError> {
        let connection = self.connection().await?;
        self.with_timeout(Box::pin(budgets::balances(connection, &request))).await
    }

    async fn raise_budgets(&self, request: RaiseBudgets) -> Result<(), SessionError> {
        let connection = self.writer().await?;
        self.with_timeout(Box::pin(budgets::raise(connection, &self.0.cache.idle, &request))).await
    }

    async fn raises(&self, request: ListRaises) -> Result<Vec<BudgetRaise>, SessionError> {
        let connection = self.connection().await?;
        self.with_timeout(Box::pin(budgets::raises(connection, &request))).await
    }

    async fn spend(&self, request: ListSpend) -> Result<Vec<SpendRecord>, SessionError> {
        let connection = self.connection().await?;
        self.with_timeout(Box::pin(budgets::list(connection, &request))).await
    }

    async fn erase(&self, request: EraseData) -> Result<ErasedData, SessionError> {
        request.check()?;
        self.check_writable()?;
        let erased = match self.0.keys.is_destroyed_by(&request) {
            true => self.erase_with_key(&request).await?,
            false => self.erase_rows(&request).await?,
        };
        if !request.is_dry_run {
            for key in &erased.sessions {
                self.0.notifier.notify(key, false);
            }
        }
        Ok(erased)
    }

    async fn erasures(&self, request: ListErasures) -> Result<Vec<ErasureRecord>, SessionError> {
        let connection = self.connection().await?;
        self.with_timeout(Box::pin(erasure::list(connection, &request))).await
    }

    async fn vacuum(&self, _: VacuumStore) -> Result<(), SessionError> {
        let connection = self.writer().await?;
        // NOTE: without a timeout: it rewrites the tables, and each answer may take minutes.
        Box::pin(erasure::vacuum(connection)).await
    }

    async fn dequeue(&self, request: DequeueInput) -> Result<Vec<u64>, SessionError> {
        let connection = self.writer().await?;
        self.with_timeout(Box::pin(inbox::dequeue(connection, &self.0.cache.idle, &request))).await
    }
}
