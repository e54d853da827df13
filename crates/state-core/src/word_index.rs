//! An index of the words of texts, in memory: in which texts a word is, and how often. A sorted list of numbers.

use crate::words::for_each_search_hash;

/// The bits of a word's hash, and of the number of a text.
const HASH_BITS: u32 = 44;
const TEXT_BITS: u32 = u64::BITS - HASH_BITS;
/// Odd numbers without a pattern.
const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const NEXT: u64 = 0xd6e8_feb8_6659_fd93;
/// The bits that one pass of sorting looks at, and the lists that are short enough for another way.
const PASS_BITS: u32 = 11;
const FEW: usize = 1_024;

/// The hash by which a word of [`for_each_search_word`](crate::for_each_search_word) is indexed: 44 bits, the same on
/// every machine and in every version, since indexes are stored. It withstands no search for words of equal hashes.
///
/// # Examples
/// ```
/// assert_eq!(stepfold_state_core::search_word_hash("bakery"), 0xdd9_ad78_c880);
/// ```
pub fn search_word_hash(word: &str) -> u64 {
    let mut hash = FIRST ^ word.len() as u64;
    let (chunks, rest) = word.as_bytes().as_chunks::<8>();
    for chunk in chunks {
        hash = folded(hash ^ u64::from_le_bytes(*chunk), NEXT);
    }
    last_folded(hash ^ number_of(rest))
}

fn last_folded(hash: u64) -> u64 {
    folded(folded(hash, NEXT), FIRST) >> (u64::BITS - HASH_BITS)
}

/// As [`search_word_hash`], of a word of fewer than eight bytes, the first of them the lowest.
pub(crate) fn hash_of_short(word: u64, length: usize) -> u64 {
    last_folded(FIRST ^ length as u64 ^ word)
}

/// The halves of a product, combined.
fn folded(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    let low = product as u64;
    low ^ (product >> u64::BITS) as u64
}

/// Up to seven bytes as a number, the first of them the lowest. Two of the same length differ.
pub(crate) const fn number_of(bytes: &[u8]) -> u64 {
    match *bytes {
        [] => 0,
        [a] => a as u64,
        [a, b] => u16::from_le_bytes([a, b]) as u64,
        [a, b, c] => u32::from_le_bytes([a, b, c, 0]) as u64,
        [a, b, c, d, ref rest @ ..] => number_of(rest) << 32 | u32::from_le_bytes([a, b, c, d]) as u64,
    }
}

/// An index of the words of texts: which texts have a word, and how often. It has hashes of words, no text, and takes eight
/// bytes a word.
///
/// # Examples
/// ```
/// use stepfold_state_core::{WordIndex, search_word_hash};
///
/// let mut index = WordIndex::default();
/// assert_eq!(index.add(0, "the fee of the bakery"), 2);
/// assert_eq!(index.add(3, "bakeries pay fees: market fees, entry fees"), 7);
/// index.sort();
///
/// let mut found = Vec::new();
/// index.find(search_word_hash("fee"), |text, count| found.push((text, count)));
/// assert_eq!(found, [(0, 1), (3, 3)]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct WordIndex {
    /// The words of texts, each as often as it is there: its hash, and below it the number of the text.
    words: Vec<u64>,
    /// The number of the first of them that are sorted.
    sorted: usize,
}

impl WordIndex {
    /// The highest number of a text.
    pub const MAX_TEXT: u32 = (1 << TEXT_BITS) - 1;
    /// The highest count of a word in a text; further occurrences do not count.
    pub const MAX_COUNT: u32 = 511;

    /// Adds the words of a text of this number, and returns how many it has; none if the number is too
    /// [high](WordIndex::MAX_TEXT). It is found after [sorting](WordIndex::sort).
    pub fn add(&mut self, text: u32, content: &str) -> usize {
        let before = self.words.len();
        if text <= WordIndex::MAX_TEXT {
            for_each_search_hash(content, |hash| self.words.push(hash << TEXT_BITS | u64::from(text)));
        }
        self.words.len() - before
    }

    /// Adds a word, by its hash, of a text, so many times up to [`MAX_COUNT`](WordIndex::MAX_COUNT).
    pub fn add_word(&mut self, hash: u64, text: u32, count: u32) {
        if text <= WordIndex::MAX_TEXT {
            let count = count.min(WordIndex::MAX_COUNT) as usize;
            self.words.extend(std::iter::repeat_n(hash << TEXT_BITS | u64::from(text), count));
        }
    }

    /// Adds another index, whose texts have numbers higher by so many.
    pub fn append(&mut self, other: &WordIndex, higher: u32) {
        self.words.extend(other.words.iter().map(|word| word + u64::from(higher)));
    }

    /// Sorts the words, so that all are found. The cost is that of all words, if any were added.
    pub fn sort(&mut self) {
        if self.sorted < self.words.len() {
            sort(&mut self.words);
            self.sorted = self.words.len();
        }
    }

    /// Calls `each` with the texts that have a word, by its hash, and its count there, in order. Finds what was
    /// [sorted](WordIndex::sort) last.
    pub fn find(&self, hash: u64, mut each: impl FnMut(u32, u32)) {
        let words = &self.words[..self.sorted];
        let first = words.partition_point(|word| word >> TEXT_BITS < hash);
        let of_word = words[first..].iter().take_while(|word| *word >> TEXT_BITS == hash);
        let mut of_word = of_word.peekable();
        while let Some(word) = of_word.next() {
            let mut count = 1;
            while of_word.next_if_eq(&word).is_some() {
                count += 1;
            }
            each(text_of(*word), WordIndex::MAX_COUNT.min(count));
        }
    }

    /// Calls `each` with the hash of each word, the texts that have it and its count there: ordered by hashes, and those of
    /// one by texts; with what was [sorted](WordIndex::sort) last.
    pub fn for_each_word(&self, mut each: impl FnMut(u64, u32, u32)) {
        let words = &self.words[..self.sorted];
        let Some(mut last) = words.first().copied() else { return };
        let mut count = 0;
        for word in words {
            if *word == last {
                count += 1;
                continue;
            }
            each(last >> TEXT_BITS, text_of(last), WordIndex::MAX_COUNT.min(count));
            (last, count) = (*word, 1);
        }
        each(last >> TEXT_BITS, text_of(last), WordIndex::MAX_COUNT.min(count));
    }

    /// The number of words, each as often as it was added.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether no text has a word.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
}

fn text_of(word: u64) -> u32 {
    u32::try_from(word & u64::from(WordIndex::MAX_TEXT)).unwrap_or_default()
}

/// Sorts numbers whose higher bits are hashes: by the 22 highest bits in two passes over all, then the few whose other bits
/// are out of order.
fn sort(words: &mut [u64]) {
    if words.len() < FEW {
        return words.sort_unstable();
    }
    let mut other = vec![0; words.len()];
    pass(words, &mut other, u64::BITS - 2 * PASS_BITS);
    pass(&other, words, u64::BITS - PASS_BITS);
    let high = |word: u64| word >> (u64::BITS - 2 * PASS_BITS);
    let mut done = 0;
    while let Some(place) = words[done..].windows(2).position(|pair| pair[0] > pair[1]) {
        let place = done + place;
        let first = done + words[done..place].partition_point(|word| high(*word) < high(words[place]));
        let same = words[place..].iter().take_while(|word| high(**word) == high(words[place])).count();
        done = place + same;
        words[first..done].sort_unstable();
    }
}

/// Copies numbers in the order of some of their bits; of equal ones the first stays first.
fn pass(from: &[u64], to: &mut [u64], shift: u32) {
    #[expect(clippy::cast_possible_truncation, reason = "the mask has fewer bits")]
    let digit = |word: u64| (word >> shift) as usize & ((1 << PASS_BITS) - 1);
    let mut places = [0_usize; 1 << PASS_BITS];
    for word in from {
        places[digit(*word)] += 1;
    }
    let mut next = 0;
    for place in &mut places {
        (*place, next) = (next, next + *place);
    }
    for word in from {
        let place = &mut places[digit(*word)];
        to[*place] = *word;
        *place += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;
    use crate::search_words;

    #[test]
    fn words_have_different_hashes() {
        let mut hashes = HashSet::new();
        for number in 0..100_000 {
            for word in
                [number.to_string(), format!("w{number}"), format!("a-long-word-with-{number}-inside")]
            {
                let hash = search_word_hash(&word);
                assert!(hash < 1 << HASH_BITS);
                assert!(hashes.insert(hash), "{word}");
            }
        }
        for length in 0..40 {
            assert!(hashes.insert(search_word_hash(&"\0".repeat(length))), "{length}");
        }
    }

    proptest::proptest! {
        #[test]
        fn found_is_what_was_added(texts in proptest::collection::vec("([a-f]{1,2} ){0,12}", 0..40)) {
            let (mut index, mut expected) = (WordIndex::default(), BTreeMap::new());
            for (number, text) in (0..).zip(&texts) {
                let words = search_words(text);
                proptest::prop_assert_eq!(index.add(number, text), words.len());
                for word in words {
                    *expected.entry((word, number)).or_insert(0) += 1;
                }
            }
            index.sort();
            let mut copy = WordIndex::default();
            let mut last = None;
            index.for_each_word(|hash, text, count| {
                assert!(last.replace((hash, text)) < Some((hash, text)));
                copy.add_word(hash, text, count);
            });
            copy.sort();
            for index in [index, copy] {
                let mut found = BTreeMap::new();
                let mut words: Vec<&String> = expected.keys().map(|(word, _)| word).collect();
                words.dedup();
                for word in words {
                    index.find(search_word_hash(word), |text, count| {
                        assert_eq!(found.insert((word.clone(), text), count), None);
                    });
                }
                proptest::prop_assert_eq!(&found, &expected);
            }
        }

        #[test]
        fn long_lists_are_sorted(mut words in proptest::collection::vec(0_u64..1 << 62, FEW..FEW * 3), equal in 0..60_u32) {
            for word in &mut words {
                *word = *word >> equal << equal.min(50);
            }
            let mut expected = words.clone();
            expected.sort_unstable();
            sort(&mut words);
            proptest::prop_assert_eq!(words, expected);
        }
    }

    #[test]
    fn a_frequent_word_and_a_high_number_are_bounded() {
        let mut index = WordIndex::default();
        assert_eq!(index.add(WordIndex::MAX_TEXT, &"again ".repeat(600)), 600);
        assert_eq!(index.add(WordIndex::MAX_TEXT + 1, "again"), 0);
        index.sort();
        let mut found = Vec::new();
        index.find(search_word_hash("again"), |text, count| found.push((text, count)));
        assert_eq!(found, [(WordIndex::MAX_TEXT, WordIndex::MAX_COUNT)]);
    }
}
