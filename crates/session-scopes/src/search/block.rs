//! A block of an index: which words the messages of some events have.
//!
//! A block is stored in [`PARTS`] parts: first its messages, then its words, split by their hashes, so that a search reads
//! one part for each word. Numbers are written with seven bits a byte, the lowest first. The part of messages begins with
//! the [`FORMAT`]; a block of another one is as one that is damaged.

use stepfold_state_core::{WordIndex, for_each_search_hash};

/// The parts of a stored block.
pub(crate) const PARTS: usize = 64;
/// The parts that have words.
const SHARDS: u64 = PARTS as u64 - 1;
/// The form of blocks, and of the words in them. The first one began with the number of messages, which is not 0 where a block
/// has more bytes; the second one split words of Thai at their tones, the third one words of Hindi at their marks.
const FORMAT: [u8; 2] = [0, 4];
/// So many words count as a message.
const WORDS: usize = 256;
/// The bits of a word's hash, and its bytes in a part.
const HASH_BITS: u32 = 44;
const HASH_BYTES: usize = 6;

/// The part that has a word: hashes of one part are neighbours.
fn shard_of(hash: u64) -> usize {
    1 + usize::try_from((hash * SHARDS) >> HASH_BITS).unwrap_or_default()
}

/// The hashes of the words of a text, each once, at most so many.
pub(crate) fn hashes_of(text: &str, most: usize) -> Vec<u64> {
    let mut hashes = Vec::new();
    for_each_search_hash(text, |hash| {
        if hashes.len() < most && !hashes.contains(&hash) {
            hashes.push(hash);
        }
    });
    hashes
}

/// The parts that have these words, each once, and the part of messages.
pub(crate) fn shards_of(words: &[u64]) -> Vec<usize> {
    let mut shards: Vec<usize> = words.iter().map(|hash| shard_of(*hash)).chain([0]).collect();
    shards.sort_unstable();
    shards.dedup();
    shards
}

/// A message of a block: the version of its event, its place there, and the number of its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexedMessage {
    pub(crate) version: u64,
    pub(crate) place: u64,
    pub(crate) length: u64,
}

/// A block in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    /// The version before its first event.
    pub(crate) after: u64,
    /// The version of its last event.
    pub(crate) last: u64,
    messages: Vec<IndexedMessage>,
    /// Its texts are the messages, by their places in the block.
    words: WordIndex,
}

impl Block {
    pub(crate) fn beginning_after(after: u64) -> Self {
        Block { after, last: after, ..Block::default() }
    }

    /// Its size in messages, longer ones counted by their words.
    pub(crate) fn size(&self) -> usize {
        size_of(self.messages.len(), self.words.len())
    }

    pub(crate) fn is_full(&self) -> bool {
        self.size() >= super::FULL_BLOCK
    }

    pub(crate) fn begin_event(&mut self, version: u64) {
        self.last = version;
    }

    /// Adds a message of the event that was begun last.
    pub(crate) fn add_message(&mut self, place: usize, text: &str) {
        let length = self.words.add(self.next_number(), text);
        if length > 0 {
            let (place, length) = (place as u64, length as u64);
            self.messages.push(IndexedMessage { version: self.last, place, length });
        }
    }

    fn next_number(&self) -> u32 {
        u32::try_from(self.messages.len()).unwrap_or(u32::MAX)
    }

    /// The messages, in order.
    pub(crate) fn all_messages(&self) -> &[IndexedMessage] {
        &self.messages
    }

    /// Sorts the words that were added, so that they are found, and are in its parts.
    pub(crate) fn sort(&mut self) {
        self.words.sort();
    }

    /// The numbers of the messages with each of these words, and the counts there.
    pub(crate) fn find(&self, words: &[u64], mut each: impl FnMut(usize, usize, u64)) {
        for (word, hash) in words.iter().enumerate() {
            self.words.find(*hash, |message, count| each(word, message as usize, count.into()));
        }
    }

    /// Appends the block that follows.
    pub(crate) fn append(&mut self, next: &Block) {
        let before = self.next_number();
        self.last = next.last;
        self.messages.extend(&next.messages);
        self.words.append(&next.words, before);
    }

    /// The parts in which it is stored.
    pub(crate) fn parts(&self) -> Vec<Vec<u8>> {
        let mut parts = vec![Vec::new(); PARTS];
        parts[0].extend(FORMAT);
        put(&mut parts[0], self.messages.len() as u64);
        put(&mut parts[0], self.words.len() as u64);
        let mut version = self.after;
        for message in &self.messages {
            put(&mut parts[0], message.version - version);
            put(&mut parts[0], message.place);
            put(&mut parts[0], message.length);
            version = message.version;
        }
        let mut word = WordPlaces::default();
        self.words.for_each_word(|hash, message, count| {
            if hash != word.hash {
                word.end(&mut parts);
                word.hash = hash;
            }
            word.add(message, count);
        });
        word.end(&mut parts);
        parts
    }

    /// The block whose parts these are, in order; `None` if they are none.
    pub(crate) fn of_parts(after: u64, last: u64, parts: &[&[u8]]) -> Option<Self> {
        let (messages, parts) = parts.split_first()?;
        let messages = read_messages(after, last, messages)?;
        let mut words = WordIndex::default();
        for part in parts {
            let mut part = *part;
            while !part.is_empty() {
                let (hash, places) = next_word(&mut part)?;
                read_places(places, messages.len(), |message, count| {
                    let (message, count) = (u32::try_from(message), u32::try_from(count));
                    words.add_word(hash, message.unwrap_or(u32::MAX), count.unwrap_or(u32::MAX));
                })?;
            }
        }
        Some(Block { after, last, messages, words })
    }
}

/// The size of a block with so many messages, and words of these.
fn size_of(messages: usize, words: usize) -> usize {
    messages.max(words / WORDS)
}

/// The numbers of messages and words with which the part of messages begins, and the rest of it.
fn begin_messages(part: &[u8]) -> Option<(usize, usize, &[u8])> {
    let mut rest = part.strip_prefix(&FORMAT)?;
    let (messages, words) = (take(&mut rest)?, take(&mut rest)?);
    Some((usize::try_from(messages).ok()?, usize::try_from(words).ok()?, rest))
}

/// The size of a block, by the part of its messages.
pub(crate) fn size_of_block(part: &[u8]) -> usize {
    begin_messages(part).map_or(0, |(messages, words, _)| size_of(messages, words))
}

/// Reads the part of messages of a block; `None` if it is damaged.
pub(crate) fn read_messages(after: u64, last: u64, part: &[u8]) -> Option<Vec<IndexedMessage>> {
    let (count, _, mut part) = begin_messages(part)?;
    if count > part.len() / 3 {
        // NOTE: each has three bytes or more.
        return None;
    }
    let mut version = after;
    let mut messages = Vec::with_capacity(count);
    for _ in 0..count {
        version = version.checked_add(take(&mut part)?).filter(|version| *version <= last)?;
        messages.push(IndexedMessage { version, place: take(&mut part)?, length: take(&mut part)? });
    }
    part.is_empty().then_some(messages)
}

/// Calls `each` with the messages that have one of these words, and the counts there; `None` if the part is damaged.
pub(crate) fn find_in_part(
    mut part: &[u8],
    words: &[u64],
    messages: usize,
    mut each: impl FnMut(usize, usize, u64),
) -> Option<()> {
    while !part.is_empty() {
        let (hash, places) = next_word(&mut part)?;
        if let Some(word) = words.iter().position(|sought| *sought == hash) {
            read_places(places, messages, |message, count| each(word, message, count))?;
        }
    }
    Some(())
}

fn next_word<'p>(part: &mut &'p [u8]) -> Option<(u64, &'p [u8])> {
    let (hash, rest) = part.split_at_checked(HASH_BYTES)?;
    *part = rest;
    let hash = hash.iter().fold(0, |hash, byte| hash << 8 | u64::from(*byte));
    let length = usize::try_from(take(part)?).ok()?;
    let (places, rest) = part.split_at_checked(length)?;
    *part = rest;
    Some((hash, places))
}

/// The messages that have a word, as they are written: each with the distance to the one before, and the count where it is
/// not 1.
#[derive(Default)]
struct WordPlaces {
    hash: u64,
    bytes: Vec<u8>,
    /// The last message.
    before: u32,
}

impl WordPlaces {
    fn add(&mut self, message: u32, count: u32) {
        put(&mut self.bytes, u64::from(message - self.before) << 1 | u64::from(count != 1));
        if count != 1 {
            put(&mut self.bytes, u64::from(count));
        }
        self.before = message;
    }

    /// Adds the word to its part.
    fn end(&mut self, parts: &mut [Vec<u8>]) {
        if !self.bytes.is_empty() {
            let part = &mut parts[shard_of(self.hash)];
            part.extend_from_slice(&self.hash.to_be_bytes()[8 - HASH_BYTES..]);
            put(part, self.bytes.len() as u64);
            part.extend_from_slice(&self.bytes);
        }
        self.bytes.clear();
        self.before = 0;
    }
}

fn read_places(mut places: &[u8], messages: usize, mut each: impl FnMut(usize, u64)) -> Option<()> {
    let mut message = 0_usize;
    while !places.is_empty() {
        let place = take(&mut places)?;
        message = message.checked_add(usize::try_from(place >> 1).ok()?).filter(|place| *place < messages)?;
        each(message, if place & 1 == 0 { 1 } else { take(&mut places)? });
    }
    Some(())
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(lowest(number) | 0x80);
        number >>= 7;
    }
    bytes.push(lowest(number));
}

fn lowest(number: u64) -> u8 {
    number.to_le_bytes()[0]
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
