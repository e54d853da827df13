//! The words by which text is searched: one tokenizer for tools, messages and stores, so that all find the same.

use std::borrow::Cow;

use crate::chat::{Message, ToolResult};

/// Words that are too common to tell texts apart.
const STOP_WORDS: [&str; 27] = [
    "a", "an", "and", "are", "as", "at", "be", "by", "can", "do", "for", "from", "how", "i", "in", "is",
    "it", "me", "my", "of", "on", "or", "that", "the", "this", "to", "with",
];

/// The length of the longest of [`STOP_WORDS`].
const LONGEST_STOP_WORD: usize = 4;

/// Calls `each` with the words of a text by which it is found, in order and in lower case.
///
/// Identifiers are split as prose is: `getUserInfo`, `get_user-info` and "get user infos" have the same words. Words with
/// inner capitals, such as "GitHub", are also one word. Scripts without spaces between words are split into pairs of
/// characters. English plurals become singular, and the most common words are left out. Numbers are words.
///
/// # Examples
/// ```
/// use stepfold_state_core::search_words;
///
/// assert_eq!(search_words("the fees of getUserInfo: 42").join(" "), "fee get user info getuserinfo 42");
/// assert_eq!(search_words("搜索用户").join(" "), "搜索 索用 用户");
/// ```
pub fn for_each_search_word(text: &str, mut each: impl FnMut(&str)) {
    let mut word = String::new();
    for run in text.split(|character: char| !character.is_alphanumeric()).filter(|run| !run.is_empty()) {
        // NOTE: most runs are lower-case ASCII, whose only piece and part is the run itself.
        if run.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()) {
            give(run, &mut word, &mut each);
            continue;
        }
        for piece in by_script(run) {
            if piece.starts_with(is_dense) {
                give_pairs(piece, &mut each);
            } else {
                give_parts(piece, &mut word, &mut each);
            }
        }
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
    let characters: Vec<char> = text.chars().collect();
    if characters.len() <= length {
        return text.to_owned();
    }
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

/// Scripts that are written without spaces between words, or with so few that words are long.
fn is_dense(character: char) -> bool {
    matches!(character, '\u{3040}'..='\u{30FF}' | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}'
        | '\u{AC00}'..='\u{D7AF}' | '\u{F900}'..='\u{FAFF}' | '\u{20000}'..='\u{3FFFF}' | '\u{0E00}'..='\u{0E7F}')
}

fn by_script(run: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut last = None;
    for (at, character) in run.char_indices() {
        let dense = is_dense(character);
        if last.is_some_and(|last| last != dense) {
            pieces.push(&run[start..at]);
            start = at;
        }
        last = Some(dense);
    }
    pieces.push(&run[start..]);
    pieces
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
    word.clear();
    if part.is_ascii() {
        word.push_str(part);
        word.make_ascii_lowercase();
    } else {
        word.push_str(&part.to_lowercase());
    }
    if word.len() <= LONGEST_STOP_WORD && STOP_WORDS.contains(&word.as_str()) {
        return;
    }
    make_singular(word);
    each(word);
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

/// Makes a common English plural singular. Both the index and the query use it, so it need not be correct, only
/// consistent.
fn make_singular(word: &mut String) {
    let is_short = word.len() < 4 || !word.is_ascii();
    if is_short || word.ends_with("ss") || word.ends_with("us") || word.ends_with("is") {
        return;
    }
    if word.ends_with("ies") {
        word.truncate(word.len() - 3);
        word.push('y');
    } else if ["sses", "xes", "ches", "shes"].iter().any(|ending| word.ends_with(ending)) {
        word.truncate(word.len() - 2);
    } else if word.ends_with('s') {
        word.truncate(word.len() - 1);
    }
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
        check("Größe ändern", "größe ändern");
    }

    #[test]
    fn the_longest_stop_word_is_known() {
        assert_eq!(STOP_WORDS.iter().map(|word| word.len()).max(), Some(LONGEST_STOP_WORD));
    }
}
