//! Sessions in a SQLite file: the embedded default.
//!
//! One thread writes, and groups concurrent commits; a few threads read. Several processes may share a file:
//! SQLite's lock orders them, and waits are bounded.

mod at_version;
mod branches;
mod budgets;
mod changes;
mod claims;
mod erasure;
mod error;
mod file;
mod history;
mod inbox;
mod list_entry;
mod lists;
mod notices;
mod past_values;
mod read;
mod schemas;
mod seal;
mod search;
mod shared;
mod sql;
mod sweep;
mod tables;
mod tags;
mod threads;
mod undo_log;
mod values;
mod verify;
mod write;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, OpenFlags};

use self::error::failed;
use self::file::FoundFile;
use self::notices::SqliteNotifier;
use self::tables::MetaRow;
use self::threads::{
    JoinedThreads, SqliteConnection, SqliteReaders, SqliteWriter, start_readers, start_writer, with_key,
};
use self::write::PreparedEvent;
use crate::apply::initial;
use crate::digest::ContentSalt;
use crate::error::SessionError;
use crate::ids::{AppId, Label, SessionKey, UserId};
use crate::keys::KeyRing;
use crate::keys::sealer::{Sealer, UserKeys};
use crate::rows::StoreAccess;
use crate::rows::values::check_size;
use crate::session::{ScopeValues, Session};
use crate::store::{
    AppendEvent, BudgetBalance, BudgetRaise, Claim, ClaimSession, CreateSession, DeleteSession, Deleted,
    DequeueInput, EnqueueInput, Enqueued, EraseData, ErasedData, ErasureRecord, EventRange, EventSizes,
    FindEvent, FindTagged, ForkInfo, ForkSession, FoundMessage, GetSession, InboxEntry, LabelVersion,
    ListErasures, ListForks, ListRaises, ListSessions, ListSpend, ListUnattended, ListUsers, PruneSession,
    Pruned, RaiseBudgets, ReadBudgets, ReadInbox, ReadLabels, Receipt, ReleaseClaim, RenewClaim, RenewClaims,
    Renewed, ReserveSpend, RewindSession, ScanSessions, ScannedPage, ScopeKey, SearchSessions, SessionPage,
    SessionStore, SettleOpen, SettleSpend, SpendRecord, StateSize, StoreNotices, Unattended, VacuumStore,
    Verified, VerifySessions, WatchStore, WriteScope, check_user, first_events,
};

/// The guarantee of a commit after its return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// It is on the disk: it survives a loss of power.
    #[default]
    Full,
    /// It survives the end of the process. A loss of power may take the newest commits, and breaks nothing.
    Process,
}

/// The options with which a SQLite file is opened.
///
/// A missing file is created, unless the options include [`must_exist`](SqliteOptions::must_exist) or
/// [`read_only`](SqliteOptions::read_only). Missing tables in an existing database are added, with the same
/// two exceptions. An empty file is never treated as a new store: a store's file is created next to its path
/// and renamed when it is complete, so another program has truncated it. A rejected file is not changed.
///
/// # Examples
/// ```
/// use stepfold_session_scopes::{ErrorKind, SqliteOptions};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("sessions.db");
/// let error = SqliteOptions::new(&path).read_only().open().unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert!(!path.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use = "options do nothing until a store is opened with them"]
pub struct SqliteOptions {
    path: PathBuf,
    access: StoreAccess,
    accepts_loss: bool,
    durability: Durability,
    busy_timeout: Duration,
    readers: usize,
    max_bytes: Option<u64>,
    keys: UserKeys,
}

impl fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ring = self.keys.ring_name();
        let mut options = f.debug_struct("SqliteOptions");
        options.field("path", &self.path).field("access", &self.access).field("ring", &ring);
        options.finish_non_exhaustive()
    }
}

impl SqliteOptions {
    /// The file at `path`, which is created if it does not exist.
    pub fn new(path: impl AsRef<Path>) -> Self {
        SqliteOptions {
            path: path.as_ref().to_owned(),
            access: StoreAccess::Create,
            accepts_loss: false,
            durability: Durability::Full,
            busy_timeout: Duration::from_secs(30),
            readers: 4,
            max_bytes: None,
            keys: UserKeys::default(),
        }
    }

    /// Opens an existing store and creates no file: [`SessionError::NoStore`] if there is no store.
    pub fn must_exist(mut self) -> Self {
        self.access = StoreAccess::Write;
        self
    }

    /// Opens an existing store for reading: no file is created or changed, and operations that write return
    /// [`SessionError::ReadOnly`]. Another process may have the same file open for writing.
    pub fn read_only(mut self) -> Self {
        self.access = StoreAccess::Read;
        self
    }

    /// Opens a file even if its required log is missing, with the data that had been copied from the log into
    /// the file. Its newest commits are lost: for use after a [`SessionError::LogMissing`], when there is no
    /// backup.
    pub fn accept_lost_log(mut self) -> Self {
        self.accepts_loss = true;
        self
    }

    /// Limits the size of the file; unlimited by default. An operation that exceeds the limit fails with an
    /// error of the kind `Transient`, as it does when the disk is full.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Sets the guarantee of a commit; [`Durability::Full`] by default.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the timeout of waiting for other writing processes; 30 seconds by default. The error is of the
    /// kind `Transient`.
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Sets the number of reader threads; 4 by default, at least one.
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = readers.max(1);
        self
    }

    /// Seals the content of each user under a key that this ring holds: events, values of sessions and of `user:` keys, and
    /// waiting inputs. The file remembers the name of the ring. Without it the file can be opened: its sessions can be
    /// listed, claimed, verified, pruned and deleted, and everything that needs content is
    /// [`SessionError::Sealed`]. What was stored before the file had a ring stays as it is.
    pub fn key_ring(mut self, ring: Arc<dyn KeyRing>) -> Self {
        self.keys.ring = Some(ring);
        self
    }

    /// The name of the key ring that the file remembers; `None` without a file, or for one without a ring. Nothing is created or
    /// changed: for programs that make a ring only for a store that has none.
    ///
    /// # Errors
    /// As those of [`open`](SqliteOptions::open) for a file that cannot be read.
    pub fn stored_ring(&self) -> Result<Option<String>, SessionError> {
        match file::inspect(&self.path, self.accepts_loss)? {
            FoundFile::Database { is_ours: true } => {
                Ok(MetaRow::read(&self.with_options(file::connect_to_inspect(&self.path)?)?)?.ring)
            }
            FoundFile::Nothing | FoundFile::Database { is_ours: false } => Ok(None),
        }
    }

    /// Opens the file, makes or upgrades its tables, and starts the threads. It blocks for as long as that
    /// takes: some milliseconds, or as long as another process sets the same file up.
    ///
    /// # Errors
    /// When the file cannot be opened or is not a database; [`SessionError::NoStore`],
    /// [`SessionError::EmptyFile`], [`SessionError::LogMissing`]; [`SessionError::ForeignTable`];
    /// [`SessionError::NewerFormat`]; [`SessionError::OtherKeyRing`].
    pub fn open(self) -> Result<SqliteStore, SessionError> {
        self.check_path()?;
        let access = self.access;
        let readers = (0..self.readers).map(|_| self.reader());
        if access == StoreAccess::Read {
            if let Some(ring) = self.keys.ring_name() {
                MetaRow::read(&self.connect_reader()?)?.accepts(Some(ring))?;
            }
            let (readers, threads) = start_readers(readers.collect::<Result<_, SessionError>>()?)?;
            return Ok(self.store(None, readers, threads));
        }
        let mut connection = self.connect()?;
        tables::set_up(&mut connection, self.keys.ring_name())?;
        let (readers, threads) = start_readers(readers.collect::<Result<_, SessionError>>()?)?;
        let is_quick = self.durability == Durability::Process;
        let sqlite = SqliteConnection::new(connection, self.busy_timeout);
        let (writer, thread) = start_writer(sqlite, is_quick, threads)?;
        Ok(self.store(Some(writer), readers, vec![thread]))
    }

    /// Rejects an invalid file at the path, or creates a store if none exists and that is allowed.
    fn check_path(&self) -> Result<(), SessionError> {
        let no_store = |why| SessionError::NoStore { path: self.path.display().to_string(), why };
        match file::inspect(&self.path, self.accepts_loss)? {
            FoundFile::Nothing if self.access == StoreAccess::Create => file::create_store(&self.path),
            FoundFile::Nothing => Err(no_store("file not found")),
            FoundFile::Database { is_ours: false } if self.access != StoreAccess::Create => {
                Err(no_store("the database has no stepfold tables"))
            }
            FoundFile::Database { .. } => Ok(()),
        }
    }

    fn store(
        self,
        writer: Option<SqliteWriter>,
        readers: SqliteReaders,
        threads: Vec<JoinHandle<()>>,
    ) -> SqliteStore {
        let notifier = SqliteNotifier::default();
        SqliteStore(Arc::new(SqliteInner {
            path: self.path,
            writer,
            readers,
            notifier,
            keys: self.keys,
            _threads: JoinedThreads(threads),
        }))
    }

    fn reader(&self) -> Result<SqliteConnection, SessionError> {
        // NOTE: a file that no process has open is read as immutable, since reading it normally would create a log beside
        // it. The reader reconnects once another process opens it.
        let is_alone = self.access == StoreAccess::Read && file::is_read_alone(&self.path);
        let reconnect = is_alone.then(|| {
            let options = self.clone();
            let reconnect = move || (!file::is_read_alone(&options.path)).then(|| options.connect_reader());
            Box::new(reconnect) as threads::ReconnectFn
        });
        Ok(SqliteConnection { reconnect, ..SqliteConnection::new(self.connect_reader()?, self.busy_timeout) })
    }

    fn connect_reader(&self) -> Result<Connection, SessionError> {
        let connection = match self.access {
            StoreAccess::Read => self.with_options(file::connect_to_inspect(&self.path)?)?,
            StoreAccess::Create | StoreAccess::Write => self.connect()?,
        };
        // NOTE: a guard: a statement that writes fails here, and never takes the file's lock beside the writer.
        connection.pragma_update(None, "query_only", true).map_err(failed("open its file"))?;
        Ok(connection)
    }

    /// Connects to write.
    fn connect(&self) -> Result<Connection, SessionError> {
        let failed = failed("open its file");
        // NOTE: no mutex in SQLite: each connection is used by one thread at a time, which Rust ensures.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection =
            self.with_options(Connection::open_with_flags(&self.path, flags).map_err(failed)?)?;
        // NOTE: the writer copies the log to the file itself; this limit covers a few huge events between its checks.
        connection.pragma_update(None, "wal_autocheckpoint", 10 * threads::LOG_PAGES).map_err(failed)?;
        self.use_wal(&connection)?;
        if self.keys.ring.is_some() {
            let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
            connection.create_scalar_function(tables::RING_FUNCTION, 0, flags, |_| Ok(1)).map_err(failed)?;
        }
        let synchronous = match self.durability {
            Durability::Full => "FULL",
            Durability::Process => "NORMAL",
        };
        connection.pragma_update(None, "synchronous", synchronous).map_err(failed)?;
        if let Some(bytes) = self.max_bytes {
            let size: i64 = connection.query_row("PRAGMA page_size", [], |row| row.get(0)).map_err(failed)?;
            let pages = crate::rows::lineage::to_db(bytes) / size.max(1);
            connection.pragma_update(None, "max_page_count", pages.max(1)).map_err(failed)?;
        }
        Ok(connection)
    }

    fn with_options(&self, connection: Connection) -> Result<Connection, SessionError> {
        let failed = failed("open its file");
        connection.busy_timeout(self.busy_timeout).map_err(failed)?;
        // NOTE: the default cache of 16 statements is smaller than the number that appends and reads alternate between.
        connection.set_prepared_statement_cache_capacity(64);
        // NOTE: otherwise the bundled SQLite prepares some statements again whenever a value is bound, to look for a better
        // plan: a third of the time of an append.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(failed)?;
        Ok(connection)
    }

    /// Enables the write-ahead log. While another process does the same, SQLite returns "locked" immediately,
    /// whatever the timeout; so this retries.
    fn use_wal(&self, connection: &Connection) -> Result<(), SessionError> {
        const PAUSE: Duration = Duration::from_millis(5);
        let failed = failed("turn on the write-ahead log of its file");
        let mut left = self.busy_timeout;
        loop {
            let mode = connection
                .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0));
            match mode.map_err(failed) {
                Ok(mode) if mode == "wal" => return Ok(()),
                Ok(mode) => {
                    let source = format!("the file stays in the mode {mode}").into();
                    return Err(SessionError::Store {
                        what: "turn on the write-ahead log of its file",
                        source,
                    });
                }
                Err(SessionError::Unavailable { .. }) if left > PAUSE => {
                    left -= PAUSE;
                    thread::sleep(PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Sessions in a SQLite file. Cloning is cheap and shares the threads.
///
/// Dropping the last clone waits for pending operations, and for the copy of the log into the file: some
/// milliseconds. After that the file is complete, so a copy of it is a backup, unless another process has it
/// open. A process that is killed leaves its newest commits in the log next to the file, `-wal`; keep both
/// together. A file without its log is rejected ([`SessionError::LogMissing`]).
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use stepfold_session_scopes::{CreateSession, GetSession, SessionSchema, SessionStore, SqliteStore, Timestamp};
/// use stepfold_state_core::state::Schema;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("sessions.db");
/// let schema: SessionSchema = Schema::builder().key::<String>("user:name").build()?.into();
/// let request = CreateSession::new("my_app", "alice", &schema, Timestamp::from_micros(0))?
///     .values(serde_json::json!({"user:name": "Ada"}))?;
/// let key = SqliteStore::open(&path)?.create(request).await?.key;
///
/// // Another process, another day.
/// let session = SqliteStore::open(&path)?.get(GetSession::new(key)).await?;
/// assert_eq!(session.get("user:name").unwrap(), "Ada");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct SqliteStore(Arc<SqliteInner>);

/// Small events are written directly, not by the writer thread, if that does not have to wait.
const SMALL_EVENT_BYTES: usize = 64 * 1024;

/// Dropped in this order: first the job queues, then the threads are joined.
struct SqliteInner {
    path: PathBuf,
    /// None in a store that is opened for reading.
    writer: Option<SqliteWriter>,
    readers: SqliteReaders,
    notifier: SqliteNotifier,
    keys: UserKeys,
    _threads: JoinedThreads,
}

impl SqliteStore {
    /// Opens a file with the usual options; see [`SqliteOptions::open`].
    ///
    /// # Errors
    /// As [`SqliteOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SessionError> {
        SqliteOptions::new(path).open()
    }

    fn writer(&self) -> Result<&SqliteWriter, SessionError> {
        self.0.writer.as_ref().ok_or(SessionError::ReadOnly)
    }

    /// The key with which values or a session are added to those of a user.
    async fn new_key(&self, app: &AppId, user: &UserId) -> Result<Option<Arc<Sealer>>, SessionError> {
        // NOTE: a store that only reads makes no key.
        self.writer()?;
        let scope = || ScopeKey::User(app.clone(), user.clone());
        self.0.keys.make(app, user, async || self.read_scope(scope()).await.map(drop)).await
    }

    /// The key with which content is added to a session.
    async fn key_of(&self, key: &SessionKey) -> Result<Option<Arc<Sealer>>, SessionError> {
        self.writer()?;
        let is_sealed = async || {
            // NOTE: opens the values, and the inbox: what is sealed of them is an error.
            self.get(GetSession::new(key.clone()).events(EventRange::None)).await?;
            self.inbox(ReadInbox::new(key.clone())).await?;
            let key = key.clone();
            self.0.readers.run(move |sqlite| read::has_sealed_events(sqlite, &key)).await
        };
        self.0.keys.find_or_make(key, is_sealed).await
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.0.path).finish_non_exhaustive()
    }
}

impl SessionStore for SqliteStore {
    async fn create(&self, mut request: CreateSession) -> Result<Session, SessionError> {
        check_user(&request.user)?;
        let delta = initial(&request.schema, &request.values)?.into_iter().collect();
        let events = first_events(std::mem::take(&mut request.events))?;
        let sealer = self.new_key(&request.app, &request.user).await?;
        self.writer()?
            .run(with_key(sealer, move |sqlite| write::create(sqlite, request, &delta, &events)))
            .await
    }

    async fn get(&self, request: GetSession) -> Result<Session, SessionError> {
        let sealer = self.0.keys.find(&request.key.app, &request.key.user).await?;
        self.0.readers.run(with_key(sealer, move |sqlite| read::get(sqlite, &request))).await
    }

    async fn find_event(&self, request: FindEvent) -> Result<Option<u64>, SessionError> {
        self.0.readers.run(move |sqlite| read::find_event(sqlite, &request)).await
    }

    async fn find_tagged(&self, request: FindTagged) -> Result<Vec<Option<u64>>, SessionError> {
        self.0.readers.run(move |sqlite| tags::find(sqlite, &request)).await
    }

    async fn search(&self, request: SearchSessions) -> Result<Vec<FoundMessage>, SessionError> {
        match self.0.keys.ring {
            // NOTE: hashes of words can be tried, so sealed content has no index (docs/decisions/keys.md).
            Some(_) => crate::search::scan_all(self, request).await,
            None => crate::search::search(self, self, request).await,
        }
    }

    async fn list(&self, request: ListSessions) -> Result<SessionPage, SessionError> {
        let sealer = self.0.keys.find(&request.app, &request.user).await?;
        self.0.readers.run(with_key(sealer, move |sqlite| read::list(sqlite, &request))).await
    }

    async fn scan(&self, request: ScanSessions) -> Result<ScannedPage, SessionError> {
        self.0.readers.run(move |sqlite| lists::scan(sqlite, &request)).await
    }

    async fn delete(&self, request: DeleteSession) -> Result<Deleted, SessionError> {
        self.writer()?.run(move |sqlite| write::delete(sqlite, &request)).await
    }

    async fn append(&self, request: AppendEvent) -> Result<Receipt, SessionError> {
        let request = request.prepare()?;
        let body = check_size(request.event.to_body()?, &request.event.id)?;
        let (writer, is_small) = (self.writer()?, body.len() <= SMALL_EVENT_BYTES);
        let sealer = self.key_of(&request.key).await?;
        let append = with_key(sealer, move |sqlite| write::append(sqlite, &request, &body));
        // NOTE: waking the writer and the caller costs as much as a small append that is not flushed; a large one would
        // block the caller's thread.
        if is_small { writer.run_small(append).await } else { writer.run(append).await }
    }

    async fn fork(&self, request: ForkSession) -> Result<Session, SessionError> {
        let sealer = self.key_of(&request.from).await?;
        self.writer()?.run(with_key(sealer, move |sqlite| write::fork(sqlite, request))).await
    }

    async fn rewind(&self, request: RewindSession) -> Result<Receipt, SessionError> {
        let event = request.to_event();
        let body = event.to_body()?;
        let salt = request.salt.unwrap_or_else(ContentSalt::random);
        let prepared = PreparedEvent { event, body, salt };
        let sealer = self.key_of(&request.key).await?;
        let rewind = with_key(sealer, move |sqlite| write::rewind(sqlite, &request, &prepared));
        self.writer()?.run(rewind).await
    }

    async fn event_sizes(&self, request: EventSizes) -> Result<Vec<(u64, u64)>, SessionError> {
        let sealer = self.0.keys.find(&request.key.app, &request.key.user).await?;
        self.0.readers.run(with_key(sealer, move |sqlite| read::event_sizes(sqlite, &request))).await
    }

    async fn state_size(&self, request: StateSize) -> Result<u64, SessionError> {
        let sealer = self.0.keys.find(&request.key.app, &request.key.user).await?;
        self.0.readers.run(with_key(sealer, move |sqlite| read::state_size(sqlite, &request))).await
    }

    async fn forks(&self, request: ListForks) -> Result<Vec<ForkInfo>, SessionError> {
        self.0.readers.run(move |sqlite| branches::forks(sqlite, &request)).await
    }

    async fn users(&self, request: ListUsers) -> Result<Vec<UserId>, SessionError> {
        self.0.readers.run(move |sqlite| lists::users(sqlite, &request)).await
    }

    async fn notices(&self, request: WatchStore) -> Result<StoreNotices, SessionError> {
        if request.is_named {
            return Err(SessionError::Unsupported { what: "notices that name sessions" });
        }
        self.0.notifier.listen(&self.0.readers)
    }

    async fn unattended(&self, request: ListUnattended) -> Result<Vec<Unattended>, SessionError> {
        self.0.readers.run(move |sqlite| lists::unattended(sqlite, &request)).await
    }

    async fn set_label(&self, request: LabelVersion) -> Result<Option<u64>, SessionError> {
        self.writer()?.run(move |sqlite| branches::set_label(sqlite, &request)).await
    }

    async fn labels(&self, request: ReadLabels) -> Result<Vec<(Label, u64)>, SessionError> {
        self.0.readers.run(move |sqlite| branches::labels(sqlite, &request)).await
    }

    async fn read_scope(&self, scope: ScopeKey) -> Result<ScopeValues, SessionError> {
        let sealer = match &scope {
            ScopeKey::User(app, user) => self.0.keys.find(app, user).await?,
            ScopeKey::App(_) => None,
        };
        self.0.readers.run(with_key(sealer, move |sqlite| read::read_scope(sqlite, &scope))).await
    }

    async fn write_scope(&self, request: WriteScope) -> Result<ScopeValues, SessionError> {
        request.check()?;
        let body = crate::rows::values::delta_body(&request.delta)?;
        let sealer = match &request.scope {
            ScopeKey::User(app, user) => self.new_key(app, user).await?,
            ScopeKey::App(_) => None,
        };
        let write = with_key(sealer, move |sqlite| write::write_scope(sqlite, &request, &body));
        self.writer()?.run(write).await
    }

    async fn prune(&self, request: PruneSession) -> Result<Pruned, SessionError> {
        let is_dry_run = request.is_dry_run;
        // NOTE: a dry run only reads: also in a store that is opened for reading.
        let sealer = self.0.keys.find(&request.key.app, &request.key.user).await?;
        let prune = with_key(sealer, move |sqlite| write::prune(sqlite, &request));
        if is_dry_run { self.0.readers.run(prune).await } else { self.writer()?.run(prune).await }
    }

    async fn verify(&self, request: VerifySessions) -> Result<Verified, SessionError> {
        self.0.readers.run(move |sqlite| verify::verify(sqlite, &request)).await
    }

    async fn claim(&self, request: ClaimSession) -> Result<Claim, SessionError> {
        self.writer()?.run_small(move |sqlite| claims::claim(sqlite, &request)).await
    }

    async fn renew(&self, request: RenewClaim) -> Result<Renewed, SessionError> {
        self.writer()?.run_small(move |sqlite| claims::renew(sqlite, &request)).await
    }

    async fn renew_all(
        &self,
        request: RenewClaims,
    ) -> Result<Vec<Result<Renewed, SessionError>>, SessionError> {
        self.writer()?.run_small(move |sqlite| claims::renew_all(sqlite, &request)).await
    }

    async fn release(&self, request: ReleaseClaim) -> Result<(), SessionError> {
        self.writer()?.run_small(move |sqlite| claims::release(sqlite, &request)).await
    }

    async fn enqueue(&self, request: EnqueueInput) -> Result<Enqueued, SessionError> {
        let prepared = request.prepare()?;
        let sealer = self.key_of(&prepared.input.key).await?;
        self.writer()?.run(with_key(sealer, move |sqlite| inbox::enqueue(sqlite, &prepared))).await
    }

    async fn inbox(&self, request: ReadInbox) -> Result<Vec<InboxEntry>, SessionError> {
        let sealer = self.0.keys.find(&request.key.app, &request.key.user).await?;
        self.0.readers.run(with_key(sealer, move |sqlite| inbox::read(sqlite, &request))).await
    }

    async fn dequeue(&self, request: DequeueInput) -> Result<Vec<u64>, SessionError> {
        self.writer()?.run_small(move |sqlite| inbox::dequeue(sqlite, &request)).await
    }

    async fn reserve(&self, request: ReserveSpend) -> Result<Vec<BudgetBalance>, SessionError> {
        // NOTE: the rejection of a reservation is its answer, and no failure of the group in which it ran.
        self.writer()?.run_small(move |sqlite| budgets::reserve(sqlite, &request)).await
    }

    fn reserves_with_appends(&self) -> bool {
        true
    }

    async fn settle(&self, request: SettleSpend) -> Result<bool, SessionError> {
        self.writer()?.run_small(move |sqlite| budgets::settle(sqlite, &[request])).await
    }

    async fn settle_open(&self, request: SettleOpen) -> Result<u64, SessionError> {
        self.writer()?.run_small(move |sqlite| budgets::settle_open(sqlite, &request.key)).await
    }

    async fn balances(&self, request: ReadBudgets) -> Result<Vec<BudgetBalance>, SessionError> {
        self.0.readers.run(move |sqlite| budgets::balances(sqlite, &request)).await
    }

    async fn raise_budgets(&self, request: RaiseBudgets) -> Result<(), SessionError> {
        self.writer()?.run_small(move |sqlite| budgets::raise(sqlite, &request)).await
    }

    async fn raises(&self, request: ListRaises) -> Result<Vec<BudgetRaise>, SessionError> {
        self.0.readers.run(move |sqlite| budgets::raises(sqlite, &request)).await
    }

    async fn erase(&self, request: EraseData) -> Result<ErasedData, SessionError> {
        request.check()?;
        let (writer, keys) = (self.writer()?, &self.0.keys);
        let (app, user) = request.target.owner();
        let sealer = keys.find(app, user).await?;
        if !keys.is_destroyed_by(&request) {
            return writer.run(with_key(sealer, move |sqlite| erasure::erase(sqlite, &request))).await;
        }
        let of_begin = request.clone();
        let begin = with_key(sealer, move |sqlite| erasure::begin_erasure(sqlite, &of_begin));
        if let Some(repeated) = writer.run(begin).await? {
            return keys.check_repeated(&request, repeated).await;
        }
        let had_key = keys.destroy(app, user).await?;
        let finish = move |sqlite: &mut SqliteConnection| erasure::finish(sqlite, &request);
        Ok(ErasedData { had_key, ..writer.run(finish).await? })
    }

    async fn erasures(&self, request: ListErasures) -> Result<Vec<ErasureRecord>, SessionError> {
        self.0.readers.run(move |sqlite| erasure::list(sqlite, &request)).await
    }

    async fn vacuum(&self, _: VacuumStore) -> Result<(), SessionError> {
        self.writer()?.vacuum().await
    }

    async fn spend(&self, request: ListSpend) -> Result<Vec<SpendRecord>, SessionError> {
        self.0.readers.run(move |sqlite| budgets::list(sqlite, &request)).await
    }
}
