//! Verification of all stored data, beyond the checks of reads.

use std::fmt;
use std::ops::RangeInclusive;

use crate::event::Erasure;
use crate::ids::{AppId, SessionKey};

/// The scope of a verification: everything, by default.
///
/// # Examples
/// ```
/// # futures_util::FutureExt::now_or_never(async {
/// use stepfold_session_scopes::{MemoryStore, SessionStore, VerifySessions};
///
/// let report = MemoryStore::new().verify(VerifySessions::all()).await?;
/// assert!(report.is_whole());
/// # Ok::<(), stepfold_session_scopes::SessionError>(())
/// # }).unwrap().unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerifySessions {
    /// All sessions, all shared scopes, and the store around them.
    All,
    /// The sessions of an app, its scope and those of its users.
    App(AppId),
    /// One session. Shared scopes are not checked.
    Session(SessionKey),
}

impl VerifySessions {
    /// Everything in the store.
    pub fn all() -> Self {
        VerifySessions::All
    }

    /// An app.
    pub fn app(app: AppId) -> Self {
        VerifySessions::App(app)
    }

    /// A session.
    pub fn session(key: SessionKey) -> Self {
        VerifySessions::Session(key)
    }
}

/// The result of a verification: the counts, and each fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// The number of checked sessions.
    pub sessions: u64,
    /// The number of checked events. Shared events count for each fork.
    pub events: u64,
    /// The number of checked values.
    pub values: u64,
    /// The faults, at most [`MAX_FAULTS`].
    pub faults: Vec<StoreFault>,
    /// Whether there are more faults than listed.
    pub is_cut: bool,
    /// The number of events whose content was erased, which is no fault. Shared events count for each fork.
    pub erased: u64,
    /// The erased events, at most [`MAX_FAULTS`].
    pub erasures: Vec<ErasedEvent>,
}

/// An event whose content was erased.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErasedEvent {
    /// The session.
    pub key: SessionKey,
    /// The version of the event.
    pub version: u64,
    /// When it was erased, by whom and why.
    pub erasure: Erasure,
}

/// The maximum number of listed faults.
pub const MAX_FAULTS: usize = 10_000;

impl Verified {
    /// Whether nothing is damaged or missing.
    pub fn is_whole(&self) -> bool {
        self.faults.is_empty()
    }

    /// Adds an erased event, up to the limit.
    pub(crate) fn add_erased(&mut self, key: &SessionKey, version: u64, erasure: Erasure) {
        self.erased += 1;
        if self.erasures.len() < MAX_FAULTS {
            self.erasures.push(ErasedEvent { key: key.clone(), version, erasure });
        }
    }

    /// Adds a fault, up to the limit.
    pub fn add(&mut self, fault: StoreFault) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(fault);
        } else {
            self.is_cut = true;
        }
    }
}

/// One thing that is damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreFault {
    /// Its location.
    pub place: FaultPlace,
    /// Whether data is missing or damaged.
    pub kind: StoreFaultKind,
    /// A description, for people.
    pub detail: String,
}

/// The location of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultPlace {
    /// The store around its sessions: a database file, a table, an index.
    Store,
    /// A session as a whole: its row, its list entries, the beginning of its history.
    Session(SessionKey),
    /// A session whose id is lost with its row; the number that the store gave it.
    UnknownSession {
        /// The number.
        number: i64,
    },
    /// Versions of a session.
    Versions(SessionKey, RangeInclusive<u64>),
    /// A key of a session.
    Key(SessionKey, String),
    /// A shared scope, and the key if it is one key of it.
    Scope {
        /// The app.
        app: String,
        /// The user; `None` for the app's own scope.
        user: Option<String>,
        /// The key, if it is known.
        key: Option<String>,
    },
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreFaultKind {
    /// Data is missing, although other data refers to it.
    Missing,
    /// Data differs from what was written.
    Damaged,
}

impl fmt::Display for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            StoreFaultKind::Missing => "missing",
            StoreFaultKind::Damaged => "damaged",
        };
        write!(f, "{kind}: {}: {}", self.place, self.detail)
    }
}

impl fmt::Display for FaultPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultPlace::Store => write!(f, "the store"),
            FaultPlace::Session(key) => write!(f, "session {key}"),
            FaultPlace::UnknownSession { number } => {
                write!(f, "a session whose id is lost (number {number})")
            }
            FaultPlace::Versions(key, versions) if versions.start() == versions.end() => {
                write!(f, "session {key}, version {}", versions.start())
            }
            FaultPlace::Versions(key, versions) => {
                write!(f, "session {key}, versions {} to {}", versions.start(), versions.end())
            }
            FaultPlace::Key(key, name) => write!(f, "session {key}, key \"{name}\""),
            FaultPlace::Scope { app, user, key } => {
                match user {
                    Some(user) => write!(f, "user {app}/{user}")?,
                    None => write!(f, "app {app}")?,
                }
                key.iter().try_for_each(|key| write!(f, ", key \"{key}\""))
            }
        }
    }
}
