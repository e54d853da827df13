//! Sessions in a SQLite file: the embedded default.
//!
//! One thread writes, and commits what many ask for at once; a few threads read. Several processes may
//! share a file: SQLite's own lock decides whose turn it is, and whoever has to wait does, for a bounded
//! time.

mod cells;
mod changes;
mod error;
mod history;
mod past;
mod read;
mod schemas;
mod sweep;
mod tables;
mod threads;
mod trail;
mod write;

use std::fmt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use self::error::failed;
use self::schemas::Schemas;
use self::threads::{Desk, Readers, Writer, start_readers, start_writer};
use self::write::Prepared;
use crate::apply::initial;
use crate::error::SessionError;
use crate::rows::check_size;
use crate::session::{Session, Values};
use crate::store::{
    AppendEvent, CreateSession, DeleteSession, Deleted, ForkSession, GetSession, ListSessions, PruneSession,
    Pruned, Receipt, RewindSession, ScopeKey, SessionPage, SessionStore, WriteScope,
};

/// What a commit means when it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It is on the disk: it survives a loss of power.
    #[default]
    Full,
    /// It survives the end of the process. A loss of power may take the newest commits, and breaks nothing.
    Process,
}

/// How a SQLite file is opened.
#[derive(Clone, Debug)]
#[must_use = "options do nothing until a store is opened with them"]
pub struct SqliteOptions {
    path: PathBuf,
    durability: Durability,
    busy_timeout: Duration,
    readers: usize,
}

impl SqliteOptions {
    /// The file at `path`, which is made if it is not there.
    pub fn new(path: impl AsRef<Path>) -> Self {
        SqliteOptions {
            path: path.as_ref().to_owned(),
            durability: Durability::Full,
            busy_timeout: Duration::from_secs(30),
            readers: 4,
        }
    }

    /// What a commit means when it returns; [`Durability::Full`] unless said otherwise.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long to wait for other processes that write; 30 seconds unless said otherwise. Then the error
    /// is one of the kind `Transient`.
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// How many threads read at the same time; 4 unless said otherwise, at least one.
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = readers.max(1);
        self
    }

    /// Opens the file, makes or upgrades its tables, and starts the threads. It blocks for as long as that
    /// takes: some milliseconds, or as long as another process sets the same file up.
    ///
    /// # Errors
    /// When the file cannot be opened or is no database; [`SessionError::ForeignTable`];
    /// [`SessionError::NewerFormat`].
    pub fn open(self) -> Result<SqliteStore, SessionError> {
        let mut connection = self.connect()?;
        tables::set_up(&mut connection)?;
        let writer = start_writer(desk(connection))?;
        let readers = (0..self.readers).map(|_| {
            let connection = self.connect()?;
            connection.pragma_update(None, "query_only", true).map_err(failed("open its file"))?;
            Ok(desk(connection))
        });
        let readers = start_readers(readers.collect::<Result<_, SessionError>>()?)?;
        Ok(SqliteStore { path: self.path, writer, readers })
    }

    fn connect(&self) -> Result<Connection, SessionError> {
        let failed = failed("open its file");
        let connection = Connection::open(&self.path).map_err(failed)?;
        connection.busy_timeout(self.busy_timeout).map_err(failed)?;
        connection.set_prepared_statement_cache_capacity(64);
        // What is in the log is copied to the file, with flushes of its own, each time that so much has come
        // together: 16 MB. The same pages change again and again, so that waiting longer copies less.
        connection.pragma_update(None, "wal_autocheckpoint", 4_000).map_err(failed)?;
        // Or SQLite prepares some statements anew whenever a value is bound, to look for a better plan.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(failed)?;
        self.use_wal(&connection)?;
        let synchronous = match self.durability {
            Durability::Full => "FULL",
            Durability::Process => "NORMAL",
        };
        connection.pragma_update(None, "synchronous", synchronous).map_err(failed)?;
        Ok(connection)
    }

    /// Turns the write-ahead log on. While another process does the same, SQLite says "locked" at once,
    /// whatever time-out is set; so the waiting is ours.
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

fn desk(connection: Connection) -> Desk {
    Desk { connection, schemas: Schemas::default() }
}

/// Sessions in a SQLite file. Cloning is cheap and shares the threads, which end with the last clone.
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
pub struct SqliteStore {
    path: PathBuf,
    writer: Writer,
    readers: Readers,
}

impl SqliteStore {
    /// Opens a file with the usual options; see [`SqliteOptions::open`].
    ///
    /// # Errors
    /// As [`SqliteOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SessionError> {
        SqliteOptions::new(path).open()
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SessionStore for SqliteStore {
    async fn create(&self, request: CreateSession) -> Result<Session, SessionError> {
        let delta = initial(&request.schema, &request.values)?.into_iter().collect();
        self.writer.run(move |desk| write::create(desk, request, &delta)).await
    }

    async fn get(&self, request: GetSession) -> Result<Session, SessionError> {
        self.readers.run(move |desk| read::get(desk, &request)).await
    }

    async fn list(&self, request: ListSessions) -> Result<SessionPage, SessionError> {
        self.readers.run(move |desk| read::list(desk, &request)).await
    }

    async fn delete(&self, request: DeleteSession) -> Result<Deleted, SessionError> {
        self.writer.run(move |desk| write::delete(desk, &request)).await
    }

    async fn append(&self, request: AppendEvent) -> Result<Receipt, SessionError> {
        let request = request.prepare()?;
        let body = check_size(request.event.to_body()?, &request.event.id)?;
        self.writer.run(move |desk| write::append(desk, &request, &body)).await
    }

    async fn fork(&self, request: ForkSession) -> Result<Session, SessionError> {
        self.writer.run(move |desk| write::fork(desk, request)).await
    }

    async fn rewind(&self, request: RewindSession) -> Result<Receipt, SessionError> {
        let event = request.to_event();
        let body = event.to_body()?;
        let prepared = Prepared { event, body };
        self.writer.run(move |desk| write::rewind(desk, &request, &prepared)).await
    }

    async fn read_scope(&self, scope: ScopeKey) -> Result<Values, SessionError> {
        self.readers.run(move |desk| read::read_scope(desk, &scope)).await
    }

    async fn write_scope(&self, request: WriteScope) -> Result<Values, SessionError> {
        request.check()?;
        let body = crate::rows::delta_body(&request.delta)?;
        self.writer.run(move |desk| write::write_scope(desk, &request, &body)).await
    }

    async fn prune(&self, request: PruneSession) -> Result<Pruned, SessionError> {
        self.writer.run(move |desk| write::prune(desk, &request)).await
    }
}
