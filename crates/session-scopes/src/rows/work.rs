//! The claim and inbox data in database rows, each with a checksum.

use super::lineage::{from_db, to_db};
use super::seal::compare;
use super::values::read_json;
use crate::digest::ChecksumEncoder;
use crate::error::SessionError;
use crate::ids::{IdempotencyKey, SessionKey};
use crate::keys::sealer::{ContentKey, Place};
use crate::store::{ClaimFence, InboxEntry, PreparedInput};
use crate::time::Timestamp;

/// The claim and inbox data of a session's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkState {
    pub(crate) fence: ClaimFence,
    /// The position of the newest waiting entry in the inbox; 0 if there is none.
    pub(crate) inbox: u64,
    /// The newest position that was ever given.
    pub(crate) last: u64,
    /// The checksums of the waiting entries, combined by exclusive or, to detect missing ones.
    pub(crate) waiting: i64,
}

impl WorkState {
    /// The claim and inbox of a new session.
    pub(crate) fn new(number: i64) -> Self {
        WorkState { fence: ClaimFence::for_new_session(number), inbox: 0, last: 0, waiting: 0 }
    }

    /// Its checksum, in the session with this number.
    pub(crate) fn checksum(&self, number: i64) -> i64 {
        let (owner, expires) = self.fence.columns();
        // NOTE: claim and inbox change without an event, so the session's seal does not cover them; they have this checksum
        // of their own (docs/decisions/sessions.md).
        let mut check = ChecksumEncoder::new("work of stepfold_sessions");
        check.int(number).int(self.fence.claims(number)).optional_text(owner).optional_int(expires);
        check.int(to_db(self.inbox)).int(to_db(self.last)).int(self.waiting).sum()
    }

    /// Rejects data that differs from what was written.
    pub(crate) fn check(&self, number: i64, stored: i64, key: &SessionKey) -> Result<(), SessionError> {
        compare(self.checksum(number), stored, || format!("claim or inbox of session {key}"))
    }

    /// Rejects entries that differ from the waiting ones, by their combined checksums.
    pub(crate) fn check_waiting(&self, sum: i64) -> Result<(), SessionError> {
        if sum == self.waiting {
            return Ok(());
        }
        let why = "entries differ from the accepted ones: one is missing or surplus";
        Err(SessionError::damaged("inbox", why))
    }
}

/// The row of an entry that waits in an inbox.
pub(crate) struct InputRow {
    pub(crate) position: i64,
    pub(crate) checksum: i64,
    pub(crate) key: String,
    pub(crate) digest: Vec<u8>,
    pub(crate) kind: String,
    /// None if it was not read.
    pub(crate) body: Option<String>,
    pub(crate) at: i64,
}

impl InputRow {
    /// The row of an input at a position of the inbox of the session with this number.
    pub(crate) fn new(
        number: i64,
        position: u64,
        prepared: &PreparedInput,
        content: ContentKey<'_>,
    ) -> Result<Self, SessionError> {
        let (input, position) = (&prepared.input, to_db(position));
        let place = Place::input(number, input.idempotency_key.as_str());
        let digest = prepared.digest.to_bytes();
        let mut row = InputRow {
            position,
            checksum: 0,
            key: input.idempotency_key.to_string(),
            digest: input_code(content, digest)?.unwrap_or(digest).to_vec(),
            kind: input.kind.as_str().to_owned(),
            body: Some(content.seal(place, &[position], prepared.body.clone())?),
            at: input.at.as_micros(),
        };
        row.checksum = row.sum(number);
        Ok(row)
    }

    fn sum(&self, number: i64) -> i64 {
        let InputRow { position, checksum: _, key, digest, kind, body, at } = self;
        let body = body.as_deref().unwrap_or_default();
        let mut check = ChecksumEncoder::new("stepfold_inbox");
        check.int(number).int(*position).text(key).bytes(digest).text(kind).text(body).int(*at).sum()
    }

    /// Rejects a row that differs from what was written. One without its body is verified when that is read, before it is
    /// taken.
    pub(crate) fn check(&self, number: i64) -> Result<(), SessionError> {
        if self.body.is_none() {
            return Ok(());
        }
        compare(self.sum(number), self.checksum, || format!("inbox entry {}", self.position))
    }

    /// The entry of the session with this number, with its body if that has at most `most` bytes.
    pub(crate) fn entry(
        &self,
        number: i64,
        content: ContentKey<'_>,
        most: usize,
    ) -> Result<InboxEntry, SessionError> {
        let at = Timestamp::from_micros(self.at);
        let open = |body| content.open(Place::input(number, &self.key), body);
        let body = self.body.as_deref().map(open).transpose()?.filter(|body| body.len() <= most);
        inbox_entry(self.position, &self.kind, &self.key, body.as_deref(), at)
    }

    /// The data that is kept after it is taken.
    pub(crate) fn taken(&self, number: i64) -> TakenRow<'_> {
        let InputRow { position, key, digest, .. } = self;
        let (position, checksum) = (*position, of_taken(number, key, *position, digest));
        TakenRow { position, checksum, key, digest }
    }
}

/// The row of an entry that was taken from an inbox: its idempotency key stays known.
pub(crate) struct TakenRow<'a> {
    pub(crate) position: i64,
    pub(crate) checksum: i64,
    pub(crate) key: &'a str,
    pub(crate) digest: &'a [u8],
}

impl TakenRow<'_> {
    /// The row of an entry whose content was erased.
    pub(crate) fn without_digest(number: i64, key: &str, position: i64) -> TakenRow<'_> {
        TakenRow { position, checksum: of_taken(number, key, position, &[]), key, digest: &[] }
    }

    /// Rejects a row that differs from what was written.
    pub(crate) fn check(&self, number: i64) -> Result<(), SessionError> {
        let sum = of_taken(number, self.key, self.position, self.digest);
        compare(sum, self.checksum, || format!("taken inbox entry {}", self.position))
    }
}

fn of_taken(number: i64, key: &str, position: i64, digest: &[u8]) -> i64 {
    ChecksumEncoder::new("stepfold_taken").int(number).text(key).int(position).bytes(digest).sum()
}

/// The code in place of the digest of an input, in a store with a ring.
fn input_code(content: ContentKey<'_>, digest: [u8; 16]) -> Result<Option<[u8; 16]>, SessionError> {
    content.code("input", &digest)
}

/// The stored bytes of a body of so many bytes, at most.
pub(crate) fn stored_bytes(content: ContentKey<'_>, bytes: usize) -> usize {
    // NOTE: base64 has four characters for three bytes; a seal is less than 100 bytes longer than its text.
    if content.is_sealing() { bytes.saturating_add(bytes / 3).saturating_add(128) } else { bytes }
}

/// The position of an entry that was accepted before, if it had this content.
pub(crate) fn repeated(
    prepared: &PreparedInput,
    content: ContentKey<'_>,
    digest: &[u8],
    position: i64,
) -> Result<u64, SessionError> {
    let given = prepared.digest.to_bytes();
    // NOTE: without a digest, what was accepted is erased: it must not be accepted again.
    if digest.is_empty() || digest == given || input_code(content, given)?.is_some_and(|code| code == digest)
    {
        return Ok(from_db(position));
    }
    Err(SessionError::input_reused(&prepared.input.key, &prepared.input.idempotency_key))
}

/// An entry of an inbox, from its columns, without its body if that was not read.
fn inbox_entry(
    position: i64,
    kind: &str,
    key: &str,
    body: Option<&str>,
    at: Timestamp,
) -> Result<InboxEntry, SessionError> {
    let (position, kind, key) = (from_db(position), kind.parse()?, IdempotencyKey::new(key)?);
    Ok(match body {
        Some(body) => InboxEntry::new(position, kind, key, read_json("inbox entry", body)?, at),
        None => InboxEntry::without_body(position, kind, key, at),
    })
}
