//! The chain that the digests of a session's events form.

use std::collections::{BTreeMap, BTreeSet};

use super::seal::SessionRecord;
use crate::digest::{ContentDigest, Digest};
use crate::error::SessionError;
use crate::event::{TAG_BYTES, TagDigest};
use crate::ids::{AppId, SessionKey, UserId};
use crate::store::{FaultPlace, StoreFault, StoreFaultKind, Verified};

/// A chain of events that is read from its end: each event is checked once the one before it is known.
pub(crate) struct EventChain {
    /// The version that comes next.
    next: u64,
    /// The digest that its history must have.
    expected: Digest,
    /// The event above it, whose digest is not checked yet.
    pending: Option<ContentDigest>,
}

impl EventChain {
    /// A chain whose newest event has this version, and its history this digest.
    pub(crate) fn ending(version: u64, digest: Digest) -> Self {
        EventChain { next: version, expected: digest, pending: None }
    }

    /// Prepends the preceding event, with the digest in its row.
    pub(crate) fn add(
        &mut self,
        version: u64,
        content: ContentDigest,
        digest: Digest,
    ) -> Result<(), SessionError> {
        if version != self.next {
            return Err(missing_event(self.next));
        }
        self.check(version, digest)?;
        // NOTE: events come newest first, so an event waits here until the row before it supplies the digest that its own
        // was computed from.
        (self.next, self.expected, self.pending) = (version - 1, digest, Some(content));
        Ok(())
    }

    /// Ends the chain with the digest of the version before the first event that was read.
    pub(crate) fn end(self, version: u64, digest: Digest) -> Result<(), SessionError> {
        if version != self.next {
            return Err(missing_event(self.next));
        }
        self.check(version, digest)
    }

    fn check(&self, version: u64, digest: Digest) -> Result<(), SessionError> {
        let (fits, at) = match self.pending {
            Some(content) => (content.after(digest) == self.expected, version + 1),
            None => (digest == self.expected, version),
        };
        if fits {
            return Ok(());
        }
        Err(SessionError::damaged(format!("event of version {at}"), "digest mismatch"))
    }
}

/// The error for a missing event.
pub(crate) fn missing_event(version: u64) -> SessionError {
    SessionError::damaged(format!("event of version {version}"), "missing")
}

/// Which events are read of some ranges of versions, if at most `left` after a version are: pieces of the chain, newest
/// first, each with the version before its first event and that of its last.
pub(crate) fn pieces(ranges: &[(u64, u64)], after: u64, mut left: u64) -> Vec<(u64, u64)> {
    let mut pieces = Vec::new();
    for (first, last) in ranges.iter().rev() {
        let after = after.max(first.saturating_sub(1)).max(last.saturating_sub(left));
        if after < *last {
            pieces.push((after, *last));
            left -= last - after;
        }
    }
    pieces
}

/// The data of an event's row: the digest of its content, and the stored digest of its history; `None` if the
/// row is inconsistent.
pub(crate) type ChainLink = Option<(ContentDigest, Digest)>;

/// Reports each event of a session that is missing or damaged, given the rows that were found by their versions.
pub(crate) fn check_links(
    report: &mut Verified,
    key: &SessionKey,
    record: &SessionRecord,
    found: &BTreeMap<u64, ChainLink>,
) {
    let mut before = Some(record.anchor);
    for version in record.oldest + 1..=record.version {
        report.events += 1;
        let place = FaultPlace::Versions(key.clone(), version..=version);
        let link = found.get(&version);
        match link {
            None => report.missing(place, "missing event"),
            Some(None) => report.damaged(place, "inconsistent event row"),
            Some(Some((content, digest))) => {
                if before.is_some_and(|before| content.after(before) != *digest) {
                    report.damaged(place, "digest mismatch of its event");
                }
            }
        }
        // NOTE: the next event is compared with the stored digest, not a computed one: a damaged event is reported once,
        // and not all events after it.
        before = link.copied().flatten().map(|(_, digest)| digest);
    }
    if before.is_some_and(|digest| digest != record.state.head) {
        report.damaged(FaultPlace::Session(key.clone()), "digest mismatch of its newest event");
    }
}

/// Reports each tag that an event has and the index lacks, or that the index has and an event lacks, given the tags of the
/// events that are whole.
pub(crate) fn check_tags<'a>(
    report: &mut Verified,
    key: &SessionKey,
    events: impl Iterator<Item = (u64, &'a [TagDigest])>,
    indexed: &BTreeSet<(u64, TagDigest)>,
) {
    let place = |version| FaultPlace::Versions(key.clone(), version..=version);
    for (version, tags) in events {
        if tags.iter().any(|tag| !indexed.contains(&(version, *tag))) {
            report.missing(place(version), "missing in the index of tags");
        }
        let of_version = indexed.range((version, TagDigest::default())..=(version, [u8::MAX; TAG_BYTES]));
        if of_version.into_iter().any(|(_, tag)| !tags.contains(tag)) {
            report.damaged(place(version), "the index of tags has one that the event lacks");
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "texts and errors alike")]
impl Verified {
    pub(crate) fn damaged(&mut self, place: FaultPlace, detail: impl ToString) {
        self.add(StoreFault { place, kind: StoreFaultKind::Damaged, detail: detail.to_string() });
    }

    pub(crate) fn missing(&mut self, place: FaultPlace, detail: impl ToString) {
        self.add(StoreFault { place, kind: StoreFaultKind::Missing, detail: detail.to_string() });
    }
}

/// The text of an error with its cause.
pub(crate) fn error_text(error: &SessionError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// The location of a fault in a shared scope.
pub(crate) fn scope_place(app: &AppId, user: Option<&UserId>, key: Option<&str>) -> FaultPlace {
    FaultPlace::Scope {
        app: app.to_string(),
        user: user.map(ToString::to_string),
        key: key.map(str::to_owned),
    }
}
