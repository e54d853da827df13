//! The words by which text is searched: one tokenizer for tools, messages and stores, so that all find the same.

use std::borrow::Cow;

use unicode_normalization::char::is_combining_mark;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::chat::{Message, ToolResult};
use crate::word_index::{hash_of_short, number_of, search_word_hash};

/// The kinds of bytes: what most text consists of, and what needs a closer look.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByteKind {
    /// ASCII that is in no word.
    Separator,
    /// A small letter or a digit.
    Plain,
    /// A capital, or a part of a character beyond ASCII.
    Other,
}

const BYTE_KINDS: [ByteKind; 256] = {
    let mut kinds = [ByteKind::Other; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        kinds[byte as usize] = match byte {
            b'a'..=b'z' | b'0'..=b'9' => ByteKind::Plain,
            b'A'..=b'Z' => ByteKind::Other,
            _ => ByteKind::Separator,
        };
        byte += 1;
    }
    kinds
};

/// Calls `each` with the words of a text by which it is found, in order and in lower case.
///
/// Identifiers are split as prose is: `getUserInfo`, `get_user-info` and "get user infos" have the same words. Words with
/// inner capitals, such as "GitHub", are also one word. Scripts without spaces between words are split into pairs of
/// characters. English plurals become singular, and the most common words are left out. Numbers are words.
///
/// Marks are part of the word that they are in: accents, signs of Indic vowels, tones. A word is found in each of its canonical
/// forms, composed or not (its Unicode normal form is NFC), and with or without joiners and soft hyphens.
///
/// # Examples
/// ```
/// use stepfold_state_core::search_words;
///
/// assert_eq!(search_words("the fees of getUserInfo: 42").join(" "), "fee get user info getuserinfo 42");
/// assert_eq!(search_words("搜索用户").join(" "), "搜索 索用 用户");
/// assert_eq!(search_words("cafe\u{301}"), search_words("caf\u{e9}"));
/// ```
pub fn for_each_search_word(text: &str, mut each: impl FnMut(&str)) {
    let bytes = text.as_bytes();
    let mut word = String::new();
    let mut at = 0;
    while at < bytes.len() {
        if kind_at(bytes, at) == ByteKind::Separator {
            at += 1;
            continue;
        }
        let start = at;
        while kind_at(bytes, at) == ByteKind::Plain {
            at += 1;
        }
        // NOTE: most words are small letters and digits of ASCII, and are given without a copy.
        if kind_at(bytes, at) == ByteKind::Separator {
            give_small(&text[start..at], &mut word, &mut each);
            continue;
        }
        let rest = &text[start..];
        let length = run_length(rest);
        give_run(&rest[..length], &mut word, &mut each);
        at = start + length;
        // NOTE: the character that ends a run is no letter; without a run it is the first one.
        at += rest[length..].chars().next().map_or(0, char::len_utf8);
    }
}

/// The length of the word, or of the words without a separator between them, with which a text begins.
fn run_length(text: &str) -> usize {
    let plain = text.bytes().take_while(|byte| BYTE_KINDS[usize::from(*byte)] == ByteKind::Plain).count();
    if kind_at(text.as_bytes(), plain) == ByteKind::Separator {
        return plain;
    }
    match text.chars().next() {
        Some(first) if begins_word(first) => {
            text.find(|character: char| !continues_word(character)).unwrap_or(text.len())
        }
        _ => 0,
    }
}

/// Letters and digits. A mark without one before it is in no word.
fn begins_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || (character.is_alphanumeric() && !is_combining_mark(character))
}

fn continues_word(character: char) -> bool {
    character.is_alphanumeric() || is_ignored(character) || is_combining_mark(character)
}

/// Characters that change how a word looks, and not which one it is: soft hyphens, joiners, and selectors of variants.
fn is_ignored(character: char) -> bool {
    matches!(character, '\u{AD}' | '\u{34F}' | '\u{200C}' | '\u{200D}' | '\u{2060}' | '\u{FE00}'..='\u{FE0F}'
        | '\u{E0100}'..='\u{E01EF}')
}

/// A word without ignored characters, in the form in which each character is composed with its marks (NFC).
fn composed(word: &str) -> Cow<'_, str> {
    // NOTE: ahead of the tables: most letters are of these, and none of them composes.
    let is_simple = |character: char| matches!(character, '\0'..='\u{AC}' | '\u{AE}'..='\u{2FF}' | '\u{400}'..='\u{481}' | '\u{4E00}'..='\u{9FFF}');
    if word.chars().all(is_simple)
        || (!word.contains(is_ignored) && is_nfc_quick(word.chars()) == IsNormalized::Yes)
    {
        return Cow::Borrowed(word);
    }
    Cow::Owned(word.chars().filter(|character| !is_ignored(*character)).nfc().collect())
}

/// Calls `each` with the [hashes](search_word_hash) of the words of [`for_each_search_word`], in order.
///
/// # Examples
/// ```
/// use stepfold_state_core::{for_each_search_hash, search_word_hash};
///
/// let mut hashes = Vec::new();
/// for_each_search_hash("the fees of getUserInfo", |hash| hashes.push(hash));
/// assert_eq!(hashes, ["fee", "get", "user", "info", "getuserinfo"].map(search_word_hash));
/// ```
pub fn for_each_search_hash(text: &str, mut each: impl FnMut(u64)) {
    let bytes = text.as_bytes();
    let mut room = String::new();
    let mut at = 0;
    // NOTE: eight bytes at a time, since the words of a session are read by the million.
    while let Some(next) = bytes[at..].first_chunk::<8>() {
        let chunk = u64::from_le_bytes(*next);
        let length = plain_bytes(chunk);
        let Some(after) = next.get(length).map(|byte| BYTE_KINDS[usize::from(*byte)]) else {
            at += give_hashes(&text[at..], &mut room, &mut each);
            continue;
        };
        if after == ByteKind::Other {
            at += give_hashes(&text[at..], &mut room, &mut each);
            continue;
        }
        let word = chunk & !(u64::MAX << (8 * length));
        if length >= 4 && next[length - 1] == b's' {
            give_hashes(&text[at..at + length], &mut room, &mut each);
        } else if STOP_WORDS[stop_place(word)] != word {
            each(hash_of_short(word, length));
        }
        at += length + 1;
    }
    for_each_search_word(&text[at..], |word| each(search_word_hash(word)));
}

/// Gives the hashes of the words of the letters and digits with which a text begins, and returns the length of these; of the
/// first character if it is neither. `room` is room to write a word in.
fn give_hashes(text: &str, room: &mut String, each: &mut impl FnMut(u64)) -> usize {
    let mut each = |word: &str| each(search_word_hash(word));
    let bytes = text.as_bytes();
    let capitals = usize::from(bytes.first().is_some_and(u8::is_ascii_uppercase));
    let plain =
        bytes[capitals..].iter().take_while(|byte| BYTE_KINDS[usize::from(**byte)] == ByteKind::Plain);
    let length = capitals + plain.count();
    // NOTE: long words, and those that begin a sentence, are a fifth of prose. They are one word each.
    if length > 0 && kind_at(bytes, length) == ByteKind::Separator {
        match capitals {
            0 => give_small(&text[..length], room, &mut each),
            _ => give(&text[..length], room, &mut each),
        }
        return length;
    }
    let length = run_length(text);
    if length == 0 {
        return text.chars().next().map_or(0, char::len_utf8);
    }
    give_run(&text[..length], room, &mut each);
    length
}

/// The number of small letters and digits of ASCII at the beginning of eight bytes, the first one being the lowest.
fn plain_bytes(chunk: u64) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * ONES;
    let low = chunk & !HIGH;
    // NOTE: the highest bit of a byte of each sum tells whether it is not below, or above, a bound.
    let within = |first: u8, last: u8| {
        let (not_below, above) = (0x80 - u64::from(first), 0x7f - u64::from(last));
        (low + not_below * ONES) & !(low + above * ONES)
    };
    let plain = (within(b'a', b'z') | within(b'0', b'9')) & !chunk & HIGH;
    (plain ^ HIGH).trailing_zeros() as usize / 8
}

/// The kind of a byte; the end is as a separator.
fn kind_at(bytes: &[u8], at: usize) -> ByteKind {
    bytes.get(at).map_or(ByteKind::Separator, |byte| BYTE_KINDS[usize::from(*byte)])
}

/// Gives the words of letters and digits without a separator between them.
fn give_run(run: &str, word: &mut String, each: &mut impl FnMut(&str)) {
    let composed = composed(run);
    let mut rest = &*composed;
    while let Some(first) = rest.chars().next() {
        let is_dense_piece = is_dense(first);
        // NOTE: a mark that many scripts share is of the script before it.
        let ends =
            |next: char| is_dense(next) != is_dense_piece && (!is_dense_piece || !is_combining_mark(next));
        let end = rest.find(ends).unwrap_or(rest.len());
        let (piece, next) = rest.split_at(end);
        if is_dense_piece {
            give_pairs(piece, each);
        } else {
            give_parts(piece, word, each);
        }
        rest = next;
    }
}

/// The words of a text, as [`for_each_search_word`] finds them.
///
/// # Examples
/// ```
/// assert_eq!(stepfold_state_core::search_words("HTTPServer"), ["http", "server", "httpserver"]);
/// ```
pub fn search_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for_each_search_word(text, |word| words.push(word.to_owned()));
    words
}

/// The part of a message that is searched and read: its text, or the text of its result.
///
/// # Examples
/// ```
/// use stepfold_state_core::chat::Message;
/// use stepfold_state_core::searched_text;
///
/// assert_eq!(searched_text(&Message::user("The fee is 5 euro.")), "The fee is 5 euro.");
/// ```
pub fn searched_text(message: &Message) -> Cow<'_, str> {
    message.tool_result().map_or_else(|| message.text(), ToolResult::text)
}

/// The part of a text, of this length in characters, that has most of these words, as far as that is easily found; else its
/// beginning. An ellipsis marks what is left out.
///
/// # Examples
/// ```
/// use stepfold_state_core::{search_excerpt, search_words};
///
/// let text = "A long story. ".repeat(50) + "The fee is 5 euro. " + &"And so on. ".repeat(50);
/// let excerpt = search_excerpt(&text, &search_words("fees"), 40);
/// assert_eq!(excerpt, "… tory. The fee is 5 euro. And so on. And …");
/// ```
pub fn search_excerpt(text: &str, words: &[String], length: usize) -> String {
    if text.chars().nth(length).is_none() {
        return text.to_owned();
    }
    // NOTE: the words are composed.
    let characters: Vec<char> = text.nfc().collect();
    let length = length.min(characters.len());
    let lower: Vec<char> =
        characters.iter().map(|character| character.to_lowercase().next().unwrap_or(*character)).collect();
    let mut places: Vec<usize> = Vec::new();
    for word in words.iter().map(|word| word.chars().collect::<Vec<char>>()) {
        places.extend(
            lower.windows(word.len().max(1)).enumerate().filter(|(_, part)| *part == word).map(|(at, _)| at),
        );
    }
    places.sort_unstable();
    let most = |start: &usize| places.iter().filter(|at| (*start..start + length / 2).contains(at)).count();
    let best = places.iter().copied().take(200).rev().max_by_key(most).unwrap_or(0);
    let start = best.saturating_sub(length / 4).min(characters.len() - length);
    let end = (start + length).min(characters.len());
    let part: String = characters[start..end].iter().collect();
    let (before, after) = (if start > 0 { "… " } else { "" }, if end < characters.len() { " …" } else { "" });
    format!("{before}{}{after}", part.trim())
}

/// Scripts that are written without spaces between words, or with so few that words are long: Chinese, Japanese, Korean, Thai,
/// Lao, Burmese and Khmer.
fn is_dense(character: char) -> bool {
    matches!(character, '\u{3005}'..='\u{3007}' | '\u{3040}'..='\u{30FF}' | '\u{3400}'..='\u{4DBF}'
        | '\u{4E00}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7AF}' | '\u{F900}'..='\u{FAFF}' | '\u{FF66}'..='\u{FF9F}'
        | '\u{20000}'..='\u{3FFFF}' | '\u{0E00}'..='\u{0EFF}' | '\u{1000}'..='\u{109F}' | '\u{1780}'..='\u{17FF}')
}

/// Gives each pair of neighbouring characters of a piece, or its only character.
fn give_pairs(piece: &str, each: &mut impl FnMut(&str)) {
    // NOTE: A single character is in too many texts, and a dictionary has many megabytes (docs/decisions/tools.md).
    let mut ends = piece.char_indices().map(|(at, character)| at + character.len_utf8()).skip(1).peekable();
    if ends.peek().is_none() {
        return each(piece);
    }
    for ((start, _), end) in piece.char_indices().zip(ends) {
        each(&piece[start..end]);
    }
}

fn give_parts(piece: &str, word: &mut String, each: &mut impl FnMut(&str)) {
    let mut parts = 0;
    by_capitals(piece, |part| {
        parts += 1;
        give(part, word, each);
    });
    if parts > 1 {
        give(piece, word, each);
    }
}

/// Gives a word in lower case and singular, unless it is too common. `word` is room to write it in.
fn give(part: &str, word: &mut String, each: &mut impl FnMut(&str)) {
    let mut small = std::mem::take(word);
    small.clear();
    if part.is_ascii() {
        small.push_str(part);
        small.make_ascii_lowercase();
    } else {
        // NOTE: a small letter may have a composed form where the capital has none.
        small.push_str(&composed(&part.to_lowercase()));
    }
    give_small(&small, word, each);
    *word = small;
}

/// Gives a word that is in lower case as a singular, unless it is too common. `word` is room to write it in.
///
/// Both the index and the query do so, so the singular need not be correct, only consistent.
fn give_small(small: &str, word: &mut String, each: &mut impl FnMut(&str)) {
    let bytes = small.as_bytes();
    if is_stop_word(bytes) {
        return;
    }
    if bytes.last() != Some(&b's') || bytes.len() < 4 || !small.is_ascii() {
        return each(small);
    }
    let shorter = |by: usize| small.get(..small.len() - by).unwrap_or(small);
    match bytes {
        [.., b's' | b'u' | b'i', b's'] => each(small),
        [.., b'i', b'e', b's'] => {
            word.clear();
            word.push_str(shorter(3));
            word.push('y');
            each(word);
        }
        [.., b's', b's', b'e', b's'] | [.., b'x', b'e', b's'] | [.., b'c' | b's', b'h', b'e', b's'] => {
            each(shorter(2));
        }
        _ => each(shorter(1)),
    }
}

/// The words that are too common to tell texts apart, as numbers, each at its [`stop_place`]; and 0, that of no word.
const STOP_WORDS: [u64; 64] = {
    let words: [&[u8]; 27] = [
        b"a", b"an", b"and", b"are", b"as", b"at", b"be", b"by", b"can", b"do", b"for", b"from", b"how",
        b"i", b"in", b"is", b"it", b"me", b"my", b"of", b"on", b"or", b"that", b"the", b"this", b"to",
        b"with",
    ];
    let mut places = [0; 64];
    let mut word = 0;
    while word < words.len() {
        let number = number_of(words[word]);
        assert!(
            places[stop_place(number)] == 0 && stop_place(number) != stop_place(0),
            "another factor is needed"
        );
        places[stop_place(number)] = number;
        word += 1;
    }
    places
};

/// The place of a word of at most four letters among [`STOP_WORDS`], by a factor for which these have different ones.
const fn stop_place(word: u64) -> usize {
    const FACTOR: u64 = 0x37b4_000b;
    (word.wrapping_mul(FACTOR) >> 26) as usize % 64
}

/// Whether a word is too common to tell texts apart.
fn is_stop_word(word: &[u8]) -> bool {
    word.len() <= 4 && STOP_WORDS[stop_place(number_of(word))] == number_of(word)
}

/// `getUserInfo` has three words, `HTTPServer` two, `s3Bucket` two.
fn by_capitals<'t>(piece: &'t str, mut each: impl FnMut(&'t str)) {
    let mut start = 0;
    let mut characters = piece.char_indices().peekable();
    let mut before: Option<char> = None;
    while let Some((at, here)) = characters.next() {
        if let Some(before) = before {
            let next = characters.peek().map(|(_, next)| *next);
            let begins_word = here.is_uppercase() && !before.is_uppercase();
            let ends_acronym =
                here.is_uppercase() && before.is_uppercase() && next.is_some_and(char::is_lowercase);
            if begins_word || ends_acronym {
                each(&piece[start..at]);
                start = at;
            }
        }
        before = Some(here);
    }
    each(&piece[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, words: &str) {
        assert_eq!(search_words(text).join(" "), words, "{text}");
    }

    #[test]
    fn identifiers_and_prose_have_the_same_words() {
        check("get_user-info", "get user info");
        check("getUserInfo", "get user info getuserinfo");
        check("Get the user's infos", "get user s info");
        check("HTTPServer", "http server httpserver");
        check("GitHub", "git hub github");
        check("s3.listBuckets(v2)", "s3 list bucket listbucket v2");
        check("queries boxes branches classes status analysis", "query box branch class status analysis");
        check("", "");
        check("the of to", "");
    }

    #[test]
    fn scripts_without_spaces_are_split_into_pairs() {
        check("搜索用户API", "搜索 索用 用户 api");
        check("搜", "搜");
        check("人々 ﾊﾟﾝﾔ", "人々 ﾊﾟ ﾟﾝ ﾝﾔ");
        check("ค่าน้ำ", "ค่ ่า าน น้ ้ำ");
        check("ຕະຫຼາດ ဈေး ផ្សារ", "ຕະ ະຫ ຫຼ ຼາ າດ ဈေ ေး ផ្ ្ស សា ារ");
        check("Größe ändern", "größe ändern");
    }

    const COMMON: [&str; 27] = [
        "a", "an", "and", "are", "as", "at", "be", "by", "can", "do", "for", "from", "how", "i", "in", "is",
        "it", "me", "my", "of", "on", "or", "that", "the", "this", "to", "with",
    ];

    /// The words as the rules say it, without any haste.
    fn plain_words(text: &str) -> Vec<String> {
        let (mut words, mut run) = (Vec::new(), String::new());
        for character in text.chars().chain([' ']) {
            match run.is_empty() {
                true if begins_word(character) => run.push(character),
                false if continues_word(character) => run.push(character),
                _ => add_run(&std::mem::take(&mut run), &mut words),
            }
        }
        words
    }

    fn plain_form(word: &str) -> String {
        word.chars().filter(|character| !is_ignored(*character)).nfc().collect()
    }

    fn add_run(run: &str, words: &mut Vec<String>) {
        let mut pieces: Vec<(bool, Vec<char>)> = Vec::new();
        for character in plain_form(run).chars() {
            let follows_dense = pieces.last().is_some_and(|(is_dense, _)| *is_dense);
            let here = is_dense(character) || (follows_dense && is_combining_mark(character));
            match pieces.last_mut().filter(|(before, _)| *before == here) {
                Some((_, piece)) => piece.push(character),
                None => pieces.push((here, vec![character])),
            }
        }
        for (is_dense, piece) in pieces {
            match &*piece {
                piece if !is_dense => add_parts(piece, words),
                [only] => words.push(only.to_string()),
                _ => words.extend(piece.windows(2).map(|pair| pair.iter().collect::<String>())),
            }
        }
    }

    fn add_parts(piece: &[char], words: &mut Vec<String>) {
        let piece: String = piece.iter().collect();
        let mut parts = Vec::new();
        by_capitals(&piece, |part| parts.push(part.to_owned()));
        if parts.len() > 1 {
            parts.push(piece.clone());
        }
        for part in parts {
            let small = plain_form(&part.to_lowercase());
            if !COMMON.contains(&small.as_str()) {
                words.push(singular(&small));
            }
        }
    }

    fn singular(word: &str) -> String {
        let is_kept = |ending: &&str| word.ends_with(*ending);
        if word.len() < 4 || !word.is_ascii() || ["ss", "us", "is"].iter().any(is_kept) {
            return word.to_owned();
        }
        if let Some(stem) = word.strip_suffix("ies") {
            return format!("{stem}y");
        }
        let ends = |ending: &str| word.ends_with(ending);
        let cut = match () {
            () if ["sses", "xes", "ches", "shes"].into_iter().any(ends) => 2,
            () => usize::from(ends("s")),
        };
        word[..word.len() - cut].to_owned()
    }

    proptest::proptest! {
        #[test]
        fn words_are_as_the_rules_say(
            text in "([A-E]?[a-e]{0,3}[xcshiuSH]{0,2}(ies|es|s|S)?|[A-Zb]{0,4}|[0-9]{1,3}|ß|É|İ|用户|a|กข|น้ำ|人々|ဈေး|the|of|from|[a-z0-9]{5,12}|[-_ .,，–'/:@`{\\[])*",
        ) {
            let words = plain_words(&text);
            let mut hashes = Vec::new();
            for_each_search_hash(&text, |hash| hashes.push(hash));
            let expected: Vec<u64> = words.iter().map(|word| search_word_hash(word)).collect();
            proptest::prop_assert_eq!(hashes, expected);
            proptest::prop_assert_eq!(search_words(&text), words);
        }
    }

    /// Letters, marks and joiners of many scripts: those that compose, change their order, or have forms that differ.
    const CHARACTERS: &str = "eEoσΣῼǰJıİdđ\u{30C}\u{301}\u{300}\u{323}\u{327}\u{345}\u{308}\u{1C4}\u{212B}\u{390}한각ᄒ\u{1161}\u{11AB}\u{11A8}かハ\u{3099}\u{309A}\
        हिन\u{94D}दीक\u{93C}\u{958}বা\u{9C7}\u{9BE}\u{9BC}தமிழ\u{BCD}\u{BC6}\u{BBE}ക\u{D4D}\u{200D}\u{200C}ပ\u{102F}\u{1037}กำ\u{E48}葛\u{E0100}של\u{5C1}\u{FB2A}مآ\u{653}ا\u{AD}\u{F900}";

    proptest::proptest! {
        /// A word is the same in each of its canonical forms, by its letters and by its hash.
        #[test]
        fn canonical_forms_have_the_same_words(
            characters in proptest::collection::vec(
                proptest::prop_oneof![
                    6 => proptest::sample::select(CHARACTERS.chars().collect::<Vec<_>>()),
                    1 => proptest::sample::select(vec![' ', '-', 'a', 's', '7', '=', '.']),
                    1 => proptest::char::any(),
                ],
                0..12,
            ),
        ) {
            let text: String = characters.iter().collect();
            let words = search_words(&text);
            for form in [text.nfc().collect::<String>(), text.nfd().collect()] {
                proptest::prop_assert_eq!(&search_words(&form), &words, "{:?}", form);
            }
            proptest::prop_assert_eq!(&plain_words(&text), &words);
            let mut hashes = Vec::new();
            for_each_search_hash(&text, |hash| hashes.push(hash));
            let expected: Vec<u64> = words.iter().map(|word| search_word_hash(word)).collect();
            proptest::prop_assert_eq!(hashes, expected);
        }
    }

    /// Of all characters there are, alone and inside of a word.
    #[test]
    fn each_character_is_found_in_its_other_form() {
        for character in ('\0'..'\u{30000}').chain('\u{E0000}'..'\u{E0200}') {
            for text in [format!("a{character}e"), format!("क{character}\u{301} か")] {
                let words = search_words(&text);
                assert_eq!(search_words(&text.nfd().collect::<String>()), words, "{text:?}");
                assert_eq!(search_words(&text.nfc().collect::<String>()), words, "{text:?}");
            }
        }
    }

    #[test]
    fn marks_are_part_of_their_word() {
        check("cafe\u{301} CAFE\u{301}", "café café");
        check("\u{1112}\u{1161}\u{11AB}\u{1100}\u{1173}\u{11AF}", "한글");
        check("हिन्दी में विद्यार्थी", "हिन्दी में विद्यार्थी");
        check("தமிழ்நாடு, পশ্চিমবঙ্গ", "தமிழ்நாடு পশ্চিমবঙ্গ");
        check("Donau\u{AD}dampf می\u{200C}خواهم 葛\u{E0100}城", "donaudampf میخواهم 葛城");
        check("\u{301}x ❤\u{FE0F} =\u{338}", "x");
    }

    #[test]
    fn common_words_are_left_out() {
        for word in COMMON {
            check(word, "");
            check(&word.to_uppercase(), "");
        }
        check("ax it's thee thesis", "ax s thee thesis");
    }
}
