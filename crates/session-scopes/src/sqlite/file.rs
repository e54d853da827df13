//! The file of a store: checks whether it exists and is complete, and creates new ones.
//!
//! A new store is created next to its path and linked there when it is complete. So a file at the path is a
//! store or belongs to another program; an empty one was truncated. Rejected files are not changed.
//!
//! A file that is not open needs no log: the last process to close it has copied the log into it. While it is
//! open, the newest commits are in its write-ahead log, `-wal`. The file records this: each checkpoint of
//! this crate leaves `logged = 1` in the file, and the commit after it, in the log, resets that, as does the
//! last close. A checkpoint that copies all of the log, as the last close makes it, leaves 0; a file with 1
//! and without a log has lost commits. (The number differs each time, so that a process can verify that its
//! own was in the file.)

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::error::failed;
use super::tables;
use crate::error::SessionError;

/// The content of a store's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoundFile {
    Nothing,
    /// A database, of ours or with room for our tables.
    Database {
        /// Whether it has our tables.
        is_ours: bool,
    },
}

/// An open file, by its identity in the system, which a later renaming does not change.
pub(super) struct OpenedFile {
    path: PathBuf,
    identity: FileIdentity,
}

/// The device and the number of a file, where the system has them.
#[derive(PartialEq, Eq)]
struct FileIdentity {
    #[cfg(unix)]
    device: u64,
    #[cfg(unix)]
    number: u64,
}

#[cfg(unix)]
fn identity(found: &fs::Metadata) -> FileIdentity {
    use std::os::unix::fs::MetadataExt as _;

    FileIdentity { device: found.dev(), number: found.ino() }
}

/// Elsewhere only the existence of a file is known.
#[cfg(not(unix))]
fn identity(_: &fs::Metadata) -> FileIdentity {
    FileIdentity {}
}

impl OpenedFile {
    /// The file that was opened at a path; none of a database without one.
    pub(super) fn at(path: &str) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(OpenedFile { path: path.into(), identity: identity(&found) })
    }

    /// Whether it still has its name.
    pub(super) fn is_in_place(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity)
    }

    pub(super) fn replaced(&self) -> SessionError {
        SessionError::FileReplaced { path: self.path.display().to_string() }
    }
}

/// The first bytes of every SQLite file.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Inspects the file at a path, and rejects one that cannot be opened as a store. `accepts_loss`: even
/// without the log that it needs.
pub(super) fn inspect(path: &Path, accepts_loss: bool) -> Result<FoundFile, SessionError> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(FoundFile::Nothing),
        Err(error) => return Err(cannot_open(error)),
    };
    let mut start = Vec::new();
    Read::by_ref(&mut file).take(MAGIC.len() as u64).read_to_end(&mut start).map_err(cannot_open)?;
    if start.is_empty() {
        return Err(SessionError::EmptyFile { path: path.display().to_string() });
    }
    // NOTE: SQLite itself would notice a file of another program only at the first statement.
    if start != MAGIC {
        return Err(cannot_open(std::io::Error::other(format!(
            "{} is not an SQLite database",
            path.display()
        ))));
    }
    let connection = connect_to_inspect(path)?;
    let is_ours = tables::check(&connection)?;
    // NOTE: the mark is read before the log is checked: another process may begin a log in between, never remove one.
    if is_ours && !accepts_loss && is_logged(&connection)? && !has_content(&with_suffix(path, "-wal")) {
        return Err(SessionError::LogMissing { path: path.display().to_string() });
    }
    Ok(FoundFile::Database { is_ours })
}

/// A connection that changes nothing and, if no other process has the file open, creates no other file.
pub(super) fn connect_to_inspect(path: &Path) -> Result<Connection, SessionError> {
    let failed = failed("open its file");
    let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if has_content(&with_suffix(path, "-journal")) {
        // NOTE: a process ended while it changed the file without a log. SQLite has to roll that back first, which needs a
        // connection that may write.
        let connection =
            Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(failed)?;
        connection.pragma_update(None, "query_only", true).map_err(failed)?;
        return Ok(connection);
    }
    let flags = flags | OpenFlags::SQLITE_OPEN_READ_ONLY;
    if is_read_alone(path) {
        return Connection::open_with_flags(immutable(path), flags | OpenFlags::SQLITE_OPEN_URI)
            .map_err(failed);
    }
    Connection::open_with_flags(path, flags).map_err(failed)
}

/// Whether the file uses a log and is not open elsewhere: reading it normally would create a log.
pub(super) fn is_read_alone(path: &Path) -> bool {
    /// The offset of the file's read version, and its value for a file with a log.
    const PLACE: usize = 19;
    const LOG: u8 = 2;
    let mut start = [0; 100];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    let is_open = with_suffix(path, "-shm").exists();
    read.is_ok() && start[PLACE] == LOG && !is_open && !has_content(&with_suffix(path, "-wal"))
}

/// The address with which SQLite treats a file as immutable.
fn immutable(path: &Path) -> String {
    // NOTE: SQLite takes the path as a URI here, in which `?` and `%` have a meaning.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/.-_".contains(&byte);
    let bytes = path.as_os_str().as_encoded_bytes().iter();
    let address: String = bytes
        .map(|byte| if plain(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    format!("file:{address}?immutable=1")
}

fn is_logged(connection: &Connection) -> Result<bool, SessionError> {
    let logged = connection.query_row("SELECT logged FROM stepfold_meta", [], |row| row.get::<_, i64>(0));
    Ok(logged.optional().map_err(failed("inspect its tables"))?.is_some_and(|logged| logged != 0))
}

fn has_content(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.len() > 0)
}

/// The folder of a file.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The path of a file that belongs to another.
fn with_suffix(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Creates a store at a path without a file. If another process was faster, that is not an error.
pub(super) fn create_store(path: &Path) -> Result<(), SessionError> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    if !folder(path).is_dir() {
        let words = format!("missing folder {}; create it first", folder(path).display());
        return Err(SessionError::Store { what: "create its file", source: words.into() });
    }
    // NOTE: several threads of this process may create stores at the same time.
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let new = with_suffix(path, &format!(".new-{}-{number}", std::process::id()));
    // NOTE: left by a killed process that had the same process number.
    let _ = fs::remove_file(&new);
    let made = create_tables(&new).and_then(|()| publish(&new, path));
    let _ = fs::remove_file(&new);
    made
}

fn create_tables(new: &Path) -> Result<(), SessionError> {
    let mut connection = Connection::open(new).map_err(failed("create its file"))?;
    tables::set_up(&mut connection, None)?;
    connection.close().map_err(|(_, error)| failed("create its file")(error))
}

/// Renames a complete file, unless the target exists by now.
fn publish(new: &Path, path: &Path) -> Result<(), SessionError> {
    match fs::hard_link(new, path) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
        // NOTE: some file systems have no hard links; renaming could replace a file, so it is the fallback only.
        Err(_) if !path.exists() => fs::rename(new, path).map_err(cannot_open)?,
        Err(_) => return Ok(()),
    }
    // NOTE: makes the new name survive a loss of power; not every system can sync a folder, so errors are ignored.
    let _ = File::open(folder(path)).and_then(|folder| folder.sync_all());
    Ok(())
}

fn cannot_open(error: std::io::Error) -> SessionError {
    SessionError::Store { what: "open its file", source: error.into() }
}
