//! A block of an index: which words the messages of some events have.
//!
//! A block is stored in [`PARTS`] parts: first its messages, then its words, split by their hashes, so that a search reads
//! one part for each word. Numbers are written with seven bits a byte, the lowest first.

use stepfold_state_core::for_each_search_word;
use xxhash_rust::xxh3::xxh3_64;

/// The parts of a stored block.
pub(crate) const PARTS: usize = 64;
/// The parts that have words.
const SHARDS: u64 = PARTS as u64 - 1;
/// The most messages of a block: their numbers have eleven bits.
pub(crate) const MAX_MESSAGES: usize = 2_048;
/// The bits of a word's hash, of its message, and of its count there.
const HASH_BITS: u32 = 44;
const MESSAGE_BITS: u32 = 11;
const COUNT_BITS: u32 = 9;
/// The highest count of a word in a message that is told apart.
const MAX_COUNT: u64 = (1 << COUNT_BITS) - 1;
/// The bytes of a hash in a part.
const HASH_BYTES: usize = 6;

/// The hash by which a word is indexed.
pub(crate) fn word_hash(word: &str) -> u64 {
    xxh3_64(word.as_bytes()) >> (u64::BITS - HASH_BITS)
}

/// The part that has a word: hashes of one part are neighbours.
fn shard_of(hash: u64) -> usize {
    1 + usize::try_from((hash * SHARDS) >> HASH_BITS).unwrap_or_default()
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
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// The version before its first event.
    pub(crate) after: u64,
    /// The version of its last event.
    pub(crate) last: u64,
    messages: Vec<IndexedMessage>,
    /// A word of a message in each: its hash, the message's number and the count, from the highest bits to the lowest.
    entries: Vec<u64>,
    /// The hashes of one message, while it is added.
    hashes: Vec<u64>,
}

impl Block {
    pub(crate) fn beginning_after(after: u64) -> Self {
        Block { after, last: after, messages: Vec::new(), entries: Vec::new(), hashes: Vec::new() }
    }

    pub(crate) fn messages(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn begin_event(&mut self, version: u64) {
        self.last = version;
    }

    /// Adds a message of the event that was begun last.
    pub(crate) fn add_message(&mut self, place: usize, text: &str) {
        self.hashes.clear();
        for_each_search_word(text, |word| self.hashes.push(word_hash(word)));
        let length = self.hashes.len() as u64;
        if length == 0 {
            return;
        }
        let number = self.messages.len() as u64;
        self.messages.push(IndexedMessage { version: self.last, place: place as u64, length });
        self.hashes.sort_unstable();
        for same in self.hashes.chunk_by(|one, other| one == other) {
            self.entries.push(entry(same[0], number, same.len() as u64));
        }
    }

    /// The messages, in order.
    pub(crate) fn all_messages(&self) -> &[IndexedMessage] {
        &self.messages
    }

    /// The numbers of the messages with each of these words, and the counts there.
    pub(crate) fn find(&self, words: &[u64], mut each: impl FnMut(usize, usize, u64)) {
        for entry in &self.entries {
            if let Some(word) = words.iter().position(|hash| *hash == hash_of(*entry)) {
                each(word, message_of(*entry), count_of(*entry));
            }
        }
    }

    /// Appends the block that follows.
    pub(crate) fn append(&mut self, next: &Block) {
        let before = self.messages.len() as u64;
        self.last = next.last;
        self.messages.extend(&next.messages);
        let moved = next.entries.iter().map(|entry| entry + (before << COUNT_BITS));
        self.entries.extend(moved);
    }

    /// The parts in which it is stored.
    pub(crate) fn parts(&self) -> Vec<Vec<u8>> {
        let mut parts = vec![Vec::new(); PARTS];
        let mut version = self.after;
        put(&mut parts[0], self.messages.len() as u64);
        for message in &self.messages {
            put(&mut parts[0], message.version - version);
            put(&mut parts[0], message.place);
            put(&mut parts[0], message.length);
            version = message.version;
        }
        let mut entries = self.entries.clone();
        entries.sort_unstable();
        let mut places = Vec::new();
        for same in entries.chunk_by(|one, other| hash_of(*one) == hash_of(*other)) {
            let hash = hash_of(same[0]);
            places.clear();
            let mut before = 0;
            for entry in same {
                let message = message_of(*entry) as u64;
                put(&mut places, message - before);
                put(&mut places, count_of(*entry));
                before = message;
            }
            let part = &mut parts[shard_of(hash)];
            part.extend_from_slice(&hash.to_be_bytes()[8 - HASH_BYTES..]);
            put(part, places.len() as u64);
            part.extend_from_slice(&places);
        }
        parts
    }

    /// The block whose parts these are, in order; `None` if they are none.
    pub(crate) fn of_parts(after: u64, last: u64, parts: &[&[u8]]) -> Option<Self> {
        let (messages, words) = parts.split_first()?;
        let messages = read_messages(after, last, messages)?;
        let mut entries = Vec::new();
        for part in words {
            let mut part = *part;
            while !part.is_empty() {
                let (hash, places) = next_word(&mut part)?;
                read_places(places, messages.len(), |message, count| {
                    entries.push(entry(hash, message as u64, count));
                })?;
            }
        }
        Some(Block { after, last, messages, entries, hashes: Vec::new() })
    }
}

fn entry(hash: u64, message: u64, count: u64) -> u64 {
    hash << (MESSAGE_BITS + COUNT_BITS) | message << COUNT_BITS | count.min(MAX_COUNT)
}

fn hash_of(entry: u64) -> u64 {
    entry >> (MESSAGE_BITS + COUNT_BITS)
}

fn message_of(entry: u64) -> usize {
    (entry >> COUNT_BITS) as usize & (MAX_MESSAGES - 1)
}

fn count_of(entry: u64) -> u64 {
    entry & MAX_COUNT
}

/// The number of messages, by the part of them.
pub(crate) fn count_of_messages(mut part: &[u8]) -> usize {
    take(&mut part).and_then(|count| usize::try_from(count).ok()).unwrap_or_default()
}

/// Reads the part of messages of a block; `None` if it is damaged.
pub(crate) fn read_messages(after: u64, last: u64, mut part: &[u8]) -> Option<Vec<IndexedMessage>> {
    let count = usize::try_from(take(&mut part)?).ok().filter(|count| *count <= MAX_MESSAGES)?;
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

fn read_places(mut places: &[u8], messages: usize, mut each: impl FnMut(usize, u64)) -> Option<()> {
    let mut message = 0;
    while !places.is_empty() {
        message += usize::try_from(take(&mut places)?).ok()?;
        let count = take(&mut places)?;
        if message >= messages {
            return None;
        }
        each(message, count);
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
