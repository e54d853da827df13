//! Files that one process at a time changes. The lock is on the file itself, and holds also where another process replaces the
//! file by a new one: a process that waited for the old one opens the new one.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Error, ErrorKind};
use std::path::Path;
use std::time::Duration;

use same_file::Handle;

use crate::error::EvalError;

/// Refuses a path at which there is something else than a regular file: the opening of a pipe waits for its writer, and a device has
/// no end.
pub(crate) fn check_regular(path: &Path) -> Result<(), Error> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file")),
        _ => Ok(()),
    }
}

/// Opens a file and locks it; `None` if another process has it.
pub(crate) fn open_locked(options: &OpenOptions, path: &Path) -> Result<Option<File>, Error> {
    check_regular(path)?;
    loop {
        let file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        if is_at(&file, path)? {
            return Ok(Some(file));
        }
    }
}

/// The same, and waits for the other process, at most so long.
pub(crate) fn open_waiting(options: &OpenOptions, path: &Path, timeout: Duration) -> Result<File, EvalError> {
    let failed = |error| EvalError::io("locking of a file")(error);
    check_regular(path).map_err(failed)?;
    loop {
        let file = options.open(path).map_err(failed)?;
        lock(&file, path, timeout)?;
        if is_at(&file, path).map_err(failed)? {
            return Ok(file);
        }
    }
}

/// The time between two attempts to get a lock.
const PAUSE: Duration = Duration::from_millis(10);

/// Locks a file, and waits for another process that has locked it, at most so long: a stopped process never lets go of it.
pub(crate) fn lock(file: &File, path: &Path, timeout: Duration) -> Result<(), EvalError> {
    let mut waited = Duration::ZERO;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(EvalError::io("locking of a file")(error)),
            Err(TryLockError::WouldBlock) if waited < timeout => {
                std::thread::sleep(PAUSE);
                waited += PAUSE;
            }
            Err(TryLockError::WouldBlock) => {
                return Err(EvalError::Locked { file: path.display().to_string(), timeout });
            }
        }
    }
}

/// A file that exists to be locked: processes that change the same files take turns.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use stepfold_eval::{EvalError, FileLock};
///
/// # let folder = std::env::temp_dir().join(format!("stepfold-file-lock-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let path = folder.join(".lock");
/// let held = FileLock::wait(&path, Duration::from_secs(30))?;
/// let refused = FileLock::wait(&path, Duration::from_millis(20));
/// assert!(matches!(refused, Err(EvalError::Locked { .. })));
/// drop(held);
/// assert!(FileLock::wait(&path, Duration::ZERO).is_ok());
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), EvalError>(())
/// ```
#[derive(Debug)]
pub struct FileLock {
    _file: File,
}

impl FileLock {
    /// The time that data sets and folders of experiments wait for another process by default.
    pub const TIMEOUT: Duration = Duration::from_secs(30);

    /// Locks a file until the returned value is dropped; it is created if it is missing. Waits, and blocks the thread, while another
    /// process or thread has it, at most so long.
    ///
    /// # Errors
    /// [`EvalError::Locked`] when the time is over, and [`EvalError::Io`].
    pub fn wait(path: &Path, timeout: Duration) -> Result<Self, EvalError> {
        let options = OpenOptions::new().create(true).truncate(false).write(true).clone();
        Ok(FileLock { _file: open_waiting(&options, path, timeout)? })
    }
}

/// Whether a path still names an open file: otherwise another process has replaced or removed it.
pub(crate) fn is_at(file: &File, path: &Path) -> Result<bool, Error> {
    match Handle::from_path(path) {
        Ok(found) => Ok(found == Handle::from_file(file.try_clone()?)?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
