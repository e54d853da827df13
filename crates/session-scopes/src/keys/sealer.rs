//! Sealed texts: `~2`, then in base64 the number of the data key, the nonce and the sealed bytes; an event's is followed by
//! `.` and the digests of its tags, which stay readable.
//!
//! No JSON begins with `~`, so a sealed text stands in the column of the text that it replaces, and what was stored before
//! the store had a ring is read as it is.

use std::borrow::Cow;
use std::sync::Arc;

use aes_gcm_siv::aead::AeadInOut as _;
use aes_gcm_siv::{Aes256GcmSiv, KeyInit as _, Tag};
use base64_simd::STANDARD_NO_PAD;

use super::ring::{DataKey, KeyOwner, KeyRing, KeyRingError};
use crate::error::SessionError;
use crate::event::{Event, TAG_BYTES, TagDigest};
use crate::ids::{AppId, SessionKey, UserId};
use crate::store::{EraseData, EraseTarget, ErasedData};

/// The beginning of each sealed text.
const MARK: char = '~';
/// The mark with the number of the form. The digest of an event of the first form covers its text, that of the second one
/// its bytes; both are opened alike.
const FORM: &str = "~2";
const TEXT_FORM: &str = "~1";
const NONCE: usize = 12;
/// The bytes by which a sealed text is longer.
const TAG: usize = 16;
/// The bytes before the sealed ones: the number of the key, and the nonce.
const HEAD: usize = DataKey::NUMBER + NONCE;
/// The kind of places of events.
const EVENT: &str = "event";

/// Whether a stored text is sealed.
pub(crate) fn is_sealed(text: &str) -> bool {
    text.starts_with(MARK)
}

/// The place of a text: a text that is moved to another one cannot be opened. Forks and rewinds copy values, so a place has
/// neither a session nor a version.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    kind: &'static str,
    name: &'a str,
    /// The number of the session, of what is never copied to another.
    session: i64,
}

impl<'a> Place<'a> {
    /// The body of an event.
    pub(crate) fn event(id: &'a str) -> Self {
        Place { kind: EVENT, name: id, session: 0 }
    }

    /// The value of a key, of a session or a user.
    pub(crate) fn value(key: &'a str) -> Self {
        Place { kind: "value", name: key, session: 0 }
    }

    /// An item of the list of a key.
    pub(crate) fn item(key: &'a str) -> Self {
        Place { kind: "item", name: key, session: 0 }
    }

    /// The body of an entry of the inbox of the session with this number, by its idempotency key.
    pub(crate) fn input(session: i64, key: &'a str) -> Self {
        Place { kind: "input", name: key, session }
    }
}

/// Seals and opens the content of one user.
pub(crate) struct Sealer {
    owner: KeyOwner,
    /// None for a user without one: then what is sealed stays so.
    key: Option<UserKey>,
}

struct UserKey {
    number: [u8; DataKey::NUMBER],
    cipher: Aes256GcmSiv,
    secret: [u8; DataKey::SECRET],
}

impl Sealer {
    pub(crate) fn new(owner: KeyOwner, key: Option<&DataKey>) -> Self {
        let key = key.map(|key| UserKey {
            number: key.number,
            cipher: Aes256GcmSiv::new(&key.secret.into()),
            secret: key.secret,
        });
        Sealer { owner, key }
    }

    fn key(&self) -> Result<&UserKey, SessionError> {
        self.key.as_ref().ok_or_else(|| self.destroyed())
    }

    fn destroyed(&self) -> SessionError {
        let why = "its key was destroyed, as by an erasure of the user";
        SessionError::Sealed { what: format!("content of {}", self.owner), why }
    }

    /// Seals a text. `turn` are the numbers of its row and version: they make the nonces of equal texts differ.
    fn seal(&self, place: Place<'_>, turn: &[i64], clear: &[u8], text: &str) -> Result<String, SessionError> {
        let UserKey { number, cipher, .. } = self.key()?;
        let bound = self.bound(place, clear);
        let mut nonce = blake3::Hasher::new();
        nonce.update(&bound);
        for part in turn {
            nonce.update(&part.to_le_bytes());
        }
        let mut bytes = Vec::with_capacity(HEAD + text.len() + TAG);
        bytes.extend(number);
        bytes.extend(&nonce.finalize().as_bytes()[..NONCE]);
        bytes.extend(text.as_bytes());
        let (head, text) = bytes.split_at_mut(HEAD);
        let tag = cipher.encrypt_inout_detached(&nonce_of(head).into(), &bound, text.into());
        let too_large = |_| SessionError::Store { what: "seal content", source: "it is too large".into() };
        bytes.extend(tag.map_err(too_large)?);
        let mut sealed = String::with_capacity(FORM.len() + (bytes.len() + clear.len() + 4) / 3 * 4);
        sealed.push_str(FORM);
        STANDARD_NO_PAD.encode_append(&bytes, &mut sealed);
        if !clear.is_empty() {
            sealed.push('.');
            STANDARD_NO_PAD.encode_append(clear, &mut sealed);
        }
        Ok(sealed)
    }

    /// Opens the parts of a text; `None` if it has another form.
    fn open(&self, place: Place<'_>, parts: Option<SealedParts>) -> Result<String, SessionError> {
        let damaged =
            || SessionError::damaged(format!("{} `{}`", place.kind, place.name), "its seal does not fit");
        let SealedParts { mut bytes, clear } = parts.ok_or_else(damaged)?;
        let UserKey { number, cipher, .. } = self.key()?;
        let end = bytes.len().checked_sub(TAG).filter(|end| *end >= HEAD).ok_or_else(damaged)?;
        if !bytes.starts_with(number) {
            return Err(self.destroyed());
        }
        let mut tag = Tag::default();
        tag.copy_from_slice(&bytes[end..]);
        bytes.truncate(end);
        // NOTE: opened in place: an event is copied once, to leave out its head.
        let (head, sealed) = bytes.split_at_mut(HEAD);
        let bound = self.bound(place, &clear);
        let opened = cipher.decrypt_inout_detached(&nonce_of(head).into(), &bound, sealed.into(), &tag);
        opened.map_err(|_| damaged())?;
        bytes.drain(..HEAD);
        String::from_utf8(bytes).map_err(|_| damaged())
    }

    /// The bytes that a seal binds its text to, with those that stay readable beside it.
    fn bound(&self, place: Place<'_>, clear: &[u8]) -> Vec<u8> {
        let fields = [self.owner.app.as_str(), self.owner.user.as_str(), place.kind, place.name];
        let mut bound = Vec::with_capacity(256);
        bound.extend(place.session.to_le_bytes());
        for field in fields.map(str::as_bytes).into_iter().chain([clear]) {
            bound.extend((field.len() as u64).to_le_bytes());
            bound.extend(field);
        }
        bound
    }
}

/// The nonce in the bytes of a sealed text, after the number of the key.
fn nonce_of(bytes: &[u8]) -> [u8; NONCE] {
    let mut nonce = [0; NONCE];
    nonce.copy_from_slice(&bytes[DataKey::NUMBER..HEAD]);
    nonce
}

/// The sealed part of a text, and the one that stays readable.
fn split(text: &str) -> (&[u8], &[u8]) {
    let text = text.as_bytes();
    match memchr::memchr(b'.', text) {
        Some(end) => (&text[..end], &text[end + 1..]),
        None => (text, &[]),
    }
}

fn decoded_clear(clear: &[u8]) -> Option<Vec<u8>> {
    if clear.is_empty() { Some(Vec::new()) } else { STANDARD_NO_PAD.decode_to_vec(clear).ok() }
}

/// The bytes of a sealed text, and those that stay readable beside it.
struct SealedParts {
    bytes: Vec<u8>,
    clear: Vec<u8>,
}

impl SealedParts {
    fn of(text: &str) -> Option<Self> {
        let text = text.strip_prefix(FORM).or_else(|| text.strip_prefix(TEXT_FORM))?;
        let (sealed, clear) = split(text);
        Some(SealedParts { bytes: STANDARD_NO_PAD.decode_to_vec(sealed).ok()?, clear: decoded_clear(clear)? })
    }
}

/// The body of an event as it is stored. It is decoded once, for its digest and to be opened.
pub(crate) struct StoredBody<'a> {
    text: &'a str,
    /// `None` if it is not sealed, or damaged.
    sealed: Option<SealedParts>,
}

impl<'a> StoredBody<'a> {
    pub(crate) fn parse(text: &'a str) -> Self {
        StoredBody { text, sealed: SealedParts::of(text) }
    }

    pub(crate) fn text(&self) -> &'a str {
        self.text
    }

    /// The bytes that the digest of a sealed body covers; `None` if it covers the text.
    pub(crate) fn digested_bytes(&self) -> Option<(&[u8], &[u8])> {
        let sealed = self.sealed.as_ref().filter(|_| self.text.starts_with(FORM))?;
        Some((&sealed.bytes, &sealed.clear))
    }
}

/// The digests of the tags of a sealed event.
pub(crate) fn sealed_tags(text: &str) -> Vec<TagDigest> {
    let clear = decoded_clear(split(text).1).unwrap_or_default();
    clear.as_chunks::<TAG_BYTES>().0.to_vec()
}

/// Whether a store gets its ring now; rejects another than it has.
pub(crate) fn is_new_ring(stored: Option<&str>, given: Option<&str>) -> Result<bool, SessionError> {
    match (stored, given) {
        (Some(stored), Some(given)) if stored != given => {
            Err(SessionError::OtherKeyRing { stored: stored.to_owned(), given: given.to_owned() })
        }
        (stored, given) => Ok(stored.is_none() && given.is_some()),
    }
}

/// The data keys of users, as a store gets them from its ring.
#[derive(Clone, Default)]
pub(crate) struct UserKeys {
    pub(crate) ring: Option<Arc<dyn KeyRing>>,
}

impl UserKeys {
    /// The name of the ring.
    pub(crate) fn ring_name(&self) -> Option<&str> {
        self.ring.as_ref().map(KeyRing::name)
    }

    /// The key of a user, to read; `None` without a ring.
    pub(crate) async fn find(&self, app: &AppId, user: &UserId) -> Result<Option<Arc<Sealer>>, SessionError> {
        let Some(ring) = &self.ring else { return Ok(None) };
        let owner = KeyOwner::new(app.clone(), user.clone());
        let key = ring.get(&owner).await.map_err(failed)?;
        Ok(Some(Arc::new(Sealer::new(owner, key.as_ref()))))
    }

    /// The key of a user, to write values or a session: made for a user without one. `check` reads the user's values before: it
    /// fails where they are sealed, by a key that was destroyed.
    pub(crate) async fn make<C: Future<Output = Result<(), SessionError>>>(
        &self,
        app: &AppId,
        user: &UserId,
        check: impl FnOnce() -> C,
    ) -> Result<Option<Arc<Sealer>>, SessionError> {
        if let Some(sealer) = self.find(app, user).await?
            && sealer.key.is_none()
        {
            check().await?;
        }
        self.make_now(app, user).await
    }

    async fn make_now(&self, app: &AppId, user: &UserId) -> Result<Option<Arc<Sealer>>, SessionError> {
        let Some(ring) = &self.ring else { return Ok(None) };
        let owner = KeyOwner::new(app.clone(), user.clone());
        let key = ring.make(&owner).await.map_err(failed)?;
        Ok(Some(Arc::new(Sealer::new(owner, Some(&key)))))
    }

    /// The key of a user, to write to a session. It is made only for a session that is there and has no sealed content, which
    /// `is_sealed` finds out: a late write of an erased user makes no key, also before the rows are deleted.
    pub(crate) async fn find_or_make<C: Future<Output = Result<bool, SessionError>>>(
        &self,
        key: &SessionKey,
        is_sealed: impl FnOnce() -> C,
    ) -> Result<Option<Arc<Sealer>>, SessionError> {
        match self.find(&key.app, &key.user).await? {
            Some(sealer) if sealer.key.is_none() => match is_sealed().await? {
                true => Err(sealer.destroyed()),
                false => self.make_now(&key.app, &key.user).await,
            },
            found => Ok(found),
        }
    }

    /// Whether an erasure destroys the key of its user, which it does before it erases the rows.
    pub(crate) fn is_destroyed_by(&self, request: &EraseData) -> bool {
        matches!(request.target, EraseTarget::User { .. }) && !request.is_dry_run && self.ring.is_some()
    }

    /// The result of a repeated erasure of a user, who has no key: one that was made since is not of it.
    pub(crate) async fn check_repeated(
        &self,
        request: &EraseData,
        repeated: ErasedData,
    ) -> Result<ErasedData, SessionError> {
        let (app, user) = request.target.owner();
        let had_key = self.find(app, user).await?.is_some_and(|sealer| sealer.key.is_some());
        ErasedData { had_key, ..repeated }.of_repeated(request)
    }

    /// Destroys the key of a user; whether there was one.
    pub(crate) async fn destroy(&self, app: &AppId, user: &UserId) -> Result<bool, SessionError> {
        let Some(ring) = &self.ring else { return Ok(false) };
        ring.destroy(&KeyOwner::new(app.clone(), user.clone())).await.map_err(failed)
    }
}

fn failed(source: KeyRingError) -> SessionError {
    SessionError::KeyRing { source }
}

/// The treatment of the content of an operation by a store.
#[derive(Clone, Copy, Default)]
pub(crate) enum ContentKey<'a> {
    /// The store has no ring: content is stored as it is, and sealed content is an error.
    #[default]
    Missing,
    /// Content is sealed for a user.
    Of(&'a Sealer),
    /// Sealed content stays so, and is read as `null` or an event without content: for checks that need none.
    Unopened,
}

impl<'a> ContentKey<'a> {
    pub(crate) fn of(sealer: Option<&'a Arc<Sealer>>) -> Self {
        sealer.map_or(ContentKey::Missing, |sealer| ContentKey::Of(sealer))
    }

    /// Whether the store was opened with a ring.
    pub(crate) fn has_ring(self) -> bool {
        !matches!(self, ContentKey::Missing)
    }

    /// Whether the user has a key.
    pub(crate) fn has_key(self) -> bool {
        matches!(self, ContentKey::Of(sealer) if sealer.key.is_some())
    }

    /// Whether content is sealed.
    pub(crate) fn is_sealing(self) -> bool {
        matches!(self, ContentKey::Of(_))
    }

    /// Whether a text of a column is sealed, and stays so.
    #[cfg(feature = "postgres")]
    pub(crate) fn leaves_sealed(self, text: &str) -> bool {
        matches!(self, ContentKey::Unopened) && is_sealed(text)
    }

    /// The bytes of a text, of those that are stored: where content is sealed, each is taken for sealed, without bytes beside it.
    pub(crate) fn opened_bytes(self, stored: u64) -> u64 {
        if !self.is_sealing() {
            return stored;
        }
        let sealed = stored.saturating_sub(FORM.len() as u64).saturating_mul(3) / 4;
        sealed.saturating_sub((HEAD + TAG) as u64)
    }

    /// The text of a column: opened if it is sealed.
    pub(crate) fn open<'t>(self, place: Place<'_>, text: &'t str) -> Result<Cow<'t, str>, SessionError> {
        self.open_parts(place, text, || SealedParts::of(text))
    }

    /// The body of the event with this id: opened if it is sealed.
    pub(crate) fn open_body<'t>(self, id: &str, body: StoredBody<'t>) -> Result<Cow<'t, str>, SessionError> {
        let StoredBody { text, sealed } = body;
        self.open_parts(Place::event(id), text, || sealed)
    }

    fn open_parts<'t>(
        self,
        place: Place<'_>,
        text: &'t str,
        parts: impl FnOnce() -> Option<SealedParts>,
    ) -> Result<Cow<'t, str>, SessionError> {
        if !is_sealed(text) {
            return Ok(Cow::Borrowed(text));
        }
        match self {
            ContentKey::Missing => Err(SessionError::ring_missing()),
            ContentKey::Of(sealer) => sealer.open(place, parts()).map(Cow::Owned),
            ContentKey::Unopened if place.kind == EVENT => Ok(Cow::Borrowed(r#"{"v":1,"author":"sealed"}"#)),
            ContentKey::Unopened => Ok(Cow::Borrowed("null")),
        }
    }

    /// The text for a column: sealed if the store has a ring.
    pub(crate) fn seal(self, place: Place<'_>, turn: &[i64], text: String) -> Result<String, SessionError> {
        match self {
            ContentKey::Of(sealer) => sealer.seal(place, turn, &[], &text),
            ContentKey::Missing | ContentKey::Unopened => Ok(text),
        }
    }

    /// The text by which the list of sessions finds an event's: it tells nothing of sealed messages.
    pub(crate) fn listed(self, event: &Event) -> String {
        if self.is_sealing() { String::new() } else { event.searched() }
    }

    /// The text in place of a write to a scope, by which a repeat is known; `None` without a ring.
    pub(crate) fn operation_code(self, body: &str) -> Result<Option<String>, SessionError> {
        let code = self.code("operation", body.as_bytes())?;
        Ok(code.map(|code| format!("{MARK}{:032x}", u128::from_be_bytes(code))))
    }

    /// The code of content that is compared and never opened: without the user's key the content cannot be found by trying.
    /// `None` without a ring: then the content itself is compared.
    pub(crate) fn code(self, kind: &str, content: &[u8]) -> Result<Option<[u8; 16]>, SessionError> {
        let ContentKey::Of(sealer) = self else { return Ok(None) };
        // NOTE: of another key than content: no code tells anything about a cipher text.
        let code = blake3::derive_key("stepfold code of a user 1", &sealer.key()?.secret);
        let mut hasher = blake3::Hasher::new_keyed(&code);
        hasher.update(&(kind.len() as u64).to_le_bytes()).update(kind.as_bytes()).update(content);
        let mut code = [0; 16];
        code.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Ok(Some(code))
    }
}

/// The text for the body of an event: sealed if the store has a ring. The digests of its tags stay readable, and the note of
/// an erasure, which [leaves](Event::erased) no content.
pub(crate) fn stored_body<'t>(
    content: ContentKey<'_>,
    event: &Event,
    turn: &[i64],
    body: &'t str,
) -> Result<Cow<'t, str>, SessionError> {
    let ContentKey::Of(sealer) = content else { return Ok(Cow::Borrowed(body)) };
    if let Some(note) = event.erasure()
        && event.erased(note.clone())? == *event
    {
        return Ok(Cow::Borrowed(body));
    }
    let tags = event.tag_digests();
    sealer.seal(Place::event(event.id.as_str()), turn, tags.as_flattened(), body).map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::{ContentDigest, ContentForm, ContentSalt};
    use crate::ids::{Author, EventId, InvocationId};
    use crate::time::Timestamp;

    fn sealer(app: &str, user: &str, key: u8) -> Sealer {
        let owner = KeyOwner::new(AppId::new(app).unwrap(), UserId::new(user).unwrap());
        Sealer::new(owner, Some(&DataKey::from_bytes([key; DataKey::LENGTH])))
    }

    fn open(sealer: &Sealer, place: Place<'_>, text: &str) -> Result<String, String> {
        let opened = ContentKey::Of(sealer).open(place, text).map_err(|error| error.to_string());
        opened.map(Cow::into_owned)
    }

    #[test]
    fn a_sealed_text_opens_at_its_place_for_its_user_only() {
        let ada = sealer("a", "ada", 1);
        let sealed = ContentKey::Of(&ada).seal(Place::value("k"), &[1, 2], "\"secret\"".to_owned()).unwrap();
        assert!(sealed.starts_with("~2") && !sealed.contains("secret"), "{sealed}");
        assert_eq!(open(&ada, Place::value("k"), &sealed).unwrap(), "\"secret\"");
        // Another key, place, kind, user and application.
        for (sealer, place) in [
            (&ada, Place::value("other")),
            (&ada, Place::item("k")),
            (&ada, Place::input(0, "k")),
            (&sealer("a", "bob", 1), Place::value("k")),
            (&sealer("b", "ada", 1), Place::value("k")),
        ] {
            let error = open(sealer, place, &sealed).unwrap_err();
            assert!(error.contains("its seal does not fit"), "{error}");
        }
        let error = open(&sealer("a", "ada", 2), Place::value("k"), &sealed).unwrap_err();
        assert!(error.contains("its key was destroyed"), "{error}");
        let keyless = Sealer { key: None, ..sealer("a", "ada", 1) };
        assert!(open(&keyless, Place::value("k"), &sealed).unwrap_err().contains("its key was destroyed"));
        let error = ContentKey::Missing.open(Place::value("k"), &sealed).unwrap_err();
        assert!(error.to_string().contains("key ring"), "{error}");
    }

    #[test]
    fn no_changed_byte_opens() {
        let ada = sealer("a", "ada", 1);
        let (id, author) = (EventId::new("e1").unwrap(), Author::new("user").unwrap());
        let event = Event::new(id, InvocationId::new("e1").unwrap(), author, Timestamp::from_micros(0));
        let event = event.with_tag("request 1").with_tag("request 2");
        let body = event.to_body().unwrap();
        let sealed = stored_body(ContentKey::Of(&ada), &event, &[7], &body).unwrap();
        assert_eq!((sealed_tags(&sealed), event.tag_digests().len()), (event.tag_digests(), 2));
        assert_eq!(open(&ada, Place::event("e1"), &sealed).unwrap(), body);
        for place in 0..sealed.len() {
            let mut changed = sealed.clone().into_owned().into_bytes();
            changed[place] = if changed[place] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            // NOTE: without its mark it is no sealed text, and no JSON either.
            let is_unmarked = !is_sealed(&changed);
            assert!(is_unmarked || open(&ada, Place::event("e1"), &changed).is_err(), "{changed}");
        }
        for end in 1..sealed.len() {
            assert!(open(&ada, Place::event("e1"), &sealed[..end]).is_err(), "{end}");
        }
    }

    /// The digest of the earlier form covers its text, so the marks cannot be exchanged unnoticed.
    #[test]
    fn the_earlier_form_is_opened_too_and_has_another_digest() {
        let ada = sealer("a", "ada", 1);
        let sealed = ContentKey::Of(&ada).seal(Place::event("e"), &[1], "{}".to_owned()).unwrap();
        let earlier = sealed.replacen(FORM, TEXT_FORM, 1);
        assert_eq!(open(&ada, Place::event("e"), &earlier).unwrap(), "{}");
        let form = ContentForm::Salted(ContentSalt::random());
        let digest = |text: &str| ContentDigest::new(1, "e", Timestamp::from_micros(0), text, form);
        assert_eq!(digest(&sealed), digest(&sealed));
        // Another text, another byte, and the other mark.
        for other in [sealed.replacen("~2", "~2A", 1), format!("{sealed}.AAAA"), earlier] {
            assert_ne!(digest(&other), digest(&sealed), "{other}");
        }
    }

    #[test]
    fn the_bytes_of_a_text_follow_from_those_of_its_seal() {
        let ada = sealer("a", "ada", 1);
        for bytes in 0..9 {
            let sealed = ContentKey::Of(&ada).seal(Place::value("k"), &[], "x".repeat(bytes)).unwrap();
            assert_eq!(ContentKey::Of(&ada).opened_bytes(sealed.len() as u64), bytes as u64);
        }
        assert_eq!(ContentKey::Missing.opened_bytes(7), 7);
    }

    #[test]
    fn equal_texts_differ_by_their_turn_and_a_repeated_one_is_the_same() {
        let ada = sealer("a", "ada", 1);
        let seal = |turn| ContentKey::Of(&ada).seal(Place::value("k"), &[turn], "1".to_owned()).unwrap();
        assert_eq!(seal(1), seal(1));
        assert_ne!(seal(1), seal(2));
    }

    #[test]
    fn codes_are_those_of_a_user_and_a_kind() {
        let code = |user, key, kind| ContentKey::Of(&sealer("a", user, key)).code(kind, b"text").unwrap();
        assert_eq!(code("ada", 1, "input"), code("ada", 1, "input"));
        assert_ne!(code("ada", 1, "input"), code("ada", 1, "operation"));
        assert_ne!(code("ada", 1, "input"), code("ada", 2, "input"));
        assert_eq!(ContentKey::Missing.code("input", b"text").unwrap(), None);
    }
}
