//! The store of the sessions: its path, and the ways in which commands open it.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use stepfold::session_scopes::{AnyStore, MemoryStore, SessionError, SqliteOptions, SqliteStore};

use crate::args::SessionArgs;
use crate::environment;
use crate::error::UsageError;

/// The path of the store.
pub(crate) fn store_path(target: &SessionArgs) -> anyhow::Result<PathBuf> {
    target.store.clone().map_or_else(default_store, Ok)
}

/// The opened store; an empty one if the default file does not exist yet. A missing file that was named is an error.
fn existing_or_empty(
    target: &SessionArgs,
    path: &Path,
    opened: Result<SqliteStore, SessionError>,
) -> anyhow::Result<AnyStore> {
    match opened {
        Ok(store) => Ok(AnyStore::new(store)),
        // NOTE: A reading command must not create the file: an empty store in memory has no sessions either.
        Err(SessionError::NoStore { .. }) if target.store.is_none() => Ok(AnyStore::new(MemoryStore::new())),
        Err(error) => Err(cannot_open(path)(error)),
    }
}

pub(crate) fn open_existing(target: &SessionArgs, path: &Path) -> anyhow::Result<AnyStore> {
    existing_or_empty(target, path, SqliteOptions::new(path).must_exist().open())
}

/// The store for commands that only read: no file is created or changed.
pub(crate) fn open_read_only(target: &SessionArgs, path: &Path) -> anyhow::Result<AnyStore> {
    existing_or_empty(target, path, SqliteOptions::new(path).read_only().open())
}

/// The store for commands that verify it: it must exist.
pub(crate) fn open_to_verify(path: &Path) -> anyhow::Result<AnyStore> {
    SqliteOptions::new(path).read_only().open().map(AnyStore::new).map_err(cannot_open(path))
}

fn cannot_open(path: &Path) -> impl FnOnce(SessionError) -> anyhow::Error {
    let words = format!("session store {} could not be opened", path.display());
    move |error| anyhow::Error::new(error).context(words)
}

/// Opens the store at this path, or the default one, or creates it if its file does not exist. The database of another
/// program is not changed.
pub(crate) fn open_or_create(named: Option<&Path>) -> anyhow::Result<AnyStore> {
    let path = &named.map_or_else(default_store, |path| Ok(path.to_owned()))?;
    // NOTE: Only a missing file is created: opening an existing one for creation could write tables into the database of
    // another program.
    if path.exists() {
        let opened = SqliteOptions::new(path).must_exist().open();
        return opened.map(AnyStore::new).map_err(cannot_open(path));
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        // NOTE: The path of the user may be mistyped: only the default folder is created.
        if named.is_some() && !folder.is_dir() {
            let words = format!(
                "session store {} could not be created: folder {} not found; create it, or correct `--store`",
                path.display(),
                folder.display()
            );
            return Err(UsageError(words).into());
        }
        std::fs::create_dir_all(folder)
            .with_context(|| format!("folder {} of the sessions could not be created", folder.display()))?;
    }
    SqliteStore::open(path).map(AnyStore::new).map_err(cannot_open(path))
}

/// The default path of the store.
fn default_store() -> anyhow::Result<PathBuf> {
    let folder = environment::data_folder()
        .map_err(|UsageError(reason)| UsageError(format!("{reason}: set the store with --store FILE")))?;
    Ok(folder.join("sessions.db"))
}
