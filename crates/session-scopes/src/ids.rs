//! Ids with a checked form, and the key that addresses a session.
//!
//! An id is opaque. It is bound as a parameter, compared byte by byte, and never part of a path or of a
//! statement, so `../x` and `'; DROP TABLE` are names like any other.
//!
//! This file and `error` import each other: an invalid id is a [`SessionError`], and most errors name a session by its
//! key.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stepfold_state_core::state::is_ignorable;

use crate::error::SessionError;

/// The longest id, in bytes.
pub const MAX_ID_BYTES: usize = 256;

fn fault_of(id: &str) -> Option<&'static str> {
    if id.is_empty() {
        Some("must not be empty")
    } else if id.len() > MAX_ID_BYTES {
        Some("longer than 256 bytes")
    } else if matches!(id, "." | "..") {
        Some("a step of a path: in an address, browsers resolve it")
    } else if id.bytes().all(|byte| byte.is_ascii_graphic()) {
        // NOTE: nearly all ids are ASCII, and each event that is read has several: this path saves decoding them.
        None
    } else if id.trim() != id {
        Some("begins or ends with white space")
    } else if id.chars().any(|character| character.is_control() || is_ignorable(character)) {
        Some("contains characters that do not print")
    } else {
        None
    }
}

/// The text as an id: unchanged if it is short enough, otherwise its beginning and a digest of all of it. Equal texts have
/// equal ids, so that an id derived from others is found again, however long those are.
///
/// # Examples
/// ```
/// use stepfold_session_scopes::{EventId, MAX_ID_BYTES, bounded_id};
///
/// assert_eq!(bounded_id("order-7.0".to_owned()), "order-7.0");
/// let long = bounded_id(format!("{}.0", "k".repeat(MAX_ID_BYTES)));
/// assert_eq!(long.len(), MAX_ID_BYTES);
/// EventId::new(long)?;
/// # Ok::<(), stepfold_session_scopes::SessionError>(())
/// ```
pub fn bounded_id(text: String) -> String {
    /// Of the digest, in hexadecimal digits.
    const DIGEST: usize = 32;
    if text.len() <= MAX_ID_BYTES {
        return text;
    }
    let digest = blake3::hash(text.as_bytes()).to_hex();
    let ends = text.char_indices().map(|(end, _)| end).take_while(|end| *end < MAX_ID_BYTES - DIGEST);
    let beginning = &text[..ends.last().unwrap_or_default()];
    format!("{beginning}~{}", &digest[..DIGEST])
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident, $what:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// Not empty, printable, no white space at its ends, not `.` or `..`, at most 256 bytes. Cloning is cheap.
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the form of an id.
            ///
            /// # Errors
            /// [`SessionError::InvalidId`] with the reason.
            pub fn new(id: impl Into<Arc<str>>) -> Result<Self, SessionError> {
                let id = id.into();
                match fault_of(&id) {
                    None => Ok($name(id)),
                    Some(reason) => Err(SessionError::InvalidId { what: $what, id: id.to_string(), reason }),
                }
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = SessionError;

            fn from_str(id: &str) -> Result<Self, SessionError> {
                $name::new(id)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = SessionError;

            fn try_from(id: &str) -> Result<Self, SessionError> {
                $name::new(id)
            }
        }

        impl TryFrom<String> for $name {
            type Error = SessionError;

            fn try_from(id: String) -> Result<Self, SessionError> {
                $name::new(id)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let id = String::deserialize(deserializer)?;
                $name::new(id).map_err(serde::de::Error::custom)
            }
        }
    )*};
}

ids! {
    /// The application that a session belongs to.
    AppId, "app";
    /// The user that a session belongs to.
    UserId, "user";
    /// A session, unique within its app and user.
    SessionId, "session";
    /// An event's id, unique within its session. It makes repeated appends harmless.
    EventId, "event";
    /// One invocation of an agent: the events from a user's message to the reply.
    InvocationId, "invocation";
    /// The author of an event: the user, or an agent by its name.
    Author, "author";
    /// The name that a caller gives an input or a write to a scope, so that a repeated one counts once.
    IdempotencyKey, "idempotency key";
    /// The incarnation of a session: from its creation, or fork, until its deletion. A session that is created again under
    /// the same key has another one, so that names derived from an incarnation are unique.
    LifeId, "life";
    /// A worker: a process, or a part of one, that claims sessions to work on them.
    WorkerId, "worker";
    /// A name for a version of a session, unique within the session.
    Label, "label";
    /// A budget's counter, unique within the store. Sessions of all apps and users may share it.
    BudgetId, "budget";
    /// A reservation in budgets for one request to a model, unique within the store.
    ReservationId, "reservation";
    /// An erasure, unique within the store: a repeated one is recorded once.
    ErasureId, "erasure";
}

impl LifeId {
    /// A random one of 128 bits, for stores.
    ///
    /// # Examples
    /// ```
    /// use stepfold_session_scopes::LifeId;
    ///
    /// assert_ne!(LifeId::random(), LifeId::random());
    /// assert_eq!(LifeId::random().as_str().len(), 32);
    /// ```
    pub fn random() -> Self {
        // NOTE: `RandomState` is keyed by the system's randomness once for each thread, and has another key each time.
        let word = || RandomState::new().hash_one(());
        LifeId(format!("{:016x}{:016x}", word(), word()).into())
    }
}

/// The complete address of a session. Every operation requires all of it, so an id alone never reaches
/// another tenant's session.
///
/// # Examples
/// ```
/// use stepfold_session_scopes::SessionKey;
///
/// let key = SessionKey::new("my_app", "alice", "s1")?;
/// assert_eq!(key.to_string(), "my_app/alice/s1");
/// assert!(SessionKey::new("my_app", "", "s1").is_err());
/// # Ok::<(), stepfold_session_scopes::SessionError>(())
/// ```
#[doc(alias("thread_id"))]
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionKey {
    /// The application.
    pub app: AppId,
    /// The user.
    pub user: UserId,
    /// The session.
    pub id: SessionId,
}

impl SessionKey {
    /// The key of these three, each checked.
    ///
    /// # Errors
    /// [`SessionError::InvalidId`] for the first that is not valid.
    pub fn new(
        app: impl Into<Arc<str>>,
        user: impl Into<Arc<str>>,
        id: impl Into<Arc<str>>,
    ) -> Result<Self, SessionError> {
        Ok(SessionKey { app: AppId::new(app)?, user: UserId::new(user)?, id: SessionId::new(id)? })
    }

    /// The key of another session of the same user.
    #[must_use]
    pub fn with_id(&self, id: SessionId) -> Self {
        SessionKey { id, ..self.clone() }
    }
}

/// For people; the parts may hold slashes, so it does not read back.
impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.app, self.user, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_ids() {
        for id in ["a", "user@example.org", "../../etc/passwd", "'; DROP TABLE x; --", "日本語", "a b"] {
            assert_eq!(SessionId::new(id).unwrap().as_str(), id);
        }
        let long = "x".repeat(MAX_ID_BYTES + 1);
        for id in ["", " a", "a\n", "a\0b", "\u{202E}a", ".", "..", &long] {
            let error = SessionId::new(id).unwrap_err();
            assert!(error.to_string().contains("invalid session id"), "{error}");
        }
    }

    /// One of each range: an invisible character would make two ids look the same.
    #[test]
    fn invisible_characters_are_no_part_of_an_id() {
        for character in [
            '\u{AD}',
            '\u{34F}',
            '\u{61C}',
            '\u{115F}',
            '\u{1160}',
            '\u{17B4}',
            '\u{180E}',
            '\u{200B}',
            '\u{200D}',
            '\u{2028}',
            '\u{202E}',
            '\u{2060}',
            '\u{206F}',
            '\u{2800}',
            '\u{3164}',
            '\u{FE0F}',
            '\u{FEFF}',
            '\u{FFA0}',
            '\u{FFF9}',
            '\u{1BCA0}',
            '\u{1D173}',
            '\u{E0001}',
            '\u{E0041}',
            '\u{E007F}',
            '\u{E0100}',
        ] {
            let id = format!("a{character}b");
            let error = UserId::new(id.as_str()).unwrap_err();
            assert!(matches!(error, SessionError::InvalidId { .. }), "{id:?}");
            // NOTE: the error escapes the invisible character, which a reader would not see.
            assert!(error.to_string().contains("\\u{"), "{error}");
        }
    }

    #[test]
    fn reading_checks_the_form() {
        assert!(serde_json::from_str::<UserId>(r#""alice""#).is_ok());
        assert!(serde_json::from_str::<UserId>(r#""""#).is_err());
    }
}
