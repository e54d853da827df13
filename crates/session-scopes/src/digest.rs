//! Digests, which detect damage of stored data.
//!
//! The events of a session form a chain: the digest of each covers its content and the digest of the previous
//! event. So the digest of the newest one, the *head*, covers the whole history. Other rows (values, session
//! rows) have checksums, which detect damage and do not protect against forgery.
//!
//! An event's content has a digest of its own, over a random salt and the content. So both can be erased: the digest
//! stays, the chain holds, and the content cannot be found by trying. Events of before version 5 of the tables have no salt;
//! their digests cover the content itself.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::str::FromStr;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use blake3::Hasher;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use xxhash_rust::xxh3::Xxh3;

use crate::error::SessionError;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::ids::SessionKey;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::keys::sealer::StoredBody;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::time::Timestamp;

/// The digest of a session's history up to an event (BLAKE3, 32 bytes); in text, 64 hexadecimal digits.
///
/// It covers the session's key and creation time, and of each event its version, id, time and content with its
/// [salt](ContentSalt). Equal histories with the same key and the same salts have the same digest in every store that keeps
/// digests. An erasure of content leaves it as it is.
///
/// # Examples
/// ```
/// use stepfold_session_scopes::Digest;
///
/// let text = "00000000000000000000000000000000000000000000000000000000000000ff";
/// let digest: Digest = text.parse()?;
/// assert_eq!(digest.to_string(), text);
/// assert!("ff".parse::<Digest>().is_err());
/// # Ok::<(), stepfold_session_scopes::SessionError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; Digest::LENGTH]);

impl Digest {
    /// The number of bytes.
    pub const LENGTH: usize = 32;

    /// The digest with these bytes.
    pub fn from_bytes(bytes: [u8; Digest::LENGTH]) -> Self {
        Digest(bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; Digest::LENGTH] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Digest {
    type Err = SessionError;

    fn from_str(text: &str) -> Result<Self, SessionError> {
        blake3::Hash::from_hex(text).map(|hash| Digest(hash.into())).map_err(|_| SessionError::InvalidId {
            what: "digest",
            id: text.to_owned(),
            reason: "expected 64 hexadecimal digits",
        })
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The salt of an event's content: 16 random bytes, which the digest of the content covers too. A store keeps it beside the
/// content, and erases it with that: a digest without its salt tells nothing about the content.
///
/// # Examples
/// ```
/// use stepfold_session_scopes::ContentSalt;
///
/// assert_ne!(ContentSalt::random(), ContentSalt::random());
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ContentSalt([u8; ContentSalt::LENGTH]);

impl ContentSalt {
    /// The number of bytes.
    pub const LENGTH: usize = 16;

    /// A random one, for stores.
    pub fn random() -> Self {
        // NOTE: `RandomState` is keyed by the system's randomness once for each thread, and has another key each time.
        let word = || RandomState::new().hash_one(()).to_le_bytes();
        let mut bytes = [0; ContentSalt::LENGTH];
        bytes[..8].copy_from_slice(&word());
        bytes[8..].copy_from_slice(&word());
        ContentSalt(bytes)
    }

    /// The salt with these bytes, which must be random outside of tests.
    pub fn from_bytes(bytes: [u8; ContentSalt::LENGTH]) -> Self {
        ContentSalt(bytes)
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn as_bytes(&self) -> &[u8; ContentSalt::LENGTH] {
        &self.0
    }
}

impl fmt::Debug for ContentSalt {
    /// Never its bytes: logs outlive what is erased.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentSalt").finish_non_exhaustive()
    }
}

/// The start of a session's chain, before its first event.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn genesis(key: &SessionKey, created: Timestamp) -> Digest {
    let mut fields = DigestEncoder::of("stepfold session 1");
    fields.text(key.app.as_str()).text(key.user.as_str()).text(key.id.as_str()).int(created.as_micros());
    fields.digest()
}

/// The form of an event's content, by its row: what the digest of the event is computed from.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentForm {
    /// Of version 4 of the tables and before: the digest covers the body.
    Plain,
    /// The digest covers a digest of this salt and the body.
    Salted(ContentSalt),
    /// The content was erased, with its salt if it had one.
    Erased {
        /// The digest of both; without a salt, that of the event as the chain has it.
        content: Digest,
        is_salted: bool,
        /// The checksum of the body that is left.
        left: i64,
    },
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl ContentForm {
    /// The form once this content of an event is erased, and this body is left.
    pub(crate) fn erased(self, (version, id, at): (u64, &str, Timestamp), body: &str, left: &str) -> Self {
        let left = left_sum(left);
        match self {
            // NOTE: without a salt the digest that stays could be found by trying, which docs/decisions/sessions.md says.
            ContentForm::Plain => {
                let content = ContentDigest::new(version, id, at, body, self).own;
                ContentForm::Erased { content, is_salted: false, left }
            }
            ContentForm::Salted(salt) => {
                let content = content_digest(salt, &StoredBody::parse(body));
                ContentForm::Erased { content, is_salted: true, left }
            }
            ContentForm::Erased { content, is_salted, .. } => {
                ContentForm::Erased { content, is_salted, left }
            }
        }
    }
}

/// The digest of a salt and a body. That of a sealed one is over its bytes, which are fewer than its characters.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn content_digest(salt: ContentSalt, body: &StoredBody<'_>) -> Digest {
    if let Some((sealed, clear)) = body.digested_bytes() {
        let mut fields = DigestEncoder::of("stepfold content 3");
        fields.bytes(salt.as_bytes()).bytes(sealed).bytes(clear);
        return fields.digest();
    }
    let mut fields = DigestEncoder::of("stepfold content 2");
    fields.bytes(salt.as_bytes()).text(body.text());
    fields.digest()
}

/// The checksum of the body that an erasure has left.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn left_sum(left: &str) -> i64 {
    ChecksumEncoder::new("left of an event").text(left).sum()
}

/// The digest of an event's content alone. With the digest before, it gives that of the history.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentDigest {
    own: Digest,
    /// The digests of a history before and after it.
    expected: Option<(Digest, Digest)>,
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl ContentDigest {
    pub(crate) fn new(version: u64, id: &str, at: Timestamp, body: &str, form: ContentForm) -> Self {
        ContentDigest::of((version, id, at), &StoredBody::parse(body), form)
    }

    /// The digest of the event of a version, an id and a time.
    pub(crate) fn of(
        (version, id, at): (u64, &str, Timestamp),
        body: &StoredBody<'_>,
        form: ContentForm,
    ) -> Self {
        let header = |kind| {
            let mut fields = DigestEncoder::of(kind);
            fields.int(version.cast_signed()).text(id).int(at.as_micros());
            fields
        };
        let own = match form {
            ContentForm::Plain => {
                let mut fields = header("stepfold event 1");
                fields.text(body.text());
                fields.digest()
            }
            ContentForm::Salted(salt) => {
                let mut fields = header("stepfold event 2");
                fields.bytes(content_digest(salt, body).as_bytes());
                fields.digest()
            }
            // NOTE: the chain does not cover what an erasure has left, so damage to that becomes a mismatch here.
            ContentForm::Erased { left, .. } if left != left_sum(body.text()) => header("damaged").digest(),
            ContentForm::Erased { content, is_salted: false, .. } => content,
            ContentForm::Erased { content, .. } => {
                let mut fields = header("stepfold event 2");
                fields.bytes(content.as_bytes());
                fields.digest()
            }
        };
        ContentDigest { own, expected: None }
    }

    /// The same, with the digest of a history already computed: a long history is checked by one thread, and opened by
    /// several.
    #[cfg(feature = "sqlite")]
    pub(crate) fn expecting(self, before: Digest) -> Self {
        ContentDigest { expected: Some((before, self.after(before))), ..self }
    }

    /// The digest of a history with this event at its end.
    pub(crate) fn after(self, before: Digest) -> Digest {
        if let Some((expected, after)) = self.expected
            && expected == before
        {
            return after;
        }
        // NOTE: two digests of fixed length need no field encoding, and one block of BLAKE3 holds both.
        let mut both = [0; 2 * Digest::LENGTH];
        both[..Digest::LENGTH].copy_from_slice(&before.0);
        both[Digest::LENGTH..].copy_from_slice(&self.own.0);
        Digest(blake3::hash(&both).into())
    }
}

/// A destination of fields.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) trait FieldSink {
    fn write(&mut self, bytes: &[u8]);
}

/// Fields that are hashed at once, if one chunk of BLAKE3 has room for them, as it has for most events.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) struct BufferedHasher {
    buffer: [u8; blake3::CHUNK_LEN],
    filled: usize,
    /// Of more than the buffer has room for.
    hasher: Option<Box<Hasher>>,
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl BufferedHasher {
    const fn new() -> Self {
        BufferedHasher { buffer: [0; blake3::CHUNK_LEN], filled: 0, hasher: None }
    }

    fn hash(mut self) -> blake3::Hash {
        let rest = &self.buffer[..self.filled];
        match &mut self.hasher {
            Some(hasher) => hasher.update(rest).finalize(),
            None => blake3::hash(rest),
        }
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl FieldSink for BufferedHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(free) = self.buffer[self.filled..].get_mut(..bytes.len()) {
            free.copy_from_slice(bytes);
            self.filled += bytes.len();
            return;
        }
        let hasher = self.hasher.get_or_insert_with(Box::default);
        hasher.update(&self.buffer[..self.filled]).update(bytes);
        self.filled = 0;
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl FieldSink for Xxh3 {
    fn write(&mut self, bytes: &[u8]) {
        self.update(bytes);
    }
}

/// Ordered fields with unambiguous encoding: each has its type and length.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) struct FieldEncoder<S>(S);

/// The checksum of fields (XXH3). A row has several, and BLAKE3 takes ten times as long for so few bytes.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) type ChecksumEncoder = FieldEncoder<Xxh3>;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl ChecksumEncoder {
    /// Begins with the kind of the row, so that rows of different tables differ.
    pub(crate) fn new(of: &str) -> Self {
        let mut check = FieldEncoder(Xxh3::new());
        check.text(of);
        check
    }

    /// The checksum, as databases keep numbers.
    pub(crate) fn sum(&self) -> i64 {
        self.0.digest().cast_signed()
    }
}

/// The digest of fields (BLAKE3).
#[cfg(any(feature = "postgres", feature = "sqlite"))]
type DigestEncoder = FieldEncoder<BufferedHasher>;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl DigestEncoder {
    /// Begins with the kind.
    fn of(kind: &str) -> Self {
        let mut fields = FieldEncoder(BufferedHasher::new());
        fields.text(kind);
        fields
    }

    fn digest(self) -> Digest {
        Digest(self.0.hash().into())
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl<S: FieldSink> FieldEncoder<S> {
    pub(crate) fn int(&mut self, number: i64) -> &mut Self {
        // NOTE: each field begins with its kind and, for bytes, its length, so that `ab, c` and `a, bc` differ. The
        // encoding is part of every stored checksum and never changes.
        let mut field = [1; 9];
        field[1..].copy_from_slice(&number.to_le_bytes());
        self.0.write(&field);
        self
    }

    pub(crate) fn optional_int(&mut self, number: Option<i64>) -> &mut Self {
        match number {
            Some(number) => self.int(number),
            None => self.none(),
        }
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    pub(crate) fn optional_text(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.text(text),
            None => self.none(),
        }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let mut field = [2; 9];
        field[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.0.write(&field);
        self.0.write(bytes);
        self
    }

    fn none(&mut self) -> &mut Self {
        self.0.write(&[0]);
        self
    }
}

#[cfg(all(test, any(feature = "postgres", feature = "sqlite")))]
mod tests {
    use super::*;

    fn sum(fill: impl Fn(&mut ChecksumEncoder)) -> i64 {
        let mut check = ChecksumEncoder::new("test");
        fill(&mut check);
        check.sum()
    }

    #[test]
    fn fields_that_run_together_give_different_sums() {
        let sums = [
            sum(|check| _ = check.text("ab").text("c")),
            sum(|check| _ = check.text("a").text("bc")),
            sum(|check| _ = check.text("abc")),
            sum(|check| _ = check.text("abc").optional_text(None)),
            sum(|check| _ = check.text("abc").optional_int(None).optional_int(None)),
            sum(|check| _ = check.text("abc").int(0)),
            sum(|check| _ = check.text("abc").text("")),
        ];
        for (place, sum) in sums.iter().enumerate() {
            assert!(!sums[..place].contains(sum), "{place}");
        }
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_digest_that_was_computed_before_is_that_of_its_history_only() {
        let digest = |byte| Digest::from_bytes([byte; Digest::LENGTH]);
        let content = ContentDigest::new(1, "e1", Timestamp::from_micros(5), "{}", ContentForm::Plain);
        for before in [digest(1), digest(2)] {
            assert_eq!(content.expecting(digest(1)).after(before), content.after(before));
        }
    }

    /// Fields are hashed alike however they fit into the buffer.
    #[test]
    fn a_digest_does_not_depend_on_the_buffer() {
        for length in (0..300).chain([1_000, 1_024, 5_000]) {
            let (id, body) = ("i".repeat(length % 130), "b".repeat(length));
            let mut bytes = Vec::new();
            let mut field = |kind: u8, number: u64, text: &str| {
                bytes.push(kind);
                bytes.extend(number.to_le_bytes());
                bytes.extend(text.as_bytes());
            };
            field(2, 16, "stepfold event 1");
            field(1, 7, "");
            field(2, id.len() as u64, &id);
            field(1, 5, "");
            field(2, body.len() as u64, &body);
            let content = ContentDigest::new(7, &id, Timestamp::from_micros(5), &body, ContentForm::Plain);
            assert_eq!(content.own.as_bytes(), blake3::hash(&bytes).as_bytes(), "{length}");
        }
    }

    #[test]
    fn a_chain_covers_key_version_id_time_content_and_order() {
        let key = |id| SessionKey::new("app", "user", id).unwrap();
        let at = Timestamp::from_micros;
        let one = genesis(&key("s"), at(1));
        assert_ne!(one, genesis(&key("t"), at(1)));
        assert_ne!(one, genesis(&key("s"), at(2)));
        let salt = |byte| ContentForm::Salted(ContentSalt([byte; ContentSalt::LENGTH]));
        for form in [ContentForm::Plain, salt(1)] {
            let content = ContentDigest::new(1, "e1", at(5), "{}", form);
            for other in [
                ContentDigest::new(2, "e1", at(5), "{}", form),
                ContentDigest::new(1, "e2", at(5), "{}", form),
                ContentDigest::new(1, "e1", at(6), "{}", form),
                ContentDigest::new(1, "e1", at(5), "{ }", form),
                ContentDigest::new(1, "e1", at(5), "{}", salt(2)),
            ] {
                assert_ne!(content.after(one), other.after(one));
            }
            let second = ContentDigest::new(2, "e2", at(6), "{}", form);
            assert_ne!(second.after(content.after(one)), content.after(second.after(one)));
        }
    }

    /// The chain holds without the content and its salt, and damage to what is left is found.
    #[test]
    fn an_erased_event_keeps_its_digest() {
        let at = Timestamp::from_micros(5);
        let of = |body: &str, form| ContentDigest::new(1, "e1", at, body, form);
        for form in [ContentForm::Plain, ContentForm::Salted(ContentSalt::random())] {
            let erased = form.erased((1, "e1", at), "phone 555", "{}");
            assert_eq!(of("{}", erased), of("phone 555", form));
            assert_ne!(of("{ }", erased), of("phone 555", form));
            let again = erased.erased((1, "e1", at), "{}", "[]");
            assert_eq!(of("[]", again), of("phone 555", form));
        }
    }
}
