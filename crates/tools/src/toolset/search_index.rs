//! An index over the names, descriptions and parameters of tools. BM25 from the library `bm25`.
//!
//! It has its own tokenizer: the library's default one is made for prose in one language, not for
//! `get_user-info`, and has a stemmer, word lists and a cache with global state.

use bm25::{Embedder, EmbedderBuilder, Embedding, Scorer, TokenEmbedder, TokenEmbedding, Tokenizer};
use serde_json::Value;

use crate::tool::Tool;

/// The maximum number of query words; further ones are ignored.
const MAX_QUERY_WORDS: usize = 32;
/// A word in the name of a tool has more weight than one in its description.
const NAME_WEIGHT: usize = 2;

/// The search index over the tools of a set.
pub(crate) struct ToolIndex {
    names: Vec<Box<str>>,
    scorer: Scorer<usize, u64>,
}

impl ToolIndex {
    pub(crate) fn new(tools: &[Tool]) -> Self {
        let texts: Vec<String> = tools.iter().map(text_of).collect();
        let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
        let embedder: Embedder<u64, WordTokenizer> =
            EmbedderBuilder::with_tokenizer_and_fit_to_corpus(WordTokenizer, &borrowed).build();
        let mut scorer = Scorer::new();
        for (index, text) in texts.iter().enumerate() {
            scorer.upsert(&index, embedder.embed(text));
        }
        ToolIndex { names: tools.iter().map(|tool| tool.name().into()).collect(), scorer }
    }

    /// The indexes of the best matching tools, best first; equal ones by name.
    pub(crate) fn search(&self, query: &str, limit: usize) -> Vec<usize> {
        let words = query_words(query);
        let words = words.iter().map(|word| TokenEmbedding { index: u64::embed(word), value: 1.0 }).collect();
        let mut found = self.scorer.matches(&Embedding(words));
        found.sort_by(|a, b| {
            // NOTE: Equal scores in the order of names: a search must give the same tools again.
            b.score.total_cmp(&a.score).then_with(|| self.names[a.id].cmp(&self.names[b.id]))
        });
        found.into_iter().take(limit).map(|document| document.id).collect()
    }
}

/// The words of a query, each once.
pub(super) fn query_words(query: &str) -> Vec<String> {
    let mut words = WordTokenizer.tokenize(query);
    let mut seen = std::collections::HashSet::new();
    // NOTE: A repeated word must not count twice.
    words.retain(|word| seen.insert(word.clone()));
    words.truncate(MAX_QUERY_WORDS);
    words
}

/// The indexed text: name, description, names and descriptions of parameters.
fn text_of(tool: &Tool) -> String {
    let spec = tool.spec();
    let mut text = String::new();
    for _ in 0..NAME_WEIGHT {
        text.push_str(&spec.name);
        text.push('\n');
    }
    text.push_str(&spec.description);
    add_parameters(&mut text, &spec.parameters);
    text
}

fn add_parameters(text: &mut String, schema: &Value) {
    let Value::Object(fields) = schema else {
        if let Value::Array(schemas) = schema {
            for schema in schemas {
                add_parameters(text, schema);
            }
        }
        return;
    };
    if let Some(Value::String(description)) = fields.get("description") {
        text.push('\n');
        text.push_str(description);
    }
    for (keyword, value) in fields {
        if let ("properties", Value::Object(properties)) = (keyword.as_str(), value) {
            for (name, property) in properties {
                text.push('\n');
                text.push_str(name);
                add_parameters(text, property);
            }
        } else if matches!(keyword.as_str(), "items" | "anyOf" | "oneOf" | "allOf" | "additionalProperties") {
            add_parameters(text, value);
        }
    }
}

/// Words that are too common to distinguish tools.
const STOP_WORDS: [&str; 27] = [
    "a", "an", "and", "are", "as", "at", "be", "by", "can", "do", "for", "from", "how", "i", "in", "is",
    "it", "me", "my", "of", "on", "or", "that", "the", "this", "to", "with",
];

/// Splits text and identifiers into words: `getUserInfo`, `get_user-info` and "get user infos" have the same
/// ones. Words with inner capitals, such as "GitHub", also match as one word. Scripts without spaces between
/// words are split into pairs of characters.
#[derive(Default)]
pub(super) struct WordTokenizer;

impl Tokenizer for WordTokenizer {
    fn tokenize(&self, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        for run in text.split(|character: char| !character.is_alphanumeric()).filter(|run| !run.is_empty()) {
            for piece in by_script(run) {
                if piece.starts_with(is_dense) {
                    push_pairs(&mut words, piece);
                } else {
                    push_words(&mut words, piece);
                }
            }
        }
        words
    }
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

fn push_pairs(words: &mut Vec<String>, piece: &str) {
    let characters: Vec<char> = piece.chars().collect();
    match &*characters {
        // NOTE: A single character is in too many texts, and a dictionary has many megabytes (docs/decisions/tools.md).
        [single] => words.push(single.to_string()),
        several => words.extend(several.windows(2).map(|pair| pair.iter().collect())),
    }
}

fn push_words(words: &mut Vec<String>, piece: &str) {
    let mut push = |word: &str| {
        let word = word.to_lowercase();
        if !STOP_WORDS.contains(&word.as_str()) {
            words.push(singular(word));
        }
    };
    let parts = by_capitals(piece);
    for part in &parts {
        push(part);
    }
    if parts.len() > 1 {
        push(piece);
    }
}

/// `getUserInfo` has three words, `HTTPServer` two, `s3Bucket` two.
fn by_capitals(piece: &str) -> Vec<&str> {
    let characters: Vec<(usize, char)> = piece.char_indices().collect();
    let mut parts = Vec::new();
    let mut start = 0;
    for window in 1..characters.len() {
        let (at, here) = characters[window];
        let (_, before) = characters[window - 1];
        let next = characters.get(window + 1).map(|(_, next)| *next);
        let begins_word = here.is_uppercase() && !before.is_uppercase();
        let ends_acronym =
            here.is_uppercase() && before.is_uppercase() && next.is_some_and(char::is_lowercase);
        if begins_word || ends_acronym {
            parts.push(&piece[start..at]);
            start = at;
        }
    }
    parts.push(&piece[start..]);
    parts
}

/// The singular of common English plurals. Both the index and the query use it, so it need not be correct,
/// only consistent.
fn singular(word: String) -> String {
    let is_short = word.len() < 4 || !word.is_ascii();
    if is_short || word.ends_with("ss") || word.ends_with("us") || word.ends_with("is") {
        return word;
    }
    if let Some(stem) = word.strip_suffix("ies") {
        return format!("{stem}y");
    }
    for ending in ["sses", "xes", "ches", "shes"] {
        if word.ends_with(ending) {
            return word[..word.len() - 2].to_owned();
        }
    }
    word.strip_suffix('s').map(str::to_owned).unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, words: &str) {
        assert_eq!(WordTokenizer.tokenize(text).join(" "), words, "{text}");
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
    fn scripts_without_spaces_are_cut_into_pairs() {
        check("搜索用户API", "搜索 索用 用户 api");
        check("搜", "搜");
        check("Größe ändern", "größe ändern");
    }
}
