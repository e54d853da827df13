//! The threads that talk to SQLite: one that writes, a few that read.
//!
//! The writer takes whatever waits, up to 64 jobs, runs each in a savepoint of one transaction (a single one
//! needs none), commits once, and answers then. So many writers share the cost of one flush to disk, and an answer means that
//! it happened.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::error::{closed, failed};
use super::schemas::Schemas;
use crate::apply::guarded;
use crate::error::SessionError;

/// Jobs that one commit makes durable.
const GROUP: usize = 64;
/// What the statements around jobs are for, as errors say it.
const COMMITTING: &str = "commit";
const READING: &str = "read";
/// Jobs that may wait before those who bring more have to.
const QUEUE: usize = 1024;

/// A connection and what it remembers.
pub(super) struct Desk {
    pub(super) connection: Connection,
    pub(super) schemas: Schemas,
}

/// One thing to do.
trait Job: Send {
    /// Works at the desk; whether it succeeded.
    fn run(&mut self, desk: &mut Desk) -> bool;
    /// Why it did not succeed.
    fn failure(&self) -> SessionError;
    /// Answers, with the failure of the commit if there was one.
    fn answer(self: Box<Self>, failure: Option<SessionError>);
}

struct Work<T, W> {
    run: Option<W>,
    result: Option<Result<T, SessionError>>,
    sender: oneshot::Sender<Result<T, SessionError>>,
}

impl<T, W> Job for Work<T, W>
where
    T: Send,
    W: FnOnce(&mut Desk) -> Result<T, SessionError> + Send,
{
    fn run(&mut self, desk: &mut Desk) -> bool {
        let Some(work) = self.run.take() else { return false };
        let result = guarded(|| work(desk));
        let is_done = result.is_ok();
        self.result = Some(result);
        is_done
    }

    fn failure(&self) -> SessionError {
        self.result.as_ref().and_then(|result| result.as_ref().err()).map_or_else(closed, again)
    }

    fn answer(self: Box<Self>, failure: Option<SessionError>) {
        let Work { result, sender, .. } = *self;
        let result = result.unwrap_or_else(|| Err(closed()));
        // Whoever asked may have gone.
        let _ = sender.send(failure.map_or(result, Err));
    }
}

/// Where jobs for the writer are handed in.
#[derive(Clone)]
pub(super) struct Writer(mpsc::Sender<Box<dyn Job>>);

impl Writer {
    /// Runs `work` at the desk and returns what it gives, once that is committed.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Desk) -> Result<T, SessionError> + Send + 'static,
    ) -> Result<T, SessionError> {
        let (sender, receiver) = oneshot::channel();
        let job = Box::new(Work { run: Some(work), result: None, sender });
        self.0.send(job).await.map_err(|_| closed())?;
        receiver.await.map_err(|_| closed())?
    }
}

/// Where jobs for the readers are handed in.
#[derive(Clone)]
pub(super) struct Readers(Arc<Opening>);

impl Readers {
    /// Runs `work` at a desk and returns what it gives.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Desk) -> Result<T, SessionError> + Send + 'static,
    ) -> Result<T, SessionError> {
        let (sender, receiver) = oneshot::channel();
        let job = Box::new(Work { run: Some(work), result: None, sender });
        let line = &self.0.0;
        // The reader that takes the job gives its room back.
        line.room.acquire().await.map_err(|_| closed())?.forget();
        line.lock().jobs.push_back(job);
        line.arrived.notify_one();
        receiver.await.map_err(|_| closed())?
    }
}

/// Dropped with the last place where jobs for readers are handed in, which ends them.
struct Opening(Arc<Line>);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.arrived.notify_all();
    }
}

/// Jobs for whichever reader is idle. A job wakes one of them.
struct Line {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    room: Semaphore,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Box<dyn Job>>,
    is_closed: bool,
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job; none once no more can come.
    fn next(&self) -> Option<Box<dyn Job>> {
        let idle = |waiting: &mut Waiting| waiting.jobs.is_empty() && !waiting.is_closed;
        let waiting = self.arrived.wait_while(self.lock(), idle);
        let job = waiting.unwrap_or_else(PoisonError::into_inner).jobs.pop_front()?;
        self.room.add_permits(1);
        Some(job)
    }
}

/// Starts the thread that writes. It ends when the last [`Writer`] is dropped; once the `others` that have the file open
/// have ended too, it closes the file.
pub(super) fn start_writer(
    desk: Desk,
    others: Vec<JoinHandle<()>>,
) -> Result<(Writer, JoinHandle<()>), SessionError> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let run = move || {
        let mut log = Log::default();
        let mut desk = write_all(desk, receiver, &mut log);
        for other in others {
            // One that panicked has ended as well.
            let _ = other.join();
        }
        log.take_back(&mut desk);
        desk.close();
    };
    Ok((Writer(sender), spawn("stepfold-sqlite-writer", run)?))
}

/// Starts a thread for each of these connections. They end when the last [`Readers`] is dropped.
pub(super) fn start_readers(desks: Vec<Desk>) -> Result<(Readers, Vec<JoinHandle<()>>), SessionError> {
    let line = Line { waiting: Mutex::default(), arrived: Condvar::new(), room: Semaphore::new(QUEUE) };
    let opening = Opening(Arc::new(line));
    let start = |desk| {
        let line = Arc::clone(&opening.0);
        spawn("stepfold-sqlite-reader", move || read_all(desk, &line))
    };
    let threads = desks.into_iter().map(start).collect::<Result<_, _>>()?;
    Ok((Readers(Arc::new(opening)), threads))
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, SessionError> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(run);
    started.map_err(|error| SessionError::Store { what: "start a thread", source: error.into() })
}

/// Threads that are waited for when this is dropped.
pub(super) struct Threads(pub(super) Vec<JoinHandle<()>>);

impl Drop for Threads {
    fn drop(&mut self) {
        for handle in self.0.drain(..) {
            // Whoever is dropped by a job would wait for itself.
            if handle.thread().id() != thread::current().id() {
                let _ = handle.join();
            }
        }
    }
}

/// How many pages of the log are copied to the file at once: 16 MB. The same pages change again and again, so that
/// waiting longer copies less.
pub(super) const LOG_PAGES: i64 = 4_000;

/// How many jobs run before the size of the log is looked at again.
const LOOK_AFTER: usize = 32;

/// When the log is copied to the file, and what the file says about it: see [`file`](super::file).
#[derive(Default)]
struct Log {
    is_begun: bool,
    /// Whether the newest commit says that there is a log, and not only the file does.
    is_marked: bool,
    jobs: usize,
}

impl Log {
    /// Copies the log to the file if it is due; before the first write in any case, so that the file says that it needs
    /// its log from then on.
    fn look_after(&mut self, desk: &mut Desk, jobs: usize) -> Result<(), SessionError> {
        self.jobs += jobs;
        if self.is_begun && self.jobs < LOOK_AFTER {
            return Ok(());
        }
        self.jobs = 0;
        if self.is_begun && desk.log_pages()? < LOG_PAGES {
            return Ok(());
        }
        self.is_marked = true;
        desk.execute("UPDATE stepfold_meta SET logged = 1", COMMITTING)?;
        // As far as readers let it; the rest is copied the next time.
        desk.checkpoint()?;
        self.is_begun = true;
        self.take_back(desk);
        Ok(())
    }

    /// Lets the newest commit say what holds once all of the log is copied.
    fn take_back(&mut self, desk: &mut Desk) {
        if self.is_marked && desk.execute("UPDATE stepfold_meta SET logged = 0", COMMITTING).is_ok() {
            self.is_marked = false;
        }
    }
}

fn write_all(mut desk: Desk, mut receiver: mpsc::Receiver<Box<dyn Job>>, log: &mut Log) -> Desk {
    while let Some(first) = receiver.blocking_recv() {
        let mut group = vec![first];
        while group.len() < GROUP
            && let Ok(next) = receiver.try_recv()
        {
            group.push(next);
        }
        log.take_back(&mut desk);
        if let Err(error) = log.look_after(&mut desk, group.len()) {
            // Writing may still be possible; if not, it says why.
            tracing::warn!(%error, "the log could not be copied to the file");
        }
        let failure = write_group(&mut desk, &mut group).err();
        if failure.is_some() {
            desk.undo();
        }
        for job in group {
            job.answer(failure.as_ref().map(again));
        }
    }
    desk
}

/// Runs a group of jobs in one transaction.
fn write_group(desk: &mut Desk, group: &mut [Box<dyn Job>]) -> Result<(), SessionError> {
    let failed = failed("commit");
    desk.connection
        .prepare_cached("BEGIN IMMEDIATE")
        .and_then(|mut begin| begin.execute([]))
        .map_err(failed)?;
    if let [job] = group {
        // It is alone, so the transaction is all there is to undo.
        if !job.run(desk) {
            desk.undo();
            return Ok(());
        }
        return desk.execute("COMMIT", COMMITTING);
    }
    for job in group {
        desk.execute("SAVEPOINT job", COMMITTING)?;
        if !job.run(desk) {
            if desk.connection.is_autocommit() {
                // SQLite has rolled all of it back, as it does when the disk is full.
                return Err(job.failure());
            }
            desk.execute("ROLLBACK TO job", COMMITTING)?;
            // It may have been the one that brought a schema.
            desk.schemas.forget();
        }
        desk.execute("RELEASE job", COMMITTING)?;
    }
    desk.execute("COMMIT", COMMITTING)
}

impl Desk {
    /// How many pages the log has.
    fn log_pages(&self) -> Result<i64, SessionError> {
        let pages = self.connection.prepare_cached("PRAGMA wal_checkpoint(NOOP)");
        pages.and_then(|mut pages| pages.query_row([], |row| row.get(1))).map_err(failed("look at its log"))
    }

    /// Copies the log to the file, as far as readers let it.
    fn checkpoint(&self) -> Result<(), SessionError> {
        let checkpoint = self.connection.prepare_cached("PRAGMA wal_checkpoint(PASSIVE)");
        let copied = checkpoint.and_then(|mut checkpoint| checkpoint.query_row([], |_| Ok(())));
        copied.map_err(failed("copy its log"))
    }

    /// Closes the file. If nobody else has it open, all that is in the log is copied into it, and it is left in the form
    /// that is read without a log.
    fn close(self) {
        let Desk { connection, schemas } = self;
        drop(schemas);
        connection.flush_prepared_statement_cache();
        // Whoever has it open closes it last.
        let _ = connection.busy_timeout(std::time::Duration::ZERO);
        let _ = connection.pragma_update_and_check(None, "journal_mode", "delete", |_| Ok(()));
        if let Err((_, error)) = connection.close() {
            tracing::error!(%error, "the file could not be closed");
        }
    }

    fn execute(&self, statement: &str, what: &'static str) -> Result<(), SessionError> {
        let run = self.connection.prepare_cached(statement).and_then(|mut statement| statement.execute([]));
        run.map(drop).map_err(failed(what))
    }

    /// Leaves the transaction that failed.
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
fn again(failure: &SessionError) -> SessionError {
    let text = |source: &dyn std::error::Error| source.to_string().into();
    match failure {
        SessionError::Unavailable { what, source } => {
            SessionError::Unavailable { what, source: text(&**source) }
        }
        SessionError::Store { what, source } => SessionError::Store { what, source: text(&**source) },
        other => SessionError::Store { what: "commit", source: text(other) },
    }
}

fn read_all(mut desk: Desk, line: &Line) {
    while let Some(mut job) = line.next() {
        let failure = desk.execute("BEGIN", READING).and_then(|()| {
            if job.run(&mut desk) {
                return desk.execute("COMMIT", READING);
            }
            // Why it failed is its answer, whatever became of the transaction.
            desk.undo();
            Ok(())
        });
        if failure.is_err() {
            desk.undo();
        }
        job.answer(failure.err());
    }
}
