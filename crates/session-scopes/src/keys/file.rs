//! A ring in a file: data keys, each wrapped by a key that is elsewhere.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aes_gcm_siv::aead::{Aead as _, Payload};
use aes_gcm_siv::{Aes256GcmSiv, KeyInit as _};
use base64_simd::STANDARD_NO_PAD;
use serde::{Deserialize, Serialize};

use super::ring::{DataKey, KeyOwner, KeyRing, KeyRingError, KeyRingFuture, RandomBytes};
use crate::ids::{AppId, UserId};

/// The format that this version writes.
const FORMAT: u64 = 1;
const NONCE: usize = 12;
/// The end of the name of a file that is to replace the ring.
const NEW: &str = ".new";
/// A file of keys of more bytes is rejected: one that is named by mistake is not read into memory.
const MAX_BYTES: u64 = 256 * 1024 * 1024;
/// The time that a change waits for those of other processes, and the pauses of this wait.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The key that wraps the data keys of a [`KeyFile`].
#[derive(Clone)]
pub struct WrappingKey {
    /// Names the key in files that it wraps.
    name: String,
    cipher: Arc<Aes256GcmSiv>,
}

impl fmt::Debug for WrappingKey {
    /// Never its bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrappingKey").field("name", &self.name).finish_non_exhaustive()
    }
}

impl WrappingKey {
    /// The fewest bytes of its text.
    const MIN: usize = 32;

    /// The key of a random text of at least 32 bytes, such as 32 random bytes in base64. White space at its ends does not
    /// count. It is not made for passwords, which could be found by trying.
    ///
    /// # Errors
    /// When the text is too short.
    ///
    /// # Examples
    /// ```
    /// use stepfold_session_scopes::WrappingKey;
    ///
    /// assert!(WrappingKey::new("K0p9m4rxQ2VwYzJd0aHq7u3s5t8v1x6zB2nC4mD6fG8=").is_ok());
    /// assert!(WrappingKey::new("password").is_err());
    /// ```
    pub fn new(text: &str) -> Result<Self, KeyRingError> {
        let text = text.trim();
        if text.len() < WrappingKey::MIN {
            let words = format!("invalid wrapping key: expected at least {} random bytes", WrappingKey::MIN);
            return Err(KeyRingError::new(words));
        }
        let secret = blake3::derive_key("stepfold wrapping key 1", text.as_bytes());
        let name = blake3::derive_key("stepfold name of a wrapping key 1", text.as_bytes());
        let cipher = Arc::new(Aes256GcmSiv::new(&secret.into()));
        Ok(WrappingKey { name: blake3::Hash::from(name).to_hex()[..16].to_owned(), cipher })
    }

    /// Reads the text of the key from a file that only its owner can read.
    ///
    /// # Errors
    /// When the file cannot be read, can be read by others, or its text is too short.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, KeyRingError> {
        let path = path.as_ref();
        let read = || {
            let file = open_private(path)?.ok_or("not found")?;
            let mut text = String::new();
            file.take(64 * 1024).read_to_string(&mut text).map_err(|error| error.to_string())?;
            Ok(text)
        };
        let text = read().map_err(|why: String| cannot_read("wrapping key", path, &why))?;
        WrappingKey::new(&text).map_err(|error| cannot_read("wrapping key", path, &error))
    }

    fn wrap(
        &self,
        owner: &KeyOwner,
        key: &DataKey,
        random: &dyn RandomBytes,
    ) -> Result<String, KeyRingError> {
        let mut nonce = [0; NONCE];
        random.fill(&mut nonce).map_err(|error| KeyRingError::new(format!("no random bytes: {error}")))?;
        let payload = Payload { msg: &key.to_bytes(), aad: &bound(owner) };
        let wrapped = self.cipher.encrypt(&nonce.into(), payload);
        let wrapped = wrapped.map_err(|_| KeyRingError::new("a data key could not be wrapped"))?;
        Ok(STANDARD_NO_PAD.encode_to_string([&nonce[..], &wrapped].concat()))
    }

    fn unwrap_key(&self, owner: &KeyOwner, wrapped: &str) -> Option<DataKey> {
        let bytes = STANDARD_NO_PAD.decode_to_vec(wrapped).ok()?;
        let (nonce, msg) = bytes.split_first_chunk::<NONCE>()?;
        let key = self.cipher.decrypt(&(*nonce).into(), Payload { msg, aad: &bound(owner) }).ok()?;
        Some(DataKey::from_bytes(key.try_into().ok()?))
    }
}

/// The bytes that bind a wrapped key to its user.
fn bound(owner: &KeyOwner) -> Vec<u8> {
    let app = owner.app.as_str().as_bytes();
    [&(app.len() as u64).to_le_bytes(), app, owner.user.as_str().as_bytes()].concat()
}

/// A key ring in a file that only its owner can read, shared by all processes of a host that name it. Each change replaces
/// the file as a whole, so the ring is for some ten thousand users; a new user costs a write of all of it.
///
/// The data keys are wrapped by a [`WrappingKey`] from elsewhere. Its [rotation](KeyFile::rewrap) rewrites this file, and no
/// content. Next to the file, `.lock` orders the changes of processes, and `.new` is there while one writes. What a killed one has
/// left of it is removed by the next change, so an erasure leaves no copy of a key.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::sync::Arc;
/// use stepfold_session_scopes::{KeyFile, SqliteOptions, WrappingKey};
///
/// let folder = tempfile::tempdir()?;
/// // In programs: `|bytes: &mut [u8]| getrandom::fill(bytes).map_err(std::io::Error::other)`.
/// let random = |bytes: &mut [u8]| Ok(bytes.fill(7));
/// let wrapping = WrappingKey::new("K0p9m4rxQ2VwYzJd0aHq7u3s5t8v1x6zB2nC4mD6fG8=")?;
/// let ring = KeyFile::open(folder.path().join("ring.json"), vec![wrapping], random)?;
/// let store = SqliteOptions::new(folder.path().join("sessions.db")).key_ring(Arc::new(ring)).open()?;
/// # drop(store);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct KeyFile {
    path: PathBuf,
    name: String,
    /// The first wraps; the others open what they had wrapped.
    wrapping: Vec<WrappingKey>,
    random: Box<dyn RandomBytes>,
    known: Mutex<Option<(FileStamp, Arc<StoredRing>)>>,
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFile").field("path", &self.path).field("name", &self.name).finish_non_exhaustive()
    }
}

/// The content of the file.
#[derive(Clone, Serialize, Deserialize)]
struct StoredRing {
    format: u64,
    name: String,
    /// The name of the key that wraps the others.
    wrapped_by: String,
    /// Wrapped keys by application and user.
    keys: BTreeMap<AppId, BTreeMap<UserId, String>>,
}

impl StoredRing {
    fn get(&self, owner: &KeyOwner) -> Option<&String> {
        self.keys.get(&owner.app)?.get(&owner.user)
    }
}

/// The parts that change when the file is replaced.
#[derive(Clone, PartialEq, Eq)]
struct FileStamp {
    bytes: u64,
    modified: Option<SystemTime>,
    #[cfg(unix)]
    number: (u64, u64),
}

impl FileStamp {
    fn of(found: &fs::Metadata) -> Self {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt as _;

        FileStamp {
            bytes: found.len(),
            modified: found.modified().ok(),
            #[cfg(unix)]
            number: (found.dev(), found.ino()),
        }
    }
}

impl KeyFile {
    /// Opens the ring at a path, and makes it if there is no file: for a store that may have a ring already, see
    /// [`SqliteOptions::stored_ring`](crate::SqliteOptions::stored_ring). The first wrapping key wraps new data keys; the others, of a
    /// rotation under way, only open what they had wrapped.
    ///
    /// # Errors
    /// When the file cannot be read or made, can be read by others, has another form, or none of the keys has wrapped it.
    pub fn open(
        path: impl Into<PathBuf>,
        wrapping: Vec<WrappingKey>,
        random: impl RandomBytes,
    ) -> Result<Self, KeyRingError> {
        let path = path.into();
        let ring = KeyFile {
            path,
            name: String::new(),
            wrapping,
            random: Box::new(random),
            known: Mutex::default(),
        };
        let first = ring.wrapping.first().ok_or_else(|| ring.cannot("opened", &"missing wrapping key"))?;
        let stored = if let Some(stored) = ring.read()? {
            stored
        } else {
            let _lock = ring.try_lock()?.ok_or_else(|| ring.cannot("made", &"another process changes it"))?;
            ring.remove_leftovers()?;
            ring.read()?.map_or_else(|| ring.create(first), Ok)?
        };
        ring.wrapping_of(&stored)?;
        Ok(KeyFile { name: stored.name.clone(), ..ring })
    }

    /// Wraps all data keys by the first of the wrapping keys, if another one has wrapped them; returns their number. Other
    /// processes that use the ring must know this key already.
    ///
    /// # Errors
    /// When the file cannot be written, or a key in it cannot be opened.
    pub async fn rewrap(&self) -> Result<usize, KeyRingError> {
        self.change(|stored| {
            let count = stored.keys.values().map(BTreeMap::len).sum();
            let (new, old) = (&self.wrapping[0], self.wrapping_of(stored)?.clone());
            if new.name == old.name {
                return Ok((count, false));
            }
            for (app, users) in &mut stored.keys {
                for (user, wrapped) in users {
                    let owner = KeyOwner::new(app.clone(), user.clone());
                    *wrapped = new.wrap(&owner, &self.opened(&old, &owner, wrapped)?, &*self.random)?;
                }
            }
            stored.wrapped_by.clone_from(&new.name);
            Ok((count, true))
        })
        .await
    }

    fn create(&self, wrapping: &WrappingKey) -> Result<Arc<StoredRing>, KeyRingError> {
        let mut name = [0; 8];
        self.random.fill(&mut name).map_err(|error| self.cannot("made", &error))?;
        let name = format!("{:016x}", u64::from_be_bytes(name));
        let stored =
            StoredRing { format: FORMAT, name, wrapped_by: wrapping.name.clone(), keys: BTreeMap::new() };
        self.write(&stored)?;
        Ok(Arc::new(stored))
    }

    /// The content of the file; `None` without a file.
    fn read(&self) -> Result<Option<Arc<StoredRing>>, KeyRingError> {
        let cannot = |why: &dyn fmt::Display| self.cannot("read", why);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match fs::metadata(&self.path) {
            Ok(found) => FileStamp::of(&found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot(&error)),
        };
        if let Some((stamp, stored)) = &*known
            && *stamp == found
        {
            return Ok(Some(Arc::clone(stored)));
        }
        let Some(file) = open_private(&self.path).map_err(|error| cannot(&error))? else { return Ok(None) };
        let stamp = FileStamp::of(&file.metadata().map_err(|error| cannot(&error))?);
        if stamp.bytes > MAX_BYTES {
            return Err(cannot(&format!("more than {MAX_BYTES} bytes")));
        }
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text).map_err(|error| cannot(&error))?;
        let stored: StoredRing = serde_json::from_str(&text).map_err(|error| cannot(&error))?;
        if stored.format != FORMAT {
            return Err(cannot(&format!("unsupported format {}; update stepfold", stored.format)));
        }
        if !self.name.is_empty() && stored.name != self.name {
            return Err(cannot(&format!("it was replaced by the ring {}", stored.name)));
        }
        let stored = Arc::new(stored);
        *known = Some((stamp, Arc::clone(&stored)));
        Ok(Some(stored))
    }

    /// The content of the file, which was there.
    fn read_existing(&self) -> Result<Arc<StoredRing>, KeyRingError> {
        self.read()?.ok_or_else(|| self.cannot("read", &"the file is gone; restore it"))
    }

    /// Replaces the file, with the lock.
    fn write(&self, stored: &StoredRing) -> Result<(), KeyRingError> {
        let new = self.sibling(NEW);
        let replace = || {
            let mut options = File::options();
            // NOTE: a new one: others may be able to read a file that was there before.
            options.write(true).create_new(true);
            #[cfg(unix)]
            // NOTE: set when the file is created: a later change would leave a moment for others to read it.
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            let mut file = options.open(&new)?;
            file.write_all(&serde_json::to_vec(stored)?)?;
            file.sync_all()?;
            // NOTE: a rename is atomic: a crash or another process never leaves half a file.
            fs::rename(&new, &self.path)?;
            self.sync_folder();
            io::Result::Ok(())
        };
        replace().map_err(|error| {
            let _ = fs::remove_file(&new);
            self.cannot("written", &error)
        })
    }

    /// Removes what killed writers have left, with the lock: its wrapped keys would survive an erasure.
    fn remove_leftovers(&self) -> Result<(), KeyRingError> {
        let remove = || {
            let mut is_removed = false;
            for entry in fs::read_dir(self.folder())? {
                let entry = entry?;
                if !self.is_leftover(&entry.file_name()) {
                    continue;
                }
                match fs::remove_file(entry.path()) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed?,
                }
                is_removed = true;
            }
            if is_removed {
                self.sync_folder();
            }
            io::Result::Ok(())
        };
        remove().map_err(|error| self.cannot("cleaned of the files that killed processes have left", &error))
    }

    /// Whether a file of the folder has the name of one that is written; earlier versions had the number of the process in it.
    fn is_leftover(&self, name: &OsStr) -> bool {
        let of_ring = self.path.file_name().unwrap_or_default().as_encoded_bytes();
        let ending = name.as_encoded_bytes().strip_prefix(of_ring);
        let middle = ending.and_then(|ending| ending.strip_suffix(NEW.as_bytes()));
        middle.is_some_and(|middle| match middle.split_first() {
            None => true,
            Some((first, number)) => {
                *first == b'.' && !number.is_empty() && number.iter().all(u8::is_ascii_digit)
            }
        })
    }

    fn folder(&self) -> &Path {
        self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    /// Makes new and removed names survive a loss of power; not every system can sync a folder.
    fn sync_folder(&self) {
        let _ = File::open(self.folder()).and_then(|folder| folder.sync_all());
    }

    /// Changes the file while no other process does, if there is a change.
    async fn change<T>(
        &self,
        change: impl FnOnce(&mut StoredRing) -> Result<(T, bool), KeyRingError>,
    ) -> Result<T, KeyRingError> {
        let mut waited = Duration::ZERO;
        let _lock = loop {
            if let Some(lock) = self.try_lock()? {
                break lock;
            }
            if waited >= LOCK_TIMEOUT {
                let path = self.path.display();
                return Err(KeyRingError::transient(format!("key ring {path} is locked by another process")));
            }
            tokio::time::sleep(LOCK_PAUSE).await;
            waited += LOCK_PAUSE;
        };
        self.remove_leftovers()?;
        let mut stored = (*self.read_existing()?).clone();
        let (result, is_changed) = change(&mut stored)?;
        if is_changed {
            self.write(&stored)?;
        }
        Ok(result)
    }

    /// The lock on changes, until it is dropped; `None` while another process has it.
    fn try_lock(&self) -> Result<Option<File>, KeyRingError> {
        let open = || {
            let file =
                File::options().write(true).create(true).truncate(false).open(self.sibling(".lock"))?;
            match file.try_lock() {
                Ok(()) => Ok(Some(file)),
                Err(fs::TryLockError::WouldBlock) => Ok(None),
                Err(fs::TryLockError::Error(error)) => Err(error),
            }
        };
        open().map_err(|error| self.cannot("locked", &error))
    }

    fn wrapping_of(&self, stored: &StoredRing) -> Result<&WrappingKey, KeyRingError> {
        let found = self.wrapping.iter().find(|key| key.name == stored.wrapped_by);
        found.ok_or_else(|| {
            let by = &stored.wrapped_by;
            self.cannot(
                "opened",
                &format!("the wrapping key {by} has wrapped its keys; add it to the others"),
            )
        })
    }

    fn opened(&self, by: &WrappingKey, owner: &KeyOwner, wrapped: &str) -> Result<DataKey, KeyRingError> {
        let damaged = || self.cannot("read", &format!("the key of {owner} is damaged; restore the file"));
        by.unwrap_key(owner, wrapped).ok_or_else(damaged)
    }

    fn find(&self, stored: &StoredRing, owner: &KeyOwner) -> Result<Option<DataKey>, KeyRingError> {
        let Some(wrapped) = stored.get(owner) else { return Ok(None) };
        self.opened(self.wrapping_of(stored)?, owner, wrapped).map(Some)
    }

    fn sibling(&self, ending: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(ending);
        name.into()
    }

    fn cannot(&self, what: &str, why: &dyn fmt::Display) -> KeyRingError {
        KeyRingError::new(format!("key ring {} could not be {what}: {why}", self.path.display()))
    }
}

impl KeyRing for KeyFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn get<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, Option<DataKey>> {
        Box::pin(async move { self.find(&*self.read_existing()?, owner) })
    }

    fn make<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, DataKey> {
        Box::pin(async move {
            // NOTE: most users have a key, which needs no lock.
            if let Some(key) = self.find(&*self.read_existing()?, owner)? {
                return Ok(key);
            }
            self.change(|stored| {
                if let Some(key) = self.find(stored, owner)? {
                    return Ok((key, false));
                }
                let key = DataKey::draw(&*self.random)?;
                let wrapped = self.wrapping_of(stored)?.wrap(owner, &key, &*self.random)?;
                stored.keys.entry(owner.app.clone()).or_default().insert(owner.user.clone(), wrapped);
                Ok((key, true))
            })
            .await
        })
    }

    fn destroy<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, bool> {
        Box::pin(self.change(move |stored| {
            let had =
                stored.keys.get_mut(&owner.app).is_some_and(|users| users.remove(&owner.user).is_some());
            stored.keys.retain(|_, users| !users.is_empty());
            Ok((had, had))
        }))
    }
}

/// Opens a file to read; `None` if the file is missing, an error if others can read it.
fn open_private(path: &Path) -> Result<Option<File>, String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    #[cfg(unix)]
    {
        let found = file.metadata().map_err(|error| error.to_string())?;
        if std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o077 != 0 {
            return Err("others can read it; set its mode to 600".to_owned());
        }
    }
    Ok(Some(file))
}

fn cannot_read(what: &str, path: &Path, why: &dyn fmt::Display) -> KeyRingError {
    KeyRingError::new(format!("{what} {} could not be read: {why}", path.display()))
}
