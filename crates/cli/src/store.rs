//! The store of the sessions: its path, and the ways in which commands open it.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use stepfold::session_scopes::{AnyStore, MemoryStore, PostgresOptions, SessionError, SqliteOptions};

use crate::environment;
use crate::error::UsageError;
use crate::keys::{key_ring, missing_ring};

/// The ways in which commands open a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreAccess {
    /// It is created if it is missing.
    Create,
    /// It is written, and must exist if it was named; the default one is empty if its file does not exist yet.
    Write,
    /// The same for commands that only read: no file is created or changed.
    Read,
    /// It is read, and must exist.
    Verify,
}

/// Opens the store that a command names by a path or an address of PostgreSQL, or the default one.
pub(crate) async fn open_store(
    named: Option<&Path>,
    keys: Option<&Path>,
    access: StoreAccess,
) -> anyhow::Result<AnyStore> {
    if let Some(url) = named.and_then(postgres_url) {
        return open_postgres(url, keys, access).await;
    }
    if named.is_some_and(is_address) {
        // NOTE: Without the address, which may have a password.
        let words = "the address of the store is not one of PostgreSQL: expected a file, or `postgres://…`";
        return Err(UsageError(words.to_owned()).into());
    }
    let path = &named.map_or_else(default_store, |path| Ok(path.to_owned()))?;
    let options = SqliteOptions::new(path);
    let opened = match access {
        StoreAccess::Create => return open_or_create(path, named.is_some(), keys),
        StoreAccess::Write => with_keys(path, options.must_exist(), keys)?.open(),
        StoreAccess::Read => with_keys(path, options.read_only(), keys)?.open(),
        // Nothing is opened with a key.
        StoreAccess::Verify => options.read_only().open(),
    };
    match opened {
        // NOTE: A reading command must not create the file: an empty store in memory has no sessions either.
        Err(SessionError::NoStore { .. }) if named.is_none() && access != StoreAccess::Verify => {
            Ok(AnyStore::new(MemoryStore::new()))
        }
        opened => opened.map(AnyStore::new).map_err(cannot_open(path)),
    }
}

/// The file of the store that a command names, or of the default one; none of PostgreSQL.
pub(crate) fn store_file(named: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
    match named {
        Some(named) if postgres_url(named).is_some() => Ok(None),
        Some(path) => Ok(Some(path.to_owned())),
        None => default_store().map(Some),
    }
}

/// The address of PostgreSQL that names a store: a URL, or pairs as in `host=x user=y`.
pub(crate) fn postgres_url(store: &Path) -> Option<&str> {
    let text = store.to_str()?.trim();
    let is_url = text.starts_with("postgres://") || text.starts_with("postgresql://");
    let mut pairs = text.split_whitespace();
    let is_pairs = pairs.any(|pair| pair.starts_with("host=") || pair.starts_with("password="));
    (is_url || is_pairs).then_some(text)
}

/// Whether the name of a store is an address, and not a file.
fn is_address(store: &Path) -> bool {
    let text = store.to_string_lossy().trim().to_ascii_lowercase();
    text.contains("://") || text.starts_with("postgres:") || text.starts_with("postgresql:")
}

async fn open_postgres(url: &str, keys: Option<&Path>, access: StoreAccess) -> anyhow::Result<AnyStore> {
    let options = PostgresOptions::new(url);
    let options = match access {
        StoreAccess::Create => options,
        StoreAccess::Write => options.must_exist(),
        StoreAccess::Read | StoreAccess::Verify => options.read_only(),
    };
    let options = match keys.filter(|_| access != StoreAccess::Verify) {
        Some(keys) => {
            if let Some(ring) = missing_ring(keys)?
                && let Some(name) = options.stored_ring().await.context(NOT_OPENED)?
            {
                return Err(ring_not_found(&ring, keys, &name));
            }
            options.key_ring(key_ring(keys)?)
        }
        None => options,
    };
    // NOTE: Without the address, which may have a password.
    Ok(AnyStore::new(options.open().await.context(NOT_OPENED)?))
}

const NOT_OPENED: &str = "the PostgreSQL store could not be opened";

/// Adds the key ring of a file of keys.
fn with_keys(path: &Path, options: SqliteOptions, keys: Option<&Path>) -> anyhow::Result<SqliteOptions> {
    let Some(keys) = keys else { return Ok(options) };
    if let Some(ring) = missing_ring(keys)?
        && let Some(name) = options.stored_ring().map_err(cannot_open(path))?
    {
        return Err(ring_not_found(&ring, keys, &name));
    }
    Ok(options.key_ring(key_ring(keys)?))
}

/// The error of a store whose ring is missing. A new one in its place would have none of its keys.
fn ring_not_found(ring: &Path, keys: &Path, name: &str) -> anyhow::Error {
    let (ring, keys) = (ring.display(), keys.display());
    let words = format!(
        "key ring {ring} not found: the store has its keys in the ring `{name}`; restore it, or correct its path in {keys}"
    );
    UsageError(words).into()
}

fn cannot_open(path: &Path) -> impl FnOnce(SessionError) -> anyhow::Error {
    let words = format!("session store {} could not be opened", path.display());
    move |error| anyhow::Error::new(error).context(words)
}

/// Opens the store at this path, or creates it if its file does not exist. The database of another program is not changed.
pub(crate) fn open_or_create(path: &Path, is_named: bool, keys: Option<&Path>) -> anyhow::Result<AnyStore> {
    // NOTE: Only a missing file is created: opening an existing one for creation could write tables into the database of
    // another program.
    if path.exists() {
        let opened = with_keys(path, SqliteOptions::new(path).must_exist(), keys)?.open();
        return opened.map(AnyStore::new).map_err(cannot_open(path));
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        // NOTE: The path of the user may be mistyped: only the default folder is created.
        if is_named && !folder.is_dir() {
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
    with_keys(path, SqliteOptions::new(path), keys)?.open().map(AnyStore::new).map_err(cannot_open(path))
}

/// The default path of the store.
fn default_store() -> anyhow::Result<PathBuf> {
    let folder = environment::data_folder()
        .map_err(|UsageError(reason)| UsageError(format!("{reason}: set the store with --store FILE")))?;
    Ok(folder.join("sessions.db"))
}
