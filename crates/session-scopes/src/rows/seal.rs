//! Seals: checksums in rows that detect damage to them and missing rows.
//!
//! Each row has its own checksum. That detects changes, but not missing rows: a page lost from an index takes
//! its rows with it. So rows refer to each other. The seal of an event has the digest of the history up to
//! it, the combined checksums of the session's values, and the newest rewind; the seal of a session has the
//! same for the version of its row, and a checksum of its lineage.

use super::lineage::{HistorySegment, to_db};
use crate::digest::{ChecksumEncoder, ContentDigest, ContentForm, ContentSalt, Digest};
use crate::error::SessionError;
use crate::event::Event;
use crate::ids::{LifeId, SessionId, SessionKey};
use crate::scope::ScopeVersions;
use crate::session::{ForkOrigin, Session, VisibleVersions};
use crate::store::Claim;
use crate::time::Timestamp;

/// The number of bits of a row's number that hold the version.
// NOTE: stream and version share one integer, so that SQLite keeps the events of a session side by side in the table's own
// tree and needs no index for them.
const VERSION_BITS: u32 = 32;
/// The highest version that a row's number has room for.
pub(crate) const MAX_VERSION: u64 = (1 << VERSION_BITS) - 1;

/// The sealed state of a session at a version, in addition to its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SealedState {
    /// The digest of the history.
    pub(crate) head: Digest,
    /// The checksums of the rows of all keys, including removed ones, combined by exclusive or.
    pub(crate) cells: i64,
    /// The version of the newest rewind; 0 if there is none.
    pub(crate) rewound: u64,
}

impl SealedState {
    const LENGTH: usize = Digest::LENGTH + 8 + 8;

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.head.as_bytes());
        bytes.extend(self.cells.to_le_bytes());
        bytes.extend(self.rewound.to_le_bytes());
    }

    fn read(bytes: &mut SealReader<'_>) -> Option<Self> {
        Some(SealedState {
            head: bytes.digest()?,
            cells: bytes.int()?,
            rewound: bytes.int()?.cast_unsigned(),
        })
    }

    fn check<'c>(&self, check: &'c mut ChecksumEncoder) -> &'c mut ChecksumEncoder {
        check.bytes(self.head.as_bytes()).int(self.cells).int(self.rewound.cast_signed())
    }
}

/// The seal of an event's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventSeal {
    /// The state after the event.
    pub(crate) state: SealedState,
    checksum: i64,
    /// The form of its content, with the salt or what an erasure has left of both.
    pub(crate) form: ContentForm,
}

impl EventSeal {
    /// The seal of the row of a number and a time.
    pub(crate) fn new(number: i64, at: i64, state: SealedState, form: ContentForm) -> Self {
        EventSeal { state, checksum: EventSeal::checksum(number, at, &state, form), form }
    }

    /// Returns the sealed state, if the seal belongs to this row.
    pub(crate) fn open(self, number: i64, at: i64) -> Result<SealedState, SessionError> {
        if EventSeal::checksum(number, at, &self.state, self.form) == self.checksum {
            return Ok(self.state);
        }
        let what = format!("event in row {number}");
        Err(SessionError::damaged(what, "checksum mismatch of its seal"))
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        // NOTE: the length tells the form: a plain seal is as version 4 of the tables wrote it.
        let mut bytes = Vec::with_capacity(SealedState::LENGTH + 8 + ContentSalt::LENGTH);
        self.state.write(&mut bytes);
        bytes.extend(self.checksum.to_le_bytes());
        match self.form {
            ContentForm::Plain => {}
            ContentForm::Salted(salt) => bytes.extend(salt.as_bytes()),
            ContentForm::Erased { content, is_salted, left } => {
                bytes.extend(content.as_bytes());
                bytes.extend(left.to_le_bytes());
                bytes.push(u8::from(is_salted));
            }
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut bytes = SealReader(bytes);
        let (state, checksum) = (SealedState::read(&mut bytes)?, bytes.int()?);
        let form = match bytes.0.len() {
            0 => ContentForm::Plain,
            ContentSalt::LENGTH => ContentForm::Salted(ContentSalt::from_bytes(bytes.take()?)),
            _ => {
                let (content, left, [is_salted]) = (bytes.digest()?, bytes.int()?, bytes.take()?);
                ContentForm::Erased { content, is_salted: is_salted != 0, left }
            }
        };
        bytes.end(EventSeal { state, checksum, form })
    }

    fn checksum(number: i64, at: i64, state: &SealedState, form: ContentForm) -> i64 {
        let mut check = ChecksumEncoder::new("stepfold_events");
        state.check(check.int(number).int(at));
        match form {
            ContentForm::Plain => {}
            ContentForm::Salted(salt) => {
                check.bytes(salt.as_bytes());
            }
            ContentForm::Erased { content, is_salted, left } => {
                check.bytes(content.as_bytes()).int(left).int(i64::from(is_salted));
            }
        }
        check.sum()
    }
}

/// The combined checksums of the rows of a session's labels, and of those of its forks, to detect missing
/// rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BranchSums {
    pub(crate) labels: i64,
    pub(crate) forks: i64,
}

/// The seal of a session's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionSeal {
    /// The state at the version of the row.
    pub(crate) state: SealedState,
    /// The digest of the history up to the oldest version that the session can go back to.
    pub(crate) anchor: Digest,
    /// The checksum of the session's lineage.
    pub(crate) lineage: i64,
    /// The combined checksums of its labels and its forks.
    pub(crate) branches: BranchSums,
    /// The checksum of the row.
    pub(crate) checksum: i64,
}

impl SessionSeal {
    /// Begins the checksum of a row with the sealed fields.
    fn begin(&self) -> ChecksumEncoder {
        let mut check = ChecksumEncoder::new("stepfold_sessions");
        self.state.check(&mut check).bytes(self.anchor.as_bytes()).int(self.lineage);
        check.int(self.branches.labels).int(self.branches.forks);
        check
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SealedState::LENGTH + Digest::LENGTH + 32);
        self.state.write(&mut bytes);
        bytes.extend(self.anchor.as_bytes());
        for sum in [self.lineage, self.branches.labels, self.branches.forks] {
            bytes.extend(sum.to_le_bytes());
        }
        bytes.extend(self.checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut bytes = SealReader(bytes);
        let state = SealedState::read(&mut bytes)?;
        let (anchor, lineage) = (bytes.digest()?, bytes.int()?);
        let branches = BranchSums { labels: bytes.int()?, forks: bytes.int()? };
        let checksum = bytes.int()?;
        bytes.end(SessionSeal { state, anchor, lineage, branches, checksum })
    }
}

/// A session's row without claim and inbox: the sealed fields.
#[derive(Clone, Debug)]
pub(crate) struct SessionRecord {
    pub(crate) number: i64,
    pub(crate) version: u64,
    pub(crate) oldest: u64,
    pub(crate) created: Timestamp,
    pub(crate) updated: Timestamp,
    pub(crate) parent: Option<(String, u64)>,
    pub(crate) life: String,
    /// The state at the version.
    pub(crate) state: SealedState,
    /// The digest of the history up to the oldest version.
    pub(crate) anchor: Digest,
    /// The checksum of the lineage.
    pub(crate) lineage: i64,
    /// The combined checksums of its labels and its forks.
    pub(crate) branches: BranchSums,
}

impl SessionRecord {
    /// A new session.
    pub(crate) fn new(
        number: i64,
        (version, oldest): (u64, u64),
        at: Timestamp,
        parent: Option<(String, u64)>,
        life: &LifeId,
        (state, anchor): (SealedState, Digest),
        lineage: &[HistorySegment],
    ) -> Self {
        let (created, updated) = (at, at);
        let (lineage, life) = (of_lineage(lineage), life.to_string());
        let branches = BranchSums::default();
        SessionRecord {
            number,
            version,
            oldest,
            created,
            updated,
            parent,
            life,
            state,
            anchor,
            lineage,
            branches,
        }
    }

    /// The seal of the session's row.
    pub(crate) fn seal(&self, key: &SessionKey) -> SessionSeal {
        let SessionRecord { state, anchor, lineage, branches, .. } = *self;
        let mut seal = SessionSeal { state, anchor, lineage, branches, checksum: 0 };
        let (parent, parent_version) = self.parent();
        let mut check = seal.begin();
        check.int(self.number).text(key.app.as_str()).text(key.user.as_str()).text(key.id.as_str());
        check.int(to_db(self.version)).int(to_db(self.oldest));
        check.text(&self.life).int(self.created.as_micros()).int(self.updated.as_micros());
        seal.checksum = check.optional_text(parent).optional_int(parent_version).sum();
        seal
    }

    /// Adds the sealed data of its row, if the seal is valid.
    pub(crate) fn opened(self, seal: SessionSeal, key: &SessionKey) -> Result<Self, SessionError> {
        let SessionSeal { state, anchor, lineage, branches, checksum } = seal;
        let record = SessionRecord { state, anchor, lineage, branches, ..self };
        compare(record.seal(key).checksum, checksum, || format!("session {key}"))?;
        Ok(record)
    }

    /// The columns of the fork's origin.
    pub(crate) fn parent(&self) -> (Option<&str>, Option<i64>) {
        let parent = self.parent.as_ref();
        (parent.map(|(id, _)| id.as_str()), parent.map(|(_, version)| to_db(*version)))
    }

    /// The seal of the row of the next event, which changes the combined checksums of the session's values by `cells`.
    pub(crate) fn seal_after(&self, event: &Event, body: &str, salt: ContentSalt, cells: i64) -> EventSeal {
        let (version, at, form) = (self.version + 1, event.at.as_micros(), ContentForm::Salted(salt));
        let content = ContentDigest::new(version, event.id.as_str(), event.at, body, form);
        let SealedState { head, cells: before, rewound } = self.state;
        let rewound = if event.actions.rewound_to().is_some() { version } else { rewound };
        // NOTE: combined by exclusive or, so that an append updates the sum from the rows that it changes and reads no
        // others.
        let state = SealedState { head: content.after(head), cells: before ^ cells, rewound };
        EventSeal::new(row_number(self.number, version), at, state, form)
    }

    /// Rejects a version that the session cannot go back to.
    pub(crate) fn check_version(&self, key: &SessionKey, version: u64) -> Result<(), SessionError> {
        if (self.oldest..=self.version).contains(&version) {
            return Ok(());
        }
        Err(SessionError::no_such_version(key, version, self.oldest, self.version))
    }

    /// The record after retention up to a version, whose digest is kept.
    pub(crate) fn pruned(self, oldest: u64, anchor: Digest) -> Self {
        SessionRecord { oldest, anchor, ..self }
    }

    /// Updates the combined checksum of labels.
    pub(crate) fn with_labels(mut self, changed: i64) -> Self {
        self.branches.labels ^= changed;
        self
    }

    /// Updates the combined checksum of forks.
    pub(crate) fn with_forks(mut self, changed: i64) -> Self {
        self.branches.forks ^= changed;
        self
    }

    /// The session without values and events.
    pub(crate) fn session(
        self,
        key: SessionKey,
        visible: VisibleVersions,
        (claim, inbox): (Option<Claim>, u64),
        scopes: ScopeVersions,
    ) -> Result<Session, SessionError> {
        let parent = self
            .parent
            .map(|(id, version)| Ok::<_, SessionError>(ForkOrigin { id: SessionId::new(id)?, version }));
        Ok(Session {
            key,
            life: LifeId::new(self.life)?,
            version: self.version,
            newest: self.version,
            created: self.created,
            updated: self.updated,
            claim,
            inbox,
            parent: parent.transpose()?,
            oldest: self.oldest,
            visible,
            scopes,
            head: Some(self.state.head),
            values: None,
            events: Vec::new(),
        })
    }
}

/// The seal of a shared scope's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScopeSeal {
    /// The checksums of the rows of all keys, each in exclusive or with the others.
    pub(crate) cells: i64,
    checksum: i64,
}

impl ScopeSeal {
    /// The seal of the row of a scope, with its version and the one up to which removals are forgotten.
    pub(crate) fn new(scope: i64, app: &str, user: &str, (version, known): (u64, u64), cells: i64) -> Self {
        let mut check = ChecksumEncoder::new("stepfold_scopes");
        check.int(scope).text(app).text(user).int(to_db(version)).int(to_db(known)).int(cells);
        ScopeSeal { cells, checksum: check.sum() }
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.cells.to_le_bytes().to_vec();
        bytes.extend(self.checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut bytes = SealReader(bytes);
        let seal = ScopeSeal { cells: bytes.int()?, checksum: bytes.int()? };
        bytes.end(seal)
    }
}

/// The name of a shared scope in errors.
pub(crate) fn scope_name(app: &str, user: &str) -> String {
    if user.is_empty() { format!("scope of app {app}") } else { format!("scope of user {app}/{user}") }
}

/// The checksum of the row of a shared key, with the version of its value, and of the last change that was not one at the
/// ends of a list.
pub(crate) fn of_shared(
    scope: i64,
    key: &str,
    (version, changed): (i64, i64),
    schema: i64,
    value: Option<&str>,
    list: Option<(i64, i64)>,
) -> i64 {
    let mut check = ChecksumEncoder::new("stepfold_shared");
    check.int(scope).text(key).int(version).int(changed).int(schema).optional_text(value);
    check.optional_int(list.map(|(start, _)| start)).optional_int(list.map(|(_, length)| length)).sum()
}

/// The checksum of the row of a shared list's item, with its index and version.
pub(crate) fn of_item(scope: i64, key: &str, (place, version): (i64, i64), item: &str) -> i64 {
    ChecksumEncoder::new("stepfold_shared_items")
        .int(scope)
        .text(key)
        .int(place)
        .int(version)
        .text(item)
        .sum()
}

/// The number of an event's row, covered by its seal. The bound of a range may be higher than any existing
/// version.
pub(crate) fn row_number(stream: i64, version: u64) -> i64 {
    (stream << VERSION_BITS) | version.min(MAX_VERSION).cast_signed()
}

/// The version in a row's number.
#[cfg(feature = "sqlite")]
pub(crate) fn version_of(number: i64) -> u64 {
    number.cast_unsigned() & MAX_VERSION
}

/// The stream in a row's number.
#[cfg(feature = "sqlite")]
pub(crate) fn stream_of(number: i64) -> i64 {
    number >> VERSION_BITS
}

/// The checksum of the row of a schema.
pub(crate) fn of_schema(number: i64, text: &str) -> i64 {
    ChecksumEncoder::new("stepfold_schemas").int(number).text(text).sum()
}

/// The checksum of a lineage, newest segment first.
pub(crate) fn of_lineage(lineage: &[HistorySegment]) -> i64 {
    let mut check = ChecksumEncoder::new("stepfold_lineage");
    for segment in lineage {
        check.int(segment.stream).int(to_db(segment.after)).int(to_db(segment.upto));
    }
    check.sum()
}

/// The checksum of the row of a label.
pub(crate) fn of_label(number: i64, label: &str, version: i64) -> i64 {
    ChecksumEncoder::new("stepfold_labels").int(number).text(label).int(version).sum()
}

/// The checksum of the row of a fork, including the origin in the fork's own row.
pub(crate) fn of_fork(parent: i64, number: i64, id: &str, version: i64, created: i64) -> i64 {
    let mut check = ChecksumEncoder::new("stepfold_forks");
    check.int(parent).int(number).text(id).int(version).int(created).sum()
}

/// Rejects a checksum that differs from the stored one.
pub(crate) fn compare(found: i64, stored: i64, what: impl FnOnce() -> String) -> Result<(), SessionError> {
    if found == stored {
        return Ok(());
    }
    Err(SessionError::damaged(what(), "checksum mismatch of its row"))
}

/// Reads the fields of a stored seal, from its first byte on.
struct SealReader<'a>(&'a [u8]);

impl SealReader<'_> {
    fn digest(&mut self) -> Option<Digest> {
        self.take().map(Digest::from_bytes)
    }

    fn int(&mut self) -> Option<i64> {
        self.take().map(i64::from_le_bytes)
    }

    fn take<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn end<T>(self, read: T) -> Option<T> {
        self.0.is_empty().then_some(read)
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    #[test]
    fn a_row_number_holds_stream_and_version() {
        for (stream, version) in [(1, 0), (1, 1), (7, MAX_VERSION), (i64::from(i32::MAX), 3)] {
            let number = row_number(stream, version);
            assert_eq!((number >> VERSION_BITS, version_of(number)), (stream, version));
        }
        assert_eq!(row_number(2, u64::MAX), row_number(3, 0) - 1);
    }
}
