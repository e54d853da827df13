//! A ring in memory, for tests: the keys are gone with the process.

use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ring::{DataKey, KeyOwner, KeyRing, KeyRingFuture, RandomBytes};

/// A key ring in memory, for tests: a store that was written with it cannot be opened by another process.
///
/// # Examples
/// ```
/// # futures_util::FutureExt::now_or_never(async {
/// use stepfold_session_scopes::{AppId, KeyOwner, KeyRing, MemoryKeyRing, UserId};
///
/// // Tests draw from a counter, programs from the operating system.
/// let ring = MemoryKeyRing::new("test", |bytes: &mut [u8]| Ok(bytes.fill(7)));
/// let ada = KeyOwner::new(AppId::new("my_app")?, UserId::new("ada")?);
/// let key = ring.make(&ada).await?;
/// assert_eq!(ring.get(&ada).await?, Some(key));
/// assert!(ring.destroy(&ada).await?);
/// assert_eq!(ring.get(&ada).await?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap().unwrap();
/// ```
pub struct MemoryKeyRing {
    name: String,
    random: Box<dyn RandomBytes>,
    keys: Mutex<HashMap<KeyOwner, DataKey>>,
}

impl fmt::Debug for MemoryKeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryKeyRing").field("name", &self.name).finish_non_exhaustive()
    }
}

impl MemoryKeyRing {
    /// A ring without keys.
    pub fn new(name: impl Into<String>, random: impl RandomBytes) -> Self {
        MemoryKeyRing { name: name.into(), random: Box::new(random), keys: Mutex::default() }
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<KeyOwner, DataKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyRing for MemoryKeyRing {
    fn name(&self) -> &str {
        &self.name
    }

    fn get<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, Option<DataKey>> {
        Box::pin(ready(Ok(self.keys().get(owner).cloned())))
    }

    fn make<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, DataKey> {
        Box::pin(async move {
            let mut keys = self.keys();
            if let Some(key) = keys.get(owner) {
                return Ok(key.clone());
            }
            let key = DataKey::draw(&*self.random)?;
            keys.insert(owner.clone(), key.clone());
            Ok(key)
        })
    }

    fn destroy<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, bool> {
        Box::pin(ready(Ok(self.keys().remove(owner).is_some())))
    }
}
