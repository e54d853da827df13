//! The threads that talk to SQLite: one that writes, a few that read.
//!
//! The writer takes up to 64 waiting jobs, runs each in a savepoint of one transaction (a single one needs
//! none), commits once, and then responds. So concurrent writers share the cost of one flush to disk, and a
//! response means that the commit is done.
//!
//! If a commit does not wait for the disk, a small job runs on the caller's thread when the writer is idle:
//! waking the writer and the caller costs as much as the job. Jobs that wait for the disk or for another
//! process always run on the writer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::error::{closed, failed};
use super::file::OpenedFile;
use super::schemas::SqliteSchemas;
use super::tables;
use crate::apply::catch_panics;
use crate::error::SessionError;
use crate::keys::sealer::{ContentKey, Sealer};

/// Jobs that one commit makes durable.
const MAX_GROUP: usize = 64;
/// The purpose of the statements around jobs, as errors name it.
const COMMITTING: &str = "commit";
const READING: &str = "read";
const VACUUMING: &str = "vacuum its file";
/// The time between two attempts to empty the log.
const EMPTYING_PAUSE: Duration = Duration::from_millis(5);
/// The number of jobs that may wait; callers with more have to wait themselves.
const QUEUE_LENGTH: usize = 1024;

/// A connection with its caches.
pub(super) struct SqliteConnection {
    pub(super) connection: Connection,
    pub(super) schemas: SqliteSchemas,
    /// Present while the connection treats the file as immutable.
    pub(super) reconnect: Option<ReconnectFn>,
    /// The time that it waits for other processes that write.
    pub(super) busy_timeout: Duration,
    /// The version of the file when [notices](super::notices) read it last.
    pub(super) version: Option<i64>,
    /// The key of the user whose content the current job reads or writes.
    pub(super) sealer: Option<Arc<Sealer>>,
}

/// A job that reads or writes content of a user, with the user's key.
pub(super) fn with_key<T>(
    sealer: Option<Arc<Sealer>>,
    work: impl FnOnce(&mut SqliteConnection) -> Result<T, SessionError> + Send + 'static,
) -> impl FnOnce(&mut SqliteConnection) -> Result<T, SessionError> + Send + 'static {
    move |sqlite| {
        sqlite.sealer = sealer;
        let done = work(sqlite);
        sqlite.sealer = None;
        done
    }
}

/// Returns another connection when another process has opened the file.
pub(super) type ReconnectFn = Box<dyn Fn() -> Option<Result<Connection, SessionError>> + Send>;

/// A queued operation.
trait SqliteJob: Send {
    /// Runs on the connection; returns whether it succeeded.
    fn run(&mut self, sqlite: &mut SqliteConnection) -> bool;
    /// The error of a failed run.
    fn failure(&self) -> SessionError;
    /// Sends the response: the result, or the failure of the commit.
    fn answer(self: Box<Self>, failure: Option<SessionError>);
}

struct PendingJob<T, W> {
    run: Option<W>,
    result: Option<Result<T, SessionError>>,
    sender: oneshot::Sender<Result<T, SessionError>>,
}

impl<T, W> SqliteJob for PendingJob<T, W>
where
    T: Send,
    W: FnOnce(&mut SqliteConnection) -> Result<T, SessionError> + Send,
{
    fn run(&mut self, sqlite: &mut SqliteConnection) -> bool {
        let Some(work) = self.run.take() else { return false };
        let result = catch_panics(|| work(sqlite));
        let is_done = result.is_ok();
        self.result = Some(result);
        is_done
    }

    fn failure(&self) -> SessionError {
        self.result.as_ref().and_then(|result| result.as_ref().err()).map_or_else(closed, copied_error)
    }

    fn answer(self: Box<Self>, failure: Option<SessionError>) {
        let PendingJob { result, sender, .. } = *self;
        let result = result.unwrap_or_else(|| Err(closed()));
        // NOTE: the caller's future may have been dropped.
        let _ = sender.send(failure.map_or(result, Err));
    }
}

/// The queue of the writer's jobs, from the side of those that add them.
#[derive(Clone)]
pub(super) struct SqliteWriter {
    jobs: mpsc::Sender<Box<dyn SqliteJob>>,
    shared: Arc<WriterShared>,
}

/// The state that the writer shares with the callers that add jobs.
struct WriterShared {
    /// The writer's connection; `None` once the writer has ended.
    state: Mutex<Option<WriterState>>,
    /// The number of added jobs that are not answered.
    waiting: AtomicUsize,
    /// Whether a commit does not wait for the disk.
    is_quick: bool,
}

/// The connection on which jobs write, and the state of the file's log.
struct WriterState {
    sqlite: SqliteConnection,
    log: WriteAheadLog,
    /// The file that it writes.
    opened: Option<OpenedFile>,
}

impl WriterShared {
    fn lock(&self) -> MutexGuard<'_, Option<WriterState>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a job on this thread, or returns it if it would have to wait.
    fn try_run<T, W>(&self, work: W) -> Result<Result<T, SessionError>, W>
    where
        W: FnOnce(&mut SqliteConnection) -> Result<T, SessionError>,
    {
        // NOTE: waiting jobs come first, so that small jobs do not starve them.
        if !self.is_quick || self.waiting.load(Ordering::SeqCst) > 0 {
            return Err(work);
        }
        // NOTE: a busy writer gets the job through its queue, so that the caller's thread never waits for the lock.
        let Ok(mut state) = self.state.try_lock() else { return Err(work) };
        match &mut *state {
            Some(WriterState { sqlite, log, opened })
                if log.is_quiet()
                    && opened.as_ref().is_none_or(OpenedFile::is_in_place)
                    && sqlite.try_begin() =>
            {
                log.jobs_left -= 1;
                Ok(run_at_once(sqlite, work))
            }
            _ => Err(work),
        }
    }
}

/// Runs a job in the transaction that was begun for it.
fn run_at_once<T>(
    sqlite: &mut SqliteConnection,
    work: impl FnOnce(&mut SqliteConnection) -> Result<T, SessionError>,
) -> Result<T, SessionError> {
    let result =
        catch_panics(|| work(sqlite)).and_then(|done| sqlite.execute("COMMIT", COMMITTING).map(|()| done));
    if result.is_err() {
        sqlite.undo();
    }
    result
}

impl SqliteWriter {
    /// Runs `work` on the writer's connection and returns its result once that is committed.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut SqliteConnection) -> Result<T, SessionError> + Send + 'static,
    ) -> Result<T, SessionError> {
        let (sender, receiver) = oneshot::channel();
        let job = Box::new(PendingJob { run: Some(work), result: None, sender });
        let permit = self.jobs.reserve().await.map_err(|_| closed())?;
        self.shared.waiting.fetch_add(1, Ordering::SeqCst);
        permit.send(job);
        receiver.await.map_err(|_| closed())?
    }

    /// As [`run`](SqliteWriter::run), for work that takes some microseconds.
    pub(super) async fn run_small<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut SqliteConnection) -> Result<T, SessionError> + Send + 'static,
    ) -> Result<T, SessionError> {
        match self.shared.try_run(work) {
            Ok(done) => done,
            Err(work) => self.run(work).await,
        }
    }
}

impl SqliteWriter {
    /// Rewrites the file without what was deleted, between two groups of jobs, and empties its log.
    pub(super) async fn vacuum(&self) -> Result<(), SessionError> {
        let (sender, receiver) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        spawn("stepfold-sqlite-vacuum", move || {
            let vacuumed = shared.lock().as_mut().map_or_else(|| Err(closed()), WriterState::vacuum);
            let _ = sender.send(vacuumed);
        })?;
        receiver.await.map_err(|_| closed())?
    }
}

/// The queue of the readers' jobs, from the side of those that add them.
#[derive(Clone)]
pub(super) struct SqliteReaders(Arc<QueueCloser>);

impl SqliteReaders {
    /// Runs `work` on a reader's connection and returns its result.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut SqliteConnection) -> Result<T, SessionError> + Send + 'static,
    ) -> Result<T, SessionError> {
        let (sender, receiver) = oneshot::channel();
        let work = |sqlite: &mut SqliteConnection| {
            work(sqlite).map_err(|error| tables::of_older_format(&sqlite.connection, error))
        };
        let job = Box::new(PendingJob { run: Some(work), result: None, sender });
        let queue = &self.0.0;
        // NOTE: the permit is forgotten here, and the reader that takes the job adds it again.
        queue.room.acquire().await.map_err(|_| closed())?.forget();
        queue.lock().jobs.push_back(job);
        queue.arrived.notify_one();
        receiver.await.map_err(|_| closed())?
    }
}

impl SqliteReaders {
    /// A weak reference, which does not keep the file open.
    pub(super) fn downgrade(&self) -> WeakReaders {
        WeakReaders(Arc::downgrade(&self.0))
    }

    /// Runs `work` on a reader's connection, from a thread that may block; `None` if too many jobs wait.
    fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut SqliteConnection) -> Result<T, SessionError> + Send + 'static,
    ) -> Option<Result<T, SessionError>> {
        let (sender, receiver) = oneshot::channel();
        let job = Box::new(PendingJob { run: Some(work), result: None, sender });
        let queue = &self.0.0;
        queue.room.try_acquire().ok()?.forget();
        queue.lock().jobs.push_back(job);
        queue.arrived.notify_one();
        Some(receiver.blocking_recv().unwrap_or_else(|_| Err(closed())))
    }
}

/// A weak reference to the readers.
pub(super) struct WeakReaders(Weak<QueueCloser>);

impl WeakReaders {
    /// Runs `work` on a reader's connection, from a thread that may block; `None` once the store is closed.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut SqliteConnection) -> Result<T, SessionError> + Send + 'static,
    ) -> Option<Result<T, SessionError>> {
        SqliteReaders(self.0.upgrade()?).run_blocking(work)
    }

    pub(super) fn are_closed(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// Ends the readers when the last [`SqliteReaders`] is dropped.
struct QueueCloser(Arc<ReaderQueue>);

impl Drop for QueueCloser {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.arrived.notify_all();
    }
}

/// Jobs for whichever reader is idle. A job wakes one of them.
struct ReaderQueue {
    waiting: Mutex<QueuedJobs>,
    arrived: Condvar,
    room: Semaphore,
}

#[derive(Default)]
struct QueuedJobs {
    jobs: VecDeque<Box<dyn SqliteJob>>,
    is_closed: bool,
}

impl ReaderQueue {
    fn lock(&self) -> MutexGuard<'_, QueuedJobs> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job; none once no more can come.
    fn next(&self) -> Option<Box<dyn SqliteJob>> {
        let idle = |waiting: &mut QueuedJobs| waiting.jobs.is_empty() && !waiting.is_closed;
        let waiting = self.arrived.wait_while(self.lock(), idle);
        let job = waiting.unwrap_or_else(PoisonError::into_inner).jobs.pop_front()?;
        self.room.add_permits(1);
        Some(job)
    }
}

/// Starts the thread that writes. It ends when the last [`SqliteWriter`] is dropped; once the `others` that have the file
/// open have ended too, it closes the file.
pub(super) fn start_writer(
    sqlite: SqliteConnection,
    is_quick: bool,
    others: Vec<JoinHandle<()>>,
) -> Result<(SqliteWriter, JoinHandle<()>), SessionError> {
    let (jobs, receiver) = mpsc::channel(QUEUE_LENGTH);
    let opened = sqlite.connection.path().and_then(OpenedFile::at);
    let state = Mutex::new(Some(WriterState { sqlite, log: WriteAheadLog::default(), opened }));
    let shared = Arc::new(WriterShared { state, waiting: AtomicUsize::new(0), is_quick });
    let writer = SqliteWriter { jobs, shared: Arc::clone(&shared) };
    let run = move || {
        write_all(&shared, receiver);
        for other in others {
            // NOTE: a thread that panicked has ended as well, and its connection is closed.
            let _ = other.join();
        }
        if let Some(WriterState { sqlite, .. }) = shared.lock().take() {
            WriteAheadLog::end(&sqlite);
            sqlite.close();
        }
    };
    Ok((writer, spawn("stepfold-sqlite-writer", run)?))
}

/// Starts a thread for each of these connections. They end when the last [`SqliteReaders`] is dropped.
pub(super) fn start_readers(
    connections: Vec<SqliteConnection>,
) -> Result<(SqliteReaders, Vec<JoinHandle<()>>), SessionError> {
    let queue = ReaderQueue {
        waiting: Mutex::default(),
        arrived: Condvar::new(),
        room: Semaphore::new(QUEUE_LENGTH),
    };
    let opening = QueueCloser(Arc::new(queue));
    let start = |sqlite| {
        let queue = Arc::clone(&opening.0);
        spawn("stepfold-sqlite-reader", move || read_all(sqlite, &queue))
    };
    let threads = connections.into_iter().map(start).collect::<Result<_, _>>()?;
    Ok((SqliteReaders(Arc::new(opening)), threads))
}

pub(super) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, SessionError> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(run);
    started.map_err(|error| SessionError::Store { what: "start a thread", source: error.into() })
}

/// Threads that are joined when this is dropped.
pub(super) struct JoinedThreads(pub(super) Vec<JoinHandle<()>>);

impl Drop for JoinedThreads {
    fn drop(&mut self) {
        for handle in self.0.drain(..) {
            // NOTE: a job may drop the last store, on a thread that must not wait for itself.
            if handle.thread().id() != thread::current().id() {
                let _ = handle.join();
            }
        }
    }
}

/// The number of pages of the log that are copied to the file at once: with those of the jobs until the next check, 4 MB.
/// The same pages change again and again, so that waiting longer copies less; but the file stays as large as the log once
/// was.
pub(super) const LOG_PAGES: i64 = 800;

/// The number of jobs between two checks of the size of the log.
const CHECK_INTERVAL: usize = 32;

/// The number of attempts to set a mark that another process resets before it is in the file.
const MARK_ATTEMPTS: usize = 3;

/// The state of the log: when it is copied to the file, and the file's mark about it. See [`file`](super::file).
#[derive(Default)]
struct WriteAheadLog {
    /// Whether the file's mark says that it needs its log.
    needs_log: bool,
    /// The mark that the newest commit has set and not yet reset.
    mark: Option<i64>,
    /// The number of jobs that may run before the next check of the log.
    jobs_left: usize,
}

impl WriteAheadLog {
    /// Whether the next job needs no check of the log.
    fn is_quiet(&self) -> bool {
        self.needs_log && self.mark.is_none() && self.jobs_left > 1
    }

    /// Copies the log to the file if it is due; before the first write in any case, so that the file is marked as needing
    /// its log from then on.
    fn checkpoint_if_due(&mut self, sqlite: &SqliteConnection, jobs: usize) -> Result<(), SessionError> {
        self.jobs_left = self.jobs_left.saturating_sub(jobs);
        if self.jobs_left > 0 {
            return Ok(());
        }
        self.jobs_left = CHECK_INTERVAL;
        if self.needs_log && sqlite.log_pages()? < LOG_PAGES {
            return Ok(());
        }
        self.begin(sqlite, SqliteConnection::checkpoint)
    }

    /// Has a mark in the file, and none in the newest commit. `copy` copies the log to the file, as far as readers let
    /// it: whether all of it.
    fn begin(
        &mut self,
        sqlite: &SqliteConnection,
        mut copy: impl FnMut(&SqliteConnection) -> Result<bool, SessionError>,
    ) -> Result<(), SessionError> {
        self.needs_log = false;
        for _ in 0..MARK_ATTEMPTS {
            let mark = sqlite.mark()?;
            self.mark = Some(mark);
            let is_copied = copy(sqlite)?;
            // NOTE: a process that opened or closed the file meanwhile has reset the mark, perhaps before it was copied.
            let is_there = sqlite.read_mark()? == mark;
            self.reset_mark(sqlite);
            self.needs_log = is_copied && is_there;
            if is_there {
                break;
            }
        }
        Ok(())
    }

    /// Resets the mark in the newest commit, which is valid once all of the log is copied.
    fn reset_mark(&mut self, sqlite: &SqliteConnection) {
        if let Some(mark) = self.mark
            && sqlite.reset_mark(Some(mark)).is_ok()
        {
            self.mark = None;
        }
    }

    /// Resets the mark of the newest commit. A foreign mark belongs to a killed process, or to a running one, which sets
    /// it again; the last close of the file copies all of the log.
    fn end(sqlite: &SqliteConnection) {
        if sqlite.read_mark().is_ok_and(|mark| mark != 0)
            && let Err(error) = sqlite.reset_mark(None)
        {
            tracing::warn!(%error, "the file may miss its log when it is opened again");
        }
    }
}

fn write_all(shared: &WriterShared, mut receiver: mpsc::Receiver<Box<dyn SqliteJob>>) {
    while let Some(first) = receiver.blocking_recv() {
        let mut group = vec![first];
        // NOTE: only jobs that wait already: waiting for more would delay the first, and under load others wait anyway.
        while group.len() < MAX_GROUP
            && let Ok(next) = receiver.try_recv()
        {
            group.push(next);
        }
        // NOTE: the lock is held for the group, so that small jobs of other threads do not run inside its transaction.
        let failure = shared.lock().as_mut().and_then(|state| state.write(&mut group).err());
        shared.waiting.fetch_sub(group.len(), Ordering::SeqCst);
        for job in group {
            job.answer(failure.as_ref().map(copied_error));
        }
    }
}

impl WriterState {
    fn vacuum(&mut self) -> Result<(), SessionError> {
        let WriterState { sqlite, log, opened } = self;
        if let Some(opened) = opened
            && !opened.is_in_place()
        {
            return Err(opened.replaced());
        }
        log.reset_mark(sqlite);
        sqlite.connection.execute_batch("VACUUM").map_err(failed(VACUUMING))?;
        // NOTE: the mark about the log is set again by the next job; without a log, the file needs none.
        log.needs_log = false;
        log.jobs_left = 0;
        sqlite.reset_mark(None)?;
        sqlite.empty_log()
    }

    /// Runs a group of jobs; the error is one of all of them.
    fn write(&mut self, group: &mut [Box<dyn SqliteJob>]) -> Result<(), SessionError> {
        let WriterState { sqlite, log, opened } = self;
        if let Some(opened) = opened
            && !opened.is_in_place()
        {
            return Err(opened.replaced());
        }
        log.reset_mark(sqlite);
        if let Err(error) = log.checkpoint_if_due(sqlite, group.len()) {
            // NOTE: only logged: writing may still be possible, and reports its own error if it is not.
            tracing::warn!(%error, "the log could not be copied to the file");
        }
        let written = write_group(sqlite, group);
        if written.is_err() {
            sqlite.undo();
        }
        written
    }
}

/// Runs a group of jobs in one transaction.
fn write_group(sqlite: &mut SqliteConnection, group: &mut [Box<dyn SqliteJob>]) -> Result<(), SessionError> {
    // NOTE: takes the write lock at once. A deferred transaction would read first, and fail without waiting if another
    // process wrote in between.
    sqlite.execute("BEGIN IMMEDIATE", COMMITTING)?;
    if let [job] = group {
        // NOTE: a single job needs no savepoint: undoing it is undoing the transaction.
        if !job.run(sqlite) {
            sqlite.undo();
            return Ok(());
        }
        return sqlite.execute("COMMIT", COMMITTING);
    }
    for job in group {
        sqlite.execute("SAVEPOINT job", COMMITTING)?;
        if !job.run(sqlite) {
            if sqlite.connection.is_autocommit() {
                // NOTE: on a full disk, for example, SQLite itself rolls back the whole transaction, with the other jobs'
                // writes.
                return Err(job.failure());
            }
            sqlite.execute("ROLLBACK TO job", COMMITTING)?;
            // NOTE: the cached schemas may be those that this job had stored, whose rows are rolled back now.
            sqlite.schemas.forget();
        }
        sqlite.execute("RELEASE job", COMMITTING)?;
    }
    sqlite.execute("COMMIT", COMMITTING)
}

impl SqliteConnection {
    /// A connection that waits at most this long for other processes that write.
    pub(super) fn new(connection: Connection, busy_timeout: Duration) -> Self {
        SqliteConnection {
            connection,
            schemas: SqliteSchemas::default(),
            reconnect: None,
            busy_timeout,
            version: None,
            sealer: None,
        }
    }

    /// The key of the current job's content.
    pub(super) fn key(&self) -> ContentKey<'_> {
        ContentKey::of(self.sealer.as_ref())
    }

    /// Begins a transaction that writes, unless another process writes.
    fn try_begin(&self) -> bool {
        // NOTE: without waiting: a job on the caller's thread must not block it while another process writes.
        let _ = self.connection.busy_timeout(Duration::ZERO);
        let has_begun = self.execute("BEGIN IMMEDIATE", COMMITTING).is_ok();
        let _ = self.connection.busy_timeout(self.busy_timeout);
        has_begun
    }

    /// The number of pages of the log.
    fn log_pages(&self) -> Result<i64, SessionError> {
        // NOTE: copies nothing and returns the number of pages, which no other statement does.
        let pages = self.connection.prepare_cached("PRAGMA wal_checkpoint(NOOP)");
        pages.and_then(|mut pages| pages.query_row([], |row| row.get(1))).map_err(failed("inspect its log"))
    }

    /// Copies the log to the file, as far as readers let it. Whether all of it was copied.
    fn checkpoint(&self) -> Result<bool, SessionError> {
        // NOTE: passive: copies as far as readers let it, and waits for none of them.
        let checkpoint = self.connection.prepare_cached("PRAGMA wal_checkpoint(PASSIVE)");
        let is_all = |row: &rusqlite::Row<'_>| Ok(row.get::<_, i64>(1)? == row.get::<_, i64>(2)?);
        checkpoint.and_then(|mut checkpoint| checkpoint.query_row([], is_all)).map_err(failed("copy its log"))
    }

    /// Copies the log to the file, and leaves the log empty. Waits for readers, as long as for a lock.
    fn empty_log(&self) -> Result<(), SessionError> {
        // NOTE: a reader that holds a snapshot lets an attempt return at once, another one makes it wait; so the attempts of the
        // first half wait between each other only. That of the second half keeps writers of other processes out meanwhile.
        let half = self.busy_timeout / 2;
        let _ = self.connection.busy_timeout(Duration::ZERO);
        let mut waited = Duration::ZERO;
        let mut emptied = self.try_to_empty_log();
        while matches!(emptied, Ok(false)) && waited < half {
            thread::sleep(EMPTYING_PAUSE);
            waited += EMPTYING_PAUSE;
            emptied = self.try_to_empty_log();
        }
        if matches!(emptied, Ok(false)) {
            let _ = self.connection.busy_timeout(half);
            emptied = self.try_to_empty_log();
        }
        let _ = self.connection.busy_timeout(self.busy_timeout);
        if emptied? {
            return Ok(());
        }
        let source = "another connection reads it".into();
        Err(SessionError::Unavailable { what: "empty the log of its file", source })
    }

    /// Returns false if a reader or another process is in the way.
    fn try_to_empty_log(&self) -> Result<bool, SessionError> {
        let checkpoint = self.connection.prepare("PRAGMA wal_checkpoint(TRUNCATE)");
        let is_busy =
            checkpoint.and_then(|mut checkpoint| checkpoint.query_row([], |row| row.get::<_, bool>(0)));
        is_busy.map(|is_busy| !is_busy).map_err(failed(VACUUMING))
    }

    /// Commits that the file needs its log, by a number that no other process commits.
    fn mark(&self) -> Result<i64, SessionError> {
        // NOTE: odd, so never 0, and different each time: a process recognizes its own mark among those of others.
        let update = "UPDATE stepfold_meta SET logged = random() | 1 RETURNING logged";
        let update = self.connection.prepare_cached(update);
        update.and_then(|mut update| update.query_row([], |row| row.get(0))).map_err(failed(COMMITTING))
    }

    /// The mark in the newest commit.
    fn read_mark(&self) -> Result<i64, SessionError> {
        let query = self.connection.prepare_cached("SELECT logged FROM stepfold_meta");
        query.and_then(|mut query| query.query_row([], |row| row.get(0))).map_err(failed(READING))
    }

    /// Commits that the file needs no log, if the newest commit has this mark, or any.
    fn reset_mark(&self, mark: Option<i64>) -> Result<(), SessionError> {
        let update =
            "UPDATE stepfold_meta SET logged = 0 WHERE logged <> 0 AND logged = coalesce(?1, logged)";
        let update = self.connection.prepare_cached(update);
        update.and_then(|mut update| update.execute([mark])).map(drop).map_err(failed(COMMITTING))
    }

    /// Closes the file. If no other process has it open, the log is copied into it, and it is left in the form that is
    /// read without a log.
    fn close(self) {
        let SqliteConnection { connection, schemas, .. } = self;
        drop(schemas);
        connection.flush_prepared_statement_cache();
        // NOTE: a connection that still has the file open elsewhere keeps the mode; only the last owner can change it, so a
        // failure is not an error.
        let _ = connection.busy_timeout(Duration::ZERO);
        let _ = connection.pragma_update_and_check(None, "journal_mode", "delete", |_| Ok(()));
        if let Err((_, error)) = connection.close() {
            tracing::error!(%error, "the file could not be closed");
        }
    }

    fn execute(&self, statement: &str, what: &'static str) -> Result<(), SessionError> {
        let run = self.connection.prepare_cached(statement).and_then(|mut statement| statement.execute([]));
        run.map(drop).map_err(failed(what))
    }

    /// Reconnects if the connection treats the file as immutable, and another process has opened it by now.
    fn reconnect_if_opened(&mut self) -> Result<(), SessionError> {
        if let Some(connection) = self.reconnect.as_ref().and_then(|reconnect| reconnect()) {
            *self = SqliteConnection {
                connection: connection?,
                schemas: SqliteSchemas::default(),
                reconnect: None,
                sealer: None,
                ..*self
            };
        }
        Ok(())
    }

    /// Rolls back the failed transaction.
    fn undo(&mut self) {
        self.schemas.forget();
        if !self.connection.is_autocommit()
            && let Err(error) = self.connection.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "a transaction could not be rolled back");
        }
    }
}

/// The same failure for each job of a group.
fn copied_error(failure: &SessionError) -> SessionError {
    let text = |source: &dyn std::error::Error| source.to_string().into();
    match failure {
        SessionError::FileReplaced { path } => SessionError::FileReplaced { path: path.clone() },
        SessionError::Unavailable { what, source } => {
            SessionError::Unavailable { what, source: text(&**source) }
        }
        SessionError::Store { what, source } => SessionError::Store { what, source: text(&**source) },
        other => SessionError::Store { what: "commit", source: text(other) },
    }
}

fn read_all(mut sqlite: SqliteConnection, queue: &ReaderQueue) {
    while let Some(mut job) = queue.next() {
        let connected = sqlite.reconnect_if_opened();
        let failure = connected.and_then(|()| sqlite.execute("BEGIN", READING)).and_then(|()| {
            if job.run(&mut sqlite) {
                return sqlite.execute("COMMIT", READING);
            }
            // NOTE: the job's own error is its response; one of the rollback is not.
            sqlite.undo();
            Ok(())
        });
        if failure.is_err() {
            sqlite.undo();
        }
        job.answer(failure.err());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::{SqliteStore, tables};

    fn logged(path: &std::path::Path) -> i64 {
        // As the file itself has it, without its log.
        let copy = path.with_extension("copy");
        std::fs::copy(path, &copy).unwrap();
        let connection = Connection::open(copy).unwrap();
        connection.query_row("SELECT logged FROM stepfold_meta", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn a_mark_that_another_process_takes_back_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sessions.db");
        drop(SqliteStore::open(&path).unwrap());
        let connect = || {
            let connection = Connection::open(&path).unwrap();
            connection.pragma_update(None, "journal_mode", "wal").unwrap();
            connection
        };
        let sqlite = SqliteConnection::new(connect(), Duration::ZERO);
        let mut opened = Some(connect());
        let mut log = WriteAheadLog::default();
        let copied = log.begin(&sqlite, |sqlite| {
            // One that opens the file between the mark and the copy.
            if let Some(mut other) = opened.take() {
                tables::set_up(&mut other, None).unwrap();
            }
            sqlite.checkpoint()
        });
        copied.unwrap();
        assert!(log.needs_log);
        assert_ne!(logged(&path), 0, "the file says that it needs its log");
        assert_eq!(
            sqlite.read_mark().unwrap(),
            0,
            "the newest commit says what holds once the log is copied"
        );
    }

    #[test]
    fn a_log_that_a_reader_holds_back_is_copied_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sessions.db");
        drop(SqliteStore::open(&path).unwrap());
        let sqlite = SqliteConnection::new(Connection::open(&path).unwrap(), Duration::ZERO);
        sqlite.connection.pragma_update(None, "journal_mode", "wal").unwrap();
        let reader = Connection::open(&path).unwrap();
        reader.execute_batch("BEGIN").unwrap();
        reader.query_row("SELECT logged FROM stepfold_meta", [], |_| Ok(())).unwrap();
        let mut log = WriteAheadLog::default();
        log.checkpoint_if_due(&sqlite, 1).unwrap();
        assert!(!log.needs_log);
        reader.execute_batch("COMMIT").unwrap();
        log.checkpoint_if_due(&sqlite, CHECK_INTERVAL).unwrap();
        assert!(log.needs_log);
        assert_ne!(logged(&path), 0);
    }
}
