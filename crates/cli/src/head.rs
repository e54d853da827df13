//! The head of a session: the digest of its history up to a version, which shows any later change when it was noted
//! elsewhere.

use std::fmt;
use std::str::FromStr;

use stepfold::session_scopes::{
    Digest, EventRange, GetSession, Session, SessionError, SessionKey, SessionStore as _,
};

use crate::desk::Desk;
use crate::error::Misuse;
use crate::show::counted;

/// The digest of the history up to a version; in text, `VERSION:DIGEST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    version: u64,
    digest: Digest,
}

impl Head {
    /// That of a session as it was read; none if its store keeps no digests.
    pub(crate) fn of(session: &Session) -> Option<Self> {
        Some(Head { version: session.version, digest: session.head? })
    }

    /// That of a session as it is stored, or was at a version; with the number of events that came after it.
    pub(crate) async fn read(
        desk: &Desk,
        key: &SessionKey,
        version: Option<u64>,
    ) -> Result<Option<(Self, u64)>, SessionError> {
        let mut get = GetSession::new(key.clone()).events(EventRange::None).without_state();
        get.version = version;
        let session = desk.runner.store().get(get).await?;
        Ok(Head::of(&session).map(|head| (head, session.newest - session.version)))
    }

    /// Whether the history of a session still begins with the one that this is the digest of.
    pub(crate) async fn look_for(self, desk: &Desk, key: &SessionKey) -> Found {
        match Head::read(desk, key, Some(self.version)).await {
            Ok(Some((head, later))) if head == self => Found::Contained { later },
            Ok(Some(_)) => Found::Changed,
            Ok(None) => Found::Unknown("the store keeps no digests".to_owned()),
            Err(error) => Found::Unknown(error.to_string()),
        }
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.version, self.digest)
    }
}

impl FromStr for Head {
    type Err = Misuse;

    fn from_str(text: &str) -> Result<Self, Misuse> {
        let head = text.split_once(':').and_then(|(version, digest)| {
            Some(Head { version: version.parse().ok()?, digest: digest.parse().ok()? })
        });
        let expected = "expected VERSION:DIGEST, as `inspect` and `verify` print it";
        head.ok_or_else(|| Misuse(format!("invalid head `{text}`: {expected}")))
    }
}

/// Whether a history still contains a head that was noted.
pub(crate) enum Found {
    /// It is there as it was; so many events came after it.
    Contained { later: u64 },
    /// There is another one up to that version.
    Changed,
    /// It cannot be read, for this reason.
    Unknown(String),
}

impl Found {
    pub(crate) fn is_contained(&self) -> bool {
        matches!(self, Found::Contained { .. })
    }

    /// In words, about a head.
    pub(crate) fn words(&self, head: Head) -> String {
        let version = head.version;
        match self {
            Found::Contained { later: 0 } => {
                format!("unchanged: the history ends in the head of version {version}")
            }
            Found::Contained { later } => {
                let later = counted(*later, "event");
                format!(
                    "unchanged up to version {version}: the history contains its head, {later} before the newest"
                )
            }
            Found::Changed => {
                format!("changed: the history up to version {version} has another head than {head}")
            }
            Found::Unknown(why) => format!("missing: the head of version {version} cannot be read: {why}"),
        }
    }
}
