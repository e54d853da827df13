//! The head of a session: the digest of its history up to a version. A copy kept elsewhere detects any later change.

use std::fmt;
use std::str::FromStr;

use stepfold::session_scopes::{Digest, Session};

use crate::error::UsageError;

/// The digest of the history up to a version; in text, `VERSION:DIGEST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HistoryHead {
    pub(crate) version: u64,
    digest: Digest,
}

impl HistoryHead {
    /// The head of a session as it was read; none if its store keeps no digests.
    pub(crate) fn of(session: &Session) -> Option<Self> {
        Some(HistoryHead { version: session.version, digest: session.head? })
    }
}

impl fmt::Display for HistoryHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.version, self.digest)
    }
}

impl FromStr for HistoryHead {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        let head = text.split_once(':').and_then(|(version, digest)| {
            // NOTE: With its version, since a digest alone does not tell where to look for it.
            Some(HistoryHead { version: version.parse().ok()?, digest: digest.parse().ok()? })
        });
        let expected = "expected VERSION:DIGEST, as `inspect` and `verify` print it";
        head.ok_or_else(|| UsageError(format!("invalid head `{text}`: {expected}")))
    }
}
