//! Keys of users: the content of each user is sealed under a key of its own, which a ring outside of the database holds. So
//! an erased user's content cannot be opened in backups either.
//!
//! The ring is a [port](KeyRing). The databases share one [form](sealer) of sealed texts, which stand in the columns of the
//! texts that they replace.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod file;
mod memory;
mod ring;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) mod sealer;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use self::file::{KeyFile, WrappingKey};
pub use self::memory::MemoryKeyRing;
pub use self::ring::{DataKey, KeyOwner, KeyRing, KeyRingError, KeyRingFuture, RandomBytes};
