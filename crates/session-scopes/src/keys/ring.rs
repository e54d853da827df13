//! The port of key rings: who has which data key.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use thiserror::Error;

use crate::ids::{AppId, UserId};

/// The user whose content a data key seals.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct KeyOwner {
    /// The application.
    pub app: AppId,
    /// The user.
    pub user: UserId,
}

impl KeyOwner {
    /// A user of an application.
    pub fn new(app: AppId, user: UserId) -> Self {
        KeyOwner { app, user }
    }
}

impl fmt::Display for KeyOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.app, self.user)
    }
}

/// A source of unpredictable bytes: the operating system's, outside of tests. Functions implement it.
pub trait RandomBytes: Send + Sync + 'static {
    /// Fills the buffer.
    ///
    /// # Errors
    /// When the source fails.
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()>;
}

impl<F: Fn(&mut [u8]) -> io::Result<()> + Send + Sync + 'static> RandomBytes for F {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        self(bytes)
    }
}

/// The key that seals the content of a user, with a random number by which sealed texts name it: a user who comes back after
/// an erasure gets another one, and what an earlier key had sealed counts as erased, not as damaged.
#[derive(Clone, PartialEq, Eq)]
pub struct DataKey {
    pub(super) number: [u8; DataKey::NUMBER],
    pub(super) secret: [u8; DataKey::SECRET],
}

impl DataKey {
    pub(super) const NUMBER: usize = 8;
    pub(super) const SECRET: usize = 32;

    /// The bytes of a key: its number and its secret.
    pub const LENGTH: usize = DataKey::NUMBER + DataKey::SECRET;

    /// Draws a new key.
    ///
    /// # Errors
    /// When the source of random bytes fails.
    pub fn draw(random: &dyn RandomBytes) -> Result<Self, KeyRingError> {
        let mut bytes = [0; DataKey::LENGTH];
        random.fill(&mut bytes).map_err(|error| KeyRingError::new(format!("no random bytes: {error}")))?;
        Ok(DataKey::from_bytes(bytes))
    }

    /// The key of these bytes, which must be random outside of tests.
    ///
    /// # Examples
    /// ```
    /// use stepfold_session_scopes::DataKey;
    ///
    /// let key = DataKey::from_bytes([7; DataKey::LENGTH]);
    /// assert_eq!(DataKey::from_bytes(key.to_bytes()), key);
    /// ```
    pub fn from_bytes(bytes: [u8; DataKey::LENGTH]) -> Self {
        let mut key = DataKey { number: [0; DataKey::NUMBER], secret: [0; DataKey::SECRET] };
        key.number.copy_from_slice(&bytes[..DataKey::NUMBER]);
        key.secret.copy_from_slice(&bytes[DataKey::NUMBER..]);
        key
    }

    /// Its bytes, for rings.
    pub fn to_bytes(&self) -> [u8; DataKey::LENGTH] {
        let mut bytes = [0; DataKey::LENGTH];
        bytes[..DataKey::NUMBER].copy_from_slice(&self.number);
        bytes[DataKey::NUMBER..].copy_from_slice(&self.secret);
        bytes
    }
}

impl fmt::Debug for DataKey {
    /// Never its bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataKey").finish_non_exhaustive()
    }
}

/// An operation of a ring.
pub type KeyRingFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, KeyRingError>> + Send + 'a>>;

/// Holds the data keys of users, outside of the database and its backups.
///
/// Implemented by [`KeyFile`](crate::KeyFile), by [`MemoryKeyRing`](crate::MemoryKeyRing) for tests, and by programs over a
/// key management service. Called by stores: [`get`](KeyRing::get) before each operation that reads or writes content, so a
/// slow ring keeps keys for some time; [`make`](KeyRing::make) for a user without a key, and [`destroy`](KeyRing::destroy)
/// when a user is erased.
///
/// A ring that loses a key has erased its user. A backup of the ring brings erased users back, as far as backups of the
/// database have them: keep it for less time than those.
pub trait KeyRing: Send + Sync + 'static {
    /// Its name, which never changes. A store remembers the name of the first ring that it is opened with, and rejects others.
    fn name(&self) -> &str;

    /// The data key of a user; `None` if it is missing or was destroyed.
    ///
    /// # Errors
    /// When the ring cannot be read.
    fn get<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, Option<DataKey>>;

    /// The data key of a user, made if it is missing. It is durable when this returns, and of several calls at once, in
    /// whichever processes, all return the same key. It may not be answered from memory.
    ///
    /// # Errors
    /// When the ring cannot be written.
    fn make<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, DataKey>;

    /// Destroys the data key of a user permanently; returns whether it existed.
    ///
    /// # Errors
    /// When the ring cannot be written.
    fn destroy<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, bool>;
}

impl<R: KeyRing + ?Sized> KeyRing for Arc<R> {
    fn name(&self) -> &str {
        R::name(self)
    }

    fn get<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, Option<DataKey>> {
        R::get(self, owner)
    }

    fn make<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, DataKey> {
        R::make(self, owner)
    }

    fn destroy<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, bool> {
        R::destroy(self, owner)
    }
}

/// An error of a key ring. Its text never has a key.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct KeyRingError {
    reason: String,
    is_transient: bool,
}

impl KeyRingError {
    /// An error that an operator has to mend.
    pub fn new(reason: impl Into<String>) -> Self {
        KeyRingError { reason: reason.into(), is_transient: false }
    }

    /// An error that may be gone at the next attempt.
    pub fn transient(reason: impl Into<String>) -> Self {
        KeyRingError { reason: reason.into(), is_transient: true }
    }

    /// Whether it may be gone at the next attempt.
    pub fn is_transient(&self) -> bool {
        self.is_transient
    }
}
