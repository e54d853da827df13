//! Experiments of an app: data sets, reports and jobs, as files in a folder, and the worker that runs the jobs.

mod erasure;
mod files;
mod jobs;
mod request;
mod worker;

use std::fs;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use stepfold_agent_loop::Agent;
use stepfold_eval::{EvalError, FileLock, Judge};

pub use self::erasure::{ErasedCase, ErasedCopies, ErasureError};
pub(in crate::http) use self::files::check_name;
use self::files::unreadable;
pub(in crate::http) use self::jobs::{ExperimentJob, StoredExperiment};
pub(in crate::http) use self::request::NewExperiment;
use self::worker::RunningJobs;
use crate::http::guard::problem::Problem;

/// A folder with the data sets of an app, and its experiments, in a folder for each user.
///
/// `USER/NAME.jsonl` is a data set, and `USER/NAME.report` a report, as [`stepfold_eval`] has them; a user's folder has the
/// user's id in percent encoding, upper-case letters included; one of more than 200 bytes has a digest. So reports that a
/// command or a build server writes there are seen in the studio. Other processes with the folder see the same files; a report
/// appears when it is whole. Links are not followed. `.lock` is locked by the process that changes files; others wait for it, for a
/// [time](ExperimentFolder::lock_timeout). `.erasures` has the erasures under way: see [`erase`](ExperimentFolder::erase).
///
/// `.jobs` has the experiments that wait or run, with their results so far. A server runs them in the background, and continues
/// those of a process that was killed, its own or another one: within a minute, each by one process at a time. One of mode `live`
/// that had begun is not continued, since its tools may have run for the case at hand: it has failed.
pub struct ExperimentFolder {
    folder: PathBuf,
    candidates: Option<Box<dyn Candidates>>,
    judge: Option<Judge>,
    /// Held while files are changed by what was read before: see [`ExperimentFolder::change`].
    changing: Mutex<()>,
    lock_timeout: Duration,
    running: RunningJobs,
}

impl std::fmt::Debug for ExperimentFolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExperimentFolder").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// The port for candidates that differ from the agent of an app by more than their instructions.
pub trait Candidates: Send + Sync {
    /// The agent of the app with a change.
    ///
    /// # Errors
    /// Why there is no such candidate, in words for the caller.
    fn candidate(&self, change: &CandidateChange) -> Result<Agent, String>;
}

/// The change of a candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CandidateChange {
    /// Another model, by its name.
    pub model: Option<String>,
    /// Settings of the agent file, as `limits.steps=4`.
    pub set: Vec<String>,
}

impl ExperimentFolder {
    /// A folder, which is created with the first file in it. Candidates differ by their instructions only.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        ExperimentFolder {
            folder: folder.into(),
            candidates: None,
            judge: None,
            changing: Mutex::default(),
            lock_timeout: FileLock::TIMEOUT,
            running: RunningJobs::default(),
        }
    }

    /// Sets the port for other candidates.
    #[must_use]
    pub fn candidates(mut self, candidates: impl Candidates + 'static) -> Self {
        self.candidates = Some(Box::new(candidates));
        self
    }

    /// Sets the judge, for expectations with a rubric. Experiments with it need an administrator, and a limit of requests.
    #[must_use]
    pub fn judge(mut self, judge: Judge) -> Self {
        self.judge = Some(judge);
        self
    }

    /// Sets the time for which a change waits for another process that has locked `.lock`; 30 seconds by default. Afterwards it fails:
    /// a process that is stopped would hold up all others.
    #[must_use]
    pub const fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// The candidate with a change of the agent.
    fn candidate(&self, agent: &Agent, change: &CandidateChange) -> Result<Agent, Problem> {
        if *change == CandidateChange::default() {
            return Ok(agent.clone());
        }
        let fault = |why: String| Problem::invalid("candidate", why);
        let candidates = self.candidates.as_ref();
        let candidates =
            candidates.ok_or_else(|| fault("this server changes instructions only".to_owned()))?;
        candidates.candidate(change).map_err(fault)
    }

    /// Begins a change of files by what was read before: no other thread or process changes them until it is dropped. Blocks
    /// the thread, and creates the folder.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] when another process, or the other threads that wait for it, have the lock for too long.
    fn change(&self) -> std::io::Result<FolderChange<'_>> {
        self.change_within(&self.lock_wait())
    }

    /// The time that a request waits for locks, in all its changes.
    fn lock_wait(&self) -> LockWait {
        let left = u64::try_from(self.lock_timeout.as_millis()).unwrap_or(u64::MAX);
        LockWait { left: Arc::new(AtomicU64::new(left)), timeout: self.lock_timeout }
    }

    /// The same within what is left of a wait.
    fn change_within(&self, wait: &LockWait) -> std::io::Result<FolderChange<'_>> {
        let thread = loop {
            match self.changing.try_lock() {
                Ok(thread) => break thread,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => wait.pause(LOCK)?,
            }
        };
        fs::create_dir_all(&self.folder)?;
        Ok(FolderChange { _thread: thread, _process: self.lock_file(LOCK, wait)? })
    }

    /// Waits for other erasures in the folder, if there is one.
    fn lock_erasures(&self, wait: &LockWait) -> std::io::Result<Option<FileLock>> {
        self.folder.try_exists()?.then(|| self.lock_file(ERASING, wait)).transpose()
    }

    fn lock_file(&self, name: &str, wait: &LockWait) -> std::io::Result<FileLock> {
        let path = self.folder.join(name);
        if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
            return Err(Error::other(format!("`{name}` of the folder is not a regular file")));
        }
        loop {
            match FileLock::wait(&path, Duration::ZERO) {
                Ok(lock) => return Ok(lock),
                Err(EvalError::Locked { .. }) => wait.pause(name)?,
                Err(EvalError::Io { source, .. }) => return Err(Error::new(source.kind(), source)),
                Err(error) => return Err(Error::other(error)),
            }
        }
    }

    fn begin_change(&self) -> Result<FolderChange<'_>, Problem> {
        self.change().map_err(|error| match error.kind() {
            ErrorKind::ResourceBusy => Problem::unavailable(&format!("{error}; try again after its end")),
            _ => unreadable(&self.folder, &error),
        })
    }
}

/// The time that is left to a request for its waits for locks. They do not add up: it is one bound for all of them.
#[derive(Clone)]
struct LockWait {
    /// In milliseconds.
    left: Arc<AtomicU64>,
    /// All of it.
    timeout: Duration,
}

impl LockWait {
    /// The milliseconds between two attempts to get a lock.
    const PAUSE: u64 = 10;

    /// Waits a moment.
    fn pause(&self, name: &str) -> std::io::Result<()> {
        let spend = |left: u64| (left > 0).then(|| left.saturating_sub(LockWait::PAUSE));
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend).is_ok() {
            std::thread::sleep(Duration::from_millis(LockWait::PAUSE));
            return Ok(());
        }
        let timeout = self.timeout;
        let why = format!(
            "`{name}` of the folder of experiments could not be locked within {timeout:?}: another process holds it, which may be \
             stopped"
        );
        Err(Error::new(ErrorKind::ResourceBusy, why))
    }
}

/// The file that a process locks to change others. It is never removed.
const LOCK: &str = ".lock";

/// The file that a process locks while it erases. It is never removed.
const ERASING: &str = ".erasing";

/// A change of the folder by one thread of one process.
struct FolderChange<'a> {
    _thread: MutexGuard<'a, ()>,
    _process: FileLock,
}

/// A fault of a case is the caller's.
pub(in crate::http) fn of_eval(error: &EvalError) -> Problem {
    Problem::invalid("evaluation", error)
}

/// The words of an error for clients, who must not learn the paths of the server.
fn without_path(error: &EvalError) -> String {
    match error {
        EvalError::NotAReport { file } => {
            let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy();
            format!(
                "file `{name}` of the folder is not a report, and would be replaced: delete it, or name the experiment otherwise"
            )
        }
        error => error.to_string(),
    }
}
